"""What bounds loops and what loosens them: numbers of iterations that are tensors, shapes that may
change from one iteration to the next (`shape_invariants`), and loop variables whose shapes the body
decides (a TensorArray that was never written)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.control.region import Body, Kind, depends, kind_of, predicate
from weft.frontend.core import pytree
from weft.frontend.core.operators import METHODS, Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.ops.dispatch import fresh_sizes, known_sizes, open_sizes_first, sizes_from
from weft.frontend.ops.elementwise import logical_and, minimum
from weft.frontend.ops.promotion import cast, is_concrete
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, same
from weft.ir.dtypes import int64, uint64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType

#: A test or a body of a loop, on the leaves of its variables.
Call = Callable[[list[Tensor]], Any]


# ----------------------------------------------------------------------------- how many iterations
def is_count(x: object) -> bool:
    """Whether `x` is an int >= 0."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool) and int(x) >= 0


def _integer_scalar(x: Any) -> Tensor | None:
    """A tensor of integers without axes; None for anything else."""
    t = as_tensor(x) if isinstance(x, Operators) else None
    return t if t is not None and t.dtype.is_integer and not t.ndim else None


@dataclass(frozen=True, eq=False)
class Limit:
    """A number of iterations that is a traced scalar of integers, and its name for errors."""

    value: Tensor
    what: str = "wf.while_loop: maximum_iterations"


def iteration_limit(maximum: Any) -> tuple[int, Limit | None]:
    """`maximum_iterations`, an int >= 0, -1 for None, or else a traced scalar of integers.
    InvalidArgumentError for others."""
    if maximum is None:
        return -1, None
    if isinstance(maximum, Limit):
        return -1, maximum
    if is_count(maximum):
        return int(maximum), None
    t = _integer_scalar(maximum)
    if t is not None:
        if t._data is None:
            return -1, Limit(t)
        if int(t._data) >= 0:
            return int(t._data), None
    raise InvalidArgumentError(
        f"wf.while_loop: maximum_iterations is {maximum!r:.60}, not an int >= 0",
        hint="a scalar tensor of integers will do, too; a condition belongs into cond",
        location=caller_location(),
    )


def counted(
    limit: Limit, test: Call, step: Call, inputs: Sequence[Tensor], structure: pytree.Structure
) -> tuple[Call, Call, list[Tensor], pytree.Structure]:
    """A loop that also ends after `limit` iterations, which is checked not to be negative: its test
    and body, on a counter and the variables of the loop, and how these nest.

    As in TensorFlow the test is computed once more after the last of `limit` iterations.
    """
    what = f"{limit.what} must not be negative: "
    number = limit.value
    if number.dtype is uint64:  # what int64 does not have is as good as no limit
        number = minimum(number, np.uint64(np.iinfo(np.int64).max))
    trace = current_trace()
    assert trace is not None
    given = [trace.lift(METHODS["greater_equal"](number, 0)), trace.lift(number)]
    (checked,) = trace.emit("assert", given, {"message": what, "summarize": 1})
    (value,) = trace.emit("identity", [trace.lift(cast(number, int64))], control=[checked])
    most = trace.tensor(value)

    def counting_test(xs: list[Tensor]) -> Tensor:
        goes_on = predicate("wf.while_loop: what cond returns", test(xs[1:]))
        return logical_and(METHODS["less"](xs[0], most), goes_on)

    def counting_step(xs: list[Tensor]) -> list[Any]:
        return [METHODS["add"](xs[0], 1), step(xs[1:])]

    start = cast(0, int64)
    _, pair = pytree.flatten([start, pytree.unflatten(structure, list(inputs))])
    return counting_test, counting_step, [start, *inputs], pair


def traced_length(what: str, length: Any) -> Dim:
    """The number of iterations that a scan's `length` is: an int, or a size of the graph that a
    scalar tensor of integers becomes. InvalidArgumentError for others."""
    if is_count(length):
        return int(length)
    t = _integer_scalar(length)
    if t is not None:
        if t._data is not None and int(t._data) >= 0:
            return int(t._data)
        if t._data is None:
            return sizes_from(what.removeprefix("wf."), t, "length")[0]
    if isinstance(length, SymbolicDim):
        return length
    raise InvalidArgumentError(
        f"{what}: length is {length!r:.60}, not an int >= 0",
        hint="a scalar tensor of integers will do, too; wf.while_loop goes on by a condition",
        location=caller_location(),
    )


def computed_length(length: Any) -> Tensor | None:
    """`length` where it is a value, of which no size is to be made if that can be helped: in a
    compiled function."""
    t = None if open_sizes_first() else _integer_scalar(length)
    if t is None or is_concrete(t):
        return None
    return t if None in (known_sizes(t) or [None]) else None


