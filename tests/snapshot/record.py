"""Writes the texts of the corpus for one target: a folder for each program and way.

The texts say nothing of the machine: the lines of programs are numbered, so that a file which moves
changes nothing, and kernels are called by the names of their files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapshot.compare import PLANS, VERSIONS
from weft.ir.errors import WeftError

Files = dict[str, str]
#: A line of a program: in the text of graphs its file is quoted.
_LINE = re.compile(r'("?)(/[^\s":]+\.py)\1:(\d+)(?::(\d+))?')
#: What a process looks like in a text.
_OF_THIS_PROCESS = re.compile(r"0x[0-9a-f]{6,}\b|/(?:tmp|home|work|usr|root|Users)/")


@dataclass
class Count:
    """What was written. refused: plans that weft does not make, whose error is their text."""

    programs: int = 0
    plans: int = 0
    refused: int = 0
    kernels: int = 0
    different: int = 0
    nbytes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.plans} plans ({self.refused} refused), "
            f"{self.kernels} kernels ({self.different} different), {self.nbytes / 1e6:.1f} MB"
        )


class Writer:
    """Writes into `folder`, which is emptied first; files of equal text are one on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, Count()
        self._kernels: dict[str, Path] = {}
        self._plans: list[str] = []
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)

    def plan(self, name: str, way: str, make: Callable[[], Files]) -> None:
        """Write what `make` gives; the error instead, if weft refuses."""
        self.count.plans += 1
        try:
            files = make()
        except WeftError as error:
            files = {"error.txt": f"{type(error).__name__}: {error.what}\n"}
            self.count.refused += 1
        folder = self.folder / safe(name) / way
        if folder.exists():
            raise ValueError(f"two programs are called {folder}")
        self._plans.append(f"{safe(name)}/{way}\n")
        for path, text in numbered_lines(files).items():
            self._write(folder / path, text)

    def close(self, versions: str = "") -> None:
        """Write which plans there are, and by what they were made."""
        (self.folder / PLANS).write_text("".join(self._plans), encoding="utf-8")
        (self.folder / VERSIONS).write_text(versions, encoding="utf-8")

    def _write(self, path: Path, text: str) -> None:
        check(path, text)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.name == "kernels":
            self.count.kernels += 1
            known = self._kernels.setdefault(text, path)
            if known is not path:
                os.link(known, path)
                return
            self.count.different += 1
        path.write_text(text, encoding="utf-8")
        self.count.nbytes += len(text)


def record(folder: Path, *, gpu: bool, only: Sequence[str] = ()) -> Count:
    """The corpus, or the programs of it whose names contain one of `only`."""
    from snapshot.corpus import selected  # loads all tables of the tests
    from snapshot.inside import versions

    writer = Writer(folder)
    for program in selected(only):
        ways = program.gpu_ways if gpu else program.ways
        writer.count.programs += bool(ways)
        for way, make in ways.items():
            writer.plan(program.name, way, make)
    writer.close(versions())
    return writer.count


def safe(name: str) -> str:
    """A program's name as a path."""
    return re.sub(r"[^\w./-]+", "_", name).strip("_")


#: Places in the text of graphs, the names that stand for files there, and lines in plans.
_PLACES = re.compile(r"\bloc\(([^()]*)\)")
_NAMED_FILE = re.compile(r'^file (\w+) = "(.*)"$')
_SHORT = re.compile(r" at [\w-]+\.py:\d+")


def with_paths(text: str) -> str:
    """The text of graphs with paths in place of the names that stand for them, and plans without
    the lines of programs."""
    done: list[str] = []
    held: list[str] = []
    names: dict[str, str] = {}

    def flush() -> None:
        done.extend(_PLACES.sub(lambda m: f"loc({_expanded(m[1], names)})", x) for x in held)
        held.clear()
        names.clear()

    for line in _SHORT.sub("", text).splitlines(keepends=True):
        found = _NAMED_FILE.match(line.rstrip("\n"))
        if found is not None:
            names[found[1]] = found[2]
            continue
        if names:
            flush()
        held.append(line)
    flush()
    return "".join(done)


def _expanded(places: str, names: Mapping[str, str]) -> str:
    """`model:3:4, 5:6` with the path of `model` in both places."""
    out, file = [], ""
    for place in places.split(", "):
        first, _, rest = place.partition(":")
        if first in names:
            file = f'"{names[first]}"'
        elif first.isdecimal():
            rest = place
        else:
            file = first
        out.append(f"{file}:{rest}")
    return ", ".join(out)


def numbered_lines(files: Files) -> Files:
    """The lines of programs as `@1`, `@2`, ... in their order in the source."""
    files = {path: with_paths(text) for path, text in files.items()}
    found = {m.groups()[1:] for text in files.values() for m in _LINE.finditer(text)}
    order = sorted(found, key=lambda g: (g[0], int(g[1]), int(g[2] or 0)))
    number = {place: f"@{i}" for i, place in enumerate(order, 1)}
    return {path: _LINE.sub(lambda m: number[m.groups()[1:]], text) for path, text in files.items()}


def check(path: Path, text: str) -> None:
    """Raise ValueError for a text that is of this process or machine."""
    found = _OF_THIS_PROCESS.search(text)
    # LLVM writes floating constants as hexadecimal numbers
    if found is not None and (path.suffix not in (".ll", ".ptx") or not found[0].startswith("0x")):
        around = text[max(found.start() - 60, 0) : found.end() + 60]
        raise ValueError(f"{path} holds what is of this machine: ...{around}...")
