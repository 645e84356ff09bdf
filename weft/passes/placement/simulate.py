"""A cluster simulator: steps of many workers that share parameter servers, event by event.

`costs` says what one step takes whose tasks wait for nobody else. Here the same step is done by up
to hundreds of workers at once, which meet at the servers (paper, sections 4.4, 6.2 and 6.3): in
each step a worker tells the servers that it begins, gets their parameters, computes, and sends them
gradients; or it gets and sends those of a layer while it computes others (`Transfer`).
Asynchronously, each goes on as soon as its gradients are applied. Synchronously a step is over when
each server has the gradients of `needed` workers, of whose number there may be more: those of the
slower ones come too late and are dropped (backup workers). A slow worker is not stopped; when it is
done it goes on with the step that is current then.

What may be waited for: the cores of a machine, by computing and by each message at both its ends;
and what goes into and out of a machine, byte by byte. Messages go in pieces, so what is sent is
received meanwhile, and messages overtake each other as on real links.

Or all tasks are processes of one machine (`Machine`), whose processors are simulated. A task has
two threads: one that handles messages (all that the interpreter does, one after the other), and one
that carries them to other processes. A thread that has nothing to do sleeps; what gives it
something wakes it. It goes on on the processor where it ran last, where others may be before it
even if another processor has nothing to do (Linux was seen to do so: threads change their processor
once in forty to a hundred wake-ups); every now and then one of those that wait is moved. So the
processors are not always busy though there is work."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec
from weft.ir.errors import InvalidArgumentError
from weft.passes.placement.devices import Device, Links
from weft.passes.placement.timeline import Span

#: Puts a call at a time.
At = Callable[[float, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Seconds of a processor for one end of a message in a task. message_s: of the thread that
    handles it; carrier_s: of the one that carries it; large_s: more for a message of
    `Machine.large_bytes`, byte_s for each byte, of the one that handles it. For each task of the
    machine beyond `Machine.tasks` they take longer by a part: message_crowd (large_s, too),
    carrier_crowd, byte_crowd: caches are cold when its turn comes."""

    message_s: float
    carrier_s: float = 0.0
    large_s: float = 0.0
    byte_s: float = 0.0
    message_crowd: float = 0.0
    carrier_crowd: float = 0.0
    byte_crowd: float = 0.0

    def __post_init__(self) -> None:
        if not min(self.message_s, self.carrier_s, self.large_s, self.byte_s) >= 0:
            raise InvalidArgumentError("seconds are not negative")

    def among(self, more: int) -> Ends:
        """What they take among so many more tasks."""
        message, carrier, byte = (
            max(0.0, 1 + more * crowd)
            for crowd in (self.message_crowd, self.carrier_crowd, self.byte_crowd)
        )
        return Ends(
            self.message_s * message, self.carrier_s * carrier, self.large_s * message,
            self.byte_s * byte,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine for all tasks. worker, server: the ends of messages there, among `tasks` tasks.
    wake_s: seconds until a processor that has nothing to do begins with a thread that was woken.
    balance_s: how often one of those that wait is moved to a processor that has less to do (Linux:
    each tick, 1 / CONFIG_HZ seconds); 0: never."""

    processors: int
    worker: Ends
    server: Ends
    tasks: int
    large_bytes: float = math.inf
    wake_s: float = 0.0
    balance_s: float = 4e-3

    def __post_init__(self) -> None:
        if self.processors < 1 or not (self.wake_s >= 0 and self.balance_s >= 0):
            raise InvalidArgumentError("a machine has processors, and seconds are not negative")


class Thread:
    """A thread: its work in order, and the processor where it ran last."""

    __slots__ = ("awake", "processor", "work")

    def __init__(self, processor: int) -> None:
        self.processor, self.awake = processor, False
        self.work: deque[tuple[float, Callable[[], None]]] = deque()


class Processors:
    """Threads on processors, each of which has a queue of its own. at: puts events into the
    simulation; now: its time."""

    def __init__(self, machine: Machine, at: At, now: Callable[[], float]) -> None:
        self._machine, self._at, self._now = machine, at, now
        count = machine.processors
        self._waiting: list[deque[Thread]] = [deque() for _ in range(count)]
        self._running = [False] * count  # or beginning with a thread
        self.busy_s = 0.0
        if machine.balance_s and count > 1:
            at(machine.balance_s, self._balance)

    def do(self, thread: Thread, seconds: float, then: Callable[[], None]) -> None:
        """Have a thread work for so long after what it has to do already."""
        thread.work.append((seconds, then))
        if thread.awake:
            return
        thread.awake = True
        place = thread.processor
        self._waiting[place].append(thread)
        if not self._running[place]:
            self._running[place] = True
            self._at(self._now() + self._machine.wake_s, lambda: self._next(place))

    def _next(self, place: int) -> None:
        """A processor is free: the thread that waits longest has it, until it sleeps."""
        self._running[place] = bool(self._waiting[place])
        if self._running[place]:
            self._go_on(place, self._waiting[place].popleft())

    def _go_on(self, place: int, thread: Thread) -> None:
        seconds, then = thread.work[0]

        def done() -> None:
            self.busy_s += seconds
            thread.work.popleft()
            then()
            if thread.work:
                self._go_on(place, thread)
            else:
                thread.awake = False
                self._next(place)

        self._at(self._now() + seconds, done)

    def _balance(self) -> None:
        """Move one thread that waits from the longest queue to the shortest."""
        self._at(self._now() + self._machine.balance_s, self._balance)
        load = [len(q) + busy for q, busy in zip(self._waiting, self._running, strict=True)]
        most, least = load.index(max(load)), load.index(min(load))
        if load[most] - load[least] < 2 or not self._waiting[most]:
            return
        thread = self._waiting[most].pop()
        thread.processor = least
        self._waiting[least].append(thread)
        if not self._running[least]:
            self._next(least)


class Tasks:
    """Tasks of a machine: the first `workers` of them are workers, the others servers. random:
    where their threads ran last."""

    def __init__(
        self, machine: Machine, workers: int, servers: int, random: np.random.Generator,
        processors: Processors,
    ) -> None:  # fmt: skip
        tasks = workers + servers
        more = tasks - machine.tasks
        worker, server = machine.worker.among(more), machine.server.among(more)
        self._large = machine.large_bytes
        self._ends = [worker] * workers + [server] * servers
        places = random.permutation(2 * tasks) % machine.processors
        threads = [Thread(int(place)) for place in places]
        self._handlers, self._carriers = threads[:tasks], threads[tasks:]
        self._processors = processors

    def work(self, task: int, seconds: float, then: Callable[[], None]) -> None:
        """Of the thread that handles messages."""
        self._processors.do(self._handlers[task], seconds, then)

    def carry(self, source: int, target: int, nbytes: float, then: Callable[[], None]) -> None:
        """A message from task to task: handled, carried, carried, handled."""
        do, out, into = self._processors.do, self._ends[source], self._ends[target]
        handled = [
            end.message_s + nbytes * end.byte_s + end.large_s * (nbytes >= self._large)
            for end in (out, into)
        ]

        def sent() -> None:
            do(self._carriers[source], out.carrier_s, carried)

        def carried() -> None:
            do(self._carriers[target], into.carrier_s, arrived)

        def arrived() -> None:
            do(self._handlers[target], handled[1], then)

        do(self._handlers[source], handled[0], sent)


class Placed(Protocol):
    """A placement, as a workload reads it: `placer.Placement`."""

    @property
    def devices(self) -> Sequence[Device]: ...
    @property
    def predict(self) -> Callable[[], Any]: ...


#: Messages go in so many pieces at most, none smaller than this (bytes).
PIECES, PIECE_BYTES = 4, 1 << 18


class Transfer(NamedTuple):
    """Parameters that a worker gets from a server, or gradients that it gives it, in one message.
    at: which part of its computing is done before it needs them, or has made them."""

    server: int
    nbytes: float
    at: float


@dataclass(frozen=True, slots=True)
class Workload:
    """One step of one worker. Of what there is one for each server: pull, push: bytes of parameters
    and of gradients; apply_s: seconds for which a core of the server works on a worker's gradients.
    gets, gives: the same as messages, which overlap with computing; by default one for each server,
    and all parameters are there before the worker computes, and gradients go when all is done
    (`overlapped`).
    compute_s: seconds of the worker, the median. update_s: seconds from the last gradient of a
    synchronous step to the new parameters.

    spread: the standard deviation of the logarithm of the computing time. straggle: how likely a
    worker's step takes longer, on average `straggle_factor` times as long (what it takes longer is
    exponentially distributed). measured: steps' computing times over their median, as they were
    measured; one of them is drawn in place of `spread`.
    """

    pull: tuple[float, ...]
    push: tuple[float, ...]
    compute_s: float
    apply_s: tuple[float, ...] = ()
    update_s: float = 0.0
    spread: float = 0.0
    straggle: float = 0.0
    straggle_factor: float = 1.0
    measured: tuple[float, ...] = ()
    gets: tuple[Transfer, ...] = ()
    gives: tuple[Transfer, ...] = ()

    def __post_init__(self) -> None:
        if not self.apply_s:
            object.__setattr__(self, "apply_s", (0.0,) * len(self.pull))
        for name, nbytes, at in (("gets", self.pull, 0.0), ("gives", self.push, 1.0)):
            given: tuple[Transfer, ...] = getattr(self, name)
            rest = set(range(len(nbytes))) - {t.server for t in given}  # each takes part
            made = tuple(Transfer(k, 0.0 if given else nbytes[k], at) for k in sorted(rest))
            object.__setattr__(self, name, (*given, *made))
        if not self.pull or not len(self.pull) == len(self.push) == len(self.apply_s):
            raise InvalidArgumentError(
                f"a workload for {len(self.pull)} servers has {len(self.push)} gradients and "
                f"{len(self.apply_s)} applications"
            )
        numbers = (*self.pull, *self.push, *self.apply_s, self.compute_s, self.update_s,
                   self.spread, self.straggle, self.straggle_factor, *self.measured)  # fmt: skip
        if not all(n >= 0 for n in numbers):
            raise InvalidArgumentError("bytes, seconds and likelihoods are not negative")
        in_time = all(0 <= t.at < 1 for t in self.gets) and all(0 < t.at <= 1 for t in self.gives)
        if not in_time:
            raise InvalidArgumentError("parameters are needed before the end, gradients made after")
        for transfers, nbytes in ((self.gets, self.pull), (self.gives, self.push)):
            if not np.allclose(_by_server(transfers, len(nbytes)), nbytes):
                raise InvalidArgumentError("the transfers are not the bytes of the servers")

    @staticmethod
    def even(servers: int, pull: float, push: float, compute_s: float) -> Workload:
        """Parameters and gradients of so many bytes in all, the same on each server."""
        each = (pull / servers,) * servers
        return Workload(each, (push / servers,) * servers, compute_s)

    def overlapped(self, gets: Sequence[Transfer], gives: Sequence[Transfer]) -> Workload:
        """The workload with these transfers."""
        servers = len(self.pull)
        pull, push = _by_server(gets, servers), _by_server(gives, servers)
        return replace(self, pull=pull, push=push, gets=tuple(gets), gives=tuple(gives))

    @property
    def is_overlapped(self) -> bool:
        """Whether it gets or gives anything while it computes."""
        return any(t.at > 0 for t in self.gets) or any(t.at < 1 for t in self.gives)

    @staticmethod
    def of_placement(placement: Placed, job: str = "ps") -> Workload:
        """The step of one worker, which the tasks of `job` serve, as it was placed and priced."""
        servers = sorted({d.task for d in placement.devices if d.spec.job == job})
        if not servers:
            raise InvalidArgumentError(f"no device of the placement is of the job '{job}'")
        return Workload.of_spans(placement.predict().timeline, servers)

    @staticmethod
    def of_spans(spans: Iterable[Span], servers: Sequence[str]) -> Workload:
        """The simulated step of one worker, which these tasks serve."""
        pull, push, busy = (dict.fromkeys(servers, 0.0) for _ in range(3))
        compute = 0.0
        for span in spans:
            first, arrow, second = span.where.partition(" -> ")
            source, target = _task(first), _task(second) if arrow else ""
            if not arrow and source in busy:
                busy[source] += span.end - span.begin
            elif not arrow:
                compute += span.end - span.begin
            elif source in pull:
                pull[source] += span.nbytes
            elif target in push:
                push[target] += span.nbytes
        given, taken = tuple(pull.values()), tuple(push.values())
        return Workload(given, taken, compute, tuple(busy.values()))

    def computing(self, random: np.random.Generator) -> float:
        """Seconds that a worker computes in one step."""
        if self.measured:
            seconds = self.compute_s * float(random.choice(self.measured))
        else:
            seconds = self.compute_s * math.exp(self.spread * random.normal())
        if random.random() < self.straggle:
            slower = (self.straggle_factor - 1) * random.exponential()
            seconds *= 1 + max(0.0, slower)
        return seconds


def _by_server(transfers: Iterable[Transfer], servers: int) -> tuple[float, ...]:
    """The bytes of each server."""
    found = [0.0] * servers
    for t in transfers:
        if not 0 <= t.server < servers:
            raise InvalidArgumentError(f"there is no server {t.server} of {servers}")
        found[t.server] += t.nbytes
    return tuple(found)


def _task(device: str) -> str:
    return DeviceSpec.parse(device).task_name


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines that the tasks run on. cores: of each machine. byte_s: seconds of a core for
    each byte that it sends or receives. machine: all tasks are processes of this one, and there are
    no links; the others do not count then."""

    links: Links = field(default_factory=Links)
    cores: int = 8
    byte_s: float = 0.0
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a simulation. steps: seconds of each step: synchronously from one new set of
    parameters to the next, asynchronously of each worker's own. seconds: of all. dropped: gradients
    that came too late."""

    workers: int
    steps: tuple[float, ...]
    seconds: float
    dropped: int

    @property
    def median(self) -> float:
        """The median step."""
        return float(np.median(self.steps))

    def percentile(self, q: float) -> float:
        """The q-th percentile of the steps."""
        return float(np.percentile(self.steps, q))

    @property
    def per_second(self) -> float:
        """Steps of workers that counted, for each second."""
        return len(self.steps) / self.seconds if self.seconds else math.inf


def simulate(
    workload: Workload,
    workers: int,
    cluster: Cluster | None = None,
    *,
    needed: int | None = None,
    synchronous: bool = True,
    steps: int = 20,
    seed: int = 0,
) -> Run:
    """So many workers doing so many steps (asynchronously: each of them), after 2 that do not
    count.

    needed: of how many workers each synchronous step takes the gradients; None: of all.
    InvalidArgumentError for numbers that make no sense.
    """
    wanted = workers if needed is None else needed
    if workers < 1 or steps < 1 or not 1 <= wanted <= workers:
        raise InvalidArgumentError(
            f"{steps} steps of {workers} workers, with the gradients of {wanted}"
        )
    sim = _Steps(workload, workers, cluster or Cluster(), wanted, synchronous, steps + _WARM, seed)
    return sim.run()


_WARM = 2


class _Pool:
    """Some equal servers of one queue: cores, or a link."""

    __slots__ = ("free",)

    def __init__(self, count: int) -> None:
        self.free = [0.0] * count

    def take(self, now: float, hold: float) -> float:
        """Be served next, for so long: when that is over."""
        end = max(now, self.free[0]) + hold
        heapq.heapreplace(self.free, end)
        return end


class _Stop(NamedTuple):
    """Where a worker's computing may stop. needs: what it must have got to go on; makes: what it
    has made by then."""

    at: float
    needs: frozenset[int]
    makes: tuple[int, ...]


def _stops(load: Workload) -> tuple[_Stop, ...]:
    """From the begin of computing to its end."""
    needs: dict[float, list[int]] = {0.0: [], 1.0: []}
    makes: dict[float, list[int]] = {}
    for number, get in enumerate(load.gets):
        needs.setdefault(get.at, []).append(number)
    for number, give in enumerate(load.gives):
        makes.setdefault(give.at, []).append(number)
    return tuple(
        _Stop(at, frozenset(needs.get(at, ())), tuple(makes.get(at, ())))
        for at in sorted({*needs, *makes})
    )


def _shares(load: Workload) -> tuple[float, ...]:
    """Which part of what its server does for the worker each gradient is."""
    count = [0] * len(load.push)
    for t in load.gives:
        count[t.server] += 1
    return tuple(
        t.nbytes / load.push[t.server] if load.push[t.server] else 1 / count[t.server]
        for t in load.gives
    )


class _Steps:
    """The state of one simulation: events in order of time, and what each task waits for."""

    def __init__(
        self,
        load: Workload,
        workers: int,
        cluster: Cluster,
        needed: int,
        synchronous: bool,
        steps: int,
        seed: int,
    ) -> None:
        self.load, self.workers, self.cluster = load, workers, cluster
        self.needed, self.synchronous, self.last = needed, synchronous, steps
        self.servers = len(load.pull)
        self.random = np.random.default_rng(seed)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count, self.now = 0, 0.0
        tasks = workers + self.servers
        self.here: Tasks | None = None
        if cluster.machine is not None:
            processors = Processors(cluster.machine, self.at, lambda: self.now)
            self.here = Tasks(cluster.machine, workers, self.servers, self.random, processors)
        self.cores = [_Pool(cluster.cores) for _ in range(tasks)]
        self.out, self.into = ([_Pool(1) for _ in range(tasks)] for _ in range(2))
        self.version = 0  # of the parameters: how many steps are over
        self.step = [0] * workers  # the version that each worker has
        self.begun, self.seconds = [0.0] * workers, [0.0] * workers  # of computing, in all
        self.stops, self.shares = _stops(load), _shares(load)
        order = sorted(range(len(load.gets)), key=lambda k: load.gets[k].at)
        self.asked = [[k for k in order if load.gets[k].server == s] for s in range(self.servers)]
        self.place = [0] * workers  # the stop of each worker
        self.got: list[set[int]] = [set() for _ in range(workers)]
        self.waits = [False] * workers  # at its stop, for what it gets
        self.owed = [[0] * self.servers for _ in range(workers)]  # gradients, by server
        self.finished, self.slowest = [0] * workers, 0  # steps of each worker, the least of them
        self.missing = [0] * workers  # answers that a worker waits for
        self.idle: list[int] = []  # those that wait for the next version
        self.gradients = [0] * self.servers  # of the current step
        self.done: list[float] = []
        self.times: list[float] = [0.0]
        self.dropped = 0

    # -- events ------------------------------------------------------------------------------------

    def at(self, time: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what))

    def run(self) -> Run:
        for worker in range(self.workers):
            self.begin(worker)
        while self.events and not self.over():
            self.now, _, what = heapq.heappop(self.events)
            what()
        if self.synchronous:
            marks = self.times[_WARM:]
            lengths = tuple(b - a for a, b in pairwise(marks))
            return Run(self.workers, lengths, marks[-1] - marks[0], self.dropped)
        return Run(self.workers, tuple(self.done), self.now - self.times[-1], self.dropped)

    def over(self) -> bool:
        if self.synchronous:
            return self.version >= self.last
        return self.slowest >= self.last

    # -- messages ----------------------------------------------------------------------------------

    def work(self, task: int, seconds: float, then: Callable[[], None]) -> None:
        """Have a task compute for so long."""
        if self.here is not None:
            self.here.work(task, seconds, then)
        else:
            self.at(self.cores[task].take(self.now, seconds), then)

    def send(
        self, source: int, target: int, nbytes: float, then: Callable[[], None],
        gone_by: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Carry a message: piece by piece through the cores of the sender, the link, and the cores
        of the receiver; `then` it is there. gone_by: when the sender may send what is next."""
        if self.here is not None:
            if gone_by is not None:
                gone_by()  # its threads do one thing after the other
            return self.here.carry(source, target, nbytes, then)
        pieces = max(1, min(PIECES, math.ceil(nbytes / PIECE_BYTES)))
        links, left = self.cluster.links, [pieces, pieces]  # to send, to receive
        work = (links.message_s + nbytes * self.cluster.byte_s) / pieces
        wire = nbytes / pieces / links.bytes_per_s

        def leave() -> None:
            gone = self.out[source].take(self.now, wire) if wire else self.now
            self.at(gone + links.latency_s, arrive if wire else receive)
            left[0] -= 1
            if left[0]:  # the next piece is made ready meanwhile, and takes its turn on the link
                self.at(max(gone, self.cores[source].take(self.now, work)), leave)
            elif gone_by is not None:
                self.at(gone, gone_by)

        def arrive() -> None:
            self.at(self.into[target].take(self.now, wire), receive)

        def receive() -> None:
            self.at(self.cores[target].take(self.now, work), end)

        def end() -> None:
            left[1] -= 1
            if not left[1]:
                then()

        self.at(self.cores[source].take(self.now, work), leave)
        return None

    # -- workers -----------------------------------------------------------------------------------

    def begin(self, worker: int) -> None:
        """Tell the servers; each answers with its parameters."""
        self.step[worker], self.begun[worker] = self.version, self.now
        self.missing[worker], self.place[worker], self.waits[worker] = self.servers, 0, True
        self.got[worker].clear()
        for give in self.load.gives:
            self.owed[worker][give.server] += 1
        for k in range(self.servers):
            server = (worker + k) % self.servers  # not all workers to the same server first

            self.send(worker, self.workers + server, 0.0, partial(self.answer, worker, server, 0))

    def answer(self, worker: int, server: int, turn: int) -> None:
        """Send a worker what it needs of a server, one thing after the other."""
        number = self.asked[server][turn]
        further = turn + 1 < len(self.asked[server])
        after = partial(self.answer, worker, server, turn + 1) if further else None
        nbytes, came = self.load.gets[number].nbytes, partial(self.came, worker, number)
        self.send(self.workers + server, worker, nbytes, came, after)

    def came(self, worker: int, number: int) -> None:
        """A worker has got something."""
        self.got[worker].add(number)
        if self.waits[worker] and self.got[worker].issuperset(self.stops[self.place[worker]].needs):
            self.waits[worker] = False
            self.go_on(worker)

    def go_on(self, worker: int) -> None:
        """A worker has what it needs to compute up to its next stop."""
        number = self.place[worker] = self.place[worker] + 1
        before, stop = self.stops[number - 1], self.stops[number]
        if number == 1:
            self.seconds[worker] = self.load.computing(self.random)
        seconds = self.seconds[worker] * (stop.at - before.at)
        self.work(worker, seconds, lambda: self.reached(worker))

    def reached(self, worker: int) -> None:
        """A worker is at a stop: it gives what it has made, and goes on if it can."""
        stop = self.stops[self.place[worker]]
        first = worker % max(1, len(stop.makes))
        for number in (*stop.makes[first:], *stop.makes[:first]):
            self.give(worker, self.load.gives[number], self.shares[number])
        if self.place[worker] == len(self.stops) - 1:
            return
        if self.got[worker].issuperset(stop.needs):
            self.go_on(worker)
        else:
            self.waits[worker] = True

    def give(self, worker: int, what: Transfer, share: float) -> None:
        """Send a gradient, and have it applied. share: of what the server has to do."""
        server, version = what.server, self.step[worker]

        def arrive() -> None:
            stale = self.synchronous and version < self.version
            work = 0.0 if stale else self.load.apply_s[server] * share
            self.work(self.workers + server, work, lambda: self.added(worker, server, version))

        self.send(worker, self.workers + server, what.nbytes, arrive)

    def added(self, worker: int, server: int, version: int) -> None:
        """A server has one of a worker's gradients."""
        self.owed[worker][server] -= 1
        if not self.owed[worker][server]:
            self.applied(worker, server, version)

    # -- servers -----------------------------------------------------------------------------------

    def applied(self, worker: int, server: int, version: int) -> None:
        """A server has a worker's gradients; it answers, and the step may be over."""
        self.send(self.workers + server, worker, 0.0, lambda: self.answered(worker))
        if not self.synchronous:
            return
        if version < self.version or self.gradients[server] >= self.needed:
            self.dropped += self.version >= _WARM
            return
        self.gradients[server] += 1
        if min(self.gradients) >= self.needed:
            self.gradients = [0] * self.servers
            self.at(self.now + self.load.update_s, self.advance)

    def advance(self) -> None:
        """New parameters: who waits for them goes on."""
        self.version += 1
        self.times.append(self.now)
        idle, self.idle = self.idle, []
        for worker in idle:
            self.send(self.workers, worker, 0.0, lambda worker=worker: self.begin(worker))  # type: ignore[misc]

    def answered(self, worker: int) -> None:
        self.missing[worker] -= 1
        if self.missing[worker]:
            return
        self.finished[worker] += 1
        if not self.synchronous:
            if self.finished[worker] == self.slowest + 1:
                self.slowest = min(self.finished)
            if self.slowest <= _WARM:
                self.times.append(self.now)  # what counts begins when all have done two
            else:
                self.done.append(self.now - self.begun[worker])
            self.begin(worker)
        elif self.version > self.step[worker]:
            self.begin(worker)
        else:
            self.idle.append(worker)


def with_stragglers(load: Workload, spread: float, likely: float, factor: float) -> Workload:
    """The workload on machines that are not all alike at all times."""
    return replace(load, spread=spread, straggle=likely, straggle_factor=factor)


def backup_curve(
    load: Workload,
    workers: int,
    backups: Sequence[int],
    cluster: Cluster | None = None,
    *,
    steps: int = 40,
    seed: int = 0,
) -> list[tuple[int, float, float]]:
    """(b, the median step with b backup workers, its speed-up over none normalised by what they
    cost: t(0) / t(b) * workers / (workers + b)), as the paper's figure 8 draws it.

    InvalidArgumentError if `backups` does not begin with 0.
    """
    if not backups or backups[0] != 0:
        raise InvalidArgumentError("the curve is relative to no backup workers: begin with 0")
    out: list[tuple[int, float, float]] = []
    for b in backups:
        run = simulate(load, workers + b, cluster, needed=workers, steps=steps, seed=seed)
        first = out[0][1] if out else run.median
        out.append((b, run.median, first / run.median * workers / (workers + b)))
    return out
