"""Programs of sessions that are written for the snapshot: sizes that stay open, queues, tasks,
GPUs. Each builds in the current graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from program_forms import Steps

import weft as wf

F32 = np.float32
PS, WORKERS = "/job:ps/task:0", ("/job:worker/task:0", "/job:worker/task:1")


def _ones(*shape: int) -> Any:
    return np.ones(shape, F32)


def _classifier(x: Any, y: Any) -> tuple[Any, Any]:
    """Loss and update of a layer and a softmax."""
    w = wf.Variable(_ones(12, 4), name="w")
    b = wf.Variable(_ones(4), name="b")
    logits = wf.matmul(x, w) + b
    loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return loss, wf.train.AdagradOptimizer(0.1).minimize(loss)


# ------------------------------------------------------------------------------------ on one device
def classifier_of_any_size() -> Steps:
    """The second batch size makes a plan for many."""
    x, y = wf.placeholder(wf.float32, [None, 12]), wf.placeholder(wf.float32, [None, 4])
    return Steps(list(_classifier(x, y)), [{x: _ones(n, 12), y: _ones(n, 4)} for n in (5, 7, 64)])


def rows_of_any_size() -> Steps:
    x = wf.placeholder(wf.float32, ["rows", "columns"])
    y = wf.nn.softmax(x) + wf.cumulative_sum(x, axis=1)
    (slope,) = wf.gradients([wf.sum(y * y)], [x])
    return Steps([y, slope], [{x: _ones(*s)} for s in ((8, 16), (9, 33), (300, 40))])


def scan_of_any_length() -> Steps:
    xs, w = wf.placeholder(wf.float32, [None, 4]), wf.Variable(_ones(4, 4), name="w")
    last, ys = wf.scan(lambda h, x: 2 * (wf.tanh(wf.matmul(h[None], w)[0] + x),), _ones(4), xs)
    loss = wf.sum(last) + wf.sum(ys)
    return Steps([loss, *wf.gradients([loss], [xs])], [{xs: _ones(n, 4)} for n in (3, 6)])


def loop_that_keeps_values() -> Steps:
    """The gradient of a loop whose length the data decide pops from stacks."""
    x, n = wf.placeholder(wf.float32, [16, 8]), wf.placeholder(wf.int32, [])
    w = wf.Variable(_ones(8, 8), name="w")
    body = lambda i, v: (i + 1, wf.tanh(wf.matmul(v, w)))  # noqa: E731
    _, y = wf.while_loop(lambda i, v: i < n, body, (wf.constant(0), x))
    loss = wf.sum(y * y)
    return Steps([loss, *wf.gradients([loss], [x])], [{x: _ones(16, 8), n: np.int32(3)}])


def dynamic_sizes() -> Steps:
    """Sizes that values decide: regions are planned when they run."""
    x = wf.placeholder(wf.float32, [10])
    found = wf.boolean_mask(x, x > 0)
    return Steps([wf.sum(wf.exp(found)), wf.unique(found)[0]], [{x: _ones(10)}])


def queue_to_training() -> Steps:
    queue = wf.FIFOQueue(8, [wf.float32, wf.float32], [[5, 12], [5, 4]], name="batches")
    x, y = queue.dequeue()
    loss, train = _classifier(x, y)
    return Steps([loss, train], [{}])


def shuffle_queue() -> Steps:
    queue = wf.RandomShuffleQueue(100, 10, [wf.float32], [[12]], name="shuffled")
    x = wf.placeholder(wf.float32, [None, 12])
    put, rows = queue.enqueue_many([wf.tanh(x) * 2]), queue.dequeue_many(4)
    return Steps([put, wf.sum(rows, axis=0)], [{x: _ones(6, 12)}])


def words() -> Steps:
    text = wf.placeholder(wf.string, [3])
    lengths = wf.string_length(text)
    return Steps(
        [lengths, wf.cumulative_sum(lengths)], [{text: np.array([b"a", b"", b"bc"], object)}]
    )


def reproducible_session() -> Steps:
    x, y = wf.placeholder(wf.float32, [64, 12]), wf.placeholder(wf.float32, [64, 4])
    feeds = [{x: _ones(64, 12), y: _ones(64, 4)}]
    return Steps(list(_classifier(x, y)), feeds, options={"reproducible": True})


def random_numbers() -> Steps:
    x, rng = wf.placeholder(wf.float32, [64, 32]), wf.random.Generator(3)
    noisy = wf.nn.dropout(x, 0.3, rng=rng) + wf.random.normal(wf.random.key(5), (64, 32))
    return Steps([noisy, wf.random.uniform(wf.random.key(1), (7,))], [{x: _ones(64, 32)}])


SESSIONS: dict[str, Callable[[], Steps]] = {
    f.__name__: f
    for f in (
        classifier_of_any_size, rows_of_any_size, scan_of_any_length, loop_that_keeps_values,
        dynamic_sizes, queue_to_training, shuffle_queue, words, reproducible_session,
        random_numbers,
    )
}  # fmt: skip


# ---------------------------------------------------------------------------------------- on tasks
def replicas() -> Steps:
    """Weights on a parameter server, gradients by two workers."""
    with wf.device(PS):
        w = wf.Variable(_ones(12, 4), name="w")
    feeds, losses = {}, []
    for number, worker in enumerate(WORKERS):
        with wf.device(worker):
            x = wf.placeholder(wf.float32, [16, 12], name=f"x{number}")
            losses.append(wf.mean(wf.square(wf.matmul(x, w))))
            feeds[x] = _ones(16, 12)
    with wf.device(PS):
        loss = losses[0] + losses[1]
        train = wf.train.AdamOptimizer(0.1).minimize(loss)
    return Steps([loss, train], [feeds])


def replicas_in_bfloat16() -> Steps:
    """What goes between tasks is rounded."""
    made = replicas()
    return Steps(made.fetches, made.feeds, options={"bfloat16_sendrecv": True})


def loop_over_tasks() -> Steps:
    """A loop led from one task, half of whose body is on another one, and its gradient."""
    x, n = wf.placeholder(wf.float32, [4]), wf.placeholder(wf.int32, [])

    def body(i: Any, v: Any) -> Any:
        with wf.device(WORKERS[0]):
            u = wf.exp(wf.sin(v)) * 0.5
        with wf.device(PS):
            return i + 1, u * 1.5

    with wf.device(PS):
        _, last = wf.while_loop(lambda i, v: i < n, body, [wf.constant(0), x])
        loss = wf.sum(wf.square(last))
    return Steps([loss, *wf.gradients([loss], [x])], [{x: _ones(4), n: np.int32(3)}])


def branch_over_tasks() -> Steps:
    x = wf.placeholder(wf.float32, [3])

    def side(device: str, op: Callable[[Any], Any]) -> Callable[[], Any]:
        def made() -> Any:
            with wf.device(device):
                return op(x)

        return made

    y = wf.cond(wf.sum(x) > 0, side(WORKERS[0], wf.exp), side(WORKERS[1], wf.sin))
    return Steps([y, *wf.gradients([wf.sum(y * y)], [x])], [{x: _ones(3)}])


def unplaced() -> Steps:
    """Nothing says where anything is."""
    x, y = wf.placeholder(wf.float32, [64, 12]), wf.placeholder(wf.float32, [64, 4])
    return Steps(list(_classifier(x, y)), [{x: _ones(64, 12), y: _ones(64, 4)}])


def queue_of_another_task() -> Steps:
    with wf.device(PS):
        queue = wf.FIFOQueue(8, [wf.float32, wf.float32], [[5, 12], [5, 4]], name="batches")
        x, y = queue.dequeue()
    with wf.device(WORKERS[1]):
        loss, train = _classifier(x, y)
    return Steps([loss, train], [{}])


ON_TASKS: dict[str, Callable[[], Steps]] = {
    f.__name__: f
    for f in (
        replicas,
        replicas_in_bfloat16,
        loop_over_tasks,
        branch_over_tasks,
        unplaced,
        queue_of_another_task,
    )
}


# ----------------------------------------------------------------------------------------- on a GPU
def all_on_gpu() -> Steps:
    with wf.device("/gpu:0"):
        return classifier_of_any_size()


def there_and_back() -> Steps:
    x = wf.placeholder(wf.float32, [3])
    with wf.device("/gpu:0"):
        a = wf.exp(x) + 1.0
    with wf.device("/cpu:0"):
        b = a * 2.0
    with wf.device("/gpu:0"):
        c = wf.sum(b + a)
    return Steps([b, c], [{x: _ones(3)}])


def queue_to_gpu() -> Steps:
    """Batches come through a queue and an embedding of the CPU."""
    with wf.device("/cpu:0"):
        queue = wf.FIFOQueue(8, [wf.int64, wf.float32], [[5], [5, 3]], name="batches")
        table = wf.Variable(_ones(10, 4), name="table")
        ids, labels = queue.dequeue()
        rows = wf.nn.embedding_lookup(table, ids)
    with wf.device("/gpu:0"):
        w = wf.Variable(_ones(4, 3), name="w")
        logits = wf.matmul(wf.tanh(rows), w)
        each = wf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = wf.mean(each)
    with wf.device("/cpu:0"):
        train = wf.train.GradientDescentOptimizer(0.5).minimize(loss)
    return Steps([loss, train], [{}])


def loop_over_both() -> Steps:
    x, n = wf.placeholder(wf.float32, [4]), wf.placeholder(wf.int32, [])

    def body(i: Any, v: Any) -> Any:
        with wf.device("/gpu:0"):
            u = wf.exp(wf.sin(v)) * 0.5
        with wf.device("/cpu:0"):
            return i + 1, u * 1.5

    with wf.device("/cpu:0"):
        _, last = wf.while_loop(lambda i, v: i < n, body, [wf.constant(0), x])
        loss = wf.sum(wf.square(last))
    with wf.device("/gpu:0"):
        (slope,) = wf.gradients([loss], [x])
    return Steps([loss, slope], [{x: _ones(4), n: np.int32(3)}])


def loop_on_gpu() -> Steps:
    with wf.device("/gpu:0"):
        return loop_that_keeps_values()


ON_GPU: dict[str, Callable[[], Steps]] = {
    f.__name__: f for f in (all_on_gpu, there_and_back, queue_to_gpu, loop_over_both, loop_on_gpu)
}
