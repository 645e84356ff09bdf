"""Loops by hand, raised to `while` ops, whose gradients then serve.

Before (%y of the loop ``while i < n: i, x = i + 1, x * k``)::

    %i0 = enter(%zero) {frame="loop"}               %k0 = enter(%k) {frame="loop", constant=true}
    %x0 = enter(%x) {frame="loop"}                  %n0 = enter(%n) {frame="loop", constant=true}
    %i1, _ = merge(%i0) {loop=true}                 %x1, _ = merge(%x0) {loop=true}
    %more = loop_cond(%less)                        // of less(%i1, %n0)
    %i2, %i3 = switch(%i1, %more)                   %x2, %x3 = switch(%x1, %more)
    next_iteration(%add, %i1)                       // of add(%i3, 1)
    next_iteration(%mul, %x1)                       // of multiply(%x3, %k0)
    %y = exit(%x2)

After::

    %0, %1 = while(%zero, %x, %n, %k) {carries=2} : i64[], f32[] {
      ^(%a0: i64[], %a1: f32[], %a2: i64[], %a3: f32[])
      %0 = less(%a0, %a2) : bool[]
      yield %0
    } {
      ^(%a0: i64[], %a1: f32[], %a2: i64[], %a3: f32[])
      %0 = add(%a0, 1) : i64[]
      %1 = multiply(%a1, %a3) : f32[]
      yield %0, %1
    }

The loop by hand stays: it gives the values, and the `while` those that the gradient needs.

A region holds what its results need, found from the results backwards. When a value is live, as
`deadness` tells, says where it is computed: what is live in each iteration in the test and in the
body, what is behind the loop's switches in the body. A merge of which no operand is sure to be the
live one becomes a `cond` on the first predicate that decides; its branches are made in the same
way, knowing that predicate. What an exit gives is computed after the loop from its last carries: it
is behind the false side of the switches. Inner loops are raised where an exit of theirs is needed.

Effects are left out, as of bodies of `while` (`without_effects`). Where the values need what an op
with effects gives, and where a frame has not this form, there is an error that says why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from weft.ir.analysis.deadness import FALSE, TRUE, Deadness
from weft.ir.analysis.frames import Frame, find_frames
from weft.ir.dataclass import dataclass
from weft.ir.errors import GradientError, InvalidArgumentError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder, remapped
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import StackType, TensorType
from weft.passes.autodiff.rule import Placed, is_inexact
from weft.passes.autodiff.table import NO_GRADIENT
from weft.passes.control.enter_invariants import with_enters
from weft.passes.rewriting.rewrite import has_effect, with_control
from weft.passes.sizes import needed_ops


def raised(
    builder: Builder,
    ops: Sequence[Operation],
    ys: Sequence[Value],
    xs: Sequence[Value],
    stopped: Collection[Value] = (),
    placed: Placed | None = None,
) -> Sequence[Operation]:
    """The ops that lead from `xs` to `ys`, with the `while` ops that the frames on the way amount
    to in place of these; they are appended to the builder. `ops` itself if there are no frames.

    ops, and those of the builder: where to find all ops of the frames. Frames through which no
    cotangent comes, `stopped` ones considered, are left out. placed: as for `gradients`.
    GradientError for frames that are no loops of this form, InvalidArgumentError for those that
    could not run.
    """
    if not any(op.name == "exit" for op in ops):
        return ops
    needed, met = needed_ops(list(dict.fromkeys([*ops, *builder.ops])), ys)
    if not any(op.name == "exit" for op in needed):
        return ops
    others = sorted((v for v in met if v.op is None), key=lambda v: v.index)
    args = tuple(dict.fromkeys([*builder.args, *others]))
    names = tuple(f"a{i}" for i in range(len(args)))
    whole, became = with_enters(Graph("loops", Block(args, tuple(needed), ()), names))
    frames = find_frames(whole.block)
    ends = [became[y] for y in ys]
    around = {f for y in ends for f in frames.of_value[y].around()}
    for op, what in frames.faults:
        if frames.of_op[op] not in around:  # those that are may not be complete yet
            raise InvalidArgumentError(f"op '{op.name}' {what}", location=op.locations)
    path = _Path(builder, _Loops(Deadness(frames), ends), around, became, placed)
    return path.ops(ends, xs, stopped)


class _Path:
    """What leads to some values outside of the loops that are raised.

    around: the frames that those values are in, which are not raised. became: what values are in
    the graph that was analysed, which is a copy.
    """

    def __init__(
        self,
        builder: Builder,
        loops: _Loops,
        around: set[Frame],
        became: Mapping[Value, Value],
        placed: Placed | None,
    ) -> None:
        self.builder, self.loops, self.frames = builder, loops, loops.frames
        self.around, self.became, self.placed = around, became, placed
        self.was = {new: old for old, new in became.items()}
        self.out: list[Operation] = []

    def ops(
        self, ys: Sequence[Value], xs: Sequence[Value], stopped: Collection[Value]
    ) -> list[Operation]:
        """The ops outside of loops, and of those raised that have cotangents."""
        for x in xs:
            self._check_outside(x, "gradient with respect to")
        for value in stopped:
            self._check_outside(value, "gradient that stops at")
        stops = {self.became[v] for v in stopped if v in self.became}
        active = {self.became[x] for x in xs if x in self.became and is_inexact(x)}
        reaching = self._reaching(ys, stops)
        raised: dict[Frame, _Scope] = {}
        for op in self.frames.order:
            frame = self.frames.of_op[op]
            found = [r for r in op.results if is_inexact(r) and r not in stops]
            if self._leaves(op):
                if op.result in reaching and any(e.operands[0] in active for e in frame.enters):
                    if frame not in raised:
                        raised[frame] = self._raise(frame)
                    active.update(found)
                    self.out.append(_alias(op, self.was[op.result], raised[frame].known[op.result]))
            elif frame in self.around and op.results and op.results[0] in self.was:
                if op.name not in NO_GRADIENT and any(v in active for v in op.operands):
                    active.update(found)
                made = self.was[op.results[0]].op
                assert made is not None
                self.out.append(made)
        return self.out

    def _leaves(self, op: Operation) -> bool:
        """Whether an op is the exit of an outermost loop."""
        frame = self.frames.of_op[op]
        inside = frame not in self.around and frame.parent in self.around
        return op.name == "exit" and inside

    def _reaching(self, ys: Sequence[Value], stops: set[Value]) -> set[Value]:
        """The values outside of loops that cotangents may come to, and go on from."""
        reaching = set(ys) - stops
        frames: set[Frame] = set()
        for op in reversed(self.frames.order):
            inner = self.frames.of_value[op.result] if op.name == "enter" else None
            if self._leaves(op) and op.result in reaching:
                frames.add(self.frames.of_op[op])
            elif (
                inner in frames  # an enter
                or (op.name not in NO_GRADIENT and any(r in reaching for r in op.results))
            ):
                reaching.update(v for v in op.operands if is_inexact(v) and v not in stops)
        return reaching

    def _check_outside(self, value: Value, what: str) -> None:
        frame = self.frames.of_value.get(self.became.get(value, value))
        if frame is not None and frame not in self.around:
            raise GradientError(
                f"the {what} a value in {frame}, of what comes out of it, cannot be taken: it is "
                "another value in each iteration",
                hint="take it with respect to what enters the frame; wf.stop_gradient in the loop "
                "makes a constant of a value",
                location=value.op.locations if value.op is not None else (),
            )

    def _raise(self, frame: Frame) -> _Scope:
        """The loop, appended to the builder; `known` of what is given has the exits."""
        start = len(self.builder.ops)
        scope = _Scope(self.loops, self.builder, TRUE, {})
        for enter in frame.enters:
            value = enter.operands[0]
            while value not in self.was:  # an enter of a constant that the user did not write
                assert value.op is not None
                value = value.op.operands[0]
            scope.known[enter.operands[0]] = self.was[value]
        scope.loop(frame)
        made = self.builder.ops[start:]
        exit = self.was[frame.exits[0].result].op
        if self.placed is not None and exit is not None:
            self.placed(exit, made)
        self.out += made
        return scope


def _alias(exit: Operation, value: Value, raised: Value) -> Operation:
    """An op, in no block, by which `value`, of the exit, is what the raised loop gives."""
    made = Operation("identity", (raised,), {}, (value.type,), locations=exit.locations)
    made.device, made.group = exit.device, exit.group
    made.results = (value,)
    return made


class _Loops:
    """A dataflow graph and when its values are live."""

    def __init__(self, deadness: Deadness, ys: Sequence[Value]) -> None:
        self.deadness = deadness
        self.frames, self.conditions = deadness.frames, deadness.conditions
        self.of_variable = {
            self.conditions.nodes[c][0]: (value, c) for value, c in deadness.predicates.items()
        }
        used = self._used(ys)
        #: The numbers of merges that are used, and the merges of branches that are.
        self.numbers = {v for v in used if v.op is not None and v.op.name == "merge" and v.index}
        self.merges = [
            op
            for op in self.frames.order
            if op.name == "merge" and not op.attrs["loop"] and op.results[0] in used
        ]

    def _used(self, ys: Sequence[Value]) -> set[Value]:
        """The values that others are computed from, in the end `ys`."""
        nexts = {m: n for frame in self.frames.inner for m, n in frame.nexts.items()}
        waiting, used = list(ys), set(ys)
        while waiting:
            op = waiting.pop().op
            if op is None:
                continue
            more = set(op.operands) | set(nexts[op].operands if op in nexts else ())
            waiting += more - used
            used |= more
        return used

    def implies(self, a: int, b: int) -> bool:
        return self.conditions.both(a, self.conditions.negate(b)) == FALSE

    def when(self, value: Value) -> int:
        """The condition under which a value is live, in an iteration of its frame."""
        return self.deadness.of_value[value]

    def variables(self, conditions: Sequence[int]) -> list[int]:
        """Those that the conditions depend on, in order of their switches."""
        seen: set[int] = set()
        waiting = list(conditions)
        while waiting:
            now = waiting.pop()
            if now not in seen and now not in (FALSE, TRUE):
                seen.add(now)
                waiting += self.conditions.nodes[now][1:]
        return sorted({self.conditions.nodes[c][0] for c in seen})

    def predicate(self, known: int, merge: Operation) -> tuple[Value, int]:
        """What decides first which operand of the merge is live where `known` holds: a value, and
        the condition that it is true."""
        both, negate = self.conditions.both, self.conditions.negate
        for variable in self.variables([both(known, self.when(v)) for v in merge.operands]):
            if variable not in self.of_variable:
                continue
            value, true = self.of_variable[variable]
            open_ = FALSE not in (both(known, true), both(known, negate(true)))
            if open_ and self.implies(known, self.when(value)):
                return value, true
        raise refused(merge, "no predicate of a switch tells which operand of a merge is live")

    def turns(self, frame: Frame) -> tuple[int, int]:
        """The conditions that an iteration of the loop is under way, and that another one follows.
        GradientError for a frame that is no while loop."""
        if not frame.merges:
            raise refused(frame.enters[0], f"{frame} has no merge with loop=true, so is no loop")
        if not frame.conds:
            raise refused(frame.merges[0], f"{frame} has no loop_cond")
        (cond,) = frame.conds
        going = self.deadness.predicate(cond.result)
        if going is None:
            raise refused(cond, f"no switch of {frame} goes by its loop_cond")
        if not self.deadness.is_regular(frame):
            raise refused(
                cond,
                f"not all that enters {frame}, or not all that goes on in it, is live together "
                "for what its switches tell (each predicate is another one)",
            )
        runs = self.when(frame.merges[0].results[0])
        for enter in frame.enters:
            if not self.implies(runs, self.when(enter.result)):
                raise refused(enter, f"an enter of {frame} may be dead where others are live")
        follows = self.conditions.both(runs, going)
        for turn in frame.nexts.values():
            if self.deadness.of_op[turn] != follows:
                raise refused(
                    turn,
                    f"a next_iteration of {frame} is not live exactly where its loop_cond is true",
                )
        ends = self.conditions.both(runs, self.conditions.negate(going))
        for left in frame.exits:
            if self.when(left.operands[0]) != ends:
                raise refused(
                    left, f"an exit of {frame} is not live exactly where its loop_cond is false"
                )
        return runs, going


def refused(op: Operation, why: str) -> GradientError:
    return GradientError(
        f"a loop by hand has no gradient where it is not a while loop: {why}",
        hint="let all merges go on by switches by the one loop_cond, and exits be of their false "
        "sides; or write the loop with wf.while_loop",
        location=op.locations,
    )


def _done_twice(op: Operation) -> GradientError:
    return GradientError(
        f"the gradient of a loop by hand needs what op '{op.name}' in it gives, and cannot get it "
        "a second time",
        hint="do that before the loop, and bring the value in by wf.tf1.enter",
        location=op.locations,
    )


@dataclass(slots=True, eq=False)
class _Captures:
    """Values from around the regions of a cond, further arguments of both."""

    builders: tuple[Builder, Builder]
    numbers: dict[Value, int] = field(default_factory=dict)

    def get(self, builder: Builder, value: Value) -> Value:
        if value not in self.numbers:
            self.numbers[value] = len(self.numbers)
            for each in self.builders:
                each.add_arg(value.type)
        return builder.args[self.numbers[value]]


@dataclass(slots=True, eq=False)
class _Scope:
    """A place where values of a frame are computed: a region, or what comes after the loop.

    here: the condition that holds there. known: what values have become. outer, captures: of a
    branch, which is for the results of `merges`.
    """

    loops: _Loops
    builder: Builder
    here: int
    known: dict[Value, Value]
    outer: _Scope | None = None
    captures: _Captures | None = None
    merges: Sequence[Operation] = ()

    def get(self, value: Value) -> Value:
        """What the value has become, computed if need be."""
        waiting = [value]
        while waiting:
            now = waiting[-1]
            missing = [] if now in self.known else self._before(now)
            missing = [v for v in missing if v not in self.known]
            waiting += missing
            if not missing:
                waiting.pop()
                if now not in self.known:
                    self._make(now)
        return self.known[value]

    def _is_live(self, value: Value) -> bool:
        return self.loops.implies(self.here, self.loops.when(value))

    def _is_outside(self, value: Value) -> bool:
        if self.outer is None or value.op in self.merges:
            return False
        return value in self.outer.known or self.outer._is_live(value)

    def _before(self, value: Value) -> Sequence[Value]:
        """The values of the frame from which it is computed here."""
        op = value.op
        assert op is not None  # arguments enter frames
        if self._is_outside(value):
            return ()
        if not self._is_live(value):
            label = self.loops.frames.label(value)
            raise refused(op, f"{label} may be dead where it is used, as "
                          f"{self.loops.deadness.why_dead(value)}")  # fmt: skip
        sure = self._sure(op) if op.name == "merge" else None
        match op.name:
            case "switch":
                return op.operands[:1]
            case "merge" if sure is not None:
                return [op.operands[sure]]
            case "merge":
                pred, _ = self.loops.predicate(self.here, op)
                return [pred, *self._frontier(op)]
            case "exit":
                return list(self._entered(self.loops.frames.of_op[op]))
            case "enter" if _constant(op) is not None:
                return ()
        if op.name == "enter" or has_effect(op):
            raise _done_twice(op)
        return op.operands

    def _sure(self, merge: Operation) -> int | None:
        """The number of the operand that is the live one here; None if several may be."""
        live = (i for i, v in enumerate(merge.operands) if self._is_live(v))
        return next(live, None)

    def _frontier(self, merge: Operation) -> Iterator[Value]:
        """The values that are live here of which the branches make those of the merge."""
        waiting = list(merge.operands)
        seen: set[Value] = set()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            op = value.op
            if value in self.known or op is None or self._is_live(value):
                yield value
            elif has_effect(op):
                raise _done_twice(op)
            elif op.name == "exit":
                waiting += self._entered(self.loops.frames.of_op[op])
            else:
                waiting += op.operands

    def _entered(self, frame: Frame) -> Iterator[Value]:
        """What the loop is given, but constants, which it has itself."""
        for enter in frame.enters:
            value = enter.operands[0]
            if isinstance(value.type, TensorType) and _constant(enter) is None:
                yield value

    def _make(self, value: Value) -> None:
        op = value.op
        assert op is not None
        sure = self._sure(op) if op.name == "merge" else None
        if self._is_outside(value):
            assert self.outer is not None
            assert self.captures is not None
            self.known[value] = self.captures.get(self.builder, self.outer.get(value))
        elif op.name == "switch":
            self.known[value] = self.known[op.operands[0]]
        elif sure is not None:
            source = op.operands[sure]
            self.known[value] = self._number(op, sure) if value.index else self.known[source]
        elif op.name == "merge":
            self._cond(op)
        elif op.name == "exit":
            self.loop(self.loops.frames.of_op[op])
        else:
            source_op = _constant(op) or op
            made = remapped(with_control(source_op, ()), self.known)
            self.builder.ops.append(made)
            self.known.update(zip(op.results, made.results, strict=True))

    def _number(self, at: Operation, number: int) -> Value:
        value = ConstArray(np.array(number, np.int32))
        return self.builder.emit("constant", (), {"value": value}, locations=at.locations)[0]

    def _cond(self, first: Operation) -> None:
        """A cond for the results of a merge, and of others that it can give as well."""
        pred, true = self.loops.predicate(self.here, first)
        merges = [first, *(m for m in self.loops.merges if m is not first and self._joins(m, pred))]
        for merge in merges:
            for value in self._frontier(merge):
                self.get(value)
        numbers = self.loops.numbers
        wanted = [v for m in merges for v in m.results if not v.index or v in numbers]
        builders = (Builder(), Builder())
        captures = _Captures(builders)
        both, sides = self.loops.conditions.both, (true, self.loops.conditions.negate(true))
        made: list[list[Value]] = []
        for builder, side in zip(builders, sides, strict=True):
            here = both(self.here, side)
            scope = _Scope(self.loops, builder, here, {}, self, captures, merges)
            made.append([scope.get(v) for v in wanted])
        regions = [b.block(results) for b, results in zip(builders, made, strict=True)]
        operands = [self.known[pred], *captures.numbers]
        results = self.builder.emit("cond", operands, regions=regions, locations=first.locations)
        self.known.update(zip(wanted, results, strict=True))

    def _joins(self, merge: Operation, pred: Value) -> bool:
        """Whether a merge is for here, is decided by the same predicate, and needs nothing that a
        cond or loop has yet to give."""
        value = merge.results[0]
        if value in self.known or not self._is_live(value) or self._is_outside(value):
            return False
        if self._sure(merge) is not None or self.loops.predicate(self.here, merge)[0] is not pred:
            return False
        waiting = list(self._frontier(merge))
        while waiting:
            value = waiting.pop()
            op = value.op
            if value in self.known or self._is_outside(value) or op is None:
                continue
            if op.name == "exit" or (op.name == "merge" and self._sure(op) is None):
                return False
            waiting += self._before(value)
        return True

    def loop(self, frame: Frame) -> None:
        """Append a frame as a while, and what its exits give."""
        runs, going = self.loops.turns(frame)
        (cond,) = frame.conds
        both, negate = self.loops.conditions.both, self.loops.conditions.negate
        carries: list[Value] = []
        starts: list[Value] = []
        nexts: list[Value | None] = []  # None: the number 1
        for merge in frame.merges:
            carries.append(merge.results[0])
            starts.append(self._given(merge.operands[0]))
            nexts.append(frame.nexts[merge].operands[0])
            if merge.results[1] in self.loops.numbers:
                carries.append(merge.results[1])
                starts.append(self._number(merge, 0))
                nexts.append(None)
        kept = [
            e.result
            for e in frame.enters
            if e.attrs["constant"] and isinstance(e.result.type, TensorType) and not _constant(e)
        ]
        operands = [*starts, *map(self._given, kept)]
        test, body = (Builder([v.type for v in operands]) for _ in range(2))
        testing, turning = (
            _Scope(self.loops, b, here, dict(zip([*carries, *kept], b.args, strict=True)))
            for b, here in ((test, runs), (body, both(runs, going)))
        )
        decision = testing.get(cond.operands[0])
        results = [turning._number(cond, 1) if v is None else turning.get(v) for v in nexts]
        attrs: dict[str, AttrValue] = {
            "carries": len(carries), "parallel_iterations": frame.parallel_iterations,
        }  # fmt: skip
        ends = self.builder.emit(
            "while", operands, attrs, regions=(test.block([decision]), body.block(results)),
            locations=cond.locations,
        )  # fmt: skip
        last = dict(zip([*carries, *kept], [*ends, *operands[len(ends) :]], strict=True))
        after = _Scope(self.loops, self.builder, both(runs, negate(going)), last)
        self.known.update((left.result, after.get(left.operands[0])) for left in frame.exits)

    def _given(self, entered: Value) -> Value:
        """What enters, outside of the frame."""
        enter = entered.op
        assert enter is not None
        return self.get(enter.operands[0])


def _constant(op: Operation) -> Operation | None:
    """What an op enters, through any number of frames, if that has no operands: a constant."""
    if op.name != "enter":
        return None
    while op.name == "enter":
        source = op.operands[0].op
        if source is None:
            return None
        op = source
    plain = all(isinstance(r.type, (TensorType, StackType)) for r in op.results)
    return op if plain and not op.operands and not has_effect(op) else None
