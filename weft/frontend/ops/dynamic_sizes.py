"""Names for sizes that depend on values, in the graph that is being built."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from weakref import WeakKeyDictionary

from weft.frontend.ops.dispatch import apply, apply_many
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import Trace, current_trace, suspend_trace, unique_name
from weft.ir.errors import TracerError
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue
from weft.ir.types import TensorType, Type

#: For each trace, what ops on which operands gave. Values, as tensors keep their trace.
_made: WeakKeyDictionary[Trace, dict[Hashable, tuple[Value, ...]]] = WeakKeyDictionary()

_WHERE = (
    "compute this outside and pass it in; wf.where(condition, x, y) keeps the shape, and "
    "wf.nonzero(x, size=n) gives n indices; a wf.Graph may have sizes that depend on values"
)


def fresh_sizes(trace: Trace | None, what: str, count: int, hint: str = _WHERE) -> tuple[str, ...]:
    """The names of `count` sizes that depend on values, made from `what`; () where no graph is
    being built: they are known at once.

    TracerError in a trace whose sizes must all be known: that of a compiled function.
    """
    if trace is None:
        return ()
    taken = trace.root().symbols
    if taken is None:
        raise TracerError(
            f"wf.{what}: a size of its result depends on values, which are not known while "
            f"'{trace.root().name}' is traced: a compiled function has one shape for each result",
            hint=hint,
            location=caller_location(),
        )
    names: list[str] = []
    for _ in range(count):
        names.append(unique_name(what, dict.fromkeys(taken)))
        taken.add(names[-1])
    trace.root().made_sizes.update(names)
    return tuple(names)


def open_sizes() -> bool:
    """Whether sizes may depend on values here: outside a trace, in a graph, under an eager grad."""
    trace = current_trace()
    return trace is None or trace.root().symbols is not None


def nonzero_columns(x: Tensor, what: str) -> list[Tensor]:
    """The indices of the elements that are not 0: a vector for each axis."""
    if _are_constants([x]):
        with suspend_trace():
            return nonzero_columns(x, what)
    (rows,) = apply_dynamic("nonzero", [x], what=what)
    count = rows.shape[0]
    return [
        apply("reshape", apply("slice", rows, starts=(0, i), stops=(count, i + 1), steps=(1, 1)),
              shape=(count,))
        for i in range(x.ndim)
    ]  # fmt: skip


def _are_constants(operands: Sequence[Tensor]) -> bool:
    """Whether a compiled function is traced, and these are known already."""
    return not open_sizes() and all(t._data is not None for t in operands)


def fresh_for(trace: Trace | None, what: str, types: Sequence[Type]) -> tuple[str, ...]:
    """`fresh_sizes`, one for each unknown size (`?`) of the types."""
    count = sum(d is None for t in types if isinstance(t, TensorType) for d in t.shape)
    return fresh_sizes(trace, what, count) if count else ()


def apply_dynamic(
    op_name: str,
    operands: Sequence[Tensor],
    attrs: Mapping[str, AttrValue] | None = None,
    *,
    what: str = "",
    count: int = 1,
) -> tuple[Tensor, ...]:
    """All results of a pure op of which `count` sizes depend on values; `what`: its public name.

    At once outside a graph, and on constants of a compiled function. In a graph the same op on the
    same operands is there once, so `x[mask]` and `y[mask]` have the same size. Errors as
    `apply_many` and `fresh_sizes`.
    """
    trace, given = current_trace(), dict(attrs or {})
    if _are_constants(operands):
        with suspend_trace():
            return apply_many(op_name, operands, given)
    if trace is None:
        return apply_many(op_name, operands, given)

    def make() -> tuple[Tensor, ...]:
        sizes = fresh_sizes(trace, what or op_name, count)
        return apply_many(op_name, operands, {**given, "sizes": sizes})

    return once(trace, (op_name, *given.items()), operands, make)


def once(
    trace: Trace,
    what: Hashable,
    operands: Sequence[Tensor],
    make: Callable[[], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """What `make` gives on these operands, in the trace that is current: made once for equal ones,
    in one place."""
    values = [trace.lift(t) for t in operands]
    same = [_content(v) for v in values]
    known = _made.setdefault(trace, {})
    key = (what, *same, trace.control)
    if key not in known:
        known[key] = tuple(trace.lift(t) for t in make())
    return tuple(map(trace.tensor, known[key]))


def _content(value: Value) -> Hashable:
    made = value.op
    return made.attrs["value"] if made is not None and made.name == "constant" else value
