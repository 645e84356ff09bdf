"""Kernel compiler: kernel source to LLVM IR, PTX and machine code, and the cubins on disk.

Enters: `CudaKernel` and a compute capability (`compile.py`). Leaves: `Cubin`, with what it takes of
a multiprocessor.
Imports: `codegen/cuda/source`, `codegen`'s LLVM, `ir`; NVIDIA's packages only inside functions."""
