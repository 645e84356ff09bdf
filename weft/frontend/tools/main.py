"""The command line: `weft run`, `bench`, `opt`, `compile`, `place`, `diff` and `view` on graphs;
`cache` for kernels on disk, `kernel` for edited ones, `replay` for recorded steps, `serve` for
bundles behind HTTP, `devices` for what there is to run on; `worker`, `top` and `keygen` for
clusters.

Exit status: 0 for success, 1 if `diff` or `replay` found a difference, `kernel` a wrong result or
`bench --fail-on-regression` something slower, 2 for an error, which stderr explains.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from weft.frontend.bundle.files import bundle_of
from weft.frontend.compile.explain import in_sections, ir_text
from weft.frontend.tools import bench as cli_bench
from weft.frontend.tools import cluster, explain, view
from weft.frontend.tools import compile as cli_compile
from weft.frontend.tools import devices as cli_devices
from weft.frontend.tools import kernel as cli_kernel
from weft.frontend.tools import replay as cli_replay
from weft.frontend.tools import run as cli_run
from weft.frontend.tools import serve as cli_serve
from weft.frontend.tools.run import write_text
from weft.ir.analysis.verify import verify, verify_program
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, WeftError, suggest
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.ir.text.parser import parse_program
from weft.ir.text.views import diff_programs
from weft.passes.manager import (
    AnyPass,
    BoundPass,
    Pass,
    PassOptions,
    PassReport,
    ProgramPass,
    run_pipeline,
)
from weft.passes.partition.partition import partition_pass
from weft.passes.pipelines import PASSES, PIPELINES, TRANSFORMS
from weft.passes.placement import PlacePass
from weft.passes.sizes import specialize

#: A path of an ONNX model, and sizes after a colon.
_ONNX = re.compile(r"(.+\.onnx)(?::(.*))?", re.DOTALL)
SUCCESS, DIFFERENT, ERROR = 0, 1, 2


@dataclass(frozen=True)
class Command:
    """A subcommand: its name, one line of help, its options, and what it does (the exit status)."""

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


def read_program(path: str) -> Program:
    """The program in the file `path` (`-`: standard input), of one graph or of several parts; or
    that of a bundle's signature, `FOLDER` or `FOLDER:SIGNATURE`, or of an ONNX model, `FILE.onnx`
    or `FILE.onnx:NAME=SIZE,...`.

    Raises NotFoundError or InvalidArgumentError for an unreadable file, ParseError for bad text.
    """
    try:
        if path == "-":
            return parse_program(sys.stdin.read(), "<stdin>")
        if (found := bundle_of(path)) is not None:
            from weft.frontend.bundle.load import bundle_graph  # others do not wait for it

            return Program.of(bundle_graph(*found))
        if (model := _ONNX.fullmatch(path)) is not None:
            from weft.frontend.onnx.model import model_graph

            return Program.of(model_graph(model[1], _sizes(f"{model[1]}:", model[2] or "")))
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} cannot be read as text: {error}") from None
    if path.endswith(".py"):
        raise InvalidArgumentError(
            f"{path} is a Python program, not the text of a graph",
            hint=f"`python {path}` runs it, and with WEFT_DUMP=DIR writes its graphs there; "
            f"`weft bench {path}:FUNCTION` measures a function of it",
        )
    return parse_program(text, path)


def _sizes(model: str, text: str) -> dict[str, int]:
    """`NAME=SIZE,...`. InvalidArgumentError for what is not."""
    pairs = cli_run.named_pairs([part for part in text.split(",") if part], model)
    if not all(size.isdecimal() for size in pairs.values()):
        raise InvalidArgumentError(f"{text!r:.60} are no sizes", hint="batch=8,height=320")
    return {name: int(size) for name, size in pairs.items()}


def read_graph(path: str) -> Graph:
    """The graph in the file `path`. Errors as `read_program`; InvalidArgumentError for parts."""
    return read_program(path).graph


# ------------------------------------------------------------------------------------------- run


def _run(args: Namespace) -> int:
    program = read_program(args.file)
    verify_program(program)
    for line in cli_run.run_file(program, args):
        print(line)
    return SUCCESS


# ------------------------------------------------------------------------------------------- opt


def _opt_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="IR text; - reads standard input")
    parser.add_argument(
        "--passes",
        default="standard",
        metavar="A,B,...",
        help=f"the passes in order, or pipelines: {', '.join(PIPELINES)} (default: standard)",
    )
    parser.add_argument(
        "--verify",
        nargs="?",
        const="ir",
        choices=("ir", "run"),
        help="verify after each pass; with 'run', also execute before and after it and compare",
    )
    parser.add_argument("--time", action="store_true", help="a table of the passes on stderr")
    parser.add_argument("--no-locations", action="store_true", help="print no loc(...)")
    parser.add_argument(
        "--fold",
        type=int,
        metavar="N",
        help="for people: a line for each scope, N names of its path open; it does not parse",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the graph to FILE")
    parser.add_argument("--list", action="store_true", help="list the passes")
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="for the pass specialize: the size of the symbolic dimension NAME (repeatable)",
    )
    explain.add_placement_arguments(parser, required=False)


def _opt(args: Namespace) -> int:
    if args.list:
        for line in listed_passes():
            print(line)
        return SUCCESS
    if args.file is None:
        raise InvalidArgumentError("weft opt needs a FILE", hint="- reads standard input")
    program = read_program(args.file)
    verify_program(program)
    options = PassOptions.from_environment()
    if args.verify is not None:
        options = replace(options, verify=args.verify)
    passes = program_passes(args.passes, bound_passes(args))
    program, reports = run_pipeline(program, passes, options=options)
    if args.time:
        print_reports(reports)
    text = ir_text(program, not args.no_locations, args.fold)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_text(args.output, text)
    return SUCCESS


#: Passes that take settings, and from where `weft opt` has them.
_BOUND = {
    "specialize": "Sizes of symbolic dimensions filled in: those that --size says.",
    "place": "A device for each op: one of the file that --devices names.",
    "partition": "A part for each device, of a graph whose ops name theirs, with send and recv.",
}


def bound_passes(args: Namespace) -> dict[str, AnyPass]:
    """The passes that take settings, with those of the options."""
    made: dict[str, AnyPass] = {"partition": partition_pass()}
    if args.devices is not None:
        made["place"] = PlacePass(lambda graph: explain.placed_by(graph, args))
    if args.size:
        given = cli_run.named_pairs(args.size, "--size")

        def fill(graph: Graph) -> Graph:
            return specialize(graph, cli_compile.sizes_of(graph, given, ()))

        made["specialize"] = BoundPass("specialize", fill)
    return made


def listed_passes() -> Iterator[str]:
    """A line for each pass: its name, and what it does."""
    texts = {name: run.run if isinstance(run, BoundPass) else run for name, run in PASSES.items()}
    known = {n: getattr(run, "func", run).__doc__ or "" for n, run in (texts | TRANSFORMS).items()}
    known |= _BOUND
    width = max(map(len, known))
    for name, text in known.items():
        yield f"{name:{width}}  {text.strip().partition(chr(10))[0]}".rstrip()


def passes_named(text: str) -> list[Pass]:
    """The passes from graph to graph that `fold,cse` or `standard,dce` names. Raises NotFoundError;
    InvalidArgumentError for those that take settings."""
    found = program_passes(text, {})
    return [run for run in found if not isinstance(run, ProgramPass)]


def program_passes(text: str, bound: Mapping[str, AnyPass]) -> list[AnyPass]:
    """As `passes_named`. bound: those that take settings, with them."""
    passes: list[AnyPass] = []
    known: dict[str, AnyPass] = {**PASSES, **TRANSFORMS, **bound}
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name in PIPELINES:
            passes += PIPELINES[name]
        elif name in known:
            passes.append(known[name])
        elif name in _BOUND:
            raise InvalidArgumentError(
                f"pass '{name}' needs settings: {_BOUND[name]}",
                hint="weft opt takes --size NAME=N and --devices FILE",
            )
        else:
            raise NotFoundError(
                f"there is no pass '{name}'{suggest(name, [*known, *_BOUND, *PIPELINES])}",
                hint="weft opt --list names the passes",
            )
    return passes


def print_reports(reports: Sequence[PassReport]) -> None:
    """A table of what each pass took and did, on stderr."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("pass")
    for heading in ("ms", "ops", "kernels", "bytes moved", "peak bytes"):
        table.add_column(heading, justify="right")
    for report in reports:
        sizes = ("?" if n is None else f"{n:,}" for n in (report.bytes, report.peak_bytes))
        ops = f"{report.ops_before} -> {report.ops_after}" if report.changed else "unchanged"
        if report is reports[0]:
            ops = str(report.ops_after)
        milliseconds = f"{report.seconds * 1e3:.2f}"
        table.add_row(report.name, milliseconds, ops, str(report.kernels), *sizes)
    Console(stderr=True).print(table)


