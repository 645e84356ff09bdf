"""What users add to weft: ops, their kernels and gradients, and Python functions in graphs."""
