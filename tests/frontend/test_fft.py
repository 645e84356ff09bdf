"""`wf.fft` against NumPy and SciPy: compiled, eager and in sessions; errors, gradients, accuracy.

What NumPy computes in float64 (or in extended precision) is the truth. Compiled results of float64
are held to the error that SciPy's transform has, times 3, and a little more than half a unit of
rounding, so that a wrong factor or a lost digit cannot pass; those of float32 are the truth rounded
once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.fft
from shares import every

import weft as wf
from weft.ir.dtypes import complex128
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
NORMS = ("backward", "ortho", "forward")
C2C, R2C, C2R = ("fft", "ifft"), ("rfft", "ihfft"), ("irfft", "hfft")
#: Primes up to 71 are radices; 73, 101, 4099 go by Bluestein, 146 = 2 * 73 by its half.
LENGTHS = [
    *range(1, 71), 73, 97, 101, 128, 146, 219, 243, 360, 375, 512, 539, 1000, 1331, 2048, 2401,
    2431, 4096, 4099,
]  # fmt: skip


#: In the default suite: the others take LLVM seconds.
QUICK, SLOW = {1, 2, 8, 9, 15, 17, 41}, pytest.mark.slow


@pytest.fixture(autouse=True)
def _many_signatures() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.RecompileWarning)
        yield


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def wide(x: Array) -> Array:
    """With at least twice the digits, or extended precision."""
    return x.astype({"f": "f8", "F": "c16", "d": np.longdouble, "D": np.clongdouble}[x.dtype.char])


def error(got: Any, truth: Array) -> float:
    """Relative, of the whole array."""
    scale = float(np.linalg.norm(truth.astype("c16")))
    return float(np.linalg.norm((np.asarray(got) - truth).astype("c16"))) / (scale or 1.0)


def compiled(name: str, **how: Any) -> Callable[..., Any]:
    return wf.compile(lambda x: getattr(wf.fft, name)(x, **how))


def dtypes_of(name: str) -> tuple[str, str]:
    return ("f4", "f8") if name in R2C else ("c8", "c16")


# ---------------------------------------------------------------------------------------- accuracy
@pytest.mark.share(2)
@pytest.mark.parametrize("n", [n if n in QUICK else pytest.param(n, marks=SLOW) for n in LENGTHS])
def test_every_length(n: int) -> None:
    """One line, in the precision of the operand: also where the vectors go over several points."""
    for name in ("fft", "ifft", "rfft", "irfft"):
        reference, how = getattr(scipy.fft, name), {"n": n} if name == "irfft" else {}
        for dtype in dtypes_of(name):
            x = numbers((n // 2 + 1 if how else n,), dtype)
            truth, eps = reference(wide(x), **how), np.finfo(dtype).eps
            got = compiled(name, **how)(x).numpy()
            assert got.shape == truth.shape
            assert got.dtype == reference(x, **how).dtype
            bound = max(3 * error(reference(x, **how), truth), 1.2 * eps)
            if eps > 1e-8:
                bound = 0.501 * eps
            assert error(got, truth) <= bound, (name, dtype)


@pytest.mark.share(8)
@pytest.mark.parametrize("name", [*C2C, *R2C])
@pytest.mark.parametrize("n", [5, 1, 2, 8, 12, 16, 21, 31, 45, 60, 73, 81, 146, 256])
def test_axes_and_neighbours(n: int, name: str) -> None:
    """Lines side by side: along the first and the middle axis, and many short ones."""
    for shape, axis in (((n, 3), 0), ((2, n, 17), 1), ((2, n, 70), 1), ((67, n), 1)):
        for dtype in dtypes_of(name):
            x = numbers(shape, dtype)
            truth = getattr(np.fft, name)(x.astype("f8" if name in R2C else "c16"), axis=axis)
            got = compiled(name, axis=axis)(x).numpy()
            assert got.shape == truth.shape
            assert error(got, truth) < 8 * np.finfo(dtype).eps, (n, shape, dtype)


@pytest.mark.parametrize("n", every(3, [9, 3, 21, 55, 81, 375]))
def test_inverses_of_odd_lines_beside_each_other(n: int) -> None:
    """Real numbers of an odd length, whose spectrum is transformed in parts."""
    half = n // 2 + 1
    for shape, axis in (((half, 3), 0), ((2, half, 17), 1), ((67, half), 1)):
        for name in C2R:
            for dtype, bound in (("c16", 2e-15), ("c8", 6e-8)):
                x = numbers(shape, dtype)
                truth = getattr(np.fft, name)(wide(x), n=n, axis=axis)
                got = compiled(name, n=n, axis=axis)(x).numpy()
                assert error(got, truth) < bound, (name, n, shape)


def test_large_batches_over_threads() -> None:
    """The bits do not depend on how the lines are cut."""
    for shape, axis in (((300, 1000), 1), ((1000, 300), 0), ((20000, 16), 1)):
        x = numbers(shape, "c8")
        one = wf.compile(lambda x, axis=axis: wf.fft.fft(x, axis=axis), threads=1)
        many = compiled("fft", axis=axis)(x).numpy()
        assert many.tobytes() == one(x).numpy().tobytes()
        assert error(many, np.fft.fft(x.astype("c16"), axis=axis)) < 1e-6


@pytest.mark.slow
def test_lines_do_not_touch_each_other() -> None:
    """Infinity in one line, and a line of very large numbers, change no other."""
    for n in (6, 7, 73, 64):
        x = numbers((40, n), "c16")
        x[3], x[20, 1] = x[3] * 1e250, np.inf
        for along, data in ((1, x), (0, np.ascontiguousarray(x.T))):
            got = compiled("fft", axis=along)(data).numpy()
            got = got if along else got.T
            for k in (0, 2, 4, 19, 21, 39):
                assert error(got[k], np.fft.fft(x[k])) < 1e-14
            assert error(got[3] / 1e250, np.fft.fft(x[3] / 1e250)) < 1e-14
            assert not np.isfinite(got[20]).any()


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("n", [1, 2, 9, 30, 73])
def test_by_numba(n: int) -> None:
    """The second code generator, and its gradients."""
    x = numbers((3, n, 2), "f8")
    for name, how in (("fft", {}), ("ifft", {"norm": "ortho"}), ("rfft", {}), ("irfft", {"n": n})):
        truth = getattr(np.fft, name)(x, axis=1, **how)
        f = wf.compile(
            lambda x, name=name, how=how: getattr(wf.fft, name)(x, axis=1, **how), engine="numba"
        )
        assert error(f(x), truth) < 1e-14
        assert error(f(x.astype("f4")), truth) < 1e-6

    def power(x: Any) -> Any:
        return wf.sum(wf.abs(wf.fft.rfft(wf.fft.irfft(x, axis=1, n=n), axis=1)) ** 3)

    slopes = [wf.compile(wf.grad(power), engine=engine)(x).numpy() for engine in ("numba", "llvm")]
    assert error(slopes[0], slopes[1]) < 1e-12


def test_impulses_are_exact() -> None:
    """The transform of e_0 is all ones, that of e_1 the roots of unity."""
    for n in (8, 12, 64, 1000, 101):
        x = np.zeros((2, n), "c16")
        x[0, 0], x[1, 1] = 1, 1
        got = compiled("fft")(x).numpy()
        k = np.arange(n)
        truth = np.exp(-2j * np.pi * k / n)
        assert np.abs(got[0] - 1).max() < (1e-15 if n != 101 else 1e-14)
        assert np.abs(got[1] - truth).max() < (2e-15 if n != 101 else 1e-14)


# ---------------------------------------------------------------------------------- against NumPy
def same(f: Callable[..., Any], g: Callable[..., Array], *xs: Array) -> None:
    """Eager, compiled, and in a session of a graph, as NumPy has it."""
    wanted = g(*xs)
    made = [f(*map(wf.asarray, xs)), wf.compile(f)(*xs)]
    graph = wf.Graph()
    with graph.as_default():
        inputs = [wf.placeholder(wf.asarray(x).dtype, x.shape) for x in xs]
        out = f(*inputs)
    made.append(wf.Session(graph=graph).run(out, dict(zip(inputs, xs, strict=True))))
    for got in map(np.asarray, made):
        assert got.shape == wanted.shape
        assert got.dtype.kind == wanted.dtype.kind
        np.testing.assert_allclose(
            got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max(initial=1)
        )


@pytest.mark.share(8)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", [*C2C, *R2C, *C2R])
def test_norms_and_sizes(name: str, norm: str) -> None:
    """n below, at and above the axis's size."""
    dtype = dtypes_of(name)[1]
    for n in (None, 1, 4, 7, 9, 12):
        for axis in (0, -1):
            how: dict[str, Any] = {"n": n, "axis": axis, "norm": norm}
            same(
                lambda x, how=how: getattr(wf.fft, name)(x, **how),
                lambda x, how=how: getattr(np.fft, name)(x, **how),
                numbers((7, 5), dtype),
            )


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(name: str) -> None:
    dtype = "f8" if name == "rfftn" else "c16"
    x = numbers((3, 4, 5), dtype)
    for how in (
        {}, {"norm": "ortho"}, {"axes": (0, 2)}, {"axes": (2, 0), "s": (4, 6)},
        {"s": (2, 7), "axes": (-2, -1)}, {"axes": (1,), "norm": "forward"},
        {"s": (-1, 3), "axes": (0, 1)}, {"axes": (0, 0)}, {"axes": (2, 0, 2)},
    ):  # fmt: skip
        same(
            lambda x, how=how: getattr(wf.fft, name)(x, **how),
            lambda x, how=how: getattr(np.fft, name)(x, **how),
            x,
        )
    two = name.replace("n", "2") if name != "fftn" else "fft2"
    same(getattr(wf.fft, two), getattr(np.fft, two), x)
    only_s = getattr(wf.fft, name)(x, s=(4, 6))  # the last two axes, as the array API says
    truth = getattr(np.fft, name)(x, s=(4, 6), axes=(1, 2))
    np.testing.assert_allclose(only_s.numpy(), truth, atol=1e-12)


