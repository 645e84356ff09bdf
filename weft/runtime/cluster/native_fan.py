"""`FanOut`: the RUNs of a step, sent by one call of native code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.comm import wire
from weft.runtime.cluster import packet_layout as to
from weft.runtime.cluster.packets import PacketCode, Unfit, Words, packet_code

if TYPE_CHECKING:
    from weft.comm.endpoint import Endpoint

Array = np.ndarray[Any, Any]
_known: list[PacketCode] = []  # the one of this process: what it sends, it sends with the GIL held


def fan_out(
    endpoint: Endpoint, parts: Sequence[tuple[str, int, Sequence[int]]], inputs: Sequence[Array]
) -> FanOut | None:
    """For parts (task, handle, places of what they are fed) and inputs like these; None until the
    code is compiled, and while packets do not go to all of the tasks."""
    if not _known:
        code = packet_code()
        if code is None:
            return None
        _known.append(code)
    try:
        return FanOut(_known[0], endpoint, parts, inputs)
    except Unfit:
        return None


class FanOut:
    """What sends the RUNs of some parts. `Unfit` where it cannot."""

    def __init__(
        self,
        code: PacketCode,
        endpoint: Endpoint,
        parts: Sequence[tuple[str, int, Sequence[int]]],
        inputs: Sequence[Array],
    ) -> None:
        self._own, self._count = Words(), len(parts)
        rows: list[int] = []
        for task, handle, feeds in parts:
            words = endpoint.words_of(task)
            if words is None:
                raise Unfit(f"packets do not go to {task}")
            given = [inputs[place] for place in feeds]
            rows += [self._own.link(words), handle, *self._feeds(feeds, given), len(feeds)]
        self._rows = self._own.block(rows)
        number = ctypes.c_int64
        unsigned = ctypes.c_uint64
        self._send = code.function("fan_out", number, number, unsigned, unsigned, ctypes.py_object)

    def _feeds(self, places: Sequence[int], given: Sequence[Array]) -> tuple[int, int, int]:
        """Bytes and address of their description, address of their rows."""
        own, described, rows = self._own, [], []
        for place, array in zip(places, given, strict=True):
            rows += [place, own.type(array.dtype, array.shape)]
            described.append((wire.CODES[array.dtype], array.shape, array.nbytes))
        meta = wire.pack_buffer_metas(tuple(described)) if described else b""
        if to.HEADER + len(meta) + sum(array.nbytes for array in given) > to.PACKET_BYTES:
            raise Unfit("they are no packet")
        return len(meta), own.raw(meta), own.block(rows)

    def send(self, step: int, low: int, inputs: Sequence[Array]) -> int:
        """Send them until one cannot be sent by this: how many were."""
        return self._send(self._rows, self._count, step, low, list(inputs))
