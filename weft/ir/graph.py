"""The SSA graph: values, operations with regions, blocks, and the graph around the top block.

Everything here is immutable once built (passes make new graphs); only `Builder` appends to a
block. `stable_order` sorts ops, or whatever else depends on each other, topologically."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from weft.ir.dataclass import dataclass
from weft.ir.locations import Locations
from weft.ir.spec import AttrValue
from weft.ir.types import Type

if TYPE_CHECKING:
    from weft.ir.drawing.notebook import Frame

T = TypeVar("T", bound=Hashable)


def stable_order(items: Sequence[T], before: Callable[[T], Iterable[T]]) -> list[T]:
    """The items, each after those of them that `before` names, else as they are given (Kahn 1962).

    What lies on a cycle, or after one, is left out.
    """
    position = {item: i for i, item in enumerate(items)}
    after: dict[T, list[T]] = {item: [] for item in items}
    missing = dict.fromkeys(items, 0)
    for item in items:
        for first in dict.fromkeys(before(item)):
            after[first].append(item)
            missing[item] += 1
    ready = [i for item, i in position.items() if not missing[item]]
    out: list[T] = []
    while ready:
        item = items[heapq.heappop(ready)]
        out.append(item)
        for follower in after[item]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, position[follower])
    return out


class Value:
    """One SSA value: the result number `index` of `op`, or a block argument (`op` is None)."""

    __slots__ = ("index", "op", "type")

    def __init__(self, type: Type, op: Operation | None = None, index: int = 0) -> None:
        self.type = type
        self.op = op
        self.index = index

    def __repr__(self) -> str:
        source = "argument" if self.op is None else f"result of {self.op.name}"
        return f"<{source} {self.index}: {self.type}>"


class Operation:
    """One op application.

    operands: data inputs. control: values whose ops must run before this one (explicit effect
    order). attrs: compile-time attributes, complete and in schema order. regions: nested blocks,
    isolated from above (they use only their own arguments). locations: the user's source lines.
    device: where it is to run, the canonical text of a full or partial spec (`ir.device`), or "".
    group: the name of a colocation group, "" for none: all ops of one group run on one device.
    """

    __slots__ = (
        "attrs", "control", "device", "group", "locations", "name", "operands", "regions", "results"
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        operands: Sequence[Value],
        attrs: Mapping[str, AttrValue],
        result_types: Sequence[Type],
        regions: Sequence[Block] = (),
        control: Sequence[Value] = (),
        locations: Locations = (),
        *,
        device: str = "",
        group: str = "",
    ) -> None:
        self.name = name
        self.operands = tuple(operands)
        self.attrs = dict(attrs)
        self.regions = tuple(regions)
        self.control = tuple(control)
        self.locations = locations
        self.device = device
        self.group = group
        self.results = tuple([Value(t, self, i) for i, t in enumerate(result_types)])

    @property
    def result(self) -> Value:
        """The only result; ValueError if there is not exactly one."""
        (value,) = self.results
        return value

    def __repr__(self) -> str:
        return f"<op {self.name}: {', '.join(str(r.type) for r in self.results)}>"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A straight line of ops: `args` in, `ops` in an order that respects all uses, `results`
    out.
    """

    args: tuple[Value, ...]
    ops: tuple[Operation, ...]
    results: tuple[Value, ...]

    def walk(self) -> Iterator[Operation]:
        """Every op of this block and of the regions in it, outer before inner."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


#: The stages of a graph, in the order of the pipeline; `ir.verify` says what each may hold.
STAGES = ("traced", "optimized", "fused", "planned", "dataflow", "partitioned")
#: Those at which Switch, Merge and frames may be, so dead values.
WITH_DEAD_VALUES = ("dataflow", "partitioned")


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A function in SSA form. `arg_names` name the inputs (feeds) for people and for the text form.

    result_names: of the results, one each ("": none), or () where none has one. collections: lists
    of names, such as the variables to train, by the name of the list; both as text, no pass looks
    at them or keeps them. Two graphs are `==` if they are the same up to the identity of their
    values: same structure, attributes, types, control operands, locations, devices, groups, names
    and stage.
    """

    name: str
    block: Block
    arg_names: tuple[str, ...]
    stage: str = "traced"
    result_names: tuple[str, ...] = ()
    collections: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def args(self) -> tuple[Value, ...]:
        return self.block.args

    @property
    def ops(self) -> tuple[Operation, ...]:
        return self.block.ops

    @property
    def results(self) -> tuple[Value, ...]:
        return self.block.results

    def walk(self) -> Iterator[Operation]:
        """Every op, nested ones included."""
        return self.block.walk()

    def at_stage(self, stage: str) -> Graph:
        """The same graph labelled with another stage."""
        return replace(self, stage=stage)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return False
        return self._named() == other._named() and same_block(self.block, other.block)

    def _named(self) -> tuple[object, ...]:
        return (self.name, self.stage, self.arg_names, self.result_names, self.collections)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        ops, args, results = len(self.ops), len(self.args), len(self.results)
        return f"<Graph '{self.name}', {self.stage}: {args} inputs, {ops} ops, {results} results>"

    def __str__(self) -> str:
        from weft.ir.text.printer import print_graph

        return print_graph(self)

    def _repr_html_(self) -> str:
        """The drawing and the text for a notebook, without a script."""
        from weft.ir.drawing.notebook import graph_html

        return graph_html(self)

    def show(self, height: int = 600) -> Frame:
        """The drawing in a frame of a notebook's cell, `height` pixels high."""
        from weft.ir.drawing.notebook import Frame, graph_html

        return Frame(graph_html(self), height)


