"""Stacks of the host in a graph: last in, first out (TensorFlow's Stack ops). What gradients of
loops use is the type `stack`; these are objects that steps share."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dtypes import int32
from weft.ir.graph import Block
from weft.ir.ops.dynamic import fill_sizes
from weft.ir.ops.resource import (
    HOST,
    NAMES,
    SIZES,
    check_operand,
    declared_parts,
    given_tensors,
    nothing_more,
    parts_of,
)
from weft.ir.spec import OpSpec
from weft.ir.types import TOKEN, HandleType, TensorType, Type


def _stack_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (part,) = declared_parts("host_stack", attrs, 1)
    return [HandleType("host_stack", (part,))]


def _push_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (part,) = parts_of("host_stack_push", types, "host_stack")
    (value,) = given_tensors("host_stack_push", types, "value")
    check_operand("host_stack_push", "value", value, part)
    return [value]


def _pop_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return fill_sizes("host_stack_pop", nothing_more("host_stack_pop", types, "host_stack"), attrs)


def _size_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    nothing_more("host_stack_size", types, "host_stack")
    return [TensorType(int32)]


def _close_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    nothing_more("host_stack_close", types, "host_stack")
    return [TOKEN]


TABLE = (
    OpSpec(
        "host_stack", 0, _stack_type, None,
        "A handle to the stack of the host called `name`, which steps share; parts: of its values.",
        {"name": AttrSpec("str"), "parts": AttrSpec("strs"), "max_size": AttrSpec("int", -1)},
        NAMES,
    ),
    OpSpec(
        "host_stack_push", 2, _push_type, None,
        "Put a value on top, and give it back.", traits=HOST,
    ),
    OpSpec("host_stack_pop", 1, _pop_type, None, "Take the value on top.", SIZES, HOST),
    OpSpec("host_stack_size", 1, _size_type, None, "How many values it holds now.", traits=HOST),
    OpSpec(
        "host_stack_close", 1, _close_type, None,
        "Free the values; later ops on it fail.", traits=HOST,
    ),
)  # fmt: skip