# --------------------------------------------------------------------------------------- compile


def _compile(args: Namespace) -> int:
    graph = read_graph(args.file)
    verify(graph)
    for line in cli_compile.run_compile(graph, args, passes_named(args.passes)):
        print(line)
    return SUCCESS


# ------------------------------------------------------------------------------------------ diff


def _diff_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("old", help="IR text; - reads standard input")
    parser.add_argument("new", help="IR text")
    parser.add_argument("--locations", action="store_true", help="compare source locations too")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")


def _diff(args: Namespace) -> int:
    old, new = read_program(args.old), read_program(args.new)
    text = diff_programs(old, new, args.old, args.new, locations=args.locations)
    if not args.quiet:
        sys.stdout.write(text)
    return DIFFERENT if text else SUCCESS


# ------------------------------------------------------------------------------------------ view


def _view(args: Namespace) -> int:
    told = view.run_view(args, read_program, lambda text: program_passes(text, {}))
    if told:
        print(told)
    return SUCCESS


# ----------------------------------------------------------------------------------------- cache


def _cache(args: Namespace) -> int:
    for line in cli_compile.run_cache(args):
        print(line)
    return SUCCESS


# ---------------------------------------------------------------------------------------- kernel


def _kernel(args: Namespace) -> int:
    well = True
    for line, well in cli_kernel.run_kernel(args):  # noqa: B007
        print(line)
    return SUCCESS if well else DIFFERENT


