"""Ops along an axis as Numba source: running reductions, positions of extrema, sorting, searching,
Fourier transforms; and random bits. The operand is (outer, size, inner)."""

from __future__ import annotations

import math

import numpy as np

from weft.codegen.call import Pool
from weft.codegen.kernels.butterflies import prime_factors, roots
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.numba.scalars import (
    accumulator_dtype,
    fold_text,
    identity_text,
    narrowed,
    scalar_text,
)
from weft.codegen.numba.source import KernelSource, Number, Param, View, numpy_name, stored
from weft.codegen.numba.structural import Printer, dense, load, template
from weft.ir.cost.rates import NS_PER_RANDOM_BLOCK
from weft.ir.graph import Operation
from weft.ir.ops.fourier import FOURIER, scale_of
from weft.ir.sizes import fixed
from weft.ir.spec import ConstArray, int_attr


def _three(op: Operation) -> tuple[int, int, int]:
    shape, axis = tensor(op.operands[0]).static_shape, int_attr(op.attrs, "axis")
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _numbers(sizes: tuple[int, int, int]) -> list[Param]:
    return [Number(k, v) for k, v in zip(("outer", "size", "inner"), sizes, strict=True)]


def cumulative(op: Operation, in_place: bool) -> list[KernelSource]:
    """The running reduction, in float64 for sums of floats."""
    dtype, sizes = tensor(op.result).dtype.short, _three(op)
    reverse, what = bool(op.attrs["reverse"]), op.name.removeprefix("cumulative_")
    helpers: set[str] = set()
    x = load("x", dtype, helpers)
    if what == "logsumexp":
        running = "f32" if dtype in ("f16", "bf16") else dtype
        start = f"{numpy_name(running)}(-np.inf)"
        step = scalar_text("logaddexp", running, ["acc", "value"], running, helpers)
    else:
        running = accumulator_dtype(what, dtype)
        start = identity_text(what, running)
        step = fold_text(what, running, "acc", "value", helpers)
    wide = x("o, k, i")
    if numpy_name(dtype) != numpy_name(running):
        wide = f"{numpy_name(running)}({wide})"
    params = [dense("x", op.operands[0], sizes), dense("out", op.result, sizes, written=True)]
    text = """
    for o in range(outer):
        for i in range(inner):
            acc = $start
            for j in range(size):
                k = $k
                value = $wide
                acc = $step
                out[o, k, i] = $made"""
    return [template(
        f"numba-{op.name}-{dtype}-{int(reverse)}", op.name, [*params, *_numbers(sizes)], text,
        helpers, start=start, k="size - 1 - j" if reverse else "j", wide=wide, step=step,
        made=stored(narrowed("acc", running, dtype, helpers), dtype, helpers),
    )]  # fmt: skip


def position(op: Operation, in_place: bool) -> list[KernelSource]:
    """The first largest or smallest element, or the first NaN."""
    dtype, sizes = tensor(op.operands[0]).dtype.short, _three(op)
    helpers: set[str] = set()
    x = load("x", dtype, helpers)
    sign = ">" if op.name == "argmax" else "<"
    nan = (
        " or (value != value and best == best)" if tensor(op.operands[0]).dtype.is_floating else ""
    )
    params = [
        dense("x", op.operands[0], sizes),
        dense("out", op.result, (sizes[0], sizes[2]), written=True),
    ]
    text = """
    for o in range(outer):
        for i in range(inner):
            best, at = $first, 0
            for j in range(1, size):
                value = $value
                if value $sign best$nan:
                    best, at = value, j
            out[o, i] = at"""
    if nan:
        text = text.replace("if value $sign best$nan", "if (best == best and value $sign best)$nan")
    return [template(
        f"numba-{op.name}-{dtype}", op.name, [*params, *_numbers(sizes)], text, helpers,
        first=x("o, 0, i"), value=x("o, j, i"), sign=sign, nan=nan,
    )]  # fmt: skip


