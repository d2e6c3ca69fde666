"""Winograd convolution for CPUs: the engine of --math winograd. Needs Numba."""
