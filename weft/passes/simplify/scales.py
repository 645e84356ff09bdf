"""Scales and offsets after products with constant weights, multiplied into the weights: inference
with batch normalisation does one product and one addition (Jacob et al. 2018, section 3.2).

Before, where %w, %s, %a and %b are constants, the latter three with an element for each column::

    %0 = matmul(%x, %w) : f32[n,8]
    %1 = subtract(%0, %a) : f32[n,8]
    %2 = multiply(%1, %s) : f32[n,8]
    %3 = add(%2, %b) : f32[n,8]

After: ``matmul(%x, %w * %s)`` and ``subtract(that, %a * %s - %b)``, computed in double precision.
Results are rounded otherwise than before, so no pipeline does it by itself: `wf.export` with
`freeze=True` does. Left alone are products that others read, weights that several products share,
and what would overflow, become zero or lose digits below the smallest normal number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from weft.ir.analysis.known_values import constant_of, uniform
from weft.ir.dtypes import complex128, float16, float64
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import (
    bind,
    emit_at,
    extend,
    has_effect,
    rebuilt,
    shape_of,
    tensor,
    with_block,
    with_operands,
)
from weft.passes.simplify.cse_dce import dce

Array = np.ndarray[Any, Any]
_SCALES, _OFFSETS = ("multiply", "divide"), ("add", "subtract")


def fold_scales(graph: Graph) -> Graph:
    """Multiply scales into the weights (see the module's text), inside regions too."""
    graph = dce(graph)  # who is dead uses nothing
    return dce(with_block(graph, _folded_block(graph.block)))


def _folded_block(block: Block) -> Block:
    builder = extend(block)
    mapping: dict[Value, Value] = {}
    folding = _Folding(builder, Counter(block.results))
    for op in block.ops:
        folding.uses.update(op.operands)
        folding.uses.update(op.control)
    for op in block.ops:
        new = with_operands(op, mapping, tuple(map(_folded_block, op.regions)))
        results = new.results
        if not (op.control or has_effect(op)) and (made := folding.run(new)) is not None:
            results = (made,)
        else:
            builder.ops.append(new)
        for old, value in zip(op.results, results, strict=True):
            folding.uses[value] = folding.uses[old]
        bind(mapping, op, results)
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


class _Folding:
    """The rule for one block. uses: how often values are read, those that are new included."""

    def __init__(self, builder: Builder, uses: Counter[Value]) -> None:
        self.builder, self.uses = builder, uses

    def run(self, op: Operation) -> Value | None:
        """What stands for the result of a scale or an offset; None if it stays."""
        if op.name not in (*_SCALES, *_OFFSETS) or not tensor(op.result).dtype.is_inexact:
            return None
        value, other = op.operands
        if op.name in ("multiply", "add") and _leads_to_product(other):
            value, other = other, value
        if not _leads_to_product(value):
            return None
        channels = _channels(other)
        if channels is None:
            return None
        if op.name in _SCALES:
            return self._scaled(op, value, channels)
        return self._moved(op, value, channels)

    def _scaled(self, op: Operation, value: Value, scale: Array) -> Value | None:
        """`value`, a product or one with offsets, times (or by) the scale of each channel."""
        before = value.op
        if before is None or self.uses[value] != 1 or not _leads_to_product(value):
            return None
        if before.name in _OFFSETS:
            inner, own = before.operands[0], _channels(before.operands[1])
            offset = None if own is None else _known(op, own, scale)
            scaled = None if offset is None else self._scaled(op, inner, scale)
            if scaled is None or offset is None:
                return None
            return self._offset(op, before.name, scaled, offset)
        weights = constant_of(before.operands[1])
        if weights is None or self.uses[before.operands[1]] != 1:
            return None
        along = scale[:, None] if before.attrs.get("transpose_b") else scale
        known = _known(op, weights.array, along)
        if known is None:
            return None
        made = emit_at(self.builder, before, "constant", value=ConstArray(known))
        places = tuple(dict.fromkeys((*before.locations, *op.locations)))
        (result,) = self.builder.emit(
            before.name, [before.operands[0], made], before.attrs, locations=places
        )
        self.uses[made] = self.uses[result] = 1
        return result

    def _moved(self, op: Operation, value: Value, channels: Array) -> Value | None:
        """Two offsets, one after the other, as one of the sign that the first has."""
        before = value.op
        if before is None or before.name not in _OFFSETS or self.uses[value] != 1:
            return None
        own = _channels(before.operands[1])
        if own is None:
            return None
        sign = 1 if before.name == op.name else -1
        kind = own.dtype
        total = (_wide(own) + sign * _wide(channels)).astype(kind)
        if not np.isfinite(_wide(total)).all():
            return None
        return self._offset(op, before.name, before.operands[0], total)

    def _offset(self, op: Operation, name: str, value: Value, offset: Array) -> Value:
        held = emit_at(self.builder, op, "constant", value=ConstArray(offset))
        spread = emit_at(self.builder, op, "broadcast_to", held, shape=shape_of(value))
        made = emit_at(self.builder, op, name, value, spread)
        self.uses[made] = 1
        return made


def _leads_to_product(value: Value) -> bool:
    """Whether it is a product with constant weights, with offsets after it or not."""
    op = value.op
    while op is not None and op.name in _OFFSETS:
        op = op.operands[0].op
    if op is None or op.name not in ("matmul", "conv"):
        return False
    return constant_of(op.operands[1]) is not None


def _wide(array: Array) -> Array:
    """In double precision."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


#: The smallest normal numbers of real dtypes, and of parts of complex ones.
_LEAST = {float16: 2.0**-14, float64: 2.0**-1022, complex128: 2.0**-1022}


def _known(op: Operation, array: Array, scale: Array) -> Array | None:
    """`array` times (or by) the scale in its own dtype; None if that is not as exact as `array`."""
    a, b = _wide(array), _wide(scale)
    with np.errstate(all="ignore"):
        made: Array = (a * b if op.name == "multiply" else a / b).astype(array.dtype)
    before, after = np.abs(a), np.abs(_wide(made))
    least = _LEAST.get(tensor(op.result).dtype, 2.0**-126)
    good = np.isfinite(b).all() and b.all() and np.isfinite(after).all()
    return made if good and (after[before >= least] >= least).all() else None


def _channels(value: Value) -> Array | None:
    """The element of each channel of a constant that differs along the last axis alone; None for
    any other value."""
    kind = value.type
    assert isinstance(kind, TensorType)
    size = kind.shape[-1] if kind.rank else None
    if not isinstance(size, int):
        return None
    scalar = uniform(value)
    if scalar is not None:
        return np.full(size, scalar)
    if value.op is not None and value.op.name == "broadcast_to":
        value = value.op.operands[0]
    held = constant_of(value)
    if held is None or held.array.size != size or shape_of(value)[-1:] != (size,):
        return None
    return held.array.reshape(size)
