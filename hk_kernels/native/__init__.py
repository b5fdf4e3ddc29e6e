"""Kernels on hardware's terms: compile the HIP reading, and read what the compiler made of it."""
