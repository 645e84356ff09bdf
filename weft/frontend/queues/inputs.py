"""Input producers and batches: queues with queue runners of their own, added to the graph that is
being built, with TensorFlow 1's names (`wf.train.*`).

`wf.train.start_queue_runners(session, coordinator)` starts them. When the input ends, each queue is
closed after its last element, and whoever dequeues from it gets OutOfRangeError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.control.branches import cond
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, suspend_trace
from weft.frontend.ops.dynamic import boolean_mask
from weft.frontend.ops.indexing import take
from weft.frontend.ops.promotion import check_int
from weft.frontend.queues.host_ops import graph_or_eager, located
from weft.frontend.queues.queue import FIFOQueue, PaddingFIFOQueue, QueueBase, RandomShuffleQueue
from weft.frontend.queues.runners import QueueRunner, add_queue_runner
from weft.frontend.random.generator import random_shuffle
from weft.frontend.session.graph import get_default_graph
from weft.frontend.session.tf_names import identity
from weft.frontend.session.variables import variables_initializer
from weft.frontend.state.scopes import control_dependencies, no_op
from weft.frontend.state.variable import Variable
from weft.ir.dtypes import string
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, TypeRuleError


def _check_graph(what: str) -> None:
    if graph_or_eager(f"wf.train.{what}") is None:
        raise FailedPreconditionError(
            f"wf.train.{what} adds a queue and its runner to a graph, and none is being built",
            hint="call it inside `with graph.as_default():`; eagerly, wf.data does this",
        )


@located
def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """`tensor`; computing it more often than `num_epochs` times is an OutOfRangeError. None: no
    limit.

    The count is an int64 variable called `<name>/epochs`, which has its first value already;
    `wf.tf1.local_variables_initializer()` takes it back to 0.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.train.limit_epochs(wf.asarray([1, 2]), num_epochs=1)
    ...     print(session.run(x))
    ...     session.run(x)
    Traceback (most recent call last):
    weft.ir.errors.OutOfRangeError: variable 'limit_epochs/epochs' has reached its limit of 1
    ...
    """
    _check_graph("limit_epochs")
    x = as_tensor(tensor)
    if num_epochs is None:
        return x
    limit = check_int("train.limit_epochs", num_epochs, "num_epochs")
    if limit < 1:
        raise InvalidArgumentError(f"wf.train.limit_epochs: num_epochs={limit} must be at least 1")
    graph = get_default_graph()
    with suspend_trace():
        epochs = Variable(
            np.zeros((), np.int64), trainable=False, name=f"{name or 'limit_epochs'}/epochs"
        )
    graph.local_variables.append(epochs)
    with control_dependencies([epochs.count_up_to(limit)]):
        return identity(x)


def local_variables_initializer() -> Effect:
    """An effect that takes the counts of epochs of the graph back to 0."""
    return variables_initializer(get_default_graph().local_variables, name="init_local")


# ---------------------------------------------------------------------------------- input producers
@located
def input_producer(
    input_tensor: Any, element_shape: Sequence[int] | None = None, num_epochs: int | None = None,
    shuffle: bool = True, seed: int | None = None, capacity: int = 32,
    shared_name: str | None = None, summary_name: str | None = None, name: str | None = None,
    cancel_op: Any = None,
) -> QueueBase:  # fmt: skip
    """A queue of the rows of `input_tensor`, again and again, or `num_epochs` times; each time in
    another order if `shuffle`. element_shape: of a row, if the graph does not know it.

    >>> with wf.Graph().as_default():
    ...     row = wf.train.input_producer([[1, 2], [3, 4]], num_epochs=1, shuffle=False).dequeue()
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         print(session.run(row), session.run(row))
    [1 2] [3 4]
    """
    _check_graph("input_producer")
    rows = as_tensor(input_tensor)
    if not rows.ndim or rows.shape[0] == 0:
        raise InvalidArgumentError(
            f"wf.train.input_producer needs at least one row, got {rows.describe()}"
        )
    shape = tuple(element_shape) if element_shape is not None else rows.shape[1:]
    label = name or "input_producer"
    queue = FIFOQueue(capacity, [rows.dtype], [_static(label, shape)], shared_name=shared_name)
    given = random_shuffle(rows, seed=seed) if shuffle else rows
    fill: Any = queue.enqueue_many([limit_epochs(given, num_epochs, name=label)])
    add_queue_runner(QueueRunner(queue, [fill], cancel_op=cancel_op))
    return queue


@located
def string_input_producer(
    string_tensor: Any, num_epochs: int | None = None, shuffle: bool = True,
    seed: int | None = None, capacity: int = 32, shared_name: str | None = None,
    name: str | None = None, cancel_op: Any = None,
) -> QueueBase:  # fmt: skip
    """A queue of strings, names of files say: see `input_producer`.

    >>> with wf.Graph().as_default():
    ...     queue = wf.train.string_input_producer(["a.txt", "b.txt"], num_epochs=1, shuffle=False)
    ...     name = queue.dequeue()
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         while not session.should_stop():  # the end of the input leaves the block
    ...             print(session.run(name))
    b'a.txt'
    b'b.txt'
    """
    _check_graph("string_input_producer")
    if isinstance(string_tensor, (list, tuple)):
        string_tensor = [str(s) if hasattr(s, "__fspath__") else s for s in string_tensor]
    names = as_tensor(string_tensor)
    if names.dtype is not string and not (names.shape and names.shape[0] == 0):
        raise TypeRuleError(f"wf.train.string_input_producer takes strings, got {names.describe()}")
    label = name or "string_input_producer"
    return input_producer(
        names, (), num_epochs, shuffle, seed, capacity, shared_name, None, label, cancel_op
    )


@located
def range_input_producer(
    limit: int, num_epochs: int | None = None, shuffle: bool = True, seed: int | None = None,
    capacity: int = 32, shared_name: str | None = None, name: str | None = None,
) -> QueueBase:  # fmt: skip
    """A queue of the integers 0 .. limit-1 (int32): see `input_producer`.

    >>> with wf.Graph().as_default():
    ...     number = wf.train.range_input_producer(3, shuffle=False).dequeue()
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         print([int(session.run(number)) for _ in range(5)])
    [0, 1, 2, 0, 1]
    """
    _check_graph("range_input_producer")
    numbers = np.arange(check_int("train.range_input_producer", limit, "limit"), dtype=np.int32)
    label = name or "range_input_producer"
    return input_producer(
        numbers, (), num_epochs, shuffle, seed, capacity, shared_name, None, label
    )


@located
def slice_input_producer(
    tensor_list: Sequence[Any], num_epochs: int | None = None, shuffle: bool = True,
    seed: int | None = None, capacity: int = 32, shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:  # fmt: skip
    """A row of each tensor, all with one number: dequeued from `range_input_producer`.

    >>> with wf.Graph().as_default():
    ...     image, label = wf.train.slice_input_producer([[10, 20], ["a", "b"]], shuffle=False)
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         print(*session.run([image, label]))
    10 b'a'
    """
    _check_graph("slice_input_producer")
    tensors = [as_tensor(t) for t in tensor_list]
    lengths: set[Any] = {t.shape[0] if t.ndim else None for t in tensors}
    if len(lengths) != 1 or not isinstance(next(iter(lengths)), int):
        raise InvalidArgumentError(
            "wf.train.slice_input_producer: the tensors need one first axis of a known length, got "
            + (", ".join(t.describe() for t in tensors) or "no tensor")
        )
    length = int(next(iter(lengths)))
    label = name or "slice_input_producer"
    queue = range_input_producer(length, num_epochs, shuffle, seed, capacity, shared_name, label)
    index = queue.dequeue()
    return [take(t, index, axis=0) for t in tensors]


# ------------------------------------------------------------------------------------------ batches
@located
def batch(
    tensors: Any, batch_size: int, num_threads: int = 1, capacity: int = 32,
    enqueue_many: bool = False, shapes: Any = None, dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False, shared_name: str | None = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """`batch_size` elements of `tensors` stacked, through a queue that `num_threads` threads fill.

    tensors: one, a list or a dict; the result is alike. enqueue_many: they are rows of elements
    already. dynamic_pad: sizes may vary; a batch is filled up with zeros. The last elements make no
    batch, or with `allow_smaller_final_batch` a smaller one.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     number = wf.train.range_input_producer(5, num_epochs=1, shuffle=False).dequeue()
    ...     rows = wf.train.batch([number, number**2], 2, allow_smaller_final_batch=True)
    ...     coordinator = wf.train.Coordinator()
    ...     threads = wf.train.start_queue_runners(session, coordinator)
    ...     for _ in range(3):
    ...         print(*session.run(rows))
    ...     coordinator.request_stop()
    ...     coordinator.join(threads)
    [0 1] [0 1]
    [2 3] [4 9]
    [4] [16]
    """
    return _batched("batch", [tensors] * _threads("batch", num_threads), batch_size, capacity,
                    None, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch,
                    shared_name)  # fmt: skip


@located
def batch_join(
    tensors_list: Sequence[Any], batch_size: int, capacity: int = 32, enqueue_many: bool = False,
    shapes: Any = None, dynamic_pad: bool = False, allow_smaller_final_batch: bool = False,
    shared_name: str | None = None, name: str | None = None,
) -> Any:  # fmt: skip
    """`batch` of several sources, each with a thread of its own.

    >>> with wf.Graph().as_default():
    ...     sources = [[wf.train.range_input_producer(n, num_epochs=1).dequeue()] for n in (2, 3)]
    ...     (rows,) = wf.train.batch_join(sources, 5)
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         print(np.sort(session.run(rows)))
    [0 0 1 1 2]
    """
    return _batched("batch_join", tensors_list, batch_size, capacity, None, enqueue_many, shapes,
                    dynamic_pad, allow_smaller_final_batch, shared_name)  # fmt: skip


@located
def shuffle_batch(
    tensors: Any, batch_size: int, capacity: int, min_after_dequeue: int, num_threads: int = 1,
    seed: int | None = None, enqueue_many: bool = False, shapes: Any = None,
    allow_smaller_final_batch: bool = False, shared_name: str | None = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """`batch` of elements drawn at random from a queue that has more than `min_after_dequeue`.

    >>> with wf.Graph().as_default():
    ...     number = wf.train.range_input_producer(6, num_epochs=1).dequeue()
    ...     drawn = wf.train.shuffle_batch(number, 6, capacity=10, min_after_dequeue=2)
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         print(np.sort(session.run(drawn)))
    [0 1 2 3 4 5]
    """
    sources = [tensors] * _threads("shuffle_batch", num_threads)
    return _batched("shuffle_batch", sources, batch_size, capacity, (min_after_dequeue, seed),
                    enqueue_many, shapes, False, allow_smaller_final_batch,
                    shared_name)  # fmt: skip


@located
def shuffle_batch_join(
    tensors_list: Sequence[Any], batch_size: int, capacity: int, min_after_dequeue: int,
    seed: int | None = None, enqueue_many: bool = False, shapes: Any = None,
    allow_smaller_final_batch: bool = False, shared_name: str | None = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """`shuffle_batch` of several sources, each with a thread of its own.

    >>> with wf.Graph().as_default():
    ...     sources = [wf.train.range_input_producer(n, num_epochs=1).dequeue() for n in (2, 3)]
    ...     drawn = wf.train.shuffle_batch_join(sources, 5, capacity=10, min_after_dequeue=2)
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         print(np.sort(session.run(drawn)))
    [0 0 1 1 2]
    """
    return _batched("shuffle_batch_join", tensors_list, batch_size, capacity,
                    (min_after_dequeue, seed), enqueue_many, shapes, False,
                    allow_smaller_final_batch, shared_name)  # fmt: skip


@located
def maybe_batch(
    tensors: Any, keep_input: Any, batch_size: int, num_threads: int = 1, capacity: int = 32,
    enqueue_many: bool = False, shapes: Any = None, dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False, shared_name: str | None = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """`batch` of those elements for which `keep_input` is true: a bool, with `enqueue_many` one for
    each row or one for all.

    >>> with wf.Graph().as_default():
    ...     number = wf.train.range_input_producer(6, num_epochs=1, shuffle=False).dequeue()
    ...     odd = wf.train.maybe_batch(number, number % 2 == 1, 3)
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         print(session.run(odd))
    [1 3 5]
    """
    return _batched("maybe_batch", [tensors] * _threads("maybe_batch", num_threads), batch_size,
                    capacity, None, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch,
                    shared_name, keep_input)  # fmt: skip


def _batched(
    what: str, sources: Sequence[Any], batch_size: Any, capacity: Any,
    shuffled: tuple[Any, int | None] | None, many: bool, shapes: Any, pad: bool, smaller: bool,
    shared_name: str | None, keep: Any = None,
) -> Any:  # fmt: skip
    _check_graph(what)
    size = check_int(f"train.{what}", batch_size, "batch_size")
    parts = [_parts(what, s) for s in sources]
    if not parts or any(_kinds(p) != _kinds(parts[0]) for p in parts):
        raise InvalidArgumentError(
            f"wf.train.{what}: the sources must be lists or dicts of tensors of the same dtypes"
        )
    dtypes = [t.dtype for t in parts[0].values()]
    sizes = list(shapes) if shapes is not None else _common(what, parts, many, pad)
    queue: QueueBase
    if shuffled is not None:
        least, seed = shuffled
        queue = RandomShuffleQueue(capacity, least, dtypes, sizes, seed=seed,
                                   shared_name=shared_name)  # fmt: skip
    elif pad:
        queue = PaddingFIFOQueue(capacity, dtypes, sizes, shared_name=shared_name)
    else:
        queue = FIFOQueue(capacity, dtypes, sizes, shared_name=shared_name)
    fill = [_filling(queue, list(p.values()), many, keep) for p in parts]
    add_queue_runner(QueueRunner(queue, fill))
    made = queue.dequeue_up_to(size) if smaller else queue.dequeue_many(size)
    return _like(sources[0], made if isinstance(made, list) else [made])


def _filling(queue: QueueBase, values: list[Tensor], many: bool, keep: Any) -> Effect:
    """The effect that one thread of the runner repeats."""

    def fill() -> Any:
        return queue.enqueue_many(values) if many else queue.enqueue(values)

    if keep is None:
        made: Effect = fill()
        return made
    wanted = as_tensor(keep)
    if wanted.ndim and many:
        values[:] = [boolean_mask(v, wanted) for v in values]
        kept: Effect = fill()
        return kept
    chosen: Effect = cond(wanted, fill, no_op)
    return chosen


def _threads(what: str, num_threads: Any) -> int:
    count = check_int(f"train.{what}", num_threads, "num_threads")
    if count < 1:
        raise InvalidArgumentError(f"wf.train.{what}: num_threads={count} must be at least 1")
    return count


def _parts(what: str, given: Any) -> dict[str, Tensor]:
    if isinstance(given, Mapping):
        return {str(k): as_tensor(given[k]) for k in sorted(given, key=str)}
    listed = given if isinstance(given, (list, tuple)) else [given]
    if not listed:
        raise InvalidArgumentError(f"wf.train.{what}: there is no tensor")
    return {str(i): as_tensor(t) for i, t in enumerate(listed)}


def _kinds(parts: Mapping[str, Tensor]) -> list[Any]:
    return [(k, t.dtype, t.ndim) for k, t in parts.items()]


def _common(
    what: str, parts: Sequence[Mapping[str, Tensor]], many: bool, pad: bool
) -> list[tuple[int | None, ...]]:
    """The shapes of the elements; sizes that are not known, or differ, are None if they may be."""
    found: list[tuple[int | None, ...]] = []
    for key in parts[0]:
        shapes = [p[key].shape[1 if many else 0 :] for p in parts]
        sizes = [set(d) for d in zip(*shapes, strict=True)]
        shape = tuple(
            d if len(s) == 1 and isinstance(d := next(iter(s)), int) else None for s in sizes
        )
        found.append(shape if pad else _static(what, shape))
    return found


def _static(what: str, shape: Sequence[Any]) -> tuple[int, ...]:
    known = tuple(d for d in shape if isinstance(d, int))
    if len(known) != len(shape):
        raise InvalidArgumentError(
            f"wf.train.{what}: the shape of an element, {list(shape)}, is not known",
            hint="wf.reshape(x, shape) says it; dynamic_pad=True takes elements of any size",
        )
    return known


def _like(source: Any, made: list[Tensor]) -> Any:
    if isinstance(source, Mapping):
        return dict(zip(sorted(source, key=str), made, strict=True))
    return made if isinstance(source, (list, tuple)) else made[0]


__all__ = [
    "batch", "batch_join", "input_producer", "limit_epochs", "local_variables_initializer",
    "maybe_batch", "range_input_producer", "shuffle_batch", "shuffle_batch_join",
    "slice_input_producer", "string_input_producer",
]  # fmt: skip
