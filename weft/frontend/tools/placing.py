"""`weft place --simulate`: the predicted step of a placed graph, how far it is from a lower bound,
and what each device does; as tables or as JSON. With `--replicas`, the same step by thousands of
workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from weft.ir.errors import InvalidArgumentError
from weft.passes.placement import CostModel, Placement
from weft.passes.placement.choose import SEARCHED, describe
from weft.passes.placement.replicas import all_reduced, served_by_servers
from weft.passes.placement.report import time_text
from weft.passes.placement.simulate import Cluster, Workload
from weft.passes.placement.timeline import Span

_MOST_DEVICES, _MOST_SPANS = 24, 12


def simulated(placed: Placement, search: Mapping[str, int] | None) -> dict[str, Any]:
    """What the simulation says of a placement, as JSON has it. search: its evaluations and seed, if
    there was one."""
    found, choice, bound = placed.predict(), placed.choice, placed.choice.bound
    messages = [s for s in found.timeline if " -> " in s.where]
    greedy = min(
        (s for n, s in found.compared.items() if n != SEARCHED and n not in found.unfit),
        default=None,
    )
    distance = found.seconds / bound.seconds - 1 if bound.seconds > 0 else None
    return {
        "graph": placed.graph.name,
        "ops": len(choice.model.ops),
        "groups": len(choice.model.groups),
        "free_groups": len(choice.free),
        "seconds": found.seconds,
        "why": choice.why,
        "compared": dict(found.compared),
        "do_not_fit": sorted(found.unfit),
        "greedy_seconds": greedy,
        "search": dict(search) if search is not None else None,
        "bound": {
            "seconds": bound.seconds, "reason": bound.reason, "critical_path": bound.path,
            "work": bound.work, "largest_group": bound.group, "links": bound.links,
        },
        "distance": distance,
        "messages": len(messages),
        "message_bytes": sum(m.nbytes for m in messages),
        "devices": list(_devices(placed)),
        "path": [_span(s) for s in found.path],
    }  # fmt: skip


def _span(span: Span) -> dict[str, Any]:
    row = {"what": span.what, "where": span.where, "begin": span.begin, "end": span.end}
    return row | ({"bytes": span.nbytes} if " -> " in span.where else {})


def _devices(placed: Placement) -> Iterator[dict[str, Any]]:
    """A row for each device that takes part."""
    found, model = placed.predict(), placed.choice.model
    busy: dict[str, float] = {}
    sent: dict[str, float] = {}
    ops: dict[str, int] = {}
    for span in found.timeline:
        source, arrow, _ = span.where.partition(" -> ")
        if arrow:
            sent[source] = sent.get(source, 0.0) + span.nbytes
        else:
            busy[source] = busy.get(source, 0.0) + span.end - span.begin
    for op in placed.reasons:
        ops[op.device] = ops.get(op.device, 0) + 1
    peaks = {peak.device: peak for peak in found.peaks}
    for k, device in enumerate(placed.devices):
        peak = peaks.get(k)
        if device.name not in ops and peak is None:
            continue
        took = busy.get(device.name, 0.0)
        yield {
            "name": device.name,
            "ops": ops.get(device.name, 0),
            "busy_seconds": took,
            "load": took / found.seconds if found.seconds else 0.0,
            "sent_bytes": sent.get(device.name, 0.0),
            "memory_bytes": peak.nbytes if peak is not None else 0.0,
            "lasting_bytes": peak.lasting if peak is not None else 0.0,
            "capacity_bytes": device.memory,
            "largest": [describe(model, life) for life in peak.largest] if peak else [],
        }


def replicated(
    placed: Placement, costs: CostModel, workers: int, needed: int | None, seed: int
) -> dict[str, Any]:
    """The step of one worker done by so many: against the servers that it uses, or, where there are
    none, with an exchange of gradients as large as the variables that it updates."""
    cluster = Cluster(costs.links)
    jobs = {d.spec.job for d in placed.devices if d.task != placed.devices[0].task}
    if "ps" in jobs:
        load = Workload.of_placement(placed)
        run = served_by_servers(load, workers, cluster, needed=needed, seed=seed)
        how = f"{len(load.pull)} parameter servers"
    else:
        if needed is not None:
            raise InvalidArgumentError("backup workers are for steps with parameter servers")
        nbytes = sum(
            placed.choice.model.costs.nbytes_held(op.operands[0])
            for op in placed.graph.walk()
            if op.name.startswith("assign") and op.operands
        )
        load = Workload((0.0,), (nbytes,), placed.predict().seconds)
        run = all_reduced(load, workers, cluster, seed=seed)
        how = "an exchange of gradients among the workers"
    return {
        "workers": workers,
        "needed": workers if needed is None else needed,
        "how": how,
        "pull_bytes": sum(load.pull),
        "push_bytes": sum(load.push),
        "compute_seconds": load.compute_s,
        "seconds": run.median,
        "p90_seconds": run.percentile(90),
        "steps_per_second": workers / run.median if run.median else None,
        "efficiency": load.compute_s / run.median if run.median else None,
        "dropped": run.dropped,
    }


# -------------------------------------------------------------------------------------------- text


def lines_of(data: Mapping[str, Any]) -> Iterator[str]:
    """The lines that `weft place --simulate` prints of `simulated`."""
    yield (
        f"'{data['graph']}': {data['ops']} ops in {data['groups']} groups, of which "
        f"{data['free_groups']} have a choice"
    )
    yield f"step      {time_text(data['seconds'])}  ({data['why']})"
    for name, seconds in data["compared"].items():
        unfit = ", does not fit the memory" if name in data["do_not_fit"] else ""
        budget = data["search"] if name == SEARCHED else None
        told = f", {budget['evaluations']} placements, seed {budget['seed']}" if budget else ""
        yield f"  {time_text(seconds):>8}  {name}{told}{unfit}"
    bound = data["bound"]
    yield f"bound     {time_text(bound['seconds'])}  ({bound['reason']})"
    if data["distance"] is not None:
        yield f"distance  {data['distance']:.1%}"
    yield f"messages  {data['messages']}, {data['message_bytes']:,.0f} bytes"
    yield from _device_lines(data["devices"])
    yield from _path_lines(data["path"], data["seconds"])
    if "replicas" in data:
        yield from _replica_lines(data["replicas"])


def _device_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield ""
    shown = sorted(rows, key=lambda r: -r["busy_seconds"])[:_MOST_DEVICES]
    width = max(len(r["name"]) for r in shown)
    head = f"{'ops':>6}  {'busy':>8}  {'load':>5}  {'sent':>9}  {'memory':>9}  of"
    yield f"{'device':{width}}  {head}"
    for r in shown:
        limit = size_text(r["capacity_bytes"]) if r["capacity_bytes"] is not None else "-"
        yield (
            f"{r['name']:{width}}  {r['ops']:>6}  {time_text(r['busy_seconds']):>8}  "
            f"{r['load']:>5.0%}  {size_text(r['sent_bytes']):>9}  "
            f"{size_text(r['memory_bytes']):>9}  {limit}"
        )
    if len(rows) > len(shown):
        rest = sorted(rows, key=lambda r: -r["busy_seconds"])[len(shown) :]
        most = max(r["memory_bytes"] for r in rest)
        yield f"and {len(rest)} more, none busier, with at most {size_text(most)} each"


def _path_lines(path: list[dict[str, Any]], seconds: float) -> Iterator[str]:
    if not path:
        return
    moved = [s for s in path if "bytes" in s]
    computed = sum(s["end"] - s["begin"] for s in path if "bytes" not in s)
    yield ""
    yield (
        f"critical path: {len(path) - len(moved)} ops, {time_text(computed)}; {len(moved)} "
        f"messages and waiting, {time_text(max(0.0, seconds - computed))}; the longest:"
    )
    longest = sorted(path, key=lambda s: s["begin"] - s["end"])[:_MOST_SPANS]
    for s in sorted(longest, key=lambda s: s["begin"]):
        nbytes = f", {size_text(s['bytes'])}" if "bytes" in s else ""
        took = time_text(s["end"] - s["begin"])
        yield f"  {time_text(s['begin']):>8}  {took:>8}  {s['what']}{nbytes}  {s['where']}"


def _replica_lines(r: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{r['workers']} workers, {r['how']}"
    yield f"  a step takes {time_text(r['seconds'])}, of ten one {time_text(r['p90_seconds'])}"
    if r["steps_per_second"] is not None:
        yield (
            f"  {r['steps_per_second']:,.0f} steps of workers in a second; computing is "
            f"{r['efficiency']:.0%} of a step"
        )


def size_text(nbytes: float) -> str:
    """Three digits: 12 B, 3.4 kB, 5.67 MB, 8.9 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"
