"""`wf.linalg`: decompositions, solvers and functions of matrices against NumPy and SciPy, eagerly
and compiled; degenerate matrices; sessions with open sizes; gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import weft as wf
from weft.ir.errors import GradientError, InvalidArgumentError, ShapeError, TypeRuleError

Array = np.ndarray[Any, Any]

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
WAYS: list[Callable[[Any], Any]] = [lambda f: f, wf.compile]
SQUARE = [(3, 3), (2, 4, 4), (1, 1), (0, 3, 3), (2, 3, 2, 2), (0, 0)]
WIDE = [*SQUARE, (2, 5, 3), (3, 5), (0, 4), (4, 0)]

all_dtypes = pytest.mark.parametrize("dtype", DTYPES)
both_ways = pytest.mark.parametrize("way", WAYS, ids=["eager", "compiled"])


def draw(shape: tuple[int, ...], dtype: Any = np.float64, seed: int = 0) -> Array:
    rng = np.random.default_rng([seed, *shape])
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def adjoint(x: Any) -> Array:
    return np.asarray(np.conj(np.swapaxes(np.asarray(x), -1, -2)))


def definite(shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
    x = draw(shape, dtype)
    return np.asarray(x @ adjoint(x) + np.eye(shape[-1], dtype=dtype))


def near(got: Any, wanted: Any, times: float = 300) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind not in "fc":
        np.testing.assert_array_equal(got, wanted)
        return
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    atol = times * scale * float(np.finfo(wanted.dtype).eps)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


def in_order(values: Array) -> Array:
    """Numbers by their real parts; where these are equal but for rounding, by imaginary ones."""
    at = np.lexsort((values.imag, values.real.round(3)), axis=-1)
    return np.asarray(np.take_along_axis(values, at, -1))


# ------------------------------------------------------------------------------- against NumPy


@both_ways
@all_dtypes
class TestValues:
    @pytest.mark.share(4)
    def test_of_square_matrices(self, dtype: Any, way: Any) -> None:
        for shape in SQUARE:
            x = draw(shape, dtype)
            near(way(wf.linalg.det)(x), np.linalg.det(x))
            near(way(wf.linalg.inv)(x), np.linalg.inv(x), 5000)
            for got, wanted in zip(way(wf.linalg.slogdet)(x), np.linalg.slogdet(x), strict=True):
                near(got, wanted)
            near(way(lambda x: wf.linalg.matrix_power(x, -2))(x),
                 np.linalg.matrix_power(x, -2), 1e5)  # fmt: skip
            if shape[-1]:
                near(way(wf.linalg.cond)(x), np.linalg.cond(x), 1e4)
                near(way(lambda x: wf.linalg.cond(x, 1))(x), np.linalg.cond(x, 1), 1e4)

    @pytest.mark.share(4)
    def test_condition_of_singular_ones(self, dtype: Any, way: Any) -> None:
        """As NumPy's: infinite, whatever 0 / 0 or an inverse with NaN makes of it."""
        singular = np.array([[1, 2], [2, 4]], dtype)
        x = np.stack([np.zeros_like(singular), singular, np.eye(2, dtype=dtype)])
        x = np.concatenate([x, np.full_like(x[:1], np.nan)])
        for p in (1, -1, np.inf, "fro", "nuc"):
            made = np.asarray(way(lambda x, p=p: wf.linalg.cond(x, p))(x))
            assert np.isinf(made[:2]).all()
            near(made[2], np.linalg.cond(x[2], p))
            assert np.isnan(made[3])
        for p in (2, -2):
            made = np.asarray(way(lambda x, p=p: wf.linalg.cond(x, p))(x))
            assert np.isinf(made[0])
            near(made[2], np.linalg.cond(x[2], p))
            assert np.isnan(made[3])

    @pytest.mark.share(4)
    def test_of_definite_ones(self, dtype: Any, way: Any) -> None:
        for shape in SQUARE:
            x = definite(shape, dtype)
            for upper in (False, True):
                made = way(lambda x, upper=upper: wf.linalg.cholesky(x, upper=upper))(x)
                near(made, np.linalg.cholesky(x, upper=upper))
            near(way(wf.linalg.eigvalsh)(x), np.linalg.eigvalsh(x))
            values, vectors = way(wf.linalg.eigh)(x)
            near(values, np.linalg.eigvalsh(x))
            near(x @ np.asarray(vectors), np.asarray(vectors * wf.expand_dims(values, axis=-2)))

    @pytest.mark.share(4)
    def test_of_any_matrices(self, dtype: Any, way: Any) -> None:
        for shape in WIDE:
            x = draw(shape, dtype)
            near(way(wf.linalg.svdvals)(x), np.linalg.svdvals(x))
            near(way(wf.linalg.matrix_rank)(x), np.linalg.matrix_rank(x).astype(np.int64))
            near(way(wf.linalg.pinv)(x), np.linalg.pinv(x), 1e4)
            if 0 not in shape[-2:]:
                for ord in ("nuc", 2, -2):
                    got = way(lambda x, o=ord: wf.linalg.matrix_norm(x, ord=o, keepdims=True))(x)
                    near(got, np.linalg.matrix_norm(x, ord=ord, keepdims=True))
            for full in (False, True):
                made = way(lambda x, full=full: wf.linalg.svd(x, full_matrices=full))(x)
                u, s, v = map(np.asarray, made)
                assert [t.shape for t in np.linalg.svd(x, full_matrices=full)] == [
                    u.shape, s.shape, v.shape
                ]  # fmt: skip
                k = s.shape[-1]
                near((u[..., :k] * s[..., None, :]) @ v[..., :k, :], x)
                mode = "complete" if full else "reduced"
                made = way(lambda x, mode=mode: wf.linalg.qr(x, mode=mode))(x)
                for got, wanted in zip(made, np.linalg.qr(x, mode), strict=True):
                    assert got.shape == wanted.shape
                q, r = map(np.asarray, made)
                near(q @ r, x)
                np.testing.assert_array_equal(np.tril(r, -1), 0)

    @pytest.mark.share(4)
    def test_lu_and_eig(self, dtype: Any, way: Any) -> None:
        for shape in WIDE:
            x = draw(shape, dtype)
            p, lower, upper = map(np.asarray, way(wf.linalg.lu)(x))
            near(p @ lower @ upper, x)
            if x.size:
                wanted = scipy.linalg.lu(x)
                for got, one in zip((p, lower, upper), wanted, strict=True):
                    near(got, one.astype(dtype))
        for shape in SQUARE:
            x = draw(shape, dtype)
            values, vectors = map(np.asarray, way(wf.linalg.eig)(x))
            near(x @ vectors, vectors * values[..., None, :])
            wide = in_order(np.linalg.eigvals(x.astype(np.complex128)))
            got = in_order(np.asarray(way(wf.linalg.eigvals)(x)).astype(np.complex128))
            np.testing.assert_allclose(got, wide, atol=1e4 * float(np.finfo(dtype).eps))

    @pytest.mark.share(4)
    def test_solving(self, dtype: Any, way: Any) -> None:
        for a, b in (((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (3, 2)), ((3, 3), (4, 3, 2)),
                     ((2, 1, 3, 3), (4, 3, 1)), ((0, 0), (0, 2)), ((2, 2, 2), (2,)),
                     ((3, 3), (2, 5, 3, 0))):  # fmt: skip
            x, y = draw(a, dtype) + 2 * np.eye(a[-1], dtype=dtype), draw(b, dtype, 1)
            near(way(wf.linalg.solve)(x, y), np.linalg.solve(x, y), 3000)
            for flag in (False, True):
                t = np.tril(x) if flag else np.triu(x)
                made = way(
                    lambda x, y, flag=flag: wf.linalg.solve_triangular(
                        x, y, lower=flag, adjoint=True
                    )
                )(x, y)
                near(made, np.linalg.solve(adjoint(t), y), 3000)

    @pytest.mark.share(2)
    def test_least_squares(self, dtype: Any, way: Any) -> None:
        for shape, right in (((5, 3), (5,)), ((5, 3), (5, 2)), ((3, 5), (3, 2)), ((1, 1), (1,))):
            a, b = draw(shape, dtype), draw(right, dtype, 1)
            made = way(wf.linalg.lstsq)(a, b)
            x, _, rank, values = np.linalg.lstsq(a, b)
            near(made.solution, x, 3000)
            near(made.singular_values, values)
            assert int(made.rank) == rank
            near(made.residuals, (np.abs(a @ x - b) ** 2).sum(0), 3000)

    @pytest.mark.share(4)
    def test_exponentials(self, dtype: Any, way: Any) -> None:
        for shape in SQUARE:
            for size in (0.1, 1.0, 30.0):
                x = draw(shape, dtype) * np.asarray(size).astype(dtype)
                wanted = scipy.linalg.expm(x.astype(np.complex128))
                wanted = (wanted if np.dtype(dtype).kind == "c" else wanted.real).astype(dtype)
                near(way(wf.linalg.expm)(x), wanted, 3000 * size)


# ----------------------------------------------------------------------------- special matrices


@both_ways
def test_matrices_without_a_result(way: Any) -> None:
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    good = np.array([[2.0, 0.0], [0.0, 3.0]])
    x = np.stack([singular, good])
    near(way(wf.linalg.det)(x), np.array([0.0, 6.0]))
    sign, logarithm = way(wf.linalg.slogdet)(x)
    near(sign, np.array([0.0, 1.0]))
    np.testing.assert_allclose(logarithm, [-np.inf, np.log(6)])
    made = np.asarray(way(wf.linalg.inv)(x))
    assert not np.isfinite(made[0]).any()
    near(made[1], np.linalg.inv(good))
    near(way(wf.linalg.matrix_rank)(x), np.array([1, 2]))
    near(way(wf.linalg.pinv)(x), np.linalg.pinv(x))
    made = np.asarray(way(wf.linalg.cholesky)(np.stack([-good, good])))
    assert np.isnan(made[0]).all()
    near(made[1], np.linalg.cholesky(good))
    broken = np.stack([np.full((2, 2), np.nan), good])
    for f in (wf.linalg.eigvalsh, wf.linalg.svdvals, wf.linalg.eigvals, wf.linalg.pinv):
        made = np.asarray(way(f)(broken))
        assert np.isnan(made[0]).all(), f
        assert np.isfinite(made[1]).all(), f


@both_ways
def test_rank_with_tolerances(way: Any) -> None:
    x = np.diag([1.0, 0.1, 0.001])
    for rtol, rank in ((None, 3), (0.01, 2), (0.5, 1)):
        assert int(way(lambda x, r=rtol: wf.linalg.matrix_rank(x, rtol=r))(x)) == rank
        made = way(lambda x, r=rtol: wf.linalg.pinv(x, rtol=r))(x)
        near(made, np.linalg.pinv(x, rcond=rtol or 1e-15))
    both = np.stack([x, x])
    made = way(lambda x, r: wf.linalg.matrix_rank(x, rtol=r))(both, np.array([0.01, 0.5]))
    near(made, np.array([2, 1]))


@pytest.mark.slow
def test_a_session_with_an_open_batch() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float64, (None, 3, 3))
        results = [wf.linalg.inv(x), wf.linalg.svdvals(x), wf.linalg.det(x),
                   wf.linalg.qr(x).R, wf.linalg.pinv(x), wf.linalg.expm(x)]  # fmt: skip
        (slope,) = wf.gradients(wf.sum(wf.linalg.slogdet(x).logabsdet), [x])
        with wf.Session() as session:
            for count in (2, 5, 0, 7):
                given = draw((count, 3, 3), seed=count)
                found = session.run([*results, slope], {x: given})
                wanted = [
                    np.linalg.inv(given),
                    np.linalg.svdvals(given),
                    np.linalg.det(given),
                    np.linalg.qr(given).R,
                    np.linalg.pinv(given),
                    scipy.linalg.expm(given),
                    np.swapaxes(np.linalg.inv(given), -1, -2),
                ]
                for got, one in zip(found, wanted, strict=True):
                    near(got, one, 1e4)