# -------------------------------------------------------------------------- shapes that may change
def invariant_shapes(
    structure: pytree.Structure, inputs: Sequence[Tensor], given: Any
) -> list[Shape] | None:
    """`shape_invariants` for each loop variable; None where no shape may change.

    given: nested as the loop variables, a shape (a list or tuple of sizes, None for any), a
    `wf.TensorType` or None (the variable's own shape) for each, None for whole parts, too.
    """
    if given is None:
        return None
    shapes: list[Shape] = []
    paths = pytree.paths(structure, "loop_vars")
    for t, found, path in zip(inputs, _spread(structure, given, "loop_vars"), paths, strict=True):
        shape = t.shape if found is None else _shape(t, found, path)
        fits = len(shape) == t.ndim and all(map(same, shape, t.shape))
        if not fits:
            raise ShapeError(
                f"wf.while_loop: {path} begins as {t.describe()}, but its shape invariant is "
                f"{format_shape(shape)}",
                hint="an invariant is the shape that the variable has in every iteration, with "
                "None for sizes that change",
                location=caller_location(),
            )
        shapes.append(shape)
    return shapes if any(None in s for s in shapes) else None


def _spread(structure: pytree.Structure, given: Any, path: str) -> list[Any]:
    """What is given for each leaf."""
    if structure is None:
        return [given]
    if given is None:
        return [None] * pytree.count_leaves(structure)
    # TensorFlow takes lists for tuples; a loop variable that is no container has a shape
    inner = pytree.children(given) if not isinstance(given, TensorType) else None
    if inner is None or len(inner) != len(structure.children):
        raise InvalidArgumentError(
            f"wf.while_loop: shape_invariants has {given!r:.60} for {path}, which is nested as "
            f"{pytree.describe(structure)}",
            hint="give a shape for each loop variable, or None for those that keep theirs",
            location=caller_location(),
        )
    parts = enumerate(zip(structure.children, inner, strict=True))
    return [x for i, (child, part) in parts for x in _spread(child, part, f"{path}[{i}]")]


def _shape(t: Tensor, given: Any, path: str) -> Shape:
    if isinstance(given, TensorType):
        if given.dtype is not t.dtype and not t.weak:
            raise TypeRuleError(
                f"wf.while_loop: {path} begins as {t.describe()}, but its invariant is {given}",
                hint="the dtype of a loop variable does not change",
                location=caller_location(),
            )
        return given.shape
    if isinstance(given, (list, tuple)) and all(
        d is None or is_count(d) or isinstance(d, SymbolicDim) for d in given
    ):
        return tuple(d if d is None or isinstance(d, SymbolicDim) else int(d) for d in given)
    raise InvalidArgumentError(
        f"wf.while_loop: the shape invariant of {path} is {given!r:.60}",
        hint="give a tuple of sizes, None for those that change, or a wf.TensorType",
        location=caller_location(),
    )


def opened_kinds(inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> tuple[list[Kind], set[str]]:
    """What the loop variables are in every iteration, with a name for each size that may change;
    and these names."""
    trace = current_trace()
    assert trace is not None
    names = list(fresh_sizes(trace, "size", sum(d is None for s in shapes for d in s)))
    rest = iter(names)
    kinds = []
    for t, shape in zip(inputs, shapes, strict=True):
        open_shape = tuple(SymbolicDim.symbol(next(rest)) if d is None else d for d in shape)
        kinds.append((TensorType(t.dtype, open_shape), kind_of(t)[1]))
    return kinds, set(names)


# --------------------------------------------------------------------- shapes that the body decides
def complete(
    what: str,
    fn: Any,
    call: Call,
    inputs: Sequence[Tensor],
    structure: pytree.Structure,
    rows: Sequence[Kind] = (),
    place: Callable[[pytree.Structure], pytree.Structure] = lambda found: found,
) -> Any:
    """The loop variables, those without leaves yet as one iteration of the body makes them; None if
    there are none such.

    call: the body on the leaves, and on further arguments of the kinds `rows`; place: where in its
    result the loop variables are. The iteration is traced, and leaves nothing.
    """
    if not pytree.is_incomplete(structure):
        return None
    trace = current_trace()
    assert trace is not None
    outside = set(trace.root().made_sizes)
    body = Body(f"body of {what}", fn, call, [kind_of(t) for t in inputs], (), rows)
    body.trace.closed = True
    inside = trace.root().made_sizes - outside
    types = [
        TensorType(t.dtype, tuple(None if depends(d, inside) else d for d in t.shape))
        for t in body.leaves
    ]
    return pytree.completed(structure, iter(inputs), place(body.structure), iter(types))
