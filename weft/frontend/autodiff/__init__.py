"""Automatic differentiation, as users call it.

Enters: functions, or tensors of a trace. Leaves: gradients, as further ops of the trace; of
looked-up rows as `IndexedSlices`. Imports: `core`, `ops`, `state`; the rules are in `passes`."""
