"""Single ops on arrays that were checked before: `interpreter.evaluate_op` looks here first.

What the type rule says of an op depends on its attributes and on the dtypes and shapes of its
operands. Who has computed it once keeps it; from then on such an op is one call of its NumPy
reference, whose results are checked as ever.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from weft.ir.attributes import Attrs
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType
from weft.ir.graph import Operation
from weft.ir.ops import OPS
from weft.ir.quiet import quietly
from weft.ir.registered import REGISTERED
from weft.ir.spec import Array, Reference
from weft.ir.types import TensorType

#: For so many ops on operands of so many shapes; then it begins anew.
MOST = 4096
_PLAIN = frozenset({bool, int, str, DType, type(None)})


@dataclass(frozen=True, slots=True)
class Prepared:
    """An op, and the dtypes and shapes of its results."""

    reference: Reference
    attrs: Attrs
    types: tuple[tuple[Any, tuple[int, ...]], ...]

    def run(self, operands: Sequence[Array]) -> tuple[Array, ...] | None:
        """The results, which share no memory with the operands; None where they are not what they
        should be, or there are none: the long way says why."""
        try:
            found = quietly(self.reference, operands, self.attrs)
        except Exception:  # which the long way raises again, in words and with its place
            return None
        results = found if isinstance(found, list | tuple) else (found,)
        if len(results) != len(self.types):
            return None
        out = []
        for result, (dtype, shape) in zip(results, self.types, strict=True):
            array = result if type(result) is np.ndarray else np.asarray(result)
            if array.dtype != dtype or array.shape != shape:
                return None
            flags = array.flags
            owned = flags.owndata and flags.writeable and flags.c_contiguous
            if not owned or any(array is x for x in operands):
                array = np.array(array, order="C", copy=True)
            out.append(array)
        return tuple(out)


_prepared: dict[Hashable, Prepared] = {}


def prepared_key(op: str, operands: Sequence[Array], attrs: Attrs) -> Hashable:
    """What the results' types depend on; None for an op that is not prepared."""
    row: list[Any] = [op]
    for name, value in attrs.items():
        kind = type(value)
        if kind is tuple:
            if not all(type(v) is int for v in value):  # type: ignore[union-attr]
                return None
        elif kind not in _PLAIN:
            return None
        row.extend((name, kind, value))
    for a in operands:
        row += (a.dtype, a.shape)
    return tuple(row)


def prepared(key: Hashable) -> Prepared | None:
    """What was kept under a key."""
    return _prepared.get(key)


def prepare(key: Hashable, op: Operation) -> None:
    """Keep an op of weft's own that needs no more than its operands."""
    spec = OPS[op.name]
    if key is None or op.name in REGISTERED or op.regions or "host" in spec.traits:
        return
    types = tuple(
        (r.type.dtype.numpy, r.type.static_shape)
        for r in op.results
        if isinstance(r.type, TensorType) and r.type.is_static and r.type.dtype.numpy.kind != "O"
    )
    operands = [v.type for v in op.operands]
    numbers = all(isinstance(t, TensorType) and t.dtype.numpy.kind != "O" for t in operands)
    if len(types) == len(op.results) and numbers and spec.reference is not None:
        if len(_prepared) >= MOST:
            _prepared.clear()
        _prepared[key] = Prepared(spec.reference, op.attrs, types)
