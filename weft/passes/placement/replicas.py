"""Steps of thousands of data-parallel workers, simulated a round at a time.

`simulate.py` goes event by event, which takes seconds for some hundred workers. Here all workers
and servers go through the phases of a synchronous step together, each phase as arrays: jobs queue
at a core or a link in the order in which they come, so their ends are a running maximum
(`_served`). What that leaves out: jobs of one phase do not stand in the way of those of another.

With parameter servers the phases are those of `simulate.py`: tell the servers, get parameters,
compute, send gradients, have them applied; the step is over when each server has the gradients of
`needed` workers, and a slow worker goes on with the step that is current then. Without servers all
workers exchange their gradients: directly up to `DIRECT` of them, each the owner of a part, else
around a ring (`weft/comm`, decision 76)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.device import DeviceSpec
from weft.ir.errors import InvalidArgumentError
from weft.passes.placement.devices import Links
from weft.passes.placement.simulate import PIECE_BYTES, PIECES, Cluster, Run, Workload
from weft.passes.placement.timeline import Span

_WARM = 2
#: Up to so many workers send the parts of their gradients to each other directly.
DIRECT = 16

_Times = np.ndarray


def served_by_servers(
    load: Workload,
    workers: int,
    cluster: Cluster | None = None,
    *,
    needed: int | None = None,
    steps: int = 20,
    seed: int = 0,
) -> Run:
    """So many synchronous steps of workers that parameter servers serve, after 2 that do not count;
    as `simulate.simulate`, but for clusters of machines only."""
    made = _Rounds(load, workers, cluster or Cluster(), workers if needed is None else needed, seed)
    return made.run(steps)


def all_reduced(
    load: Workload,
    workers: int,
    cluster: Cluster | None = None,
    *,
    steps: int = 20,
    seed: int = 0,
) -> Run:
    """So many steps of workers that add up their gradients (`load.push`, in all) among themselves,
    after 2 that do not count: each step takes as long as its slowest worker, and the exchange."""
    _check(workers, workers, steps)
    random = np.random.default_rng(seed)
    links = (cluster or Cluster()).links
    exchange = exchange_seconds(sum(load.push), workers, links)
    took = [_computing(load, workers, random).max() + exchange for _ in range(_WARM + steps)]
    return Run(workers, tuple(map(float, took[_WARM:])), float(sum(took[_WARM:])), 0)


def done_at_once(spans: Sequence[Span], home: str, replicas: int, links: Links) -> float:
    """Seconds of a step that so many tasks do at once, phase by phase, of which one, `home`, was
    simulated: the others do the same in tasks of their own, and all share the other tasks that take
    part. Devices do one op at a time."""
    tasks = {DeviceSpec.parse(name).task_name for s in spans for name in s.where.split(" -> ")}
    servers = sorted(tasks - {home})
    if not servers:
        return max((span.end for span in spans), default=0.0)
    load = Workload.of_spans(spans, servers)
    return served_by_servers(load, replicas, Cluster(links, cores=1), steps=2).median


def exchange_seconds(nbytes: float, workers: int, links: Links) -> float:
    """Seconds in which so many workers add up arrays of `nbytes` each."""
    if workers == 1:
        return 0.0
    sent = 2 * (workers - 1) / workers * nbytes / links.bytes_per_s
    rounds = 2 if workers <= DIRECT else 2 * (workers - 1)
    return sent + 2 * (workers - 1) * links.message_s + rounds * links.latency_s


def _check(workers: int, needed: int, steps: int) -> None:
    if workers < 1 or steps < 1 or not 1 <= needed <= workers:
        raise InvalidArgumentError(
            f"{steps} steps of {workers} workers, with the gradients of {needed}"
        )


def _computing(load: Workload, workers: int, random: np.random.Generator) -> _Times:
    """Seconds for which each worker computes in one step."""
    seconds = load.compute_s * np.exp(load.spread * random.standard_normal(workers))
    slow = random.random(workers) < load.straggle
    longer = np.maximum(0.0, (load.straggle_factor - 1) * random.exponential(size=workers))
    return np.where(slow, seconds * (1 + longer), seconds)


def _served(come: _Times, hold: _Times | float, at_once: int = 1) -> _Times:
    """When jobs are done. come: [places, jobs], when they come to a place, which serves them in
    that order, `at_once` together, each for so long (the same at a place)."""
    places, jobs = come.shape
    order = np.argsort(come, axis=1, kind="stable")
    turns = -(-jobs // at_once)
    padded = np.full((places, turns * at_once), np.inf)
    padded[:, :jobs] = np.take_along_axis(come, order, axis=1)
    lanes = padded.reshape(places, turns, at_once)
    took = np.broadcast_to(np.asarray(hold, float), (places,))[:, None, None]
    before = took * np.arange(turns)[None, :, None]
    ends = np.maximum.accumulate(lanes - before, axis=1) + before + took
    out = np.empty_like(come)
    np.put_along_axis(out, order, ends.reshape(places, -1)[:, :jobs], axis=1)
    return out


def _served_each(come: _Times, hold: _Times) -> _Times:
    """As `_served`, one job at a time, each for so long as `hold` says of it ([places, jobs])."""
    order = np.argsort(come, axis=1, kind="stable")
    took = np.take_along_axis(np.broadcast_to(hold, come.shape), order, axis=1)
    before = np.cumsum(took, axis=1) - took
    begun = np.maximum.accumulate(np.take_along_axis(come, order, axis=1) - before, axis=1)
    out = np.empty_like(come)
    np.put_along_axis(out, order, begun + before + took, axis=1)
    return out


class _Rounds:
    """The synchronous steps of workers and servers. Arrays are [servers, workers]."""

    def __init__(
        self, load: Workload, workers: int, cluster: Cluster, needed: int, seed: int
    ) -> None:
        if load.is_overlapped:
            raise InvalidArgumentError(
                "rounds are for workers that compute when they have all parameters",
                hint="weft.passes.placement.simulate.simulate has transfers while they compute",
            )
        if cluster.machine is not None:
            raise InvalidArgumentError(
                "rounds are for machines with links between them",
                hint="weft.passes.placement.simulate.simulate has tasks of one machine",
            )
        self.load, self.workers, self.needed, self.cluster = load, workers, needed, cluster
        self.random = np.random.default_rng(seed)
        servers = len(load.pull)
        turn = (np.arange(workers)[None, :] - np.arange(servers)[:, None]) % servers
        self.turn = np.argsort(turn.T, axis=1, kind="stable")  # [workers, servers]: of sending

    def run(self, steps: int) -> Run:
        """The steps, and what was dropped."""
        _check(self.workers, self.needed, steps)
        begin, marks, dropped = np.zeros(self.workers), [0.0], 0
        told = self.cluster.links.latency_s + 2 * self.cluster.links.message_s
        for number in range(_WARM + steps):
            applied, answered = self._step(begin)
            of_servers = np.partition(applied, self.needed - 1, axis=1)[:, self.needed - 1]
            over = float(of_servers.max()) + self.load.update_s
            late = applied > of_servers[:, None]
            dropped += int(late.sum()) if number >= _WARM else 0
            begin = np.maximum(answered, over + told)
            marks.append(over)
        lengths = np.diff(marks)[_WARM:]
        return Run(self.workers, tuple(map(float, lengths)), marks[-1] - marks[_WARM], dropped)

    def _step(self, begin: _Times) -> tuple[_Times, _Times]:
        """When the servers have applied each gradient, and when each worker has its answers."""
        load, links, cores = self.load, self.cluster.links, self.cluster.cores
        pull, push = np.array(load.pull), np.array(load.push)
        one, byte = links.message_s, self.cluster.byte_s
        asked = self._send(begin, np.zeros(len(pull)), one)
        # a server's core takes the request and hands out the parameters
        given = _served(asked, 2 * one + pull * byte, cores)
        sent = self._wire(_served(given, pull / links.bytes_per_s), pull)
        there = _served_each(sent.T, pull / links.bytes_per_s).T
        got = _served(there.T, one + float(pull.mean()) * byte, cores).max(axis=1)
        made = got + _computing(load, self.workers, self.random)
        come = self._send(made, push, one + float(push.mean()) * byte)
        if push.any():
            come = _served(come, push / links.bytes_per_s)
        # a core takes a gradient, applies it and answers
        done = _served(come, 2 * one + push * byte + np.array(load.apply_s), cores)
        answers = _served((done + links.latency_s).T, one, cores)
        return done - one, answers.max(axis=1)

    def _wire(self, gone: _Times, nbytes: _Times) -> _Times:
        """When the first piece of a message is at the receiver, given when all has left."""
        links = self.cluster.links
        pieces = np.clip(np.ceil(nbytes / PIECE_BYTES), 1, PIECES)
        first = nbytes / links.bytes_per_s * (1 - 1 / pieces)
        return gone - first[:, None] + links.latency_s

    def _send(self, begin: _Times, nbytes: _Times, hold: float) -> _Times:
        """Each worker sends so much to each server, not all to the same one first: when it is
        there."""
        links, cores = self.cluster.links, self.cluster.cores
        servers = self.turn.shape[1]
        come = np.repeat(begin[:, None], servers, axis=1) + 1e-12 * np.arange(servers)
        gone = _served(come, hold, cores)
        if nbytes.any():
            gone = _served_each(gone, nbytes[self.turn] / links.bytes_per_s)
        out = np.empty_like(gone)
        np.put_along_axis(out, self.turn, gone, axis=1)
        return out.T + links.latency_s
