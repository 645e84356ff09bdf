"""Row nests (`codegen/nests/rows.py`) as CUDA kernels: threads that share a row, and its passes."""
