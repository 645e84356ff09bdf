"""CUDA: the loop nests of `codegen/nests` as kernel source, and that source as machine code."""
