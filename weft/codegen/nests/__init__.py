"""Loop nests: what `fused` ops become, elementwise, reductions and row kernels.

Enters: a `fused` op. Leaves: its nest as data (`nest.py`, `rows.py`) and its calls (`calls.py`).
Imports: `weft.codegen`'s own files, `llvm`, `vector`, `scalar`, `tiles`."""
