"""What of a long list the default suite tries; CI's slow tests try the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from weft.ir.dtypes import DType

#: One of each kind, and those that have ways of their own.
USUAL = frozenset(
    {"bool", "int32", "int64", "uint8", "bfloat16", "float32", "float64", "complex64", "string"}
)


def usual(dtypes: Iterable[DType]) -> list[Any]:
    """Parameters: all the dtypes; those that are not in USUAL are slow tests."""
    return [_of(d, d.name in USUAL) for d in dtypes]


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """Parameters: all the values, tuples for several parameters; each `step`-th, from the first
    one on, is in the default suite, the others are slow tests."""
    return [_of(value, k % step == 0) for k, value in enumerate(values)]


def _of(value: Any, fast: bool) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=() if fast else pytest.mark.slow)
