"""State of a program, as checkpoints hold it: variables by name, all at one point in time,
optimizers' state, random generators, and other state.

Looked up anew for each checkpoint: an optimizer makes its slots with its first step, a graph grows.
Restoring compares a file with what there is, reads and checks everything, and only then assigns.

A step holds the locks of all variables that it uses from its first read to its last write
(`native/executable.py`), taken in one order. Here all locks of a set of variables are taken in the
same order: so every step is either wholly in a snapshot or not at all, and no two wait for each
other, while training steps run.

`Stateful` is the protocol by which a checkpoint takes other state. Queues, readers and the like
register themselves by name; `wf.train.Saver(include=...)` names those wanted."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from weft.frontend.nn.module import Module
from weft.frontend.optim.optimizer import Optimizer
from weft.frontend.random.generator import (
    Generator,
    default_generator,
    is_graph_state,
    process_state,
    restart_generators,
)
from weft.frontend.session.graph import get_default_graph
from weft.frontend.state.variable import Variable, variables_of
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TypeRuleError,
    suggest,
)
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock
from weft.ir.types import TensorType
from weft.runtime.checkpoint.folder import Checkpoint, log, open_checkpoint
from weft.runtime.checkpoint.format import RESERVED, Array, Entry, decode_tree
from weft.runtime.resources.variables import VariableState, held, in_order


def all_locked(states: Iterable[VariableState], *, writes: bool) -> AbstractContextManager[None]:
    """Hold all `states` in the block, in the order in which steps take them."""
    states = set(states)
    return held(in_order(states, states if writes else ()), lambda _: True)


def copies(states: Mapping[str, VariableState]) -> dict[str, Array]:
    """A copy of each value; their locks are held. FailedPreconditionError, naming all that have
    none, if one is not initialised."""
    missing = [name for name, state in states.items() if not state.initialized]
    if missing:
        raise FailedPreconditionError(
            f"cannot save: {', '.join(map(repr, missing))} not initialised",
            hint="run wf.global_variables_initializer() in the session first, or leave them out "
            "of var_list",
        )
    return {name: state.read() for name, state in states.items()}


def assign_all(values: Iterable[tuple[VariableState, Array]]) -> None:
    """Assign every value, or none: their locks are held, and what can fail comes first.

    Each value has the dtype and shape of its variable.
    """
    pairs = list(values)
    fresh = {
        id(state): np.array(value, order="C", copy=True)
        for state, value in pairs
        if state.array is None or state.open is not None
    }
    for state, value in pairs:
        if state.array is None or state.open is not None:
            state.take(fresh[id(state)])
        else:
            state.array[...] = value


@runtime_checkable
class Stateful(Protocol):
    """An object whose state a checkpoint can hold.

    state_dict: dicts, lists and tuples of NumPy arrays, numbers, str, bytes, bool and None. It is
    called while the locks of all saved variables are held, so that the state is of the same moment:
    it must not wait for a step. load_state_dict: takes over such a state, or raises and changes
    nothing.

    >>> queue = wf.tf1.FIFOQueue(10, wf.int64, shapes=[[]])
    >>> isinstance(queue, wf.train.Stateful)
    True
    >>> queue.enqueue_many([[1, 2, 3]])
    >>> saver = wf.train.Saver({"queue": queue})
    >>> path = saver.save(None, "model")
    >>> _ = queue.dequeue_many(3), saver.restore(None, path)
    >>> queue.dequeue()
    Tensor(1, dtype=int64)
    """

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


#: The process-wide random generators, which are variables and so not in the registry.
RANDOM = "random"
_lock = ForkLock()
_registered: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def register_state(name: str, stateful: Stateful) -> None:
    """Have `Saver(include=[name])` save and restore `stateful`, for as long as it lives.

    TypeRuleError for an object without state_dict and load_state_dict, AlreadyExistsError for a
    name that another living object has.

    >>> class Cursor:
    ...     at = 12
    ...     def state_dict(self):
    ...         return {"at": self.at}
    ...     def load_state_dict(self, state):
    ...         self.at = state["at"]
    >>> cursor = Cursor()
    >>> wf.train.register_state("cursor", cursor)
    >>> saver = wf.train.Saver([wf.Variable(1.0)], include=["cursor"])
    >>> path = saver.save(None, "model")
    >>> cursor.at = 0
    >>> _ = saver.restore(None, path)
    >>> cursor.at
    12
    """
    if not isinstance(stateful, Stateful):
        raise TypeRuleError(
            f"register_state('{name}', ...): a {type(stateful).__name__} has no state_dict() and "
            "load_state_dict(state)"
        )
    with _lock:
        if name == RANDOM or _registered.get(name, stateful) is not stateful:
            raise AlreadyExistsError(f"there is state registered as '{name}' already")
        try:
            _registered[name] = stateful
        except TypeError:
            raise TypeRuleError(
                f"register_state('{name}', ...): a {type(stateful).__name__} cannot be referred to "
                "weakly",
                hint="add '__weakref__' to its __slots__",
            ) from None


def registered_state(name: str) -> Stateful:
    """What is registered as `name`. NotFoundError with the closest names."""
    found: Stateful | None = _registered.get(name)
    if found is None:
        raise NotFoundError(
            f"there is no state registered as '{name}'{suggest(name, sorted(_registered))}",
            hint="register_state(name, object) does; the object must still be alive",
        )
    return found


_RANDOM_PREFIX = f"{RESERVED}{RANDOM}/"
_RANDOM_NAME = re.compile(re.escape(_RANDOM_PREFIX) + r"(global|-?\d+)")
VarList: TypeAlias = (
    Any  # what `Saver` documents: lists and dicts of variables and of what has some
)


@dataclass(slots=True)
class Items:
    """The program's present items, by their names in a checkpoint."""

    variables: dict[str, Variable] = field(default_factory=dict)
    stateful: dict[str, Stateful] = field(default_factory=dict)

    def add(self, name: str, variable: Variable) -> None:
        """InvalidArgumentError if another variable has the name."""
        if self.variables.setdefault(name, variable) is not variable:
            raise InvalidArgumentError(
                f"two variables have the name '{name}' in one checkpoint",
                hint="pass a dict, name -> variable; optimizers of one class take name=",
                location=caller_location(),
            )

    def same_as(self, other: Items) -> bool:
        """Whether it is the same objects by the same names."""
        return _ids(self.variables) == _ids(other.variables) and _ids(self.stateful) == _ids(
            other.stateful
        )


