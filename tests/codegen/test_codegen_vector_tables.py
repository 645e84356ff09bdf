"""exp, log and erf at f32 by tables in registers, and by polynomials where there are no such
instructions."""

from __future__ import annotations

import ctypes
import os
import re

import numpy as np
import pytest
import scipy.special
from exhaustive_ulp import all_arguments_error, every_exponent_error
from scalar_kernels import floats, loop_kernel

import weft as wf
from weft.codegen.llvm.compile import LATE_PREFIX
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel, compile_kernels, kernel_asm, kernel_llvm
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.vector import avx512
from weft.codegen.vector.functions import ULP_BOUND

OPS = ["exp", "log", "erf", "sigmoid"]
F64_ERROR = 2.0**-20
needs_lanes = pytest.mark.skipif(not avx512.available(), reason="the processor has no AVX-512")


@pytest.mark.parametrize("op", OPS)
def test_polynomials_where_there_are_no_lanes(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avx512, "available", lambda: False)
    error, where = every_exponent_error(op, form=".polynomial")
    assert error <= ULP_BOUND[op, "f32"] + F64_ERROR, f"near {where!r}"
    assert LATE_PREFIX not in kernel_llvm(f"tests.exhaustive.{op}.polynomial")


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_polynomials_over_all_of_float32(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avx512, "available", lambda: False)
    error, where = all_arguments_error(op, os.cpu_count() or 1, form=".polynomial")
    assert error <= ULP_BOUND[op, "f32"] + F64_ERROR, f"in 65536 from {where!r} on"


@needs_lanes
@pytest.mark.parametrize("op", OPS)
def test_lookups_are_single_instructions(op: str) -> None:
    """No call is left, and nothing of the functions that the vectoriser saw."""
    kernel = loop_kernel(op, "f32")
    compile_kernels([kernel])
    assert not re.search(r"call[^\n]*" + re.escape(LATE_PREFIX), kernel_llvm(kernel.key))
    asm = kernel_asm(kernel.key)
    assert LATE_PREFIX not in asm
    assert re.search(r"vperm(?:ps|d)\s[^\n]*zmm", asm)
    assert "gather" not in asm


@needs_lanes
@pytest.mark.parametrize("op", OPS)
def test_narrow_vectors_have_the_same_bits(op: str) -> None:
    """Beside f64 the vectors have eight elements."""
    x = np.sort(floats("f32", seed=5))[: 1 << 14]
    function = getattr(wf, op)
    alone = np.asarray(wf.compile(lambda a: function(a))(x))
    beside = wf.compile(lambda a, b: wf.astype(function(a), wf.float64) + b)
    got = np.asarray(beside(x, np.zeros(x.size)))
    np.testing.assert_array_equal(got, alone.astype(np.float64))


@needs_lanes
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("loops", [True, False])
def test_without_a_loop(op: str, loops: bool) -> None:
    """One number, in code that is vectorised and in control code."""

    def emit(e: Emitter) -> None:
        x, out = e.pointer_argument(0, "f32"), e.pointer_argument(1, "f32")
        value = emit_scalar(e, op, "f32", [load_element(e, x, "f32")], {})
        store_element(e, value, out, "f32")

    kernel = Kernel(f"tests.tables.{op}.{loops}", op, emit, loops)
    address = compile_kernels([kernel])[kernel.key]
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)(address)
    numbers = floats("f32", seed=6)[:2000]
    expected = np.asarray(wf.compile(lambda a: getattr(wf, op)(a))(numbers))
    out = np.empty_like(numbers)
    for i in range(numbers.size):
        args = np.array([numbers[i:].ctypes.data, out[i:].ctypes.data], np.int64)
        call(args.ctypes.data, 0, 1, 0)
    np.testing.assert_array_equal(out, expected)
    assert LATE_PREFIX not in kernel_asm(kernel.key)


def as_f32(numbers: tuple[float, ...]) -> np.ndarray:
    return np.float64(np.float32(numbers))


def test_tables_hold_what_they_say() -> None:
    """Two parts of 2**(j/16); the logarithms of reciprocals and erf at the centres, which are next
    to f32 numbers."""
    powers = as_f32(avx512._POWERS) + as_f32(avx512._POWERS_LOW)
    np.testing.assert_allclose(powers, 2.0 ** (np.arange(16) / 16), rtol=2.0**-45)
    for of, found, unit in (
        (-np.log(as_f32(avx512._RECIPROCALS)), avx512._LOGARITHMS, 2.0**-26),
        (scipy.special.erf(as_f32(avx512._CENTRES)), avx512._ERF[0], 2.0**-25),
    ):
        assert np.abs(as_f32(found) - of).max() <= 2.0**-7 * unit
