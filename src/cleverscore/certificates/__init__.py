"""Certificates: radii within which the class is proved not to change."""
