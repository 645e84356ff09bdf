"""`wf.collectives`: what a row of a batch gets from all rows, by the name of their axis.

In what `wf.vmap(axis_name="i")` is given, `psum(x, "i")` is the sum of x over all rows, the same in
each; in what `wf.shard_map` is given, rows are shards. Names and meaning are those of `jax.lax`.
Each takes a tensor, or a tree of them.

>>> normal = wf.vmap(lambda x: x - wf.collectives.pmean(x, "rows"), axis_name="rows")
>>> normal(wf.asarray([1.0, 2.0, 6.0]))
Tensor([-2., -1.,  3.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import index
from typing import Any

from weft.frontend.autodiff.indexed_slices import IndexedSlices
from weft.frontend.core import pytree
from weft.frontend.core.public_names import only_public
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.creation import asarray
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import divide
from weft.frontend.ops.manipulation import moveaxis, reshape
from weft.frontend.ops.promotion import check_axis, inexact_tensor
from weft.frontend.transforms.axes import NamedAxis, exchange, named_axes
from weft.frontend.transforms.processes import sums_beside, together
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.errors import InvalidArgumentError, ShapeError, suggest
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue

__all__ = [
    "all_gather", "all_to_all", "axis_index", "axis_size", "pmax", "pmean", "pmin", "ppermute",
    "psum", "psum_scatter",
]  # fmt: skip


def _axis(what: str, axis_name: object) -> NamedAxis:
    """The axis of that name. InvalidArgumentError for one that is not around this code."""
    known = named_axes()
    if isinstance(axis_name, str) and axis_name in known:
        return known[axis_name]
    near = suggest(axis_name, list(known)) if isinstance(axis_name, str) else ""
    raise InvalidArgumentError(
        f"wf.collectives.{what}: no axis of rows is called {axis_name!r}{near}",
        hint=f"those around this code are: {', '.join(map(repr, known))}"
        if known
        else "wf.vmap(f, axis_name=...) gives the rows of its batch a name in f, wf.shard_map the "
        "axes of its mesh",
        location=caller_location(),
    )


def _size(what: str, axis_name: object) -> Dim:
    """How many rows the axis has."""
    return _axis(what, axis_name).size


def _emit(op: str, operands: Sequence[Tensor], axis_name: str, **attrs: AttrValue) -> Tensor:
    """The op over the rows of a batch, or an exchange of processes."""
    axis = _axis(op, axis_name)
    if axis.mesh:
        return exchange(op, operands, axis_name, axis, **attrs)
    trace = current_trace()
    assert trace is not None
    if operands:
        return apply(op, *operands, axis_name=axis_name, **attrs)
    (value,) = trace.emit(op, (), {"axis_name": axis_name, **attrs})
    return trace.tensor(value)


def _names(axis_name: Any) -> Sequence[Any]:
    return axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)


def _each(op: str, x: Any, axis_name: Any) -> Any:
    """The op on each leaf, over one axis or several."""
    axes = [(name, _axis(op, name)) for name in _names(axis_name)]
    leaves, structure = pytree.flatten(x)
    made = given = [as_tensor(leaf) for leaf in leaves]
    for name, axis in axes:
        if axis.is_of_mesh:
            made = together(made, partial(_of_shapes, op, name))
        else:
            made = [_emit(op, [t], name) for t in made]
    for t, before in zip(made, given, strict=True):
        t.weak = before.weak
    return pytree.unflatten(structure, made)


def _of_shapes(op: str, axis_name: str, t: Tensor, shapes: str) -> Tensor:
    """The op on tensors of these shapes, which are one; "": on a tensor."""
    of_processes = shapes and _axis(op, axis_name).mesh  # who say so if theirs differ
    return _emit(op, [t], axis_name, **({"shapes": shapes} if of_processes else {}))


@shows_as_seen
def psum(x: Any, axis_name: str | Sequence[str]) -> Any:
    """The sum of `x` over all rows of the axis, or of several axes; the same in each row.

    >>> wf.vmap(lambda x: x / wf.collectives.psum(x, "i"), axis_name="i")(wf.asarray([1.0, 3.0]))
    Tensor([0.25, 0.75], dtype=float32)
    """
    return _each("psum", x, axis_name)


@shows_as_seen
def pmax(x: Any, axis_name: str | Sequence[str]) -> Any:
    """The maximum of `x` over all rows, element by element. Its gradient goes to the rows that have
    it, in equal parts."""
    return _each("pmax", x, axis_name)


@shows_as_seen
def pmin(x: Any, axis_name: str | Sequence[str]) -> Any:
    """The minimum of `x` over all rows, element by element; gradient as of `pmax`."""
    return _each("pmin", x, axis_name)


@shows_as_seen
def pmean(x: Any, axis_name: str | Sequence[str]) -> Any:
    """The mean of `x` over all rows; integers become floats."""
    floats = pytree.tree_map(lambda leaf: inexact_tensor(leaf, "collectives.pmean"), x)
    totals = _each("psum", floats, axis_name)
    counts = [axis_size(name) for name in _names(axis_name)]
    return pytree.tree_map(lambda total: _over(total, counts), totals)


def _over(total: Tensor, counts: Iterable[Any]) -> Tensor:
    """A sum over axes of so many rows, as a mean."""
    for count in counts:
        total = divide(total, count)
    return total


def mean_of_gradients(
    gradients: Sequence[Tensor | IndexedSlices | None], axis_name: str | Sequence[str]
) -> list[Tensor | IndexedSlices | None]:
    """The mean of gradients over all rows: of looked-up rows of a table all of them, scaled. Over
    processes they are summed while the others are computed."""
    dense = [g for g in gradients if isinstance(g, Tensor)]
    axes = {name: _axis("pmean", name) for name in _names(axis_name)}
    if dense and all(axis.mesh for axis in axes.values()) and all(g._type.is_static for g in dense):
        counts = [axis.size for axis in axes.values()]
        means = iter([_over(total, counts) for total in sums_beside(dense, axes)])
    else:
        means = iter(pmean(dense, axis_name))
    count = 1
    for name in _names(axis_name):
        count = count * axis_size(name)
    found: list[Tensor | IndexedSlices | None] = []
    for g in gradients:
        if isinstance(g, IndexedSlices):
            values, indices = g.values, g.indices
            for name in _names(axis_name):
                values = all_gather(values, name, tiled=True)
                indices = all_gather(indices, name, tiled=True)
            found.append(IndexedSlices(divide(values, count), indices, g.dense_shape))
        else:
            found.append(None if g is None else next(means))
    return found


@shows_as_seen
def axis_size(axis_name: str) -> Any:
    """How many rows the axis has: an int, or a tensor where that is open."""
    size = _size("axis_size", axis_name)
    return asarray(size) if isinstance(size, SymbolicDim) else size


@shows_as_seen
def axis_index(axis_name: str) -> Tensor:
    """The number of the row, from 0, int64.

    >>> wf.vmap(lambda x: x * wf.collectives.axis_index("i"), axis_name="i")(wf.asarray([5, 5, 5]))
    Tensor([ 0,  5, 10], dtype=int64)
    """
    return _emit("axis_index", [], axis_name)


def _sized(op: str, x: Any, axis_name: str, before: Callable[[Tensor], Tensor]) -> Any:
    size = _size(op, axis_name)
    return pytree.tree_map(
        lambda leaf: _emit(op, [before(as_tensor(leaf))], axis_name, size=size), x
    )


def _first(op: str, parameter: str, axis: int) -> Callable[[Tensor], Tensor]:
    """Moves an axis of the argument to the front."""

    def move(t: Tensor) -> Tensor:
        return moveaxis(t, check_axis(f"collectives.{op}", axis, t.ndim, parameter), 0)

    return move


def _placed(op: str, parameter: str, axis: int, made: Any) -> Any:
    """Each result with its first axis where it was asked for."""

    def move(t: Tensor) -> Tensor:
        return moveaxis(t, 0, check_axis(f"collectives.{op}", axis, t.ndim, parameter))

    return pytree.tree_map(move, made)


@shows_as_seen
def all_gather(x: Any, axis_name: str, axis: int = 0, *, tiled: bool = False) -> Any:
    """All rows of `x`, along a new axis; the same in each row. tiled: behind each other along
    `axis`, which there is.

    >>> pair = wf.vmap(lambda x: wf.collectives.all_gather(x, "i"), axis_name="i")
    >>> pair(wf.asarray([1.0, 2.0]))
    Tensor([[1., 2.],
            [1., 2.]], dtype=float32)
    """
    made = _sized("all_gather", x, axis_name, lambda t: t)
    if not tiled:
        return _placed("all_gather", "axis", axis, made)
    return pytree.tree_map(lambda t: _behind("all_gather", "axis", axis, t), made)


@shows_as_seen
def psum_scatter(x: Any, axis_name: str, scatter_dimension: int = 0, *, tiled: bool = False) -> Any:
    """In row i the sum over all rows of `x[i]` along an axis, which has an element for each row.
    tiled: of part i of the axis, which has as many elements for each row, and stays. ShapeError
    if it has not."""
    op, what = "psum_scatter", "scatter_dimension"
    if not tiled:
        return _sized(op, x, axis_name, _first(op, what, scatter_dimension))
    made = _sized(op, x, axis_name, _parts(op, what, scatter_dimension, axis_name))
    return _placed(op, what, scatter_dimension, made)


@shows_as_seen
def all_to_all(
    x: Any, axis_name: str, split_axis: int, concat_axis: int, *, tiled: bool = False
) -> Any:
    """In row i the elements i along `split_axis` of all rows, along a new axis `concat_axis` in
    its place. tiled: part i of `split_axis`, which stays, of all rows behind each other along
    `concat_axis`. ShapeError if `split_axis` has not one element, or as many, for each row."""
    op = "all_to_all"
    if not tiled:
        made = _sized(op, x, axis_name, _first(op, "split_axis", split_axis))
        return _placed(op, "concat_axis", concat_axis, made)
    made = _sized(op, x, axis_name, _parts(op, "split_axis", split_axis, axis_name))

    def join(t: Tensor) -> Tensor:
        back = check_axis(f"collectives.{op}", split_axis, t.ndim - 1, "split_axis")
        return _behind(op, "concat_axis", concat_axis, moveaxis(t, 1, back + 1))

    return pytree.tree_map(join, made)


def _parts(op: str, parameter: str, axis: int, axis_name: str) -> Callable[[Tensor], Tensor]:
    """Cuts an axis of the argument into a part for each row: (rows, part, rest)."""
    rows = _size(op, axis_name)
    move = _first(op, parameter, axis)

    def cut(t: Tensor) -> Tensor:
        moved = move(t)
        length = moved.shape[0]
        if not isinstance(rows, int) or not isinstance(length, int) or length % rows:
            raise ShapeError(
                f"wf.collectives.{op}: axis {axis} of {t.describe()} has no parts of one size for "
                f"{rows} rows",
                location=caller_location(),
            )
        return reshape(moved, (rows, length // rows, *moved.shape[1:]))

    return cut


def _behind(op: str, parameter: str, axis: int, t: Tensor) -> Tensor:
    """(rows, shape) with the rows behind each other along an axis of the shape."""
    k = check_axis(f"collectives.{op}", axis, t.ndim - 1, parameter)
    rows, *shape = t.shape
    length = shape[k]
    if rows is None or length is None:
        raise ShapeError(
            f"wf.collectives.{op}: {t.describe()} has no known sizes to put behind each other",
            location=caller_location(),
        )
    return reshape(moveaxis(t, 0, k), (*shape[:k], rows * length, *shape[k + 1 :]))


@shows_as_seen
def ppermute(x: Any, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
    """In row `target` the `x` of row `source`, for each pair (source, target); zeros in rows that
    are no target. InvalidArgumentError for a number that is no row, or is twice the same side.

    >>> ring = [(k, (k + 1) % 3) for k in range(3)]
    >>> shifted = wf.vmap(lambda x: wf.collectives.ppermute(x, "i", ring), axis_name="i")
    >>> shifted(wf.asarray([1, 2, 3]))
    Tensor([3, 1, 2], dtype=int64)
    """
    size = _size("ppermute", axis_name)
    if not isinstance(size, int):
        raise InvalidArgumentError(
            f"wf.collectives.ppermute: the axis {axis_name!r} has an open size",
            hint="wf.vmap over a known number of rows",
            location=caller_location(),
        )
    try:
        pairs = [(index(source), index(target)) for source, target in perm]
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"wf.collectives.ppermute: perm has pairs of rows, (source, target), got {perm!r:.60}",
            location=caller_location(),
        ) from None
    sides = [list(side) for side in zip(*pairs, strict=True)] or [[], []]
    if any(not 0 <= k < size for side in sides for k in side) or any(
        len(set(side)) != len(side) for side in sides
    ):
        raise InvalidArgumentError(
            f"wf.collectives.ppermute: {pairs} are no pairs of {size} rows, each at most once on "
            "either side",
            location=caller_location(),
        )
    source_of = {target: source for source, target in pairs}
    sources = tuple(source_of.get(k, -1) for k in range(size))

    def one(leaf: Any) -> Tensor:
        return _emit("ppermute", [as_tensor(leaf)], axis_name, sources=sources)

    return pytree.tree_map(one, x)


__getattr__, __dir__ = only_public(__name__, __all__)
