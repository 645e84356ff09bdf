"""`shard_map` over processes: each traces the same function, and computes its own shard.

A whole array is the same in all processes. What goes into the function is cut, what comes out is
joined, one axis of the mesh after the other; collectives and these are ops `exchange`. A gradient
that is taken from outside counts each whole once: that of a shard is joined, that of what all
processes have is the sum of theirs, and the cotangent of a result goes to the shard it came from,
or to the first process. What is traced is looked through for results that differ from process to
process though their spec says that they do not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from weft.frontend.autodiff.custom import custom_gradient
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import function_name, run_traced
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace, check_usable, current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.manipulation import concat, reshape, split
from weft.frontend.transforms.axes import NamedAxis, axes_called, exchange
from weft.frontend.transforms.mesh import (
    Mesh,
    PartitionSpec,
    Specs,
    differs_error,
    leaves_with_specs,
)
from weft.ir.dtypes import DType
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.state import UPDATES

#: Of the tensors that go together at most.
BUCKET_BYTES = 1 << 20
_NONE: frozenset[str] = frozenset()
#: Exchanges that give all processes of an axis the same; `enter` and `leave` give what they get.
_SAME = frozenset({"psum", "total", "pmax", "pmin", "all_gather", "join"})


def together(tensors: Sequence[Tensor], one: Callable[[Tensor, str], Tensor]) -> list[Tensor]:
    """What `one`, which works element by element, makes of each tensor; it gets small ones of one
    dtype together, and their shapes."""
    made: dict[int, Tensor] = {}
    for bucket in _buckets(tensors):
        held = [tensors[k] for k in bucket]
        if len(held) == 1:
            made[bucket[0]] = one(held[0], "")
            continue
        shapes = [t._type.static_shape for t in held]
        flat = concat([reshape(t, (-1,)) for t in held])
        whole = one(flat, " ".join(map(str, shapes)))
        parts = split(whole, [prod(s) for s in shapes])
        for k, part, shape in zip(bucket, parts, shapes, strict=True):
            made[k] = reshape(part, shape)
    return [made[k] for k in range(len(tensors))]


def _buckets(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The numbers of the tensors that go together."""
    found: list[list[int]] = []
    last: dict[DType, tuple[list[int], int]] = {}  # by dtype: the bucket that is filled, its bytes
    for k, t in enumerate(tensors):
        size = prod(t._type.static_shape) * t.dtype.itemsize if t._type.is_static else BUCKET_BYTES
        if size >= BUCKET_BYTES:
            found.append([k])
            continue
        bucket, held = last.get(t.dtype, ([], BUCKET_BYTES + 1))
        if held + size > BUCKET_BYTES:
            bucket, held = [], 0
            found.append(bucket)
        bucket.append(k)
        last[t.dtype] = bucket, held + size
    return found


def in_processes(
    fn: Callable[..., Any], mesh: Mesh, in_specs: Specs, out_specs: Specs
) -> Callable[..., Any]:
    """`shard_map` over a mesh of processes."""
    axes = {name: NamedAxis(size, mesh.name) for name, size in mesh.shape.items()}

    @shows_as_seen
    @functools.wraps(fn)
    def sharded(*args: Any) -> Any:
        leaves, structure = leaves_with_specs("in_specs", in_specs, args, "arguments")
        tensors = []
        for leaf, spec, path in leaves:
            t = as_tensor(leaf)
            if t._data is None:
                check_usable(t, current_trace())
            mesh.check_cut(t, spec, path)
            tensors.append(t)

        def compute(wholes: list[Tensor]) -> Any:
            trace = current_trace()
            assert trace is not None
            start = len(trace.builder.ops)
            pairs = zip(wholes, leaves, strict=True)
            shards = [_cut(t, spec, axes) for t, (_, spec, _) in pairs]
            with axes_called(axes):
                made = fn(*pytree.unflatten(structure, shards))
            return _results(trace, start, made, mesh, out_specs, axes)

        if current_trace() is not None:
            return compute(tensors)
        return run_traced(f"shard_map_{function_name(fn)}", compute, tensors)

    return sharded


