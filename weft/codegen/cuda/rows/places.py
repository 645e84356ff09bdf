"""Where a row kernel's loads and outputs are: parameters, and indices in terms of the loops."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address
from weft.codegen.cuda.language import LANES, LOADS, STORES, memory_dtype
from weft.codegen.cuda.scalars.memory import SIGNED, nbytes
from weft.codegen.cuda.scalars.scalar import load, loaded, stored
from weft.codegen.cuda.writer import Source
from weft.ir.dataclass import dataclass


@dataclass(slots=True)
class Place:
    """A pointer (None: the position itself is meant) and its strides over the loops, as texts; None
    does not move. offset: a text."""

    pointer: str | None
    dtype: str
    offset: str
    strides: list[str | None]

    def at(self, s: Source, first: int, indices: Sequence[str]) -> str:
        """What these loops from loop `first` on add to the place."""
        steps = self.strides[first : first + len(indices)]
        pairs = zip(indices, steps, strict=True)
        return s.total([s.mul(i, step) for i, step in pairs if step is not None])


def place_of(
    s: Source,
    hint: str,
    dtype: str,
    held: Address | None,
    offset: int,
    strides: Sequence[int],
) -> Place:
    """The parameters of a load or an output. held: the buffer; None: its number is the value."""
    pointer, start = None, s.const(0)
    if held is not None and min(strides, default=0) >= 0:
        held, offset = Address(held.value, held.offset + offset * nbytes(dtype)), 0
    if held is not None:
        pointer = s.pointer(hint, dtype, held)
    if offset:
        start = s.number(f"{hint}_first", offset)
    return Place(pointer, dtype, start, stride_texts(s, hint, strides))


def stride_texts(s: Source, hint: str, strides: Sequence[int]) -> list[str | None]:
    """Strides as parameters where they are neither 0 nor 1."""
    return [
        None if n == 0 else s.const(1) if n == 1 else s.number(f"{hint}_step{k}", n)
        for k, n in enumerate(strides)
    ]


def picked(s: Source, dtype: str, value: str, size: str, stride: str) -> str:
    """What an index adds to a place: it counts from the end if negative. One out of bounds, which a
    check before this kernel tells of, touches the first or last element: nothing stops the kernel,
    and memory that is not there would end the use of the device."""
    index = s.let(f"i64({value})", "index")
    if dtype in SIGNED:
        index = s.let(f"i64({index} + i64({size})) if {index} < i64(0) else {index}", "index")
    last = s.let(f"i64(i64({size}) - i64(1))", "last")
    index = s.let(f"{last} if {index} > {last} else {index}", "index")
    if dtype in SIGNED or dtype == "u64":  # of u64 numbers from 2**63 on are negative
        index = s.let(f"i64(0) if {index} < i64(0) else {index}", "index")
    return s.mul(s.cast(index), stride)


def read_vector(
    s: Source, place: Place, at: str, lanes: int, wide: bool, step: str | None
) -> list[str]:
    """The register values of `lanes` elements from index `at` on, `step` apart; None: of one."""
    dtype, pointer = place.dtype, place.pointer
    assert pointer is not None
    if step is None:
        return [s.let(load(dtype, pointer, at))] * lanes
    if not wide:
        return [s.let(load(dtype, pointer, _moved(s, at, k, step))) for k in range(lanes)]
    memory = memory_dtype(dtype)
    count, raw = LANES[memory], []
    for k in range(0, lanes, count):
        names = [s.fresh("v") for _ in range(count)]
        s.line(f"{', '.join(names)} = {LOADS[memory]}({pointer}, {s.add(at, s.const(k))})")
        raw += names
    return raw if memory == dtype else [s.let(loaded(dtype, name)) for name in raw]


def write_vector(
    s: Source, place: Place, at: str, values: Sequence[str], wide: bool, step: str | None
) -> None:
    """Store register values at index `at` and on, `step` apart."""
    dtype, pointer = place.dtype, place.pointer
    if not wide:
        for k, value in enumerate(values):
            s.line(f"{pointer}[{_moved(s, at, k, step or s.const(0))}] = {stored(dtype, value)}")
        return
    memory = memory_dtype(dtype)
    count = LANES[memory]
    for k in range(0, len(values), count):
        given = [stored(dtype, value) for value in values[k : k + count]]
        where = s.add(at, s.const(k))
        s.line(f"{STORES[memory]}({pointer}, {where}, {', '.join(given)})")


def _moved(s: Source, at: str, k: int, step: str) -> str:
    return s.add(at, s.mul(s.const(k), step)) if k else at
