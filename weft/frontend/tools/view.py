"""`weft view`: a graph as Graphviz DOT text; or a graph, a folder of dumps or a history of
benchmarks as one HTML page."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.frontend.bundle.files import bundle_of
from weft.frontend.tools.bench_history import History
from weft.frontend.tools.bench_page import history_page
from weft.frontend.tools.dump_view import ReadProgram, dumped
from weft.frontend.tools.run import write_text
from weft.frontend.viewer.document import Document, PassFacts
from weft.frontend.viewer.page import View
from weft.ir.drawing.dot import dot_program
from weft.ir.errors import InvalidArgumentError
from weft.passes.manager import AnyPass, run_pipeline

PassesNamed = Callable[[str], Sequence[AnyPass]]


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft view`."""
    parser.add_argument(
        "file",
        help="IR text (- reads standard input), or with --html the folder of a step's dumps or of "
        "a history of benchmarks",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the DOT text to FILE")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page for the browser to FILE: passes, text, graph"
    )
    parser.add_argument(
        "--passes",
        metavar="A,B,...",
        help="with --html, run these passes or pipelines on the graph and show what each did",
    )


def run_view(args: Namespace, read: ReadProgram, named: PassesNamed) -> str:
    """Write the DOT text or the page; a line on what was written. NotFoundError for a folder
    without dumps, else errors as those of reading a graph and of the passes."""
    folder = Path(args.file)
    is_folder = folder.is_dir() and bundle_of(args.file) is None
    if args.html is None:
        for option, value in (("--passes", args.passes), ("a folder", is_folder)):
            if value:
                raise InvalidArgumentError(
                    f"weft view: {option} is for pages", hint="add --html FILE"
                )
        text = dot_program(read(args.file))
        if args.output is None:
            sys.stdout.write(text)
        else:
            write_text(args.output, text)
        return ""
    if args.output is not None:
        raise InvalidArgumentError("weft view: give --html FILE, or -o FILE for DOT text")
    if _is_history(folder) and bundle_of(args.file) is None:
        if args.passes:
            raise InvalidArgumentError(f"weft view: --passes is for graphs, {folder} is a history")
        history = History.read(folder)
        history_page(history).save(args.html)
        count = len(history.runs)
        told = f"; {history.note}" if history.note else ""
        return f"{args.html}: {'1 run' if count == 1 else f'{count} runs'}{told}"
    if is_folder:
        if args.passes:
            raise InvalidArgumentError(
                f"weft view: --passes is for graphs, {folder} is a folder of dumps",
                hint="its first graph is the one before all passes: give that file",
            )
        document = dumped(folder, read)
    else:
        program = read(args.file)
        passes = named(args.passes) if args.passes else ()
        _, reports = run_pipeline(program, passes)
        document = Document(program.name, [PassFacts.of(r) for r in reports], args.file)
    View(document).save(args.html)
    count = len(document.passes)
    return f"{args.html}: {'1 graph' if count == 1 else f'{count} graphs'}"


def _is_history(place: Path) -> bool:
    """A file of a run, or a folder that has such files and no dumps."""
    if place.is_dir():
        return any(place.glob("*.json")) and not any(place.glob("*.weft"))
    return place.suffix == ".json"
