"""Products with quantised weights: what only dequantises them becomes a part of the product.

`fuse_quantized_products`. Before::

    %1 = reshape(%q) {shape=[64,4,32]} : i8[64,4,32]
    %2 = astype(%1) {dtype=f32} : f32[64,4,32]
    %3 = broadcast_to(%s) {shape=[64,4,32]} : f32[64,4,32]  (%s: f32[64,4,1])
    %4 = multiply(%2, %3) : f32[64,4,32]
    %5 = reshape(%4) {shape=[64,128]} : f32[64,128]
    %6 = matmul(%x, %5) {transpose_b=true} : f32[1,64]

After: ``%6 = quantized_matmul(%x, %q, %1) {bits=8}``, which reads a byte for each weight and stores
none of them as f32. The rules:

* the product is f32, with one matrix W, stored with its columns as rows (`transpose_b`), which is
  not transposed, of known sizes;
* W is scale * (q - zero), with q of i8 or u8, or halves of u8 as `wf.quantization.unpack_int4`
  unpacks them, a zero that is one whole number, and a scale for each row of W, or for each run of
  neighbours in it, as `quantized_matmul` says;
* x is one matrix, or the rows of several follow each other.

Of up to `FEW_PRODUCT_ROWS` rows of x also constants of bytes that lie by rows, as in most ONNX
files: they are turned here, once; and those whose rows are no whole vectors, if each has one scale:
they get zero points at the end, and x gets zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.analysis.known_values import constant_of, uniform
from weft.ir.cost.thresholds import FEW_PRODUCT_ROWS
from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape, product
from weft.ir.dtypes import float32, int8, int16, int32, uint8
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.products import is_quantized_run
from weft.ir.spec import ConstArray
from weft.passes.rewriting.rewrite import emit_at, rewrite, shape_of, tensor

_VECTOR = 16  # numbers of a row of which there are whole ones


@dataclass(frozen=True, slots=True)
class Quantized:
    """Weights [n, k] as `quantized_matmul` takes them. held: of n rows, of any shape; scale: of one
    number, or of n rows of `groups`, in order; more: how many columns there are beyond k."""

    held: Value
    scale: Value
    groups: int
    bits: int
    zero: int
    signed: bool
    more: int = 0


def fuse_quantized_products(graph: Graph) -> Graph:
    """Make `quantized_matmul` of what the module's docstring shows."""

    def rule(builder: Builder, op: Operation) -> Sequence[Value] | None:
        if op.name != "matmul" or op.attrs["transpose_a"]:
            return None
        x, (w, by_columns) = op.operands[0], turned_matrix(op)
        rows = product(shape_of(x)[:-1])
        if tensor(x).dtype is not float32 or rows is None:
            return None
        few = isinstance(rows, int) and rows <= FEW_PRODUCT_ROWS
        found = quantized_weights(w) if by_columns else None
        if found is None and few:
            found = (None if by_columns else _turned_here(builder, op, w)) or _filled(
                builder, op, w, by_columns
            )
        if found is None:
            return None
        n, k = tensor(w).static_shape[:: 1 if by_columns else -1]
        given = _shaped(builder, op, x, (rows, k))
        if (more := found.more) > 0:
            zero = emit_at(builder, op, "constant", value=ConstArray(np.zeros((), np.float32)))
            given = emit_at(builder, op, "pad", given, zero, lo=(0, 0), hi=(0, more))
            k += more
        held = _shaped(builder, op, found.held, (n, k * found.bits // 8))
        scale = found.scale
        if product(shape_of(scale)) == n * found.groups:
            scale = _shaped(builder, op, scale, (n, found.groups))
        else:  # one for all
            scale = _shaped(builder, op, scale, (1, 1))
            scale = emit_at(builder, op, "broadcast_to", scale, shape=(n, found.groups))
        made = emit_at(
            builder, op, "quantized_matmul", given, held, scale,
            bits=found.bits, zero=found.zero, signed=found.signed,
        )  # fmt: skip
        return [_shaped(builder, op, made, shape_of(op.result))]

    return rewrite(graph, rule)


def turned_matrix(op: Operation) -> tuple[Value, bool]:
    """The matrix B of a product, and whether its rows are the columns that are multiplied: behind
    a transpose, as `simplify` will have it."""
    b, turned = op.operands[1], bool(op.attrs["transpose_b"])
    while b.op is not None and b.op.name == "permute_dims" and b.op.attrs["axes"] == (1, 0):
        b, turned = b.op.operands[0], not turned
    return b, turned


def _shaped(builder: Builder, op: Operation, value: Value, shape: Shape) -> Value:
    if shape_of(value) == shape:
        return value
    return emit_at(builder, op, "reshape", value, shape=shape)


def quantized_weights(w: Value) -> Quantized | None:
    """What a matrix is dequantised from, if the module's rules allow."""
    for numbers, scale in _scalings(w):
        n, k = tensor(w).static_shape
        groups = _groups(scale, n, k)
        found = _whole_numbers(numbers)
        if groups is None or found is None:
            continue
        value, zero = found
        packed = _packed(value)
        if packed is None and tensor(value).dtype not in (int8, uint8):
            continue
        source, bits, signed = (value, 8, False) if packed is None else (packed[0], 4, packed[1])
        if is_quantized_run(k // groups, groups, bits):
            spread = scale.op
            assert spread is not None
            return Quantized(source, spread.operands[0], groups, bits, zero, signed)
    return None


def _turned_here(builder: Builder, op: Operation, w: Value) -> Quantized | None:
    """The same of a matrix [k, n] whose bytes are a constant: as one by columns."""
    for numbers, scale in _scalings(w):
        k, n = tensor(w).static_shape
        found, spread = _whole_numbers(numbers), scale.op
        known = None if found is None else constant_of(found[0])
        if found is None or known is None or known.array.dtype not in (np.int8, np.uint8):
            continue
        if spread is None or spread.name != "broadcast_to":
            continue
        own, whole = shape_of(spread.operands[0]), shape_of(scale)
        groups = whole[0] if len(whole) == 3 else 1
        blocks = (groups, 1, n) if len(whole) == 3 else (1, n)
        fits = product(whole) == n * k and whole[-1] == n and len(whole) in (2, 3)
        if not fits or not isinstance(groups, int) or not is_quantized_run(k // groups, groups, 8):
            continue
        by = spread.operands[0]
        if own == blocks:
            by = _shaped(builder, op, by, (groups, n))
            by = emit_at(builder, op, "permute_dims", by, axes=(1, 0))
        elif product(own) != 1:
            continue
        array = np.ascontiguousarray(known.array.reshape(k, n).T)
        made = emit_at(builder, op, "constant", value=ConstArray(array))
        return Quantized(made, by, groups, 8, found[1], False)
    return None


def _filled(builder: Builder, op: Operation, w: Value, by_columns: bool) -> Quantized | None:
    """The same of constant bytes with one scale for each column that is multiplied, filled with
    zero points up to whole vectors."""
    for numbers, scale in _scalings(w):
        found, spread = _whole_numbers(numbers), scale.op
        known = None if found is None else constant_of(found[0])
        if found is None or known is None or known.array.dtype not in (np.int8, np.uint8):
            continue
        whole, limits = tensor(w).static_shape, np.iinfo(known.array.dtype.name)
        if spread is None or spread.name != "broadcast_to" or shape_of(scale) != whole:
            continue
        n, k = whole if by_columns else whole[::-1]
        by, zero = spread.operands[0], found[1]
        own = shape_of(by)
        if product(own) != 1 and own != ((n, 1) if by_columns else (1, n)):
            continue
        if known.array.size != n * k or not limits.min <= zero <= limits.max:
            continue
        array = known.array.reshape(whole)
        more = -k % _VECTOR
        filled = np.full((n, k + more), zero, array.dtype)
        filled[:, :k] = array if by_columns else array.T
        made = emit_at(builder, op, "constant", value=ConstArray(filled))
        by = by if product(own) == 1 else _shaped(builder, op, by, (n, 1))
        return Quantized(made, by, 1, 8, zero, False, more)
    return None


def _scalings(w: Value) -> Sequence[Sequence[Value]]:
    """The factors of a matrix that is a product, of known sizes and not empty: in both orders."""
    held, scaling = tensor(w), _behind_reshapes(w).op
    if held.rank != 2 or not held.is_static or 0 in held.static_shape:
        return ()
    if scaling is None or scaling.name != "multiply":
        return ()
    return scaling.operands, scaling.operands[::-1]


def _behind_reshapes(value: Value) -> Value:
    while value.op is not None and value.op.name == "reshape":
        value = value.op.operands[0]
    return value


def _groups(scale: Value, n: int, k: int) -> int | None:
    """How many scales a row of W has, if `scale` repeats one for each."""
    op = scale.op
    if op is None or op.name != "broadcast_to":
        return None
    own, whole = shape_of(op.operands[0]), shape_of(scale)
    groups = whole[1] if len(whole) == 3 else 1
    if len(whole) not in (2, 3) or whole[0] != n or product(whole) != n * k:
        return None
    fits = product(own) == 1 or own == (*whole[:-1], 1)
    return groups if fits and isinstance(groups, int) else None


def _whole_numbers(value: Value) -> tuple[Value, int] | None:
    """Of what integers f32 numbers are made, and what is subtracted from them."""
    zero, shift = 0, value.op
    if shift is not None and shift.name == "subtract":
        number = uniform(shift.operands[1])
        if number is None or float(number) % 1 or abs(float(number)) > 255:
            return None
        zero, value = int(number), shift.operands[0]
    made = _behind_reshapes(value).op
    if made is None or made.name != "astype":
        return None
    return _behind_reshapes(made.operands[0]), zero


def _packed(value: Value) -> tuple[Value, bool] | None:
    """The bytes that integers are the halves of, and whether these are from -8 on."""
    signed, shift = False, value.op
    if shift is not None and shift.name == "subtract" and _is(shift.operands[1], 8):
        turned = _behind_reshapes(shift.operands[0]).op
        if tensor(value).dtype not in (int8, int16, int32):
            return None
        if turned is None or turned.name != "astype":
            return None
        flip = _behind_reshapes(turned.operands[0]).op
        if flip is None or flip.name != "bitwise_xor" or not _is(flip.operands[1], 8):
            return None
        signed, value = True, _behind_reshapes(flip.operands[0])
    mask = value.op
    if mask is None or mask.name != "bitwise_and" or not _is(mask.operands[1], 15):
        return None
    moved = mask.operands[0].op
    if moved is None or moved.name != "bitwise_right_shift":
        return None
    pairs, places = (v.op for v in moved.operands)
    if pairs is None or pairs.name != "broadcast_to" or tensor(pairs.result).dtype is not uint8:
        return None
    own, whole = shape_of(pairs.operands[0]), shape_of(pairs.result)
    if whole[-1:] != (2,) or own != (*whole[:-1], 1):
        return None
    if places is None:
        return None
    known = constant_of(places.operands[0] if places.name == "broadcast_to" else places.result)
    if known is None or known.array.shape[-1:] != (2,):
        return None
    return (pairs.operands[0], signed) if known.array.reshape(-1).tolist() == [0, 4] else None


def _is(value: Value, number: int) -> bool:
    """Whether all elements are that number."""
    found = uniform(value)
    return found is not None and bool(found == number)
