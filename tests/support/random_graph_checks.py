"""Compiled random graphs against the interpreter: to the bit, or within what rounding may do; the
ops and dtypes that such graphs are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from compiled_checks import same
from graphs import Case
from stable_results import Overflow, stable_results

from weft.ir import dtypes
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops import OPS
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.runtime.native.executable import compile_graph
from weft.runtime.resources.variables import VariableState

Array = np.ndarray[Any, Any]

#: custom_gradient, custom_rule, identity and stop_gradient are for autodiff, `fused` and attention
#: are what fusion makes (test_attention: a gradient may be a difference of equal terms), stacks are
#: in test_while_gradients, decompositions of singular matrices in test_linear_algebra_kernels.
TRACED = [
    n
    for n, s in OPS.items()
    if n not in ("custom_gradient", "custom_rule", "fused", "attention", "attention_grad")
    and n not in ("sparse_matmul", "quantized_matmul")
    and not n.startswith(("stack_", "arena_"))
    and n not in LINEAR_ALGEBRA | COLLECTIVES
    and not s.traits & {"host", "handle"}
]
#: test_compiled has the others: near the zeros of digamma and lgamma no relative bound holds, and
#: which sign a computed NaN has is undefined.
FLOATS = [n for n in TRACED if n not in ("digamma", "lgamma", "copysign", "signbit")]
WHOLE = [d for d in dtypes.ALL if d.kind in ("bool", "int", "uint")]

LOOPS = [n for n in FLOATS if OPS[n].traits & {"elementwise", "reduction"}]
LOOPS += ["broadcast_to", "permute_dims", "slice", "reshape", "iota", "constant", "matmul"]


def states(graph: Graph, values: dict[str, Array]) -> dict[str, VariableState]:
    """The variables of a graph, each holding a copy of its value."""
    out = {}
    for op in graph.ops:
        if op.name == "variable":
            name, held = str(op.attrs["name"]), op.result.type.tensor
            out[name] = VariableState(name, held.dtype, held.static_shape, values[name])
    return out


def check_exactly(case: Case, passes: Any) -> None:
    """Results and state of compiled code have the interpreter's bits."""
    oracle = DictState(case.state)
    wanted = interpret(case.graph, case.inputs, oracle)
    variables = states(case.graph, case.state)
    executable = compile_graph(case.graph, variables, passes=passes)
    inputs = [x.copy() for x in case.inputs]
    got = executable.run(inputs)
    for x, y in zip(inputs, case.inputs, strict=True):
        assert same(x, y), "an input changed"
    for x, y in zip(got, wanted, strict=True):
        assert (x is None) == (y is None)
        assert x is None or same(x, y), f"{x!r} != {y!r}"
    for name, variable in variables.items():
        assert same(variable.read(), oracle.values[name]), name
    check_own_memory(got, inputs, variables)


def check_own_memory(
    results: list[Any], inputs: list[Array], variables: dict[str, VariableState]
) -> None:
    """No result shares memory with another one, an input or a variable."""
    arrays = [x for x in results if x is not None]
    others = [*inputs, *(v.array for v in variables.values() if v.array is not None)]
    for i, x in enumerate(arrays):
        for y in [*arrays[i + 1 :], *others]:
            assert not np.shares_memory(x, y)


def check_roughly(case: Case, passes: Any) -> None:
    """Results and state are within what rounding may do."""
    try:
        results, after = stable_results(case.graph, case.inputs, case.state, 1)
    except Overflow:
        return
    variables = states(case.graph, case.state)
    got = compile_graph(case.graph, variables, passes=passes).run(case.inputs)
    for x, wanted in zip(got, results, strict=True):
        assert (x is None) == (wanted is None)
        if x is not None:
            within(x, *wanted)
    for name, variable in variables.items():
        within(variable.read(), *after[name])


def within(x: Array, centre: Array, spread: Array) -> None:
    assert x.dtype == centre.dtype
    assert x.shape == centre.shape
    with np.errstate(all="ignore"):
        if x.dtype.kind in "biu":
            fine = (x == centre) | np.isinf(spread)
        else:
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            apart = np.abs(x.astype(wide) - centre.astype(wide))
            fine = (apart <= spread) | (x == centre) | np.isinf(spread)
            fine |= np.isnan(x) & np.isnan(centre)
    assert fine.all(), f"{x[~fine]} != {centre[~fine]} +- {spread[~fine]}"
