"""The reports on a step of a session as text: `Session.summary` (a line) and `Session.explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.frontend.compile.explain import explain
from weft.frontend.compile.threads import get_num_threads
from weft.frontend.core.tensor import Array
from weft.frontend.session.compiling import StepDefinition, pruned
from weft.frontend.session.cpu_devices import other_cpu
from weft.frontend.session.graph import Graph
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location
from weft.passes.control.lower_control_flow import lowering_reasons
from weft.runtime.compile_step import choose
from weft.runtime.local_devices import gpu_use
from weft.runtime.step import Step

#: The ways to run a step, for `Session.summary`.
_WAYS = {
    "native": "one native plan", "sized": "one native plan", "gpu": "one plan of a GPU",
    "dataflow": "the dataflow executor",
}  # fmt: skip


def step_summary(step: StepDefinition) -> str:
    """`Session.summary` of a compiled step."""
    made = step.executable
    size = made.summary()
    counts = (
        (0 if made.kind == "cluster" else size.nodes, "node", "nodes"),
        (size.regions, "region", "regions"),
        (size.host_ops, "op of the host", "ops of the host"),
        (size.kernels, "kernel call", "kernel calls"),
        (size.copies, "copy between devices", "copies between devices"),
    )  # fmt: skip
    told = [f"{n:,} {one if n == 1 else many}" for n, one, many in counts if n]
    way = _WAYS.get(made.kind) or f"{len(size.devices)} parts on {', '.join(size.devices)}"
    threads = get_num_threads()
    used = "1 thread" if threads == 1 else f"at most {threads} threads"
    what = [", ".join(told)] if told else []
    return "; ".join([*what, f"compiled in {step.seconds:.2f} s", way, used])


def explain_step(
    graph: Graph,
    values: Sequence[Value | None],
    feeds: Mapping[Value, Array],
    control_flow: str,
    step: StepDefinition,
    cached: bool,
) -> str:
    """The report as text: the choice and its reason, branches and loops, then the plan or the
    nodes."""
    ir, made = pruned(graph, values, feeds), step.executable
    fields = {name: str(a.type) for name, a in zip(ir.arg_names, ir.args, strict=True)}
    new = "it was compiled before" if cached else "these fetches, feeds and sizes are new"
    if made.kind == "gpu":
        return explain("one plan of a GPU", fields, [new], caller_location(), made, ir)
    lines = [f"step of '{graph.name}': {len(ir.ops)} of {len(graph._trace.builder.ops)} ops"]
    if made.kind == "devices":
        return "\n".join([*lines, _why_parts(ir, made, control_flow), "", *made.explain()])
    choice = choose(ir, control_flow)
    why, op = choice.why, choice.forced
    if op is not None:
        why = f"op '{op.name}'{_at(op)} runs there only"
    runs = "the dataflow executor" if choice.executor else "one native plan"
    lines += [
        f"  runs as {runs}: {why}",
        *_loops(ir, control_flow if choice.executor else "native", choice.executor),
        "",
    ]
    if made.kind == "dataflow":
        return "\n".join([*lines, "feeds", *_fed(fields), "", *made.explain()])
    return "\n".join([*lines, explain("native plan", fields, [new], caller_location(), made, ir)])


def _why_parts(ir: IRGraph, step: Step, control_flow: str) -> str:
    use, other = gpu_use(ir, control_flow), other_cpu(ir)
    why = "soft placement has moved ops to the processor"
    if use is not None and use.why:
        why = use.why
    elif other is not None:
        why = f"op '{other.name}' is on {other.device}"
    devices = step.summary().devices
    count = "1 part" if len(devices) == 1 else f"{len(devices)} parts"
    return f"  runs in {count}, on {' and '.join(devices)}: {why}"


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


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""
