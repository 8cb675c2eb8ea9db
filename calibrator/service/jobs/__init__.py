"""Scheduled recalibration: schedules, runs, and who runs them."""
