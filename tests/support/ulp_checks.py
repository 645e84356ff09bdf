"""Errors of float functions in units in the last place, and how large they may be."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from weft.codegen.vector.functions import ULP_BOUND

Function = Callable[..., np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(x) / (1 + np.exp(x)))


# Taken in long double, so good as truth for f64 too.
ELEMENTARY: dict[str, Function] = {
    "sigmoid": sigmoid,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    **{op: getattr(np, op) for op, _ in ULP_BOUND if hasattr(np, op)},
}

# Where long double is double, the truth itself is half an ULP off.
SLACK = 0.0 if np.finfo(np.longdouble).nmant > 60 else 0.5


def errors_in_ulp(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|got - exact| in units of the last place that ``got``'s dtype has at ``exact``."""
    limits = ml_dtypes.finfo(got.dtype)
    exact, wide = exact.astype(np.longdouble), got.astype(np.longdouble)
    magnitude = np.abs(exact)
    regular = (magnitude > 0) & np.isfinite(magnitude)
    exponent = np.floor(np.log2(np.where(regular, magnitude, 1)))
    exponent = np.maximum(exponent, limits.minexp)
    unit = np.ldexp(np.longdouble(1), (exponent - limits.nmant).astype(int))
    rounded = exact.astype(np.float64).astype(got.dtype).astype(np.longdouble)
    same = (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))
    comparable = np.isfinite(wide) & np.isfinite(exact)
    return np.where(same, 0, np.where(comparable, np.abs(wide - exact) / unit, np.inf))


def assert_within(
    bound: float, got: np.ndarray, exact: np.ndarray, args: tuple[np.ndarray, ...]
) -> None:
    """Error within bound; where the result is 0, the sign of that 0 too."""
    errors = errors_in_ulp(got, exact)
    worst = int(np.argmax(errors))
    case = (*(a[worst] for a in args), got[worst], exact[worst])
    assert errors[worst] <= bound + SLACK, f"{float(errors[worst]):.3f} ULP at {case}"
    zero = (got == 0) & (exact == 0)
    assert (np.signbit(got) == np.signbit(exact))[zero].all()
