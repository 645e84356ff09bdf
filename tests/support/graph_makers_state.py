"""Makers of ops on variables (see `graph_makers`)."""

from __future__ import annotations

from collections.abc import Callable

from graphs import Effects, GraphMaker, Unfit

from weft.ir.dtypes import ALL, DType
from weft.ir.graph import Value
from weft.ir.types import TensorType

INTEGERS: tuple[DType, ...] = tuple(d for d in ALL if d.is_integer)


def variable(m: GraphMaker, op: str) -> Effects:
    name = m.pick(["w", "layer/kernel:0", "ü"])
    if name not in m.effects:
        t = TensorType(m.dtype(ALL), m.shape(static=True))
        (ref,) = m.emit("variable", name=name, dtype=t.dtype, shape=t.shape)
        m.effects[name] = Effects(ref, t)
    return m.effects[name]


def read(m: GraphMaker, op: str) -> None:
    e = variable(m, op)
    e.reads += m.emit(op, [e.ref], control=e.last)


def assign(m: GraphMaker, op: str) -> None:
    e = variable(m, op)
    _write(m, op, e, [m.like(e.type.dtype, e.type.shape)])


def update(m: GraphMaker, op: str) -> None:
    """assign_add, assign_sub."""
    e = _fitting(m, lambda t: t.dtype.is_numeric)
    _write(m, op, e, [m.like(e.type.dtype, e.type.shape)])


def rows(m: GraphMaker, op: str) -> None:
    """scatter_add, scatter_sub, scatter_update."""
    e = _fitting(m, lambda t: t.rank > 0 and (op == "scatter_update" or t.dtype.is_numeric))
    shape = m.shape(0, 2, static=True)
    indices = m.indices(m.dtype(INTEGERS), shape, e.type.shape[0])
    _write(m, op, e, [indices, m.like(e.type.dtype, (*shape, *e.type.shape[1:]))])


def asked(m: GraphMaker, op: str) -> None:
    """is_initialized, assert_initialized."""
    e = variable(m, op)
    e.reads += m.emit(op, [e.ref], control=e.last)


def report(m: GraphMaker, op: str) -> None:
    e = variable(m, op)
    sizes = ("unset",) if m.flag() else ()
    e.reads += m.emit(op, [e.ref], control=e.last, names=("w",), sizes=sizes)


def open_access(m: GraphMaker, op: str) -> None:
    """read_open, assign_open, update_open."""
    if "open" not in m.effects:
        t = TensorType(m.dtype(INTEGERS), (None,) * m.int(1, 2))
        (ref,) = m.emit("variable", name="open", dtype=t.dtype, shape=t.shape)
        m.effects["open"] = Effects(ref, t)
    e = m.effects["open"]
    named = m.flag() and op != "assign_open"
    sizes = {"sizes": tuple(f"open_{i}" for i in range(e.type.rank))} if named else {}
    if op == "read_open":
        e.reads += m.emit(op, [e.ref], control=e.last, **sizes)
        return
    given = m.like(e.type.dtype, tuple(m.int(0, 3) for _ in e.type.shape))
    update = {"update": m.pick(["assign_add", "assign_sub"])} if op == "update_open" else {}
    made = m.emit(op, [e.ref, given], control=[*e.last, *e.reads], **update, **sizes)
    e.last, e.reads = list(made), []


def count_up_to(m: GraphMaker, op: str) -> None:
    if "steps" not in m.effects:
        t = TensorType(m.dtype(INTEGERS), ())
        (ref,) = m.emit("variable", name="steps", dtype=t.dtype, shape=t.shape)
        m.effects["steps"] = Effects(ref, t)
    e = m.effects["steps"]
    e.last = list(m.emit(op, [e.ref], control=[*e.last, *e.reads], limit=m.int(0, 100)))
    e.reads = []


def _fitting(m: GraphMaker, wanted: Callable[[TensorType], bool]) -> Effects:
    e = variable(m, "variable")
    if not wanted(e.type):
        raise Unfit
    return e


def _write(m: GraphMaker, op: str, e: Effects, operands: list[Value]) -> None:
    e.last = list(m.emit(op, [e.ref, *operands], control=[*e.last, *e.reads]))
    e.reads = []
