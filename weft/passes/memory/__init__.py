"""Memory planning: where every value of a fused graph lives, and in which order its ops run.

Enters: a fused graph. Leaves: a `MemoryPlan` of slots and copies, arena ranges packed; `schedule`
gives the graph back in another order. Imports: `ir`, `rewriting`, `in_place.py`, `control`."""
