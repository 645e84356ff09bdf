"""Every name of the vocabulary of kernel source, as the emulator has it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_expressions import COUNT, program, values
from cuda_on_cpu import run as on_cpu
from cuda_sources import kernel, results
from cuda_toolchain import needs_toolchain

from weft.codegen.cuda.cubins.compile import emit_ptx
from weft.codegen.cuda.emulator import run
from weft.codegen.cuda.source import kernel as language
from weft.codegen.cuda.source.kernel import (
    ATOMICS,
    BARRIERS,
    CASTS,
    FUNCTIONS,
    LANES,
    LOADS,
    MATHS,
    MMAS,
    NUMPY,
    SHUFFLES,
    SPECIAL,
    STORES,
    VOTES,
)

Array = np.ndarray[Any, Any]
WAYS = [None, 1]
POINTS = [0.0, -0.0, 0.25, -0.75, 1.0, -1.0, 2.5, -3.5, 17.0, -40.0, math.inf, -math.inf, math.nan]


def test_the_docstring_names_all() -> None:
    """What the page says and what the emulator knows are one list."""
    said = set(re.findall(r"`([^`]+)`", language.__doc__ or ""))
    text = language.__doc__ or ""
    for name in (*SHUFFLES, *VOTES, *BARRIERS, *MMAS):
        assert f"cuda.{name}(" in text or f"`{name}`" in text or name in said, name
    for name in SPECIAL:
        assert f"`cuda.{name}`" in text, name
    listed = {f"{name}_{t}" for name in MATHS for t in ("f32", "f64")}
    listed |= {*language.HALVES, *language.BITS, *language.HIGH, *language.DOTS}
    assert set(FUNCTIONS) == listed


def _of_python(name: str) -> Callable[..., float]:
    """The function by that name of Python's own library."""
    others: dict[str, Callable[..., float]] = {
        "rsqrt": lambda x: 1.0 / math.sqrt(x),
        "rint": lambda x: math.copysign(round(x), x),
        "exp2": lambda x: 2.0**x,
        "erfinv": lambda x: float("nan"),
        "fma": lambda a, b, c: float(Fraction(a) * Fraction(b) + Fraction(c)),
        "floor": lambda x: math.copysign(math.floor(x), x),
        "ceil": lambda x: math.copysign(math.ceil(x), x),
        "trunc": lambda x: math.copysign(math.trunc(x), x),
    }
    return others.get(name) or getattr(math, name)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", [n for n in MATHS if n != "erfinv"])
def test_maths(name: str, dtype: str) -> None:
    """As Python's library wherever that gives a number; both ways to the same bits."""
    kind = NUMPY[dtype].type
    count = len(FUNCTIONS[f"{name}_{dtype}"][0])
    rng = np.random.default_rng(7)
    many = np.array(POINTS + (3 * rng.normal(size=19)).tolist(), kind)
    if name == "acosh":
        many = np.abs(many) + kind(1)
    columns = [many, np.roll(many, 5), np.roll(many, 11)][:count]
    names = "abc"[:count]
    body = f"out[t] = {name}_{dtype}({', '.join(f'{n}[t]' for n in names)})"
    got = results(body, dtype, **dict(zip(names, columns, strict=True)))
    alone = results(body, dtype, seed=1, **dict(zip(names, columns, strict=True)))
    assert got.tobytes() == alone.tobytes()
    checked, ulps = 0, 64 if name in ("lgamma", "erfc") else 4
    for given, value in zip(zip(*columns, strict=True), got, strict=True):
        try:
            wanted = _of_python(name)(*map(float, given))
        except (ValueError, OverflowError, ZeroDivisionError):
            continue
        if name == "nextafter" and dtype == "f32":
            wanted = float(np.nextafter(*given))
        if isinstance(wanted, complex):
            continue
        close = math.isclose(value, kind(wanted), rel_tol=ulps * float(np.finfo(kind).eps))
        assert close or (math.isnan(wanted) and math.isnan(value)), (given, value, wanted)
        assert wanted != 0 or math.copysign(1, wanted) == math.copysign(1, value) or name == "fma"
        checked += 1
    assert checked > 8


