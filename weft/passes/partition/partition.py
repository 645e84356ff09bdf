"""Cut a placed graph into one graph for each device, joined by `send` and `recv`; a device that
does so in a frame counts its iterations itself.

Before::

    %0 = matmul(%x, %w) : f32[4,3] device("/job:worker/task:0/cpu:0")
    %1 = sum(%0) : f32[] device("/job:ps/task:0/cpu:0")

After, on the worker and on the ps::

    %0 = matmul(%x, %w) : f32[4,3]
    %1 = send(%0) {key=0, ...} : token

    %0 = recv() {key=0, dtype=f32, shape=[4, 3], ...} : f32[4,3]
    %1 = sum(%0) : f32[]

A tensor goes to each device that needs it once. Branches and loops on one device stay native there;
those that span devices are Switch, Merge and frames (`device_assignment.py`), and every device that
takes part in a loop runs a loop of its own around its share. Dead values are sent as dead. All that
orders effects is kept: a control operand from elsewhere becomes a message without elements. The
scheme is the paper's (sections 3.3 and 3.4; Yu et al. 2018, section 4.4).

`Cut` holds the parts under construction: who has which value, and the messages that bring the
others. A value that a cast has made wider goes as what was cast, and is cast again where it is
needed: the same bits in fewer bytes. Others go as they are, unless the user has chosen that float32
goes from task to task as bfloat16 (Abadi et al. 2015, section 5.5): rounded to nearest even by a
cast where it is made, widened by one where it is needed. Both are ops like others, so the text of
the parts says it, and the interpreter gives the same bits. A large tensor is received as late as it
can be (`wait_for`), so that it is not in memory for long: the first op that needs it mostly needs
something else, too; the tensor is asked for when the last of that begins to be computed, so the
transfer still runs beside it.

Each device that sends or receives in a frame has a counter of its iterations there. Where the
loop's predicate is computed elsewhere, it is received in each iteration, and the counter goes round
as long as it is true; so each device learns by itself that the loop is over (Yu et al. 2018,
section 4.4). The counter is the iteration number by which messages are told apart, and starts if
and only if the loop does.

A message in a frame is sent in every iteration, the last one too, in which only the test runs; one
that belongs to the body (it is live if and only if the predicate is true) is not sent in that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import lru_cache

import numpy as np

from weft.ir.analysis.deadness import TRUE, Deadness, checked
from weft.ir.analysis.frames import Frame, Frames
from weft.ir.cost.thresholds import CONTROL_BYTES, LATE_BYTES
from weft.ir.dataclass import dataclass
from weft.ir.device import LOCAL_TASK, DeviceSpec
from weft.ir.dtypes import bfloat16, float32
from weft.ir.errors import InternalError, InvalidArgumentError, PassError, UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops.builder import make_op
from weft.ir.ops.control_flow import COMMUNICATION, DATAFLOW
from weft.ir.program import Part, Program
from weft.ir.spec import AttrValue, ConstArray, int_attr
from weft.ir.types import TensorType, Type
from weft.passes.manager import ProgramPass
from weft.passes.partition.device_assignment import (
    Homes,
    assign,
    device_names,
    lower_spanning,
    spans,
)
from weft.passes.simplify.cse_dce import dce

_ZERO, _ONE = (ConstArray(np.array(n, np.int64)) for n in (0, 1))


@dataclass(eq=False)
class ControlLoop:
    """One device's part in a frame. outer: the counters of the frames around, in it; count: its own
    counter; inside: the same where the loop goes on (None: the predicate is not there yet)."""

    outer: list[Value]
    count: Value
    inside: Value | None = None


class Loops:
    """The control loops of all parts."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self._made: dict[tuple[PartBuilder, Frame], ControlLoop] = {}
        self._decided: set[Frame] = set()

    def counters(self, part: PartBuilder, frame: Frame, condition: int) -> tuple[list[Value], bool]:
        """The iteration numbers of a message in `frame`, and whether it is alive whenever all of
        them are. condition: when it is alive."""
        if frame.parent is None:
            return [], condition == TRUE
        loop = self._loop(part, frame)
        own = self._own(loop, frame, condition)
        return [*loop.outer, own or loop.count], own is not None

    def _own(self, loop: ControlLoop, frame: Frame, condition: int) -> Value | None:
        """Which of a loop's counters is alive under a condition; None if neither is."""
        base, goes_on = self._conditions(frame)
        if condition == base:
            return loop.count
        if condition == goes_on and frame in self._decided:
            assert loop.inside is not None
            return loop.inside
        return None

    def _conditions(self, frame: Frame) -> tuple[int, int]:
        """When an iteration runs at all, and when it runs the body."""
        deadness = self.cut.deadness
        base = deadness.of_value[frame.merges[0].results[0]]
        predicate = deadness.predicate(frame.conds[0].result)
        assert predicate is not None
        return base, deadness.conditions.both(base, predicate)

    def decided(self, cond: Operation) -> None:
        """The predicate of a frame has been emitted."""
        frame = self.cut.frames.of_op[cond]
        self._decided.add(frame)
        for (part, known), loop in list(self._made.items()):
            if known is frame:
                self._close(part, frame, loop)

    def _loop(self, part: PartBuilder, frame: Frame) -> ControlLoop:
        found = self._made.get((part, frame))
        if found is not None:
            return found
        self._check(frame)
        cut, around = self.cut, frame.parent
        start = frame.merges[0].operands[0].op
        assert around is not None
        assert start is not None
        where = start.locations
        after = self._start(part, around, start)
        (zero,) = cut.emit(part, "constant", (), {"value": _ZERO}, around, where, after)
        outer: list[Value] = []
        if around.parent is not None:
            surrounding = self._loop(part, around)
            outer = [
                self._enter(part, frame, v, constant=True)
                for v in (*surrounding.outer, surrounding.count)
            ]
        entered = self._enter(part, frame, zero, constant=False)
        count, _ = cut.emit(part, "merge", [entered], {"loop": True}, frame, where)
        made = self._made[part, frame] = ControlLoop(outer, count)
        if frame in self._decided:
            self._close(part, frame, made)
        return made

    def _start(self, part: PartBuilder, around: Frame, start: Operation) -> list[Value]:
        """What the counter's zero comes after: alive if and only if the loop begins."""
        cut, condition = self.cut, self.cut.deadness.of_op[start]
        if around.parent is not None:
            own = self._own(self._loop(part, around), around, condition)
            if own is not None:
                return [own]
        elif condition == TRUE:
            return []
        home = cut.homes[start]
        assert home is not None
        if home == part.device:
            return cut.inputs(part, start)
        return [cut.entered(cut.part(home), part, start)]

    def _enter(self, part: PartBuilder, frame: Frame, value: Value, *, constant: bool) -> Value:
        attrs: dict[str, AttrValue] = {
            "frame": frame.name,
            "constant": constant,
            "parallel_iterations": frame.parallel_iterations,
        }
        where = frame.enters[0].locations
        return self.cut.emit(part, "enter", [value], attrs, frame, where)[0]

    def _close(self, part: PartBuilder, frame: Frame, loop: ControlLoop) -> None:
        """Count on as long as the predicate is true."""
        cond = frame.conds[0]
        going, where = self.cut.value(part, cond.result), cond.locations
        emit = self.cut.emit
        _, loop.inside = emit(part, "switch", [loop.count, going], {}, frame, where)
        (one,) = emit(part, "constant", (), {"value": _ONE}, frame, where, [loop.inside])
        (following,) = emit(part, "add", [loop.inside, one], {}, frame, where)
        emit(part, "next_iteration", [following, loop.count], {}, frame, where)

    def _check(self, frame: Frame) -> None:
        """Refuse loops that were written by hand and whose iterations are not one predicate's."""
        deadness = self.cut.deadness
        why = None
        if len(frame.conds) != 1 or not frame.merges:
            why = "it has no loop_cond that says whether it goes on"
        elif deadness.predicate(frame.conds[0].result) is None:
            why = "nothing is switched by its loop_cond"
        else:
            base, goes_on = self._conditions(frame)
            if not deadness.is_regular(frame) or deadness.of_op[frame.conds[0]] != base:
                why = "not all that enters it or goes round in it is alive together"
            elif any(deadness.of_op[n] != goes_on for n in frame.nexts.values()):
                why = "it goes on by something else than its loop_cond"
        if why is not None:
            raise UnsupportedError(
                f"{frame} is a loop over several devices, but {why}",
                hint="use wf.while_loop, or put all of the loop on one device",
                location=frame.enters[0].locations,
            )


