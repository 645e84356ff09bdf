"""Compiled elementwise ops against NumPy: every (op, dtype) pair, ordinary and special values."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable

import numpy as np
import pytest
from llvmlite import ir
from scalar_kernels import (
    BINARY,
    CASTS,
    NUMPY,
    OPS,
    PAIRS,
    call,
    floats,
    loop_kernel,
    pairs,
    run,
    samples,
    special_floats,
)

from weft.codegen.llvm.emitter import COMPLEXES, DTYPES, FLOATS, INTEGERS, Emitter
from weft.codegen.llvm.jit import Kernel, compile_kernels, kernel_asm
from weft.codegen.scalar import element_access
from weft.codegen.scalar.element_access import constant, store_element
from weft.codegen.scalar.elementwise import Unsupported, emit_scalar, supported
from weft.codegen.vector.functions import ULP_BOUND

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning"
)

INTEGER_PAIRS = [(op, dtype) for op, dtype in PAIRS if dtype in (*INTEGERS, "bool")]
# Floats: ops without a bound are exact.
EXACT_PAIRS = [
    (op, dtype)
    for op, dtype in PAIRS
    if dtype in ("f32", "f64") and (op, dtype) not in ULP_BOUND and op != "logaddexp"
]
HALF_EXACT = [
    (op, dtype)
    for op, dtype in PAIRS
    if dtype in ("f16", "bf16") and (op, "f32") not in ULP_BOUND and op != "logaddexp"
]
COMPLEX_PAIRS = [(op, dtype) for op, dtype in PAIRS if dtype in COMPLEXES]


def operands(op: str, dtype: str) -> list[np.ndarray]:
    values = samples(dtype)
    if op == "where":
        x, y = pairs(values, 1)
        return [np.arange(x.size) % 3 == 0, x, y]
    return list(pairs(values, 1)) if op in BINARY else [values]


def reference(op: str, args: list[np.ndarray]) -> np.ndarray:
    return np.asarray(getattr(np, op)(*args))


def assert_same(got: np.ndarray, expected: np.ndarray, args: list[np.ndarray], signs: bool) -> None:
    """Equal bits but for NaN payloads (and for signs of zero, if not ``signs``)."""
    assert got.dtype == expected.dtype
    same = (got == expected) | ((got != got) & (expected != expected))
    if signs and got.dtype.kind == "f":
        same &= (np.signbit(got) == np.signbit(expected)) | np.isnan(got)
    bad = np.flatnonzero(~same)[:5]
    assert bad.size == 0, [(*(a[k] for a in args), got[k], expected[k]) for k in bad]


@pytest.mark.share(24)
@pytest.mark.parametrize(("op", "dtype"), INTEGER_PAIRS)
def test_integers_and_bool(op: str, dtype: str) -> None:
    args = operands(op, dtype)
    if op == "power":
        args[1] = np.where(args[1] < 0, 3, args[1]).astype(args[1].dtype)
    assert_same(run(op, dtype, *args), reference(op, args), args, signs=True)


@pytest.mark.parametrize("op", ["floor_divide", "remainder"])
@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_every_division_of_bytes(op: str, dtype: str) -> None:
    every = np.arange(256, dtype=np.uint8).view(NUMPY[dtype])
    args = [np.repeat(every, 256), np.tile(every, 256)]
    assert_same(run(op, dtype, *args), reference(op, args), args, signs=True)


@pytest.mark.parametrize("op", ["floor_divide", "remainder"])
@pytest.mark.parametrize("dtype", [d for d in INTEGERS if not d.endswith("8")])
def test_division_beside_whole_quotients(op: str, dtype: str) -> None:
    """Multiples of divisors of all magnitudes, and their neighbours."""
    kind, draw = NUMPY[dtype], np.random.default_rng(3)
    limits = np.iinfo(kind)
    bits = draw.integers(1, limits.bits, 40000).astype(kind)
    divisor = draw.integers(limits.min, limits.max, 40000, dtype=kind, endpoint=True) >> bits
    quotient = draw.integers(limits.min, limits.max, 40000, dtype=kind, endpoint=True)
    quotient >>= kind.type(limits.bits) - bits
    multiple = divisor * quotient
    args = [
        np.concatenate([multiple, multiple - kind.type(1), multiple + kind.type(1)]),
        np.tile(divisor, 3),
    ]
    assert_same(run(op, dtype, *args), reference(op, args), args, signs=True)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of x86")
@pytest.mark.parametrize("op", ["floor_divide", "remainder"])
@pytest.mark.parametrize("dtype", ["i8", "u16", "i32", "u32"])
def test_narrow_division_vectorises(op: str, dtype: str) -> None:
    kernel = loop_kernel(op, dtype)
    compile_kernels([kernel])
    asm = kernel_asm(kernel.key)
    assert re.search(r"v?divp[sd]", asm)
    assert not re.search(r"\bi?div[bwlq]?\b", asm)


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d.startswith("i")])
def test_integer_to_negative_power(dtype: str) -> None:
    """NumPy raises; here 1 / x**n truncated."""
    base = np.array([-3, -2, -1, -1, 0, 1, 2, 3], NUMPY[dtype])
    exponent = np.array([-1, -2, -1, -2, -1, -5, -1, -3], NUMPY[dtype])
    assert run("power", dtype, base, exponent).tolist() == [0, 0, -1, 1, 0, 1, 0, 0]


@pytest.mark.share(6)
@pytest.mark.parametrize(("op", "dtype"), EXACT_PAIRS)
def test_exact_float_ops(op: str, dtype: str) -> None:
    args = operands(op, dtype)
    assert_same(run(op, dtype, *args), reference(op, args), args, op not in ("maximum", "minimum"))


@pytest.mark.share(9)
@pytest.mark.parametrize(("op", "dtype"), HALF_EXACT)
def test_exact_half_ops(op: str, dtype: str) -> None:
    """Computed in f32 and rounded once."""
    args = operands(op, dtype)
    wide = [a if a.dtype == bool else a.astype(np.float32) for a in args]
    expected = reference(op, args if op == "nextafter" else wide)
    got = run(op, dtype, *args)
    if expected.dtype != bool:
        expected = expected.astype(got.dtype).astype(np.float32)
        got = got.astype(np.float32)
    # nextafter(-0, 0) is 0, the second, in C; NumPy has the first at f16 alone.
    assert_same(got, expected, args, op not in ("maximum", "minimum", "nextafter"))


def complex_reference(op: str, args: list[np.ndarray]) -> np.ndarray:
    """The op in c128, by the formula of its docstring where NumPy has no function."""
    wide = [a.astype(np.complex128) if a.dtype.kind == "c" else a for a in args]
    if op == "rsqrt":
        return 1 / np.sqrt(wide[0])
    if op == "sigmoid":
        return 1 / (1 + np.exp(-wide[0]))
    return reference(op, wide)


@pytest.mark.share(9)
@pytest.mark.parametrize(("op", "dtype"), COMPLEX_PAIRS)
def test_complex_on_ordinary_values(op: str, dtype: str) -> None:
    draw = np.random.default_rng(0)
    parts = draw.standard_normal((4, 2000)) * 2
    values = [(parts[k] + 1j * parts[k + 1]).astype(NUMPY[dtype]) for k in (0, 2)]
    args = values if op in BINARY else values[:1]
    if op == "where":
        args = [draw.integers(0, 2, 2000) == 1, *values]
    expected = complex_reference(op, args)
    got = run(op, dtype, *args)
    if expected.dtype.kind != "c" and expected.dtype != np.float64:
        assert_same(got, expected, args, signs=True)
        return
    eps = float(np.finfo(NUMPY[dtype]).eps)
    # log1p and expm1 lose relative accuracy near their zeros, as NumPy's do.
    error = np.abs(got - expected) / np.maximum(np.abs(expected), 1e-3)
    assert np.max(error) < (16 * eps if op == "power" else 4 * eps)


TRIGONOMETRIC = [
    f"{a}{op}{h}" for a in ("", "a") for op in ("sin", "cos", "tan") for h in ("", "h")
]


@pytest.mark.parametrize("op", ["sqrt", "exp", "log", *TRIGONOMETRIC])
def test_complex_special_values(op: str) -> None:
    """Each of 0, -0, inf, NaN, ... in each part gives what NumPy gives."""
    real, imaginary = (
        grid.ravel() for grid in np.meshgrid(*[special_floats(NUMPY["f64"])[:16]] * 2)
    )
    values = np.empty(real.size, np.complex128)
    values.real, values.imag = real, imaginary
    got, expected = run(op, "c128", values), reference(op, [values])
    # Real and imaginary part apart: NaN + inf i differs from inf + NaN i.
    for part in ("real", "imag"):
        ours, theirs = getattr(got, part).copy(), getattr(expected, part).copy()
        close = np.isclose(ours, theirs, rtol=1e-14, atol=0, equal_nan=True)
        assert close.all(), (values[~close][:4], ours[~close][:4], theirs[~close][:4])
        zero = theirs == 0
        assert (np.signbit(ours) == np.signbit(theirs))[zero].all()


@pytest.mark.parametrize("dtype", COMPLEXES)
def test_complex_abs(dtype: str) -> None:
    """Beside overflow and among denormals, too; inf if a part is, even if the other is NaN."""
    (z,) = operands("abs", dtype)
    part = z.real.dtype
    wide = np.longdouble if dtype == "c128" else np.float64
    exact = np.hypot(z.real.astype(wide), z.imag.astype(wide))
    got = run("abs", dtype, z)
    assert got.dtype == part
    infinite = np.isinf(z.real) | np.isinf(z.imag)
    assert (got[infinite] == np.inf).all()
    assert (np.isnan(got) == (np.isnan(z) & ~infinite)).all()
    limit = wide(np.finfo(part).max)
    finite = np.isfinite(z) & (exact < limit)
    unit = np.spacing(exact[finite].astype(part)).astype(wide)
    assert (np.abs(got[finite] - exact[finite]) <= unit * (0.51 if dtype == "c64" else 1.25)).all()
    assert (got[np.isfinite(z) & (exact > limit * 1.001)] == np.inf).all()


@pytest.mark.parametrize("dtype", COMPLEXES)
@pytest.mark.parametrize(
    "op", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "maximum",
           "minimum", "isnan", "isinf", "isfinite", "conj", "real", "imag", "negative", "where"],
)  # fmt: skip
def test_exact_complex_ops(op: str, dtype: str) -> None:
    args = operands(op, dtype)
    got, expected = run(op, dtype, *args), reference(op, args)
    if expected.dtype.kind == "c":
        got, expected = got.view(got.real.dtype), expected.view(expected.real.dtype)
        args = [np.repeat(a, 2) for a in args]
    assert_same(got, expected, args, signs=True)


def in_range(values: np.ndarray, target: str) -> np.ndarray:
    """The values that converting to an integer ``target`` leaves defined."""
    limits = np.iinfo(NUMPY[target])
    wide = values.real.astype(np.longdouble)
    return values[(wide > np.longdouble(limits.min) - 1) & (wide < np.longdouble(limits.max) + 1)]


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("source", "target"), [(source, target) for op, source, target in CASTS if op == "astype"]
)
def test_astype(source: str, target: str) -> None:
    values = samples(source)
    if source in (*FLOATS, *COMPLEXES) and target in INTEGERS:
        values = in_range(values, target)
    got, expected = run("astype", source, values, target=target), values.astype(NUMPY[target])
    if target in COMPLEXES:
        got, expected = got.view(got.real.dtype), expected.view(expected.real.dtype)
        values = np.repeat(values, 2)
    elif target == "bf16":
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    assert_same(got, expected, [values], signs=True)


def test_float_to_integer_out_of_range_is_harmless() -> None:
    """Undefined in C and NumPy; here some number, and no trap."""
    values = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30] * 20)
    for target in INTEGERS:
        assert run("astype", "f64", values, target=target).size == values.size


@pytest.mark.parametrize("target", ["i8", "u8", "i16", "u16", "i32"])
def test_float32_to_integer_at_the_edges(target: str) -> None:
    """The nearest that 32 bits hold, of which narrower integers take the low ones; 0 of NaN."""
    most = 2.0**31
    edges = [most - 128, most, most + 256, np.inf]  # neighbours
    edges += [2.0**24 + 2, 2.0**30, 65536.5, 300.7, 128.0, 127.9, 1.0, 0.999, 1e-45, 1e-39, 0.0]
    values = np.array([*edges, *(-x for x in edges), np.nan, -np.nan], np.float32)
    held = np.clip(np.nan_to_num(values.astype(float)), -(2.0**31), 2.0**31 - 1)
    expected = np.trunc(held).astype(np.int64).astype(NUMPY[target])
    for count in (1, 3):  # with and without a rest after vectors
        given = np.tile(values, 16)[: len(values) * 16 - count]
        got = run("astype", "f32", given, target=target)
        np.testing.assert_array_equal(got, np.tile(expected, 16)[: given.size])


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("source", "target"), [(source, target) for op, source, target in CASTS if op == "bitcast"]
)
def test_bitcast(source: str, target: str) -> None:
    values = samples(source)
    if target == "bool":
        values = (samples("u8") & 1).view(NUMPY[source])
    got, expected = run("bitcast", source, values, target=target), values.view(NUMPY[target])
    words = np.dtype(f"u{min(8, got.dtype.itemsize)}")
    kept = np.ones(got.view(words).size, bool)
    if {"f16", "bf16"} & {source, target}:
        # A signalling NaN becomes quiet on its way through f32.
        kept = ~np.isnan(values.astype(np.float32)) & ~np.isnan(expected.astype(np.float32))
    assert (got.view(words)[kept] == expected.view(words)[kept]).all()


def half_kernel(name: str, convert: Callable[..., ir.Value], source: str, target: str) -> Kernel:
    def emit(e: Emitter) -> None:
        buffers = [e.pointer_argument(0, source), e.pointer_argument(1, target)]
        with (
            e.loop_function("loop", buffers, [e.argument(2)]) as (inner, (x, out), (n,)),
            inner.for_range(inner.index(0), n) as i,
        ):
            value = inner.builder.load(inner.at(x, i))
            inner.builder.store(convert(inner.builder, value), inner.at(out, i))

    return Kernel(f"tests.half.{name}", name, emit)


def skip_if_no_instruction(name: str) -> None:
    """Without one, LLVM's half type becomes calls of a compiler's run-time library."""
    if name.endswith("hardware") and not element_access.has_f16_instructions():
        pytest.skip("this machine does not convert f16 in hardware")


@pytest.mark.parametrize("name", ["f16_to_f32_portable", "f16_to_f32_hardware"])
def test_every_f16(name: str) -> None:
    """Both ways of converting, whichever this machine takes."""
    skip_if_no_instruction(name)
    kernel = half_kernel(name, getattr(element_access, name), "u16", "f32")
    bits = np.arange(65536).astype(np.uint16)
    out = np.empty(65536, np.float32)
    call(compile_kernels([kernel])[kernel.key], bits, out)
    expected = bits.view(np.float16).astype(np.float32)
    assert_same(out, expected, [bits], signs=True)


@pytest.mark.parametrize("name", ["f32_to_f16_portable", "f32_to_f16_hardware"])
def test_f32_to_f16(name: str) -> None:
    skip_if_no_instruction(name)
    kernel = half_kernel(name, getattr(element_access, name), "f32", "u16")
    every = np.arange(65536).astype(np.uint16).view(np.float16).astype(np.float32)
    ties = (every[:-1] + every[1:]) / 2
    values = np.concatenate(
        [every, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, every[1:]),
         floats("f32", 3)]
    )  # fmt: skip
    out = np.empty(values.size, np.uint16)
    call(compile_kernels([kernel])[kernel.key], values, out)
    assert_same(out.view(np.float16), values.astype(np.float16), [values], signs=True)


def test_astype_rounds_in_registers() -> None:
    """f32 -> f16 -> f32 inside one kernel loses bits as it does through memory."""

    def emit(e: Emitter) -> None:
        buffers = [e.pointer_argument(0, "f32"), e.pointer_argument(1, "f32")]
        with (
            e.loop_function("loop", buffers, [e.argument(2)]) as (inner, (x, out), (n,)),
            inner.for_range(inner.index(0), n) as i,
        ):
            value = inner.builder.load(inner.at(x, i))
            value = emit_scalar(inner, "astype", "f32", [value], {"dtype": "f16"})
            value = emit_scalar(inner, "astype", "f16", [value], {"dtype": "f32"})
            inner.builder.store(value, inner.at(out, i))

    values = floats("f32", 4)
    out = np.empty_like(values)
    call(compile_kernels([Kernel("tests.round", "round", emit)])["tests.round"], values, out)
    assert_same(out, values.astype(np.float16).astype(np.float32), [values], signs=True)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("bool", True), ("i8", -128), ("u64", 2**64 - 1), ("f16", 1.5), ("bf16", np.inf),
     ("f32", np.float32(0.1)), ("f64", np.nan), ("c64", 1 - 2j), ("c128", complex(np.nan, -0.0))],
)  # fmt: skip
def test_constants(dtype: str, value: complex) -> None:
    def emit(e: Emitter) -> None:
        store_element(e, constant(dtype, value), e.pointer_argument(0, dtype), dtype)

    key = f"tests.constant.{dtype}"
    out = np.zeros(1, NUMPY[dtype])
    call(compile_kernels([Kernel(key, key, emit)])[key], out)
    np.testing.assert_array_equal(out, np.array([value]).astype(NUMPY[dtype]))


UNSUPPORTED = [
    ("bitwise_and", "f32"), ("divide", "i32"), ("exp", "i64"), ("subtract", "bool"),
    ("negative", "bool"), ("floor", "c64"), ("erf", "c128"), ("atan2", "c64"), ("add", "string"),
    ("logical_and", "i32"), ("no_such_op", "f32"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), UNSUPPORTED)
def test_unsupported_raises(op: str, dtype: str) -> None:
    assert not supported(op, dtype)
    emitter = Emitter(ir.IRBuilder(), ir.Module(), "k")
    with pytest.raises(Unsupported, match=f"{op} on {dtype}"):
        emit_scalar(emitter, op, dtype, [], {})


def test_all_ops_are_supported_somewhere() -> None:
    assert {op for op, _ in PAIRS} == set(OPS)
    assert {dtype for _, dtype in PAIRS} == set(DTYPES)
    # Every real op but the integers' own works on all floats.
    integer_only = {op for op in OPS if op.startswith(("bitwise", "logical"))} - {"logaddexp"}
    for dtype in FLOATS:
        assert {op for op, d in PAIRS if d == dtype} == set(OPS) - integer_only
