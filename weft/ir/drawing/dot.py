"""Graphviz DOT text of graphs and programs, for `weft view FILE | dot -Tsvg`."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.drawing.boxes import op_class
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.program import Program
from weft.ir.spec import ConstArray
from weft.ir.text.lexer import quote
from weft.ir.text.printer import format_attr
from weft.ir.types import RefType, TokenType, Type

_MAX_LABEL = 48
#: Fill colours of the classes of ops; others are white.
_COLOURS = {
    "kernel": "#d5f2d0", "product": "#c9dcff", "state": "#ffe4b3", "control": "#e6d8fb",
    "message": "#ffd3d0",
}  # fmt: skip


def dot(graph: Graph) -> str:
    """The DOT text: ops as boxes, inputs as ellipses, regions as frames, effect order dashed."""
    return "\n".join(_Dot().graph(graph)) + "\n"


def dot_program(program: Program) -> str:
    """As `dot`; each part of several in a frame of its own, messages bold between them."""
    if program.is_whole:
        return dot(program.graph)
    return "\n".join(_Dot().program(program)) + "\n"


class _Dot:
    def __init__(self) -> None:
        self.ids: dict[Operation | Value, str] = {}
        self.results = 0

    def graph(self, graph: Graph) -> Iterator[str]:
        yield f"digraph {quote(graph.name)} {{"
        yield '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="monospace"]'
        yield '  edge [fontname="monospace", fontsize=10]'
        names = [*graph.arg_names, *map(str, range(len(graph.arg_names), len(graph.args)))]
        yield from self.block(graph.block, names, "  ")
        yield "}"

    def program(self, program: Program) -> Iterator[str]:
        first, *rest = program.parts
        for i, part in enumerate((first, *rest)):
            head, *lines, end = self.graph(part.graph)
            if not i:
                yield head
                yield from lines[:2]  # how nodes and edges look
            yield f"  subgraph cluster_part_{i} {{"
            yield f"    label={_label(part.device)}; style=rounded"
            yield from (f"  {line}" for line in lines[2:])
            yield "  }"
        sends, receives = (
            {op.attrs["key"]: self.ids[op] for op in program.walk() if op.name == name}
            for name in ("send", "recv")
        )
        for edge in program.edges:
            if edge.key in sends:
                kind = _label(str(edge.type))
                yield f"  {sends[edge.key]} -> {receives[edge.key]} [style=bold, label={kind}]"
        yield end

    def block(self, block: Block, names: list[str], indent: str) -> Iterator[str]:
        for arg, name in zip(block.args, names, strict=True):
            yield f"{indent}{self.new(arg)} [shape=ellipse, label={_label(name, str(arg.type))}]"
        for op in block.ops:
            yield from self.op(op, indent)
        for i, value in enumerate(block.results):
            end = f"r{self.results}"
            self.results += 1
            yield f"{indent}{end} [shape=ellipse, label={_label(f'result {i}')}]"
            yield f"{indent}{self.source(value)} -> {end} [label={_label(str(value.type))}]"

    def op(self, op: Operation, indent: str) -> Iterator[str]:
        node = self.new(op)
        attrs = [f"{k}={_short(_attr(v))}" for k, v in op.attrs.items()]
        attrs += [_short(text) for text in (op.device, op.group and f"group {op.group}") if text]
        colour = quote(_COLOURS.get(op_class(op), "white"))
        place = f", tooltip={quote(str(op.locations[0]))}" if op.locations else ""
        yield f"{indent}{node} [label={_label(op.name, *attrs)}, fillcolor={colour}{place}]"
        for value in op.operands:
            yield f"{indent}{self.source(value)} -> {node}{_edge(value.type)}"
        for value in op.control:
            yield f"{indent}{self.source(value)} -> {node} [style=dashed]"
        for i, region in enumerate(op.regions):
            yield f"{indent}subgraph cluster_{node}_{i} {{"
            yield f"{indent}  label={_label(f'region of {op.name}')}; style=rounded; color=gray"
            names = [f"a{k}" for k in range(len(region.args))]
            yield from self.block(region, names, indent + "  ")
            yield f"{indent}}}"

    def new(self, item: Operation | Value) -> str:
        self.ids[item] = f"n{len(self.ids)}"
        return self.ids[item]

    def source(self, value: Value) -> str:
        return self.ids[value if value.op is None else value.op]


def _attr(value: object) -> str:
    if isinstance(value, ConstArray) and value.array.size > 4:
        return f"{value.dtype.short}{list(value.array.shape)}"
    return format_attr(value)  # type: ignore[arg-type]


def _short(text: str) -> str:
    return text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 3] + "..."


def _edge(type: Type) -> str:
    if isinstance(type, TokenType):
        return " [style=dashed]"
    colour = ", color=orange" if isinstance(type, RefType) else ""
    return f" [label={_label(str(type))}{colour}]"


def _label(*lines: str) -> str:
    return '"' + "\\n".join(quote(line)[1:-1] for line in lines) + '"'