def narrower(cut: Cut, value: Value) -> Value | None:
    """What `value` is a wider copy of, if that is made on the same device, and alive when it is."""
    op = value.op
    if op is None or op.name != "astype" or op.control:
        return None
    source, made = op.operands[0], value.type
    if not isinstance(source.type, TensorType) or not isinstance(made, TensorType):
        return None
    if source.op is None or cut.homes[source.op] != cut.homes[op]:
        return None
    together = (
        cut.frames.of_value[source] is cut.frames.of_value[value]
        and cut.deadness.of_value[source] == cut.deadness.of_value[value]
    )
    return source if together and _size(source.type) < _size(made) else None


def goes_as_bfloat16(kind: Type, src: str, dst: str) -> bool:
    """Whether a value goes as bfloat16, where that is chosen: float32 that is no scalar, from task
    to task."""
    if not isinstance(kind, TensorType):
        return False
    return kind.dtype is float32 and bool(kind.shape) and _task(src) != _task(dst)


def _size(kind: TensorType) -> int:
    return kind.dtype.numpy.itemsize


@lru_cache(4096)
def _task(device: str) -> str:
    return DeviceSpec.parse(device).task_name


def wait_for(cut: Cut, part: PartBuilder, value: Value, reader: Operation) -> tuple[Value, ...]:
    """What to wait for before `value` is received for `reader` on the device of `part`."""
    kind = value.type
    if not (isinstance(kind, TensorType) and kind.is_static and kind.nbytes >= LATE_BYTES):
        return ()
    others = [v for v in reader.operands if v is not value and _is_computed(cut, part, v)]
    last = max(others, key=lambda v: cut.frames.numbers[v], default=None)
    if last is None or last.op is None:
        return ()
    frame = cut.frames.of_value[value]
    given = [
        v
        for v in last.op.operands
        if _is_computed(cut, part, v)
        and cut.frames.of_value[v] is frame
        and cut.deadness.of_value[v] == TRUE
    ]
    begins = max(given, key=lambda v: cut.frames.numbers[v], default=None)
    return () if begins is None else (part.values[begins],)


