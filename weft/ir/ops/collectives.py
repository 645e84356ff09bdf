"""Collectives over a named axis of examples: what one row of a batch gets from all rows.

They stand in what `wf.vmap(axis_name=)` is given, in the program of one row. `passes/batching`
makes the ops for all rows of them; no plan holds one. Names as JAX's (`jax.lax.psum`). A program
that no batch is made of is one of a single row, and that is what the references compute.

`exchange` is a collective over an axis of a mesh of processes: Python carries it out wherever the
step runs (`io.PYTHON_CALLS`), by what `open_mesh` was given, and waits for the other processes. It
has the kinds of the ops above, and those by which `wf.shard_map` takes whole tensors apart and puts
them together: an array as each process has it is one, the same, outside of it.

A sum may be in two halves, so that a step goes on meanwhile. `start` packs its operands into one
array, the bucket, and gives it to the mesh; `done` waits until the sum stands there, and gives its
parts. In between nobody else may look at the bucket. A bucket has its members at multiples of
`MEMBER_BYTES`, so that kernels may write and read them there (`passes/memory`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from weft.ir.dims import same
from weft.ir.dtypes import int64
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
)
from weft.ir.graph import Block, Operation
from weft.ir.ops.resources import part_type
from weft.ir.spec import Array, Attrs, AttrSpec, InferRule, OpSpec, dim_attr, int_attr, tensors
from weft.ir.types import TensorType, Type

_AXIS = {"axis_name": AttrSpec("str")}
_SIZED = {**_AXIS, "size": AttrSpec("dim")}
_TRAITS = frozenset({"no_fold"})


def _numbers(name: str) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        (x,) = tensors(name, types)
        if not x.dtype.is_numeric:
            raise TypeRuleError(f"op '{name}' takes numbers, got {x}")
        return [x]

    return rule


def _index_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return [TensorType(int64, ())]


def _gather_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("all_gather", types)
    return [TensorType(x.dtype, (dim_attr(attrs, "size"), *x.shape))]


def _rows(name: str, kept: bool) -> InferRule:
    """The rule of an op whose operand has an element for each row along its first axis. kept:
    whether its result has, too."""

    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        (x,) = tensors(name, types)
        size = dim_attr(attrs, "size")
        if not x.rank or not same(x.shape[0], size):
            raise ShapeError(
                f"op '{name}': {x} has no first axis of {size}, the size of the axis "
                f"'{attrs['axis_name']}'"
            )
        return [x if kept else TensorType(x.dtype, x.shape[1:])]

    return rule


def _permute_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return [*tensors("ppermute", types)]


def _one_row(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """What a single row gets: of its own."""
    if attrs.get("size", 1) != 1:
        raise InvalidArgumentError(f"no batch has the axis '{attrs['axis_name']}'")
    return arrays[0]


def _gathered(arrays: Sequence[Array], attrs: Attrs) -> Array:
    return _one_row(arrays, attrs)[None]


def _scattered(arrays: Sequence[Array], attrs: Attrs) -> Array:
    return np.asarray(_one_row(arrays, attrs)[0])


def _permuted(arrays: Sequence[Array], attrs: Attrs) -> Array:
    return arrays[0] if attrs["sources"] == (0,) else np.zeros_like(arrays[0])


TABLE = (
    OpSpec("psum", 1, _numbers("psum"), _one_row, "The sum over all rows.", _AXIS, _TRAITS),
    OpSpec("pmax", 1, _numbers("pmax"), _one_row, "The maximum over all rows.", _AXIS, _TRAITS),
    OpSpec("pmin", 1, _numbers("pmin"), _one_row, "The minimum over all rows.", _AXIS, _TRAITS),
    OpSpec(
        "all_gather", 1, _gather_type, _gathered, "All rows, along a new first axis.",
        _SIZED, _TRAITS,
    ),
    OpSpec(
        "psum_scatter", 1, _rows("psum_scatter", False), _scattered,
        "In row i the sum over all rows of their elements i.", _SIZED, _TRAITS,
    ),
    OpSpec(
        "all_to_all", 1, _rows("all_to_all", True), _one_row,
        "In row i the elements i of all rows.", _SIZED, _TRAITS,
    ),
    OpSpec(
        "ppermute", 1, _permute_type, _permuted,
        "In row i the row `sources[i]`, zeros where that is -1.",
        {**_AXIS, "sources": AttrSpec("ints")}, _TRAITS,
    ),
    OpSpec(
        "axis_index", 0, _index_type, lambda arrays, attrs: np.array(0, np.int64),
        "The number of the row.", _AXIS, _TRAITS,
    ),
)  # fmt: skip
#: Their names.
COLLECTIVES = frozenset(spec.name for spec in TABLE)


# -------------------------------------------------------------------------- between processes
def _same_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return [*tensors("exchange", types)]


def _cut_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    """Of `split` and `join`: a shard of the whole, or the whole of shards, along `dim`."""
    (x,) = tensors("exchange", types)
    size, dim, splits = int_attr(attrs, "size"), int_attr(attrs, "dim"), attrs["kind"] == "split"
    length = x.shape[dim] if 0 <= dim < x.rank else None
    if not isinstance(length, int) or (splits and length % size):
        raise ShapeError(f"op 'exchange': {x} has no {size} shards along its axis {dim}")
    length = length // size if splits else length * size
    return [TensorType(x.dtype, (*x.shape[:dim], length, *x.shape[dim + 1 :]))]


#: Where members of a bucket may begin: at lines of the cache, as all that kernels take.
MEMBER_BYTES = 64


def member_starts(types: Sequence[TensorType]) -> tuple[list[int], int]:
    """Where the members of a bucket begin, in elements, and how many elements it has."""
    starts, count = [], 0
    for held in types:
        starts.append(count)
        line = MEMBER_BYTES // held.dtype.itemsize
        count += -(-held.nbytes // MEMBER_BYTES) * line
    return starts, count


def member_types(op: Operation) -> list[TensorType]:
    """The types of the members of a bucket, by the op that packs it or takes it apart."""
    values = op.operands if op.attrs["kind"] == "start" else op.results
    return [v.type for v in values if isinstance(v.type, TensorType)]


def is_exchange(op: Operation, kind: str) -> bool:
    """Whether the op is an exchange of that kind."""
    return op.name == "exchange" and op.attrs["kind"] == kind


def _start_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    members = tensors("exchange", types)
    if not members or any(t.dtype is not members[0].dtype or not t.is_static for t in members):
        raise TypeRuleError("op 'exchange': a bucket has members of one dtype and known shapes")
    if not members[0].dtype.is_numeric:
        raise TypeRuleError(f"op 'exchange' takes numbers, got {members[0]}")
    return [TensorType(members[0].dtype, (member_starts(members)[1],))]


def _parts(attrs: Attrs) -> list[TensorType]:
    parts = attrs["parts"]
    assert isinstance(parts, tuple)
    return [part_type(str(p)) for p in parts]


def _done_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (bucket,) = tensors("exchange", types)
    members = _parts(attrs)
    if [bucket] != _start_type(members, attrs, ()):
        raise TypeRuleError(
            f"op 'exchange': {bucket} is no bucket of {', '.join(map(str, members))}"
        )
    return [*members]


#: By kind. split, join: a process's shard of the whole, and the whole. enter, leave: a whole that
#: no axis is cut along, as it is; total: the sum over the processes; first: zeros but in the first.
#: start, done: the halves of a sum over the axes `axes`, `number` of those that are under way.
_KINDS: Mapping[str, InferRule] = {
    **{spec.name: spec.infer for spec in TABLE},
    "split": _cut_type, "join": _cut_type, "total": _numbers("exchange"),
    **dict.fromkeys(("enter", "leave", "first"), _same_type),
    "start": _start_type, "done": _done_type,
}  # fmt: skip


def _exchange_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    kind = str(attrs["kind"])
    if kind not in _KINDS:
        raise TypeRuleError(f"op 'exchange' has no kind '{kind}'")
    if len(types) != (kind != "axis_index") and kind != "start":
        raise TypeRuleError(f"op 'exchange' of kind '{kind}' has {len(types)} operands")
    return list(_KINDS[kind](types, attrs, regions))


class Exchanges(Protocol):
    """What does the exchanges over the axes of a mesh."""

    def exchange(
        self, kind: str, arrays: Sequence[Array], attrs: Attrs, out: Array | None = None
    ) -> Array:
        """The result of an exchange in one. out: memory that it may be in, perhaps that of the
        operand."""

    def start(self, arrays: Sequence[Array], attrs: Attrs, out: Array | None = None) -> Array:
        """Pack arrays into a bucket, which is `out` if that is given, and begin its sum. Without
        it zeros stand for the bucket."""

    def done(self, attrs: Attrs) -> Array:
        """The bucket that was started with this number, when the sum stands in it."""

    def settle(self, error: BaseException) -> None:
        """A step ends with an error: see to it that nothing that it began is under way."""


_meshes: dict[str, Exchanges] = {}


def open_mesh(name: str, exchanges: Exchanges) -> None:
    """In this process exchanges over the axes of the mesh of that name are done by `exchanges`."""
    _meshes[name] = exchanges


def close_mesh(name: str) -> None:
    """The opposite of `open_mesh`."""
    _meshes.pop(name, None)


def settle_exchanges(error: BaseException) -> None:
    """A step of this thread ends with an error: the sums that it began end before its memory is
    used again."""
    for mesh in list(_meshes.values()):
        mesh.settle(error)


def _exchanged(arrays: Sequence[Array], attrs: Attrs, out: Array | None = None) -> list[Array]:
    mesh, kind = _meshes.get(str(attrs["mesh"])), str(attrs["kind"])
    if mesh is None:
        raise FailedPreconditionError(
            f"the mesh '{attrs['mesh']}' is not open in this process",
            hint="the wf.Mesh of the function was closed, or is another process's",
        )
    if kind == "start":
        return [mesh.start(arrays, attrs, out)]
    if kind == "done":
        bucket, members = mesh.done(attrs), _parts(attrs)
        starts, _ = member_starts(members)
        return [
            bucket[at : at + math.prod(t.static_shape)].reshape(t.static_shape)
            for at, t in zip(starts, members, strict=True)
        ]
    return [mesh.exchange(kind, arrays, attrs, out)]


def exchange_into(arrays: Sequence[Array], attrs: Attrs, outs: Sequence[Array]) -> None:
    """The reference of `exchange`, whose results are written to `outs`."""
    for made, out in zip(_exchanged(arrays, attrs, outs[0]), outs, strict=True):
        if made.ctypes.data != out.ctypes.data:
            np.copyto(out, made)


EXCHANGE = OpSpec(
    "exchange", None, _exchange_type, _exchanged,
    "The collective `kind` over an axis of the mesh of processes `mesh`.",
    {
        "kind": AttrSpec("str"), "mesh": AttrSpec("str"), "axis_name": AttrSpec("str"),
        "size": AttrSpec("int"), "sources": AttrSpec("ints", ()), "dim": AttrSpec("int", -1),
        "shapes": AttrSpec("str", ""), "line": AttrSpec("str", ""),
        "axes": AttrSpec("strs", ()), "sizes": AttrSpec("ints", ()), "number": AttrSpec("int", 0),
        "beside": AttrSpec("bool", False), "parts": AttrSpec("strs", ()),
    },
    frozenset({"host", "no_fold", "no_cse", "no_dce"}),
)  # fmt: skip
