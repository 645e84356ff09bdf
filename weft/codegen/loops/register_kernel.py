"""Kernel of a loop or branch whose values are in registers (`in_registers.py`).

Carries are in registers; an iteration calls no kernel.

An index out of bounds ends the kernel at once: a loop that follows indices might never end.

`Scribe` writes what the kernel's code depends on: its key, and the numbers that it takes. Arguments
are the addresses of the results, those of the operands, the status word, and then numbers: lengths,
extents, and the constants that are not baked in, so that another length or another step size
compiles nothing. Of stacks, handles and elements are in registers."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Pool, Stacks, Status
from weft.codegen.faults import emit_fault
from weft.codegen.llvm.emitter import I64, Emitter, memory_type, register_type
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import multiplies_and_adds
from weft.codegen.loops.in_registers import (
    MOVES,
    READS,
    STACKS,
    WRITES,
    elements,
    fits,
    folded,
    in_registers,
    is_single,
    moved,
    multiplied,
    sequences_of,
    tensor,
)
from weft.codegen.loops.interrupt import MOST, emit_count
from weft.codegen.loops.program import PlannedCall
from weft.codegen.scalar.element_access import constant, load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.stacks import BASE, BELOW, HEADER, ArenaWords, describe_kept
from weft.ir.analysis.verify import KERNELS
from weft.ir.graph import Block, Operation, Value
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.reduction import FOLDS
from weft.ir.spec import ConstArray, int_attr, ints_attr
from weft.ir.types import TensorType

T = TypeVar("T")
#: Bumped whenever the code that is emitted changes.
EMITTER_VERSION = 3
LOOPS = frozenset({"while", "scan"})
#: Constants that become part of the code, by how they print: they simplify it.
BAKED = frozenset({"-1", "0", "1", "2", "-1.0", "0.0", "0.5", "1.0", "2.0", "True", "False"})


class Scribe:
    """The key of a kernel, the text of all that its code depends on, and the numbers that it takes.

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


def emit_push(
    e: Emitter, words: ir.Value, stack: ir.Value, values: list[ir.Value], held: TensorType
) -> tuple[ir.Value, ir.Value]:
    """The handle of the stack with an element on top, 0 if there is no memory; and how many bytes
    there are in the arena since the stack began."""
    b, i64p, zero = e.builder, I64.as_pointer(), e.index(0)
    arena = ArenaWords(e, b.inttoptr(words, i64p))
    base = e.alloca(I64)
    b.store(arena.used(), base)
    with b.if_then(b.icmp_signed("!=", stack, zero), likely=True):
        b.store(b.load(e.at(b.inttoptr(stack, i64p), e.index(BASE))), base)
    place = arena.take(e.index(held.nbytes + HEADER))
    with b.if_then(b.icmp_signed("!=", place, zero), likely=True):
        node = b.inttoptr(place, i64p)
        b.store(stack, e.at(node, e.index(BELOW)))
        b.store(b.load(base), e.at(node, e.index(BASE)))
        data = _data(e, place, held)
        for k, value in enumerate(values):
            store_element(e, value, e.at(data, e.index(k)), held.dtype.short)
    return place, b.sub(arena.used(), b.load(base))


def emit_pop(e: Emitter, stack: ir.Value, held: TensorType, count: int) -> list[ir.Value]:
    """The handle of what is below the top, and the elements of the top."""
    b, dtype = e.builder, held.dtype.short
    slots = [e.alloca(I64), *(e.alloca(register_type(dtype)) for _ in range(count))]
    with b.if_else(b.icmp_signed("!=", stack, e.index(0)), likely=True) as (then, otherwise):
        with then:
            node, data = b.inttoptr(stack, I64.as_pointer()), _data(e, stack, held)
            b.store(b.load(e.at(node, e.index(BELOW))), slots[0])
            for k, slot in enumerate(slots[1:]):
                b.store(load_element(e, e.at(data, e.index(k)), dtype), slot)
        with otherwise:
            b.store(e.index(0), slots[0])
            for slot in slots[1:]:
                b.store(constant(dtype, 0), slot)
    return [b.load(slot) for slot in slots]


def _data(e: Emitter, place: ir.Value, held: TensorType) -> ir.Value:
    address = e.builder.add(place, e.index(HEADER))
    return e.builder.inttoptr(address, memory_type(held.dtype.short).as_pointer())


