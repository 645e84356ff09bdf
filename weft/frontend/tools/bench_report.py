"""Benchmarks: targets (the built-in suites, a function of the user's, or a dumped graph) measured
one after another, tables, and the roofline picture (Williams, Waterman and Patterson 2009)."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.frontend.compile.cost import (
    QUICK,
    WIDTH,
    Cost,
    Effort,
    cost_table,
    inputs_of,
    measure,
    peaks_lines,
    peaks_now,
)
from weft.frontend.compile.decorator import compile
from weft.frontend.compile.function import CompiledFunction
from weft.frontend.compile.gpu import gpu_number, not_on_gpu
from weft.frontend.compile.threads import checked
from weft.frontend.tools.bench_history import SCHEMA, run_facts
from weft.frontend.tools.bench_workloads import (
    DEFAULT,
    PEERS,
    WORKLOADS,
    Comparison,
    Workload,
    compiled,
    contest,
    machine,
    missing,
    suites,
)
from weft.frontend.tools.run import (
    compile_for,
    completed_arrays,
    given_arrays,
    load,
    named_pairs,
    static_graph,
)
from weft.ir.analysis.verify import verify
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    ParseError,
    UnsupportedError,
    suggest,
)
from weft.ir.graph import Graph
from weft.ir.text.parser import parse_graph
from weft.ir.types import TensorType
from weft.passes.differential import random_array
from weft.passes.pipelines import GPU
from weft.runtime.compile_step import CompileOptions, compile_step
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.executable import Executable
from weft.runtime.native.kernel_times import Piece, pieces_of
from weft.runtime.native.pool import POOL
from weft.runtime.resources.variables import VariableState
from weft.runtime.trace.peaks import MEMORY, Peaks

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Target:
    """A compiled step and what it runs on. workload, function: of a built-in one."""

    name: str
    executable: Executable | DeviceStep
    inputs: Sequence[Array]
    variables: Mapping[str, VariableState]
    workload: Workload | None = None
    function: CompiledFunction[Any, Any] | None = None

    @property
    def on_cpu(self) -> Executable:
        """The native code. UnsupportedError for a step on a GPU."""
        if self.executable.kind != "native":
            raise not_on_gpu("cost")
        return self.executable

    @property
    def lines(self) -> tuple[str, ...]:
        """Where a built-in function is: the IR names lines outside weft only."""
        if self.workload is None:
            return ()
        code = self.workload.function.__code__
        return (f"{code.co_filename}:{code.co_firstlineno}",)


def targets(
    args: Namespace, read_graph: Callable[[str], Graph], device: str | None = None
) -> Iterator[Target]:
    """What `args.what` names, one after another, so that no two hold memory at once. device: what
    it is compiled for, as `wf.compile` takes it; None: what a function says, or the CPU.

    NotFoundError for what is not there, InvalidArgumentError for arguments that do not fit.
    """
    what: str = args.what
    if what == "all" or what in suites():
        yield from _suite(what, args.quick, device)
    elif what == "-" or what.endswith(".weft"):
        yield _dump(what, args, read_graph, device)
    elif ":" in what:
        yield _function(what, args, device)
    else:
        raise _no_suite(what)


def named_targets(
    what: str | Path | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    quick: bool,
) -> Iterator[Target]:
    """What `wf.bench` names: a suite, a function with its arguments, or a dump with its inputs by
    name (random ones for the others). Errors as `targets`."""
    if callable(what):
        function = what if isinstance(what, CompiledFunction) else compile(what)
        yield _of_call(function._name, function, args, kwargs)
        return
    name = str(what)
    is_dump = name.endswith(".weft")
    if args or (kwargs and not is_dump):
        raise InvalidArgumentError(
            f"wf.bench: {name!r} takes no arguments" + (" but inputs by name" * is_dump)
        )
    if is_dump:
        yield _graph(name, kwargs)
    elif name == "all" or name in suites():
        yield from _suite(name, quick)
    else:
        raise _no_suite(name)


def _no_suite(name: str) -> NotFoundError:
    names = ["all", *suites()]
    return NotFoundError(
        f"there is no suite '{name}'{suggest(name, names)}",
        hint=f"give one of {', '.join(names)}, FILE.py:FUNCTION or FILE.weft",
    )


def _suite(name: str, quick: bool, device: str | None = None) -> Iterator[Target]:
    seen: set[Any] = set()
    for workload in WORKLOADS:
        if name not in ("all", workload.suite):
            continue
        arrays = workload.make(quick)
        what = (workload.function, tuple(a.shape for a in arrays))
        if what in seen:
            continue  # the sizes of two are the same when they are small
        seen.add(what)
        function = compiled(workload)
        title = f"{workload.suite}: {workload.name}{', small' if quick else ''}"
        yield _of_call(title, _for_device(function, device), arrays, {}, workload)


def _of_call(
    name: str,
    function: CompiledFunction[Any, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    workload: Workload | None = None,
) -> Target:
    made = function._specialized(tuple(args), dict(kwargs))
    inputs = inputs_of(function._key(tuple(args), dict(kwargs)), made.traced.graph.args)
    step = made.step([a.shape for a in inputs])
    if not isinstance(step, Executable | DeviceStep):
        raise made.not_native("cost")
    return Target(name, step, inputs, made.traced.variables, workload, function)


def _for_device(
    function: CompiledFunction[Any, Any], device: str | None
) -> CompiledFunction[Any, Any]:
    """The same function compiled for another device."""
    if device is None:
        return function
    return compile(device=device, static_argnames=sorted(function._static))(function._fn)


# ------------------------------------------------------------------------------------------ dumps


def _dump(
    path: str, args: Namespace, read_graph: Callable[[str], Graph], device: str | None
) -> Target:
    graph = read_graph(path)
    verify(graph)
    if args.seed is None:
        args.seed = 0
    return _of_graph(path, graph, *given_arrays(graph, args), device)


def _graph(path: str, given: Mapping[str, Any]) -> Target:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise NotFoundError(f"there is no file {path}: {error.strerror}") from None
    graph = parse_graph(text)
    verify(graph)
    arrays = {name: np.asarray(value) for name, value in given.items()}
    return _of_graph(path, graph, *completed_arrays(graph, arrays, {}, 0, {}))


def _of_graph(
    path: str,
    graph: Graph,
    inputs: Sequence[Array],
    before: Mapping[str, Array],
    device: str | None = None,
) -> Target:
    number = None if device is None else gpu_number(device)
    executable: Executable | DeviceStep
    if number is None:
        executable, variables = compile_for(graph, inputs, before)
    else:
        static, variables = static_graph(graph, inputs, before)
        made = compile_step(static, variables, options=CompileOptions(GPU), gpu=number)
        assert made.kind == "gpu"
        executable = made
    given = [np.ascontiguousarray(a).reshape(a.shape) for a in inputs]
    return Target(f"{path} @{graph.name}", executable, given, variables)


# -------------------------------------------------------------------------------------- functions


def _function(what: str, args: Namespace, device: str | None) -> Target:
    place, _, name = what.rpartition(":")
    module = _module(place)
    found: Any = _attribute(module, name, place)
    if not callable(found):
        raise InvalidArgumentError(f"{what} is a {type(found).__name__}, not a function")
    function = _for_device(found if isinstance(found, CompiledFunction) else compile(found), device)
    if args.example is not None:
        if args.feed:
            raise InvalidArgumentError("give --example or --feed, not both")
        given = _attribute(module, args.example, place)
        given = given() if callable(given) else given
        if isinstance(given, dict):
            return _of_call(what, function, (), given)
        return _of_call(what, function, given if isinstance(given, tuple) else (given,), {})
    return _of_call(what, function, *_fed(function, what, args))


def _fed(
    function: CompiledFunction[Any, Any], what: str, args: Namespace
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from `--feed NAME=FILE.npy` or `--feed NAME=f32[8,4]`."""
    parameters = inspect.signature(function).parameters
    fed = named_pairs(args.feed, "--feed")
    for name in fed:
        if name not in parameters:
            raise NotFoundError(
                f"{what} has no parameter '{name}'{suggest(name, list(parameters))}",
                hint=f"it has: {', '.join(parameters) or 'none'}",
            )
    generator = np.random.default_rng(args.seed or 0)
    values = {n: load(t) if t.endswith(".npy") else _random(t, generator) for n, t in fed.items()}
    needed = [n for n, p in parameters.items() if p.default is p.empty and n not in values]
    if needed and parameters[needed[0]].kind in (
        inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    ):  # fmt: skip
        raise InvalidArgumentError(
            f"there is no value for the parameter '{needed[0]}' of {what}",
            hint=f"--feed '{needed[0]}=f32[1024,1024]' for random values, "
            f"--feed {needed[0]}=FILE.npy, or --example NAME of arguments in its module",
        )
    positional = tuple(
        values.pop(n)
        for n, p in parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and n in values
        and not any(m not in fed for m in list(parameters)[: list(parameters).index(n)])
    )  # fmt: skip
    return positional, values


