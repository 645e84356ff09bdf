"""Sequences, which are lists of tensors, and optional values, None where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.sizes import known_size
from weft.frontend.onnx.table import op


@op("SequenceEmpty", since=11)
def _empty(*, dtype: int = 1) -> Any:
    return [], None


@op("SequenceConstruct", since=11)
def _construct(*inputs: Tensor) -> Any:
    return list(inputs)


@op("SequenceAt", since=11, known=["position"])
def _at(input_sequence: Any, position: Any) -> Any:
    return input_sequence[int(np.reshape(position, ()))]


@op("SequenceErase", since=11, known=["position"])
def _erase(input_sequence: Any, position: Any = -1) -> Any:
    made = list(input_sequence)
    del made[int(np.reshape(position, ()))]
    return made


@op("SequenceInsert", since=11, known=["position"])
def _insert(input_sequence: Any, tensor: Tensor, position: Any = None) -> Any:
    made = list(input_sequence)
    made.insert(len(made) if position is None else int(np.reshape(position, ())), tensor)
    return made


@op("SequenceLength", since=11, folds=False)
def _length(input_sequence: Any) -> Tensor:
    return wf.asarray(np.int64(len(input_sequence)))


@op("SplitToSequence", since=11, known=["split"])
def _split(input: Tensor, split: Any = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    size = known_size(input, axis)
    if split is None:
        parts = wf.split(input, size, axis=axis)
        return parts if keepdims else [wf.squeeze(p, axis) for p in parts]
    if not np.ndim(split):
        each = int(split)
        sizes = [min(each, size - i) for i in range(0, size, each)]
        return wf.split(input, sizes, axis=axis)
    return wf.split(input, [int(s) for s in split], axis=axis)


@op("ConcatFromSequence", since=11)
def _concat(input_sequence: Any, *, axis: int, new_axis: int = 0) -> Tensor:
    return wf.stack(input_sequence, axis=axis) if new_axis else wf.concat(input_sequence, axis=axis)


@op("Optional", since=15, folds=False)
def _optional(input: Any = None, *, type: Any = None) -> Any:
    return input


@op("OptionalGetElement", since=15, folds=False)
def _element(input: Any) -> Any:
    return input


@op("OptionalHasElement", since=15, folds=False)
def _has_element(input: Any = None) -> Tensor:
    return wf.asarray(np.bool_(input is not None))
