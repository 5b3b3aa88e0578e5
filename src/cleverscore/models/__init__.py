"""The classifier: a network with its preprocessing, and the gradients of its margins."""
