"""Transformations of functions: for a batch of arguments (`vmap`), and derivatives forward.

Enters: a Python function of tensors. Leaves: one that traces it into a body and appends what a pass
makes of the body (`passes/batching`, `passes/autodiff/forward_mode`). Imports: `autodiff`,
`control`, `ops`, `state`, `core`."""
