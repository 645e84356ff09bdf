"""Emitter: where LLVM instructions of one kernel go, the few shapes every kernel needs, and how
each weft dtype lies in memory and in LLVM registers.

A kernel is emitted as an LLVM function ``void kernel(i64* args, i64 lo, i64 hi, i64 worker)``;
``args`` holds buffer addresses, extents and strides; ``lo`` and ``hi`` say which of the call's
units to do (`weft.codegen.call.KernelCall`), ``worker`` which of the threads is doing them.
Pointers that come out of a table may alias as far as LLVM knows, so its loop vectoriser gives up:
loops go into a :meth:`Emitter.loop_function`, whose pointer parameters are
``noalias``.  A whole kernel, ``out = exp(x)`` over args = (x, out, n)::

    def emit(e: Emitter) -> None:
        buffers = [e.pointer_argument(0, "f32"), e.pointer_argument(1, "f32")]
        with e.loop_function("loop", buffers, [e.argument(2)]) as (inner, (x, out), (n,)):
            with inner.for_range(inner.index(0), n) as i:
                value = load_element(inner, inner.at(x, i), "f32")
                value = emit_scalar(inner, "exp", "f32", [value], {})
                store_element(inner, value, inner.at(out, i), "f32")

    address = compile_kernels([Kernel(key="exp.f32", name="exp", emit=emit)])["exp.f32"]

Emitting may add basic blocks: always build through ``e.builder``, never keep a block. `unit_parts`
is for kernels whose units are the elements of rows.

| dtype        | memory      | register                                                  |
|--------------|-------------|-----------------------------------------------------------|
| bool         | i8, 0 or 1  | i1                                                        |
| i8 ... u64   | iN          | iN (signedness belongs to the operation, as in LLVM)      |
| f16, bf16    | i16         | float: computed in f32, rounded to nearest even on store  |
| f32, f64     | float       | the same                                                  |
| c64, c128    | {re, im}    | the same struct as one value                              |"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from llvmlite import ir

from weft.ir.dataclass import dataclass

I1, I8, I16, I32, I64 = (ir.IntType(width) for width in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
C64, C128 = ir.LiteralStructType([F32, F32]), ir.LiteralStructType([F64, F64])

SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
HALVES = ("f16", "bf16")
FLOATS = (*HALVES, "f32", "f64")
COMPLEXES = ("c64", "c128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEXES)

PART = {"c64": "f32", "c128": "f64"}  # dtype of a complex number's two parts

_MEMORY: dict[str, ir.Type] = {"bool": I8, "f16": I16, "bf16": I16}
_REGISTER: dict[str, ir.Type] = {"bool": I1, "f16": F32, "bf16": F32}
_SHARED: dict[str, ir.Type] = {
    **{dtype: ir.IntType(int(dtype[1:])) for dtype in INTEGERS},
    "f32": F32,
    "f64": F64,
    "c64": C64,
    "c128": C128,
}


def memory_type(dtype: str) -> ir.Type:
    """LLVM type of one ``dtype`` element in a buffer; KeyError for dtypes without a native form."""
    return _MEMORY.get(dtype) or _SHARED[dtype]


def register_type(dtype: str) -> ir.Type:
    """LLVM type of one ``dtype`` value between instructions."""
    return _REGISTER.get(dtype) or _SHARED[dtype]


def width_bits(dtype: str) -> int:
    """Bits of one element in memory."""
    if dtype == "bool":
        return 8
    return int(dtype.lstrip("iufcb"))


def is_signed(dtype: str) -> bool:
    """Whether ``dtype`` is a signed integer."""
    return dtype in SIGNED


KERNEL_TYPE = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64, I64])


@dataclass
class Emitter:
    """A position in an LLVM function under construction.

    ``symbol`` prefixes the LLVM names of all functions of this kernel, ``arguments`` is the
    kernel's ``i64*``, ``lo``, ``hi`` and ``worker`` its other parameters (None inside a loop
    function: pass them on).
    """

    builder: ir.IRBuilder
    module: ir.Module
    symbol: str
    arguments: ir.Value | None = None
    lo: ir.Value | None = None
    hi: ir.Value | None = None
    worker: ir.Value | None = None

    def index(self, value: int) -> ir.Constant:
        """The i64 constant ``value``."""
        return ir.Constant(I64, value)

    def argument(self, position: int) -> ir.Value:
        """Load ``args[position]`` as i64; only at the kernel's entry, not in a loop function."""
        if self.arguments is None:
            raise ValueError("args are read at the kernel's entry; pass values to loop_function")
        return self.builder.load(self.builder.gep(self.arguments, [self.index(position)]))

    def pointer_argument(self, position: int, dtype: str) -> ir.Value:
        """Load ``args[position]``, a buffer address, as pointer to elements of ``dtype``."""
        pointer_type = memory_type(dtype).as_pointer()
        return self.builder.inttoptr(self.argument(position), pointer_type)

    def at(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        """The address of element ``index`` (i64, in elements) of ``pointer``."""
        return self.builder.gep(pointer, [index], inbounds=True)

    def freeze(self, old: ir.Value) -> ir.Value:
        """`old`, loaded from where a select of it and something else goes.

        Without LLVM's `freeze` between them, the load, the select and the store become one masked
        store (its `foldToMaskedStore`), which AMD's AVX2 processors take 20 to 40 steps for.
        """
        b = self.builder
        made = ir.instructions.Instruction(b.block, old.type, "freeze", [old])
        b._insert(made)
        return made

    def alloca(self, llvm_type: ir.Type) -> ir.Value:
        """A stack slot in the function's entry block (loops must not grow the stack)."""
        with self.builder.goto_entry_block():
            return self.builder.alloca(llvm_type)

    @contextmanager
    def for_range(
        self,
        start: ir.Value,
        stop: ir.Value,
        step: ir.Value | None = None,
        interleave: int = 0,
        width: int = 0,
    ) -> Iterator[ir.Value]:
        """``for index in range(start, stop, step)`` for step > 0 (i64); yields the index.

        ``interleave``: how many vectors one iteration of the vectorised loop does, ``width``: of
        how many lanes (powers of two); 0 is LLVM's choice.
        """
        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("for.head")
        body = builder.append_basic_block("for.body")
        after = builder.append_basic_block("for.after")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64, "i")
        index.add_incoming(start, before)
        builder.cbranch(builder.icmp_signed("<", index, stop), body, after)
        builder.position_at_end(body)
        yield index
        following = builder.add(index, self.index(1) if step is None else step, flags=["nsw"])
        index.add_incoming(following, builder.block)
        back = builder.branch(head)
        wanted = {"interleave.count": interleave, "vectorize.width": width}
        if any(wanted.values()):
            back.set_metadata("llvm.loop", _loop_id(self.module, wanted))
        builder.position_at_end(after)

    @contextmanager
    def loop_function(
        self, name: str, pointers: Sequence[ir.Value], scalars: Sequence[ir.Value] = ()
    ) -> Iterator[tuple[Emitter, list[ir.Value], list[ir.Value]]]:
        """Emit an internal function, called here with ``pointers`` and ``scalars``.

        Yields (emitter inside it, its pointer parameters, its other parameters).  The pointers are
        ``noalias``: a buffer that is written must be reached through one pointer only (for an
        in-place kernel pass it once); buffers that are only read may overlap each other.
        """
        kinds = [value.type for value in (*pointers, *scalars)]
        unique = self.module.get_unique_name(f"{self.symbol}.{name}")
        # Inlined, noalias would become alias.scope metadata, which later passes may drop.
        function, inner = self.define_function(unique, ir.FunctionType(ir.VoidType(), kinds))
        for parameter in function.args[: len(pointers)]:
            parameter.add_attribute("noalias")
        self.builder.call(function, [*pointers, *scalars])
        yield inner, list(function.args[: len(pointers)]), list(function.args[len(pointers) :])
        inner.builder.ret_void()

    def define_function(self, symbol: str, kind: ir.FunctionType) -> tuple[ir.Function, Emitter]:
        """A function of this kernel's module that is never inlined, and an emitter at its start."""
        function = ir.Function(self.module, kind, symbol)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        align_spills(function)
        inner = Emitter(
            builder=ir.IRBuilder(function.append_basic_block("entry")),
            module=self.module,
            symbol=self.symbol,
        )
        return function, inner