def test_open_sizes_of_square_matrices() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float64, ("n", "n"))
        b = wf.placeholder(wf.float64, ("n",))
        y, values = wf.linalg.solve(x, b), wf.linalg.eigvalsh(x + wf.matrix_transpose(x))
        singular = wf.linalg.svdvals(x)
        with wf.Session() as session:
            for n in (3, 1, 6, 40):
                given, right = draw((n, n)), draw((n,))
                found = session.run([y, values, singular], {x: given, b: right})
                near(found[0], np.linalg.solve(given, right), 1e4)
                near(found[1], np.linalg.eigvalsh(given + given.T))
                near(found[2], np.linalg.svdvals(given))


# -------------------------------------------------------------------------------------- gradients


def slope(f: Callable[[Any], Any], x: Array) -> Array:
    """The gradient of f, which is real, by central differences."""
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        for unit in (1, 1j) if x.dtype.kind == "c" else (1,):
            ends = []
            for sign in (1, -1):
                moved = x.copy()
                moved[at] += sign * unit * 1e-5
                ends.append(float(f(wf.asarray(moved))))
            out[at] += unit * (ends[0] - ends[1]) / 2e-5
    return out


def weighted(y: Any, seed: int = 3) -> Any:
    """sum Re(conj(w) y) with fixed random weights w."""
    w = draw(y.shape, np.complex128 if y.dtype.is_complex else np.float64, seed)
    return wf.sum(wf.real(wf.conj(y) * w) if y.dtype.is_complex else y * w)


