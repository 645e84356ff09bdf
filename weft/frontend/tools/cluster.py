"""Commands for clusters: `weft worker`, a task as a process of its own; `weft keygen`, the secret
that the tasks share; `weft top`, what the tasks are doing, live, as tables of rates from two looks
at it."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, field
from pathlib import Path
from statistics import median_high
from types import FrameType
from typing import Any

from weft.comm.addresses import Secret, default_key_file
from weft.frontend.session.remote import Remote
from weft.frontend.tools.run import add_allow_files
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from weft.runtime.cluster.master import Stats, ask_stats
from weft.runtime.cluster.messages import SESSIONS
from weft.runtime.cluster.resolvers import from_environment
from weft.runtime.cluster.server import Server
from weft.runtime.cluster.spec import Cluster, ClusterSpec, parse_address
from weft.runtime.trace.analysis import STRAGGLER


def add_keygen_arguments(parser: ArgumentParser) -> None:
    """The options of `weft keygen`."""
    parser.add_argument(
        "file", nargs="?", help=f"where to write it (default: {default_key_file()})"
    )


def make_key(args: Namespace) -> Path:
    """Write a new key file of mode 0600 and return its path. AlreadyExistsError if it is there,
    InvalidArgumentError if it cannot be written."""
    path = default_key_file() if args.file is None else Path(args.file)
    try:
        if args.file is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Secret.generate().to_file(path)
    except FileExistsError:
        raise AlreadyExistsError(
            f"there is a file {path}",
            hint="tasks that have its key could not talk to those with a new one: remove it first",
        ) from None
    except OSError as error:
        raise InvalidArgumentError(f"the key file {path} cannot be written: {error}") from None
    return path


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help='JSON: {"ps": ["host:2222"], "worker": ["host:2223"]}; default: what the environment '
        "says (WEFT_CONFIG, TF_CONFIG, SLURM, Kubernetes, ranks)",
    )
    parser.add_argument("--job", help="the job that this task belongs to")
    parser.add_argument("--task", type=int, metavar="N", help="its number in the job")
    parser.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module first, from here or as Python finds it: one that registers ops, "
        "kernels and functions which graphs use; may be given again",
    )
    parser.add_argument(
        "--key-file", metavar="FILE", help="the cluster's secret, made by `weft keygen`"
    )
    add_allow_files(parser)
    parser.add_argument(
        "--metrics-port", type=int, metavar="N",
        help="serve http://HOST:N/metrics for Prometheus (0: any free port)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics-host", metavar="HOST", default="127.0.0.1",
        help="the address for that (default: 127.0.0.1, which only this machine reaches)",
    )  # fmt: skip


def run_worker(args: Namespace, say: Callable[[str], None]) -> None:
    """Run the task until SIGTERM or SIGINT. `say` gets a line when it listens. Errors as Server
    has, and those of importing."""
    import_modules(args.modules, "weft worker")
    if args.cluster is None:
        if args.job is not None or args.task is not None:
            raise InvalidArgumentError(
                "weft worker: --job and --task need --cluster FILE",
                hint="without it the environment says which task this is",
            )
        here = from_environment()
        cluster, job, task = here.cluster, here.job, here.task
    elif args.job is None or args.task is None:
        raise InvalidArgumentError(
            "weft worker: --cluster says which tasks there are, --job and --task which of them "
            "this is: all three are needed",
            hint=f"weft worker --cluster {args.cluster} --job worker --task 0",
        )
    else:
        cluster, job, task = ClusterSpec.load(args.cluster), args.job, args.task
    with Server(
        cluster, job, task, key_file=args.key_file, allow_files=args.allow_files,
        metrics_port=args.metrics_port, metrics_host=args.metrics_host,
    ) as server:  # fmt: skip

        def stop(signum: int, frame: FrameType | None) -> None:
            raise SystemExit(0)  # out of `join`, and the server stops

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        say(f"{server.name} listens at {server.target}")
        if server.metrics_url is not None:
            say(f"metrics of {server.name} are at {server.metrics_url}")
        server.join()


def import_modules(modules: Sequence[str], command: str) -> None:
    """Import the user's modules for a command. NotFoundError for one that is not there."""
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise  # one that the module itself imports
            raise NotFoundError(
                f"{command}: there is no module '{name}'",
                hint=f"it is looked for in {os.getcwd()} and on PYTHONPATH",
            ) from error


