"""Products of matrices: matmul, the integer widenings that it absorbs, products with quantised
weights, and attention.

`quantized_matmul` reads weights as a quantised model keeps them: 8 bits, or 4 (two to a byte, the
low half first, as ONNX's), with a scale for each run of neighbours of k in a row: G. Gerganov et
al., GGML's block formats, 2023. `passes/fusion/quantized_products.py` makes it.

Scaled dot-product attention is softmax(query key^T) value as one op, and its gradient: A. Vaswani
et al., "Attention is all you need", 2017; computed block by block, so that no matrix of all scores
is ever stored, by M. Rabe and C. Staats, "Self-attention does not need O(n^2) memory", 2021, and
T. Dao, "FlashAttention-2", 2023. `passes/fusion/attention.py` makes these ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.dims import broadcast_shapes, same
from weft.ir.dtypes import bool_, float32, float64, int8, int16, int32, uint8, uint32
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block, Operation
from weft.ir.spec import (
    NUMERIC,
    Array,
    Attrs,
    AttrSpec,
    DTypeClass,
    OpSpec,
    check_same_dtype,
    int_attr,
    require_dtype,
    tensors,
    widen,
)
from weft.ir.types import TensorType, Type


def _matmul_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    a, b = tensors("matmul", types)
    check_same_dtype("matmul", (a, b))
    require_dtype("matmul", a, NUMERIC)
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(
            f"op 'matmul' needs operands of rank 2 or more, got {a} and {b}",
            hint="the frontend gives vectors a second axis",
        )
    m, k = a.shape[-2:][:: -1 if attrs["transpose_a"] else 1]
    k2, n = b.shape[-2:][:: -1 if attrs["transpose_b"] else 1]
    if not same(k, k2):
        marks = ["^T" if attrs[f"transpose_{x}"] else "" for x in "ab"]
        raise ShapeError(
            f"op 'matmul': {a}{marks[0]} and {b}{marks[1]} do not fit: {k} columns, {k2} rows"
        )
    try:
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ShapeError as error:
        raise ShapeError(
            f"op 'matmul': the batch dimensions of {a} and {b} do not broadcast", hint=error.hint
        ) from None
    return [TensorType(a.dtype, (*batch, m, n))]


def _matmul(arrays: Sequence[Array], attrs: Attrs) -> Array:
    a, b = map(widen, arrays)
    if attrs["transpose_a"]:
        a = a.swapaxes(-1, -2)
    if attrs["transpose_b"]:
        b = b.swapaxes(-1, -2)
    return np.asarray(np.matmul(a, b)).astype(arrays[0].dtype, copy=False)


MATMUL_TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "matmul",
        2,
        _matmul_type,
        _matmul,
        "Matrix product of the last two axes, either operand transposed first if asked; leading "
        "axes broadcast. Integers wrap; 16-bit floats accumulate in float32.",
        {"transpose_a": AttrSpec("bool", False), "transpose_b": AttrSpec("bool", False)},
    ),
)


def is_quantized_run(size: int, groups: int, bits: int) -> bool:
    """Whether each of `groups` scales of a row may be for so many weights: whole vectors, and of 4
    bits such that a shift tells the group."""
    if bits == 8:
        return size % 16 == 0
    return size % 32 == 0 and (groups == 1 or size & (size - 1) == 0)


def _quantized_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, weights, scale = tensors("quantized_matmul", types)
    require_dtype("quantized_matmul", x, DTypeClass("float32", frozenset((float32,))))
    require_dtype("quantized_matmul", scale, DTypeClass("float32", frozenset((float32,))))
    bits = int_attr(attrs, "bits")
    kinds = {8: (int8, uint8), 4: (uint8,)}.get(bits, ())
    if not kinds:
        raise TypeRuleError(f"op 'quantized_matmul': weights have 8 or 4 bits, not {bits}")
    require_dtype("quantized_matmul", weights, DTypeClass("int8 or uint8", frozenset(kinds)))
    shapes = [t.static_shape if t.is_static else None for t in (weights, scale)]
    k = x.shape[-1] if x.rank == 2 else None
    if x.rank != 2 or weights.rank != 2 or scale.rank != 2 or None in shapes:
        raise ShapeError(
            f"op 'quantized_matmul' takes matrices, those of weights of known sizes, got {x}, "
            f"{weights}, {scale}"
        )
    (n, held), (rows, groups) = weights.static_shape, scale.static_shape
    depth = held * 8 // bits
    fits = same(k, depth) and n == rows and groups >= 1 and depth % groups == 0
    if not fits or not is_quantized_run(depth // groups, groups, bits):
        raise ShapeError(
            f"op 'quantized_matmul': {x}, {weights} of {bits} bits and {scale} do not fit: a "
            "scale is that of a multiple of 16 elements of a row, of 32 times a power of two if "
            "they have 4 bits, or of a whole row of such a multiple"
        )
    return [TensorType(x.dtype, (x.shape[0], n))]


def quantized_weights(weights: Array, scale: Array, attrs: Attrs) -> Array:
    """What quantised weights stand for, as f32[n, k]."""
    zero = np.float32(attrs["zero"])  # type: ignore[arg-type]
    if attrs["bits"] == 4:
        weights = weights ^ np.uint8(0x88) if attrs["signed"] else weights
        zero += np.float32(8 * bool(attrs["signed"]))
        halves = np.stack([weights & 15, weights >> 4], -1)
        weights = halves.reshape(weights.shape[0], -1)
    parts = weights.reshape(*scale.shape, -1).astype(np.float32) - zero
    return np.asarray((parts * scale[..., None]).reshape(weights.shape))


def _quantized(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, weights, scale = arrays
    return np.asarray(np.matmul(x, quantized_weights(weights, scale, attrs).T))


QUANTIZED_TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "quantized_matmul",
        3,
        _quantized_type,
        _quantized,
        "x (m, k) times the transpose of quantised weights (n, k): `scale` (n, groups) times "
        "what they are above `zero`, each scale for a run of k / groups of a row. Weights of 4 "
        "bits are two to a byte, the low half first, 0 to 15, or -8 to 7 if they are `signed`.",
        {
            "bits": AttrSpec("int", 8),
            "zero": AttrSpec("int", 0),
            "signed": AttrSpec("bool", False),
        },
    ),
)

#: What a product may read, and what it then adds up in: 16 signed bits hold the former.
NARROW, WIDE = (int8, uint8, int16), (int32, uint32)


def is_widening(op: Operation | None) -> bool:
    """Whether an op converts narrow integers to those of 32 bits."""
    if op is None or op.name != "astype":
        return False
    given, made = op.operands[0].type, op.result.type
    held = isinstance(given, TensorType) and given.dtype in NARROW
    return held and isinstance(made, TensorType) and made.dtype in WIDE


def is_narrow_product(op: Operation) -> bool:
    """Whether an op is a product of two widened operands."""
    return op.name == "matmul" and all(is_widening(v.op) for v in op.operands)


ATTRS = {
    "scale": AttrSpec("float", 1.0),
    "causal": AttrSpec("bool", False),
    "fill": AttrSpec("float", float("-inf")),
    "heads_inner": AttrSpec("bool", False),
}
_FLOATS = DTypeClass("float32 or float64", frozenset((float32, float64)))


def heads_first(t: TensorType, attrs: Attrs) -> tuple[object, ...]:
    """The shape (..., heads, rows, columns) of an operand that may be (..., rows, heads, ...)."""
    if not attrs["heads_inner"]:
        return t.shape
    *batch, rows, heads, columns = t.shape
    return (*batch, heads, rows, columns)


def _check(op: str, types: Sequence[Type], attrs: Attrs, masks: int) -> list[TensorType]:
    """The operands; masks: where a mask may be, and whether it is there."""
    found = tensors(op, types)
    query, key, value = found[:3]
    check_same_dtype(op, (query, key, value))
    for operand in found[:3]:
        require_dtype(op, operand, _FLOATS)
    least = 3 if attrs["heads_inner"] else 2
    if not query.rank == key.rank == value.rank >= least:
        raise ShapeError(
            f"op '{op}' takes query, key and value of one rank, {least} or more, "
            f"got {query}, {key}, {value}"
        )
    (*batch, rows, depth), (*key_batch, columns, key_depth), (*value_batch, value_rows, _) = (
        heads_first(t, attrs) for t in (query, key, value)
    )
    pairs = [(depth, key_depth), (columns, value_rows)]
    pairs += [*zip(batch, key_batch, strict=True), *zip(batch, value_batch, strict=True)]
    if not all(same(a, b) for a, b in pairs):  # type: ignore[arg-type]
        raise ShapeError(f"op '{op}': {query}, {key} and {value} do not fit")
    if masks:
        mask = found[3]
        if mask.dtype not in (bool_, query.dtype):
            raise TypeRuleError(f"op '{op}': a mask is bool or {query.dtype}, got {mask}")
        wanted = (*batch, rows, columns)
        own = mask.shape
        fits = len(own) <= len(wanted) and all(
            (isinstance(a, int) and a == 1) or same(a, b)  # type: ignore[arg-type]
            for a, b in zip(own[::-1], wanted[::-1], strict=False)
        )
        if not fits or not own or not same(own[-1], columns):  # type: ignore[arg-type]
            raise ShapeError(f"op '{op}': the mask {mask} does not fit scores of shape {wanted}")
    return found


def _attention_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    query, _, value, *_ = _check("attention", types, attrs, len(types) > 3)
    rows = heads_first(query, attrs)[:-1]
    out = (*query.shape[:-1], value.shape[-1])
    return [TensorType(query.dtype, out), TensorType(query.dtype, rows)]  # type: ignore[arg-type]


def _grad_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    *operands, out, sums, g = types
    made = _attention_type(operands, attrs, regions)
    if made != [out, sums] or out != g:
        raise ShapeError(
            f"op 'attention_grad': {out}, {sums} and {g} are not what attention makes of "
            f"{', '.join(map(str, operands))}"
        )
    return list(operands[:3])


def _turned(x: Array, attrs: Attrs) -> Array:
    return x.swapaxes(-2, -3) if attrs["heads_inner"] else x


def _scores(query: Array, key: Array, mask: Sequence[Array], attrs: Attrs) -> Array:
    scores = np.matmul(query, key.swapaxes(-1, -2)) * query.dtype.type(attrs["scale"])
    if attrs["causal"]:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    for given in mask:
        if given.dtype == np.bool_:
            scores = np.where(given, scores, query.dtype.type(attrs["fill"]))
        else:
            scores = scores + given
    return np.asarray(scores.astype(query.dtype, copy=False))


def _seen(weights: Array, attrs: Attrs) -> Array:
    """0 where a causal mask hides, also beside NaN."""
    return np.asarray(np.tril(weights)) if attrs["causal"] else weights


def _attention(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    query, key, value = (_turned(x, attrs) for x in arrays[:3])
    scores = _scores(query, key, arrays[3:], attrs)
    most = scores.max(-1, keepdims=True, initial=-np.inf)
    most = np.where(np.isfinite(most), most, query.dtype.type(0))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        weights = _seen(np.exp(scores - most), attrs)
        total = weights.sum(-1, keepdims=True)
        out = np.matmul(weights / total, value)
        sums = (np.log(total) + most)[..., 0]
    return np.ascontiguousarray(_turned(out, attrs)), sums


def _attention_grad(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    *operands, out, sums, g = arrays
    query, key, value = (_turned(x, attrs) for x in operands[:3])
    out, g = _turned(out, attrs), _turned(g, attrs)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = _scores(query, key, operands[3:], attrs)
        weights = _seen(np.exp(scores - sums[..., None]), attrs)
        d_weights = np.matmul(g, value.swapaxes(-1, -2))
        delta = (g * out).sum(-1, keepdims=True)
        d_scores = weights * (d_weights - delta) * query.dtype.type(attrs["scale"])
        d_scores = _seen(d_scores, attrs)
        for mask in operands[3:]:
            if mask.dtype == np.bool_:
                d_scores = np.where(mask, d_scores, query.dtype.type(0))
        made = (
            np.matmul(d_scores, key),
            np.matmul(d_scores.swapaxes(-1, -2), query),
            np.matmul(weights.swapaxes(-1, -2), g),
        )
    return [np.ascontiguousarray(_turned(x, attrs)) for x in made]


ATTENTION_TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "attention",
        None,
        _attention_type,
        _attention,
        "softmax(scale query key^T, masked) value, and the logarithm of each row's sum of "
        "exponentials. query (..., heads, rows, depth), key and value (..., heads, columns, "
        "depth), a mask that broadcasts to (..., heads, rows, columns) or none: a bool one has "
        "`fill` where it is off, another is added. causal: row i sees columns up to i, and the "
        "others have weight 0, also where the row has NaN. "
        "heads_inner: query, key, value and the result are (..., rows, heads, depth).",
        ATTRS,
    ),
    OpSpec(
        "attention_grad",
        None,
        _grad_type,
        _attention_grad,
        "The gradients of attention in query, key and value: of its operands, its two results and "
        "the cotangent of the first.",
        ATTRS,
    ),
)