def symmetric(x: Any) -> Any:
    return (x + wf.matrix_transpose(wf.conj(x))) / 2


def projector(x: Any, k: int = 1) -> Any:
    """On the span of the last k eigenvectors: it does not depend on their signs or phases."""
    v = wf.linalg.eigh(symmetric(x)).eigenvectors[..., -k:]
    return v @ wf.matrix_transpose(wf.conj(v))


def low_rank(x: Any) -> Any:
    u, s, v = wf.linalg.svd(x, full_matrices=False)
    return (u[..., :1] * s[..., None, :1]) @ v[..., :1, :] + u @ v


OF_SQUARE: dict[str, Callable[[Any], Any]] = {
    "det": lambda x: weighted(wf.linalg.det(x)),
    "slogdet": lambda x: weighted(wf.linalg.slogdet(x).logabsdet),
    "sign": lambda x: weighted(wf.linalg.slogdet(x).sign),
    "inv": lambda x: weighted(wf.linalg.inv(x)),
    "solve": lambda x: weighted(wf.linalg.solve(x, x[..., :1] * 2 + 1)),
    "solve one": lambda x: (
        weighted(wf.linalg.solve(x[..., 0, :, :], x))
        if x.ndim > 2
        else weighted(wf.linalg.solve(x, x[0]))
    ),
    "power": lambda x: weighted(wf.linalg.matrix_power(x, -2)),
    "cholesky": lambda x: weighted(
        wf.linalg.cholesky(x @ wf.matrix_transpose(wf.conj(x)), upper=True)
    ),
    "eigvalsh": lambda x: weighted(wf.linalg.eigvalsh(symmetric(x))),
    "eigh": lambda x: weighted(projector(x)),
    "eigvals": lambda x: weighted(wf.sum(wf.linalg.eigvals(x) ** 3, axis=-1)),
    "eig": lambda x: weighted(abs(wf.linalg.eig(x).eigenvectors[..., 0, 0])),
    "lu": lambda x: weighted(wf.linalg.lu(x).L) + weighted(wf.linalg.lu(x).U),
    "expm": lambda x: weighted(wf.linalg.expm(x * 3)),
    "cond": lambda x: weighted(wf.linalg.cond(x)),
    "triangular": lambda x: weighted(
        wf.linalg.solve_triangular(x, x[..., :1] + 1, lower=True, adjoint=True)
    ),
}
OF_ANY: dict[str, Callable[[Any], Any]] = {
    "pinv": lambda x: weighted(wf.linalg.pinv(x)),
    "lstsq": lambda x: (
        weighted(wf.linalg.lstsq(x, x[..., :2] + 1).solution)
        + weighted(wf.linalg.lstsq(x, x[..., :1] * 2 + 1).residuals)
    ),
    "svdvals": lambda x: weighted(wf.linalg.svdvals(x)),
    "svd": lambda x: weighted(low_rank(x)),
    "nuc": lambda x: weighted(wf.linalg.matrix_norm(x, ord="nuc")),
    "norm 2": lambda x: weighted(wf.linalg.matrix_norm(x, ord=2)),
    "qr": lambda x: weighted(wf.linalg.qr(x).Q) + weighted(wf.linalg.qr(x).R),
}


