"""Sessions on a cluster: the client's side of a `wf.Session` whose target is a task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.comm.errors import CommError
from weft.frontend.session.compiling import StepDefinition, pruned
from weft.frontend.session.graph import Graph
from weft.frontend.state.shared_names import shared_as
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import MathMode, bfloat16
from weft.ir.errors import InvalidArgumentError, UnsupportedError, WeftError
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.ops.control_flow import DATAFLOW
from weft.passes.partition.partition import Partitioned, partition
from weft.passes.placement import Device, Placement, place
from weft.passes.placement.placer import explain_placement
from weft.passes.sizes.tie_sizes import tie_sizes
from weft.runtime.cluster.definition import ClusterStep, parts_of, result_types
from weft.runtime.cluster.master import CONNECT_SECONDS, Master, ask_stats
from weft.runtime.cluster.spec import ClusterSpec
from weft.runtime.cluster.transport import ClientAddress, as_weft_error, open_endpoint
from weft.runtime.resources.store import Key

if TYPE_CHECKING:
    from weft.comm.keys import Secret

#: What `wf.Session(cluster=)` takes.
Cluster = ClusterSpec | Callable[[], ClusterSpec] | None


class Remote:
    """The master of one session."""

    def __init__(
        self,
        target: str,
        *,
        cluster: Cluster = None,
        key_file: str | os.PathLike[str] | None = None,
        secret: Secret | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        recv_seconds: float | None = None,
        soft_placement: bool = False,
        spread: bool = False,
        bfloat16_sendrecv: bool = False,
        whole: bool = True,
    ) -> None:
        self._bfloat16 = bfloat16_sendrecv
        self._recv_seconds, self._soft, self._spread = recv_seconds, soft_placement, spread
        try:
            self._address = ClientAddress(target)
        except WeftError as error:
            raise error.at(caller_location()) from None

        def make_wire(name: str, on_message: Any, on_link_lost: Any) -> Any:
            bind = self._address.bind
            return open_endpoint(name, bind, key_file, secret, on_message, on_link_lost)

        try:
            self.master = Master(
                target, make_wire, cluster=cluster, connect_seconds=connect_seconds, whole=whole
            )
        except CommError as error:
            self._address.close()
            raise as_weft_error(error, f"wf.Session(target={target!r})").at(
                caller_location()
            ) from None
        except WeftError as error:
            self._address.close()
            raise error.at(caller_location()) from None

    def placed(self, step: IRGraph) -> Placement:
        """The step with a device for each op. Errors as placing has."""
        devices = self._devices(step)
        made = place(
            tie_sizes(step),
            devices,
            soft=self._soft,
            spread=self._spread,
            held=self.master.state,
        )
        self.master.state |= made.state
        return made

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
        *,
        sized: bool = True,
    ) -> ClusterStep:
        """A step definition on the cluster. Errors as placing and partitioning have;
        UnsupportedError for Python functions, and, if feeds have open sizes, for branches and loops
        over several tasks, where a size is not in the frame that needs it."""
        made = self._partition(self.placed(step))
        if not sized and any(op.name in DATAFLOW for p in made.parts for op in p.graph.walk()):
            raise UnsupportedError("branches and loops over several tasks need sizes")
        return ClusterStep(
            self.master,
            graph.name,
            parts_of(made.parts, state_keys(graph)),
            result_types(step),
            control_flow="auto" if control_flow == "native" else control_flow,
            pipeline=pipeline,
            recv_seconds=self._recv_seconds,
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
        step = pruned(graph, values, feeds, done)
        made = self.step(graph, step, control_flow, pipeline)
        return StepDefinition(made, len(step.ops), time.perf_counter() - begun)

    def open(
        self,
        graph: Graph,
        values: Sequence[Value | None],
        feeds: Mapping[Value, Any],
        control_flow: str,
        pipeline: str,
    ) -> StepDefinition:
        """A step definition for these fetches and feeds of any sizes, which the tasks have taken.
        Errors as `step`, and as the tasks have."""
        begun = time.perf_counter()
        step = pruned(graph, values, feeds, sized=False)
        made = self.step(graph, step, control_flow, pipeline, sized=False)
        made.prepare()
        return StepDefinition(made, len(step.ops), time.perf_counter() - begun)

    def explain(self, graph: Graph, step: IRGraph) -> str:
        """Where each op of a step runs and why, and what goes between tasks."""
        placed = self.placed(step)
        made = self._partition(placed)
        head = f"step of '{graph.name}': {len(step.ops)} ops, {len(made.parts)} parts"
        return "\n".join([head, explain_placement(placed), *_rounded(made)])

    def _partition(self, placed: Placement) -> Partitioned:
        return partition(placed.graph, self.master.devices[0], bfloat16=self._bfloat16)

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


def _rounded(made: Partitioned) -> Iterator[str]:
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
    math_mode: MathMode,
    cluster: Cluster,
    key_file: str | os.PathLike[str] | None,
    secret: Secret | None,
    recv_seconds: float | None,
    connect_seconds: float,
    soft_placement: bool,
    spread: bool,
    bfloat16_sendrecv: bool,
    deterministic: bool,
) -> Remote | None:
    """The master of a session, None for this process. InvalidArgumentError for options that the
    target does not have."""
    if target:
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
        return Remote(
            target,
            cluster=cluster,
            key_file=key_file,
            secret=secret,
            connect_seconds=connect_seconds,
            recv_seconds=recv_seconds,
            soft_placement=soft_placement,
            spread=spread,
            bfloat16_sendrecv=bfloat16_sendrecv,
        )
    given = (cluster, key_file, secret, recv_seconds)
    if spread or bfloat16_sendrecv or any(option is not None for option in given):
        raise InvalidArgumentError(
            "wf.Session: cluster=, key_file=, secret=, recv_seconds=, spread= and "
            "bfloat16_sendrecv= are for sessions on a cluster",
            hint="give the address of a task: wf.Session('tcp://host:port')",
            location=caller_location(),
        )
    return None