#: The registers of a value's elements; of an array in memory, its address.
Held = list[ir.Value]


def scalar_loop_call(op: Operation) -> tuple[PlannedCall, list[int]]:
    """The kernel call for an op that `in_registers` accepts; and which carries, being arrays, must
    be copied to their results before it.
    """
    scribe = Scribe(op, in_registers(op))
    copied = [k for k in range(len(op.operands)) if scribe.works_in_result(k)]
    args: list[Arg] = [Address(v) for v in op.results]
    args += [Address(v) for k, v in enumerate(op.operands) if k not in copied]
    args += [Status(), *scribe.numbers]
    kernel = Kernel(scribe.key, f"{op.name}_loop", lambda e: _emit(e, scribe))
    what = "single elements" if scribe.limit == 1 else "small arrays, element by element"
    why = f"{op.name}, one kernel: all values are {what}, in registers"
    why = "; ".join(filter(None, (why, describe_kept(op))))
    call = PlannedCall(KernelCall(kernel, tuple(args)), op, None, why, tuple(scribe.faults))
    return call, copied


def _short(value: Value) -> str:
    return tensor(value).dtype.short


def _emit(e: Emitter, scribe: Scribe) -> None:
    op = scribe.op
    own = [v for k, v in enumerate(op.operands) if not scribe.works_in_result(k)]
    pointers = [e.pointer_argument(k, _short(v)) for k, v in enumerate((*op.results, *own))]
    pointers.append(e.pointer_argument(len(pointers), "i64"))
    numbers: list[ir.Value] = []
    for k in range(len(scribe.numbers)):
        (dtype, _), position = scribe.constants.get(k, ("", 1)), len(pointers) + k
        numbers.append(e.pointer_argument(position, dtype) if dtype else e.argument(position))
    asks = e.builder.icmp_signed("==", e.worker, e.index(0))  # the calling thread
    with e.loop_function("loop", pointers, [*numbers, asks]) as (inner, given, counts):
        outputs, inputs = given[: len(op.results)], iter(given[len(op.results) :])
        constants = {k: _load(inner, counts[k], *what) for k, what in scribe.constants.items()}
        body = _Writer(inner, scribe, given[-1], counts, constants, counts[-1])
        values: list[Held] = []
        for k, value in enumerate(op.operands):
            source = outputs[k] if scribe.works_in_result(k) else next(inputs)
            held = scribe.is_held(k)
            values.append(
                _load(inner, source, _short(value), elements(value)) if held else [source]
            )
        body.control(op, values, outputs)
        for value, target in zip(op.results, outputs, strict=True):
            if value in body.env and scribe.fits(value):
                _store(inner, body.env[value], target, _short(value))


def _load(e: Emitter, source: ir.Value, dtype: str, count: int) -> Held:
    return [load_element(e, e.at(source, e.index(k)), dtype) for k in range(count)]


def _store(e: Emitter, values: Held, target: ir.Value, dtype: str) -> None:
    for k, value in enumerate(values):
        store_element(e, value, e.at(target, e.index(k)), dtype)


