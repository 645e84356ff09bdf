"""The text form of a graph: `parse_graph(print_graph(g)) == g` for every valid graph, and of a
program, whose parts each stand under a line `part "/job:ps/task:0/cpu:0" feeds [0] fetches []`.

    graph @step(%x: f32[32,784]) -> (f32[32,784]) stage=traced {
      %0 = variable() {name="W", dtype=f32, shape=[784]} : ref<f32[784]> loc("m.py":3:5)
      %1 = read(%0) : f32[784] loc("m.py":4:9)
      %2 = fused(%x, %1) {kind="loop"} : f32[32,784] {
        ^(%a0: f32[32,784], %a1: f32[784])
        ...
        yield %1
      } loc("m.py":4:9, "m.py":5:13)
      %3 = assign(%0, %1) after(%1) : token
      return %2
    }

Results may have names, `-> (loss: f32[], "train/step": token)`; lists of names that belong to the
graph may follow it, each as `collection trainable_variables ["W", "b"]`.

Locations are file, line, column and, if there is one, the scope (`ir/locations.py`). A path prints
as a name, `loc(model:4:9 "layer1/relu", 5:13)`, where a place without a file is in the one before
it; what the names stand for follows the graph, as `file model = "/home/me/model.py"` (as MLIR's
location aliases do).

An op is `results = name(operands) after(control) {attributes} : types device("/job:ps/task:0")
group("g") {regions} loc(...)`; what is empty is left out. Attributes print in schema order,
defaults too. Every block numbers its values from %0 and its arguments from %a0 (those of the graph
have names): regions are isolated from above.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from weft.ir.dims import SymbolicDim, format_dim
from weft.ir.dtypes import DType
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.program import Program
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.text.lexer import NAME, format_array, format_float, quote
from weft.ir.types import TensorType

_FOLDERS = re.compile(r".*[/\\]", re.DOTALL)
#: Remarks under ops, for people: they print as comments.
Notes = Mapping[Operation, str]


def print_graph(
    graph: Graph,
    locations: bool = True,
    notes: Notes | None = None,
    names: Mapping[Value, str] | None = None,
    folders: bool = True,
) -> str:
    """The text of `graph`, ending in a newline.

    locations: whether to print `loc(...)`; without them, parsing gives a graph without locations.
    folders: whether paths of files have their folders.
    notes: comments to print under ops.
    names: names such as `%5` to print in place of numbers; they must be distinct in each block.
    A broken graph prints too (an undefined value as `%undefined`), so that it can be shown.
    """
    printer = Printer(locations, notes or {}, names or {})
    printer.folders = folders
    return "\n".join(printer.graph(graph)) + "\n"


def print_program(
    program: Program, locations: bool = True, names: Mapping[Value, str] | None = None
) -> str:
    """The text of `program`: its graph, or its parts with an empty line between them. Arguments as
    `print_graph`."""
    return print_parts(program, lambda: Printer(locations, {}, names or {}))


def print_parts(program: Program, printer: Callable[[], Printer]) -> str:
    """The text of a program, each graph by a printer of its own."""
    texts = []
    for part in program.parts:
        head = ""
        if not program.is_whole:
            feeds, fetches = format_attr(part.feeds), format_attr(part.fetches)
            head = f"part {quote(part.device)} feeds {feeds} fetches {fetches}\n"
        texts.append(head + "\n".join(printer().graph(part.graph)) + "\n")
    return "\n".join(texts)


def print_lines(
    program: Program, names: Mapping[Value, str]
) -> Iterator[tuple[str, Operation | None]]:
    """The lines of `print_program` without locations, each with the op that it is of."""
    for part in program.parts:
        if not program.is_whole:
            yield f"part {quote(part.device)}", None
        printer = Printer(False, {}, names)
        for line in printer.graph(part.graph):
            yield line, printer.op_of_line


def print_block(block: Block) -> str:
    """The text of one block without locations: equal for two blocks of equal structure."""
    return "\n".join(Printer(False, {}, {}).block(block, "")) + "\n"


def print_op(op: Operation, names: Mapping[Value, str]) -> str:
    """The text of one op without locations. names: of its results, operands and what it comes
    after."""
    return "\n".join(Printer(False, {}, {}).op(op, names, ""))


def value_names(graph: Graph) -> dict[Value, str]:
    """How `print_graph` names each value, those of nested blocks by themselves."""
    names = {a: value_name(n) for a, n in zip(graph.args, graph.arg_names, strict=True)}

    def add(block: Block) -> None:
        results = [value for op in block.ops for value in op.results]
        names.update({value: f"%{i}" for i, value in enumerate(results)})
        for region in (region for op in block.ops for region in op.regions):
            names.update({value: f"%a{i}" for i, value in enumerate(region.args)})
            add(region)

    add(graph.block)
    return names


def format_attr(value: AttrValue) -> str:
    """One attribute value as it stands in the text."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return format_float(value)
        case str():
            return quote(value)
        case DType():
            return value.short
        case SymbolicDim():
            return format_dim(value)
        case ConstArray():
            kind = TensorType(value.dtype, value.array.shape)
            return f"{kind} {format_array(value.array, value.dtype)}"
        case tuple():
            return "[" + ", ".join(_format_item(v) for v in value) + "]"


