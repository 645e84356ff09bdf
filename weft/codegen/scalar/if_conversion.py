"""If-conversion of a scalar function's LLVM IR text: one block, in which selects take the place of
branches.

Both sides of a branch are computed, as a loop over vectors does anyway. LLVM's vectoriser converts
branches, too, but not all that its other passes have made of them by then: they thread a branch
through others on the same condition, and move loads and folds into its sides. A division by an
integer, which may trap, divides by 1 where its block would not run.

Before:
    br i1 %c, label %then, label %end
  then:
    %y = fmul double %a0, 2.0
    br label %end
  end:
    %r = phi double [ %y, %then ], [ %a0, %0 ]
After:
    %y = fmul double %a0, 2.0
    %r = select i1 %c, double %y, double %a0"""

from __future__ import annotations

import re
from dataclasses import field
from functools import lru_cache

from weft.ir.dataclass import dataclass

#: Functions of more lines stay as they are: of most of them only few would run.
MOST_LINES = 300

_NAME = r'%(?:"[^"]+"|[\w.$-]+)'
_LABEL = re.compile(r'^("[^"]+"|[\w.$-]+):')
_JUMP = re.compile(rf"br label ({_NAME})$")
_BRANCH = re.compile(rf"br i1 (\S+), label ({_NAME}), label ({_NAME})$")
_RETURN = re.compile(r"ret (\S+) (\S+)$")
_PHI = re.compile(rf"({_NAME}) = phi (\S+) (.*)$")
_INCOMING = re.compile(rf"\[ (\S+|{_NAME}), ({_NAME}) \]")
_DIVISION = re.compile(rf"({_NAME} = [su](?:div|rem)) (?:exact )?(i\d+) (\S+), (\S+)$")


@dataclass
class _Block:
    name: str
    lines: list[str] = field(default_factory=list)
    follows: tuple[tuple[str, str, bool], ...] = ()  # (block, condition, whether it is negated)
    result: tuple[str, str] | None = None  # of a return: type and value


@lru_cache(256)
def if_converted(text: str) -> str:
    """The definition in one block; as it is if it has a loop, a switch, or too many lines."""
    head, lines = text.partition("{\n")[0], _lines(text)
    if len(lines) > MOST_LINES:
        return text
    blocks = _blocks(lines)
    order = None if blocks is None else _ordered(blocks)
    if blocks is None or order is None or len(order) == 1:
        return text
    made = _Writer(blocks).written(order)
    return f"{head}{{\n" + "".join(f"  {line}\n" for line in made) + "}\n"


@lru_cache(256)
def has_loop(text: str) -> bool:
    """Whether a function has a loop of its own, or anything else than branches and a return."""
    blocks = _blocks(_lines(text))
    return blocks is None or _ordered(blocks) is None


def _lines(text: str) -> list[str]:
    """The lines of a definition's body, names that are numbers as t0, t1, ..."""
    body = text.partition("{\n")[2]
    lines = [line.strip() for line in body[: body.rindex("}")].splitlines() if line.strip()]
    return [re.sub(r"%(\d+)\b", r"%t\1", line) for line in lines]


def _blocks(lines: list[str]) -> dict[str, _Block] | None:
    """The blocks by name, the first one's is %t0; None if one ends otherwise than by a branch or a
    return."""
    current = _Block("%t0")
    blocks = {current.name: current}
    ended = False
    for line in lines:
        label = _LABEL.match(line)
        if label is not None:
            name = f"%t{label[1]}" if label[1].isdigit() else f"%{label[1]}"
            if not ended and (current.lines or current.name != "%t0"):
                return None
            if not current.lines and not ended:  # the first block has a name
                blocks.pop(current.name)
            current = blocks[name] = _Block(name)
            ended = False
            continue
        if ended:
            return None
        ended = _end(current, line)
        if not ended:
            if line.startswith(("br ", "switch ", "unreachable", "ret ", "indirectbr ")):
                return None
            current.lines.append(line)
    return blocks if ended else None


