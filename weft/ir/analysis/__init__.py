"""Analyses of graphs that change nothing: the verifier, effects, frames, deadness, index maps.

Enters: a graph, or an op. Leaves: facts and faults. Imports: `weft/ir` itself, its
`ops` and `text`."""
