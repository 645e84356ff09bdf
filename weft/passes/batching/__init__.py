"""Batching: a block of ops for one example becomes one for all examples of a batch (`wf.vmap`), or
is written once for each shard of a mesh (`shards.py`).

Enters: a builder, a block, its operands and which of them have a batch axis, or are cut. Leaves:
the ops for the whole batch or all shards, appended. Imports: `ir`, `rewriting`. A new op gets its
row in `rules.py`."""
