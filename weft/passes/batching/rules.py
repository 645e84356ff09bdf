"""Batching rules: what each op becomes for operands that have a batch axis in front.

A rule is called with a `Site` and returns the results, all batched; or None where it knows no
better way than one row after the other. Rules keep products large: rows that share a matrix are
rows of one product, and convolutions that share a kernel are one convolution of a larger batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim
from weft.ir.dtypes import bool_, int64, uint32, uint64
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.ops.collectives import member_types
from weft.ir.ops.fourier import FOURIER
from weft.ir.ops.random import PARITY, ROTATIONS, ROUNDS
from weft.ir.spec import Attrs, AttrValue, int_attr, ints_attr, shape_attr
from weft.ir.types import StackType, TensorType, Type
from weft.passes.rewriting.buckets import packed, summed, taken_apart
from weft.passes.rewriting.expression import Expr


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """The op that is to be done for all rows.

    operands: its new operands; batched: whether each has the batch axis, of `size`, in front.
    """

    op: Operation
    builder: Builder
    size: Dim
    operands: tuple[Expr, ...]
    batched: tuple[bool, ...]

    @property
    def attrs(self) -> Attrs:
        """The op's attributes."""
        return self.op.attrs

    @property
    def axis(self) -> int:
        """The attribute `axis`."""
        return int_attr(self.attrs, "axis")

    def full(self, number: int) -> Expr:
        """An operand with the batch axis: repeated if all rows share it."""
        x = self.operands[number]
        if self.batched[number]:
            return x
        return x.wrap(with_rows(self.builder, x.value, self.size, self.op.locations))

    @property
    def all(self) -> list[Expr]:
        """All operands with the batch axis."""
        return [self.full(k) for k in range(len(self.operands))]

    def emit(self, operands: Sequence[Expr], **changed: AttrValue) -> list[Expr]:
        """The op on other operands, with some attributes changed."""
        made = self.builder.emit(
            self.op.name,
            [x.value for x in operands],
            {**self.attrs, **changed},
            locations=self.op.locations,
        )
        return [Expr(self.builder, v, self.op.locations) for v in made]

    def __call__(self, *operands: Expr, **changed: AttrValue) -> Expr:
        """As `emit`, for an op of one result."""
        (made,) = self.emit(operands, **changed)
        return made


#: Ops on inexact numbers whose bits depend on shapes: on the order in which they add up.
ADDS_UP = frozenset(
    {
        "sum", "prod", "cumulative_sum", "cumulative_prod", "cumulative_logsumexp", "index_add",
        "scatter_along_axis_add", "scatter_nd_add", "fft", "rfft", "irfft", "matmul", "attention",
        "attention_grad", "cholesky", "lu", "lu_solve", "triangular_solve", "qr", "eigh", "svd",
        "eig", "conv", "conv_input", "conv_kernel", "window_sum", "window_spread",
    }
)  # fmt: skip
Rule = Callable[[Site], Sequence[Expr] | None]


def batched_type(kind: Type, size: Dim) -> Type:
    """The type of a batch of values of a type: tensors with a further first axis, and stacks of
    those."""
    if isinstance(kind, StackType):
        element = batched_type(kind.element, size)
        assert isinstance(element, (TensorType, StackType))
        return StackType(element)
    if isinstance(kind, TensorType):
        return TensorType(kind.dtype, (size, *kind.shape))
    raise UnsupportedError(f"vmap: a {kind} has no batch of rows")


class SharedStack(UnsupportedError):
    """A stack that all rows share is to hold what differs from row to row. number: of the argument
    of a region that it is."""

    value: Value
    number: int | None = None


def with_rows(builder: Builder, value: Value, size: Dim, where: Locations) -> Value:
    """The value repeated for all rows: of a stack, only one without elements."""
    if isinstance(value.type, TensorType):
        return Expr(builder, value, where).broadcast_to((size, *value.type.shape)).value
    made = value.op
    if isinstance(value.type, StackType) and made is not None and made.name == "stack_new":
        shape = (size, *shape_attr(made.attrs, "shape"))
        return builder.emit("stack_new", (), {**made.attrs, "shape": shape}, locations=where)[0]
    error = SharedStack(
        f"vmap: a {value.type} that all rows share meets one that differs from row to row",
        hint="differentiate within the function that wf.vmap is given, or around wf.vmap",
        location=where,
    )
    error.value = value
    raise error