#: A task is called a straggler only if it is longer at work than its peers by so much in a part.
STRAGGLER_SECONDS = 1e-4
#: Task -> what it counts, or why it does not say.
Look = Mapping[str, Stats | str]


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """An edge between tasks: rates of the last interval, totals since the sender was started."""

    source: str
    target: str
    tensor: str
    messages: int
    nbytes: int
    per_second: float = 0.0
    bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkRow:
    """What goes from one task to another, or between a task and all sessions: messages of all kinds
    and bytes, of which `shared` lay in shared memory; rates of the last interval. p50, p99: of the
    last round trips that the sender has timed, in seconds; None: none yet."""

    source: str
    target: str
    messages: int
    nbytes: int
    shared: int
    per_second: float = 0.0
    bytes_per_second: float = 0.0
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Straggler:
    """A task that is at work longer in a part of a step than its peers. part: the name of the
    step's graph; seconds: in one part, and the median of the peers."""

    task: str
    part: str
    seconds: float
    peers: float

    def __str__(self) -> str:
        times = self.seconds / self.peers if self.peers else math.inf
        return (
            f"straggler: {self.task} is at work for {self.seconds * 1e3:.2f} ms in a part of "
            f"{self.part!r}, {times:.1f} times as long as its peers ({self.peers * 1e3:.2f} ms)"
        )


