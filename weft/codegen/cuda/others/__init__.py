"""CUDA kernels of the ops that are no loop nests."""