def _is_computed(cut: Cut, part: PartBuilder, value: Value) -> bool:
    """Whether the part makes a tensor itself, and has done so."""
    made = value.op
    here = made is not None and cut.homes[made] == part.device and value in part.values
    return here and isinstance(value.type, TensorType)


_EMPTY = ConstArray(np.zeros(0, np.bool_))


@dataclass(eq=False)
class PartBuilder:
    """The graph of one device so far. values: what it has of the whole graph's values, `after`:
    what comes after those of which it has no data, `after_all` after several, `rounded`: what
    it sends as bfloat16; by the whole graph's.
    feeds: its arguments."""

    device: str
    ops: list[Operation] = field(default_factory=list)
    args: list[Value] = field(default_factory=list)
    feeds: list[int] = field(default_factory=list)
    values: dict[Value, Value] = field(default_factory=dict)
    after: dict[Value, Value] = field(default_factory=dict)
    after_all: dict[tuple[Value, ...], Value] = field(default_factory=dict)
    rounded: dict[Value, Value] = field(default_factory=dict)
    fetches: list[tuple[int, Value]] = field(default_factory=list)


class Cut:
    """All parts, and what is known of the whole graph. homes: the device of each of its ops."""

    def __init__(
        self,
        graph: Graph,
        frames: Frames,
        deadness: Deadness,
        homes: Homes,
        default: str,
        stage: str,
        bfloat16: bool,
    ) -> None:
        self._bfloat16 = bfloat16  # whether float32 goes from task to task in that
        self.graph, self.frames, self.deadness = graph, frames, deadness
        self.stage = stage  # of a part that has nothing to do with others
        self.homes, self.default = homes, default
        self.parts: dict[str, PartBuilder] = {}
        self._messages = 0  # so far
        self.loops = Loops(self)
        self._depth: dict[Value, int] = {}  # of a part's value: messages up to it, at most
        self._frame_depth: dict[Frame, int] = {}
        self._live: dict[int, int] = {TRUE: 0}
        self._wanted = {
            (v, home) for op, home in homes.items() if home for v in op.operands
        }  # as data

    def part(self, device: str) -> PartBuilder:
        """The part of a device."""
        if device not in self.parts:
            self.parts[device] = PartBuilder(device)
        return self.parts[device]

    # -- values -----------------------------------------------------------------------------------

    def value(self, part: PartBuilder, value: Value, reader: Operation | None = None) -> Value:
        """A value of the whole graph in a part: its own, a copy of what is cheap, or received.
        reader: the op of the whole graph that needs it first."""
        known = part.values.get(value)
        if known is not None:
            return known
        op = value.op
        if op is None:
            part.values[value] = made = Value(value.type, None, len(part.args))
            part.args.append(made)
            part.feeds.append(value.index)
            return made
        home = self.homes[op]
        if home is None:
            operands = [self.value(part, v, op) for v in op.operands]
            self.clone(part, op, operands, self.controls(part, op))
            return part.values[value]
        if home == part.device:
            raise InternalError(f"op '{op.name}' is used before it is made", location=op.locations)
        if not isinstance(value.type, TensorType):
            raise _stays(value, home, part.device, reader)
        self._counters(self.part(home), part, value)
        if value not in part.values:
            part.values[value] = self._brought(part, home, value, reader)
        return part.values[value]

    def _brought(
        self, part: PartBuilder, home: str, value: Value, reader: Operation | None
    ) -> Value:
        """A value of another device: received, or cast of what is."""
        op, narrow, frame = value.op, narrower(self, value), self.frames.of_value[value]
        assert op is not None
        if narrow is not None:
            given = self.value(part, narrow, reader)
            return self.emit(part, "astype", [given], dict(op.attrs), frame, op.locations)[0]
        made = self.message(self.part(home), part, value, reader)
        if made.type == value.type:
            return made
        attrs: dict[str, AttrValue] = {"dtype": float32}
        return self.emit(part, "astype", [made], attrs, frame, op.locations)[0]

    def _rounded(self, src: PartBuilder, value: Value) -> Value:
        """A value as it goes to other tasks where that is as bfloat16; made once."""
        if value not in src.rounded:
            op, attrs = value.op, dict[str, AttrValue]({"dtype": bfloat16})
            assert op is not None
            frame, given = self.frames.of_value[value], [self.value(src, value)]
            src.rounded[value] = self.emit(src, "astype", given, attrs, frame, op.locations)[0]
        return src.rounded[value]

    def control(self, part: PartBuilder, value: Value, reader: Operation | None = None) -> Value:
        """What comes after a value, and is dead if that is, in a part."""
        op = value.op
        if value in part.values or op is None or self.homes[op] in (None, part.device):
            return self.value(part, value, reader)
        if isinstance(value.type, TensorType) and self._goes_anyway(part, value.type, value):
            return self.value(part, value, reader)
        if value not in part.after:
            home = self.homes[op]
            assert home is not None
            part.after[value] = self.message(self.part(home), part, value, reader, empty=True)
        return part.after[value]

    def controls(self, part: PartBuilder, op: Operation) -> list[Value]:
        """The control operands of an op of the whole graph in a part: one message for all those
        from one device that are alive together and are sent for nothing else."""
        found: list[Value] = []
        groups: dict[tuple[str, int], list[Value]] = {}
        for value in op.control:
            home = self._silent(part, value)
            if home is None:
                found.append(self.control(part, value, op))
            else:
                key = home, self.deadness.of_value[value]
                groups.setdefault(key, []).append(value)
        for (home, condition), values in groups.items():
            if len(values) == 1:
                found.append(self.control(part, values[0], op))
                continue
            together = tuple(values)
            if together not in part.after_all:
                src, frame = self.part(home), self.frames.of_value[values[0]]
                data = self._marker(src, [self.value(src, v) for v in values], frame, op.locations)
                name = f"after {self._label(values[0])} and {len(values) - 1} more"
                part.after_all[together] = self.transfer(
                    src, part, data, name, frame, condition, op.locations
                )
            found.append(part.after_all[together])
        return found

    def _silent(self, part: PartBuilder, value: Value) -> str | None:
        """The device of a control operand from elsewhere that would be a message of its own without
        elements; None for others."""
        op = value.op
        if op is None or value in part.values or value in part.after:
            return None
        home = self.homes[op]
        sent = isinstance(value.type, TensorType) and self._goes_anyway(part, value.type, value)
        return None if sent or home == part.device else home

    def _goes_anyway(self, part: PartBuilder, kind: TensorType, value: Value) -> bool:
        """Whether a tensor is sent itself where only its order is needed."""
        if not kind.is_static:  # its sizes may be needed
            return True
        return kind.nbytes <= CONTROL_BYTES or (value, part.device) in self._wanted

    def _label(self, value: Value) -> str:
        """A value as the names of messages have it."""
        assert value.op is not None
        return f"{value.op.name}_{self.frames.numbers[value]}"

    def _counters(self, src: PartBuilder, dst: PartBuilder, value: Value) -> None:
        """Make the control loops that a message needs; they may need, and bring, its value."""
        for part in (src, dst):
            frame, condition = self.frames.of_value[value], self.deadness.of_value[value]
            self.loops.counters(part, frame, condition)

    # -- ops --------------------------------------------------------------------------------------

    def clone(
        self, part: PartBuilder, op: Operation, operands: Sequence[Value], control: Sequence[Value]
    ) -> None:
        """A copy of an op of the whole graph in a part."""
        after = tuple(dict.fromkeys(v for v in control if v not in operands))
        types = [r.type for r in op.results]
        regions = [_without_devices(r) for r in op.regions]
        made = Operation(op.name, operands, op.attrs, types, regions, after, op.locations)
        self._append(part, made, self.frames.of_op[op])
        part.values.update(zip(op.results, made.results, strict=True))

    def emit(
        self,
        part: PartBuilder,
        name: str,
        operands: Sequence[Value],
        attrs: dict[str, AttrValue],
        frame: Frame,
        locations: Locations,
        control: Iterable[Value] = (),
    ) -> tuple[Value, ...]:
        """A new op in a part. frame: where its results are in the whole graph."""
        after = tuple(dict.fromkeys(v for v in control if v not in operands))
        made = make_op(name, operands, attrs, control=after, locations=locations)
        return self._append(part, made, frame)

    def _append(self, part: PartBuilder, op: Operation, frame: Frame) -> tuple[Value, ...]:
        part.ops.append(op)
        depth = max((self._depth.get(v, 0) for v in (*op.operands, *op.control)), default=0)
        if op.name == "recv":
            depth = max(depth, int_attr(op.attrs, "depth"))
        if op.name == "exit":  # after all that goes on in its frame, on any device
            depth = max(depth, self._frame_depth.get(frame, 0))
        around = frame.parent if op.name == "exit" and frame.parent is not None else frame
        for outer in around.around():
            self._frame_depth[outer] = max(self._frame_depth.get(outer, 0), depth)
        self._depth.update((r, depth) for r in op.results)
        return op.results

    # -- messages ---------------------------------------------------------------------------------

    def message(
        self,
        src: PartBuilder,
        dst: PartBuilder,
        value: Value,
        reader: Operation | None = None,
        *,
        empty: bool = False,
    ) -> Value:
        """Send a value of the whole graph, or (empty) whether it is alive: what is received."""
        op, frame = value.op, self.frames.of_value[value]
        assert op is not None
        name = self._label(value)
        condition = self.deadness.of_value[value]
        if empty:
            data = self._marker(src, [self.value(src, value)], frame, op.locations)
            return self.transfer(src, dst, data, f"after {name}", frame, condition, op.locations)
        data, late = self.value(src, value), tuple[Value, ...]()
        if self._bfloat16 and goes_as_bfloat16(value.type, src.device, dst.device):
            data = self._rounded(src, value)
        if reader is not None:
            late = wait_for(self, dst, value, reader)
        return self.transfer(src, dst, data, name, frame, condition, op.locations, late)

    def entered(self, src: PartBuilder, dst: PartBuilder, start: Operation) -> Value:
        """On another device: something alive if, and when, an enter of the whole graph is."""
        frame, where = self.frames.of_op[start], start.locations
        data = self._marker(src, self.inputs(src, start), frame, where)
        name = f"start of {start.attrs['frame']}"
        return self.transfer(src, dst, data, name, frame, self.deadness.of_op[start], where)

    def inputs(self, part: PartBuilder, op: Operation) -> list[Value]:
        """What an op of the part comes after."""
        given = [self.value(part, v) for v in op.operands if v.op is not None]
        return [*given, *self.controls(part, op)]

    def _marker(
        self, part: PartBuilder, after: Sequence[Value], frame: Frame, where: Locations
    ) -> Value:
        """A tensor without elements that comes after some values."""
        attrs: dict[str, AttrValue] = {"value": _EMPTY}
        return self.emit(part, "constant", (), attrs, frame, where, after)[0]

    def transfer(
        self,
        src: PartBuilder,
        dst: PartBuilder,
        data: Value,
        name: str,
        frame: Frame,
        condition: int,
        where: Locations,
        late: Sequence[Value] = (),
    ) -> Value:
        """Send a tensor of `src`: what is received. condition: when it is live, in `frame`."""
        kind = data.type
        assert isinstance(kind, TensorType)
        sending, covered = self.loops.counters(src, frame, condition)
        waiting, _ = self.loops.counters(dst, frame, condition)
        live = 0 if covered else self._live.setdefault(condition, len(self._live))
        key = self._messages
        self._messages += 1
        pair: dict[str, AttrValue] = {
            "key": key, "tensor": name, "src": src.device, "dst": dst.device,
        }  # fmt: skip
        self.emit(src, "send", [data, *sending], pair, frame, where)
        attrs: dict[str, AttrValue] = {
            **pair, "dtype": kind.dtype, "shape": kind.shape, "live": live,
            "depth": 1 + self._depth.get(data, 0),
        }  # fmt: skip
        return self.emit(dst, "recv", waiting, attrs, frame, where, late)[0]

    # -- the end ----------------------------------------------------------------------------------

    def fetch(self, number: int, value: Value) -> None:
        """A result of the whole graph comes from where it is made."""
        op = value.op
        holder = next((p for p in self.parts.values() if value in p.values), None)
        home = self.default if op is None else self.homes[op] or op.device or self.default
        part = holder if op is None and holder is not None else self.part(home)
        part.fetches.append((number, self.value(part, value)))

    def done(self) -> Program:
        """All parts."""
        parts = [self._finished(part) for part in self.parts.values()]
        return Program(tuple(parts))

    def _finished(self, part: PartBuilder) -> Part:
        results = tuple(v for _, v in part.fetches)
        block = Block(tuple(part.args), tuple(part.ops), results)
        names = tuple(self.graph.arg_names[i] for i in part.feeds)
        name = f"{self.graph.name}{_suffix(part.device)}"
        alone = not any(op.name in DATAFLOW | COMMUNICATION for op in part.ops)
        stage = self.stage if alone else "partitioned"
        graph = Graph(name, block, names, stage)
        return Part(part.device, graph, tuple(part.feeds), tuple(n for n, _ in part.fetches))


