"""Matrix products: blocking, the kernel over packed panels, prologues and epilogues.

Enters: `matmul` ops and `fused` ops that hold a product. Leaves: their kernel calls (`calls.py`).
Imports: `weft.codegen`'s own files, `llvm`, `scalar`, `tiles`, `nests`."""
