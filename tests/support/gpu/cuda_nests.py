"""Plain loop nests run as CUDA launches in the emulator, by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.codegen.call import Address, Arg, Scratch
from weft.codegen.cuda.emulator import run as emulate
from weft.codegen.cuda.nests.plain_nests import plain_launches
from weft.codegen.cuda.source.kernel import Launch, memory_dtype
from weft.codegen.nests.nest import Nest, build_nest
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph, Operation, Value
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse

Array = np.ndarray[Any, Any]


def aligned(nbytes: int, fill: int = 0xCD) -> Array:
    """So many bytes at a multiple of 64."""
    raw = np.full(nbytes + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def bytes_of(array: Array) -> Array:
    """A copy at a multiple of 64, as bytes."""
    held = aligned(array.nbytes)
    held[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return held


def fused_op(graph: Graph) -> Operation:
    """The only loop nest of a graph, once fused."""
    (op,) = [o for o in fuse(graph).ops if o.name == "fused"]
    return op


class NestRun:
    """A nest and its buffers: one for each output and each operand, `shifts` bytes into memory of
    their own; operands in place share their output's."""

    def __init__(
        self,
        op: Operation,
        inputs: Sequence[Array],
        in_place: tuple[tuple[int, int], ...] = (),
        shifts: Sequence[int] = (),
    ) -> None:
        self.nest: Nest = build_nest(op, in_place)
        self.op = op
        offsets = dict(zip(op.operands, shifts, strict=False))
        self.bytes: dict[Value, Array] = {}
        for value in op.results:
            self.bytes[value] = aligned(_type(value).nbytes)
        for k, (value, array) in enumerate(zip(op.operands, inputs, strict=True)):
            shift, shared = offsets.get(value, 0), dict(in_place).get(k)
            held = aligned(array.nbytes + shift)
            if shared is not None:
                held = self.bytes[op.results[shared]]
            held[shift:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.bytes[value] = held
        outputs = [Address(v) for v in op.results]
        operands = [Address(v, offsets.get(v, 0)) for v in op.operands]
        self.launches = plain_launches(self.nest, outputs, operands)

    @property
    def names(self) -> list[str]:
        """Of the kernels."""
        return [launch.kernel.name for launch in self.launches]

    @property
    def source(self) -> str:
        """Of all kernels."""
        return "\n\n".join(launch.kernel.source for launch in self.launches)

    def run(self, seed: int | None = None) -> list[Array]:
        """The results."""
        scratch: dict[int, Array] = {}
        for launch in self.launches:
            self._launch(launch, scratch, seed)
        return [
            self.bytes[v].view(_type(v).dtype.numpy).reshape(_type(v).static_shape).copy()
            for v in self.op.results
        ]

    def _launch(self, launch: Launch, scratch: dict[int, Array], seed: int | None) -> None:
        args: list[Any] = []
        for parameter, arg in zip(launch.kernel.parameters, launch.args, strict=True):
            if parameter.kind == "integer":
                args.append(arg)
                continue
            kind = as_dtype(memory_dtype(parameter.dtype)).numpy
            args.append(self._memory(arg, scratch).view(kind))
        emulate(launch.kernel, launch.blocks, launch.block_threads, args, seed=seed)

    def _memory(self, arg: Arg, scratch: dict[int, Array]) -> Array:
        if isinstance(arg, Scratch):
            return scratch.setdefault(arg.nbytes, aligned(arg.nbytes))
        assert isinstance(arg, Address)
        return self.bytes[arg.value][arg.offset :]


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
