"""Graphs as in TensorFlow 1: placeholders, control dependencies, name scopes, and the default
graph.

`wf.placeholder` outside any graph makes the default graph current in its thread: from then on ops
add to it, until `wf.reset_default_graph()`. `with wf.Graph().as_default():` limits this to a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.operators import Operators
from weft.frontend.session.subgraph import needed_ops
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import (
    Effect,
    Trace,
    current_trace,
    set_thread_default,
    unique_name,
)
from weft.frontend.tracing.tracing import identifier
from weft.frontend.variable import Variable
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.dtypes import as_dtype
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
    suggest,
)
from weft.ir.fork import ForkLock
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Operation, Value
from weft.ir.ops import lookup
from weft.ir.source import caller_location
from weft.ir.text.printer import print_graph
from weft.ir.types import TensorType


class Graph:
    """A graph that stays open: ops called inside `as_default()` are added to it."""

    def __init__(self, name: str = "graph") -> None:
        self._trace = Trace("graph", name)
        self._trace.owner = self
        self._named: dict[str, Tensor] = {}
        self._symbols: set[str] = set()
        self._lock = ForkLock()
        #: The objects of the host that the graph's handles stand for, by the name in the IR.
        self.resources: dict[str, Any] = {}
        #: What `wf.train.start_queue_runners` starts.
        self.queue_runners: list[Any] = []

    def __repr__(self) -> str:
        return f"<wf.Graph {self.name!r}: {len(self._trace.builder.ops)} ops>"

    @property
    def name(self) -> str:
        """The name given."""
        return self._trace.name

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Make this the graph that the code in the block builds."""
        with self._trace.active():
            yield self

    @property
    def variables(self) -> list[Variable]:
        """The variables used in this graph so far, in order of first use."""
        return list(self._trace.variables.values())

    @property
    def trainable_variables(self) -> list[Variable]:
        """Those that optimizers change by default."""
        return [v for v in self.variables if v.trainable]

    def tensor(self, name: str) -> Tensor:
        """The placeholder or named tensor called `name`. NotFoundError with the closest names."""
        found = self._named.get(name.removesuffix(":0"))
        if found is None:
            raise NotFoundError(
                f"the graph '{self.name}' has no tensor named '{name}'"
                f"{suggest(name, list(self._named))}",
                hint="placeholders have names; wf.name_tensor(x, name) names another tensor",
                location=caller_location(),
            )
        return found

    def ir(self, outputs: Sequence[Tensor] = ()) -> IRGraph:
        """What was built so far as an IR graph; `outputs` become its results."""
        return self._trace.graph([self._trace.lift(t) for t in outputs])

    def __str__(self) -> str:
        return print_graph(self.ir())

    def _add_placeholder(self, dtype: object, shape: Any, name: str | None) -> Tensor:
        trace = self._trace
        try:
            element = as_dtype(dtype)
        except WeftError as error:
            raise error.at(caller_location()) from None
        with self._lock:
            label = unique_name(trace.name_scope + (name or "placeholder"), self._named)
            dims = tuple(
                self._dim(d, f"{identifier(label)}_{i}", shape) for i, d in enumerate(shape)
            )
            value = trace.add_arg(TensorType(element, dims), identifier(label))
            t = self._named[label] = trace.tensor(value)
        return t

    def _dim(self, dim: Any, symbol: str, shape: Any) -> Dim:
        if dim is None:
            symbol = unique_name(symbol, dict.fromkeys(self._symbols))
            self._symbols.add(symbol)
            return SymbolicDim.symbol(symbol)
        if isinstance(dim, str):
            self._symbols.add(dim)
            return SymbolicDim.symbol(dim)
        if isinstance(dim, SymbolicDim) or (isinstance(dim, int) and dim >= 0):
            return dim
        raise InvalidArgumentError(
            f"wf.placeholder: {dim!r} in shape {shape!r} is not a size",
            hint="sizes are integers >= 0, None (any size) or names such as 'batch'",
            location=caller_location(),
        )


