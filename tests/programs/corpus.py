"""The corpus: the programs of the tests by name, each with its inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
from layer_programs import normal
from layers_in_parts import EVERY
from loop_programs import PROGRAMS as GPU_LOOPS
from lstm_programs import PROGRAMS as LSTM
from program_forms import Call, Outcome, Program, Steps
from scalar_programs import PROGRAMS as SCALAR
from semantic_gradients import PROGRAMS as GRADIENTS
from semantic_loops import PROGRAMS as LOOPS
from semantic_programs import PROGRAMS as BRANCHES
from semantic_programs import Case
from sequence_programs import PROGRAMS as SEQUENCES
from session_programs import arrays, build_here
from sized_layers import DIM, EMPTY_FAILS, LAYERS
from snapshot.sessions import SESSIONS
from training_programs import PROGRAMS as TRAINING
from ways import Raises

import weft as wf
from weft.frontend.core import pytree

SEMANTICS = {**BRANCHES, **LOOPS, **GRADIENTS}
#: Sizes that a session meets one after another.
SIZES = (5, 17, 2, 1, 0, 64, 33)
RANDOM_SESSIONS = 50


@cache
def corpus() -> dict[str, Program]:
    """All of it."""
    made = [
        *(_semantic(n) for n in SEMANTICS),
        *(_training(n) for n in TRAINING),
        *(_lstm(n) for n in LSTM),
        *(_function(f"loops/{n}", partial(_same, f), a) for n, (f, a) in GPU_LOOPS.items()),
        *(
            _function(f"scalar/{n}", partial(_same, f), a, near=1e-4)
            for n, (f, a) in SCALAR.items()
        ),
        *(_layer(n, layer, rows) for n, layer in EVERY.items() for rows in (3, 37, 300)),
        *(_sized(n, layer) for n, layer in LAYERS.items()),
        Program("loops/until", _until, told=frozenset({"gradient"}), near=1e-4),
        _function("loops/small", partial(_same, small), SMALL, near=1e-4),
        _function(
            "python/looked_at", partial(_same, looked_at), LOOKED, told=frozenset({"gradient"})
        ),
        _function("linalg/fit", partial(_same, fit), FITTED, near=1e-5),
        *_sessions(),
        *(_random(seed) for seed in range(RANDOM_SESSIONS)),
        _function("sparse/neighbours", partial(_same, neighbours), GRAPH, near=1e-4),
        *(
            _function(f"sequences/{n}", partial(_same, f), a, near=1e-5)
            for n, (f, a) in SEQUENCES.items()
        ),
    ]
    return {p.name: p for p in made}


FITTED = (
    np.random.default_rng(4).normal(size=(5, 6, 4)),
    np.random.default_rng(5).normal(size=(5, 6, 2)),
)


def fit(a: Any, b: Any) -> Any:
    """Ridge regression by decompositions, its gradient, and results that depend on no signs."""

    def loss(a: Any) -> Any:
        normal = wf.matrix_transpose(a) @ a + wf.eye(4, dtype=a.dtype)
        factor = wf.linalg.cholesky(normal)
        half = wf.linalg.solve_triangular(factor, wf.matrix_transpose(a) @ b, lower=True)
        x = wf.linalg.solve(wf.matrix_transpose(factor), half)
        return wf.sum((a @ x - b) ** 2) + wf.sum(wf.linalg.slogdet(normal).logabsdet)

    q, r = wf.linalg.qr(a)
    values = wf.linalg.eigvalsh(wf.matrix_transpose(r) @ r)
    return wf.value_and_grad(loss)(a), q @ r, values, wf.linalg.svdvals(a), wf.linalg.pinv(a)


GRAPH = (
    np.random.default_rng(6).integers(0, 7, (30, 2)),
    np.random.default_rng(7).normal(size=30).astype(np.float32),
    np.random.default_rng(8).normal(size=(7, 3)).astype(np.float32),
)


def neighbours(edges: Any, weights: Any, h: Any) -> Any:
    """Attention over the edges of a graph, its gradients, and sums over edges."""

    def layer(weights: Any, h: Any) -> Any:
        near = wf.sparse.softmax(wf.sparse.SparseTensor(edges, weights, (7, 7)))
        return wf.tanh(near @ h + wf.transpose(wf.transpose(h) @ near))

    def loss(weights: Any, h: Any) -> Any:
        return wf.sum(layer(weights, layer(weights, h)) ** 2)

    x = wf.sparse.SparseTensor(edges, weights, (7, 7))
    rows = wf.sparse.reduce_sum(x, 1), wf.sparse.reduce_max(wf.sparse.transpose(x), 0)
    return wf.value_and_grad(loss, argnums=(0, 1))(weights, h), rows, x + wf.ones((7, 7))


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


#: A function is called so often: what it does to variables shows in the next results, and a GPU
#: launches, records and replays.
TIMES = 3


def _function(name: str, make: Callable[[], Any], args: tuple[Any, ...], **more: Any) -> Program:
    return Program(name, call=lambda: Call(make(), [args] * TIMES), **more)


def _until() -> Steps:
    """A loop that ends by a sum over its rows, and its gradients."""
    x = wf.placeholder(wf.float32, (6, 40), "x")
    w = wf.Variable(np.random.default_rng(1).normal(size=(40, 40)).astype(np.float32) / 7, name="w")
    y = wf.while_loop(
        lambda i, y: wf.sum(y * y) > 1,
        lambda i, y: (i + 1, normal(wf.tanh(y @ w), w) * 0.5 ** wf.astype(i, wf.float32)),
        (1, x),
    )[1]
    loss = wf.sum(y * x)
    fed = {x: np.random.default_rng(2).normal(size=(6, 40)).astype(np.float32)}
    return Steps([y, loss, *wf.gradients(loss, [w, x])], [fed])


def small(x: Any) -> Any:
    """A loop whose products stay in registers."""
    w = wf.reshape(x[:9], (3, 3))
    return wf.while_loop(
        lambda i, v: wf.logical_and(i < 20, wf.sum(v * v) < 50),
        lambda i, v: (i + 1, wf.tanh(w @ v) + wf.sum(v * v) * 0.1),
        (0, x[9:12]),
    )[1]


def looked_at(x: Any) -> Any:
    """Prints and checks in a loop, a branch and a function that is differentiated."""

    def loss(w: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            wf.check(row < 100, "row {}", row)
            wf.print("{} {}", carry, row, file=os.devnull)
            return wf.cond(
                wf.sum(row) > 0,
                lambda: (wf.print("left", file=os.devnull), carry + w * row)[1],
                lambda: (wf.assert_finite(carry), carry - row * row)[1],
            ), carry

        last, rows = wf.scan(body, w, x)
        return wf.sum(last * last) + wf.sum(rows)

    return wf.value_and_grad(loss)(x[0] * 0.5)


LOOKED = (np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32),)
SMALL = (np.random.default_rng(0).normal(size=12).astype(np.float32),)


# -------------------------------------------------------------------------------------- sessions
#: Two that wait for elements that nobody puts into their queues.
WAITING = ("queue_to_training", "shuffle_queue")


def _sessions() -> Iterator[Program]:
    for name, build in SESSIONS.items():
        if name not in WAITING:
            told = frozenset({"gradient"} if "size" in name or "loop" in name else ())
            yield Program(f"sessions/{name}", build, told=told, near=1e-4)


# ------------------------------------------------------------------------------------- semantics
def _semantic(name: str) -> Program:
    def steps() -> Steps:
        case = SEMANTICS[name]()
        error = None if case.error is None else Raises(*case.error)
        queues = {q.name: list(elements) for q, elements in case.queues.items()}
        variables = {v.name: value for v, value in case.variables.items()}
        want = Outcome([list(case.want)], variables, queues, error, case.seen[1])
        fetches = pytree.flatten(case.fetch)[0]
        return Steps(fetches, [dict(case.feed)], want, seen=case.seen[0])

    return Program(f"semantics/{name}", steps, told=_told(name), near=2e-6, weight=4)


@cache
def _cases() -> dict[str, Case]:
    found = {}
    for name, build in SEMANTICS.items():
        with wf.Graph().as_default():
            found[name] = build()
    return found


def _told(name: str) -> frozenset[str]:
    case = _cases()[name]
    filled = any(q._queue._elements for q in case.queues) or case.variables
    traits = {"error": case.error, "filled": filled, "gradient": name in GRADIENTS}
    return frozenset(trait for trait, holds in traits.items() if holds)


# -------------------------------------------------------------------------------------- functions
def _training(name: str) -> Program:
    make, args = TRAINING[name]
    told = {
        "dropout": {"draws"},
        "embedding, Adagrad": {"gradient", "minimizes", "ordered"},
        "halves": set(),
        "loop of unknown length": {"gradient"},
    }
    found = frozenset(told.get(name, {"gradient", "minimizes"}))
    # kernels round to two bytes once, at the end; Adam divides by roots of small squares
    near = {"halves": 1e-2, "attention, Adam": 1e-3}.get(name, 2e-5)
    return _function(f"training/{name}", make, args, told=found, near=near)


def _lstm(name: str) -> Program:
    make, args = LSTM[name]
    told = frozenset({"gradient", "minimizes"} if name == "digits" else {"gradient"})
    return _function(f"lstm/{name}", make, args, told=told, near=1e-4)


# ------------------------------------------------------------------------------------------ layers
def _layer(name: str, layer: Callable[..., Any], rows: int) -> Program:
    """A layer with its gradients."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 70)).astype(np.float32)
    w = (rng.normal(size=(70, 70)) / 8).astype(np.float32)
    function = wf.value_and_grad(lambda x, w: wf.sum(layer(x, w) * x), argnums=(0, 1))
    told = {"gradient"} | ({"large"} if rows > 100 else set())
    told |= {"read transposed"} if name == "transpose" and rows < 10 else set()
    name = f"layers/{name}, {rows} rows"
    return _function(name, partial(_same, function), (x, w), told=frozenset(told), near=1e-3)


def _sized(name: str, layer: Callable[..., Any]) -> Program:
    """A layer of some rows, with its gradients; how many, only the feeds say."""
    rng = np.random.default_rng(3)
    w = (rng.normal(size=(DIM, DIM)) / np.sqrt(DIM)).astype(np.float32)
    sizes = [n for n in SIZES if n or name not in EMPTY_FAILS]
    args = [(rng.normal(size=(n, DIM)).astype(np.float32), w) for n in sizes]

    def function(x: Any, w: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            value = layer(x, w)
            return wf.sum(value * value), (value, wf.shape(value))

        return wf.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, w)

    told = {"gradient"} | ({"dynamic", "unread size"} if name == "parts" else set())
    told |= {"read transposed"} if name == "transpose" else set()
    return Program(
        f"sized/{name}", call=lambda: Call(function, args), told=frozenset(told), near=1e-3,
        weight=8,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- random
def _random(seed: int) -> Program:
    def steps() -> Steps:
        _, feeds, fetches = build_here(seed, placed=False)
        given = [dict(zip(feeds, arrays(seed + k), strict=True)) for k in range(2)]
        return Steps(fetches, given)

    return Program(f"random/{seed:02}", steps, near=1e-4, weight=48)
