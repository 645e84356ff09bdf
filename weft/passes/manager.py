"""The pass manager: run a pipeline, with each pass timed, verified, dumped and logged as asked, and
the metrics of each graph: bytes moved, kernels, peak memory.

A pass goes from graph to graph and is applied to each part of a program; a `ProgramPass` sees all
parts (`partition` makes them). A `BoundPass` has settings.

WEFT_VERIFY=ir   verify the program after each pass; `run` also executes it before and after each
                 (`native` is about runs, not passes: runtime/record/verify_native.py)
WEFT_DUMP=dir    write dir/STEP/00-traced.weft, and NN-PASS.weft for each pass that changed it
WEFT_LOG=a,b     log the topics a and b (`passes`, `compile`, ...) to stderr

`NamedPipeline` is a pipeline of `pipelines` by its name: a step whose plan is on disk never loads
the passes themselves."""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import overload

from weft.ir.analysis.frames import is_dataflow
from weft.ir.analysis.verify import verify_program
from weft.ir.dataclass import dataclass
from weft.ir.errors import PassError, VerifyError, suggest
from weft.ir.graph import WITH_DEAD_VALUES, Graph, Operation, Value
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock, load
from weft.ir.program import Program
from weft.ir.text.printer import print_program
from weft.ir.types import TensorType
from weft.passes.differential import check_same_meaning
from weft.passes.rewriting.rewrite import is_view

Pass = Callable[[Graph], Graph]
log = logging.getLogger("weft.passes")


@dataclass(frozen=True, slots=True)
class BoundPass:
    """A pass from graph to graph with its settings: sizes, feeds, devices. name: what dumps,
    reports and `--passes` call it."""

    name: str
    run: Pass

    def __call__(self, graph: Graph) -> Graph:
        return self.run(graph)


@dataclass(frozen=True, slots=True)
class ProgramPass:
    """A pass that sees a program as a whole; others are applied to each of its parts.
    changes_meaning: what it makes is meant to compute something else."""

    name: str
    run: Callable[[Program], Program]
    changes_meaning: bool = False


AnyPass = Pass | ProgramPass

#: The value of WEFT_VERIFY that is not for passes: runs are held against the interpreter.
NATIVE = "native"
#: Passes whose result is meant to compute something else: WEFT_VERIFY=run does not compare it.
CHANGES_MEANING = frozenset({"differentiate", "prune"})

#: weft's passes that keep the meaning of graphs with dead values (those of users are trusted).
ON_DATAFLOW = frozenset({
    "lower_control_flow", "dce", "prune", "specialize", "tie_sizes", "place",
})  # fmt: skip

#: What WEFT_LOG may name: one for each logger `weft.TOPIC`.
TOPICS = (
    "checkpoint", "cluster", "comm", "compile", "data", "passes", "place", "resources", "run",
    "serving", "summary", "train", "transfers",
)  # fmt: skip