def _suffix(device: str) -> str:
    return "_" + re.sub(r"[^A-Za-z0-9]+", "_", device.replace("/job:", "/").strip("/"))


def step_name(part: str, device: str) -> str:
    """The name of the graph that a part is of, by its own and its device's."""
    return part.removesuffix(_suffix(device))


def _without_devices(block: Block) -> Block:
    """A region, all ops of which are on one device, without their names."""
    if not any(op.device or op.group for op in block.walk()):
        return block
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    for op in block.ops:
        made = Operation(
            op.name,
            [mapping.get(v, v) for v in op.operands],
            op.attrs,
            [r.type for r in op.results],
            [_without_devices(r) for r in op.regions],
            [mapping.get(v, v) for v in op.control],
            op.locations,
        )
        ops.append(made)
        mapping.update(zip(op.results, made.results, strict=True))
    return Block(block.args, tuple(ops), tuple(mapping.get(v, v) for v in block.results))


def _stays(value: Value, home: str, device: str, reader: Operation | None) -> InvalidArgumentError:
    """The error for state that would have to go to another device."""
    made = value.op
    assert made is not None
    name = made.attrs.get("name")
    what = f"'{name}'" if name else f"of op '{made.name}'"
    user = f"op '{reader.name}'" if reader is not None else "an op"
    return InvalidArgumentError(
        f"{user} on {device} uses the {value.type} {what}, which is on {home}: state stays where "
        "it is",
        hint="put what reads and writes it on its device, or read it there and use the value",
        location=reader.locations if reader is not None else made.locations,
    )


