"""Fused loop nests to native kernels."""