# ------------------------------------------------------------------------------ by the op's shape
def _elementwise(s: Site) -> Sequence[Expr]:
    return s.emit(s.all)


def _ensure_shape(s: Site) -> Sequence[Expr] | None:
    if s.attrs["sizes"]:
        return None
    return s.emit(s.operands, shape=(s.size, *shape_attr(s.attrs, "shape")))


def _axes(s: Site) -> Sequence[Expr]:
    return s.emit(s.operands, axes=tuple(a + 1 for a in ints_attr(s.attrs, "axes")))


def _axis(s: Site) -> Sequence[Expr]:
    return s.emit(s.all, axis=s.axis + 1)


def _broadcast(s: Site) -> Sequence[Expr]:
    (x,) = s.operands
    shape = shape_attr(s.attrs, "shape")
    ones = (1,) * (len(shape) - x.rank + 1)
    return [x.reshape((x.shape[0], *ones, *x.shape[1:])).broadcast_to((s.size, *shape))]


def _reshape(s: Site) -> Sequence[Expr]:
    return s.emit(s.operands, shape=(s.size, *shape_attr(s.attrs, "shape")))


def _permute(s: Site) -> Sequence[Expr]:
    return s.emit(s.operands, axes=(0, *(a + 1 for a in ints_attr(s.attrs, "axes"))))


def _slice(s: Site) -> Sequence[Expr]:
    starts, stops, steps = (shape_attr(s.attrs, name) for name in ("starts", "stops", "steps"))
    return s.emit(s.all, starts=(0, *starts), stops=(s.size, *stops), steps=(1, *steps))


def _pad(s: Site) -> Sequence[Expr]:
    x, fill = s.full(0), s.operands[1]
    lo, hi = (0, *ints_attr(s.attrs, "lo")), (0, *ints_attr(s.attrs, "hi"))
    if not s.batched[1]:
        return [s(x, fill, lo=lo, hi=hi)]
    inside = x.scalar(True, bool_).broadcast_to(x.shape)
    mask = inside.op("pad", inside.scalar(False), lo=lo, hi=hi)
    padded = s(x, x.scalar(0), lo=lo, hi=hi)
    return [mask.where(padded, fill.spread(padded.shape))]


# ----------------------------------------------------------------------------------------- indices
def _index(x: Expr) -> Expr:
    """Indices beside which the number of a row fits."""
    return x if x.dtype in (int64, uint64) else x.astype(int64)


def _beside_rows(s: Site, indices: Expr) -> Expr:
    """Batched indices (rows, ..., k) of parts as (rows, ..., k + 1): the row's number first."""
    indices = _index(indices)
    number = indices.iota((*indices.shape[:-1], 1), 0, indices.dtype)
    return number.op("concat", indices, axis=indices.rank - 1)


def _moved(x: Expr, source: int, target: int) -> Expr:
    """The axis `source` moved to be number `target`."""
    axes = [k for k in range(x.rank) if k != source]
    axes.insert(target, source)
    return x.permute(axes)


def _take(s: Site) -> Sequence[Expr]:
    x, indices = s.operands
    if not s.batched[1]:
        return [s(x, indices, axis=s.axis + 1)]
    if not s.batched[0]:
        return [_moved(s(x, indices), s.axis, 0)]
    rows = _moved(x, s.axis + 1, 1)
    columns = _beside_rows(s, indices.reshape((*indices.shape, 1)))
    parts = rows.op("gather_nd", columns)  # (rows, indices..., before the axis..., after it...)
    for k in range(s.axis):
        parts = _moved(parts, indices.rank + k, 1 + k)
    return [parts]


def _index_add(s: Site) -> Sequence[Expr]:
    x, indices, updates = s.full(0), s.operands[1], s.full(2)
    if not s.batched[1]:
        return [s(x, indices, updates, axis=s.axis + 1)]
    rows = _moved(x, s.axis + 1, 1)
    for _ in range(s.axis):  # what is before the axis goes behind the indices
        updates = _moved(updates, 1, indices.rank + s.axis - 1)
    columns = _beside_rows(s, indices.reshape((*indices.shape, 1)))
    return [_moved(rows.op("scatter_nd_add", columns, updates), 1, s.axis + 1)]


