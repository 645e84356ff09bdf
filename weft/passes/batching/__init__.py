"""Batching: a block of ops for one example becomes one for all examples of a batch (`wf.vmap`).

Enters: a builder, a block, its operands and which of them have a batch axis. Leaves: the ops for
the whole batch, appended. Imports: `ir`, `rewriting`. A new op gets its row in `rules.py`."""
