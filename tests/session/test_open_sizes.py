"""Axes whose size a session learns from its feeds: slices as Python's, for every size; and sizes
that meet are equal or an error, whichever comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given

import weft as wf
from weft.ir.dims import SymbolicDim, divided, largest, least, positive, substitute_dim
from weft.ir.errors import ShapeError
from weft.ir.text.parser import parse_dim

Array = np.ndarray[Any, Any]
BOUNDS = st.none() | st.integers(-12, 30)
SLICES = st.builds(slice, BOUNDS, BOUNDS, st.sampled_from([None, 1, -1, 2, -2, 3, -3]))


def run(
    build: Callable[..., Any], shapes: Sequence[Sequence[Any]], feeds: Sequence[Sequence[Array]]
) -> list[Any]:
    """What the fetches of `build` on placeholders of these shapes are for each list of feeds, in
    one session, whose graph has been a text."""
    with wf.Graph().as_default() as graph:
        xs = [wf.placeholder(wf.float64, s, name=f"x{i}") for i, s in enumerate(shapes)]
        fetches = build(*xs)
        for i, t in enumerate(fetches):
            wf.name_tensor(t, f"y{i}")
    graph = wf.Graph.from_text(graph.as_text())
    names = [f"y{i}" for i in range(len(fetches))]
    with wf.Session(graph=graph) as session:
        return [session.run(names, {f"x{i}": v for i, v in enumerate(vs)}) for vs in feeds]


@examples(150, deadline=None)
@given(
    st.lists(SLICES, min_size=1, max_size=3), st.lists(st.integers(0, 40), min_size=3, max_size=3)
)
def test_slices(keys: list[slice], sizes: list[int]) -> None:
    """Slices of slices, a value that depends on the size of one, what is written, gradients."""

    def cut(x: Any) -> Any:
        for key in keys:
            x = x[key]
        return x

    def build(x: Any) -> list[Any]:
        y = cut(x)
        rows = wf.sum(wf.ones([y.shape[0], 2], dtype=wf.float64) * wf.reshape(y, [y.shape[0], 1]))
        written = x.at[keys[0]].set(-1.0)
        return [y, rows, written, y.shape[0] * 1.0, *wf.gradients(y * y, [x])]

    feeds = [[np.arange(1.0, n + 1)] for n in sizes]
    for (v,), got in zip(feeds, run(build, [[None]], feeds), strict=True):
        y, places = cut(v), cut(np.arange(len(v)))
        written, slope = v.copy(), np.zeros(len(v))
        written[keys[0]] = -1.0
        slope[places] = 2 * y
        for a, b in zip(got, [y, 2 * y.sum(), written, len(y), slope], strict=True):
            np.testing.assert_array_equal(a, b)


@examples(60, deadline=None)
@given(
    st.integers(-9, 9),
    st.integers(0, 4),
    st.integers(0, 1),
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
)
def test_moves(shift: int, n: int, axis: int, sizes: list[int]) -> None:
    def build(x: Any) -> list[Any]:
        first = wf.diff(x * x, n=n, axis=axis, prepend=x, append=3.0)
        return [wf.roll(x, shift, axis=axis), wf.roll(x, shift), first, wf.diff(x, n=n, axis=axis)]

    feeds = [[np.arange(3.0 * k).reshape((k, 3) if axis == 0 else (3, k)) + 1] for k in sizes]
    shape = [None, 3] if axis == 0 else [3, None]
    for (v,), got in zip(feeds, run(build, [shape], feeds), strict=True):
        expected = [
            np.roll(v, shift, axis), np.roll(v, shift),
            np.diff(v * v, n=n, axis=axis, prepend=v, append=3.0), np.diff(v, n=n, axis=axis),
        ]  # fmt: skip
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_every_second_row_can_be_used() -> None:
    """Ops that need the size of such a part: reshape, softmax, mean; loops that keep a size."""

    def build(x: Any) -> list[Any]:
        y = x[::2]
        shifted = wf.fori_loop(0, 2, lambda i, s: wf.concat([s[1:], s[:1] * 2.0]), x)
        return [wf.nn.softmax(y), wf.mean(y), wf.reshape(y, [1, -1]), wf.roll(y, 1), shifted]

    v = np.arange(1.0, 8.0)
    (got,) = run(build, [[None]], [[v]])
    y = v[::2]
    expected = [
        np.exp(y) / np.exp(y).sum(), y.mean(), y[None], np.roll(y, 1), [3, 4, 5, 6, 7, 2, 4],
    ]  # fmt: skip
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_parts_of_what_depends_on_values() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float64, [None])
        large = x[x > 2]
        fetches = [large[1:-1:2], wf.roll(large, 1), wf.diff(large)]
        for n in (9, 3, 4):
            v = np.arange(float(n))
            w = v[v > 2]
            for a, b in zip(
                session.run(fetches, {x: v}), [w[1:-1:2], np.roll(w, 1), np.diff(w)], strict=True
            ):
                np.testing.assert_array_equal(a, b)


def test_split_takes_the_whole_axis() -> None:
    """The sizes must add up to what is fed, too."""
    (got,) = run(lambda x: wf.split(x, [2, 3]), [[None]], [[np.arange(5.0)]])
    np.testing.assert_array_equal(np.concatenate(got), np.arange(5.0))
    with pytest.raises(ShapeError, match="has 7 elements, shape"):
        run(lambda x: wf.split(x, [2, 3]), [[None]], [[np.arange(7.0)]])


# ------------------------------------------------------------------------------- sizes that meet
MEETINGS: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "add": (lambda x, y: x + y, [None]),
    "where": (lambda x, y: wf.where(x > 0, y, 1.0), [None]),
    "broadcast_to": (lambda x, y: wf.broadcast_to(x, [2, y.shape[0]]), [None]),
    "matmul": (wf.matmul, [None, 2, 2]),
    "einsum": (lambda x, y: wf.einsum("bi,bj->bij", x, y), [None, 2]),
    "gradient": (lambda x, y: wf.gradients(x * y, [x])[0], [None]),
    "both gradients": (lambda x, y: wf.concat(wf.gradients(x + y, [x, y])), [None]),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_sizes_that_meet_are_equal(name: str) -> None:
    """In either order, at the first step and where a plan for many sizes is filled in."""
    build, shape = MEETINGS[name]
    for flipped in (False, True):
        with wf.Graph().as_default(), wf.Session() as session:
            xs = [wf.placeholder(wf.float64, shape) for _ in range(2)]
            fetch = build(*(xs[::-1] if flipped else xs))
            for sizes in ((1, 2), (2, 1), (2, 2), (3, 3), (1, 2), (2, 1), (1, 3)):
                fed = [np.ones([n if d is None else d for d in shape]) for n in sizes]
                if sizes[0] == sizes[1]:
                    session.run(fetch, dict(zip(xs, fed, strict=True)))
                    continue
                with pytest.raises(ShapeError, match="do not fit together"):
                    session.run(fetch, dict(zip(xs, fed, strict=True)))


def test_a_size_that_meets_a_number_is_equal() -> None:
    """A size of 1 is broadcast if it is 1 in the graph, not if it is 1 in the feed."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, one = wf.placeholder(wf.float64, [None]), wf.placeholder(wf.float64, [1])
        fetches = [x + np.ones(2), one + np.ones(2), one + x]
        session.run(fetches, {x: np.ones(2), one: np.ones(1)})
        with pytest.raises(ShapeError, match="is 1 where 2 is needed: only a size that is 1 in"):
            session.run(fetches, {x: np.ones(1), one: np.ones(1)})