class _LoopId(ir.MDValue):  # type: ignore[misc]
    """``distinct !{itself, properties}``: a loop's identity and what LLVM is told about it."""

    def descr(self, buf: list[str]) -> None:
        references = ", ".join(node.get_reference() for node in (self, *self.operands))
        buf += (f"distinct !{{ {references} }}", "\n")


def _loop_id(module: ir.Module, wanted: Mapping[str, int]) -> ir.MDValue:
    rows = [
        module.add_metadata(
            [ir.MetaDataString(module, f"llvm.loop.{name}"), ir.Constant(ir.IntType(32), count)]
        )
        for name, count in wanted.items()
        if count
    ]
    return _LoopId(module, rows, str(len(module.metadata)))


def align_spills(function: ir.Function) -> None:
    """Have vectors that find no register lie on the stack as they would in memory.

    LLVM knows too late that a function will spill, and then leaves the stack aligned to 16 bytes: a
    spilled vector of 64 lies across two cache lines, or two pages, as the process's addresses have
    it (docs/decisions/0062-spilled-vectors.md).
    """
    # llvmlite's own add() knows enumerated attributes only.
    set.add(function.attributes, '"stackrealign"')


def emit_kernel(emit: Callable[[Emitter], None], module: ir.Module, symbol: str) -> ir.Function:
    """Define the kernel `symbol` in `module`, with the body that `emit` builds."""
    function = ir.Function(module, KERNEL_TYPE, symbol)
    function.attributes.add("nounwind")
    align_spills(function)
    arguments, lo, hi, worker = function.args
    emitter = Emitter(
        builder=ir.IRBuilder(function.append_basic_block("entry")),
        module=module,
        symbol=symbol,
        arguments=arguments,
        lo=lo,
        hi=hi,
        worker=worker,
    )
    emit(emitter)
    emitter.builder.ret_void()
    return function


@contextmanager
def unit_parts(
    f: Emitter, lo: ir.Value, hi: ir.Value, length: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    """The units [lo, hi) as parts of runs of `length`: (run, first, last within it) of each."""
    b, zero, one = f.builder, f.index(0), f.index(1)
    with b.if_then(b.icmp_signed("<", lo, hi)):
        stop = b.add(b.udiv(b.sub(hi, one), length), one)
        with f.for_range(b.udiv(lo, length), stop) as run:
            start = b.mul(run, length)
            first, last = b.sub(lo, start), b.sub(hi, start)
            first = b.select(b.icmp_signed(">", first, zero), first, zero)
            last = b.select(b.icmp_signed("<", last, length), last, length)
            yield run, first, last
