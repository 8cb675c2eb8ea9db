"""The calibrator as a service: refresh, gate, publish."""
