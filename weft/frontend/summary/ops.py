"""Summaries as tensors of strings: `scalar`, `histogram`, `image`, `text`, as TensorFlow 1 names
them, and `merge` and `merge_all`, which put several into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from weft.frontend.core.tensor import Array, Tensor, as_tensor
from weft.frontend.core.trace import (
    Effect,
    Trace,
    current_trace,
    graph_around,
    suspend_trace,
)
from weft.frontend.extend.debug import python_effect
from weft.frontend.ops.promotion import TensorLike, check_int, strong_tensor
from weft.frontend.ops.strings import string_join
from weft.frontend.queues.host_ops import host_op, located, string_tensor
from weft.frontend.session.graph import Graph, get_default_graph
from weft.frontend.state.scopes import device
from weft.ir.errors import InvalidArgumentError, UnsupportedError
from weft.ir.graph import unique_name
from weft.ir.ops.io import FunctionName, summary_type

#: Buckets of a histogram, and images of a batch, as TensorFlow makes them.
BUCKETS, MAX_OUTPUTS = 30, 3


class Target(Protocol):
    """A writer, as this module knows it."""

    def write_default(self, kind: str, tag: str, data: Array, limit: int) -> None:
        """Write a value at the writer's own step."""


#: The writers of the `with writer.as_default(step)` around what runs now, in any thread.
defaults: list[Target] = []


@located
def scalar(name: str, tensor: TensorLike) -> Tensor:
    """A summary of one number: a point of the curve `name`, which TensorBoard keeps as float32.

    tensor: real, without axes. The result is string[], a serialized Summary, for `merge` and
    `FileWriter.add_summary`. In a wf.Graph `name` goes after the name scope, and if a summary of
    the graph has it already, gets _1, _2, ...; `merge_all` finds it. UnsupportedError in bodies of
    its branches and loops, where `FileWriter.scalar` writes.

    Elsewhere, in a compiled function and its loops too, the writer whose `as_default` is around the
    code that runs writes it each time the program comes here, none if there is none; in a
    compiled function the result is an empty summary. ShapeError for more than one number,
    TypeRuleError for strings and complex ones.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [])
    ...     loss = wf.summary.scalar("loss", x**2)
    ...     with wf.summary.FileWriter("run") as writer:
    ...         for step in range(3):
    ...             writer.add_summary(session.run(loss, {x: step}), step)
    """
    return _summary("scalar", name, tensor, 1)


@located
def histogram(name: str, values: TensorLike, *, buckets: int = BUCKETS) -> Tensor:
    """A summary of how the values of a tensor are distributed: how many are in each of `buckets`
    equal parts between the least and the largest.

    values: real, of any shape. NaN and infinities are in no bucket: a scalar `<name>/not_finite`
    beside it says how many there are, if there are any. Else as `scalar`.

    >>> with wf.Graph().as_default():
    ...     w = wf.Variable(np.zeros(10, np.float32))
    ...     print(wf.summary.histogram("weights", w).dtype)
    weft.string
    """
    return _summary("histogram", name, values, check_int("histogram", buckets, "buckets"))


@located
def image(name: str, tensor: TensorLike, max_outputs: int = MAX_OUTPUTS) -> Tensor:
    """A summary of images: the first `max_outputs` of [n, height, width, channels], with 1 (grey),
    3 (RGB) or 4 channels (RGBA); or of one, [height, width, channels] or [height, width].

    tensor: uint8, or floats from 0 to 1; what is below or above is cut off, and NaN drawn red. Else
    as `scalar`.

    >>> with wf.Graph().as_default():
    ...     digits = wf.placeholder(wf.float32, [None, 8, 8, 1])
    ...     print(wf.summary.image("digits", digits, max_outputs=5).dtype)
    weft.string
    """
    return _summary("image", name, tensor, check_int("image", max_outputs, "max_outputs"))


@located
def text(name: str, tensor: Any) -> Tensor:
    """A summary of text, which TensorBoard reads as Markdown: one string, or strings with one or
    two axes, which it shows as a table. Else as `scalar`.

    >>> with wf.Graph().as_default():
    ...     print(wf.summary.text("about", "a *small* model").dtype)
    weft.string
    """
    return _summary("text", name, tensor, 1)


