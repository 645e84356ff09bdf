"""Gradients that would lead through a variable that a branch or loop changes as it runs.

What such a body stores in the variable and reads again, perhaps in a later iteration, has no
cotangent: the read is an op of its own, and what the variable was at each moment is not kept. So
here is found what the results owe to the operands that way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from weft.ir.dataclass import dataclass
from weft.ir.effects import StateKey, region_keys, state_key
from weft.ir.errors import GradientError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.control import CONTROL
from weft.ir.types import RefType, StackType, TensorType
from weft.passes.control.loops import LOOPS, Loop


def refuse_by_state(
    op: Operation, wanted: Sequence[bool], used: Sequence[bool], no_gradient: Collection[str]
) -> None:
    """GradientError if results of a branch or loop that are `used` depend on operands that are
    `wanted` by way of a variable in it."""
    flow = _Flow(no_gradient)
    flow.active.update(v for v, is_wanted in zip(op.operands, wanted, strict=True) if is_wanted)
    flow.op(op, {})
    for result, is_used in zip(op.results, used, strict=True):
        if is_used and result in flow.lost:
            read, update = flow.lost[result]
            raise GradientError(
                f"the gradient of op '{op.name}' leads through a variable that changes in it: op "
                f"'{read.name}' gives what op '{update.name}'{_at(update)} has made of it",
                hint="return what is stored, or carry it as a loop variable; wf.stop_gradient "
                "around what is read takes it for a constant",
                location=read.locations or op.locations,
            )


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""


@dataclass(slots=True)
class _Flow:
    """What depends on the wanted operands: active by values alone, lost by a variable.

    lost: the op that reads, and the update before it. stored: of a variable that holds such a
    value, the update.
    """

    no_gradient: Collection[str]
    active: set[Value] = field(default_factory=set)
    lost: dict[Value, tuple[Operation, Operation]] = field(default_factory=dict)
    stored: dict[StateKey, Operation] = field(default_factory=dict)

    def op(self, op: Operation, known: Mapping[Value, StateKey]) -> None:
        """Follow one op; known: what the refs among the block's arguments stand for."""
        if op.name in CONTROL:
            (self._loop if op.name in LOOPS else self._branch)(op, known)
        elif op.operands and isinstance(op.operands[0].type, RefType):
            self._access(op, state_key(op.operands[0], known))
        elif op.name not in self.no_gradient:
            for value in op.operands:
                for result in op.results:
                    self._join(value, result)

    def _join(self, source: Value, target: Value) -> None:
        """`target` depends on `source`."""
        held = target.type.tensor if isinstance(target.type, StackType) else target.type
        if not (isinstance(held, TensorType) and held.dtype.is_inexact):
            return
        if source in self.active:
            self.active.add(target)
        if source in self.lost:
            self.lost.setdefault(target, self.lost[source])

    def _access(self, op: Operation, key: StateKey) -> None:
        before = self.stored.get(key)
        if before is not None and op.name != "assign":
            self.lost.update(
                (r, (op, before)) for r in op.results if isinstance(r.type, TensorType)
            )
        if "writes_state" not in lookup(op.name).traits:
            return
        for value in op.operands[1:]:
            for result in op.results:
                self._join(value, result)
        if any(v in self.active or v in self.lost for v in op.operands[1:]):
            self.stored[key] = op
        elif op.name == "assign":
            self.stored.pop(key, None)

    def _block(self, op: Operation, region: Block, known: Mapping[Value, StateKey]) -> None:
        operands = op.operands[1:] if op.name == "cond" else op.operands
        for operand, arg in zip(operands, region.args, strict=True):
            self._join(operand, arg)
        inside = region_keys(op, region, known)
        for inner in region.ops:
            self.op(inner, inside)

    def _branch(self, op: Operation, known: Mapping[Value, StateKey]) -> None:
        before = dict(self.stored)
        after: dict[StateKey, Operation] = {}
        for region in op.regions:
            self.stored = dict(before)
            self._block(op, region, known)
            after = {**self.stored, **after}
            for value, result in zip(region.results, op.results, strict=True):
                self._join(value, result)
        self.stored = after

    def _loop(self, op: Operation, known: Mapping[Value, StateKey]) -> None:
        loop = Loop.of(op)
        while True:  # until an iteration adds nothing
            size = len(self.active) + len(self.lost) + len(self.stored)
            before = dict(self.stored)
            for region in op.regions:
                self._block(op, region, known)
            self.stored = {**self.stored, **before}
            for k, value in enumerate(loop.body.results):
                self._join(value, op.results[k])
                if k < loop.carries:
                    self._join(value, loop.body.args[k])
            if size == len(self.active) + len(self.lost) + len(self.stored):
                break
        for k in range(loop.carries):
            self._join(op.operands[k], op.results[k])