def _end(block: _Block, line: str) -> bool:
    """Whether the line ends the block, which is noted there."""
    jump, branch, back = _JUMP.match(line), _BRANCH.match(line), _RETURN.match(line)
    if jump is not None:
        block.follows = ((jump[1], "true", False),)
    elif branch is not None:
        block.follows = ((branch[2], branch[1], False), (branch[3], branch[1], True))
    elif back is not None:
        block.result = back[1], back[2]
    return jump is not None or branch is not None or back is not None


def _ordered(blocks: dict[str, _Block]) -> list[_Block] | None:
    """The blocks, each after all that lead to it; None if there is a loop."""
    done: list[_Block] = []
    state: dict[str, bool] = {}  # whether it is done; missing: not begun

    def visit(name: str) -> bool:
        if name in state:
            return state[name]
        state[name] = False
        if not all(visit(following) for following, _, _ in blocks[name].follows):
            return False
        state[name] = True
        done.append(blocks[name])
        return True

    first = next(iter(blocks))
    return done[::-1] if visit(first) else None


class _Writer:
    def __init__(self, blocks: dict[str, _Block]) -> None:
        self.blocks = blocks
        self.lines: list[str] = []
        self.edges: dict[tuple[str, str], str] = {}  # (from, to) -> whether it is taken
        self.count = 0

    def written(self, order: list[_Block]) -> list[str]:
        results: list[tuple[str, tuple[str, str]]] = []
        for block in order:
            runs = self._runs(block, first=block is order[0])
            for line in block.lines:
                self._line(line, block, runs)
            for following, condition, negated in block.follows:
                taken = self._both(runs, self._negated(condition) if negated else condition)
                known = self.edges.get((block.name, following))
                self.edges[block.name, following] = (
                    taken if known is None else self._either(known, taken)
                )
            if block.result is not None:
                results.append((runs, block.result))
        (_, (kind, value)), *others = reversed(results)
        for runs, (_, other) in others:
            value = self._new(f"select i1 {runs}, {kind} {other}, {kind} {value}")
        return [*self.lines, f"ret {kind} {value}"]

    def _runs(self, block: _Block, first: bool) -> str:
        """Whether a block would run."""
        taken = [edge for (_, to), edge in self.edges.items() if to == block.name]
        if first or not taken:
            return "true"
        runs, *others = taken
        for other in others:
            runs = self._either(runs, other)
        return runs

    def _line(self, line: str, block: _Block, runs: str) -> None:
        phi, division = _PHI.match(line), _DIVISION.match(line)
        if phi is not None:
            name, kind, incoming = phi.groups()
            (value, _), *others = _INCOMING.findall(incoming)
            for other, source in others:
                edge = self.edges[source, block.name]
                value = self._new(f"select i1 {edge}, {kind} {other}, {kind} {value}")
            self.lines.append(f"{name} = select i1 true, {kind} {value}, {kind} {value}")
        elif division is not None and runs != "true":
            start, kind, over, under = division.groups()
            safe = self._new(f"select i1 {runs}, {kind} {under}, {kind} 1")
            self.lines.append(f"{start} {kind} {over}, {safe}")
        else:
            self.lines.append(line)

    # conditions by select, not `and` and `or`: what a side computes for nothing may be poison
    def _both(self, a: str, b: str) -> str:
        if a == "true" or b == "true":
            return b if a == "true" else a
        return self._new(f"select i1 {a}, i1 {b}, i1 false")

    def _either(self, a: str, b: str) -> str:
        return "true" if "true" in (a, b) else self._new(f"select i1 {a}, i1 true, i1 {b}")

    def _negated(self, condition: str) -> str:
        return self._new(f"xor i1 {condition}, true")

    def _new(self, text: str) -> str:
        self.count += 1
        name = f"%if.{self.count}"
        self.lines.append(f"{name} = {text}")
        return name
