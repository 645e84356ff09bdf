"""Summaries as tensors of strings: `scalar`, `histogram`, `image`, `text`, as TensorFlow 1 names
them, and `merge` and `merge_all`, which put several into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace, unique_name
from weft.frontend.ops.promotion import TensorLike, check_int, strong_tensor
from weft.frontend.ops.strings import string_join
from weft.frontend.queues.host_ops import graph_or_eager, host_op, located, string_tensor
from weft.frontend.session.graph import Graph, get_default_graph
from weft.ir.errors import InvalidArgumentError, UnsupportedError

#: Buckets of a histogram, and images of a batch, as TensorFlow makes them.
BUCKETS, MAX_OUTPUTS = 30, 3


@located
def scalar(name: str, tensor: TensorLike) -> Tensor:
    """A summary of one number: a point of the curve `name`, which TensorBoard keeps as float32.

    tensor: real, without axes. The result is string[], a serialized Summary, for `merge` and
    `FileWriter.add_summary`. In a wf.Graph `name` goes after the name scope, and if a summary of
    the graph has it already, gets _1, _2, ...; `merge_all` finds it. ShapeError for more than one
    number, TypeRuleError for strings and complex ones, UnsupportedError in compiled functions and
    in bodies of branches and loops, where `FileWriter.scalar` writes.

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
    """The op, or its result at once."""
    tag, trace = check_name(name), graph_or_eager(f"wf.summary.{kind}")
    graph = _graph_of(kind, trace)
    if graph is not None and trace is not None:
        tag = unique_name(trace.name_scope + tag, graph.summaries)
    (made,) = host_op("summary", [strong_tensor(value)], kind=kind, tag=tag, limit=limit)
    if graph is not None:
        graph.summaries[tag] = made
    return made


def _graph_of(kind: str, trace: Trace | None) -> Graph | None:
    """The graph whose summary it becomes; None: it is made at once."""
    if trace is None:
        return None
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
