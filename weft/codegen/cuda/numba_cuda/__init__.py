"""Kernels for GPUs by numba-cuda: their source as a module that it compiles, and PTX made so.

Enters: a `CudaKernel`. Leaves: Python text (`text.py`) and PTX (`compile.py`).
Imports: `codegen/cuda/source`, and numba-cuda where it is compiled."""
