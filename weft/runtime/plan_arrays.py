"""Constants of plans on disk: those of the traced graph by number, others by their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import as_dtype
from weft.ir.spec import ConstArray

Array = np.ndarray[Any, Any]
#: Plans whose constants, those of the traced graph not counted, are larger are not kept on disk.
MOST_CONSTANT_BYTES = 16 << 20


def pack_arrays(
    arrays: Sequence[Array], traced: Sequence[ConstArray]
) -> tuple[list[Any], bytes] | None:
    """A row for each array, as JSON has it, and bytes; None if these are too many. traced: the
    constants of the traced graph, which whoever reads the plan has."""
    known = {id(held.array): k for k, held in enumerate(traced)}
    rows: list[Any] = []
    stored: list[bytes] = []
    for array in arrays:
        if id(array) in known:
            rows.append(known[id(array)])
        else:
            rows.append([as_dtype(array.dtype).name, list(array.shape)])
            stored.append(array.tobytes())
    if sum(map(len, stored)) > MOST_CONSTANT_BYTES:
        return None
    return rows, b"".join(stored)


def unpack_arrays(
    rows: Sequence[Any], payload: bytes, first: int, traced: Sequence[ConstArray]
) -> list[Array]:
    """The opposite of `pack_arrays`, whose bytes begin at `first`."""
    arrays: list[Array] = []
    for row in rows:
        if isinstance(row, int):
            arrays.append(traced[row].array)
            continue
        dtype, shape = as_dtype(row[0]).numpy, tuple(row[1])
        count = int(np.prod(shape, dtype=np.int64))
        # a copy: kernels want it aligned
        held = np.frombuffer(payload, dtype, count, first).reshape(shape).copy()
        held.setflags(write=False)
        arrays.append(held)
        first += held.nbytes
    return arrays
