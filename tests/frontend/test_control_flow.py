"""wf.cond, wf.while_loop, wf.scan and their kin: what users call, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft as wf
from weft.ir.analysis.verify import verify


class State(NamedTuple):
    step: Any
    x: Any


def ops_of(graph: Any) -> list[str]:
    return [op.name for op in graph.walk()]


@pytest.fixture
def x() -> wf.Tensor:
    return wf.asarray(np.arange(3, dtype=np.float32))


# ------------------------------------------------------------------------------------------- cond


@pytest.mark.parametrize("pred", [True, False])
def test_cond_with_operands_and_with_closures(x: wf.Tensor, pred: bool) -> None:
    expected = x.numpy() * 2 if pred else x.numpy() + 1
    jax = wf.cond(pred, lambda a: a * 2, lambda a: a + 1, x)
    tf = wf.cond(wf.asarray(pred), true_fn=lambda: x * 2, false_fn=lambda: x + 1)
    np.testing.assert_array_equal(jax, expected)
    np.testing.assert_array_equal(tf, expected)


def test_cond_nests_and_returns_nestings(x: wf.Tensor) -> None:
    def classify(a: Any) -> dict[str, Any]:
        return wf.cond(
            a > 0,
            lambda: {"sign": 1, "root": wf.cond(a > 1, lambda: wf.sqrt(a), lambda: a)},
            lambda: {"sign": -1, "root": 0.0},
        )

    for value, sign, root in ((4.0, 1, 2.0), (0.5, 1, 0.5), (-3.0, -1, 0.0)):
        found = classify(wf.asarray(np.float32(value)))
        assert found["root"].dtype is wf.float32  # the number took the dtype of the other branch
        assert found["sign"].weak  # numbers in both branches stay numbers
        assert (found["sign"].item(), found["root"].item()) == (sign, root)


def test_both_branches_are_traced_and_one_is_run() -> None:
    traced = []

    def branch(name: str) -> Callable[[], Any]:
        def run() -> Any:
            traced.append(name)
            return wf.asarray([1, 2])[wf.asarray(5 if name == "bad" else 0)]

        return run

    assert wf.cond(True, branch("good"), branch("bad")).item() == 1
    assert traced == ["good", "bad"]
    with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"):
        wf.cond(False, branch("good"), branch("bad"))


def test_case_and_switch_case(x: wf.Tensor) -> None:
    def grade(n: int) -> int:
        points = wf.asarray(n)
        return wf.case([(points > 89, lambda: 1), (points > 79, lambda: 2)], lambda: 3).item()

    assert [grade(n) for n in (95, 85, 20)] == [1, 2, 3]
    assert wf.case([(False, lambda: 1), (False, lambda: 2)]).item() == 2  # no default: the last
    branches = [lambda a, k=k: a * k for k in range(5)]
    for index in range(-1, 7):
        found = wf.switch_case(wf.asarray(index), branches, x)
        np.testing.assert_array_equal(found, x.numpy() * (index if 0 <= index < 5 else 4))


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda x: wf.cond(x, lambda: 1, lambda: 2), TypeError, ["pred is f32[3]", "wf.any"]),
        (lambda x: wf.cond(1, lambda: 1, lambda: 2), TypeError, ["pred is i64[]", "x > 0"]),
        (lambda x: wf.cond(True, 1, lambda: 2), ValueError, ["true_fn is a int, not a function"]),
        (
            lambda x: wf.cond(True, lambda: (1, x), lambda: (1, x[0])),
            TypeError,
            ["result[1]", "true_fn gives f32[3]", "false_fn gives f32[]"],
        ),
        (
            lambda x: wf.cond(True, lambda: {"a": x}, lambda: {"a": wf.astype(x, wf.float64)}),
            TypeError,
            ["result['a']", "f32[3]", "f64[3]", "wf.astype"],
        ),
        (lambda x: wf.cond(True, lambda: x[0], lambda: True), TypeError, ["f32[]", "bool[]"]),
        (lambda x: wf.cond(True, lambda: x, lambda: (x,)), ValueError, ["* and (*,) differ"]),
        (lambda x: wf.cond(True, lambda: "a" + 1, lambda: x), TypeError, ["str"]),
        (lambda x: wf.cond(True, lambda: object(), lambda: x), TypeError, ["returned a object"]),
        (lambda x: wf.cond(True, lambda a: a, lambda a: a, object()), TypeError, ["operands[0]"]),
        (lambda x: wf.switch_case(x[0], [lambda: 1]), TypeError, ["branch_index is f32[]"]),
        (lambda x: wf.switch_case(0, []), ValueError, ["there are no functions"]),
        (
            lambda x: wf.switch_case(0, [lambda: x, lambda: "b"]),
            TypeError,
            ["'branch_fns[1] of wf.switch_case' returned a str", "test_control_flow.py"],
        ),
        (
            lambda x: wf.switch_case(0, [lambda: x, lambda: x, lambda: wf.sum(x)]),
            TypeError,
            ["wf.switch_case: the branches return different types", "branch_fns[2] gives"],
        ),
        (lambda x: wf.case([]), ValueError, ["no (predicate, function) pairs"]),
        (lambda x: wf.case([(True, 3)]), ValueError, ["a int, not a function"]),
        (lambda x: wf.case([lambda: x]), ValueError, ["not a pair (predicate, function)"]),
        (lambda x: wf.switch_case(0, 3), ValueError, ["branch_fns is 3, not a list or dict"]),
        (lambda x: wf.switch_case(0, {1.5: lambda: x}), ValueError, ["index 1.5 is no integer"]),
        (
            lambda x: wf.switch_case(0, [(1, lambda: x), lambda: x]),
            ValueError,
            ["not a pair (index, function)"],
        ),
    ],
)
def test_branch_errors(x: wf.Tensor, call: Any, error: type, parts: list[str]) -> None:
    with pytest.raises(error) as found:
        call(x)
    for part in parts:
        assert part in str(found.value)


# ------------------------------------------------------------------------------------------ while


def test_while_loop_in_the_manner_of_jax() -> None:
    def test(s: State) -> Any:
        return s.x < 100

    found = wf.while_loop(test, lambda s: State(s.step + 1, s.x * 2), State(0, np.float32(3)))
    assert isinstance(found, State)
    assert (found.step.item(), found.x.item()) == (6, 192.0)
    one = wf.while_loop(lambda i: i < 10, lambda i: i + 3, 0)
    assert one.item() == 12
    pair = wf.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, 1))
    assert [t.item() for t in pair] == [3, 8]
    alone = wf.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1,), (0,))
    assert [t.item() for t in alone] == [3]


def test_while_loop_in_the_manner_of_tensorflow() -> None:
    i, total = wf.while_loop(
        lambda i, total: i < 5, lambda i, total: [i + 1, total + i], (0, 0), parallel_iterations=1
    )
    assert (i.item(), total.item()) == (5, 10)
    assert [t.item() for t in wf.while_loop(lambda i: i < 10, lambda i: i + 1, [0])] == [10]
    assert [t.item() for t in wf.while_loop(lambda i: i < 10, lambda i: (i + 1,), [0])] == [10]
    found = wf.while_loop(lambda *s: s[0] < 4, lambda *s: (s[0] + 1, s[1]), [0, 7])
    assert [t.item() for t in found] == [4, 7]


def test_maximum_iterations() -> None:
    def run(limit: int | None) -> int:
        return wf.while_loop(lambda i: i < 5, lambda i: i + 1, 0, maximum_iterations=limit).item()

    assert [run(n) for n in (None, 0, 3, 5, 9)] == [5, 0, 3, 5, 5]


def test_a_loop_that_does_not_start_gives_its_start(x: wf.Tensor) -> None:
    found = wf.while_loop(lambda s: False, lambda s: s + 1, x)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (
            lambda x: wf.while_loop(lambda s: True, lambda s: {"a": s["a"] * x}, {"a": 1.0}),
            ["carry['a']", "it is f64[]", "the body returns f32[3]"],
        ),
        (
            lambda x: wf.while_loop(lambda s: True, lambda s: wf.astype(s, wf.int32), x),
            ["carry", "it is f32[3]", "i32[3]", "wf.astype"],
        ),
        (lambda x: wf.while_loop(lambda s: x > 0, lambda s: s, x), ["cond returns is bool[3]"]),
        (lambda x: wf.while_loop(lambda s: (True, True), lambda s: s, x), ["(*, *), not one bool"]),
        (lambda x: wf.while_loop(lambda s: True, lambda s: (s, s), x), ["structures * and (*, *)"]),
        (
            lambda x: wf.while_loop(lambda s: True, lambda s: s, x, maximum_iterations=x[0]),
            ["maximum_iterations is", "belongs into cond"],
        ),
        (
            lambda x: wf.while_loop(lambda s: True, lambda s: s, x, maximum_iterations=-1),
            ["not an int >= 0"],
        ),
        (
            lambda x: wf.while_loop(lambda s: True, lambda s: s, x, shape_invariants=[1]),
            ["loop_vars begins as f32[3]", "its shape invariant is [1]"],
        ),
        (
            lambda x: wf.while_loop(lambda a, b, c: True, lambda a, b, c: (a, b), (x, x)),
            ["cond requires 3 arguments, loop_vars has 2 items"],
        ),
        (lambda x: wf.while_loop(True, lambda s: s, x), ["cond is a bool, not a function"]),
    ],
)
def test_while_errors(x: wf.Tensor, call: Any, parts: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)) as found:
        call(x)
    for part in parts:
        assert part in str(found.value)
    assert "test_control_flow.py" in str(found.value)


def test_fori_loop(x: wf.Tensor) -> None:
    def add(i: Any, a: Any) -> Any:
        return a + i

    np.testing.assert_array_equal(wf.fori_loop(1, 5, add, x), x.numpy() + 10)
    np.testing.assert_array_equal(wf.fori_loop(5, 1, add, x), x)
    for upper in (wf.asarray(5), wf.asarray(np.int32(5))):
        np.testing.assert_array_equal(wf.fori_loop(1, upper, add, 0), 10)
    lower, upper = wf.asarray(np.int32(1)), wf.asarray(np.int64(5))
    assert wf.fori_loop(lower, upper, lambda i, a: a + i, np.int64(0)).item() == 10
    with pytest.raises(TypeError, match=r"upper is f32\[\]"):
        wf.fori_loop(0, x[0], add, x)


# ------------------------------------------------------------------------------------------- scan


def test_scan_in_the_manner_of_jax(x: wf.Tensor) -> None:
    last, sums = wf.scan(lambda c, r: (c + r, {"before": c}), 0.0, x)
    assert last.dtype is wf.float32  # the number took the dtype that the body gave it
    assert last.item() == 3
    np.testing.assert_array_equal(sums["before"], [0, 0, 1])
    last, sums = wf.scan(lambda c, r: (c + r, c), 0.0, x, reverse=True)
    np.testing.assert_array_equal(sums, [3, 2, 0])
    count, nothing = wf.scan(lambda c, r: (c + 1, r), 0, None, length=np.int64(4), unroll=2)
    assert (count.item(), nothing) == (4, None)
    pairs = wf.scan(lambda c, r: (c, r["a"] * r["b"][0]), None, {"a": x, "b": [x + 1]})
    assert pairs[0] is None
    np.testing.assert_array_equal(pairs[1], [0, 2, 6])


def test_scan_in_the_manner_of_tensorflow(x: wf.Tensor) -> None:
    def add(a: Any, r: Any) -> Any:
        return a + r

    np.testing.assert_array_equal(wf.scan(add, elems=x + 1), [1, 3, 6])
    np.testing.assert_array_equal(wf.scan(add, elems=x + 1, reverse=True), [6, 5, 3])
    np.testing.assert_array_equal(wf.scan(add, elems=x, initializer=10.0), [10, 11, 13])
    np.testing.assert_array_equal(wf.scan(add, x, initializer=np.float32(10)), [10, 11, 13])
    np.testing.assert_array_equal(wf.scan(add, x + 1), [1, 3, 6])  # JAX needs xs or length
    np.testing.assert_array_equal(wf.scan(add, x + 1, reverse=True), [6, 5, 3])
    a, b = wf.scan(lambda a, r: (a[0] + r[0], a[1] * r[1]), elems=(x, x + 1))
    np.testing.assert_array_equal(a, [0, 1, 3])
    np.testing.assert_array_equal(b, [1, 2, 6])


def test_map_and_folds(x: wf.Tensor) -> None:
    found = wf.map_fn(lambda r: (r, {"twice": r[0] * 2}), wf.stack([x, x + 1]))
    np.testing.assert_array_equal(found[0], [[0, 1, 2], [1, 2, 3]])
    np.testing.assert_array_equal(found[1]["twice"], [0, 2])
    assert wf.foldl(lambda a, r: a * 2 + r, x).item() == 4
    assert wf.foldr(lambda a, r: a * 2 + r, x).item() == 10
    assert wf.foldl(lambda a, r: a + r, x, initializer=10.0).item() == 13
    assert wf.foldr(lambda a, r: a + r, x[:0], initializer=np.float32(1)).item() == 1


def test_weak_carries_reach_a_fixed_point(x: wf.Tensor) -> None:
    """i becomes a float by way of y, which becomes one by way of x."""
    (i, y), _ = wf.scan(lambda c, r: ((c[1], c[1] + r), None), (0, 0), x)
    assert i.dtype is y.dtype is wf.float32
    half, _ = wf.scan(lambda c, _: (c * 0.5, None), 1, length=2)
    assert half.weak
    assert half.item() == 0.25


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda x: wf.scan(lambda c, r: c + r, 0.0, x), ["not a pair (carry, y)", "elems=x"]),
        (lambda x: wf.scan(lambda a, r: a + r, 0), ["number of iterations is not known", "elems="]),
        (lambda x: wf.scan(lambda a, r: (a, r), x), ["structures * and (*, *) differ"]),
        (lambda x: wf.scan(lambda c, r: (c, r)), ["init is missing"]),
        (lambda x: wf.scan(lambda c, r: (c, r), 0, [x, x[1:]]), ["xs[0] is 3", "xs[1] has 2 rows"]),
        (lambda x: wf.scan(lambda c, r: (c, r), 0, x, length=2), ["length is 2", "xs has 3 rows"]),
        (lambda x: wf.scan(lambda c, r: (c, r), 0, [1, 2]), ["xs[0] is a i64[]", "wf.asarray"]),
        (lambda x: wf.scan(lambda c, r: (c, r), 0, length=-1), ["length is -1, not an int >= 0"]),
        (lambda x: wf.scan(lambda c, r: (c, r), 0, length=x[0]), ["not an int >= 0", "while_loop"]),
        (lambda x: wf.scan(lambda c, r: (c, r), 0, x, unroll=0), ["unroll is 0"]),
        (lambda x: wf.scan(lambda c, r: ((c, c), r), 0, x), ["structures * and (*, *) differ"]),
        (lambda x: wf.scan(lambda c, r: (c + r[0], r), x, [x]), []),
        (lambda x: wf.scan(lambda c, r: (c, r), 0, x, elems=x), ["TensorFlow's arguments"]),
        (lambda x: wf.scan(lambda c, r: (r > 0, r), 0.0, x), ["carry", "f64[]", "bool[]"]),
        (lambda x: wf.scan(None, 0.0, x), ["f is a NoneType, not a function"]),
        (lambda x: wf.foldl(lambda a, r: a, x[:0]), ["no rows and no initializer"]),
        (lambda x: wf.map_fn(lambda r: r, x[0]), ["wf.map_fn: xs is a f32[]"]),
    ],
)
def test_scan_errors(x: wf.Tensor, call: Any, parts: list[str]) -> None:
    if not parts:  # not an error: the carry may have more axes than a row
        assert call(x)[0].shape == (3,)
        return
    with pytest.raises((TypeError, ValueError)) as found:
        call(x)
    for part in parts:
        assert part in str(found.value)
    assert "test_control_flow.py" in str(found.value)


# ----------------------------------------------------------------------------------- in the graph


def test_outer_tensors_become_operands(x: wf.Tensor) -> None:
    @wf.compile
    def f(x: Any, w: Any) -> Any:
        def step(c: Any, r: Any) -> Any:
            inner, _ = wf.scan(lambda a, b: (a * b + w, None), c, x)
            return wf.cond(inner > 0, lambda: inner + r, lambda: w), None

        return wf.scan(step, 0.0, x)[0]

    graph = f.trace(x, np.float32(2))
    verify(graph)
    assert ops_of(graph).count("scan") == 2
    assert ops_of(graph).count("cond") == 1
    (outer,) = [op for op in graph.ops if op.name == "scan"]
    assert len(outer.operands) == 4  # carry, rows, x and w
    assert len(outer.regions[0].args) == 4


def test_a_tensor_of_a_body_does_not_leave_it(x: wf.Tensor) -> None:
    kept = []
    wf.scan(lambda c, r: (kept.append(r), (c, r))[1], 0.0, x)
    with pytest.raises(wf.errors.TracerError if hasattr(wf.errors, "TracerError") else TypeError):
        kept[0] + 1


@pytest.mark.parametrize("statement", ["if", "while"])
def test_python_control_flow_on_tensors_points_here(statement: str) -> None:
    @wf.compile
    def f(x: Any) -> Any:
        return 1 if (x > 0 if statement == "if" else x) else 2

    with pytest.raises(TypeError, match=r"wf\.cond and wf\.while_loop"):
        f(np.float32(1))


def test_graphs_with_symbolic_sizes() -> None:
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [None, 2], name="x")
        doubled = wf.map_fn(lambda r: r * 2, x)
        total = wf.foldl(lambda a, r: a + r, doubled)
    assert doubled.shape[0] == x.shape[0]
    (scan, *_) = [op for op in doubled._trace.builder.ops if op.name == "scan"]
    assert scan.attrs["length"] == x.shape[0]
    assert total.shape == (2,)


# ------------------------------------------------------------------------------------------ state


def test_variables_are_read_and_written_in_bodies(x: wf.Tensor) -> None:
    total, steps = wf.Variable(0.0), wf.Variable(0)

    def step(c: Any, r: Any) -> Any:
        steps.assign_add(1)
        before = total.read()
        total.assign_add(r)
        return c, (before, total.read())

    _, (before, after) = wf.scan(step, None, x + 1)
    np.testing.assert_array_equal(before, [0, 1, 3])
    np.testing.assert_array_equal(after, [1, 3, 6])
    assert (total.item(), steps.item()) == (6, 3)
    wf.while_loop(lambda i: total < 20, lambda i: (total.assign_add(10.0), i + 1)[1], 0)
    assert total.item() == 26


@pytest.mark.parametrize("pred", [True, False])
def test_one_branch_may_assign(pred: bool) -> None:
    v = wf.Variable(1.0)
    found = wf.cond(pred, lambda: v.assign(5.0) * 2, lambda: v.read())
    assert found.item() == (10 if pred else 1)
    assert v.item() == (5 if pred else 1)


def test_state_in_nested_bodies() -> None:
    v = wf.Variable(np.int64(0))

    def inner(i: Any, _: Any) -> Any:
        return wf.cond(i % 2 == 0, lambda: v.assign_add(1), lambda: v.assign_add(10)), None

    wf.scan(
        lambda c, _: (wf.fori_loop(0, 3, lambda i, a: inner(i, a)[0], v.read()), None), v, length=2
    )
    assert v.item() == 24


def test_the_ops_hold_no_effects(x: wf.Tensor) -> None:
    v = wf.Variable(0.0)

    @wf.compile
    def f(x: Any) -> Any:
        wf.scan(lambda c, r: (v.assign_add(r), None), 0.0, x)
        return v.read()

    graph = f.trace(x)
    verify(graph)
    (scan,) = [op for op in graph.ops if op.name == "scan"]
    assert not {"read", "assign", "variable"} & {op.name for op in scan.regions[0].walk()}
    assert [op.name for op in graph.ops if op.name in ("read", "assign")] == [
        "read",
        "assign",
        "read",
    ]


def test_the_test_of_a_loop_may_not_assign() -> None:
    v = wf.Variable(0.0)
    with pytest.raises(TypeError, match="cond assigns to variable"):
        wf.while_loop(lambda i: v.assign_add(1.0) < 3, lambda i: i, 0)


def test_random_numbers_in_bodies(x: wf.Tensor) -> None:
    """Explicit keys repeat; the state of a generator goes along, so each iteration has its own."""
    key = wf.random.key(1)
    _, same = wf.scan(lambda c, r: (c, wf.random.uniform(key)), None, x)
    assert len(set(same.tolist())) == 1
    _, folded = wf.scan(lambda i, r: (i + 1, wf.random.uniform(wf.random.fold_in(key, i))), 0, x)
    assert len(set(folded.tolist())) == 3
    generator = wf.random.Generator(3)
    _, drawn = wf.scan(lambda c, r: (c, generator.uniform()), None, x)
    again = wf.random.Generator(3)
    np.testing.assert_array_equal(drawn, [again.uniform().item() for _ in range(3)])


def test_training_in_a_loop() -> None:
    """An optimizer's step in the body of a scan does what the same steps in Python do."""
    data = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)

    def train(loop: Callable[[Callable[[Any], Any]], Any]) -> np.ndarray[Any, Any]:
        w = wf.Variable(np.ones(3, np.float32))
        optimizer = wf.train.AdagradOptimizer(0.1)
        loop(lambda row: optimizer.minimize(lambda: wf.sum((w * row - 1.0) ** 2), [w]))
        return w.numpy()

    def in_python(step: Callable[[Any], Any]) -> None:
        for row in data:
            step(wf.asarray(row))

    def in_scan(step: Callable[[Any], Any]) -> None:
        def body(c: Any, row: Any) -> Any:
            step(row)
            return c, None

        wf.scan(body, None, data)

    np.testing.assert_allclose(train(in_scan), train(in_python), rtol=1e-6)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("lower", "upper", "dtype"),
    [
        (0, 7, wf.int64),
        (0, np.int32(7), wf.int32),
        (np.int32(0), 7, wf.int32),
        (np.int8(0), np.int16(7), wf.int16),
    ],
)
def test_fori_loop_counts_in_the_dtype_of_its_bounds(lower: Any, upper: Any, dtype: Any) -> None:
    """At once, and compiled with the bounds inside and as arguments."""

    def loop(a: Any, b: Any) -> Any:
        return wf.fori_loop(a, b, lambda i, c: c + i, 0)

    results = [loop(lower, upper), wf.compile(loop)(lower, upper)]
    results.append(wf.compile(lambda: loop(lower, upper))())
    for result in results:
        assert (result.dtype, result.weak, int(result)) == (dtype, dtype is wf.int64, 21)


