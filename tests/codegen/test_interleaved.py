"""Batches of small real matrices, one in each lane of vectors: against their definitions and NumPy,
whatever the matrices beside them are; which batches LAPACK does instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_checks import Case

from weft.codegen.kernels.lowerings import LOWERINGS
from weft.codegen.llvm.target import host_isas, using
from weft.codegen.vector.float_builder import lanes_of
from weft.ir.cost.thresholds import INTERLEAVED_ROWS, INTERLEAVED_TURNED
from weft.ir.graph import Operation
from weft.passes.pipelines import STANDARD

Array = np.ndarray[Any, Any]
DTYPES = [np.float32, np.float64]
#: (matrices, rows, columns): batches that fill vectors and that do not, sizes beside tiles'.
SHAPES = [(9, 1, 1), (40, 2, 2), (37, 3, 3), (33, 13, 13), (21, 32, 32), (8, 64, 64)]
OTHERS = [(20, 5, 3), (20, 3, 5), (9, 1, 4), (17, 20, 11), (17, 11, 20)]

#: Every op with every way that its code differs, on square matrices: name, attributes.
ALL: list[tuple[str, dict[str, bool]]] = [
    ("cholesky", {}),
    ("lu", {}),
    *(("lu_solve", {"adjoint": flag}) for flag in (False, True)),
    *(
        ("triangular_solve", {"lower": a, "adjoint": b, "unit_diagonal": c})
        for a in (False, True)
        for b in (False, True)
        for c in (False, True)
    ),
    ("qr", {"full": False}),
    *(("eigh", {"vectors": flag}) for flag in (False, True)),
    ("svd", {"vectors": False, "full": False}),
    ("svd", {"vectors": True, "full": False}),
]


def emitted(name: str, inputs: list[Array], attrs: dict[str, bool]) -> tuple[Case, Operation]:
    case = Case()
    operands = [case.input(x) for x in inputs]
    case.results += case.builder.emit(name, operands, attrs, locations=())
    op = case.results[0].op
    assert op is not None
    return case, op


def run(op: str, inputs: list[Array], **attrs: bool) -> list[Array]:
    """What compiled code makes of one op; the op is one that is interleaved."""
    case, made = emitted(op, inputs, attrs)
    (call,) = LOWERINGS[op](made)
    assert "interleaved-" in call.kernel.key
    assert call.kernel.emit.__code__, "it is not kept on disk"
    return case.compiled(STANDARD)


def draw(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def turned(x: Array) -> Array:
    return np.asarray(np.swapaxes(x, -1, -2))


def near(x: Array, y: Array, times: float = 60, scale: Any = None) -> None:
    """Within `times` roundings of the largest number of each matrix."""
    wide, info = np.longdouble, np.finfo(min(x.dtype, y.dtype, key=lambda d: d.itemsize))
    scales = np.abs(y).max((-2, -1), keepdims=True) if scale is None else scale
    apart = np.abs(x.astype(wide) - y.astype(wide)) / np.maximum(scales, info.tiny)
    assert (apart <= times * info.eps).all(), float(apart.max())


def eye(x: Array, n: int) -> Array:
    return np.broadcast_to(np.eye(n, dtype=x.dtype), (*x.shape[:-2], n, n))


def operands(op: str, x: Array) -> list[Array]:
    """Operands of an op made from square matrices; those of one depend on one of x."""
    n = x.shape[-1]
    if op == "cholesky":
        return [x @ turned(x) + n * eye(x, n)]
    if op == "triangular_solve":
        return [x / n + 2 * eye(x, n), x[..., : n // 2 + 1] + 1]
    if op == "lu_solve":
        a = x + eye(x, n)
        return [a, *run("lu", [a])[:2], x[..., : n // 2 + 1].copy()]
    return [x]


@pytest.mark.parametrize("dtype", DTYPES)
class TestDefinitions:
    def test_cholesky(self, dtype: Any) -> None:
        for shape in SHAPES:
            (a,) = operands("cholesky", draw(shape, dtype))
            (lower,) = run("cholesky", [np.tril(a) + np.triu(np.full_like(a, np.nan), 1)])
            near(lower @ turned(lower), a)
            assert (np.triu(lower, 1) == 0).all()
            assert (np.diagonal(lower, 0, -2, -1) > 0).all()

    def test_lu(self, dtype: Any) -> None:
        for shape in SHAPES + OTHERS:
            a = draw(shape, dtype)
            packed, pivots, order = run("lu", [a])
            _count, m, n = shape
            k = min(m, n)
            lower = np.tril(packed[..., :k], -1) + np.eye(m, k, dtype=dtype)
            near(lower @ np.triu(packed[..., :k, :]), np.take_along_axis(a, order[..., None], -2))
            assert np.abs(lower).max() == 1
            for one, swaps in zip(order, pivots, strict=True):
                rows = list(range(m))
                for i, other in enumerate(swaps):
                    rows[i], rows[other] = rows[other], rows[i]
                assert rows == one.tolist()

    @pytest.mark.share(2)
    def test_solves(self, dtype: Any) -> None:
        for shape in SHAPES:
            x = draw(shape, dtype)
            for columns in (1, 3, shape[-1]):
                b = draw((*shape[:-1], columns), dtype, 1)
                a, packed, pivots, _ = operands("lu_solve", x)
                for adjoint in (False, True):
                    (got,) = run("lu_solve", [a, packed, pivots, b], adjoint=adjoint)
                    size = float(np.abs(a).max() * max(np.abs(got).max(), 1))
                    near((turned(a) if adjoint else a) @ got, b, scale=size)

    @pytest.mark.slow
    @pytest.mark.share(2)
    def test_triangular_solves(self, dtype: Any) -> None:
        for shape in SHAPES[1:-2]:
            for op, attrs in ALL:
                if op == "triangular_solve":
                    a, b = operands(op, draw(shape, dtype))
                    part = np.tril if attrs["lower"] else np.triu
                    read = part(a, (-1 if attrs["lower"] else 1) * attrs["unit_diagonal"])
                    given = np.where(read == 0, np.nan, read)  # what is not read is anything
                    (x,) = run(op, [given, b], **attrs)
                    whole = read + attrs["unit_diagonal"] * eye(a, shape[-1])
                    size = float(np.abs(whole).max() * max(np.abs(x).max(), 1))
                    near((turned(whole) if attrs["adjoint"] else whole) @ x, b, scale=size)

    def test_qr(self, dtype: Any) -> None:
        for shape in SHAPES + OTHERS:
            a = draw(shape, dtype)
            for full in (False, True):
                q, r = run("qr", [a], full=full)
                near(q @ r, a)
                near(turned(q) @ q, eye(a, q.shape[-1]))
                assert (np.tril(r, -1) == 0).all()
                wanted = np.linalg.qr(a, "complete" if full else "reduced").R
                near(r, wanted, 500)  # and with LAPACK's signs

    @pytest.mark.share(2)
    def test_eigh(self, dtype: Any) -> None:
        for shape in SHAPES:
            a = draw(shape, dtype)
            a = a + turned(a)
            values, vectors = run("eigh", [np.tril(a)], vectors=True)
            near(a @ vectors, vectors * values[..., None, :])
            near(turned(vectors) @ vectors, eye(a, shape[-1]), 200)
            assert (np.diff(values) >= 0).all()
            (alone,) = run("eigh", [np.tril(a)], vectors=False)
            wanted = np.linalg.eigvalsh(a.astype(np.float64))
            for found in (values, alone):
                near(found[..., None], wanted[..., None])

    @pytest.mark.share(2)
    def test_singular_values(self, dtype: Any) -> None:
        for shape in SHAPES + OTHERS:
            a = draw(shape, dtype)
            (values,) = run("svd", [a], vectors=False, full=False)
            wanted = np.linalg.svd(a.astype(np.float64), compute_uv=False)
            near(values[..., None], wanted[..., None])
            assert (np.diff(values) <= 0).all()

    @pytest.mark.share(2)
    def test_singular_vectors(self, dtype: Any) -> None:
        for shape in SHAPES[:-1] + OTHERS:
            a, k = draw(shape, dtype), min(shape[1:])
            a[0], a[1], a[2, :, -1] = 0, 1, a[2, :, 0]
            wanted = np.linalg.svd(a.astype(np.float64), compute_uv=False)
            for full in (False, True):
                u, values, v = run("svd", [a], vectors=True, full=full)
                near(values[..., None], wanted[..., None])
                assert (np.diff(values) <= 0).all()
                near((u[..., :k] * values[:, None, :]) @ v[:, :k], a)
                for basis in (u, turned(v)):
                    near(turned(basis) @ basis, eye(a, basis.shape[-1]))


def awkward(dtype: Any, n: int = 9) -> Array:
    """Singular, repeated, graded, huge, tiny and denormal ones."""
    x, limits = draw((n, n), np.float64), np.finfo(dtype)
    steps = 10.0 ** -np.arange(n)
    basis = np.linalg.qr(x)[0]
    made = [
        np.zeros((n, n)), np.eye(n), np.ones((n, n)), np.outer(x[0], x[1]), np.diag(np.arange(n)),
        x * float(limits.max) ** 0.4, x * (float(limits.max) / 1e3), x * float(limits.tiny),
        x * float(limits.tiny) * 1e-3, basis @ np.diag([1, 1, 1, 1, 2, 2, 2, 3, 3]) @ basis.T,
        np.diag(steps) + 1e-9, np.tri(n), np.eye(n)[::-1], np.eye(n, k=1) + np.eye(n, k=-1),
        x * np.array([1e-20] + [1] * (n - 1)), x * np.array([[1e-20]] + [[1]] * (n - 1)),
        1 / (1.0 + np.arange(n) + np.arange(n)[:, None]), x * steps, x[:, ::-1] / steps,
    ]  # fmt: skip
    return np.stack(made).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:overflow")
def test_awkward_matrices(dtype: Any) -> None:
    x = awkward(dtype)
    q, r = run("qr", [x], full=False)
    near(q.astype(np.longdouble) @ r, x)  # type: ignore[arg-type]
    near(turned(q) @ q, eye(x, 9))
    packed, _, order = run("lu", [x])
    lower = (np.tril(packed, -1) + eye(x, 9)).astype(np.longdouble)
    near(lower @ np.triu(packed), np.take_along_axis(x, order[..., None], -2))
    whole = np.tril(x) + turned(np.tril(x, -1))
    values, vectors = run("eigh", [x], vectors=True)
    size = np.abs(values).max(-1)[:, None, None]
    near(whole.astype(np.longdouble) @ vectors, vectors * values[:, None, :], scale=size)
    near(turned(vectors) @ vectors, eye(x, 9), 200)
    (alone,) = run("eigh", [x], vectors=False)
    near(alone[..., None], values[..., None])
    (found,) = run("svd", [x], vectors=False, full=False)
    wanted = np.linalg.svd(x.astype(np.float64), compute_uv=False)[..., None]
    near(found[..., None], wanted)
    u, found, v = run("svd", [x], vectors=True, full=True)
    near(found[..., None], wanted)
    near((u * found[:, None, :]).astype(np.longdouble) @ v, x, scale=wanted[:, :1])
    for basis in (u, turned(v)):
        near(turned(basis) @ basis, eye(x, 9))


def spectra(n: int, seed: int) -> Array:
    """Matrices on which iterations are slow: clusters, grades, repeated and vanishing values."""
    rng = np.random.default_rng(seed)

    def basis() -> Array:
        return np.linalg.qr(rng.normal(size=(n, n)))[0]

    steps, one, i = 10.0 ** -np.arange(n), np.eye(n), np.arange(n)
    made = [
        basis(), basis() + 1e-6 * rng.normal(size=(n, n)), one - 1e-3, np.tri(n),
        rng.normal(size=(n, n)) * steps[::-1], steps * rng.normal(size=(n, n)),
        2 * one - np.eye(n, k=1) - np.eye(n, k=-1), 0.9 ** abs(i[:, None] - i),
        np.diag(abs(i - n / 2)) + np.eye(n, k=1) + np.eye(n, k=-1),
    ]  # fmt: skip
    for k in range(12):
        values = 10.0 ** (-rng.random(n) * rng.choice([1, 5, 10, 20]))
        values[rng.random(n) < (0.5 if k % 3 == 0 else 0)] = 1
        values[rng.random(n) < (0.3 if k % 4 == 0 else 0)] = 1e-9
        made.append(basis() * values @ basis())
        wide = 10.0 ** (-rng.random(n) * rng.choice([0, 1, 8]))
        made.append(np.diag(wide) + np.diag(wide[1:] * 10.0 ** -rng.choice([1, 8, 12]), 1))
    return np.stack(made)


def check_spectra(dtype: Any, n: int, seed: int) -> None:
    x = spectra(n, seed).astype(dtype)
    (found,) = run("svd", [x], vectors=False, full=False)
    exact = np.linalg.svd(x.astype(np.float64), compute_uv=False)[..., None]
    near(found[..., None], exact, 200)
    if n <= INTERLEAVED_TURNED:
        u, found, v = run("svd", [x], vectors=True, full=True)
        near(found[..., None], exact, 200)
        near((u * found[:, None, :]) @ v, x, 200, scale=exact[:, :1])
        for basis in (u, turned(v)):
            near(turned(basis) @ basis, eye(x, n), 200)
    values, vectors = run("eigh", [x], vectors=True)
    whole = np.tril(x) + turned(np.tril(x, -1))
    wanted = np.linalg.eigvalsh(whole.astype(np.float64))
    near(values[..., None], wanted[..., None], 200)
    size = np.abs(wanted).max(-1)[:, None, None]
    near(whole @ vectors, vectors * values[:, None, :], 200, scale=size)
    near(turned(vectors) @ vectors, eye(x, n), 200)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_slow_to_find(dtype: Any) -> None:
    for n in (2, 8, 31, 60):
        check_spectra(dtype, n, n)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_slow_to_find_at_length(dtype: Any) -> None:
    for seed in range(300):
        check_spectra(dtype, 2 + seed % 63, seed)


def each(check: Callable[[str, dict[str, bool]], None]) -> None:
    for op, attrs in ALL:
        check(op, attrs)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_place_in_a_batch(dtype: Any) -> None:
    x = draw((50, 7, 7), dtype)
    order = np.random.default_rng(1).permutation(50)

    def check(op: str, attrs: dict[str, bool]) -> None:
        given = operands(op, x)
        whole = run(op, given, **attrs)
        for at in (order, np.arange(11, 20)):
            part = run(op, [np.ascontiguousarray(a[at]) for a in given], **attrs)
            assert all(a[at].tobytes() == b.tobytes() for a, b in zip(whole, part, strict=True))

    each(check)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_neighbours_change_no_bit(dtype: Any) -> None:
    x = draw((20, 6, 6), dtype)

    def check(op: str, attrs: dict[str, bool]) -> None:
        given = operands(op, x)
        good = run(op, given, **attrs)
        for bad in (np.nan, np.inf, -np.inf, 0.0):
            spoilt = [a.copy() for a in given]
            spoilt[-1][3] = spoilt[0][3] = -1.0 if bad == 0.0 and op == "cholesky" else bad
            made = run(op, spoilt, **attrs)
            for a, b in zip(good, made, strict=True):
                assert np.delete(a, 3, 0).tobytes() == np.delete(b, 3, 0).tobytes()
            if op in ("cholesky", "eigh", "svd") and (bad != 0.0 or op == "cholesky"):
                assert all(np.isnan(a[3]).all() for a in made)

    each(check)


def test_a_cholesky_factor_needs_positive_pivots() -> None:
    x = np.stack([np.eye(4)] * 9)
    x[1, 3, 3], x[2, 0, 0], x[3, 2, 2] = 0, -1, np.nan
    x[4, 0, 3] = np.nan  # is not read
    (made,) = run("cholesky", [x])
    bad = np.isin(np.arange(9), (1, 2, 3))
    assert np.isnan(made[bad]).all()
    assert (made[~bad] == np.eye(4)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_pivots_that_are_zero_or_have_no_inverse(dtype: Any) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    a = np.zeros((8, 3, 3), dtype)
    a[:, 0, 0], a[:, 1, 0], a[:, 2, 2] = tiny, 2 * tiny, 1
    a[4:, :2, 0] = 0
    packed, pivots, order = run("lu", [a])
    assert packed[0, :, 0].tolist() == [2 * tiny, 0.5, 0]
    assert pivots[0].tolist() == [1, 1, 2]
    assert order[0].tolist() == [1, 0, 2]
    assert not packed[5, :, :2].any()
    assert packed[5, 2, 2] == 1
    (x,) = run("lu_solve", [a, packed, pivots, np.ones((8, 3, 1), dtype)], adjoint=False)
    assert not np.isfinite(x[5, :2]).any()
    assert x[5, 2, 0] == 1


@pytest.mark.share(3)
@pytest.mark.parametrize("isa", host_isas())
def test_instruction_sets(isa: str) -> None:
    """All ops with vectors of other widths."""
    with using(isa):
        x = draw((19, 5, 5), np.float32)
        (a,) = operands("cholesky", x)
        (lower,) = run("cholesky", [a])
        near(lower @ turned(lower), a)
        a, packed, pivots, b = operands("lu_solve", x)
        (got,) = run("lu_solve", [a, packed, pivots, b], adjoint=False)
        near(a @ got, b, scale=float(np.abs(a).max() * np.abs(got).max()))
        q, r = run("qr", [x], full=False)
        near(q @ r, x)
        values, vectors = run("eigh", [a + turned(a)], vectors=True)
        near((a + turned(a)) @ vectors, vectors * values[..., None, :])
        (found,) = run("svd", [x], vectors=False, full=False)
        near(found[..., None], np.linalg.svd(x, compute_uv=False)[..., None])


def test_what_lapack_does() -> None:
    """Large matrices, few ones, complex ones, empty ones."""

    def is_interleaved(op: str, x: Array, **attrs: bool) -> bool:
        _, made = emitted(op, [x], attrs)
        (call,) = LOWERINGS[op](made)
        return "interleaved-" in call.kernel.key

    few, most = lanes_of("f32") // 4, INTERLEAVED_ROWS
    for shape, wanted in (
        ((few, 4, 4), True), ((few - 1, 4, 4), False), ((100, 0, 0), False),
        ((2 * few, most, most), True), ((2 * few - 1, most, most), False),
        ((100, most + 1, most + 1), False), ((few, 1, 4, 4), True),
    ):  # fmt: skip
        assert is_interleaved("cholesky", np.zeros(shape, np.float32)) is wanted
    assert not is_interleaved("cholesky", np.zeros((100, 4, 4), np.complex64))
    for size, wanted in ((INTERLEAVED_TURNED, True), (INTERLEAVED_TURNED + 1, False)):
        x = np.zeros((99, 4, size))
        assert is_interleaved("svd", x, vectors=True, full=False) is wanted
        assert is_interleaved("svd", x, vectors=False, full=False)
