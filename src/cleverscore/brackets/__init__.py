"""Brackets: upper and lower bounds around scores, and whether they agree."""
