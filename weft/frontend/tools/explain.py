"""`weft explain`: how a graph runs here, and why; with devices, where in a cluster its ops run.
`weft place`: where the ops of a saved graph run, and why."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace

from weft.frontend.compile.explain import explain
from weft.frontend.tools.run import compiled_for, given_arrays, static_graph, variable_types
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.ir.text.printer import print_graph
from weft.passes.placement import CostModel, Device, Placement, place, read_devices
from weft.passes.placement.constraints import Rule, constrain
from weft.passes.placement.placer import explain_placement
from weft.runtime.cluster.part import part_step
from weft.runtime.compile_step import CompileOptions


def add_place_arguments(parser: ArgumentParser) -> None:
    """The options of `weft place`."""
    parser.add_argument("file", help="IR text; - reads standard input")
    add_placement_arguments(parser)
    parser.add_argument("--explain", action="store_true", help="print the reasons, not the graph")
    parser.add_argument("--no-locations", action="store_true", help="print no loc(...)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the graph to FILE")


def add_placement_arguments(parser: ArgumentParser, *, required: bool = True) -> None:
    """The options that say what there is and what must hold. required: `--devices` is."""
    parser.add_argument(
        "--devices",
        required=required,
        metavar="FILE",
        help='JSON: {"devices": ["/job:ps/task:0/cpu:0", ...], "links": {...}}; the first device '
        "is the session's",
    )
    parser.add_argument("--costs", metavar="FILE", help="measured costs (CostModel.save)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATTERN=DEVICE",
        help="another constraint: for variables of that name, op:NAME, at:FILE:LINE (repeatable)",
    )
    parser.add_argument(
        "--clear", action="store_true", help="forget the devices that the graph has first"
    )
    parser.add_argument(
        "--soft", action="store_true", help="give up constraints that cannot hold, and say so"
    )
    parser.add_argument(
        "--stay", action="store_true", help="what nothing binds stays in the session's task"
    )


def run_place(graph: Graph, args: Namespace) -> tuple[str, str]:
    """The placed graph as text, and the reasons as text. Errors as `placed_by`."""
    placed = placed_by(graph, args)
    text = print_graph(placed.graph, locations=not args.no_locations)
    return text, explain_placement(placed) + "\n"


def _gpu(name: str) -> Device:
    # who places on no GPU does not wait for these modules
    from weft.runtime.device.backends.placement import gpu_device

    return gpu_device(name)


def placed_by(graph: Graph, args: Namespace) -> Placement:
    """The graph placed as the options say. Errors as `place`, `read_devices`, `CostModel.load` and
    `constrain`."""
    devices, links = read_devices(args.devices, _gpu)
    costs = CostModel() if args.costs is None else CostModel.load(args.costs)
    if links is not None:
        costs = replace(costs, links=links)
    rules = [Rule.parse(text) for text in args.set]
    if rules or args.clear:
        graph = constrain(graph, rules, clear=args.clear)
    return place(graph, devices, costs=costs, soft=args.soft, spread=not args.stay)


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
    parser.add_argument(
        "--section",
        action="append",
        metavar="NAME",
        help="show the sections whose headings begin with NAME, of the others a line (repeatable)",
    )
    add_placement_arguments(parser, required=False)
    parser.set_defaults(feed=[], state=[], seed=0)


def run_explain(program: Program, args: Namespace) -> Iterator[str]:
    """Lines to print: the reasons of the placement if there are devices, else passes, kernels and
    memory, or the executor's nodes; of a program of several parts, those of each, and the messages.
    Errors as `place` and as `weft run --compiled` have."""
    if not program.is_whole:
        yield from _parts(program, args)
        return
    graph = program.graph
    if args.devices is not None:
        yield explain_placement(placed_by(graph, args))
        return
    step, _ = compiled_for(graph, *given_arrays(graph, args))
    fields = {name: str(a.type) for name, a in zip(graph.arg_names, graph.args, strict=True)}
    if step.kind == "native":
        yield explain(f"graph '{graph.name}'", fields, ["`weft explain`"], (), step, graph)
        return
    yield f"graph '{graph.name}' runs on the dataflow executor"
    yield from step.explain()


def _parts(program: Program, args: Namespace) -> Iterator[str]:
    """Messages, and what each part is if it is compiled for this processor."""
    edges = program.edges
    yield f"{len(program.parts)} parts, {len(edges)} messages"
    for edge in edges:
        size = "" if edge.nbytes is None else f", {edge.nbytes:,} bytes"
        yield f"  {edge.tensor}  {edge.src} -> {edge.dst}: {edge.type}{size}"
    arrays, before = given_arrays(program.signature(), args)
    for part in program.parts:
        graph, inputs = part.graph, [arrays[i] for i in part.feeds]
        yield ""
        yield f"part on {part.device}: {len(graph.ops)} ops, feeds {list(part.feeds)}"
        own = {name: before[name] for name in variable_types(graph) if name in before}
        static, variables = static_graph(graph, inputs, own)
        step = part_step(static, variables, {}, CompileOptions())
        yield from step.explain()
