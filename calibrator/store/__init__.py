"""The SQL store: windows, samples, positions, parameter versions."""
