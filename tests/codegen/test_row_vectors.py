"""Row kernels that are written in vectors: the same bits per element, rests, blocks, cuts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from graphs import Case
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir
from random_graph_checks import check_roughly
from row_graphs import row_cases
from row_kernel_checks import check_cuts

import weft as wf
from weft.codegen.llvm.emitter import Emitter, register_type
from weft.codegen.llvm.jit import Kernel, compile_kernels
from weft.codegen.nests.calls import nest_calls
from weft.codegen.nests.row_vectors import OPS
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.tiles.micro_kernel import Vectors, tile_of
from weft.ir import dtypes
from weft.passes.fusion.fuse import fuse
from weft.passes.simplify.effects import strip_gradient_ops

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(not tile_of("f32").masks, reason="needs masked vector loads")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
OPERANDS = (
    dict.fromkeys(("where", "fma"), 3)
    | {**dict.fromkeys(("maximum", "minimum", *COMPARISONS), 2)}
    | dict.fromkeys(("add", "subtract", "multiply", "divide"), 2)
)


def _kernel(op: str, dtype: str, lanes: int) -> Kernel:
    """out[i] = op(a[i], b[i]) for i < n, so many lanes at a time; `where` asks whether a < b."""

    def emit(e: Emitter) -> None:
        b, pointers = e.builder, [e.pointer_argument(k, dtype) for k in range(3)]
        tile = tile_of(dtype)
        v = Vectors(e, tile, lanes)
        with e.for_range(e.index(0), e.argument(3), e.index(lanes)) as i:
            places = [e.at(p, i) for p in pointers]
            values = [v.load(p) if lanes > 1 else load_element(e, p, dtype) for p in places[:2]]
            if op == "where":
                values = [emit_scalar(e, "less", dtype, values, {}), *values]
            values = [*values, values[0]]
            made = emit_scalar(e, op, dtype, values[: OPERANDS.get(op, 1)], {})
            if op in COMPARISONS:
                kind = register_type(dtype)
                made = b.uitofp(made, ir.VectorType(kind, lanes) if lanes > 1 else kind)
            if lanes > 1:
                v.store(made, places[2])
            else:
                store_element(e, made, places[2], dtype)

    return Kernel(f"test-lanes-{op}-{dtype}-{lanes}", "lanes", emit, loops=False)


class TestOps:
    @pytest.mark.share(12)
    @pytest.mark.parametrize("dtype", ["f32", "f64"])
    @pytest.mark.parametrize("op", sorted(OPS))
    def test_lanes_have_the_bits_of_single_numbers(self, op: str, dtype: str) -> None:
        kind = np.dtype(np.float32 if dtype == "f32" else np.float64)
        rng = np.random.default_rng(3)
        info = np.finfo(kind)
        awkward = [0.0, -0.0, np.nan, np.inf, -np.inf, info.tiny, -info.tiny / 4, info.max, 1.0]
        a = np.concatenate([np.repeat(awkward, 9), rng.standard_normal(1967) * 60]).astype(kind)
        b = np.concatenate([np.tile(awkward, 9), rng.standard_normal(1967)]).astype(kind)
        assert a.size == b.size == 2048
        kernels = [_kernel(op, dtype, lanes) for lanes in (1, 16, 64)]
        addresses = compile_kernels(kernels)
        results = []
        for kernel in kernels:
            out = np.empty_like(a)
            words = (ctypes.c_int64 * 4)(a.ctypes.data, b.ctypes.data, out.ctypes.data, a.size)
            kind_of = ctypes.CFUNCTYPE(
                None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
            )
            kind_of(addresses[kernel.key])(ctypes.addressof(words), 0, 0, 0)
            results.append(out)
        for out in results[1:]:
            # which NaN comes out of two is LLVM's choice
            np.testing.assert_array_equal(np.isnan(out), np.isnan(results[0]))
            held = ~np.isnan(out)
            assert out[held].tobytes() == results[0][held].tobytes()


SIZES = (1, 3, 15, 16, 17, 63, 64, 65, 100, 128, 200, 4095, 4096, 4097, 9000)


def softmax(x: Any) -> Any:
    e = wf.exp(x - wf.max(x, axis=-1, keepdims=True))
    return e / wf.sum(e, axis=-1, keepdims=True)


def two_folds(x: Any) -> Any:
    """A sum in blocks and a maximum that is none, in one pass."""
    least, total = wf.min(x, axis=-1, keepdims=True), wf.sum(x, axis=-1, keepdims=True)
    return x * total - least


def layer_norm_gradients(x: Any) -> Any:
    gamma, seen = wf.linspace(0.5, 1.5, x.shape[-1], dtype=x.dtype), x * 0.5 + 1

    def loss(x: Any, gamma: Any) -> Any:
        centred = x - wf.mean(x, axis=-1, keepdims=True)
        variance = wf.mean(centred * centred, axis=-1, keepdims=True)
        return wf.sum(centred * wf.rsqrt(variance + 1e-5) * gamma * seen)

    return wf.grad(loss, argnums=(0, 1))(x, gamma)


def log_likelihood(x: Any) -> Any:
    """An index within the row: `where` of a comparison of positions, and one picked element."""
    labels = wf.astype(wf.abs(x[:, :1]) * 100, wf.int64) % x.shape[-1]

    def loss(x: Any) -> Any:
        shifted = x - wf.max(x, axis=-1, keepdims=True)
        logarithms = shifted - wf.log(wf.sum(wf.exp(shifted), axis=-1, keepdims=True))
        return -wf.mean(wf.take_along_axis(logarithms, labels, axis=-1))

    return wf.value_and_grad(loss)(x)


FUNCTIONS = (softmax, two_folds, layer_norm_gradients, log_likelihood)


class TestRows:
    @pytest.mark.share(18)
    @pytest.mark.parametrize("n", SIZES)
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("f", FUNCTIONS)
    def test_any_length(self, f: Callable[[Any], Any], dtype: str, n: int) -> None:
        x = np.random.default_rng(n).standard_normal((5, n)).astype(dtype)
        ours = _arrays(wf.compile(f)(x))
        truth = _arrays(f(wf.asarray(x)))
        for mine, theirs in zip(ours, truth, strict=True):
            tolerance = 40 * np.finfo(dtype).eps
            scale = float(np.abs(theirs).max()) or 1.0
            np.testing.assert_allclose(mine, theirs, rtol=50 * tolerance, atol=tolerance * scale)

    @pytest.mark.parametrize("n", [10, 64, 100])
    def test_a_nan_stays_in_its_row(self, n: int) -> None:
        x = np.random.default_rng(0).standard_normal((4, n)).astype(np.float32)
        for place in (0, n // 2, n - 1):
            spoilt = x.copy()
            spoilt[1, place] = np.nan
            out = np.asarray(wf.compile(softmax)(spoilt))
            assert np.isnan(out[1]).all()
            assert not np.isnan(out[[0, 2, 3]]).any()

    @pytest.mark.parametrize(
        ("f", "dtype", "in_vectors"),
        [
            (softmax, np.float32, True),
            (layer_norm_gradients, np.float64, True),
            (softmax, np.float16, False),
            (lambda x: softmax(wf.flip(x, axis=-1)), np.float32, False),
            (lambda x: wf.tanh(x) - wf.sum(x, axis=-1, keepdims=True), np.float32, False),
        ],
    )
    def test_which_kernels(self, f: Callable[[Any], Any], dtype: Any, in_vectors: bool) -> None:
        """tanh has code that is not for vectors; halves and strides are for LLVM to vectorise."""
        fused = fuse(strip_gradient_ops(wf.compile(f).trace(np.ones((9, 40), dtype))))
        calls = [c for op in fused.ops if op.name == "fused" for c in nest_calls(op)[0]]
        loops = [c.kernel.loops for c in calls if c.kernel.key.startswith("rows-")]
        assert loops
        assert all(made != in_vectors for made in loops)

    def test_nothing_is_written_beside_a_row(self) -> None:
        """Rests are stored with a mask: rows lie next to one another in the result."""
        x = np.random.default_rng(0).standard_normal((3, 7, 19)).astype(np.float32)
        both = wf.compile(lambda x: wf.concat([softmax(x), x], axis=1))(x)
        np.testing.assert_array_equal(np.asarray(both)[:, 7:], x)

    @given(row_cases((dtypes.float32, dtypes.float64), sizes=(1, 16, 65, 130)))
    @examples(40)
    def test_random_graphs(self, case: Case) -> None:
        check_roughly(case, (fuse,))

    @given(st.sampled_from(FUNCTIONS), st.integers(0, 2**20))
    @examples(60)
    def test_any_cut_has_the_same_bits(self, f: Callable[[Any], Any], seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((int(rng.integers(1, 90)), int(rng.integers(1, 200))))
        check_cuts(fuse(strip_gradient_ops(wf.compile(f).trace(x))), [x], seed)


def _arrays(result: Any) -> list[Array]:
    leaves: Sequence[Any] = wf.tree_leaves(result)
    return [np.asarray(leaf) for leaf in leaves]
