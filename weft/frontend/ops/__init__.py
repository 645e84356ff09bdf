"""Public functions on tensors: argument checks, promotion, and the ops that they apply.

Enters: what users pass. Leaves: tensors, by `dispatch`: computed at once, or as ops of the trace.
Imports: `core`, `eager`. Read `dispatch`, `promotion`, then any other."""
