"""Searches that follow gradients, many rows at a time."""