@dataclass(frozen=True)
class PassOptions:
    """Options of the manager. verify: "", "ir" or "run". dump: the folder for the dumps of all
    steps, or None. log: topics to log. dumps: where those of one step go (`for_step`)."""

    verify: str = ""
    dump: Path | None = None
    log: frozenset[str] = frozenset()
    dumps: StepDumps | None = None

    def __post_init__(self) -> None:
        if self.verify not in ("", "ir", "run"):
            raise PassError(
                f"WEFT_VERIFY={self.verify}", hint="it must be empty, 'ir', 'run' or 'native'"
            )
        for topic in sorted(self.log - {*TOPICS}):
            raise PassError(
                f"WEFT_LOG names the topic '{topic}', which does not exist{suggest(topic, TOPICS)}",
                hint=f"the topics are: {', '.join(TOPICS)} (several with commas)",
            )

    @staticmethod
    def from_environment() -> PassOptions:
        """What WEFT_VERIFY, WEFT_DUMP and WEFT_LOG say; from now on is logged what they name.
        Raises PassError for a wrong value."""
        verify, dump = os.environ.get("WEFT_VERIFY", ""), os.environ.get("WEFT_DUMP", "")
        topics = os.environ.get("WEFT_LOG", "").split(",")
        options = PassOptions(
            "" if verify == NATIVE else verify,
            Path(dump) if dump else None,
            frozenset(t.strip() for t in topics if t.strip()),
        )
        configure_logging(options.log)
        return options

    @staticmethod
    def of_step(options: PassOptions | None, name: str) -> PassOptions:
        """`options` if they are those of a step already, else for a step of this name; None: the
        environment's."""
        options = options or PassOptions.from_environment()
        return options if options.dumps else options.for_step(name)

    def for_step(self, name: str) -> PassOptions:
        """These for all that compiling one step runs, whose dumps stand in one new folder."""
        return self if self.dump is None else replace(self, dumps=StepDumps(self.dump, name))

    def for_part(self, name: str) -> PassOptions:
        """These for a part or region of the step, whose dumps stand in a folder of the step's."""
        if self.dumps is None:
            return self.for_step(name)
        return replace(self, dumps=StepDumps(self.dumps.folder, name))

    def write_kernels(self, write: Callable[[Path], None]) -> None:
        """Have the kernels of a step written beside the dumps of its passes, if there are dumps."""
        if self.dumps is not None:
            with _dump_errors(self.dumps.folder):
                write(self.dumps.folder)

    def write_plan(self, lines: Callable[[], str]) -> None:
        """Write what a plan does beside the dumps of its passes, if there are dumps."""
        if self.dumps is not None:
            self.dumps.write(PLAN_FILE, lines() + "\n")


#: For passes that run again for people: nothing is verified or dumped.
QUIET = PassOptions()


@dataclass(frozen=True)
class PassReport:
    """The report on one pass: its name, seconds, number of ops before and after, and what it made.

    The first report of a run is called `traced` and holds the program that the run began with.
    """

    name: str
    seconds: float
    ops_before: int
    ops_after: int
    program: Program
    changed: bool

    @property
    def graph(self) -> Graph:
        """The graph, if the program is one."""
        return self.program.graph

    @cached_property
    def bytes(self) -> int | None:
        """Bytes that the kernels of all parts move; None if a shape is not static."""
        found = [bytes_moved(part.graph) for part in self.program.parts]
        return None if None in found else sum(n for n in found if n is not None)

    @cached_property
    def kernels(self) -> int:
        """Ops of all parts that will be kernels."""
        return sum(kernel_count(part.graph) for part in self.program.parts)

    @cached_property
    def peak_bytes(self) -> int | None:
        """Bytes of results alive at once at the worst in a part; None if a shape is not static."""
        found = [peak_bytes(part.graph) for part in self.program.parts]
        return None if None in found else max((n for n in found if n is not None), default=0)


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    *,
    options: PassOptions | None = None,
) -> tuple[Graph, list[PassReport]]:
    """As `run_pipeline`, from graph to graph."""
    made, reports = run_pipeline(Program.of(graph), passes, options=options)
    return made.graph, reports


def run_pipeline(
    program: Program,
    passes: Sequence[AnyPass],
    *,
    options: PassOptions | None = None,
    is_valid: bool = True,
) -> tuple[Program, list[PassReport]]:
    """Apply `passes` in order, those of graphs to each part; `options` come from the environment
    unless given.

    Dumps go to the folder of the step, if `options` are those of one (`PassOptions.for_step`), or
    to a new one. is_valid: what the run begins with obeys the rules of the IR, as all that it makes
    must. Raises PassError, naming the pass and the repro file, if a pass broke a graph or its
    meaning.
    """
    if options is not None and options.log:  # those of the environment have logged since
        configure_logging(options.log)
    name = program.name
    options = PassOptions.of_step(options, name)
    dumps = options.dumps
    count = _count(program)
    reports = [PassReport("traced", 0.0, count, count, program, False)]
    if options.verify and is_valid:
        _verify(program)
    if dumps is not None:
        dumps.begin(program)
    for run in passes:
        report = _run_pass(program, run, options, reports[-1].ops_after)
        if dumps is not None:
            dumps.passed(report)
        log.debug(
            "%s: %s: %.2f ms, %d -> %d ops%s",
            name,
            report.name,
            report.seconds * 1e3,
            report.ops_before,
            report.ops_after,
            "" if report.changed else ", unchanged",
        )
        reports.append(report)
        program = report.program
    return program, reports


