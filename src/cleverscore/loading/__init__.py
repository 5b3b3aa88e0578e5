"""Models and data by name."""
