"""`Server`: a task of a cluster, in this process (TensorFlow 1's class); `Worker`: what it does.

A task offers its devices (its processor, and the GPUs of its process), holds variables and
resources, is given parts of step definitions, and runs them."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from weft.comm.errors import CommError
from weft.comm.rendezvous import MASTER_SHIFT
from weft.comm.traffic import EXCHANGES
from weft.ir.device import DeviceSpec
from weft.ir.errors import (
    AbortedError,
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.runtime.cluster import messages as m
from weft.runtime.cluster.exchange import sendable
from weft.runtime.cluster.messages import (
    Derived,
    Direct,
    Received,
    Wire,
    announce,
    find,
    from_wire,
    to_wire,
    withdraw,
)
from weft.runtime.cluster.part import Registered, read_part
from weft.runtime.cluster.part_run import Client, Home, PartRun, arrays_of, later
from weft.runtime.cluster.spec import ClusterSpec
from weft.runtime.cluster.transport import knows_peers, open_endpoint
from weft.runtime.dataflow.threads import StepThreads
from weft.runtime.device.backends.registry import in_use
from weft.runtime.files.permissions import AllowFiles
from weft.runtime.native.machine import usable_processors
from weft.runtime.native.pool import POOL
from weft.runtime.resources.store import Store
from weft.runtime.trace.counters import Counters, Stats, task_stats

if TYPE_CHECKING:
    from weft.comm.addresses import Secret
    from weft.runtime.cluster.metrics import MetricsServer
    from weft.runtime.cluster.native_parts import NativeParts


_LOG = logging.getLogger("weft.cluster")

#: NVIDIA's driver, without which there is no GPU.
_DRIVER = "libcuda.so.1"


def devices_of(task: str) -> list[str]:
    """Full names, the processor first. Why the GPUs of a driver cannot be used is logged.

    InvalidArgumentError for a WEFT_EMULATE_GPU that means nothing."""
    names = [f"{task}/cpu:0"]
    if os.environ.get("WEFT_EMULATE_GPU", "0") in ("", "0") and not _has_driver():
        return names  # a task without GPUs does not load what knows them
    from weft.runtime.device.backends.registry import gpus

    try:
        found = gpus()
    except InvalidArgumentError:
        raise
    except WeftError as error:
        _LOG.warning("%s offers no GPU: %s", task, error)
        return names
    return names + [f"{task}/gpu:{DeviceSpec.parse(info.name).index}" for info in found]


def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


#: How often the limits of what waits are looked at, in seconds.
LOOK_SECONDS = 0.05
_NO_META: Mapping[str, Any] = {}


class Worker:
    """What a task does with the messages that come; `on_message` and `on_link_lost` are for its
    endpoint, and return soon.

    name: "/job:ps/task:0". cluster: job -> addresses, for the sessions that ask. attach: sets the
    endpoint, once. serves: whether the program of this process does nothing but serve sessions, as
    far as it says.
    """

    def __init__(self, name: str, cluster: Mapping[str, list[str]]) -> None:
        self.name, self.cluster = name, dict(cluster)
        self.store, self.counters, self.serves = Store(name), Counters(), False
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._homes: set[str] = set()  # of them, those whose target it is
        self._runs: dict[tuple[int, int], PartRun] = {}
        self._low: dict[int, int] = {}  # by master, the step up to which all are forgotten
        self._lost: dict[str, str] = {}  # tasks whose link is gone, and why
        self._threads = StepThreads(f"weft {name}")
        self._closed = threading.Event()
        self._ends = False  # as `_closed` says, which takes a call
        self._watched = False
        self._wire: Wire | None = None
        self._allow_files: AllowFiles = None
        self._home: Home | None = None
        self.native: NativeParts | None = None
        self._kinds: dict[int, Callable[[Received], None]] = {
            m.HELLO: self._later(self._hello),
            m.REGISTER: self._later(self._register),
            m.RUN: self._run,
            m.ABORT: self._abort,
            m.DROP: self._drop,
            m.STATUS: self._later(self._status),
            m.STATS: self._later(self._stats),
            m.LOG: self._later(self._log),
            m.KERNELS: self._later(self._kernels),
            m.RESET: self._later(self._reset),
            m.GOODBYE: self._later(self._goodbye),
        }

    @property
    def wire(self) -> Wire:
        """The endpoint."""
        assert self._wire is not None
        return self._wire

    def attach(self, wire: Wire, allow_files: AllowFiles = None) -> None:
        """Use this endpoint. allow_files: what graphs that come through it may use."""
        self._wire, self._allow_files = wire, allow_files
        self._home = Home(self.name, wire, self.counters, self._over)
        endpoint: Any = wire
        if hasattr(endpoint, "take_packets"):
            # a task without packets does not wait for this module
            from weft.runtime.cluster.native_parts import NativeParts

            self.native = NativeParts(endpoint, self._home, self._admit, self._is_current)
        announce(wire.incarnation, self.on_message)

    def close(self) -> None:
        """End all steps and drop what the task holds."""
        self._ends = True
        self._closed.set()
        if self.native is not None:
            self.native.stop()
        if self._wire is not None:
            withdraw(self._wire.incarnation)
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            self._end(run, CancelledError(f"{self.name} was shut down"), Derived.ROOT)
        self._threads.close()

    # ----------------------------------------------------------------------------- what comes
    def on_message(self, message: Received) -> None:
        """Take one message."""
        act = self._kinds.get(message.kind)
        if act is None:
            _LOG.warning("%s: %s sent a message of kind %s", self.name, message.peer, message.kind)
            return
        try:
            act(message)
        except (WeftError, KeyError, TypeError, ValueError, IndexError) as error:
            _LOG.warning(
                "%s: a message of %s is not well formed: %r", self.name, message.peer, error
            )

    def on_link_lost(self, peer: str, cause: object) -> None:
        """End every step that needs the peer."""
        with self._lock:
            client = self._clients.pop(peer, None)
            self._homes.discard(peer)
            if client is None and not peer.startswith(m.CLIENT):
                self._lost[peer] = str(cause)
        if self.native is not None:
            self.native.drop(lambda one: one.client is client or peer in one.part.peers)
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            if client is not None and run.client is client:
                self._end(run, CancelledError(f"the session was lost: {cause}"), Derived.ROOT)
            elif peer in run.part.peers:
                self._end(run, run.exchange.lost(peer, str(cause)), Derived.LOST_LINK)
        if client is not None and client.last:
            self.wire.forget(client.last)

    def _later(self, act: Callable[[Received], None]) -> Callable[[Received], None]:
        return later(self._threads.submit, self._cut, self.name, act)

    def _cut(self, peer: str, cause: object) -> None:
        """End the link to a session that cannot be answered, so that it hears of that."""
        with suppress(CommError):
            self.wire.disconnect(peer)
        self.on_link_lost(peer, cause)

    # ------------------------------------------------------------------------------- sessions
    def _hello(self, message: Received) -> None:
        client = Client(message.peer, self.wire, self.name, find(message.peer), self._cut)
        with self._lock:
            self._clients.setdefault(message.peer, client)
            if message.meta["home"]:
                self._homes.add(message.peer)
        reply = {
            "protocol": m.PROTOCOL, "task": self.name, "devices": devices_of(self.name),
            "cluster": self.cluster,
            "machine": [platform.node(), usable_processors(), POOL.limit],
        }  # fmt: skip
        self.wire.send(message.peer, m.WELCOME, 0, reply)

    def _goodbye(self, message: Received) -> None:
        with self._lock:
            client = self._clients.pop(message.peer, None)
            self._homes.discard(message.peer)
        if self.native is not None:
            self.native.drop(lambda one: one.client is client)
        with self._lock:
            runs = [r for r in self._runs.values() if r.client is client]
        for run in runs:
            self._end(run, CancelledError("the session was closed"), Derived.ROOT)
        if client is not None and client.last:
            self.wire.forget(client.last)
        self.wire.disconnect(message.peer)

    def _reset(self, message: Received) -> None:
        self.store.clear([str(c) for c in message.meta["containers"]])
        if self.native is not None:  # none of them has read its part since
            self.native.drop(lambda one: one.part.generation != self.store.generation)
        self._client(message).send(m.RESET_DONE, message.step, {})

    def _client(self, message: Received) -> Client:
        with self._lock:
            found = self._clients.get(message.peer)
        if found is None:
            raise NotFoundError(f"{self.name} does not know the session {message.peer}")
        return found

    # ------------------------------------------------------------------------------ definitions
    def _register(self, message: Received) -> None:
        handle = int(message.meta["h"])
        try:
            client = self._client(message)
        except NotFoundError as error:  # its link was lost on this side only
            self._cut(message.peer, error)
            return
        client.last = max(client.last, message.step)
        reply: dict[str, Any] = {"h": handle}
        try:
            client.parts[handle] = self._read(message)
        except CommError as error:
            lost = UnavailableError(f"{self.name} cannot reach a task that was lost: {error}")
            reply["e"] = to_wire(lost, Derived.LOST_LINK)
        except Exception as error:  # all go to the session, which waits for an answer
            if not isinstance(error, WeftError):
                _LOG.exception("%s cannot register a graph", self.name)
            reply["e"] = to_wire(error)
        client.send(m.REGISTERED, message.step, reply)

    def _drop(self, message: Received) -> None:
        client, handles = self._client(message), {int(h) for h in message.meta["handles"]}
        for handle in handles:
            client.parts.pop(handle, None)
            client.runs.pop(handle, None)
        if self.native is not None:
            self.native.drop(lambda one: one.client is client and one.handle in handles)

    def _read(self, message: Received) -> Registered:
        meta = message.meta
        first = m.keys_of(m.CONSTANT, int(meta["h"]))
        text, more, *constants = arrays_of(
            meta, message.buffers, self.wire, message.peer, message.step, first, meta["timeout"]
        )
        named = m.from_array(more)
        peers: dict[str, list[Any]] = named["peers"]
        for peer, (address, incarnation) in peers.items():
            with self._lock:  # first: what is lost from now on is known
                self._lost.pop(peer, None)
            self.wire.connect(peer, str(address), int(incarnation))
        return read_part(
            text.tobytes().decode(),
            constants,
            self.store,
            {str(name): (str(c), str(s)) for name, (c, s) in named["state"].items()},
            frozenset(peers),
            str(meta["control_flow"]),
            str(meta["pipeline"]),
            str(named.get("device", "")),
            True if isinstance(message, Direct) else self._allow_files,
        )

    # -------------------------------------------------------------------------------------- steps
    def _run(self, message: Received) -> None:
        meta: Mapping[str, Any] | None = message.meta
        if meta is None:
            meta, handle, low = _NO_META, message.key, message.offset
        else:
            handle, low = int(meta["h"]), int(meta["l"])
        step, client, home = message.step, self._clients.get(message.peer), self._home
        part = None if client is None else client.parts.get(handle)
        if client is None or part is None or home is None or self._ends:
            self._refuse(message, client, handle)
            return
        if part.generation != self.store.generation:  # what it names was cleared meanwhile
            self._threads.submit(lambda: self._read_again(client, part, message, handle))
            return
        client.last = max(client.last, step)
        run = PartRun(client, home, part, step, handle, meta, message.buffers)
        with self._lock:
            # who has just ended all runs of its session, or of the task, has not seen it
            known = self._clients.get(message.peer) is client and not self._ends
            known = known and (step, handle) not in self._runs
            lost = [(p, self._lost[p]) for p in part.peers if p in self._lost] if self._lost else ()
            self.counters.begun += 1
            if known:
                self._runs[step, handle] = run
            else:
                self.counters.ended(0.0, failed=True, part=part.whole)
        if not known:
            self._refuse(message, client, handle)
            return
        if low - self._low.get(low >> MASTER_SHIFT, 0) >= m.FORGET_EVERY:
            self._forget(low)
        for peer, cause in lost:
            self._end(run, run.exchange.lost(peer, cause), Derived.LOST_LINK)
        if meta is not _NO_META and "r" in meta:
            self._watch()
        if run.is_small:
            native = self.native if meta is _NO_META else None
            if native is None or not native.begin(run):
                run.begin()
                if native is not None:
                    low = self._low.get(step >> MASTER_SHIFT, 0)
                    native.ran(client, part, handle, low)
        else:
            self._threads.submit(run.carry_out)

    def _refuse(self, message: Received, client: Client | None, handle: int) -> None:
        """Answer that a part cannot run, to a session that may not be known."""
        error: WeftError = AbortedError(f"{self.name} does not know part {handle} of the step")
        if self._ends:
            error = UnavailableError(f"{self.name} was lost: it was shut down")
        reply = {"h": handle, "e": to_wire(error, Derived.LOST_LINK)}
        if client is not None:
            client.send(m.DONE, message.step, reply)
        else:
            self.wire.send(message.peer, m.DONE, message.step, reply)

    def _read_again(self, client: Client, part: Registered, message: Received, handle: int) -> None:
        """Run a part whose variables and queues are others now."""
        try:
            client.parts[handle] = part.again()
            if self.wire.rendezvous.is_over(message.step):  # it was ended meanwhile
                self._refuse(message, client, handle)
            else:
                self._run(message)
        except Exception as error:
            client.send(m.DONE, message.step, {"h": handle, "e": to_wire(error)})

    def _over(self, run: PartRun, seconds: float, waited: float, failed: bool) -> None:
        with self._lock:
            del self._runs[run.step, run.handle]
            self.counters.ended(seconds, failed, waited, run.part.whole)

    def _is_current(self, client: Client, part: Registered, handle: int) -> bool:
        """Whether that is a part of a session."""
        known = self._clients.get(client.name) is client and client.parts.get(handle) is part
        return known and part.generation == self.store.generation and not self._ends

    def _admit(self, run: PartRun) -> None:
        """A run that native code has begun goes on here."""
        with self._lock:
            self._runs[run.step, run.handle] = run
            self.counters.begun += 1

    def _forget(self, low: int) -> None:
        """All steps up to `low` are over."""
        if self.native is not None:
            self.native.forgot(low)
        self._low[low >> MASTER_SHIFT] = low
        self.wire.forget(low)

    def _abort(self, message: Received) -> None:
        client, meta = self._client(message), message.meta
        error, _ = from_wire(meta["e"])
        self._recall(message.step)
        with self._lock:
            runs = [r for r in self._runs.values() if r.step == message.step and r.client is client]
        if not runs:  # it may not have begun
            self.wire.abort(message.step, error)
        for run in runs:
            if meta.get("lost") in run.part.peers:
                lost = run.exchange.lost(str(meta["lost"]), str(meta["cause"]))
                self._end(run, lost, Derived.LOST_LINK)
            else:
                ended = AbortedError(f"the step was ended: {error.what}")
                self._end(run, ended, Derived.ABORTED)

    def _recall(self, step: int) -> None:
        if self.native is not None:
            self.native.recall_step(step)

    def _end(self, run: PartRun, error: WeftError, derived: int) -> None:
        run.end(error, derived)
        self.wire.abort(run.step, error)

    # ------------------------------------------------------------------------------------ reports
    def _status(self, message: Received) -> None:
        self._recall(message.step)
        with self._lock:
            runs = [r for r in self._runs.values() if r.step == message.step]
        rows = [[run.handle, run.waits(), run.exchange.hosts()] for run in runs]
        reply = {"n": message.meta["n"]}
        self._client(message).send(m.STATUS_OF, message.step, reply, [m.to_array(rows)])

    def stats(self) -> Stats:
        """All that the task counts (`task_stats`)."""
        if self.native is not None:
            self.native.recall()
        with self._lock:
            if self.native is not None:
                self.native.count()
            runs = list(self._runs.values())
        waits = [row for run in runs for row in run.waits()]
        wire: Any = self._wire
        refusals = getattr(wire, "rejections", None)  # wires within a process have none
        refused = {} if refusals is None else refusals.counts()
        links = wire.traffic() if hasattr(wire, "traffic") else {}
        told = EXCHANGES.told()
        made = task_stats(self.counters, *self.store.held(), waits, refused, in_use(), links, told)
        return {**made, "serves": self.serves and not self._homes}

    def _stats(self, message: Received) -> None:
        if "o" in message.meta:  # seconds for which somebody looks at ops
            self.counters.watch(float(message.meta["o"]))
            if self.native is not None:
                self.native.watch(float(message.meta["o"]))
        made = self.stats()
        reply = {"n": message.meta["n"]}
        self._client(message).send(m.STATS_OF, message.step, reply, [m.to_array(made)])

    def _log(self, message: Received) -> None:
        """What a run that is over took from outside; nothing if that is not known."""
        client, handle = self._client(message), int(message.meta["h"])
        log = client.logs.pop((int(message.meta["of"]), handle), None)
        arrays = [] if log is None else [sendable(array) for array in log.packed()]
        client.answer(m.LOG_OF, message.step, handle, {"h": handle}, arrays)

    def _kernels(self, message: Received) -> None:
        """The kernels of a part, or why they cannot be told."""
        # who looks at no kernels does not wait for this module
        from weft.runtime.step_kernels import StepKernels, list_kernels, pack_kernels

        client, handle = self._client(message), int(message.meta["h"])
        part = client.parts.get(handle)
        try:
            if part is None:
                raise NotFoundError(f"it does not know part {handle} of the step")
            found = list_kernels(part.step, part.device, f"the part on {part.device}")
            arrays = [pack_kernels(found)]
        except Exception as error:  # whatever it is, the session waits for an answer
            _LOG.warning("%s cannot tell the kernels of a part", self.name, exc_info=error)
            missing = [f"{self.name} cannot tell the kernels of its part: {error}"]
            arrays = [pack_kernels(StepKernels(missing=missing))]
        client.answer(m.KERNELS_OF, message.step, handle, {"h": handle}, arrays)

    def _watch(self) -> None:
        """Look after the limits of what waits, from now on."""
        with self._lock:
            begun, self._watched = self._watched, True
        if not begun:
            threading.Thread(target=self._look, name=f"weft {self.name}", daemon=True).start()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with self._lock:
                runs = list(self._runs.values())
            for run in runs:
                run.exchange.overdue()


class Server:
    """A task: it holds variables and queues and runs its parts of steps, for any number of
    sessions (`wf.Session(server.target)`).

    server_or_cluster_def: a ClusterSpec or what it takes. job_name, task_index: which task this is;
    may be left out where there is only one. start: begin at once; else by `start()`. key_file: the
    cluster's secret (`weft keygen`), which tasks need that other machines can reach; default: see
    docs/guide/cluster-security.md; secret: the same as an object. allow_files: the folders whose
    files graphs may use that sessions of other processes send (True: all, False: none); default:
    all if sessions prove who they are, by the secret or by an ipc address of this user's, else
    none. metrics_port: where Prometheus finds what the task counts (`metrics_url`; 0: any free
    port; default: nowhere), at the address metrics_host, which by default only this machine
    reaches: it asks for no key. protocol, config: TensorFlow's; UnsupportedError if given. As a
    context manager it stops at the end. InvalidArgumentError for a task that the cluster does not
    have, and for an address that is not this machine's or is taken, FailedPreconditionError for one
    that needs keys.

    >>> with wf.train.Server({"worker": ["127.0.0.1:0"]}) as server:
    ...     with wf.Graph().as_default(), wf.Session(server.target) as session:
    ...         print(server.name, session.run(wf.sum(wf.asarray([1.0, 2.0]))))
    /job:worker/task:0 3.0
    >>> wf.train.Server({"worker": ["127.0.0.1:2222"]}, start=False)
    <wf.train.Server /job:worker/task:0 at tcp://127.0.0.1:2222>
    """

    def __init__(
        self,
        server_or_cluster_def: ClusterSpec | Mapping[str, Sequence[str]] | str,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
        *,
        key_file: str | os.PathLike[str] | None = None,
        secret: Secret | None = None,
        allow_files: AllowFiles = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> None:
        for name, value in (("protocol", protocol), ("config", config)):
            if value is not None:
                raise UnsupportedError(
                    f"wf.train.Server: {name}={value!r:.60} is not supported",
                    hint="tasks speak over ZeroMQ, and need no other settings",
                    location=caller_location(),
                )
        self._cluster = ClusterSpec(server_or_cluster_def)
        self.job_name = self._only(job_name, self._cluster.jobs, "job_name")
        numbers = self._cluster.task_indices(self.job_name)
        self.task_index = self._only(task_index, numbers, "task_index")
        self._bind = self._cluster.address(self.job_name, self.task_index)
        self._key_file, self._secret = key_file, secret
        self._allow_files = allow_files
        self._metrics_at = None if metrics_port is None else (metrics_port, metrics_host)
        self._metrics: MetricsServer | None = None
        self._ended = threading.Event()
        self._wire: Wire | None = None
        self.worker = Worker(
            f"/job:{self.job_name}/task:{self.task_index}", self._cluster.as_dict()
        )
        if start:
            self.start()

    @staticmethod
    def _only(given: Any, known: Sequence[Any], what: str) -> Any:
        if given is None and len(known) == 1:
            return known[0]
        if given not in known:
            raise InvalidArgumentError(
                f"wf.train.Server: {what}={given!r:.60} is not in the cluster",
                hint=f"it is one of {', '.join(map(str, known))}",
                location=caller_location(),
            )
        return given

    @classmethod
    def create_local_server(cls, config: Any = None, start: bool = True) -> Server:
        """A cluster of one task, "/job:local/task:0", in this process."""
        return cls({"local": ["127.0.0.1:0"]}, config=config, start=start)

    @classmethod
    def create_local_cluster(cls, jobs: Mapping[str, int]) -> list[Server]:
        """A cluster in this process, for tests: so many tasks of each job, in order."""
        spec = ClusterSpec({job: ["127.0.0.1:0"] * count for job, count in jobs.items()})
        made: list[Server] = []
        try:
            for job, number in spec.tasks():
                made.append(cls(spec, job, number))
                spec = spec.with_address(job, number, made[-1].target)
        except BaseException:
            for server in made:
                server.stop()
            raise
        for server in made:
            server.set_cluster(spec)
        return made

    # ------------------------------------------------------------------------------ what it is
    @property
    def name(self) -> str:
        """`/job:ps/task:0`."""
        return self.worker.name

    @property
    def target(self) -> str:
        """Its address, for `wf.Session`; port 0 is replaced by the one that it has."""
        return self._bind if self._wire is None else self._wire.address

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus finds its metrics; None if that was not asked for."""
        return None if self._metrics is None else self._metrics.url

    @property
    def incarnation(self) -> int:
        """A number that differs for each start of a task."""
        if self._wire is None:
            raise FailedPreconditionError(
                f"{self.name} has not started", location=caller_location()
            )
        return self._wire.incarnation

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster as sessions are told it."""
        return self._cluster

    def set_cluster(self, cluster: ClusterSpec) -> None:
        """Tell later sessions this cluster: where addresses were not known at the start."""
        cluster.address(self.job_name, self.task_index)
        self._cluster = cluster
        self.worker.cluster = cluster.as_dict()

    # ----------------------------------------------------------------------------- how it runs
    def start(self) -> None:
        """Listen. Nothing happens if it does already; FailedPreconditionError once stopped."""
        if self._ended.is_set():
            raise FailedPreconditionError(
                f"{self.name} was stopped", hint="make a new Server", location=caller_location()
            )
        if self._wire is not None:
            return
        worker = self.worker
        self._wire = open_endpoint(
            self.name,
            self._bind,
            self._key_file,
            self._secret,
            worker.on_message,
            worker.on_link_lost,
        )
        worker.attach(self._wire, self._leave())
        self.set_cluster(
            self._cluster.with_address(self.job_name, self.task_index, self._wire.address)
        )
        if self._metrics_at is not None:
            try:
                self._metrics = _serve_metrics(worker, *self._metrics_at)
            except WeftError as error:
                self.stop()
                raise error.at(caller_location()) from None

    def _leave(self) -> AllowFiles:
        """The files that graphs of sessions in other processes may use: what was said; else all if
        only holders of the secret, or processes of this user, can be at the other end."""
        if self._allow_files is not None:
            return self._allow_files
        return knows_peers(self._bind, self._key_file, self._secret)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until `stop` is called, for ever if nobody does. Whether it was. Meanwhile the task
        says that it only serves, so that steps may put ops there that nothing binds."""
        self.worker.serves = True
        try:
            return self._ended.wait(timeout)
        finally:
            self.worker.serves = False

    def stop(self) -> None:
        """End all steps and connections; what the task holds is gone."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._metrics is not None:
            self._metrics.close()
        self.worker.close()
        if self._wire is not None:
            self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<wf.train.Server {self.name} at {self.target}>"


def _serve_metrics(worker: Worker, port: int, host: str) -> MetricsServer:
    # a task that nobody scrapes does not wait for HTTP
    from weft.runtime.cluster.metrics import MetricsServer, metrics_text

    return MetricsServer(lambda: metrics_text(worker.name, worker.stats()), port, host)
