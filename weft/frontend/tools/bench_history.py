"""A history of benchmarks: a folder of the files that `weft bench --json` writes, one for each run,
with the commit, the time and the machine of the run and every sample.

Runs of one commit on one machine are a `Side` of a comparison. `History.find` takes the names
that people give: a file, a commit or the beginning of one, a machine, or what git calls a commit.

A file needs `workloads` (of the CPU) or `steps` (of a GPU), and of each a name and its times. Files
of the first version have neither commits nor samples: they are shown, and nothing is told of
them."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, suggest
from weft.runtime.trace.replay import Timing

#: Of the files; grows with every change that a reader must know of. 2: `run`, `samples`, and
#: `threads` of the machine.
SCHEMA = 2
#: Where runs are kept if nobody says.
DEFAULT_FOLDER = ".weft-bench"
_COMMIT = re.compile(r"[0-9a-f]{4,40}\+?")
#: Characters of a commit that people see.
SHORT = 8


# ------------------------------------------------------------------------------------ this run


def run_facts() -> dict[str, Any]:
    """When and of what a run is: the time (UTC), and the commit of the folder that it is started
    in; `dirty`: files that git knows were changed since. None where there is no git or commit."""
    commit = _git("rev-parse", "HEAD")
    changed = None if commit is None else _git("status", "--porcelain", "--untracked-files=no")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": None if changed is None else bool(changed),
    }


def _git(*words: str) -> str | None:
    """What git says in this folder; None if it fails."""
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, timeout=20, env=quiet, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


# ---------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Machine:
    """Where a run was. name: what the user calls it. device: a GPU. threads: of weft at most."""

    name: str
    cpu: str
    cores: int | None
    device: str
    isa: str
    threads: int | None

    @property
    def host(self) -> tuple[object, ...]:
        """What times of two runs must share to be compared as they are."""
        return (self.name, self.cpu, self.cores, self.device)

    @property
    def title(self) -> str:
        """Its name, or what it is."""
        what = self.name or self.device or self.cpu or "unknown machine"
        return re.sub(r"^gpu:\d+: |\((R|TM|r|tm)\)", "", what)

    def __str__(self) -> str:
        threads = "" if self.threads is None else f", {self.threads} threads"
        isa = f", {self.isa}" if self.isa else ""
        return f"{self.title}{threads.removesuffix('s') if self.threads == 1 else threads}{isa}"


@dataclass(frozen=True)
class Row:
    """A workload in a run. step: calls without the Python around them. calls: whole calls of weft
    and its peers, the n-th sample of each from the same round."""

    name: str
    step: Timing | None
    calls: Mapping[str, Timing]

    @property
    def timing(self) -> Timing | None:
        """Whole calls if they were timed, else the step."""
        return self.calls.get("weft", self.step)

    def relative(self, peer: str) -> list[float]:
        """In each round the time of weft by that of the peer; empty if there are no samples."""
        mine, other = self.calls.get("weft"), self.calls.get(peer)
        if mine is None or other is None or len(mine.samples) != len(other.samples):
            return []
        return [a / b for a, b in zip(mine.samples, other.samples, strict=True)]


@dataclass(frozen=True)
class Run:
    """A file of the history."""

    path: str
    date: datetime
    commit: str
    dirty: bool
    machine: Machine
    versions: Mapping[str, str]
    rows: Mapping[str, Row]


@dataclass(frozen=True)
class Side:
    """Runs of one commit on one machine, the oldest first. What is not of a commit stands alone."""

    runs: tuple[Run, ...]

    @property
    def last(self) -> Run:
        """The newest."""
        return self.runs[-1]

    @property
    def machine(self) -> Machine:
        """That of all of them."""
        return self.last.machine

    @property
    def label(self) -> str:
        """The commit, with + for a changed tree; or else the time."""
        run = self.last
        if not run.commit:
            return run.date.strftime("%Y-%m-%d %H:%M")
        return run.commit[:SHORT] + "+" * run.dirty

    @property
    def workloads(self) -> list[str]:
        """The names of those in any of the runs."""
        return list(dict.fromkeys(name for run in self.runs for name in run.rows))

    def rows(self, workload: str) -> list[Row]:
        """Of the runs that have it."""
        return [run.rows[workload] for run in self.runs if workload in run.rows]

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of the runs, however they were named."""
        return tuple(Path(run.path).resolve() for run in self.runs)


def sides_of(runs: Iterable[Run]) -> list[Side]:
    """The runs by commit and machine, in the order of their first ones."""
    found: dict[object, list[Run]] = {}
    for run in sorted(runs, key=lambda r: r.date):
        key = (run.commit, run.dirty, run.machine) if run.commit else (run.path,)
        found.setdefault(key, []).append(run)
    return [Side(tuple(group)) for group in found.values()]


# ----------------------------------------------------------------------------------------- files


