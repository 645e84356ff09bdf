"""Products by NVIDIA's libraries, where they are faster than weft's own kernels."""
