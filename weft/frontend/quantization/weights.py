"""`QuantizedMatrix`: the weights of a product in 8 or 4 bits, with a scale for each column or for
each block of one, and products with it.

They lie by columns, each from one end to the other, as the product of a few rows reads them
(passes/fusion/quantized_products.py). Numbers are symmetric about 0; of 4 bits a block's scale is,
of several, the one with the least squared error (T. Dettmers and L. Zettlemoyer, "The case for
4-bit precision", 2023, on blocks)."""

from __future__ import annotations

import math
from typing import Any

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.creation import ones_like
from weft.frontend.ops.elementwise import (
    abs,
    add,
    astype,
    divide,
    equal,
    less,
    multiply,
    square,
    subtract,
    where,
)
from weft.frontend.ops.linalg import matmul as float_matmul
from weft.frontend.ops.manipulation import expand_dims, pad, permute_dims, reshape
from weft.frontend.ops.promotion import TensorLike, cast, check_int, inexact_tensor
from weft.frontend.ops.reduction import max, sum
from weft.frontend.quantization.linear import (
    check_real,
    dequantize_linear,
    pack_int4,
    quantize_linear,
    unpack_int4,
)
from weft.ir.dims import same
from weft.ir.dtypes import DType, float32, uint8
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

#: Of a block's largest number, the parts that are tried as what the largest of 4 bits stands for.
_PARTS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
#: A column is a multiple of so many numbers, by their bits; the default block of 4 bits.
_WHOLE, _BLOCK = {8: 16, 4: 32}, 32


