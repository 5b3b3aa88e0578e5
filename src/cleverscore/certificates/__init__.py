"""Radii within which the prediction is proved."""
