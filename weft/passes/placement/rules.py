"""Other constraints for a graph that is there already, as for one saved as text.

A rule is `PATTERN=DEVICE`. The pattern, with `*` and `?`, is a name of variables and objects of the
host (`w*`), after `op:` a name of ops (`op:matmul`), or after `at:` a place (`at:*model.py:12*`).
The device may be a partial spec; an empty one takes the op's constraint away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from weft.ir.dataclass import dataclass
from weft.ir.device import canonical_device
from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.ir.graph import Graph, Operation
from weft.passes.placement.copying import with_devices


@dataclass(frozen=True, slots=True)
class Rule:
    """The constraint `device` for the ops that `pattern` names. kind: "name", "op" or "at"."""

    kind: str
    pattern: str
    device: str

    @staticmethod
    def parse(text: str) -> Rule:
        """A rule as it is written. Raises InvalidArgumentError."""
        pattern, equals, device = text.rpartition("=")
        kind, colon, rest = pattern.partition(":")
        if colon and kind in ("op", "at"):
            pattern = rest
        else:
            kind = "name"
        if not equals or not pattern:
            raise InvalidArgumentError(
                f"{text!r} is no rule for devices",
                hint="write 'w*=/job:ps/task:1', 'op:matmul=/job:worker' or 'at:m.py:12*=/cpu:0'",
            )
        return Rule(kind, pattern, canonical_device(device) if device else "")

    def fits(self, op: Operation) -> bool:
        """Whether the rule is about the op."""
        if self.kind == "op":
            return fnmatchcase(op.name, self.pattern)
        if self.kind == "at":
            return any(fnmatchcase(str(at), self.pattern) for at in op.locations)
        name = op.attrs.get("name")
        return not op.operands and isinstance(name, str) and fnmatchcase(name, self.pattern)


def constrain(graph: Graph, rules: Sequence[Rule], *, clear: bool = False) -> Graph:
    """`graph` with other constraints; of several rules for an op the last one holds.

    clear: all devices that it has are forgotten first, which a graph that is placed already needs.
    NotFoundError for a rule that is about no op.
    """
    for rule in rules:
        if not any(map(rule.fits, graph.walk())):
            what = {"op": "no op called", "at": "no op at", "name": "nothing called"}[rule.kind]
            raise NotFoundError(
                f"graph '{graph.name}' has {what} {rule.pattern!r}",
                hint="op:NAME is about ops, at:FILE:LINE:COLUMN about places, a name alone about "
                "variables and objects of the host; * stands for anything",
            )

    def device_of(op: Operation, around: str) -> str:
        device = "" if clear else op.device
        for rule in rules:
            if rule.fits(op):
                device = rule.device
        return device

    return replace(graph, block=with_devices(graph.block, device_of, {}))
