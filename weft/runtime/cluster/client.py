"""`Client`: a program's side of a cluster. It places a step's graph on the tasks, cuts it, and
makes the step that runs the parts.

Sessions on a cluster have one each, compiled functions (`wf.compile(cluster=)`) share one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weft.comm.errors import CommError
from weft.ir.analysis.effects import state_key
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import bfloat16
from weft.ir.errors import UnsupportedError, WeftError
from weft.ir.graph import Graph
from weft.ir.locations import caller_location
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.program import Program
from weft.ir.types import HandleType, RefType
from weft.passes.manager import QUIET, AnyPass, Pass, PassOptions, PassReport, run_pipeline
from weft.passes.partition.partition import partition_pass
from weft.passes.pipelines import PIPELINES, before_placement
from weft.passes.placement import Device, Placement, PlacePass, place
from weft.passes.placement.automatic import Machine, place_where_it_wins
from weft.passes.placement.report import explain_placement
from weft.passes.sizes import tie_sizes
from weft.runtime.cluster.definition import TaskStep, parts_of, result_types
from weft.runtime.cluster.master import Master, ask_stats
from weft.runtime.cluster.spec import Cluster
from weft.runtime.cluster.transport import ClientAddress, as_weft_error, open_endpoint
from weft.runtime.resources.store import Key


class Client:
    """The connection to the tasks of a cluster. who: what makes it, for errors."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        soft_placement: bool = False,
        whole: bool = True,
        who: str = "wf.Session(target={!r})",
    ) -> None:
        self._cluster, self._soft = cluster, soft_placement
        self._serve: frozenset[str] | None = None
        self._cutting = threading.Lock()
        try:
            self._address = ClientAddress(cluster.target, who)
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
            raise as_weft_error(error, who.format(cluster.target)).at(caller_location()) from None
        except WeftError as error:
            self._address.close()
            raise error.at(caller_location()) from None

    def cut(
        self,
        step: Graph,
        keys: Mapping[str, Key],
        pipeline: str = "standard",
        options: PassOptions = QUIET,
        begin: Iterable[Pass] = (),
    ) -> tuple[Placement, Program, Sequence[PassReport]]:
        """The step with a device for each op, a part for each device, and what the passes did.
        keys: under which tasks hold its variables and resources, by their names in the graph.
        pipeline: that of the parts, of which the whole step goes through some passes first.
        options: of the passes. begin: passes that come first of all. Errors as placing and
        partitioning have. Steps are cut one at a time: each has to see where those before it have
        put the variables that it shares with them."""
        named = _state_of(step, keys)
        with self._cutting:
            devices = self._devices(step)

            def on_devices(graph: Graph) -> Placement:
                spread, state, soft = self._cluster.spread, self.master.state, self._soft
                held = {name: state[key] for name, key in named.items() if key in state}
                if spread is not None:
                    return place(graph, devices, soft=soft, spread=spread, held=held)
                there = self.master.tasks()
                tasks = {t.name: Machine(*t.machine) for t in there if t.machine is not None}
                return place_where_it_wins(
                    graph, devices, tasks, self._serving, soft=soft, held=held
                )

            placing = PlacePass(on_devices)
            cutting = partition_pass(self.master.devices[0], bfloat16=self.bfloat16)
            first = before_placement(PIPELINES[pipeline], step)
            passes: list[AnyPass] = [*begin, *first, tie_sizes, placing, cutting]
            made, reports = run_pipeline(Program.of(step), passes, options=options)
            placed = placing.placement
            assert placed is not None
            self.master.state |= {named[name]: device for name, device in placed.state.items()}
        return placed, made, reports

    def _serving(self) -> frozenset[str]:
        """The tasks that say that they have no program and no session of their own; asked once, so
        that a step that is cut again is cut as before."""
        if self._serve is None:
            told = ask_stats(self.master, look=False)
            found = {n: s["serves"] for n, s in told.items() if not isinstance(s, str)}
            serve = frozenset(name for name, serves in found.items() if serves)
            if len(found) < len(told):
                return serve  # one that does not say may say so later
            self._serve = serve
        return self._serve

    def _devices(self, step: Graph) -> list[Device]:
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
        name: str,
        step: Graph,
        keys: Mapping[str, Key],
        control_flow: str,
        pipeline: str = "standard",
        options: PassOptions = QUIET,
        *,
        sized: bool = True,
        begin: Iterable[Pass] = (),
    ) -> TaskStep:
        """A step definition on the cluster. keys, begin: as of `cut`. Errors as placing and
        partitioning have; UnsupportedError for Python functions, and, if feeds have open sizes, for
        branches and loops over several tasks, where a size is not in the frame that needs it."""
        _, made, _ = self.cut(step, keys, pipeline, options, begin)
        if not sized and any(op.name in DATAFLOW for p in made.parts for op in p.graph.walk()):
            raise UnsupportedError("branches and loops over several tasks need sizes")
        return TaskStep(
            self.master,
            name,
            parts_of(made.parts, keys),
            result_types(step),
            control_flow="auto" if control_flow == "native" else control_flow,
            pipeline=pipeline,
            recv_timeout=self._cluster.recv_timeout,
            # kept, they would hold every graph
            reports=lambda: self.cut(step, keys, pipeline, begin=begin)[2],
        )

    @property
    def bfloat16(self) -> bool:
        """Whether tensors go between tasks as bfloat16."""
        return self._cluster.bfloat16_sendrecv

    def placed(
        self, step: Graph, keys: Mapping[str, Key], pipeline: str, begin: Iterable[Pass] = ()
    ) -> Graph:
        """The whole step with a device for each op. keys, begin: as of `cut`."""
        return self.cut(step, keys, pipeline, begin=begin)[0].graph

    def explain(
        self,
        name: str,
        step: Graph,
        keys: Mapping[str, Key],
        pipeline: str = "standard",
        begin: Iterable[Pass] = (),
    ) -> str:
        """Where each op of a step runs and why, and what goes between tasks. keys, begin: as of
        `cut`."""
        placed, made, _ = self.cut(step, keys, pipeline, begin=begin)
        head = f"step of '{name}': {len(step.ops)} ops, {len(made.parts)} parts"
        return "\n".join([head, explain_placement(placed), *_sent(made), *_rounded(made)])

    def reset(self, containers: Any) -> None:
        """Clear containers on all tasks."""
        self.master.reset(containers)

    def stats(self) -> dict[str, Any]:
        """What each task counts."""
        return dict(ask_stats(self.master))

    def close(self) -> None:
        """Let the tasks forget this client."""
        self.master.close()
        self._address.close()


