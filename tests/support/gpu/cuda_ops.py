"""Graphs whose ops run as CUDA launches (`codegen/cuda/lowerings.py`), in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda_nests import aligned, bytes_of

from weft.codegen.call import Address, Arg, Pool, Scratch, Status
from weft.codegen.cuda.emulator import run as emulate
from weft.codegen.cuda.kernels.data_movement import check_launches
from weft.codegen.cuda.lowerings import fused_launches, launches_of
from weft.codegen.cuda.source.kernel import Launch, fault_of, memory_dtype
from weft.ir.analysis.index_maps import is_gather
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph, Operation, Value
from weft.ir.interpreter.evaluate import carry_out
from weft.ir.types import TensorType
from weft.passes.in_place import UPDATES

Array = np.ndarray[Any, Any]
#: Ops that move or name what is in memory: the plan has no launch for them.
VIEWS = ("reshape", "constant", "identity")


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


class OpMemory:
    """Every value in a buffer of its own; scratch memory and status words of one op."""

    def __init__(self) -> None:
        self.held: dict[Value, Array] = {}
        self.scratch = aligned(0)
        self.status = np.zeros(2, np.int64)

    def put(self, value: Value, array: Array | None = None) -> None:
        self.held[value] = aligned(_type(value).nbytes) if array is None else bytes_of(array)

    def get(self, value: Value) -> Array:
        held = _type(value)
        return self.held[value].view(held.dtype.numpy).reshape(held.static_shape).copy()

    def pointer(self, arg: Arg, dtype: str) -> Array:
        """The memory that an argument points to, as a kernel sees it."""
        kind = as_dtype(memory_dtype(dtype)).numpy
        match arg:
            case Status():
                return self.status
            case Pool(held):
                return bytes_of(held.array).view(kind)
            case Scratch(nbytes):
                before = self.scratch  # one memory for all of an op, as the plan has it
                if before.nbytes < nbytes:
                    self.scratch = aligned(nbytes)
                    self.scratch[: before.nbytes] = before
                return self.scratch[:nbytes].view(kind)
            case Address(value, offset):
                return self.held[value][offset:].view(kind)
        raise AssertionError(arg)


def all_launches(op: Operation) -> list[Launch]:
    """The launches of an op, as the plan has them; those that check a nest's indices first."""
    if op.name != "fused":
        return launches_of(op)
    checks = []
    (region,) = op.regions
    for gather in region.ops:
        if is_gather(gather):
            index = op.operands[region.args.index(gather.operands[1])]
            checks += check_launches(gather, index)
    return checks + fused_launches(op)[0]


#: Carries out a launch on the memory of its parameters.
Runner = Callable[[Launch, Sequence[Any]], None]


def emulated(seed: int | None = None, check: bool = True) -> Runner:
    """In the emulator."""

    def runner(launch: Launch, args: Sequence[Any]) -> None:
        emulate(launch.kernel, launch.blocks, launch.block_threads, args, seed=seed, check=check)

    return runner


def check_any_order(graph: Graph, inputs: Sequence[Array]) -> None:
    """Threads in any order give the same bits."""
    for got, wanted in zip(run_graph(graph, inputs, seed=3), run_graph(graph, inputs), strict=True):
        assert got.tobytes() == wanted.tobytes()


def run_graph(
    graph: Graph,
    inputs: Sequence[Array],
    seed: int | None = None,
    check: bool = True,
    runner: Runner | None = None,
) -> list[Array]:
    """The results, every value in its own buffer. IndexError(number, position, index) if a launch
    told of a fault."""
    runner = runner or emulated(seed, check)
    memory = OpMemory()
    for value, array in zip(graph.args, inputs, strict=True):
        memory.put(value, array)
    for op in graph.ops:
        if op.name in VIEWS:
            values = carry_out(op, [memory.get(v) for v in op.operands])
            for value, array in zip(op.results, values, strict=True):
                memory.put(value, array)
            continue
        for value in op.results:
            memory.put(value)
        if op.name in UPDATES:
            memory.put(op.result, memory.get(op.operands[0]))
        run_op(all_launches(op), memory, runner)
    return [memory.get(v) for v in graph.results]


def run_op(launches: Sequence[Launch], memory: OpMemory, runner: Runner) -> None:
    """The launches of one op; faults as `run_graph`."""
    memory.scratch = aligned(0)
    memory.status[:] = 0
    for launch in launches:
        pairs = zip(launch.kernel.parameters, launch.args, strict=True)
        args = [memory.pointer(a, p.dtype) if p.kind == "pointer" else a for p, a in pairs]
        runner(launch, args)
        if memory.status.any():
            raise IndexError(*fault_of(*memory.status.tolist()))
