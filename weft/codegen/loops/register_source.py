"""Kernel of a loop or branch whose values are in registers, as Numba source: what
`register_kernel.py` emits as LLVM.

A value of one element is a local variable, one of a small array as many of them; arrays in memory
are views, of which an iteration of a scan has a slice. What the next iteration goes on with is in
`s` variables. Every so many iterations a loop asks whether it is to end (`loops/interrupt.py`); it
returns at once then, as where an index is out of bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from weft.codegen.call import Address, Pool, Stacks
from weft.codegen.loops.in_registers import (
    elements,
    in_registers,
    is_single,
    sequences_of,
    tensor,
)
from weft.codegen.loops.interrupt import MOST
from weft.codegen.loops.register_kernel import LOOPS, RegisterWriter, Scribe
from weft.codegen.numba.scalars import scalar_text
from weft.codegen.numba.source import KernelSource, Lines, Names, Number, Param, View, numpy_name
from weft.codegen.numba.stacks import arena_view
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Operation, Value
from weft.ir.spec import int_attr

#: The names, or short expressions, of a value's elements; of an array in memory, its name.
Held = list[str]


def loop_source(op: Operation) -> KernelSource:
    """The kernel of a loop or branch that `in_registers` accepts. UnsupportedError for another one,
    and for an op without source."""
    limit = in_registers(op)
    if not limit:
        raise UnsupportedError(
            f"this '{op.name}' is no kernel: its values are not in registers",
            hint="`explain` says why; the kernels of its body print",
            location=op.locations,
        )
    try:
        return _Printer(Scribe(op, limit)).run()
    except UnsupportedError as error:
        raise error.at(op.locations) from None


def _short(value: Value) -> str:
    return tensor(value).dtype.short


class _Printer(RegisterWriter[str]):
    """Writes the kernel. env: what each value is called; loops: whether one is inside."""

    def __init__(self, scribe: Scribe) -> None:
        self.scribe, self.op = scribe, scribe.op
        self.out, self.names = Lines(), Names()
        self.helpers: set[str] = set()
        self.params: list[Param] = []
        self.env: dict[Value, Held] = {}
        self.outputs = [self._view(f"out{k}", v, k) for k, v in enumerate(self.op.results)]
        self.inputs = [
            self.outputs[k] if scribe.works_in_result(k) else self._view(f"in{k}", v, k)
            for k, v in enumerate(self.op.operands)
        ]
        self.numbers: dict[tuple[Operation, str], str] = {}
        for (at, tag), k in scribe.number.items():
            self.numbers[at, tag] = self._number(tag, k)
        inside = [o for region in self.op.regions for o in region.walk()]
        self.loops = any(o.name in LOOPS for o in (self.op, *inside))

    # -- arguments --------------------------------------------------------------------------------
    def _view(self, name: str, value: Value, k: int) -> str:
        """The name of an argument that is a result, or an operand, of the op; it is flat."""
        written = name.startswith("out")
        rows = self.op.name == "scan" and (
            k >= self.scribe.carries if written else k in sequences_of(self.op)
        )
        shape = (elements(value),) if rows or not is_single(value) else ()
        strides = (1,) * len(shape)
        self.params.append(View(name, _short(value), Address(value), shape, strides, written))
        return name

    def _number(self, tag: str, k: int) -> str:
        """The name of a number that the kernel takes, or of what it is the address of."""
        held = self.scribe.numbers[k]
        if isinstance(held, Stacks):
            if not any(p.name == "arena" for p in self.params):
                self.params.append(arena_view())
            return "arena"
        if isinstance(held, Pool):
            name, (dtype, count) = self.names("c"), self.scribe.constants[k]
            shape = (count,) if count > 1 else ()
            self.params.append(View(name, dtype, held, shape, (1,) * len(shape)))
            return name
        name = self.names(tag.replace(" ", "_"))
        assert isinstance(held, int)
        self.params.append(Number(name, held))
        return name

    # -- the kernel -------------------------------------------------------------------------------
    def run(self) -> KernelSource:
        """The kernel as source."""
        op, scribe = self.op, self.scribe
        if self.loops:
            self.out(f"left = {MOST}")
        constants = {at: n for (at, tag), n in self.numbers.items() if tag == "value"}
        for at, name in constants.items():
            self.env[at.result] = self._loaded(name, at.result)
        given = [self._operand(k, v) for k, v in enumerate(op.operands)]
        self.control(op, given, self.outputs)
        for value, target in zip(op.results, self.outputs, strict=True):
            if value in self.env and scribe.fits(value):
                self._store(self.env[value], value, target, None)
        return KernelSource(
            scribe.key, f"{op.name}_loop", tuple(self.params), tuple(self.out.lines),
            frozenset(self.helpers), bool(scribe.faults), stops=self.loops,
        )  # fmt: skip

    def _operand(self, k: int, value: Value) -> Held:
        """What operand `k` of the op is in the kernel: an array, or its elements."""
        if not self.scribe.is_held(k):
            return [self.inputs[k]]
        first = k < self.scribe.carries  # it is read once, into the loop's state
        if k in sequences_of(self.op):
            return [f"{self.inputs[k]}[0]"]
        texts = self._texts(self.inputs[k], elements(value))
        return texts if first else [self._assign(t) for t in texts]

    def _texts(self, name: str, count: int) -> Held:
        return [f"{name}[{k}]" for k in range(count)]

    def _loaded(self, name: str, value: Value) -> Held:
        return [self._assign(t) for t in self._texts(name, elements(value))]

    def _assign(self, text: str) -> str:
        """A new variable that is `text`; what is a name already keeps it."""
        if text.isidentifier():
            return text
        name = self.names.number("v")
        self.out(f"{name} = {text}")
        return name

    def _store(self, values: Held, value: Value, target: str, row: str | None) -> None:
        """Put elements into an array: from its start, or where `row` of so many elements is."""
        count = len(values)
        for k, text in enumerate(values):
            place = str(k) if row is None else _place(row, count, k)
            self.out(f"{target}[{place}] = {text}")

    def _calls(self, name: str) -> str:
        self.helpers.add(name)
        return name

    # -- ops --------------------------------------------------------------------------------------
    def scalar(self, name: str, dtype: str, args: list[str], result: str) -> str:
        """As of `RegisterWriter`."""
        return self._assign(scalar_text(name, dtype, args, result, self.helpers))

    def literal(self, dtype: str, value: object) -> str:
        """As of `RegisterWriter`."""
        return str(value) if dtype == "bool" else f"{numpy_name(dtype)}({value})"

    def dot(self, op: Operation, pairs: Sequence[tuple[int, int]]) -> str:
        """As of `RegisterWriter`."""
        (a, b), dtype = (self.env[v] for v in op.operands), _short(op.result)
        total = ""
        for i, j in pairs:
            term = self.scalar("multiply", dtype, [a[i], b[j]], dtype)
            total = self.scalar("add", dtype, [total, term], dtype) if total else term
        return total or self.literal(dtype, 0)

    def element_at(self, op: Operation) -> str:
        """As of `RegisterWriter`."""
        return self._assign(f"{self.env[op.operands[0]][0]}[{self.numbers[op, 'offset']}]")

    def read(self, op: Operation) -> str:
        """As of `RegisterWriter`."""
        return self._assign(self._element(op))

    def update(self, op: Operation, combine: str | None) -> None:
        """As of `RegisterWriter`."""
        data, dtype = self._element(op), _short(op.result)
        (value,) = self.env[op.operands[2]]
        if combine is not None:
            value = self.scalar(combine, dtype, [self._assign(data), value], dtype)
        self.out(f"{data} = {value}")

    def _element(self, op: Operation) -> str:
        """The element that the op's index says; out of bounds, the kernel ends."""
        (index,) = self.env[op.operands[1]]
        at = self._assign(f"{self._calls('wrapped')}({index}, {self.numbers[op, 'extent']})")
        self._ends(f"{at} < 0", index, op)
        return f"{self.env[op.operands[0]][0]}[{at}]"

    def _ends(self, condition: str, told: str, op: Operation) -> None:
        """What an op reports, and the end of the kernel, where a condition holds."""
        number = self.scribe.faults.index(op)
        self.out(f"if {condition}:")
        self.out(f"    {self._calls('fault')}(faults, 0, {told}, {number})")
        self.out("    return")

    # -- stacks -----------------------------------------------------------------------------------
    def push(self, op: Operation) -> str:
        """As of `RegisterWriter`; where there is no room, the kernel ends."""
        stack, value = op.operands
        (below,), held = self.env[stack], tensor(value)
        place = self._assign(f"{self._calls('arena_push')}(arena, {below}, {held.nbytes})")
        self._ends(f"{place} == 0", "-1", op)
        data = self._top(place, value)
        self._store(self.env[value], value, data, None)
        if (op, "limit") in self.numbers:
            taken = self._assign(f"{self._calls('arena_held')}(arena, {place})")
            self._ends(f"{taken} > {self.numbers[op, 'limit']}", taken, op)
        return place

    def _top(self, stack: str, value: Value) -> str:
        """The array of the elements of the top, which is of the type of `value`."""
        name = self.names.number("top")
        kind = numpy_name(_short(value))
        self.out(f"{name} = {self._calls('top_of')}({stack}, {elements(value)}, {kind})")
        return name

    def pop(self, op: Operation) -> None:
        """As of `RegisterWriter`."""
        below, top = op.results
        (stack,) = self.env[op.operands[0]]
        names = [self.names.number("v") for _ in range(1 + elements(top))]
        self.out(f"if {stack} == 0:")
        zeros = [
            self.literal("i64", 0),
            *[self.literal(_short(top), _zero(_short(top)))] * elements(top),
        ]
        self._inside(lambda: self._set(names, zeros))
        self.out("else:")

        def read() -> None:
            data = self._top(stack, top)
            taken = self._texts(data, elements(top))
            self._set(names, [f"{self._calls('below')}({stack})", *taken])

        self._inside(read)
        self.env[below], self.env[top] = names[:1], names[1:]

    def _inside(self, write: Callable[[], None]) -> None:
        """What `write` writes, one step further in; `pass` if that is nothing."""
        count = len(self.out.lines)
        self.out.depth += 1
        write()
        if len(self.out.lines) == count:
            self.out("pass")
        self.out.depth -= 1

    def _set(self, names: Sequence[str], values: Sequence[str]) -> None:
        """Give variables values, all at once where one is read after it was given its value."""
        pairs = [(n, v) for n, v in zip(names, values, strict=True) if n != v]
        given: set[str] = set()
        late = False
        for name, value in pairs:
            late |= value in given
            given.add(name)
        if late:
            self.out(f"{', '.join(n for n, _ in pairs)} = {', '.join(v for _, v in pairs)}")
            return
        for name, value in pairs:
            self.out(f"{name} = {value}")

    # -- control flow -----------------------------------------------------------------------------
    def loop(self, op: Operation, given: Sequence[Held], outputs: Sequence[str]) -> None:
        """As of `RegisterWriter`."""
        _Loop(self, op, given, outputs).run()

    def cond(self, op: Operation, given: Sequence[Held]) -> None:
        """As of `RegisterWriter`."""
        fits = [self.scribe.fits(v) for v in op.results]
        made: list[Held] = [
            [self.names.number("v") for _ in range(elements(v))] if held else []
            for v, held in zip(op.results, fits, strict=True)
        ]
        arrays: list[Held] = []

        def branch(region: Block) -> None:
            self.bind(region, given[1:])
            values = self.block(region)
            arrays[:] = values
            for names, held, value in zip(made, fits, values, strict=True):
                if held:
                    self._set(names, value)

        for head, region in zip((f"if {given[0][0]}:", "else:"), op.regions, strict=True):
            self.out(head)
            self._inside(partial(branch, region))
        for k, value in enumerate(op.results):
            self.env[value] = made[k] if fits[k] else arrays[k]  # one array, changed in place


