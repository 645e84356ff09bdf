"""What tells eager calls apart: the dtypes and shapes of their operands, and their settings."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from weft.ir.dtypes import DType

_PLAIN = frozenset({int, bool, str, type(None), DType})


class NotPlain(Exception):
    """A call with an argument that native code does not take as it is."""


def static_key(value: Any) -> Hashable:
    """A key for a setting that tells 1 from 1.0 and True, and 0.0 from -0.0. `NotPlain` for what
    is no setting."""
    kind = type(value)
    if kind in _PLAIN:
        return (kind, value)
    if kind is float:
        return (kind, repr(value))
    if kind in (tuple, list):
        return (kind, *map(static_key, value))
    if isinstance(value, (np.dtype, type)):
        return value
    raise NotPlain


def is_operand(row: Any) -> bool:
    """Whether a row of a key is (shape, dtype, weak)."""
    return isinstance(row, tuple) and len(row) == 3 and isinstance(row[0], tuple)


def kind_key(key: Any) -> Hashable:
    """Of the key of a call that of its kind: of sizes only which are 0 and which are 1."""
    return tuple(
        (tuple([n if n < 2 else 2 for n in row[0]]), *row[1:]) if is_operand(row) else row
        for row in key
    )


def without_numbers(row: Any) -> Hashable:
    """A key without the numbers among its settings."""
    if not isinstance(row, tuple) or is_operand(row):
        return row  # type: ignore[no-any-return]
    return row[:1] if row[:1] in ((float,), (int,)) else tuple(map(without_numbers, row))