class TestGradients:
    @pytest.mark.share(16)
    @pytest.mark.parametrize("cplx", [False, True])
    @pytest.mark.parametrize("name", [*OF_SQUARE, *OF_ANY])
    def test_against_differences(self, name: str, cplx: bool) -> None:
        f = {**OF_SQUARE, **OF_ANY}[name]
        shapes = [(3, 3), (2, 2, 2)] if name in OF_SQUARE else [(3, 3), (2, 4, 2), (2, 4)]
        for shape in shapes:
            x = draw(shape, np.complex128 if cplx else np.float64, 11)
            wanted = slope(f, x)
            scale = max(1.0, float(np.abs(wanted).max()))
            for way in WAYS:
                got = np.asarray(way(wf.grad(f))(x))
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6 * scale)

    @pytest.mark.share(4)
    @pytest.mark.parametrize(
        "name", ["inv", "cholesky", "eigvalsh", "eigh", "pinv", "svdvals", "qr", "expm"]
    )
    def test_second_ones(self, name: str) -> None:
        f = {**OF_SQUARE, **OF_ANY}[name]
        x = draw((2, 2), seed=13)

        def bent(x: Any) -> Any:
            return weighted(wf.grad(f)(x), 5)

        wanted = slope(bent, x)
        scale = max(1.0, float(np.abs(wanted).max()))
        got = np.asarray(wf.compile(wf.grad(bent))(x))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * scale)

    @pytest.mark.share(2)
    @pytest.mark.parametrize("x", [np.eye(3), np.ones((3, 3)), np.zeros((3, 3))],
                             ids=["eye", "ones", "zeros"])  # fmt: skip
    @both_ways
    def test_equal_values(self, x: Array, way: Any) -> None:
        """Finite, and right where the loss does not depend on the choice of a basis."""
        values = {
            "trace": (lambda x: wf.sum(wf.linalg.eigvalsh(x)), np.eye(3)),
            "squares": (lambda x: wf.sum(wf.linalg.svdvals(x) ** 2), 2 * x),
            "whole space": (lambda x: weighted(projector(x, 3)), np.zeros((3, 3))),
        }
        for name, (f, wanted) in values.items():
            got = np.asarray(way(wf.grad(f))(x))
            np.testing.assert_allclose(got, wanted, atol=1e-6, err_msg=name)
        for f in (lambda x: weighted(wf.linalg.eigh(x).eigenvectors),
                  lambda x: weighted(wf.linalg.svd(x).U) + weighted(wf.linalg.svd(x).Vh),
                  lambda x: weighted(wf.linalg.pinv(x)),
                  lambda x: weighted(wf.linalg.matrix_norm(x, ord="nuc"))):  # fmt: skip
            assert np.isfinite(np.asarray(way(wf.grad(f))(x))).all()

    def test_a_pseudo_inverse_with_equal_singular_values(self) -> None:
        """There the singular vectors have no gradient, the pseudo-inverse has."""
        x = np.eye(4)[:, :3] * 2.0
        f = OF_ANY["pinv"]
        for way in WAYS:
            got = np.asarray(way(wf.grad(f))(x))
            np.testing.assert_allclose(got, slope(f, x), rtol=1e-6, atol=1e-8)

    def test_values_alone_need_no_gaps(self) -> None:
        """No division where no gradient flows to the vectors."""
        f = wf.compile(wf.grad(lambda x: wf.sum(wf.linalg.eigh(x).eigenvalues ** 2)))
        names = {op.name for op in f.trace(np.eye(3)).ops}
        assert "eigh" in names
        assert not names & {"reciprocal", "divide", "subtract"}
        np.testing.assert_allclose(np.asarray(f(np.eye(3))), 2 * np.eye(3), atol=1e-12)

    def test_the_factors_are_shared(self) -> None:
        """A solve, a determinant of the same matrix and their gradients factor it once."""

        def loss(a: Any, b: Any) -> Any:
            return wf.sum(wf.linalg.solve(a, b) ** 2) + wf.linalg.slogdet(a).logabsdet

        text = wf.compile(wf.value_and_grad(loss)).explain(np.eye(3), np.ones(3))
        assert text.count("lu_f64") == 1, text

    def test_what_has_none(self) -> None:
        x = draw((4, 2))
        with pytest.raises(GradientError, match="full_matrices=False has a gradient"):
            wf.grad(lambda x: wf.sum(wf.linalg.svd(x).U))(x)
        with pytest.raises(GradientError, match='mode="reduced" has a gradient'):
            wf.grad(lambda x: wf.sum(wf.linalg.qr(x, mode="complete").Q))(x)
        got = wf.grad(lambda x: wf.sum(wf.linalg.svd(x).S))(x)
        near(got, np.asarray(wf.grad(lambda x: wf.sum(wf.linalg.svdvals(x)))(x)))


