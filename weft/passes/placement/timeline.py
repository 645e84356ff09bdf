"""The simulated step: the ops of a graph on their devices, the messages between them, and the
memory that both take.

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
the handling of one message take.

Memory of a device: its variables and constants, all the time; what the caller feeds and fetches; a
value from the begin of its op until the last that reads or sends it is done (a variable that is
sent is copied first); one that was received from the begin of the message on, but for one from
another processor's device of the task, which is not copied; within a loop or branch what is alive
there at once. A view has its source's memory, a value inside a fused nest none, nor has what
`unstored.py` finds; an elementwise op that is the last to read a value as large as its result
writes into that."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from weft.ir.dataclass import dataclass
from weft.passes.placement.devices import Links
from weft.passes.placement.memory import Life, Peak, Use, peaks
from weft.passes.placement.step_model import Lines, StepModel


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


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that the simulation saw happen. where: a device, or "A -> B" for a message from
    device to device. begin, end: seconds from the begin of the step. Of a message: its nbytes, and
    since when its value was ready."""

    what: str
    where: str
    begin: float
    end: float
    nbytes: float = 0.0
    ready: float = 0.0


#: What says the device for an op that has none: given the simulation, the op, and the devices that
#: its group may be on.
Pick = Callable[["Simulation", int, Sequence[int]], int]


