"""Attacks: how far an input has to be moved at most, shown by an example."""
