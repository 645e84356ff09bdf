"""Compiled functions on a cluster: `wf.compile(cluster=)`.

`Connection` is what the functions of one cluster share: the client, and under which names the tasks
hold the program's variables and resources. A variable has its value on a task from the first call
of a function that uses it: the one that it has here then. `cluster_step` makes the step of a
function, and `ClusterCall` its calls."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from weft.frontend.core.device_array import host_array
from weft.frontend.core.function_trace import Traced
from weft.ir.errors import TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Graph, Value
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.ir.process import ForkLock
from weft.ir.spec import AttrValue
from weft.ir.types import TensorType
from weft.passes.control.program_order import program_order
from weft.passes.manager import Pass, PassOptions
from weft.runtime.cluster.client import Client
from weft.runtime.cluster.definition import TaskStep
from weft.runtime.cluster.spec import Cluster
from weft.runtime.resources.shared_names import shared_as
from weft.runtime.resources.store import Key
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import PLAIN, RunContext, Step

#: Passes that come first of all.
BEGIN: tuple[Pass, ...] = (program_order,)


class Connection:
    """A cluster, as compiled functions use it. Variables and resources that have a shared name are
    found under that by all programs; others are this program's alone, in containers of its own,
    which the tasks clear when the last function is gone. Errors as those of a session's start."""

    def __init__(self, cluster: Cluster) -> None:
        self.client = Client(cluster, who="wf.compile(cluster={!r})")
        self._containers = [f"functions-{secrets.token_hex(8)}"]
        self._keys: weakref.WeakKeyDictionary[Any, Key] = weakref.WeakKeyDictionary()
        self._counts: dict[str, int] = {}  # of things by name
        self._sent: weakref.WeakSet[VariableState] = weakref.WeakSet()
        self._lock = ForkLock()
        self._close = weakref.finalize(self, _closed, self.client, self._containers)

    def key(self, thing: Any) -> Key:
        """Under which tasks hold a variable or resource: its own name, which errors say. Several
        of one name are in a container each."""
        with self._lock:
            found = shared_as(thing) or self._keys.get(thing)
            if found is None:
                number = self._counts.get(thing.name, 0)
                self._counts[thing.name] = number + 1
                if number == len(self._containers):
                    self._containers.append(f"{self._containers[0]}-{number}")
                found = self._keys[thing] = (self._containers[number], thing.name)
            return found

    def send_values(self, states: Mapping[str, VariableState], pipeline: str) -> None:
        """Give the variables that are met for the first time their values on the tasks. states: by
        their names in a graph. What has a shared name and a value there keeps it."""
        with self._lock:
            new = {n: v for n, v in states.items() if v not in self._sent and v.initialized}
            shared = {n: v for n, v in new.items() if shared_as(v) is not None}
            keys = {n: self.key(v) for n, v in new.items()}
            if shared:
                there = self._run(_looks(shared), keys, [], pipeline)
                for (name, state), found in zip(shared.items(), there, strict=True):
                    if bool(found):
                        del new[name]
                        self._sent.add(state)
            if new:
                values = [host_array(state.read()) for state in new.values()]
                self._run(_assigns(new), keys, values, pipeline)
                self._sent.update(new.values())

    def _run(
        self, graph: Graph, keys: Mapping[str, Key], inputs: list[Any], pipeline: str
    ) -> list[Any]:
        return self.client.step(graph.name, graph, keys, "auto", pipeline).run(inputs)


def _closed(client: Client, containers: list[str]) -> None:
    with suppress(WeftError):  # of a task that is gone
        client.reset(containers)
    client.close()


_connections: weakref.WeakValueDictionary[Cluster | str, Connection] = weakref.WeakValueDictionary()
_opening = ForkLock()


def connection_to(cluster: Cluster | str) -> Connection:
    """The connection of all functions on a cluster, made by the first one."""
    with _opening:
        found = _connections.get(cluster)
        if found is None:
            found = Connection(Cluster(cluster) if isinstance(cluster, str) else cluster)
            _connections[cluster] = found
        return found


def checked_cluster(cluster: object) -> Cluster | str:
    """The `cluster=` of wf.compile. TypeRuleError for what is none."""
    if isinstance(cluster, (Cluster, str)):
        return cluster
    raise TypeRuleError(
        f"wf.compile: cluster= takes a wf.train.Cluster or the address of a task, got a "
        f"{type(cluster).__name__}",
        hint="wf.train.Server(...).target is the address of a task",
        location=caller_location(),
    )


def _assigns(states: Mapping[str, VariableState]) -> Graph:
    """The step that assigns its inputs to variables."""
    builder = Builder([TensorType(v.dtype, v.shape) for v in states.values()])
    for arg, (name, state) in zip(builder.args, states.items(), strict=True):
        assign = "assign" if state.open is None else "assign_open"
        builder.emit(assign, (_variable(builder, name, state), arg))
    names = [f"value_{i}" for i in range(len(states))]
    return builder.graph("initial_values", names, [])


def _looks(states: Mapping[str, VariableState]) -> Graph:
    """The step that tells whether variables have a value."""
    builder = Builder([])
    found: list[Value] = []
    for name, state in states.items():
        found += builder.emit("is_initialized", (_variable(builder, name, state),))
    return builder.graph("has_values", [], found)


def _variable(builder: Builder, name: str, state: VariableState) -> Value:
    attrs: dict[str, AttrValue] = {"name": name, "dtype": state.dtype, "shape": state.type.shape}
    (made,) = builder.emit("variable", (), attrs)
    return made


class ClusterCall:
    """Calls of a function on a cluster."""

    def __init__(self, step: Step, connection: Connection, traced: Traced, pipeline: str) -> None:
        self._step, self._connection, self._pipeline = step, connection, pipeline
        self._states = traced.variables
        self._sent = False

    def __call__(self, arrays: list[Any], context: RunContext = PLAIN) -> list[Any]:
        given = [host_array(a) for a in arrays]
        try:
            if not self._sent:
                self._connection.send_values(self._states, self._pipeline)
            results = self._step.run(given, context)
            self._sent = True  # none was missing: what has no value here yet may get one
            return results
        except WeftError as error:
            raise error.at(caller_location()) from error.__cause__


def cluster_keys(traced: Traced, connection: Connection) -> dict[str, Key]:
    """The keys under which the tasks hold the variables and resources of a function."""
    held: dict[str, Any] = {**traced.variables, **traced.resources}
    return {name: connection.key(x) for name, x in held.items()}


def cluster_step(
    graph: Graph, keys: Mapping[str, Key], connection: Connection, pipeline: str
) -> TaskStep:
    """The step of a function's graph on the tasks."""
    options = PassOptions.from_environment().for_step(graph.name)
    client = connection.client
    return client.step(graph.name, graph, keys, "auto", pipeline, options, begin=BEGIN)


def check_options(options: Mapping[str, tuple[object, object]]) -> None:
    """UnsupportedError for an option of wf.compile that a cluster does not have. options: each with
    what is given, and what that is by default."""
    for option, (value, default) in options.items():
        if value != default:
            raise UnsupportedError(
                f"wf.compile(cluster=, {option}={value!r}): {option}= is for functions that run in "
                "this process",
                hint="leave it out; `wf.device` in the function says which task runs what",
                location=caller_location(),
            )
