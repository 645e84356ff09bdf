"""What the tests of compiled code share: the pipeline, the error bounds, arrays of awkward values.

Compiled code is compared with the interpreter. Integers, bools and moved data agree exactly. Floats
agree within `bound_ulps` units in the last place: what `weft.codegen.vector.functions` states for
the native function plus REFERENCE_ULPS, NumPy's and SciPy's own error. NaN agrees with NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from weft.codegen.vector.functions import ULP_BOUND
from weft.ir.dtypes import ALL, DType, as_dtype, int64
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.spec import Attrs
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse
from weft.passes.pipelines import STANDARD
from weft.runtime.native.executable import compile_graph

Array = np.ndarray[Any, Any]

#: The whole pipeline, ending in fusion.
PIPELINE = STANDARD if fuse in STANDARD else (*STANDARD, fuse)

#: NumPy states 4 ulp for its float functions; SciPy's special functions are less exact (erfc in
#: float64 is 60 ulp off near 8.7).
REFERENCE_ULPS = 4.0
SPECIAL_FUNCTIONS = {"erf", "erfc", "erfinv", "lgamma", "digamma", "logaddexp"}
SPECIAL_REFERENCE_ULPS = 128.0

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


class Case:
    """A graph in the making together with the arrays for its inputs."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.inputs: list[Array] = []
        self.results: list[Value] = []
        self.labels: list[str] = []

    def input(self, array: Array) -> Value:
        """A new input that is given `array`."""
        array = np.array(array, order="C", copy=True)
        self.inputs.append(array)
        return self.builder.add_arg(TensorType(as_dtype(array.dtype), array.shape))

    def op(self, name: str, *operands: Value, label: str = "", **attrs: Any) -> Value:
        """Append an op with one result, which becomes a result of the graph."""
        (value,) = self.builder.emit(name, operands, attrs, locations=())
        self.results.append(value)
        self.labels.append(label or name)
        return value

    def hidden(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Append an op whose result is not a result of the graph."""
        (value,) = self.builder.emit(name, operands, attrs, locations=())
        return value

    def graph(self) -> Graph:
        names = [f"x{i}" for i in range(len(self.builder.args))]
        return self.builder.graph("case", names, self.results)

    def run(self, passes: Sequence[Any] = (fuse,)) -> list[tuple[str, Array, Array]]:
        """(label, compiled, interpreted) for each result."""
        wanted = interpret(self.graph(), self.inputs)
        return list(zip(self.labels, self.compiled(passes), wanted, strict=True))

    def compiled(self, passes: Sequence[Any] = (fuse,)) -> list[Array]:
        """What compiled code makes."""
        before = [x.copy() for x in self.inputs]
        got = compile_graph(self.graph(), {}, passes=passes).run(self.inputs)
        for x, y in zip(self.inputs, before, strict=True):
            assert x.tobytes() == y.tobytes(), "compiled code changed its input"
        return got


def variable(builder: Builder, name: str, dtype: DType, shape: tuple[int, ...]) -> Value:
    """A handle to the variable called `name`."""
    (ref,) = builder.emit("variable", (), {"name": name, "dtype": dtype, "shape": shape})
    return ref


# ---------------------------------------------------------------------------------------- comparing


def ordered_bits(x: Array) -> Array:
    """Floats as integers in the same order, one apart for neighbours; both zeros are 0."""
    width = x.dtype.itemsize * 8
    bits = x.view(f"i{width // 8}").astype(object if width == 64 else np.int64)
    low = np.array(-(2 ** (width - 1)), dtype=bits.dtype)
    return np.where(bits < 0, low - bits, bits)


def ulps_apart(a: Array, b: Array) -> Array:
    """Units in the last place between a and b as floats; 0 for NaN with NaN."""
    apart = np.abs(ordered_bits(a) - ordered_bits(b)).astype(np.float64)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    return np.where(nan_a & nan_b, 0.0, np.where(nan_a | nan_b, np.inf, apart))


def same(a: Array, b: Array) -> bool:
    """Equal dtype, shape and bits, NaNs being equal whatever their bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "c":
        return same(_parts(a), _parts(b))
    if a.dtype.kind in "biu":
        return a.tobytes() == b.tobytes()
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    zero = np.zeros((), a.dtype)
    kept = [np.where(n, zero, x) for x, n in ((a, nan_a), (b, nan_b))]
    return bool((nan_a == nan_b).all()) and kept[0].tobytes() == kept[1].tobytes()


def _parts(x: Array) -> Array:
    flat = np.ascontiguousarray(x).reshape(-1)
    return flat.view(f"f{x.dtype.itemsize // 2}")


def bound_ulps(op: str, dtype: str) -> float:
    """How far compiled may be from interpreted for one elementwise op on a real floating dtype."""
    if dtype in ("float16", "bfloat16"):
        # both compute in f32 and round once: they differ only where f32 is next to a tie
        return 1.0 if (op, "f32") in ULP_BOUND or op == "logaddexp" else 0.0
    short = {"float32": "f32", "float64": "f64"}[dtype]
    reference = SPECIAL_REFERENCE_ULPS if op in SPECIAL_FUNCTIONS else REFERENCE_ULPS
    if op in ("sqrt", "divide", "reciprocal"):
        return 0.0
    if (op, short) in ULP_BOUND:
        return ULP_BOUND[op, short] + reference
    return reference if op == "logaddexp" else 0.0


def check(label: str, got: Array, wanted: Array, ulps: float = 0.0) -> None:
    """Same dtype and shape, and at most `ulps` apart (complex: relative to the modulus)."""
    assert got.dtype == wanted.dtype, label
    assert got.shape == wanted.shape, label
    if ulps == 0 or got.dtype.kind in "biu":
        bad = None if same(got, wanted) else _first_difference(got, wanted)
        assert bad is None, f"{label} ({got.dtype}): {bad}"
        return
    if got.dtype.kind == "c":
        with np.errstate(all="ignore"):
            eps = np.finfo(got.dtype).eps
            close = np.abs(got - wanted) <= ulps * eps * np.abs(wanted)
            fine = close | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        by_parts = ulps_apart(_parts(got), _parts(wanted)).reshape(-1, 2).max(axis=1) <= ulps
        at = np.flatnonzero(~(fine.ravel() | by_parts))
        assert not at.size, f"{label} ({got.dtype}): {got.flat[at[0]]} != {wanted.flat[at[0]]}"
        return
    apart = ulps_apart(got, wanted)
    if apart.size and apart.max() > ulps:
        k = int(apart.argmax())
        raise AssertionError(
            f"{label} ({got.dtype}): {got.flat[k]!r} is {apart.max()} ulp from {wanted.flat[k]!r} "
            f"(element {k}), the bound is {ulps}"
        )


def _first_difference(a: Array, b: Array) -> str:
    for k, (x, y) in enumerate(zip(a.ravel(), b.ravel(), strict=True)):
        if not same(np.asarray(x), np.asarray(y)):
            return f"element {k}: {x!r} != {y!r}"
    return "no element differs"


def check_sum(label: str, got: Array, wanted: Array, magnitudes: Array, terms: int) -> None:
    """At most terms * eps * (sum of the magnitudes, in float64) apart, and one rounding."""
    assert got.dtype == wanted.dtype, label
    assert got.shape == wanted.shape, label
    name = got.dtype.name
    real = {"complex64": "float32", "complex128": "float64"}.get(name, name)
    work = 2.0**-23 if real in ("float16", "bfloat16") else EPS[real]
    with np.errstate(all="ignore"):
        allowed = 4 * max(terms, 1) * work * magnitudes + EPS[real] * np.abs(_wide(wanted))
        apart = np.abs(_wide(got) - _wide(wanted))
        fine = (apart <= allowed) | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    at = np.flatnonzero(~fine)
    assert not at.size, f"{label} ({name}): {got.flat[at[0]]} != {wanted.flat[at[0]]}"


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


# ------------------------------------------------------------------------------------------- values


def specials(dtype: DType) -> Array:
    """The values on which code breaks: NaN, infinities, zeros, extremes, small whole numbers."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        small = [v for v in (-3, -2, -1, 0, 1, 2, 3, 7, 8, 31, 63) if v >= info.min]
        return np.array([info.min, info.min + 1, *small, info.max - 1, info.max], dtype.numpy)
    if dtype.is_complex:
        part = [0.0, -0.0, 1.0, -1.5, 0.25, 3.0]
        grid = [complex(x, y) for x in part for y in part]
        return np.array(grid, dtype.numpy)
    limits = ml_dtypes.finfo(dtype.numpy)
    tiny, most = float(limits.smallest_subnormal), float(limits.max)
    normal = float(limits.smallest_normal)
    values = [
        np.nan,
        np.inf,
        0.0,
        tiny,
        normal,
        most,
        1.0,
        0.5,
        1.5,
        2.0,
        2.5,
        1e-3,
        0.1,
        9.0,
        90.0,
    ]
    return np.array([s * v for v in values for s in (1, -1)], np.float64).astype(dtype.numpy)


def plain(dtype: DType, shape: Sequence[int], seed: int = 0, scale: float = 2.0) -> Array:
    """Finite random values of moderate size."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        low = -50 if dtype.kind == "int" else 0
        return np.asarray(rng.integers(low, 50, shape)).astype(dtype.numpy)
    values = rng.standard_normal(shape) * scale
    if dtype.is_complex:
        values = values + 1j * rng.standard_normal(shape) * scale
    return np.asarray(values).astype(dtype.numpy)


def operands(dtype: DType, count: int, size: int, seed: int = 0) -> list[Array]:
    """`count` arrays of `size` elements: each special value with each, then random ones."""
    special = specials(dtype)
    if count == 1:
        lead = [special]
    else:
        pairs = np.meshgrid(special, special, indexing="ij")
        lead = [p.ravel() for p in pairs] + [np.resize(special[::-1], pairs[0].size)]
    out = []
    for k in range(count):
        tail = plain(dtype, (max(size - lead[k].size, 0),), seed + k, scale=4.0)
        out.append(np.concatenate([lead[k], tail])[:size] if size else lead[k][:0])
    return out


# ---------------------------------------------------------------------------------------------- ops

#: Not `scalar_function`, which is any function: tests/codegen/test_scalar_functions.py.
ELEMENTWISE = [s.name for s in OPS.values() if "elementwise" in s.traits and s.arity is not None]


@functools.cache
def allowed_dtypes(op: str) -> list[DType]:
    """The operand dtypes that the type rule of an op takes."""
    spec = OPS[op]
    usual: dict[str, Any] = {"axes": (0,), "axis": 0, "keepdims": False}
    attrs: Attrs = {k: usual.get(k, s.default) for k, s in spec.attrs.items()}
    fits = []
    for dtype in ALL:
        operands = [TensorType(dtype, (2,))] * (spec.arity or 1)
        if op.startswith("scatter_nd"):
            operands[1] = TensorType(int64, (2, 1))
        try:
            spec.infer(operands, attrs, ())
        except WeftError:
            continue
        fits.append(dtype)
    return fits
