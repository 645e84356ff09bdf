"""The rules of fusion that need no state: kinds of ops, iteration spaces, row spaces of row
kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from weft.ir.analysis.index_maps import Read, RowSpace, folded, is_fold, shape_of, wide_axes
from weft.ir.cost.thresholds import FEW_COLUMNS, LONG_COLUMN, LONG_ROW, SAME_SETS, SPLIT_ROWS
from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape
from weft.ir.graph import Operation
from weft.ir.ops import lookup
from weft.ir.sizes import hint
from weft.ir.types import TensorType

SPACES_DIFFER = "their iteration spaces differ"
REDUCTIONS = frozenset({"sum", "prod", "max", "min", "all", "any"})


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A read between ops: `consumer` reads what `source` makes, element by element (`direct`), else
    as `read` says.

    over: the shape of what is read. read is None where a shape is not static.
    """

    source: Operation
    consumer: Operation
    direct: bool
    over: Shape
    read: Read | None


@dataclass(frozen=True, slots=True)
class Scope:
    """The settings of one run of fusion. folds: reductions become nests. apart: ops whose nests
    hold nothing else. moves: gathers may be read through."""

    folds: bool
    apart: Callable[[Operation], bool]
    moves: bool


def iteration_space(op: Operation) -> Shape | None:
    """The shape that the op's loop nest runs over; None if the op is not of the loop-nest kind."""
    if op.name in REDUCTIONS:
        return shape_of(op.operands[0])
    if "elementwise" in lookup(op.name).traits and op.results:
        return None if _has_strings(op) else shape_of(op.result)
    return None


def _has_strings(op: Operation) -> bool:
    types = [v.type for v in (*op.operands, *op.results)]
    return any(isinstance(t, TensorType) and t.dtype.kind == "string" for t in types)


def has_halves(op: Operation) -> bool:
    """Whether the op takes or gives 16-bit floats."""
    types = [v.type for v in (*op.operands, *op.results)]
    return any(isinstance(t, TensorType) and t.dtype.is_floating and t.dtype.bits == 16
               for t in types)  # fmt: skip


#: All that may be one kernel is; elementwise ops alone, 16-bit floats rounded after each; what is
#: left after that, each reduction by itself.
EVERYTHING = Scope(True, lambda op: False, True)
ELEMENTWISE, FOLDS = Scope(False, has_halves, True), Scope(True, lambda op: True, False)


def static(shape: Shape) -> tuple[int, ...] | None:
    """The shape if all its dimensions are numbers."""
    known = tuple(d for d in shape if isinstance(d, int))
    return known if len(known) == len(shape) else None


def choose_row_space(
    space: Shape, folds: Sequence[Operation], used: Sequence[Operation], columns: bool = False
) -> RowSpace | str:
    """The row space in which all `folds` fit one row kernel, or the reason why there is none.

    used: the folds whose results are needed inside. columns: they may fold other axes than the
    innermost.
    """
    shape = static(space)
    if shape is None or 0 in shape:
        return "a row kernel needs known sizes other than 0"
    over_space = [f for f in folds if shape_of(f.operands[0]) == space]
    if any(shape_of(f.operands[0]) != space for f in used):
        other = next(f for f in used if shape_of(f.operands[0]) != space)
        return f"the result of the reduction '{other.name}' is complete only after its nest"
    wide = wide_axes(shape)
    candidates = [folded(f) for f in used] or [folded(f) for f in over_space]
    parts = [c for c in dict.fromkeys(candidates) if c and c != wide]
    candidates = [c for c in parts if max(wide) in c] or (parts if used and columns else [])
    if not candidates:
        return _no_rows(folds, used, wide)
    for inner in candidates:
        row_space = RowSpace(shape, tuple(sorted(inner)))
        if all(fits_row_space(f, row_space) for f in folds) and all(
            folded(f) == inner for f in used
        ):
            why = _columns_apart(row_space) if row_space.by_columns else _few_long_rows(row_space)
            return why if used and why else row_space
    return "the reductions of the two fold axes that make no rows in common"


