"""Routes of a product: weft's own launches, or what a library could do instead.

A bias of one element per column and max(x, 0) are the library's epilogues; all else is a nest that
reads the product, from scratch memory then. GELU is not asked of the library: its approximation by
tanh has no stated error, and the exact one it does not have.

cuDNN multiplies what it has beyond the edges, zeros, by what is there: an infinity makes NaN of
them. As after weft's own tiles, results that are NaN are added up anew then (`nan_launches`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from weft.codegen.call import Address, Arg, Scratch, Status
from weft.codegen.cuda.kernels.conv import nan_launches
from weft.codegen.cuda.nests.plain_nests import plain_launches
from weft.codegen.cuda.products.fused import (
    FusedProduct,
    fused_product,
    matmul_product,
    simple_epilogue,
)
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.nests.nest import Store, build_nest
from weft.codegen.products.calls import is_product, product_in, result_strides, without_product
from weft.codegen.products.gemm import Product
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.sizes import largest
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse
from weft.passes.memory.block import aligned
from weft.runtime.device.gemm_conv import (
    ALIGNMENT,
    CONVOLUTIONS,
    GEMM_DTYPES,
    Conv,
    Epilogue,
    Gemm,
    conv_of,
    gemm_of,
)
from weft.runtime.device.plan import (
    DeviceNode,
    Place,
    PlanArg,
    PlannedLaunch,
    PlannedProduct,
    ProductKind,
    Route,
)

Pairs = tuple[tuple[int, int], ...]
#: A bias is added to f32 sums there: in 16 bits the product would not be rounded before.
_BIASED = ("f32", "f64")


@dataclass(frozen=True, slots=True)
class Way:
    """A library's way to do a product: `before`, then `call` on its arguments, then `after`. Of a
    `Gemm` they are D, A, B and the bias, if it has one; of a `Conv` the result and both operands.
    made: what lies in scratch memory between the call and launches. given: operands, in the order
    in which NaN is tried in them."""

    call: Gemm | Conv
    args: tuple[Address, ...]
    after: tuple[Launch, ...] = ()
    made: tuple[Value, ...] = ()
    before: tuple[Launch, ...] = ()
    given: tuple[Address, ...] = ()


def is_gemm(op: Operation) -> bool:
    """Whether it is a `matmul`, or a `fused` op that holds one, of a dtype that libraries know."""
    product = product_in(op) if is_product(op) else op
    return product.name == "matmul" and _type(product.result).dtype.short in GEMM_DTYPES


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


Launches = tuple[Launch, ...]


def convolution_in(op: Operation) -> Operation | None:
    """The convolution that an op is, or that a `fused` op is carried out by."""
    held = product_in(op) if is_product(op) else op
    return held if held.name in CONVOLUTIONS else None


def conv_ways(op: Operation, in_place: Pairs, mode: MathMode) -> list[Way]:
    """What cuDNN could do of a `conv`, `conv_input` or `conv_kernel`, or of a `fused` op that holds
    one: at most one way. in_place: as `build_nest` has it."""
    inner = convolution_in(op)
    conv = None if inner is None else conv_of(inner, mode)
    if inner is None or conv is None:
        return []
    if inner is op:
        return [_way(op, conv, {})]
    given = op.regions[0].args
    if any(value not in given for value in inner.operands):
        return []  # what it reads is computed first
    way = _way(inner, conv, dict(zip(given, op.operands, strict=True)))
    after = _after(op, inner.result, in_place)
    if after is None:
        return []
    return [replace(way, after=(*way.after, *after), made=(*way.made, inner.result))]


def _way(op: Operation, conv: Conv, outside: Mapping[Value, Value]) -> Way:
    """The convolution alone. outside: for operands the values that they are."""
    one, two = (Address(outside.get(value, value)) for value in op.operands)
    rank = _tensor_type(op.result).rank
    again = tuple([_moved(launch, outside) for launch in nan_launches(op)])
    given = (two, one)  # an infinity of the second one meets zeros
    if conv.kind == "conv_kernel":
        back = _permuted(_turned(op), (*range(1, rank), 0), op)
        made = back.operands[0]
        turn = _launches(back, Address(made), Address(op.result))
        args = (Address(made), one, two)
        return Way(conv, args, after=(*turn, *again), made=(made,), given=given)
    turned = _permuted(_tensor_type(op.operands[1]), (rank - 1, *range(rank - 1)), op)
    before = _launches(turned, two, Address(turned.result))
    args = (Address(op.result), one, Address(turned.result))
    return Way(conv, args, after=again, made=(turned.result,), before=before, given=given)


def _after(op: Operation, made: Value, in_place: Pairs) -> Launches | None:
    """The nest that follows, which reads what was `made` as an array like others; None if only the
    kernel that does all of it can do this."""
    outputs, operands = ([Address(v) for v in values] for values in (op.results, op.operands))
    try:
        nest = build_nest(without_product(op)[0], in_place)
        after = plain_launches(nest, outputs, [*operands, Address(made)])
    except UnsupportedError:
        return None
    checked = any(isinstance(arg, Status) for launch in after for arg in launch.args)
    return None if checked else tuple(after)


def _moved(launch: Launch, outside: Mapping[Value, Value]) -> Launch:
    args = [
        replace(arg, value=outside.get(arg.value, arg.value)) if isinstance(arg, Address) else arg
        for arg in launch.args
    ]
    return replace(launch, args=tuple(args))


def _turned(op: Operation) -> TensorType:
    """The type of a conv_kernel's result as cuDNN has it: its last axis is the first."""
    held = _tensor_type(op.result)
    return TensorType(held.dtype, (held.shape[-1], *held.shape[:-1]))


