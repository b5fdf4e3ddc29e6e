"""The instruction-level program of a kernel and its readings."""