def format_attrs(attrs: Mapping[str, AttrValue]) -> str:
    """`{name="W", shape=[784, 100]}`."""
    return "{" + ", ".join(f"{k}={format_attr(v)}" for k, v in attrs.items()) + "}"


def _format_item(value: AttrValue | SymbolicDim) -> str:
    if value is None or isinstance(value, SymbolicDim):
        return format_dim(value)
    return format_attr(value)


def value_name(name: str) -> str:
    """How the value called `name` prints: `%x`, or `%"x[0]"` where the name is no identifier."""
    return "%" + _bare(name)


def _bare(name: str) -> str:
    return name if NAME.fullmatch(name) else quote(name)


class Printer:
    """The lines of graphs. given: names of values in place of numbers; notes: comments under
    ops."""

    def __init__(self, locations: bool, notes: Notes, given: Mapping[Value, str]) -> None:
        self.locations = locations
        self.notes = notes
        self.given = given
        self.files: dict[str, str] = {}
        self.folders = True
        #: Of the line that was given last.
        self.op_of_line: Operation | None = None

    def graph(self, graph: Graph) -> Iterator[str]:
        """The lines of a graph, with what its collections and file names are."""
        names: dict[Value, str] = {}
        for i, arg in enumerate(graph.args):
            bare = graph.arg_names[i] if i < len(graph.arg_names) else f"unnamed.{i}"
            names[arg] = value_name(bare)
        args = ", ".join(f"{names[a]}: {a.type}" for a in graph.args)
        labels = [f"{_bare(n)}: " if n else "" for n in graph.result_names]
        labels += [""] * (len(graph.results) - len(labels))
        results = ", ".join(
            f"{label}{v.type}" for label, v in zip(labels, graph.results, strict=False)
        )
        name = _bare(graph.name)
        yield f"graph @{name}({args}) -> ({results}) stage={graph.stage} {{"
        yield from self.body(graph.block, names, "  ", "return")
        yield "}"
        for collection, items in graph.collections:
            yield f"collection {_bare(collection)} [{', '.join(map(quote, items))}]"
        for file, alias in self.files.items():
            yield f"file {alias} = {quote(file if self.folders else _FOLDERS.sub('', file))}"
        self.files = {}

    def block(self, block: Block, indent: str) -> Iterator[str]:
        """The lines of a region."""
        names = {a: self.given.get(a, f"%a{i}") for i, a in enumerate(block.args)}
        yield f"{indent}^({', '.join(f'{n}: {a.type}' for a, n in names.items())})"
        yield from self.body(block, names, indent, "yield")

    def body(self, block: Block, names: dict[Value, str], indent: str, end: str) -> Iterator[str]:
        """The ops of a block and what ends it. names: of its arguments."""
        yield from self.ops(block, names, indent)
        self.op_of_line = None
        yield f"{indent}{end} {_listed(block.results, names)}".rstrip()

    def ops(self, block: Block, names: dict[Value, str], indent: str) -> Iterator[str]:
        """The lines of a block's ops; their results get names."""
        count = 0
        for op in block.ops:
            for value in op.results:
                names[value] = self.given.get(value, f"%{count}")
                count += 1
            yield from self.op(op, names, indent)

    def op(self, op: Operation, names: Mapping[Value, str], indent: str) -> Iterator[str]:
        """The lines of an op, those of its regions included."""
        text = indent
        if op.results:
            text += f"{_listed(op.results, names)} = "
        text += f"{op.name}({_listed(op.operands, names)})"
        if op.control:
            text += f" after({_listed(op.control, names)})"
        if op.attrs:
            text += f" {format_attrs(op.attrs)}"
        if op.results:
            text += f" : {', '.join(str(r.type) for r in op.results)}"
        if op.device:
            text += f" device({quote(op.device)})"
        if op.group:
            text += f" group({quote(op.group)})"
        for region in op.regions:
            self.op_of_line = op
            yield text + " {"
            yield from self.block(region, indent + "  ")
            text = indent + "}"
        if self.locations and op.locations:
            text += f" {self.places(op.locations)}"
        self.op_of_line = op
        yield text
        for line in self.notes.get(op, "").splitlines():
            yield f"{indent}// ^ {line}"

    def places(self, locations: Locations) -> str:
        """`loc("m.py":12:5)`, or `loc(model:12:5 "layer1/relu", 13:9, other:3:0)` for paths."""
        parts, before = [], ""
        for place in locations:
            at = f"{place.line}:{place.column}"
            if place.scope:
                at += f" {quote(place.scope)}"
            if "/" not in place.file and "\\" not in place.file:
                parts.append(f"{quote(place.file)}:{at}")
            elif place.file == before:
                parts.append(at)
            else:
                parts.append(f"{self.alias(place.file)}:{at}")
            before = place.file
        return f"loc({', '.join(parts)})"

    def alias(self, file: str) -> str:
        """The name of a path: that of the file, with a number if another has it."""
        known = self.files.get(file)
        if known is None:
            stem = re.sub(r"\W", "_", re.split(r"[/\\]", file)[-1].removesuffix(".py"))
            name = known = stem if NAME.fullmatch(stem) else f"file_{stem}"
            taken, number = set(self.files.values()), 2
            while known in taken:
                known, number = f"{name}_{number}", number + 1
            self.files[file] = known
        return known


def _listed(values: Sequence[Value], names: Mapping[Value, str]) -> str:
    return ", ".join(names.get(v, "%undefined") for v in values)
