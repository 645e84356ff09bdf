"""Graphs of pure ops carried out by GPU kernels in the emulator, launch by launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda_nests import aligned, bytes_of

from weft.codegen.call import Address, Arg, Pool, Scratch, Status
from weft.codegen.cuda.emulator import run as emulate
from weft.codegen.cuda.lowerings import GPU_LOWERINGS, fused_launches, launches_of
from weft.codegen.cuda.source.kernel import Launch
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph, Operation, Value
from weft.ir.interpreter.evaluate import carry_out
from weft.ir.types import TensorType
from weft.passes.in_place import UPDATES

Array = np.ndarray[Any, Any]
#: Carries out one launch on the memory of its parameters.
Runner = Callable[[Launch, Sequence[Any]], None]


def lanes(launch: Launch, args: Sequence[Any]) -> None:
    """All threads together, everything looked at."""
    emulate(launch.kernel, launch.blocks, launch.block_threads, args)


def unchecked(launch: Launch, args: Sequence[Any]) -> None:
    """All threads together, as a program is run."""
    emulate(launch.kernel, launch.blocks, launch.block_threads, args, check=False)


def threads(seed: int) -> Runner:
    """Each thread alone, in a random order."""

    def runner(launch: Launch, args: Sequence[Any]) -> None:
        emulate(launch.kernel, launch.blocks, launch.block_threads, args, seed=seed)

    return runner


def run(graph: Graph, inputs: Sequence[Array], runner: Runner) -> list[Array]:
    """The results of a graph: what has GPU kernels by `runner`, the rest interpreted.

    No kernel touches a byte beyond the buffers it is given. UnsupportedError for a nest that has no
    GPU code.
    """
    buffers: dict[Value, Array] = {}
    for value, array in zip(graph.args, inputs, strict=True):
        buffers[value] = bytes_of(np.asarray(array))
    for op in graph.ops:
        if not on_gpu(op):
            arrays = [_array(v, buffers) for v in op.operands]
            for value, array in zip(op.results, carry_out(op, arrays), strict=True):
                if isinstance(value.type, TensorType):
                    buffers[value] = bytes_of(array)
            continue
        for value in op.results:
            buffers[value] = aligned(_type(value).nbytes)
        if op.name in UPDATES:
            buffers[op.result][:] = buffers[op.operands[0]]
        launch_all(op, buffers, runner)
    return [_array(v, buffers).copy() for v in graph.results]


def on_gpu(op: Operation) -> bool:
    """Whether an op has GPU kernels."""
    return op.name == "fused" or op.name in GPU_LOWERINGS


def launch_all(op: Operation, buffers: dict[Value, Array], runner: Runner) -> None:
    """The launches of one op; its indices are in bounds."""
    launches = fused_launches(op)[0] if op.name == "fused" else launches_of(op)
    scratch: dict[int, Array] = {}
    for launch in launches:
        if launch.blocks == 0:
            continue
        told: list[Array] = []
        args: list[Any] = []
        for parameter, arg in zip(launch.kernel.parameters, launch.args, strict=True):
            if parameter.kind == "integer":
                args.append(arg)
                continue
            memory = _memory(arg, buffers, scratch, told)
            dtype = as_dtype(parameter.dtype).numpy
            args.append(memory[: memory.nbytes // dtype.itemsize * dtype.itemsize].view(dtype))
        runner(launch, args)
        assert not any(words.any() for words in told), "told of an index out of bounds"


def _memory(
    arg: Arg, buffers: dict[Value, Array], scratch: dict[int, Array], told: list[Array]
) -> Array:
    match arg:
        case Address(value, offset):
            return buffers[value][offset:]
        case Pool(held):
            return bytes_of(held.array)
        case Scratch(nbytes):
            return scratch.setdefault(nbytes, aligned(nbytes))
        case Status():
            told.append(aligned(24, fill=0))
            return told[-1]
    raise AssertionError(arg)


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _array(value: Value, buffers: dict[Value, Array]) -> Array:
    held = _type(value)
    return buffers[value].view(held.dtype.numpy).reshape(held.static_shape)
