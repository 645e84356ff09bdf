"""Which stacks an iteration, or a whole plan, makes and hands on.

After `lower_stacks` a stack is an i64[] like others. Which values may be stacks that an iteration
has made is found by how values flow from the ops that take memory. What it only pops is older.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.codegen.kernels.arena_words import element_bytes
from weft.ir.graph import Block, Operation, Value
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType

_MAKERS = frozenset({"arena_push", "arena_add"})


def makes_stacks(block: Block) -> bool:
    """Whether an op of the block, or of a region in it, takes memory for stacks."""
    return any(op.name in _MAKERS for op in block.walk())


def leaves_stacks(block: Block) -> bool:
    """Whether stacks that the block makes are among its results: another plan goes on with them."""
    return makes_stacks(block) and any(_results(block, [False] * len(block.args)))


def keeps_no_stacks(op: Operation) -> bool:
    """Whether a loop makes stacks in its iterations, none of which leads out of one."""
    if not any(map(makes_stacks, op.regions)):
        return False
    return not any(_loop_results(op, [False] * len(op.operands)))


def _loop_results(op: Operation, given: Sequence[bool]) -> list[bool]:
    """Which results of a loop may be new stacks, of operands that may be."""
    body, carries = op.regions[-1], int_attr(op.attrs, "carries")
    held = list(given)
    while True:
        found = _results(body, held)
        grown = [a or b for a, b in zip(held, found[:carries], strict=False)]
        if grown == held[:carries]:
            return [*grown, *found[carries:]]
        held[:carries] = grown


def _results(block: Block, given: Sequence[bool]) -> list[bool]:
    """Which results of a block may be new stacks, of arguments that may be."""
    stacks = {a for a, g in zip(block.args, given, strict=True) if g}
    for op in block.ops:
        stacks.update(_made(op, stacks))
    return [v in stacks for v in block.results]


def _made(op: Operation, stacks: set[Value]) -> Iterable[Value]:
    if op.name in _MAKERS:
        return op.results
    held = [v in stacks for v in op.operands]
    if op.name == "arena_pop":
        return op.results[: 2 if op.attrs["nested"] else 1] if any(held) else ()
    if op.name in ("while", "scan"):
        found = _loop_results(op, held)
    elif op.name == "cond":
        pairs = zip(*(_results(region, held[1:]) for region in op.regions), strict=True)
        found = [any(pair) for pair in pairs]
    else:
        found = [any(held)] * len(op.results)
    return [r for r, f in zip(op.results, found, strict=True) if f]


def describe_kept(op: Operation) -> str:
    """What a loop keeps of its iterations on stacks, for people; "" if nothing."""
    pushes = [o for o in op.regions[-1].ops if o.name == "arena_push"] if op.regions else []
    if not pushes:
        return ""
    nbytes = 0
    for push in pushes:
        held = push.operands[1].type
        assert isinstance(held, TensorType)
        nbytes += element_bytes(held.nbytes)
    limit = int_attr(pushes[0].attrs, "limit")
    bound = f", at most {limit:,} in all" if limit >= 0 else ""
    again = ", its start alone: the rest is computed again" if op.attrs.get("recompute") else ""
    return f"keeps {nbytes:,} bytes of each iteration for gradients{bound}{again}"
