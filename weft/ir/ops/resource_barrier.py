"""Barriers in a graph: components arrive by key, complete elements leave (TensorFlow's Barrier)."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dims import Dim
from weft.ir.dtypes import int32, int64, string
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.ops.resource import (
    HOST,
    NAMES,
    SIZES,
    check_operand,
    count_dim,
    declared_parts,
    given_tensors,
    nothing_more,
    parts_of,
)
from weft.ir.rules import int_attr
from weft.ir.spec import OpSpec
from weft.ir.types import TOKEN, HandleType, TensorType, Type


def _barrier_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    parts = declared_parts("barrier", attrs)
    if not all(p.is_static for p in parts):
        raise ShapeError("op 'barrier': the shapes of the components must be known")
    return [HandleType("barrier", parts)]


def _insert_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "barrier_insert_many"
    parts = parts_of(op, types, "barrier")
    number = int_attr(attrs, "component")
    if not 0 <= number < len(parts):
        raise TypeRuleError(f"op '{op}': component={number}, but there are {len(parts)}")
    keys, values = given_tensors(op, types, "keys", "values")
    if not values.rank:
        raise ShapeError(f"op '{op}': the values need a first axis that counts the elements")
    part = parts[number]
    check_operand(op, "keys", keys, TensorType(string, values.shape[:1]))
    check_operand(
        op, f"component {number}", values, TensorType(part.dtype, (values.shape[0], *part.shape))
    )
    return [TOKEN]


def _taken(op: str, types: Sequence[Type], n: Dim) -> list[Type]:
    parts = nothing_more(op, types, "barrier")
    values = [TensorType(p.dtype, (n, *p.shape)) for p in parts]
    return [TensorType(int64, (n,)), TensorType(string, (n,)), *values]


def _take_many_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return _taken("barrier_take_many", types, _count("barrier_take_many", attrs))


def _take_up_to_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _count("barrier_take_up_to", attrs)
    return _taken("barrier_take_up_to", types, count_dim("barrier_take_up_to", attrs))


def _count(op: str, attrs: Attrs) -> int:
    n = int_attr(attrs, "n")
    if n < 0:
        raise ShapeError(f"op '{op}': n={n} is negative")
    return n


def _close_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    nothing_more("barrier_close", types, "barrier")
    return [TOKEN]


def _ready_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    nothing_more("barrier_ready_size", types, "barrier")
    return [TensorType(int32)]


def _incomplete_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    nothing_more("barrier_incomplete_size", types, "barrier")
    return [TensorType(int32)]


TABLE = (
    OpSpec(
        "barrier", 0, _barrier_type, None,
        "A handle to the barrier called `name`, which steps share; parts: of its components.",
        {"name": AttrSpec("str"), "parts": AttrSpec("strs")}, NAMES,
    ),
    OpSpec(
        "barrier_insert_many", 3, _insert_type, None,
        "Give one component of the elements of some keys their values.",
        {"component": AttrSpec("int")}, HOST,
    ),
    OpSpec(
        "barrier_take_many", 1, _take_many_type, None,
        "Take `n` complete elements: indices, keys and the components, stacked; waits for them.",
        {"n": AttrSpec("int")}, HOST,
    ),
    OpSpec(
        "barrier_take_up_to", 1, _take_up_to_type, None,
        "As barrier_take_many; those that are left when it is closed will do.",
        {"n": AttrSpec("int"), **SIZES}, HOST,
    ),
    OpSpec(
        "barrier_close", 1, _close_type, None,
        "Accept no new keys; with cancel_pending those that miss components are dropped.",
        {"cancel_pending": AttrSpec("bool", False)}, HOST,
    ),
    OpSpec(
        "barrier_ready_size", 1, _ready_type, None,
        "How many elements are complete now.", traits=HOST,
    ),
    OpSpec(
        "barrier_incomplete_size", 1, _incomplete_type, None,
        "How many keys miss components now.", traits=HOST,
    ),
)  # fmt: skip