@dataclass(frozen=True, slots=True)
class Awaited:
    """A variable that a checkpoint has and that is made when it is restored, as an optimizer's slot
    before its first step."""

    type: TensorType
    make: Callable[[], Variable]


class ItemList:
    """The items of a `Saver`: `var_list` and `include` taken apart and checked once."""

    def __init__(self, var_list: VarList, include: str | Iterable[str]) -> None:
        self._graph = get_default_graph() if var_list is None else None
        self._trace = get_default_graph()._trace
        self._plain: dict[str, Variable] = {}
        self._optimizers: dict[str, Optimizer] = {}
        self._stateful: dict[str, Stateful] = {}
        self.include = (include,) if isinstance(include, str) else tuple(include)
        if isinstance(var_list, Mapping):
            self._add_mapping("", var_list)
        elif var_list is not None:
            single = isinstance(var_list, Variable | Optimizer | Generator | Module)
            for item in [var_list] if single else _listed(var_list):
                self._add(None, item)

    # ---------------------------------------------------------------------------- taking it apart
    def _add_mapping(self, prefix: str, items: Mapping[Any, Any]) -> None:
        for key, item in items.items():
            self._add(prefix + _checked_name(key), item)

    def _add(self, name: str | None, item: Any) -> None:
        """`name` is None in a list: there things have their own names."""
        if isinstance(item, Generator):
            item = item.state
        if isinstance(item, Variable):
            self._put(self._plain, _checked_name(item.name if name is None else name), item)
        elif isinstance(item, Optimizer):
            self._put(self._optimizers, _checked_name(item.name if name is None else name), item)
        elif isinstance(item, Module):
            self._add(name, item.named_variables())
        elif isinstance(item, Mapping):
            self._add_mapping("" if name is None else f"{name}/", item)
        elif isinstance(item, list | tuple):
            for i, part in enumerate(item):
                self._add(None if name is None else f"{name}/{i}", part)
        elif isinstance(item, Stateful):
            if name is None:
                raise InvalidArgumentError(
                    f"a {type(item).__name__} has no name in a checkpoint",
                    hint="pass var_list as a dict, name -> object",
                    location=caller_location(),
                )
            self._put(self._stateful, name, item)
        else:
            raise TypeRuleError(
                f"var_list holds a {type(item).__name__}"
                + ("" if name is None else f" ('{name}')")
                + ", which a checkpoint cannot hold",
                hint="it may hold wf.Variable, wf.nn.Module, wf.train optimizers, "
                "wf.random.Generator, objects with state_dict() and load_state_dict(), and dicts "
                "and lists of these",
                location=caller_location(),
            )

    def _put(self, place: dict[str, Any], name: str, item: Any) -> None:
        if place.setdefault(name, item) is not item:
            raise InvalidArgumentError(
                f"var_list has two different objects named '{name}'",
                hint="pass a dict, name -> object",
                location=caller_location(),
            )

    # ----------------------------------------------------------------------------- what there is
    def now(self) -> Items:
        """What there is at this moment. NotFoundError for state that is not registered."""
        found = Items()
        for name, variable in self._own().items():
            found.add(name, variable)
        names = {id(v): name for name, v in found.variables.items()}
        for key, optimizer in self._optimizers.items():
            for name, variable in _of_optimizer(optimizer, key, names):
                found.add(name, variable)
        if RANDOM in self.include:
            for op_seed, generator in process_state()[1].items():
                found.add(_random_name(op_seed), generator.state)
            for name, variable in dict(variables_of(self._trace)).items():
                if is_graph_state(variable):
                    found.add(name, variable)
        found.stateful.update(self._stateful)
        for name in self.include:
            if name != RANDOM:
                found.stateful[name] = registered_state(name)
        return found

    def _own(self) -> dict[str, Variable]:
        return self._plain if self._graph is None else dict(variables_of(self._trace))

    def awaited(self, entries: Mapping[str, Entry], found: Items) -> dict[str, Awaited]:
        """Variables that `entries`, those of a file, have and that can be made here."""
        own = self._own()
        out: dict[str, Awaited] = {}
        for name, entry in entries.items():
            if name in found.variables or entry.dtype is None:
                continue
            stored = TensorType(entry.dtype, entry.shape)
            awaited = self._awaited_slot(name, stored, own)
            if RANDOM in self.include and _RANDOM_NAME.fullmatch(name):
                awaited = _awaited_generator(name)
            if awaited is not None:
                out[name] = awaited
        return out

    def _awaited_slot(
        self, name: str, stored: TensorType, own: Mapping[str, Variable]
    ) -> Awaited | None:
        head, _, last = name.rpartition("/")
        optimizer = self._optimizers.get(head)
        if optimizer is not None:
            wanted = optimizer._state_type(last, stored)
            if wanted is not None:
                return Awaited(wanted, lambda: optimizer._make_state(last, wanted))
        for key, one in self._optimizers.items():
            variable = own.get(head.removesuffix(f"/{key}")) if head.endswith(f"/{key}") else None
            if variable is not None:
                return _slot_of(one, variable, last)
        return None


