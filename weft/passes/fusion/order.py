"""The order in which groups run, and what memory is needed at once if they run so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from weft.ir.graph import Value
from weft.ir.index_maps import is_fold
from weft.ir.order import stable_order
from weft.ir.sizes import largest
from weft.ir.types import TensorType
from weft.passes.memory.arena import aligned

if TYPE_CHECKING:
    from weft.passes.fusion.groups import Group


def in_order(before: Mapping[Group, Set[Group]], rank: Mapping[Group, int]) -> list[Group]:
    """The groups after all that must run before them, else by their ranks, which are distinct."""
    order = stable_order(sorted(before, key=rank.__getitem__), before.__getitem__)
    assert len(order) == len(before), "fusion made a cycle"
    return order


def bytes_at_once(
    order: Sequence[Group],
    makes: Mapping[Group, Sequence[Value]],
    readers: Mapping[Value, Set[Group]],
    nbytes: Mapping[Value, int],
    mapped: Set[Value],
) -> int:
    """The most bytes that what the groups make for each other holds at a time. Nothing is written
    in the place of values that are `mapped`, which are read at other elements.
    """
    place = {g: k for k, g in enumerate(order)}
    dying: dict[int, list[Value]] = {}
    for made in makes.values():
        for value in made:
            dying.setdefault(max(place[g] for g in readers[value]), []).append(value)
    most = held = 0
    for k, group in enumerate(order):
        new, old = makes.get(group, ()), dying.get(k, ())
        held += sum(nbytes[v] for v in new)
        free = [v for v in old if v not in mapped] if group.space is not None else []
        most = largest(most, held - _in_place(new, free))
        held -= sum(nbytes[v] for v in old)
    return most


def _in_place(new: Sequence[Value], old: Sequence[Value]) -> int:
    """Bytes that a nest writes over what it is the last to read: element by element, not folds."""
    free = [v.type for v in old if isinstance(v.type, TensorType)]
    total = 0
    for value in new:
        held = value.type
        if not isinstance(held, TensorType) or value.op is None or is_fold(value.op):
            continue
        alike = [t for t in free if (t.shape, t.dtype.bits) == (held.shape, held.dtype.bits)]
        if alike and held.is_static:
            free.remove(alike[0])
            total += aligned(held.nbytes)
    return total
