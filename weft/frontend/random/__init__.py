"""`wf.random`: functions of explicit keys, and `Generator`, which keeps its key in a variable."""

from __future__ import annotations

from weft.frontend.random.distributions import cauchy, choice, laplace, logistic, rademacher
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
from weft.frontend.random.rejection import beta, dirichlet, gamma, poisson
from weft.frontend.random.state import Generator, default_generator, set_random_seed

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
