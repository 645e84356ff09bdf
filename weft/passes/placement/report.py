"""The text of a placement: what is where and why, the messages, the memory, and the time.

For `Session.explain`, `weft place --explain` and `weft explain --devices`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.graph import Operation
from weft.passes.placement.placer import Placement
from weft.passes.placement.timeline import Span

_MOST_OPS, _MOST_MESSAGES, _MOST_GROUPS = 40, 20, 8


def explain_placement(
    placement: Placement, *, measured_seconds: float | None = None, limit: int = _MOST_OPS
) -> str:
    """What is where and why, which messages there are, and what the step takes.

    measured_seconds: what a step took, to be held against the prediction. limit: so many ops of
    each device are shown.
    """
    return "\n".join(_lines(placement, measured_seconds, limit))


def _lines(placement: Placement, measured: float | None, limit: int) -> Iterator[str]:
    ops = list(placement.reasons)
    rows: dict[str, list[Operation]] = {d.name: [] for d in placement.devices}
    for op in ops:
        rows[op.device].append(op)
    used = [name for name, held in rows.items() if held]
    found = placement.predict()
    costs = f"{found.measured} of {len(ops)} ops measured" if found.measured else "static"
    yield (
        f"placement of '{placement.graph.name}': {len(ops)} ops on {len(used)} of "
        f"{len(rows)} devices"
    )
    seconds = found.seconds
    yield f"  a step is predicted to take {time_text(seconds)} (costs: {costs})"
    if measured is not None:
        ratio = f"{seconds / measured:.2f} of it" if measured > 0 else "no time at all"
        yield f"  a step took {time_text(measured)}: predicted was {ratio}"
    if placement.note:
        yield f"  {placement.note}"
    if found.replicas:
        many = "a task does" if found.replicas == 1 else f"{found.replicas} tasks do"
        yield f"  if {many} such a step at once, phase by phase, it takes"
    for name, time in found.compared.items():
        unfit = ", which does not fit the memory" if name in found.unfit else ""
        yield f"    {name}: {time_text(time)}{unfit}"
    yield f"  {_bound(placement)}"
    for text in placement.fallbacks:
        yield f"  {text}"
    for op in placement.spanning:
        yield f"  op '{op.name}'{_at(op)} is on several devices: it becomes Switch and Merge"
    messages = [s for s in found.timeline if " -> " in s.where]
    busy: dict[str, float] = {}
    for span in found.timeline:
        if " -> " not in span.where:
            busy[span.where] = busy.get(span.where, 0.0) + span.end - span.begin
    peaks = {placement.devices[p.device].name: p.nbytes for p in found.peaks}
    yield from _alternatives(placement)
    for name in used:
        yield ""
        memory = f", {peaks[name]:,.0f} bytes at most" if name in peaks else ""
        yield f"{name}: {len(rows[name])} ops, busy for {time_text(busy.get(name, 0.0))}{memory}"
        for op in rows[name][:limit]:
            yield f"  {op.name}{_at(op)}: {placement.reasons[op]}"
        if len(rows[name]) > limit:
            yield f"  and {len(rows[name]) - limit} more"
    if messages:
        yield ""
        yield from _messages(messages)


def _bound(placement: Placement) -> str:
    """How far the placement is from the lower bound, in words."""
    bound, seconds = placement.choice.bound, placement.predict().seconds
    if not bound.seconds > 0:
        return "nothing bounds the step from below"
    far = seconds / bound.seconds - 1
    return (
        f"no placement takes less than {time_text(bound.seconds)} ({bound.reason}): {far:.1%} away"
    )


def _alternatives(placement: Placement) -> Iterator[str]:
    """What it would cost to have the largest groups elsewhere."""
    rows = placement.choice.elsewhere(_MOST_GROUPS)
    if not rows:
        return
    yield ""
    yield "the step, if the largest groups of ops that had a choice were elsewhere"
    for row in rows:
        more = row.seconds - placement.predict().seconds
        others = f" and {row.count - 1} more" if row.count > 1 else ""
        sign = "+" if more >= 0 else "-"
        yield (
            f"  {row.op.name}{_at(row.op)}{others} ({time_text(row.own)}): on {row.device} "
            f"{sign}{time_text(abs(more))}"
        )


def _messages(messages: Sequence[Span]) -> Iterator[str]:
    total = sum(m.nbytes for m in messages)
    yield f"{len(messages)} messages, {total:,.0f} bytes"
    for m in sorted(messages, key=lambda m: (-m.nbytes, m.begin))[:_MOST_MESSAGES]:
        when = f"{time_text(m.begin)} to {time_text(m.end)}"
        yield f"  {m.what}  {m.where}: {m.nbytes:,.0f} bytes, {when}"
    if len(messages) > _MOST_MESSAGES:
        yield f"  and {len(messages) - _MOST_MESSAGES} more"


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""


def time_text(seconds: float) -> str:
    """Three digits: 12.3 us, 4.56 ms, 1.2 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
