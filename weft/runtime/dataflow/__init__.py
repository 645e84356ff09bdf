"""Dataflow executor: control flow (Switch/Merge, frames and iterations), host ops, plans as nodes.

Enters: a graph lowered by `passes.control`. Leaves: `DataflowStep`, called with arrays. Imports:
`runtime.native`, `resources`, and `host_ops`. Read `executor`, then `build`, `run`."""
