"""Sums of buffers that lie on GPUs."""
