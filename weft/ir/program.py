"""`Program`: what the text form prints, one graph or the named parts of a partitioned one.

    part "/job:ps/task:0/cpu:0" feeds [0] fetches []
    graph @step_ps_task_0_cpu_0(%x: f32[2]) -> () stage=partitioned {
      ...
    }

    part "/job:worker/task:0/cpu:0" feeds [] fetches [0, 1]
    ...

A program of one graph prints as that graph alone. Whatever comes between trace and plan goes from
program to program; each can be verified (`analysis.verify.verify_program`) and interpreted
(`interpreter.partitioned.interpret_program`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a program that runs on one device. graph: of stage "partitioned", or of that of
    the whole graph if it needs no other part and no Switch and Merge; its ops name no device.
    feeds: which arguments of the whole graph its own are; fetches: which results of the whole graph
    its own are. device: "" for a graph that has not been cut."""

    device: str
    graph: Graph
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that goes from one device to another, in loops once in each iteration. nbytes: of
    one message, None if only a step knows. locations: of the user's op that makes it."""

    key: int
    tensor: str
    type: TensorType
    src: str
    dst: str
    locations: Locations

    @property
    def nbytes(self) -> int | None:
        """The bytes of one message, None if its size is not known."""
        return self.type.nbytes if self.type.is_static else None


@dataclass(frozen=True, slots=True)
class Program:
    """One graph, or all parts of one, in the order in which it names their devices."""

    parts: tuple[Part, ...]

    @staticmethod
    def of(graph: Graph) -> Program:
        """The program of a graph that has not been cut."""
        feeds, fetches = range(len(graph.args)), range(len(graph.results))
        return Program((Part("", graph, tuple(feeds), tuple(fetches)),))

    @property
    def is_whole(self) -> bool:
        """Whether it is one graph that has not been cut."""
        return len(self.parts) == 1 and not self.parts[0].device

    @property
    def graph(self) -> Graph:
        """The graph of a program that has not been cut. InvalidArgumentError for others."""
        if not self.is_whole:
            raise InvalidArgumentError(
                f"a program of {len(self.parts)} parts is not one graph",
                hint="Program.parts has the graph of each device",
            )
        return self.parts[0].graph

    @property
    def name(self) -> str:
        """Its graph's name, or that of its first part's."""
        return self.parts[0].graph.name if self.parts else "program"

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The messages between its parts, by key."""
        found = [_edge(op) for part in self.parts for op in part.graph.ops if op.name == "recv"]
        return tuple(sorted(found, key=lambda edge: edge.key))

    def with_graphs(self, graphs: Iterator[Graph]) -> Program:
        """The same parts with other graphs; the same object if they are the same."""
        made = [
            part if new is part.graph else replace(part, graph=new)
            for part, new in zip(self.parts, graphs, strict=True)
        ]
        same = all(new is part for new, part in zip(made, self.parts, strict=True))
        return self if same else Program(tuple(made))

    def signature(self) -> Graph:
        """A graph without results that has the arguments of the whole, and all variables: for
        whoever makes up, or checks, what the program runs on. What no part takes is a scalar."""
        names: dict[int, tuple[str, Value]] = {}
        for part in self.parts:
            rows = zip(part.feeds, part.graph.arg_names, part.graph.args, strict=True)
            for number, name, arg in rows:
                names.setdefault(number, (name, arg))
        return _signature(names, self.walk())

    def walk(self) -> Iterator[Operation]:
        """Every op of all parts, nested ones included."""
        for part in self.parts:
            yield from part.graph.walk()

    def text(self, *, locations: bool = True) -> str:
        """The text that `parse_program` reads."""
        from weft.ir.text.printer import print_program

        return print_program(self, locations=locations)

    def __str__(self) -> str:
        return self.text()


def _edge(op: Operation) -> Edge:
    kind = op.result.type
    assert isinstance(kind, TensorType)
    key, attrs = int_attr(op.attrs, "key"), op.attrs
    tensor, src, dst = str(attrs["tensor"]), str(attrs["src"]), str(attrs["dst"])
    return Edge(key, tensor, kind, src, dst, op.locations)


def _signature(found: dict[int, tuple[str, Value]], ops: Iterator[Operation]) -> Graph:
    args: list[Value] = []
    names: list[str] = []
    unused = Value(TensorType(as_dtype("bool"), ()))
    for number in range(max(found, default=-1) + 1):
        name, arg = found.get(number, (f"unused.{number}", unused))
        names.append(name)
        args.append(Value(arg.type, index=number))
    variables = tuple(op for op in ops if op.name == "variable")
    return Graph("program", Block(tuple(args), variables, ()), tuple(names))
