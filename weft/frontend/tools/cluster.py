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
from dataclasses import field
from pathlib import Path
from types import FrameType
from typing import Any

from weft.comm.addresses import Secret, default_key_file
from weft.frontend.session.remote import Remote
from weft.frontend.tools.run import add_allow_files
from weft.ir.dataclass import dataclass
from weft.ir.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from weft.runtime.cluster.master import Stats, ask_stats
from weft.runtime.cluster.resolvers import from_environment
from weft.runtime.cluster.server import Server
from weft.runtime.cluster.spec import Cluster, ClusterSpec, parse_address


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
    with Server(cluster, job, task, key_file=args.key_file, allow_files=args.allow_files) as server:

        def stop(signum: int, frame: FrameType | None) -> None:
            raise SystemExit(0)  # out of `join`, and the server stops

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        say(f"{server.name} listens at {server.target}")
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
    in the interval, None if there were none. waits: rows of what it waits for, [tensor, iterations,
    from whom, seconds, place], longest first. gpus: rows [name, what it is, bytes in use, what they
    are for]."""

    task: str
    problem: str = ""
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    per_second: float = 0.0
    step_seconds: float | None = None
    waiting: int = 0
    waits: tuple[Sequence[Any], ...] = ()
    queues: tuple[tuple[str, int, int], ...] = ()
    variable_bytes: int = 0
    memory: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    gpus: tuple[Sequence[Any], ...] = ()
    ops: tuple[OpRow, ...] = field(default=(), repr=False)
    edges: tuple[EdgeRow, ...] = field(default=(), repr=False)


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
    return TaskRow(
        task, "", steps["done"], steps["failed"],
        steps["begun"] - steps["done"] - steps["failed"], ended / seconds,
        spent / ended if ended else None, now["waiting"],
        tuple(now["waits"]), tuple((n, s, c) for n, s, c in now["queues"]),
        now["variables"][1], now["memory"], now["rejected"], tuple(now["gpus"]),
        tuple(_op_rows(task, now)), tuple(edges),
    )  # fmt: skip


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
    for title in ("task", "steps", "failed", "runs", "steps/s", "ms/step", "waits", "vars",
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
        return [short(row.task), "lost", *[""] * 8]
    mean = "" if row.step_seconds is None else f"{row.step_seconds * 1e3:.2f}"
    rate = f"{row.per_second:.{0 if row.per_second >= 1000 else 1}f}"
    sent = sum(e.bytes_per_second for e in row.edges)
    return [
        short(row.task), str(row.done), str(row.failed), str(row.in_flight), rate, mean,
        str(row.waiting), size_text(row.variable_bytes), size_text(row.memory), size_text(sent),
    ]  # fmt: skip


def _lines(rows: Sequence[TaskRow], most: int) -> list[str]:
    lines = [f"{row.task} is lost: {row.problem}" for row in rows if row.problem]
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
    parser.add_argument("target", help="the address of one of the tasks: host:port")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="between two looks (1 s)"
    )
    parser.add_argument(
        "--count", type=int, default=0, metavar="N", help="end after N looks (0: go on until ^C)"
    )
    parser.add_argument(
        "--json", action="store_true", help="a line of JSON for each look in place of tables"
    )
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


def run_top(args: Namespace, say: Callable[[str], None]) -> None:
    """Look at the cluster again and again. Errors as a session has that cannot reach it."""
    cluster = Cluster(
        parse_address(args.target), key_file=args.key_file, connect_timeout=CONNECT_SECONDS
    )
    remote = Remote(cluster, whole=False)
    try:
        looks = _looks(remote, args.interval, args.count)
        if args.json:
            for now, _ in looks:
                say(json.dumps(now))
        else:
            _show(looks, args.target, args.lines)
    except KeyboardInterrupt:
        pass  # how it ends
    finally:
        remote.close()


def _looks(remote: Remote, interval: float, count: int) -> Iterator[tuple[Look, Look]]:
    """What the tasks say, and what they said before."""
    before: Look = {}
    number = 0
    while True:
        began = time.monotonic()
        now = ask_stats(remote.master, ops_for=3 * interval + 1)
        yield now, before
        before = now
        number += 1
        if number == count:
            return
        time.sleep(max(0.0, began + interval - time.monotonic()))


def _show(looks: Iterator[tuple[Look, Look]], target: str, lines: int) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:  # into a file or a pipe: one after the other
        for now, before in looks:
            console.print(tables(rows_of(now, before), target, lines))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for now, before in looks:
            live.update(tables(rows_of(now, before), target, lines), refresh=True)
