"""CUDA kernels by op: the ops that are neither loop nests nor matrix products.

Enters: an op (`NAME_launches(op)`, a row of `codegen/cuda/lowerings.py`). Leaves: launches.
Imports: `codegen/cuda/` source, nests and products; `codegen`'s calls, nests and geometry of
windows; `ir`."""
