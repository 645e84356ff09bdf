"""`weft explain`: how a graph runs here, and why; with devices, where in a cluster its ops run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from weft.frontend.calls.explain import explain
from weft.frontend.cli.place import add_placement_arguments, placed_by
from weft.frontend.cli.run import compiled_for, given_arrays
from weft.frontend.session.explain import describe_nodes
from weft.ir.graph import Graph
from weft.passes.placement.placer import explain_placement
from weft.runtime.native.executable import Executable


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft explain`."""
    parser.add_argument("file", help="IR text; - reads standard input")
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="the size of the symbolic dimension NAME (repeatable; random otherwise)",
    )
    add_placement_arguments(parser, required=False)
    parser.set_defaults(feed=[], state=[], seed=0)


def run_explain(graph: Graph, args: Namespace) -> Iterator[str]:
    """Lines to print: the reasons of the placement if there are devices, else passes, kernels and
    memory, or the executor's nodes. Errors as `place` and as `weft run --compiled` have."""
    if args.devices is not None:
        yield explain_placement(placed_by(graph, args))
        return
    step, _ = compiled_for(graph, *given_arrays(graph, args))
    fields = {name: str(a.type) for name, a in zip(graph.arg_names, graph.args, strict=True)}
    if isinstance(step, Executable):
        yield explain(f"graph '{graph.name}'", fields, ["`weft explain`"], (), step)
        return
    yield f"graph '{graph.name}' runs on the dataflow executor"
    yield from describe_nodes(step.built)
