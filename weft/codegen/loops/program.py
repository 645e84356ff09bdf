"""Program of a step: a tree of kernel calls, and of loops and branches around kernel calls."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.codegen.call import KernelCall
from weft.codegen.faults import fault_of
from weft.codegen.loops.in_registers import why_not_in_registers
from weft.codegen.nests.nest import Nest
from weft.codegen.nests.rows import RowNest, describe_rows
from weft.codegen.stacks import describe_kept
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value

if TYPE_CHECKING:
    from weft.codegen.loops.batch_parallel import Parts


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One kernel call; `op` is None for copies, `nest` is set for loop nests.

    faults: for a call that holds several ops which check an index: those ops, by the numbers that
    its kernel tells of (`faults.emit_fault`).
    """

    call: KernelCall
    op: Operation | None
    nest: Nest | RowNest | None = None
    why: str = ""
    faults: tuple[Operation, ...] = ()

    def describe(self) -> str:
        """The call for people: pseudo-code for nests, one line for the rest."""
        if isinstance(self.nest, RowNest):
            return describe_rows(self.nest)
        if self.nest is not None:
            return self.nest.describe()
        return f"{self.call.kernel.name}  # {self.why or (self.op.name if self.op else '')}"

    def fault(self, status: int) -> tuple[Operation, int]:
        """The op, and the element of its index operand, that the status word tells of."""
        number, element = fault_of(status)
        op = self.faults[number] if self.faults else self.op
        assert op is not None
        return op, element


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: `body` at most `limit` times (-1: no bound), as long as `decision` holds after
    `test`.

    parts: if the rows of the loop's values go through it in parts; `body` is that of one part then,
    and `walk` calls it for each. whole: why they do not.
    """

    op: Operation
    limit: int
    test: tuple[Node, ...]
    decision: Value | None
    body: tuple[Node, ...]
    parts: Parts | None = None
    walk: PlannedCall | None = None
    whole: str = ""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch: `then` if `decision` holds, else `orelse`."""

    op: Operation
    decision: Value
    then: tuple[Node, ...]
    orelse: tuple[Node, ...]


Node = PlannedCall | Loop | Branch


def all_calls(nodes: Sequence[Node]) -> Iterator[PlannedCall]:
    """The kernel calls of a program, those in loops and branches too, in the order of the table."""
    for node in nodes:
        match node:
            case PlannedCall():
                yield node
            case Loop():
                if node.walk is not None:
                    yield node.walk
                yield from all_calls(node.test)
                yield from all_calls(node.body)
            case Branch():
                yield from all_calls(node.then)
                yield from all_calls(node.orelse)


def describe_program(nodes: Sequence[Node]) -> str:
    """The program for people: calls numbered as in `all_calls`, bodies indented. A kernel is shown
    where it is called first."""
    lines: list[str] = []
    _describe(nodes, "", _Numbers(), lines)
    return "\n".join(lines)


class _Numbers:
    """The numbers of calls, the call that each kernel is shown at, and the one that makes a
    value."""

    def __init__(self) -> None:
        self._calls = itertools.count(1)
        self._first: dict[str, int] = {}
        self._makers: dict[Operation, int] = {}

    def __next__(self) -> int:
        return next(self._calls)

    def of_call(self, key: str) -> tuple[int, int]:
        """That of a call, and that of the first call of the kernel."""
        number = next(self)
        return number, self._first.setdefault(key, number)

    def made_by(self, op: Operation, number: int) -> None:
        """Note which call carries out an op: the last of several."""
        self._makers[op] = number

    def origin(self, value: Value) -> str:
        """Where an operand comes from: `#3`, what call 3 makes, or what it is called."""
        op = value.op
        if op is None:
            return "argument"
        if op in self._makers:
            return f"#{self._makers[op]}"
        if op.name == "read" and op.operands[0].op is not None:
            return f"variable '{op.operands[0].op.attrs['name']}'"
        if len(op.operands) == 1:  # a view
            return self.origin(op.operands[0])
        return op.name


def _describe(nodes: Sequence[Node], pad: str, number: _Numbers, lines: list[str]) -> None:
    for node in nodes:
        match node:
            case PlannedCall():
                own, shown = number.of_call(node.call.kernel.key)
                first, *more = node.describe().rstrip().splitlines()
                title, _, key = first.partition("  # ")
                where = "" if node.why else _made(node.op)
                known = node.op is not None and not node.why
                given = node.op.operands if node.op is not None and known else ()
                origins = [f"in{i} = {number.origin(v)}" for i, v in enumerate(given)]
                if node.op is not None and known:
                    number.made_by(node.op, own)
                if own != shown and node.nest is not None:
                    of = f", of {', '.join(origins)}" if origins else ""
                    lines.append(f"{pad}{own}. {title}{where}, as {shown}{of}")
                    continue
                lines.append(f"{pad}{own}. {title}{where}  # {key}")
                if origins:
                    types = [f"{o}: {v.type}" for o, v in zip(origins, given, strict=True)]
                    if any(f"in{len(given)}[" in line for line in more):
                        types.append(f"in{len(given)} = a block of the product, in the cache")
                    lines.append(f"{pad}     {', '.join(types)}")
                lines += [f"{pad}   {line}" for line in more]
            case Loop(limit=limit):
                times = "" if limit < 0 else f" {'at most ' if node.test else ''}{limit} times"
                lines.append(f"{pad}{node.op.name}: loop{times}{_place(node.op)}")
                lines.append(f"{pad}  not one kernel: {why_not_in_registers(node.op)}")
                lines.append(f"{pad}  {_parts(node, number)}")
                kept = describe_kept(node.op)
                lines += [f"{pad}  {kept}"] if kept else []
                if node.decision is not None:
                    _describe(node.test, pad + "  ", number, lines)
                    lines.append(f"{pad}  leave unless the test holds")
                _describe(node.body, pad + "  ", number, lines)
            case Branch():
                lines.append(f"{pad}cond: if{_place(node.op)}")
                lines.append(f"{pad}  not one kernel: {why_not_in_registers(node.op)}")
                _describe(node.then, pad + "  ", number, lines)
                lines.append(f"{pad}else")
                _describe(node.orelse, pad + "  ", number, lines)


def _parts(loop: Loop, number: _Numbers) -> str:
    if loop.parts is None:
        return f"not in parts: {loop.whole}"
    rows = f"{loop.parts.count} parts of {loop.parts.rows} rows"
    return f"{next(number)}. in {rows} each, which do not depend on each other: the body is one's"


def _made(op: Operation | None) -> str:
    """What an op makes, and where it was written: the type, the file's name and the line."""
    if op is None or not op.results:
        return ""
    kinds = dict.fromkeys(str(v.type) for v in op.results)
    place = op.locations[0] if op.locations else None
    where = f" at {os.path.basename(place.file)}:{place.line}" if place else ""
    return f" -> {', '.join(kinds)}{where}"


def _place(op: Operation) -> str:
    return f"  # {op.locations[0]}" if op.locations else ""
