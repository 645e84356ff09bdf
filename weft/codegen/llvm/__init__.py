"""LLVM: kernels emitted, compiled for this machine, linked in this process, and kept on disk.

Enters: kernels as functions that emit instructions. Leaves: their addresses.
Imports: `weft.ir`, llvmlite, and Numba for user kernels alone; nothing else of `codegen`."""