def _gather_nd(s: Site) -> Sequence[Expr]:
    if not s.batched[0]:
        return s.emit(s.operands)
    return [s(s.operands[0], _beside_rows(s, s.full(1)))]


def _scatter_nd(s: Site) -> Sequence[Expr]:
    return [s(s.full(0), _beside_rows(s, s.full(1)), s.full(2))]


def _searchsorted(s: Site) -> Sequence[Expr] | None:
    return None if s.batched[0] else s.emit(s.operands)


# ---------------------------------------------------------------------------------------- products
def _matmul(s: Site) -> Sequence[Expr]:
    a, b = s.operands
    if not s.batched[1] and b.rank == 2 and a.rank == 3:
        made = _rows_of_one_product(s, a, b)
    elif not s.batched[0] and a.rank == 2 and b.rank == 3:
        made = _columns_of_one_product(s, a, b)
    else:
        made = None
    if made is not None:
        return [made]
    rank = max(x.rank - is_batched for x, is_batched in zip(s.operands, s.batched, strict=True))
    aligned = [
        x.reshape((s.size, *(1,) * (rank + 1 - x.rank), *x.shape[1:])) if is_batched else x
        for x, is_batched in zip(s.operands, s.batched, strict=True)
    ]
    return s.emit(aligned)


def _rows_of_one_product(s: Site, a: Expr, b: Expr) -> Expr | None:
    """(rows, m, k) times a shared (k, n): the rows of one product."""
    if s.attrs["transpose_a"]:
        if a.shape[2] != 1:
            return None
        a = a.reshape((s.size, 1, a.shape[1]))
    merged = a.reshape((_times(s.size, a.shape[1]), a.shape[2]))
    made = s(merged, b, transpose_a=False)
    return made.reshape((s.size, a.shape[1], made.shape[1]))


def _columns_of_one_product(s: Site, a: Expr, b: Expr) -> Expr | None:
    """A shared (m, k) times (rows, k, 1): the vectors are the rows of one product."""
    if b.shape[1 if s.attrs["transpose_b"] else 2] != 1:
        return None
    vectors = b.reshape((s.size, b.shape[2 if s.attrs["transpose_b"] else 1]))
    made = s(vectors, a, transpose_a=False, transpose_b=not s.attrs["transpose_a"])
    return made.reshape((*made.shape, 1))


def _times(a: Dim, b: Dim) -> Dim:
    return None if a is None or b is None else a * b


def _merged(x: Expr, axis: int) -> Expr:
    """The axes `axis` and `axis + 1` as one."""
    shape = x.shape
    return x.reshape((*shape[:axis], _times(shape[axis], shape[axis + 1]), *shape[axis + 2 :]))


def _split(x: Expr, axis: int, size: Dim, rest: Dim) -> Expr:
    return x.reshape((*x.shape[:axis], size, rest, *x.shape[axis + 1 :]))


def _windows(s: Site) -> Sequence[Expr]:
    """Rows are parts of the batch that the op has."""
    given = s.all
    made = s(*(_merged(x, 0) for x in given))
    return [_split(made, 0, s.size, given[0].shape[1])]


def _conv(s: Site) -> Sequence[Expr] | None:
    x, w = s.operands
    if not s.batched[1]:
        made = s(_merged(x, 0), w)
        return [_split(made, 0, s.size, x.shape[1])]
    return _grouped(s)


def _conv_kernel(s: Site) -> Sequence[Expr] | None:
    return _grouped(s)


def _grouped(s: Site) -> Sequence[Expr] | None:
    """Rows as groups of channels, which are the last axis of all operands and of the result."""
    if not isinstance(s.size, int):
        return None
    given = [_merged(_moved(x, 0, x.rank - 2), x.rank - 2) for x in s.all]
    made = s(*given, groups=int_attr(s.attrs, "groups") * s.size)
    kind = s.op.result.type
    assert isinstance(kind, TensorType)
    return [_moved(_split(made, made.rank - 1, s.size, kind.shape[-1]), made.rank - 1, 0)]


