"""The graph of a step in numbers, priced: what simulations of it, bounds and searches read.

Ops, values, groups of ops that are on one device, and devices are numbers in all tables, so that a
simulation of a thousand ops takes a few milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.control_flow import CONTROL
from weft.ir.types import HandleType, RefType
from weft.passes.placement.constraints import inside
from weft.passes.placement.costs import Costs
from weft.passes.placement.devices import CPU, Device


@dataclass(frozen=True, slots=True)
class Lines:
    """A block in numbers: its ops, its arguments and its results."""

    ops: tuple[int, ...]
    args: tuple[int, ...]
    results: tuple[int, ...]


class StepModel:
    """A graph in numbers, priced: what a simulation needs of it.

    group: of each op, the root of its group; `groups` are these, in order. Ops, values, groups and
    devices are numbers in all tables. devices[0] is the session's.
    """

    def __init__(
        self,
        graph: Graph,
        devices: Sequence[Device],
        costs: Costs,
        group: Mapping[Operation, int],
    ) -> None:
        self.graph, self.devices, self.costs = graph, devices, costs
        self.tasks = [d.task for d in devices]
        self.buses = [int(d.kind != CPU) for d in devices]
        self.ops = list(group)
        self.number = {op: i for i, op in enumerate(self.ops)}
        self.groups = sorted(set(group.values()))
        dense = {root: g for g, root in enumerate(self.groups)}
        self.group = [dense[group[op]] for op in self.ops]
        self.spans = [
            op.name in CONTROL and any(group[o] != group[op] for o in inside(op)) for op in self.ops
        ]
        self._number_values()
        self._ns: dict[object, list[float]] = {}
        self.seconds = [self._seconds(d) for d in devices]
        self.order = [(0.0, 0)] * len(self.ops)  # of those that are ready at once: the first
        self.waits = [0] * len(self.ops)
        self.after: list[list[int]] = [[] for _ in self.ops]
        self.regions: dict[int, tuple[Lines, ...]] = {}
        self.block = self._lines(graph.block)
        self._find_memory()

    # -- the tables --------------------------------------------------------------------------------

    def _number_values(self) -> None:
        values: dict[Value, None] = dict.fromkeys(self.graph.args)
        for op in self.ops:
            values.update(dict.fromkeys(op.results))
            if op.name in CONTROL:
                values.update(dict.fromkeys(a for region in op.regions for a in region.args))
        self.values = list(values)
        self.value = value = {v: i for i, v in enumerate(self.values)}
        self.nbytes = [self.costs.nbytes(v) for v in self.values]
        self.handle = [isinstance(v.type, (RefType, HandleType)) for v in self.values]
        self.needs = [
            tuple(dict.fromkeys(value[v] for v in (*op.operands, *op.control) if v in value))
            for op in self.ops
        ]
        self.results = [tuple(value[v] for v in op.results) for op in self.ops]
        self.maker = [-1] * len(self.values)  # the op of a value; -1 of an argument
        self.members: list[list[int]] = [[] for _ in self.groups]  # ops of a group
        for i, results in enumerate(self.results):
            self.members[self.group[i]].append(i)
            for v in results:
                self.maker[v] = i

    def _seconds(self, device: Device) -> list[float]:
        """Of each op, one run on a device; the same list for devices that are equally fast."""
        key = device.rates, device.scale
        if key not in self._ns:
            costs, factor = self.costs, 1e-9 * device.scale
            self._ns[key] = [costs.nanoseconds(op, device.rates) * factor for op in self.ops]
        return self._ns[key]

    def _lines(self, block: Block) -> Lines:
        """A block's ops: what they wait for, and how far it is from them to the end."""
        number = self.number
        place = {op: i for i, op in enumerate(block.ops)}
        longest: dict[Value, float] = {}
        for op in reversed(block.ops):
            i = number[op]
            way = max((longest.get(r, 0.0) for r in op.results), default=0.0)
            rank = way + self.costs.nanoseconds(op)
            self.order[i] = -rank, place[op]
            for v in (*op.operands, *op.control):
                longest[v] = max(longest.get(v, 0.0), rank)
            made = dict.fromkeys(v.op for v in (*op.operands, *op.control))
            before = [number[o] for o in made if o is not None and o in place]
            self.waits[i] = len(before)
            for first in before:
                self.after[first].append(i)
            if op.name in CONTROL:
                self.regions[i] = tuple(map(self._lines, op.regions))
        value = self.value
        return Lines(
            tuple(number[op] for op in block.ops),
            tuple(value[a] for a in block.args),
            tuple(value[v] for v in block.results if v in value),
        )

    # -- memory ------------------------------------------------------------------------------------

    def _find_memory(self) -> None:
        """Of values: the bytes that they take where they are made (`stored`), and the value whose
        memory a view has (`root`). Of ops: what regions take besides (`scratch`), and of groups,
        what is there all the time (`lasting`)."""
        value, costs = self.value, self.costs
        self.stored, self.root = list(self.nbytes), list(range(len(self.values)))
        self.unsent: set[int] = set()  # they have memory only to be sent from
        for held in costs.unstored:
            self.stored[value[held]], source = 0.0, held
            if costs.is_inside(held) or (held.op is not None and held.op.name == "read"):
                self.unsent.add(value[held])
            while (behind := costs.unstored.get(source)) is not None:
                source = behind
            self.root[value[held]] = value[source]
        self._find_lasting()
        self.in_place = ["elementwise" in lookup(op.name).traits for op in self.ops]
        self.scratch = [0.0] * len(self.ops)
        for i, regions in self.regions.items():
            if not self.spans[i]:
                self.scratch[i] = max(map(self._alive, regions), default=0.0)
        self.feeds = frozenset(self.block.args)
        self.limited = any(d.memory is not None for d in self.devices)
        self.readers = [0] * len(self.values)
        for v in (*(v for needs in self.needs for v in needs), *self.block.results):
            self.readers[self.root[v]] += 1

    def _find_lasting(self) -> None:
        self.lasting = [0.0] * len(self.groups)
        self.lasts: dict[int, float] = {}  # bytes of variables and constants, by op
        seen: set[object] = set()
        for i, op in enumerate(self.ops):
            nbytes = 0.0
            if op.name == "variable" and op.attrs["name"] not in seen:
                nbytes = self.costs.nbytes_held(op.result)
                seen.add(op.attrs["name"])
            elif op.name == "constant":
                (v,) = self.results[i]
                nbytes, self.stored[v] = self.nbytes[v], 0.0
            if nbytes:
                self.lasts[i] = nbytes
                self.lasting[self.group[i]] += nbytes

    def _alive(self, lines: Lines) -> float:
        """The most bytes that are alive at once if a block runs in its order, on one device; what
        goes into it is counted outside."""
        last: dict[int, int] = {self.root[v]: len(lines.ops) for v in lines.results}
        for at, i in enumerate(lines.ops):
            for v in self.needs[i]:
                last[self.root[v]] = max(last.get(self.root[v], 0), at)
        ends: dict[int, float] = {}
        now = most = 0.0
        for at, i in enumerate(lines.ops):
            inner = max(map(self._alive, self.regions[i])) if i in self.regions else 0.0
            for v in self.results[i]:
                now += self.stored[v]
                end = last.get(v, at)
                ends[end] = ends.get(end, 0.0) + self.stored[v]
            most = max(most, now + inner)
            now -= ends.pop(at, 0.0)
        return most
