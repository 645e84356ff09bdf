"""WEFT_VERIFY=run for registered ops: their native kernels against their NumPy references.

Passes are verified by the interpreter, before and after, so a kernel that contradicts its op's
reference is the same on both sides. Here each such op of a graph that is compiled runs by itself on
random operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.ir.errors import VerifyError, WeftError
from weft.ir.graph import Graph, Operation
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops import REGISTERED
from weft.ir.ops.builder import Builder
from weft.ir.program import Program
from weft.ir.types import TensorType
from weft.passes.differential import random_array, tolerance, unequal
from weft.runtime.step import Step


def check_registered(graph: Graph, compiled: Callable[[Graph], Step]) -> None:
    """VerifyError, with the user's line, for an op whose kernel gives something else than its
    reference. compiled: makes a step of a graph of one op."""
    seen = set[object]()
    for op in graph.walk():
        key = op.name, tuple(v.type for v in op.operands), repr(sorted(op.attrs.items()))
        if op.name in REGISTERED and key not in seen:
            seen.add(key)
            _check(op, compiled)


def _check(op: Operation, compiled: Callable[[Graph], Step]) -> None:
    types = [v.type for v in op.operands]
    tensors = [t for t in types if isinstance(t, TensorType) and t.is_static]
    if len(tensors) < len(types):
        return  # sizes that are open: each set of sizes that comes is compiled, and checked
    builder = Builder(types)
    made = builder.emit(op.name, builder.args, op.attrs)
    names = tuple(f"x{i}" for i in range(len(types)))
    one = Graph(op.name, builder.block(made), names, "traced")
    random = np.random.default_rng(0)
    inputs = [random_array(t, random, 0) for t in tensors]
    try:
        expected = evaluate_op(op.name, inputs, op.attrs)
    except WeftError:
        return  # not on random operands
    if not all(np.isfinite(a).all() for a in expected if a.dtype.kind in "fc"):
        return  # outside of where the op is defined
    results = compiled(one).run([np.ascontiguousarray(x) for x in inputs])
    for number, (a, b) in enumerate(zip(expected, results, strict=True)):
        if wrong := unequal(a, b, tolerance(Program.of(one))):
            kinds = ", ".join(map(str, types))
            raise VerifyError(
                f"the kernel of op '{op.name}' for {kinds} contradicts its reference on random "
                f"operands: result {number} {wrong}",
                hint="wf.testing.check_op checks an op on operands of your own",
                location=op.locations,
            )