def partition(placed: Graph, default: str = "", *, bfloat16: bool = False) -> Program:
    """The parts of a graph, all ops of which name a full device (constants need not, nor what
    lowering made), and the messages between them.

    What no result and no effect needs is left out. default: the device of what no op says, such as
    an argument that is a result ("": the first device that is named). Sizes that feeds decide
    should be numbers (`specialize`); those that values decide may be symbols (`tie_sizes` comes
    before). bfloat16: float32 tensors, but scalars, go from task to task as that (`Cut`). Raises
    InvalidArgumentError for an op whose device is not full, and for state, queues and stacks that
    are used on several devices; UnsupportedError for a loop that cannot be cut.
    """
    _check_devices(placed)
    graph = dce(lower_spanning(dce(placed)))  # before, too: a dead read ties no branch to a device
    deadness = checked(graph)
    frames = deadness.frames
    first = default or next(device_names(graph.block), f"{LOCAL_TASK}/cpu:0")
    homes = assign(graph.block, frames, first)
    cut = Cut(graph, frames, deadness, homes, first, placed.stage, bfloat16)
    for op in frames.order:
        home = homes[op]
        if home is not None:
            _emit(cut, cut.part(home), op)
    for number, value in enumerate(graph.results):
        cut.fetch(number, value)
    return cut.done()


