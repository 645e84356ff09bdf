"""Convolutions, pooling and other ops on windows.

Enters: `conv*` and `window_*` ops. Leaves: their kernel calls (`conv.py`, `reduce.py`).
Imports: `weft.codegen`'s own files, `llvm`, `scalar`, `tiles`, `products`."""
