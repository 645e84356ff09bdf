"""Values that a kernel makes and no memory holds, though ops outside its nest read them: what the
prediction of memory knows of the passes after `fuse`.

* An update in place (`fuse_matmul`, `expand_updates`): the elementwise ops before an `assign`, and
  the product before these, write into the variable.
* Recomputation (`recompute`): what follows from a stored result of its nest, or from what its nest
  is not alone to read, by a few cheap ops is computed again where it is read.

What `Rules` finds is a prediction: the passes look at more (the cost of reading, at rows)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from weft.ir.cost.thresholds import MOST_REPEATED, REPEATED, REPEATED_BYTES
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.types import TensorType
from weft.passes.fusion.epilogues import is_deep, is_product

_ASSIGNS = frozenset({"assign", "assign_add", "assign_sub"})


class Rules:
    """What is found in a block. nest: of each op that is part of a loop nest, which. source: what a
    value is that nests read through index maps."""

    def __init__(
        self, block: Block, nest: Mapping[Operation, object], source: Callable[[Value], Value]
    ) -> None:
        self._nest, self._behind = nest, source
        self._users: dict[Value, list[Operation | None]] = {}
        for op in block.ops:
            for value in (*op.operands, *op.control):
                self._users.setdefault(value, []).append(op)
        for value in block.results:
            self._users.setdefault(value, []).append(None)
        self._block = block

    def updates(self) -> list[Value]:
        """What is written into a variable at once."""
        found: list[Value] = []
        for op in self._block.ops:
            if op.name in _ASSIGNS and len(op.operands) > 1:
                self._write(op, op.operands[1], found)
        return found

    def _write(self, reader: Operation, value: Value, found: list[Value]) -> None:
        maker = value.op
        while maker is not None and self._users[value] == [reader]:
            same = [v for v in maker.operands if v.type == value.type]
            if is_product(maker):
                # a product's own epilogue; a variable that it reads is not written before
                if not is_deep(maker):
                    found.append(value)
                return
            if not _is_elementwise(maker) or maker.device != reader.device:
                return
            found.append(value)
            for other in same[1:]:
                self._write(maker, other, found)
            if not same:
                return
            reader, value = maker, same[0]
            maker = value.op

    def again(self, inside: Collection[Value]) -> dict[Value, Value]:
        """What is computed again, and the value whose memory it is computed from. inside: values
        that only their nest reads."""
        found: dict[Value, Value] = {}
        for op in self._block.ops:
            for value in op.results if op in self._nest else ():
                if value not in inside and _bytes(value) >= REPEATED_BYTES:
                    source = self._source(value, inside, found) if self._may_go(value) else None
                    if source is not None:
                        found[value] = source
        return found

    def _may_go(self, value: Value) -> bool:
        """Whether all that read a value are parts of nests, on the device where it is made."""
        assert value.op is not None
        device = value.op.device
        return all(
            user in self._nest and user is not None and user.device == device
            for user in self._users.get(value, [])
        )

    def _source(
        self, value: Value, inside: Collection[Value], gone: Collection[Value]
    ) -> Value | None:
        """The one large value that another one of the nest follows from by few cheap ops."""
        assert value.op is not None
        nest, todo, seen, sources = self._nest[value.op], [value], set[Operation](), set[Value]()
        while todo:
            maker = todo.pop().op
            if maker is None or maker in seen:
                continue
            seen.add(maker)
            if maker.name not in REPEATED or len(seen) > MOST_REPEATED:
                return None
            for operand in map(self._behind, maker.operands):
                if _bytes(operand) < REPEATED_BYTES:
                    continue
                own = operand.op is not None and self._nest.get(operand.op) == nest
                if own and (operand in inside or operand in gone):
                    todo.append(operand)
                elif own or any(self._nest.get(u) != nest for u in self._users[operand] if u):
                    sources.add(operand)
                else:  # a product that is not stored if its nest takes it over
                    return None
        return sources.pop() if len(sources) == 1 else None


def _is_elementwise(op: Operation) -> bool:
    return "elementwise" in lookup(op.name).traits and len(op.results) == 1


def _bytes(value: Value) -> int:
    t = value.type
    return t.nbytes if isinstance(t, TensorType) and t.is_static else 0
