"""Elementwise arithmetic of sparse tensors against SciPy (matrices) and NumPy (other ranks), in all
ways to run it; gradients against those of the dense form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from sparse_ways import SEEDS, Array, check, dense, entries, in_session, interpreted, padded, plain

import weft as wf
from weft.frontend.eager.numpy_calls import SWITCH


@pytest.fixture(params=["interpreter", "native"])
def eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls op by op, and with what is quick and what is large as users have it."""
    monkeypatch.setattr(SWITCH, "on", request.param == "native")


def pair(seed: int, rank: int, *, repeated: bool = True) -> tuple[Any, ...]:
    """Two SparseTensors of one shape, entries in any order, and their dense forms."""
    indices, values, shape = entries(seed, rank, repeated=repeated)
    rng = np.random.default_rng(seed + 1)
    count = int(rng.integers(0, 9))
    other = np.stack([rng.integers(0, n, count) for n in shape], axis=1)
    # half of the entries where the first one has some
    shared = rng.permutation(indices)[: len(indices) // 2]
    other = np.concatenate([shared, other]).astype(np.int64)
    if not repeated:
        other = np.unique(other, axis=0)
    more = (rng.integers(-40, 40, len(other)) / 8).astype(np.float32)
    x, y = wf.SparseTensor(indices, values, shape), wf.SparseTensor(other, more, shape)
    return x, y, dense(indices, values, shape), dense(other, more, shape)


def scipys(x: Array) -> Any:
    return scipy.sparse.csr_array(x)


def places(x: wf.SparseTensor) -> set[tuple[int, ...]]:
    return set(map(tuple, x.indices.tolist()))


def quotient(a: Array, b: Array) -> Array:
    """SciPy's where `a` is not 0; NaN where neither has an entry is 0 in weft."""
    with np.errstate(all="ignore"):
        found = scipys(a) / scipys(b) if a.ndim == 2 and a.any() and b.any() else a / b
    return np.where(a != 0, found, 0)


OPS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array]]] = {
    "multiply": (wf.sparse.multiply, lambda a, b: (scipys(a) * scipys(b)).toarray()),
    "maximum": (wf.sparse.maximum, lambda a, b: scipys(a).maximum(scipys(b)).toarray()),
    "minimum": (wf.sparse.minimum, lambda a, b: scipys(a).minimum(scipys(b)).toarray()),
    "add": (wf.sparse.add, lambda a, b: (scipys(a) + scipys(b)).toarray()),
    "subtract": (wf.sparse.subtract, lambda a, b: (scipys(a) - scipys(b)).toarray()),
}
NUMPY = {"multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum, "add": np.add,
         "subtract": np.subtract}  # fmt: skip


@examples(60)
@given(SEEDS, st.integers(1, 3), st.sampled_from(sorted(OPS)))
def test_two_sparse_operands(seed: int, rank: int, name: str) -> None:
    x, y, a, b = pair(seed, rank)
    f, truth = OPS[name]
    wanted = truth(a, b) if rank == 2 else NUMPY[name](a, b)
    for other in (y, padded(y)):
        check(lambda x, other=other: f(x, other), wanted, x)
    found = f(x, y)
    have = places(x) & places(y) if name == "multiply" else places(x) | places(y)
    assert list(map(tuple, found.indices.tolist())) == sorted(have)
    assert not found.padded
    if rank == 2:
        ways = (wf.sparse.to_csr(x), wf.sparse.to_csr(y))
        np.testing.assert_array_equal(plain(f(*ways)), wanted)
        np.testing.assert_array_equal(plain(wf.compile(f)(*ways)), wanted)


@examples(60)
@given(SEEDS, st.integers(1, 3))
def test_quotients(seed: int, rank: int) -> None:
    """At places where the first has an entry that is not 0: there the dense form says it all."""
    x, y, a, b = pair(seed, rank)
    found = [x / y, padded(x) / padded(y), wf.compile(lambda x, y: x / y)(x, padded(y))]
    for got in found:
        stored = np.where(a != 0, plain(got), 0)
        np.testing.assert_allclose(stored, quotient(a, b), rtol=1e-6)
        assert not np.any(plain(got)[_absent(x, a.shape)])
    assert list(map(tuple, found[0].indices.tolist())) == sorted(places(x))
    with np.errstate(all="ignore"):
        at = tuple(found[0].indices.numpy().T)
        np.testing.assert_allclose(found[0].values, a[at] / b[at], rtol=1e-6)


