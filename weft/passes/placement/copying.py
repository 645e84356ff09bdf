"""A graph's blocks again, with other devices on their ops."""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.graph import Block, Operation, Value

#: The device of an op, given that of the op around it.
DeviceOf = Callable[[Operation, str], str]


def with_devices(
    block: Block, device_of: DeviceOf, copies: dict[Operation, Operation], around: str = ""
) -> Block:
    """A copy of a block, and of all in it, whose ops have the devices that `device_of` says.

    copies: filled with the new op for each old one.
    """
    args = tuple(Value(a.type, None, a.index) for a in block.args)
    mapping: dict[Value, Value] = dict(zip(block.args, args, strict=True))
    ops: list[Operation] = []
    for op in block.ops:
        device = device_of(op, around)
        made = copies[op] = Operation(
            op.name,
            [mapping[v] for v in op.operands],
            op.attrs,
            [r.type for r in op.results],
            [with_devices(region, device_of, copies, device) for region in op.regions],
            [mapping[v] for v in op.control],
            op.locations,
            device=device,
            group=op.group,
        )
        mapping.update(zip(op.results, made.results, strict=True))
        ops.append(made)
    return Block(args, tuple(ops), tuple(mapping[v] for v in block.results))
