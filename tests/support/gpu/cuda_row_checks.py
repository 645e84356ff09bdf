"""Row kernels in the emulator, alone and in place, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
from compiled_checks import same
from cuda_ops import OpMemory, emulated, run_graph, run_op
from graphs import Case
from random_graph_checks import within
from stable_results import Overflow, stable_results

from weft.codegen.cuda.lowerings import fused_launches
from weft.ir import dtypes
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse

WHOLE = (dtypes.int32, dtypes.int64, dtypes.uint8)
FLOATS = (dtypes.float32, dtypes.float64)
HALVES = (dtypes.float16,)


def check_exactly(case: Case) -> None:
    """The interpreter's bits."""
    wanted = interpret(case.graph, case.inputs, DictState({}))
    for x, y in zip(run_graph(fuse(case.graph), case.inputs), wanted, strict=True):
        assert same(x, np.asarray(y))


def check_roughly(case: Case) -> None:
    """Within what rounding may do."""
    try:
        wanted, _ = stable_results(case.graph, case.inputs, case.state, 1)
    except Overflow:
        return
    for x, y in zip(run_graph(fuse(case.graph), case.inputs), wanted, strict=True):
        within(x, *y)


class Maker:
    """A graph under construction, in one dtype."""

    def __init__(self, dtype: str) -> None:
        self.builder, self.dtype = Builder(), as_dtype(dtype)

    def input(self, *shape: int) -> Value:
        return self.builder.add_arg(TensorType(self.dtype, shape))

    def __call__(self, op: str, *operands: Value, **attrs: Any) -> Value:
        (made,) = self.builder.emit(op, operands, attrs)
        return made

    def wide(self, value: Value, shape: tuple[int, ...]) -> Value:
        return self("broadcast_to", value, shape=shape)

    def graph(self, *results: Value) -> Graph:
        names = [f"x{k}" for k in range(len(self.builder.args))]
        return fuse(self.builder.graph("rows", names, list(results)))


def check_in_place(graph: Graph, inputs: list[Any]) -> None:
    """The first result of the graph's only op in the buffer of its first operand."""
    (op,) = graph.ops
    wanted = run_graph(graph, inputs)
    memory = OpMemory()
    for value, array in zip(op.operands, inputs, strict=True):
        memory.put(value, array)
    for value in op.results:
        memory.put(value)
    memory.held[op.results[0]] = memory.held[op.operands[0]]
    run_op(fused_launches(op, ((0, 0),))[0], memory, emulated())
    for value, want in zip(op.results, wanted, strict=True):
        np.testing.assert_array_equal(memory.get(value), want)