def sort(op: Operation, in_place: bool) -> list[KernelSource]:
    """A merge sort of the positions, which is stable, from runs of one element on."""
    given = tensor(op.operands[0]).dtype
    dtype, sizes, down = given.short, _three(op), bool(op.attrs["descending"])
    helpers: set[str] = {"sorts_before"} if given.is_floating else set()
    x = load("x", dtype, helpers)
    first, second = ("b", "a") if not down else ("a", "b")
    later = (
        f"sorts_before({first}, {second})" if given.is_floating else f"{first} < {second}"
    )  # whether the right one goes first
    values = op.name == "sort"
    params = [dense("x", op.operands[0], sizes), dense("out", op.result, sizes, written=True)]
    text = """
    keys = np.empty(max(size, 1), np.$kind)
    order = np.empty(max(size, 1), np.int64)
    merged = np.empty(max(size, 1), np.int64)
    for o in range(outer):
        for i in range(inner):
            for j in range(size):
                keys[j], order[j] = $value, j
            width = 1
            while width < size:
                for start in range(0, size, 2 * width):
                    left, middle = start, min(start + width, size)
                    right, end = middle, min(start + 2 * width, size)
                    for k in range(start, end):
                        take_right = left >= middle
                        if left < middle and right < end:
                            a, b = keys[order[left]], keys[order[right]]
                            take_right = $later
                        if take_right:
                            merged[k] = order[right]
                            right += 1
                        else:
                            merged[k] = order[left]
                            left += 1
                for k in range(size):
                    order[k] = merged[k]
                width *= 2
            for j in range(size):
                out[o, j, i] = $made"""
    made = stored("keys[order[j]]", dtype, helpers) if values else "order[j]"
    kind = numpy_name(dtype)
    return [template(
        f"numba-{op.name}-{dtype}-{int(down)}", op.name, [*params, *_numbers(sizes)], text, helpers,
        kind=kind, value=x("o, j, i"), later=later, made=made,
    )]  # fmt: skip


def searchsorted(op: Operation, in_place: bool) -> list[KernelSource]:
    """Halving: before equal elements (left) or after them."""
    data, values = op.operands
    given = tensor(data).dtype
    helpers: set[str] = {"sorts_before"} if given.is_floating else set()
    at, value = load("data", given.short, helpers), load("values", given.short, helpers)

    def before(a: str, b: str) -> str:
        return f"sorts_before({a}, {b})" if given.is_floating else f"{a} < {b}"

    left = op.attrs["side"] == "left"
    count = math.prod(tensor(values).static_shape)
    goes = before("held", "value") if left else f"not {before('value', 'held')}"
    params: list[Param] = [
        dense("data", data), dense("values", values, (count,)),
        dense("out", op.result, (count,), written=True),
        Number("size", tensor(data).static_shape[0]), Number("n", count),
    ]  # fmt: skip
    text = """
    for j in range(n):
        value = $value
        low, high = 0, size
        while low < high:
            middle = (low + high) // 2
            held = $held
            if $goes:
                low = middle + 1
            else:
                high = middle
        out[j] = low"""
    return [template(
        f"numba-searchsorted-{given.short}-{op.attrs['side']}", op.name, params, text, helpers,
        value=value("j"), held=at("middle"), goes=goes,
    )]  # fmt: skip


_LOADS = {
    "fft": """
            for j in range(n):
                a[j] = x[o, j, i]""",
    "rfft": """
            for j in range(n):
                a[j] = x[o, j, i]""",
    "irfft": """
            for j in range(size):
                value = complex128(x[o, j, i]) * ($weight if 0 < 2 * j < n else 1.0)
                if 0 < 2 * j < n:
                    a[j], a[n - j] = value, value.conjugate()
                else:
                    a[j] = value.real""",
}
_STORES = {
    "fft": """
            for k in range(n):
                out[o, k, i] = $kind(a[k] * factor[0])""",
    "rfft": """
            for k in range(n // 2 + 1):
                weight = $weight if 0 < 2 * k < n else 1.0
                out[o, k, i] = $kind(a[k] * (factor[0] * weight))""",
    "irfft": """
            for k in range(n):
                out[o, k, i] = $kind(a[k].real * factor[0])""",
}


