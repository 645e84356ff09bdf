"""`weft compile`: the kernels of a graph as machine code for GPUs that need not be here."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from weft.frontend.session.compiling import fetched_step
from weft.frontend.tools.run import named_pairs, variable_types, writing
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, NotFoundError, ToolchainError, suggest
from weft.ir.graph import Graph
from weft.passes.differential import random_sizes
from weft.passes.manager import Pass
from weft.passes.sizes import specialize
from weft.runtime.resources.variables import VariableState

_TARGET = re.compile(r"sm_(\d{1,2})(\d)")


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft compile`."""
    parser.add_argument("file", help="IR text; - reads standard input")
    parser.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="sm_90,...",
        help="the architectures: sm_90 is an H100 (repeatable)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="the folder for the cubins and manifest.json (default: FILE's name with .cubins)",
    )
    parser.add_argument(
        "--fetch",
        action="append",
        default=[],
        metavar="NAME,...",
        help="of a saved wf.Graph: the step that fetches these names (repeatable; default: all "
        "that has a name, in one step)",
    )
    parser.add_argument(
        "--passes",
        default="gpu",
        metavar="A,B,...",
        help="the passes in order, or pipelines, as wf.compile(passes=) has them (default: gpu); "
        "gpu_reproducible for wf.Session(reproducible=True)",
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="the size of the symbolic dimension NAME (repeat for each)",
    )


def run_compile(graph: Graph, args: Namespace, passes: Sequence[Pass]) -> Iterator[str]:
    """Write the cubins of the kernels that `passes` lead to; yields a line for each kernel and
    architecture.

    Raises InvalidArgumentError or NotFoundError for options that do not fit, a graph that launches
    no kernel and a folder that cannot be written to, UnsupportedError for an op without a GPU
    kernel, ToolchainError if kernels cannot be compiled here."""
    # other commands do not wait for these modules
    from weft.runtime.device.execution.ahead import compile_ahead

    targets = targets_of(args.target)
    check_targets(targets)
    given = named_pairs(args.size, "--size")
    fetches = [part.strip() for text in args.fetch for part in text.split(",")]
    if fetches:
        static = fetched_step(graph, fetches, lambda needed: sizes_of(graph, given, needed))
    else:
        static = specialize(graph, sizes_of(graph, given))
    folder = Path(args.output or _folder_of(args.file))
    with writing(folder):
        ahead = compile_ahead(static, _variables(static), targets, folder, passes)
    width = max(len(row.name) for row in ahead.rows)
    for row in ahead.rows:
        yield f"{row.name:<{width}}  {row.target:<6}  {row.nbytes:>7,} bytes  {row.report}"
    if graph.result_names and not fetches:
        yield f"of a step that gives all of: {', '.join(graph.result_names)}; --fetch gives others"
    yield (
        f"wrote {ahead.kernels} kernels for {', '.join(ahead.targets)} to {folder}: "
        f"{ahead.nbytes:,} bytes; WEFT_CUBINS={folder} uses them"
    )


def targets_of(given: Sequence[str]) -> list[tuple[int, int]]:
    """`["sm_80,sm_90"]` as compute capabilities, each once. InvalidArgumentError for others,
    UnsupportedError for what is older than sm_75."""
    from weft.codegen.cuda.cubins.compile import check_oldest

    found: dict[tuple[int, int], None] = {}
    for name in (part.strip() for text in given for part in text.split(",")):
        match = _TARGET.fullmatch(name)
        if match is None:
            raise InvalidArgumentError(
                f"--target {name}: an architecture is sm_ and its compute capability",
                hint="sm_75 (Turing), sm_80 (A100), sm_90 (H100), sm_100 (B200)",
            )
        cc = int(match[1]), int(match[2])
        check_oldest(cc)
        found[cc] = None
    return list(found)


def check_targets(targets: Sequence[tuple[int, int]]) -> None:
    """UnknownTarget for an architecture that the toolchain does not know. Without a toolchain
    nothing: compiling says so."""
    from weft.codegen.cuda.cubins.compile import check_known
    from weft.codegen.cuda.cubins.toolchain import UnknownTarget

    for cc in targets:
        try:
            check_known(cc)
        except UnknownTarget:
            raise
        except ToolchainError:
            return


def sizes_of(
    graph: Graph, given: Mapping[str, str], needed: Sequence[str] | None = None
) -> dict[str, int]:
    """The sizes of the symbols. Those that are `needed` (None: all) must be given: kernels are
    chosen by them."""
    known = list(random_sizes(graph, 0))
    for name, text in given.items():
        if name not in known:
            raise NotFoundError(
                f"the graph has no symbolic dimension '{name}'{suggest(name, known)}",
                hint=f"it has: {', '.join(known) or 'none'}",
            )
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise InvalidArgumentError(f"--size {name}={text}: the size must be an integer")
    missing = [n for n in known if n not in given and (needed is None or n in needed)]
    if missing:
        raise InvalidArgumentError(
            f"the size of the symbolic dimension '{missing[0]}' is not known",
            hint=f"give --size {missing[0]}=N: kernels for a GPU are chosen by sizes",
        )
    return {name: int(text) for name, text in given.items()}


def _variables(graph: Graph) -> dict[str, VariableState]:
    """The graph's variables, without values."""
    made = {}
    for name, t in variable_types(graph).items():
        dtype: DType = t.dtype
        made[name] = VariableState(name, dtype, t.static_shape, None)
    return made


def _folder_of(file: str) -> str:
    return "graph.cubins" if file == "-" else Path(file).stem + ".cubins"
