"""What the kernel of a loop on single values depends on: its key, and the numbers that it takes.

`scalar_check.py` says which ops have such kernels, `scalar_emit.py` makes them. They take the
addresses of the results, those of the operands, the status word, and then numbers: lengths,
extents, and the constants that are not baked in, so that another length or another step size
compiles nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from weft.codegen.call import Arg, Pool
from weft.codegen.steps.scalar_check import READS, SAME, WRITES, is_single, tensor
from weft.ir.attributes import ConstArray
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.control import CONTROL
from weft.ir.rules import int_attr, ints_attr

#: Bumped whenever the code that is emitted changes.
EMITTER_VERSION = 1
#: Constants that become part of the code, by how they print: they simplify it.
BAKED = frozenset({"-1", "0", "1", "2", "-1.0", "0.0", "0.5", "1.0", "2.0", "True", "False"})


class Scribe:
    """What the code of a kernel depends on, as text, and the numbers that it takes.

    number: where among the numbers an op's size (by a tag) or constant is; faults: the ops that
    check an index, in order.
    """

    def __init__(self, op: Operation) -> None:
        self.op = op
        self.carries = int_attr(op.attrs, "carries") if op.name != "cond" else 0
        self.lines = [f"v{EMITTER_VERSION}"]
        self.numbers: list[Arg] = []
        self.constant_dtypes: dict[int, str] = {}  # of those numbers that are addresses of one
        self.number: dict[tuple[Operation, str], int] = {}
        self.faults: list[Operation] = []
        self.name: dict[Value, int] = {}
        for value in op.operands:
            self._new(value)
            self.lines.append(f"operand {_kind(value)}")
        self._control(op)
        self.lines += [f"result {_kind(value)}" for value in op.results]

    @property
    def key(self) -> str:
        """Content key of the kernel."""
        return "loop-" + hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:32]

    def works_in_result(self, k: int) -> bool:
        """Is operand `k` an array that the loop changes: in the result's buffer, after a copy?"""
        return k < self.carries and not is_single(self.op.operands[k])

    @staticmethod
    def _is_row(op: Operation, k: int) -> bool:
        carries = int_attr(op.attrs, "carries")
        return carries <= k < carries + int_attr(op.attrs, "sequences")

    def _new(self, value: Value) -> None:
        self.name[value] = len(self.name)

    def _number(self, op: Operation, tag: str, held: Arg) -> None:
        self.number[op, tag] = len(self.numbers)
        self.numbers.append(held)

    def _line(self, op: Operation, *more: str) -> None:
        for value in op.results:
            self._new(value)
        names = " ".join(f"%{self.name[v]}" for v in op.operands)
        kinds = " ".join(_kind(v) for v in (*op.operands, *op.results))
        self.lines.append(" ".join([op.name, names, ":", kinds, *more]))

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._op(op)
        self.lines.append("give " + " ".join(f"%{self.name[v]}" for v in block.results))

    def _op(self, op: Operation) -> None:
        if op.name in CONTROL:
            self._control(op)
        elif op.name == "fused":
            (region,) = op.regions
            self._alias(zip(region.args, op.operands, strict=True))
            self._block(region)
            self._alias(zip(op.results, region.results, strict=True))
        elif op.name == "constant":
            self._constant(op)
        elif op.name == "slice" and not is_single(op.operands[0]):
            self._number(op, "offset", _slice_offset(op))
            self._line(op)
        elif op.name in SAME:
            self._alias([(op.result, op.operands[0])])
        else:
            if op.name in READS or op.name in WRITES:
                self._number(op, "extent", _extent(op))
                self.faults.append(op)
            self._line(op)

    def _alias(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        for new, old in pairs:
            self.name[new] = self.name[old]

    def _constant(self, op: Operation) -> None:
        held = op.attrs["value"]
        assert isinstance(held, ConstArray)
        text = str(held.array.reshape(()).item())
        if text in BAKED:
            self._line(op, text)
            return
        self.constant_dtypes[len(self.numbers)] = tensor(op.result).dtype.short
        self._number(op, "value", Pool(held))
        self._line(op)

    def _control(self, op: Operation) -> None:
        if op.name == "scan":
            self._number(op, "length", int_attr(op.attrs, "length"))
        if op.name == "while" and int_attr(op.attrs, "limit") >= 0:
            self._number(op, "limit", int_attr(op.attrs, "limit"))
        for k, arg in enumerate(op.regions[-1].args):
            if op.name == "scan" and not is_single(arg) and self._is_row(op, k):
                self._number(op, f"row {k}", math.prod(tensor(arg).static_shape))
        given = ("carries", "sequences", "reverse")
        self._line(op, *(f"{k}={op.attrs[k]}" for k in given if k in op.attrs),
                   *(["limited"] if (op, "limit") in self.number else []))  # fmt: skip
        for region in op.regions:
            for arg in region.args:
                self._new(arg)
            self.lines.append("{")
            self._block(region)
            self.lines.append("}")


def _kind(value: Value) -> str:
    held = tensor(value)
    return held.dtype.short if is_single(value) else f"{held.dtype.short}[]"


def _extent(op: Operation) -> int:
    """The size of the axis that the index counts; the others have size 1."""
    axis = int_attr(op.attrs, "axis") if op.name in ("take", "index_add") else 0
    return tensor(op.operands[0]).static_shape[axis]


def _slice_offset(op: Operation) -> int:
    """Which element of the array a slice of one element is."""
    offset = 0
    shape = tensor(op.operands[0]).static_shape
    for start, size in zip(ints_attr(op.attrs, "starts"), shape, strict=True):
        offset = offset * size + start
    return offset