def _attention(s: Site) -> Sequence[Expr]:
    """Queries, keys and values have leading axes; a mask is aligned from the right."""
    given = s.all
    rank = given[0].rank
    if (s.op.name == "attention" and len(given) > 3) or len(given) > 6:
        mask = s.operands[3]
        if s.batched[3]:
            mask = mask.reshape((s.size, *(1,) * (rank - mask.rank), *mask.shape[1:]))
        given[3] = mask
    return s.emit(given)


def _solve(s: Site) -> Sequence[Expr]:
    """Rows that share a matrix are columns of one right-hand side."""
    *matrices, b = s.operands
    shared = not any(s.batched[:-1]) and all(a.rank <= 2 for a in matrices) and b.rank == 3
    if not shared:
        return s.emit(s.all)
    columns = _merged(_moved(b, 0, 1), 1)
    return [_moved(_split(s(*matrices, columns), 1, s.size, b.shape[2]), 1, 0)]


# ----------------------------------------------------------------------------------------- numbers
def draw_rows(s: Site) -> Expr:
    """Random bits for all rows by one key, which they share."""
    (key,) = s.operands
    return s(key, shape=(s.size, *shape_attr(s.attrs, "shape")))


def _random_bits(s: Site) -> Sequence[Expr]:
    """Threefry by ops, for keys (rows, 2): the bits that each key gives alone."""
    (key,) = s.operands
    shape = shape_attr(s.attrs, "shape")
    count: Dim = 1
    for d in shape:
        count = _times(count, d)
    if not isinstance(count, int):
        raise UnsupportedError(
            "vmap: random numbers of a size that is not known, with a key for each row",
            location=s.op.locations,
        )
    blocks = (count + 1) // 2
    counter = key.iota((s.size, blocks), 1, uint32)
    words = _threefry(s, key, counter)
    both = [w.reshape((s.size, blocks, 1)) for w in words]
    flat = both[0].op("concat", both[1], axis=2).reshape((s.size, 2 * blocks))
    return [flat.slice_axis(1, 0, count).reshape((s.size, *shape))]


def _fold_in(s: Site) -> Sequence[Expr]:
    key, data = s.full(0), s.full(1)
    words = _threefry(s, key, data.reshape((s.size, 1)))
    return [words[0].op("concat", words[1], axis=1)]


def _threefry(s: Site, key: Expr, low: Expr) -> tuple[Expr, Expr]:
    """As `weft.ir.ops.random.threefry2x32`: two words for each of the counters (rows, n)."""
    parts = [key.slice_axis(1, k, k + 1).broadcast_to(low.shape) for k in range(2)]
    third = parts[0].op("bitwise_xor", parts[1]).op("bitwise_xor", parts[0].full(int(PARITY)))
    schedule = (*parts, third)
    x, y = low + schedule[0], schedule[1]
    for i in range(ROUNDS):
        bits = ROTATIONS[i % 8]
        x = x + y
        left = y.op("bitwise_left_shift", bits)
        y = left.op("bitwise_or", y.op("bitwise_right_shift", 32 - bits)).op("bitwise_xor", x)
        if i % 4 == 3:  # a key injection after every four rounds
            n = i // 4 + 1
            x = x + schedule[n % 3]
            y = y + schedule[(n + 1) % 3] + n
    return x, y


# ------------------------------------------------------------------- collectives of another axis
def _gather_rows(s: Site) -> Sequence[Expr]:
    return [_moved(s(*s.operands), 1, 0)]


def _scatter_rows(s: Site) -> Sequence[Expr]:
    return s.emit([_moved(s.operands[0], 1, 0)])


def _exchange_rows(s: Site) -> Sequence[Expr]:
    return [_moved(s(_moved(s.operands[0], 1, 0)), 1, 0)]


def _process_rows(s: Site) -> Sequence[Expr] | None:
    """Of an exchange: the axes of a row are behind that of the rows. A sum in two halves becomes
    one that is waited for, as nobody places a batch of buckets."""
    kind = str(s.attrs.get("kind", s.op.name))
    if kind == "start":
        return [summed(packed(s.all, member_types(s.op)), s.op)]
    if kind == "done":
        return taken_apart(s.full(0), member_types(s.op))
    if kind in _BY_ROW:
        return _BY_ROW[kind](s)
    if kind in ("split", "join"):
        return s.emit(s.operands, dim=int_attr(s.attrs, "dim") + 1)
    return s.emit(s.operands)


