"""Products and convolutions by NVIDIA's libraries, where those are faster than weft's kernels."""
