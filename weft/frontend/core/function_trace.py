"""Tracing of Python functions: one is run on symbolic arguments, and kept as a graph.

`trace_function` makes the graph; `constant_value` looks at the part of a trace that a value needs;
`run_traced` and `linearize` run traced functions at once in the interpreter, which is what eager
`grad` and `vjp` stand on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.float64 import check_argument, check_graph, check_result
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Array, Tensor, as_tensor, contiguous
from weft.frontend.core.trace import Effect, Trace, current_trace
from weft.ir.analysis.effects import needs_host, written_in
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.locations import Locations, caller_location, definition_location
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.sizes import deciding, is_symbolic, needed_ops, specialize_inputs
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.resources.variables import VariableState, held, in_order


@dataclass(frozen=True, slots=True)
class Argument:
    """A leaf of the arguments that becomes a graph input: its type, whether it is weak, its
    name."""

    type: TensorType
    weak: bool
    name: str


@dataclass(frozen=True, slots=True)
class Limit:
    """The input number `index` is a Python integer that meets tensors of `dtype` at `location`."""

    index: int
    name: str
    dtype: DType
    location: Locations
    low: int
    high: int

    def error(self, value: int) -> InvalidArgumentError:
        """What to raise, at the caller's line, for a value that does not fit the dtype."""
        place = f" at {self.location[0]}" if self.location else ""
        return InvalidArgumentError(
            f"the Python integer {value}, argument {self.name}, does not fit {self.dtype.name} "
            f"({self.low} to {self.high}), the dtype of what it meets{place}",
            hint="convert the other operand to a wider dtype with wf.astype, or pass the number "
            "as an array of the dtype that is meant",
            location=caller_location(),
        )


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced function: the graph, how its results nest and which are weak, the state it uses, the
    integers to check in each call, and the objects of the host it uses, by their names in the
    graph."""

    graph: Graph
    structure: pytree.Structure
    weak: tuple[bool, ...]
    variables: Mapping[str, VariableState]
    limits: tuple[Limit, ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)


def function_name(fn: Callable[..., Any]) -> str:
    """What graphs and messages call a user's function: "lambda" where it has no name."""
    return getattr(fn, "__name__", type(fn).__name__).strip("<>")


def trace_function(
    name: str,
    call: Callable[[list[Tensor]], Any],
    arguments: Sequence[Argument],
    *,
    creates_variables: bool = True,
    open_sizes: bool = False,
    location: Locations = (),
    gpu: int | None = None,
    cluster: object = None,
    x64: bool | None = True,
    parameters: Collection[str] = (),
    takes_host_ops: bool = False,
    at_once: bool = False,
) -> Traced:
    """Run `call` on one symbolic tensor per argument.

    open_sizes: whether sizes may depend on values, as they may if the graph is interpreted.
    location: where the function is defined. gpu, cluster: the number of the GPU, or the
    cluster, that it is compiled for.
    parameters: those of the user's function. takes_host_ops: whether it may hold what native steps
    do not, ops of the host and sizes that depend on values. x64: whether it may compute in float64;
    None: nothing is said of it. at_once: whether it runs once, now, on the variables as Python sees
    them. TypeRuleError for a result that is no tensor, and for float64 where that is forbidden.
    """
    trace = Trace("function", name, creates_variables=creates_variables)
    trace.parameters = parameters
    trace.symbols = set() if open_sizes or takes_host_ops else None
    trace.gpu, trace.cluster, trace.x64 = gpu, cluster, x64
    trace.takes_host_ops, trace.static_first = takes_host_ops, takes_host_ops and not open_sizes
    if x64 is False:
        for argument in arguments:
            if not argument.weak:
                check_argument(argument.name, name, argument.type.dtype)
    with trace.scope():
        inputs = [trace.tensor(trace.add_arg(a.type, a.name), a.weak) for a in arguments]
        results = pytree.tree_map(_without_effects, call(inputs))
        leaves, structure = pytree.as_results(*pytree.flatten(results))
        named = list(zip(leaves, pytree.paths(structure, "result"), strict=True))
        tensors = [result_tensor(leaf, path, name, location) for leaf, path in named]
        graph = trace.graph([trace.lift(t) for t in tensors])
    if x64 is False:
        check_graph(graph, name)
        for t, (_, path) in zip(tensors, named, strict=True):
            check_result(name, path, t)
    states = {n: v.current_state if at_once else v.state for n, v in trace.variables.items()}
    weak, limits = tuple(t.weak for t in tensors), _limits(trace, graph)
    return Traced(graph, structure, weak, states, limits, trace.resources)


