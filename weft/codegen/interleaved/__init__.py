"""Decompositions of many small matrices at once, one in each lane of vectors.

Enters: an op on a batch of matrices. Leaves: its kernel call, or None where LAPACK does better.
Imports: `codegen/vector`, `codegen/llvm`, `codegen/call`."""
