"""Running traced functions at once, through the interpreter: what eager `grad` and `vjp` stand
on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from weft.frontend import pytree
from weft.frontend.arrays import Array, contiguous
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import Trace, current_trace
from weft.frontend.tracing.tracing import Argument, result_tensor, trace_function
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.sizes.specialize import is_symbolic, specialize_inputs
from weft.passes.sizes.tie_sizes import deciding
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.resources.variables import VariableState


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
def locked(variables: Mapping[str, VariableState]) -> Iterator[BoundState]:
    """The state with all locks held, taken in an order that all steps share."""
    with ExitStack() as stack:
        for variable in sorted(variables.values(), key=id):
            stack.enter_context(variable.lock)
        yield BoundState(variables)


def _arrays(tensors: Sequence[Tensor]) -> list[Array]:
    return [t._concrete("a call outside a trace", "pass concrete tensors") for t in tensors]


def _arguments(tensors: Sequence[Tensor]) -> list[Argument]:
    return [Argument(t._type, t.weak, f"x{i}") for i, t in enumerate(tensors)]


def run_traced(name: str, fn: Callable[[list[Tensor]], Any], inputs: Sequence[Tensor]) -> Any:
    """Trace `fn` on the types of `inputs`, interpret the graph on their values, nest the
    results."""
    traced = trace_function(name, fn, _arguments(inputs), open_sizes=True)
    with locked(traced.variables) as state:
        arrays = interpret(on_local_device(traced.graph), _arrays(inputs), state)
    results = [Tensor(contiguous(a), weak=w) for a, w in zip(arrays, traced.weak, strict=True)]
    return pytree.unflatten(traced.structure, results)


@dataclass(frozen=True, slots=True)
class Linearized:
    """A function that has run once, and the graph of its pullback with the values saved for it."""

    out: Any
    structure: pytree.Structure
    out_types: tuple[TensorType, ...]
    backward: Graph
    saved: tuple[Array, ...]

    def pull_back(self, cotangents: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the inputs; part of the current trace if there is one."""
        given = [c for c in cotangents if c.dtype.is_inexact]
        trace = current_trace()
        if trace is not None:
            args = [trace.lift(c) for c in given] + [trace.constant(a) for a in self.saved]
            return [trace.tensor(v) for v in trace.builder.inline(self.backward.block, args)]
        arrays = interpret(self.backward, [*_arrays(given), *self.saved])
        return [Tensor(contiguous(a)) for a in arrays]


def linearize(
    name: str,
    fn: Callable[[list[Tensor]], Any],
    inputs: Sequence[Tensor],
    differentiate: Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]],
) -> Linearized:
    """Run `fn` and prepare its pullback; `differentiate(ys, xs, cotangents)` adds the gradient
    ops."""
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
        seeds = [trace.tensor(trace.add_arg(y._type, "cotangent")) for y in moved]
        gradients = [trace.lift(g) for g in differentiate(moved, xs, seeds)]
    ops = trace.builder.ops
    args = trace.builder.args
    cut = _Cut(ops[:split], ops[split:], args[: len(xs)], args[len(xs) :], gradients)
    results = (*values, *cut.saved)
    forward = Graph(
        name,
        Block(tuple(args[: len(xs)]), tuple(ops[:split]), results),
        tuple(trace.arg_names[: len(xs)]),
    )
    states = {n: v.state for n, v in trace.variables.items()}
    with locked(states) as state:
        given = _arrays(inputs)
        arrays = [contiguous(a) for a in interpret(on_local_device(forward), given, state)]
    out = [Tensor(a, weak=y.weak) for a, y in zip(arrays, ys, strict=False)]
    types = tuple(y._type for y in out)
    saved = tuple(arrays[len(values) :])
    backward = cut.backward(name)
    if is_symbolic(backward.block):  # all sizes are known now
        seeded = [t.static_shape for t in types if t.dtype.is_inexact]
        backward = specialize_inputs(backward, [*seeded, *(a.shape for a in saved)])
    return Linearized(pytree.unflatten(structure, out), structure, types, backward, saved)


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
        made = [v for op in forward for v in op.results]
        before = dict.fromkeys([*inputs, *made])
        used = [v for op in backward for v in op.operands] + list(results)
        self.saved = list(dict.fromkeys(v for v in used if v in before))
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
