"""Whether two runs of a program agree: whether what they gave differs by no more than rounding may
do to it (`ir/interpreter/rounding.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.interpreter.rounding import RUNS, Overflow, Rounding, stable_results
from weft.passes.simplify.effects import expand_updates
from weft.runtime.record.replay import Difference, HostReplay, Replayed, differences, interpreted
from weft.runtime.record.step_record import StepRecord

Array = np.ndarray[Any, Any]


def disagreements(
    record: StepRecord, first: Replayed, second: Replayed, written: Sequence[str] | None = None
) -> list[Difference]:
    """How two runs of a record's program differ by more than rounding may explain. What differs
    much is looked at again: where results depend on rounding (a difference of near equals, a
    comparison of them, what overflows in one way to fuse and not in another), so they may."""
    wrong = [d for d in differences(record.graph, first, second, written) if not d.close]
    if not wrong or (first.error is not None and second.error is not None):
        return wrong
    graph = expand_updates(record.graph)
    try:
        results, variables = stable_results(
            graph, record.inputs, dict(record.variables), 0,
            lambda: HostReplay(record.graph, record.host).host(graph), anything=True,
        )  # fmt: skip
    except Overflow:
        return []
    except WeftError:  # whether it raises depends on rounding, unless the first run did so, too
        return wrong if first.error is not None and _always_raises(record) else []
    if first.error is not None:
        return []
    if second.error is not None:
        return wrong
    spreads: dict[str, Any] = {f"result {i}": s for i, s in enumerate(results)}
    spreads |= {f"variable '{name}'": s for name, s in variables.items()}
    return [d for d in wrong if not _explained(d, spreads, first, second)]


def _always_raises(record: StepRecord) -> bool:
    """Whether the program raises whatever its rounding errors are."""
    graph = expand_updates(record.graph)
    try:
        watches = [Rounding(np.random.default_rng(k), anything=True) for k in range(RUNS)]
        return all(interpreted(record, watch, graph).error is not None for watch in watches)
    except Overflow:
        return False


def _explained(
    one: Difference, spreads: Mapping[str, Any], first: Replayed, second: Replayed
) -> bool:
    """Whether what a difference is of lies within the spread of rounding in both runs."""
    spread = spreads.get(one.what)
    if spread is None:
        return False
    return all(within_spread(run.of(one.what), *spread) for run in (first, second))


def within_spread(x: Any, centre: Array, spread: Array) -> bool:
    """Whether a value is within the spread of rounding. Where some elements jump, because a
    comparison goes the other way, a few that stay in all samples may do so, too: one in 32 stays on
    its side in six."""
    if x is None or x.dtype != centre.dtype or x.shape != centre.shape:
        return False
    with np.errstate(all="ignore"):
        if x.dtype.kind not in "fcV":
            jumps = np.isinf(spread)
            fine = (x == centre) | jumps
        else:
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            a, b = x.astype(wide), centre.astype(wide)
            jumps = ~(spread < 0.5 * np.abs(b)) & (spread > 0)
            fine = (np.abs(a - b) <= spread) | (a == b) | np.isinf(spread)
            fine |= np.isnan(a) & np.isnan(b)
    left = np.count_nonzero(~fine)
    many = np.count_nonzero(jumps)
    return bool(left == 0 or (many > 0 and left <= 2 + many / 8))
