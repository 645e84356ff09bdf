"""The meaning of fft, rfft and irfft against the sums that define them, and their type rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.ir import dtypes
from weft.ir.dims import SymbolicDim, divided
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops import OPS
from weft.ir.ops.fourier import SCALES, scale_of
from weft.ir.spec import complete_attrs
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]


def run(name: str, x: Array, **attrs: Any) -> Array:
    (out,) = evaluate_op(name, [x], attrs)
    return np.asarray(out)


def shape(name: str, given: TensorType, **attrs: Any) -> tuple[Any, ...]:
    spec = OPS[name]
    (made,) = spec.infer([given], complete_attrs(name, spec.attrs, attrs), ())
    assert isinstance(made, TensorType)
    return made.shape


def matrix(n: int, sign: float) -> Array:
    """exp(sign 2 pi i j k / n)."""
    return np.exp(sign * 2j * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n)


def counts(n: int) -> Array:
    """How often element k of a half spectrum is in the whole one."""
    k = np.arange(n // 2 + 1)
    return np.where((k == 0) | (2 * k == n), 1, 2)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize("scale", SCALES)
def test_as_the_sums(n: int, scale: str) -> None:
    rng = np.random.default_rng(n)
    z = rng.standard_normal((3, n, 2)) + 1j * rng.standard_normal((3, n, 2))
    half, times, w = z[:, : n // 2 + 1], scale_of(scale, n), counts(n)
    for inverse in (False, True):
        direct = np.einsum("kj,ajb->akb", matrix(n, 1 if inverse else -1), z) * times
        got = run("fft", z, axis=1, inverse=inverse, scale=scale)
        np.testing.assert_allclose(got, direct, atol=1e-12)
    for mirrored in (False, True):
        weights = w if mirrored else np.ones_like(w)
        spectrum = np.einsum("kj,ajb->akb", matrix(n, -1), z.real)[:, : n // 2 + 1] * times
        got = run("rfft", z.real.copy(), axis=1, mirrored=mirrored, scale=scale)
        np.testing.assert_allclose(got, spectrum * weights[:, None], atol=1e-12)
        waves = (matrix(n, 1)[:, : n // 2 + 1] * weights) @ half
        own = np.where(w == 1, 1, 0)  # imaginary parts of elements that are their own images
        waves -= 1j * (matrix(n, 1)[:, : n // 2 + 1] * own) @ half.imag
        got = run("irfft", half.copy(), axis=1, n=n, mirrored=mirrored, scale=scale)
        np.testing.assert_allclose(got, waves.real * times, atol=1e-12)


@pytest.mark.parametrize(("narrow", "wide"), [("c8", "c16"), ("f4", "f8")])
def test_dtypes(narrow: str, wide: str) -> None:
    name = "fft" if narrow == "c8" else "rfft"
    for dtype in (narrow, wide):
        got = run(name, np.ones((2, 4), dtype), axis=1, scale="1/sqrt(n)")
        assert got.dtype == np.result_type(dtype, "c8")
    for dtype in ("c8", "c16"):
        got = run("irfft", np.ones((2, 4), dtype), axis=1, n=7)
        assert got.dtype == np.zeros(0, dtype).real.dtype


def test_empty_batches() -> None:
    assert run("fft", np.zeros((0, 3), "c8"), axis=1).shape == (0, 3)
    assert run("rfft", np.zeros((4, 0), "f4"), axis=0).shape == (3, 0)
    assert run("irfft", np.zeros((0, 3), "c8"), axis=1, n=5).shape == (0, 5)


def test_shapes_of_open_sizes() -> None:
    batch, n = SymbolicDim.symbol("b"), SymbolicDim.symbol("n")
    real = TensorType(dtypes.float32, (batch, n))
    m = divided(n, 2) + 1
    assert shape("rfft", real, axis=1) == (batch, m)
    assert shape("irfft", TensorType(dtypes.complex64, (batch, m)), axis=1, n=n) == (batch, n)
    assert shape("fft", TensorType(dtypes.complex64, (batch, None)), axis=1) == (batch, None)


@pytest.mark.parametrize(
    ("name", "dtype", "sizes", "attrs", "kind", "words"),
    [
        ("fft", "float32", (4,), {"axis": 0}, TypeRuleError, "complex operands"),
        ("rfft", "complex64", (4,), {"axis": 0}, TypeRuleError, "float32 or float64"),
        ("rfft", "float16", (4,), {"axis": 0}, TypeRuleError, "float32 or float64"),
        ("irfft", "float64", (4,), {"axis": 0, "n": 6}, TypeRuleError, "complex operands"),
        ("fft", "complex64", (4,), {"axis": 1}, ShapeError, "axis 1"),
        ("fft", "complex64", (0,), {"axis": 0}, ShapeError, "at least one point"),
        ("irfft", "complex64", (4,), {"axis": 0, "n": 8}, ShapeError, "n // 2 + 1 = 5"),
        ("irfft", "complex64", (1,), {"axis": 0, "n": 0}, ShapeError, "at least one point"),
        ("fft", "complex64", (4,), {"axis": 0, "scale": "n"}, TypeRuleError, "scale 'n'"),
    ],
)
def test_errors(
    name: str, dtype: str, sizes: tuple[int, ...], attrs: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        shape(name, TensorType(dtypes.as_dtype(dtype), sizes), **attrs)
    assert words in str(caught.value)
    assert f"op '{name}'" in str(caught.value)
