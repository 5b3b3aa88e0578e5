"""The network and how it is evaluated."""