# ----------------------------------------------------------------------------------------- errors


@both_ways
@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda x: wf.linalg.inv(x[0]), InvalidArgumentError, r"wf.linalg.inv needs a matrix"),
        (wf.linalg.det, ShapeError, r"wf.linalg.det needs square matrices, got shape \[3,4\]"),
        (lambda x: wf.linalg.svd(wf.astype(x, wf.float16)), TypeRuleError,
         r"wf.linalg.svd takes float32, float64, .*got f16.*convert with wf.astype"),
        (lambda x: wf.linalg.qr(x, mode="r"), InvalidArgumentError, "mode 'r' is not there"),
        (lambda x: wf.linalg.solve(x[:, :3], x[0]), ShapeError, "is no right side for f32"),
        (lambda x: wf.linalg.solve(wf.ones((2, 3, 3)), wf.ones((4, 3, 1))), ShapeError,
         "do not broadcast"),
        (lambda x: wf.linalg.matrix_power(x, -1), InvalidArgumentError, "needs square matrices"),
        (lambda x: wf.linalg.matrix_norm(x, ord=3), InvalidArgumentError, "'nuc', 1, -1, 2"),
    ],
    ids=["rank", "square", "half", "mode", "rows", "batch", "power", "norm"],
)  # fmt: skip
def test_errors(call: Any, kind: Any, match: str, way: Any) -> None:
    with pytest.raises(kind, match=f"(?s){match}") as error:
        way(call)(np.ones((3, 4), np.float32))
    assert "test_linalg_decompositions.py" in str(error.value)