def partition_pass(default: str = "", *, bfloat16: bool = False) -> ProgramPass:
    """`partition` with these settings, from a program of one graph."""

    def run(program: Program) -> Program:
        if not program.is_whole:
            raise PassError(
                f"pass 'partition' cannot cut '{program.name}', which has {len(program.parts)} "
                "parts already",
                hint="name it once, after what works on the whole",
            )
        return partition(program.graph, default, bfloat16=bfloat16)

    return ProgramPass("partition", run, changes_meaning=bfloat16)


def _check_devices(placed: Graph) -> None:
    """Refuse an op with a partial device, which may be one of several. InvalidArgumentError."""
    known: set[str] = {""}
    for op in placed.walk():
        if op.device not in known and not DeviceSpec.parse(op.device).is_full:
            raise InvalidArgumentError(
                f"op '{op.name}' is on {op.device}, which does not name one device",
                hint="place the graph first: weft.passes.placement.place, or weft place",
                location=op.locations,
            )
        known.add(op.device)


def _emit(cut: Cut, part: PartBuilder, op: Operation) -> None:
    """`op` on its device, with what it needs from others."""
    if spans(op):
        raise UnsupportedError(
            f"op '{op.name}' spans devices and cannot be cut", location=op.locations
        )
    operands = [cut.value(part, v, op) for v in op.operands]
    cut.clone(part, op, operands, cut.controls(part, op))
    if op.name == "loop_cond":
        cut.loops.decided(op)
