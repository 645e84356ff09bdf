"""Constant operands as panels: packed when a plan is made, once for all of its calls.

The layout is that of the kernels which pack an operand in each call (`tiles/packing.py`,
`windows/conv_tiles.py`). It follows from the operand and the target's tile alone, not from the
rows of the product: plans for several batch sizes share one packed constant."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.codegen.call import Address, Pool
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.spec import ConstArray

Array = np.ndarray[Any, Any]
#: Bytes of a cache line: panels begin at one.
LINE = 64


@dataclass(frozen=True, slots=True)
class Panels:
    """The layout of a packed operand: [group, panel, tap, depth, column of the panel].

    offset, sizes, strides: the source as [group, tap, depth, width], in elements. columns: the
    width of a panel. dtype: of a packed element. neighbours: so many of depth are one element of 32
    bits, zeros after the last; flipped: each of them plus 128.
    """

    offset: int
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    columns: int
    dtype: str
    neighbours: int = 1
    flipped: bool = False

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def pack(self, source: Array) -> Array:
        """The packed elements, read-only; columns that the width does not fill are zeros."""
        groups, taps, depth, width = self.sizes
        flat, item = source.reshape(-1)[self.offset :], source.itemsize
        steps = [item * s for s in self.strides]
        view = np.lib.stride_tricks.as_strided(flat, self.sizes, steps, writeable=False)
        element = as_dtype(self.dtype).numpy
        one = element if self.neighbours == 1 else np.dtype(f"i{4 // self.neighbours}")
        panels = -(-width // self.columns)
        shape = (groups, panels, taps, -(-depth // self.neighbours), self.columns, self.neighbours)
        made = _aligned_zeros(shape, one)
        for p in range(panels):
            columns = view[..., p * self.columns : (p + 1) * self.columns]
            for d in range(self.neighbours):
                rows = columns[:, :, d :: self.neighbours]
                made[:, p, :, : rows.shape[2], : rows.shape[3], d] = rows
        if self.flipped:
            np.bitwise_xor(made.view(np.uint8), np.uint8(128), out=made.view(np.uint8))
        packed = made.reshape(-1).view(element)
        packed.setflags(write=False)
        return packed


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.zeros(nbytes + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    return room[first : first + nbytes].view(dtype).reshape(shape)


class PackedConstant(ConstArray):
    """A packed constant, equal to itself alone: its bytes are not compared."""

    __slots__ = ()

    def __init__(self, packed: Array) -> None:
        self.array = packed
        self._hash = id(packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedConstant) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


#: What is packed of each array, by its identity; what is not used any more goes.
_packed: dict[int, weakref.WeakValueDictionary[Panels, Array]] = {}
#: Of each packed array, by its identity: what it was packed from, and how.
_origins: dict[int, tuple[weakref.ref[Array], Panels]] = {}


def packed_array(source: Array, panels: Panels) -> Array:
    """`panels.pack(source)`, one array for all who ask while somebody has it. Nobody may write to
    the source."""
    key = id(source)
    if key not in _packed:
        _packed[key] = weakref.WeakValueDictionary()
        weakref.finalize(source, _packed.pop, key, None).atexit = False
    made = _packed[key].get(panels)
    if made is None:
        made = panels.pack(source)
        _packed[key][panels] = made
        _origins[id(made)] = (weakref.ref(source), panels)
        weakref.finalize(made, _origins.pop, id(made), None).atexit = False
    return made


def packed_constant(address: Address, panels: Panels) -> Pool:
    """The constant at an address (`constant_of`), packed, as an argument of a call."""
    held = constant_of(address)
    assert held is not None
    return Pool(PackedConstant(packed_array(held.array, panels)))


def packed_again(source: Array, fields: Mapping[str, Any]) -> Array:
    """`packed_array` by `Panels.fields`."""
    given: dict[str, Any] = {}
    for name, value in fields.items():
        given[name] = tuple(value) if isinstance(value, list) else value
    return packed_array(source, Panels(**given))


def origin_of(packed: Array) -> tuple[Array, Panels] | None:
    """What an array was packed from, and how; None for others, and where that is gone."""
    source, panels = _origins.get(id(packed), (None, None))
    held = source() if source is not None else None
    return None if held is None or panels is None else (held, panels)


def constant_of(address: Address) -> ConstArray | None:
    """What lies at an address, if it is a constant."""
    made = address.value.op
    if made is None or made.name != "constant":
        return None
    held = made.attrs["value"]
    return held if isinstance(held, ConstArray) else None
