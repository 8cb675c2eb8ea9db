"""Measurements against peers and against simpler code, as ratios. ``make bench`` runs them all."""