# ---------------------------------------------------------------------------------- the arithmetic
SIZES: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.sampled_from([SymbolicDim.symbol("b"), SymbolicDim.symbol("c"), 0, 1, 5])
        | st.tuples(
            st.sampled_from(["+", "-", "least", "largest", "positive", "div"]), SIZES, SIZES
        )
    )
)


def value_of(tree: Any, sizes: dict[str, int]) -> int:
    if isinstance(tree, tuple):
        name, a, b = tree[0], value_of(tree[1], sizes), value_of(tree[2], sizes)
        table = {"+": a + b, "-": a - b, "least": min(a, b), "largest": max(a, b)}
        return table.get(name, max(a, 0) // (max(b, 0) + 1) if name == "div" else max(a, 0))
    return sizes[str(tree)] if isinstance(tree, SymbolicDim) else tree


def dim_of(tree: Any) -> Any:
    if not isinstance(tree, tuple):
        return tree
    name, a, b = tree[0], dim_of(tree[1]), dim_of(tree[2])
    if name in ("least", "largest"):
        return (least if name == "least" else largest)(a, b)
    if name == "div":
        return divided(positive(a), positive(b) + 1)
    return {"+": a + b, "-": a - b, "positive": positive(a) if name == "positive" else 0}[name]


@examples(1000, deadline=None)
@given(SIZES, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=4))
def test_size_functions(tree: Any, points: list[tuple[int, int]]) -> None:
    """What is simplified has the value of what was written; the text reads back."""
    try:
        dim = dim_of(tree)
    except ShapeError as error:
        if "too involved" not in str(error):
            raise
        return
    assert parse_dim(str(dim)) == dim
    for b, c in points:
        assert substitute_dim(dim, {"b": b, "c": c}) == value_of(tree, {"b": b, "c": c})
    half = substitute_dim(substitute_dim(dim, {"b": 3}), {"c": 4})
    assert half == value_of(tree, {"b": 3, "c": 4})


@pytest.mark.parametrize(
    "text", ["max(b)", "max(b,)", "sin(b,0)", "div(b,0)", "max(b,0", "b**2", ""]
)
def test_dimensions_that_are_none(text: str) -> None:
    with pytest.raises(ShapeError):
        parse_dim(text)
    with pytest.raises(ShapeError, match="is not a dimension"):
        parse_dim("max(" * 100 + "b" + ",0)" * 100)


def test_many_slices_stay_short() -> None:
    """max(max(b-1,0)-1,0) is max(b-2,0), and half of a half a quarter."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float64, ["b"])
        for _ in range(12):
            x = x[1:-1]
        for _ in range(4):
            x = x[::2]
        assert str(x.shape[0]) == "div(max(b-24,0)+15,16)"
        for _ in range(20):
            x = x[1:-1:2]
        assert len(str(x.shape[0])) < 500


def test_sizes_too_involved_are_refused() -> None:
    def grow(x: Any) -> Any:
        for _ in range(100):
            x = wf.concat([x[:-7], x[9:], x[3::5]])
        return x

    with wf.Graph().as_default():
        x = wf.placeholder(wf.float64, ["b"])
        with pytest.raises(ShapeError, match="a size is too involved"):
            grow(x)
