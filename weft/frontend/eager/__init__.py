"""Eager execution: calls of public functions outside traces.

Enters: calls on arrays, from `ops`. Leaves: arrays, of large calls by native code, of small ones by
NumPy, both with the interpreter's bits. Imports: `core`, and `compile` when a call is compiled."""
