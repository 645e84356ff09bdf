"""Products of a plan, between weft's own launches and what a library could do instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from weft.codegen.call import Address, Arg, Scratch
from weft.ir.graph import Operation
from weft.ir.sizes import largest
from weft.ir.types import TensorType
from weft.passes.memory.plan import aligned
from weft.runtime.device.libraries.ways import Way
from weft.runtime.device.planning.plan import (
    DeviceNode,
    Place,
    PlanArg,
    PlannedLaunch,
    PlannedProduct,
    Route,
)


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
    return [*before, PlannedProduct(op, own, tuple(routes))], most


def _route(
    op: Operation, way: Way, own: Sequence[PlannedLaunch], place: Callable[[Arg], PlanArg]
) -> tuple[Route, int]:
    # the launches that follow may have scratch memory of their own: the product lies after it
    needed = [arg.nbytes for one in way.after for arg in one.args if isinstance(arg, Scratch)]
    begin = aligned(reduce(largest, needed)) if needed else 0
    end = begin

    def at(arg: Arg) -> PlanArg:
        nonlocal end
        if not isinstance(arg, Address) or arg.value is not way.made:
            return place(arg)
        assert isinstance(arg.value.type, TensorType)
        nbytes = arg.value.type.nbytes
        end = begin + nbytes
        return Place("scratch", 0, begin + arg.offset, nbytes - arg.offset)

    def moved(arg: Address, offset: int) -> Place:
        held = at(arg)
        assert isinstance(held, Place)
        return Place(held.kind, held.which, held.offset + offset, held.nbytes - offset)

    gemm = way.gemm
    offsets = (gemm.d.offset, gemm.a.offset, gemm.b.offset, 0)
    args = tuple([moved(a, o) for a, o in zip(way.args, offsets, strict=False)])
    after = tuple([PlannedLaunch(one, tuple(map(at, one.args)), op) for one in way.after])
    return Route(gemm, args, after), end
