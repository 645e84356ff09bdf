"""Tables in parts over several tensors or devices (the paper, sections 4.2 and 6.4): embedding
lookup, and a softmax over classes whose weights are such a table.

Sharded softmax: each part multiplies where it is, and gives two numbers for each row: the log of
the sum of its exponentials, and the logit of the label if that is its own. So a part receives the
inputs and sends [batch] numbers; neither weights nor logits travel."""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.ops.dispatch import apply, open_sizes
from weft.frontend.ops.dynamic import partition_places
from weft.frontend.ops.elementwise import (
    add,
    equal,
    floor_divide,
    greater_equal,
    less,
    maximum,
    minimum,
    remainder,
    subtract,
    where,
)
from weft.frontend.ops.indexing import as_indices, take, take_along_axis
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import expand_dims, reshape, squeeze, stack
from weft.frontend.ops.promotion import TensorLike, cast
from weft.frontend.ops.reduction import logsumexp
from weft.frontend.state.scopes import beside
from weft.ir.dims import format_shape
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError, UnsupportedError
from weft.ir.locations import caller_location


def embedding_lookup(
    params: TensorLike | Sequence[TensorLike], ids: TensorLike, partition_strategy: str = "mod"
) -> Tensor:
    """The rows of the table `params` at the integers `ids`: shape ids.shape + params.shape[1:].

    params: one table, or a list of P parts of one. partition_strategy "mod": row i is row i // P of
    part i % P; "div": the parts are consecutive, the first ones a row longer where P does not
    divide the number of rows (TensorFlow 1's two). In a graph and eagerly each part is asked for
    its own rows only (dynamic_partition, take, dynamic_stitch, as in section 4.2 of the paper), on
    its device, and its gradient is `IndexedSlices`; in a compiled function, whose sizes are fixed,
    each part is asked for a row for every id. Negative ids count from the end; ids out of range are
    errors.
    """
    if partition_strategy not in ("mod", "div"):
        raise InvalidArgumentError(
            f"wf.nn.embedding_lookup: partition_strategy must be 'mod' or 'div', got "
            f"{partition_strategy!r}",
            location=caller_location(),
        )
    parts = list(params) if isinstance(params, (list, tuple)) else [params]
    if not parts:
        raise InvalidArgumentError(
            "wf.nn.embedding_lookup: params is an empty list", location=caller_location()
        )
    tables = [as_tensor(p) for p in parts]
    for table in tables:
        if not table.ndim:
            raise ShapeError(
                "wf.nn.embedding_lookup: params needs at least one axis", location=caller_location()
            )
    if len(tables) == 1:
        with beside(tables[0]):
            return take(tables[0], ids, axis=0)
    rows = part_sizes(tables, partition_strategy)
    places = cast(as_indices("nn.embedding_lookup", ids), int64)
    flat = reshape(places, [-1])
    total = sum(rows)  # an id below -total becomes one above, which no part has either
    flat = where(less(flat, 0), where(less(flat, -total), total, add(flat, total)), flat)
    found = (_routed if open_sizes() else _selected)(tables, rows, flat, partition_strategy)
    return reshape(found, [*places.shape, *tables[0].shape[1:]])


