"""Calibration of speculative decoding: statistics, store, service, command line."""
