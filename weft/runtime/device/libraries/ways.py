"""From a product, with what follows it, to what a library could do of it.

A bias of one element per column and max(x, 0) are the library's epilogues; all else is a nest that
reads the product, from scratch memory then. GELU is not asked of the library: its approximation by
tanh has no stated error, and the exact one it does not have.
"""

from __future__ import annotations

from dataclasses import replace

from weft.codegen.call import Address, Status
from weft.codegen.cuda.nests.emit import plain_launches
from weft.codegen.cuda.products.fused import (
    FusedProduct,
    fused_product,
    matmul_product,
    simple_epilogue,
)
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.nests.nest import Store, build_nest
from weft.codegen.products.fused import is_product, product_in, result_strides, without_product
from weft.codegen.products.gemm import Product
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.types import TensorType
from weft.runtime.device.libraries.conv import Conv
from weft.runtime.device.libraries.gemm import ALIGNMENT, DTYPES, Epilogue, Gemm, gemm_of

Pairs = tuple[tuple[int, int], ...]
#: A bias is added to f32 sums there: in 16 bits the product would not be rounded before.
_BIASED = ("f32", "f64")


@dataclass(frozen=True, slots=True)
class Way:
    """`before`, then `call` on its arguments, then `after`. Of a `Gemm` they are D, A, B and the
    bias, if it has one; of a `Conv` the result and both operands. made: what lies in scratch memory
    between the call and launches. given: operands, in the order in which NaN is tried in them."""

    call: Gemm | Conv
    args: tuple[Address, ...]
    after: tuple[Launch, ...] = ()
    made: tuple[Value, ...] = ()
    before: tuple[Launch, ...] = ()
    given: tuple[Address, ...] = ()


def is_gemm(op: Operation) -> bool:
    """Whether it is a `matmul`, or a `fused` op that holds one, of a dtype that libraries know."""
    product = product_in(op) if is_product(op) else op
    return product.name == "matmul" and _type(product.result).dtype.short in DTYPES


def ways_of(op: Operation, in_place: Pairs, mode: MathMode) -> list[Way]:
    """What a library could do of a `matmul`, or of a `fused` op that holds one; nothing for other
    ops. in_place: as `fused_product` has it."""
    if op.name == "matmul":
        fused = matmul_product(op)
    elif is_product(op) and product_in(op).name == "matmul":
        try:
            fused = fused_product(op, in_place)
        except UnsupportedError:  # weft's own lowering says so, at the user's line
            return []
    else:
        return []
    held = _type(fused.a.value), _type(fused.b.value)
    if any(t.dtype.short != fused.product.dtype for t in held):
        return []
    ways = [_whole(fused, mode), _in_parts(op, in_place, fused, mode)]
    return [way for way in ways if way is not None]


def _whole(fused: FusedProduct, mode: MathMode) -> Way | None:
    """All of it by the library, if its epilogues are all that follows."""
    simple, p = simple_epilogue(fused), fused.product
    if simple is None or _type(simple.out.value).dtype.short != p.dtype:
        return None
    epilogue: Epilogue = "relu" if simple.activation == "relu" else "none"
    args = [simple.out, fused.b, fused.a]
    if simple.bias is not None:
        epilogue = "relu_bias" if epilogue == "relu" else "bias"
        held = _type(simple.bias.value).dtype.short
        if held != p.dtype or held not in _BIASED or simple.bias.offset % ALIGNMENT:
            return None
        args.append(simple.bias)
    (store,) = fused.nest.stores
    stored = _stored(p, fused.nest.extents, store)
    gemm = None if stored is None else gemm_of(stored, mode, epilogue)
    return None if gemm is None else Way(gemm, tuple(args))


def _stored(p: Product, extents: tuple[int, ...], store: Store) -> Product | None:
    """The product whose C is where the nest writes it; None if that are not rows at equal
    distances, of neighbours."""
    *outer, columns = extents
    *steps, column_step = store.strides
    inner = outer[-1]
    if (columns > 1 and column_step != 1) or (p.m > 1 and len(outer) > 1 and inner % p.m):
        return None

    def place(row: int) -> int:
        if len(steps) == 1:
            return row * steps[0]
        total = 0
        for size, step in zip(reversed(outer), reversed(steps), strict=True):
            row, index = divmod(row, size)
            total += index * step
        return total

    c_at = tuple([place(k * p.m) for k in range(len(p.c_at))])
    return replace(p, c_at=c_at, c_row=steps[-1] if p.m > 1 else p.n)


def _in_parts(op: Operation, pairs: Pairs, fused: FusedProduct, mode: MathMode) -> Way | None:
    """The product by the library to scratch memory, then the nest, which reads it as an array like
    others; None where only a store would follow."""
    if op.name == "matmul" or result_strides(op) is not None:
        return None
    made, p = product_in(op).result, fused.product
    rows = replace(p, c_at=tuple([k * p.m * p.n for k in range(len(p.c_at))]), c_row=p.n)
    gemm = gemm_of(rows, mode)
    if gemm is None:
        return None
    outputs, operands = ([Address(v) for v in values] for values in (op.results, op.operands))
    try:
        nest = build_nest(without_product(op)[0], pairs)
        after = plain_launches(nest, outputs, [*operands, Address(made)])
    except UnsupportedError:
        return None  # only the kernel that does all of it can do this
    if any(isinstance(arg, Status) for launch in after for arg in launch.args):
        return None
    return Way(gemm, (Address(made), fused.b, fused.a), tuple(after), (made,))


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
