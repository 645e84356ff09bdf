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

from weft.codegen.call import Arg, Pool, Stacks
from weft.codegen.steps.scalar_check import READS, STACKS, WRITES, sequences_of
from weft.codegen.steps.scalar_small import MOVES, fits, is_single, tensor
from weft.ir.analysis.verify import KERNELS
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.reduction import FOLDS
from weft.ir.spec import ConstArray
from weft.ir.type_rules import int_attr, ints_attr

#: Bumped whenever the code that is emitted changes.
EMITTER_VERSION = 3
LOOPS = frozenset({"while", "scan"})
#: Constants that become part of the code, by how they print: they simplify it.
BAKED = frozenset({"-1", "0", "1", "2", "-1.0", "0.0", "0.5", "1.0", "2.0", "True", "False"})


class Scribe:
    """What the code of a kernel depends on, as text, and the numbers that it takes.

    number: where among the numbers an op's size (by a tag) or constant is; faults: the ops that
    check an index, in order.
    """

    def __init__(self, op: Operation, limit: int) -> None:
        self.op = op
        self.limit = limit  # of the elements of what is in registers
        self.carries = int_attr(op.attrs, "carries") if op.name in LOOPS else 0
        self.lines = [f"v{EMITTER_VERSION}"]
        self.numbers: list[Arg] = []
        #: Of those numbers that are addresses of constants: their dtype and how many elements.
        self.constants: dict[int, tuple[str, int]] = {}
        self.number: dict[tuple[Operation, str], int] = {}
        self.faults: list[Operation] = []
        self.name: dict[Value, int] = {}
        for k, value in enumerate(op.operands):
            self._new(value)
            self.lines.append(f"operand {self._kind(value, self.is_held(k))}")
        self._control(op)

    def _kind(self, value: Value, held: bool = True) -> str:
        """The dtype, and the shape of what is `held` in registers."""
        dtype, shape = tensor(value).dtype.short, tensor(value).static_shape
        if is_single(value):
            return dtype
        sizes = ",".join(map(str, shape)) if held and self.fits(value) else ""
        return f"{dtype}[{sizes}]"

    @property
    def key(self) -> str:
        """Content key of the kernel."""
        return "loop-" + hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:32]

    def works_in_result(self, k: int) -> bool:
        """Is operand `k` an array that the loop changes: in the result's buffer, after a copy?"""
        return k < self.carries and not self.fits(self.op.operands[k])

    def fits(self, value: Value) -> bool:
        """Whether a value of the regions, or a carry, is in registers."""
        return fits(value, self.limit)

    def is_held(self, k: int) -> bool:
        """Whether operand `k` is in registers: no sequence, of which each iteration has a row."""
        value = self.op.operands[k]
        return is_single(value) or (self.fits(value) and k not in sequences_of(self.op))

    def _new(self, value: Value) -> None:
        self.name[value] = len(self.name)

    def _number(self, op: Operation, tag: str, held: Arg) -> None:
        self.number[op, tag] = len(self.numbers)
        self.numbers.append(held)

    def _line(self, op: Operation, *more: str) -> None:
        for value in op.results:
            self._new(value)
        names = " ".join(f"%{self.name[v]}" for v in op.operands)
        rows = sequences_of(op)
        kinds = [self._kind(v, k not in rows) for k, v in enumerate(op.operands)]
        stacks = int_attr(op.attrs, "carries") if op.name in LOOPS else len(op.results)
        kinds += [self._kind(v, k < stacks) for k, v in enumerate(op.results)]
        self.lines.append(" ".join([op.name, names, ":", *kinds, *more]))

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._op(op)
        self.lines.append("give " + " ".join(f"%{self.name[v]}" for v in block.results))

    def _op(self, op: Operation) -> None:
        if op.name in CONTROL:
            self._control(op)
        elif op.name in KERNELS:
            (region,) = op.regions
            self._alias(zip(region.args, op.operands, strict=True))
            self._block(region)
            self._alias(zip(op.results, region.results, strict=True))
        elif op.name == "constant":
            self._constant(op)
        elif op.name == "slice" and not self.fits(op.operands[0]):
            self._number(op, "offset", _slice_offset(op))
            self._line(op)
        elif (
            (op.name in MOVES or op.name in FOLDS)
            and is_single(op.operands[0])
            and (is_single(op.result) and len(op.operands) == 1)
        ):
            self._alias([(op.result, op.operands[0])])
        elif op.name in STACKS:
            self._stack(op)
        elif op.name in MOVES or op.name in FOLDS or op.name in ("matmul", "iota"):
            self._line(op, *(f"{k}={v}" for k, v in sorted(op.attrs.items())))
        else:
            if op.name in READS or op.name in WRITES:
                self._number(op, "extent", _extent(op))
                self.faults.append(op)
            self._line(op)

    def _stack(self, op: Operation) -> None:
        limited = op.name == "arena_push" and int_attr(op.attrs, "limit") >= 0
        if op.name == "arena_push":
            self._number(op, "arena", Stacks())
            self.faults.append(op)
        if limited:
            self._number(op, "limit", int_attr(op.attrs, "limit"))
        self._line(op, *(["limited"] if limited else []))

    def _alias(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        for new, old in pairs:
            self.name[new] = self.name[old]

    def _constant(self, op: Operation) -> None:
        held = op.attrs["value"]
        assert isinstance(held, ConstArray)
        text = str(held.array.reshape(()).item()) if held.array.size == 1 else ""
        if text in BAKED:
            self._line(op, text)
            return
        self.constants[len(self.numbers)] = tensor(op.result).dtype.short, held.array.size
        self._number(op, "value", Pool(held))
        self._line(op)

    def _control(self, op: Operation) -> None:
        if op.name == "scan":
            self._number(op, "length", int_attr(op.attrs, "length"))
        if op.name == "while" and int_attr(op.attrs, "limit") >= 0:
            self._number(op, "limit", int_attr(op.attrs, "limit"))
        for k, arg in enumerate(op.regions[-1].args):
            if k in sequences_of(op) and not self.fits(arg):
                self._number(op, f"row {k}", math.prod(tensor(arg).static_shape))
        given = ("carries", "sequences", "reverse")
        self._line(op, *(f"{k}={op.attrs[k]}" for k in given if k in op.attrs),
                   *(["limited"] if (op, "limit") in self.number else []))  # fmt: skip
        for region in op.regions:
            for arg in region.args:
                self._new(arg)
            self.lines.append("{ " + " ".join(self._kind(arg) for arg in region.args))
            self._block(region)
            self.lines.append("}")


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
