"""About how long ops take on one core: for who decides what is worth a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.prices import streamed
from weft.passes.work import work

#: Nanoseconds: of an operation in a product of f32, in a vectorised loop, of an exp or log.
PRODUCT_NS, FLOP_NS, TRANSCENDENTAL_NS = 0.006, 0.02, 0.15
_PRODUCTS = ("matmul", "conv", "dot")
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
    each = FLOP_NS
    if op.name.startswith(_PRODUCTS) and op.result.type == op.operands[0].type:
        each = PRODUCT_NS
    return found.flops * each + found.transcendentals * TRANSCENDENTAL_NS + moved


def is_wide(ops: Iterable[Operation]) -> bool:
    """Whether most of the time goes into ops that are worth all threads themselves."""
    each = [_nanoseconds(op) for op in ops]
    return sum(ns for ns in each if ns >= CUT_NS) > WIDE * sum(each)
