"""`weft replay`: run a recorded step again, go through it op by op, hold engines against each
other."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.frontend.tools.cluster import import_modules
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.process import load
from weft.ir.text.printer import print_graph, value_names

if TYPE_CHECKING:
    from weft.runtime.record.replay import Difference, Replayed
    from weft.runtime.record.step_record import StepRecord

#: As `runtime.record.replay.ENGINES`: the command line does not wait for that module.
_ENGINES = ("recorded", "interpreter", "native", "numba", "dataflow", "gpu")
#: A line to print, and whether all is well so far.
Line = tuple[str, bool]


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft replay`."""
    parser.add_argument("path", help="a record, or a folder of records (WEFT_RECORD=DIR)")
    parser.add_argument("--list", action="store_true", help="list the records, and run nothing")
    parser.add_argument(
        "--step", type=int, default=-1, metavar="K",
        help="which record of a folder, in the order of --list (default: -1, the last)",
    )  # fmt: skip
    parser.add_argument(
        "--engine", action="append", choices=_ENGINES, metavar="ENGINE", default=None,
        help=f"how to run it: {', '.join(_ENGINES)} (default: recorded, held against what was "
        "recorded); two of them are held against each other",
    )  # fmt: skip
    parser.add_argument(
        "--import", action="append", dest="imports", metavar="MODULE", default=[],
        help="import a module that registers ops and functions of the program (several times)",
    )  # fmt: skip
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--until", metavar="STOP",
        help="run the interpreter to there and show the op's values: OP, OP:ITERATION, FILE:LINE, "
        "FILE:LINE:ITERATION, #K (the K-th op), error",
    )  # fmt: skip
    parser.add_argument(
        "-i", "--interactive", action="store_true",
        help="with --until (default: #0): go on from there by next, until, print, continue",
    )  # fmt: skip
    only.add_argument("--program", action="store_true", help="print the program as it was traced")
    parser.add_argument(
        "--bits", action="store_true", help="two engines differ if any bit does, by rounding, too"
    )
    parser.add_argument(
        "--no-shrink", action="store_true", help="look for no smaller program where engines differ"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the record of the smaller program (default: "
        "NAME-small.safetensors, here)",
    )  # fmt: skip


def run_replay(args: Namespace) -> Iterator[Line]:
    """The lines that `weft replay` prints."""
    find: Any = load("weft.runtime.record.step_record", "find_records")
    read: Any = load("weft.runtime.record.step_record", "load_record")
    import_modules(args.imports, "weft replay")
    files: list[Path] = find(Path(args.path))
    if args.list:
        for number, file in enumerate(files):
            yield f"{number}  {file.name}", True
            try:
                yield f"   {read(file, runs=False)}", True
            except WeftError as error:
                yield f"   cannot be read: {error.what}", False
        return
    if not -len(files) <= args.step < len(files):
        raise InvalidArgumentError(
            f"{args.path} has {len(files)} records, there is no number {args.step}",
            hint="--list names them",
        )
    path = files[args.step]
    record: StepRecord = read(path, runs=not args.program)
    yield f"{path}: {record}", True
    here: Any = load("weft.runtime.record.recorder", "versions")
    others = [f"{k} {v}, here {here().get(k)}" for k, v in record.versions.items()
              if here().get(k) != v]  # fmt: skip
    if others:
        yield f"recorded with {'; '.join(others)}: other bits may be theirs", True
    missing: Any = load("weft.runtime.record.needs", "missing_kernels")
    command: Any = load("weft.runtime.record.needs", "replay_command")
    if kernels := [str(need) for need in missing(record.needs)]:
        again = command(path, record.needs)
        yield f"recorded with {'; '.join(kernels)}: other bits may be theirs. {again}", True
    if args.program:
        yield print_graph(record.graph).rstrip(), True
    elif args.until or args.interactive:
        yield from _stepped(record, args)
    else:
        yield from _compared(record, path, args)


def _stepped(record: StepRecord, args: Namespace) -> Iterator[Line]:
    # who only compares does not wait for this module
    from weft.frontend.tools import stepping

    stop = stepping.Stop.of(args.until or "#0")
    if args.interactive:
        made = stepping.run_to(record, stop, stepping.Console(record.graph).ask)
        if made is not None:
            yield from _ended(made)
        return
    lines: list[str] = []

    def ask(moment: stepping.Moment) -> None:
        if moment.error is not None and not stop.error:
            lines.append(f"the step does not come to {stop.text}, as this raises before:")
        lines.extend(moment.lines(value_names(record.graph)))
        raise stepping.Quit

    stepping.run_to(record, stop, ask)
    came = not lines[0].startswith("the step does not come")
    yield from ((line, came) for line in lines)


def _ended(made: Replayed) -> Iterator[Line]:
    from weft.frontend.tools.stepping import shown

    if made.error is not None:
        yield f"the step raised {type(made.error).__name__}: {made.error}", True
    for number, result in enumerate(made.results):
        if result is not None:
            yield f"result {number}: {shown(result)}", True


def _compared(record: StepRecord, path: Path, args: Namespace) -> Iterator[Line]:
    # the command line does not wait for what compiles
    from weft.runtime.record.agreement import disagreements
    from weft.runtime.record.replay import against_record, differences, run_again

    engines: list[str] = args.engine or ["recorded"]
    if len(engines) > 2:
        raise InvalidArgumentError("weft replay holds two engines against each other, not more")
    runs = [run_again(record, engine) for engine in engines]
    if len(runs) == 1:
        yield from _ended(runs[0])
        if record.outcome is None:
            yield "the recorded step had not ended: there is nothing to compare with", True
            return
        if record.silent:
            yield "how the recorded step ended cannot be compared with", True
            return
        found, what = against_record(record, runs[0]), "the recorded run"
    else:
        found, what = differences(record.graph, runs[0], runs[1]), f"'{engines[0]}'"
        if not args.bits:
            wrong = set(map(str, disagreements(record, runs[0], runs[1])))
            found = [replace(d, close=d.close or str(d) not in wrong) for d in found]
    yield from _told(found, f"'{engines[-1]}'", what, args.bits)
    if len(runs) == 2 and not args.no_shrink and any(args.bits or not d.close for d in found):
        yield from _shrunk(record, (engines[0], engines[1]), path, args)


def _told(found: list[Difference], engine: str, other: str, bits: bool) -> Iterator[Line]:
    if not found:
        yield f"{engine} gives the same bits as {other}", True
    for one in found:
        why = ", as rounding may have it" if one.close and "by rounding" not in one.why else ""
        yield f"{engine} against {other}: {one}{why}", one.close and not bits


def _shrunk(
    record: StepRecord, engines: tuple[str, str], path: Path, args: Namespace
) -> Iterator[Line]:
    from weft.runtime.record.shrink import shrink_record
    from weft.runtime.record.step_record import save_record

    small = shrink_record(record, engines, bits=args.bits)
    if small is None:
        yield "no smaller program on which they differ was found", False
        return
    target = Path(args.output) if args.output else Path(f"{path.stem}-small{path.suffix}")
    save_record(small.record, target)
    yield f"a program of {len(small.record.graph.ops)} ops on which they differ: {target}", False
    yield f"  {small.difference}", False
    yield print_graph(small.record.graph).rstrip(), False
