"""What of a graph's results rounding cannot change: the interpreter with rounding errors put in.

Compiled code rounds otherwise than NumPy (fused multiply-add, sums in another order, polynomials
for exp). Through a comparison, `floor` or a difference of near equals that may change a result by
any amount. So the interpreter runs several times, each time with random relative errors of a few
units in the last place in the result of every inexact op; how far an element then moves says how
far compiled code may be off there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.evaluate import RUN_REGIONS
from weft.ir.ops import lookup
from weft.ir.ops.control_flow import CONTROL
from weft.passes.simplify.effects import expand_updates

Array = np.ndarray[Any, Any]

RUNS = 6
#: Relative error of each inexact op in units of eps, as large as the worst of them has in float32.
ULPS = 8.0
#: Elementwise ops that give the exact result of their operands, or the correctly rounded one
#: whatever their neighbours are fused into.
EXACT = frozenset(
    [
        "abs",
        "negative",
        "ceil",
        "floor",
        "round",
        "trunc",
        "isnan",
        "isinf",
        "isfinite",
        "signbit",
        "logical_not",
        "bitwise_invert",
        "conj",
        "real",
        "imag",
        "maximum",
        "minimum",
        "copysign",
        "nextafter",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_left_shift",
        "bitwise_right_shift",
        "where",
        "bitcast",
        "window_max",
        "window_pick",
    ]
)
ACCUMULATING = frozenset(
    [
        *("sum", "cumulative_sum", "matmul", "index_add", "scatter_along_axis_add"),
        *("scatter_nd_add", "conv", "conv_input", "conv_kernel"),
        *("window_sum", "window_spread", "window_place"),
    ]
)
#: Whose errors are relative to what they give, and add up.
PRODUCTS = frozenset(["prod", "cumulative_prod", "cumulative_logsumexp"])
#: SciPy's own error is larger here: 60 ulp for erfc in float64, more far out.
SPECIAL = frozenset(["erf", "erfc", "erfinv", "logaddexp"])
#: inf from finite operands is no overflow where a function has a pole.
POLES = frozenset(
    [
        "divide",
        "reciprocal",
        "rsqrt",
        "log",
        "log2",
        "log10",
        "log1p",
        "atanh",
        "erfinv",
        "lgamma",
        "digamma",
        "power",
    ]
)


class Overflow(Exception):
    """A finite computation overflowed, or met what compiled code may do otherwise: whether it does
    depends on how it is fused."""


def stable_results(
    graph: Graph, inputs: Sequence[Array], state: dict[str, Array], seed: int
) -> tuple[list[Any], dict[str, Any]]:
    """(centre, spread) for each result and each variable after the step; spread inf: anything goes.

    Compiled results must be within the spread of the centre. Raises Overflow.
    """
    runs = [_run(graph, inputs, state, None)]
    for k in range(RUNS):
        runs.append(_run(graph, inputs, state, np.random.default_rng((seed, k))))
    results = [_spread([r[0][i] for r in runs]) for i in range(len(graph.results))]
    names = runs[0][1]
    return results, {n: _spread([r[1][n] for r in runs]) for n in names}


def _spread(samples: list[Any]) -> Any:
    first = samples[0]
    if first is None:
        return None
    if first.dtype.kind in "biu":
        wild = np.zeros(first.shape, bool)
        for x in samples[1:]:
            wild |= x != first
        return first, np.where(wild, np.inf, 0.0)
    wide = np.complex128 if first.dtype.kind == "c" else np.float64
    centre = first.astype(wide)
    info = np.finfo(first.dtype)
    with np.errstate(all="ignore"):
        # an ulp of a subnormal number is the smallest of them
        most = ULPS * np.maximum(info.eps * np.abs(centre), float(info.smallest_subnormal))
        for x in samples[1:]:
            y = x.astype(wide)
            same = (y == centre) | (np.isnan(y) & np.isnan(centre))
            move = np.where(same, 0.0, np.abs(y - centre))
            most = np.maximum(most, np.where(np.isnan(move), np.inf, move))
        most = np.where(np.isnan(most), 0.0, most)
    return first, 8 * most


def _run(
    graph: Graph, inputs: Sequence[Array], state: dict[str, Array], rng: Any
) -> tuple[list[Any], dict[str, Array]]:
    variables = dict(state)
    block = expand_updates(graph).block
    return _run_block(block, inputs, variables, rng), variables


def _run_block(
    block: Block, inputs: Sequence[Any], variables: dict[str, Array], rng: Any
) -> list[Any]:
    values: dict[Value, Any] = dict(zip(block.args, inputs, strict=True))
    for op in block.ops:
        operands = [values[v] for v in op.operands]
        if op.name == "variable":
            results: Sequence[Any] = [op.attrs["name"]]
        elif op.name == "read":
            results = [variables[operands[0]]]
        elif op.name == "assign":
            variables[operands[0]] = operands[1]
            results = [None]
        elif op.name == "group":
            results = [None]
        elif op.name in CONTROL:
            types = [r.type for r in op.results]
            results = RUN_REGIONS[op.name](
                lambda b, args: _run_block(b, args, variables, rng), op, operands, op.attrs, types
            )
        else:
            results = _evaluate(op, operands, rng)
        values.update(zip(op.results, results, strict=True))
    return [values[v] for v in block.results]


def _evaluate(op: Operation, operands: list[Array], rng: Any) -> list[Array]:
    spec = lookup(op.name)
    assert spec.reference is not None
    with np.errstate(all="ignore"):
        out = spec.reference(operands, op.attrs)
        results = list(out) if isinstance(out, list | tuple) else [out]
        inexact = "elementwise" in spec.traits and op.name not in EXACT
        inexact |= op.name in ACCUMULATING or op.name in PRODUCTS
        if not inexact or results[0].dtype.kind in "biu":
            return results
        floats = [x for x in operands if x.dtype.kind in "fc"]
        whole = all(np.isfinite(x).all() for x in floats)
        if op.name.startswith("conv") and not whole:
            raise Overflow(op.name)  # padding may be multiplied by what is not finite (numerics.md)
        if op.name not in POLES and _overflows(op, operands, results[0], whole):
            raise Overflow(op.name)
        if rng is None:
            return results
        return [_disturbed(op, operands, results[0], rng)]


def _overflows(op: Operation, operands: list[Array], result: Array, whole: bool) -> bool:
    """Whether an element of `result` is infinite although what it was made of is finite."""
    infinite = np.isinf(result)
    if whole or not infinite.any():
        return bool(infinite.any())
    finite = [np.isfinite(x) for x in operands if x.dtype.kind in "fc"]
    if "elementwise" in lookup(op.name).traits:
        return bool((infinite & np.all(np.broadcast_arrays(*finite), axis=0)).any())
    zeroed = [np.where(np.isfinite(x), x, 0).astype(x.dtype) for x in operands]
    reference = lookup(op.name).reference
    assert reference is not None
    return bool(np.isinf(reference(zeroed, op.attrs)).any())


def _disturbed(op: Operation, operands: list[Array], x: Array, rng: Any) -> Array:
    size = np.abs(x).astype(np.float64)
    terms = 1
    if op.name in ACCUMULATING:  # the error is relative to the sum of the terms' magnitudes
        reference = lookup(op.name).reference
        assert reference is not None
        wide = [np.abs(v).astype(np.float64) if v.dtype.kind in "fc" else v for v in operands]
        total = reference(wide, op.attrs)
        assert isinstance(total, np.ndarray)
        size, terms = total, 4
    elif op.name in PRODUCTS:
        terms = 16
    elif op.name in SPECIAL:
        terms = 32
    eps = float(np.finfo(x.dtype).eps)
    tiny = float(np.finfo(x.dtype).smallest_subnormal)
    # never a small error: an exact tie must be seen to break
    error = rng.uniform(0.25, 1.0, x.shape) * rng.choice([-1.0, 1.0], x.shape)
    scale = ULPS * terms * eps * size + np.where(size > 0, tiny, 0.0)
    moved = x + error * np.where(np.isfinite(scale), scale, 0.0)
    return np.where(np.isfinite(x), moved, x).astype(x.dtype)
