"""Which branches and loops become Switch and Merge, and why.

Native code runs a branch or loop faster than the dataflow executor does. So of its own accord the
compiler lowers only what native code cannot hold: bodies with ops of the host, or that read and
write variables themselves, and what is around those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from weft.ir.effects import accesses, state_key
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.host import runs_on_host
from weft.ir.ops.control import CONTROL
from weft.ir.types import HandleType, RefType

#: What `mode` may be: lower what must be, all that can be, nothing.
MODES = ("auto", "dataflow", "native")
_NONE: Mapping[Operation, str] = {}


def lowering_reasons(graph: Graph, mode: str = "auto") -> list[tuple[Operation, bool, str]]:
    """Each `cond`, `while` and `scan` of a graph, nested ones too, in order of the text: whether it
    becomes Switch and Merge, and why, in words."""
    whole = carried_updates(graph.block) if mode == "dataflow" else {}
    return list(_reasons(graph.block, mode, None, whole))


def _reasons(
    block: Block, mode: str, kept: Operation | None, whole: Mapping[Operation, str] = _NONE
) -> Iterator[tuple[Operation, bool, str]]:
    for op in block.ops:
        if op.name not in CONTROL:
            continue
        if kept is not None:
            lowered, why = False, f"is in op '{kept.name}'{_at(kept)}, which stays native"
        else:
            lowered, why = (False, whole[op]) if op in whole else decide(op, mode)
        yield op, lowered, why
        for region in op.regions:
            yield from _reasons(region, mode, None if lowered else kept or op)


def decide(op: Operation, mode: str) -> tuple[bool, str]:
    """Whether a `cond`, `while` or `scan` becomes Switch and Merge if what is around it does."""
    if mode == "native":
        return False, "control_flow='native'"
    if op.name == "scan" and not isinstance(op.attrs["length"], int):
        return False, "how many iterations there are is known only when it runs"
    if mode == "dataflow":
        return True, "control_flow='dataflow'"
    inside = next((o for r in op.regions for o in Block.walk(r) if _needs_executor(o)), None)
    if inside is not None:
        what = "runs on the host" if runs_on_host(inside) else "acts on a variable each time"
        return True, f"op '{inside.name}' in it{_at(inside)} {what}"
    if executor_only((op,)) is not None:
        what = "takes a handle" if _takes_handle(op) else "takes or gives strings"
        return True, f"it {what}, which native branches and loops do not"
    return False, "nothing in it needs the executor, and native code is faster"


def carried_updates(block: Block) -> dict[Operation, str]:
    """The branches and loops that update variables, read before them and assigned after them, and
    why they stay native whatever the mode is: lowered, they would lie in other regions than the
    read and the assignment, and other steps could change the variable in between."""
    starts: dict[Operation, set[str | Value]] = {}
    for op in block.ops:
        if op.name in CONTROL and executor_only((op,)) is None:
            reads = (v.op for v in op.operands if v.op is not None and v.op.name == "read")
            starts[op] = {state_key(read.operands[0]) for read in reads}
    found: dict[Operation, str] = {}
    for op in block.ops:
        made = op.operands[1].op if op.name == "assign" else None
        if made is not None and state_key(op.operands[0]) in starts.get(made, ()):
            name = state_key(op.operands[0])
            found[made] = f"it updates variable '{name}', which no other step may do meanwhile"
    return found


def _needs_executor(op: Operation) -> bool:
    return not op.regions and (runs_on_host(op) or any(True for _ in accesses(op)))


def executor_only(ops: Iterable[Operation]) -> Operation | None:
    """The first op, regions included, that no native loop or branch can hold; None if all can be
    there."""
    for op in ops:
        for region in op.regions:
            found = executor_only(region.ops)
            if found is None and op.name in CONTROL:
                found = next((o for o in region.ops if any(True for _ in accesses(o))), None)
            if found is not None:
                return found
        if runs_on_host(op) or (op.name in CONTROL and _takes_handle(op)):
            return op
    return None


def _takes_handle(op: Operation) -> bool:
    return any(isinstance(v.type, (HandleType, RefType)) for v in op.operands)


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""
