"""Products of two sparse matrices against SciPy's, eagerly, compiled, in graphs and in batches;
gradients against those of the dense form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf
from weft.frontend.eager.numpy_calls import SWITCH
from weft.ir.errors import InvalidArgumentError, ShapeError, TracerError, TypeRuleError

Array = np.ndarray[Any, Any]
M, K, N = 6, 5, 7
ROOM = 60


@pytest.fixture(params=["interpreter", "native"])
def eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls op by op, and with what is quick and what is large as users have it."""
    monkeypatch.setattr(SWITCH, "on", request.param == "native")


def random(
    rows: int, columns: int, seed: int, dtype: Any = np.float64, density: float = 0.4
) -> Any:
    """SciPy's matrix, of whole numbers, which every dtype sums exactly."""
    rng = np.random.default_rng(seed)
    there = rng.random((rows, columns)) < density
    values = np.where(there, rng.integers(1, 5, (rows, columns)), 0).astype(dtype)
    if np.dtype(dtype).kind == "c":
        values = values * (1 + 2j)
    return scipy.sparse.csr_array(values)


def coo(x: Any) -> wf.SparseTensor:
    t = x.tocoo()
    return wf.SparseTensor(np.stack(t.coords, axis=1).astype(np.int64), t.data, t.shape)


def csr(x: Any) -> wf.sparse.CSRMatrix:
    return wf.sparse.CSRMatrix(x.indptr, x.indices, x.data, x.shape)


def with_more(x: wf.SparseTensor) -> wf.SparseTensor:
    """The same matrix in another order, an entry cut in two, and padding with values."""
    indices, values = x.indices.numpy(), x.values.numpy()
    ends = np.tile(np.asarray(x.dense_shape), (2, 1))
    indices = np.concatenate([ends[:1], indices[::-1], indices[:1], ends[1:]])
    values = np.concatenate([[99], values[::-1], [3], [99]]).astype(values.dtype)
    values[len(values) - 3] -= 3
    return wf.SparseTensor(indices, values, x.dense_shape, padded=True)


def check(found: wf.SparseTensor, want: Any) -> None:
    want = want.tocsr()
    want.sort_indices()
    assert found.dense_shape == want.shape
    assert found.dtype.numpy == want.dtype
    assert_allclose(found.to_dense().numpy(), want.toarray(), rtol=1e-12)
    if not found.padded:  # one entry for each place, in order, as SciPy has
        assert_array_equal(found.indices.numpy(), np.stack(want.tocoo().coords, axis=1))


@pytest.mark.share(6)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", [coo, csr, lambda x: with_more(coo(x))], ids=["coo", "csr", "any"])
def test_against_scipy(seed: int, form: Callable[[Any], Any]) -> None:
    x, y = random(M, K, seed), random(K, N, seed + 10)
    a, b = form(x), form(y)
    check(wf.sparse.matmul(a, b), x @ y)
    check(a @ b, x @ y)
    with_room = wf.compile(lambda a, b: wf.sparse.matmul(a, b, nse=ROOM))(a, b)
    assert (with_room.nse, with_room.padded) == (ROOM, True)
    check(with_room, x @ y)
    check(wf.sparse.coalesce(with_room), x @ y)
    exact = wf.compile(lambda a, b: wf.sparse.matmul(a, b))(a, b)  # off the native call
    assert not exact.padded
    check(exact, x @ y)


@pytest.mark.share(2)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("form", [coo, csr, lambda x: with_more(coo(x))], ids=["coo", "csr", "any"])
def test_many_entries(form: Callable[[Any], Any]) -> None:
    """So many that kernels find the pairs."""
    x, y = random(150, 120, 0, density=0.1), random(120, 130, 1, density=0.1)
    a, b = form(x), form(y)
    assert min(a.nse, b.nse) > 1024  # half of `FEW_ELEMENTS`
    for run in (wf.sparse.matmul, wf.compile(lambda a, b: wf.sparse.matmul(a, b))):
        check(run(a, b), x @ y)
    g = wf.grad(lambda v: wf.sum(wf.sparse.matmul(a.with_values(v), b).values))(a.values)
    there = a.indices if isinstance(a, wf.SparseTensor) else a.to_coo().indices
    sums = np.append(y.sum(axis=1), 0)  # padding has the gradient 0
    assert_allclose(g, sums[there.numpy()[:, 1]])


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.complex128])
def test_dtypes_and_adjoints(dtype: Any) -> None:
    x, y = (
        random(*s, dtype if dtype is not np.float16 else np.float32) for s in ((M, K, 0), (N, M, 1))
    )
    a, b = (t.with_values(t.values.numpy().astype(dtype)) for t in (csr(x), csr(y)))
    made = wf.sparse.matmul(a, b, adjoint_a=True, adjoint_b=True)
    assert made.dtype.numpy == dtype
    want = x.toarray().conj().T @ y.toarray().conj().T
    assert_allclose(made.to_dense().numpy(), want, rtol=1e-6)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 2), (2, 0, 3), (3, 2, 0), (2, 3, 4)])
