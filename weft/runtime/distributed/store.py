"""The variables and resources of a task: they outlive steps and sessions, and every session that
names the same container and name uses the same one."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Graph, Operation
from weft.ir.spec import AttrValue
from weft.ir.types import HandleType, RefType
from weft.runtime.resources.remake import remake
from weft.runtime.variables import VariableState

#: Container, and name in it.
Key = tuple[str, str]


class Store:
    """What a task holds."""

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
                made = VariableState(key[1], held.dtype, held.static_shape, None, key[0])
                found = self._variables[key] = made
        if found.dtype is not held.dtype or found.shape != held.static_shape:
            there = f"{found.dtype.short}{list(found.shape)}"
            raise self._misfit(f"variable '{key[1]}' as {held}", there, op)
        return found

    def _resource(self, op: Operation, key: Key) -> Any:
        declared = {"op": op.name, **{k: v for k, v in op.attrs.items() if k != "name"}}
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
