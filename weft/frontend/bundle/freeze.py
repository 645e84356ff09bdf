"""Freezing: variables become constants, and what is known then is computed.

What a frozen function writes to variables is left out, so its results may not depend on it: a
random generator or a counter that a call moves on is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.frontend.bundle.signature import Exported, Weights
from weft.frontend.core.tensor import Array
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import make_op
from weft.ir.spec import ConstArray
from weft.passes.manager import Pass
from weft.passes.rewriting.rewrite import bind, with_operands
from weft.passes.simplify.algebra import simplify
from weft.passes.simplify.cse_dce import cse, dce
from weft.passes.simplify.effects import strip_gradient_ops
from weft.passes.simplify.fold import fold_frozen
from weft.passes.simplify.layouts import move_permutations
from weft.passes.simplify.scales import fold_scales

#: In this order: scales and offsets of batch normalisation are constants only once they are folded,
#: and next to their convolution only once permutations have moved.
FREEZING: tuple[Pass, ...] = (
    strip_gradient_ops, dce, fold_frozen, simplify, cse, move_permutations, simplify, fold_frozen,
    fold_scales, dce,
)  # fmt: skip


def frozen(given: Exported, weights: Weights) -> Exported:
    """The signature with constants in place of variables. UnsupportedError if results depend on a
    variable that it also writes."""
    pure, start = without_updates(given), given.inputs
    own = len(pure.graph.results)
    arrays = [weights.arrays[n] for n in pure.weights]
    made_graph = with_constants(pure.graph, start, arrays, own)
    for run in FREEZING:
        made_graph = run(made_graph)
    return replace(pure, graph=made_graph, weights=())


def simplified(given: Exported) -> Exported:
    """The signature with its variables as arguments, as an inference graph: without what it writes
    to them, and what is known computed. Errors as `frozen` has."""
    pure = without_updates(given)
    graph = pure.graph
    for run in FREEZING:
        graph = run(graph)
    return replace(pure, graph=graph)


def without_updates(given: Exported) -> Exported:
    """The signature without what it writes to variables. UnsupportedError if results depend on a
    variable that it also writes."""
    graph = given.graph
    own = len(graph.results) - len(given.updates)
    changing = [name for name in given.updates if _is_read(graph, own, given, name)]
    if changing:
        raise UnsupportedError(
            f"wf.export(freeze=True): the results of '{graph.name}' depend on the variable "
            f"'{changing[0]}', which each call changes",
            hint="a random generator, a counter, a step of training: leave it out of what is "
            "exported, or do not freeze",
        )
    block = replace(graph.block, results=graph.results[:own])
    names = graph.result_names[:own]
    kept = Graph(graph.name, block, graph.arg_names, graph.stage, result_names=names)
    return replace(given, graph=kept, updates=())


def with_constants(graph: Graph, inputs: int, arrays: Sequence[Array], results: int) -> Graph:
    """The graph with constants in place of its arguments after the first `inputs`; its first
    `results` alone."""
    ops: list[Operation] = []
    mapping: dict[Value, Value] = {}
    place = next((op.locations for op in graph.ops), ())
    for arg, array in zip(graph.args[inputs:], arrays, strict=True):
        made = make_op("constant", attrs={"value": ConstArray(array)}, locations=place)
        ops.append(made)
        mapping[arg] = made.result
    for op in graph.ops:
        new = with_operands(op, mapping)
        bind(mapping, op, new.results)
        ops.append(new)
    values = tuple([mapping.get(v, v) for v in graph.results[:results]])
    block = Block(graph.args[:inputs], tuple(ops), values)
    names = graph.result_names[:results]
    return Graph(graph.name, block, graph.arg_names[:inputs], graph.stage, result_names=names)


def _is_read(graph: Graph, own: int, given: Exported, name: str) -> bool:
    """Whether results depend on the value of a variable."""
    needed = set(graph.results[:own])
    for op in reversed(graph.ops):
        if not needed.isdisjoint(op.results):
            needed.update(op.operands)
    return graph.args[given.inputs + list(given.weights).index(name)] in needed