_BY_ROW: Mapping[str, Rule] = {
    "all_gather": _gather_rows,
    "psum_scatter": _scatter_rows,
    "all_to_all": _exchange_rows,
}


def collective(s: Site) -> tuple[Expr, bool]:
    """A collective over the axis of this batch, and whether what it gives differs by row."""
    name = s.op.name
    if name == "axis_index":
        rows: AttrValue = (s.size,)
        attrs: dict[str, AttrValue] = {"dtype": int64, "shape": rows, "axis": 0}
        made = s.builder.emit1("iota", locations=s.op.locations, **attrs)
        return Expr(s.builder, made, s.op.locations), True
    x = s.full(0)
    if name in ("psum", "pmax", "pmin", "psum_scatter"):
        kind = {"pmax": "max", "pmin": "min"}.get(name, "sum")
        return x.op(kind, axes=(0,), keepdims=False), name == "psum_scatter"
    if name == "all_gather":
        return x, False
    if name == "all_to_all":
        return _moved(x, 1, 0), True
    sources = np.array(ints_attr(s.attrs, "sources"), np.int64)
    taken = x.op("take", x.constant(sources.clip(0)), axis=0)
    if (sources >= 0).all():
        return taken, True
    there = (sources >= 0).reshape((-1, *(1,) * (x.rank - 1)))
    return x.constant(there).broadcast_to(x.shape).where(taken, x.full(0)), True


#: By op; elementwise ops and reductions are added from their traits.
RULES: Mapping[str, Rule] = {
    **dict.fromkeys((*_BY_ROW, "exchange"), _process_rows),
    **{name: _elementwise for name, spec in OPS.items() if "elementwise" in spec.traits},
    **{name: _axes for name, spec in OPS.items() if "reduction" in spec.traits},
    **dict.fromkeys(
        (
            "identity",
            "stop_gradient",
            "tap",
            "loop_mark",
            "row_guard",
            "optimization_barrier",
            "psum",
            "pmax",
            "pmin",
            "ppermute",
            "stack_push",
            "stack_pop",
            "stack_add",
            "as_string",
            "string_join",
            "string_length",
            "string_to_hash_bucket",
            "string_to_hash_bucket_fast",
            "string_to_number",
            "string_case",
            "string_strip",
            "regex_replace",
            "regex_full_match",
            "string_length_utf8",
            "unicode_transcode",
            "string_to_hash_bucket_strong",
            "encode_base64",
            "decode_base64",
        ),
        _elementwise,
    ),
    **dict.fromkeys(
        (
            "argmax",
            "argmin",
            "sort",
            "argsort",
            "concat",
            "take_along_axis",
            "scatter_along_axis_add",
            "cumulative_sum",
            "cumulative_prod",
            "cumulative_max",
            "cumulative_min",
            "cumulative_logsumexp",
        ),
        _axis,
    ),
    "broadcast_to": _broadcast,
    "reshape": _reshape,
    "ensure_shape": _ensure_shape,
    "permute_dims": _permute,
    "slice": _slice,
    "slice_update": _slice,
    "pad": _pad,
    "take": _take,
    "index_add": _index_add,
    "gather_nd": _gather_nd,
    **dict.fromkeys(
        ("scatter_nd_add", "scatter_nd_update", "scatter_nd_min", "scatter_nd_max"), _scatter_nd
    ),
    "searchsorted": _searchsorted,
    "matmul": _matmul,
    "conv": _conv,
    "conv_input": _conv,
    "conv_kernel": _conv_kernel,
    **dict.fromkeys(
        ("window_max", "window_sum", "window_spread", "window_pick", "window_place"), _windows
    ),
    **dict.fromkeys(("cholesky", "lu", "qr", "eigh", "svd", "eig"), _elementwise),
    **dict.fromkeys(("lu_solve", "triangular_solve"), _solve),
    **dict.fromkeys(FOURIER, _axis),
    "attention": _attention,
    "attention_grad": _attention,
    "random_bits": _random_bits,
    "random_fold_in": _fold_in,
}
