"""Restoring: compare a file with what there is, read and check everything, and only then assign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from weft.frontend.random.state import restart_generators
from weft.frontend.train.saver_items import Awaited, ItemList, Items, random_seeds
from weft.frontend.variable import Variable
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, suggest
from weft.ir.locations import caller_location
from weft.ir.types import TensorType
from weft.runtime.checkpoint.folder import log
from weft.runtime.checkpoint.format import RESERVED, Array, decode_tree
from weft.runtime.checkpoint.sharded import Checkpoint, open_checkpoint
from weft.runtime.checkpoint.state import RANDOM, Stateful, all_locked, assign_all

STATE_PREFIX = f"{RESERVED}state/"
_PARTLY = (
    "strict=False restores what fits and reports the rest; var_list={'name in the file': variable} "
    "restores by another name"
)


@dataclass(frozen=True)
class RestoreReport:
    """What `Saver.restore` did; printed, it is for people.

    path: the file. step: its global step, if it was saved with one. metric: likewise. restored: the
    names that were assigned. missing: what the Saver has and the file has not. unexpected: what the
    file has and the Saver has not. mismatched: name -> why its shape or dtype does not fit.
    verified: whether checksums were verified; a file that others wrote has none.
    """

    path: str
    step: int | None = None
    metric: float | None = None
    restored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: Mapping[str, str] = field(default_factory=dict)
    verified: bool = True

    def __str__(self) -> str:
        checked = "checksums verified" if self.verified else "the file has no checksums"
        lines = [f"restored {len(self.restored)} from '{self.path}' ({checked})"]
        for what, names in (("missing", self.missing), ("unexpected", self.unexpected)):
            if names:
                lines.append(f"  {what}: {', '.join(names)}")
        lines += [f"  mismatched: {name}: {why}" for name, why in self.mismatched.items()]
        return "\n".join(lines)


def restore_file(items: ItemList, path: Path, strict: bool) -> RestoreReport:
    """Assign what fits; with `strict` it is an error if something of `items` is missing or does not
    fit. Nothing is assigned if there is an error."""
    with open_checkpoint(path) as file:
        found = items.now()
        awaited = items.awaited(file.entries, found)
        report = compare(file, found, awaited, RANDOM in items.include)
        if strict:
            refuse(report, file)
        wanted = set(report.restored)
        values = {n: file.read(n) for n in (*found.variables, *awaited) if n in wanted}
        states = {
            name: decode_tree(file.notes["state"][name], file.read)
            for name in found.stateful
            if STATE_PREFIX + name in wanted
        }
        seed = file.notes.get("random_seed")
    _commit(found, awaited, values, states)
    if RANDOM in items.include and seed is not None:
        # those that the file does not have were not made when it was written
        restart_generators(seed, random_seeds(values))
    if not report.verified:
        log.warning("%s has no checksums: nothing tells whether it is as it was written", path)
    if not report.restored:
        log.warning("nothing was restored from %s: no name fits", path)
    return report


def compare(
    file: Checkpoint, found: Items, awaited: Mapping[str, Awaited], with_random: bool
) -> RestoreReport:
    """What of a checkpoint fits."""
    types = {n: TensorType(v.dtype, v.shape) for n, v in found.variables.items()}
    types |= {name: one.type for name, one in awaited.items()}
    stored = set(file.notes.get("state", {}))
    missing, mismatched = [], {}
    for name, wanted in types.items():
        entry = file.entries.get(name)
        if entry is None:
            if not name.startswith(RESERVED):  # a generator not in the file starts again
                missing.append(name)
        elif (entry.dtype, entry.shape) != (wanted.dtype, wanted.shape):
            mismatched[name] = f"the file has {entry}, the variable is {wanted}"
    missing += [STATE_PREFIX + name for name in found.stateful if name not in stored]
    if with_random and "random_seed" not in file.notes:
        missing.append(RESERVED + RANDOM)
    bad = {*missing, *mismatched}
    restored = [n for n in types if n not in bad and n in file.entries]
    restored += [STATE_PREFIX + name for name in found.stateful if name in stored]
    extra = [n for n in file.entries if n not in types and not n.startswith(STATE_PREFIX)]
    extra += [STATE_PREFIX + name for name in stored if name not in found.stateful]
    return RestoreReport(
        str(file.path), file.notes.get("step"), file.notes.get("metric"), tuple(restored),
        tuple(missing), tuple(sorted(extra)), mismatched, file.verified,
    )  # fmt: skip


def refuse(report: RestoreReport, file: Checkpoint, hint: str = _PARTLY) -> None:
    """NotFoundError for what is missing, InvalidArgumentError for what does not fit."""
    rows = [f"  {n} is not in the file{suggest(n, list(file.entries))}" for n in report.missing]
    rows += [f"  {name}: {why}" for name, why in report.mismatched.items()]
    if rows:
        kind = InvalidArgumentError if report.mismatched else NotFoundError
        raise kind(
            "\n".join([f"cannot restore from '{report.path}'; nothing was changed:", *rows]),
            hint=hint,
            location=caller_location(),
        )


def _commit(
    found: Items,
    awaited: Mapping[str, Awaited],
    values: Mapping[str, Array],
    states: Mapping[str, Any],
) -> None:
    """Assign all of it at one point in time, or nothing."""
    made: dict[str, Variable] = {name: awaited[name].make() for name in values if name in awaited}
    held = {**found.variables, **made}
    pairs = [(held[name].state, value) for name, value in values.items()]
    with all_locked([state for state, _ in pairs]):
        undo: list[tuple[Stateful, Any]] = []
        try:
            for name, state in states.items():
                before = found.stateful[name].state_dict()
                found.stateful[name].load_state_dict(state)
                undo.append((found.stateful[name], before))
            assign_all(pairs)
        except BaseException:
            for stateful, before in reversed(undo):
                stateful.load_state_dict(before)
            raise
