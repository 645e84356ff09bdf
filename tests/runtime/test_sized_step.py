"""`SizedStep`: which sizes get a plan of their own, what is kept, and whose errors are raised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import float32
from weft.ir.graph import Graph
from weft.ir.types import TensorType
from weft.runtime.sized_step import (
    FilledStep,
    Numbers,
    Shapes,
    SizedGraph,
    SizedStep,
    SizePlan,
)
from weft.runtime.step import PLAIN, RunContext

N = SymbolicDim.symbol("n")


class Ran:
    """What runs some sizes, and says how it came about."""

    def __init__(self, how: str) -> None:
        self.how = how

    def run(self, inputs: list[Any], context: RunContext = PLAIN) -> list[Any]:
        return [self.how]


class Many(SizePlan[Ran]):
    fault: type[Exception] | None = None

    def _plan(self, graph: Graph) -> None:
        if self.fault is not None:
            raise self.fault("planning")

    def fill(self, numbers: Numbers, shapes: Shapes) -> Ran:
        return Ran("many")


class Maker:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refused: set[int] = set()
        self.fault: Exception | None = None
        self.graph = SizedGraph("g", (TensorType(float32, (N,)),), lambda _: Graph.__new__(Graph))

    def alone(self, shapes: Shapes, *, kept: bool) -> Ran:
        if shapes[0][0] in self.refused:
            raise ValueError("these do not fit")
        self.asked.append(f"alone {shapes[0][0]}{' kept' if kept else ''}")
        return Ran("alone")

    def many(self, shapes: Shapes, *, wide: bool) -> Many:
        if self.fault is not None:
            raise self.fault
        self.asked.append(f"many {shapes[0][0]}")
        return Many(self.graph, shapes, wide=wide)


def rows(n: int) -> list[Any]:
    return [np.zeros(n, np.float32)]


def test_the_first_sizes_have_a_plan_of_their_own_and_others_share_one() -> None:
    maker = Maker()
    step = SizedStep(maker)
    assert [step.run(rows(n))[0] for n in (5, 6, 7, 6, 5)] == [
        "alone", "many", "many", "many", "alone",
    ]  # fmt: skip
    assert maker.asked == ["alone 5 kept", "many 6"]
    assert len(step) == 3


def test_sizes_that_do_not_fit_are_not_the_first() -> None:
    maker = Maker()
    maker.refused.add(3)
    step = SizedStep(maker)
    for _ in range(2):
        with pytest.raises(ValueError, match="do not fit"):
            step.run(rows(3))
    assert step.run(rows(5)) == ["alone"]
    assert maker.asked == ["alone 5 kept"]


def test_what_is_shared_is_not_kept() -> None:
    """Whoever asks holds it: a session that forgets a definition frees it."""
    step = SizedStep(Maker(), 0)
    made = [step.shared(((n,),)) for n in (5, 6, 7)]
    assert all(m is not None and m.how == "many" for m in made)
    assert len(step) == 0
    filled = FilledStep("g", made[0])
    assert filled.run(rows(5)) == ["many"]
    assert filled.kind == "sized"


@pytest.mark.parametrize("fault", [TypeError, AttributeError, OverflowError])
def test_where_sizes_cannot_be_traced_each_has_a_plan_of_its_own(
    fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker()
    step = SizedStep(maker)
    monkeypatch.setattr(Many, "fault", fault)
    assert [step.run(rows(n))[0] for n in (5, 6, 7)] == ["alone"] * 3
    assert maker.asked == ["alone 5 kept", "many 6", "alone 6", "alone 7"]


@pytest.mark.parametrize("fault", [TypeError, AttributeError, OverflowError])
def test_faults_outside_of_planning_are_raised(fault: type[Exception]) -> None:
    maker = Maker()
    step = SizedStep(maker, 0)
    maker.fault = fault("of the way to run it")
    with pytest.raises(fault, match="way to run it"):
        step.run(rows(5))
