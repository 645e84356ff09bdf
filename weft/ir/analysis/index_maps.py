"""Index maps: ops that only say where an element is read from, as offset and strides.

`broadcast_to`, `permute_dims`, `slice` and reshapes that add or drop dimensions of size 1 move no
data. A value seen through them is a `Read`: element i of it is the element at
`offset + sum(i[k] * strides[k])` of another value, in elements of that one in row-major order.
`over_rows` turns strides over a space of any rank into strides over (rows, columns).

Inside a loop nest, gathers (`GATHERS`) are maps too: what they read depends on elements of their
index operand, each of which adds a `Pick` to the place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape
from weft.ir.errors import InternalError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.spec import ConstArray, int_attr, ints_attr
from weft.ir.types import TensorType

INDEX_MAPS = frozenset({"broadcast_to", "permute_dims", "slice", "iota"})
#: Ops that read elements at indices; a nest may read through them (`weft.passes.fusion.gathers`).
GATHERS = frozenset({"take", "gather_nd"})


@dataclass(frozen=True, slots=True)
class Read:
    """A value seen through index maps: its elements are in `source`, by strides over the value's
    dimensions.

    picks: indices in memory that say more about the place.
    """

    source: Value
    offset: int
    strides: tuple[int, ...]
    picks: tuple[Pick, ...] = ()


@dataclass(frozen=True, slots=True)
class Pick:
    """The element that `index` reads, counted from the end if negative, times `stride`; it is in
    bounds of an axis of that size.
    """

    index: Read
    stride: int
    size: int


def shape_of(value: Value) -> Shape:
    """The shape of a tensor value; () for anything else."""
    return value.type.shape if isinstance(value.type, TensorType) else ()


def static_shape(value: Value) -> tuple[int, ...]:
    """The shape of a tensor whose dimensions are all known. InternalError for other values."""
    if not isinstance(value.type, TensorType):
        raise InternalError(f"a loop nest holds a value of type {value.type}")
    return value.type.static_shape


def is_scalar_constant(op: Operation | None) -> bool:
    """A constant of rank 0 that is not a string: it lives inside the kernels that use it."""
    if op is None or op.name != "constant":
        return False
    value = op.attrs["value"]
    return isinstance(value, ConstArray) and value.array.ndim == 0 and value.dtype.kind != "string"


def is_index_map(op: Operation | None) -> bool:
    """Whether `op` only says where an element is read from."""
    if op is None:
        return False
    name = op.name
    if name == "reshape":
        source, target = shape_of(op.operands[0]), shape_of(op.result)
        return [d for d in source if d != 1] == [d for d in target if d != 1]
    return name in INDEX_MAPS or (name == "constant" and is_scalar_constant(op))


def is_constant(value: Value) -> bool:
    """Whether `value` is a constant, seen through index maps."""
    op = value.op
    while op is not None and is_index_map(op) and op.operands:
        op = op.operands[0].op
    return op is not None and op.name == "constant"


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a C-contiguous array; 0 for dimensions of size 1."""
    out, step = [0] * len(shape), 1
    for k in reversed(range(len(shape))):
        out[k] = step if shape[k] != 1 else 0
        step *= shape[k]
    return tuple(out)


def read_of(value: Value) -> Read:
    """`value` as a read of the value behind the index maps that made it (itself, if none did).

    An iota or a constant is not looked behind: it is the source; strides and offset of a read of an
    iota give the index itself. Static shapes only.
    """
    chain: list[Operation] = []
    while value.op is not None and value.op.operands and is_index_map(value.op):
        chain.append(value.op)
        value = value.op.operands[0]
    read = Read(value, 0, contiguous_strides(static_shape(value)))
    if value.op is not None and value.op.name == "iota":
        axis = value.op.attrs["axis"]
        read = replace(read, strides=tuple(int(k == axis) for k in range(len(read.strides))))
    for op in reversed(chain):
        read = _mapped(op, read)
    return read


def nest_read(value: Value) -> Read:
    """As `read_of`, for values in the region of a ``fused`` op: it looks behind gathers too."""
    read = read_of(value)
    op = read.source.op
    if op is None or not is_gather(op):
        return read
    chain: list[Operation] = []
    while value is not op.result:
        assert value.op is not None
        chain.append(value.op)
        value = value.op.operands[0]
    read = _gathered(op)
    for outer in reversed(chain):
        mapped = tuple(replace(p, index=_mapped(outer, p.index)) for p in read.picks)
        read = replace(_mapped(outer, read), picks=mapped)
    return read


