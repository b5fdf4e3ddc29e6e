"""Kernel definitions and their readings: reference, trace, HIP source and figures."""