def test_without_entries(m: int, k: int, n: int) -> None:
    def empty(rows: int, columns: int) -> wf.SparseTensor:
        indices = np.zeros((0, 2), np.int64)
        return wf.SparseTensor(indices, np.zeros(0, np.float32), (rows, columns))

    for run in (wf.sparse.matmul, wf.compile(lambda a, b: wf.sparse.matmul(a, b, nse=3))):
        made = run(empty(m, k), empty(k, n))
        assert made.dense_shape == (m, n)
        assert_array_equal(made.to_dense().numpy(), np.zeros((m, n)))


@pytest.mark.usefixtures("eager")
def test_bools_are_no_numbers() -> None:
    a = wf.SparseTensor([[0, 0]], [True], (1, 1))
    for run in (wf.sparse.matmul, wf.compile(wf.sparse.matmul)):
        with pytest.raises(TypeRuleError, match="takes numeric operands, got bool"):
            run(a, a)


@pytest.mark.usefixtures("eager")
def test_entries_that_add_to_nothing_stay() -> None:
    a = wf.SparseTensor([[0, 0], [0, 1]], [1.0, -1.0], (1, 2))
    made = wf.sparse.matmul(a, wf.SparseTensor([[0, 0], [1, 0]], [2.0, 2.0], (2, 1)))
    assert (made.indices.tolist(), made.values.tolist()) == ([[0, 0]], [0.0])


@pytest.mark.usefixtures("eager")
def test_nan_meets_only_its_own() -> None:
    """A NaN that no entry meets is in no sum; in a dense product it would be in a whole row."""
    a = wf.SparseTensor([[0, 0], [0, 1]], [np.nan, 2.0], (1, 2))
    made = wf.sparse.matmul(a, wf.SparseTensor([[1, 0]], [3.0], (2, 2)))
    assert (made.indices.tolist(), made.values.tolist()) == ([[0, 0]], [6.0])


def test_too_little_room_is_seen() -> None:
    x, y = random(M, K, 0), random(K, N, 1)
    count = int((x != 0).sum(0) @ (y != 0).sum(1))

    def with_room(n: int) -> Any:
        return wf.compile(lambda a, b: wf.sparse.matmul(a, b, nse=n))(coo(x), coo(y))

    check(with_room(count), x @ y)
    assert np.isnan(with_room(count - 1).to_dense().numpy()).any()


@pytest.mark.share(2)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("room", [None, ROOM])
def test_gradients(room: int | None) -> None:
    """Of both, and again: the Hessian has what meets of both."""
    x, y = coo(random(M, K, 0)), coo(random(K, N, 1))
    weights = np.random.default_rng(2).normal(size=(M, N))

    def loss(u: Any, v: Any) -> Any:
        made = wf.sparse.matmul(x.with_values(u), y.with_values(v), nse=room)
        return wf.sum(made.to_dense() ** 2 * weights)

    def truth(u: Any, v: Any) -> Any:
        return wf.sum((x.with_values(u).to_dense() @ y.with_values(v).to_dense()) ** 2 * weights)

    args = x.values, y.values
    want = wf.grad(truth, argnums=(0, 1))(*args)
    for run in (wf.grad(loss, argnums=(0, 1)), wf.compile(wf.grad(loss, argnums=(0, 1)))):
        for found, g in zip(run(*args), want, strict=True):
            assert_allclose(found, g, rtol=1e-9)
    assert_allclose(wf.hessian(loss)(*args), wf.hessian(truth)(*args), rtol=1e-9, atol=1e-9)


