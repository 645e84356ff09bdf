"""Kernel source: a typed subset of Python in which all GPU kernels are written.

Enters: elementwise ops, parameters and statements of a kernel. Leaves: `CudaKernel`, `Launch`, and
typed programs (`typecheck.py`).
Imports: `codegen`'s calls, faults, scalar and vector code, `ir`; nothing else of `codegen/cuda`."""