def is_gather(op: Operation) -> bool:
    """Whether a nest may read through the op though what it reads depends on indices."""
    return op.name in GATHERS


def _gathered(op: Operation) -> Read:
    """The read of a gather's result. Its index operand is in memory, row by row."""
    table, index = read_of(op.operands[0]), op.operands[1]
    shape, picked = static_shape(op.operands[0]), static_shape(index)
    place, inside = Read(index, 0, contiguous_strides(picked)), table.strides
    if op.name == "gather_nd":
        depth, walk = picked[-1], place.strides
        rest = (0,) * (len(shape) - depth)
        picks = [
            Pick(Read(index, k * walk[-1], walk[:-1] + rest), inside[k], shape[k])
            for k in range(depth)
        ]
        return replace(table, strides=(0,) * (len(picked) - 1) + inside[depth:], picks=tuple(picks))
    axis = int_attr(op.attrs, "axis")
    before, after = inside[:axis], inside[axis + 1 :]
    place = replace(place, strides=(0,) * axis + place.strides + (0,) * len(after))
    strides = before + (0,) * len(picked) + after
    return replace(table, strides=strides, picks=(Pick(place, inside[axis], shape[axis]),))


def _mapped(op: Operation, inner: Read) -> Read:
    """The read of the result of an index map, given that of its operand."""
    source, target = static_shape(op.operands[0]), static_shape(op.result)
    strides = inner.strides
    if op.name == "permute_dims":
        axes: tuple[int, ...] = op.attrs["axes"]  # type: ignore[assignment]
        return replace(inner, strides=tuple(strides[a] for a in axes))
    if op.name == "broadcast_to":
        grown = len(target) - len(source)
        kept = tuple(0 if d == 1 else s for d, s in zip(source, strides, strict=True))
        return replace(inner, strides=(0,) * grown + kept)
    if op.name == "slice":
        starts: tuple[int, ...] = op.attrs["starts"]  # type: ignore[assignment]
        steps: tuple[int, ...] = op.attrs["steps"]  # type: ignore[assignment]
        offset = inner.offset + sum(a * s for a, s in zip(starts, strides, strict=True))
        scaled = tuple(s * t for s, t in zip(strides, steps, strict=True))
        return replace(inner, offset=offset, strides=scaled)
    if op.name == "reshape":
        moving = iter([s for d, s in zip(source, strides, strict=True) if d != 1])
        return replace(inner, strides=tuple(0 if d == 1 else next(moving) for d in target))
    raise InternalError(f"op '{op.name}' is not an index map of one operand")


