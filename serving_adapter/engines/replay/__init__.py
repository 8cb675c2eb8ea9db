"""Recorded rounds of a real model, served as a live engine."""
