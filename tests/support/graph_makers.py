"""One maker per op: draws operands and attributes that fit the op, and emits it (see `graphs`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_makers_array as array
import graph_makers_communication as communication
import graph_makers_control as control
import graph_makers_dataflow as dataflow
import graph_makers_dynamic as dynamic
import graph_makers_files as files
import graph_makers_queue as queues
import graph_makers_resource as resources
import graph_makers_stack as stacks
import graph_makers_state as state
import graph_makers_window as window
from graph_makers_array import wanted_dtypes
from graphs import GraphMaker, Unfit, random_array

from weft.ir.dtypes import ALL, bool_, float32, float64
from weft.ir.errors import WeftError
from weft.ir.graph import Value
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.control_flow import COMMUNICATION, DATAFLOW
from weft.ir.ops.fourier import FOURIER
from weft.ir.ops.io import FILE_TABLE
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.ir.ops.resources import QUEUE_TABLE, RESOURCE_TABLE
from weft.ir.ops.scalar_function import code_of, define_scalar_function, full_name
from weft.ir.ops.strings import TABLE as STRING_TABLE
from weft.ir.ops.text_processing import TABLE as TEXT_TABLE
from weft.ir.spec import Attrs
from weft.ir.types import TensorType

Maker = Callable[[GraphMaker, str], Any]

ELEMENTWISE = [s.name for s in OPS.values() if "elementwise" in s.traits]


def elementwise(m: GraphMaker, op: str) -> None:
    first = m.some(dtypes=wanted_dtypes(m, op))
    t = first.type
    rest = [m.like(t.dtype, t.shape) for _ in range((OPS[op].arity or 1) - 1)]
    m.emit(op, m.pick([[first, *rest], [*rest, first]]))


def where(m: GraphMaker, op: str) -> None:
    x = m.some()
    t = x.type
    m.emit(op, [m.like(bool_, t.shape), x, m.like(t.dtype, t.shape)])


def astype(m: GraphMaker, op: str) -> None:
    x = m.some()
    target = m.dtype([d for d in ALL if _accepted(op, x.type, {"dtype": d})])
    if target.is_integer and x.type.dtype.is_floating:
        if m.region or not x.type.is_static:
            raise Unfit
        x = _small(m, x, signed=target.kind == "int")
    m.emit(op, [x], dtype=target)


def _small(m: GraphMaker, x: Value, signed: bool) -> Value:
    """`x` where |x| < 100, else 0: its cast to any integer type is defined."""
    limit = m.constant(_full(x.type, 100))
    zero = m.constant(_full(x.type, 0))
    size = m.emit1("abs", x)
    kept = m.emit1("where", m.emit1("less", size, limit), x, zero)
    return kept if signed else m.emit1("abs", kept)


def _full(t: TensorType, value: int) -> Any:
    out = random_array(t.dtype, t.static_shape, 0)
    out[...] = value
    return out


def _accepted(op: str, t: TensorType, attrs: Attrs) -> bool:
    try:
        OPS[op].infer([t], attrs, ())
    except WeftError:
        return False
    return True


def leaky(x: Any) -> Any:
    """A scalar function that has to be compiled."""
    return x if x > 0 else 0.5 * x


define_scalar_function(leaky)  # type: ignore[arg-type]


def scalar_function(m: GraphMaker, op: str) -> None:
    x = m.some(dtypes=[d for d in (float32, float64) if d in m.dtypes])
    code = code_of(leaky)  # type: ignore[arg-type]
    name = full_name(leaky)  # type: ignore[arg-type]
    m.emit(op, [x], function=name, code=code, dtype=x.type.dtype)


def bitcast(m: GraphMaker, op: str) -> None:
    x = m.some()
    # which NaN a computation gives is undefined, so its bits are too
    if x.type.dtype.is_floating and x not in m.fresh:
        raise Unfit
    m.emit(op, [x], dtype=m.dtype([d for d in ALL if _accepted(op, x.type, {"dtype": d})]))


# ---------------------------------------------------------------------------- core


def constant(m: GraphMaker, op: str) -> None:
    shape = m.pick([m.shape(static=True), m.shape(static=True), (3, 11), (7, 19)])
    array = random_array(m.dtype(ALL), shape, m.seed())
    if array.size and m.int(0, 3) == 0:
        array[...] = array.reshape(-1)[0]
    m.fresh.add(m.constant(array))


def group(m: GraphMaker, op: str) -> None:
    made = [v for o in m.builder.ops if o.name != "variable" for v in o.results]
    after = [v for v in made if v not in m.hidden]
    m.emit(op, control=[m.pick(after) for _ in range(m.int(0, 2))] if after else ())


def tap(m: GraphMaker, op: str) -> None:
    """A value with a name for people."""
    m.emit(op, [m.some()], name=m.pick(["h", "a b"]))


def loop_mark(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.some(lambda t: not t.dtype.is_inexact)], live=bool(m.int(0, 1)))


def row_guard(m: GraphMaker, op: str) -> None:
    """A value, and flags for its first axes."""
    x = m.some()
    shape = x.type.shape[: m.int(0, len(x.type.shape))]
    flags = m.some(lambda t: t.shape == shape, [bool_])
    m.emit(op, [x, flags])


def collective(m: GraphMaker, op: str) -> None:
    """A collective over an axis of one row, as of a program that no batch is made of."""
    attrs: dict[str, Any] = {"axis_name": m.pick(["i", "rows"])}
    if op == "axis_index":
        m.emit(op, **attrs)
        return
    if op in ("all_gather", "psum_scatter", "all_to_all"):
        attrs["size"] = 1
    if op == "ppermute":
        attrs["sources"] = m.pick([(0,), (-1,)])
    rows = op in ("psum_scatter", "all_to_all")
    m.emit(op, [m.some(lambda t: t.shape[:1] == (1,) if rows else t.dtype.is_numeric)], **attrs)


def exchange(m: GraphMaker, op: str) -> None:
    """A collective over a mesh of processes that no process has."""
    kinds = ["psum", "pmax", "ppermute", "axis_index", "all_gather", "split", "enter", "start"]
    kind = m.pick(kinds)
    attrs: dict[str, Any] = {
        "kind": kind,
        "mesh": "mesh0",
        "axis_name": "i",
        "size": 1,
        "line": "a.py:1",
    }
    if kind == "axis_index":
        m.emit(op, **attrs)
        return
    if kind == "start":
        first = m.some(lambda t: t.dtype.is_numeric and t.is_static)
        alike = [v for v in m.pool if v.type.dtype is first.type.dtype and v.type.is_static]
        members = [first, *alike[: m.int(0, 3)]]
        halves = {**attrs, "axes": ("i",), "sizes": (1,), "number": m.int(0, 3)}
        bucket = m.emit1(op, *members, **halves)
        parts = tuple(str(v.type) for v in members)
        m.emit(op, [bucket], **{**halves, "kind": "done", "parts": parts})
        return
    if kind == "ppermute":
        attrs["sources"] = (0,)
    if kind == "split":
        attrs["dim"] = 0
    wanted = m.some(lambda t: t.rank > 0 if kind == "split" else t.dtype.is_numeric)
    m.emit(op, [wanted], **attrs)


def same(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.some()])


def fused(m: GraphMaker, op: str) -> None:
    first = m.some()
    operands = [first]
    for _ in range(m.int(0, 2)):
        operands.append(m.some(lambda t: t.shape == first.type.shape))
    inner = GraphMaker(m.draw, m.dtypes, m.sizes, region=True, located=m.located)
    inner.builder = Builder([v.type for v in operands])
    inner.pool = list(inner.builder.args)
    names = [n for n in ELEMENTWISE if n != "bitcast"]
    names += ["sum", "max", "broadcast_to", "reshape", "permute_dims"]
    for _ in range(m.int(1, 8)):
        name = m.pick(names)
        try:
            MAKERS[name](inner, name)
        except Unfit:
            continue
    results = [v for o in inner.builder.ops for v in o.results][-2:] or inner.pool[:1]
    kind = {"kind": m.pick(["loop", "input"])} if op == "fused" else {}
    m.emit(op, operands, regions=[inner.builder.block(results)], **kind)


def custom_gradient(m: GraphMaker, op: str) -> None:
    y, x, capture = m.some(), m.some(), m.some()
    inner = GraphMaker(m.draw, m.dtypes, m.sizes, region=True, located=m.located)
    inner.builder = Builder([y.type, x.type])
    inner.pool = list(inner.builder.args)
    for _ in range(m.int(0, 2)):
        name = m.pick(["negative", "square", "identity"])
        try:
            MAKERS[name](inner, name)
        except Unfit:
            continue
    (x_like,) = [v for v in inner.pool if v.type == x.type][-1:]
    block = inner.builder.block([x_like])
    captured = x if capture.type != x.type else capture
    m.emit(op, [y, x, captured], regions=[block], outputs=1, inputs=1)


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys([s.name for s in OPS.values() if "reduction" in s.traits], array.reduction),
    **{n: array.cumulative for n in OPS if n.startswith("cumulative_")},
    **{n: array.gather_nd for n in OPS if n.startswith(("gather_nd", "scatter_nd_"))},
    **dict.fromkeys(("conv", "conv_input", "conv_kernel"), window.conv),
    **dict.fromkeys(("attention", "attention_grad"), window.attention),
    "sparse_matmul": array.sparse_matmul,
    "quantized_matmul": array.quantized_matmul,
    **{n: window.window for n in OPS if n.startswith("window_")},
    **dict.fromkeys([spec.name for spec in QUEUE_TABLE], queues.queue),
    **dict.fromkeys([spec.name for spec in RESOURCE_TABLE], resources.resource),
    **dict.fromkeys([spec.name for spec in STRING_TABLE], files.strings),
    **dict.fromkeys([spec.name for spec in TEXT_TABLE], files.texts),
    **{spec.name: files.reader if "reader" in spec.name else files.files for spec in FILE_TABLE},
    **dynamic.MAKERS,
    "print": files.reports,
    "assert": files.reports,
    "py_function": queues.py_function,
    "debug_callback": queues.py_function,
    "exchange": exchange,
    "where": where,
    "astype": astype,
    "bitcast": bitcast,
    "scalar_function": scalar_function,
    "reshape": array.reshape,
    "permute_dims": array.permute_dims,
    "broadcast_to": array.broadcast_to,
    "concat": array.concat,
    "pad": array.pad,
    "slice": array.slice_,
    "slice_update": array.slice_update,
    "iota": array.iota,
    "dim_size": array.dim_size,
    "argmax": array.position,
    "argmin": array.position,
    "sort": array.sort,
    "argsort": array.sort,
    "searchsorted": array.searchsorted,
    **dict.fromkeys(FOURIER, array.fourier),
    "take": array.take,
    "index_add": array.take,
    "first_occurrence": array.first_occurrence,
    "take_along_axis": array.along_axis,
    "scatter_along_axis_add": array.along_axis,
    "matmul": array.matmul,
    **dict.fromkeys(sorted(LINEAR_ALGEBRA), array.linear_algebra),
    "random_bits": array.random_bits,
    "random_fold_in": array.random_fold_in,
    "constant": constant,
    "variable": state.variable,
    "read": state.read,
    "assign": state.assign,
    **dict.fromkeys(("assign_add", "assign_sub"), state.update),
    **dict.fromkeys(("scatter_add", "scatter_sub", "scatter_update"), state.rows),
    **dict.fromkeys(("is_initialized", "assert_initialized"), state.asked),
    "report_uninitialized": state.report,
    "count_up_to": state.count_up_to,
    **dict.fromkeys(("read_open", "assign_open", "update_open"), state.open_access),
    "identity": same,
    "stop_gradient": same,
    "optimization_barrier": same,
    "tap": tap,
    "loop_mark": loop_mark,
    "row_guard": row_guard,
    "group": group,
    "custom_gradient": custom_gradient,
    **{name: stacks.stack for name in OPS if name.startswith("stack_")},
    **{name: stacks.arena for name in OPS if name.startswith("arena_")},
    "fused": fused,
    "unrolled": fused,
    "cond": lambda m, op: control.cond(m, MAKERS),
    "while": lambda m, op: control.loop(m, MAKERS),
    "scan": lambda m, op: control.scan(m, MAKERS),
    **{op: dataflow.maker(op) for op in DATAFLOW},
    **dict.fromkeys(COMMUNICATION, communication.communication),
    **dict.fromkeys(COLLECTIVES, collective),
}
