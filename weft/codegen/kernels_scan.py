"""Cumulative ops and arg-reductions: one walk along an axis, the data seen as (outer, n, inner)."""

from __future__ import annotations

import numpy as np

from weft.codegen.call import Address, KernelCall
from weft.codegen.element_access import load_element, store_element
from weft.codegen.elements import I64, register_type
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.kernels_shape import tensor
from weft.codegen.scalar import emit_scalar
from weft.ir.graph import Operation

_COMBINE = {
    "cumulative_sum": "add",
    "cumulative_prod": "multiply",
    "cumulative_max": "maximum",
    "cumulative_min": "minimum",
}


def axis_sizes(op: Operation) -> tuple[int, int, int]:
    """(outer, n, inner) of the first operand around the op's axis."""
    shape, axis = tensor(op.operands[0]).static_shape, op.attrs["axis"]
    assert isinstance(axis, int)
    outer = int(np.prod(shape[:axis], dtype=np.int64))
    return outer, shape[axis], int(np.prod(shape[axis + 1 :], dtype=np.int64))


def lower_cumulative(op: Operation) -> list[KernelCall]:
    """args: result, operand, outer, n, inner, reverse."""
    dtype = tensor(op.result).dtype.short
    kernel = Kernel(
        f"{op.name}-1-{dtype}", f"{op.name}_{dtype}", lambda e: _emit_scan(e, op.name, dtype)
    )
    sizes = (*axis_sizes(op), int(bool(op.attrs["reverse"])))
    return [KernelCall(kernel, (Address(op.result), Address(op.operands[0]), *sizes))]


def lower_arg_reduction(op: Operation) -> list[KernelCall]:
    """args: result, operand, outer, n, inner."""
    dtype = tensor(op.operands[0]).dtype.short
    kernel = Kernel(
        f"{op.name}-1-{dtype}", f"{op.name}_{dtype}", lambda e: _emit_position(e, op.name, dtype)
    )
    return [KernelCall(kernel, (Address(op.result), Address(op.operands[0]), *axis_sizes(op)))]


def _emit_scan(e: Emitter, op: str, dtype: str) -> None:
    pointers = [e.pointer_argument(0, dtype), e.pointer_argument(1, dtype)]
    sizes = [e.argument(2 + k) for k in range(4)]
    with e.loop_function("scan", pointers, sizes) as (f, (out, x), (outer, n, inner, reverse)):
        b = f.builder
        zero, one = f.index(0), f.index(1)
        held = f.alloca(register_type(dtype))
        backward = b.icmp_signed("!=", reverse, zero)
        last = b.sub(n, one)
        with (
            f.for_range(zero, outer) as o,
            f.for_range(zero, inner) as i,
            f.for_range(zero, n) as step,
        ):
            j = b.select(backward, b.sub(last, step), step)
            at = b.add(b.mul(b.add(b.mul(o, n), j), inner), i)
            value = load_element(f, f.at(x, at), dtype)
            with b.if_else(b.icmp_signed("==", step, zero)) as (first, later):
                with first:
                    b.store(value, held)
                with later:
                    b.store(emit_scalar(f, _COMBINE[op], dtype, [b.load(held), value], {}), held)
            store_element(f, b.load(held), f.at(out, at), dtype)


def _emit_position(e: Emitter, op: str, dtype: str) -> None:
    pointers = [e.pointer_argument(0, "i64"), e.pointer_argument(1, dtype)]
    sizes = [e.argument(2 + k) for k in range(3)]
    better = "greater" if op == "argmax" else "less"
    with e.loop_function("position", pointers, sizes) as (f, (out, x), (outer, n, inner)):
        b = f.builder
        zero, one = f.index(0), f.index(1)
        best, best_at = f.alloca(register_type(dtype)), f.alloca(I64)
        with f.for_range(zero, outer) as o, f.for_range(zero, inner) as i:
            start = b.add(b.mul(b.mul(o, n), inner), i)
            b.store(load_element(f, f.at(x, start), dtype), best)
            b.store(zero, best_at)
            with f.for_range(one, n) as j:
                value = load_element(f, f.at(x, b.add(start, b.mul(j, inner))), dtype)
                held = b.load(best)
                wins = emit_scalar(f, better, dtype, [value, held], {})
                if dtype.startswith(("f", "bf")):  # the first NaN wins, as in NumPy
                    nan, held_nan = (emit_scalar(f, "isnan", dtype, [v], {}) for v in (value, held))
                    wins = b.and_(b.or_(wins, nan), b.not_(held_nan))
                b.store(b.select(wins, value, held), best)
                b.store(b.select(wins, j, b.load(best_at)), best_at)
            store_element(f, b.load(best_at), f.at(out, b.add(b.mul(o, inner), i)), "i64")
