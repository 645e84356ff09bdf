"""Graphs and sessions as in TensorFlow 1.

Enters: a `wf.Graph`, fetches and feeds. Leaves: values of the fetches, by one step for each
definition. Imports: `core`, `ops`, `state`, `random`, `compile`. Read `graph`, `session`,
`compiling`."""
