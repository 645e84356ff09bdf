"""Loop nests as CUDA kernels: elementwise nests, folds, and row nests (`codegen/nests/rows.py`).

Enters: a `Nest` (`plain_nests.py`) or a `RowNest` (`row_kernel.py`) with its buffers. Leaves:
launches. Imports: `codegen/cuda/source`, `codegen`'s nests and calls, `ir`."""