def test_erfinv() -> None:
    x = np.linspace(-0.999, 0.999, 32)
    got = results("out[t] = erf_f64(erfinv_f64(x[t]))", "f64", x=x)
    np.testing.assert_allclose(got, x, rtol=1e-14)
    ends = np.array([1.0, -1.0, 2.0] + [0.0] * 29, np.float32)
    got = results("out[t] = erfinv_f32(x[t])", "f32", x=ends)
    assert got[:2].tolist() == [math.inf, -math.inf]
    assert math.isnan(got[2])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_fma_rounds_once(dtype: str) -> None:
    kind = NUMPY[dtype].type
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 256)).astype(kind)
    c = (-(a * b) * rng.choice([1, 1, 1 + 2.0**-20, 3e-8, 1e9], 256)).astype(kind)
    got = results(f"out[t] = fma_{dtype}(a[t], b[t], c[t])", dtype, 256, a=a, b=b, c=c)
    for x, y, z, value in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        # Python rounds a fraction to f64 once; to f32 the nearest of the neighbours.
        near = kind(float(exact))
        options = [near, np.nextafter(near, kind(np.inf)), np.nextafter(near, kind(-np.inf))]
        best = min(abs(Fraction(float(o)) - exact) for o in options)
        assert abs(Fraction(value) - exact) == best
    zeros = results(
        f"out[t] = fma_{dtype}({dtype}(-0.0), {dtype}(0.1), {dtype}(-0.0))", dtype, lanes=1
    )
    assert math.copysign(1, zeros[0]) == -1


@pytest.mark.parametrize("seed", WAYS)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_halves(name: str, seed: int | None) -> None:
    stored = np.float16 if name == "f16" else ml_dtypes.bfloat16
    words = np.arange(0, 65536, 64 if seed else 1).astype(np.uint16)
    threads = 32 if seed else 512
    body = f"""
        t = i64(cuda.threadIdx.x)
        for i in range(t, {len(words)}, {threads}):
            out[i] = {{}}(x[i])
    """
    wide = np.zeros(len(words), np.float32)
    made = kernel("out:f32 x:u16", body.format(f"{name}_to_f32"), threads=512)
    run(made, 1, threads, [wide, words], seed=seed)
    np.testing.assert_array_equal(wide, words.view(stored).astype(np.float32))
    between = wide.copy()
    between[np.isfinite(wide)] *= np.float32(1.0003)
    back = np.zeros(len(words), np.uint16)
    made = kernel("out:u16 x:f32", body.format(f"f32_to_{name}"), threads=512)
    with np.errstate(all="ignore"):
        wanted = between.astype(stored)
    run(made, 1, threads, [back, between], seed=seed)
    np.testing.assert_array_equal(back.view(stored).astype(np.float32), wanted.astype(np.float32))
    run(made, 1, threads, [back, wide], seed=seed)
    finite = np.isfinite(wide)
    np.testing.assert_array_equal(back[finite], words[finite])


@pytest.mark.parametrize("seed", WAYS)
def test_bits(seed: int | None) -> None:
    for size in (32, 64):
        x = np.array([*POINTS, 1e-45, 3.0], f"f{size // 8}")
        bits = results(f"out[t] = bits_f{size}(x[t])", f"u{size}", len(x), seed=seed, x=x)
        np.testing.assert_array_equal(bits, x.view(f"u{size // 8}"))
        back = results(f"out[t] = f{size}_bits(x[t])", f"f{size}", len(x), seed=seed, x=bits)
        assert back.tobytes() == x.tobytes()


