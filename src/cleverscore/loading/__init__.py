"""Loads models and data by name, also from untrusted files."""
