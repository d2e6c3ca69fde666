"""Operators on an NVIDIA GPU, over CuPy, our own kernels and cuDNN."""
