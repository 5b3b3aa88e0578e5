"""The classifier: a network with its preprocessing, and its gradients."""
