"""The door to native kernels by an op's name: LLVM and the kernels load with the first op that is
worth it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.ir.cost.thresholds import (
    FEW_ELEMENTS,
    FEW_PAIRED,
    FEW_QUICK_STRINGS,
    FEW_STRINGS,
    MANY_EXAMPLES,
)
from weft.ir.ops import HAVE_KERNELS, strings
from weft.ir.spec import Array, Attrs
from weft.ir.types import TensorType


class _Limit(threading.local):
    """How many threads kernels called by this thread may use; None: as many as the pool has."""

    most: int | None = None


LIMIT = _Limit()


class Examples:
    """How many this process was to parse so far."""

    seen = 0


def with_threads(start: Callable[..., None], most: int) -> Callable[..., None]:
    """`start`, whose kernels use at most so many threads."""

    def limited(*given: Any) -> None:
        before, LIMIT.most = LIMIT.most, most
        try:
            start(*given)
        finally:
            LIMIT.most = before

    return limited


def native_results(
    op: str, arrays: Sequence[Array], attrs: Attrs, *, few: int = FEW_ELEMENTS,
    few_strings: int = FEW_STRINGS,
) -> list[Array] | None:  # fmt: skip
    """The results of an op on arrays of the types that it takes, by native kernels that run without
    the GIL. None where its reference is to carry it out: for fewer than `few` elements, where a
    call of NumPy takes no longer than those of kernels; for bad operands, whose error it raises;
    for an op without kernels."""
    if op not in HAVE_KERNELS:
        return None
    text = op in strings.BY_KERNELS
    if op == "sparse_pairs":  # the results are larger than the operands
        few = min(few, FEW_PAIRED)
    if op in strings.QUICK:
        few_strings = max(few_strings, FEW_QUICK_STRINGS)
    if max(a.size for a in arrays) < (few_strings if text else few):
        return None
    if arrays[0].dtype.hasobject != text:  # unique strings, say
        return None
    from weft.runtime.dynamic.rows import NATIVE

    try:
        return NATIVE[op](arrays, attrs)
    except (MemoryError, ValueError):  # NumPy's, for too large an array, which the caller names
        return None


def native_csv(
    records: Array, defaults: Sequence[Array], delimiter: str, quote: str, na_value: str,
    columns: Sequence[int],
) -> list[Array] | None:  # fmt: skip
    """The fields of CSV records, as `decode_csv` of `runtime/files/decoding.py` gives them; None
    where that is to do it."""
    if records.size < FEW_STRINGS:
        return None
    from weft.runtime.dynamic.strings import csv_columns

    return csv_columns(records, defaults, delimiter, quote, na_value, columns)


def native_examples(
    serialized: Array, names: Sequence[str], types: Sequence[TensorType],
    defaults: Mapping[int, Array],
) -> list[Array] | None:  # fmt: skip
    """The features of Examples, as `parse_examples` of `runtime/files/decoding.py` gives them; None
    where that is to do it: for bad arguments, and until so many Examples came that loading the
    kernels takes less."""
    Examples.seen += serialized.size
    if Examples.seen < MANY_EXAMPLES:
        return None
    from weft.runtime.dynamic.examples import example_features

    return example_features(serialized, names, types, defaults)