# ----------------------------------------------------------------------------------------- place


def _place(args: Namespace) -> int:
    graph = read_graph(args.file)
    verify(graph)
    text, printed = explain.run_place(graph, args)
    if args.output is not None:
        write_text(args.output, text)
    if args.output is None or printed is not text:
        sys.stdout.write(printed)
    return SUCCESS


# --------------------------------------------------------------------------------------- devices


def _devices(args: Namespace) -> int:
    for line in cli_devices.run_devices(args):
        print(line)
    return SUCCESS


# --------------------------------------------------------------------------------------- explain


def _explain(args: Namespace) -> int:
    program = read_program(args.file)
    verify_program(program)
    print(in_sections("\n".join(explain.run_explain(program, args)), args.section))
    return SUCCESS


# ---------------------------------------------------------------------------------------- worker


def _worker(args: Namespace) -> int:
    cluster.run_worker(args, lambda line: print(line, flush=True))
    return SUCCESS


# ----------------------------------------------------------------------------------------- serve


def _serve(args: Namespace) -> int:
    cli_serve.run_serve(args, lambda line: print(line, flush=True))
    return SUCCESS


# ---------------------------------------------------------------------------------------- replay


def _replay(args: Namespace) -> int:
    status = SUCCESS
    for line, same in cli_replay.run_replay(args):
        print(line)
        status = status if same else DIFFERENT
    return status


# ------------------------------------------------------------------------------------------- top


def _top(args: Namespace) -> int:
    cluster.run_top(args, lambda line: print(line, flush=True))
    return SUCCESS


# ---------------------------------------------------------------------------------------- keygen


def _keygen(args: Namespace) -> int:
    print(cluster.make_key(args))
    return SUCCESS


# ----------------------------------------------------------------------------------------- bench


def _bench(args: Namespace) -> int:
    return SUCCESS if cli_bench.run_bench(args, read_graph) else DIFFERENT


# ------------------------------------------------------------------------------------------ main

COMMANDS: tuple[Command, ...] = (
    Command(
        "run", "execute a graph on arrays from files or random ones", cli_run.add_arguments, _run
    ),
    Command(
        "bench",
        "time kernels: bytes, flops, share of the machine's measured peak, assembly",
        cli_bench.add_arguments,
        _bench,
    ),
    Command("opt", "run passes over a graph and print the result", _opt_arguments, _opt),
    Command(
        "compile",
        "write the kernels of a graph as machine code for a GPU, which need not be here",
        cli_compile.add_arguments,
        _compile,
    ),
    Command(
        "place",
        "say on which device of a cluster each op of a graph runs, and why; simulate the step",
        explain.add_place_arguments,
        _place,
    ),
    Command(
        "explain",
        "say how a graph runs and why: kernels, memory; with --devices, on which device each op is",
        explain.add_arguments,
        _explain,
    ),
    Command("diff", "compare the structure of two graphs", _diff_arguments, _diff),
    Command(
        "cache",
        "list or remove the compiled kernels kept on disk",
        cli_compile.add_cache_arguments,
        _cache,
    ),
    Command(
        "view",
        "write a page for the browser on a graph, a dump or a history of benchmarks (--html), or "
        "print Graphviz DOT text",
        view.add_arguments,
        _view,
    ),
    Command(
        "serve",
        "answer requests over HTTP for bundles, until it is told to end",
        cli_serve.add_arguments,
        _serve,
    ),
    Command(
        "worker",
        "run a task of a cluster until it is told to end",
        cluster.add_arguments,
        _worker,
    ),
    Command(
        "top", "show what the tasks of a running cluster are doing", cluster.add_top_arguments, _top
    ),
    Command(
        "kernel",
        "check, use, drop and list kernels that are edited Python files",
        cli_kernel.add_arguments,
        _kernel,
    ),
    Command(
        "replay",
        "run a recorded step again, step through it, hold engines against each other",
        cli_replay.add_arguments,
        _replay,
    ),
    Command(
        "devices",
        "list the devices of this machine, or say why it has no GPU",
        cli_devices.add_arguments,
        _devices,
    ),
    Command("keygen", "make the secret key of a cluster", cluster.add_keygen_arguments, _keygen),
)


def make_parser() -> ArgumentParser:
    """The parser of the whole command line."""
    parser = ArgumentParser(
        prog="weft",
        description="Look into, transform and run weft graphs (the text that WEFT_DUMP writes).",
        epilog="exit status: 0 success, 1 a difference (diff, replay) or a regression (bench), "
        "2 error",
        formatter_class=RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return the exit status."""
    args = make_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except WeftError as error:
        # the installed script, or what runs `python -m weft`
        if error.locations and error.locations[0].file in (sys.argv[0], "<frozen runpy>"):
            error = WeftError(error.what, hint=error.hint)
        print(f"weft: error: {error}", file=sys.stderr)
        return ERROR
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    return status
