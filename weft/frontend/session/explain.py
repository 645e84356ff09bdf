"""`Session.explain`: the report on where a step's ops run, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.frontend.compile.explain import explain, explain_on_gpu
from weft.frontend.core.arrays import Array
from weft.frontend.session.compiling import Step, choose, gpu_use, pruned
from weft.frontend.session.graph import Graph
from weft.ir.device import short
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location
from weft.passes.control.lower_control_flow import lowering_reasons
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Built
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.regions import RegionElsewhere
from weft.runtime.device.execution.step import DeviceStep, StepOnDevices
from weft.runtime.native.executable import Executable

_MOST_LINES = 40


def explain_step(
    graph: Graph,
    values: Sequence[Value | None],
    feeds: Mapping[Value, Array],
    control_flow: str,
    step: Step,
    cached: bool,
) -> str:
    """The report as text: the choice and its reason, branches and loops, then the plan or the
    nodes."""
    ir = pruned(graph, values, feeds)
    if isinstance(step.executable, DeviceStep):
        return _on_gpu(ir, step.executable, cached)
    if isinstance(step.executable, StepOnDevices):
        return "\n".join(_on_devices(graph, ir, step.executable, control_flow))
    choice = choose(ir, control_flow)
    why, op = choice.why, choice.forced
    if op is not None:
        why = f"op '{op.name}'{_at(op)} runs there only"
    runs = "the dataflow executor" if choice.executor else "one native plan"
    lines = [
        f"step of '{graph.name}': {len(ir.ops)} of {len(graph._trace.builder.ops)} ops",
        f"  runs as {runs}: {why}",
        *_loops(ir, control_flow if choice.executor else "native", choice.executor),
        "",
    ]
    fields = {name: str(a.type) for name, a in zip(ir.arg_names, ir.args, strict=True)}
    made = "it was compiled before" if cached else "these fetches, feeds and sizes are new"
    if isinstance(step.executable, DataflowStep):
        return "\n".join(
            [*lines, "feeds", *_fed(fields), "", *describe_nodes(step.executable.built)]
        )
    assert isinstance(step.executable, Executable)
    report = explain("native plan", fields, [made], caller_location(), step.executable)
    return "\n".join([*lines, report])


def _on_gpu(ir: IRGraph, executable: DeviceStep, cached: bool) -> str:
    fields = {name: str(a.type) for name, a in zip(ir.arg_names, ir.args, strict=True)}
    made = "it was compiled before" if cached else "these fetches, feeds and sizes are new"
    return explain_on_gpu("one plan of a GPU", fields, [made], caller_location(), executable)


def _on_devices(graph: Graph, ir: IRGraph, step: StepOnDevices, control_flow: str) -> Iterator[str]:
    """A part for each device, what runs there, and what is copied between them."""
    use = gpu_use(ir, control_flow)
    moved = "soft placement has moved ops to the processor"
    why = use.why if use is not None and use.why else moved
    names = " and ".join(part.name for part in step.parts)
    yield f"step of '{graph.name}': {len(ir.ops)} of {len(graph._trace.builder.ops)} ops"
    count = "1 part" if len(step.parts) == 1 else f"{len(step.parts)} parts"
    yield f"  runs in {count}, on {names}: {why}"
    if step.placement is not None:
        from weft.passes.placement.placer import explain_placement  # only such steps need it

        yield ""
        yield explain_placement(step.placement)
    for part in step.parts:
        yield ""
        yield f"part of {part.name}: {len(part.graph.ops)} ops"
        if isinstance(part.step, DataflowStep):
            yield from (f"  {line}" for line in describe_nodes(part.step.built))
        else:
            yield "  one native plan"
    yield ""
    yield f"{len(step.edges)} copies between devices"
    for edge in step.edges:
        size = "known when it runs" if edge.nbytes is None else f"{edge.nbytes:,} bytes"
        where = f" at {edge.locations[0]}" if edge.locations else ""
        yield f"  {edge.tensor}: {edge.type}, {size}, {short(edge.src)} -> {short(edge.dst)}{where}"


def _fed(fields: Mapping[str, str]) -> list[str]:
    return [f"  {name}  {kind}" for name, kind in fields.items()] or ["  none"]


def _loops(ir: IRGraph, control_flow: str, executor: bool) -> Iterator[str]:
    """Each branch and loop: native or lowered, and why."""
    found = lowering_reasons(ir, control_flow)
    if not found:
        return
    yield "  branches and loops"
    for op, lowered, why in found:
        way = "Switch and Merge" if lowered else "native"
        reason = why if executor else "the whole step is native"
        yield f"    {op.name}{_at(op)}: {way}, {reason}"


def describe_nodes(built: Built) -> Iterator[str]:
    """The nodes of the executor: regions with their kernels, ops of the host, control flow."""
    regions = list(zip(built.region_of.items(), built.compiled, strict=True))
    yield f"{len(built.nodes)} nodes"
    yield f"  {len(regions)} compiled regions"
    for (node, region), made in regions[:_MOST_LINES]:
        if isinstance(made, Executable):
            count = sum(n >= 0 for n in made.plan.table.owner)
            kernels = f"{count} kernels, {made.plan.arena_bytes:,} bytes in between"
        elif isinstance(made, RegionElsewhere):
            kernels = made.describe()
        else:
            kernels = "compiled for the sizes that come"
        why = "it uses variables" if isinstance(made, Executable) else "its sizes depend on values"
        python = node.kind == at.HOST and not isinstance(made, RegionElsewhere)
        how = f", run by Python, since {why}" if python else ""
        inside = f", in loop {built.frame_names[node.frame]}" if node.frame else ""
        yield f"    {_names(region.ops)}{inside}: {kernels}{how}"
    if len(regions) > _MOST_LINES:
        yield f"    and {len(regions) - _MOST_LINES} more"
    alone = {node: op for node, op in built.op_of.items() if node not in built.region_of}
    hosts = [op for node, op in alone.items() if node.kind == at.HOST]
    yield f"  {len(hosts)} ops of the host"
    yield from (f"    {op.name}{_at(op)}" for op in hosts[:_MOST_LINES])
    if len(hosts) > _MOST_LINES:
        yield f"    and {len(hosts) - _MOST_LINES} more"
    counts: dict[str, int] = {}
    for node, op in alone.items():
        if node.kind != at.HOST:
            counts[op.name] = counts.get(op.name, 0) + 1
    listed = ", ".join(f"{n} {name}" for name, n in counts.items())
    yield f"  control flow: {listed or 'none'}"


def _names(ops: Sequence[Operation]) -> str:
    names = list(dict.fromkeys(op.name for op in ops if op.name not in ("constant", "variable")))
    where = next((_at(op) for op in ops if op.locations), "")
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") + where


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""
