"""`Print` and `Assert`, with TensorFlow 1's names and arguments: eagerly and in a `wf.Graph`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontend.files.calls import graph_or_eager, host_effect, located
from weft.frontend.ops.arguments import check_int
from weft.frontend.ops.dispatch import apply
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Effect
from weft.ir.errors import UnsupportedError


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
            "wf.Print: first_n is not supported", hint="wf.py_function can count how often it ran"
        )
    x = as_tensor(input_)
    count = 3 if summarize is None else check_int("Print", summarize, "summarize")
    given = [as_tensor(d) for d in data]
    done = host_effect("print", given, name, message=message or "", summarize=count)
    trace = graph_or_eager("wf.Print")
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
