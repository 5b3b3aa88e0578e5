"""Scores: how they are computed from measurements, decided and estimated in cost."""
