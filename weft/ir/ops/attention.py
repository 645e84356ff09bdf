"""Scaled dot-product attention: softmax(query key^T) value as one op, and its gradient.

A. Vaswani et al., "Attention is all you need", 2017; computed block by block, so that no matrix of
all scores is ever stored, by M. Rabe and C. Staats, "Self-attention does not need O(n^2) memory",
2021, and T. Dao, "FlashAttention-2", 2023. `passes/fusion/attention.py` makes these ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dims import same
from weft.ir.dtype_classes import DTypeClass, require_dtype
from weft.ir.dtypes import bool_, float32, float64
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.rules import check_same_dtype
from weft.ir.spec import Array, OpSpec, tensors
from weft.ir.types import TensorType, Type

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


TABLE: tuple[OpSpec, ...] = (
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
