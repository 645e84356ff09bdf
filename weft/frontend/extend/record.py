"""`wf.record` keeps what steps need to be run again; `wf.replay` runs them again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.frontend.compile.inner_values import InnerValue, check_where, values_in_run
from weft.frontend.compile.watchers import watching_changed
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.record.known_part import known_part
from weft.runtime.record.recorder import STEPS, Recording, begin, end, is_on
from weft.runtime.record.replay import (
    ENGINES,
    Difference,
    HostReplay,
    against_record,
    differences,
    run_again,
)
from weft.runtime.record.shrink import shrink_record
from weft.runtime.record.step_record import StepRecord, find_records, load_record

if TYPE_CHECKING:
    from weft.ir.graph import Graph


@contextmanager
def record(
    folder: str | os.PathLike[str], *, steps: int = STEPS, sync: bool = False
) -> Iterator[list[Path]]:
    """Record the steps that compiled functions and sessions of this process run in the block, in
    all threads: program, inputs, variables before, what came out of queues, files, Python functions
    and other tasks, and what each gave. `weft replay` and `wf.replay` run a record again, anywhere.

    folder: for the files, one for each step, a safetensors file that holds no code. steps: how many
    of the last steps are kept, written at the end of the block; 0: only steps that raise, which are
    written at once (the first 20). sync: each record is written before its step runs, too, and
    removed when it has ended: so it is there if the process dies. Of blocks that are open at once
    the newest gets all steps. The value is the list of files that are written, filled as they are.
    WEFT_RECORD=folder, WEFT_RECORD_STEPS and WEFT_RECORD_SYNC do the same for a whole process.

    A recorded step copies its inputs, its variables and its results; docs/guide/replay.md has
    figures. What other threads write to a variable while a step reads it is not in its record.
    InvalidArgumentError for a negative number of steps.

    >>> import tempfile
    >>> @wf.compile
    ... def half(x):
    ...     return x / 2
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with wf.record(folder) as files:
    ...         y = half(wf.asarray([1.0, 4.0]))
    ...     print(len(files), wf.replay(files[0]).run("interpreter")[0])
    1 [0.5 2. ]
    """
    given: object = steps
    if type(given) is not int or given < 0:
        raise InvalidArgumentError(
            f"wf.record: steps={steps!r} is no number of steps",
            hint="say how many of the last steps are to be kept; 0 keeps those that raise alone",
            location=caller_location(),
        )
    made = begin(Recording(Path(folder), steps, bool(sync)))
    try:
        try:
            watching_changed(is_on)
            yield made.written
        finally:
            end(made)
            watching_changed(is_on)
    except BaseException:
        made.try_flush()  # the error of the block matters more
        raise
    made.flush()


class Replay:
    """The record of one step: `wf.replay(path)`."""

    def __init__(self, held: StepRecord) -> None:
        self._record = held

    def __repr__(self) -> str:
        return f"<wf.replay: {self._record}>"

    @property
    def name(self) -> str:
        """The name of the step."""
        return self._record.name

    @property
    def graph(self) -> Graph:
        """The program as it was traced; on a cluster as it was placed."""
        return self._record.graph

    @property
    def error(self) -> WeftError | None:
        """What the recorded step raised; None if it did not, or had not ended."""
        outcome = self._record.outcome
        return None if outcome is None else outcome.error

    def run(self, engine: str = "recorded") -> list[object]:
        """The results of the step, run again: arrays, None for effects. Raises what it raises.

        engine: "recorded" as it ran, in this process alone, which on the same machine gives the
        same bits; "interpreter", "native", "numba", "dataflow" or "gpu". UnsupportedError for what
        an engine does not run, InvalidArgumentError for one that there is not.
        """
        made = run_again(self._record, _checked(engine))
        if made.error is not None:
            raise made.error
        return list(made.results)

    def differences(self, *engines: str) -> list[Difference]:
        """How runs on two engines differ, those that are more than rounding first; with one, how
        its run differs from the recorded one, bit by bit. Errors as `run`, and UnsupportedError for
        a record of a step that had not ended, or of which a task that was lost has said nothing."""
        if len(engines) not in (0, 1, 2):
            raise InvalidArgumentError(
                f"differences takes one engine or two, got {len(engines)}",
                location=caller_location(),
            )
        runs = [run_again(self._record, _checked(e)) for e in engines or ("recorded",)]
        if len(runs) == 2:
            return differences(self._record.graph, runs[0], runs[1])
        return against_record(self._record, runs[0])

    def values(self, where: Any = None) -> list[InnerValue]:
        """The inner values of the step, as the reference interpreter makes them, to its end or to
        its error: `where` and values as of `CompiledFunction.values`. NotFoundError if there are
        none."""
        held, _ = known_part(self._record)
        check_where("wf.replay", where)
        host = HostReplay(held.graph, held.host).host(held.graph)
        return values_in_run(
            "wf.replay", held.graph, held.inputs, held.variables, where, host=host, may_fail=True
        )

    def shrink(self, first: str = "interpreter", second: str = "native") -> Replay | None:
        """A small part of the program on which two engines differ by more than rounding, with the
        values that it really had; None if there is none."""
        small = shrink_record(self._record, (_checked(first), _checked(second)))
        return None if small is None else Replay(small.record)


def _checked(engine: str) -> str:
    if engine not in ENGINES:
        raise InvalidArgumentError(
            f"'{engine}' is no engine of a replay",
            hint=f"it is one of {', '.join(ENGINES)}",
            location=caller_location(),
        )
    return engine


def replay(path: str | os.PathLike[str], step: int = -1) -> Replay:
    """A recorded step: of a file, or of a folder of records the one with this number in their order
    (-1: the last).

    NotFoundError where there is none, DataLossError for a damaged file, InvalidArgumentError for a
    file that is no record.

    >>> wf.replay("no-such-folder")
    Traceback (most recent call last):
    weft.ir.errors.NotFoundError: there are no records in no-such-folder
    ...
    """
    files: Sequence[Path] = find_records(Path(path))
    if not -len(files) <= step < len(files):
        raise InvalidArgumentError(
            f"wf.replay: {path} has {len(files)} records, there is no number {step}",
            location=caller_location(),
        )
    return Replay(load_record(files[step]))
