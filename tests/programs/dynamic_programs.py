"""Random programs with sizes that depend on values (a hypothesis strategy), and what NumPy makes of
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from program_forms import Call, Outcome, Program

import weft as wf

Array = np.ndarray[Any, Any]
#: An operation: on weft's vectors, and on NumPy's. Values stay small integers, so all is exact.
Step = tuple[Callable[..., Any], Callable[..., Any]]
FEEDS = ([1, -2, 3, 3, 0, 5], [-1, -1], [], [4, 4, 4, -8, 2, 7, 7, 1, 0])


def _small(v: Any) -> Any:
    return wf.remainder(v, 16) - 6


def _small_np(v: Array) -> Array:
    return (np.remainder(v, 16) - 6).astype(np.float32)


def _through(v: Any, c: int) -> Any:
    side = wf.cast(v > c, wf.int32)
    places = wf.dynamic_partition(wf.reshape(wf.arange(v.shape[0]), v.shape), side, 3)
    parts = wf.dynamic_partition(v, side, 3)
    return wf.dynamic_stitch(places, [parts[0] - 1, parts[1] + 1, parts[2]])


def _scattered(v: Array, c: int) -> Array:
    out = np.zeros(int(v.max()) + 1 if v.size else 0, np.float32)
    for x in v:
        out[int(x)] = x + c
    return out


def _count(v: Any, c: int) -> Any:
    """A number from 0 to 4 that the values decide."""
    return wf.cast(wf.remainder(wf.sum(v) + c, 5), wf.int32)


def _count_np(v: Array, c: int) -> int:
    return int(np.remainder(v.sum() + c, 5))


def _grown(v: Any, c: int) -> Any:
    """Of another size after each iteration, from a known one on."""
    n = _count(v, c)
    body = lambda i, h: (i + 1, wf.concat([h[:12], wf.reshape(wf.sum(h) - c, (1,)), h[:i]]))  # noqa: E731
    made: Any = wf.while_loop(lambda i, h: i < n, body, (0, wf.ones(2) * c), (None, (None,)))[1]
    return _small(made)


def _grown_np(v: Array, c: int) -> Array:
    h = np.full(2, c, np.float32)
    for i in range(_count_np(v, c)):
        h = np.concatenate([h[:12], [h.sum() - c], h[:i]]).astype(np.float32)
    return _small_np(h)


def _pieces(v: Any, c: int) -> Any:
    """Parts of v in another order, through a TensorArray."""
    n = _count(v, c)
    ta = wf.TensorArray(wf.float32, 3, infer_shape=False)
    return ta.write(2, v[:n]).write(0, v[n:]).write(1, wf.ones([n]) * c).concat()


def _pieces_np(v: Array, c: int) -> Array:
    n = _count_np(v, c)
    return np.concatenate([v[n:], np.full(n, c, np.float32), v[:n]]).astype(np.float32)


DYNAMIC = frozenset({"dynamic"})
UNARY: dict[str, Callable[[int], Step]] = {
    "mask": lambda c: (lambda v: v[v > c], lambda v: v[v > c]),
    "affine": lambda c: (lambda v: _small(v * 3 + c), lambda v: _small_np(v * 3 + c)),
    "ones": lambda c: (lambda v: v + c * wf.ones([v.shape[0]]), lambda v: v + c),
    "unique": lambda c: (wf.unique_values, np.unique),
    "partition": lambda c: (
        lambda v: _through(v, c), lambda v: np.where(v > c, v + 1, v - 1).astype(np.float32)
    ),
    "stitch": lambda c: (
        lambda v: wf.dynamic_stitch([wf.cast(wf.abs(v), wf.int32)], [wf.abs(v) + c]),
        lambda v: _scattered(np.abs(v), c),
    ),
    "repeat": lambda c: (
        lambda v: wf.repeat(v, wf.cast(wf.remainder(wf.abs(v) + c, 3), wf.int32)),
        lambda v: np.repeat(v, np.remainder(np.abs(v) + c, 3).astype(int)),
    ),
    "length": lambda c: (
        lambda v: _small(v + v.shape[0]), lambda v: _small_np(v + np.float32(len(v)))
    ),
    "first": lambda c: (
        lambda v: wf.argwhere(v > c)[:, 0] * 1.0, lambda v: np.nonzero(v > c)[0].astype(np.float32)
    ),
    "slice": lambda c: (
        lambda v: v[_count(v, c) - 2 :], lambda v: v[_count_np(v, c) - 2 :]
    ),
    "counted": lambda c: (
        lambda v: wf.arange(_count(v, c)) * 1.0 + c,
        lambda v: np.arange(_count_np(v, c)).astype(np.float32) + c,
    ),
    "tiled": lambda c: (
        lambda v: wf.tile(v[:3], [_count(v, c)]), lambda v: np.tile(v[:3], _count_np(v, c))
    ),
    "scanned": lambda c: (
        lambda v: wf.scan(lambda a, _: (a + c, a), wf.asarray(1.0), length=_count(v, c))[1],
        lambda v: (1 + c * np.arange(_count_np(v, c))).astype(np.float32),
    ),
    "grown": lambda c: (lambda v: _grown(v, c), lambda v: _grown_np(v, c)),
    "pieces": lambda c: (lambda v: _pieces(v, c), lambda v: _pieces_np(v, c)),
}  # fmt: skip
BINARY: dict[str, Step] = {
    "concat": (lambda v, w: wf.concat([v, w]), lambda v, w: np.concatenate([v, w])),
    "sum": (lambda v, w: _small(v + wf.sum(w)), lambda v, w: _small_np(v + w.sum())),
}


@st.composite
def _chains(draw: st.DrawFn, most: int = 3) -> Step:
    names = draw(st.lists(st.sampled_from(sorted(UNARY)), min_size=0, max_size=most))
    steps = [UNARY[n](draw(st.integers(-2, 3))) for n in names]

    def run(which: int) -> Callable[[Any], Any]:
        def apply(v: Any) -> Any:
            for step in steps:
                v = step[which](v)
            return v

        return apply

    return run(0), run(1)


def _cond(then: Step, orelse: Step, c: int) -> Step:
    # an operand, not what the branches close over: eagerly, too, its size is open in them
    return (
        lambda v: wf.cond(wf.sum(v) > c, then[0], orelse[0], v),
        lambda v: then[1](v) if v.sum() > c else orelse[1](v),
    )


def _loop(body: Step, c: int) -> Step:
    count = c % 3

    def plain(v: Array) -> Array:
        for i in range(count):
            v = np.concatenate([body[1](v)[:20], np.full(1, i, np.float32)])
        return v

    def ours(v: Any) -> Any:
        def step(i: Any, h: Any) -> Any:
            made = body[0](h)
            kept = made[wf.reshape(wf.arange(made.shape[0]), made.shape) < 20]
            return i + 1, wf.concat([kept, wf.reshape(wf.cast(i, wf.float32), (1,))])

        # it ends with an element of the loop's, so its size differs even after no iteration
        return wf.while_loop(lambda i, h: i < count, step, (0, v[v > -100]))[1]

    return ours, plain


@st.composite
def _steps(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(["chain", "chain", "cond", "loop"]))
    c = draw(st.integers(-2, 5))
    if kind == "cond":
        return _cond(draw(_chains()), draw(_chains()), c)
    if kind == "loop":
        return _loop(draw(_chains(2)), c)
    return draw(_chains())


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """From one vector to another, of any size, and a sum of ones of that size."""
    first, second, last = draw(_steps()), draw(_steps()), draw(_chains(2))
    both = BINARY[draw(st.sampled_from(sorted(BINARY)))]

    def run(which: int, v: Any) -> Any:
        return last[which](both[which](first[which](v), second[which](v)))

    def function(v: Any) -> Any:
        out = run(0, v) * 1.0
        return out, wf.sum(out * wf.ones([out.shape[0]]))

    feeds = [np.array(feed, np.float32) for feed in FEEDS]
    wanted = [run(1, v) for v in feeds]
    want = Outcome([[out, out.sum()] for out in wanted])
    call = Call(function, [(v,) for v in feeds])
    return Program("dynamic", call=lambda: call, want=want, told=DYNAMIC, near=0.0)


@st.composite
def slopes(draw: st.DrawFn) -> Program:
    """The gradient of a sum of squares, by what lets gradients through."""
    chain, seed = draw(_chains(3)), draw(st.integers(0, 2**31 - 1))
    v = np.random.default_rng(seed).integers(-6, 6, 7).astype(np.float32)
    function = wf.grad(lambda t: wf.sum(wf.square(chain[0](t * 1.0))))
    call = Call(function, [(v,), (v[:4],)])
    return Program("dynamic slopes", call=lambda: call, told=DYNAMIC, near=0.0)