def test_two_axes_have_their_names() -> None:
    for name in ("fft2", "ifft2", "rfft2", "irfft2"):
        x = numbers((2, 6, 4), "f8" if name == "rfft2" else "c16")
        got = getattr(wf.fft, name)(x, norm="ortho").numpy()
        np.testing.assert_allclose(got, getattr(np.fft, name)(x, norm="ortho"), atol=1e-12)


def test_settings_by_position() -> None:
    """In NumPy's order."""
    x = numbers((4, 6), "c16")
    for name in (*C2C, *C2R):
        got, truth = (getattr(m, name)(x, 8, 0, "ortho") for m in (wf.fft, np.fft))
        np.testing.assert_allclose(got.numpy(), truth, atol=1e-12)
    got, truth = (m.fftn(x, (3, 5), (0, 1), "forward") for m in (wf.fft, np.fft))
    np.testing.assert_allclose(got.numpy(), truth, atol=1e-12)
    np.testing.assert_allclose(wf.fft.fftfreq(6, 0.5).numpy(), np.fft.fftfreq(6, 0.5), rtol=1e-6)
    assert wf.fft.fftshift(x, 0).numpy().tobytes() == np.fft.fftshift(x, 0).tobytes()


def test_frequencies_on_a_device() -> None:
    """The array API's `device`."""
    for made in (wf.fft.fftfreq, wf.fft.rfftfreq):
        for device in (None, "cpu"):
            got = made(5, d=0.5, dtype="float64", device=device)
            assert got.device == "cpu"
            assert got.numpy().tobytes() == made(5, 0.5, "float64").numpy().tobytes()
        with pytest.raises(InvalidArgumentError, match="nowhere"):
            made(5, device="nowhere")


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 4)])
def test_empty_batches(shape: tuple[int, ...]) -> None:
    for name in (*C2C, *R2C, *C2R):
        x = numbers(shape, dtypes_of(name)[0])
        made = getattr(np.fft, name)(x, n=4)
        for got in (getattr(wf.fft, name)(x, n=4), compiled(name, n=4)(x)):
            assert got.numpy().shape == made.shape