def read_run(path: str | Path) -> Run:
    """A run from its file. NotFoundError if there is none, InvalidArgumentError for what is not
    one."""
    path = Path(path)
    held = _read(path)
    if not is_run(held):
        raise InvalidArgumentError(
            f"{path} is not a run of `weft bench`: it has no list of workloads",
            hint="give a file that `weft bench --json FILE` or `--history DIR` wrote",
        )
    return _checked(path, held)


def _read(path: Path) -> Any:
    """The JSON of a file. NotFoundError if there is none, InvalidArgumentError for what is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} cannot be read as text: {error}") from None
    except (ValueError, RecursionError) as error:
        told = str(error)
        if isinstance(error, json.JSONDecodeError):
            told = f"{error.msg} in line {error.lineno}"
        raise InvalidArgumentError(
            f"{path} is not JSON: {told}",
            hint="remove it from the history; `weft bench --json FILE` writes such files",
        ) from None


def is_run(held: object) -> bool:
    """Whether this is what `weft bench --json` writes."""
    if not isinstance(held, dict):
        return False
    return isinstance(held.get("workloads"), list) or isinstance(held.get("steps"), list)


def _checked(path: Path, held: Mapping[str, Any]) -> Run:
    """A run of JSON that `is_run`. InvalidArgumentError for another schema and damaged ones."""
    schema = held.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        newer = type(schema) is int and schema > SCHEMA
        raise InvalidArgumentError(
            f"{path} has the schema {schema!r}, this weft reads 1 to {SCHEMA}",
            hint="a newer weft wrote it: read it with that one" if newer else "remove it",
        )
    try:
        return _run(path, held)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        told = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidArgumentError(
            f"{path} is a damaged run of `weft bench`: {told}", hint="remove it, and measure again"
        ) from None


def _run(path: Path, held: Mapping[str, Any]) -> Run:
    facts, machine = held.get("run") or {}, held["machine"]
    steps = held["workloads"] if isinstance(held.get("workloads"), list) else held["steps"]
    if "date" in facts:
        date = datetime.fromisoformat(facts["date"])
        date = date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    else:
        date = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    rows = [_row(step) for step in steps]
    place = Machine(
        _text(machine.get("name")), _text(machine.get("cpu")), _count(machine.get("cores")),
        _text(steps[0].get("device")) if steps else "", _text(machine.get("isa")),
        _count(machine.get("threads") or (held.get("peaks") or {}).get("threads")),
    )  # fmt: skip
    versions = {"python": machine.get("python"), **machine.get("versions", {})}
    return Run(
        str(path), date, _text(facts.get("commit")), bool(facts.get("dirty")), place,
        {_text(k): _text(v) for k, v in versions.items()}, {row.name: row for row in rows},
    )  # fmt: skip


def _text(held: object) -> str:
    """A text that can be written; "" for None. TypeError, ValueError."""
    if held is None:
        return ""
    if not isinstance(held, str):
        raise TypeError(f"{held!r:.40} is no text")
    held.encode()  # halves of a character cannot be written
    return held


def _count(held: object) -> int | None:
    """A number of things. TypeError."""
    if held is not None and type(held) is not int:
        raise TypeError(f"{held!r:.40} is no count")
    return held


def _row(step: Mapping[str, Any]) -> Row:
    against: Mapping[str, Any] = step.get("against") or {}
    return Row(
        _text(step["name"]),
        None if step.get("step") is None else _timing(step["step"]),
        {_text(name): _timing(timing) for name, timing in against.items()},
    )


def _timing(held: Mapping[str, Any]) -> Timing:
    samples = tuple(_seconds(s) for s in held.get("samples", ()))
    return Timing(_seconds(held["minimum"]), _seconds(held["median"]), samples)


def _seconds(held: object) -> float:
    """TypeError, ValueError and OverflowError for what is no time."""
    if not isinstance(held, int | float):
        raise TypeError(f"{held!r:.40} is no time")
    found = float(held)
    if not (found > 0 and math.isfinite(found)):
        raise ValueError(f"{found!r} seconds is no time")
    return found


def check_folder(folder: str | Path) -> None:
    """InvalidArgumentError or NotFoundError if runs cannot be added to `folder`. It need not be
    there, what it is in must."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidArgumentError(f"--history {folder} is a file", hint="give a folder")
    if not folder.absolute().parent.is_dir():
        raise NotFoundError(f"there is no folder {folder.parent} for {folder}")


