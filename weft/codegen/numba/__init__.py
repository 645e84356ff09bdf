"""Kernels as Python that Numba compiles: a second code generator, and files to edit.

Enters: an op of a fused graph. Leaves: its kernels as source (`source.py`) and their calls
(`calls.py`). Imports: `weft.codegen`'s own files, `llvm`, `nests`, `products`,
`windows`, `kernels`.
"""
