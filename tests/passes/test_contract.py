"""Products and sums that are rounded together: the op `fma`, and the pass that writes it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.codegen.llvm.target import multiplies_and_adds
from weft.ir.interpreter.evaluate import evaluate_op, interpret
from weft.passes.manager import run_passes
from weft.passes.pipelines import STANDARD
from weft.passes.simplify.algebra import contract
from weft.runtime.native.executable import compile_graph

SINGLES = st.floats(width=32, allow_subnormal=True)
DOUBLES = st.floats()


def exact(a: float, b: float, c: float, dtype: type) -> Any:
    """a * b + c rounded once, by fractions; infinities and NaN by float arithmetic."""
    if not all(map(math.isfinite, (a, b, c))):
        with np.errstate(all="ignore"):
            # a product of finite numbers is finite here, however large
            product = 0.0 if math.isfinite(a) and math.isfinite(b) else np.float64(a) * b
            return dtype(product + np.float64(c))
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if not total:
        return dtype(0)
    return rounded(total, dtype)


def rounded(total: Fraction, dtype: type) -> Any:
    """The nearest number, ties to even (IEEE 754)."""
    info = np.finfo(dtype)
    scale = max(math.frexp(float(min(abs(total), Fraction(float(info.max)))))[1], info.minexp + 1)
    exponent = scale - info.nmant - 1
    while abs(total) >= Fraction(2) ** (exponent + info.nmant + 1):
        exponent += 1
    unit = Fraction(2) ** exponent
    nearest = round(total / unit) * unit
    if abs(nearest) > Fraction(float(info.max)):
        return dtype(math.inf if nearest > 0 else -math.inf)
    return dtype(float(nearest))


@pytest.mark.share(2)
@pytest.mark.parametrize(("dtype", "numbers"), [(np.float32, SINGLES), (np.float64, DOUBLES)])
def test_fma_is_rounded_once(dtype: type, numbers: st.SearchStrategy[float]) -> None:
    @given(numbers, numbers, numbers, st.booleans())
    @settings(max_examples=500)
    def check(a: float, b: float, c: float, near: bool) -> None:
        with np.errstate(all="ignore"):
            x, y = dtype(a), dtype(b)
            z = dtype(-(x * y)) if near else dtype(c)  # what is left is the product's error
        wanted = exact(float(x), float(y), float(z), dtype)
        (got,) = evaluate_op("fma", [np.array(v) for v in (x, y, z)])
        np.testing.assert_array_equal(got, wanted)

    check()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_native_code_has_the_bits_of_the_reference(dtype: type) -> None:
    rng = np.random.default_rng(7)
    edges = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, np.finfo(dtype).tiny], dtype)
    a, b, c = (
        np.concatenate([rng.normal(size=2000).astype(dtype), rng.choice(edges, 600)])
        for _ in range(3)
    )
    with np.errstate(all="ignore"):
        c[:500] = -(a[:500] * b[:500])
    (wanted,) = evaluate_op("fma", [a, b, c])
    got = wf.compile(wf.fma)(a, b, c).numpy()
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(wf.fma(a, b, c).numpy(), wanted)


def forms(x: Any, y: Any, z: Any) -> list[Any]:
    product = x * y
    return [
        x * y + z,
        z + x * y,
        x * y - z,
        z - x * y,
        z - 3 * x,
        wf.square(x) + z,
        product + z,  # read twice, so rounded: no fma
        product - z,
        x * y + y * z,
    ]


def test_every_form_is_written_as_fma_and_means_the_same() -> None:
    args = [np.random.default_rng(k).normal(size=(3, 5)) for k in range(3)]
    graph = wf.compile(forms).trace(*args)
    new = contract(graph)
    names = [op.name for op in new.ops]
    assert names.count("fma") == 7
    assert names.count("multiply") == 2  # the one that is read twice, and one of a sum of two
    for got, wanted in zip(interpret(new, args), interpret(graph, args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=1e-15)


def test_integers_and_short_floats_stay() -> None:
    for dtype in (np.int32, np.float16, np.complex64):
        x = np.ones(3, dtype)
        graph = wf.compile(lambda x: x * x + x).trace(x)
        assert contract(graph) is graph


def test_bodies_are_contracted_and_locations_kept() -> None:
    def loop(x: Any) -> Any:
        return wf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * x + 1), (0, x))[1]

    (op,) = (o for o in contract(wf.compile(loop).trace(np.ones(2))).ops if o.name == "while")
    (made,) = (o for o in op.regions[1].ops if o.name == "fma")
    assert made.locations


def chain(x: Any, w: Any) -> Any:
    a = x * w + 1
    b = wf.sqrt(wf.abs(a)) * a - x * 3
    return b * b - a * w, a * 2 + b


@pytest.mark.skipif(not multiplies_and_adds(), reason="x86-64-v2 has no fused multiply-add")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fused_kernels_have_the_bits_of_the_ops_one_by_one(dtype: type) -> None:
    rng = np.random.default_rng(3)
    args = [rng.normal(size=(33, 17)).astype(dtype) for _ in range(2)]
    graph = wf.compile(chain).trace(*args)
    before, _ = run_passes(graph, STANDARD[: STANDARD.index(contract) + 1])
    assert sum(op.name == "fma" for op in before.ops) >= 3
    for got, wanted in zip(compile_graph(graph).run(args), interpret(before, args), strict=True):
        assert got.tobytes() == wanted.tobytes()


def test_the_gradient_of_fma() -> None:
    x, y, z = (np.array([v, v + 1.0]) for v in (2.0, 3.0, 4.0))
    for k, wanted in enumerate((y, x, np.ones(2))):
        got = wf.grad(lambda *a: wf.sum(wf.fma(*a)), argnums=k)(x, y, z)
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_fma_of_integers_is_a_float_and_of_complex_numbers_refused() -> None:
    assert wf.fma(2, 3, 4).numpy() == 10
    with pytest.raises(TypeError, match="fma"):
        wf.fma(np.ones(2, np.complex64), 1, 1)
