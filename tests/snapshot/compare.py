"""The difference of two folders of the snapshot: which programs changed, and how, shortly.

A kernel that is only called otherwise is a rename; one that changed in many programs is shown once.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Files = dict[str, str]
#: Lines of a diff that are shown of one file, and of all files.
MOST_LINES, MOST_SHOWN = 24, 400
KERNELS = "kernels"
#: What lists the plans of a folder, and what says by which versions they were made.
PLANS, VERSIONS = "plans.txt", "versions.txt"


@dataclass
class Change:
    """What is different in one plan: paths that changed with their texts, paths on one side."""

    changed: dict[str, tuple[str, str]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed or self.added)


@dataclass
class Difference:
    """Of two folders. renamed: kernels of the first by what they are called in the second; plans in
    which nothing else is different are equal."""

    equal: list[str] = field(default_factory=list)
    changed: dict[str, Change] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed or self.added)


def difference(before: Path, after: Path) -> Difference:
    """Of two folders that `record` wrote, or that hold several of them."""
    made = Difference()
    old, new = plans_in(before), plans_in(after)
    made.removed, made.added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    for name in sorted(old.keys() & new.keys()):
        change = compare(texts(old[name]), texts(new[name]))
        made.renamed |= change.renamed
        if change:
            made.changed[name] = change
        else:
            made.equal.append(name)
    for path in sorted(before.rglob(VERSIONS)):
        other = after / path.relative_to(before)
        if other.exists() and other.read_text() != path.read_text():
            made.notes.append(f"{path.relative_to(before)} differs: other versions made the texts")
    return made


def plans_in(folder: Path) -> dict[str, Path]:
    """The folder of each plan by its name, as the lists say that `record` writes."""
    lists = sorted(folder.rglob(PLANS))
    if not lists:
        raise FileNotFoundError(f"there is no snapshot in {folder}")
    found = {}
    for file in lists:
        for name in file.read_text(encoding="utf-8").splitlines():
            path = file.parent / name
            found[path.relative_to(folder).as_posix()] = path
    return found


def texts(folder: Path) -> Files:
    """The files of a plan by path."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in files}


def compare(before: Files, after: Files) -> Change:
    """The change of one plan."""
    made = Change(renamed=dict(_renames(before, after)))
    if made.renamed:
        before = _with_new_names(before, made.renamed)
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            made.removed.append(path)
        elif path not in before:
            made.added.append(path)
        elif before[path] != after[path]:
            made.changed[path] = before[path], after[path]
    return made


def _renames(before: Files, after: Files) -> Iterator[tuple[str, str]]:
    """Kernels that are only in one of both with one text, in one folder, by what they are called
    before and after."""
    gone = {p: t for p, t in before.items() if p not in after and _is_kernel(p)}
    came = {p: t for p, t in after.items() if p not in before and _is_kernel(p)}
    for path, text in gone.items():
        folder = path.rpartition("/")[0]
        match = next(
            (p for p, t in came.items() if t == text and p.rpartition("/")[0] == folder), None
        )
        if match is not None:
            del came[match]
            yield _stem(path), _stem(match)


def _with_new_names(files: Files, renamed: Mapping[str, str]) -> Files:
    """The files as if kernels had been called so before."""
    names = "|".join(map(re.escape, sorted(renamed, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.-])({names})(?![\w-])")
    made = {}
    for path, text in files.items():
        if _is_kernel(path):
            folder, _, name = path.rpartition("/")
            stem, dot, suffix = name.rpartition(".")
            made[f"{folder}/{renamed.get(stem, stem)}{dot}{suffix}"] = text
        else:
            made[path] = pattern.sub(lambda m: renamed[m[1]], text)
    return made


def _is_kernel(path: str) -> bool:
    return path.split("/")[-2:-1] == [KERNELS]


def _stem(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[0]


# ------------------------------------------------------------------------------------------ report
def report(made: Difference, lines: int = MOST_SHOWN) -> Iterator[str]:
    """The difference for people: at most so many lines of diffs."""
    yield from made.notes
    yield (
        f"{len(made.equal)} plans are equal, {len(made.changed)} changed, "
        f"{len(made.removed)} are gone, {len(made.added)} are new"
    )
    for title, names in (("gone", made.removed), ("new", made.added)):
        yield from _some(f"{title}: ", names)
    if made.renamed:
        yield f"{len(made.renamed)} kernels are called otherwise, with the same content"
        yield from _some("  ", [f"{a} -> {b}" for a, b in sorted(made.renamed.items())])
    if made.changed:
        kinds = Counter(_kind(path) for c in made.changed.values() for path in c.changed)
        yield "changed files: " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    shown: dict[tuple[str, str], str] = {}
    for name, change in made.changed.items():
        yield f"changed: {name}"
        yield from _some("  only before: ", change.removed)
        yield from _some("  only after: ", change.added)
        for path, pair in change.changed.items():
            if pair in shown:
                yield f"  {path}: as in {shown[pair]}"
                continue
            shown[pair] = f"{name}/{path}"
            text = list(_diff(path, *pair)) if lines > 0 else [f"  {path}: not shown"]
            lines -= len(text)
            yield from text


def _kind(path: str) -> str:
    """`plan.txt`; of kernels the suffix."""
    name = path.rpartition("/")[2]
    return f"*.{name.rpartition('.')[2]}" if _is_kernel(path) else name


def _some(head: str, names: list[str], most: int = 20) -> Iterator[str]:
    yield from (f"{head}{name}" for name in names[:most])
    if len(names) > most:
        yield f"{head}and {len(names) - most} more"


def _diff(path: str, before: str, after: str) -> Iterator[str]:
    """A short unified diff; lines that are very long are cut."""
    made = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    found = [line for line in made if not line.startswith(("---", "+++"))]
    yield f"  {path}: {sum(f[0] in '+-' for f in found)} lines"
    yield from (f"    {line[:160]}" for line in found[:MOST_LINES])
    if len(found) > MOST_LINES:
        yield f"    and {len(found) - MOST_LINES} lines more"
