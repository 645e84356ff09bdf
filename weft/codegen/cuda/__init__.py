"""CUDA code generation: GPU kernels for ops, and their machine code; no GPU is needed for either.

Enters: an op of a graph (`lowerings.py`). Leaves: launches of kernel source, and cubins of it
(`cubins/compile.py`).
Imports: `codegen`'s calls, nests, products, windows, scalars and LLVM, and `ir`. Order: source <
nests < products < kernels < lowerings; source < emulator; source < cubins."""