@pytest.mark.parametrize("none", [(), []])
def test_while_loop_without_loop_variables(none: Any) -> None:
    """Functions of no argument or of one; the state is a variable."""
    v = wf.Variable(np.int64(0))

    def count(*_: Any) -> Any:
        v.assign_add(1)
        return none

    for call in (lambda f: f(), lambda f: wf.compile(f)()):
        v.assign(0)
        assert call(lambda: wf.while_loop(lambda: v < 5, lambda: count(), none)) == none
        assert v.numpy() == 5
        call(lambda: wf.while_loop(lambda s: v < 7, lambda s: count(s), none))
        assert v.numpy() == 7


@pytest.mark.parametrize("compiled", [False, True])
def test_switch_case_by_number_and_default(compiled: bool) -> None:
    def f(i: Any) -> Any:
        fns = {7: lambda: 1.0, -2: lambda: 2.0, 3: lambda: 3.0}
        return (
            wf.switch_case(i, fns, default=lambda: 0.0),
            wf.switch_case(i, list(fns.items())),  # without a default: that of the highest index
            wf.switch_case(i, [lambda: 1.0, lambda: 2.0], default=lambda: 0.0),
        )

    run = wf.compile(f) if compiled else f
    for i in (-3, -2, 0, 1, 2, 3, 7, 8):
        exact = {7: 1.0, -2: 2.0, 3: 3.0}
        expected = (exact.get(i, 0.0), exact.get(i, 1.0), {0: 1.0, 1: 2.0}.get(i, 0.0))
        assert tuple(float(r) for r in run(np.int64(i))) == expected
    with pytest.raises(wf.errors.InvalidArgumentError, match="not a function"):
        wf.switch_case(0, {0: 1.0})
    with pytest.raises(wf.errors.InvalidArgumentError, match="the same index"):
        wf.switch_case(0, [(1, lambda: 1), (1, lambda: 2)])


def test_map_fn_checks_dtypes() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    signs = wf.map_fn(lambda r: wf.astype(r > 2, wf.int32), x, dtype=wf.int32)
    assert signs.dtype is wf.int32
    one, two = wf.map_fn(lambda r: (1, r), x, fn_output_signature=("int8", np.float32))
    assert (one.dtype, two.dtype) == (wf.int8, wf.float32)
    with pytest.raises(wf.errors.TypeRuleError, match="dtype says int32"):
        wf.map_fn(lambda r: r, x, wf.int32, parallel_iterations=4)
    with pytest.raises(wf.errors.InvalidArgumentError, match="nested as"):
        wf.map_fn(lambda r: (r, r), x, dtype=wf.float32)


def test_cond_takes_the_name_that_tensorflow_gives_it() -> None:
    assert wf.cond(True, lambda: 1, lambda: 2, name="pick").tolist() == 1
    assert wf.cond(False, lambda x: x, lambda x: -x, 3, name=None).tolist() == -3
