"""What the tables of resources (hash tables, barriers, accumulators, stacks) share.

As queues, they are objects of the host that steps share: an op without operands names one and gives
its handle, ops of the host work on it, and only operands and control operands order these.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.ops.queue import part_type
from weft.ir.rules import fits
from weft.ir.spec import tensors
from weft.ir.types import HandleType, TensorType, Type

#: The traits of an op on a resource.
HOST = frozenset({"host", "no_fold", "no_cse", "no_dce"})
#: The traits of an op that names one.
NAMES = frozenset({"handle", "no_fold"})

#: The name of a size that depends on values, one for the whole op (see `ir.ops.dynamic`).
SIZES = {"sizes": AttrSpec("strs", ())}


def count_dim(op: str, attrs: Attrs) -> Dim:
    """The size that the attribute `sizes` names; None if it names none."""
    names = attrs["sizes"]
    assert isinstance(names, tuple)
    if len(names) > 1:
        raise TypeRuleError(f"op '{op}' has one size that depends on values, got {list(names)}")
    return SymbolicDim.symbol(str(names[0])) if names else None


def declared_parts(op: str, attrs: Attrs, count: int | None = None) -> tuple[TensorType, ...]:
    """The types in the attribute `parts`: `count` of them, or at least one."""
    given = attrs["parts"]
    assert isinstance(given, tuple)
    parts = tuple(part_type(str(p)) for p in given)
    if not parts or count not in (None, len(parts)):
        raise TypeRuleError(f"op '{op}' declares {count or 'at least 1'} parts, got {len(parts)}")
    return parts


def parts_of(op: str, types: Sequence[Type], *kinds: str) -> tuple[TensorType, ...]:
    """The parts of the handle that is the first operand. TypeRuleError if it is of none of these
    kinds."""
    handle = types[0] if types else None
    if not isinstance(handle, HandleType) or handle.kind not in kinds:
        wanted = " or ".join(f"a {kind}" for kind in kinds)
        raise TypeRuleError(f"op '{op}' takes {wanted} as its first operand, got {handle}")
    return handle.parts


def given_tensors(op: str, types: Sequence[Type], *names: str) -> list[TensorType]:
    """The operands after the handle, one for each name. TypeRuleError for another number."""
    values = tensors(op, types[1:])
    if len(values) != len(names):
        raise TypeRuleError(
            f"op '{op}' takes {len(names)} operands after the handle ({', '.join(names)}), got "
            f"{len(values)}"
        )
    return values


def check_operand(op: str, what: str, given: TensorType, wanted: TensorType) -> None:
    """TypeRuleError or ShapeError unless `given` can be a `wanted`."""
    if given.dtype is not wanted.dtype:
        raise TypeRuleError(f"op '{op}': {what} is {wanted}, got {given}")
    if not fits(given.shape, wanted.shape):
        raise ShapeError(f"op '{op}': {what} is {wanted}, got {given}")


def nothing_more(op: str, types: Sequence[Type], *kinds: str) -> tuple[TensorType, ...]:
    """`parts_of` for an op whose only operand is the handle."""
    parts = parts_of(op, types, *kinds)
    given_tensors(op, types)
    return parts
