"""Loops whose variables change their shapes (`shape_invariants`), and numbers of iterations that
are tensors: `maximum_iterations` and a scan's `length`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf

Array = np.ndarray[Any, Any]
MODES = ("auto", "dataflow")


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph().as_default() as made:
        yield made


def vector(*values: float) -> Array:
    return np.array(values, np.float32)


# --------------------------------------------------------------------------------- shape_invariants
@pytest.mark.share(3)
@pytest.mark.parametrize("verified", ["", "run"])
@pytest.mark.parametrize("mode", MODES)
def test_a_loop_variable_grows(
    graph: wf.Graph, mode: str, verified: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verified: each step is compared with the interpreter, too (`WEFT_VERIFY`)."""
    monkeypatch.setenv("WEFT_VERIFY", verified)
    n = wf.placeholder(wf.int32, [])
    start = wf.asarray(vector(1, 2))
    i, h = wf.while_loop(
        lambda i, h: i < n, lambda i, h: (i + 1, wf.concat([h, h * 2])), (0, start), ((), (None,))
    )
    after = wf.sum(h * wf.ones([h.shape[0]]))
    with wf.Session(control_flow=mode) as session:
        for count in (0, 3, 1):
            v = vector(1, 2)
            for _ in range(count):
                v = np.concatenate([v, v * 2])
            got = session.run([i, h, after], {n: count})
            assert got[0] == count
            assert_array_equal(got[1], v)
            assert got[2] == v.sum()


#: A body on (i, h), where h has the axes [None, 2]; and the same with NumPy.
BODIES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "one row more": (
        lambda i, h: wf.concat([h, h[:1] + 1]), lambda i, h: np.concatenate([h, h[:1] + 1])
    ),
    "twice as many": (lambda i, h: wf.concat([h, -h]), lambda i, h: np.concatenate([h, -h])),
    "one row less": (lambda i, h: h[1:], lambda i, h: h[1:]),
    "as many as i": (
        lambda i, h: wf.ones([i, 2]) + wf.sum(h), lambda i, h: np.ones((i, 2)) + h.sum()
    ),
    "those that are chosen": (lambda i, h: h[h[:, 0] > 0] * 2, lambda i, h: h[h[:, 0] > 0] * 2),
    "the same": (lambda i, h: h + 1, lambda i, h: h + 1),
    "by a branch": (
        lambda i, h: wf.cond(i > 1, lambda: h[:1], lambda: wf.concat([h, h])),
        lambda i, h: h[:1] if i > 1 else np.concatenate([h, h]),
    ),
    "a loop inside": (
        lambda i, h: wf.while_loop(
            lambda k, g: k < i, lambda k, g: (k + 1, wf.concat([g, h])), (0, h), (None, (None, 2))
        )[1],
        lambda i, h: np.concatenate([h] * (i + 1)),
    ),
}  # fmt: skip


