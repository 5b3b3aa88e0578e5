"""Estimators: they measure gradient norms around an input, or search for the nearest point of another class."""
