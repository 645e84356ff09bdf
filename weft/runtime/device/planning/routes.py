"""Products of a plan, between weft's own launches and what a library could do instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from weft.codegen.call import Address, Arg, Scratch
from weft.ir.graph import Operation, Value
from weft.ir.sizes import largest
from weft.ir.types import TensorType
from weft.passes.memory.arena import aligned
from weft.runtime.device.libraries.conv_ways import convolution_in
from weft.runtime.device.libraries.ways import Way
from weft.runtime.device.planning.plan import (
    DeviceNode,
    Place,
    PlanArg,
    PlannedLaunch,
    PlannedProduct,
    ProductKind,
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
