"""Core: tensors, and the trace that records what is done with them as a graph.

Enters: the user's arrays and Python functions. Leaves: `Tensor`s, and graphs of `weft.ir`.
Imports: nothing else of `weft.frontend`. Read `tensor`, then `trace`, then `function_trace`."""
