"""Rollouts: shadow, canary, all, with evidence."""
