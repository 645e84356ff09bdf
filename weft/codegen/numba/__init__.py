"""Kernels as readable Numba source, the second code generator: an op of a fused graph enters, one
or several Python functions leave, with the arguments of the calls that run them; Numba compiles
them under weft's kernel ABI. May import `codegen.nests`, `codegen.products` and `codegen.llvm`."""
