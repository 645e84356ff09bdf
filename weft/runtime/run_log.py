"""`RunLog`: what a run of a step takes from outside of its program: the results of ops on queues,
files, tables and Python functions, and the values of variables on other tasks. If it is asked for,
also what goes outside: the operands of such ops, and of prints, assertions and callbacks.

With it a run can be repeated: `HostReplay` (`runtime/record/replay.py`) gives the same results
again. Ops are known by `HostKey`s, since a pass may have rebuilt them: passes neither merge nor
duplicate such ops, and keep their order."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.ir.error_data import error_data, error_of
from weft.ir.errors import WeftError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.state import EXECUTE_STATE
from weft.ir.ops import lookup
from weft.ir.ops.io import SILENT_CALLS
from weft.ir.spec import Attrs
from weft.ir.types import HandleType
from weft.runtime.resources.variables import VariableState

Array = np.ndarray[Any, Any]
#: What a host op gave: None for a token; or the error that it raised.
HostResults = list[Any] | WeftError
#: Carries a host op out.
CarryOut = Callable[[], list[Any]]


#: Ops that make text of numbers. Rounding of the numbers may do anything to the text: what they are
#: given says more than what they give.
TEXT_OF_NUMBERS = frozenset({"as_string", "string_format", "summary"})


def is_outside(name: str) -> bool:
    """Whether an op of that name gives what its operands and the variables do not determine."""
    within = name in SILENT_CALLS or name in EXECUTE_STATE or name in ("send", "recv")
    return not within and {"host", "no_cse"} <= lookup(name).traits


def goes_outside(name: str) -> bool:
    """Whether an op of that name gives its operands to somebody outside of the program, takes
    something from there, or makes a text that people read."""
    return is_outside(name) or name in SILENT_CALLS or name in TEXT_OF_NUMBERS


class HostKey(NamedTuple):
    """A host op in a graph. what: the op and its place, which several ops may share; number: which
    of these, in the order of the program; -1: all of them, which run in that order."""

    what: str
    number: int


def call_key(name: str, attrs: Attrs) -> HostKey:
    """The key of the calls of a Python function in a native step, which runs them in order."""
    return HostKey(f"{name} {attrs.get('function', '')}", -1)


def host_keys(graph: Graph, chosen: Callable[[str], bool] = is_outside) -> dict[Operation, HostKey]:
    """The keys of the ops of a graph that take something from outside. chosen: the names of other
    ops, such as `goes_outside`; the keys of those that both choose are the same."""
    counts: dict[str, int] = {}
    keys: dict[Operation, HostKey] = {}
    handles: dict[Value, str] = {}
    for op in _in_order(graph.block, handles):
        if chosen(op.name):
            what = _what(op, handles)
            counts[what] = number = counts.get(what, -1) + 1
            keys[op] = HostKey(what, number)
    return keys


def _in_order(block: Block, handles: dict[Value, str]) -> Iterator[Operation]:
    """The ops of a block and of the regions in it, in the order that lowering to Switch and Merge
    gives them: of a branch the second region comes first. handles: is given the names of the
    objects that values stand for."""
    for op in block.ops:
        first = next((handles[v] for v in op.operands if v in handles), "")
        for value in op.results:
            if isinstance(value.type, HandleType):
                handles[value] = str(op.attrs["name"]) if "name" in op.attrs else first
        yield op
        is_branch = op.name == "cond"
        for region in reversed(op.regions) if is_branch else op.regions:
            given = op.operands[1:] if is_branch else op.operands
            handles.update((a, handles[v]) for v, a in zip(given, region.args, strict=False)
                           if v in handles)  # fmt: skip
            yield from _in_order(region, handles)


def _what(op: Operation, handles: Mapping[Value, str]) -> str:
    if "function" in op.attrs:
        return call_key(op.name, op.attrs).what
    if "tag" in op.attrs:
        return f"{op.name} {op.attrs['tag']}"
    places = ",".join(f"{place.file}:{place.line}:{place.column}" for place in op.locations)
    return f"{op.name} {next((handles[v] for v in op.operands if v in handles), '')} {places}"


class HostRow(NamedTuple):
    """One run of a host op. iterations: of the loops around it, outermost first."""

    iterations: tuple[int, ...]
    made: HostResults


class OperandRow(NamedTuple):
    """The tensors that went into one run of a host op. iterations: of the loops around it."""

    iterations: tuple[int, ...]
    operands: list[Array]


class RunLog:
    """What one run took from outside, of the part of a step on `device` ("": of a whole step).
    operands: what went into its host ops; None where nobody asked for that (`keep_operands`).
    refused: whether a print or a callback raised, which a run that is muted does not repeat.
    variables: the values that a task's had when its part began; known: the names of all that it
    has, those too that had none; after: the values of those that it wrote when it had ended.
    parts: the logs of the parts of this step on other devices and tasks; silent: the tasks that did
    not give theirs."""

    def __init__(self, device: str = "") -> None:
        self.device = device
        self.rows: dict[HostKey, list[HostRow]] = {}
        self.operands: dict[HostKey, list[OperandRow]] | None = None
        self.refused = False
        self.variables: dict[str, Array] = {}
        self.known: set[str] = set()
        self.after: dict[str, Array] = {}
        self.parts: list[RunLog] = []
        self.silent: list[str] = []
        self._lock = threading.Lock()

    def given(self, key: HostKey, iterations: tuple[int, ...]) -> HostResults | None:
        """What a host op gives without being carried out; None: it is to be carried out."""
        return None

    def keep_operands(self) -> RunLog:
        """Itself, which from now on keeps what goes into host ops, too."""
        self.operands = {}
        return self

    def note_operands(
        self, key: HostKey, iterations: tuple[int, ...], operands: Sequence[Any]
    ) -> None:
        """A host op is about to be carried out on these tensors. They are copied, if they are to be
        kept: who carries it out may write to them."""
        if self.operands is not None:
            row = OperandRow(iterations, [np.array(on_host(x), order="C") for x in operands])
            with self._lock:
                self.operands.setdefault(key, []).append(row)

    def note(self, key: HostKey, iterations: tuple[int, ...], made: HostResults) -> None:
        """A host op gave this. Arrays are copied."""
        kept = made if isinstance(made, WeftError) else [_copied(x) for x in made]
        with self._lock:
            self.rows.setdefault(key, []).append(HostRow(iterations, kept))

    def note_error(self, name: str) -> None:
        """An op of this name, whose results nobody needs, raised."""
        if name in SILENT_CALLS and name != "assert":
            self.refused = True

    def carry_out(self, key: HostKey, iterations: tuple[int, ...], run: CarryOut) -> list[Any]:
        """What a host op gives, noted; `run` carries it out, if it is to be."""
        made = self.given(key, iterations)
        if made is None:
            try:
                made = run()
            except WeftError as error:
                self.note(key, iterations, error)
                raise
            self.note(key, iterations, made)
        if isinstance(made, WeftError):
            raise made
        return made

    def part(self, device: str) -> RunLog:
        """The log of a part of the step, on a device of this process."""
        made = RunLog(device)
        if self.operands is not None:
            made.keep_operands()
        with self._lock:
            self.parts.append(made)
        return made

    def take_variables(self, variables: Mapping[str, VariableState]) -> None:
        """Keep the values that variables have now; of those that have one."""
        self.variables |= values_of(variables)
        self.known |= variables.keys()

    @property
    def nbytes(self) -> int:
        """The memory of what it holds."""
        rows = [row.made for found in self.rows.values() for row in found]
        arrays = [x for made in rows if not isinstance(made, WeftError) for x in made]
        taken = [row for found in (self.operands or {}).values() for row in found]
        arrays += [x for row in taken for x in row.operands]
        held = [*arrays, *self.variables.values(), *self.after.values()]
        return sum(x.nbytes for x in held if x is not None)

    # ------------------------------------------------------------------------- between processes
    def packed(self) -> list[Array]:
        """As arrays, for a message: the last one says what the others are."""
        arrays: list[Array] = []

        def place(x: Any) -> int | None:
            if x is None:
                return None
            arrays.append(np.asarray(x))
            return len(arrays) - 1

        rows = [
            [*key, [[list(r.iterations), packed_results(r.made, place)] for r in found]]
            for key, found in self.rows.items()
        ]
        held = {name: place(value) for name, value in self.variables.items()}
        operands = None
        if self.operands is not None:
            operands = [
                [*key, [[list(r.iterations), [place(x) for x in r.operands]] for r in found]]
                for key, found in self.operands.items()
            ]
        index = {
            "device": self.device, "rows": rows, "variables": held, "known": sorted(self.known),
            "after": {name: place(value) for name, value in self.after.items()},
            "operands": operands, "refused": self.refused,
        }  # fmt: skip
        return [*arrays, np.frombuffer(json.dumps(index).encode(), np.uint8)]

    @staticmethod
    def unpacked(arrays: Sequence[Array]) -> RunLog:
        """The opposite of `packed`."""
        index = json.loads(bytes(np.asarray(arrays[-1])))
        made = RunLog(str(index["device"]))
        for what, number, rows in index["rows"]:
            made.rows[HostKey(what, number)] = [
                HostRow(tuple(at), unpacked_results(found, arrays)) for at, found in rows
            ]
        if index["operands"] is not None:
            made.operands = {
                HostKey(what, number): [
                    OperandRow(tuple(at), [np.array(arrays[k]) for k in places])
                    for at, places in rows
                ]
                for what, number, rows in index["operands"]
            }
        made.variables = {n: np.array(arrays[k]) for n, k in index["variables"].items()}
        made.known, made.refused = set(index["known"]), bool(index["refused"])
        made.after = {n: np.array(arrays[k]) for n, k in index["after"].items()}
        return made


def on_host(x: Any) -> Array:
    """A number, an array, or a tensor of a device as an array of the host; arrays of the host are
    not copied."""
    return np.asarray(x if isinstance(x, (np.ndarray, np.generic, int, float)) else x.numpy())


def values_of(variables: Mapping[str, VariableState]) -> dict[str, Array]:
    """Copies of the values of those variables that have one."""
    found = {}
    for name, state in variables.items():
        with state.lock.shared():
            if state.initialized:
                found[name] = state.read()
    return found


def _copied(x: Any) -> Any:
    return np.array(x, order="C", copy=True) if isinstance(x, np.ndarray) else None


def packed_results(made: HostResults, place: Callable[[Any], int | None]) -> Any:
    """Results as JSON; `place` keeps an array and says its number."""
    if not isinstance(made, WeftError):
        return [place(x) for x in made]
    return {"error": error_data(made)}


def unpacked_results(held: Any, arrays: Sequence[Array]) -> HostResults:
    """The opposite of `packed_results`."""
    if isinstance(held, Mapping):
        return error_of(held["error"])
    return [None if k is None else np.array(arrays[k]) for k in held]


class HostGroup(NamedTuple):
    """What some ops of a program gave, in the order in which the program runs them. ops: their
    numbers in the order of `Graph.walk`; several that share a line are told apart only where they
    ran on the dataflow executor."""

    ops: tuple[int, ...]
    rows: tuple[HostRow, ...]


def host_groups(graph: Graph, log: RunLog) -> list[HostGroup]:
    """What the host ops of a program gave in a run of it, whichever way, in whatever parts."""
    keys, numbers = host_keys(graph), {op: k for k, op in enumerate(graph.walk())}
    logs = {one.device: one for one in (log, *log.parts)}
    groups: list[HostGroup] = []
    by_what: dict[str, list[Operation]] = {}
    for op, key in keys.items():
        by_what.setdefault(key.what, []).append(op)
    for what, ops in by_what.items():
        in_order = [row for one in logs.values() for row in one.rows.get(HostKey(what, -1), ())]
        if in_order:
            groups.append(HostGroup(tuple(numbers[op] for op in ops), tuple(in_order)))
            continue
        counts: dict[str, int] = {}  # a part numbers its own ops
        for op in ops:
            device = op.device if log.parts else ""
            number = counts[device] = counts.get(device, -1) + 1
            held = logs.get(device)
            rows = [] if held is None else held.rows.get(HostKey(what, number), [])
            in_turn = sorted(rows, key=lambda row: row.iterations)
            groups.append(HostGroup((numbers[op],), tuple(in_turn)))
    return groups