def _random(text: str, generator: np.random.Generator) -> Array:
    """A random array of a type as the IR writes it."""
    try:
        graph = parse_graph(f"graph @a(%x: {text}) -> ({text}) stage=traced {{\n return %x\n}}\n")
    except ParseError:
        raise InvalidArgumentError(
            f"--feed: '{text}' is neither a file FILE.npy nor a type",
            hint="for example f32[8,1024]",
        ) from None
    held = graph.args[0].type
    if not isinstance(held, TensorType) or not held.is_static:
        raise InvalidArgumentError(f"--feed: '{text}' has a dimension without a size")
    return random_array(held, generator, 0)


def _module(place: str) -> Any:
    """The module in a file, or by name. NotFoundError if there is none."""
    if not place.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise NotFoundError(f"there is no module '{place}': {error}") from None
        finally:
            sys.path.remove("")
    path = Path(place)
    if not path.is_file():
        raise NotFoundError(f"there is no file {place}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _attribute(module: Any, name: str, place: str) -> Any:
    held = module
    for part in name.split("."):
        if not hasattr(held, part):
            public = [n for n in vars(module) if not n.startswith("_")]
            raise NotFoundError(f"{place} has no '{name}'{suggest(name, public)}")
        held = getattr(held, part)
    return held


#: Inches and dots per inch: 1600 x 1000 pixels.
SIZE, DPI = (10.0, 6.25), 160
_LABEL = 44


def check_installed() -> None:
    """UnsupportedError, saying what to install, without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "--png draws with matplotlib, which is not installed",
            hint="pip install 'matplotlib>=3.10,<4' (in weft's extra 'examples')",
        )


def draw_roofline(costs: Sequence[Cost], path: Path) -> int:
    """Write the picture as PNG; one point for each kernel that has flops. How many were left out
    because they have none, or were not reached."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    peaks = costs[0].peaks
    points, left_out = _points(costs)
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low = min([0.05, *(0.7 * x for x, _, _, _ in points)])
    high = max([100.0, *(1.4 * x for x, _, _, _ in points)])
    _roofs(axes, peaks, low, high)
    for number, (x, y, level, name) in enumerate(points, 1):
        axes.plot([x], [y], "o", color=_colour(level), markersize=6)
        axes.annotate(str(number), (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
        axes.plot([], [], "o", color=_colour(level), label=f"{number} {_short(name)} ({level})")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"{peaks.cpu}, {peaks.threads} threads", fontsize=10)
    axes.grid(True, which="major", linewidth=0.4)
    if points:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7, frameon=False)
    figure.savefig(path, format="png")
    return left_out


def _points(costs: Sequence[Cost]) -> tuple[list[tuple[float, float, str, str]], int]:
    """(operations per byte, GFLOP/s, level, name) of each kernel; how many have none."""
    out, left_out = [], 0
    for cost in costs:
        for row in cost.rows:
            rates = row.rates(cost.peaks)
            if rates is None or not row.work.flops or not row.bytes:
                left_out += 1
                continue
            assert rates.flops_per_second is not None
            name = cost.name if len(cost.rows) == 1 else f"{cost.name} {row.number} {row.name}"
            intensity = row.work.flops / row.bytes
            out.append((intensity, rates.flops_per_second / 1e9, rates.level, name))
    return out, left_out


def _roofs(axes: Any, peaks: Peaks, low: float, high: float) -> None:
    top = peaks.flops_per_second("f32", peaks.threads) / 1e9
    xs = np.geomspace(low, high, 200)
    for level in peaks.bandwidth:
        slope = peaks.bytes_per_second(level, peaks.threads) / 1e9
        name = "memory" if level == MEMORY else level
        axes.plot(xs, np.minimum(slope * xs, top), color=_colour(level), linewidth=1.2)
        axes.annotate(
            f"{name} {slope:.0f} GB/s", (low, slope * low), textcoords="offset points",
            xytext=(4, 5), fontsize=7, color=_colour(level),
        )  # fmt: skip
    axes.annotate(
        f"multiply-add f32 {top:.0f} GFLOP/s", (high, top), textcoords="offset points",
        xytext=(-4, 4), ha="right", fontsize=7,
    )  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= _LABEL else text[: _LABEL - 2] + ".."


def _colour(level: str) -> str:
    return {"L1": "tab:purple", "L2": "tab:blue", "L3": "tab:green"}.get(level, "tab:red")


_PEER_ROUNDS = 30
#: Of what takes more than 2 ms, as a peer may take fifty times as long. A run that is alone is cut
#: into two parts: of 10 samples these hide most changes of 30 % (`noise.LEAST_PART`), of 20 none.
_FEWER_ROUNDS = 20


@dataclass
class Report:
    """The report of a benchmark: costs, comparisons by the name of the cost, and what else to say.
    run: when and of which commit. machine_name: what the user calls the machine.

    `str(report)` is what `weft bench` prints.
    """

    costs: list[Cost] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    footnotes: list[str] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=run_facts)
    machine_name: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has: times in seconds, sizes in bytes, rates per second."""
        workloads = []
        for cost in self.costs:
            held = cost.to_dict()
            comparison = self.comparisons.get(cost.name)
            if comparison is not None:
                held["against"] = {
                    peer: {**asdict(timing), "ratio": comparison.ratio(peer)}
                    for peer, timing in comparison.timings.items()
                }
            workloads.append(held)
        threads = self.costs[0].peaks.threads if self.costs else POOL.limit
        return {
            "schema": SCHEMA,
            "run": self.run,
            "machine": {**machine(), "name": self.machine_name, "threads": threads},
            "peaks": asdict(self.costs[0].peaks) if self.costs else None,
            "workloads": workloads,
            "footnotes": list(dict.fromkeys(self.footnotes)),
        }

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def png(self, path: str | Path) -> None:
        """Draw the roofline into the file `path`. UnsupportedError without matplotlib."""
        check_installed()
        left_out = draw_roofline(self.costs, Path(path))
        if left_out:
            self.footnotes.append(f"{path}: {left_out} kernels without flops are not in it")

    def parts(self) -> list[Any]:
        """Lines, and tables of rich, in order."""
        shown: list[Any] = peaks_lines(self.costs[0].peaks) if self.costs else []
        for cost in self.costs:
            shown += ["", cost_table(cost)]
            if cost.name in self.comparisons:
                shown.append(against_line(self.comparisons[cost.name]))
        return [*shown, *(f"- {note}" for note in dict.fromkeys(self.footnotes))]

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False)
        for part in self.parts():
            console.print(part, markup=False, soft_wrap=isinstance(part, str))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()


@dataclass(frozen=True)
class Options:
    """Options of a benchmark. kernel: only kernels with this in their names, or of this number.
    threads: at most so many. peers: whom to compare suites with. rounds: of each timing. quick:
    small arrays, few rounds. asked: whether the peers were named, so that it is worth saying why
    there are none."""

    kernel: str | None = None
    threads: int | None = None
    peers: Sequence[str] = DEFAULT
    rounds: int | None = None
    quick: bool = False
    asked: bool = False


def checked_peers(names: Iterable[str]) -> list[str]:
    """The peers among `names`, of which "none" is none. NotFoundError for others."""
    peers = [name.strip() for name in names if name.strip() not in ("", "none")]
    for name in peers:
        if name not in PEERS:
            raise NotFoundError(
                f"--against: there is no '{name}'{suggest(name, list(PEERS))}",
                hint=f"it takes {', '.join(PEERS)}",
            )
    return peers


def measure_all(
    targets: Iterable[Target], options: Options, show: Callable[[Any], None] = lambda part: None
) -> Report:
    """Measure each target; `show` gets each line and table as soon as it is there (without the
    footnotes). NotFoundError if no kernel is the one that is asked for."""
    if options.rounds is not None and options.rounds < 1:
        raise InvalidArgumentError(f"--rounds {options.rounds}: it must be 1 or more")
    before = POOL.limit
    try:
        if options.threads is not None:
            POOL.set_limit(options.threads)
        return _measure_all(targets, options, show)
    finally:
        if options.threads is not None:
            POOL.set_limit(before)


def _measure_all(
    targets: Iterable[Target], options: Options, show: Callable[[Any], None]
) -> Report:
    report = Report()
    names: list[str] = []
    effort = QUICK if options.quick else Effort()
    if options.rounds is not None:
        effort = Effort(options.rounds, effort.seconds * options.rounds / effort.rounds)
    peaks: Peaks | None = None
    wanted = _chooser(options.kernel)
    for target in targets:
        pieces = pieces_of(target.on_cpu)
        names += [c.call.kernel.name for p in pieces for c in p.calls]
        if options.kernel is not None and not any(wanted(n, p) for n, p in enumerate(pieces, 1)):
            continue
        if peaks is None:
            peaks = peaks_now(quick=options.quick)
            for line in peaks_lines(peaks):
                show(line)
        cost = measure(
            target.on_cpu, target.inputs, target.variables, target.name, effort, wanted, peaks
        )
        if target.lines:
            cost = replace(cost, rows=tuple(replace(r, lines=target.lines) for r in cost.rows))
        report.costs.append(cost)
        show("")
        show(cost_table(cost))
        _compare(report, target, options, show)
    if peaks is None:
        raise NotFoundError(
            f"there is no kernel '{options.kernel}'{suggest(str(options.kernel), names)}",
            hint=f"there are: {', '.join(dict.fromkeys(names)) or 'none'}",
        )
    return report


def _chooser(kernel: str | None) -> Callable[[int, Piece], bool]:
    def wanted(number: int, piece: Piece) -> bool:
        if kernel is None or kernel == str(number):
            return True
        return not kernel.isdigit() and any(kernel in c.call.kernel.name for c in piece.calls)

    return wanted


def _compare(report: Report, target: Target, options: Options, show: Callable[[Any], None]) -> None:
    """Whole calls against the peers, unless only some kernels are asked for."""
    if options.kernel is not None or not options.peers:
        return
    if target.workload is None:
        if options.asked:
            report.footnotes.append("--against is for the built-in suites: nobody else has this")
        return
    absent = missing(options.peers)
    if absent:
        report.footnotes.append(f"not installed, so not compared with: {', '.join(absent)}")
    here = [p for p in options.peers if p not in absent]
    if here:
        comparison = _contest(report, target, here, options)
        report.comparisons[report.costs[-1].name] = comparison
        show(against_line(comparison))


def _contest(report: Report, target: Target, peers: Sequence[str], options: Options) -> Comparison:
    assert target.workload is not None
    assert target.function is not None
    rounds = options.rounds or (3 if options.quick else _PEER_ROUNDS)
    seconds = report.costs[-1].step
    if seconds is not None and seconds.minimum > 2e-3 and options.rounds is None:
        rounds = min(rounds, _FEWER_ROUNDS)
    comparison, notes = contest(target.workload, target.function, target.inputs, peers, rounds)
    report.footnotes += notes
    return comparison


def against_line(comparison: Comparison) -> str:
    """Microseconds of a call, and how many times as long the peers take."""
    cells = [f"weft {_timing(comparison, 'weft')}"]
    for peer in comparison.timings:
        if peer != "weft":
            least, median = comparison.ratio(peer)
            cells.append(f"{peer} {_timing(comparison, peer)}, {least:.2f}x / {median:.2f}x")
    return "calls in us (min / median): " + "; ".join(cells)


def _timing(comparison: Comparison, name: str) -> str:
    timing = comparison.timings[name]
    return f"{timing.minimum * 1e6:.1f} / {timing.median * 1e6:.1f}"


def bench(
    what: str | Path | Callable[..., Any] = "all",
    /,
    *args: Any,
    kernel: str | int | None = None,
    against: str | Sequence[str] = (),
    threads: int | None = None,
    rounds: int | None = None,
    quick: bool = False,
    **kwargs: Any,
) -> Report:
    """Time kernels (docs/guide/bench.md): of a built-in suite ("chains", "rows", "matmul",
    "reductions", "copies", "conv", "all"), of a function called with args and kwargs, or of a
    dumped graph.

    A function is compiled if it is not yet; `TensorType`s in place of tensors get random values. Of
    a dump, "FILE.weft", kwargs are the inputs by name; those that are not given are random.
    kernel: only those with this in their names, or of this number. against: who else computes the
    suites, of "numpy", "jax", "torch", "torch.compile". threads: at most so many. rounds: how often
    each thing is timed. quick: small arrays, few rounds.

    `print` the report for the tables; it has `to_json()`, `png(path)` and `costs`. NotFoundError
    and InvalidArgumentError for what is not there and arguments that do not fit.

    >>> report = wf.bench(lambda x: wf.exp(x) + 1, wf.TensorType(wf.float32, (64,)), quick=True)
    >>> [(row.name, row.work.flops) for row in report.costs[0].rows]  # print(report): the times
    [('exp_add', 64)]
    """
    # who does not measure does not wait for these modules when weft is imported

    options = Options(
        None if kernel is None else str(kernel),
        None if threads is None else checked(threads, "wf.bench(threads=)"),
        checked_peers([against] if isinstance(against, str) else against),
        rounds,
        quick,
        asked=True,
    )
    return measure_all(named_targets(what, args, kwargs, quick), options)