def _permuted(held: TensorType, axes: tuple[int, ...], op: Operation) -> Operation:
    """A `fused` op that permutes the axes of something, where `op` is in the user's program."""
    builder = Builder([held])
    made = builder.emit1("permute_dims", *builder.args, axes=axes, locations=op.locations)
    return fuse(builder.graph("turn", ("filter",), [made])).ops[0]


def _launches(turn: Operation, source: Address, target: Address) -> Launches:
    return tuple(plain_launches(build_nest(turn, ()), [target], [source]))


def _tensor_type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def with_routes(
    op: Operation, nodes: Sequence[DeviceNode], ways: Sequence[Way], place: Callable[[Arg], PlanArg]
) -> tuple[list[DeviceNode], int]:
    """The `nodes` of a product with the ways of a library beside them, and the bytes of scratch
    memory that these need. place: where arguments are."""
    own = tuple([node for node in nodes if isinstance(node, PlannedLaunch)])
    if not own:
        return list(nodes), 0
    routes, most = [], 0
    for way in ways:
        route, nbytes = _route(op, way, own, place)
        routes.append(route)
        most = largest(most, nbytes)
    # checks of indices come first: no part of a product tells of any
    before = [node for node in nodes if not isinstance(node, PlannedLaunch)]
    kind: ProductKind = "products" if convolution_in(op) is None else "convolutions"
    return [*before, PlannedProduct(op, own, tuple(routes), kind)], most


def _route(
    op: Operation, way: Way, own: Sequence[PlannedLaunch], place: Callable[[Arg], PlanArg]
) -> tuple[Route, int]:
    # launches may have scratch memory of their own: what lies between them comes after it
    launches = (*way.before, *way.after)
    needed = [arg.nbytes for one in launches for arg in one.args if isinstance(arg, Scratch)]
    end = aligned(reduce(largest, needed)) if needed else 0
    places: dict[Value, Place] = {}
    for value in way.made:
        assert isinstance(value.type, TensorType)
        begin = aligned(end)
        end = begin + value.type.nbytes
        places[value] = Place("scratch", 0, begin, value.type.nbytes)

    def at(arg: Arg) -> PlanArg:
        if not isinstance(arg, Address) or arg.value not in places:
            return place(arg)
        held, offset = places[arg.value], arg.offset
        return Place("scratch", 0, held.offset + offset, held.nbytes - offset)

    def moved(arg: Address, offset: int) -> Place:
        held = at(arg)
        assert isinstance(held, Place)
        return Place(held.kind, held.which, held.offset + offset, held.nbytes - offset)

    args = tuple([moved(a, o) for a, o in zip(way.args, way.call.offsets, strict=False)])
    before, after = (
        tuple([PlannedLaunch(one, tuple(map(at, one.args)), op) for one in some])
        for some in (way.before, way.after)
    )
    # one in the first row of weft's A, the library's B, is one in all of the first row of C;
    # where that is a constant, one in weft's B is one in a column
    given = tuple([moved(a, 0) for a in way.given]) or (args[2], args[1])
    return Route(way.call, args, after, before, given), end
