"""How functions on files become ops of a graph, or are done at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from weft.frontend.arrays import contiguous
from weft.frontend.ops.dynamic_sizes import fresh_sizes
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.region_trace import graph_around
from weft.frontend.tracing.trace import Effect, Trace, current_trace
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