def pass_name(run: AnyPass) -> str:
    """The name of a pass: its own, or its function's."""
    own = getattr(run, "__name__", None) or getattr(run, "name", None)
    return own if isinstance(own, str) else type(run).__name__


def _run_pass(program: Program, run: AnyPass, options: PassOptions, before: int) -> PassReport:
    name = pass_name(run)
    start = time.perf_counter()
    if isinstance(run, ProgramPass):
        new = run.run(program)
    else:
        new = program.with_graphs(_run_on_graph(part.graph, run, name) for part in program.parts)
    seconds = time.perf_counter() - start
    changed = new is not program and new != program
    if options.verify and changed:
        try:
            _verify(new)
        except VerifyError as error:
            raise PassError(f"pass '{name}' broke graph '{program.name}': {error}") from error
        exempt = isinstance(run, ProgramPass) and run.changes_meaning
        if options.verify == "run" and name not in CHANGES_MEANING and not exempt:
            check_same_meaning(program, new, _runner(run), name, options.dump or Path("."))
    return PassReport(name, seconds, before, _count(new) if changed else before, new, changed)


def _run_on_graph(graph: Graph, run: Pass, name: str) -> Graph:
    if graph.stage in WITH_DEAD_VALUES and name not in ON_DATAFLOW and _is_ours(run):
        raise PassError(
            f"pass '{name}' does not know graphs of stage '{graph.stage}', such as "
            f"'{graph.name}': it would lose which values are dead",
            hint="run it before lower_control_flow",
        )
    new = run(graph)
    if not isinstance(new, Graph):
        raise PassError(
            f"pass '{name}' returned a {type(new).__name__}, not a graph",
            hint="a pass is a function from graph to graph; it returns its argument if it changes "
            "nothing",
            location=caller_location(),
        )
    return new


def _verify(program: Program) -> None:
    """VerifyError for a program that breaks a rule. A session's graph with the user's Switch and
    Merge is looked at when they are lowered: which results may be dead is said to users then."""
    graphs = [part.graph for part in program.parts]
    if not any(g.stage == "traced" and is_dataflow(g.block) for g in graphs):
        verify_program(program)


def _runner(run: AnyPass) -> Callable[[Graph], Graph | Program]:
    """The pass from a graph."""
    if isinstance(run, ProgramPass):
        return lambda graph: run.run(Program.of(graph))
    return run


def _is_ours(run: Pass) -> bool:
    return str(getattr(run, "__module__", "")).startswith("weft.passes.")


def _count(program: Program) -> int:
    """All ops, those of regions too."""
    count, rest = 0, [part.graph.block for part in program.parts]
    while rest:
        ops = rest.pop().ops
        count += len(ops)
        rest += [region for op in ops if op.regions for region in op.regions]
    return count


# ------------------------------------------------------------------------------------------- dumps

#: What a dump folder holds besides the graphs: the kernels of the step and its memory.
PLAN_FILE = "plan.txt"

_lock = ForkLock()
_folders: set[Path] = set()


