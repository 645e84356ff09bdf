"""Sessions on a cluster: the client's side of a `wf.Session` whose target is a task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.session.compiling import StepDefinition, pruned
from weft.frontend.session.graph import Graph
from weft.ir.dtypes import MathMode
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.passes.manager import QUIET, PassOptions
from weft.runtime.cluster.client import Client
from weft.runtime.cluster.definition import TaskStep
from weft.runtime.cluster.spec import Cluster
from weft.runtime.resources.shared_names import shared_as
from weft.runtime.resources.store import Key


class Remote(Client):
    """The connection of one session: steps of its graph."""

    def step_of(
        self,
        graph: Graph,
        step: IRGraph,
        control_flow: str,
        pipeline: str = "standard",
        options: PassOptions = QUIET,
        *,
        sized: bool = True,
    ) -> TaskStep:
        """A step definition of a graph. Errors as `step`."""
        keys = state_keys(graph)
        return self.step(graph.name, step, keys, control_flow, pipeline, options, sized=sized)

    def explain_step(self, graph: Graph, step: IRGraph, pipeline: str) -> str:
        """As `explain`, of a step of a graph."""
        return self.explain(graph.name, step, state_keys(graph), pipeline)

    def compiled(
        self,
        graph: Graph,
        values: Sequence[Value | None],
        feeds: Mapping[Value, Any],
        done: frozenset[Value],
        control_flow: str,
        pipeline: str,
    ) -> StepDefinition:
        """The step definition for these fetches and feeds. Errors as `step`."""
        begun = time.perf_counter()
        options = PassOptions.from_environment().for_step(graph.name)
        step = pruned(graph, values, feeds, done, options=options)
        made = self.step_of(graph, step, control_flow, pipeline, options)
        seconds = time.perf_counter() - begun
        return StepDefinition(made, len(step.ops), seconds, graph, values, feeds, done=done)

    def open(
        self,
        graph: Graph,
        values: Sequence[Value | None],
        feeds: Sequence[Value],
        control_flow: str,
        pipeline: str,
    ) -> TaskStep:
        """A step for these fetches and feeds of any sizes, which the tasks have taken. Errors as
        `step`, and as the tasks have."""
        no_sizes = np.empty(())  # nobody looks at them
        options = PassOptions.from_environment().for_step(graph.name)
        fed = dict.fromkeys(feeds, no_sizes)
        step = pruned(graph, values, fed, sized=False, options=options)
        made = self.step_of(graph, step, control_flow, pipeline, options, sized=False)
        made.prepare()
        return made


def state_keys(graph: Graph) -> dict[str, Key]:
    """Container and shared name of each variable and resource of the graph, by its name there:
    under these all sessions find it on its task. Without a shared name its own name counts."""
    held: dict[str, Any] = {n: v.state for n, v in graph._trace.variables.copy().items()}
    held |= graph.resources
    keys: dict[str, Key] = {}
    for name, thing in held.items():
        keys[name] = shared_as(thing) or (getattr(thing, "container", None) or "", name)
    return keys


def connected(
    target: str,
    cluster: Cluster | None,
    math_mode: MathMode,
    deterministic: bool,
    soft_placement: bool,
) -> Remote:
    """The master of a session. UnsupportedError for options that clusters do not have,
    TypeRuleError for what is no cluster, InvalidArgumentError for two of them."""
    if cluster is not None and not isinstance(cluster, Cluster):
        raise TypeRuleError(
            f"wf.Session: cluster= takes a wf.train.Cluster, got a {type(cluster).__name__}",
            hint="wf.train.Cluster('tcp://host:port', spec=...), or the address of a task alone: "
            "wf.Session('tcp://host:port')",
            location=caller_location(),
        )
    if cluster is not None and target:
        raise InvalidArgumentError(
            f"wf.Session: target={target!r} and cluster= are both given",
            hint="the address of a task is the first argument of wf.train.Cluster",
            location=caller_location(),
        )
    if math_mode != "ieee":
        raise UnsupportedError(
            f"wf.Session(math={math_mode!r}) is for one process; tasks compute as 'ieee'",
            hint="leave math out, or make the session without a target",
            location=caller_location(),
        )
    if deterministic:
        raise UnsupportedError(
            "wf.Session(deterministic=True) is for one process; tasks run beside each other",
            hint="results have the same bits without it",
            location=caller_location(),
        )
    return Remote(Cluster(target) if cluster is None else cluster, soft_placement=soft_placement)
