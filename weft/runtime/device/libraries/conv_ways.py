"""From a convolution, with what follows it, to what cuDNN could do of it.

cuDNN multiplies what it has beyond the edges, zeros, by what is there: an infinity makes NaN of
them. As after weft's own tiles, results that are NaN are added up anew then (`nan_launches`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.codegen.call import Address, Status
from weft.codegen.cuda.kernels.conv import nan_launches
from weft.codegen.cuda.nests.emit import plain_launches
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.nests.nest import build_nest
from weft.codegen.products.fused import is_product, product_in, without_product
from weft.ir.dtypes import MathMode
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse
from weft.runtime.device.libraries.conv import CONVOLUTIONS, Conv, conv_of
from weft.runtime.device.libraries.ways import Pairs, Way

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
    rank = _type(op.result).rank
    again = tuple([_moved(launch, outside) for launch in nan_launches(op)])
    given = (two, one)  # an infinity of the second one meets zeros
    if conv.kind == "conv_kernel":
        back = _permuted(_turned(op), (*range(1, rank), 0), op)
        made = back.operands[0]
        turn = _launches(back, Address(made), Address(op.result))
        args = (Address(made), one, two)
        return Way(conv, args, after=(*turn, *again), made=(made,), given=given)
    turned = _permuted(_type(op.operands[1]), (rank - 1, *range(rank - 1)), op)
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
    held = _type(op.result)
    return TensorType(held.dtype, (held.shape[-1], *held.shape[:-1]))


def _permuted(held: TensorType, axes: tuple[int, ...], op: Operation) -> Operation:
    """A `fused` op that permutes the axes of something, where `op` is in the user's program."""
    builder = Builder([held])
    made = builder.emit1("permute_dims", *builder.args, axes=axes, locations=op.locations)
    return fuse(builder.graph("turn", ("filter",), [made])).ops[0]


def _launches(turn: Operation, source: Address, target: Address) -> Launches:
    return tuple(plain_launches(build_nest(turn, ()), [target], [source]))


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