@dataclass(frozen=True, slots=True)
class RowSpace:
    """The loops of a row kernel: all of `space`, and which of its axes are within a row.

    A row value has one element for each row: its dimensions other than 1 are the outer axes of
    `space` other than 1, in order.
    """

    space: tuple[int, ...]
    inner: tuple[int, ...]

    @property
    def outer(self) -> tuple[int, ...]:
        """The axes that number the rows."""
        return tuple(k for k in range(len(self.space)) if k not in self.inner)

    @property
    def by_columns(self) -> bool:
        """Whether neighbouring elements are of different rows: those are columns then."""
        return max(wide_axes(self.space)) not in self.inner

    def is_row_shape(self, shape: Shape) -> bool:
        """Whether a value of this shape may be one number for each row."""
        return [d for d in shape if d != 1] == [
            self.space[k] for k in self.outer if self.space[k] != 1
        ]

    def over_axes(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
        """Strides over the dimensions of `shape` - the space itself, or a row shape - by axis."""
        if shape == self.space:
            return strides
        moving = iter([s for d, s in zip(shape, strides, strict=True) if d != 1])
        out = [0] * len(self.space)
        for k in self.outer:
            if self.space[k] != 1:
                out[k] = next(moving)
        return tuple(out)

    def reads_own_element(self, read: Read, shape: tuple[int, ...]) -> bool:
        """Does an op over `shape` that reads so read the number of its own element or row?"""
        made = static_shape(read.source)
        if made != self.space and not self.is_row_shape(made):
            return False
        own = self.over_axes(made, contiguous_strides(made))
        return read.offset == 0 and self.over_axes(shape, read.strides) == own


def wide_axes(shape: Sequence[object]) -> frozenset[int]:
    """The axes of more than one element."""
    return frozenset(k for k, d in enumerate(shape) if d != 1)


def index_operand(op: Operation) -> Value:
    """The indices of a gather, a scatter or a `first_occurrence`."""
    return op.operands[0 if op.name == "first_occurrence" else 1]


def index_sizes(op: Operation) -> tuple[int, ...]:
    """The sizes of the axes that the indices of `index_operand` are of."""
    size, axis = op.attrs.get("size"), op.attrs.get("axis")
    if op.name == "sparse_matmul":
        sizes = (static_shape(op.result)[0], static_shape(op.operands[0])[0])
        return sizes[::-1] if op.attrs["row"] else sizes
    if isinstance(size, int):  # first_occurrence: of an array that is no operand
        return (size,)
    shape = static_shape(op.operands[0])
    depth = static_shape(op.operands[1])[-1] if axis is None else 0
    return (shape[axis],) if isinstance(axis, int) else shape[:depth]


def is_reduction(op: Operation | None) -> bool:
    """Whether the op folds axes (`sum`, `max`, ...)."""
    return op is not None and "reduction" in lookup(op.name).traits


def indexed_axis(op: Operation) -> int | None:
    """The axis along which `take_along_axis` reads, or `scatter_along_axis_add` changes, one
    element of each row of a static shape; None for other ops and other cases.
    """
    if op.name not in ("take_along_axis", "scatter_along_axis_add"):
        return None
    axis, shape, picks = int_attr(op.attrs, "axis"), shape_of(op.operands[0]), op.operands[1]
    one = tuple(1 if k == axis else d for k, d in enumerate(shape))
    static = all(isinstance(d, int) for d in shape)
    return axis if static and shape_of(picks) == one and shape[axis] != 1 else None


def is_fold(op: Operation) -> bool:
    """Whether the op gives one number for each row: a reduction, or one element of each row."""
    return is_reduction(op) or (op.name == "take_along_axis" and indexed_axis(op) is not None)


def folded(op: Operation) -> frozenset[int]:
    """The axes of more than one element that a reduction folds."""
    shape = shape_of(op.operands[0])
    if op.name == "take_along_axis":
        return frozenset({int_attr(op.attrs, "axis")})
    return frozenset(a for a in ints_attr(op.attrs, "axes") if shape[a] != 1)


def row_space_of(region: Block) -> RowSpace | None:
    """The row space of a ``fused`` op's region that is a row kernel; None for a plain nest.

    A plain nest has one iteration space, and reductions over one set of axes that are used nowhere
    inside. All reductions of a row kernel that take the innermost axis, but not everything, fold
    the same axes: those of the row. If there are none of these, all that do not fold everything
    fold the same axes, and the rows are columns.
    """
    folds = [op for op in region.ops if is_fold(op)]
    if not folds:
        return None
    space = max((static_shape(f.operands[0]) for f in folds), key=lambda s: len(wide_axes(s)))
    read = {v for op in region.ops for v in op.operands}
    plain = all(static_shape(f.operands[0]) == space and f.result not in read for f in folds)
    plain = plain and len({folded(f) for f in folds}) == 1
    plain = plain and all(indexed_axis(op) is None for op in region.ops)
    if plain and all(_over(op) in (None, space) for op in region.ops):
        return None
    wide = wide_axes(space)
    over_space = [folded(f) for f in folds if static_shape(f.operands[0]) == space]
    parts = [a for a in over_space if a not in (wide, frozenset())]
    inner = next((a for a in parts if max(wide) in a), parts[0] if parts else None)
    if inner is None:
        raise InternalError("the reductions of a fused op do not make one loop nest")
    return RowSpace(space, tuple(sorted(inner)))


def _over(op: Operation) -> tuple[int, ...] | None:
    """The iteration space of an elementwise op."""
    return static_shape(op.result) if "elementwise" in lookup(op.name).traits else None


def over_rows(strides: tuple[int, ...], space: tuple[int, ...]) -> tuple[int, int] | None:
    """Strides over `space` as strides over (all axes but the last in one, the last one).

    None if the outer axes are not walked as one, or it is another space. No strides (a constant) do
    not move.
    """
    if not strides:
        return 0, 0
    if len(strides) != len(space):
        return None
    step, extent = 0, 1  # of the outer axes so far, from the inside
    for stride, size in zip(reversed(strides[:-1]), reversed(space[:-1]), strict=True):
        if size == 1:
            continue
        if extent == 1:
            step = stride
        elif stride != step * extent:
            return None
        extent *= size
    return step, strides[-1]