def _cut(whole: Tensor, spec: PartitionSpec, axes: dict[str, NamedAxis]) -> Tensor:
    """This process's shard."""
    t = whole
    for dim, names in enumerate(spec.axes):
        for name in names:
            t = exchange("split", [t], name, axes[name], dim=dim)
    for name, axis in axes.items():
        if name not in spec.names:
            t = _uncut("total", t, name, axis)
    t.weak = whole.weak
    return t


def _uncut(adjoint: str, t: Tensor, name: str, axis: NamedAxis) -> Tensor:
    """A whole that is not cut along an axis, as it is: only its gradient is an exchange."""
    if not t.dtype.is_inexact:
        return t

    def marked(x: Tensor) -> Any:
        return x, lambda g: exchange(adjoint, [g], name, axis)

    return as_tensor(custom_gradient(marked)(t))


def _results(
    trace: Trace,
    start: int,
    made: Any,
    mesh: Mesh,
    out_specs: Specs,
    axes: dict[str, NamedAxis],
) -> Any:
    """The whole results, of what the function gave for this process's shard."""
    leaves, structure = leaves_with_specs("out_specs", out_specs, made, "result")
    differs = _differing(trace.builder.ops[start:], mesh.name)
    out = []
    for leaf, spec, path in leaves:
        t = as_tensor(leaf)
        mesh.check_joined(t, spec, path)
        for name in axes:
            if name not in spec.names and name in differs.get(trace.lift(t), _NONE):
                raise differs_error(path, name)
        joined = t
        for dim, names in reversed([*enumerate(spec.axes)]):
            for name in reversed(names):
                joined = exchange("join", [joined], name, axes[name], dim=dim)
        for name, axis in axes.items():
            if name not in spec.names:
                joined = _uncut("first", joined, name, axis)
        out.append(joined)
    return pytree.unflatten(structure, out)


def _differing(ops: Sequence[Operation], mesh: str) -> dict[Value, frozenset[str]]:
    """By value the axes of the mesh along which it may differ. UnsupportedError for what would make
    processes differ for good: variables, and for numbers that would not."""
    known: dict[Value, frozenset[str]] = {}
    drawn: set[Value] = set()  # of the key in a variable
    for op in ops:
        found = _NONE.union(*(known.get(v, _NONE) for v in op.operands))
        found |= _inner(op, mesh)
        if op.name == "exchange" and op.attrs["mesh"] == mesh and op.attrs["kind"] in _SAME:
            found -= {str(op.attrs["axis_name"])}
        if found and (op.name in UPDATES or op.name == "assign"):
            raise UnsupportedError(
                "shard_map: a variable would be assigned another value in each process",
                hint="assign what is the same in all, as wf.collectives.pmean(x, name) is",
                location=op.locations,
            )
        if op.name == "read" or any(v in drawn for v in op.operands):
            drawn.update(op.results)
        if op.name == "random_bits" and op.operands[0] in drawn and not found:
            raise UnsupportedError(
                "shard_map: the key in a variable gives all processes the same numbers",
                hint="draw with a key of the process's own: wf.random.fold_in(key, "
                "wf.collectives.axis_index(name))",
                location=op.locations,
            )
        known.update(dict.fromkeys(op.results, found))
    return known


def _inner(op: Operation, mesh: str) -> frozenset[str]:
    """The axes along which an op's results differ whatever it is given, its regions included."""
    found = set()
    for inner in (op, *(o for region in op.regions for o in Block.walk(region))):
        if inner.name == "exchange" and inner.attrs["mesh"] == mesh:
            if inner.attrs["kind"] not in (*_SAME, "enter", "leave"):
                found.add(str(inner.attrs["axis_name"]))
    return frozenset(found)
