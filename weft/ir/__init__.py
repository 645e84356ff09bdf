"""The intermediate representation: graphs, and the types, sizes and op specifications they use.

Enters: ops that the frontend or a pass builds. Leaves: immutable graphs. Imports: NumPy; of weft
nothing but these files, on which `ops`, `text`, `analysis`, and `interpreter` and `cost` stand, in
that order.
Read `graph`, `types`, `dims`, `spec`, then `ops/builder`, `text/printer`, `analysis/verify`."""
