"""Runs: studies that are stored on disk, resumed, and computed on many cores or machines."""