def _absent(x: wf.SparseTensor, shape: tuple[int, ...]) -> Array:
    absent = np.ones(shape, bool)
    absent[tuple(x.indices.numpy().T)] = False
    return absent


@examples(60)
@given(SEEDS, st.sampled_from([1, 2, 3]))
def test_powers(seed: int, n: int) -> None:
    x, _, a, _ = pair(seed, 2)
    check(lambda x: x**n, scipys(a).power(n).toarray(), x)
    check(lambda x, n: x**n, scipys(a).power(n).toarray(), x, np.float32(n))
    root = wf.sparse.pow(x * x, 0.5)  # of equal indices: the sum is raised, not each
    np.testing.assert_allclose(plain(root), np.sqrt(plain(x * x)), rtol=1e-6)


@examples(60)
@given(SEEDS)
def test_shapes_that_broadcast(seed: int) -> None:
    """As SciPy's `multiply`: a dense operand larger than the sparse one, and two sparse ones."""
    rng = np.random.default_rng(seed)
    x, _, _, _ = pair(seed, 2)
    rows, columns = x.dense_shape
    axis = int(rng.integers(3))
    keep = [slice(0, 1), slice(None)] if axis == 0 else [slice(None), slice(0, 1)]
    start, size = [0, 0], [1 if s == slice(0, 1) else -1 for s in keep]
    if axis == 2:
        size = [1, 1]
    part = wf.sparse.slice(x, start, size)
    a = plain(part)
    t = rng.integers(-8, 8, (rows, columns)).astype(np.float32)
    cube, other = np.stack([t, 2 * t]), wf.sparse.from_dense(t)
    _known_shapes(lambda p, t: p * t, _product(a, t), part, t)
    _known_shapes(lambda p, t: t * p, _product(a, t), part, t)
    _known_shapes(lambda p, t: p / (abs(t) + 1), _product(a, 1 / (abs(t) + 1)), part, t)
    _known_shapes(lambda p: p * other, _product(a, scipys(t)), part)
    _known_shapes(lambda p: other * p, _product(a, scipys(t)), part)
    _known_shapes(lambda p: p / other, _product(a, np.where(t, 1 / np.where(t, t, 1), 1)), part,
                  stored=t != 0)  # fmt: skip
    _known_shapes(lambda p, c: p * c, a * cube, part, cube)


def _product(a: Array, b: Any) -> Array:
    """SciPy's, which is dense for one element."""
    found = scipys(a).multiply(b)
    return found.toarray() if scipy.sparse.issparse(found) else np.asarray(found)


def _known_shapes(
    f: Callable[..., Any], wanted: Array, x: Any, *more: Array, stored: Any = True
) -> None:
    """In a graph whose sizes are open an axis of size 1 is not known to be one."""
    for z in (x, padded(x)):
        for run in (f, wf.compile(f)) if x.nse % 4 == 1 else (f,):
            got = plain(run(z, *more))
            assert got.shape == wanted.shape
            np.testing.assert_allclose(np.where(stored, got, wanted), wanted, rtol=1e-5)
        np.testing.assert_allclose(
            np.where(stored, interpreted(f, z, *more), wanted), wanted, rtol=1e-5
        )


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.complex64, np.int32, np.uint8])
@pytest.mark.parametrize("name", ["multiply", "subtract", "maximum"])
def test_dtypes(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 9, (3, 4)) * (rng.random((3, 4)) < 0.5) for _ in range(2))
    a, b = a.astype(dtype), b.astype(dtype)
    x, y = wf.sparse.from_dense(a), wf.sparse.from_dense(b)
    f = OPS[name][0]
    if name == "maximum" and dtype is np.complex64:
        with pytest.raises(wf.errors.TypeRuleError, match="maximum"):
            f(x, y)
        return
    found = f(x, y)
    assert found.dtype.numpy == dtype
    np.testing.assert_array_equal(plain(found), NUMPY[name](a, b))
    mixed = f(x, wf.sparse.from_dense(b.real.astype(np.float32)))
    assert mixed.dtype is wf.result_type(x.values, wf.float32)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_differences_are_those_of_the_dtype_of_both(dtype: Any) -> None:
    """Nothing is negated in a dtype that has no such number."""
    a, b = np.array([2.5, 0, 7], np.float32), np.array([np.iinfo(dtype).min, 3, 0], dtype)
    b[0] = b[0] or 1
    x, y = wf.sparse.from_dense(a), wf.sparse.from_dense(b)
    for run in (wf.sparse.subtract, wf.compile(wf.sparse.subtract)):
        for first, second, wanted in ((x, y, a - b), (y, x, b - a), (x, b, a - b), (a, y, a - b),
                                      (y, a, b - a), (b, x, b - a)):  # fmt: skip
            np.testing.assert_array_equal(plain(run(first, second)), wanted)


