"""Fusion: ops grouped into loop nests, products joined with the nests around them.

Enters: a simplified graph of stage `optimized`; read `fuse` first. Leaves: one of `fused` ops, each
a kernel. Imports: `ir`, `rewriting`, `simplify`, `in_place.py`, `memory` (byte ranges and
plans)."""
