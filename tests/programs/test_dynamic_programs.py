"""Random programs with sizes that depend on values: the executor, the interpreter on the structured
and on the lowered form, and NumPy give the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import weft as wf
from weft.frontend.session.step import step_graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.control.lower_control_flow import lower_control_flow

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
    return (
        lambda v: wf.cond(wf.sum(v) > c, lambda: then[0](v), lambda: orelse[0](v)),
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
def programs(draw: st.DrawFn) -> Step:
    """From one vector to another, of any size."""
    first, second, last = draw(_steps()), draw(_steps()), draw(_chains(2))
    both = BINARY[draw(st.sampled_from(sorted(BINARY)))]

    def run(which: int) -> Callable[[Any], Any]:
        return lambda v: last[which](both[which](first[which](v), second[which](v)))

    return run(0), run(1)


def _check(program: Step) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None])
        out = program[0](x) * 1.0
        total = wf.sum(out * wf.ones([out.shape[0]]))
        for mode in ("auto", "dataflow"):
            session = wf.Session(control_flow=mode)
            for feed in FEEDS:
                v = np.array(feed, np.float32)
                wanted = program[1](v)
                got, added = session.run([out, total], {x: v})
                assert_array_equal(got, wanted)
                assert added == wanted.sum()
    for feed in FEEDS:
        v = np.array(feed, np.float32)
        step = step_graph(graph._trace, [out._value, total._value], [], [(x._value, v.shape)])
        lowered = lower_control_flow(step)
        for form, schedule in ((step, None), (lowered, None), (lowered, 0), (lowered, 1)):
            got, added = interpret(form, [v], schedule=schedule)
            assert_array_equal(got, program[1](v))
            assert added == program[1](v).sum()
        assert_array_equal(np.asarray(program[0](wf.asarray(v))), program[1](v))


@given(programs())
@settings(max_examples=3)
def test_programs(program: Step) -> None:
    _check(program)


@pytest.mark.slow
@given(programs())
@settings(max_examples=150)
def test_many_programs(program: Step) -> None:
    _check(program)


@given(_chains(3), st.integers(0, 2**31 - 1))
@settings(max_examples=10)
def test_gradients(chain: Step, seed: int) -> None:
    """Of what lets gradients through: a session gives what the interpreter gives."""
    v = np.random.default_rng(seed).integers(-6, 6, 7).astype(np.float32)
    loss = lambda t: wf.sum(wf.square(chain[0](t * 1.0)))  # noqa: E731
    wanted = np.asarray(wf.grad(loss)(wf.asarray(v)))
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None])
        (slope,) = wf.gradients(loss(x), [x])
        got = np.zeros_like(v) if slope is None else wf.Session().run(slope, {x: v})
    assert_array_equal(got, wanted)
