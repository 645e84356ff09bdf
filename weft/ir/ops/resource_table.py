"""Hash tables in a graph: keys to values of one shape (TensorFlow's LookupTable ops)."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec, ConstArray
from weft.ir.dtypes import int64, string
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
from weft.ir.rules import fits, int_attr
from weft.ir.spec import Array, OpSpec
from weft.ir.types import TOKEN, HandleType, TensorType, Type

#: The kinds of tables, by the attribute `kind`.
TABLE_KINDS = ("mutable", "static", "vocabulary")


def _table_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    key, value = declared_parts("table", attrs, 2)
    if key.shape or not (key.dtype.is_integer or key.dtype is string):
        raise TypeRuleError(f"op 'table': keys are integers or strings without axes, got {key}")
    if not value.is_static:
        raise ShapeError(f"op 'table': the shape of the values must be known, got {value}")
    kind = attrs["kind"]
    if kind not in TABLE_KINDS:
        raise TypeRuleError(
            f"op 'table': there is no kind {kind!r}", hint=f"they are {', '.join(TABLE_KINDS)}"
        )
    if kind == "vocabulary" and (int_attr(attrs, "buckets") < 1 or value != TensorType(int64)):
        raise TypeRuleError(
            "op 'table': one of kind 'vocabulary' has buckets, and ids of type i64[]"
        )
    _check_held("default", attrs, value)
    if kind != "mutable":
        count = _check_held("keys", attrs, TensorType(key.dtype, (None,))).shape[0]
        _check_held("values", attrs, TensorType(value.dtype, (count, *value.shape)))
    return [HandleType("table", (key, value))]


def _check_held(name: str, attrs: Attrs, wanted: TensorType) -> Array:
    """The array that the attribute is. TypeRuleError if it is none of that type."""
    held = attrs[name]
    array = held.array if isinstance(held, ConstArray) else None
    if array is None or array.dtype != wanted.dtype.numpy or not fits(array.shape, wanted.shape):
        given = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise TypeRuleError(f"op 'table': {name} are {wanted}, got {given}")
    return array


def _pairs(op: str, types: Sequence[Type]) -> None:
    key, value = parts_of(op, types, "table")
    keys, values = given_tensors(op, types, "keys", "values")
    check_operand(op, "keys", keys, TensorType(key.dtype, keys.shape))
    check_operand(op, "values", values, TensorType(value.dtype, (*keys.shape, *value.shape)))


def _lookup_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "table_lookup"
    key, value = parts_of(op, types, "table")
    if len(types) == 2:
        (keys,) = given_tensors(op, types, "keys")
    else:
        keys, defaults = given_tensors(op, types, "keys", "defaults")
        if not fits(defaults.shape, value.shape):
            wanted = TensorType(value.dtype, (*keys.shape, *value.shape))
            check_operand(op, "defaults", defaults, wanted)
        check_operand(op, "defaults", defaults, TensorType(value.dtype, defaults.shape))
    check_operand(op, "keys", keys, TensorType(key.dtype, keys.shape))
    return [TensorType(value.dtype, (*keys.shape, *value.shape))]


def _insert_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _pairs("table_insert", types)
    return [TOKEN]


def _import_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _pairs("table_import", types)
    return [TOKEN]


def _remove_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    key, _ = parts_of("table_remove", types, "table")
    (keys,) = given_tensors("table_remove", types, "keys")
    check_operand("table_remove", "keys", keys, TensorType(key.dtype, keys.shape))
    return [TOKEN]


def _export_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    key, value = nothing_more("table_export", types, "table")
    n = count_dim("table_export", attrs)
    return [TensorType(key.dtype, (n,)), TensorType(value.dtype, (n, *value.shape))]


def _size_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    nothing_more("table_size", types, "table")
    return [TensorType(int64)]


TABLE = (
    OpSpec(
        "table", 0, _table_type, None,
        "A handle to the hash table called `name`, which steps share; parts: of keys and values, "
        "which one that never changes has as attributes.",
        {
            "name": AttrSpec("str"),
            "parts": AttrSpec("strs"),
            "default": AttrSpec("array"),
            "kind": AttrSpec("str", "mutable"),
            "keys": AttrSpec("array", None, optional=True),
            "values": AttrSpec("array", None, optional=True),
            "buckets": AttrSpec("int", 0),
        },
        NAMES,
    ),
    OpSpec(
        "table_lookup", None, _lookup_type, None,
        "The values of the keys; a key that is not there has the default value, or that of a third "
        "operand.",
        traits=HOST,
    ),
    OpSpec(
        "table_insert", 3, _insert_type, None,
        "Store values for keys; the last of a duplicate key stays.", traits=HOST,
    ),
    OpSpec(
        "table_remove", 2, _remove_type, None,
        "Forget keys; those that are not there are skipped.", traits=HOST,
    ),
    OpSpec(
        "table_export", 1, _export_type, None,
        "All keys and all values, in the order in which the keys came.",
        SIZES, HOST,
    ),
    OpSpec(
        "table_import", 3, _import_type, None,
        "Hold exactly these keys and values.", traits=HOST,
    ),
    OpSpec("table_size", 1, _size_type, None, "How many keys there are.", traits=HOST),
)  # fmt: skip