class RegisterWriter(ABC, Generic[T]):
    """Writes the ops of a loop in registers, whichever language that is in. env: the elements of
    values in registers, each a `T`; of arrays in memory, where they are."""

    scribe: Scribe
    env: dict[Value, list[T]]

    def block(self, block: Block) -> list[list[T]]:
        """The results of a region whose arguments are in `env`."""
        for op in block.ops:
            self._op(op)
        return [self.env[v] for v in block.results]

    def inline(self, op: Operation, given: Sequence[list[T]]) -> None:
        """The region of an op that runs it once."""
        (region,) = op.regions
        self.bind(region, given)
        self.env.update(zip(op.results, self.block(region), strict=True))

    def bind(self, region: Block, values: Sequence[list[T]]) -> None:
        """What the arguments of a region are."""
        self.env.update(zip(region.args, values, strict=True))

    def control(self, op: Operation, given: Sequence[list[T]], outputs: Sequence[T]) -> None:
        """A loop or branch on the operands `given`; `outputs`: where a scan stacks."""
        if op.name == "unrolled":
            self.inline(op, given)
        elif op.name == "cond":
            self.cond(op, given)
        else:
            self.loop(op, given, outputs)

    def _op(self, op: Operation) -> None:
        env, first = self.env, op.operands[0] if op.operands else None
        if op.name in CONTROL:
            self.control(op, [env[v] for v in op.operands], ())
        elif op.name in KERNELS:
            self.inline(op, [env[v] for v in op.operands])
        elif op.name == "constant":
            if (op, "value") not in self.scribe.number:  # else it is there from the beginning
                held = op.attrs["value"]
                assert isinstance(held, ConstArray)
                env[op.result] = [self.literal(_short(op.result), held.array.reshape(()).item())]
        elif op.name == "iota":
            (made,) = evaluate_op("iota", (), op.attrs)
            env[op.result] = [self.literal(_short(op.result), x) for x in made.reshape(-1).tolist()]
        elif op.name == "slice" and first is not None and not self.scribe.fits(first):
            env[op.result] = [self.element_at(op)]
        elif op.name in MOVES:
            env[op.result] = [env[op.operands[k]][j] for k, j in moved(op)]
        elif op.name in FOLDS:
            env[op.result] = [self._fold(op, row) for row in folded(op)]
        elif op.name == "matmul":
            env[op.result] = [self.dot(op, pairs) for pairs in multiplied(op)]
        elif op.name in READS:
            env[op.result] = [self.read(op)]
        elif op.name in WRITES:
            self.update(op, WRITES[op.name])
            env[op.result] = env[op.operands[0]]
        elif op.name == "arena_push":
            env[op.result] = [self.push(op)]
        elif op.name == "arena_pop":
            self.pop(op)
        else:
            dtype, result = _short(op.operands[-1]), _short(op.result)
            columns = zip(*(env[v] for v in op.operands), strict=True)
            env[op.result] = [self.scalar(op.name, dtype, list(a), result) for a in columns]

    def _fold(self, op: Operation, row: Sequence[int]) -> T:
        """The fold of some elements of the operand, from the first to the last."""
        given, dtype = self.env[op.operands[0]], _short(op.result)
        total = given[row[0]]
        for k in row[1:]:
            total = self.scalar(FOLDS[op.name], dtype, [total, given[k]], dtype)
        return total

    @abstractmethod
    def scalar(self, name: str, dtype: str, args: list[T], result: str) -> T:
        """An elementwise op of operands of `dtype`, which gives a `result`."""

    @abstractmethod
    def literal(self, dtype: str, value: object) -> T:
        """A number."""

    @abstractmethod
    def dot(self, op: Operation, pairs: Sequence[tuple[int, int]]) -> T:
        """The sum of products of elements of both operands."""

    @abstractmethod
    def element_at(self, op: Operation) -> T:
        """The element of an array that a slice says."""

    @abstractmethod
    def read(self, op: Operation) -> T:
        """The element of an array that an index says."""

    @abstractmethod
    def update(self, op: Operation, combine: str | None) -> None:
        """Change the element of an array that an index says: put a value there, or what `combine`
        makes of both."""

    @abstractmethod
    def push(self, op: Operation) -> T:
        """The handle of a stack with one more value."""

    @abstractmethod
    def pop(self, op: Operation) -> None:
        """What is on top of a stack, and the handle of the rest, are results."""

    @abstractmethod
    def cond(self, op: Operation, given: Sequence[list[T]]) -> None:
        """A branch on the operands `given`."""

    @abstractmethod
    def loop(self, op: Operation, given: Sequence[list[T]], outputs: Sequence[T]) -> None:
        """A loop on the operands `given`; `outputs`: where a scan stacks."""


