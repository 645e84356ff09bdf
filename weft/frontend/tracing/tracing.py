"""Run a Python function on symbolic arguments and keep what it did as a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.ops.operators import Operators
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Effect, Trace
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.graph import Graph
from weft.ir.locations import Locations, caller_location, definition_location
from weft.ir.types import TensorType
from weft.runtime.resources.variables import VariableState


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
    """A traced function: the graph, how its results nest and which are weak, the state it uses, and
    the integers to check in each call."""

    graph: Graph
    structure: pytree.Structure
    weak: tuple[bool, ...]
    variables: Mapping[str, VariableState]
    limits: tuple[Limit, ...] = ()


def trace_function(
    name: str,
    call: Callable[[list[Tensor]], Any],
    arguments: Sequence[Argument],
    *,
    creates_variables: bool = True,
    open_sizes: bool = False,
    location: Locations = (),
    gpu: int | None = None,
) -> Traced:
    """Run `call` on one symbolic tensor per argument.

    open_sizes: whether sizes may depend on values, as they may if the graph is interpreted.
    location: where the function is defined. gpu: the number of the GPU that it is compiled for.
    TypeRuleError for a result that is no tensor.
    """
    trace = Trace("function", name, creates_variables=creates_variables)
    trace.symbols, trace.gpu = set() if open_sizes else None, gpu
    with trace.scope():
        inputs = [trace.tensor(trace.add_arg(a.type, a.name), a.weak) for a in arguments]
        results = pytree.tree_map(_without_effects, call(inputs))
        leaves, structure = pytree.flatten(results)
        named = zip(leaves, pytree.paths(structure, "result"), strict=True)
        tensors = [result_tensor(leaf, path, name, location) for leaf, path in named]
        graph = trace.graph([trace.lift(t) for t in tensors])
    states = {n: v.state for n, v in trace.variables.items()}
    return Traced(graph, structure, tuple(t.weak for t in tensors), states, _limits(trace, graph))


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