def _few_long_rows(row_space: RowSpace) -> str:
    """Why a row kernel would not pay; "" if it does."""
    length = math.prod(row_space.space[k] for k in row_space.inner)
    rows = math.prod(row_space.space[k] for k in row_space.outer)
    if rows >= SPLIT_ROWS or length <= LONG_ROW:
        return ""
    what = f"{hint(rows)} rows of {hint(length)} elements"
    return f"{what}: no row fits a cache, and they are too few to share"


def _columns_apart(row_space: RowSpace) -> str:
    """Why a row kernel whose rows are columns would not pay; "" if it does."""
    length = math.prod(row_space.space[k] for k in row_space.inner)
    columns = math.prod(row_space.space[max(row_space.inner) + 1 :])
    if length > LONG_COLUMN or length * (columns & -columns) > SAME_SETS:
        what = f"columns of {hint(length)} elements, {hint(columns)} apart"
        return f"{what}: a block does not stay in a cache"
    return f"{hint(columns)} columns side by side are too few" if columns < FEW_COLUMNS else ""


def _no_rows(folds: Sequence[Operation], used: Sequence[Operation], wide: frozenset[int]) -> str:
    if used and folded(used[0]) == wide:
        return f"the result of '{used[0].name}' over everything is complete only after its nest"
    if used:
        return f"the result of '{used[0].name}' is complete only after its nest"
    if len({(shape_of(f.operands[0]), folded(f)) for f in folds}) > 1:
        return "the reductions of the two fold different axes"
    return SPACES_DIFFER


def fits_row_space(fold: Operation, row_space: RowSpace) -> bool:
    """Can a row kernel of this row space do the reduction: of a row, over all rows, of
    everything?"""
    source = static(shape_of(fold.operands[0]))
    if source is None:
        return False
    axes = folded(fold)
    if source == row_space.space:
        wide = wide_axes(row_space.space)
        inner = frozenset(row_space.inner)
        # what is folded across columns would go on within vectors
        return axes in ((inner, wide) if row_space.by_columns else (inner, wide - inner, wide))
    return row_space.is_row_shape(source) and axes == wide_axes(source)


def edge_fits(edge: Edge, space: Shape, row_space: RowSpace | None) -> bool:
    """May both ops of the edge be in one nest over `space` (with a row space: a row kernel)?"""
    source, over = edge.source, static(edge.over)
    if not is_fold(source):
        if edge.direct:
            return True
    elif row_space is None or (shape_of(source.operands[0]), folded(source)) != (
        space,
        frozenset(row_space.inner),
    ):
        return False
    if row_space is None or edge.read is None or over is None:
        return False
    return row_space.reads_own_element(edge.read, over)


def nest_name(ops: Sequence[Operation]) -> str:
    """A readable name from the ops of a nest: `multiply_add_tanh`, at most five of them; of more
    ops the functions of weft's and name scopes that they are of, `relu_mean_relu_grad`."""
    names = [
        str(op.attrs["function"]).rpartition(".")[2] if op.name == "scalar_function" else op.name
        for op in ops
    ]
    if len(names) <= 5:
        return "_".join(names)
    scopes = list(dict.fromkeys(filter(None, map(_called, ops))))
    if not scopes:
        return f"{'_'.join(names[:5])}_and_{len(names) - 5}_more"
    return "_".join(scopes[:4]) + ("_etc" if len(scopes) > 4 else "")


def _called(op: Operation) -> str:
    """The innermost scope of an op, in the characters of a name; `relu_grad` of a gradient."""
    path = op.locations[0].scope.split("/") if op.locations else []
    return re.sub(r"\W+", "_", "_".join(path[-2:] if path[-1:] == ["grad"] else path[-1:]))