def test_sizes_that_are_not_known() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, (None, 3))
        with pytest.raises(ShapeError, match=r"(?s)wf.linalg.svd.*is not known.*known sizes"):
            wf.linalg.svd(x)


def test_other_engines_refuse() -> None:
    with pytest.raises(wf.errors.UnsupportedError, match="op 'lu' has no Numba source"):
        wf.compile(wf.linalg.inv, engine="numba")(np.eye(3))


def test_integers_become_the_default_float() -> None:
    assert wf.linalg.inv([[2, 0], [0, 4]]).dtype is wf.float32
    assert wf.linalg.eigvals([[2, 0], [0, 4]]).dtype is wf.complex64


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_other_signs_are_no_fault(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """WEFT_VERIFY=native compares compiled code with the interpreter, which has another LAPACK."""
    monkeypatch.setenv("WEFT_VERIFY", "native")
    x = draw((2, 40, 40), dtype)
    f = wf.compile(lambda x: (wf.linalg.svd(x), wf.linalg.eigh(symmetric(x)), wf.linalg.inv(x)))
    (_, values, _), (_, vectors), inverse = f(x)
    assert np.isfinite(np.asarray(wf.sum(vectors) + wf.sum(values)))
    near(x @ np.asarray(inverse), np.broadcast_to(np.eye(40, dtype=dtype), x.shape), 1e5)