def _slot_of(optimizer: Optimizer, variable: Variable, slot: str) -> Awaited:
    return Awaited(
        TensorType(variable.dtype, optimizer._slot_shape(variable, slot)),
        lambda: optimizer._slot(variable, slot),
    )


def _of_optimizer(
    optimizer: Optimizer, key: str, names: Mapping[int, str]
) -> Iterable[tuple[str, Variable]]:
    """`<variable>/<key>/<slot>` and `<key>/<name>`, as the variables of a graph are named."""
    slots = list(optimizer._slots.items())
    for (variable, slot), state in slots:
        yield f"{names.get(id(variable), variable.name)}/{key}/{slot}", state
    known = {id(state) for _, state in slots}
    for state in optimizer.variables():
        if id(state) not in known:
            yield f"{key}/{state.name.removeprefix(optimizer.name + '/')}", state


def _random_name(op_seed: int | None) -> str:
    return f"{_RANDOM_PREFIX}{'global' if op_seed is None else op_seed}"


def random_seeds(names: Iterable[str]) -> set[int | None]:
    """The op seeds of the process-wide generators that a file has."""
    found = [match for name in names if (match := _RANDOM_NAME.fullmatch(name))]
    return {None if match[1] == "global" else int(match[1]) for match in found}


def _awaited_generator(name: str) -> Awaited:
    (op_seed,) = random_seeds([name])
    made = default_generator().state  # all have the same type
    return Awaited(TensorType(made.dtype, made.shape), lambda: default_generator(op_seed).state)