def test_derivatives_where_the_number_depends_on_values() -> None:
    """Forward and backward through a compiled function that is given the indices."""
    x, y = coo(random(M, K, 0)), coo(random(K, N, 1))
    v, t = x.values, np.random.default_rng(2).normal(size=x.nse)

    def loss(a: Any, b: Any, v: Any) -> Any:
        return wf.sum(wf.sparse.matmul(a.with_values(v), b).to_dense() ** 2)

    def truth(v: Any) -> Any:
        return wf.sum((x.with_values(v).to_dense() @ y.to_dense()) ** 2)

    def both(f: Any, v: Any, t: Any) -> Any:
        return wf.grad(f)(v), wf.jvp(f, (v,), (t,))[1]

    run = wf.compile(lambda a, b, v, t: both(lambda v: loss(a, b, v), v, t))
    for found, want in zip(run(x, y, v, t), both(truth, v, t), strict=True):
        assert_allclose(found, want, rtol=1e-12)


def test_known_indices_have_known_numbers() -> None:
    """In a compiled function and in a batch the values of constant indices need no room."""
    x, y = random(M, K, 0), random(K, N, 1)
    a, b = coo(x), coo(y)

    def product(v: Any) -> Any:
        return wf.sparse.matmul(a.with_values(v), b)

    check(wf.compile(product)(a.values), x @ y)
    rows = wf.vmap(lambda v: product(v).to_dense())(
        np.stack([a.values.numpy(), 2 * a.values.numpy()])
    )
    assert_allclose(rows, np.stack([(x @ y).toarray(), 2 * (x @ y).toarray()]))


def test_batches() -> None:
    xs, y = [random(M, K, s, density=1.0) for s in range(3)], random(K, N, 1)
    places, b = coo(xs[0]).indices.numpy(), coo(y)
    turns = np.stack([np.roll(places, k, axis=0) for k in range(3)])
    values = np.stack([x.toarray()[tuple(i.T)] for x, i in zip(xs, turns, strict=True)])

    def product(i: Any, v: Any) -> Any:
        a = wf.SparseTensor(i, v, (M, K))
        return wf.sparse.matmul(a, b, nse=200).to_dense()

    assert_allclose(wf.vmap(product)(turns, values), [(x @ y).toarray() for x in xs])
    with pytest.raises(TracerError, match=r"(?s)would differ by example in vmap.*nse=1000"):
        wf.vmap(lambda i, v: wf.sparse.matmul(wf.SparseTensor(i, v, (M, K)), b).values)(
            turns, values
        )


def test_in_sessions() -> None:
    x, y = random(M, K, 0), random(K, N, 1)
    pairs = (x, y), (random(3, K, 5), random(K, N, 6))
    with wf.Graph().as_default(), wf.Session() as session:
        a = wf.tf1.sparse_placeholder(wf.float64, [None, K])
        b = wf.tf1.sparse_placeholder(wf.float64, [K, N])
        product = wf.sparse.matmul(a, b)
        fed = [(p.tocoo(), q.tocoo()) for p, q in pairs]
        found = [session.run(product, {a: p, b: q}) for p, q in fed]
    for made, (p, q) in zip(found, pairs, strict=True):
        check(wf.SparseTensor(made.indices, made.values, (p.shape[0], N)), p @ q)


def test_errors() -> None:
    a, b = coo(random(M, K, 0)), coo(random(K, N, 1))
    with pytest.raises(ShapeError, match=r"\[6,5\] and \[6,5\]"):
        wf.sparse.matmul(a, a)
    with pytest.raises(ShapeError, match="matrices have 2 axes"):
        wf.sparse.matmul(wf.sparse.expand_dims(a, 0), b)
    with pytest.raises(InvalidArgumentError, match="nse is for two sparse operands"):
        wf.sparse.matmul(a, b.to_dense(), nse=3)
    with pytest.raises(InvalidArgumentError, match=r"wf\.sparse\.matmul: nse=-1 must not be"):
        wf.sparse.matmul(a, b, nse=-1)
    with pytest.raises(InvalidArgumentError, match=r"wf\.sparse\.from_dense: nse=-2 must not be"):
        wf.sparse.from_dense(b.to_dense(), nse=-2)
