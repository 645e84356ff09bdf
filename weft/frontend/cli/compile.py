"""`weft compile`: the kernels of a graph as machine code for GPUs that need not be here."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from weft.frontend.cli.run import named_pairs, variable_types
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, NotFoundError, suggest
from weft.ir.graph import Graph
from weft.passes.differential import random_sizes
from weft.passes.specialize import specialize
from weft.runtime.variables import VariableState

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
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="the size of the symbolic dimension NAME (repeat for each)",
    )


def run_compile(graph: Graph, args: Namespace) -> Iterator[str]:
    """Write the cubins; yields a line for each kernel and architecture.

    Raises InvalidArgumentError or NotFoundError for options that do not fit, UnsupportedError for
    an op without a GPU kernel, ToolchainError if kernels cannot be compiled here."""
    # other commands do not wait for these modules
    from weft.runtime.device.planning.ahead import compile_ahead

    targets = targets_of(args.target)
    static = specialize(graph, _sizes(graph, named_pairs(args.size, "--size")))
    variables = _variables(static)
    folder = Path(args.output or _folder_of(args.file))
    ahead = compile_ahead(static, variables, targets, folder)
    width = max((len(row.name) for row in ahead.rows), default=0)
    for row in ahead.rows:
        yield f"{row.name:<{width}}  {row.target:<6}  {row.nbytes:>7,} bytes  {row.report}"
    yield (
        f"wrote {ahead.kernels} kernels for {', '.join(ahead.targets)} to {folder}: "
        f"{ahead.nbytes:,} bytes; WEFT_CUBINS={folder} uses them"
    )


def targets_of(given: Sequence[str]) -> list[tuple[int, int]]:
    """`["sm_80,sm_90"]` as compute capabilities, each once. InvalidArgumentError for others."""
    found: dict[tuple[int, int], None] = {}
    for name in (part.strip() for text in given for part in text.split(",")):
        match = _TARGET.fullmatch(name)
        if match is None:
            raise InvalidArgumentError(
                f"--target {name}: an architecture is sm_ and its compute capability",
                hint="sm_75 (Turing), sm_80 (A100), sm_90 (H100), sm_100 (B200)",
            )
        found[int(match[1]), int(match[2])] = None
    return list(found)


def _sizes(graph: Graph, given: Mapping[str, str]) -> dict[str, int]:
    """The size of every symbol, all of which must be given: cubins are for those sizes."""
    known = list(random_sizes(graph, 0))
    for name, text in given.items():
        if name not in known:
            raise NotFoundError(
                f"the graph has no symbolic dimension '{name}'{suggest(name, known)}",
                hint=f"it has: {', '.join(known) or 'none'}",
            )
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise InvalidArgumentError(f"--size {name}={text}: the size must be an integer")
    missing = [name for name in known if name not in given]
    if missing:
        raise InvalidArgumentError(
            f"the size of the symbolic dimension '{missing[0]}' is not known",
            hint=f"give --size {missing[0]}=N: kernels for a GPU are chosen by sizes",
        )
    return {name: int(given[name]) for name in known}


def _variables(graph: Graph) -> dict[str, VariableState]:
    """The graph's variables, without values."""
    made = {}
    for name, t in variable_types(graph).items():
        dtype: DType = t.dtype
        made[name] = VariableState(name, dtype, t.static_shape, None)
    return made


def _folder_of(file: str) -> str:
    return "graph.cubins" if file == "-" else Path(file).stem + ".cubins"