def _zero(dtype: str) -> object:
    return False if dtype == "bool" else 0


def _place(row: str, count: int, k: int) -> str:
    """Where element `k` of a row of `count` elements is."""
    start = row if count == 1 else f"{row} * {count}"
    return f"{start} + {k}" if k else start


class _Loop:
    """Writes one loop."""

    def __init__(
        self, printer: _Printer, op: Operation, given: Sequence[Held], outputs: Sequence[str]
    ) -> None:
        self.p, self.op, self.given, self.outputs = printer, op, given, outputs
        self.carries = int_attr(op.attrs, "carries")
        self.held = list(given)
        self.states: Mapping[int, Held] = {
            k: [printer.names.number("s") for _ in range(elements(v))]
            for k, v in enumerate(op.operands[: self.carries])
            if printer.scribe.fits(v)
        }

    def run(self) -> None:
        """The loop; its results are its state afterwards."""
        p, op = self.p, self.op
        for k, names in self.states.items():
            p._set(names, self.given[k])
            self.held[k] = names
        if op.name == "scan":
            count = p.names.number("i")
            length = p.numbers[op, "length"]
            bounds = f"{length} - 1, -1, -1" if op.attrs["reverse"] else length
            p.out(f"for {count} in range({bounds}):")
            p._inside(partial(self._iteration, count))
        else:
            limit = p.numbers.get((op, "limit"))
            p.out("while True:" if limit is None else f"for _ in range({limit}):")
            p._inside(partial(self._tested, len(p.out.lines) - 1))
        results = zip(op.results[: self.carries], self.held[: self.carries], strict=True)
        p.env.update(results)

    def _tested(self, head: int) -> None:
        """The test, in the loop's line `head` if it is one expression, and the body."""
        p, test = self.p, self.op.regions[0]
        p.bind(test, self.held)
        ((decision,),) = p.block(test)
        made = [line.strip() for line in p.out.lines[head + 1 :]]
        name, _, text = made[0].partition(" = ") if made else (decision, "", decision)
        if p.out.lines[head].endswith("while True:") and len(made) <= 1 and name == decision:
            p.out.lines[head:] = [p.out.lines[head].replace("True", text)]
        else:
            p.out(f"if not {decision}:")
            p.out("    break")
        self._iteration("")

    def _iteration(self, count: str) -> None:
        p, region = self.p, self.op.regions[-1]
        held = list(self.held)
        for k in sequences_of(self.op):
            held[k] = self._row(k, held[k], count)
        p.bind(region, held)
        values = p.block(region)
        rows = slice(self.carries, None)
        for value, given, target in zip(
            region.results[rows], values[rows], self.outputs[rows], strict=True
        ):
            p._store(given, value, target, count)
        names = [n for held in self.states.values() for n in held]
        p._set(names, [v for k in self.states for v in values[k]])
        p.out("left -= 1")
        p.out("if left == 0:")
        p.out(f"    left = {MOST}")
        p.out(f"    if {p._calls('stopped')}(faults, worker):")
        p.out("        return")

    def _row(self, k: int, base: Held, place: str) -> Held:
        """What an iteration has of a sequence: elements, or a slice of an array."""
        p, arg = self.p, self.op.regions[-1].args[k]
        (start,) = base
        if p.scribe.fits(arg):
            if is_single(self.op.operands[k]):
                return base  # one row with one element is itself a value in a register
            count = elements(arg)
            return [p._assign(f"{start}[{_place(place, count, j)}]") for j in range(count)]
        size = p.numbers[self.op, f"row {k}"]
        return [p._assign(f"{start}[{place} * {size}:({place} + 1) * {size}]")]
