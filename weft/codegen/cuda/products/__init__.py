"""Matrix products as CUDA kernels, with the nest that follows (the epilogue) in the same kernel.

Enters: a `matmul`, or a `fused` op that holds one (`matmul.py`). Leaves: launches; as data for
libraries, `FusedProduct` (`fused.py`).
Imports: `codegen/cuda/` source and nests, `codegen`'s products, nests and calls, `ir`."""
