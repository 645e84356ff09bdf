"""`Store`: the variables and resources of a task, by container and name; resources made from ops.

They outlive steps and sessions, and every session that names the same container and name uses the
same one. `remake` gives a new resource for the op that stands for one in a graph, for graphs read
from text: the inverse of `Resource.maker`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from weft.ir.errors import InvalidArgumentError, UnsupportedError
from weft.ir.graph import Graph, Operation
from weft.ir.ops.resources import declared_part, part_type
from weft.ir.spec import AttrValue, ConstArray, int_attr, strs_attr
from weft.ir.types import HandleType, RefType, TensorType
from weft.runtime.files.records import Layout
from weft.runtime.resources.accumulators import Accumulator, DenseAccumulator, SparseAccumulator
from weft.runtime.resources.attempts import Resource
from weft.runtime.resources.components import Components, ComponentShape
from weft.runtime.resources.queue import PaddingQueue, Queue
from weft.runtime.resources.queue_kinds import Barrier, PriorityQueue, ShuffleQueue
from weft.runtime.resources.reader import Reader
from weft.runtime.resources.table import HashTable, StaticTable, VocabularyTable
from weft.runtime.resources.tensor_array import Stack
from weft.runtime.resources.variables import VariableState


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
    shapes = _shapes(op)
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


def _shapes(op: Operation) -> list[ComponentShape]:
    """The shapes that were declared, None for any."""
    texts = [str(p) for p in strs_attr(op.attrs, "parts")]
    types = map(part_type, texts)
    return [_sizes(t) if declared_part(p) == p else None for p, t in zip(texts, types, strict=True)]


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
    return Barrier(Components(owner, [t.dtype for t in types], _shapes(op)), name)


def _accumulator(op: Operation) -> Accumulator:
    (t,), (shape,) = _parts(op), _shapes(op)
    made = DenseAccumulator if op.name == DenseAccumulator.graph_op else SparseAccumulator
    return made(t.dtype, shape, str(op.attrs["name"]), op.attrs["reduction"] == "MEAN")


def _stack(op: Operation) -> Stack:
    (t,), (shape,), bound = _parts(op), _shapes(op), int_attr(op.attrs, "max_size")
    return Stack(t.dtype, None if bound < 0 else bound, str(op.attrs["name"]), shape)


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


#: Container, and name in it.
Key = tuple[str, str]


class Store:
    """The variables and resources of a task."""

    def __init__(self, task: str) -> None:
        self._task = task
        self.generation = 0  # how often containers were cleared
        self._lock = threading.Lock()
        self._variables: dict[Key, VariableState] = {}
        self._resources: dict[Key, tuple[Mapping[str, AttrValue], Any]] = {}

    def of_graph(
        self, graph: Graph, keys: Mapping[str, Key]
    ) -> tuple[dict[str, VariableState], dict[str, Any]]:
        """The variables and the resources that a graph names, by these names; made where there are
        none yet. keys: where to look, by name in the graph; else under the name in the container
        "". InvalidArgumentError for one that is there and was declared otherwise."""
        variables: dict[str, VariableState] = {}
        resources: dict[str, Any] = {}
        for op in graph.walk():
            if not op.results or op.operands or "name" not in op.attrs:
                continue
            name = str(op.attrs["name"])
            key = keys.get(name, ("", name))
            if isinstance(op.results[0].type, RefType):
                variables[name] = self._variable(op, key)
            elif isinstance(op.results[0].type, HandleType):
                resources[name] = self._resource(op, key)
        return variables, resources

    def held(self) -> tuple[list[VariableState], dict[str, Any]]:
        """All variables, and all resources by their names."""
        with self._lock:
            return list(self._variables.values()), {
                key[1]: held for key, (_, held) in self._resources.items()
            }

    def clear(self, containers: Collection[str]) -> None:
        """Forget everything in these containers. A step that runs keeps what it holds; parts that
        were read before are to be read again."""
        with self._lock:
            self.generation += 1
            gone = [self._variables.pop(k) for k in list(self._variables) if k[0] in containers]
            for key in [k for k in self._resources if k[0] in containers]:
                del self._resources[key]
        for state in gone:
            state.clear()

    def _variable(self, op: Operation, key: Key) -> VariableState:
        kind = op.results[0].type
        assert isinstance(kind, RefType)
        held = kind.tensor
        with self._lock:
            found = self._variables.get(key)
            if found is None:
                made = VariableState(key[1], held.dtype, held.shape, None, key[0])
                found = self._variables[key] = made
        if found.type != held:
            raise self._misfit(f"variable '{key[1]}' as {held}", str(found.type), op)
        return found

    def _resource(self, op: Operation, key: Key) -> Any:
        declared = {"op": op.name, **{k: v for k, v in op.attrs.items() if k != "name"}}
        if "parts" in declared:  # how many axes they have in this graph is its own affair
            parts = strs_attr(op.attrs, "parts")
            declared["parts"] = tuple(declared_part(str(p)) for p in parts)
        with self._lock:
            found = self._resources.get(key)
            if found is None:
                found = self._resources[key] = declared, remake(op)
        if found[0] != declared:
            there = ", ".join(f"{k}={v}" for k, v in found[0].items())
            raise self._misfit(f"{op.name} '{key[1]}'", there, op)
        return found[1]

    def _misfit(self, asked: str, there: str, op: Operation) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the graph has {asked}, and on {self._task} there is one by that name declared "
            f"otherwise: {there}",
            hint="give it another name, shared_name or container; wf.Session.reset(target) clears "
            "what a task holds",
            location=op.locations,
        )