def _ids(objects: Mapping[str, object]) -> dict[str, int]:
    return {name: id(item) for name, item in objects.items()}


def _listed(var_list: Any) -> Iterable[Any]:
    if isinstance(var_list, str) or not isinstance(var_list, Iterable):
        raise TypeRuleError(
            f"var_list must be a list, or a dict name -> variable, got a {type(var_list).__name__}",
            location=caller_location(),
        )
    return var_list


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeRuleError(
            f"the names of var_list are str, not empty; got {name!r:.60}",
            location=caller_location(),
        )
    writable = not any("\ud800" <= c <= "\udfff" for c in name)
    if not writable or name == "__metadata__" or name.startswith(RESERVED):
        raise InvalidArgumentError(
            f"{name!r:.80} cannot be a name in a checkpoint",
            hint=f"'__metadata__' and names that begin with '{RESERVED}' are taken; a name is text",
            location=caller_location(),
        )
    return name


STATE_PREFIX = f"{RESERVED}state/"
_PARTLY = (
    "strict=False restores what fits and reports the rest; var_list={'name in the file': variable} "
    "restores by another name"
)


@dataclass(frozen=True)
class RestoreReport:
    """The report of `Saver.restore`; printed, it is for people.

    path: the file. step: its global step, if it was saved with one. metric: likewise. restored: the
    names that were assigned. missing: what the Saver has and the file has not. unexpected: what the
    file has and the Saver has not. mismatched: name -> why its shape or dtype does not fit.
    verified: whether checksums were verified; a file that others wrote has none.

    >>> path = wf.train.Saver({"w": wf.Variable(1.0), "old": wf.Variable(0)}).save(None, "model")
    >>> saver = wf.train.Saver({"w": wf.Variable(0.0), "new": wf.Variable(0)})
    >>> print(saver.restore(None, path, strict=False))
    restored 1 from 'model.safetensors' (checksums verified)
      missing: new
      unexpected: old
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
    types = {n: v.state.type for n, v in found.variables.items()}
    types |= {name: one.type for name, one in awaited.items()}
    stored = set(file.notes.get("state", {}))
    missing, mismatched = [], {}
    for name, wanted in types.items():
        entry = file.entries.get(name)
        if entry is None:
            if not name.startswith(RESERVED):  # a generator not in the file starts again
                missing.append(name)
        elif entry.dtype is not wanted.dtype or not wanted.allows(entry.shape):
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
    pairs = [(held[name].current_state, value) for name, value in values.items()]
    with all_locked([state for state, _ in pairs], writes=True):
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