@pytest.mark.parametrize(
    ("given", "made"),
    [("f4", "c8"), ("f8", "c16"), ("f2", "c8"), ("i8", "c8"), ("?", "c8"), ("c8", "c8")],
)
def test_dtypes(given: str, made: str) -> None:
    """Integers become weft's default float, float16 float32; NumPy gives complex128 for both."""
    x = np.ones(4, given)
    assert wf.fft.fft(x).numpy().dtype == made
    assert wf.fft.hfft(x, n=4).numpy().dtype == np.zeros(0, made).real.dtype
    if given != "c8":
        assert wf.fft.rfft(x).numpy().dtype == made


@pytest.mark.share(2)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 10])
def test_frequencies_and_shifts(n: int) -> None:
    for d in (1.0, 0.1, -2.0):
        for name in ("fftfreq", "rfftfreq"):
            truth = getattr(np.fft, name)(n, d)
            exact = getattr(wf.fft, name)(n, d=d, dtype=wf.float64)
            np.testing.assert_allclose(exact.numpy(), truth, rtol=1e-15)
            assert getattr(wf.fft, name)(n, d=d).dtype == wf.float32
    x = numbers((n, 3, 4), "f4")
    for how in ({}, {"axes": 0}, {"axes": (0, 2)}, {"axes": [-1]}):
        for name in ("fftshift", "ifftshift"):
            same(
                lambda x, how=how, name=name: getattr(wf.fft, name)(x, **how),
                lambda x, how=how, name=name: getattr(np.fft, name)(x, **how),
                x,
            )


