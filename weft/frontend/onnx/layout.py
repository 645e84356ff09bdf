"""`ChannelsLast`: a tensor (batch, channels, spatial...) of ONNX that is held as (batch,
spatial..., channels), as weft's convolutions and pooling take it.

What comes between them works on what is held, so that no transposes are left in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import suspend_trace
from weft.frontend.ops.promotion import is_concrete
from weft.ir.dims import Shape
from weft.ir.dtypes import DType


class ChannelsLast:
    """The tensor, whose channels are its second axis for ONNX and its last axis here."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> Shape:
        """As ONNX sees it."""
        held = self.tensor.shape
        return (held[0], held[-1], *held[1:-1])

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return self.tensor.ndim

    @property
    def dtype(self) -> DType:
        """That of the tensor."""
        return self.tensor.dtype

    def axis(self, axis: int) -> int:
        """Where an axis of ONNX's is."""
        axis %= self.ndim
        return {0: 0, 1: self.ndim - 1}.get(axis, axis - 1)

    def plain(self) -> Tensor:
        """The tensor as ONNX lays it out."""
        n = self.ndim
        if all(isinstance(d, int) and d == 1 for d in self.tensor.shape[1:-1]):
            return wf.reshape(self.tensor, self.shape)
        return permuted(self.tensor, (0, n - 1, *range(1, n - 1)))


def permuted(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """x with its axes in another order; at once where it is known."""
    if is_concrete(x):
        with suspend_trace():
            return wf.permute_dims(x, axes)
    return wf.permute_dims(x, axes)


def last(x: Tensor | ChannelsLast) -> Tensor:
    """(batch, spatial..., channels)."""
    if isinstance(x, ChannelsLast):
        return x.tensor
    return permuted(x, (0, *range(2, x.ndim), 1))


def plain(x: Any) -> Any:
    """A value without ChannelsLast in it."""
    if isinstance(x, ChannelsLast):
        return x.plain()
    return [plain(v) for v in x] if isinstance(x, (list, tuple)) else x


def aligned(inputs: Sequence[Any]) -> list[Any] | None:
    """Operands that broadcast, as they broadcast with the channels last; None where they do not."""
    axes = max(x.ndim for x in inputs if isinstance(x, ChannelsLast))
    made: list[Any] = []
    for x in inputs:
        if x is None or (isinstance(x, Tensor) and not x.ndim):
            made.append(x)
        elif isinstance(x, ChannelsLast) and x.ndim == axes:
            made.append(x.tensor)
        elif isinstance(x, Tensor) and x.ndim <= axes:
            made.append(last(_of_rank(x, axes)))
        else:
            return None
    return made


def _of_rank(x: Tensor, axes: int) -> Tensor:
    if x.ndim == axes:
        return x
    shape = (*[1] * (axes - x.ndim), *x.shape)
    if is_concrete(x):
        with suspend_trace():
            return wf.reshape(x, shape)
    return wf.reshape(x, shape)
