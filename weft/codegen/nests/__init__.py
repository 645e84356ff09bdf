"""Loop nests: what `fused` ops become, elementwise, reductions and row kernels."""