def add_run(folder: str | Path, text: str) -> Path:
    """Keep a run in `folder`, in a file of its own, which this gives. Errors as `check_folder`."""
    folder = Path(folder)
    check_folder(folder)
    facts = json.loads(text)["run"]
    commit = facts["commit"][:SHORT] if facts["commit"] else "no-commit"
    commit += "-changed" if facts["dirty"] else ""
    stem = f"{re.sub('[^0-9T]', '', facts['date'].partition('+')[0])}-{commit}"
    try:
        folder.mkdir(exist_ok=True)
        for number in range(1, 1000):
            path = folder / f"{stem}{'' if number == 1 else f'-{number}'}.json"
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise InvalidArgumentError(f"cannot write into {folder}: {error.strerror}") from None
    raise InvalidArgumentError(f"{folder} has a thousand runs of one second")


# --------------------------------------------------------------------------------------- history


@dataclass(frozen=True)
class History:
    """Runs of a folder, or of a file alone. others: the folder's JSON files that are no runs."""

    place: str
    runs: tuple[Run, ...]
    others: tuple[str, ...] = ()

    @staticmethod
    def read(place: str | Path) -> History:
        """All of a folder; JSON of other things is left out. NotFoundError if there are none, else
        errors as `read_run`."""
        place = Path(place)
        if place.is_file():
            return History(str(place), (read_run(place),))
        files = sorted(place.glob("*.json")) if place.is_dir() else []
        found = [(file, _read(file)) for file in files]
        others = tuple(str(file) for file, held in found if not is_run(held))
        runs = [_checked(file, held) for file, held in found if is_run(held)]
        if not runs:
            what = "has no runs" if place.is_dir() else "is not there"
            raise NotFoundError(
                f"the history {place} {what}",
                hint=f"`weft bench --history {place}` measures and adds a run to it",
            )
        return History(str(place), tuple(sorted(runs, key=lambda r: r.date)), others)

    @property
    def note(self) -> str:
        """What is left out, in a line; "" if nothing is."""
        if not self.others:
            return ""
        names = ", ".join(Path(name).name for name in self.others[:3])
        more = f" and {len(self.others) - 3} more" if len(self.others) > 3 else ""
        return f"left out, as no runs of `weft bench`: {names}{more}"

    @property
    def sides(self) -> list[Side]:
        """Runs of one commit on one machine together, the oldest first."""
        return sides_of(self.runs)

    def on(self, machine: str) -> History:
        """The runs on a machine. NotFoundError if there are none."""
        found = [run for run in self.runs if _is_called(run.machine, machine)]
        if not found:
            raise NotFoundError(
                f"the history {self.place} has no machine '{machine}'", hint=self._has()
            )
        return replace(self, runs=tuple(found))

    def find(self, name: str) -> tuple[list[Side], bool]:
        """What `name` is called by people, on all machines that have it; and whether it is a
        machine. A commit with + at its end is of a changed tree, without it that only if there is
        no other.

        NotFoundError for what is not there, InvalidArgumentError for the beginning of several
        commits."""
        if names_file(name):
            return [Side((read_run(name),))], False
        if _COMMIT.fullmatch(name):
            found = self._of_commit(name)
            if found:
                return found, False
        commit = None
        if not name.startswith("-"):
            commit = _git("rev-parse", "--verify", "--quiet", name.removesuffix("+") + "^{commit}")
        found = [] if commit is None else self._of_commit(commit + "+" * name.endswith("+"))
        if found:
            return found, False
        on = [run for run in self.runs if _is_called(run.machine, name)]
        if on:
            return sides_of(on), True
        told = "" if commit is None else f", which is {commit[:SHORT]}"
        known = [side.label for side in self.sides]
        raise NotFoundError(
            f"the history {self.place} has no run of '{name}'{told}{suggest(name, known)}",
            hint=f"{self._has()}; or give a file",
        )

    def _of_commit(self, name: str) -> list[Side]:
        begin = name.removesuffix("+")
        found = [run for run in self.runs if run.commit.startswith(begin) and run.commit]
        commits = list(dict.fromkeys(run.commit for run in found))
        if len(commits) > 1:
            raise InvalidArgumentError(
                f"'{name}' is the beginning of {len(commits)} commits: "
                + ", ".join(c[:12] for c in commits),
                hint="give more of it",
            )
        dirty = [run for run in found if run.dirty]
        clean = [run for run in found if not run.dirty]
        return sides_of(dirty if name.endswith("+") else clean or dirty)

    def _has(self) -> str:
        labels = list(dict.fromkeys(side.label for side in reversed(self.sides)))
        machines = dict.fromkeys(run.machine.title for run in self.runs)
        more = ", ..." if len(labels) > 8 else ""
        return f"it has {', '.join(labels[:8])}{more} on {'; '.join(machines)}"


def names_file(name: str) -> bool:
    """Whether a name is that of a run's file; a file `main` does not hide the commit."""
    return name.endswith(".json") or (os.sep in name and Path(name).is_file())


def _is_called(machine: Machine, name: str) -> bool:
    """By its name, or by a part of what it is."""
    if machine.name:
        return machine.name == name
    return bool(name) and name.casefold() in str(machine).casefold()
