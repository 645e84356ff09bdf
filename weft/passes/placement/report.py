"""A placement as text: `Session.explain`, `weft place --explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.graph import Operation
from weft.passes.placement.placer import Placement
from weft.passes.placement.timing import Span

_MOST_OPS, _MOST_MESSAGES = 40, 20


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
    costs = f"{placement.measured} of {len(ops)} ops measured" if placement.measured else "static"
    yield (
        f"placement of '{placement.graph.name}': {len(ops)} ops on {len(used)} of "
        f"{len(rows)} devices"
    )
    seconds = placement.predicted_seconds
    yield f"  a step is predicted to take {_time(seconds)} (costs: {costs})"
    if measured is not None:
        ratio = f"{seconds / measured:.2f} of it" if measured > 0 else "no time at all"
        yield f"  a step took {_time(measured)}: predicted was {ratio}"
    for name, time in placement.compared.items():
        yield f"    {name}: {_time(time)}"
    for text in placement.fallbacks:
        yield f"  {text}"
    for op in placement.spanning:
        yield f"  op '{op.name}'{_at(op)} is on several devices: it becomes Switch and Merge"
    messages = [s for s in placement.timeline if " -> " in s.where]
    busy: dict[str, float] = {}
    for span in placement.timeline:
        if " -> " not in span.where:
            busy[span.where] = busy.get(span.where, 0.0) + span.end - span.begin
    for name in used:
        yield ""
        yield f"{name}: {len(rows[name])} ops, busy for {_time(busy.get(name, 0.0))}"
        for op in rows[name][:limit]:
            yield f"  {op.name}{_at(op)}: {placement.reasons[op]}"
        if len(rows[name]) > limit:
            yield f"  and {len(rows[name]) - limit} more"
    if messages:
        yield ""
        yield from _messages(messages)


def _messages(messages: Sequence[Span]) -> Iterator[str]:
    total = sum(m.nbytes for m in messages)
    yield f"{len(messages)} messages, {total:,.0f} bytes"
    for m in sorted(messages, key=lambda m: (-m.nbytes, m.begin))[:_MOST_MESSAGES]:
        yield f"  {m.what}  {m.where}: {m.nbytes:,.0f} bytes, {_time(m.begin)} to {_time(m.end)}"
    if len(messages) > _MOST_MESSAGES:
        yield f"  and {len(messages) - _MOST_MESSAGES} more"


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""


def _time(seconds: float) -> str:
    """Three digits: 12.3 us, 4.56 ms, 1.2 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