class QuantizedMatrix:
    """A matrix [k, n] of 8 or 4 bits, for `wf.quantization.matmul`; `quantize_weights` makes it.

    values: int8 [n, k] by columns, or of 4 bits uint8 [n, k / 2], two to a byte, as 8 more than
    they are; with zeros up to a whole block. scale: float32 [n, blocks]. A pytree of these two:
    functions take and return it, and `wf.tree_map` reaches its tensors.

    >>> w = wf.quantization.quantize_weights(wf.eye(32), bits=4)
    >>> w, w.nbytes
    (QuantizedMatrix(32 x 32, 4 bits, blocks of 32), 640)
    """

    __slots__ = ("bits", "depth", "scale", "values")
    values: Tensor
    scale: Tensor
    bits: int
    depth: int

    def __init__(self, values: Any, scale: Any, *, bits: int, depth: int) -> None:
        self.values, self.scale, self.bits, self.depth = values, scale, bits, depth

    @property
    def shape(self) -> tuple[int, int]:
        """(k, n), as that of the matrix that it stands for."""
        return self.depth, _sizes(self.values)[0]

    @property
    def dtype(self) -> DType:
        """That of what it stands for."""
        return float32

    @property
    def block_size(self) -> int:
        """How many numbers of a column share a scale."""
        return _sizes(self.values)[1] * (8 // self.bits) // _sizes(self.scale)[1]

    @property
    def nbytes(self) -> int:
        """What its tensors take."""
        return math.prod(_sizes(self.values)) + 4 * math.prod(_sizes(self.scale))

    def dequantize(self) -> Tensor:
        """The matrix that it stands for, float32 [k, n]."""
        return permute_dims(_by_columns(self), (1, 0))[: self.depth]

    def __repr__(self) -> str:
        k, n = self.shape
        return f"QuantizedMatrix({k} x {n}, {self.bits} bits, blocks of {self.block_size})"


def _rebuilt(held: Any, parts: Any) -> QuantizedMatrix:
    bits, depth = held
    return QuantizedMatrix(*parts, bits=bits, depth=depth)


pytree.register_pytree(
    QuantizedMatrix, lambda m: ([m.values, m.scale], (m.bits, m.depth)), _rebuilt
)


def _sizes(t: Tensor) -> tuple[int, int]:
    """The sizes of one of a matrix' tensors, which are known."""
    rows, columns = t.shape
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    return rows, columns


def quantize_weights(
    w: TensorLike, *, bits: int = 8, block_size: int | None = None
) -> QuantizedMatrix:
    """A matrix in 8 or 4 bits, for products x @ w.

    w: floats [k, n], k known. block_size: how many numbers of a column share a scale: of 8 bits a
    multiple of 16 (None: the whole column), of 4 bits 32 times a power of two (None: 32). Scales
    are such that the largest number of a block is 127, or of 4 bits about 7.

    InvalidArgumentError for other bits and blocks, ShapeError for what is no matrix.

    >>> w = wf.quantization.quantize_weights([[1.0, -3.0], [0.5, 2.0]])
    >>> w.dequantize().numpy().round(2)
    array([[ 1.  , -3.  ],
           [ 0.5 ,  2.01]], dtype=float32)
    """
    t = inexact_tensor(w, "quantize_weights")
    check_real("quantize_weights", t, "w")
    if t.ndim != 2 or not isinstance(t.shape[0], int) or 0 in t.shape:
        raise ShapeError(
            "wf.quantization.quantize_weights takes a matrix [k, n] that is not empty, k known, "
            f"got {t.describe()}",
            location=caller_location(),
        )
    depth = t.shape[0]
    block = _checked_block(bits, block_size, depth)
    wide = -(-depth // block) * block
    columns = permute_dims(cast(t, float32), (1, 0))
    columns = pad(columns, ((0, 0), (0, wide - depth))) if wide > depth else columns
    parts = reshape(columns, (t.shape[1], wide // block, block))
    largest = max(abs(parts), axis=2)
    if bits == 8:
        scale = not_zero(divide(largest, 127.0))
        values = quantize_linear(columns, scale, narrow_range=True, axis=1, block_size=block)
        return QuantizedMatrix(values, scale, bits=8, depth=depth)
    scale = _best_scale(parts, largest)
    values = quantize_linear(columns, scale, bits=4, narrow_range=True, axis=1, block_size=block)
    packed = pack_int4(astype(add(values, 8), uint8))
    return QuantizedMatrix(packed, scale, bits=4, depth=depth)


def _checked_block(bits: int, block_size: int | None, depth: int) -> int:
    """The size of a block. InvalidArgumentError."""
    if bits not in _WHOLE:
        raise InvalidArgumentError(
            f"wf.quantization.quantize_weights: weights have 8 or 4 bits, not {bits!r}",
            location=caller_location(),
        )
    if block_size is None:
        return _BLOCK if bits == 4 else -(-depth // _WHOLE[8]) * _WHOLE[8]
    block = check_int("quantize_weights", block_size, "block_size")
    whole = block // _WHOLE[bits]
    if block < 1 or block % _WHOLE[bits] or (bits == 4 and whole & (whole - 1)):
        raise InvalidArgumentError(
            f"wf.quantization.quantize_weights: a block of {block} numbers of {bits} bits",
            hint="of 8 bits a multiple of 16, of 4 bits 32, 64, 128, ...",
            location=caller_location(),
        )
    return block


def not_zero(scale: Tensor) -> Tensor:
    """Scales, 1 where there is nothing but zeros."""
    return where(equal(scale, 0.0), ones_like(scale), scale)


def _best_scale(parts: Tensor, largest: Tensor) -> Tensor:
    """Of several scales for each block the one with the least sum of squared errors."""
    best, least = None, None
    for part in _PARTS:
        scale = not_zero(multiply(largest, part / 7.0))
        held = expand_dims(scale, axis=2)
        made = quantize_linear(divide(parts, held), 1.0, bits=4, narrow_range=True)
        error = sum(square(subtract(multiply(cast(made, float32), held), parts)), axis=2)
        if best is None or least is None:
            best, least = scale, error
            continue
        better = less(error, least)
        best, least = where(better, scale, best), where(better, error, least)
    assert best is not None
    return best


def _by_columns(w: QuantizedMatrix) -> Tensor:
    """What it stands for, float32 [n, k], with the zeros at the end."""
    if w.bits == 8 and w.scale.shape[1] == 1:
        return dequantize_linear(w.values, reshape(w.scale, (w.scale.shape[0],)), axis=0)
    if w.bits == 8:
        return dequantize_linear(w.values, w.scale, axis=1, block_size=w.block_size)
    halves = unpack_int4(w.values, signed=False)
    return dequantize_linear(halves, w.scale, 8, axis=1, block_size=w.block_size)


def matmul(x: TensorLike, w: QuantizedMatrix) -> Tensor:
    """x @ w. Compiled for a CPU, a product of few rows reads the bytes of w once and nothing else
    of its size; of more rows it dequantises w block by block (docs/guide/quantization.md).

    x: floats [..., k], 16-bit ones computed in float32. Result: [..., n], of the dtype of x.
    ShapeError for another k, TypeRuleError for complex x or another w.

    >>> w = wf.quantization.quantize_weights(wf.eye(3), block_size=16)
    >>> wf.quantization.matmul([1.0, 2.0, 3.0], w)
    Tensor([1., 2., 3.], dtype=float32)
    """
    if not isinstance(w, QuantizedMatrix):
        raise TypeRuleError(
            f"wf.quantization.matmul: w is a QuantizedMatrix, got a {type(w).__name__}",
            hint="wf.quantization.quantize_weights makes one",
            location=caller_location(),
        )
    t = inexact_tensor(x, "quantization.matmul")
    check_real("matmul", t)
    if t.ndim == 0 or not same(t.shape[-1], w.depth):
        raise ShapeError(
            f"wf.quantization.matmul: {t.describe()} and a matrix of shape {w.shape} do not fit",
            location=caller_location(),
        )
    wide = _sizes(w.values)[1] * (8 // w.bits)
    given = cast(t, float32)
    if wide > w.depth:
        given = pad(given, ((0, 0),) * (t.ndim - 1) + ((0, wide - w.depth),))
    return cast(float_matmul(given, permute_dims(_by_columns(w), (1, 0))), t.dtype)
