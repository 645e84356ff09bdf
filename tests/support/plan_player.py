"""Plays a memory plan: every op finds in its operands' slots what it needs.

`play` knows nothing of how the planner works. It keeps, for each byte of each buffer, whose
contents it holds, walks the ops and copies in order, loops and branches included, and demands that
each read finds the contents that the graph's meaning says are there, and that an op overwrites its
own operand only element by element. How often a `while` runs and which branch a `cond` takes is
drawn by chance: the plan must hold for all of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.collectives import is_exchange, member_starts, member_types
from weft.ir.types import TensorType
from weft.passes.memory.block import MemoryPlan, Slot

#: Contents of a range: (identity, offset in it, bytes), one after another.
Contents = tuple[tuple[object, int, int], ...]
Buffer = tuple[str, int | str]
UPDATES = ("index_add", "slice_update", "scatter_along_axis_add", "scatter_nd_add",
           "scatter_nd_update", "scatter_nd_min", "scatter_nd_max")  # fmt: skip


def whole(identity: object, nbytes: int) -> Contents:
    return ((identity, 0, nbytes),) if nbytes else ()


def part(contents: Contents, start: int, nbytes: int) -> Contents:
    """The bytes from `start` on."""
    out, at = [], 0
    for identity, offset, size in contents:
        low, high = max(start, at), min(start + nbytes, at + size)
        if low < high:
            out.append((identity, offset + low - at, high - low))
        at += size
    return merged(out)


def merged(pieces: list[tuple[object, int, int]]) -> Contents:
    out: list[tuple[object, int, int]] = []
    for identity, offset, size in pieces:
        if out and out[-1][0] == identity and out[-1][1] + out[-1][2] == offset:
            out[-1] = (identity, out[-1][1], out[-1][2] + size)
        elif size:
            out.append((identity, offset, size))
    return tuple(out)


@dataclass(frozen=True)
class Place:
    buffer: Buffer
    start: int


class Memory:
    """Whose contents each range of each buffer holds."""

    def __init__(self) -> None:
        self.ranges: dict[Buffer, list[tuple[int, Contents]]] = {}

    def write(self, place: Place, contents: Contents, by: str = "") -> None:
        assert place.buffer[0] not in ("input", "constant"), f"{place} is overwritten by {by}"
        self.fill(place, contents)

    def fill(self, place: Place, contents: Contents) -> None:
        start, stop = place.start, place.start + size_of(contents)
        kept = []
        for at, held in self.ranges.get(place.buffer, []):
            end = at + size_of(held)
            kept.append((at, part(held, 0, min(end, start) - at) if at < start else ()))
            cut = max(at, stop)
            kept.append((cut, part(held, cut - at, end - cut) if cut < end else ()))
        kept.append((start, contents))
        self.ranges[place.buffer] = sorted((at, c) for at, c in kept if c)

    def read(self, place: Place, nbytes: int) -> Contents | None:
        """What is in the range; None where nothing has been written."""
        out: list[tuple[object, int, int]] = []
        for at, held in self.ranges.get(place.buffer, []):
            low, high = max(place.start, at), min(place.start + nbytes, at + size_of(held))
            if low < high:
                out += part(held, low - at, high - low)
        found = merged(out)
        return found if size_of(found) == nbytes else None


def size_of(contents: Contents) -> int:
    return sum(size for _, _, size in contents)


def nbytes(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.nbytes


def play(graph: Graph, plan: MemoryPlan, seed: int = 0) -> None:
    """Carry the plan out on `Memory`; AssertionError where an op would read the wrong contents."""
    Player(graph, plan, random.Random(seed)).play()


class Player:
    def __init__(self, graph: Graph, plan: MemoryPlan, chance: random.Random) -> None:
        self.graph, self.plan, self.chance = graph, plan, chance
        self.memory = Memory()
        self.meaning: dict[Value, Contents] = {}
        self.state: dict[str, Contents] = {}
        self.counter: dict[Operation, int] = {}
        self.made = 0

    def play(self) -> None:
        for i, arg in enumerate(self.graph.args):
            self.meaning[arg] = whole(("input", i), nbytes(arg))
            self.memory.fill(Place(("input", i), 0), self.meaning[arg])
        for k, op in enumerate(self.plan.constants):
            constant = whole(("constant", id(op.result)), nbytes(op.result))
            self.memory.fill(Place(("constant", k), 0), constant)
        for op in self.graph.ops:
            if op.name == "variable":
                name = str(op.attrs["name"])
                self.state[name] = whole(("before", name), op.result.type.tensor.nbytes)
                self.memory.fill(Place(("variable", name), 0), self.state[name])
        self.block(self.graph.block, None)
        for i, value in enumerate(self.graph.results):
            if isinstance(value.type, TensorType):
                held = self.memory.read(Place(("result", i), 0), nbytes(value))
                assert held == self.meaning[value], f"result {i}: {held}"
        for name, contents in self.state.items():
            self.assert_variable(name, contents)

    def assert_variable(self, name: str, contents: Contents) -> None:
        held = self.memory.read(Place(("variable", name), 0), size_of(contents))
        assert held == contents, f"variable {name}: {held}"

    def place(self, slot: Slot) -> Place:
        if slot.kind == "moving":
            assert isinstance(slot.which, int)
            m = self.plan.moving[slot.which]
            i = self.counter[m.loop]
            base = self.place(m.odd if i % 2 else m.even)
            return Place(base.buffer, base.start + m.offset + i * m.stride)
        if slot.kind == "arena":
            assert isinstance(slot.which, int)
            return Place(("arena", 0), slot.which)
        return Place((slot.kind, slot.which), 0)

    def fresh(self, value: Value) -> Contents:
        self.made += 1
        return whole(("value", self.made), nbytes(value))

    def block(self, block: Block, where: Block | None) -> None:
        self.copies(where, -1)
        for position, op in enumerate(block.ops):
            self.step(op)
            self.copies(where, position)
            if op.name == "assign":
                name = str(op.operands[0].op.attrs["name"])
                self.assert_variable(name, self.state[name])

    def copies(self, where: Block | None, position: int) -> None:
        for copy in self.plan.copies:
            if copy.position == position and copy.block is where:
                held = self.memory.read(self.place(copy.source), copy.nbytes)
                assert held is not None, f"nothing at {copy.source} to copy"
                self.memory.write(self.place(copy.target), held, "a copy")

    def step(self, op: Operation) -> None:
        meaning, slots = self.meaning, self.plan.slots
        if op.name in ("variable", "group"):
            return
        if op.name == "assign":
            self.state[str(op.operands[0].op.attrs["name"])] = meaning[op.operands[1]]
        elif op.name == "read":
            meaning[op.result] = self.state[str(op.operands[0].op.attrs["name"])]
        elif op.name == "constant":
            meaning[op.result] = whole(("constant", id(op.result)), nbytes(op.result))
        elif "view" in lookup(op.name).traits:
            meaning[op.result] = meaning[op.operands[0]]
            assert slots[op.result] == slots[op.operands[0]]
        elif op.name in ("cond", "while", "scan") and op not in self.plan.registers:
            self.control(op)
        else:
            self.kernel(op)

    def kernel(self, op: Operation) -> None:
        for v in op.operands:
            self.expect(v, str(op))
        places = [self.place(self.plan.slots[r]) for r in op.results]
        for j, r in enumerate(op.results):
            for i, v in enumerate(op.operands):
                if overlap(places[j], r, self.place(self.plan.slots[v]), v):
                    own = self.is_own_member(op, i, j) or may_overwrite(op, i, j)
                    assert own, f"{op}: result {j} overwrites operand {i}"
            for k in range(j):
                assert not overlap(places[j], r, places[k], op.results[k])
        for r, place in zip(op.results, places, strict=True):
            self.meaning[r] = self.fresh(r)
            self.memory.write(place, self.meaning[r], str(op))

    def is_own_member(self, op: Operation, operand: int, result: int) -> bool:
        """Of a bucket and a member: is the member where it, or one that is the same, is to be?"""
        if not is_exchange(op, "start") and not is_exchange(op, "done"):
            return False
        packs, kinds = op.attrs["kind"] == "start", member_types(op)
        members, bucket = (op.operands, op.result) if packs else (op.results, op.operands[0])
        member, at = members[operand if packs else result], self.place(self.plan.slots[bucket])
        places = [
            Place(at.buffer, at.start + start * kind.dtype.itemsize)
            for start, kind, m in zip(member_starts(kinds)[0], kinds, members, strict=True)
            if self.plan.slots[m] == self.plan.slots[member]
        ]
        return self.place(self.plan.slots[member]) in places

    def expect(self, value: Value, why: str) -> None:
        held = self.memory.read(self.place(self.plan.slots[value]), nbytes(value))
        assert held == self.meaning[value], f"{why}: {value} is gone, there is {held}"

    # -- control flow -----------------------------------------------------------------------------

    def control(self, op: Operation) -> None:
        if op.name == "cond":
            self.expect(op.operands[0], str(op))
            given = [self.meaning[v] for v in op.operands[1:]]
            results = self.region(self.chance.choice(op.regions), given)
        else:
            results = self.loop(op)
        self.meaning.update(zip(op.results, results, strict=True))

    def region(self, block: Block, given: list[Contents]) -> list[Contents]:
        self.meaning.update(zip(block.args, given, strict=True))
        for arg in block.args:
            if any(arg in op.operands for op in block.ops):
                self.expect(arg, "argument")
        self.block(block, block)
        return [self.meaning[v] for v in block.results]

    def loop(self, op: Operation) -> list[Contents]:
        carries = op.attrs["carries"]
        assert isinstance(carries, int)
        given = [self.meaning[v] for v in op.operands]
        held, rest, body = given[:carries], given[carries:], op.regions[-1]
        count, stacks = self.count(op), [list[Contents]() for _ in op.results[carries:]]
        rows = op.attrs.get("sequences", 0)
        assert isinstance(rows, int)
        for i in range(count):
            self.counter[op] = i
            self.test(op, [*held, *rest])
            at = count - 1 - i if op.attrs.get("reverse") else i
            sizes = [nbytes(a) for a in body.args[carries : carries + rows]]
            parts = [part(r, at * n, n) for r, n in zip(rest, sizes, strict=False)]
            found = self.region(body, [*held, *parts, *rest[rows:]])
            held = found[:carries]
            for stack, contents in zip(stacks, found[carries:], strict=True):
                stack.append(contents)
        self.counter[op] = count
        if count != op.attrs.get("limit"):
            self.test(op, [*held, *rest])
        ordered = [s[::-1] if op.attrs.get("reverse") else s for s in stacks]
        return [*held, *(merged([p for c in s for p in c]) for s in ordered)]

    def test(self, op: Operation, given: list[Contents]) -> None:
        if op.name == "while":
            self.region(op.regions[0], given)
            self.expect(op.regions[0].results[0], "decision")

    def count(self, op: Operation) -> int:
        if op.name == "scan":
            assert isinstance(op.attrs["length"], int)
            return op.attrs["length"]
        limit = op.attrs["limit"]
        assert isinstance(limit, int)
        count = self.chance.randrange(4)
        return count if limit < 0 else min(count, limit)


def overlap(a: Place, a_value: Value, b: Place, b_value: Value) -> bool:
    if a.buffer != b.buffer:
        return False
    return a.start < b.start + nbytes(b_value) and b.start < a.start + nbytes(a_value)


def may_overwrite(op: Operation, operand: int, result: int) -> bool:
    """Is element k of the operand read for nothing but element k of the nest?"""
    if op.name in UPDATES:
        return operand == 0
    if op.name in ("arena_push", "arena_pop"):  # the handle is read first
        return operand == result == 0
    if op.name in ("while", "scan"):  # one kernel: it changes an array that is a carry in place
        carries = op.attrs["carries"]
        assert isinstance(carries, int)
        return operand == result < carries and op.operands.count(op.operands[operand]) == 1
    if op.name != "fused":
        return False
    (region,) = op.regions
    arg, out = region.args[operand], region.results[result]
    element_by_element = out.op is None or "reduction" not in lookup(out.op.name).traits
    direct = all(
        lookup(o.name).traits & {"elementwise", "reduction"}
        for o in region.ops
        if arg in o.operands
    )
    assert isinstance(arg.type, TensorType)
    assert isinstance(out.type, TensorType)
    same = (arg.type.shape, arg.type.dtype.bits) == (out.type.shape, out.type.dtype.bits)
    return element_by_element and direct and same
