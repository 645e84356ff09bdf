"""Quantised functions on an emulated GPU: products that read bytes, with the bits of the CPU's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from cuda_budget_checks import compiled
from cuda_models import graph_kernels
from cuda_toolchain import needs_toolchain

import weft as wf

Array = np.ndarray[Any, Any]
ENDS = {"int8": (-128, 128), "uint8": (0, 256), "int16": (-(2**15), 2**15)}


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")


def whole(*shape: int, dtype: str = "int8", seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(*ENDS[dtype], shape).astype(dtype)


def product(a: Any, b: Any) -> Any:
    return wf.matmul(a, b, preferred_element_type=wf.int32)


def requantised(x: Any, w: Any, bias: Any, scale: Any) -> Any:
    """A quantised layer: what inference with 8 bits is made of."""
    total = wf.maximum(product(x, w) + bias, 0)
    return wf.astype(wf.clip(wf.round(wf.astype(total, wf.float32) * scale), -128, 127), wf.int8)


def layer() -> list[Array]:
    rng = np.random.default_rng(0)
    bias = rng.integers(-(2**17), 2**17, 100).astype(np.int32)
    scale = np.float32(1.0 / 2**13) * rng.random(100).astype(np.float32)
    return [whole(70, 131), whole(131, 100, seed=1), bias, scale]


def test_what_follows_is_one_kernel_with_it() -> None:
    x, w, bias, scale = layer()
    total = np.maximum(x.astype(np.int32) @ w.astype(np.int32) + bias, 0)
    wanted = np.clip(np.round(total.astype(np.float32) * scale), -128, 127).astype(np.int8)
    f = wf.compile(requantised, device="gpu:0")
    np.testing.assert_array_equal(f(x, w, bias, scale).numpy(), wanted)
    text, told = f.ir(x, w, bias, scale), f.explain(x, w, bias, scale)
    assert text.count("fused(") == 1
    assert "i32[70,131]" not in text.split("{", 1)[0]
    assert "reads i8" in told
    assert "_i8_32x32x32_km_quad" in told


@needs_toolchain
def test_its_instruction() -> None:
    made = graph_kernels(wf.compile(requantised).trace(*layer()))
    (kernel,) = (k for k in made if "_quad" in k.name)
    assert "dp4a.s32.s32" in compiled(kernel, (9, 0))[0]


@pytest.mark.parametrize("pair", [*itertools.product(ENDS, repeat=2)], ids="-".join)
@pytest.mark.parametrize("passes", ["gpu", "gpu_reproducible"])
def test_any_two_narrow_dtypes(pair: tuple[str, str], passes: str) -> None:
    """Of two they are both i16, which is widened as it is read."""
    a, b = whole(2, 17, 20, dtype=pair[0]), whole(20, 18, dtype=pair[1], seed=1)
    f = wf.compile(product, device="gpu:0", passes=passes)
    np.testing.assert_array_equal(f(a, b).numpy(), a.astype(np.int32) @ b.astype(np.int32))
    short = {"int8": "i8", "uint8": "u8", "int16": "i16"}
    held = short[pair[0]] if pair[0] == pair[1] else "i16"
    told = f.explain(a, b)
    assert f"reads {held}," in told
    assert ("_quad" in told) == (held != "i16")


def test_sizes_that_are_not_known() -> None:
    """Whether four neighbours in k are a word is asked of each size."""
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        a, b = (wf.placeholder(wf.int8, [None, None]) for _ in range(2))
        made = product(a, wf.matrix_transpose(b))
        for m, k in ((20, 36), (21, 37), (50, 40), (33, 1), (40, 129)):
            x, y = whole(m, k), whole(m + 1, k, seed=1)
            got = session.run(made, {a: x, b: y})
            np.testing.assert_array_equal(got, x.astype(np.int32) @ y.T.astype(np.int32))


def network(x: Any, w1: Any, w2: Any) -> Any:
    return wf.nn.relu(x @ w1) @ w2


@pytest.mark.share(6)
@pytest.mark.parametrize("rows", [2, 9, 40])
@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_a_quantised_function(activations: str, rows: int) -> None:
    """Both layers multiply bytes and have the CPU's bits, but for few rows, which the CPU
    multiplies in f32."""
    rng = np.random.default_rng(0)
    weights = [wf.Variable(rng.standard_normal(s, np.float32) / 8) for s in ((33, 64), (64, 30))]
    x = rng.standard_normal((rows, 33), np.float32)
    how: dict[str, Any] = {"calibration": [x]} if activations == "static" else {}
    made = wf.quantization.quantize(
        lambda x: network(x, *weights),
        wf.TensorType(wf.float32, (rows, 33)),
        activations=activations,
        **how,
    )
    f = wf.compile(lambda x: made.function(x), device="gpu:0")
    wanted = wf.compile(lambda x: made.function(x))(x).numpy()
    np.testing.assert_allclose(f(x).numpy(), wanted, rtol=0, atol=1e-6 if rows <= 8 else 0)
    told = f.explain(x)
    assert told.count("reads i8,") == 2
    if rows == 40:
        assert told.count("_quad") >= 2
