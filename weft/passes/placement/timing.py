"""Simulated step time: the ops of a placed graph on their devices, and the messages.

Each device runs one op at a time, the one that is ready first; the values that an op needs from
another device come as messages, one for each value and device (`Network`). A step begins when each
task that takes part has got its message from the session's task, where the feeds are, and ends when
each has answered and the results are there. So this is list scheduling as in HEFT (Topcuoglu,
Hariri, Wu 2002), with links that fill up; where the device of an op is not known yet, a `pick` says
it, as by the earliest finish.

A loop or branch on one device is one op. One that spans several is simulated inside: a loop's body
once, and its time taken as often as it runs; of a branch the longer side.

Messages queue: a message takes its turn at the sender, then at the receiver, which gets its first
byte one latency after the sender puts it on the link; both are busy for so long as the bytes and
the handling of one message take."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.control_flow import CONTROL
from weft.ir.types import HandleType, RefType
from weft.passes.placement.constraints import inside
from weft.passes.placement.costs import Costs
from weft.passes.placement.devices import CPU, Device, Links


class Network:
    """The state of all links at one time of a simulation. Names of tasks are any text."""

    __slots__ = ("_into", "_out", "links")

    def __init__(self, links: Links) -> None:
        self.links = links
        self._out: dict[str, float] = {}
        self._into: dict[str, float] = {}

    def arrival(
        self, source: str, target: str, nbytes: float, ready: float, buses: int = 0
    ) -> float:
        """When a message sent now would be there. buses: of how many GPUs it goes over. Within a
        task nothing queues."""
        links = self.links
        bus = links.bus_latency_s + nbytes / links.bus_bytes_per_s
        if source == target and buses:
            return ready + bus
        if source == target:
            return ready + links.local_latency_s + nbytes / links.local_bytes_per_s
        ready += buses * bus
        hold = links.message_s + nbytes / links.bytes_per_s
        begin = max(ready, self._out.get(source, 0.0))
        return max(begin + links.latency_s, self._into.get(target, 0.0)) + hold

    def send(
        self, source: str, target: str, nbytes: float, ready: float, buses: int = 0
    ) -> tuple[float, float]:
        """Send a message at `ready`: when its sending begins, and when it is there."""
        arrives = self.arrival(source, target, nbytes, ready, buses)
        if source == target:
            return ready, arrives
        begin = max(ready, self._out.get(source, 0.0))
        self._out[source] = begin + self.links.message_s + nbytes / self.links.bytes_per_s
        self._into[target] = arrives
        return begin, arrives


_HANDLES = (RefType, HandleType)


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that the simulation saw happen. where: a device, or "A -> B" for a message from
    device to device. begin, end: seconds from the begin of the step. nbytes: of a message."""

    what: str
    where: str
    begin: float
    end: float
    nbytes: float = 0.0


#: What says the device for an op: given the simulation, the op and the devices that are allowed.
Pick = Callable[["Simulation", Operation, Sequence[int]], int]