class _Writer(RegisterWriter[ir.Value]):
    """Writes the kernel. env: the elements of values in registers, the address of arrays."""

    def __init__(
        self,
        e: Emitter,
        scribe: Scribe,
        status: ir.Value,
        numbers: Sequence[ir.Value],
        constants: Mapping[int, Held],
        asks: ir.Value,
    ) -> None:
        self.e = e
        self.b = e.builder
        self.scribe = scribe
        self.status = status
        self.numbers = numbers
        self.asks = asks
        self.left = e.alloca(I64)  # iterations of any loop until it looks whether to go on
        self.b.store(e.index(MOST), self.left)
        self.env = {
            op.result: constants[k] for (op, tag), k in scribe.number.items() if tag == "value"
        }

    def _number(self, op: Operation, tag: str) -> ir.Value:
        return self.numbers[self.scribe.number[op, tag]]

    def scalar(self, name: str, dtype: str, args: list[ir.Value], result: str) -> ir.Value:
        """As of `RegisterWriter`."""
        return emit_scalar(self.e, name, dtype, args, {"dtype": result})

    def literal(self, dtype: str, value: Any) -> ir.Value:
        """As of `RegisterWriter`."""
        return constant(dtype, value)

    def dot(self, op: Operation, pairs: Sequence[tuple[int, int]]) -> ir.Value:
        """As of `RegisterWriter`; products and sums are fused where the target does that."""
        a, b = (self.env[v] for v in op.operands)
        dtype, total = _short(op.result), None
        for i, j in pairs:
            if total is None or not multiplies_and_adds() or dtype not in ("f32", "f64"):
                term = self.scalar("multiply", dtype, [a[i], b[j]], dtype)
                total = term if total is None else self.scalar("add", dtype, [total, term], dtype)
            else:
                total = self.scalar("fma", dtype, [a[i], b[j], total], dtype)
        return constant(dtype, 0) if total is None else total

    def element_at(self, op: Operation) -> ir.Value:
        """As of `RegisterWriter`."""
        (array, *_) = op.operands
        at = self.e.at(self.env[array][0], self._number(op, "offset"))
        return load_element(self.e, at, _short(array))

    def read(self, op: Operation) -> ir.Value:
        """As of `RegisterWriter`."""
        return load_element(self.e, self._element(op), _short(op.result))

    def update(self, op: Operation, combine: str | None) -> None:
        """As of `RegisterWriter`."""
        at, dtype = self._element(op), _short(op.result)
        (value,) = self.env[op.operands[2]]
        if combine is not None:
            value = self.scalar(combine, dtype, [load_element(self.e, at, dtype), value], dtype)
        store_element(self.e, value, at, dtype)

    def pop(self, op: Operation) -> None:
        """As of `RegisterWriter`."""
        below, top = op.results
        made = emit_pop(self.e, self.env[op.operands[0]][0], tensor(top), elements(top))
        self.env[below], self.env[top] = made[:1], made[1:]

    def push(self, op: Operation) -> ir.Value:
        """The handle; where there is no room, the kernel ends."""
        b, e, (stack, value) = self.b, self.e, op.operands
        given = self.env[stack][0], self.env[value], tensor(value)
        place, used = emit_push(e, self._number(op, "arena"), *given)
        good, what = b.icmp_signed("!=", place, e.index(0)), e.index(-1)
        if (op, "limit") in self.scribe.number:
            what = b.select(good, used, what)
            good = b.and_(good, b.icmp_signed("<=", used, self._number(op, "limit")))
        wrong, right = b.append_basic_block("full"), b.append_basic_block("pushed")
        b.cbranch(good, right, wrong)
        b.position_at_end(wrong)
        emit_fault(e, self.status, e.index(0), what, self.scribe.faults.index(op))
        b.ret_void()
        b.position_at_end(right)
        return place

    def _element(self, op: Operation) -> ir.Value:
        """The address that the op's index says; out of bounds, the kernel ends."""
        b, e = self.b, self.e
        dtype, extent = _short(op.operands[1]), self._number(op, "extent")
        index = given = emit_scalar(e, "astype", dtype, self.env[op.operands[1]], {"dtype": "i64"})
        if dtype.startswith("i"):
            index = b.select(b.icmp_signed("<", index, e.index(0)), b.add(index, extent), index)
        wrong, right = b.append_basic_block("wrong"), b.append_basic_block("right")
        b.cbranch(b.icmp_unsigned("<", index, extent), right, wrong)
        b.position_at_end(wrong)
        emit_fault(e, self.status, e.index(0), given, self.scribe.faults.index(op))
        b.ret_void()
        b.position_at_end(right)
        return e.at(self.env[op.operands[0]][0], index)

    # -- control flow -----------------------------------------------------------------------------

    def cond(self, op: Operation, given: Sequence[Held]) -> None:
        """As of `RegisterWriter`."""
        b = self.b
        then, orelse, after = (b.append_basic_block(n) for n in ("then", "orelse", "after"))
        b.cbranch(given[0][0], then, orelse)
        ends: list[tuple[ir.Block, list[Held]]] = []
        for block, region in zip((then, orelse), op.regions, strict=True):
            b.position_at_end(block)
            self.bind(region, given[1:])
            values = self.block(region)
            ends.append((b.block, values))
            b.branch(after)
        b.position_at_end(after)
        for k, value in enumerate(op.results):
            if not self.scribe.fits(value):  # one array, changed in place
                self.env[value] = ends[0][1][k]
                continue
            self.env[value] = self._phis(value)
            for block, values in ends:
                _arrive(self.env[value], values[k], block)

    def _phis(self, value: Value) -> Held:
        return [self.b.phi(register_type(_short(value))) for _ in range(elements(value))]

    def loop(self, op: Operation, given: Sequence[Held], outputs: Sequence[ir.Value]) -> None:
        """As of `RegisterWriter`."""
        b, e = self.b, self.e
        carries = int_attr(op.attrs, "carries")
        before = b.block
        head, body, after = (b.append_basic_block(f"loop.{n}") for n in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        count = b.phi(I64, "count")
        count.add_incoming(e.index(0), before)
        held = list(given)
        for k, value in enumerate(op.operands[:carries]):
            if self.scribe.fits(value):
                held[k] = self._phis(value)
                _arrive(held[k], given[k], before)
        b.cbranch(self._goes_on(op, count, held), body, after)
        b.position_at_end(body)
        values = self._iteration(op, count, held, outputs)
        emit_count(e, self.left, self.status, b.ret_void, self.asks)
        count.add_incoming(b.add(count, e.index(1), flags=["nsw"]), b.block)
        for k, value in enumerate(op.operands[:carries]):
            if self.scribe.fits(value):
                _arrive(held[k], values[k], b.block)
        b.branch(head)
        b.position_at_end(after)
        self.env.update(zip(op.results[:carries], held[:carries], strict=True))

    def _goes_on(self, op: Operation, count: ir.Value, held: Sequence[Held]) -> ir.Value:
        if op.name == "scan":
            return self.b.icmp_signed("<", count, self._number(op, "length"))
        test = op.regions[0]
        self.bind(test, held)
        ((decision,),) = self.block(test)
        if (op, "limit") in self.scribe.number:
            below = self.b.icmp_signed("<", count, self._number(op, "limit"))
            return self.b.and_(below, decision)
        return decision

    def _iteration(
        self, op: Operation, count: ir.Value, held: list[Held], outputs: Sequence[ir.Value]
    ) -> list[Held]:
        b, region = self.b, op.regions[-1]
        carries = int_attr(op.attrs, "carries")
        if op.name == "scan":
            if op.attrs["reverse"]:
                last = b.sub(self._number(op, "length"), self.e.index(1))
                count = b.sub(last, count)
            held = list(held)
            for k in sequences_of(op):
                held[k] = self._row(op, k, held[k], count)
        self.bind(region, held)
        values = self.block(region)
        for value, given, target in zip(
            region.results[carries:], values[carries:], outputs[carries:], strict=True
        ):
            place = self.b.mul(count, self.e.index(elements(value)))
            _store(self.e, given, self.e.at(target, place), _short(value))
        return values

    def _row(self, op: Operation, k: int, base: Held, place: ir.Value) -> Held:
        e, arg = self.e, op.regions[-1].args[k]
        (start, *_) = base
        if self.scribe.fits(arg):
            # a sequence of one row with one element is itself a single value in a register
            if not isinstance(start.type, ir.PointerType):
                return base
            count = elements(arg)
            row = e.at(start, self.b.mul(place, e.index(count)))
            return _load(e, row, _short(arg), count)
        step = self._number(op, f"row {k}")
        assert start.type == memory_type(_short(arg)).as_pointer()
        return [e.at(start, self.b.mul(place, step))]


def _arrive(phis: Held, values: Held, block: ir.Block) -> None:
    """The values that phis have when control comes from `block`."""
    for phi, value in zip(phis, values, strict=True):
        phi.add_incoming(value, block)