def test_open_sizes() -> None:
    """A graph whose batch, and whose axis, has no size yet."""
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, (None, None))
        y = wf.fft.rfft(x)
        back = wf.fft.irfft(y, n=x.shape[1])
        cut, padded = wf.fft.fft(x, n=4), wf.fft.fft(x, n=12)
        middle = wf.fft.fftshift(x)
        (slope,) = wf.gradients(wf.sum(wf.real(y * wf.conj(y))), [x])
    session = wf.Session(graph=graph)
    for shape in ((2, 8), (3, 8), (2, 9), (1, 5), (40, 10)):
        data = numbers(shape, "f4")
        fetches = [y, back, cut, padded, middle, slope]
        found = [np.asarray(v) for v in session.run(fetches, {x: data})]
        np.testing.assert_allclose(found[0], np.fft.rfft(data), atol=1e-4)
        np.testing.assert_allclose(found[1], data, atol=1e-5)
        np.testing.assert_allclose(found[2], np.fft.fft(data, 4), atol=1e-4)
        np.testing.assert_allclose(found[3], np.fft.fft(data, 12), atol=1e-4)
        np.testing.assert_allclose(found[4], np.fft.fftshift(data), atol=0)
        half = np.fft.rfft(data)
        weights = np.full(half.shape[1], 0.5)
        weights[0] = 1
        if shape[1] % 2 == 0:
            weights[-1] = 1
        slopes = 2 * np.fft.irfft(half * weights, shape[1], norm="forward")
        np.testing.assert_allclose(found[5], slopes, rtol=1e-3, atol=1e-3)


