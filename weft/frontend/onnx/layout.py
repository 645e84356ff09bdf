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


class Groups:
    """(batch, groups, channels of each, spatial...) that is held as (batch, spatial..., groups,
    channels of each): what a channel shuffle has between its two reshapes."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> Shape:
        """As ONNX sees it."""
        held = self.tensor.shape
        return (held[0], held[-2], held[-1], *held[1:-2])

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return self.tensor.ndim

    @property
    def dtype(self) -> DType:
        """That of the tensor."""
        return self.tensor.dtype

    def plain(self) -> Tensor:
        """The tensor as ONNX lays it out."""
        n = self.ndim
        return permuted(self.tensor, (0, n - 2, n - 1, *range(1, n - 2)))

    def swapped(self) -> Groups:
        """Groups and channels exchanged."""
        n = self.ndim
        return Groups(permuted(self.tensor, (*range(n - 2), n - 1, n - 2)))


#: Values that are not held as ONNX lays them out.
Held = ChannelsLast, Groups


def regrouped(x: ChannelsLast | Groups, shape: Sequence[Any]) -> ChannelsLast | Groups | None:
    """x in a shape that cuts its channels into groups, or joins these; None for other shapes."""
    had, spatial = x.shape, 2 if isinstance(x, ChannelsLast) else 3
    if len(shape) != len(had) + (1 if spatial == 2 else -1) or len(had) < 3:
        return None
    rest = len(had) - spatial
    wanted, kept = list(shape[-rest:]), list(had[-rest:])
    known = isinstance(shape[0], int) and shape[0] == -1
    if wanted != kept or (shape[0] != had[0] and not known):
        return None
    held = x.tensor.shape
    if isinstance(x, Groups):
        return ChannelsLast(wf.reshape(x.tensor, (*held[:-2], shape[1])))
    return Groups(wf.reshape(x.tensor, (*held[:-1], shape[1], shape[2])))


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
    """A value with all its tensors as ONNX lays them out."""
    if isinstance(x, Held):
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