@located
def merge(inputs: Sequence[TensorLike]) -> Tensor:
    """One summary of all the values of several. InvalidArgumentError for none.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [3])
    ...     both = wf.summary.merge(
    ...         [wf.summary.scalar("mean", wf.mean(x)), wf.summary.histogram("x", x)]
    ...     )
    ...     with wf.summary.FileWriter("run") as writer:
    ...         writer.add_summary(session.run(both, {x: [1, 2, 3]}), 0)
    """
    given = [string_tensor("wf.summary.merge", x, scalar=True) for x in inputs]
    if not given:
        raise InvalidArgumentError("wf.summary.merge needs at least one summary")
    with _on_the_host():
        return string_join(given)


@located
def merge_all(scope: str | None = None) -> Tensor | None:
    """One summary of all those that were made in the graph that is being built; None if there are
    none. scope: only of those whose names begin with it.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [])
    ...     with wf.name_scope("train"):
    ...         _ = wf.summary.scalar("x", x), wf.summary.scalar("square", x**2)
    ...     merged = wf.summary.merge_all()
    ...     with wf.summary.FileWriter("run") as writer:
    ...         writer.add_summary(session.run(merged, {x: 3.0}), global_step=1)
    """
    made = get_default_graph().summaries
    chosen = [t for tag, t in made.items() if tag.startswith(scope or "")]
    return merge(chosen) if chosen else None


def _summary(kind: str, name: object, value: Any, limit: int) -> Tensor:
    """The op, or what it does at once; in a function, a call that writes when it runs."""
    trace, tag, given = current_trace(), check_name(name), strong_tensor(value)
    tag = tag if trace is None else trace.name_scope + tag
    graph = _graph_of(kind, trace)
    if trace is not None and graph is None:
        summary_type([given._type], {"kind": kind, "tag": tag, "limit": limit}, ())

        def write(data: Array) -> None:
            for target in defaults[-1:]:  # another thread may leave its block meanwhile
                target.write_default(kind, tag, data, limit)

        call_in_trace(f"wf.summary.{kind}", write, [given])
        return as_tensor("")
    if graph is not None:
        tag = unique_name(tag, graph.summaries)
    with _on_the_host():
        (made,) = host_op("summary", [given], kind=kind, tag=tag, limit=limit)
    if graph is not None:
        graph.summaries[tag] = made
    else:
        assert given._data is not None
        for target in defaults[-1:]:
            target.write_default(kind, tag, given._data, limit)
    return made


def _on_the_host() -> AbstractContextManager[None]:
    """In a graph: whatever device the scopes around name, or the rest of the step runs on, a CPU
    makes what is a string; in the scope of a GPU that of its task."""
    return nullcontext() if graph_around(current_trace()) is None else device("/cpu:0")


def call_in_trace(name: str, function: Callable[..., None], operands: Sequence[Tensor]) -> Effect:
    """An op that calls a Python function with the operands as arrays of its own each time it runs,
    in the order of the program. What has a value already is no operand of the op: native steps
    have no strings."""
    known = [None if t._data is None else np.array(t._data) for t in operands]

    def call(arrays: Sequence[Array]) -> list[Array]:
        given = iter(arrays)
        with suspend_trace():
            function(*[np.array(next(given)) if a is None else a for a in known])
        return []

    called = FunctionName(name, call)
    symbolic = [t for t in operands if t._data is None]
    return python_effect("debug_callback", symbolic, name=name, function=called, ordered=True)


def _graph_of(kind: str, trace: Trace | None) -> Graph | None:
    """The graph whose summary it becomes; None: a function is traced, or nothing is."""
    if graph_around(trace) is None:
        return None
    assert trace is not None
    if trace is not trace.root():
        raise UnsupportedError(
            f"wf.summary.{kind} inside '{trace.name}', the body of a branch or loop: nobody could "
            "fetch it",
            hint=f"wf.summary.FileWriter.{kind} writes from there, each time the body runs",
        )
    return trace.owner if isinstance(trace.owner, Graph) else None


def check_name(name: object) -> str:
    """The name of a summary. InvalidArgumentError if it is none."""
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"a summary needs a name, such as 'loss' or 'layer1/weights', got {name!r:.60}"
        )
    return name
