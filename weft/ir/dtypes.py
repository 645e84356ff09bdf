"""Data types, the promotion rules of the Python array API standard, and the modes of f32 products.

Beyond the standard: bool mixes with numbers (the number wins), an integer array with a floating
array gives the floating type (as in JAX and PyTorch), float16 with bfloat16 gives float32. uint64
with a signed integer has no common type and is an error that asks for `astype`.

`MathMode` says how products and convolutions of f32 may be computed on a GPU. "ieee": their
elements are multiplied as f32. "tf32": libraries may round them to 10 bits of mantissa first
(TensorFloat-32, NVIDIA A100 whitepaper, 2020), which tensor cores multiply several times as fast;
sums stay f32. It is a permission, as JAX's `jax_default_matmul_precision` and PyTorch's
`allow_tf32` are: weft's own kernels, and the CPU, always compute as "ieee" says."""

from __future__ import annotations

from typing import Literal, get_args

import ml_dtypes
import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, TypeRuleError, suggest
from weft.ir.locations import caller_location

Kind = Literal["bool", "int", "uint", "float", "complex", "string"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. `name` is the array API's, `short` the one of the IR text, `bits` the
    width.

    Instances are singletons; they are equal to the names and NumPy's dtypes of the same elements,
    too, and NumPy takes them where it takes a dtype. Strings are arbitrary bytes.

    >>> wf.asarray([1, 2]).dtype is wf.int64
    True
    >>> wf.bfloat16.name, wf.bfloat16.short, wf.bfloat16.itemsize, wf.bfloat16.is_floating
    ('bfloat16', 'bf16', 2, True)
    >>> wf.float32 == np.float32, wf.float32 == "float32", np.zeros(2, wf.float32).dtype
    (True, True, dtype('float32'))
    """

    name: str
    short: str
    kind: Kind
    bits: int
    numpy: np.dtype[np.generic]

    def __repr__(self) -> str:
        return f"weft.{self.name}"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, str):
            return _BY_NAME.get(other) is self
        if isinstance(other, np.dtype):
            return _BY_NUMPY.get(other) is self
        return isinstance(other, type) and issubclass(other, np.generic) and self.numpy == other

    __hash__ = object.__hash__  # as NumPy's, it is not that of the names that are equal

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """NumPy's dtype, which NumPy looks for under this name."""
        return self.numpy

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (as_dtype, (self.name,))

    @property
    def itemsize(self) -> int:
        """Bytes of one element (8, a pointer, for strings)."""
        return self.numpy.itemsize

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_floating(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_inexact(self) -> bool:
        """Floating or complex: the types that have gradients."""
        return self.kind in ("float", "complex")

    @property
    def is_numeric(self) -> bool:
        return self.kind not in ("bool", "string")


def _dtype(name: str, short: str, kind: Kind, numpy: object) -> DType:
    np_dtype: np.dtype[np.generic] = np.dtype(numpy)  # type: ignore[call-overload]
    return DType(name, short, kind, np_dtype.itemsize * 8, np_dtype)


bool_ = _dtype("bool", "bool", "bool", np.bool_)
int8 = _dtype("int8", "i8", "int", np.int8)
int16 = _dtype("int16", "i16", "int", np.int16)
int32 = _dtype("int32", "i32", "int", np.int32)
int64 = _dtype("int64", "i64", "int", np.int64)
uint8 = _dtype("uint8", "u8", "uint", np.uint8)
uint16 = _dtype("uint16", "u16", "uint", np.uint16)
uint32 = _dtype("uint32", "u32", "uint", np.uint32)
uint64 = _dtype("uint64", "u64", "uint", np.uint64)
float16 = _dtype("float16", "f16", "float", np.float16)
bfloat16 = _dtype("bfloat16", "bf16", "float", ml_dtypes.bfloat16)
float32 = _dtype("float32", "f32", "float", np.float32)
float64 = _dtype("float64", "f64", "float", np.float64)
complex64 = _dtype("complex64", "c64", "complex", np.complex64)
complex128 = _dtype("complex128", "c128", "complex", np.complex128)
string = _dtype("string", "string", "string", np.object_)

ALL: tuple[DType, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128, string,
)  # fmt: skip
DEFAULT_FLOAT, DEFAULT_INT, DEFAULT_COMPLEX = float32, int64, complex64

_BY_NAME = {d.name: d for d in ALL} | {d.short: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL}
_SIGNED = (int8, int16, int32, int64)


def as_dtype(spec: object) -> DType:
    """The DType for a DType, a name ("float32", "f32"), a NumPy dtype or scalar type, or a Python
    type.

    Raises TypeRuleError for anything else.
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, np.dtype):
        known = _BY_NUMPY.get(spec)  # what the rest would find, which is asked for most
        if known is not None:
            return known
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    python = {bool: bool_, int: DEFAULT_INT, float: DEFAULT_FLOAT, complex: DEFAULT_COMPLEX}
    if isinstance(spec, type) and spec in python:
        return python[spec]
    if spec is str or spec is bytes:
        return string
    try:
        np_dtype: np.dtype[np.generic] = np.dtype(spec)  # type: ignore[call-overload]
    except TypeError:
        np_dtype = np.dtype(np.void)
    if np_dtype.kind in "SU":
        return string
    found = _BY_NUMPY.get(np_dtype.newbyteorder("="))
    if found is None:
        names = [d.name for d in ALL]
        raise TypeRuleError(
            f"{spec!r} is not a weft dtype{suggest(str(spec), names)}",
            hint="a dtype belongs here: name the argument that was meant, as minval= or stddev="
            if isinstance(spec, (int, float))
            else "the dtypes are " + ", ".join(names),
        )
    return found


def promote(a: DType, b: DType) -> DType:
    """The common type of two arrays' types. Raises TypeRuleError where there is none."""
    if a is b:
        return a
    if a.kind == "string" or b.kind == "string":
        raise TypeRuleError(
            f"no common dtype of {a.name} and {b.name}", hint="strings do not mix with numbers"
        )
    for one, other in ((a, b), (b, a)):
        if one.kind == "bool":
            return other
    rank = {"int": 0, "uint": 0, "float": 1, "complex": 2}
    if rank[a.kind] != rank[b.kind]:
        low, high = (a, b) if rank[a.kind] < rank[b.kind] else (b, a)
        if low.is_integer or low.bits <= 32:
            return high
        return complex128
    if a.is_floating and b.is_floating and a.bits == b.bits:
        return float32  # float16 with bfloat16
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    wide = [d for d in _SIGNED if d.bits > unsigned.bits and d.bits >= signed.bits]
    if not wide:
        raise TypeRuleError(
            f"no common dtype of {a.name} and {b.name}",
            hint="the array API leaves it undefined; convert one of them with wf.astype",
        )
    return wide[0]


def real_of(dtype: DType) -> DType:
    """float32 for complex64, float64 for complex128, the dtype itself otherwise."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """complex128 for float64 and complex128, complex64 for every other inexact dtype."""
    return complex128 if dtype in (float64, complex128) else complex64


def scalar_dtype(value: bool | int | float | complex) -> DType:
    """The default dtype of a Python scalar when nothing else decides."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return DEFAULT_INT
    return DEFAULT_FLOAT if isinstance(value, float) else DEFAULT_COMPLEX


def promote_scalar(array: DType, value: bool | int | float | complex) -> DType:
    """The dtype of `array op python_scalar`: the array's, unless the scalar is of a higher kind."""
    order = ["bool", "int", "float", "complex"]
    kind = scalar_dtype(value).kind
    array_kind = "int" if array.kind == "uint" else array.kind
    if array_kind not in order:
        raise TypeRuleError(f"no common dtype of {array.name} and the Python scalar {value!r}")
    if order.index(kind) <= order.index(array_kind):
        return array
    if kind == "complex" and array.is_floating:
        return complex_of(array)
    return scalar_dtype(value)


MathMode = Literal["ieee", "tf32"]
MATH_MODES: tuple[MathMode, ...] = get_args(MathMode)


def checked_math(mode: str, what: str) -> MathMode:
    """The mode of this name. InvalidArgumentError, saying `what` was given it, for another one."""
    for known in MATH_MODES:
        if mode == known:
            return known
    raise InvalidArgumentError(
        f"{what}: there is no math mode {mode!r}{suggest(str(mode), MATH_MODES)}",
        hint=f"the modes are: {', '.join(MATH_MODES)}",
        location=caller_location(),
    )
