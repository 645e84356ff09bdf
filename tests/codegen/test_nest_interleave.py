"""Interleaved loops, scaling by powers of two: the same bits, and no kernels for a batch size."""

from __future__ import annotations

import numpy as np
import pytest
from forgotten_kernels import known_kernels
from llvmlite import ir

import weft as wf
from weft.codegen.llvm import jit
from weft.codegen.llvm.emitter import F32, F64, Emitter
from weft.codegen.llvm.engine import emit_text
from weft.codegen.nests import nest
from weft.codegen.nests.nest import interleave
from weft.codegen.vector import avx512, float_builder
from weft.passes.fusion.fuse import fuse

COSTLY = [("multiply", "f32"), ("tanh", "f32")]


def some_floats(count: int, dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(count) * np.exp(rng.uniform(-20, 6, count))
    x[:: max(1, count // 7)] = 0.0
    return x.astype(dtype)


class TestChoice:
    def test_cheap_and_huge_bodies_are_left_to_llvm(self) -> None:
        assert interleave([("add", "f32")], [1000]) == 0
        assert interleave(COSTLY, [1000]) == 4
        assert interleave([("lgamma", "f32")] * 3, [1000]) == 0

    def test_chains_of_dear_functions_twice(self) -> None:
        chain = [("sin", "f32")] * 4
        assert interleave(chain, [1]) == interleave(chain, [4096, 512]) == 8
        assert interleave(chain, [4096, 384]) == 8  # no remainder
        assert interleave(chain, [4096, 300]) == 4
        assert interleave([("erfinv", "f32")], [1000]) == 4
        assert interleave([("erf", "f32"), ("log", "f32")] * 4, [1000]) == 4  # by tables: short
        assert interleave([("erf", "f64"), ("log", "f64")] * 4, [1000]) == 8

    def test_several_results_do_not_wait_for_each_other(self) -> None:
        four = [("sin", "f32"), ("cos", "f32"), ("tanh", "f32"), ("sigmoid", "f32")]
        assert interleave(four, [1]) == 8
        assert interleave(four, [1], chain=0.28) == 4
        graph = wf.compile(lambda x: (wf.sin(x), wf.cos(x), wf.sigmoid(x))).trace(
            some_floats(1 << 23)
        )
        (op,) = [op for op in fuse(graph).ops if op.name == "fused"]
        assert nest.build_nest(op).interleave == 4

    def test_one_loop_does_not_depend_on_its_extent(self) -> None:
        assert interleave(COSTLY, [1]) == interleave(COSTLY, [1 << 20]) == 4

    def test_short_rows_are_left_to_llvm(self) -> None:
        assert interleave(COSTLY, [4096, 100]) == 0
        assert interleave(COSTLY, [4096, 256]) == 4

    def test_a_new_batch_size_compiles_nothing(self) -> None:
        f = wf.compile(lambda x, b: wf.tanh(x + b))
        g = wf.compile(lambda x: wf.nn.softmax(wf.tanh(x)))
        bias = some_floats(300)
        f(some_floats(600).reshape(2, 300), bias), g(some_floats(600).reshape(2, 300))
        before = known_kernels()
        f(some_floats(2100).reshape(7, 300), bias), g(some_floats(2100).reshape(7, 300))
        assert known_kernels() == before


class TestHint:
    def test_it_is_on_the_innermost_loop(self) -> None:
        def emit(e: Emitter) -> None:
            with e.for_range(e.index(0), e.hi), e.for_range(e.index(0), e.hi, interleave=4):
                pass

        text = emit_text(jit.Kernel("test.interleave", "test", emit), "test_interleave")
        assert text.count("!llvm.loop") == 1
        assert '"llvm.loop.interleave.count", i32 4' in text.replace("!", "")
        assert "distinct !{" in text

    @pytest.mark.parametrize("shape", [(1,), (63,), (1000,), (5, 257), (3, 1024)])
    def test_bits_do_not_depend_on_it(
        self, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x = some_floats(int(np.prod(shape))).reshape(shape)
        bias = some_floats(shape[-1])

        def f(x: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
            v = x * 1.5 + b
            return v * wf.tanh(wf.log1p(wf.exp(v)))

        interleaved = wf.compile(f)(x, bias)
        monkeypatch.setattr(nest, "INTERLEAVE", 0)
        np.testing.assert_array_equal(interleaved, wf.compile(f)(x, bias))


class TestScaling:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_one_instruction_or_two_products(
        self, dtype: type, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """exp and power over normal and denormal results and overflow, with and without ldexp."""
        top = 100.0 if dtype is np.float32 else 760.0
        x = np.linspace(-1.1 * top, top, 40_001, dtype=dtype)
        x = np.concatenate([x, np.array([np.nan, np.inf, -np.inf, -0.0], dtype)])
        functions = (wf.exp, wf.exp2, wf.nn.sigmoid, wf.sinh, wf.erf)
        found = []
        monkeypatch.setattr(
            avx512, "available", lambda: False
        )  # they have instructions of their own
        for has in (True, False):
            monkeypatch.setattr(float_builder, "_has_scalef", lambda has=has: has)
            # part of the key: kernels of their own for each of the two
            monkeypatch.setattr(nest, "EMITTER_VERSION", f"test {has}")
            found.append([np.asarray(wf.compile(f)(x)) for f in functions])
        for function, a, b in zip(functions, *found, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=function.__name__)

    @pytest.mark.parametrize(("kind", "dtype"), [(F32, "f32"), (F64, "f64")])
    def test_which_instruction(
        self, kind: ir.Type, dtype: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        texts = []
        for has in (True, False):
            monkeypatch.setattr(float_builder, "_has_scalef", lambda has=has: has)

            def emit(e: Emitter) -> None:
                m = float_builder.FloatBuilder(e.builder, dtype)
                m.scale_by_power_of_two(ir.Constant(kind, 1.0), m.int_const(3))

            texts.append(emit_text(jit.Kernel("test.scale", "test", emit), "test_scale"))
        assert [f"llvm.ldexp.{dtype}.i32" in text for text in texts] == [True, False]
