"""Nodes of a lowered graph: one for each op of control flow, one for each static region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from weft.codegen.stacks import leaves_stacks
from weft.ir.cost.thresholds import EXPENSIVE_NS
from weft.ir.cost.work import is_wide, nanoseconds
from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.spec import int_attr
from weft.ir.types import TensorType, TokenType, Type
from weft.passes.control.dataflow_regions import (
    Frames,
    Region,
    control_operands,
    data_operands,
    given_inputs,
    handles_as_nodes,
    is_handle,
    plan_regions,
    split_regions,
    users,
)
from weft.passes.manager import Pass, PassOptions
from weft.passes.pipelines import STANDARD
from weft.passes.sizes import is_symbolic
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.host_dispatch import (
    Resources,
    Start,
    at_once,
    host_start,
    step_start,
    waited_for,
)
from weft.runtime.dataflow.host_ops.rows import READ_ONLY
from weft.runtime.dataflow.nodes import Frame, Node, Port
from weft.runtime.dataflow.regions import (
    LoanedRegion,
    RegionDevice,
    RemoteRegion,
    Where,
    landing,
    large_results,
    on_host,
    sent_values,
    stays_far,
)
from weft.runtime.dataflow.state import ExternalCell
from weft.runtime.dynamic.door import with_threads
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.native.pool import POOL
from weft.runtime.native.size_plan import NativeSizedStep, native_step_of_any_size
from weft.runtime.recorder import AnyRecorder
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import Step

Array = np.ndarray[Any, Any]
_KINDS = {
    "switch": at.SWITCH, "merge": at.MERGE, "enter": at.ENTER, "exit": at.EXIT,
    "next_iteration": at.NEXT_ITERATION, "loop_cond": at.IDENTITY,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostOp:
    """The work of Python for a node. types: of its inputs. op: to name in errors. results: of what
    types. reads_only: it neither writes to its inputs nor keeps them. keeps: it does not write to
    them, but may keep them. dear: it may run on another thread, and is worth that. now: all that
    `start` does, and it waits for nothing. elsewhere: it takes values that lie on a device as they
    are. region: the number of the region that it runs, from 1; recorded: the same with a recorder
    of its kernels. takes: by number of an input, the feed whose own memory it is to be given."""

    start: Start
    types: tuple[TensorType, ...]
    op: Operation
    results: tuple[Type, ...]
    reads_only: bool = False
    keeps: bool = False
    dear: bool = False
    now: Callable[[list[Array]], list[Any]] | None = None
    elsewhere: bool = False
    region: int = 0
    recorded: Callable[[AnyRecorder], HostOp] | None = None
    takes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegionNote:
    """A region in words. python: why Python runs it, if it does on this processor."""

    text: str
    python: str = ""


@dataclass
class Built:
    """Nodes and frames of a graph, what its host nodes and plans are by number, and which results
    of the graph are fetched (None: a token). compiled: all regions, those that Python runs too;
    notes: on each of them.
    open_feeds: of each feed whether it comes as something with sizes. elsewhere: the device that
    the regions run on, if it is not this processor; brought: of each feed whether it goes there.
    donated: by fetch that is computed in the memory of a feed, the number of that; taken: the feeds
    that regions write to, also where they lie on another device."""

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=lambda: [Frame(-1)])
    hosts: list[HostOp] = field(default_factory=list)
    plans: list[Executable] = field(default_factory=list)
    compiled: list[Executable | NativeSizedStep | RemoteRegion] = field(default_factory=list)
    notes: list[RegionNote] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    fetches: list[TensorType | None] = field(default_factory=list)
    op_of: dict[Node, Operation] = field(default_factory=dict)
    region_of: dict[Node, Region] = field(default_factory=dict)
    frame_names: list[str] = field(default_factory=lambda: [""])
    feed_names: tuple[str, ...] = ()
    open_feeds: tuple[bool, ...] = ()
    brought: tuple[bool, ...] = ()
    elsewhere: RegionDevice | None = None
    labels: dict[Node, str] = field(default_factory=dict)  # of enters, for messages
    unit: ExternalCell = field(default_factory=ExternalCell)
    constants: list[tuple[ExternalCell, Array]] = field(default_factory=list)
    wide: list[bool] = field(default_factory=list)
    donated: dict[int, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    threads: int = 1
    deterministic: bool = False


def build(
    graph: Graph,
    variables: Mapping[str, VariableState],
    resources: Resources,
    passes: Sequence[Pass] = STANDARD,
    threads: int | None = None,
    deterministic: bool = False,
    elsewhere: RegionDevice | None = None,
    options: PassOptions | None = None,
    donated: Sequence[int] = (),
) -> Built:
    """The nodes of a lowered graph. Errors as `compile_graph` and `host_start`.

    deterministic: no node is to run beside another one. elsewhere: what compiles the regions for
    another device than this processor. options: of the passes over the regions. donated: feeds
    whose memory results may take.
    """
    options = options or PassOptions.from_environment()
    return _Builder(
        graph, variables, resources, passes, threads, deterministic, elsewhere, options, donated
    ).built


class _Builder:
    def __init__(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState],
        resources: Resources,
        passes: Sequence[Pass],
        threads: int | None,
        deterministic: bool,
        elsewhere: RegionDevice | None,
        options: PassOptions,
        donated: Sequence[int],
    ) -> None:
        most = POOL.limit if threads is None else min(threads, POOL.limit)
        self.built = Built(graph, threads=most, deterministic=deterministic, elsewhere=elsewhere)
        self.variables, self.resources, self.options = variables, resources, options
        self.threads, self.name, self.passes = threads, graph.name, passes
        self.built.feed_names = tuple(graph.arg_names)
        self.ports: dict[Value, Port] = {}  # of tensors; of tokens: the node that gives them
        self.numbers: dict[Frames, int] = {(): 0}
        self.where = None if elsewhere is None else Where(graph)
        planned = plan_regions(graph, () if self.where is None else self.where.on_host)
        if self.where is not None:
            self.where.look_at(graph, planned.regions)
            self.built.brought = tuple(map(self.where.is_brought, graph.args))
        elif most > 1 and not deterministic:
            planned = split_regions(planned, users(graph))
        far = self.built.brought or (False,) * len(graph.args)
        self.built.open_feeds = tuple(
            b or (isinstance(a.type, TensorType) and not a.type.is_static)
            for a, b in zip(graph.args, far, strict=True)
        )
        self.sent = sent_values(graph)
        self.frames, self.partial, self.label = planned.frames, planned.partial, planned.label
        self.owner = owner = {op: region for region in planned.regions for op in region.ops}
        self.donated = {graph.args[i]: i for i in donated}
        self.users = users(graph) if donated else {}
        for number, arg in enumerate(graph.args):
            self.ports[arg] = self._add(Node(at.FEED, number=number)).out()
        placed = handles_as_nodes(graph)
        for op in _in_order(graph, owner):
            if isinstance(op, Region):
                self._region(op)
            elif is_handle(op):
                if op in placed:
                    self._handle(op)
            elif op.name == "constant":  # a string: others are in regions
                place = max((self.frames[v] for v in control_operands(op)), key=len, default=())
                self._constant(op, self._frame(place), self._after(control_operands(op)))
            elif op.name in _KINDS:
                self._control(op)
            else:
                self._host(op)
        for number, result in enumerate(graph.results):
            self._fetch(number, result)

    def _add(self, node: Node, op: Operation | None = None) -> Node:
        self.built.nodes.append(node)
        if op is not None:
            self.built.op_of[node] = op
        return node

    def _frame(self, place: Frames) -> int:
        return self.numbers[place]

    def _after(self, values: Sequence[Value]) -> list[Node | Port]:
        ports = [self.ports[v] for v in values]
        pairs = zip(ports, values, strict=True)
        whole = [p[1] == at.CONTROL or isinstance(v.type, TokenType) for p, v in pairs]
        found = [p[0] if w else p for p, w in zip(ports, whole, strict=True)]
        return list(dict.fromkeys(found))

    def _fetch(self, number: int, result: Value) -> None:
        is_tensor = isinstance(result.type, TensorType)
        self.built.fetches.append(result.type if isinstance(result.type, TensorType) else None)
        if is_tensor:
            self._add(Node(at.FETCH, inputs=[self.ports[result]], outputs=0, number=number))

    # ---------------------------------------------------------------------------------- control ops
    def _control(self, op: Operation) -> None:
        given = op.operands[:1] if op.name == "next_iteration" else op.operands
        place = self.frames[op.operands[0]]
        node = Node(
            _KINDS[op.name], self._frame(place), [self.ports[v] for v in given],
            self._after(op.control), len(op.results),
        )  # fmt: skip
        if op.name == "enter":
            node.target = self._inner(op, place)
            node.constant = bool(op.attrs["constant"])
            self.built.labels[node] = self.label(op.result)
        if op.name == "next_iteration":
            node.target = self.ports[op.operands[1]][0]
        self._add(node, op)
        self.ports.update((r, node.out(i)) for i, r in enumerate(op.results))

    def _inner(self, op: Operation, place: Frames) -> int:
        """The number of the frame that an enter opens."""
        inner = (*place, str(op.attrs["frame"]))
        if inner not in self.numbers:
            self.numbers[inner] = len(self.built.frames)
            parallel = int_attr(op.attrs, "parallel_iterations")
            self.built.frames.append(Frame(self._frame(place), parallel, self.partial))
            self.built.frame_names.append("/".join(inner))
        return self.numbers[inner]

    def _handle(self, op: Operation) -> None:
        """What stands for a handle on its way through switches and frames: something alive."""
        places = [self.frames[v] for v in op.control]
        node = Node(
            at.CONSTANT, self._frame(max(places, key=len, default=())), (),
            self._after(op.control), value=self.built.unit.address,
        )  # fmt: skip
        self.ports[op.result] = self._add(node, op).out()

    def _constant(self, op: Operation, frame: int, after: Sequence[Node | Port]) -> None:
        """A constant that is no part of a plan."""
        cell, value = ExternalCell(), evaluate_op("constant", [], op.attrs)[0]
        cell.hold(value)
        self.built.constants.append((cell, value))
        node = Node(at.CONSTANT, frame, (), after, value=cell.address)
        self.ports[op.result] = self._add(node, op).out()

    # ------------------------------------------------------------------------------------ host ops
    def _host(self, op: Operation) -> None:
        start, types = host_start(op, self.resources, self.variables)
        if self.threads is not None:
            start = with_threads(start, self.threads)
        given, control = data_operands(op), control_operands(op)
        places = [self.frames[v] for v in (*given, *control)]
        node = Node(
            at.HOST, self._frame(max(places, key=len, default=())), [self.ports[v] for v in given],
            self._after(control), len(op.results), len(self.built.hosts),
            takes_dead=op.name == "send",
        )  # fmt: skip
        gives = tuple(r.type for r in op.results)
        reads_only, keeps = op.name in READ_ONLY, op.name == "send"
        far = False
        if self.built.elsewhere is not None and self.where is not None:
            far = stays_far(op)
            if op.name == "recv":
                there = self.where.is_brought(op.result)
                bring, name = self.built.elsewhere.bring, f"'{op.attrs['tensor']}'"
                start = landing(start, partial(bring, what=name) if there else on_host)
        self.built.hosts.append(HostOp(start, types, op, gives, reads_only, keeps, elsewhere=far))
        self._add(node, op)
        self.ports.update((r, node.out(i)) for i, r in enumerate(op.results))

    # -------------------------------------------------------------------------------------- regions
    def _region(self, region: Region) -> None:
        if all(op.name == "constant" for op in region.ops):
            after = self._after(region.after)
            for op in region.ops:
                self._constant(op, self._frame(region.frames), after)
            return
        inputs = [self.ports[v] for v in region.inputs]
        node = Node(
            at.PLAN, self._frame(region.frames), inputs, self._after(region.after),
            len(region.results), len(self.built.plans),
        )  # fmt: skip
        host = self._compiled(region)
        if host is not None:
            node.kind, node.number = at.HOST, len(self.built.hosts)
            self.built.hosts.append(host)
        elif self._beside(region):
            node.kind = at.DEAR
        self.built.region_of[self._add(node, region.ops[-1])] = region
        for op in region.ops:
            for r in op.results:
                self.ports[r] = node.out(at.CONTROL)
        self.ports.update((r, node.out(i)) for i, r in enumerate(region.results))

    def _lent(self, region: Region, made: Executable) -> dict[int, str]:
        """The large results that are sent, if they can be computed anywhere."""
        lent = large_results(region, self.sent)
        if made.plan.donated or (lent and leaves_stacks(region.graph(self.name).block)):
            return {}
        return lent

    def _beside(self, region: Region) -> bool:
        """Whether it may run on a thread of its own, and is worth that."""
        alone = self.built.deterministic or self.built.threads == 1
        # a variable is read where it lies, but for what leaves the region
        ops = [op for op in region.ops if op.name != "read" or op.result in region.results]
        return not alone and nanoseconds(ops) >= EXPENSIVE_NS

    def _compiled(self, region: Region) -> HostOp | None:
        """Compile a region, at once if all its sizes are known. None: a plan that the native loop
        runs; else what Python does for it."""
        graph, built = region.graph(self.name), self.built
        if built.elsewhere is not None and not self._is_steering(region):
            assert self.where is not None
            back, feeds = self.where.read_on_host(region.results), self._taken(region)
            there = built.elsewhere.region(graph, self.variables, back, self.options, [*feeds])
            built.compiled.append(there)
            built.notes.append(RegionNote(there.describe()))
            # nobody writes to a value on a device once it is there: others may read the results
            takes = {i: feeds[i] for i in there.taken}
            built.taken.update(takes.values())
            made = self._region_op(region, there.start, there.recorded, elsewhere=True)
            return replace(made, takes=takes)
        if is_symbolic(graph.block):
            lazy = native_step_of_any_size(
                graph, self.variables, self.threads, self.passes, self.options
            )
            built.compiled.append(lazy)
            note = RegionNote("compiled for the sizes that come", "its sizes depend on values")
            built.notes.append(note)
            return self._by_python(region, lazy)
        compiled = partial(
            compile_graph, graph, self.variables, name=self.name, passes=self.passes,
            threads=self.threads, options=self.options.for_part("region"),
        )  # fmt: skip
        taken, plan = self._taken(region), None
        while taken and plan is None:
            plan = compiled(donated=[*taken])
            last = self._handed_on(region, plan)
            if len(last) < len(plan.plan.donated) or not last:  # others read it, too
                plan = None
            taken = {i: taken[i] for i in last.values()}
        if plan is None:
            plan = compiled(donated=given_inputs(region))
        built.compiled.append(plan)
        size = plan.summary()
        text = f"{size.kernels} kernels, {size.arena_bytes:,} bytes in between"
        lent = self._lent(region, plan)
        why = "large results of it are sent" if lent else "it uses variables"
        why = "it takes the memory of arguments" if taken else why
        built.notes.append(RegionNote(text, why))
        if lent:
            loan = LoanedRegion(plan, region, lent)
            return self._region_op(region, loan.start, loan.recorded, dear=self._beside(region))
        if taken:
            fetches = {v: i for i, v in enumerate(built.graph.results)}
            for number, given in plan.plan.donated.items():
                built.donated[fetches[region.results[number]]] = taken[given]
            built.taken.update(taken.values())
            return replace(self._by_python(region, plan), takes=taken)
        if plan.uses_state:  # whose locks are Python's
            return self._by_python(region, plan)
        built.plans.append(plan)
        built.regions.append(region)
        built.wide.append(plan.plan.cut and is_wide(region.ops))
        return None

    def _taken(self, region: Region) -> dict[int, int]:
        """The inputs of a region that are donated feeds of which it is the last reader, with the
        feeds' numbers. What a switch or a loop takes has other names after it, and is none; what is
        sent, the other device may read at any time."""
        given = [i for i, v in enumerate(region.inputs) if v in self.donated]
        if region.frames or not given:
            return {}
        done: set[Operation | Region | None] = {region}  # when it begins, and itself
        todo = _before(region, self.owner)
        while todo:
            item = todo.pop()
            if item not in done:
                done.add(item)
                todo += _before(item, self.owner)
        found: dict[int, int] = {}
        for i in given:
            ops = self.users[region.inputs[i]]
            passed_on = any(op is not None and op.name in (*_KINDS, "send") for op in ops)
            if not passed_on and done.issuperset(op and self.owner.get(op, op) for op in ops):
                found[i] = self.donated[region.inputs[i]]
        return found

    def _handed_on(self, region: Region, plan: Executable) -> dict[int, int]:
        """What a region computes in the memory of inputs, if it is a result of the step that
        nothing else reads: the result's number and the input's."""
        pairs = plan.plan.donated.items()
        return {r: i for r, i in pairs if self.users.get(region.results[r]) == [None]}

    def _by_python(self, region: Region, made: Step) -> HostOp:
        """A region that Python runs."""
        keeps = leaves_stacks(region.graph(self.name).block)
        start = step_start(made, keeps=True) if keeps else at_once(made.run)
        return self._region_op(
            region, start, partial(step_start, made, keeps=keeps), dear=self._beside(region),
            now=None if keeps else made.run,
        )  # fmt: skip

    def _region_op(
        self,
        region: Region,
        start: Start,
        recorded: Callable[[AnyRecorder], Start],
        *,
        dear: bool = False,
        now: Callable[[list[Array]], list[Any]] | None = None,
        elsewhere: bool = False,
    ) -> HostOp:
        """The region that was compiled last as a node of the host. recorded: what starts it with a
        recorder."""
        types, gives = _types(region)
        made = HostOp(
            start, types, region.ops[-1], gives, reads_only=True, dear=dear, now=now,
            elsewhere=elsewhere, region=len(self.built.compiled),
        )  # fmt: skip

        def with_recorder(recorder: AnyRecorder) -> HostOp:
            begin = recorded(recorder)
            return replace(made, start=begin, now=None if now is None else waited_for(begin))

        return replace(made, recorded=with_recorder)

    def _is_steering(self, region: Region) -> bool:
        return self.where is not None and region.ops[0] in self.where.on_host


def _types(region: Region) -> tuple[tuple[TensorType, ...], tuple[Type, ...]]:
    """Of the inputs that are tensors, and of the results."""
    types = tuple(v.type for v in region.inputs if isinstance(v.type, TensorType))
    return types, tuple(r.type for r in region.results)


def _in_order(graph: Graph, owner: dict[Operation, Region]) -> list[Operation | Region]:
    """Ops outside of regions, and regions, each after all that it reads. InternalError if a region
    needs what needs it."""
    out: list[Operation | Region] = []
    done: set[Operation | Region] = set()
    begun: set[Operation | Region] = set()

    def visit(item: Operation | Region) -> None:
        stack: list[tuple[Operation | Region, bool]] = [(item, False)]
        while stack:
            current, ready = stack.pop()
            if current in done:
                continue
            if ready:
                done.add(current)
                out.append(current)
                continue
            if current in begun:
                op = current if isinstance(current, Operation) else current.ops[0]
                raise InternalError(
                    f"op '{op.name}' is in a part of the graph that waits for itself",
                    location=op.locations,
                )
            begun.add(current)
            stack.append((current, True))
            stack.extend((before, False) for before in _before(current, owner))

    for op in graph.ops:
        visit(owner.get(op, op))
    return out


def _before(item: Operation | Region, owner: dict[Operation, Region]) -> list[Operation | Region]:
    values = (
        [*data_operands(item), *control_operands(item)]
        if isinstance(item, Operation)
        else [*item.inputs, *item.after]
    )
    found = [owner.get(v.op, v.op) for v in values if v.op is not None]
    return [before for before in found if before is not item]
