"""Loops and branches on single values as one kernel: carries in registers, no call per iteration.

An index out of bounds ends the kernel at once: a loop that follows indices might never end.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Status
from weft.codegen.element_access import constant, load_element, store_element
from weft.codegen.elements import memory_type, register_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.jit import Kernel
from weft.codegen.scalar.scalar import emit_scalar
from weft.codegen.steps.program import FAULT_SHIFT, PlannedCall
from weft.codegen.steps.scalar_check import READS, SAME, WRITES, is_single, tensor
from weft.codegen.steps.scalar_key import Scribe
from weft.ir.attributes import ConstArray
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.control import CONTROL
from weft.ir.rules import int_attr


def scalar_loop_call(op: Operation) -> tuple[PlannedCall, list[int]]:
    """The kernel call for an op that `in_registers` accepts; and which carries, being arrays, must
    be copied to their results before it.
    """
    scribe = Scribe(op)
    copied = [k for k in range(len(op.operands)) if scribe.works_in_result(k)]
    args: list[Arg] = [Address(v) for v in op.results]
    args += [Address(v) for k, v in enumerate(op.operands) if k not in copied]
    args += [Status(), *scribe.numbers]
    kernel = Kernel(scribe.key, f"{op.name}_loop", lambda e: _emit(e, scribe))
    why = f"{op.name}, one kernel: all values are single elements, in registers"
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
        dtype, position = scribe.constant_dtypes.get(k), len(pointers) + k
        if dtype is None:
            numbers.append(e.argument(position))
        else:
            numbers.append(load_element(e, e.pointer_argument(position, dtype), dtype))
    with e.loop_function("loop", pointers, numbers) as (inner, given, counts):
        outputs, inputs = given[: len(op.results)], iter(given[len(op.results) :])
        body = _Writer(inner, scribe, given[-1], counts)
        values: list[ir.Value] = []
        for k, value in enumerate(op.operands):
            source = outputs[k] if scribe.works_in_result(k) else next(inputs)
            single = is_single(value)
            values.append(load_element(inner, source, _short(value)) if single else source)
        body.control(op, values, outputs)
        for value, target in zip(op.results, outputs, strict=True):
            if value in body.env and is_single(value):
                store_element(inner, body.env[value], target, _short(value))


class _Writer:
    """env: single values in registers, arrays as pointers."""

    def __init__(
        self, e: Emitter, scribe: Scribe, status: ir.Value, numbers: Sequence[ir.Value]
    ) -> None:
        self.e = e
        self.b = e.builder
        self.scribe = scribe
        self.status = status
        self.numbers = numbers
        self.env: dict[Value, ir.Value] = {}

    def _number(self, op: Operation, tag: str) -> ir.Value:
        return self.numbers[self.scribe.number[op, tag]]

    def _block(self, block: Block) -> list[ir.Value]:
        for op in block.ops:
            self._op(op)
        return [self.env[v] for v in block.results]

    def _op(self, op: Operation) -> None:
        env, first = self.env, op.operands[0] if op.operands else None
        if op.name in CONTROL:
            self.control(op, [env[v] for v in op.operands], ())
        elif op.name == "fused":
            (region,) = op.regions
            env.update(zip(region.args, (env[v] for v in op.operands), strict=True))
            env.update(zip(op.results, self._block(region), strict=True))
        elif op.name == "constant":
            env[op.result] = self._constant(op)
        elif op.name == "iota":
            env[op.result] = constant(_short(op.result), 0)
        elif op.name == "slice" and first is not None and not is_single(first):
            at = self.e.at(env[first], self._number(op, "offset"))
            env[op.result] = load_element(self.e, at, _short(first))
        elif op.name in SAME:
            env[op.result] = env[op.operands[0]]
        elif op.name in READS:
            at = self._element(op)
            env[op.result] = load_element(self.e, at, _short(op.result))
        elif op.name in WRITES:
            self._update(op)
        else:
            dtype, attrs = _short(op.operands[-1]), {"dtype": _short(op.result)}
            args = [env[v] for v in op.operands]
            env[op.result] = emit_scalar(self.e, op.name, dtype, args, attrs)

    def _constant(self, op: Operation) -> ir.Value:
        if (op, "value") in self.scribe.number:
            return self._number(op, "value")
        held = op.attrs["value"]
        assert isinstance(held, ConstArray)
        return constant(_short(op.result), held.array.reshape(()).item())

    def _update(self, op: Operation) -> None:
        at, combine, dtype = self._element(op), WRITES[op.name], _short(op.result)
        value = self.env[op.operands[2]]
        if combine is not None:
            held = load_element(self.e, at, dtype)
            value = emit_scalar(self.e, combine, dtype, [held, value], {})
        store_element(self.e, value, at, dtype)
        self.env[op.result] = self.env[op.operands[0]]

    def _element(self, op: Operation) -> ir.Value:
        """The address that the op's index says; out of bounds, the kernel ends."""
        b, e = self.b, self.e
        dtype, extent = _short(op.operands[1]), self._number(op, "extent")
        index = emit_scalar(e, "astype", dtype, [self.env[op.operands[1]]], {"dtype": "i64"})
        if dtype.startswith("i"):
            index = b.select(b.icmp_signed("<", index, e.index(0)), b.add(index, extent), index)
        wrong, right = b.append_basic_block("wrong"), b.append_basic_block("right")
        b.cbranch(b.icmp_unsigned("<", index, extent), right, wrong)
        b.position_at_end(wrong)
        b.store(e.index(1 + (self.scribe.faults.index(op) << FAULT_SHIFT)), self.status)
        b.ret_void()
        b.position_at_end(right)
        return e.at(self.env[op.operands[0]], index)

    # -- control flow -----------------------------------------------------------------------------

    def control(
        self, op: Operation, given: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> None:
        """Emit a loop or branch on the operands `given`; `outputs`: where a scan stacks."""
        if op.name == "cond":
            self._cond(op, given)
        else:
            self._loop(op, given, outputs)

    def _cond(self, op: Operation, given: Sequence[ir.Value]) -> None:
        b = self.b
        then, orelse, after = (b.append_basic_block(n) for n in ("then", "orelse", "after"))
        b.cbranch(given[0], then, orelse)
        ends: list[tuple[ir.Block, list[ir.Value]]] = []
        for block, region in zip((then, orelse), op.regions, strict=True):
            b.position_at_end(block)
            self._bind(region, given[1:])
            values = self._block(region)
            ends.append((b.block, values))
            b.branch(after)
        b.position_at_end(after)
        for k, value in enumerate(op.results):
            if not is_single(value):  # one array, changed in place
                self.env[value] = ends[0][1][k]
                continue
            phi = self.env[value] = b.phi(register_type(_short(value)))
            for block, values in ends:
                phi.add_incoming(values[k], block)

    def _bind(self, region: Block, values: Sequence[ir.Value]) -> None:
        self.env.update(zip(region.args, values, strict=True))

    def _loop(self, op: Operation, given: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> None:
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
            if is_single(value):
                held[k] = b.phi(register_type(_short(value)))
                held[k].add_incoming(given[k], before)
        b.cbranch(self._goes_on(op, count, held), body, after)
        b.position_at_end(body)
        values = self._iteration(op, count, held, outputs)
        count.add_incoming(b.add(count, e.index(1), flags=["nsw"]), b.block)
        for k, value in enumerate(op.operands[:carries]):
            if is_single(value):
                held[k].add_incoming(values[k], b.block)
        b.branch(head)
        b.position_at_end(after)
        self.env.update(zip(op.results[:carries], held[:carries], strict=True))

    def _goes_on(self, op: Operation, count: ir.Value, held: Sequence[ir.Value]) -> ir.Value:
        if op.name == "scan":
            return self.b.icmp_signed("<", count, self._number(op, "length"))
        test = op.regions[0]
        self._bind(test, held)
        (decision,) = self._block(test)
        if (op, "limit") in self.scribe.number:
            below = self.b.icmp_signed("<", count, self._number(op, "limit"))
            return self.b.and_(below, decision)
        return decision

    def _iteration(
        self, op: Operation, count: ir.Value, held: list[ir.Value], outputs: Sequence[ir.Value]
    ) -> list[ir.Value]:
        b, region = self.b, op.regions[-1]
        carries = int_attr(op.attrs, "carries")
        if op.name == "scan":
            if op.attrs["reverse"]:
                last = b.sub(self._number(op, "length"), self.e.index(1))
                count = b.sub(last, count)
            held = list(held)
            for k in range(carries, carries + int_attr(op.attrs, "sequences")):
                held[k] = self._row(op, region.args[k], held[k], count)
        self._bind(region, held)
        values = self._block(region)
        for value, given, target in zip(
            region.results[carries:], values[carries:], outputs[carries:], strict=True
        ):
            store_element(self.e, given, self.e.at(target, count), _short(value))
        return values

    def _row(self, op: Operation, arg: Value, base: ir.Value, place: ir.Value) -> ir.Value:
        if is_single(arg):
            # a sequence of one row is itself a single value in a register
            if not isinstance(base.type, ir.PointerType):
                return base
            return load_element(self.e, self.e.at(base, place), _short(arg))
        step = self._number(op, f"row {op.regions[-1].args.index(arg)}")
        assert base.type == memory_type(_short(arg)).as_pointer()
        return self.e.at(base, self.b.mul(place, step))