# --------------------------------------------------------------------------------------- gradients
@pytest.mark.share(8)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [1, 2, 5, 6, 9, 73])
def test_adjoints(n: int, norm: str) -> None:
    """Re <F x, y> = Re <x, F* y>, F* from the gradient, compiled."""
    for name in (*C2C, *R2C, *C2R):
        x = numbers((3, n if name not in C2R else n // 2 + 1), dtypes_of(name)[1])
        f = compiled(name, norm=norm, **({"n": n} if name in C2R else {}))
        y = numbers(f(x).numpy().shape, f(x).numpy().dtype, seed=1)

        def loss(x: Any, f: Any = f, y: Array = y) -> Any:
            return wf.sum(wf.real(f(x) * wf.conj(y)))

        adjoint = wf.compile(wf.grad(loss))(x).numpy()
        left, right = np.vdot(y, f(x).numpy()).real, np.vdot(x, adjoint).real
        assert abs(left - right) < 1e-12 * (1 + np.abs(x).sum() * np.abs(y).max())
        assert adjoint.dtype == x.dtype


def test_gradient_of_a_filter() -> None:
    """A convolution by transforms has the gradient of the convolution."""
    x, w = numbers((5, 32), "f8"), numbers((32,), "f8", seed=2)

    def by_fft(x: Any, w: Any) -> Any:
        return wf.fft.irfft(wf.fft.rfft(x) * wf.fft.rfft(w), n=32)

    circulant = np.stack([np.roll(w, k) for k in range(32)])
    loss = wf.compile(lambda x, w: wf.sum(by_fft(x, w) ** 2))
    np.testing.assert_allclose(by_fft(x, w).numpy(), x @ circulant, atol=1e-10)
    slope = wf.compile(wf.grad(loss))(x, w).numpy()
    np.testing.assert_allclose(slope, 2 * (x @ circulant) @ circulant.T, atol=1e-8)


def test_gradients_of_padding_and_cutting() -> None:
    x = numbers((6,), "f8")
    for n in (4, 9):
        slope = wf.grad(lambda x, n=n: wf.sum(wf.abs(wf.fft.fft(x, n=n)) ** 2))(x).numpy()
        kept = np.where(np.arange(6) < n, x, 0)
        np.testing.assert_allclose(slope, 2 * n * kept, atol=1e-12)  # Parseval


# ------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: wf.fft.fft([1.0], norm="both"), InvalidArgumentError, "norm 'both' is unknown"),
        (lambda: wf.fft.fft([1.0], n=0), InvalidArgumentError, "n must be at least 1, got 0"),
        (lambda: wf.fft.fft([1.0], n=1.5), InvalidArgumentError, "n must be an integer"),
        (lambda: wf.fft.fft([1.0], axis=1), InvalidArgumentError, "axis 1 is out of range"),
        (lambda: wf.fft.fft(1.0), InvalidArgumentError, "out of range"),
        (lambda: wf.fft.fft(wf.zeros((2, 0))), ShapeError, "at least one point, got 0"),
        (lambda: wf.fft.irfft([1.0]), ShapeError, "at least one point, got 0"),
        (lambda: wf.fft.rfft(wf.ones(3, dtype=wf.complex64)), TypeRuleError, "real numbers"),
        (lambda: wf.fft.ihfft(wf.ones(3, dtype=wf.complex64)), TypeRuleError, "wf.fft.fft"),
        (lambda: wf.fft.rfftn(wf.ones((3, 3), dtype=wf.complex64)), TypeRuleError, "fft.fftn"),
        (lambda: wf.fft.fftn(wf.ones((3, 3)), s=(1, 2, 3)), InvalidArgumentError, "more sizes"),
        (lambda: wf.fft.fftn(wf.ones((3, 3)), s=(1,), axes=(0, 1)), InvalidArgumentError, "differ"),
        (lambda: wf.fft.rfftn(wf.ones((3, 3)), axes=()), InvalidArgumentError, "at least one axis"),
        (lambda: wf.fft.fftfreq(0), InvalidArgumentError, "at least 1, got 0"),
        (lambda: wf.fft.fftfreq(4, d=0), InvalidArgumentError, "other than 0"),
        (lambda: wf.fft.rfftfreq(4, dtype="int32"), TypeRuleError, "real floating"),
        (lambda: wf.fft.fftshift([1], axes=1), InvalidArgumentError, "out of range"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)
    assert "test_fft.py" in str(caught.value)


def test_errors_of_open_sizes() -> None:
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.complex64, (None, None))
        with pytest.raises(ShapeError, match="how many points"):
            wf.fft.irfft(x)
        longer = wf.fft.fft(x, n=x.shape[0])  # axis 1, cut or padded to the size of axis 0
        with wf.Session() as session:
            for rows, columns in ((2, 5), (5, 2), (3, 3)):
                v = np.arange(rows * columns).reshape(rows, columns) * (1 + 1j)
                got = session.run(longer, {x: v.astype(np.complex64)})
                np.testing.assert_allclose(got, np.fft.fft(v, rows), rtol=1e-5, atol=1e-4)


def test_names_of_other_libraries() -> None:
    with pytest.raises(AttributeError, match="no cosine and sine transforms"):
        wf.fft.dct  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"wf\.fft\.rfft"):
        wf.rfft  # type: ignore[attr-defined]  # noqa: B018


def test_parts_that_do_not_count_may_be_infinite() -> None:
    """The gradient of rfft is irfft that counts each element once: real parts alone matter where
    an element is its own mirror image."""
    half = np.array([complex(2, np.inf), complex(3, -np.inf)])
    builder = Builder([TensorType(complex128, (2,))])
    attrs: dict[str, Any] = {"axis": 0, "n": 2, "mirrored": False, "scale": "1"}
    graph = builder.graph("g", ["x"], builder.emit("irfft", builder.args, attrs))
    np.testing.assert_array_equal(interpret(graph, [half])[0], [5, -1])