def _is_gpu(device: str) -> bool:
    return DeviceSpec.parse(device).kind == "gpu"


def _state_of(step: Graph, keys: Mapping[str, Key]) -> dict[str, tuple[str, Key]]:
    """The variables and objects of the host in a step, by what placement calls them: the kind of
    object, and the key. keys: by their names in the graph."""
    found: dict[str, tuple[str, Key]] = {}
    for op in step.walk():
        kind = op.results[0].type if op.results and not op.operands else None
        if isinstance(kind, (RefType, HandleType)):
            of = kind.kind if isinstance(kind, HandleType) else ""
            found[str(state_key(op.results[0]))] = of, keys[str(op.attrs["name"])]
    return found


def _sent(made: Program) -> Iterator[str]:
    """What goes between tasks: the parts make small constants themselves."""
    pairs: dict[str, list[int]] = {}
    for edge in made.edges:
        pairs.setdefault(f"{edge.src} -> {edge.dst}", []).append(edge.nbytes or 0)
    total = sum(map(sum, pairs.values()))
    yield f"\nsent: {len(made.edges)} tensors, {total:,} bytes (in loops, of one iteration)"
    for pair, sizes in pairs.items():
        yield f"  {pair}: {len(sizes)}, {sum(sizes):,} bytes"


def _rounded(made: Program) -> Iterator[str]:
    """What goes between tasks as bfloat16."""
    edges = [edge for edge in made.edges if edge.type.dtype is bfloat16]
    if edges:
        yield f"\n{len(edges)} messages in bfloat16"
    for edge in edges:
        size = "" if edge.nbytes is None else f", {edge.nbytes:,} bytes"
        yield f"  {edge.tensor}  {edge.src} -> {edge.dst}: {edge.type}{size}"