@pytest.mark.share(2)
@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session, from text, and at once, which is in the interpreter."""
    monkeypatch.setenv("WEFT_VERIFY", "ir")
    body, plain = BODIES[name]
    start = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    wanted = start
    for i in range(3):
        wanted = plain(i, wanted).astype(np.float32)

    def loop(h: Any) -> Any:
        return wf.while_loop(
            lambda i, _: i < 3, lambda i, h: (i + 1, body(i, h)), (0, h), (None, (None, 2))
        )[1]

    assert_array_equal(loop(wf.asarray(start)), wanted)
    with wf.Graph().as_default() as graph, wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, 2], name="x")
        out = wf.name_tensor(loop(x), "out")
        assert out.shape[1] == 2
        assert_array_equal(session.run(out, {x: start}), wanted)
        loaded = wf.Graph.from_text(graph.as_text())
    with wf.Session(graph=loaded) as session:
        assert_array_equal(session.run("out", {"x": start}), wanted)


def test_forms_of_invariants(graph: wf.Graph) -> None:
    x = wf.placeholder(wf.float32, [None])
    grow = lambda h: wf.concat([h, h])  # noqa: E731
    wide = wf.TensorType(wf.float32, (None,))
    made = [
        wf.while_loop(lambda h: wf.sum(h) < 9, grow, [wf.ones(2)], [(None,)])[0],
        wf.while_loop(lambda h: wf.sum(h) < 9, grow, wf.ones(2), (None,)),
        wf.while_loop(lambda h: wf.sum(h) < 9, grow, wf.ones(2), wide),
        wf.while_loop(
            lambda s: s["i"] < 3, lambda s: {"i": s["i"] + 1, "h": grow(s["h"])},
            {"i": 0, "h": wf.ones(2)}, {"i": None, "h": wide},
        )["h"],
        wf.while_loop(
            lambda i, s: i < 3, lambda i, s: [i + 1, (grow(s[0]), s[1])],
            [0, (wf.ones(2), x)], [[], [[None], None]],
        )[1][0],
    ]  # fmt: skip
    with wf.Session() as session:
        for got in session.run(made, {x: [1.0]}):
            assert_array_equal(got, np.ones(16))


def test_other_options_go_with_it(graph: wf.Graph) -> None:
    n = wf.placeholder(wf.int32, [])

    def loop(**options: Any) -> wf.Tensor:
        return wf.while_loop(
            lambda i, h: i < 7, lambda i, h: (i + 1, wf.concat([h, h[-1:] + 1])),
            (0, wf.zeros(1)), (None, (None,)), **options,
        )[1]  # fmt: skip

    made = [
        loop(), loop(maximum_iterations=3), loop(maximum_iterations=n), loop(checkpoint_every=2),
        loop(checkpoint_every=3, maximum_iterations=n), loop(parallel_iterations=1),
    ]  # fmt: skip
    with wf.Session() as session:
        sizes = [len(v) for v in session.run(made, {n: 5})]
    assert sizes == [8, 4, 6, 8, 6, 8]


def test_bodies_that_act(graph: wf.Graph) -> None:
    """One batch after another from a queue is put together."""
    queue = wf.FIFOQueue(10, wf.int32, shapes=[[]])
    fill = queue.enqueue_many(np.arange(6, dtype=np.int32))
    got = wf.while_loop(
        lambda i, h: i < 3,
        lambda i, h: (i + 1, wf.concat([h, queue.dequeue_up_to(2)])),
        (0, wf.zeros(0, dtype=wf.int32)), (None, (None,)),
    )[1]  # fmt: skip
    with wf.Session() as session:
        session.run(fill)
        assert_array_equal(session.run(got), np.arange(6))


def test_errors_of_invariants(graph: wf.Graph) -> None:
    x, keep = wf.ones((2, 3)), lambda h: h
    errors = wf.errors

    def loop(invariants: Any, body: Any = keep, start: Any = x) -> Any:
        return lambda: wf.while_loop(lambda h: wf.sum(h) < 0, body, start, invariants)

    wrong = (
        (loop((None, 4)), errors.ShapeError, r"begins as f32\[2,3\].*invariant is \[\?,4\]"),
        (loop((None,)), errors.ShapeError, r"its shape invariant is \[\?\]"),
        (loop(wf.TensorType(wf.int32, (None, 3))), errors.TypeRuleError, "its invariant is i32"),
        (loop("abc"), errors.InvalidArgumentError, "the shape invariant of loop_vars is 'abc'"),
        (loop((-1, 3)), errors.InvalidArgumentError, r"is \(-1, 3\)"),
        (
            loop([(None, 3)], start={"a": x, "b": x}),
            errors.InvalidArgumentError, "shape_invariants has .* for loop_vars, which is nested",
        ),
        (
            loop((2, None), lambda h: wf.concat([h, h])),
            errors.TypeRuleError, r"it is f32\[2,size.*\] before",
        ),
        (
            loop((None, 3), lambda h: wf.astype(h, wf.int32)),
            errors.TypeRuleError, "the body returns i32",
        ),
    )  # fmt: skip
    for call, kind, what in wrong:
        with pytest.raises(kind, match=f"(?s){what}") as error:
            call()
        assert error.value.locations[0].file == __file__


def test_compiled_functions() -> None:
    def until(x: wf.Tensor) -> wf.Tensor:
        return wf.while_loop(lambda h: wf.sum(h) < 9, lambda h: wf.concat([h, h]), x, (None,))

    call = wf.compile(until)
    assert_array_equal(call(wf.ones(2)), np.ones(16))
    assert_array_equal(call(wf.ones(3)), np.ones(12))
    same = wf.compile(lambda x: wf.while_loop(lambda h: wf.sum(h) < 9, lambda h: h + 1, x, (2,)))
    assert_array_equal(same(wf.ones(2)), [5, 5])


def test_gradients_stop_at_shapes_that_change(graph: wf.Graph) -> None:
    """Around such a loop they go through; into it an error says why not."""
    x = wf.placeholder(wf.float32, [3])

    def loop(h: wf.Tensor) -> wf.Tensor:
        return wf.while_loop(
            lambda i, h: i < 2, lambda i, h: (i + 1, wf.concat([h, x * 2])), (0, h), (None, (None,))
        )[1]

    with pytest.raises(wf.errors.GradientError, match=r"(?s)depends on values.*may change"):
        wf.gradients(wf.sum(loop(x)), [x])
    around = wf.gradients(wf.sum(wf.stop_gradient(loop(x))) * wf.sum(x), [x])[0]
    with wf.Session() as session:
        assert_array_equal(session.run(around, {x: vector(1, 2, 3)}), [30] * 3)


@examples(36)
@given(
    moves=st.lists(st.sampled_from(sorted(BODIES)), min_size=1, max_size=3),
    rows=st.integers(0, 3),
    count=st.integers(0, 3),
)
def test_random_bodies(moves: list[str], rows: int, count: int) -> None:
    start = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) - 1

    def chain(which: int, i: Any, h: Any) -> Any:
        for name in moves:
            h = BODIES[name][which](i, h)
            h = h[:5] * 0.5
        return h

    wanted = start
    for i in range(count):
        wanted = chain(1, i, wanted).astype(np.float32)
    with wf.Graph().as_default(), wf.Session() as session:
        x, n = wf.placeholder(wf.float32, [None, 2]), wf.placeholder(wf.int64, [])
        out = wf.while_loop(
            lambda i, _: i < n, lambda i, h: (i + 1, chain(0, i, h)), (0, x), (None, (None, 2))
        )[1]
        got = session.run(out, {x: start, n: count})
    assert got.shape == wanted.shape
    assert_allclose(got, wanted, rtol=1e-6)


def test_a_carry_comes_back_with_the_sizes_it_had(graph: wf.Graph) -> None:
    """Sizes that feeds decide and that are taken to be equal are checked one by one."""
    x = wf.placeholder(wf.float32, [None, None])
    turned = wf.while_loop(lambda i, h: i < 1, lambda i, h: (i + 1, wf.transpose(h)), (0, x))[1]
    square, wide = np.arange(4.0).reshape(2, 2), np.arange(6.0).reshape(2, 3)
    with wf.Session() as session:
        assert_array_equal(session.run(turned, {x: square}), square.T)
        with pytest.raises(wf.errors.ShapeError):
            session.run(turned, {x: wide})


# ------------------------------------------------------------------------------- maximum_iterations
@pytest.mark.share(2)
@pytest.mark.parametrize("mode", ["native", *MODES])
def test_maximum_iterations_of_a_step(graph: wf.Graph, mode: str) -> None:
    n, x = wf.placeholder(wf.int32, []), wf.placeholder(wf.float32, [2])
    doubled = wf.while_loop(lambda h: wf.sum(h) < 100, lambda h: h * x, x, maximum_iterations=n)
    slope = wf.gradients(wf.sum(doubled), [x])[0]
    by_parts = wf.while_loop(
        lambda h: wf.sum(h) < 100, lambda h: h * x, x, maximum_iterations=n, checkpoint_every=2
    )
    counting = wf.fori_loop(wf.constant(0), 90, lambda i, h: h + 1, 0, maximum_iterations=n)
    with wf.Session(control_flow=mode) as session:
        v = vector(2, 3)
        for count in (0, 1, 3, 50):
            times, h = 0, v
            while h.sum() < 100 and times < count:
                times, h = times + 1, h * v
            got = session.run([doubled, slope, by_parts, counting], {n: count, x: v})
            assert_allclose(got[0], h)
            assert_allclose(got[1], (times + 1) * v**times)
            assert_allclose(got[2], h)
            assert got[3] == count
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"must not be negative: .*-2"):
            session.run(doubled, {n: -2, x: v})


def test_maximum_iterations_of_loops_of_effects(graph: wf.Graph) -> None:
    n = wf.placeholder(wf.int64, [])
    queue = wf.FIFOQueue(100, wf.int32, shapes=[[]])
    effect = wf.while_loop(lambda: True, lambda: queue.enqueue(7), [], maximum_iterations=n)
    size = queue.size()
    with wf.Session() as session:
        for count, total in ((3, 3), (0, 3), (2, 5)):
            session.run(effect, {n: count})
            assert session.run(size) == total


def test_a_limit_beyond_int64_is_as_good_as_none() -> None:
    def loop(most: Any) -> Any:
        return wf.while_loop(lambda i: i < 5, lambda i: i + 1, 0, maximum_iterations=most)

    assert wf.compile(loop)(np.uint64(2**64 - 1)) == 5
    assert wf.compile(loop)(np.uint64(2**63)) == 5
    assert wf.compile(loop)(np.uint64(3)) == 3


def test_a_negative_length_is_told_as_that_of_a_scan() -> None:
    for row in (None, 1.0):
        f = wf.compile(lambda n, y=row: wf.scan(lambda c, _: (c * 2, y), 1.0, length=n))
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"wf\.scan: length") as error:
            f(np.int64(-2))
        assert error.value.locations[0].file == __file__


def test_maximum_iterations_elsewhere() -> None:
    def count(most: Any) -> Any:
        return wf.while_loop(lambda i: i < 5, lambda i: i + 1, 0, maximum_iterations=most)

    assert [int(count(wf.asarray(n))) for n in (0, 3, 9)] == [0, 3, 5]
    compiled = wf.compile(count)
    assert [int(compiled(n)) for n in (0, 3, 9)] == [0, 3, 5]
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"must not be negative: .*-1"):
        compiled(-1)
    assert_array_equal(wf.vmap(count)(wf.asarray([2, 0, 9])), [2, 0, 5])
    slope = wf.grad(
        lambda x, n: wf.while_loop(lambda h: h < 99, lambda h: h * x, x, maximum_iterations=n)
    )
    assert slope(wf.asarray(2.0), 3) == 4 * 2.0**3
    for wrong in (wf.asarray(-1), wf.asarray(1.5), wf.asarray([1]), "3", True):
        with pytest.raises(wf.errors.InvalidArgumentError, match="maximum_iterations is"):
            count(wrong)


# -------------------------------------------------------------------------------- length of a scan
@pytest.mark.share(2)
@pytest.mark.parametrize("mode", MODES)
def test_length_of_a_step(graph: wf.Graph, mode: str) -> None:
    n, x = wf.placeholder(wf.int32, []), wf.placeholder(wf.float32, [None])
    last, powers = wf.scan(lambda c, _: (c * 2, c), 1.0, length=n)
    only = wf.scan(lambda c, _: (c + 1, None), 0, length=n)[0]
    total, sums = wf.scan(lambda c, r: (c + r, c), 0.0, x, length=n)
    slope = wf.gradients(wf.sum(wf.scan(lambda c, _: (c * x[0], c), x[1], length=n)[1]), [x])[0]
    rest = powers + wf.ones([n])
    kept, parts = wf.scan(lambda c, r: (c + r, c * r), 0.0, x[x > 0], reverse=True)
    with wf.Session(control_flow=mode) as session:
        for v in (vector(1, 2, 4), vector(3), vector()):
            count = len(v)
            assert session.run(last, {n: count}) == 2**count
            assert_array_equal(session.run(powers, {n: count}), 2.0 ** np.arange(count))
            assert_array_equal(session.run(rest, {n: count}), 2.0 ** np.arange(count) + 1)
            assert session.run(only, {n: count}) == count
            assert session.run(total, {n: count, x: v}) == v.sum()
            assert_array_equal(session.run(sums, {n: count, x: v}), np.cumsum(v) - v)
            assert session.run(kept, {x: v}) == v.sum()
            assert_allclose(session.run(parts, {x: v}), (np.cumsum(v[::-1])[::-1] - v) * v)
        got = session.run(slope, {n: 3, x: vector(2, 5)})
        assert_allclose(got, [5 * (1 + 2 * 2), 1 + 2 + 4])  # 5 + 5a + 5aa
        with pytest.raises(wf.errors.ShapeError, match="needs a first axis of 2"):
            session.run(sums, {n: 2, x: vector(1, 2, 3)})


def test_length_elsewhere() -> None:
    def powers(n: Any) -> Any:
        return wf.scan(lambda c, _: (c * 2, c), 1.0, length=n)

    last, stacked = powers(wf.asarray(3))
    assert last == 8
    assert_array_equal(stacked, [1, 2, 4])
    slope = wf.grad(lambda x: wf.sum(wf.scan(lambda c, _: (c * x, c), 1.0, length=3)[1]))
    traced = wf.grad(
        lambda x: wf.sum(wf.scan(lambda c, _: (c * x, c), 1.0, length=wf.astype(x, wf.int32))[1])
    )  # a length that is known only when the gradient is taken
    assert traced(wf.asarray(3.0)) == slope(wf.asarray(3.0))
    carried = wf.compile(lambda n: wf.scan(lambda c, _: (c * 2, None), 1.0, length=n)[0])
    assert [float(carried(n)) for n in (3, 0)] == [8, 1]
    with pytest.raises(wf.errors.InvalidArgumentError, match="must not be negative"):
        carried(-1)
    last, stacked = wf.compile(powers)(3)
    assert last == 8
    assert_array_equal(stacked, [1, 2, 4])
    rows = wf.compile(lambda n, x: wf.scan(lambda c, r: (c + r, None), 0.0, x, length=n)[0])
    assert rows(3, wf.ones(3)) == 3
    with pytest.raises(wf.errors.ShapeError, match="needs a first axis of 2"):
        rows(2, wf.ones(3))


def test_tensorflows_scan_and_map(graph: wf.Graph) -> None:
    """Over rows whose number is known when a step runs."""
    x = wf.placeholder(wf.float32, [None])
    add = lambda a, r: a + r  # noqa: E731
    made = [
        wf.scan(add, x), wf.scan(add, x, reverse=True), wf.scan(add, x, initializer=1.0),
        wf.scan(add, x[x > 1]), wf.map_fn(lambda r: r * 2, x[x > 1]), wf.tf1.foldl(add, x[x > 1]),
    ]  # fmt: skip
    with wf.Session() as session:
        for v in (vector(1, 2, 4), vector(3)):
            big = v[v > 1]
            wanted = [
                np.cumsum(v), np.cumsum(v[::-1])[::-1], np.cumsum(v) + 1, np.cumsum(big), big * 2,
                big.sum(),
            ]  # fmt: skip
            for a, b in zip(session.run(made, {x: v}), wanted, strict=True):
                assert_array_equal(a, b)
        with pytest.raises(wf.errors.InvalidArgumentError):
            session.run(made[0], {x: vector()})


def test_a_length_that_is_a_value_costs_no_native_loop() -> None:
    """Without rows and stacked results nothing has a size that depends on it."""
    carried = wf.compile(lambda n: wf.scan(lambda c, _: (c * 2, None), 1.0, length=n)[0])
    assert carried(3) == 8
    assert carried.asm(3)  # one native plan
    stacked = wf.compile(lambda n: wf.scan(lambda c, _: (c * 2, c), 1.0, length=n)[1])
    assert_array_equal(stacked(3), [1, 2, 4])
    with pytest.raises(wf.errors.UnsupportedError, match="one native plan"):
        stacked.asm(3)