class StepDumps:
    """The folder with the dumps of one step: NAME, NAME.2, NAME.3, ... within `root`.

    Files are numbered in the order of the passes, of all pipelines that the step goes through:
    `traced` is what the first begins with, `step` what a later one does.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.folder, self._number = _new_folder(root, name), 0

    def begin(self, program: Program) -> None:
        """A pipeline begins with `program`."""
        self._write("step" if self._number else "traced", program)

    def passed(self, report: PassReport) -> None:
        """A pass has run."""
        if report.changed:
            self._write(report.name, report.program)
        else:
            self._number += 1

    def write(self, name: str, text: str) -> None:
        """Write a file. PassError if that fails."""
        with _dump_errors(self.folder):
            (self.folder / name).write_text(text, encoding="utf-8")

    def _write(self, name: str, program: Program) -> None:
        self.write(f"{self._number:02d}-{name}.weft", print_program(program))
        self._number += 1


def _new_folder(root: Path, name: str) -> Path:
    """A new folder for each step of this process, without what another process left there."""
    safe = re.sub(r"[^\w.-]", "_", name).strip(".") or "graph"
    with _lock:
        names: Iterator[str] = (safe if i == 1 else f"{safe}.{i}" for i in itertools.count(1))
        folder = next(root / n for n in names if root / n not in _folders)
        _folders.add(folder)
    with _dump_errors(root):
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("[0-9][0-9]-*.weft"), folder / PLAN_FILE):
            old.unlink(missing_ok=True)
    return folder


@contextmanager
def _dump_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PassError(
            f"WEFT_DUMP: the graphs cannot be written to {folder}: {error.strerror or error}",
            hint="set WEFT_DUMP to a folder that can be written to, or unset it",
        ) from None


# --------------------------------------------------------------------------------------------- log


class _ToStderr(logging.Handler):
    """A log handler that writes to what `sys.stderr` is by then: notebooks, `redirect_stderr` and
    tests put others there. `before`: the level of its logger without it."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.before = before

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def configure_logging(topics: frozenset[str]) -> None:
    """Send the loggers `weft.TOPIC` of these topics, and of no others, to stderr at level DEBUG."""
    for topic in TOPICS:
        logger = logging.getLogger(f"weft.{topic}")
        before = [h for h in logger.handlers if isinstance(h, _ToStderr)]
        if topic in topics and not before:
            handler = _ToStderr(logger.level)  # which it has again when nobody asks any more
            handler.setFormatter(logging.Formatter("weft %(name)s: %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.DEBUG)
        elif topic not in topics:
            for handler in before:
                logger.removeHandler(handler)
                logger.setLevel(handler.before)


class NamedPipeline(Sequence["Pass"]):
    """The passes of `pipelines.PIPELINES[name]`, loaded when somebody looks at one of them."""

    __slots__ = ("_passes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._passes: tuple[Pass, ...] | None = None

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes in order."""
        if self._passes is None:
            pipelines = load("weft.passes.pipelines", "PIPELINES")
            assert isinstance(pipelines, dict)
            self._passes = pipelines[self.name]
        return self._passes

    def __len__(self) -> int:
        return len(self.passes)

    @overload
    def __getitem__(self, index: int) -> Pass: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Pass, ...]: ...
    def __getitem__(self, index: int | slice) -> Pass | tuple[Pass, ...]:
        return self.passes[index]

    def __reduce__(self) -> tuple[type[NamedPipeline], tuple[str]]:
        return NamedPipeline, (self.name,)


#: What `@wf.compile` does unless it is told otherwise.
STANDARD = NamedPipeline("standard")


#: Ops that never become a kernel: they hold data, name state, or only order effects.
NOT_KERNELS = frozenset({"constant", "variable", "read", "group", "custom_gradient", "dim_size"})


def is_kernel(op: Operation) -> bool:
    """Whether the op will run as a kernel of its own (fusion makes one `fused` op of many)."""
    return op.name not in NOT_KERNELS and not is_view(op)


def kernel_count(graph: Graph) -> int:
    """The number of ops of the top block that will be kernels."""
    return sum(is_kernel(op) for op in graph.ops)


def bytes_moved(graph: Graph) -> int | None:
    """Bytes of the kernels' operands and results; None if a shape is not static."""
    total = 0
    for op in graph.ops:
        if is_kernel(op):
            for value in (*op.operands, *op.results):
                size = _nbytes(value)
                if size is None:
                    return None
                total += size
    return total


def peak_bytes(graph: Graph) -> int | None:
    """The most bytes of results alive at once, running the ops in order; None if not all static.

    Inputs, constants and variables are not counted; a view keeps its operand alive; nothing is
    computed in place (the memory plan of the compiled step does better).
    """
    root: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for position, op in enumerate(graph.ops):
        for value in op.operands:
            last[root.get(value, value)] = position
        if is_view(op):
            root[op.result] = root.get(op.operands[0], op.operands[0])
    for value in graph.results:
        last[root.get(value, value)] = len(graph.ops)
    alive = peak = 0
    ends: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        if is_kernel(op):
            for value in op.results:
                size = _nbytes(value)
                if size is None:
                    return None
                alive += size
                end = last.get(value, position)
                ends[end] = ends.get(end, 0) + size
        peak = max(peak, alive)
        alive -= ends.pop(position, 0)
    return peak


def _nbytes(value: Value) -> int | None:
    if not isinstance(value.type, TensorType):
        return 0
    return value.type.nbytes if value.type.is_static else None
