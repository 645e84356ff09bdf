"""`shard_map` over processes: each traces the same function, and computes its own shard.

A whole array is the same in all processes. What goes into the function is cut, what comes out is
joined, one axis of the mesh after the other; collectives and these are ops `exchange`. A gradient
that is taken from outside counts each whole once: that of a shard is joined, that of what all
processes have is the sum of theirs, and the cotangent of a result goes to the shard it came from,
or to the first process. What is traced is looked through for results that differ from process to
process though their spec says that they do not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from weft.frontend.autodiff.custom import custom_gradient
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import function_name, run_traced
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace, check_usable, current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.manipulation import concat, reshape, split
from weft.frontend.transforms.axes import NamedAxis, axes_called, exchange, exchanges
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
from weft.ir.spec import AttrValue

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


#: Of gradients that are summed together. The first sum begins early, as in PyTorch's
#: DistributedDataParallel; nothing is beside the last one. Larger ones take as long for each byte.
FIRST_GRADIENT_BYTES, GRADIENT_BYTES = 1 << 20, 8 << 20


def sums_beside(tensors: Sequence[Tensor], axes: Mapping[str, NamedAxis]) -> list[Tensor]:
    """The sums of tensors over the processes of some axes, which are added up while the step goes
    on: in buckets, in the order in which the tensors are made. The last one is waited for anyway,
    so nobody is asked to add it up meanwhile."""
    trace = current_trace()
    assert trace is not None
    made = {op: k for k, op in enumerate(trace.builder.ops)}
    values = [trace.lift(t) for t in tensors]
    order = sorted(range(len(values)), key=lambda k: made.get(values[k].op, -1))  # type: ignore[arg-type]
    buckets = _gradient_buckets(tensors, order)
    name, axis = next(iter(axes.items()))
    sizes = tuple(axis.size for axis in axes.values() if isinstance(axis.size, int))
    common: dict[str, AttrValue] = {"axes": tuple(axes), "sizes": sizes}
    started = []
    for number, bucket in enumerate(buckets):
        held = [tensors[k] for k in bucket]
        shapes = " ".join(str(t._type.static_shape) for t in held)
        beside = number + 1 < len(buckets)
        started += exchanges(
            "start", held, name, axis, **common, shapes=shapes, number=number, beside=beside
        )
    sums: dict[int, Tensor] = {}
    for number, (bucket, whole) in enumerate(zip(buckets, started, strict=True)):
        parts = tuple(str(tensors[k]._type) for k in bucket)
        found = exchanges("done", [whole], name, axis, **common, number=number, parts=parts)
        sums.update(zip(bucket, found, strict=True))
    return [sums[k] for k in range(len(tensors))]


def _gradient_buckets(tensors: Sequence[Tensor], order: Sequence[int]) -> list[list[int]]:
    """The numbers of the tensors that are summed together: of each dtype a bucket is full when it
    has its bytes. In the order of their last members."""
    full: list[list[int]] = []
    open_: dict[DType, tuple[list[int], int]] = {}
    for k in order:
        held = tensors[k]._type
        bucket, nbytes = open_.pop(held.dtype, ([], 0))
        bucket.append(k)
        nbytes += held.nbytes
        if nbytes >= (GRADIENT_BYTES if full else FIRST_GRADIENT_BYTES):
            full.append(bucket)
        else:
            open_[held.dtype] = bucket, nbytes
    rest = [bucket for bucket, _ in open_.values()]
    return full + sorted(rest, key=lambda bucket: order.index(bucket[-1]))


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
        if op.name == "exchange" and op.attrs["mesh"] == mesh:
            found -= _same_along(op)
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
            if inner.attrs["kind"] not in (*_SAME, "enter", "leave", "start", "done"):
                found.add(str(inner.attrs["axis_name"]))
    return frozenset(found)


def _same_along(op: Operation) -> frozenset[str]:
    """The axes along which an exchange gives all processes the same."""
    if op.attrs["kind"] in _SAME:
        return frozenset({str(op.attrs["axis_name"])})
    axes = op.attrs["axes"] if op.attrs["kind"] == "done" else ()
    assert isinstance(axes, tuple)
    return frozenset(map(str, axes))
