"""`SparseTensor`: the entries of a tensor that is 0 elsewhere, by their indices (COO).

A pytree of two tensors, so it passes through compiled functions, loops, gradients and sessions as a
tuple does (docs/decisions/0065). `dense_shape` and `padded` are part of its structure.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.ops.creation import iota, zeros
from weft.frontend.ops.dispatch import (
    apply,
    apply_dynamic,
    exact_sizes,
    nonzero_columns,
    sizes_from,
)
from weft.frontend.ops.dynamic import argwhere, unique_inverse
from weft.frontend.ops.elementwise import (
    add,
    equal,
    floor_divide,
    greater_equal,
    less,
    logical_and,
    maximum,
    multiply,
    negative,
    not_equal,
    remainder,
    where,
)
from weft.frontend.ops.indexing import NOWHERE, from_the_front, getitem, take
from weft.frontend.ops.manipulation import concat, expand_dims, stack
from weft.frontend.ops.manipulation import reshape as reshaped
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    check_int,
    filled,
    infer_shape,
    is_concrete,
    strong_tensor,
)
from weft.frontend.ops.reduction import argsort, cumulative_sum
from weft.frontend.ops.strings import SparseTensorValue
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, product, same
from weft.ir.dtypes import DType, bool_, int8, int64, string
from weft.ir.errors import (
    BoundsError,
    InvalidArgumentError,
    ShapeError,
    TracerError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.locations import caller_location
from weft.ir.process import load as _load

# these import the class: its operators load them when used
_ARITHMETIC, _PRODUCTS = "weft.frontend.sparse.arithmetic", "weft.frontend.sparse.products"
_SIZE = "a size in dense_shape"


class SparseTensor:
    """A tensor of `dense_shape` with `values` at `indices`, and 0 elsewhere.

    indices: integers [n, rank], in any order; equal ones add up. values: [n], of any dtype.
    dense_shape: sizes, at least one: ints, sizes of a graph, or integers [rank] as a tensor, which
    a graph may compute. padded: entries whose index is dense_shape itself, at the
    end of each axis, are none: they fill up a fixed number of entries (`from_dense(x, nse=)`); of
    indices that are traced, all whose first one is too large.
    `+`, `-` with a SparseTensor or a tensor, `*` and `/` with these or a number, `**` by a number
    and `@` work; it becomes dense by `to_dense()` only. Other functions of tensors raise
    TypeRuleError. BoundsError for an index out of range: here if it is known, else when it
    is used. ShapeError for shapes that do not fit.

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], (3, 2))
    >>> a.to_dense()
    Tensor([[0., 5.],
            [0., 0.],
            [7., 0.]], dtype=float32)
    >>> a @ wf.asarray([1.0, 10.0])
    Tensor([50.,  0.,  7.], dtype=float32)
    """

    __slots__ = ("dense_shape", "indices", "padded", "values")
    __array_ufunc__ = None  # NumPy's operators leave it to ours
    indices: Tensor
    values: Tensor
    dense_shape: tuple[Any, ...]
    padded: bool

    def __init__(
        self, indices: Any, values: Any, dense_shape: Any, *, padded: builtins.bool = False
    ) -> None:
        self.values = strong_tensor(values)
        self.dense_shape = _sizes(dense_shape)
        self.padded = builtins.bool(padded)
        rank = len(self.dense_shape)
        given = strong_tensor(indices)
        if is_concrete(given) and given.size == 0 and (given.ndim < 2 or given.shape == (0, rank)):
            given = zeros((0, rank), dtype=int64)  # [] and np.zeros((0, rank)) are float
        if not given.dtype.is_integer:
            raise TypeRuleError(
                f"wf.sparse.SparseTensor: indices must be integers, got {given.describe()}",
                hint="convert them with wf.astype(indices, wf.int64)",
                location=caller_location(),
            )
        i, v = given.shape, self.values.shape
        if len(i) != 2 or len(v) != 1 or not same(i[0], v[0]) or not same(i[1], rank) or not rank:
            raise ShapeError(
                f"wf.sparse.SparseTensor: indices of shape {format_shape(i)} and values of shape "
                f"{format_shape(v)} are no entries of a tensor of shape "
                f"{format_shape(self.dense_shape)}",
                hint="indices are [n, rank], values [n], dense_shape has rank >= 1 sizes",
                location=caller_location(),
            )
        self.indices = _checked(cast(given, int64), self.dense_shape, self.padded)

    # ---------------------------------------------------------------------------------- properties
    @property
    def dtype(self) -> DType:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """`dense_shape`."""
        return self.dense_shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.dense_shape)

    @property
    def nse(self) -> Dim:
        """The number of entries that are stored (JAX's name), padding and zeros among them."""
        return self.values.shape[0]

    def __repr__(self) -> str:
        padded = ", padded=True" if self.padded else ""
        return (
            f"SparseTensor(indices={self.indices!r}, values={self.values!r}, "
            f"dense_shape={self.dense_shape}{padded})"
        )

    # --------------------------------------------------------------------------- what it stands for
    def to_dense(self, default_value: Any = 0) -> Tensor:
        """The tensor of `dense_shape`, all of it; see `wf.sparse.to_dense`."""
        return to_dense(self, default_value)

    def with_values(self, values: TensorLike) -> SparseTensor:
        """Other values [n] at the same places: what gradients are taken with respect to.

        >>> a = wf.sparse.SparseTensor([[0, 1], [1, 0]], [3.0, 4.0], (2, 2))
        >>> wf.grad(lambda v: wf.sum(a.with_values(v).to_dense() ** 2))(a.values)
        Tensor([6., 8.], dtype=float32)
        """
        given = strong_tensor(values)
        if given.ndim != 1 or not same(given.shape[0], self.nse):
            raise ShapeError(
                f"SparseTensor.with_values: values of shape {format_shape(given.shape)} for "
                f"{self.nse} entries",
                location=caller_location(),
            )
        return made(self.indices, given, self.dense_shape, self.padded)

    # ---------------------------------------------------------------------------------- arithmetic
    def __neg__(self) -> SparseTensor:
        return self.with_values(negative(self.values))

    def __mul__(self, other: Any) -> Any:
        return _function(_ARITHMETIC, "multiply")(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return _function(_ARITHMETIC, "divide")(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _function(_ARITHMETIC, "divide")(other, self)

    def __pow__(self, other: Any) -> Any:
        return _function(_ARITHMETIC, "pow")(self, other)

    def __add__(self, other: Any) -> Any:
        return _function(_ARITHMETIC, "add")(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _function(_ARITHMETIC, "subtract")(self, other)

    def __rsub__(self, other: Any) -> Any:
        return _function(_ARITHMETIC, "subtract")(other, self)

    def __matmul__(self, other: Any) -> Any:
        return _function(_PRODUCTS, "matmul")(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _function(_PRODUCTS, "matmul")(other, self)

    def __array__(self, dtype: Any = None, copy: builtins.bool | None = None) -> NoReturn:
        raise TypeRuleError(
            f"a SparseTensor {as_text(self)} is no tensor",
            hint="make it one with .to_dense(), or use the functions of wf.sparse",
            location=caller_location(),
        )


def _function(module: str, name: str) -> Any:
    return _load(module, name)


def _flatten(x: SparseTensor) -> tuple[Sequence[Any], Hashable]:
    return (x.indices, x.values), (x.dense_shape, x.padded)


def made(indices: Any, values: Any, dense_shape: Any, padded: bool = False) -> SparseTensor:
    """A SparseTensor of what is known to fit; leaves of the pytree may be anything."""
    out = object.__new__(SparseTensor)
    out.indices, out.values, out.dense_shape, out.padded = indices, values, dense_shape, padded
    return out


def _unflatten(meta: Any, leaves: list[Any]) -> SparseTensor:
    return made(*leaves, *meta)


pytree.register_pytree(SparseTensor, _flatten, _unflatten)


class _Sized:
    """What a SparseTensor of open sizes is as a result of a function: its parts, and a scalar for
    each open size."""


def _flatten_sized(x: _Sized) -> NoReturn:
    raise AssertionError("only made as a structure")


def _of_sizes(meta: Any, leaves: list[Any]) -> Any:
    (shape, padded), (indices, values, *sizes) = meta, leaves
    numbers = iter(sizes)
    found = tuple(as_size(next(numbers)) if isinstance(d, SymbolicDim) else d for d in shape)
    return made(indices, values, found, padded)


def _as_result(node: pytree.Node) -> tuple[pytree.Node, Sequence[Any]]:
    assert isinstance(node.meta, tuple)
    sizes = [as_tensor(d) for d in node.meta[0] if isinstance(d, SymbolicDim)]
    if not sizes:
        return node, ()
    return pytree.Node(_Sized, node.meta, (None,) * (2 + len(sizes))), sizes


pytree.register_pytree(_Sized, _flatten_sized, _of_sizes)
pytree.register_result(SparseTensor, _as_result)


def as_text(x: SparseTensor) -> str:
    """`f32[3,2]` for errors."""
    return f"{x.dtype.short}{format_shape(x.dense_shape)}"


def as_sparse(op: str, x: Any) -> SparseTensor:
    """An argument of wf.sparse.`op`, or of the function of that full name, which is to be sparse.
    TypeRuleError for anything else."""
    if isinstance(x, SparseTensor):
        return x
    if isinstance(x, SparseTensorValue):
        return SparseTensor(*x)
    coo = getattr(type(x), "to_coo", None)
    if coo is not None:
        found: SparseTensor = coo(x)
        return found
    raise TypeRuleError(
        f"{op if op[:3] == 'wf.' else f'wf.sparse.{op}'} takes a wf.sparse.SparseTensor, got a "
        f"{type(x).__name__}",
        hint="wf.sparse.from_dense(x) makes one of a tensor",
        location=caller_location(),
    )


# ------------------------------------------------------------------------------------- construction
def _sizes(given: Any) -> tuple[Any, ...]:
    """`dense_shape` as ints and sizes of the graph."""
    if isinstance(given, (list, tuple)):
        return tuple(as_size(d) for d in given)
    t = as_tensor(given)
    if t.ndim != 1 or not t.dtype.is_integer or not isinstance(t.shape[0], int):
        raise ShapeError(
            f"wf.sparse.SparseTensor: dense_shape must be sizes or integers [rank], got "
            f"{t.describe()}",
            location=caller_location(),
        )
    if is_concrete(t):
        return tuple(as_size(int(n)) for n in t.numpy())
    return tuple(sizes_from("sparse.SparseTensor", t, _SIZE))


def as_size(given: Any) -> Dim:
    """A size: an int, one of the graph, or the value of a scalar."""
    if isinstance(given, SymbolicDim):
        return given
    if isinstance(given, Tensor) and not is_concrete(given):
        return sizes_from("sparse.SparseTensor", given, _SIZE)[0]
    if isinstance(given, Tensor):
        given = int(given.numpy())
    size = check_int("sparse.SparseTensor", given, _SIZE)
    if size < 0:
        raise ShapeError(
            f"wf.sparse.SparseTensor: dense_shape has the negative size {size}",
            location=caller_location(),
        )
    return size


def _checked(indices: Tensor, shape: Sequence[Any], padded: bool) -> Tensor:
    """`indices`, which must be in range. Where they are not known yet, negative ones become such
    that the op that uses them says so: others count from the end of an axis."""
    if not is_concrete(indices):
        return from_the_front(indices)
    check_range(np.asarray(indices.numpy()), shape, padded)
    return indices


def check_range(indices: np.ndarray[Any, Any], shape: Sequence[Any], padded: bool = False) -> None:
    """BoundsError if any of the indices [n, rank] is out of range; sizes that are not
    known are not looked at."""
    for axis, size in enumerate(shape):
        given = indices[:, axis]
        known = isinstance(size, int)
        if not len(given) or (given.min() >= 0 and not (known and given.max() >= size)):
            continue
        wrong = given < 0
        if known:
            wrong |= given >= size
        if padded and all(isinstance(d, int) for d in shape):
            wrong &= (indices != np.asarray(shape)).any(axis=1)
        for at in np.flatnonzero(wrong)[:1]:
            raise BoundsError(
                f"wf.sparse.SparseTensor: the index {indices[at].tolist()} of entry {at} is out of "
                f"range for dense_shape {format_shape(tuple(shape))}",
                location=caller_location(),
            )


# ---------------------------------------------------------------------------------- entries' places
def column(x: SparseTensor, axis: int) -> Tensor:
    """The index of each entry along an axis, i64[n]."""
    return getitem(x.indices, (slice(None), axis))


class Places(NamedTuple):
    """Where the entries of a SparseTensor are. there: bool [n], None if it has no padding.
    columns: the index of each axis, 0 for padding."""

    there: Tensor | None
    columns: list[Tensor]


def is_there(x: SparseTensor) -> Tensor | None:
    """bool [n], false for padding; None if there is none."""
    if not x.padded:
        return None
    return less(column(x, 0), x.dense_shape[0])


def places(x: SparseTensor) -> Places:
    """The entries' places, by axis."""
    there = is_there(x)
    columns = [column(x, i) for i in range(x.ndim)]
    if there is not None:
        columns = [where(there, c, 0) for c in columns]
    return Places(there, columns)


def real_values(x: SparseTensor, there: Tensor | None, fill: Any = 0) -> Tensor:
    """The values, and `fill` for padding."""
    if there is None:
        return x.values
    return where(there, x.values, filled(fill, x.dtype, x.values.shape))


def flat_places(what: str, columns: Sequence[Tensor], shape: Sequence[Any], n: Dim) -> Tensor:
    """The number of each place in row-major order, i64[n]. UnsupportedError if there are 2**63 or
    more."""
    total = product(shape)
    if isinstance(total, int) and total >= 2**63:
        raise UnsupportedError(
            f"wf.sparse.{what}: a tensor of shape {format_shape(tuple(shape))} has more places "
            "than int64 counts",
            location=caller_location(),
        )
    if not columns:
        return zeros((n,), dtype=int64)
    flat = columns[0]
    for further, size in zip(columns[1:], shape[1:], strict=True):
        flat = add(multiply(flat, size), further)
    return flat


def unflat(flat: Tensor, shape: Sequence[Any]) -> Tensor:
    """The indices [n, rank] of places by number; 0 in an axis of no size."""
    columns: list[Tensor] = []
    for size in reversed(shape):
        by = maximum(size, 1)
        columns.append(remainder(flat, by))
        flat = floor_divide(flat, by)
    return stack(columns[::-1], axis=1)


def nowhere(there: Tensor | None, indices: Tensor, shape: Sequence[Any]) -> Tensor:
    """`indices`, and `shape` where there is no entry; there: as `is_there` gives it."""
    if there is None:
        return indices
    ends = stack([as_tensor(d) for d in shape], axis=0)
    return where(expand_dims(there, 1), indices, expand_dims(cast(ends, int64), 0))


def scattered(
    shape: Shape, columns: Sequence[Tensor], values: Tensor, there: Tensor | None, *,
    how: str = "scatter_nd_add", fill: Any = 0,
) -> Tensor:  # fmt: skip
    """A tensor of `shape` full of `fill`, with the values [n, ...] at the places `columns` (of its
    first axes) by `how`; padding falls into a place of its own, which is left out."""
    if not columns:  # all at one place
        columns = [zeros(values.shape[:1], dtype=int64)]
        return reshaped(scattered((1, *shape), columns, values, there, how=how, fill=fill), shape)
    if there is None:
        return apply(how, filled(fill, values.dtype, shape), stack(list(columns), axis=1), values)
    depth = len(columns)
    total, rest = product(shape[:depth]), shape[depth:]
    assert total is not None
    place = where(there, flat_places("SparseTensor", columns, shape[:depth], None), total)
    base = filled(fill, values.dtype, (total + 1, *rest))
    out = apply(how, base, expand_dims(place, 1), values)
    stops, ones = (total, *rest), (1,) * (1 + len(rest))
    out = apply("slice", out, starts=(0,) * len(ones), stops=stops, steps=ones)
    return reshaped(out, shape)


def kept(
    x: SparseTensor, keep: Tensor | None, indices: Tensor, shape: Sequence[Any]
) -> SparseTensor:
    """The entries for which `keep` bool[n] is true (None: all), with other indices and shape, and
    without the padding of `x`. In a compiled function, whose sizes are fixed, the others become
    padding."""
    there = is_there(x)
    if there is not None:
        keep = there if keep is None else logical_and(keep, there)
    if keep is None:
        return made(indices, x.values, tuple(shape))
    if not exact_sizes():
        return made(
            nowhere(keep, indices, shape),
            where(keep, x.values, filled(0, x.dtype, x.values.shape)),
            tuple(shape),
            padded=True,
        )
    (chosen,) = nonzero_columns(keep, "sparse")
    return made(take(indices, chosen, axis=0), take(x.values, chosen), tuple(shape))


def together(parts: Sequence[SparseTensor]) -> SparseTensor:
    """The entries of several of one shape together."""
    return made(
        concat([p.indices for p in parts], axis=0),
        concat([p.values for p in parts], axis=0),
        parts[0].dense_shape,
        any(p.padded for p in parts),
    )


def check_count(op: str, given: Any, what: str) -> int:
    """An int that is not negative. TypeRuleError or InvalidArgumentError."""
    count = check_int(op, given, what)
    if count < 0:
        raise InvalidArgumentError(
            f"wf.{op}: {what}={count} must not be negative",
            hint=f"{what} is a number of entries: there is room for so many",
            location=caller_location(),
        )
    return count


# -------------------------------------------------------------------------------- to and from dense
def from_dense(x: TensorLike, *, nse: int | None = None) -> SparseTensor:
    """The elements of `x` that are not 0, in row-major order.

    nse: so many entries, as in JAX's `BCOO.fromdense`: the first ones, then padding. Without it the
    number depends on values, which costs a compiled function its native call, and is a TracerError
    in `wf.vmap`.

    >>> wf.sparse.from_dense([[0, 7], [8, 0]])
    SparseTensor(indices=Tensor([[0, 1],
            [1, 0]], dtype=int64), values=Tensor([7, 8], dtype=int64), dense_shape=(2, 2))
    >>> f = wf.compile(lambda x: wf.sparse.from_dense(x, nse=3) @ x)
    >>> f(np.array([[0, 2], [3, 0]]))
    Tensor([[6, 0],
            [0, 6]], dtype=int64)
    """
    t = strong_tensor(x)
    if not t.ndim:
        raise ShapeError(
            "wf.sparse.from_dense needs a tensor with at least one axis", location=caller_location()
        )
    if nse is None:
        if not exact_sizes(needed=True) and not is_concrete(t):
            raise TracerError(
                "wf.sparse.from_dense: how many entries there are depends on values, and would "
                "differ by example in vmap",
                hint="give their number: wf.sparse.from_dense(x, nse=100); the rest is padding",
                location=caller_location(),
            )
        (found,) = apply_dynamic("nonzero", [t], what="from_dense")
        return made(found, apply("gather_nd", t, found), t.shape)
    count = check_count("sparse.from_dense", nse, "nse")
    found = argwhere(t, size=count, fill_value=-1)
    there = greater_equal(getitem(found, (slice(None), 0)), 0)
    if any(d == 0 for d in t.shape):  # no element to take
        values = zeros((count,), dtype=t.dtype)
    else:
        values = apply("gather_nd", t, maximum(found, 0))
    indices = nowhere(there, found, t.shape)
    values = where(there, values, filled(0, t.dtype, (count,)))
    return made(indices, values, t.shape, padded=True)


def to_dense(x: Any, default_value: Any = 0) -> Tensor:
    """The tensor that `x` stands for. default_value: what is at places without an entry.

    Equal indices add up; of strings the last one stays (default_value "" there).

    >>> wf.sparse.to_dense(wf.sparse.SparseTensor([[1], [1], [3]], [1, 2, 4], (5,)))
    Tensor([0, 3, 0, 4, 0], dtype=int64)
    """
    sparse = as_sparse("to_dense", x)
    there, columns = places(sparse)
    shape, values = sparse.dense_shape, sparse.values
    if sparse.dtype is string or sparse.dtype is bool_:
        return _last_of(sparse, there, columns, default_value)
    out = scattered(shape, columns, real_values(sparse, there), there)
    if type(default_value) in (int, float) and default_value == 0:
        return out
    hit = scattered(shape, columns, filled(1, int8, values.shape), there, how="scatter_nd_max")
    return where(equal(hit, 0), cast(as_tensor(default_value), values.dtype), out)


def _last_of(
    x: SparseTensor, there: Tensor | None, columns: Sequence[Tensor], default_value: Any
) -> Tensor:
    """The dense tensor of values that do not add: each place takes the number of its entry."""
    if x.dtype is string and type(default_value) is int:
        default_value = ""
    default = cast(strong_tensor(default_value), x.dtype)
    number = add(iota(x.values.shape, 0, dtype=int64), 1)
    at = scattered(x.dense_shape, columns, number, there, how="scatter_nd_max")
    return take(concat([reshaped(default, [1]), x.values], axis=0), at)


# ----------------------------------------------------------------------------- order and equal ones
def reorder(x: Any) -> SparseTensor:
    """The same entries in row-major order, those of equal indices as before; padding last.

    >>> wf.sparse.reorder(wf.sparse.SparseTensor([[1, 0], [0, 1]], [1, 2], (2, 2))).values
    Tensor([2, 1], dtype=int64)
    """
    sparse = as_sparse("reorder", x)
    order = argsort(order_keys("reorder", sparse))
    return made(
        take(sparse.indices, order, axis=0), take(sparse.values, order), sparse.dense_shape,
        sparse.padded,
    )  # fmt: skip


def order_keys(what: str, x: SparseTensor) -> Tensor:
    """Numbers that are in the order of the places; those of padding the largest."""
    there, columns = places(x)
    flat = flat_places(what, columns, x.dense_shape, x.nse)
    return flat if there is None else where(there, flat, NOWHERE)


def coalesce(x: Any) -> SparseTensor:
    """One entry for each index, the sum of those that have it, in row-major order.

    How many there are depends on values; in a compiled function the number stays, and what is too
    many becomes padding.

    >>> a = wf.sparse.SparseTensor([[1, 0], [0, 1], [1, 0]], [1, 2, 4], (2, 2))
    >>> wf.sparse.coalesce(a)
    SparseTensor(indices=Tensor([[0, 1],
            [1, 0]], dtype=int64), values=Tensor([2, 5], dtype=int64), dense_shape=(2, 2))
    """
    return one_each("coalesce", as_sparse("coalesce", x))


def one_each(op: str, x: SparseTensor) -> SparseTensor:
    """`coalesce`, with errors that name `op`."""
    found = summed_by_index(op, x, [x.values])
    return made(found.indices, found.sums[0], x.dense_shape, found.padded)


class Summed(NamedTuple):
    """The distinct indices in row-major order, sums of what belongs to each, and whether there may
    be padding."""

    indices: Tensor
    sums: list[Tensor]
    padded: bool


def summed_by_index(what: str, x: SparseTensor, vectors: Sequence[Tensor]) -> Summed:
    """The distinct indices of the entries of `x`, and of each vector [n], which has a number for
    each entry, the sums by index; of padding 0. In a compiled function as many as `x` has."""
    if is_in_order(x):
        return Summed(x.indices, list(vectors), False)
    keys, shape = order_keys(what, x), x.dense_shape
    if not exact_sizes():
        return _summed_in_place(x, keys, vectors)
    there = is_there(x)
    if there is not None:
        (chosen,) = nonzero_columns(there, "sparse")
        keys, *vectors = (take(t, chosen) for t in (keys, *vectors))
    found = unique_inverse(keys)
    places = [found.inverse_indices]
    sums = [scattered(found.values.shape, places, v, None) for v in vectors]
    return Summed(unflat(found.values, shape), sums, False)


def is_in_order(x: SparseTensor) -> bool:
    """Whether the indices are known and each is behind the one before it."""
    if x.padded or not is_concrete(x.indices) or not all(isinstance(n, int) for n in x.dense_shape):
        return False
    indices = np.asarray(x.indices.numpy())
    if math.prod(x.dense_shape) >= 2**63:
        return False
    flat = indices[:, 0]
    for axis, size in enumerate(x.dense_shape[1:], 1):
        flat = flat * size + indices[:, axis]
    return builtins.bool((flat[1:] > flat[:-1]).all())


def _summed_in_place(x: SparseTensor, keys: Tensor, vectors: Sequence[Tensor]) -> Summed:
    n = x.nse
    order = argsort(keys)
    found = numbered(take(keys, order), x.dense_shape)
    sums = [scattered((n,), [found.place], take(v, order), None) for v in vectors]
    zero = [where(found.there, t, filled(0, t.dtype, (n,))) for t in sums]
    return Summed(found.indices, zero, True)


class Numbered(NamedTuple):
    """The distinct indices, as many as there are keys; which are no padding; for each key which of
    them it is."""

    indices: Tensor
    there: Tensor
    place: Tensor


def numbered(keys: Tensor, shape: Sequence[Any]) -> Numbered:
    """The distinct indices of sorted `order_keys`."""
    n = keys.shape[0]
    before = concat([filled(-1, int64, (1,)), getitem(keys, slice(None, -1))], axis=0)
    place = add(cumulative_sum(cast(not_equal(keys, before), int64)), -1) if n else keys
    at = scattered((n,), [place], keys, None, how="scatter_nd_update", fill=NOWHERE)
    there = less(at, NOWHERE)
    return Numbered(nowhere(there, unflat(where(there, at, 0), shape), shape), there, place)


# ------------------------------------------------------------------------------------ moving places
def transpose(x: Any, perm: Sequence[int] | None = None) -> SparseTensor:
    """Axis i of the result is axis perm[i] of `x`; reversed without `perm`. Entries keep their
    order.

    >>> a = wf.sparse.SparseTensor([[0, 1]], [5.0], (2, 3))
    >>> wf.sparse.transpose(a).to_dense()
    Tensor([[0., 0.],
            [5., 0.],
            [0., 0.]], dtype=float32)
    """
    sparse = as_sparse("transpose", x)
    rank = sparse.ndim
    given = range(rank)[::-1] if perm is None else perm
    axes = [check_axis("sparse.transpose", a, rank) for a in given]
    if sorted(axes) != list(range(rank)):
        raise InvalidArgumentError(
            f"wf.sparse.transpose: perm {tuple(given)} is no order of {rank} axes",
            location=caller_location(),
        )
    columns = [column(sparse, a) for a in axes]
    shape = tuple(sparse.dense_shape[a] for a in axes)
    return made(stack(columns, axis=1), sparse.values, shape, sparse.padded)


def reshape(x: Any, shape: Iterable[Any]) -> SparseTensor:
    """`x` in another shape with as many places, in row-major order; one size may be -1.

    >>> a = wf.sparse.SparseTensor([[1, 2]], [5.0], (2, 3))
    >>> wf.sparse.reshape(a, [3, -1]).to_dense()
    Tensor([[0., 0.],
            [0., 0.],
            [0., 5.]], dtype=float32)
    """
    sparse = as_sparse("reshape", x)
    wanted = tuple(-1 if type(d) is int and d == -1 else as_size(d) for d in shape)
    new = infer_shape("sparse.reshape", wanted, sparse.dense_shape)
    before, after = product(sparse.dense_shape), product(new)
    if not same(before, after) or not new:
        raise ShapeError(
            f"wf.sparse.reshape: shape {format_shape(sparse.dense_shape)} has {before} elements, "
            f"{format_shape(new)} {after}",
            location=caller_location(),
        )
    there, columns = places(sparse)
    flat = flat_places("reshape", columns, sparse.dense_shape, sparse.nse)
    indices = nowhere(there, unflat(flat, new), new)
    return made(indices, sparse.values, new, sparse.padded)
