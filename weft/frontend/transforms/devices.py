"""`shard_map` over a mesh of devices: one program holds all shards, each on its device.

The function is traced once, for one shard, as for processes; `passes/batching/shards.py` writes it
into the trace around it for each shard, with the collectives as ordinary ops between them. So what
places, cuts, differentiates and batches other ops does these."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.frontend.control.region import Kind
from weft.frontend.core import pytree
from weft.frontend.core.device_scope import (
    Scope,
    device_scopes,
    enter_scopes,
    leave_scopes,
    place,
    placed_as,
)
from weft.frontend.core.function_trace import function_name, run_traced
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace, check_usable, current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.dispatch import fixed_sizes
from weft.frontend.transforms.axes import NamedAxis, axes_called
from weft.frontend.transforms.body import Transformed, after_control
from weft.frontend.transforms.mesh import (
    Mesh,
    PartitionSpec,
    Specs,
    differs_error,
    leaves_with_specs,
    spec_of_each,
)
from weft.ir.device import LOCAL_JOB, DeviceSpec, is_local, local_gpu
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location
from weft.ir.types import TensorType
from weft.passes.batching.shards import Grid, Sharded, Walk, differing_variable
from weft.runtime.device.backends.local import local_devices


def in_devices(
    fn: Callable[..., Any], mesh: Mesh, in_specs: Specs, out_specs: Specs
) -> Callable[..., Any]:
    """`shard_map` over a mesh of devices."""
    axes = {name: NamedAxis(size, placed=True) for name, size in mesh.shape.items()}

    @shows_as_seen
    @functools.wraps(fn)
    def sharded(*args: Any) -> Any:
        leaves, structure = leaves_with_specs("in_specs", in_specs, args, "arguments")
        kinds: list[Kind] = []
        tensors = []
        for leaf, spec, path in leaves:
            t = as_tensor(leaf)
            if t._data is None:
                check_usable(t, current_trace())
            shares = mesh.check_cut(t, spec, path)
            shape = tuple(shares.get(k, size) for k, size in enumerate(t.shape))
            kinds.append((TensorType(t.dtype, shape), t.weak))
            tensors.append(t)
        _check_devices(mesh)

        def one(shards: list[Tensor]) -> Any:
            with fixed_sizes():
                return fn(*pytree.unflatten(structure, shards))

        def compute(wholes: list[Tensor]) -> Any:
            trace = current_trace()
            assert trace is not None
            start = len(trace.builder.ops)
            trace.root().shard_devices.update(map(str, mesh.devices))
            walk = Walk(trace.builder, Grid(mesh.shape, mesh.devices), _placing(trace, mesh))
            cut = [
                _cut(walk, trace, t, spec) for t, (_, spec, _) in zip(wholes, leaves, strict=True)
            ]
            with _scopes_within(trace), axes_called(axes):
                body = Transformed("shard_map", fn, one, kinds)
            walk.block(body.block, [*cut, *(Sharded((v,)) for v in body.captured)], body.states)
            made = _results(walk, body, mesh, out_specs)
            after_control(trace, start)
            return made

        if current_trace() is not None:
            return compute(tensors)
        return run_traced(f"shard_map_{function_name(fn)}", compute, tensors)

    return sharded


def _check_devices(mesh: Mesh) -> None:
    """InvalidArgumentError for a mesh whose devices the function that is traced cannot reach. What
    a session or a cluster has is not known here."""
    trace = current_trace()
    root = None if trace is None else trace.root()
    if root is not None and (root.kind == "graph" or root.cluster is not None):
        return
    for spec in mesh.devices:
        if _is_reached(spec, root):
            continue
        where = "this process"
        hint = "wf.compile(cluster=...) runs a function on tasks, wf.Session(target) a graph"
        if root is not None and root.gpu is not None:
            where, hint = f"wf.compile(device='gpu:{root.gpu}')", "leave device= out"
        elif root is None and spec.job in (None, LOCAL_JOB):
            where, hint = "a call outside of wf.compile", "call it in a function of wf.compile"
        raise InvalidArgumentError(
            f"shard_map: a shard of {mesh!r} is to be on '{spec}', which {where} does not reach",
            hint=f"{hint}; without devices= all shards are computed here",
            location=caller_location(),
        )


def _is_reached(spec: DeviceSpec, root: Trace | None) -> bool:
    """Whether a function of this process, or an eager call (None), has a device."""
    if root is not None and root.gpu is not None:
        return local_gpu(spec) == root.gpu
    if root is None or is_local(spec):
        return is_local(spec)
    return any(spec.matches(DeviceSpec.parse(name)) for name in local_devices())


@contextmanager
def _scopes_within(trace: Trace) -> Iterator[None]:
    """What is traced within has the devices that scopes within say; state those around, too."""
    scope = Scope(hides=True, frees=True, keeps_state=True, owner=trace.root())
    token = enter_scopes((*device_scopes(), scope))
    try:
        yield
    finally:
        leave_scopes(token)


def _placing(trace: Trace, mesh: Mesh) -> Callable[[Operation, int | None], None]:
    """What puts an op where scopes around say, the device of its shard, and scopes around it in
    the function, the last of which counts most."""
    root, outer = trace.root(), device_scopes()
    scopes = {
        k: (*outer, Scope(spec, owner=root)) for k, spec in enumerate(mesh.devices)
    } | {-1: outer}  # fmt: skip

    def put(op: Operation, shard: int | None) -> None:
        if op.group:
            return
        own = Scope(DeviceSpec.parse(op.device), owner=root)
        op.device = ""
        place(op, trace, (*scopes[-1 if shard is None else shard], own))
        if shard is not None and op.device:
            root.shard_devices.add(op.device)

    return put


def _cuts(spec: PartitionSpec) -> list[tuple[int, str]]:
    """The axes that a spec names, each with the dimension that it cuts."""
    return [(dim, name) for dim, names in enumerate(spec.axes) for name in names]


def _cut(walk: Walk, trace: Trace, whole: Tensor, spec: PartitionSpec) -> Sharded:
    """The shards of an argument; cut where the whole is."""
    value = trace.lift(whole)
    like = None if value.op is None else placed_as(value.op)
    return walk.cut(value, _cuts(spec), like, caller_location())


def _results(walk: Walk, body: Transformed, mesh: Mesh, out_specs: Specs) -> Any:
    """The whole results; variables that the function assigned to have their values."""
    specs = spec_of_each("out_specs", out_specs, body.structure)
    values: Sequence[Value] = body.block.results
    where, made = caller_location(), []
    for leaf, value, spec, path in zip(body.leaves, values, specs, body.paths, strict=False):
        mesh.check_joined(leaf, spec, path)
        for name in mesh.shape:
            if name not in spec.names and name in walk.known[value].varies:
                raise differs_error(path, name)
        joined = walk.joined(value, _cuts(spec), where)
        made.append(body.trace.tensor(joined, leaf.weak))
    states = []
    for value in values[len(body.leaves) :]:
        if walk.known[value].varies:
            raise differing_variable(value.op.locations if value.op is not None else where)
        states.append(walk.outside(value))
    return body.nested(made, states)
