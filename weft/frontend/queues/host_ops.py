"""Host ops: functions on files and strings as ops of a graph, or done at once; `Print` and
`Assert`, with TensorFlow 1's names and arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from weft.frontend.core.arrays import contiguous
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, Trace, current_trace, graph_around
from weft.frontend.ops.dispatch import apply, fresh_sizes
from weft.frontend.ops.promotion import check_int
from weft.ir.dtypes import string
from weft.ir.errors import TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue
from weft.runtime.dataflow.host_dispatch import run_alone

P = ParamSpec("P")
R = TypeVar("R")


def located(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: its errors get the user's line."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except WeftError as error:
            raise error.at(caller_location()) from error.__cause__

    return operation


def graph_or_eager(what: str) -> Trace | None:
    """The trace of the `wf.Graph` that is being built, None outside. UnsupportedError in a compiled
    function."""
    trace = current_trace()
    found = graph_around(trace)
    if trace is not None and found is None:
        raise UnsupportedError(
            f"{what} was called while the function '{trace.root().name}' is traced: it is done by "
            "the host, and compiled functions have no such ops",
            hint="call it outside and pass what it gives as an argument, or build a wf.Graph",
        )
    return found


def host_op(
    op: str, operands: Sequence[Tensor], sizes: int = 0, /, **attrs: AttrValue
) -> list[Tensor]:
    """The tensors that a host op gives, of which `sizes` sizes depend on values."""
    trace = graph_or_eager(f"wf.{op}")
    if trace is None:
        arrays = [t._concrete(f"wf.{op}", "pass tensors that have values") for t in operands]
        return [Tensor(contiguous(a)) for a in run_alone(op, arrays, attrs)]
    if sizes:
        attrs = {**attrs, "sizes": fresh_sizes(trace, op, sizes)}
    return [trace.tensor(v) for v in trace.emit(op, [trace.lift(t) for t in operands], attrs)]


def host_effect(
    op: str, operands: Sequence[Tensor], name: str | None, /, **attrs: AttrValue
) -> Effect:
    """What a host op without results does: an effect of the graph, or done at once."""
    label = name or op
    trace = graph_or_eager(f"wf.{op}")
    if trace is None:
        arrays = [t._concrete(f"wf.{op}", "pass tensors that have values") for t in operands]
        run_alone(op, arrays, attrs)
        return Effect(label)
    token: Value
    (token,) = trace.emit(op, [trace.lift(t) for t in operands], attrs)
    return Effect(trace.name_scope + label, token, trace)


def string_tensor(what: str, x: Any, *, scalar: bool = False) -> Tensor:
    """`x` as a tensor of strings. TypeRuleError for others."""
    t = as_tensor(x)
    if t.dtype is not string or (scalar and t.ndim):
        wanted = "one string" if scalar else "strings"
        raise TypeRuleError(f"{what} takes {wanted}, got {t.describe()}")
    return t


@located
def Print(
    input_: Any, data: Sequence[Any], message: str | None = None, first_n: int | None = None,
    summarize: int | None = None, name: str | None = None,
) -> Tensor:  # fmt: skip
    """`input_`; each time it is computed, `message` and `data` are written to the standard error,
    of each tensor the first `summarize` (3; -1: all) elements.

    first_n is not supported. In compiled functions an UnsupportedError.
    """
    if first_n is not None:
        raise UnsupportedError(
            "wf.tf1.Print: first_n is not supported",
            hint="wf.py_function can count how often it ran",
        )
    x = as_tensor(input_)
    count = 3 if summarize is None else check_int("Print", summarize, "summarize")
    given = [as_tensor(d) for d in data]
    done = host_effect("print", given, name, message=message or "", summarize=count)
    trace = graph_or_eager("wf.tf1.Print")
    if trace is None or done.value is None:
        return x
    (value,) = trace.emit("identity", [trace.lift(x)], control=[done.value])
    return trace.tensor(value, x.weak)


@located
def Assert(
    condition: Any, data: Sequence[Any], summarize: int | None = None, name: str | None = None
) -> Effect:
    """An effect that ends the step with an InvalidArgumentError showing `data` (`summarize`
    elements of each) if `condition`, a bool or several, does not hold; eagerly it raises at once.

    In a `wf.Graph` it happens if it is fetched, or what waits for it by wf.control_dependencies.
    """
    x = as_tensor(condition)
    if x.ndim:
        x = apply("all", x, axes=tuple(range(x.ndim)), keepdims=False)
    count = 3 if summarize is None else check_int("Assert", summarize, "summarize")
    return host_effect("assert", [x, *map(as_tensor, data)], name, message="", summarize=count)
