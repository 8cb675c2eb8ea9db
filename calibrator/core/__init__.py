"""Pure NumPy statistics and fits: no I/O, no clock, no logging."""
