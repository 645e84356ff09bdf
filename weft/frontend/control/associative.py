"""`associative_scan`: all prefixes of a sequence under an associative function, in a logarithmic
number of steps.

G. E. Blelloch, "Prefix sums and their applications", 1990: neighbours are combined, the scan of
the pairs is made, and the elements between them follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.control.region import check_callable, mismatch, operand_tensors
from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.manipulation import concat, flip, reshape, stack
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location


@shows_as_seen
def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, *, reverse: bool = False, axis: int = 0
) -> Any:
    """All prefixes of `elems` along an axis, as JAX's jax.lax.associative_scan: element 2 of the
    result is fn(fn(e0, e1), e2).

    fn: takes two trees like elems, whose axis holds any number of elements, and combines them one
    by one; it must be associative. elems: a tree of tensors of one size along `axis`, which has to
    be known. reverse: suffixes instead. The work is twice that of a `wf.scan`, in steps that go
    over many elements at once. ShapeError for sizes that differ, TypeRuleError where fn gives
    another shape or dtype than it takes.

    >>> wf.associative_scan(lambda a, b: a * b, wf.asarray([1.0, 2.0, 3.0, 4.0]))
    Tensor([ 1.,  2.,  6., 24.], dtype=float32)
    """
    check_callable("associative_scan", fn=fn)
    tensors, structure = operand_tensors("associative_scan", elems, "elems")
    if not tensors:
        raise InvalidArgumentError("associative_scan: elems holds no tensor")
    axes = [_axis(t, axis) for t in tensors]
    sizes = [t.shape[a] for t, a in zip(tensors, axes, strict=True)]
    count = sizes[0]
    if not isinstance(count, int) or any(n != count for n in sizes):
        raise ShapeError(
            f"associative_scan: sizes along axis {axis} are {', '.join(map(str, sizes))}",
            hint="they must be known and equal; wf.scan takes lengths that are not known",
            location=caller_location(),
        )

    def combine(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
        made = fn(pytree.unflatten(structure, list(a)), pytree.unflatten(structure, list(b)))
        leaves, found = pytree.flatten(made)
        pytree.same_structure("associative_scan: elems and what fn gives", structure, found)
        out = [as_tensor(leaf) for leaf in leaves]
        for x, y, path in zip(a, out, pytree.paths(structure, "elems"), strict=True):
            if y.shape != x.shape or y.dtype is not x.dtype:
                raise mismatch(
                    "associative_scan: fn changes a type",
                    path,
                    f"it takes {x.describe()}",
                    f"and gives {y.describe()}",
                )
        return out

    flipped = [flip(t, axis=a) for t, a in zip(tensors, axes, strict=True)] if reverse else tensors
    found = _scanned(combine, flipped, axes, count) if count > 1 else list(flipped)
    if reverse:
        found = [flip(t, axis=a) for t, a in zip(found, axes, strict=True)]
    return pytree.unflatten(structure, found)


def _axis(t: Tensor, axis: int) -> int:
    if not -t.ndim <= axis < t.ndim:
        raise InvalidArgumentError(
            f"associative_scan: axis {axis} of {t.describe()}", location=caller_location()
        )
    return axis % t.ndim


def _part(t: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Elements start .. stop-1 along an axis, every `step`-th of them."""
    index = (*(slice(None),) * axis, slice(start, stop, step))
    made: Tensor = t[index]
    return made


def _scanned(
    combine: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]],
    elems: Sequence[Tensor],
    axes: Sequence[int],
    count: int,
) -> list[Tensor]:
    """The prefixes of `count` elements, at least two."""

    def parts(ts: Sequence[Tensor], start: int, stop: int, step: int = 1) -> list[Tensor]:
        return [_part(t, a, start, stop, step) for t, a in zip(ts, axes, strict=True)]

    pairs = count // 2
    sums = combine(parts(elems, 0, 2 * pairs, 2), parts(elems, 1, 2 * pairs, 2))
    odd = _scanned(combine, sums, axes, pairs) if pairs > 1 else sums
    # an element at an even place is that, after the prefix before it
    inner = (count + 1) // 2 - 1
    even = parts(elems, 0, 1)
    if inner:
        later = combine(parts(odd, 0, inner), parts(elems, 2, count, 2))
        both = zip(even, later, axes, strict=True)
        even = [concat([a, b], axis=axis) for a, b, axis in both]
    out = []
    for a, b, axis in zip(even, odd, axes, strict=True):
        shape = (*a.shape[:axis], 2 * pairs, *a.shape[axis + 1 :])
        woven = reshape(stack([_part(a, axis, 0, pairs), b], axis=axis + 1), shape)
        last = [_part(a, axis, pairs, pairs + 1)] if count % 2 else []
        out.append(concat([woven, *last], axis=axis) if last else woven)
    return out