class Simulation:
    """One simulated step. chosen: of each group its device, -1 where `pick` is to say it, which
    keeps the part `reserve` of the devices' memory. keep: what happens is noted in `spans`."""

    def __init__(
        self,
        model: StepModel,
        chosen: Sequence[int],
        allowed: Sequence[Sequence[int]] = (),
        pick: Pick | None = None,
        *,
        keep: bool = False,
        reserve: float = 0.0,
    ) -> None:
        self.model, self.chosen, self.allowed, self.pick = model, list(chosen), allowed, pick
        self.spans: list[Span] | None = [] if keep else None
        self.network = Network(model.costs.links)
        self.free: dict[int, float] = {0: 0.0}  # of the devices that take part
        self.told = {model.tasks[0]}
        count = len(model.values)
        self.made_on = [-1] * count  # the device of a value that is there
        self.made_at, self.begun, self.used = [0.0] * count, [0.0] * count, [0.0] * count
        self.copies: dict[int, dict[int, list[float]]] = {}  # [there, begun, used] by device
        self.ended = [0.0] * len(model.ops)
        self.seconds = 0.0
        for v in model.block.args:
            self.made_on[v] = 0
        self._waits = list(model.waits)
        self._latest = [0.0] * len(model.ops)
        self.use = Use(model, self.chosen, reserve) if model.limited and pick is not None else None

    def run(self) -> float:
        """Simulate the step; seconds."""
        tasks = self.model.tasks
        self._block(self.model.block, 0.0)
        end = max(self.free.values())
        for v in dict.fromkeys(self.model.block.results):
            if self.model.nbytes[v]:
                end = max(end, self._bring(v, 0))
        last: dict[str, float] = {}
        for device, time in self.free.items():
            last[tasks[device]] = max(time, last.get(tasks[device], 0.0))
        for task, time in last.items():
            if task != tasks[0]:
                end = max(end, self.network.send(task, tasks[0], 0, time)[1])
        self.seconds = end
        return end

    # -- what picks ask ----------------------------------------------------------------------------

    def finish(self, op: int, device: int) -> float:
        """When the op would be done on a device, as things stand."""
        begin = self._free(device)
        for v in self.model.needs[op]:
            begin = max(begin, self._arrival(v, device))
        return begin + self.model.seconds[device][op]

    def incoming(self, op: int) -> dict[int, float]:
        """Bytes of the op's operands by the device that made them."""
        found: dict[int, float] = {}
        value = self.model.value
        for operand in self.model.ops[op].operands:
            v = value.get(operand)
            source = max(self.made_on[v], 0) if v is not None else 0
            found[source] = found.get(source, 0.0) + (0.0 if v is None else self.model.nbytes[v])
        return found

    def over(self, op: int, device: int) -> float:
        """Bytes that the op would take over the device's memory, as things stand; 0 if it fits."""
        if self.use is None:
            return 0.0
        there = [v for v in self.model.needs[op] if self._known(v, device) is not None]
        return self.use.over(op, device, there)

    # -- carrying it out ---------------------------------------------------------------------------

    def _block(self, block: Lines, start: float) -> None:
        """Run every op of a block, none before `start`."""
        model, waits, latest = self.model, self._waits, self._latest
        order, after, run = model.order, model.after, self._op
        ready = [(start, *order[i], i) for i in block.ops if not waits[i]]
        heapq.heapify(ready)
        pop, push = heapq.heappop, heapq.heappush
        while ready:
            time, _, _, op = pop(ready)
            end = run(op, time)
            for follower in after[op]:
                if end > latest[follower]:
                    latest[follower] = end
                waits[follower] -= 1
                if not waits[follower]:
                    at = max(latest[follower], start)
                    push(ready, (at, *order[follower], follower))

    def device_of(self, op: int) -> int:
        """Where the op runs; picked now if it is not known yet."""
        group = self.model.group[op]
        device = self.chosen[group]
        if device < 0:
            choice = self.allowed[group]
            assert self.pick is not None
            device = choice[0] if len(choice) == 1 else self.pick(self, op, choice)
            self.chosen[group] = device
            if self.use is not None:
                self.use.settle(group, device)
        return device

    def _op(self, op: int, ready: float) -> float:
        """Run one op; when it is done."""
        model, made_on, made_at, used = self.model, self.made_on, self.made_at, self.used
        device = self.chosen[model.group[op]]
        if device < 0:
            device = self.device_of(op)
        begin = self.free[device] if device in self.free else self._take_part(device)
        if ready > begin:
            begin = ready
        needs, away = model.needs[op], False
        for v in needs:
            if made_on[v] == device:
                at = made_at[v]
            else:
                at, away = self._bring(v, device), True
            if at > begin:
                begin = at
        end = self._spread(op, begin) if model.spans[op] else begin + model.seconds[device][op]
        self.free[device] = self.ended[op] = end
        if self.spans is not None and end > begin:
            self.spans.append(Span(model.ops[op].name, model.devices[device].name, begin, end))
        for v in needs:
            if not away or made_on[v] == device:
                if used[v] < end:
                    used[v] = end
            elif v in self.copies and device in self.copies[v]:
                row = self.copies[v][device]
                row[2] = max(row[2], end)
        for v in model.results[op]:
            made_on[v], made_at[v], self.begun[v], used[v] = device, end, begin, end
        if self.use is not None:
            self.use.after(op, device)
        return end

    def _spread(self, op: int, begin: float) -> float:
        """Run a branch or loop over the devices of its ops; when it is done."""
        device = self.device_of(op)
        regions = self.model.regions[op]
        if self.model.ops[op].name == "cond":
            ends = []
            before, told = self.free, self.told
            for region in regions:
                self.free, self.told = dict(before), set(told)
                ends.append((self._region(region, device, begin), self.free, self.told))
            end, self.free, self.told = max(ends, key=lambda pair: pair[0])
            return end
        around = dict(self.free)
        end = begin
        for region in regions:
            end = self._region(region, device, end)
        end = begin + (end - begin) * self.model.costs.trips(self.model.ops[op])
        for other, time in self.free.items():
            if time != around.get(other):
                self.free[other] = max(time, end)
        return end

    def _region(self, region: Lines, device: int, begin: float) -> float:
        """Run a region once: when all of it is done and its results are on the device."""
        for v in region.args:
            self.made_on[v], self.made_at[v], self.begun[v] = device, begin, begin
        self._block(region, begin)
        made = (v for i in region.ops for v in self.model.results[i])
        ends = [t for v in made for t in (self.made_at[v], *self._copied(v))]
        return max([begin, *ends, *(self._bring(v, device) for v in region.results)])

    def _copied(self, v: int) -> list[float]:
        return [row[0] for row in self.copies[v].values()] if v in self.copies else []

    # -- values ------------------------------------------------------------------------------------

    def _free(self, device: int) -> float:
        """When a device could begin something."""
        if device in self.free:
            return self.free[device]
        home, task = self.model.tasks[0], self.model.tasks[device]
        return 0.0 if task in self.told else self.network.arrival(home, task, 0, 0.0)

    def _take_part(self, device: int) -> float:
        """`_free`, and the device's task is told of the step."""
        home, task = self.model.tasks[0], self.model.tasks[device]
        there = 0.0 if task in self.told else self.network.send(home, task, 0, 0.0)[1]
        self.told.add(task)
        self.free[device] = there
        return there

    def _known(self, v: int, device: int) -> float | None:
        """When a value is on a device, without a message; None if it needs one."""
        source = self.made_on[v]
        if source == device:
            return self.made_at[v]
        if source < 0 or self.model.handle[v]:
            return 0.0
        row = self.copies[v].get(device) if v in self.copies else None
        return None if row is None else row[0]

    def _arrival(self, v: int, device: int) -> float:
        """When a value would be on a device."""
        known = self._known(v, device)
        if known is not None:
            return known
        source, model = self.made_on[v], self.model
        buses = model.buses[source] + model.buses[device]
        sender, receiver = model.tasks[source], model.tasks[device]
        return self.network.arrival(sender, receiver, model.nbytes[v], self.made_at[v], buses)

    def _bring(self, v: int, device: int) -> float:
        """Send a value to a device that does not have it; when it is there."""
        known = self._known(v, device)
        if known is not None:
            return known
        source, model, nbytes = self.made_on[v], self.model, self.model.nbytes[v]
        buses = model.buses[source] + model.buses[device]
        sender, receiver = model.tasks[source], model.tasks[device]
        begin, end = self.network.send(sender, receiver, nbytes, self.made_at[v], buses)
        self.copies.setdefault(v, {})[device] = [end, begin, end]
        self.used[v] = max(self.used[v], end)
        if self.use is not None:
            self.use.receive(v, device)
        if self.spans is not None:
            names = f"{model.devices[source].name} -> {model.devices[device].name}"
            self.spans.append(
                Span(f"{model.values[v].type}", names, begin, end, nbytes, self.made_at[v])
            )
        return end

    # -- where the time went -----------------------------------------------------------------------

    def critical_path(self) -> tuple[Span, ...]:
        """What the end of the step waited for: spans, each of which the next one waited for. Of a
        simulation that has kept them."""
        into: dict[str, list[Span]] = {}  # what ends on a device
        out: dict[str, list[Span]] = {}  # messages of a task
        for span in self.spans or ():
            source, arrow, target = span.where.partition(" -> ")
            into.setdefault(target or source, []).append(span)
            if arrow:
                out.setdefault(_task(source), []).append(span)
        now = max((s for found in into.values() for s in found), key=lambda s: s.end, default=None)
        path: list[Span] = []
        while now is not None:
            path.append(now)
            place, arrow, _ = now.where.partition(" -> ")
            begin = now.ready if arrow else now.begin
            if arrow and now.begin > begin:  # it waited for the link
                sent = [s for s in out[_task(place)] if s.begin < now.begin]
                now = max(sent, key=lambda s: s.begin, default=None)
                continue
            before = [s for s in into.get(place, ()) if s.end <= begin and s.begin < begin]
            now = max(before, key=lambda s: (s.end, s.end - s.begin), default=None)
        return tuple(reversed(path))

    # -- memory ------------------------------------------------------------------------------------

    def peaks(self) -> list[Peak]:
        """The most memory that each device has in use at once, of those that have any."""
        return peaks(self._lives())

    def _lives(self) -> Iterator[Life]:
        """What is in memory, where and when."""
        model, used = self.model, list(self.used)
        for i, nbytes in model.lasts.items():
            device = self.chosen[model.group[i]]
            yield Life(device, 0.0, self.seconds, nbytes, "lasting", i)
        ends = set(model.block.results)
        for v in range(len(used) - 1, -1, -1):  # views come after what they are views of
            if v in ends or v in model.feeds:
                used[v] = self.seconds
            root, on = model.root[v], self.made_on[v]
            if root != v and self.made_on[root] == on:
                used[root] = max(used[root], used[v])
            elif root != v and root in self.copies and on in self.copies[root]:
                row = self.copies[root][on]
                row[2] = max(row[2], used[v])
        begun, buses = self._reused(used), model.buses
        for v, on in enumerate(self.made_on):
            copies = self.copies.get(v, {})
            own = model.nbytes[v] if copies and v in model.unsent else model.stored[v]
            until = used[v]
            for device, (_, first, last) in copies.items():
                end = self.seconds if v in ends and device == 0 else last
                if model.tasks[device] == model.tasks[on] and not buses[device] + buses[on]:
                    until = max(until, end)
                else:
                    yield Life(device, first, end, model.nbytes[v], "received", v)
            if on >= 0 and own:
                yield Life(on, begun[v], until, own, "value", v)
        for i, nbytes in enumerate(model.scratch):
            if nbytes:
                device, end = self.chosen[model.group[i]], self.ended[i]
                begin = end - model.seconds[device][i]
                yield Life(device, begin, end, nbytes, "scratch", i)

    def _reused(self, used: list[float]) -> list[float]:
        """When each value begins to take memory of its own. used: until when it is in memory."""
        model, begun = self.model, list(self.begun)
        for i, results in enumerate(model.results):
            if len(results) != 1 or not model.in_place[i] or not model.stored[results[0]]:
                continue
            v = results[0]
            for operand in model.needs[i]:
                source, size = model.root[operand], model.stored[model.root[operand]]
                last = self.made_on[source] == self.made_on[v] and used[source] == self.ended[i]
                if last and size == model.stored[v] and source not in model.feeds:
                    begun[v] = self.ended[i]
                    break
        return begun


def _task(device: str) -> str:
    return device.rpartition("/")[0]
