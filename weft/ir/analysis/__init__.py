"""Analyses of graphs: the verifier, effects, frames, deadness, index maps, known values.

Enters: a graph, or an op. Leaves: facts and faults. Imports: `weft/ir` itself, its
`ops` and `text`."""
