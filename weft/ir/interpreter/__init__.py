"""The reference interpreter: the meaning of a graph, op by op in NumPy.

Enters: a graph, or one op, and NumPy arrays. Leaves: its results as NumPy arrays. Imports:
`weft/ir` itself, its `ops` and `analysis`. `evaluate` is the whole; the others carry out families
of ops."""
