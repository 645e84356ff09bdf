"""Host ops as users call them: `host_op` and `host_effect`, by which a public function or method
does an op at once or adds it to a graph; `Print` and `Assert`, with TensorFlow 1's names and
arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from weft.frontend.core.tensor import Tensor, as_tensor, contiguous
from weft.frontend.core.trace import (
    Effect,
    Trace,
    current_trace,
    graph_around,
    host_trace,
    in_graph,
)
from weft.frontend.extend.debug import python_effect
from weft.frontend.ops.dispatch import apply, fresh_sizes
from weft.frontend.ops.promotion import check_int
from weft.frontend.state.resources import handle, refusal
from weft.ir.dtypes import string
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue
from weft.runtime.dataflow.host_dispatch import run_now
from weft.runtime.resources.attempts import CancelToken, Resource
from weft.runtime.resources.components import ComponentShape

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
            f"{what} was called while the function '{trace.root().name}' is traced: it builds on "
            "a wf.Graph, of which a function has none",
            hint="call it outside of the function",
        )
    return found


def host_op(
    op: str, operands: Sequence[Tensor] = (), objects: Sequence[Resource] = (), /, *,
    sizes: int = 0, shapes: Sequence[ComponentShape] = (), timeout: float | None = None,
    cancel: CancelToken | None = None, **attrs: AttrValue,
) -> list[Tensor]:  # fmt: skip
    """The tensors that a host op gives: what its row (`dataflow.host_ops`) gives at once, or in a
    `wf.Graph` those of the op, of whose sizes `sizes`, and those that are None in `shapes`, depend
    on values.

    objects: what the op's handles, its first operands, stand for. timeout, cancel: of what waits,
    outside of graphs.
    """
    if current_trace() is None:
        made = run_now(op, objects, _arrays(op, operands), attrs, timeout, cancel)
        return [Tensor(contiguous(a)) for a in made]
    trace = _graph(op)
    sizes += sum(n is None for shape in shapes for n in shape or ())
    if sizes:
        attrs["sizes"] = fresh_sizes(trace, op, sizes)
    values = _emit(trace, op, operands, objects, timeout, cancel, attrs)
    return [trace.tensor(v) for v in values]


def host_effect(
    op: str, operands: Sequence[Tensor] = (), objects: Sequence[Resource] = (), /, *,
    name: str | None = None, timeout: float | None = None, cancel: CancelToken | None = None,
    **attrs: AttrValue,
) -> Effect | None:  # fmt: skip
    """What a host op without results does: an effect of the graph, or done at once (None). Else as
    `host_op`."""
    if current_trace() is None:
        run_now(op, objects, _arrays(op, operands), attrs, timeout, cancel)
        return None
    trace = _graph(op)
    (token,) = _emit(trace, op, operands, objects, timeout, cancel, attrs)
    return Effect(trace.name_scope + (name or op), token, trace)


def _arrays(op: str, operands: Sequence[Tensor]) -> list[Any]:
    return [
        t._concrete(f"wf.{op}", "pass tensors that have values") if t._data is None else t._data
        for t in operands
    ]


def _graph(op: str) -> Trace:
    """The trace that the op is added to. UnsupportedError in a function that takes none."""
    trace = current_trace()
    assert trace is not None
    if host_trace(trace) is None:
        raise refusal(f"wf.{op}")
    return trace


def _emit(
    trace: Trace, op: str, operands: Sequence[Tensor], objects: Sequence[Resource],
    timeout: float | None, cancel: CancelToken | None, attrs: Mapping[str, AttrValue],
) -> Sequence[Value]:  # fmt: skip
    """Add the op; its errors name the first object."""
    if timeout is not None or cancel is not None:
        raise InvalidArgumentError(
            f"{objects[0].describe()}: {op}: timeout= and cancel= are for calls outside of graphs "
            "and compiled functions",
            hint="Session.run(options=wf.RunOptions(timeout=...)) limits a step"
            if in_graph()
            else "call it outside of the function and pass it the result; closing the object ends "
            "a wait in the function",
        )
    given = [trace.lift(t) for t in operands]
    try:
        return trace.emit(op, [*(handle(trace, o) for o in objects), *given], attrs)
    except WeftError as error:
        if not objects or objects[0].describe() in error.what:
            raise
        what = f"{objects[0].describe()}: {error.what}"
        raise type(error)(what, hint=error.hint) from None


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

    first_n is not supported. `wf.print` takes a format.
    """
    if first_n is not None:
        raise UnsupportedError(
            "wf.tf1.Print: first_n is not supported",
            hint="wf.py_function can count how often it ran",
        )
    x = as_tensor(input_)
    count = 3 if summarize is None else check_int("Print", summarize, "summarize")
    given = [as_tensor(d) for d in data]
    done = python_effect("print", given, name=name, message=message or "", summarize=count)
    if done.trace is None or done.value is None:
        return x
    (value,) = done.trace.emit("identity", [done.trace.lift(x)], control=[done.value])
    return done.trace.tensor(value, x.weak)


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
    given = [x, *map(as_tensor, data)]
    return python_effect("assert", given, name=name, message="", summarize=count)
