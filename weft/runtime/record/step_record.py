"""`StepRecord`: what one run of a step needs to be run again bit for bit, and its file.

The program as it was traced, its inputs, the variables before, what came out of queues, files and
Python functions (`runtime/run_log.py`), and what the run gave. The file is a checkpoint
(`runtime/checkpoint/format.py`): safetensors with a checksum of everything, nothing is pickled. A
Python function itself is not in it, what it gave is."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.ir.analysis.frames import is_dataflow
from weft.ir.analysis.verify import verify
from weft.ir.dataclass import dataclass
from weft.ir.error_data import error_data, error_of
from weft.ir.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.io import FunctionName
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.passes.rewriting.rewrite import bind, rebuilt, with_block, with_operands
from weft.runtime.checkpoint.format import SUFFIX, CheckpointFile, write_file
from weft.runtime.record.needs import Need, check_needs, needs_of
from weft.runtime.record.traced_step import Way
from weft.runtime.run_log import HostGroup, HostRow, packed_results, unpacked_results

Array = np.ndarray[Any, Any]
_FORMAT = 1
#: A file's name has so many letters of the step's.
MOST_NAME = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave: its results (None for a token), the values of the variables that it wrote
    (those of other tasks are not known), or the error that it raised."""

    results: tuple[Any, ...] = ()
    written: Mapping[str, Array] = field(default_factory=dict)
    error: WeftError | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One run of a step. number: of the run in its process; made: when it began, in seconds since
    1970. variables: before it; one without a value is not in it. host: what ops of the host gave.
    outcome: None while it runs, or where the process ended. versions: of what ran it. needs: of one
    that was read, the user's ops, functions and kernels that it was recorded with. silent: the
    tasks whose log is missing: what their ops took, and their variables held, is not in it."""

    graph: Graph
    way: Way
    inputs: tuple[Array, ...]
    variables: Mapping[str, Array]
    host: tuple[HostGroup, ...] = ()
    outcome: Outcome | None = None
    number: int = 0
    made: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """That of the step."""
        return self.graph.name

    def ended(self, outcome: Outcome, host: Iterable[HostGroup]) -> StepRecord:
        """The record of a run that has ended."""
        return replace(self, outcome=outcome, host=tuple(host))

    def on(self, variables: Mapping[str, Array], silent: Iterable[str]) -> StepRecord:
        """The record with these values of variables; silent: the tasks that told none."""
        return replace(self, variables=variables, silent=tuple(silent))

    def __str__(self) -> str:
        """One line for people."""
        ops = sum(1 for _ in self.graph.walk())
        held = [*self.inputs, *self.variables.values()]
        size = sum(x.nbytes for x in held)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.made))
        how = "gave results"
        if self.outcome is None:
            how = "had not ended"
        elif self.outcome.error is not None:
            error = self.outcome.error
            how = f"raised {type(error).__name__}: {error.what.splitlines()[0][:100]}"
        if self.silent:
            how += f"; nothing is known of {', '.join(self.silent)}"
        return (
            f"step {self.number} of '{self.name}' at {when}: {ops} ops, {len(self.inputs)} inputs, "
            f"{len(self.variables)} variables ({size:,} bytes), ran as '{self.way.kind}', {how}"
        )


def same_bits(a: Array, b: Array) -> bool:
    """Whether two values have the same dtype, shape and bits; NaNs, too."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.hasobject:
        return bool(np.all(a == b))
    return a.tobytes() == b.tobytes()


# ------------------------------------------------------------------------------------------ files
def file_stem(record: StepRecord) -> str:
    """How names of its files begin: the step's, as far as a file's may have that, and the time."""
    name = re.sub(r"[^\w-]", "_", record.name)[:MOST_NAME]
    return f"{name}-{time.strftime('%Y%m%d%H%M%S', time.gmtime(record.made))}"


def save_record(record: StepRecord, path: Path) -> None:
    """Write a record, whole or not at all. Errors as `checkpoint.format.write_file`."""
    arrays: dict[str, Array] = {f"input/{i}": x for i, x in enumerate(record.inputs)}
    arrays |= {f"variable/{name}": x for name, x in record.variables.items()}

    def place(x: Any) -> int | None:
        if x is None:
            return None
        number = len(arrays)
        arrays[f"host/{number}"] = np.asarray(x)
        return number

    host = [
        [list(g.ops), [[list(r.iterations), packed_results(r.made, place)] for r in g.rows]]
        for g in record.host
    ]
    outcome: dict[str, Any] | None = None
    if record.outcome is not None:
        found = record.outcome
        given = {f"result/{i}": x for i, x in enumerate(found.results) if x is not None}
        given |= {f"after/{name}": x for name, x in found.written.items()}
        arrays |= {name: np.asarray(x) for name, x in given.items()}
        outcome = {
            "results": len(found.results),
            "written": list(found.written),
            "error": None if found.error is None else error_data(found.error),
        }
    notes = {
        "record": _FORMAT, "program": print_graph(record.graph), "way": asdict(record.way),
        "inputs": len(record.inputs), "host": host, "outcome": outcome, "number": record.number,
        "made": record.made, "versions": dict(record.versions),
        "silent": list(record.silent), "needs": [asdict(need) for need in needs_of(record.graph)],
    }  # fmt: skip
    write_file(path, arrays, notes)


