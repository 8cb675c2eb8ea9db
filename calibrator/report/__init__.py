"""Plots and pages for people: computing lives in calibrator.core, drawing here."""
