"""The text of a program for people, with what a scope holds on one line.

    graph @step(%x: f32[2,3]) -> (f32[]) stage=traced {
      %0 = variable() {name="w", dtype=f32, shape=[3, 4]} : ref<f32[3,4]> loc(m:3:5)
      %6 = "layer" [6 ops] (%x, %0) : f32[2,4] loc(m:9:13)
      ...

Values have the numbers that they have in the whole text. A folded text does not parse."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from weft.ir.graph import Block, Operation, Value
from weft.ir.locations import Location, in_scope, shared_scope
from weft.ir.program import Program
from weft.ir.text.lexer import quote
from weft.ir.text.printer import Printer, print_parts

#: So many of a scope's lines are named.
_MOST_LINES = 3


def print_folded(program: Program, depth: int = 0, locations: bool = True) -> str:
    """The text of `program` in which consecutive ops of one scope are one line. depth: so many
    names of a scope's path are open: with 1 the ops of `layer` print, those of `layer/relu` are a
    line. locations: whether to print `loc(...)`."""
    return print_parts(program, lambda: _Folded(locations, depth))


class _Folded(Printer):
    def __init__(self, locations: bool, depth: int) -> None:
        super().__init__(locations, {}, {})
        self.depth = depth

    def ops(self, block: Block, names: dict[Value, str], indent: str) -> Iterator[str]:
        results = (value for op in block.ops for value in op.results)
        names.update((value, f"%{count}") for count, value in enumerate(results))
        for path, ops in _runs(block.ops, self.depth + 1):
            if path and len(ops) > 1:
                yield self.fold(path, ops, block, names, indent)
                continue
            for op in ops:
                yield from self.op(op, names, indent)

    def fold(
        self, path: str, ops: Sequence[Operation], block: Block, names: dict[Value, str],
        indent: str,
    ) -> str:  # fmt: skip
        """The line of ops of one scope: what they read, and what of them is used elsewhere."""
        inside = {r for op in ops for r in op.results}
        own = set(ops)
        read = dict.fromkeys(v for op in ops for v in (*op.operands, *op.control))
        used = set(block.results)
        used.update(v for op in block.ops if op not in own for v in (*op.operands, *op.control))
        given = [v for op in ops for v in op.results if v in used]
        count = sum(1 + sum(1 for r in op.regions for _ in r.walk()) for op in ops)
        text = indent + (f"{', '.join(names[v] for v in given)} = " if given else "")
        taken = ", ".join(names.get(v, "%undefined") for v in read if v not in inside)
        text += f"{quote(path)} [{count} ops] ({taken})"
        if given:
            text += f" : {', '.join(str(v.type) for v in given)}"
        lines = dict.fromkeys(_plain(at) for op in ops for at in op.locations[:1])
        if self.locations and lines:
            more = ", ..." if len(lines) > _MOST_LINES else ""
            text += f" {self.places(tuple(lines)[:_MOST_LINES])[:-1]}{more})"
        return text


def _runs(ops: Sequence[Operation], names: int) -> Iterator[tuple[str, list[Operation]]]:
    """The ops in order, consecutive ones of one scope together: with so many names of its path, ""
    for those that are in no scope so deep."""
    last, run = "", list[Operation]()
    for op in ops:
        scope = _scope(op)
        path = scope.split("/") if scope else []
        found = "/".join(path[:names]) if len(path) >= names else ""
        if run and found != last:
            yield last, run
            run = []
        last = found
        run.append(op)
    if run:
        yield last, run


def _scope(op: Operation) -> str:
    """The scope of an op: of one that stands for several, what their scopes begin with."""
    scopes = [at.scope for at in op.locations]
    return functools.reduce(shared_scope, scopes) if scopes else ""


def _plain(at: Location) -> Location:
    return in_scope(Location(at.file, at.line, at.column), "")