def part_sizes(tables: Sequence[Tensor], strategy: str) -> list[int]:
    """The number of rows of each part. ShapeError if they are not parts of one table."""
    rows = [t.shape[0] for t in tables]
    known = [n for n in rows if isinstance(n, int)]
    if len(known) < len(rows):
        shapes = ", ".join(format_shape(t.shape) for t in tables)
        raise ShapeError(
            f"wf.nn.embedding_lookup: how many rows the parts {shapes} have is not known",
            hint="give them sizes, such as wf.placeholder(wf.float32, [1000, 64]); or look up in "
            "one table",
            location=caller_location(),
        )
    total, count = sum(known), len(tables)
    wanted = [total // count + (i < total % count) for i in range(count)]
    alike = all(t.shape[1:] == tables[0].shape[1:] for t in tables)
    if known != wanted or not alike or len({t.dtype for t in tables}) > 1:
        shapes = ", ".join(format_shape(t.shape) for t in tables)
        raise ShapeError(
            f"wf.nn.embedding_lookup: {shapes} are not the parts of one table by '{strategy}'",
            hint=f"they would have {wanted} rows, and else the same shape and dtype",
            location=caller_location(),
        )
    return known


def part_of_id(flat: Tensor, rows: Sequence[int], strategy: str) -> tuple[Tensor, Tensor]:
    """For each id the part that has it, and the row there."""
    count, total = len(rows), sum(rows)
    if strategy == "mod":
        return remainder(flat, count), floor_divide(flat, count)
    short, longer = total // count, total % count
    part = floor_divide(flat, short + 1)
    if short:
        part = maximum(part, floor_divide(subtract(flat, longer), short))
    part = minimum(part, count - 1)  # which has no such row either, and says so
    start = add(part * short, where(less(part, longer), part, longer))
    return part, subtract(flat, start)


def _routed(tables: Sequence[Tensor], rows: Sequence[int], flat: Tensor, strategy: str) -> Tensor:
    part, row = part_of_id(flat, rows, strategy)
    back = partition_places(part, len(tables))
    found = []
    for table, places in zip(tables, back, strict=True):
        wanted = take(row, places)
        with beside(table):  # its rows are sent, not the table
            found.append(take(table, wanted, axis=0))
    return apply("dynamic_stitch", *back, *found, rows=flat.shape[0])


def _selected(tables: Sequence[Tensor], rows: Sequence[int], flat: Tensor, strategy: str) -> Tensor:
    if not all(rows):
        raise UnsupportedError(
            "wf.nn.embedding_lookup: in a compiled function no part may be without rows, but they "
            f"have {list(rows)}",
            hint="use fewer parts, or look up in a wf.Graph",
            location=caller_location(),
        )
    part, row = part_of_id(flat, rows, strategy)
    out: Tensor | None = None
    for number, table in enumerate(tables):
        mine = equal(part, number)
        found = take(table, where(mine, row, 0), axis=0)
        column = mine
        for _ in range(table.ndim - 1):
            column = expand_dims(column, -1)
        out = found if out is None else where(column, found, out)
    assert out is not None
    return out


def sharded_softmax_cross_entropy(
    weights: Sequence[TensorLike],
    biases: Sequence[TensorLike] | None,
    labels: TensorLike,
    inputs: TensorLike,
    partition_strategy: str = "mod",
) -> Tensor:
    """-log softmax(inputs @ weights.T + biases)[label] for each row: [batch].

    weights: the parts of [num_classes, dim], as for `embedding_lookup`; biases: the parts of
    [num_classes], or None. labels: integers [batch]. inputs: [batch, dim]. In a graph with devices
    each part's product is on the part's device; pass `colocate_gradients_with_ops=True` to the
    optimizer, and its gradient is, too. ShapeError for what does not fit, InvalidArgumentError when
    it runs for a label that is no class.
    """
    op = "wf.nn.sharded_softmax_cross_entropy"
    parts = [as_tensor(w) for w in weights]
    offsets = None if biases is None else [as_tensor(b) for b in biases]
    x = as_tensor(inputs)
    label = cast(as_indices("nn.sharded_softmax_cross_entropy", labels), int64)
    fits = x.ndim == 2 and label.ndim == 1 and all(w.ndim == 2 for w in parts) and parts
    if not fits or (offsets is not None and len(offsets) != len(parts)):
        shapes = ", ".join(format_shape(w.shape) for w in parts)
        raise ShapeError(
            f"{op}: weights {shapes}, labels {format_shape(label.shape)} and inputs "
            f"{format_shape(x.shape)} are not parts of [classes, dim], [batch] and [batch, dim]",
            hint="give as many parts of the biases [classes] as of the weights",
            location=caller_location(),
        )
    rows = part_sizes(parts, partition_strategy)
    known = greater_equal(label, 0)
    owner, row = part_of_id(where(known, label, 0), rows, partition_strategy)
    row = where(known, row, sum(rows))  # no part has that
    sums: list[Tensor] = []
    found: Tensor | None = None
    for number, part in enumerate(parts):
        mine = equal(owner, number)
        with beside(part):
            logits = matmul(x, part, transpose_b=True)
            if offsets is not None:
                logits = add(logits, offsets[number])
            sums.append(logsumexp(logits, axis=1))
            place = expand_dims(where(mine, row, 0), 1)
            own = squeeze(take_along_axis(logits, place, axis=1), axis=1)
            own = where(mine, own, 0)
        found = own if found is None else add(found, own)
    assert found is not None
    total = sums[0] if len(sums) == 1 else logsumexp(stack(sums, axis=0), axis=0)
    return subtract(total, found)
