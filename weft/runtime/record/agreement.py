"""Whether two runs of a program agree: whether what they gave differs by no more than rounding may
do to it (`ir/interpreter/rounding.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.interpreter.rounding import Overflow, stable_results
from weft.passes.simplify.effects import expand_updates
from weft.runtime.record.replay import Difference, HostReplay, Replayed, differences
from weft.runtime.record.step_record import StepRecord

Array = np.ndarray[Any, Any]


def disagreements(
    record: StepRecord, first: Replayed, second: Replayed, written: Sequence[str] | None = None
) -> list[Difference]:
    """How two runs of a record's program differ by more than rounding may explain. What differs
    much is looked at twice: where the results depend on rounding (a difference of near equals, a
    comparison of them), so they may. Nothing is said of a program in which a finite computation
    overflows, since that depends on what is fused."""
    wrong = [d for d in differences(record.graph, first, second, written) if not d.close]
    if not wrong or first.error is not None or second.error is not None:
        return wrong
    try:
        results, variables = stable_results(
            expand_updates(record.graph), record.inputs, dict(record.variables), 0,
            lambda: HostReplay(record.graph, record.host).on_host,
        )  # fmt: skip
    except (Overflow, WeftError):
        return []
    spreads: dict[str, Any] = {f"result {i}": s for i, s in enumerate(results)}
    spreads |= {f"variable '{name}'": s for name, s in variables.items()}
    return [d for d in wrong if not _explained(d, spreads, first, second)]


def _explained(
    one: Difference, spreads: Mapping[str, Any], first: Replayed, second: Replayed
) -> bool:
    """Whether what a difference is of lies within the spread of rounding in both runs."""
    spread = spreads.get(one.what)
    if spread is None:
        return False
    return all(_within(run.of(one.what), *spread) for run in (first, second))


def _within(x: Any, centre: Array, spread: Array) -> bool:
    if x is None or x.dtype != centre.dtype or x.shape != centre.shape:
        return False
    with np.errstate(all="ignore"):
        if x.dtype.kind not in "fcV":
            return bool(((x == centre) | np.isinf(spread)).all())
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        a, b = x.astype(wide), centre.astype(wide)
        fine = (np.abs(a - b) <= spread) | (a == b) | np.isinf(spread)
        return bool((fine | (np.isnan(a) & np.isnan(b))).all())