def _limits(trace: Trace, graph: Graph) -> tuple[Limit, ...]:
    """One for each input and dtype that the trace noted."""
    number = {value: i for i, value in enumerate(graph.args)}
    limits = []
    for (value, dtype), location in trace.narrowed.items():
        info: Any = np.iinfo(dtype.numpy.name)
        index = number[value]
        limits.append(Limit(index, graph.arg_names[index], dtype, location, info.min, info.max))
    return tuple(limits)


def _without_effects(leaf: Any) -> Any:
    return None if isinstance(leaf, Effect) else leaf


def result_tensor(leaf: Any, path: str, name: str, location: Locations = ()) -> Tensor:
    """A leaf of a function's results as a tensor. TypeRuleError naming the path of any other
    object."""
    if isinstance(leaf, (Operators, bool, int, float, complex, np.ndarray, np.generic)):
        return as_tensor(leaf)
    raise TypeRuleError(
        f"'{name}' returned a {type(leaf).__name__} at {path}: {leaf!r:.60}",
        hint="return tensors, numbers, None, and lists, tuples, dicts or dataclasses of them",
        location=location or caller_location(),
    )


def as_argument(leaf: Any) -> Any:
    """An argument of a compiled function that is called in a trace: numbers become tensors."""
    numbers = (bool, int, float, complex, np.ndarray, np.generic)
    return as_tensor(leaf) if isinstance(leaf, numbers) else leaf


def definition(fn: Any) -> Locations:
    """Where a Python function is defined; nothing for other callables."""
    code = getattr(fn, "__code__", None)
    return () if code is None else definition_location(code)


def identifier(text: str) -> str:
    """`params['w'][0]` as a name for the IR text: `params_w_0`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    return f"x{name}" if name[0].isdigit() else name


_STATE = frozenset({"reads_state", "writes_state"})


def constant_value(t: Tensor) -> np.ndarray[Any, Any] | None:
    """The value of a tensor if it depends on no input and no state, even while it is symbolic."""
    if t._data is not None:
        return t._data
    assert t._value is not None
    assert t._trace is not None
    ops, met = needed_ops(t._trace.builder.ops, [t._value])
    if any(v.op is None for v in met) or any(lookup(op.name).traits & _STATE for op in ops):
        return None
    builder = Builder()
    mapping: dict[Value, Value] = {}
    for op in ops:
        mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
    (array,) = interpret(builder.graph("constant_value", (), [mapping[t._value]]), [])
    return np.asarray(array)


class BoundState:
    """The interpreter's view of variables: by the names that they have in one graph."""

    def __init__(self, variables: Mapping[str, VariableState]) -> None:
        self.variables = variables

    def get(self, name: str) -> Array:
        """A copy of the value. FailedPreconditionError if it is uninitialised."""
        return self.variables[name].read()

    def set(self, name: str, value: Array) -> None:
        """Store the value."""
        self.variables[name].write(contiguous(value))


@contextmanager
def locked(variables: Mapping[str, VariableState], graph: Graph) -> Iterator[BoundState]:
    """The state with all locks held that a run of the graph needs, in the order that all steps
    share."""
    names = written_in(graph)
    written = {state for name, state in variables.items() if name in names}
    with held(in_order(variables.values(), written), lambda _: True):
        yield BoundState(variables)


def _arrays(tensors: Sequence[Tensor]) -> list[Array]:
    return [t._concrete("a call outside a trace", "pass concrete tensors") for t in tensors]


def _arguments(tensors: Sequence[Tensor]) -> list[Argument]:
    return [Argument(t._type, t.weak, f"x{i}") for i, t in enumerate(tensors)]


def run_traced(name: str, fn: Callable[[list[Tensor]], Any], inputs: Sequence[Tensor]) -> Any:
    """Trace `fn` on the types of `inputs`, interpret the graph on their values, nest the
    results."""
    given = _arguments(inputs)
    traced = trace_function(name, fn, given, open_sizes=True, takes_host_ops=True, at_once=True)
    graph, host = on_local_device(traced.graph), None
    with ExitStack() as stack:
        if needs_host(graph):
            # what has no ops of the host does not wait for this module
            from weft.runtime.dataflow.host_dispatch import HostObjects

            host = HostObjects(traced.resources, timeout=None)
            state = BoundState(traced.variables)  # no lock is held while an op waits for a thread
        else:
            state = stack.enter_context(locked(traced.variables, graph))
        arrays = interpret(graph, _arrays(inputs), state, host=host)
    results = [Tensor(contiguous(a), weak=w) for a, w in zip(arrays, traced.weak, strict=True)]
    return pytree.unflatten(traced.structure, results)


