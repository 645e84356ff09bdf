"""Names of this process's devices, and the check of graphs that must run on one of them."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.device import LOCAL_DEVICES, DeviceSpec, check_local
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.passes.rewriting.rewrite import bind, rebuilt, with_block, with_operands


def local_devices() -> tuple[str, ...]:
    """In full, the CPU first, then the GPUs that are here. Looks for a driver: for errors, and for
    people who ask."""
    # whoever has no GPU does not wait for these modules when weft is imported
    from weft.runtime.device.backends.registry import gpu_names

    return (*LOCAL_DEVICES, *gpu_names())


def not_here(op: Operation, why: WeftError) -> InvalidArgumentError:
    """The error for an op that is on a GPU which, as `why` says, this process does not have."""
    return InvalidArgumentError(
        f"there is no device '{op.device}' here; the devices are: "
        f"{', '.join(local_devices())}: {why.what}",
        hint=why.hint,
        location=op.locations,
    )


def on_local_device(graph: Graph, gpu: int | None = None) -> Graph:
    """`graph` without devices and groups, after checking that each device is the CPU of this
    process, or that GPU of it; the graph itself if it names none. InvalidArgumentError with the
    line of the op."""
    named = False
    for op in graph.walk():
        if op.device:
            spec = DeviceSpec.parse(op.device)
            check_local(spec, op.locations, gpu, devices=local_devices)
        named = named or bool(op.device or op.group)
    return without_devices(graph) if named else graph


def without_devices(graph: Graph) -> Graph:
    """`graph` with ops that name no device and no group."""
    return with_devices(graph, {})


def with_devices(graph: Graph, names: Mapping[str, str]) -> Graph:
    """`graph` with other devices, by the names of those that its ops have; "" for one that is not
    there. No op has a group."""
    return with_block(graph, _renamed(graph.block, names))


def _renamed(block: Block, names: Mapping[str, str]) -> Block:
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    for op in block.ops:
        new = with_operands(op, mapping, tuple(_renamed(region, names) for region in op.regions))
        if new.device or new.group:
            types = [r.type for r in op.results]
            new = Operation(
                op.name, new.operands, op.attrs, types, new.regions, new.control, op.locations,
                device=names.get(op.device, ""),
            )  # fmt: skip
        bind(mapping, op, new.results)
        ops.append(new)
    return rebuilt(block, ops, [mapping.get(v, v) for v in block.results])
