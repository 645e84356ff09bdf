"""About how long ops take on one core: for who decides what is worth a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.prices import streamed
from weft.ir.types import TensorType
from weft.passes.work import work

#: Nanoseconds: of an operation in a product of numbers of up to 4 bytes and of 8 (measured of all
#: dtypes; of complex ones the parts count), in a vectorised loop, of an exp or log.
PRODUCT_NS, WIDE_PRODUCT_NS, FLOP_NS, TRANSCENDENTAL_NS = 0.006, 0.009, 0.02, 0.15
_PRODUCTS = frozenset({"matmul", "conv", "conv_input", "conv_kernel"})
#: Of an op whose work depends on values: a loop of unknown length.
UNKNOWN_NS = 1e6
#: From here on ops are worth a thread of their own: handing them over and back takes 30 us.
DEAR_NS = 100_000.0
#: Ops of so many nanoseconds are cut over all threads; a step of which so much is cut is wide.
CUT_NS, WIDE = 12_000.0, 0.7


def nanoseconds(ops: Iterable[Operation]) -> float:
    """The ops one after the other, none fused. Ops whose sizes are not known count nothing."""
    return sum(map(_nanoseconds, ops))


def _nanoseconds(op: Operation) -> float:
    try:
        found = work(op)
    except (WeftError, ValueError):  # a size that depends on values
        return 0.0
    if found.flops is None or found.transcendentals is None:
        return UNKNOWN_NS
    moved = streamed(found.bytes_read + found.bytes_written)
    return found.flops * _flop(op) + found.transcendentals * TRANSCENDENTAL_NS + moved


def _flop(op: Operation) -> float:
    """Nanoseconds of one operation."""
    kind = op.results[0].type if op.results else None
    if op.name not in _PRODUCTS or not isinstance(kind, TensorType):
        return FLOP_NS
    part = kind.dtype.itemsize // (2 if kind.dtype.is_complex else 1)
    return PRODUCT_NS if part <= 4 else WIDE_PRODUCT_NS


def is_wide(ops: Iterable[Operation]) -> bool:
    """Whether most of the time goes into ops that are worth all threads themselves."""
    each = [_nanoseconds(op) for op in ops]
    return sum(ns for ns in each if ns >= CUT_NS) > WIDE * sum(each)
