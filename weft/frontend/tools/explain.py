"""`weft explain`: how a graph runs here, and why; with devices, where in a cluster its ops run.
`weft place`: where the ops of a saved graph run, and why."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace

from weft.frontend.compile.explain import explain
from weft.frontend.tools.placing import lines_of, replicated, simulated
from weft.frontend.tools.run import compiled_for, given_arrays, static_graph, variable_types
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.ir.text.printer import print_graph
from weft.passes.placement import CostModel, Device, Placement, Search, place, read_devices
from weft.passes.placement.constraints import Rule, constrain
from weft.passes.placement.report import explain_placement
from weft.runtime.cluster.part import part_step
from weft.runtime.compile_step import CompileOptions


def add_place_arguments(parser: ArgumentParser) -> None:
    """The options of `weft place`."""
    parser.add_argument("file", help="IR text; - reads standard input")
    add_placement_arguments(parser)
    parser.add_argument("--explain", action="store_true", help="print the reasons, not the graph")
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="print the simulated step: its time, a lower bound, load and memory of each device, "
        "the critical path",
    )
    parser.add_argument("--json", action="store_true", help="--simulate as JSON")
    parser.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="with --simulate: the step by N workers at once, that share its parameter servers or "
        "exchange gradients",
    )
    parser.add_argument(
        "--needed", type=int, metavar="M", help="of how many replicas a step takes the gradients"
    )
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
    parser.add_argument(
        "--free-state",
        action="store_true",
        help="variables that nothing binds need not be in the session's task",
    )
    parser.add_argument(
        "--search",
        nargs="?",
        type=int,
        const=Search().evaluations,
        metavar="N",
        help=f"search a faster placement: N are simulated (default {Search().evaluations})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search (default 0)")


def run_place(graph: Graph, args: Namespace) -> tuple[str, str]:
    """The placed graph as text, and what is to be printed: that, or the reasons, or the simulation.
    Errors as `placed_by`."""
    placed = placed_by(graph, args, fit=True)
    text = print_graph(placed.graph, locations=not args.no_locations)
    if args.simulate or args.json or args.replicas is not None:
        return text, _simulated(placed, args)
    return text, explain_placement(placed) + "\n" if args.explain else text


def _simulated(placed: Placement, args: Namespace) -> str:
    how = None if args.search is None else {"evaluations": args.search, "seed": args.seed}
    data = simulated(placed, how)
    if args.replicas is not None:
        _, costs = _devices_and_costs(args)
        data["replicas"] = replicated(placed, costs, args.replicas, args.needed, args.seed)
    if args.json:
        return json.dumps(data, indent=1) + "\n"
    return "".join(f"{line}\n" for line in lines_of(data))


def _gpu(name: str) -> Device:
    # who places on no GPU does not wait for these modules
    from weft.runtime.device.backends.placement import gpu_device

    return gpu_device(name)


def _devices_and_costs(args: Namespace) -> tuple[list[Device], CostModel]:
    devices, links = read_devices(args.devices, _gpu)
    costs = CostModel() if args.costs is None else CostModel.load(args.costs)
    return devices, costs if links is None else replace(costs, links=links)


def placed_by(graph: Graph, args: Namespace, *, fit: bool = False) -> Placement:
    """The graph placed as the options say. fit: as of `place`. Errors as `place`, `read_devices`,
    `CostModel.load` and `constrain`."""
    devices, costs = _devices_and_costs(args)
    rules = [Rule.parse(text) for text in args.set]
    if rules or args.clear:
        graph = constrain(graph, rules, clear=args.clear)
    search = None if args.search is None else Search(args.search, args.seed)
    return place(
        graph, devices, costs=costs, soft=args.soft, spread=not args.stay, search=search,
        free_state=args.free_state, fit=fit,
    )  # fmt: skip


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
