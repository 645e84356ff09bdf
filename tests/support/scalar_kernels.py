"""Loop kernels over one elementwise op each, and arguments to try them on."""

from __future__ import annotations

import ctypes
from functools import cache

import ml_dtypes
import numpy as np

from weft.codegen.llvm.emitter import COMPLEXES, DTYPES, FLOATS, INTEGERS, Emitter
from weft.codegen.llvm.jit import Kernel, compile_kernels
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar, result_dtype, supported

_UNARY = """
    abs sign negative square sqrt cbrt rsqrt reciprocal exp exp2 expm1 log log1p log2 log10 sin
    cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma
    sigmoid ceil floor round trunc isnan isinf isfinite signbit logical_not bitwise_invert conj
    real imag"""
_BINARY = """
    add subtract multiply divide floor_divide remainder power maximum minimum atan2 hypot
    logaddexp copysign nextafter equal not_equal less less_equal greater greater_equal
    logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift
    bitwise_right_shift"""
UNARY, BINARY = _UNARY.split(), _BINARY.split()
OPS = (*UNARY, *BINARY, "where")

NUMPY: dict[str, np.dtype] = {
    "bool": np.dtype(np.bool_),
    **{dtype: np.dtype(f"{dtype[0]}{int(dtype[1:]) // 8}") for dtype in INTEGERS},
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}
PAIRS = [(op, dtype) for dtype in DTYPES for op in OPS if supported(op, dtype)]
CASTS = [
    (op, source, target)
    for op in ("astype", "bitcast")
    for source in DTYPES
    for target in DTYPES
    if supported(op, source, {"dtype": target})
]


def operand_dtypes(op: str, dtype: str) -> list[str]:
    """dtypes of the operands of ``op``."""
    if op == "where":
        return ["bool", dtype, dtype]
    return [dtype] * (2 if op in BINARY else 1)


def loop_kernel(op: str, dtype: str, target: str | None = None) -> Kernel:
    """``out[i] = op(x[i], ...)`` over args = (x, ..., out, n)."""
    attrs = {} if target is None else {"dtype": target}
    operands = operand_dtypes(op, dtype)
    result = result_dtype(op, dtype, attrs)

    def emit(e: Emitter) -> None:
        pointers = [e.pointer_argument(k, d) for k, d in enumerate([*operands, result])]
        count = e.argument(len(pointers))
        with (
            e.loop_function("loop", pointers, [count]) as (inner, buffers, (n,)),
            inner.for_range(inner.index(0), n) as i,
        ):
            values = [
                load_element(inner, inner.at(buffer, i), operand)
                for buffer, operand in zip(buffers, operands, strict=False)
            ]
            value = emit_scalar(inner, op, dtype, values, attrs)
            store_element(inner, value, inner.at(buffers[-1], i), result)

    name = ".".join(filter(None, (op, dtype, target)))
    return Kernel(key=f"tests.{name}", name=name, emit=emit)


@cache
def _address(op: str, dtype: str, target: str | None) -> int:
    kernel = loop_kernel(op, dtype, target)
    return compile_kernels([kernel])[kernel.key]


def call(address: int, *arrays: np.ndarray) -> None:
    """Run a kernel on (the addresses of arrays, the size of the last)."""
    assert all(array.flags.c_contiguous for array in arrays)
    args = np.array([array.ctypes.data for array in arrays] + [arrays[-1].size], np.int64)
    word = ctypes.c_int64
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, word, word, word)(address)(args.ctypes.data, 0, 1, 0)


def run(op: str, dtype: str, *arrays: np.ndarray, target: str | None = None) -> np.ndarray:
    """The compiled op on arrays of its operand dtypes."""
    attrs = {} if target is None else {"dtype": target}
    out = np.empty(arrays[-1].size, NUMPY[result_dtype(op, dtype, attrs)])
    operands = (np.ascontiguousarray(array) for array in arrays)
    call(_address(op, dtype, target), *operands, out)
    return out


def special_floats(dtype: np.dtype) -> np.ndarray:
    """Zeros, infinities, NaN, denormals, extremes, and ordinary landmarks."""
    limits = ml_dtypes.finfo(dtype)
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -7, 1.5, -1.5, 2.5]
    values += [88.8, -103.5, 709.8, -745.2, 1e4, 30000.0]
    values += [
        float(sign * v)
        for sign in (1, -1)
        for v in (limits.tiny, limits.smallest_subnormal, limits.max, limits.eps, limits.tiny / 3)
    ]
    with np.errstate(over="ignore"):
        return np.array(values, np.float64).astype(dtype)


def floats(dtype: str, seed: int) -> np.ndarray:
    """Special values, all magnitudes alike, and the ranges where functions have their features."""
    kind = NUMPY[dtype]
    draw = np.random.default_rng(seed)
    word = np.dtype(f"u{kind.itemsize}")
    raw = draw.integers(0, 2 ** (8 * kind.itemsize) - 1, 6000, dtype=word, endpoint=True).view(kind)
    ordinary = np.concatenate(
        [
            draw.standard_normal(4000) * 10,
            draw.uniform(-2, 2, 6000),
            1 + draw.standard_normal(2000) * 1e-3,
            draw.uniform(-110, 110, 2000),
            draw.uniform(-760, 760, 1000),
        ]
    )
    return np.concatenate([special_floats(kind), raw, ordinary.astype(kind)])


def pairs(values: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two operands: all pairs of the first 32 values, then random pairs and equal ones."""
    first, second = (grid.ravel() for grid in np.meshgrid(values[:32], values[:32]))
    shuffled = np.random.default_rng(seed).permutation(values)
    return (
        np.concatenate([first, values, values[:100]]),
        np.concatenate([second, shuffled, values[:100]]),
    )


def integers(dtype: str, seed: int) -> np.ndarray:
    """Extremes, small numbers, and random bits."""
    kind = NUMPY[dtype]
    limits = np.iinfo(kind)
    draw = np.random.default_rng(seed)
    small = [v for v in range(-10, 20) if limits.min <= v <= limits.max]
    edges = [limits.min, limits.max, limits.max // 2, *small[:27]]
    raw = draw.integers(limits.min, limits.max, 2000, dtype=kind, endpoint=True)
    return np.concatenate([np.array(edges, kind), raw, draw.choice(small, 2000).astype(kind)])


def samples(dtype: str, seed: int = 0) -> np.ndarray:
    """Arguments of any dtype."""
    if dtype == "bool":
        return np.arange(64) % 3 == 0
    if dtype in FLOATS:
        return floats(dtype, seed)
    if dtype in COMPLEXES:
        part = {"c64": "f32", "c128": "f64"}[dtype]
        real, imaginary = pairs(floats(part, seed), seed)
        result = np.empty(real.size, NUMPY[dtype])
        result.real, result.imag = real, imaginary
        return result
    return integers(dtype, seed)