def dim_tensor(dim: SymbolicDim) -> Tensor:
    """The value that a symbolic size has when the graph runs, as a weak int64 scalar.

    It comes from whichever feeds decide the size, so it needs no placeholder of its own: a symbol
    is the length of a vector that is never made (`fold` leaves a constant). TracerError where no
    graph is being built.
    """
    total: Tensor | int = 0
    for symbols, factor in dim.terms:
        total = total + math.prod((_symbol_tensor(s) for s in symbols), start=factor)
    assert isinstance(total, Tensor)
    return total


def _symbol_tensor(symbol: str) -> Tensor:
    shape = (SymbolicDim.symbol(symbol),)
    vector = apply("broadcast_to", as_tensor(np.asarray(0, np.int8)), shape=shape)
    size = apply("dim_size", vector, axis=0)
    size.weak = True
    return size


SymbolicDim.as_operand = dim_tensor

_default: Graph | None = None
_default_lock = ForkLock()


def get_default_graph() -> Graph:
    """The graph being built in this thread, else the process's default graph."""
    trace = current_trace()
    if trace is not None and isinstance(trace.owner, Graph):
        return trace.owner
    global _default
    with _default_lock:
        if _default is None:
            _default = Graph("default")
        return _default


def reset_default_graph() -> None:
    """Drop the default graph: ops run at once again, and the next placeholder begins a new one."""
    global _default
    with _default_lock:
        if _default is not None:
            _default._trace.closed = True
        _default = None
    set_thread_default(None)


def _graph_trace(what: str) -> Trace | None:
    """The trace of the graph being built, None outside. UnsupportedError in a traced function."""
    trace = current_trace()
    if trace is not None and trace.kind != "graph":
        raise UnsupportedError(
            f"{what} is for graphs, but here the function '{trace.root().name}' is being traced",
            hint="pass the tensor to the function as an argument",
            location=caller_location(),
        )
    return trace


