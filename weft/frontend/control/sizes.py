"""Sizes that depend on values in branches and loops: what differs between the two sides of a
branch, or from one iteration to the next, gets a name of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.dynamic_sizes import fresh_sizes
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import current_trace
from weft.ir.dims import Dim, Shape, SymbolicDim
from weft.ir.errors import ShapeError
from weft.ir.locations import caller_location


def meeting(a: Shape, b: Shape, own: set[str] | None = None) -> Shape:
    """A shape for values that have either of these: `a`, with a new name for each size that is not
    the same in both and depends on values in one of them.

    own: the names that such sizes of `a` have been given for this purpose, which stay; new ones are
    added.
    """
    trace = current_trace()
    if trace is None or len(a) != len(b):
        return a
    made, kept = trace.root().made_sizes, set() if own is None else own
    apart = [
        x != y and not _depends(x, kept) and (_depends(x, made) or _depends(y, made))
        for x, y in zip(a, b, strict=True)
    ]
    names = fresh_sizes(trace, "size", sum(apart)) if any(apart) else ()
    kept.update(names)
    new = iter(names)
    return tuple(
        SymbolicDim.symbol(next(new)) if is_new else x for x, is_new in zip(a, apart, strict=True)
    )


def renamed(t: Tensor, shape: Shape) -> Tensor:
    """`t` with the names that `meeting` gave to sizes in `shape`, and as one of that shape if it
    may have it, which is checked when the sizes are known; `t` if there is nothing to do."""
    trace = current_trace()
    if trace is None or t.shape == shape:
        return t
    made = trace.root().made_sizes
    new = [a != b and _depends(b, made) for a, b in zip(t.shape, shape, strict=True)]
    names = tuple(str(d) for d, is_new in zip(shape, new, strict=True) if is_new)
    out = t
    if names:
        given = tuple(None if is_new else d for d, is_new in zip(t.shape, new, strict=True))
        out = apply("ensure_shape", t, shape=given, sizes=names)
    if out.shape != shape and all(map(_may_be, out.shape, shape)):
        out = apply("reshape", out, shape=shape)
    out.weak = t.weak
    return out


def _may_be(a: Dim, b: Dim) -> bool:
    """Whether two sizes are equal for some values of their symbols, as far as that is seen."""
    apart = None if a is None or b is None else a - b
    return apart == 0 or isinstance(apart, SymbolicDim)


def check_stacked(what: str, ys: Sequence[Tensor], before: Collection[str]) -> None:
    """ShapeError for results of an iteration whose sizes are made in it: they do not stack. before:
    the sizes that depend on values outside."""
    trace = current_trace()
    assert trace is not None
    made = trace.root().made_sizes - set(before)
    for y in ys:
        if any(_depends(d, made) for d in y.shape):
            raise ShapeError(
                f"{what}: a result of an iteration is {y._type}: its size depends on values, and "
                "may be another in the next iteration",
                hint="results are stacked: give them one size, or carry what is put together",
                location=caller_location(),
            )


def _depends(dim: Dim, made: Collection[str]) -> bool:
    return isinstance(dim, SymbolicDim) and not dim.symbols.isdisjoint(made)
