"""`wf.random`: functions of explicit keys, and `Generator`, which keeps its key in a variable."""

from __future__ import annotations

from weft.frontend.random.keys import (
    bernoulli,
    bits,
    categorical,
    exponential,
    fold_in,
    gumbel,
    key,
    normal,
    permutation,
    randint,
    shuffle,
    split,
    truncated_normal,
    uniform,
)
from weft.frontend.random.state import Generator, default_generator, set_random_seed

__all__ = [
    "Generator",
    "bernoulli",
    "bits",
    "categorical",
    "default_generator",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "permutation",
    "randint",
    "set_random_seed",
    "shuffle",
    "split",
    "truncated_normal",
    "uniform",
]
