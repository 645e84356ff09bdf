"""The cost model: what ops do, how long that takes on which target, and what is decided by it.

Enters: ops, and their names, dtypes and sizes. Leaves: counts, nanoseconds and the thresholds that
decisions are made by. Imports: `weft/ir` itself, its `ops` and `analysis`. `rates` is the table of
ops and targets, `thresholds` the table of decisions, each number with its unit; both are numbers
alone and load nothing. `work` counts what an op of a graph does, and says how long it takes."""
