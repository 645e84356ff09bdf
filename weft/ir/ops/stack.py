"""Stacks as values: what the gradient of a loop of unknown length keeps of every iteration.

Pushing makes a new stack and leaves the old one as it is, so stacks need no order of effects, and
their cotangents are stacks again: that of a push is a pop. Below its last element a stack holds
zeros without end; so a stack without elements is the zero of all stacks, and popping never fails.

For code generation `lower_stacks` turns stacks into handles, i64[] (0: no element), and these ops
into the `arena_` ops on them; elements live in the arena of the running step.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dtypes import int64
from weft.ir.errors import TypeRuleError
from weft.ir.graph import Block
from weft.ir.rules import dtype_attr, int_attr, shape_attr
from weft.ir.spec import OpSpec
from weft.ir.types import StackType, TensorType, Type

#: A stack in compiled code.
HANDLE = TensorType(int64)


def element_type(attrs: Attrs) -> TensorType:
    """The tensor that the attributes `dtype` and `shape` tell of."""
    return TensorType(dtype_attr(attrs, "dtype"), shape_attr(attrs, "shape"))


def _stack(op: str, given: Type) -> StackType:
    if not isinstance(given, StackType):
        raise TypeRuleError(f"op '{op}' takes a stack, got {given}")
    return given


def _new_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    depth = int_attr(attrs, "depth")
    if depth < 1:
        raise TypeRuleError(f"op 'stack_new': depth={depth}, must be at least 1")
    made = StackType(element_type(attrs))
    for _ in range(depth - 1):
        made = StackType(made)
    return [made]


def _push_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    stack = _stack("stack_push", types[0])
    if types[1] != stack.element:
        raise TypeRuleError(f"op 'stack_push': a {types[1]} does not go onto a {stack}")
    return [stack]


def _pop_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    stack = _stack("stack_pop", types[0])
    return [stack, stack.element]


def _add_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    stack = _stack("stack_add", types[0])
    if types[1] != stack or not stack.tensor.dtype.is_numeric:
        raise TypeRuleError(f"op 'stack_add': takes two stacks of numbers of one type, got {types}")
    return [stack]


def _handles(op: str, types: Sequence[Type]) -> None:
    for given in types:
        if given != HANDLE:
            raise TypeRuleError(f"op '{op}' takes the handle of a stack, i64[], got {given}")


def _arena_push_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _handles("arena_push", types[:1])
    if not isinstance(types[1], TensorType):
        raise TypeRuleError(f"op 'arena_push' takes a tensor, got {types[1]}")
    return [HANDLE]


def _arena_pop_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _handles("arena_pop", types)
    return [HANDLE, element_type(attrs)]


def _arena_add_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _handles("arena_add", types)
    return [HANDLE]


_ELEMENT = {"dtype": AttrSpec("dtype"), "shape": AttrSpec("shape")}
_LIMIT = {"limit": AttrSpec("int", -1)}
_NO_FOLD = frozenset({"no_fold"})

TABLE = (
    OpSpec(
        "stack_new", 0, _new_type, None,
        "A stack without elements: of tensors, or with depth > 1 of stacks.",
        {**_ELEMENT, "depth": AttrSpec("int", 1)}, _NO_FOLD,
    ),
    OpSpec(
        "stack_push", 2, _push_type, None,
        "The stack with the value on top; with limit >= 0 an error where it takes more bytes.",
        _LIMIT, _NO_FOLD,
    ),
    OpSpec(
        "stack_pop", 1, _pop_type, None,
        "(the stack without its top, the top); of a stack without elements itself and zeros.",
        traits=_NO_FOLD,
    ),
    OpSpec(
        "stack_add", 2, _add_type, None,
        "The sums of the elements of two stacks, beginning with their tops.", traits=_NO_FOLD,
    ),
    OpSpec(
        "arena_push", 2, _arena_push_type, None,
        "Push on the stack that a handle stands for; nested: the value is a handle, too.",
        {**_LIMIT, "nested": AttrSpec("bool", False)}, _NO_FOLD,
    ),
    OpSpec(
        "arena_pop", 1, _arena_pop_type, None,
        "Pop from the stack that a handle stands for; nested: the element is a handle, too.",
        {**_ELEMENT, "nested": AttrSpec("bool", False)}, _NO_FOLD,
    ),
    OpSpec(
        "arena_add", 2, _arena_add_type, None,
        "Add two stacks that handles stand for, with `depth` levels of stacks in all.",
        {**_ELEMENT, "depth": AttrSpec("int", 1)}, _NO_FOLD,
    ),
)  # fmt: skip

#: The ops of this module.
STACK_OPS = frozenset(spec.name for spec in TABLE)
