"""Native decompositions and solves against the interpreter: all dtypes, shapes with empty sides,
batches that are cut over threads, elements that are not finite, plans for other sizes."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from compiled_checks import Case

from weft.codegen.kernels.lowerings import LOWERINGS
from weft.codegen.llvm.link import (
    BLAS_THREADS,
    THREADS_BEFORE,
    THREADS_CALLS,
    THREADS_GET,
    THREADS_SET,
    THREADS_WORDS,
    blas_threads_address,
    routine_address,
)
from weft.ir.dtypes import float32
from weft.ir.errors import UnsupportedError
from weft.ir.ops.builder import Builder
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.ir.types import tensor_type
from weft.passes.pipelines import STANDARD

Array = np.ndarray[Any, Any]

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
SQUARE = [(3, 3), (2, 4, 4), (0, 3, 3), (2, 0, 0), (1, 1), (2, 3, 33, 33), (2, 81, 81)]
OTHERS = [(2, 5, 3), (3, 5), (0, 5), (5, 0), (70, 30), (30, 70), (90, 67)]


def draw(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def adjoint(x: Array) -> Array:
    return np.asarray(np.conj(np.swapaxes(x, -1, -2)))


def both(op: str, inputs: list[Array], **attrs: Any) -> tuple[list[Array], list[Array]]:
    """What compiled code makes, and the interpreter."""
    case = Case()
    case.results += case.builder.emit(op, [case.input(x) for x in inputs], attrs, locations=())
    case.labels += [op] * len(case.results)
    found = case.run(STANDARD)
    for _, x, y in found:
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
    return [x for _, x, _ in found], [y for _, _, y in found]


def near(x: Array, y: Array, times: float = 200) -> None:
    if y.dtype.kind == "i":
        np.testing.assert_array_equal(x, y)
        return
    scale = max(1.0, float(np.abs(y).max(initial=0)))
    eps = float(np.finfo(y.dtype).eps)
    np.testing.assert_allclose(x, y, rtol=0, atol=times * eps * scale)


def test_all_have_a_kernel() -> None:
    assert set(LOWERINGS) >= LINEAR_ALGEBRA


@pytest.mark.parametrize("dtype", DTYPES)
class TestAgainstTheInterpreter:
    @pytest.mark.share(4)
    def test_factors_that_are_unique(self, dtype: Any) -> None:
        for shape in SQUARE + OTHERS:
            x = draw(shape, dtype)
            for op, attrs in (("lu", {}), ("qr", {"full": False}), ("qr", {"full": True})):
                for got, wanted in zip(*both(op, [x], **attrs), strict=True):
                    if op == "qr" and attrs["full"] and shape[-2] > shape[-1]:
                        continue  # the last columns of Q: below
                    near(got, wanted)
            (values,), (wanted,) = both("svd", [x], full=False, vectors=False)
            near(values, wanted)
        for shape in SQUARE:
            x = draw(shape, dtype)
            x = x @ adjoint(x) + np.eye(shape[-1], dtype=dtype)
            (factor,), (wanted,) = both("cholesky", [x])
            near(factor, wanted)
            (values,), (wanted,) = both("eigh", [x], vectors=False)
            near(values, wanted)

    @pytest.mark.share(8)
    @pytest.mark.parametrize("full", [False, True])
    def test_bases(self, dtype: Any, full: bool) -> None:
        for shape in SQUARE + OTHERS:
            x = draw(shape, dtype)
            (u, s, v), (_, wanted, _) = both("svd", [x], full=full, vectors=True)
            near(s, wanted)
            k = min(shape[-2:])
            near((u[..., :k] * s[..., None, :]) @ v[..., :k, :], x)
            q, r = both("qr", [x], full=full)[0]
            near(q @ r, x)
            for basis in (u, adjoint(v), q):
                near(adjoint(basis) @ basis, np.broadcast_to(
                    np.eye(basis.shape[-1], dtype=dtype), (*shape[:-2], *basis.shape[-1:] * 2)
                ))  # fmt: skip

    @pytest.mark.share(4)
    def test_eigenvectors(self, dtype: Any) -> None:
        for shape in SQUARE:
            x = draw(shape, dtype)
            whole = x + adjoint(x)
            values, vectors = both("eigh", [np.tril(whole)], vectors=True)[0]
            near(whole @ vectors, vectors * values[..., None, :])
            values, vectors = both("eig", [x], vectors=True)[0]
            assert values.dtype.kind == "c"
            near(x @ vectors, vectors * values[..., None, :])
            near(np.linalg.norm(vectors, axis=-2), np.ones(values.shape, values.real.dtype))
            (alone,) = both("eig", [x], vectors=False)[0]
            for a, b in zip(alone.reshape(-1, shape[-1] or 1), values.reshape(-1, shape[-1] or 1),
                            strict=True):  # fmt: skip
                for value in a:
                    near(np.abs(b - value).min(), np.zeros((), b.real.dtype), 2000)

    @pytest.mark.share(4)
    @pytest.mark.parametrize("columns", [1, 3])
    def test_solves(self, dtype: Any, columns: int) -> None:
        for shape in SQUARE:
            a = draw(shape, dtype) + 4 * np.eye(shape[-1], dtype=dtype)
            b = draw((*shape[:-1], columns), dtype, 1)
            packed, pivots, _ = both("lu", [a])[0]
            for flag in (False, True):
                (x,) = both("lu_solve", [a, packed, pivots, b], adjoint=flag)[0]
                near((adjoint(a) if flag else a) @ x, b)
                for lower in (False, True):
                    attrs = {"lower": lower, "adjoint": flag}
                    t = np.tril(a) if lower else np.triu(a)
                    (x,) = both("triangular_solve", [a, b], unit_diagonal=False, **attrs)[0]
                    if shape[-1] < 20:
                        near((adjoint(t) if flag else t) @ x, b)
                    small = a * 0.1
                    made = both("triangular_solve", [small, b], unit_diagonal=True, **attrs)
                    near(made[0][0], made[1][0])


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_wide_blocks_of_reflections(dtype: Any) -> None:
    x = draw((530, 515), dtype)
    (q, r), wanted = both("qr", [x], full=False)
    near(r, wanted[1], 1000)
    near(q @ r, x)
    near(adjoint(q) @ q, np.eye(515, dtype=dtype))
    x = x[:515] + adjoint(x[:515])
    (values, vectors), (wanted_values, _) = both("eigh", [x], vectors=True)
    near(values, wanted_values)
    near(x @ vectors, vectors * values)
    near(adjoint(vectors) @ vectors, np.eye(515, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_of_any_magnitude(dtype: Any) -> None:
    """Their squares may not be numbers of the dtype."""
    x = draw((70, 70), dtype)
    x = x + adjoint(x)
    limits = np.finfo(dtype)
    largest = float(np.abs(x).max())
    for scale in (limits.tiny * 16, limits.tiny**0.7, limits.max**0.7, limits.max / 512 / largest):
        given = (x * dtype(scale)).astype(dtype)
        for vectors in (False, True):
            values, *bases = both("eigh", [given], vectors=vectors)[0]
            wanted = np.linalg.eigvalsh(x) * float(scale)
            np.testing.assert_allclose(values, wanted, atol=float(np.abs(wanted).max()) * 1e-4)
            for basis in bases:
                near(adjoint(basis) @ basis, np.eye(70, dtype=dtype))
    for same in (0.0, limits.smallest_subnormal * 8, limits.max / 4):
        (values,) = both("eigh", [np.eye(3, dtype=dtype) * dtype(same)], vectors=False)[0]
        np.testing.assert_allclose(values, np.full(3, same))


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_matrix_at_fault_is_nan(dtype: Any) -> None:
    good = np.eye(3, dtype=dtype) * 2
    bad = good.copy()
    bad[1, 0] = np.inf
    x = np.stack([good, bad, good])
    for op, attrs in (
        ("cholesky", {}), ("eigh", {"vectors": True}), ("eigh", {"vectors": False}),
        ("svd", {"full": True, "vectors": True}), ("svd", {"full": False, "vectors": False}),
        ("eig", {"vectors": True}), ("eig", {"vectors": False}),
    ):  # fmt: skip
        for got, wanted in zip(*both(op, [x], **attrs), strict=True):
            assert np.isnan(got[1]).all()
            assert np.isfinite(got[[0, 2]]).all()
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    for shape in ((2, 70, 67), (2, 67, 70)):  # one is decomposed as it is, the other's transpose
        x = draw(shape, dtype)
        x[0, -1, -1] = np.nan
        for got in both("svd", [x], full=True, vectors=True)[0]:
            assert np.isnan(got[0]).all()
            assert np.isfinite(got[1]).all()
    unread = good.copy()
    unread[0, 1] = np.nan
    for op, attrs in (("cholesky", {}), ("eigh", {"vectors": False})):
        got, wanted = both(op, [unread], **attrs)
        near(got[0], wanted[0])
    not_definite = np.stack([good, -good])
    (made,), (wanted,) = both("cholesky", [not_definite])
    assert np.isnan(made[1]).all()
    near(made[0], wanted[0])


def test_openblas_has_its_threads_again() -> None:
    """Batches turn them off while they run, also where several steps run at once."""
    words = (ctypes.c_int64 * THREADS_WORDS).from_address(routine_address(BLAS_THREADS))
    if not words[THREADS_SET]:
        pytest.skip("SciPy's BLAS is not OpenBLAS")
    get = ctypes.CFUNCTYPE(ctypes.c_int)(words[THREADS_GET])
    change = ctypes.CFUNCTYPE(None, ctypes.c_int)(words[THREADS_SET])
    before, x = get(), draw((300, 12, 12), np.complex128)
    try:
        for count in (1, 2):
            change(count)
            with ThreadPoolExecutor(4) as pool:
                for made in pool.map(lambda _: both("lu", [x]), range(8)):
                    near(made[0][0], made[1][0], 2000)
            assert get() == count
            assert words[THREADS_CALLS] == 0
    finally:
        change(before)


def test_a_child_has_openblas_threads_again_after_its_next_batch() -> None:
    """As of one that was forked while a batch ran: no call is counted, the number is kept."""
    words = (ctypes.c_int64 * THREADS_WORDS).from_address(routine_address(BLAS_THREADS))
    if not words[THREADS_SET]:
        pytest.skip("SciPy's BLAS is not OpenBLAS")
    get = ctypes.CFUNCTYPE(ctypes.c_int)(words[THREADS_GET])
    change = ctypes.CFUNCTYPE(None, ctypes.c_int)(words[THREADS_SET])
    before = get()
    try:
        change(1)
        words[THREADS_BEFORE] = 2
        both("lu", [draw((2, 5, 5), np.complex128)])
        assert (get(), words[THREADS_BEFORE]) == (2, 0)
    finally:
        change(before)


def test_the_words_are_one_for_threads_that_ask_at_once() -> None:
    """A cache lets two threads fill it together."""
    assert blas_threads_address.__wrapped__() == routine_address(BLAS_THREADS)


def test_sizes_beyond_those_of_lapack() -> None:
    """Planned only: the matrix would have 4.3 GB."""
    builder = Builder([tensor_type(float32, 33_000, 33_000)])
    for op, attrs in (("eigh", {"vectors": True}), ("svd", {"full": False, "vectors": True})):
        made = builder.emit(op, builder.args, attrs, locations=())
        with pytest.raises(UnsupportedError, match=f"'{op}' of a matrix with 33000 rows"):
            LOWERINGS[op](made[0].op)


def test_a_large_batch_is_cut_over_threads() -> None:
    x = draw((700, 6, 6), np.float64)
    for op, attrs in (
        ("lu", {}),
        ("qr", {"full": False}),
        ("svd", {"full": True, "vectors": True}),
    ):
        got, wanted = both(op, [x], **attrs)
        assert all(np.isfinite(a).all() for a in got)
        few = both(op, [x[:8]], **attrs)[0]  # not fewer: LAPACK would do them
        for a, b in zip(got, few, strict=True):
            assert a[:8].tobytes() == b.tobytes()
        if op != "svd":
            near(got[0], wanted[0], 2000)


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_small_matrices_eagerly(dtype: Any) -> None:
    """The interpreter eliminates in all of them at once: as LAPACK does, zero pivots included."""
    for shape in ((200, 3, 3), (100, 5, 3), (100, 3, 5), (2, 50, 4, 4)):
        x = draw(shape, dtype)
        x[..., 0, 0].reshape(-1)[::7] = 0
        x.reshape(-1, *shape[-2:])[3] = 0
        found, wanted = both("lu", [x])
        for a, b in zip(found, wanted, strict=True):
            near(a, b, 1e5)
        if shape[-1] == shape[-2]:
            a, b = x + 4 * np.eye(shape[-1], dtype=dtype), draw((*shape[:-1], 2), dtype, 1)
            packed, pivots, _ = both("lu", [a])[1]
            for flag in (False, True):
                made = both("lu_solve", [a, packed, pivots, b], adjoint=flag)
                near(made[0][0], made[1][0], 1e4)
                near((adjoint(a) if flag else a) @ made[1][0], b, 1e4)
                for lower in (False, True):
                    attrs = {"lower": lower, "adjoint": flag}
                    for unit in (False, True):
                        made = both("triangular_solve", [a, b], unit_diagonal=unit, **attrs)
                        near(made[0][0], made[1][0], 1e4)