@pytest.mark.usefixtures("eager")
def test_what_is_not_finite() -> None:
    """NaN and infinity count where they meet an entry, and nowhere else."""
    x = wf.SparseTensor([[0], [1], [3]], np.array([np.nan, 2, -1], np.float32), (5,))
    y = wf.SparseTensor([[1], [2], [3]], np.array([np.inf, np.nan, 0], np.float32), (5,))
    expected: dict[str, list[float]] = {
        "multiply": [0, np.inf, 0, 0, 0],
        "divide": [np.nan, 0, 0, -np.inf, 0],
        "maximum": [np.nan, np.inf, np.nan, 0, 0],
        "minimum": [np.nan, 2, np.nan, -1, 0],
        "subtract": [np.nan, -np.inf, np.nan, -1, 0],
    }
    for name, wanted in expected.items():
        f = getattr(wf.sparse, name)
        for run in (f, wf.compile(f)):
            for first, second in ((x, y), (padded(x), padded(y))):
                np.testing.assert_array_equal(plain(run(first, second)), wanted, err_msg=name)


@pytest.mark.share(2)
@pytest.mark.parametrize("counts", [(0, 0), (0, 2), (2, 0)])
def test_without_entries(counts: tuple[int, int]) -> None:
    x, y = (wf.SparseTensor(np.arange(n)[:, None], np.ones(n, np.float32), (4,)) for n in counts)
    a, b = plain(x), plain(y)
    for name in OPS:
        f = OPS[name][0]
        wanted = NUMPY[name](a, b)
        for run in (f, wf.compile(f)):
            np.testing.assert_array_equal(plain(run(x, y)), wanted)
        np.testing.assert_array_equal(in_session(lambda x: f(x, y).to_dense(), x), wanted)  # noqa: B023
    for n in ((0,), (2, 0)):
        empty = wf.SparseTensor(np.zeros((0, len(n)), np.int64), np.zeros(0, np.float32), n)
        assert (empty * empty).dense_shape == wf.sparse.maximum(empty, empty).dense_shape == n


def many(seed: int, rank: int) -> tuple[Any, ...]:
    """Two of one shape with so many entries that a kernel merges them, in row-major order."""
    rng = np.random.default_rng(seed)
    shape = ((300,), (30, 20), (7, 9, 8))[rank - 1]
    a, b = (
        np.where(rng.random(shape) < 0.3, rng.integers(-9, 10, shape), 0).astype(np.float32)
        for _ in range(2)
    )
    return wf.sparse.from_dense(a), wf.sparse.from_dense(b), a, b


