"""ONNX's dtypes as weft's. Those that weft has not are held in the next wider one: 2-bit and 4-bit
integers in int8 or uint8, 4-bit and 8-bit floats in float32, always with values that they have."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Array, Tensor
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType
from weft.ir.errors import UnsupportedError

#: By the numbers of TensorProto.DataType.
_DTYPES: dict[int, DType] = {
    1: wf.float32, 2: wf.uint8, 3: wf.int8, 4: wf.uint16, 5: wf.int16, 6: wf.int32, 7: wf.int64,
    8: wf.string, 9: wf.bool, 10: wf.float16, 11: wf.float64, 12: wf.uint32, 13: wf.uint64,
    14: wf.complex64, 15: wf.complex128, 16: wf.bfloat16, 17: wf.float32, 18: wf.float32,
    19: wf.float32, 20: wf.float32, 21: wf.uint8, 22: wf.int8, 23: wf.float32, 24: wf.float32,
    25: wf.uint8, 26: wf.int8,
}  # fmt: skip
#: Those of which several are in a byte: their bits.
PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
E8M0 = 24


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A float of at most 8 bits. mantissa: its bits; least: the exponent of its smallest normal
    numbers; largest: its largest number; infinite: whether it has infinities; unsigned_zero: FNUZ,
    without infinities and -0; nan: whether it has NaN."""

    mantissa: int
    least: int
    largest: float
    infinite: bool = False
    unsigned_zero: bool = False
    nan: bool = True


#: The OCP 8-bit formats (P. Micikevicius et al., "FP8 formats for deep learning", 2022), those
#: of Graphcore and AMD (B. Noune et al., "8-bit numerical formats for deep neural networks", 2022),
#: and float4 of the OCP microscaling formats (2023).
_FLOATS = {
    17: SmallFloat(3, -6, 448.0),
    18: SmallFloat(3, -7, 240.0, unsigned_zero=True),
    19: SmallFloat(2, -14, 57344.0, infinite=True),
    20: SmallFloat(2, -15, 57344.0, unsigned_zero=True),
    23: SmallFloat(1, 0, 6.0, nan=False),
}
NARROW = frozenset({*PACKED, *_FLOATS, E8M0})


def dtype_of(number: int) -> DType:
    """The dtype for ONNX's number of one. UnsupportedError for a number that is none."""
    if number not in _DTYPES:
        raise UnsupportedError(f"the ONNX dtype number {number} is none that weft knows")
    return _DTYPES[number]


def number_of(dtype: DType) -> int:
    """ONNX's number of a dtype that weft has."""
    return next(n for n, d in _DTYPES.items() if d is dtype and n not in NARROW)


def range_of(number: int) -> tuple[int, int]:
    """The least and the largest integer of an integer dtype."""
    dtype = dtype_of(number)
    bits = PACKED.get(number, 8 * dtype.itemsize)
    return (0, 2**bits - 1) if dtype.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the largest integer of a dtype that weft has."""
    return range_of(number_of(dtype))


def held(array: Array) -> Array:
    """An array as weft holds it: dtypes of ml_dtypes that weft has not become wider ones."""
    kind = array.dtype
    if kind.kind in "SUT":
        return array.astype(object)
    if kind.kind == "V" or kind.type.__module__ == "ml_dtypes":
        name = kind.name
        if name == "bfloat16":
            return array
        wide: Any = np.float32 if "float" in name else np.uint8 if name[0] == "u" else np.int8
        return array.astype(wide)
    return array


def is_small_float(number: int) -> bool:
    """Whether it is a float of at most 8 bits."""
    return number in _FLOATS or number == E8M0


def converted(x: Tensor, number: int, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """x in another dtype by ONNX's rules of Cast."""
    dtype = dtype_of(number)
    if number == E8M0:
        return _powers_of_two(wf.astype(x, wf.float32), saturate, round_mode)
    if number in _FLOATS:
        return _rounded(wf.astype(x, wf.float32), _FLOATS[number], saturate)
    if number in PACKED:
        wide = x if x.dtype.is_integer else wf.astype(x, wf.int32)
        bits = PACKED[number]
        low = wf.bitwise_and(wf.astype(wide, wf.int32), 2**bits - 1)
        if dtype.kind == "int":
            low = wf.where(low >= 2 ** (bits - 1), low - 2**bits, low)
        return wf.astype(low, dtype)
    return wf.astype(x, dtype)


def _exponent(x: Tensor) -> Tensor:
    """floor(log2(|x|)) of normal float32 numbers -> int32; -127 for smaller ones."""
    bits = wf.bitcast(wf.abs(x), wf.int32)
    return wf.bitwise_right_shift(bits, wf.asarray(np.int32(23))) - 127


def _power(exponent: Tensor) -> Tensor:
    """2 to an int32 exponent between -126 and 127, exactly."""
    return wf.bitcast(wf.bitwise_left_shift(exponent + 127, wf.asarray(np.int32(23))), wf.float32)


def _rounded(x: Tensor, kind: SmallFloat, saturate: bool) -> Tensor:
    """float32 rounded half to even to the numbers of a smaller float."""
    step = _power(wf.maximum(_exponent(x), kind.least) - kind.mantissa)
    near = wf.round(x / step) * step
    above = wf.abs(near) > kind.largest
    most = wf.copysign(wf.asarray(np.float32(kind.largest)), x)
    if saturate or not kind.nan:
        near = wf.where(above, most, near)
    else:
        beyond = wf.copysign(wf.asarray(np.float32(np.inf if kind.infinite else np.nan)), x)
        near = wf.where(above, beyond, near)
    if kind.unsigned_zero:
        near = wf.where(near == 0, wf.asarray(np.float32(0)), near)
        if not saturate:
            near = wf.where(wf.isinf(x), wf.asarray(np.float32(np.nan)), near)
    if kind.nan:
        return wf.where(wf.isnan(x), x, near)
    return wf.where(wf.isnan(x), wf.asarray(np.float32(0)), near)


def _powers_of_two(x: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """float32 rounded to a power of two, from 2**-127 to 2**127; the sign is lost."""
    size = wf.abs(x)
    bits = wf.bitcast(size, wf.int32)
    fraction = wf.bitwise_and(bits, 0x7FFFFF)
    exponent = wf.bitwise_right_shift(bits, wf.asarray(np.int32(23)))
    if round_mode == "up":
        more = (fraction > 0) & ((exponent > 0) | (fraction > 0x400000))
    elif round_mode == "nearest":
        more = (fraction >= 0x400000) & ((exponent > 0) | (fraction > 0x400000))
    else:
        more = fraction < 0
    exponent = exponent + wf.astype(more, wf.int32)
    least = wf.asarray(np.float32(2.0**-127))
    top = wf.asarray(np.float32(2.0**127 if saturate else np.nan))
    powers = wf.bitcast(
        wf.bitwise_left_shift(wf.minimum(exponent, 254), wf.asarray(np.int32(23))), wf.float32
    )
    found = wf.where(exponent <= 0, least, wf.where(exponent > 254, top, powers))
    return wf.where(wf.isnan(x), x, found)
