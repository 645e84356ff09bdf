"""The words that the benchmark models are written in: those of `weft bench`."""

from __future__ import annotations

from weft.frontend.tools.bench_workloads import (
    EPSILON,
    NumPy,
    Weft,
    jax_vocabulary,
    torch_vocabulary,
)

__all__ = ["EPSILON", "NumPy", "Weft", "jax_vocabulary", "torch_vocabulary"]