@pytest.mark.share(6)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", [*OPS, "divide"])
def test_many_entries_in_order(name: str, rank: int) -> None:
    """At once, and of known indices in a compiled function, where nothing is padded then; as the
    same entries in another order, which are not merged."""
    x, y, a, b = many(rank, rank)
    f = getattr(wf.sparse, name)
    with np.errstate(all="ignore"):
        wanted = np.where(a != 0, a / b, 0) if name == "divide" else NUMPY[name](a, b)
    if rank == 2 and name in OPS:
        np.testing.assert_array_equal(OPS[name][1](a, b), wanted)
    found = f(x, y)
    compiled = wf.compile(lambda v: f(x.with_values(v), y))(x.values)
    turned = wf.SparseTensor(x.indices.numpy()[::-1], x.values.numpy()[::-1], x.dense_shape)
    for made in (found, compiled, f(turned, y), f(x, y.with_values(wf.astype(y.values, wf.int32)))):
        np.testing.assert_array_equal(plain(made), wanted)
        assert not made.padded
        np.testing.assert_array_equal(made.indices, found.indices)
    assert found.nse == len(np.unique(found.indices.numpy(), axis=0))
    rows = wf.vmap(lambda v: f(x.with_values(v), y).to_dense())(wf.stack([x.values, x.values]))
    np.testing.assert_array_equal(rows, np.stack([wanted, wanted]))
    if name != "divide":
        weights = np.random.default_rng(2).normal(size=a.shape).astype(np.float32)
        g = wf.grad(lambda v: wf.sum(f(x.with_values(v), y).to_dense() * weights))(x.values)
        of_dense_form = wf.grad(lambda t: wf.sum(getattr(wf, name)(t, b) * weights))(a)
        # where both are 0 an extremum's gradient is shared; no entry of x is 0
        np.testing.assert_allclose(g, of_dense_form.numpy()[a != 0], rtol=1e-6)


# -------------------------------------------------------------------------------------- derivatives
def of_dense(name: str, x: Any, y: Any) -> Any:
    a, b = x.to_dense(), y.to_dense()
    if name == "divide":  # where nothing is stored, 0 / 0 is not asked for
        stored = wf.asarray(~_absent(x, x.dense_shape))
        return wf.where(stored, a / wf.where(stored, b, 1), 0)
    return getattr(wf, name)(a, b)


@pytest.mark.share(6)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", [*OPS, "divide"])
def test_gradients(name: str) -> None:
    x, y, *_ = pair(5, 2, repeated=name != "divide")
    x = x.with_values(wf.astype(x.values, wf.float64))
    y = y.with_values(wf.astype(wf.abs(y.values) + 0.5, wf.float64))
    if name == "divide":  # an entry for each of x: else the gradient is not finite
        y = wf.sparse.add(y, x.with_values(wf.ones_like(x.values)))
    weights = np.random.default_rng(2).normal(size=x.dense_shape)

    def loss(u: Any, v: Any) -> Any:
        made = getattr(wf.sparse, name)(x.with_values(u), y.with_values(v))
        return wf.sum(made.to_dense() ** 2 * weights)

    def truth(u: Any, v: Any) -> Any:
        return wf.sum(of_dense(name, x.with_values(u), y.with_values(v)) ** 2 * weights)

    given, tangents = (x.values, y.values), (wf.ones_like(x.values), wf.ones_like(y.values))
    want = wf.grad(truth, argnums=(0, 1))(*given)
    for run in (wf.grad(loss, argnums=(0, 1)), wf.compile(wf.grad(loss, argnums=(0, 1)))):
        for found, g in zip(run(*given), want, strict=True):
            np.testing.assert_allclose(found, g, rtol=1e-9, atol=1e-12)
    forward = wf.jvp(loss, given, tangents)[1], wf.jvp(truth, given, tangents)[1]
    np.testing.assert_allclose(*forward, rtol=1e-9)
    np.testing.assert_allclose(wf.hessian(loss)(*given), wf.hessian(truth)(*given), atol=1e-9)


