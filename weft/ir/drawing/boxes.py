"""The tree of boxes that a graph is drawn as.

An op is a box. Ops of one scope (`ir/locations.py`), the body of a fused op, and the regions of
loops and branches are boxes within a box, which can be drawn folded. Scalar constants are no boxes:
they are named in the label of the op that reads them.

The ops of a scope are one box as far as no edge then leads backward: an op joins the last box of
its scope if none of its operands is made after that box. So the boxes of a level, in order, are in
an order that respects all uses. A level of very many boxes without scopes is parted by the lines of
the program, or else into stretches."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Location, scope_within, shared_scope
from weft.ir.ops.state import UPDATES
from weft.ir.spec import ConstArray
from weft.ir.text.printer import format_attr, value_name

Kind = Literal["op", "scope", "body", "input", "output"]
#: A level of more boxes than this is parted.
MOST_BOXES = 400
#: Values that are drawn beside their readers.
_CARRIES_LITERAL = frozenset({"broadcast_to", "reshape", "astype"})


_CLASSES = {
    "fused": "kernel",
    **dict.fromkeys(
        ("matmul", "conv", "conv_input", "conv_kernel", "attention", "attention_grad"), "product"
    ),
    **dict.fromkeys(("sparse_matmul", "quantized_matmul"), "product"),
    **dict.fromkeys(("variable", "read", "assign", "count_up_to", *sorted(UPDATES)), "state"),
    **dict.fromkeys(("read_open", "assign_open", "update_open"), "state"),
    **dict.fromkeys(("cond", "while", "scan"), "control"),
    **dict.fromkeys(("send", "recv"), "message"),
}


def op_class(op: Operation) -> str:
    """The class that decides the colour of an op: "kernel", "product", "state", "control",
    "message" or "op"."""
    return _CLASSES.get(op.name, "op")


@dataclass(slots=True, eq=False)
class Box:
    """A box. id: the same for the same thing in a later graph; label: what is written in it; note:
    what is to be told of it besides.

    op: what it stands for (input, output: none). value: of an input or output, the value. boxes,
    edges: what is inside, and its edges as (from, to, values), indices into `boxes` with from < to;
    inputs come first, outputs last.
    """

    id: str
    kind: Kind
    label: str
    note: str = ""
    op: Operation | None = None
    value: Value | None = None
    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int, tuple[Value, ...]]] = field(default_factory=list)

    def walk(self) -> Iterator[Box]:
        """This box and all in it, outer before inner."""
        yield self
        for box in self.boxes:
            yield from box.walk()

    @property
    def count(self) -> int:
        """The number of ops in it."""
        return sum(box.kind == "op" for box in self.walk())


def boxes_of(graph: Graph, names: Mapping[Value, str] | None = None) -> Box:
    """The box of a whole graph. names: of values (`text.views.name_programs`), which ids are made
    of; by default their numbers."""
    arg_names = [value_name(name) for name in graph.arg_names]
    return _Level(graph.block, names or {}, "", "", arg_names).box("body", graph.name, "")


def boxes_of_op(op: Operation) -> Box:
    """The box of what an op does: the body of a fused op, else the op with its operands and
    results."""
    if op.name == "fused":
        return _Level(op.regions[0], {}, "", "").box("body", op.name, "")
    root = Box("graph", "body", op.name)
    for k, operand in enumerate(op.operands):
        root.boxes.append(Box(f"graph|%{k}", "input", f"in{k}", str(operand.type), value=operand))
        root.edges.append((k, len(op.operands), (operand,)))
    note = ", ".join(str(r.type) for r in op.results)
    root.boxes.append(Box("graph/op", "op", _label(op, {}), note, op=op))
    for k, result in enumerate(op.results):
        root.edges.append((len(op.operands), len(root.boxes), (result,)))
        root.boxes.append(Box(f"graph>%{k}", "output", "result", str(result.type), value=result))
    return root


class _Level:
    """A block on the way to its box."""

    def __init__(
        self, block: Block, names: Mapping[Value, str], path: str, around: str,
        arg_names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.block, self.path, self.given, self.around = block, path, names, around
        self.names: dict[Value, str] = {}
        for i, arg in enumerate(block.args):
            default = arg_names[i] if i < len(arg_names) else f"%a{i}"
            self.names[arg] = names.get(arg, default)
        for i, value in enumerate(v for op in block.ops for v in op.results):
            self.names[value] = names.get(value, f"%{i}")
        self.literals = _literals(block)
        self.users: dict[Value, list[Operation]] = {}
        for op in block.ops:
            for value in (*op.operands, *op.control):
                self.users.setdefault(value, []).append(op)
        self.results = set(block.results)

    def box(self, kind: Kind, label: str, note: str) -> Box:
        """All of the block."""
        ops = [op for op in self.block.ops if not all(r in self.literals for r in op.results)]
        made = Box(self.path or "graph", kind, label, note)
        items = self.parted(_by_scope([(op, _scope(op, self.around)) for op in ops]))
        self.fill(made, items, ops, is_top=True)
        return made

    def parted(self, items: list[_Item]) -> list[_Item]:
        """The items of a level, in boxes by line or by number if they are too many."""
        if len(items) <= MOST_BOXES:
            return items
        by_line = _by_scope([(op, (_line(op), *path)) for op, path in _flat(items)])
        if 1 < len(by_line) <= MOST_BOXES:
            return by_line
        size = math.isqrt(len(items)) + 1
        return [
            _Scope(f"{i} to {min(i + size, len(items)) - 1}", list(_flat(items[i : i + size])))
            for i in range(0, len(items), size)
        ]

    def fill(
        self, box: Box, items: Sequence[_Item], ops: Sequence[Operation], is_top: bool = False
    ) -> None:
        """Add to a box what stands for `items`, which hold `ops`, with inputs and outputs."""
        inside = {r for op in ops for r in op.results}
        first: dict[Value, int] = {}
        operands = (v for op in ops for v in (*op.operands, *op.control))
        outside = self.block.args if is_top else operands
        for value in outside:
            if value not in inside and value not in first and value not in self.literals:
                first[value] = len(box.boxes)
                name = self.names[value]
                note = str(value.type)
                box.boxes.append(Box(f"{box.id}|{name}", "input", name[1:], note, value=value))
        where = dict(first)
        counts: dict[str, int] = {}
        for item in items:
            index = len(box.boxes)
            held = [item] if isinstance(item, Operation) else [op for op, _ in item.ops]
            if isinstance(item, Operation):
                box.boxes.append(self.of_op(item))
            else:
                counts[item.name] = counts.get(item.name, 0) + 1
                again = f":{counts[item.name]}" if counts[item.name] > 1 else ""
                box.boxes.append(self.of_scope(item, f"{box.id}/{item.name}{again}"))
            where.update((r, index) for op in held for r in op.results)
        self.connect(box, [*box.boxes], where, items, len(first))
        self.add_outputs(box, ops, where, is_top)

    def connect(
        self, box: Box, boxes: Sequence[Box], where: Mapping[Value, int], items: Sequence[_Item],
        start: int,
    ) -> None:  # fmt: skip
        """Add the edges that lead to the items, which stand from `start` on."""
        for index, item in enumerate(items, start):
            held = [item] if isinstance(item, Operation) else [op for op, _ in item.ops]
            found: dict[int, dict[Value, None]] = {}
            for op in held:
                for value in (*op.operands, *op.control):
                    source = where.get(value)
                    if source is not None and source != index:
                        found.setdefault(source, {})[value] = None
            box.edges += [(source, index, tuple(values)) for source, values in found.items()]

    def add_outputs(
        self, box: Box, ops: Sequence[Operation], where: Mapping[Value, int], is_top: bool
    ) -> None:
        """Add the values that are used outside of a box."""
        own = set(ops)
        if is_top:
            used = list(dict.fromkeys(self.block.results))
        else:
            used = [
                r
                for op in ops
                for r in op.results
                if r in self.results or any(user not in own for user in self.users.get(r, ()))
            ]
        for value in used:
            if value in where:
                box.edges.append((where[value], len(box.boxes), (value,)))
                label = "result" if is_top else self.names[value]
                made = Box(f"{box.id}>{self.names[value]}", "output", label, str(value.type))
                made.value = value
                box.boxes.append(made)

    def of_scope(self, item: _Scope, id: str) -> Box:
        """The box of a scope."""
        ops = [op for op, _ in item.ops]
        made = Box(id, "scope", item.name)
        items = self.parted(_by_scope(item.ops))
        while len(items) == 1 and isinstance(items[0], _Scope):  # `relu/grad` is one box
            made.label += f"/{items[0].name}"
            items = self.parted(_by_scope(items[0].ops))
        self.fill(made, items, ops)
        return made

    def of_op(self, op: Operation) -> Box:
        """The box of an op; what its regions are is inside."""
        name = self.names[op.results[0]] if op.results else op.name
        made = Box(f"{self.path}{op.name}{name}", "op", _label(op, self.literals), op=op)
        made.note = ", ".join(str(r.type) for r in op.results)
        inner, around = f"{self.path}{name}.", "/".join(_scope(op))
        if len(op.regions) == 1:
            body = _Level(op.regions[0], self.given, inner, around).box("body", "", "")
            made.boxes, made.edges = body.boxes, body.edges
        else:
            for i, region in enumerate(op.regions):
                titles = _REGIONS.get(op.name, ())
                title = titles[i] if i < len(titles) else f"region {i}"
                made.boxes.append(
                    _Level(region, self.given, f"{inner}{i}.", around).box("body", title, "")
                )
        return made


_REGIONS = {"cond": ("then", "else"), "while": ("test", "body")}


@dataclass(frozen=True, slots=True, eq=False)
class _Scope:
    """Ops of a level that are one box, each with the rest of its path."""

    name: str
    ops: list[tuple[Operation, tuple[str, ...]]]


_Item = Operation | _Scope


def _by_scope(ops: Iterable[tuple[Operation, tuple[str, ...]]]) -> list[_Item]:
    """Ops in order, those of one scope together; a scope of one op is that op."""
    items: list[tuple[Operation, tuple[str, ...]] | _Scope] = []
    where: dict[Value, int] = {}
    last: dict[Hashable, int] = {}
    ops = list(ops)
    around = {path[0] for _, path in ops if len(path) > 1 and path[1] != "grad"}
    for op, path in ops:
        index = len(items)
        if not path:
            items.append((op, ()))
        else:
            # two calls of a function are two boxes, two blocks of one name scope need not be
            is_call = path[0] not in around and op.locations
            place = op.locations[0] if is_call else None
            known = last.get((path[0], place))
            used = (where.get(v, -1) for v in (*op.operands, *op.control))
            if known is not None and all(i <= known for i in used):
                index = known
                scope = items[known]
                assert isinstance(scope, _Scope)
                scope.ops.append((op, path[1:]))
            else:
                last[path[0], place] = index
                items.append(_Scope(path[0], [(op, path[1:])]))
        where.update((r, index) for r in op.results)
    return [
        item
        if isinstance(item, _Scope) and len(item.ops) > 1
        else (item.ops[0][0] if isinstance(item, _Scope) else item[0])
        for item in items
    ]


def _flat(items: Sequence[_Item]) -> Iterator[tuple[Operation, tuple[str, ...]]]:
    """The ops of items, with their paths."""
    for item in items:
        if isinstance(item, Operation):
            yield item, ()
        else:
            yield from ((op, (item.name, *path)) for op, path in item.ops)


def _scope(op: Operation, around: str = "") -> tuple[str, ...]:
    """The path of an op within the scope `around`: of one that stands for several, what their
    paths begin with."""
    scopes = [at.scope for at in op.locations]
    found = scope_within(functools.reduce(shared_scope, scopes), around) if scopes else ""
    return tuple(found.split("/")) if found else ()


def _line(op: Operation) -> str:
    place: Location | None = op.locations[0] if op.locations else None
    return f"{os.path.basename(place.file)}:{place.line}" if place else "?"


def _literals(block: Block) -> dict[Value, str]:
    """The values that are one number everywhere, and that number."""
    found: dict[Value, str] = {}
    for op in block.ops:
        if op.name == "constant":
            held = op.attrs["value"]
            assert isinstance(held, ConstArray)
            if held.array.size == 1:
                text = format_attr(ConstArray(held.array.reshape(())))
                found[op.result] = text.rpartition(" ")[2]
        elif op.name in _CARRIES_LITERAL and op.operands[0] in found:
            found[op.result] = found[op.operands[0]]
    results = set(block.results)
    return {value: text for value, text in found.items() if value not in results}


def _label(op: Operation, literals: Mapping[Value, str]) -> str:
    """The op's name with the numbers that it reads, or the name of its variable."""
    if op.name == "variable":
        return str(op.attrs["name"])
    if op.name == "fused":
        inner: dict[str, int] = {}
        for one in op.regions[0].ops:
            if one.name not in ("constant", *_CARRIES_LITERAL):
                inner[one.name] = inner.get(one.name, 0) + 1
        shown = [f"{n} {count}x" if count > 1 else n for n, count in inner.items()]
        return "kernel: " + ", ".join(shown[:4]) + (" ..." if len(shown) > 4 else "")
    numbers = [literals[v] for v in op.operands if v in literals]
    return " ".join([op.name, *numbers])