def placeholder(dtype: object, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor whose value each `Session.run` feeds.

    shape: a sequence of sizes, [] for a scalar; None in it stands for any size, a name such as
    "batch" for one that several placeholders share (sizes that must fit each other should).
    UnsupportedError without a shape (TensorFlow 1's unknown rank) and inside a compiled function.
    """
    trace = _graph_trace("wf.placeholder")
    if shape is None:
        raise UnsupportedError(
            "wf.placeholder needs a shape: a placeholder of unknown rank is not supported",
            hint="give one entry for each axis, None for any size: shape=(None, 784); "
            "shape=[] for a scalar",
            location=caller_location(),
        )
    graph = get_default_graph()
    if trace is None:
        set_thread_default(graph._trace)
    return graph._add_placeholder(
        dtype, shape if isinstance(shape, (tuple, list)) else (shape,), name
    )


def name_tensor(x: Any, name: str) -> Tensor:
    """`x` under a name that `Session.run` and `graph.tensor` know. InvalidArgumentError if it is
    taken."""
    t = as_tensor(x)
    trace = _graph_trace("wf.name_tensor")
    if trace is None or not isinstance(trace.owner, Graph):
        return t
    label = trace.name_scope + name
    if label in trace.owner._named:
        raise InvalidArgumentError(
            f"the graph '{trace.name}' has a tensor named '{label}' already",
            location=caller_location(),
        )
    named = trace.owner._named[label] = trace.tensor(trace.lift(t))
    return named


@contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Prefix the names of variables and placeholders made in the block with `name/`."""
    trace = current_trace()
    if trace is None:
        yield f"{name}/"
        return
    before = trace.name_scope
    trace.name_scope = f"{before}{name}/"
    try:
        yield trace.name_scope
    finally:
        trace.name_scope = before


@contextmanager
def control_dependencies(control_inputs: Sequence[Any] | None) -> Iterator[None]:
    """In a graph: whoever runs an op made in the block runs `control_inputs` before it.

    control_inputs: tensors, effects, variables; None lifts the surrounding ones. In compiled
    functions and outside graphs it changes nothing: effects follow program order there.
    """
    trace = current_trace()
    given = [] if control_inputs is None else control_inputs
    values = tuple(_dependencies("wf.control_dependencies", given, trace))
    if trace is None or trace.kind != "graph":
        yield
        return
    before = trace.control
    trace.control = () if control_inputs is None else tuple(dict.fromkeys((*before, *values)))
    try:
        yield
    finally:
        trace.control = before


def _dependencies(what: str, items: Any, trace: Trace | None) -> Iterator[Value]:
    for item in pytree.tree_leaves(items):
        if not isinstance(item, (Operators, Effect)):
            raise TypeRuleError(
                f"{what}: a {type(item).__name__} is not a tensor or effect: {item!r:.60}",
                location=caller_location(),
            )
        if trace is None or trace.kind != "graph":
            continue
        if isinstance(item, Effect):
            if item.trace is not None and item.trace is not trace:
                raise InvalidArgumentError(
                    f"{what}: the effect '{item.name}' belongs to another graph",
                    location=caller_location(),
                )
            if item.value is not None:
                yield item.value
        else:
            yield trace.lift(as_tensor(item))


def group(*inputs: Any, name: str = "group") -> Effect:
    """An effect that is done when all of `inputs` (tensors, effects, lists of them) are."""
    trace = current_trace()
    values = list(_dependencies("wf.group", inputs, trace))
    if trace is None or trace.kind != "graph":
        return Effect(name)
    (token,) = trace.emit("group", control=values)
    return Effect(trace.name_scope + name, token, trace)


def no_op(name: str = "no_op") -> Effect:
    """An effect that does nothing; in `control_dependencies` it stands for them."""
    return group(name=name)


def variables_initializer(var_list: Sequence[Variable], name: str = "init") -> Effect:
    """An effect that gives the variables their initial values; outside a graph they have them
    already.

    An initial value that is computed from other variables of the list uses their initial values;
    of variables that are not in the list, it uses the values that they have.
    """
    trace = _graph_trace("wf.variables_initializer")
    if trace is None:
        return Effect(name)
    for v in var_list:
        trace.effects.ref(v)
    wanted = set(var_list)
    starts: dict[Value, Value] = {}  # a read of a variable of the list -> its initial value
    done: list[Effect] = []
    for v in list(trace.variables.values()):  # a variable is made after those it is computed from
        if v in wanted:
            start = _computed_from(trace, trace.lift(v._start_in(trace)), starts)
            starts.update((read, start) for read in trace.effects.reads.get(v, ()))
            done.append(v._initialize(trace, start))
    return group(done, name=name)


def _computed_from(trace: Trace, value: Value, given: Mapping[Value, Value]) -> Value:
    """`value`, computed again with the values `given` in place of others that it depends on.

    `value` itself if it depends on none of them, or if that would repeat an effect.
    """
    ops, _ = needed_ops(trace.builder.ops, [value], given)
    changed = set(given)
    again: list[Operation] = []
    for op in ops:
        if not changed.isdisjoint((*op.operands, *op.control)):
            again.append(op)
            changed.update(op.results)
    if any(lookup(op.name).traits & {"reads_state", "writes_state"} for op in again):
        return value
    mapping = dict(given)
    for op in again:
        mapping.update(zip(op.results, trace.builder.clone(op, mapping), strict=True))
    return mapping.get(value, value)


def global_variables_initializer() -> Effect:
    """An effect that gives every variable of the graph its initial value.

    That is the value passed to `wf.Variable`; for a variable made outside the graph, the one that
    it had when the graph first used it.
    """
    trace = _graph_trace("wf.global_variables_initializer")
    held = [] if trace is None else list(trace.variables.values())
    return variables_initializer(held)


def global_variables() -> list[Variable]:
    """The variables of the graph being built."""
    return get_default_graph().variables


def trainable_variables() -> list[Variable]:
    """Those of them that optimizers change by default."""
    return get_default_graph().trainable_variables


initialize_all_variables = global_variables_initializer