class Simulation:
    """One simulated step.

    group: of each op, the number of its group. allowed: the devices of a group, as numbers; what is
    chosen for them is in `chosen`, to which `pick` adds. devices[0] is the session's.
    """

    def __init__(
        self,
        graph: Graph,
        devices: Sequence[Device],
        costs: Costs,
        group: Mapping[Operation, int],
        allowed: Callable[[int], Sequence[int]],
        chosen: dict[int, int],
        pick: Pick,
    ) -> None:
        self.graph, self.devices, self.costs = graph, devices, costs
        self.group, self.allowed, self.chosen, self.pick = group, allowed, chosen, pick
        self.network = Network(costs.links)
        self.tasks = [d.task for d in devices]
        self.spans: list[Span] = []
        self.free: dict[int, float] = {0: 0.0}  # of the devices that take part
        self.there: dict[Value, dict[int, float]] = {a: {0: 0.0} for a in graph.args}
        self.rank = _ranks(graph.block, costs)

    def run(self) -> float:
        """Simulate the step; seconds."""
        self._block(self.graph.block, 0.0)
        end = max(self.free.values())
        for value in dict.fromkeys(self.graph.results):
            if self.costs.nbytes(value):
                end = max(end, self._bring(value, 0))
        last: dict[str, float] = {}
        for device, time in self.free.items():
            last[self.tasks[device]] = max(time, last.get(self.tasks[device], 0.0))
        for task, time in last.items():
            if task != self.tasks[0]:
                end = max(end, self.network.send(task, self.tasks[0], 0, time)[1])
        return end

    # -- what picks ask ----------------------------------------------------------------------------

    def finish(self, op: Operation, device: int) -> float:
        """When the op would be done on a device, as things stand."""
        begin = self._free(device)
        for value in _needs(op):
            begin = max(begin, self._arrival(value, device))
        return begin + self.seconds(op, device)

    def incoming(self, op: Operation) -> dict[int, float]:
        """Bytes of the op's operands by the device that made them."""
        found: dict[int, float] = {}
        for value in op.operands:
            source = next(iter(self.there.get(value, {0: 0.0})))
            found[source] = found.get(source, 0.0) + self.costs.nbytes(value)
        return found

    def seconds(self, op: Operation, device: int) -> float:
        """One run of the op on a device."""
        held = self.devices[device]
        return self.costs.nanoseconds(op, held.rates) * 1e-9 * held.scale

    # -- carrying it out ---------------------------------------------------------------------------

    def _block(self, block: Block, start: float) -> None:
        """Run every op of a block, none before `start`."""
        position = {op: i for i, op in enumerate(block.ops)}
        waits = {op: len(_before(op, position)) for op in block.ops}
        after: dict[Operation, list[Operation]] = {op: [] for op in block.ops}
        for op in block.ops:
            for first in _before(op, position):
                after[first].append(op)
        ready = [(start, -self.rank[op], position[op], op) for op in block.ops if not waits[op]]
        heapq.heapify(ready)
        latest = dict.fromkeys(block.ops, start)
        while ready:
            time, _, _, op = heapq.heappop(ready)
            end = self._op(op, time)
            for follower in after[op]:
                latest[follower] = max(latest[follower], end)
                waits[follower] -= 1
                if not waits[follower]:
                    entry = latest[follower], -self.rank[follower], position[follower], follower
                    heapq.heappush(ready, entry)

    def device_of(self, op: Operation) -> int:
        """Where the op runs; picked now if it is not known yet."""
        group = self.group[op]
        if group not in self.chosen:
            choice = self.allowed(group)
            self.chosen[group] = choice[0] if len(choice) == 1 else self.pick(self, op, choice)
        return self.chosen[group]

    def _op(self, op: Operation, ready: float) -> float:
        """Run one op; when it is done."""
        device = self.device_of(op)
        begin = max(ready, self._take_part(device))
        for value in _needs(op):
            begin = max(begin, self._bring(value, device))
        if op.name in CONTROL and any(self.group[o] != self.group[op] for o in inside(op)):
            end = self._spread(op, begin)
        else:
            end = begin + self.seconds(op, device)
        self.free[device] = end
        if end > begin:
            self.spans.append(Span(op.name, self.devices[device].name, begin, end))
        for value in op.results:
            self.there[value] = {device: end}
        return end

    def _spread(self, op: Operation, begin: float) -> float:
        """Run a branch or loop over the devices of its ops; when it is done."""
        device = self.device_of(op)
        if op.name == "cond":
            ends = []
            before = self.free
            for region in op.regions:
                self.free = dict(before)
                ends.append((self._region(region, device, begin), self.free))
            end, self.free = max(ends, key=lambda pair: pair[0])
            return end
        around = dict(self.free)
        end = begin
        for region in op.regions:
            end = self._region(region, device, end)
        end = begin + (end - begin) * self.costs.trips(op)
        for other, time in self.free.items():
            if time != around.get(other):
                self.free[other] = max(time, end)
        return end

    def _region(self, region: Block, device: int, begin: float) -> float:
        """Run a region once: when all of it is done and its results are on the device."""
        for arg in region.args:
            self.there[arg] = {device: begin}
        self._block(region, begin)
        ends = [time for op in region.ops for v in op.results for time in self.there[v].values()]
        return max([begin, *ends, *(self._bring(v, device) for v in region.results)])

    # -- values ------------------------------------------------------------------------------------

    def _free(self, device: int) -> float:
        """When a device could begin something."""
        if device in self.free:
            return self.free[device]
        home, task = self.tasks[0], self.tasks[device]
        same = any(self.tasks[d] == task for d in self.free)
        return 0.0 if same else self.network.arrival(home, task, 0, 0.0)

    def _take_part(self, device: int) -> float:
        """`_free`, and the device's task is told of the step."""
        if device not in self.free:
            home, task = self.tasks[0], self.tasks[device]
            same = any(self.tasks[d] == task for d in self.free)
            self.free[device] = 0.0 if same else self.network.send(home, task, 0, 0.0)[1]
        return self.free[device]

    def _arrival(self, value: Value, device: int) -> float:
        """When a value would be on a device."""
        where = self.there.get(value)
        if where is None or device in where or isinstance(value.type, _HANDLES):
            return where.get(device, 0.0) if where else 0.0
        source, time = next(iter(where.items()))
        nbytes = self.costs.nbytes(value)
        sender, receiver = self.tasks[source], self.tasks[device]
        return self.network.arrival(sender, receiver, nbytes, time, self._buses(source, device))

    def _buses(self, source: int, device: int) -> int:
        """Over the buses of how many GPUs a value goes from one device to another."""
        return sum(self.devices[k].kind != CPU for k in (source, device))

    def _bring(self, value: Value, device: int) -> float:
        """Send a value to a device that does not have it; when it is there."""
        where = self.there.get(value)
        if where is None or device in where or isinstance(value.type, _HANDLES):
            return where.get(device, 0.0) if where else 0.0
        source, time = next(iter(where.items()))
        nbytes = self.costs.nbytes(value)
        sender, receiver = self.tasks[source], self.tasks[device]
        buses = self._buses(source, device)
        begin, end = self.network.send(sender, receiver, nbytes, time, buses)
        where[device] = end
        names = f"{self.devices[source].name} -> {self.devices[device].name}"
        self.spans.append(Span(f"{value.type}", names, begin, end, nbytes))
        return end


def _needs(op: Operation) -> list[Value]:
    return list(dict.fromkeys((*op.operands, *op.control)))


def _before(op: Operation, position: Mapping[Operation, int]) -> list[Operation]:
    """The ops of the block that an op waits for."""
    made = (v.op for v in (*op.operands, *op.control))
    return list(dict.fromkeys(o for o in made if o is not None and o in position))


def _ranks(block: Block, costs: Costs) -> dict[Operation, float]:
    """Nanoseconds from the begin of each op to the end of its block, on the longest way."""
    rank: dict[Operation, float] = {}
    longest: dict[Value, float] = {}
    for op in reversed(block.ops):
        way = max((longest.get(r, 0.0) for r in op.results), default=0.0)
        rank[op] = way + costs.nanoseconds(op)
        for value in (*op.operands, *op.control):
            longest[value] = max(longest.get(value, 0.0), rank[op])
        if op.name in CONTROL:
            for region in op.regions:
                rank |= _ranks(region, costs)
    return rank