def test_gradients_of_powers_and_of_dense_operands() -> None:
    x, _, *_ = pair(5, 2)
    x = x.with_values(wf.astype(x.values, wf.float64) + 0.01)
    t = np.random.default_rng(1).uniform(1, 2, (2, *x.dense_shape))

    def both(f: Callable[[Any, Any], Any]) -> Any:
        g = wf.grad(f, argnums=(0, 1))
        return [*g(x.values, t), *wf.compile(g)(x.values, t)]

    found = both(lambda v, t: wf.sum(wf.sin((x.with_values(v) ** 3 * t).to_dense())))
    want = both(lambda v, t: wf.sum(wf.sin(x.with_values(v).to_dense() ** 3 * t)))
    for g, w in zip(found, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------- batches and functions
@pytest.mark.share(2)
@pytest.mark.parametrize("name", [*OPS, "divide"])
def test_batches(name: str) -> None:
    """Values that differ, and indices that differ, too: as many entries for each example."""
    x, y, *_ = pair(7, 2)
    f = getattr(wf.sparse, name)
    turns = np.stack([np.roll(x.indices.numpy(), k, axis=0) for k in range(3)])
    values = np.stack([x.values.numpy() * k for k in (1, 2, 3)])

    def one(i: Any, v: Any) -> Any:
        return f(wf.SparseTensor(i, v, x.dense_shape), y).to_dense()

    wanted = np.stack([np.asarray(one(i, v)) for i, v in zip(turns, values, strict=True)])
    np.testing.assert_allclose(wf.vmap(one)(turns, values), wanted, rtol=1e-6)
    np.testing.assert_allclose(wf.compile(wf.vmap(one))(turns, values), wanted, rtol=1e-6)


def test_compiled_functions_stay_native_and_keep_their_sizes() -> None:
    x, y, a, b = pair(7, 2)

    @wf.compile
    def f(x: Any, y: Any) -> Any:
        return wf.sparse.maximum(x, y), x * y, x / y, x - y, x**2

    larger, product, ratio, difference, square = f(x, y)
    assert "dataflow executor" not in f.explain(x, y)
    assert (larger.nse, difference.nse) == (x.nse + y.nse,) * 2
    assert (product.nse, ratio.nse, square.nse) == (x.nse,) * 3
    assert all(t.padded for t in (larger, product, ratio, difference, square))
    np.testing.assert_array_equal(plain(wf.sparse.coalesce(product)), a * b)
    np.testing.assert_array_equal(
        interpreted(lambda x: wf.sparse.maximum(x, y), x), np.maximum(a, b)
    )


def test_known_indices_in_order_need_no_padding() -> None:
    x = wf.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], (3, 2))
    found = wf.compile(lambda v: x.with_values(v) ** 2)(x.values)
    assert (found.nse, found.padded) == (2, False)
    assert found.values.tolist() == [25, 49]


# ------------------------------------------------------------------------------------------- errors
ONE = wf.SparseTensor([[0, 0]], [1.0], (2, 3))
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shapes": (lambda: wf.sparse.maximum(ONE, wf.sparse.transpose(ONE)), wf.errors.ShapeError,
               r"wf\.sparse\.maximum: the shapes \[2,3\] and \[3,2\] differ"),
    "subtract": (lambda: wf.sparse.subtract(ONE, wf.sparse.transpose(ONE)), wf.errors.ShapeError,
                 r"wf\.sparse\.subtract: the shapes"),
    "subtract a number": (lambda: ONE - 1, wf.errors.ShapeError, r"wf\.sparse\.subtract: a number"),
    "broadcast": (lambda: ONE * wf.sparse.transpose(ONE), wf.errors.ShapeError,
                  r"(?s)wf\.sparse\.multiply: .*\[3,2\] does not broadcast with \[2,3\]"),
    "with a number": (lambda: wf.sparse.minimum(ONE, 1.0), wf.errors.TypeRuleError,
                      r"wf\.sparse\.minimum takes a wf\.sparse\.SparseTensor, got a float"),
    "number / sparse": (lambda: 1 / ONE, wf.errors.TypeRuleError,
                        r"(?s)wf\.sparse\.divide: .*infinite.*to_dense"),
    "tensor / sparse": (lambda: wf.ones((2, 3)) / ONE, wf.errors.TypeRuleError, "infinite"),
    "zero power": (lambda: ONE**0, wf.errors.UnsupportedError, r"(?s)wf\.sparse\.pow.*with_values"),
    "negative power": (lambda: wf.sparse.pow(ONE, -0.5), wf.errors.UnsupportedError, "-0.5"),
    "places of a power": (lambda: wf.SparseTensor([[0] * 3] * 2, [1.0, 2.0], (2**22,) * 3) ** 2,
                          wf.errors.UnsupportedError, r"wf\.sparse\.pow: .*more places"),
    "powers": (lambda: ONE ** wf.ones(3), wf.errors.ShapeError, "must be a number"),
    "places": (lambda: wf.sparse.multiply(*[wf.SparseTensor([[0] * 3], [1.0], (2**22,) * 3)] * 2),
               wf.errors.UnsupportedError, r"wf\.sparse\.multiply: .*more places"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    f, error, match = BAD[name]
    with pytest.raises(error, match=match):
        f()
