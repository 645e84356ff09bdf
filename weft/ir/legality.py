"""Which ops may exist at which stage of the pipeline, as one table.

Each stage of `graph.STAGES` promises something to the code that comes after it: from "optimized" on
there are no ops that only mean something to autodiff; from "fused" on there are loop nests. At
"dataflow" branches and loops may be ops that dead values run through; the passes before that stage
move ops by their data alone, which would lose what decides whether they are dead. At "partitioned"
a graph is the part of one device, with sends and receives in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.dataclass import dataclass
from weft.ir.graph import STAGES, WITH_DEAD_VALUES
from weft.ir.ops.communication import COMMUNICATION
from weft.ir.ops.dataflow import DATAFLOW
from weft.ir.ops.state import UPDATES


@dataclass(frozen=True, slots=True)
class Legality:
    """stages: where the op may be. in_nest: whether it may be inside the region of a `fused` op."""

    stages: tuple[str, ...] = STAGES
    in_nest: bool = True


_TRACED = STAGES[:1]
_FROM_FUSED = STAGES[2:]
_DATAFLOW = WITH_DEAD_VALUES

#: Ops whose region is one kernel.
KERNELS = frozenset({"fused", "unrolled"})

#: Ops that are not in the table may be anywhere. The region of a `fused` op is one loop nest: it
#: has no state, no effects and no nest in it.
LEGALITY: Mapping[str, Legality] = {
    # dataflow: pivots, and marks in what users built with switch and merge
    "identity": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "stop_gradient": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "custom_gradient": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "fused": Legality(_FROM_FUSED, in_nest=False),
    "unrolled": Legality(_FROM_FUSED, in_nest=False),
    "variable": Legality(in_nest=False),
    "read": Legality(in_nest=False),
    "assign": Legality(in_nest=False),
    **{name: Legality((*_TRACED, *_DATAFLOW), in_nest=False) for name in sorted(UPDATES)},
    "group": Legality(in_nest=False),
    "cond": Legality(in_nest=False),
    "while": Legality(in_nest=False),
    "scan": Legality(in_nest=False),
    "stack_new": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "stack_push": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "stack_pop": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "stack_add": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "arena_push": Legality(in_nest=False),
    "arena_pop": Legality(in_nest=False),
    "arena_add": Legality(in_nest=False),
    **{name: Legality(_DATAFLOW, in_nest=False) for name in sorted(DATAFLOW)},
    **{name: Legality(("partitioned",), in_nest=False) for name in sorted(COMMUNICATION)},
}
ANYWHERE = Legality()


def illegal(name: str, stage: str, in_nest: bool) -> str | None:
    """Why op `name` may not be in a graph of `stage` (in a `fused` op or not); None if it may."""
    rule = LEGALITY.get(name, ANYWHERE)
    if stage not in rule.stages:
        return f"is not legal at stage '{stage}', only at: {', '.join(rule.stages)}"
    if in_nest and not rule.in_nest:
        return "is not legal inside the region of a 'fused' op"
    return None