def load_record(path: Path, *, runs: bool = True) -> StepRecord:
    """Read a record. runs: whether it is to be run, so that the user's functions that it needs must
    be here; ops must be in any case. FailedPreconditionError where they are not, NotFoundError
    where there is no such file, DataLossError for a damaged one, InvalidArgumentError for one that
    is no record."""
    if not path.is_file():
        raise NotFoundError(
            f"there is no record {path}", hint="WEFT_RECORD=DIR, or wf.record(DIR), writes records"
        )
    with CheckpointFile(path) as file:
        notes = file.notes
        if "record" not in notes:
            raise InvalidArgumentError(f"{path} is a checkpoint, not the record of a step")
        if notes["record"] != _FORMAT:
            raise UnsupportedError(
                f"{path} is a record of format {notes['record']}, this version reads {_FORMAT}"
            )
        try:
            needs = tuple([Need(**held) for held in notes.get("needs", ())])
            check_needs(path, needs, runs=runs)
            return replace(_read(file, notes), needs=needs)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, WeftError):
                raise
            raise DataLossError(f"{path} is no whole record: {error!r}") from None


def _read(file: CheckpointFile, notes: Mapping[str, Any]) -> StepRecord:
    graph = without_callbacks(parse_graph(notes["program"], "<record>"))
    verify(graph.at_stage("dataflow") if is_dataflow(graph.block) else graph)
    held = {name.removeprefix("variable/"): file.read(name)
            for name in file.entries if name.startswith("variable/")}  # fmt: skip
    rows = _Numbered(file)
    host = tuple(
        HostGroup(
            tuple(ops), tuple(HostRow(tuple(at), unpacked_results(x, rows)) for at, x in found)
        )
        for ops, found in notes["host"]
    )
    outcome, given = None, notes["outcome"]
    if given is not None:
        names = [f"result/{i}" for i in range(given["results"])]
        results = tuple([file.read(n) if n in file.entries else None for n in names])
        error = None if given["error"] is None else error_of(given["error"])
        written = {name: file.read(f"after/{name}") for name in given["written"]}
        outcome = Outcome(results, written, error)
    inputs = tuple([file.read(f"input/{i}") for i in range(notes["inputs"])])
    return StepRecord(
        graph, Way(**notes["way"]), inputs, held, host, outcome, notes["number"], notes["made"],
        notes["versions"], silent=tuple(notes.get("silent", ())),
    )  # fmt: skip


class _Numbered(Sequence[Array]):
    """The arrays of host ops in a file, by their numbers."""

    def __init__(self, file: CheckpointFile) -> None:
        self._file = file

    def __getitem__(self, number: Any) -> Any:
        return self._file.read(f"host/{number}")

    def __len__(self) -> int:
        return len(self._file.entries)


def find_records(path: Path) -> list[Path]:
    """The files of records at `path`, a file or a folder, the oldest first. NotFoundError if there
    are none."""
    if path.is_file():
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"), key=lambda p: (p.stat().st_mtime_ns, p.name))
    if not found:
        raise NotFoundError(
            f"there are no records in {path}",
            hint="WEFT_RECORD=DIR, or wf.record(DIR), writes records of steps",
        )
    return found


def without_callbacks(graph: Graph) -> Graph:
    """`graph` with functions that do nothing in its `debug_callback`s: a file has no functions."""
    if not any(op.name == "debug_callback" for op in graph.walk()):
        return graph
    return with_block(graph, _silent(graph.block))


def _nothing(arrays: Sequence[Any]) -> list[Any]:
    return []


def _silent(block: Block) -> Block:
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    for op in block.ops:
        new = with_operands(op, mapping, tuple(_silent(region) for region in op.regions))
        if op.name == "debug_callback":
            name = FunctionName(str(op.attrs["function"]), _nothing)
            types = [r.type for r in op.results]
            new = Operation(
                op.name, new.operands, {**op.attrs, "function": name}, types, new.regions,
                new.control, op.locations, device=op.device, group=op.group,
            )  # fmt: skip
        bind(mapping, op, new.results)
        ops.append(new)
    return rebuilt(block, ops, [mapping.get(v, v) for v in block.results])
