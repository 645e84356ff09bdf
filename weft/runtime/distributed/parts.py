"""The parts of a step definition, as they go to the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import remapped
from weft.ir.ops.io import is_registered
from weft.ir.spec import ConstArray
from weft.ir.text.printer import print_graph
from weft.ir.types import HandleType, RefType, TensorType
from weft.runtime.distributed.exchange import task_of
from weft.runtime.distributed.messages import SMALL
from weft.runtime.distributed.store import Key

Array = np.ndarray[Any, Any]


class PartGraph(Protocol):
    """What `weft.passes.partition` makes of a step for one device. feeds: the inputs of the whole
    graph that are its inputs; fetches: which results of the whole its results are."""

    @property
    def device(self) -> str: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def feeds(self) -> tuple[int, ...]: ...
    @property
    def fetches(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """What one task is told of a step definition. constants: further inputs, the same in every run.
    state: container and name of each variable and resource, by its name in the text. peers: the
    tasks that it sends to or receives from. device: of the task, by its full name."""

    task: str
    device: str
    text: str
    constants: tuple[Array, ...]
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    state: Mapping[str, Key]
    peers: tuple[str, ...]


def parts_of(parts: Sequence[PartGraph], keys: Mapping[str, Key]) -> list[Part]:
    """The parts as text. UnsupportedError for a Python function that is not registered by name."""
    made = []
    for part in parts:
        for op in part.graph.walk():
            if op.name == "py_function" and not is_registered(op):
                raise UnsupportedError(
                    f"the Python function '{op.attrs['function']}' cannot run on {part.device}: "
                    "functions are not sent to tasks",
                    hint="give it a name with wf.register_function, here and in the task (`weft "
                    "worker --import MODULE`); or compute it before the step and feed the result",
                    location=op.locations,
                )
        task = task_of(part.device)
        graph, constants = lift_constants(part.graph)
        ends = [
            task_of(str(op.attrs["dst" if op.name == "send" else "src"]))
            for op in graph.walk()
            if op.name in ("send", "recv")
        ]
        peers = tuple(dict.fromkeys(end for end in ends if end != task))
        state = {name: keys[name] for name in _handles(graph) if name in keys}
        text = print_graph(graph)
        made.append(
            Part(task, part.device, text, constants, part.feeds, part.fetches, state, peers)
        )
    return made


def lift_constants(graph: Graph, most: int = SMALL) -> tuple[Graph, tuple[Array, ...]]:
    """Constants of more than `most` bytes as further inputs: they travel as bytes, not as text.
    Those in branches and loops stay."""
    large = {op: op.attrs["value"] for op in graph.ops if op.name == "constant"}
    held = {
        op: value.array
        for op, value in large.items()
        if isinstance(value, ConstArray) and value.array.nbytes > most
    }
    if not held:
        return graph, ()
    args, mapping = list(graph.args), {a: a for a in graph.args}
    ops: list[Operation] = []
    for op in graph.ops:
        if op in held:
            args.append(Value(op.result.type, index=len(args)))
            mapping[op.result] = args[-1]
        else:
            ops.append(remapped(op, mapping))
            mapping.update(zip(op.results, ops[-1].results, strict=True))
    results = tuple([mapping[v] for v in graph.results])
    names = (*graph.arg_names, *(f"constant_{i}" for i in range(len(held))))
    block = Block(tuple(args), tuple(ops), results)
    return Graph(graph.name, block, names, graph.stage), tuple(held.values())


def _handles(graph: Graph) -> list[str]:
    """The names of the variables and resources in a graph."""
    made = [op for op in graph.walk() if op.results and "name" in op.attrs]
    return [str(o.attrs["name"]) for o in made if isinstance(o.result.type, (RefType, HandleType))]


def result_types(graph: Graph) -> tuple[TensorType | None, ...]:
    """Of each result, None for a token."""
    return tuple(v.type if isinstance(v.type, TensorType) else None for v in graph.results)