def fourier(op: Operation, in_place: bool) -> list[KernelSource]:
    """Stockham's algorithm (`kernels/butterflies.py`) in complex128, a stage for each prime."""
    dtype, sizes = tensor(op.result).dtype.short, tuple(map(fixed, _three(op)))
    real = op.result if op.name == "irfft" else op.operands[0]
    n = fixed(tensor(real).static_shape[int_attr(op.attrs, "axis")])
    made = n // 2 + 1 if op.name == "rfft" else n
    w, primes = roots(np.arange(n, dtype=np.int64), n), prime_factors(n)
    w = w.conj() if op.name == "irfft" or op.attrs.get("inverse") else w
    scale = np.array([scale_of(op.attrs["scale"], n)])
    tables = ("w", "c128", w), ("radices", "i64", np.array(primes or [1])), ("factor", "f64", scale)
    outer, _, inner = sizes
    params: list[Param] = [
        dense("x", op.operands[0], sizes),
        dense("out", op.result, (outer, made, inner), written=True),
        *(View(name, d, Pool(ConstArray(t)), t.shape, (1,)) for name, d, t in tables),
        *_numbers((outer, sizes[1], inner)), Number("n", n), Number("stages", len(primes)),
    ]  # fmt: skip
    text = f"""
    a = np.empty(n, np.complex128)
    b = np.empty(n, np.complex128)
    for o in range(outer):
        for i in range(inner):{_LOADS[op.name]}
            m, s = n, 1
            for stage in range(stages):
                r = radices[stage]
                m //= r
                for p in range(m):
                    for k in range(r):
                        for q in range(s):
                            total = complex128(0)
                            for j in range(r):
                                turn = k * s * (j * m + p) % n
                                total += a[q + s * (p + m * j)] * w[turn]
                            b[q + s * (r * p + k)] = total
                s *= r
                a, b = b, a{_STORES[op.name]}"""
    mirrored = bool(op.attrs.get("mirrored"))
    weights = {"rfft": "2.0" if mirrored else "1.0", "irfft": "1.0" if mirrored else "0.5"}
    return [template(
        f"numba-{op.name}-{dtype}-{int(mirrored)}", op.name, params, text, set(),
        kind=numpy_name(dtype), weight=weights.get(op.name, "1.0"),
    )]  # fmt: skip


def random_bits(op: Operation, in_place: bool) -> list[KernelSource]:
    """Element i is word i & 1 of the block with counter i >> 1."""
    count = math.prod(tensor(op.result).static_shape)
    params: list[Param] = [
        dense("out", op.result, (count,), written=True), dense("key", op.operands[0]),
        Number("count", count),
    ]  # fmt: skip
    text = """
    for block in range(lo, hi):
        first, second = threefry(key[0], key[1], block & 0xFFFFFFFF, block >> 32)
        out[2 * block] = first
        if 2 * block + 1 < count:
            out[2 * block + 1] = second"""
    return [template("numba-random-bits", op.name, params, text, {"threefry"},
                     units=(count + 1) // 2, nanoseconds=4 * NS_PER_RANDOM_BLOCK)]  # fmt: skip


def random_fold_in(op: Operation, in_place: bool) -> list[KernelSource]:
    """One block: counter (data, 0)."""
    params: list[Param] = [
        dense("out", op.result, written=True), dense("key", op.operands[0]),
        dense("data", op.operands[1], ()),
    ]  # fmt: skip
    text = "out[0], out[1] = threefry(key[0], key[1], data[0], 0)"
    return [template("numba-random-fold-in", op.name, params, text, {"threefry"})]


PRINTERS: dict[str, Printer] = {
    **dict.fromkeys(
        ("cumulative_sum", "cumulative_prod", "cumulative_max", "cumulative_min",
         "cumulative_logsumexp"), cumulative,
    ),
    "argmax": position, "argmin": position, "sort": sort, "argsort": sort,
    "searchsorted": searchsorted, **dict.fromkeys(FOURIER, fourier),
    "random_bits": random_bits, "random_fold_in": random_fold_in,
}  # fmt: skip
