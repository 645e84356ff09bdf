"""first_occurrence: which indices are equal, in time and memory traffic proportional to them."""

from __future__ import annotations

from weft.codegen.call import Address, KernelCall, Scratch, Status
from weft.codegen.emitter import I64, Emitter
from weft.codegen.jit import Kernel
from weft.codegen.kernels.index import checked_index, report_index
from weft.codegen.kernels.shape import tensor
from weft.ir.graph import Operation
from weft.ir.type_rules import int_attr


def lower_first_occurrence(op: Operation) -> list[KernelCall]:
    """args: result, index, status, scratch (an i64 for each row of the axis), size, n."""
    index = tensor(op.operands[0])
    dtype, n = index.dtype.short, index.static_shape[0]
    size = int_attr(op.attrs, "size")
    kernel = Kernel(f"first-occurrence-2-{dtype}", f"first_{dtype}", lambda e: _emit(e, dtype))
    scratch = Scratch(8 * max(size, 1))
    args = (Address(op.result), Address(op.operands[0]), Status(), scratch, size, n)
    return [KernelCall(kernel, args)] if n else []


def _emit(e: Emitter, dtype: str) -> None:
    """From the last index to the first each notes its place in scratch: of equal ones the first is
    left. Scratch need not be cleared: only what has been written is read.
    """
    kinds = ("i64", dtype, "i64", "i64")
    pointers = [e.pointer_argument(k, kind) for k, kind in enumerate(kinds)]
    with e.loop_function("loop", pointers, [e.argument(4), e.argument(5)]) as (
        f,
        (out, index, status, places),
        (size, n),
    ):
        b = f.builder
        bad = f.alloca(I64)
        b.store(f.index(0), bad)
        with f.for_range(f.index(0), n) as i:
            j = b.sub(b.sub(n, f.index(1)), i)
            picked, good = checked_index(f, f.at(index, j), dtype, size)
            with b.if_else(good, likely=True) as (then, otherwise):
                with then:
                    b.store(j, f.at(places, picked))
                with otherwise:
                    b.store(b.add(b.load(bad), f.index(1)), bad)
                    report_index(f, status, j, index, dtype)
        none = b.icmp_signed("==", b.load(bad), f.index(0))
        with b.if_then(none, likely=True), f.for_range(f.index(0), n) as i:
            picked, _ = checked_index(f, f.at(index, i), dtype, size)
            b.store(b.load(f.at(places, picked)), f.at(out, i))