@pytest.mark.parametrize("seed", WAYS)
@pytest.mark.parametrize("size", [32, 64])
def test_high_halves(size: int, seed: int | None) -> None:
    rng = np.random.default_rng(size)
    a, b = rng.integers(0, 2**size, (2, 64), dtype=f"u{size // 8}")
    a[:3], b[:3] = 2**size - 1, [2**size - 1, 1, 0]
    got = results(f"out[t] = mul_high_u{size}(a[t], b[t])", f"u{size}", 64, seed=seed, a=a, b=b)
    assert got.tolist() == [int(x) * int(y) >> size for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("seed", WAYS)
@pytest.mark.parametrize("dtype", ["i32", "u32"])
def test_sums_of_products_of_bytes(dtype: str, seed: int | None) -> None:
    """As Python has it, of all ends, modulo 2**32."""
    rng, byte = np.random.default_rng(5), np.dtype({"i32": np.int8, "u32": np.uint8}[dtype])
    info = np.iinfo(byte)
    x, y = rng.integers(info.min, info.max + 1, (2, 64, 4)).astype(byte)
    x[0], y[0] = info.min, info.min
    x[1], y[1] = info.max, info.max
    x[2], y[2] = info.min, info.max
    a, b = (v.reshape(-1).view(NUMPY[dtype]) for v in (x, y))
    c = rng.integers(np.iinfo(a.dtype).min, np.iinfo(a.dtype).max, 64, a.dtype, endpoint=True)
    c[:3] = np.iinfo(a.dtype).max
    got = results(f"out[t] = dp4a_{dtype}(a[t], b[t], c[t])", dtype, 64, seed=seed, a=a, b=b, c=c)
    for p, q, start, made in zip(x.tolist(), y.tolist(), c.tolist(), got.tolist(), strict=True):
        assert (start + sum(s * t for s, t in zip(p, q, strict=True)) - made) % 2**32 == 0


@pytest.mark.parametrize("seed", WAYS)
@pytest.mark.parametrize("dtype", LANES)
def test_128_bits(dtype: str, seed: int | None) -> None:
    count = LANES[dtype]
    x = np.arange(4 * count).astype(NUMPY[dtype])
    out = np.zeros_like(x)
    names = ", ".join(f"v{i}" for i in range(count))
    reverse = ", ".join(f"v{i}" for i in reversed(range(count)))
    body = f"""
        i = i32(cuda.threadIdx.x * i32({count}))
        {names} = {LOADS[dtype]}(x, i)
        {STORES[dtype]}(out, i, {reverse})
    """
    run(kernel(f"x:{dtype} out:{dtype}", body), 1, 4, [x, out], seed=seed)
    np.testing.assert_array_equal(out, x.reshape(4, count)[:, ::-1].reshape(-1))


@pytest.mark.parametrize("seed", WAYS)
@pytest.mark.parametrize("to", CASTS)
def test_casts(to: str, seed: int | None) -> None:
    for held in CASTS:
        values = [0, 1, 2, 100] + ([-1, -100] if held[0] != "u" and to[0] != "u" else [])
        values += [2.75] if held[0] == "f" else []
        x = np.array(values, NUMPY[held])
        got = results(f"out[t] = {to}(x[t])", to, len(x), seed=seed, x=x)
        np.testing.assert_array_equal(got, x.astype(NUMPY[to]))
    x = np.array([-1, 300, 2**40 + 5])
    if to[0] in "iu":
        got = results(f"out[t] = {to}(x[t])", to, 3, seed=seed, x=x)
        np.testing.assert_array_equal(got, x.astype(NUMPY[to]))
    holds = results(f"out[t] = {to}(boolean(x[t]))", to, 4, seed=seed, x=np.array([0, 1, -7, 2]))
    assert holds.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("seed", WAYS)
@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics(name: str, dtype: str, space: str, seed: int | None) -> None:
    before = "s = cuda.shared.array(2, {0})\n    if t == 0:\n        s[0] = {0}(3)\n"
    before += "    cuda.syncthreads()"
    rng = np.random.default_rng(1)
    x = rng.integers(0 if dtype[0] == "u" else -50, 50, 64).astype(NUMPY[dtype])
    shared = space == "shared"
    body = f"""
    t = u32(cuda.threadIdx.x)
    {before.format(dtype) if shared else "pass"}
    old[t] = cuda.atomic.{name}({"s" if shared else "sum"}, 0, x[t])
    cuda.syncthreads()
    if t == 0:
        sum[0] = {"s" if shared else "sum"}[0]
    """
    total, old = np.array([3, 0], NUMPY[dtype]), np.zeros(64, NUMPY[dtype])
    made = kernel(f"x:{dtype} sum:{dtype} old:{dtype}", body)
    run(made, 1, 64, [x, total, old], seed=seed)
    combine = {"add": np.add, "max": np.maximum, "min": np.minimum}[name]
    assert total[0] == combine.reduce(x, initial=3)
    # In some order each thread saw what those before it had made.
    if name == "add":
        assert sorted([*(old + x).tolist(), 3]) == sorted([*old.tolist(), total[0]])


@pytest.mark.parametrize("seed", WAYS)
@pytest.mark.parametrize("dtype", ["i32", "u32", "f32", "i64", "u64", "f64"])
def test_shuffles(dtype: str, seed: int | None) -> None:
    x = np.arange(64).astype(NUMPY[dtype])
    wanted = {
        "shfl_sync(0xffffffff, x[t], 5)": lambda t: t // 32 * 32 + 5,
        "shfl_sync(0xffffffff, x[t], i32(i32(31) - cuda.laneid))": lambda t: (
            t // 32 * 32 + 31 - t % 32
        ),
        "shfl_xor_sync(0xffffffff, x[t], 6)": lambda t: t ^ 6,
        "shfl_up_sync(0xffffffff, x[t], 3)": lambda t: t - 3 if t % 32 >= 3 else t,
        "shfl_down_sync(0xffffffff, x[t], 3)": lambda t: t + 3 if t % 32 < 29 else t,
    }
    for text, source in wanted.items():
        got = results(f"out[t] = cuda.{text}", dtype, 64, seed=seed, x=x)
        assert got.tolist() == [source(t) for t in range(64)], text


@pytest.mark.parametrize("seed", WAYS)
def test_votes(seed: int | None) -> None:
    body = "out[t] = cuda.ballot_sync(0xffffffff, u32(t % u32(3)) == u32(0))"
    got = results(body, "u32", 64, seed=seed)
    ballots = [sum(1 << i for i in range(32) if (i + w) % 3 == 0) for w in (0, 32)]
    assert got.tolist() == [ballots[0]] * 32 + [ballots[1]] * 32
    for name, bound in [("any", 1), ("any", 40), ("any", 0), ("all", 64), ("all", 33), ("all", 32)]:
        text = f"out[t] = u32(cuda.{name}_sync(0xffffffff, t < u32({bound})))"
        wanted = [
            bool({"any": any, "all": all}[name](i < bound for i in range(w, w + 32)))
            for w in (0, 32)
        ]
        assert results(text, "u32", 64, seed=seed).tolist() == [wanted[0]] * 32 + [wanted[1]] * 32
    for bound in (0, 1, 64):
        text = f"out[t] = u32(cuda.syncthreads_or(t < u32({bound})))"
        assert results(text, "u32", 64, seed=seed).tolist() == [bound > 0] * 64


def _agrees_with_llvm(seed: int, each: int) -> None:
    """Arithmetic means what the LLVM of the same text does on this processor."""
    lines = program(seed, each)
    names = [f"out_{d}" for d in CASTS] + [f"x{v}_{d}" for d in CASTS for v in "ab"]
    inputs = [values(d, i) for i, d in enumerate(d for d in CASTS for _ in "ab")]
    words = " ".join(f"{name}:{name.split('_')[1]}" for name in names)
    made = kernel(words, "\n".join(["t = i64(cuda.threadIdx.x)", *lines]))
    wanted = [np.zeros(COUNT * each, NUMPY[d]) for d in CASTS]
    on_cpu(made, 1, COUNT, [*wanted, *inputs])
    for way in WAYS:
        got = [np.zeros_like(w) for w in wanted]
        run(made, 1, COUNT, [*got, *inputs], seed=way)
        for x, y, dtype in zip(got, wanted, CASTS, strict=True):
            bad = np.flatnonzero(~((x == y) | ((x != x) & (y != y))))
            said = [line for line in lines if line.startswith(f"out_{dtype}")]
            assert not bad.size, (said[bad[0] // COUNT], bad[0] % COUNT, x[bad[0]], y[bad[0]])


@needs_toolchain
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_arithmetic_is_that_of_llvm(seed: int) -> None:
    _agrees_with_llvm(seed, each=5)


@needs_toolchain
def test_i64_wraps() -> None:
    """If LLVM were told that it does not, the shift below would be by 15 of n itself."""
    out, twice = np.zeros(1, np.int64), np.zeros(1, np.int64)
    made = kernel("out:i64 n", "out[0] = i64(n + n) >> 16")
    for n in (2**62, -(2**63), 2**63 - 1, -5):
        on_cpu(made, 1, 1, [out, n])
        run(made, 1, 1, [twice, n])
        assert out[0] == twice[0] == np.int64(np.uint64(2 * n % 2**64)) >> 16
    assert re.search(r"bfe\.s64\s+\S+ \S+ 15, 48;", emit_ptx(made, (9, 0)))  # and not shr.s64 by 15
