"""`wf.random`: functions of explicit keys, and `Generator`, which keeps its key in a variable.

Enters: keys, shapes, parameters. Leaves: tensors of random numbers, the same for the same key.
Imports: `core`, `ops`, `state`, `control`, `autodiff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.random.distributions import (
    bernoulli,
    beta,
    bits,
    categorical,
    cauchy,
    choice,
    dirichlet,
    exponential,
    fold_in,
    gamma,
    gumbel,
    key,
    laplace,
    logistic,
    normal,
    permutation,
    poisson,
    rademacher,
    randint,
    shuffle,
    split,
    truncated_normal,
    uniform,
)
from weft.frontend.random.generator import Generator, default_generator, set_random_seed

__all__ = [
    "Generator",
    "bernoulli",
    "beta",
    "bits",
    "categorical",
    "cauchy",
    "choice",
    "default_generator",
    "dirichlet",
    "exponential",
    "fold_in",
    "gamma",
    "gumbel",
    "key",
    "laplace",
    "logistic",
    "normal",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "set_random_seed",
    "shuffle",
    "split",
    "truncated_normal",
    "uniform",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