@dataclass(frozen=True, slots=True)
class OpRow:
    """The ops of one kernel or node of a task, by the parts that were timed: how often they ran and
    how long in a part, and their share of the time of all ops of the task."""

    task: str
    ops: str
    place: str
    runs: float
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task. problem: why nothing is known of it. step_seconds: the mean of the parts that ended
    in the interval, None if there were none; busy: of the interval the share in which it was at
    work on them, more than 1 if on several at once; at_work: by the name of a step's graph the
    seconds of that in one part. waits: rows of what it waits for, [tensor, iterations,
    from whom, seconds, place], longest first. gpus: rows [name, what it is, bytes in use, what they
    are for]."""

    task: str
    problem: str = ""
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    per_second: float = 0.0
    step_seconds: float | None = None
    busy: float = 0.0
    at_work: Mapping[str, float] = field(default_factory=dict)
    waiting: int = 0
    waits: tuple[Sequence[Any], ...] = ()
    queues: tuple[tuple[str, int, int], ...] = ()
    variable_bytes: int = 0
    memory: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    gpus: tuple[Sequence[Any], ...] = ()
    ops: tuple[OpRow, ...] = field(default=(), repr=False)
    edges: tuple[EdgeRow, ...] = field(default=(), repr=False)
    links: tuple[LinkRow, ...] = field(default=(), repr=False)


def rows_of(now: Look, before: Look) -> list[TaskRow]:
    """A row for each task. Rates are of the time between two looks; of a task that was started
    since, or at the first look, of all the time that it counts."""
    made = []
    for task, stats in now.items():
        old = before.get(task)
        if isinstance(stats, str):
            made.append(TaskRow(task, stats or "it has not answered yet"))
        else:
            same = isinstance(old, Mapping) and old["pid"] == stats["pid"]
            same = same and old["seconds"] < stats["seconds"]  # type: ignore[index]
            made.append(_row(task, stats, old if same and isinstance(old, Mapping) else None))
    return made


def _row(task: str, now: Stats, old: Stats | None) -> TaskRow:
    seconds = max(now["seconds"] - (old["seconds"] if old else 0.0), 1e-9)
    steps, past = now["steps"], old["steps"] if old else {"done": 0, "failed": 0}
    ended = steps["done"] + steps["failed"] - past["done"] - past["failed"]
    spent = now["step_seconds"] - (old["step_seconds"] if old else 0.0)
    known = {(t, name): (n, size) for t, name, n, size in old["edges"]} if old else {}
    edges = []
    for target, tensor, count, size in now["edges"]:
        past_count, past_size = known.get((target, tensor), (0, 0))
        edges.append(
            EdgeRow(task, target, tensor, count, size, (count - past_count) / seconds,
                    (size - past_size) / seconds)
        )  # fmt: skip
    waited = now["wait_seconds"] - (old["wait_seconds"] if old else 0.0)
    return TaskRow(
        task, "", steps["done"], steps["failed"],
        steps["begun"] - steps["done"] - steps["failed"], ended / seconds,
        spent / ended if ended else None, (spent - waited) / seconds, _at_work(now, old),
        now["waiting"],
        tuple(now["waits"]), tuple((n, s, c) for n, s, c in now["queues"]),
        now["variables"][1], now["memory"], now["rejected"], tuple(now["gpus"]),
        tuple(_op_rows(task, now)), tuple(edges), tuple(_link_rows(task, now, old, seconds)),
    )  # fmt: skip


def _at_work(now: Stats, old: Stats | None) -> dict[str, float]:
    """By the name of a graph: in one of its parts that ended in the interval, without waits."""
    known = {row[0]: row[1:] for row in old["parts"]} if old else {}
    found = {}
    for name, *counts in now["parts"]:
        past = known.get(name, (0, 0.0, 0.0))
        runs, seconds, waited = (a - b for a, b in zip(counts, past, strict=True))
        if runs > 0:
            found[name] = max(0.0, (seconds - waited) / runs)
    return found


def _link_rows(task: str, now: Stats, old: Stats | None, seconds: float) -> Iterator[LinkRow]:
    """What the task sends, to members of meshes, too, and what sessions, which count nothing, send
    to it."""
    known = {**old["links"], **old["exchanges"]} if old else {}
    for peer, counts in (*now["links"].items(), *now["exchanges"].items()):
        past = known.get(peer) or dict.fromkeys(counts, 0)
        ways = [("sent", task, peer)] + ([("came", peer, task)] if peer == SESSIONS else [])
        for way, source, target in ways:
            count, size = counts[way], counts[f"{way}_bytes"]
            yield LinkRow(
                source, target, count, size, counts[f"{way}_shared"],
                (count - past[way]) / seconds, (size - past[f"{way}_bytes"]) / seconds,
                counts["trip_p50"], counts["trip_p99"],
            )  # fmt: skip


def stragglers(rows: Sequence[TaskRow]) -> list[Straggler]:
    """The tasks that are at work in a part of a step more than `STRAGGLER` times as long as the
    median of the other tasks of their job (the higher one of two), and longer by
    `STRAGGLER_SECONDS`; the slowest first. What a part waits for messages is not counted: a step is
    as slow for all tasks as for the slowest."""
    found = []
    for row in rows:
        job = row.task.rsplit("/task:", 1)[0]
        peers = [r for r in rows if r is not row and r.task.rsplit("/task:", 1)[0] == job]
        for part, seconds in row.at_work.items():
            others = [r.at_work[part] for r in peers if part in r.at_work]
            if not others:
                continue
            usual = median_high(others)
            if seconds > STRAGGLER * usual and seconds > usual + STRAGGLER_SECONDS:
                found.append(Straggler(row.task, part, seconds, usual))
    return sorted(found, key=lambda s: -s.seconds)


def _op_rows(task: str, now: Stats) -> Iterator[OpRow]:
    """Of all parts that were timed: those of one interval are few."""
    parts, whole = max(now["timed"], 1), now["op_seconds"] or 1.0
    for ops, place, runs, seconds in now["ops"]:
        yield OpRow(task, ops, place, runs / parts, seconds / parts, seconds / whole)


def ops_of(rows: Sequence[TaskRow], most: int) -> list[OpRow]:
    """The ops of all tasks that take longest in a part."""
    return sorted((op for row in rows for op in row.ops), key=lambda o: -o.seconds)[:most]


def edges_of(rows: Sequence[TaskRow], most: int) -> list[EdgeRow]:
    """The busiest edges of all tasks."""
    found = [edge for row in rows for edge in row.edges]
    return sorted(found, key=lambda e: (-e.bytes_per_second, -e.nbytes))[:most]


def links_of(rows: Sequence[TaskRow], most: int) -> list[LinkRow]:
    """The busiest links of all tasks."""
    found = [link for row in rows for link in row.links]
    return sorted(found, key=lambda x: (-x.bytes_per_second, -x.nbytes))[:most]


# ----------------------------------------------------------------------------------------- tables
def _table(title: str, texts: str, numbers: str) -> Any:
    """An empty table: columns of texts, then of numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for name in (*texts.split(), *numbers.split()):
        table.add_column(name, justify="left" if name in texts.split() else "right")
    return table


