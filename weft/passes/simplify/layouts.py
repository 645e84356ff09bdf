"""Permutations of axes after convolutions and pooling, moved behind what follows them.

These ops have channels last; users with channels first permute the axes around each. Elementwise
ops, reductions, `concat`, `pad`, `slice`, `take` and reshapes of one axis are done before the
permutation instead of after it; so it meets the one before the next convolution, which undoes it
(`simplify`), and what is elementwise is next to the convolution that takes it over.

Before::

    %0 = conv(%x, %w) {...} : f32[1,56,56,32]
    %1 = permute_dims(%0) {axes=[0, 3, 1, 2]} : f32[1,32,56,56]
    %2 = tanh(%1) : f32[1,32,56,56]
    %3 = permute_dims(%2) {axes=[0, 2, 3, 1]} : f32[1,56,56,32]

After, where `simplify` takes %3 for %1::

    %1 = tanh(%0) : f32[1,56,56,32]
    %2 = permute_dims(%1) {axes=[0, 3, 1, 2]} : f32[1,32,56,56]
    %3 = permute_dims(%2) {axes=[0, 2, 3, 1]} : f32[1,56,56,32]

An op moves if all its operands have such a permutation, the same one, or cost nothing to permute:
constants, what is repeated along axes, and what the graph permutes so anyway. (XLA and TensorFlow's
Grappler assign layouts in this way; here only permutations that are there already move.)"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from weft.ir.analysis.known_values import constant_of
from weft.ir.dims import Shape
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.spec import AttrValue, ConstArray, int_attr, ints_attr
from weft.passes.rewriting.rewrite import rewrite, shape_of

Axes = tuple[int, ...]

#: Ops whose results have channels last.
_CHANNELS_LAST = frozenset({
    "conv", "conv_input", "window_sum", "window_max", "window_spread", "window_pick",
    "window_place",
})  # fmt: skip


def move_permutations(graph: Graph) -> Graph:
    """Permutations behind what can do without them (see the module's text), inside regions, too."""
    if not _has_windows(graph.block):
        return graph
    return rewrite(graph, _Moving().rule)


def _has_windows(block: Block) -> bool:
    return any(op.name in _CHANNELS_LAST or any(map(_has_windows, op.regions)) for op in block.ops)


class _Moving:
    """The rule. last: values whose channels are last; inner: of permuted ones, what is permuted and
    how; permuted: the results of permutations by operand and axes."""

    def __init__(self) -> None:
        self.last: set[Value] = set()
        self.inner: dict[Value, tuple[Value, Axes]] = {}
        self.permuted: dict[tuple[Value, Axes], Value] = {}

    def rule(self, builder: Builder, op: Operation) -> Sequence[Value] | None:
        """As `rewrite` takes it."""
        if op.name == "permute_dims":
            self._note(op.operands[0], ints_attr(op.attrs, "axes"), op.result)
            return None
        if op.name == "reshape" and op.operands[0] in self.inner:
            return self._reshaped(builder, op)
        if op.name in _CHANNELS_LAST:
            self.last.update(op.results)
            return None
        how = self._how(op)
        if how is None or len(op.results) != 1:
            return None
        axes = next((self.inner[v][1] for v in op.operands if v in self.inner), None)
        if axes is None:
            if how is _elementwise and not self.last.isdisjoint(op.operands):
                self.last.add(op.result)
            return None
        attrs, after = how(op, axes)
        given = self._operands(builder, op, axes)
        if given is None:
            return None
        (made,) = builder.emit(op.name, given, attrs, locations=op.locations)
        return self._permuted_result(builder, op, made, after)

    def _permuted_result(
        self, builder: Builder, op: Operation, made: Value, axes: Axes
    ) -> list[Value]:
        """What stands for the result of an op that was done before a permutation."""
        self.last.add(made)
        if axes == tuple(range(len(axes))):
            return [made]
        (result,) = builder.emit("permute_dims", [made], {"axes": axes}, locations=op.locations)
        self._note(made, axes, result)
        return [result]

    def _reshaped(self, builder: Builder, op: Operation) -> list[Value] | None:
        """A reshape that makes one axis two, or two that lie side by side one. Two axes of channels
        that have changed places (a channel shuffle) are put in order by a permutation of their
        own, next to each other in memory."""
        value, axes = self.inner[op.operands[0]]
        given, made = shape_of(op.operands[0]), shape_of(op.result)
        if len(made) == len(given) + 1 and (k := _parted(given, made)) is not None:
            at = axes[k]
            moved = [a + (a > at) for a in axes]
            moved.insert(k + 1, at + 1)
        elif len(made) == len(given) - 1 and (k := _parted(made, given)) is not None:
            first, second = axes[k : k + 2]
            if second != first + 1:
                if {first, second} != {len(axes) - 2, len(axes) - 1}:
                    return None
                order = (*range(len(axes) - 2), first, second)
                (value,) = builder.emit(
                    "permute_dims", [value], {"axes": order}, locations=op.locations
                )
                axes = tuple([order.index(a) for a in axes])
            at = axes[k]
            moved = [a - (a > at) for i, a in enumerate(axes) if i != k + 1]
        else:
            return None
        shape = tuple([made[moved.index(a)] for a in range(len(moved))])
        (result,) = builder.emit("reshape", [value], {"shape": shape}, locations=op.locations)
        return self._permuted_result(builder, op, result, tuple(moved))

    def _note(self, value: Value, axes: Axes, result: Value) -> None:
        self.permuted[value, axes] = result
        self.permuted[result, _inverse(axes)] = value
        if value in self.last:
            self.inner[result] = value, axes
        elif value in self.inner:
            first, before = self.inner[value]
            self.inner[result] = first, tuple([before[a] for a in axes])

    def _how(self, op: Operation) -> Callable[[Operation, Axes], tuple[_Attrs, Axes]] | None:
        """How the attributes and the permutation of the result follow from that of the operands."""
        traits = lookup(op.name).traits
        if "elementwise" in traits:
            return _elementwise
        if "reduction" in traits and "axes" in op.attrs:
            return _reduction
        if op.name == "take" and len(shape_of(op.operands[1])) != 1:
            return None
        return _OTHERS.get(op.name)

    def _operands(self, builder: Builder, op: Operation, axes: Axes) -> list[Value] | None:
        """The operands before the permutation; None if one would cost something."""
        found: list[Value] = []
        for value in op.operands:
            if not shape_of(value) or (op.name == "take" and value is op.operands[1]):
                found.append(value)  # what `pad` puts around, which rows are taken
                continue
            inner, own = self.inner.get(value, (None, ()))
            if own != axes:
                inner = self.permuted.get((value, _inverse(axes)))
            if inner is None:
                inner = _permuted(builder, op, value, _inverse(axes))
            if inner is None:
                return None
            found.append(inner)
        return found


_Attrs = dict[str, AttrValue]


def _permuted(builder: Builder, op: Operation, value: Value, axes: Axes) -> Value | None:
    """A constant, or what is repeated along axes, permuted; None for others."""

    def emit(name: str, *operands: Value, **attrs: AttrValue) -> Value:
        return builder.emit(name, operands, attrs, locations=op.locations)[0]

    if (known := constant_of(value)) is not None and known.array.ndim == len(axes):
        return emit("constant", value=ConstArray(np.transpose(known.array, axes)))
    spread = value.op
    if spread is None or spread.name != "broadcast_to" or len(shape_of(value)) != len(axes):
        return None
    (small,) = spread.operands
    shape = tuple([shape_of(value)[a] for a in axes])
    own = shape_of(small)
    if None in own:
        return None
    if own:
        missing = len(axes) - len(own)
        if missing:
            small = emit("reshape", small, shape=(1,) * missing + own)
        small = emit("permute_dims", small, axes=axes)
    return emit("broadcast_to", small, shape=shape)


def _parted(whole: Shape, parts: Shape) -> int | None:
    """Which axis of a shape is two of another, which has all others; None if none is."""
    for k, size in enumerate(whole):
        two = parts[k : k + 2]
        if whole[:k] != parts[:k] or whole[k + 1 :] != parts[k + 2 :]:
            continue
        if isinstance(size, int) and all(isinstance(d, int) for d in two):
            if size == math.prod(two):  # type: ignore[arg-type]
                return k
    return None


def _inverse(axes: Axes) -> Axes:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _elementwise(op: Operation, axes: Axes) -> tuple[_Attrs, Axes]:
    return dict(op.attrs), axes


def _reduction(op: Operation, axes: Axes) -> tuple[_Attrs, Axes]:
    gone = ints_attr(op.attrs, "axes")
    attrs = {**op.attrs, "axes": tuple(sorted(axes[a] for a in gone))}
    if op.attrs["keepdims"]:
        return attrs, axes
    kept = [a for k, a in enumerate(axes) if k not in gone]
    return attrs, tuple([sorted(kept).index(a) for a in kept])


def _along(op: Operation, axes: Axes) -> tuple[_Attrs, Axes]:
    return {**op.attrs, "axis": axes[int_attr(op.attrs, "axis")]}, axes


def _each_axis(*names: str) -> Callable[[Operation, Axes], tuple[_Attrs, Axes]]:
    """Attributes with a number for each axis."""

    def how(op: Operation, axes: Axes) -> tuple[_Attrs, Axes]:
        back = _inverse(axes)
        moved: _Attrs = {}
        for name in names:
            given = op.attrs[name]
            assert isinstance(given, tuple)
            moved[name] = tuple([given[a] for a in back])
        return {**op.attrs, **moved}, axes

    return how


_OTHERS = {
    "concat": _along,
    "cumulative_sum": _along,
    "take": _along,
    "pad": _each_axis("lo", "hi"),
    "slice": _each_axis("starts", "stops", "steps"),
}