@dataclass(frozen=True, slots=True)
class Linearized:
    """A function that has run once, and the graph of its derivative, which is linear, with the
    values saved for it.

    derivative: from cotangents of the results to those of the inputs; or, made by
    `linearize(forward=True)`, from tangents of the inputs to those of the results. Only floating
    and complex ones count.
    """

    out: Any
    structure: pytree.Structure
    out_types: tuple[TensorType, ...]
    derivative: Graph
    saved: tuple[Array, ...]

    def apply(self, seeds: Sequence[Tensor]) -> list[Tensor]:
        """What the derivative gives; part of the current trace if there is one."""
        given = [c for c in seeds if c.dtype.is_inexact]
        trace = current_trace()
        if trace is not None:
            args = [trace.lift(c) for c in given] + [trace.constant(a) for a in self.saved]
            return [trace.tensor(v) for v in trace.builder.inline(self.derivative.block, args)]
        arrays = interpret(self.derivative, [*_arrays(given), *self.saved])
        return [Tensor(contiguous(a)) for a in arrays]


def linearize(
    name: str,
    fn: Callable[[list[Tensor]], Any],
    inputs: Sequence[Tensor],
    differentiate: Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]],
    *,
    forward: bool = False,
) -> Linearized:
    """Run `fn` and prepare its derivative; `differentiate(ys, xs, seeds)` adds the ops of that.
    seeds: cotangents of the ys, or with `forward` tangents of the xs."""
    trace = Trace("function", name)
    trace.symbols = set()
    with trace.scope():
        xs = [trace.tensor(trace.add_arg(a.type, a.name), a.weak) for a in _arguments(inputs)]
        leaves, structure = pytree.flatten(fn(xs))
        named = zip(leaves, pytree.paths(structure, "result"), strict=True)
        ys = [result_tensor(leaf, path, name) for leaf, path in named]
        values = [trace.lift(y) for y in ys]
        split = len(trace.builder.ops)
        moved = [y for y in ys if y.dtype.is_inexact]
        seeded = xs if forward else moved
        seeds = [trace.tensor(trace.add_arg(t._type, "seed")) for t in seeded]
        gradients = [trace.lift(g) for g in differentiate(moved, xs, seeds)]
    ops = trace.builder.ops
    args = trace.builder.args
    cut = _Cut(ops[:split], ops[split:], args[: len(xs)], args[len(xs) :], gradients)
    results = (*values, *cut.saved)
    first = Graph(
        name,
        Block(tuple(args[: len(xs)]), tuple(ops[:split]), results),
        tuple(trace.arg_names[: len(xs)]),
    )
    states = {n: v.current_state for n, v in trace.variables.items()}
    with locked(states, first) as state:
        given = _arrays(inputs)
        arrays = [contiguous(a) for a in interpret(on_local_device(first), given, state)]
    out = [Tensor(a, weak=y.weak) for a, y in zip(arrays, ys, strict=False)]
    types = tuple(y._type for y in out)
    saved = tuple(arrays[len(values) :])
    derivative = cut.backward(name)
    if is_symbolic(derivative.block):  # all sizes are known now
        seeded_types = [x._type for x in inputs] if forward else types
        sizes = [t.static_shape for t in seeded_types if t.dtype.is_inexact]
        derivative = specialize_inputs(derivative, [*sizes, *(a.shape for a in saved)])
    return Linearized(pytree.unflatten(structure, out), structure, types, derivative, saved)


class _Cut:
    """The backward ops as a graph of their own; `saved` are the forward values that it needs."""

    def __init__(
        self,
        forward: Sequence[Operation],
        backward: Sequence[Operation],
        inputs: Sequence[Value],
        seeds: Sequence[Value],
        results: Sequence[Value],
    ) -> None:
        before = dict.fromkeys([*inputs, *(v for op in forward for v in op.results)])
        again: set[Operation] = set()
        while True:
            ops = [*(op for op in forward if op in again), *backward]
            made = {v for op in ops for v in op.results}
            used = [v for op in ops for v in op.operands] + list(results)
            self.saved = list(dict.fromkeys(v for v in used if v in before and v not in made))
            # stacks, which hold what a loop keeps for its gradient, are no arrays: made again
            stacks = {v.op for v in self.saved if v.op and not isinstance(v.type, TensorType)}
            if not stacks:
                break
            again |= stacks
        backward = ops
        self.saved += deciding(backward, [*seeds, *self.saved], before)
        self._ops, self._seeds, self._results = backward, seeds, results

    def backward(self, name: str) -> Graph:
        """The graph from cotangents and saved values to gradients."""
        builder = Builder([v.type for v in (*self._seeds, *self.saved)])
        mapping = dict(zip((*self._seeds, *self.saved), builder.args, strict=True))
        for op in self._ops:
            mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
        names = [f"cotangent_{i}" for i in range(len(self._seeds))]
        names += [f"saved_{i}" for i in range(len(self.saved))]
        return builder.graph(f"{name}_backward", names, [mapping[v] for v in self._results])