def tables(rows: Sequence[TaskRow], target: str, most: int = 12) -> Any:
    """For `rich`: tasks, edges, queues and the longest waits."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    made: list[Any] = [Text(f"cluster of {target}: {len(rows)} tasks")]
    tasks = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # fits into 80 columns
    for title in ("task", "steps", "fail", "runs", "steps/s", "ms", "busy", "waits", "vars",
                  "memory", "sends/s"):  # fmt: skip
        tasks.add_column(title, justify="left" if title == "task" else "right", no_wrap=True)
    for row in rows:
        tasks.add_row(*_cells(row))
    made.append(tasks)
    edges = edges_of(rows, most)
    if edges:
        table = _table("edges", "from to tensor", "messages/s bytes/s bytes")
        for e in edges:
            table.add_row(short(e.source), short(e.target), e.tensor, f"{e.per_second:,.1f}",
                          size_text(e.bytes_per_second), size_text(e.nbytes))  # fmt: skip
        made.append(table)
    links = links_of(rows, most)
    if links:
        title = "links; round trips of small messages: half of them, and 99 %, take at most"
        table = _table(title, "from to", "messages/s bytes/s bytes shared p50 p99")
        for x in links:
            table.add_row(short(x.source), short(x.target), f"{x.per_second:,.1f}",
                          size_text(x.bytes_per_second), size_text(x.nbytes), size_text(x.shared),
                          _trip(x.p50), _trip(x.p99))  # fmt: skip
        made.append(table)
    ops = ops_of(rows, most)
    if ops:
        table = _table("ops", "task ops line", "runs/step ms/step share")
        for o in ops:
            table.add_row(short(o.task), o.ops, o.place, f"{o.runs:.3g}", f"{o.seconds * 1e3:.3g}",
                          f"{o.share:.0%}")  # fmt: skip
        made.append(table)
    made += [Text(line) for line in _lines(rows, most)]
    return Group(*made)


def short(task: str) -> str:
    """`ps:0` for "/job:ps/task:0"."""
    return task.removeprefix("/job:").replace("/task:", ":")


def _cells(row: TaskRow) -> list[str]:
    if row.problem:
        return [short(row.task), "lost", *[""] * 9]
    mean = "" if row.step_seconds is None else f"{row.step_seconds * 1e3:.2f}"
    rate = f"{row.per_second:.{0 if row.per_second >= 1000 else 1}f}"
    sent = sum(e.bytes_per_second for e in row.edges)
    return [
        short(row.task), str(row.done), str(row.failed), str(row.in_flight), rate, mean,
        f"{row.busy:.0%}", str(row.waiting), size_text(row.variable_bytes), size_text(row.memory),
        size_text(sent),
    ]  # fmt: skip


def _lines(rows: Sequence[TaskRow], most: int) -> list[str]:
    lines = [str(straggler) for straggler in stragglers(rows)[:most]]
    lines += [f"{row.task} is lost: {row.problem}" for row in rows if row.problem]
    for row in rows:
        for name, description, used, what in row.gpus:
            gpu = name.rpartition("/")[2]
            lines.append(f"{gpu} of {row.task}, {description}: {size_text(used)}, {what}")
        for name, size, capacity in row.queues[:most]:
            bound = "" if capacity < 0 else f" of {capacity:,}"
            lines.append(f"queue {name!r} on {row.task}: {size:,}{bound} elements")
        if row.rejected:
            why = ", ".join(f"{reason}: {count:,}" for reason, count in row.rejected.items())
            lines.append(f"{row.task} refused {sum(row.rejected.values()):,} frames ({why})")
    waits = [(wait[3], row.task, wait) for row in rows for wait in row.waits]
    for seconds, task, wait in sorted(waits, key=lambda w: -w[0])[:most]:
        where = f" ({wait[4]})" if wait[4] else ""
        inside = f" in iteration {list(wait[1])}" if wait[1] else ""
        lines.append(
            f"{task} has waited {seconds:.1f} s for {wait[0]}{inside} from {wait[2]}{where}"
        )
    return lines


def _trip(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f} ms"


def size_text(count: float) -> str:
    """`1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


#: How long the tasks may take to answer at first; those that do not are shown as lost.
CONNECT_SECONDS = 5.0


def add_top_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "targets", nargs="+", metavar="ADDRESS",
        help="the address of one of the tasks of a cluster: host:port; of several clusters, or of "
        "several that have one task, each",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="between two looks (1 s)"
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--count", type=int, default=0, metavar="N", help="end after N looks (0: go on until ^C)"
    )
    ends.add_argument(
        "--once", action="store_true", help="look twice, say what was in between, and end"
    )
    parser.add_argument(
        "--json", action="store_true",
        help="for each look and cluster a line of JSON in place of tables",
    )  # fmt: skip
    parser.add_argument("--lines", type=int, default=12, metavar="N", help="rows of each table")
    parser.add_argument(
        "--key-file", metavar="FILE", help="the cluster's secret, made by `weft keygen`"
    )


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found <= 86400:
        raise ArgumentTypeError(f"{text!r} is no time between looks")
    return found


class _Cluster:
    """A cluster that is looked at."""

    def __init__(self, target: str, key_file: str | None) -> None:
        self.target = parse_address(target)
        self.problem = ""  # why it cannot be reached
        self.now: Look = {}
        self.before: Look = {}
        self._key_file = key_file
        self._remote: Remote | None = None

    def connect(self) -> None:
        """Make the connection, if there is none yet."""
        if self._remote is not None:
            return
        cluster = Cluster(self.target, key_file=self._key_file, connect_timeout=CONNECT_SECONDS)
        try:
            self._remote = Remote(cluster, whole=False)
            self.problem = ""
        except UnavailableError as error:
            self.problem = error.what

    def look(self, ops_for: float) -> None:
        """Ask all its tasks."""
        self.before, self.now = self.now, {}
        if self._remote is not None:
            self.now = ask_stats(self._remote.master, ops_for=ops_for)

    @property
    def addresses(self) -> set[str]:
        """Of its tasks, as far as they are known."""
        return set() if self._remote is None else {t.address for t in self._remote.master.tasks()}

    def told(self) -> dict[str, Any]:
        """Plain data: the last look."""
        found = stragglers(rows_of(self.now, self.before))
        made = {"cluster": self.target, "tasks": self.now, "stragglers": [asdict(s) for s in found]}
        return made | ({"problem": self.problem} if self.problem else {})

    def shown(self, lines: int) -> Any:
        """For `rich`."""
        from rich.text import Text

        if self.problem:
            return Text(f"cluster of {self.target} cannot be reached: {self.problem}")
        return tables(rows_of(self.now, self.before), self.target, lines)

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()


def run_top(args: Namespace, say: Callable[[str], None]) -> None:
    """Look at the clusters again and again. UnavailableError if none can be reached."""
    clusters = [_Cluster(target, args.key_file) for target in args.targets]
    try:
        looks = _looks(clusters, args)
        if args.json:
            for there in looks:
                for one in there:
                    say(json.dumps(one.told()))
        else:
            _show(looks, args.lines, live=not args.once)
    except KeyboardInterrupt:
        pass  # how it ends
    finally:
        for one in clusters:
            one.close()


def _looks(clusters: Sequence[_Cluster], args: Namespace) -> Iterator[list[_Cluster]]:
    """The clusters after each look, each once: two of the addresses may be of one."""
    number, count = 0, 2 if args.once else args.count
    with ThreadPoolExecutor(len(clusters)) as threads:
        while True:
            list(threads.map(_Cluster.connect, clusters))
            began = time.monotonic()
            list(threads.map(lambda one: one.look(3 * args.interval + 1), clusters))
            there: list[_Cluster] = []
            for one in clusters:
                if not any(one.target in other.addresses for other in there):
                    there.append(one)
            if not number and all(one.problem for one in there):
                raise UnavailableError("; ".join(one.problem for one in there))
            number += 1
            if number == count or not args.once:
                yield there
            if number == count:
                return
            time.sleep(max(0.0, began + args.interval - time.monotonic()))


def _show(looks: Iterator[list[_Cluster]], lines: int, live: bool) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    console = Console()
    if not (live and console.is_terminal):  # into a file or a pipe: one after the other
        for there in looks:
            console.print(*(one.shown(lines) for one in there), sep="\n\n")
        return
    with Live(console=console, auto_refresh=False, screen=True) as view:
        for there in looks:
            view.update(Group(*(one.shown(lines) for one in there)), refresh=True)
