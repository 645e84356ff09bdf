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
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"{path} is not JSON: {error.msg} in line {error.lineno}",
            hint="remove it from the history; `weft bench --json FILE` writes such files",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} cannot be read as text: {error}") from None
    if not is_run(held):
        raise InvalidArgumentError(
            f"{path} is not a run of `weft bench`: it has no list of workloads",
            hint="give a file that `weft bench --json FILE` or `--history DIR` wrote",
        )
    if not isinstance(held.get("schema"), int) or held["schema"] > SCHEMA:
        raise InvalidArgumentError(
            f"{path} has the schema {held.get('schema')!r}, this weft reads 1 to {SCHEMA}",
            hint="a newer weft wrote it: read it with that one",
        )
    try:
        return _run(path, held)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidArgumentError(
            f"{path} is a damaged run of `weft bench`: {told}", hint="remove it, and measure again"
        ) from None


def is_run(held: object) -> bool:
    """Whether this is what `weft bench --json` writes."""
    if not isinstance(held, dict):
        return False
    return isinstance(held.get("workloads"), list) or isinstance(held.get("steps"), list)


def _run(path: Path, held: Mapping[str, Any]) -> Run:
    facts, machine = held.get("run") or {}, held["machine"]
    steps = held.get("workloads", held.get("steps"))
    assert isinstance(steps, list)
    if "date" in facts:
        date = datetime.fromisoformat(facts["date"])
        date = date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    else:
        date = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    rows = [_row(step) for step in steps]
    place = Machine(
        str(machine.get("name") or ""), str(machine.get("cpu") or ""), machine.get("cores"),
        str(steps[0].get("device") or "") if steps else "", str(machine.get("isa") or ""),
        machine.get("threads") or (held.get("peaks") or {}).get("threads"),
    )  # fmt: skip
    versions = {"python": machine.get("python", ""), **machine.get("versions", {})}
    commit = str(facts.get("commit") or "")
    return Run(
        str(path), date, commit, bool(facts.get("dirty")), place,
        {k: str(v) for k, v in versions.items()}, {row.name: row for row in rows},
    )  # fmt: skip


def _row(step: Mapping[str, Any]) -> Row:
    against: Mapping[str, Any] = step.get("against") or {}
    return Row(
        str(step["name"]),
        None if step.get("step") is None else _timing(step["step"]),
        {str(name): _timing(timing) for name, timing in against.items()},
    )


def _timing(held: Mapping[str, Any]) -> Timing:
    samples = tuple(float(s) for s in held.get("samples", ()))
    found = Timing(float(held["minimum"]), float(held["median"]), samples)
    for seconds in (found.minimum, found.median, *samples):
        if not (seconds > 0 and math.isfinite(seconds)):
            raise ValueError(f"{seconds!r} seconds is no time")
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
    """Runs of a folder, or of a file alone."""

    place: str
    runs: tuple[Run, ...]

    @staticmethod
    def read(place: str | Path) -> History:
        """All of a folder. NotFoundError if there are none, else errors as `read_run`."""
        place = Path(place)
        if place.is_file():
            return History(str(place), (read_run(place),))
        files = sorted(place.glob("*.json")) if place.is_dir() else []
        if not files:
            what = "has no runs" if place.is_dir() else "is not there"
            raise NotFoundError(
                f"the history {place} {what}",
                hint=f"`weft bench --history {place}` measures and adds a run to it",
            )
        runs = sorted(map(read_run, files), key=lambda r: r.date)
        return History(str(place), tuple(runs))

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
        return History(self.place, tuple(found))

    def find(self, name: str) -> tuple[list[Side], bool]:
        """What `name` is called by people, on all machines that have it; and whether it is a
        machine. A commit with + at its end is of a changed tree, without it that only if there is
        no other.

        NotFoundError for what is not there, InvalidArgumentError for the beginning of several
        commits."""
        if name.endswith(".json") or (os.sep in name and Path(name).is_file()):
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


def _is_called(machine: Machine, name: str) -> bool:
    """By its name, or by a part of what it is."""
    if machine.name:
        return machine.name == name
    return bool(name) and name.casefold() in str(machine).casefold()
