"""Simplify structured control flow: known branches, known loops, and what they carry in vain.

Before::

    %3 = while(%0, %1, %x) {carries=2, limit=-1} : i64[], f32[] {
      ^(%a0: i64[], %a1: f32[], %a2: f32[])
      ... %2 = less(%a0, 10)
    } {
      ^(%a0: i64[], %a1: f32[], %a2: f32[])
      ... %4 = exp(%a2), %5 = add(%a1, %4)
    }

After: ``%3 = exp(%x)`` and a scan of length 10 that carries `%a1` alone and takes `%3`.

* a cond whose predicate is known, or whose branches are the same, becomes the branch;
* a while that never runs becomes its operands, one whose number of iterations is known a scan;
* a scan of length 0 becomes its operands, one of length 1 its body;
* what is taken, carried or returned for nothing goes (`trim.py`); what an iteration computes
  from invariants moves out (`hoist.py`), and so do products that need no carry
  (`batch.py`); a loop that repeats another one is merged with it (`merge.py`).

Branches and loops that have effects stay as they are, but for what is pure in them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import AttrValue
from weft.ir.builder import Builder
from weft.ir.graph import Block, Graph, Operation, Value, canonical_block
from weft.ir.ops.control import CONTROL, length_attr
from weft.passes.control.batch import batch
from weft.passes.control.hoist import hoist
from weft.passes.control.loops import Loop, holds_control
from weft.passes.control.merge import merge_loops
from weft.passes.control.trim import Results, trim
from weft.passes.control.trip_count import trip_count
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.expression import Expr
from weft.passes.fold import uniform
from weft.passes.rewrite import (
    fixed_point,
    has_effect,
    rebuilt,
    tensor,
    with_block,
    with_operands,
)


def simplify_control(graph: Graph) -> Graph:
    """Apply the rules to a fixed point, in regions first."""
    return _simplified(graph, batches=True)


def simplify_control_exactly(graph: Graph) -> Graph:
    """`simplify_control` without the rules of `batch.py`, after which sums add up otherwise."""
    return _simplified(graph, batches=False)


def _simplified(graph: Graph, batches: bool) -> Graph:
    if not holds_control(graph):
        return graph
    return fixed_point(graph, lambda g: _step(g, batches), limit=1000)


def _step(graph: Graph, batches: bool) -> Graph:
    """Every rule once; equal ops that moved out of different loops become one."""
    new = with_block(graph, _block(graph.block, batches))
    return graph if new is graph else dce(cse(new))


def _block(block: Block, batches: bool) -> Block:
    if not any(op.name in CONTROL for op in block.ops):
        return block
    block = merge_loops(block)
    ordering = {v for op in block.ops for v in op.control}
    used = {*block.results, *ordering}
    for op in block.ops:
        used.update(op.operands)
    builder = Builder()
    builder.args = list(block.args)
    mapping: dict[Value, Value] = {}
    for op in block.ops:
        inner = op.regions if op.name in CONTROL else ()
        regions = tuple(_block(r, batches) for r in inner) or op.regions
        new = with_operands(op, mapping, regions)
        start = len(builder.ops)
        wanted = {n for o, n in zip(op.results, new.results, strict=True) if o in used}
        ordered = op.control or not ordering.isdisjoint(op.results) or has_effect(new)
        ruled = op.name in CONTROL and not ordered
        found: Results | None = _rule(builder, new, wanted, batches) if ruled else None
        if found is None:
            del builder.ops[start:]
            builder.ops.append(new)
            found = new.results
        for old, value in zip(op.results, found, strict=True):
            if value is not None and value is not old:
                mapping[old] = value
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


def _rule(builder: Builder, op: Operation, used: set[Value], batches: bool) -> Results | None:
    for rule in (_known_branch, _known_loop, _few_rows):
        known = rule(builder, op)
        if known is not None:
            return known
    trimmed = trim(builder, op, used)
    if trimmed is not None:
        return trimmed
    hoisted = hoist(builder, op)
    return batch(builder, op) if hoisted is None and batches else hoisted


def _known_branch(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """The branch of a cond that is known to run, or that is the same as the other."""
    if op.name != "cond":
        return None
    then, orelse = op.regions
    known = uniform(op.operands[0])
    if known is not None:
        return builder.inline(then if known.item() else orelse, op.operands[1:])
    if _same(then, orelse):
        return builder.inline(then, op.operands[1:])
    return None


def _same(a: Block, b: Block) -> bool:
    """Whether two branches are the same but for their source locations."""
    if len(a.ops) != len(b.ops) or [o.name for o in a.ops] != [o.name for o in b.ops]:
        return False
    return canonical_block(_bare(a)) == canonical_block(_bare(b))


def _bare(block: Block) -> Block:
    """The block without source locations."""
    builder = Builder([a.type for a in block.args])
    mapping = dict(zip(block.args, builder.args, strict=True))
    for op in block.ops:
        regions = [_bare(r) for r in op.regions]
        operands = [mapping[v] for v in op.operands]
        values = builder.emit(op.name, operands, op.attrs, regions=regions, locations=())
        mapping.update(zip(op.results, values, strict=True))
    return builder.block([mapping[v] for v in block.results])


def _known_loop(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """A while whose number of iterations is known."""
    if op.name != "while":
        return None
    count = trip_count(op)
    loop = Loop.of(op)
    if count is None:
        return None
    if count == 0:
        return op.operands[: loop.carries]
    attrs: dict[str, AttrValue] = {
        "carries": loop.carries, "sequences": 0, "length": count, "reverse": False,
    }  # fmt: skip
    regions = (loop.body,)
    return builder.emit("scan", op.operands, attrs, regions=regions, locations=op.locations)


def _few_rows(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """A scan of no or one iteration."""
    if op.name != "scan":
        return None
    loop, length = Loop.of(op), length_attr(op.attrs)
    operands = [Expr(builder, v, op.locations) for v in op.operands]
    if length == 0:
        any_value = Expr(builder, op.results[0], op.locations) if op.results else None
        empty = [
            any_value.full(0, t.shape, t.dtype).value
            for t in (tensor(op.results[i]) for i in loop.ys)
            if any_value is not None
        ]
        return [*(x.value for x in operands[: loop.carries]), *empty]
    if length != 1:
        return None
    rows = [operands[i].reshape(operands[i].shape[1:]) for i in loop.row_numbers]
    given = [*operands[: loop.carries], *rows, *(operands[i] for i in loop.rest)]
    found = builder.inline(loop.body, [x.value for x in given])
    ys = [operands[0].wrap(v) if operands else Expr(builder, v, op.locations) for v in found]
    stacked = [y.reshape((1, *y.shape)).value for y in ys[loop.carries :]]
    return [*found[: loop.carries], *stacked]
