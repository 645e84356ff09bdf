"""Kernels of the ops that are not loop nests, one module for each kind."""
