"""Makers of ops on tables, barriers, accumulators and stacks (see `graph_makers`)."""

from __future__ import annotations

from typing import Any

from graphs import GraphMaker, Unfit, random_array

from weft.ir.dtypes import DType, float16, float32, float64, int32, int64, string
from weft.ir.graph import Value
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType

FLOATS: list[DType] = [float16, float32, float64]


def resource(m: GraphMaker, op: str) -> None:
    """A resource and one op on it."""
    family = next(f for prefix, f in _FAMILIES.items() if op.startswith(prefix))
    family(m, op)
    m.pool = [v for v in m.pool if isinstance(v.type, TensorType)]


def _name(m: GraphMaker, kind: str) -> str:
    return f"{kind}{sum(o.name == kind for o in m.builder.ops)}"


def _sizes(m: GraphMaker) -> tuple[str, ...]:
    number = sum("sizes" in o.attrs for o in m.builder.ops)
    return m.pick([(), (f"n{number}",)])


def table(m: GraphMaker, op: str) -> None:
    key = m.pick([int32, int64, string])
    dtype, shape = m.dtype([float32, int64]), m.pick([(), (2,), (0, 3)])
    value = TensorType(dtype, shape)
    default = ConstArray(random_array(dtype, shape, m.seed()))
    held: dict[str, ConstArray] = {}
    kind = m.pick(["mutable", "static", "vocabulary"])
    if kind == "vocabulary" and value != TensorType(int64):
        kind = "static"
    if kind != "mutable":
        held["keys"] = ConstArray(random_array(key, (3,), m.seed()))
        held["values"] = ConstArray(random_array(dtype, (3, *shape), m.seed()))
    handle = m.emit1(
        "table",
        kind=kind,
        **held,
        buckets=m.int(1, 2),
        name=_name(m, "table"),
        parts=(f"{key.short}[]", str(value)),
        default=default,
    )
    keys_shape = m.pick([(), (3,), (2, 1)])
    keys = m.like(key, keys_shape)
    many = (*keys_shape, *shape)
    match op:
        case "table_lookup":
            defaults = [[], [m.like(dtype, shape)], [m.like(dtype, many)]]
            m.emit(op, [handle, keys, *m.pick(defaults)])
        case "table_insert" | "table_import":
            m.emit(op, [handle, keys, m.like(dtype, many)])
        case "table_remove":
            m.emit(op, [handle, keys])
        case "table_export":
            m.emit(op, [handle], sizes=_sizes(m))
        case "table_size":
            m.emit(op, [handle])


def barrier(m: GraphMaker, op: str) -> None:
    values = [m.some() for _ in range(m.int(1, 2))]
    kinds = [v.type for v in values if isinstance(v.type, TensorType) and v.type.is_static]
    if len(kinds) < len(values):
        raise Unfit
    handle = m.emit1("barrier", name=_name(m, "barrier"), parts=tuple(str(t) for t in kinds))
    match op:
        case "barrier_insert_many":
            i = m.int(0, len(kinds) - 1)
            stacked = m.like(kinds[i].dtype, (2, *kinds[i].static_shape))
            m.emit(op, [handle, m.like(string, (2,)), stacked], component=i)
        case "barrier_take_many":
            m.emit(op, [handle], n=m.int(0, 3))
        case "barrier_take_up_to":
            m.emit(op, [handle], n=m.int(0, 3), sizes=_sizes(m))
        case "barrier_close":
            m.emit(op, [handle], cancel_pending=m.flag())
        case "barrier_ready_size" | "barrier_incomplete_size":
            m.emit(op, [handle])


def accumulator(m: GraphMaker, op: str) -> None:
    sparse = op.startswith("sparse") or (not op.endswith("apply_gradient") and m.flag())
    if op == "accumulator_take_gradient":
        sparse = False
    kind = "sparse_accumulator" if sparse else "accumulator"
    t = TensorType(m.dtype(FLOATS), m.pick([(5,), (4, 2), (3, 1, 2)]))
    handle = m.emit1(kind, name=_name(m, kind), parts=(str(t),), reduction=m.pick(["MEAN", "SUM"]))
    number: Any = m.like(int64, ())
    match op:
        case "accumulator_apply_gradient":
            m.emit(op, [handle, number, m.like(t.dtype, t.shape)])
        case "sparse_accumulator_apply_gradient":
            rows = m.like(t.dtype, (3, *t.static_shape[1:]))
            m.emit(op, [handle, number, m.like(int64, (3,)), rows])
        case "accumulator_take_gradient" | "accumulator_set_global_step":
            m.emit(op, [handle, number])  # all sizes are known
        case "sparse_accumulator_take_gradient":
            m.emit(op, [handle, number], sizes=_sizes(m))
        case "accumulator_num_accumulated":
            m.emit(op, [handle])


def stack(m: GraphMaker, op: str) -> None:
    value: Value = m.some()
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        raise Unfit
    handle = m.emit1(
        "host_stack", name=_name(m, "host_stack"), parts=(str(value.type),), max_size=m.int(-1, 4)
    )
    match op:
        case "host_stack_push":
            m.emit(op, [handle, value])
        case "host_stack_pop" | "host_stack_size" | "host_stack_close":
            m.emit(op, [handle])


_FAMILIES = {
    "table": table,
    "barrier": barrier,
    "accumulator": accumulator,
    "sparse_accumulator": accumulator,
    "host_stack": stack,
}
