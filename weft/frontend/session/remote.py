"""Sessions on a cluster: the client's side of a `wf.Session` whose target is a task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.comm.errors import CommError
from weft.frontend.session.compiling import QUIET, StepDefinition, pruned
from weft.frontend.session.graph import Graph
from weft.frontend.state.resources import shared_as
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import MathMode, bfloat16
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.program import Program
from weft.passes.manager import AnyPass, PassOptions, PassReport, run_pipeline
from weft.passes.partition.partition import partition_pass
from weft.passes.pipelines import PIPELINES, before_placement
from weft.passes.placement import Device, Placement, PlacePass, place
from weft.passes.placement.placer import explain_placement
from weft.passes.sizes import tie_sizes
from weft.runtime.cluster.definition import TaskStep, parts_of, result_types
from weft.runtime.cluster.master import Master, ask_stats
from weft.runtime.cluster.spec import Cluster
from weft.runtime.cluster.transport import ClientAddress, as_weft_error, open_endpoint
from weft.runtime.resources.store import Key


class Remote:
    """The master of one session."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        soft_placement: bool = False,
        whole: bool = True,
    ) -> None:
        self._cluster, self._soft = cluster, soft_placement
        try:
            self._address = ClientAddress(cluster.target)
        except WeftError as error:
            raise error.at(caller_location()) from None

        def make_wire(name: str, on_message: Any, on_link_lost: Any) -> Any:
            bind = self._address.bind
            keys = cluster.key_file, cluster.secret
            return open_endpoint(name, bind, *keys, on_message, on_link_lost)

        try:
            self.master = Master(
                cluster.target,
                make_wire,
                cluster=cluster.spec,
                connect_timeout=cluster.connect_timeout,
                whole=whole,
            )
        except CommError as error:
            self._address.close()
            raise as_weft_error(error, f"wf.Session(target={cluster.target!r})").at(
                caller_location()
            ) from None
        except WeftError as error:
            self._address.close()
            raise error.at(caller_location()) from None

    def cut(
        self, step: IRGraph, pipeline: str = "standard", options: PassOptions = QUIET
    ) -> tuple[Placement, Program, Sequence[PassReport]]:
        """The step with a device for each op, a part for each device, and what the passes did.
        pipeline: that of the parts, of which the whole step goes through some passes first.
        options: of the passes. Errors as placing and partitioning have."""
        devices = self._devices(step)

        def on_devices(graph: IRGraph) -> Placement:
            return place(
                graph, devices, soft=self._soft, spread=self._cluster.spread, held=self.master.state
            )

        placing = PlacePass(on_devices)
        bfloat16 = self._cluster.bfloat16_sendrecv
        cutting = partition_pass(self.master.devices[0], bfloat16=bfloat16)
        first = before_placement(PIPELINES[pipeline], step)
        passes: list[AnyPass] = [*first, tie_sizes, placing, cutting]
        made, reports = run_pipeline(Program.of(step), passes, options=options)
        placed = placing.placement
        assert placed is not None
        self.master.state |= placed.state
        return placed, made, reports

    def _devices(self, step: IRGraph) -> list[Device]:
        """Where the ops of a step may be: on the processors of the tasks, and on their GPUs if one
        is named, or holds what earlier steps have made."""
        names = self.master.devices
        named = {op.device for op in step.walk() if op.device} | {*self.master.state.values()}
        if not any(_is_gpu(name) for name in named):
            return [Device(name) for name in names if not _is_gpu(name)]
        # whoever has no GPU does not wait for this module
        from weft.runtime.device.backends.placement import gpu_device

        return [gpu_device(name) if _is_gpu(name) else Device(name) for name in names]

    def step(
        self,
        graph: Graph,
        step: IRGraph,
        control_flow: str,
        pipeline: str = "standard",
        options: PassOptions = QUIET,
        *,
        sized: bool = True,
    ) -> TaskStep:
        """A step definition on the cluster. Errors as placing and partitioning have;
        UnsupportedError for Python functions, and, if feeds have open sizes, for branches and loops
        over several tasks, where a size is not in the frame that needs it."""
        _, made, _ = self.cut(step, pipeline, options)
        if not sized and any(op.name in DATAFLOW for p in made.parts for op in p.graph.walk()):
            raise UnsupportedError("branches and loops over several tasks need sizes")
        return TaskStep(
            self.master,
            graph.name,
            parts_of(made.parts, state_keys(graph)),
            result_types(step),
            control_flow="auto" if control_flow == "native" else control_flow,
            pipeline=pipeline,
            recv_timeout=self._cluster.recv_timeout,
            reports=lambda: self.cut(step, pipeline)[2],  # kept, they would hold every graph
        )

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
        made = self.step(graph, step, control_flow, pipeline, options)
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
        made = self.step(graph, step, control_flow, pipeline, options, sized=False)
        made.prepare()
        return made

    @property
    def bfloat16(self) -> bool:
        """Whether tensors go between tasks as bfloat16."""
        return self._cluster.bfloat16_sendrecv

    def placed(self, step: IRGraph, pipeline: str) -> IRGraph:
        """The whole step with a device for each op."""
        return self.cut(step, pipeline)[0].graph

    def explain(self, graph: Graph, step: IRGraph, pipeline: str = "standard") -> str:
        """Where each op of a step runs and why, and what goes between tasks."""
        placed, made, _ = self.cut(step, pipeline)
        head = f"step of '{graph.name}': {len(step.ops)} ops, {len(made.parts)} parts"
        return "\n".join([head, explain_placement(placed), *_rounded(made)])

    def reset(self, containers: Any) -> None:
        """Clear containers on all tasks."""
        self.master.reset(containers)

    def stats(self) -> dict[str, Any]:
        """What each task counts."""
        return dict(ask_stats(self.master))

    def close(self) -> None:
        """Let the tasks forget the session."""
        self.master.close()
        self._address.close()


def _is_gpu(device: str) -> bool:
    return DeviceSpec.parse(device).kind == "gpu"


def _rounded(made: Program) -> Iterator[str]:
    """What goes between tasks as bfloat16."""
    edges = [edge for edge in made.edges if edge.type.dtype is bfloat16]
    if edges:
        yield f"\n{len(edges)} messages in bfloat16"
    for edge in edges:
        size = "" if edge.nbytes is None else f", {edge.nbytes:,} bytes"
        yield f"  {edge.tensor}  {edge.src} -> {edge.dst}: {edge.type}{size}"


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