def canonical(graph: Graph) -> tuple[object, ...]:
    """A nested tuple that is equal for equal graphs: values are numbered in order of definition."""
    return (*graph._named(), canonical_block(graph.block))


def canonical_block(block: Block) -> tuple[object, ...]:
    """The canonical tuple of one block, its values numbered from 0."""
    number: dict[Value, int] = {}
    for value in block.args:
        number[value] = len(number)
    rows: list[object] = [tuple(a.type for a in block.args)]
    for op in block.ops:
        for value in op.results:
            number[value] = len(number)
        rows.append(
            (
                op.name,
                tuple(number[v] for v in op.operands),
                tuple((k, _attr_key(v)) for k, v in op.attrs.items()),
                tuple(r.type for r in op.results),
                tuple(canonical_block(r) for r in op.regions),
                tuple(number[v] for v in op.control),
                op.locations,
                op.device,
                op.group,
            )
        )
    rows.append(tuple(number[v] for v in block.results))
    return tuple(rows)


def same_block(a: Block, b: Block) -> bool:
    """`canonical_block(a) == canonical_block(b)`, decided at the first difference."""
    if a is b:
        return True
    sizes = (len(a.args), len(a.ops), len(a.results))
    if sizes != (len(b.args), len(b.ops), len(b.results)):
        return False
    if [v.type for v in a.args] != [v.type for v in b.args]:
        return False
    twin: dict[Value, Value] = dict(zip(a.args, b.args, strict=True))
    for x, y in zip(a.ops, b.ops, strict=True):
        if not _same_op(x, y, twin):
            return False
        twin.update(zip(x.results, y.results, strict=True))
    return [twin[v] for v in a.results] == list(b.results)


def _same_op(x: Operation, y: Operation, twin: Mapping[Value, Value]) -> bool:
    if [twin[v] for v in x.operands] != list(y.operands):
        return False
    if [twin[v] for v in x.control] != list(y.control):
        return False
    if x is y:
        return True
    return (
        x.name == y.name
        and x.locations == y.locations
        and x.device == y.device
        and x.group == y.group
        and [r.type for r in x.results] == [r.type for r in y.results]
        and [(k, _attr_key(v)) for k, v in x.attrs.items()]
        == [(k, _attr_key(v)) for k, v in y.attrs.items()]
        and len(x.regions) == len(y.regions)
        and all(map(same_block, x.regions, y.regions))
    )


def _attr_key(value: AttrValue) -> object:
    # repr tells -0.0 from 0.0 and lets NaN equal itself; the type tells 1 from True and 1.0
    return (type(value).__name__, repr(value)) if isinstance(value, (bool, float)) else value


def unique_name(name: str, taken: Container[str], tried: dict[str, int] | None = None) -> str:
    """`name`, or `name_1`, `name_2`, ... if it is taken. tried: by name the number that was found
    last, where names that are taken stay so."""
    if name not in taken:
        return name
    count = 1 if tried is None else tried.get(name, 0) + 1
    while f"{name}_{count}" in taken:
        count += 1
    if tried is not None:
        tried[name] = count
    return f"{name}_{count}"
