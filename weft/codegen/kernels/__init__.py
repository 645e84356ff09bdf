"""Kernels of the ops that are not loop nests, one module a kind; `lowerings.py` is the table.

Enters: an op. Leaves: its kernel calls.
Imports: all of `codegen` but `loops`, `steps` and `cuda`."""
