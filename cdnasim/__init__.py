"""Predicts what wave schedules and grid orders do on AMD CDNA GPUs, and why."""

# Written here, not read with importlib.metadata: that would add 30 ms to every start.
__version__ = "0.1.0"
