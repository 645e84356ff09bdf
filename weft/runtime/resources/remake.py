"""From the op that stands for a resource in a graph to a new resource: for graphs read from text.

The inverse of `Resource.maker`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.ops.resources import part_type
from weft.ir.spec import ConstArray
from weft.ir.type_rules import int_attr, strs_attr
from weft.ir.types import TensorType
from weft.runtime.files.records import Layout
from weft.runtime.resources.accumulators import Accumulator, DenseAccumulator, SparseAccumulator
from weft.runtime.resources.attempts import Resource
from weft.runtime.resources.barrier import Barrier
from weft.runtime.resources.components import Components, ComponentShape
from weft.runtime.resources.ordered import PriorityQueue, ShuffleQueue
from weft.runtime.resources.queue import PaddingQueue, Queue
from weft.runtime.resources.reader import Reader
from weft.runtime.resources.static_table import StaticTable, VocabularyTable
from weft.runtime.resources.table import HashTable
from weft.runtime.resources.tensor_array import Stack


def remake(op: Operation) -> Resource:
    """A new resource as `op` describes it. UnsupportedError for an op that has no row."""
    make = MAKERS.get(op.name)
    if make is None:
        raise UnsupportedError(
            f"op '{op.name}': its object cannot be made from a graph's text yet",
            hint="build the graph in the process that runs it",
            location=op.locations,
        )
    return make(op)


def _queue(op: Operation) -> Queue:
    name, kind = str(op.attrs["name"]), op.attrs["kind"]
    types = _parts(op)
    shapes: list[ComponentShape] = [_sizes(t) for t in types]
    given = int_attr(op.attrs, "capacity")
    capacity = None if given < 0 else given
    if kind == "shuffle":
        components = Components(f"RandomShuffleQueue '{name}'", [t.dtype for t in types], shapes)
        least, seed = int_attr(op.attrs, "min_after_dequeue"), int_attr(op.attrs, "seed")
        return ShuffleQueue(components, capacity, least, seed, name)
    made = {"fifo": Queue, "padding": PaddingQueue, "priority": PriorityQueue}[str(kind)]
    components = Components(f"{made.kind} '{name}'", [t.dtype for t in types], shapes)
    return made(components, capacity, name)


def _parts(op: Operation) -> list[TensorType]:
    parts = op.attrs["parts"]
    assert isinstance(parts, tuple)
    return [part_type(str(p)) for p in parts]


def _sizes(t: TensorType) -> tuple[int | None, ...]:
    return tuple(d if isinstance(d, int) else None for d in t.shape)


def _table(op: Operation) -> HashTable:
    name, default = str(op.attrs["name"]), op.attrs["default"]
    key, value = _parts(op)
    assert isinstance(default, ConstArray)
    keys, values = op.attrs["keys"], op.attrs["values"]
    if isinstance(keys, ConstArray) and isinstance(values, ConstArray):
        if op.attrs["kind"] == VocabularyTable.graph_kind:
            buckets = int_attr(op.attrs, "buckets")
            return VocabularyTable(keys.array, values.array, key.dtype, buckets, name)
        return StaticTable(keys.array, values.array, key.dtype, default.array, value.dtype, name)
    return HashTable(key.dtype, default.array, value.dtype, name)


def _barrier(op: Operation) -> Barrier:
    name, types = str(op.attrs["name"]), _parts(op)
    owner = f"Barrier '{name}'"
    return Barrier(Components(owner, [t.dtype for t in types], list(map(_sizes, types))), name)


def _accumulator(op: Operation) -> Accumulator:
    (t,) = _parts(op)
    made = DenseAccumulator if op.name == DenseAccumulator.graph_op else SparseAccumulator
    return made(t.dtype, _sizes(t), str(op.attrs["name"]), op.attrs["reduction"] == "MEAN")


def _stack(op: Operation) -> Stack:
    (t,), bound = _parts(op), int_attr(op.attrs, "max_size")
    return Stack(t.dtype, None if bound < 0 else bound, str(op.attrs["name"]), _sizes(t))


def _reader(op: Operation) -> Reader:
    a = op.attrs
    skip, record, footer, hop = (int_attr(a, k) for k in ("skip", "record", "footer", "hop"))
    layout = Layout(
        str(a["kind"]), skip, record, footer, hop, str(a["compression"]), strs_attr(a, "within")
    )
    return Reader(layout, str(a["name"]))


#: By the name of the op.
MAKERS: Mapping[str, Callable[[Operation], Resource]] = {
    "queue": _queue,
    "reader": _reader,
    "table": _table,
    "barrier": _barrier,
    "accumulator": _accumulator,
    "sparse_accumulator": _accumulator,
    "host_stack": _stack,
}
