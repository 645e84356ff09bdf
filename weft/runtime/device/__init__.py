"""Devices with memory of their own: a GPU, and one that is emulated with NumPy."""
