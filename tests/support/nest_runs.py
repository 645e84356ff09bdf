"""Run the kernels of a fused graph by themselves, each call cut into ranges as the test likes."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from weft.codegen.call import (
    Address,
    KernelCall,
    Pool,
    Scratch,
    Status,
    WorkerScratch,
    worker_stride,
)
from weft.codegen.llvm.jit import compile_kernels
from weft.codegen.nests.calls import nest_calls
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
#: Of a call with so many units: the (lo, hi, worker) ranges in which to run it.
Ranges = Callable[[KernelCall], Iterator[tuple[int, int, int]]]
WORKERS = 3


def whole(call: KernelCall) -> Iterator[tuple[int, int, int]]:
    """All at once."""
    yield 0, call.units, 0


def random_ranges(rng: np.random.Generator) -> Ranges:
    """Random cuts in random order on random workers."""

    def ranges(call: KernelCall) -> Iterator[tuple[int, int, int]]:
        count = int(rng.integers(0, 6))
        marks = sorted({0, call.units, *rng.integers(0, call.units + 1, count).tolist()})
        pieces = list(itertools.pairwise(marks))
        for k in rng.permutation(len(pieces)):
            yield *pieces[k], int(rng.integers(WORKERS))

    return ranges


def run(graph: Graph, inputs: list[Array], ranges: Ranges) -> list[Array]:
    """The results of a graph of nothing but loop nests and views, every value in its own buffer."""
    buffers: dict[Value, Array] = dict(zip(graph.args, inputs, strict=True))
    for op in graph.ops:
        if op.name == "reshape":
            shape = _type(op.result).static_shape
            buffers[op.result] = buffers[op.operands[0]].reshape(shape)
            continue
        if op.name == "constant":
            buffers[op.result] = np.array(op.attrs["value"].array)  # type: ignore[union-attr]
            continue
        assert op.name == "fused", op
        for value in op.results:
            held = _type(value)
            buffers[value] = (
                np.full(held.nbytes + 64, 0xCD, np.uint8)[: held.nbytes]
                .view(held.dtype.numpy)
                .reshape(held.static_shape)
            )
        calls, _ = nest_calls(op)
        scratch = np.full(_scratch_bytes(calls) + 64, 0xCD, np.uint8)
        for call in calls:
            _run_call(call, buffers, scratch, ranges)
    return [buffers[v] for v in graph.results]


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _scratch_bytes(calls: list[KernelCall]) -> int:
    return max([a.nbytes for c in calls for a in c.args if isinstance(a, Scratch)], default=0)


def _run_call(
    call: KernelCall, buffers: dict[Value, Array], scratch: Array, ranges: Ranges
) -> None:
    address = compile_kernels([call.kernel])[call.kernel.key]
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
    words, keep = [], []
    for arg in call.args:
        match arg:
            case int():
                words.append(arg)
            case Pool(held):
                words.append(held.array.ctypes.data)
            case Scratch():
                words.append(scratch.ctypes.data)
            case WorkerScratch(nbytes):
                keep.append(np.full(WORKERS * worker_stride(nbytes) + 64, 0xCD, np.uint8))
                words.append(keep[-1].ctypes.data)
            case Status():
                keep.append(np.zeros(8, np.int64))
                words.append(keep[-1].ctypes.data)
            case Address(value, offset):
                words.append(buffers[value].ctypes.data + offset)
            case _:
                raise AssertionError(f"a nest has no argument {arg}")
    table = np.array(words or [0], np.int64)
    for lo, hi, worker in ranges(call):
        kind(address)(table.ctypes.data, lo, hi, worker)
