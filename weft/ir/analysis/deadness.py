"""Deadness analysis: when each value of a dataflow graph is live, as a condition on predicates.

Conditions are reduced ordered binary decision diagrams (Bryant 1986), so that equal ones are equal
numbers: merging both sides of a switch gives exactly what held before it. In a frame a condition
says when a value is live in an iteration that is under way. A loop is regular if all that enters it
does so under one condition and all its next_iterations are live under one condition; then its
merges are live in every iteration, and an exit that is live whenever no iteration follows is live
once the loop is over. Of other loops nothing is known, and a fresh variable says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from weft.ir.analysis.frames import Frame, Frames, find_frames, inputs_of, is_dataflow
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.spec import int_attr
from weft.ir.types import TensorType

FALSE, TRUE = 0, 1
_MOST_NODES, _MOST_DEEP = 100_000, 400  # predicates on one way: Python's stack is bounded


class Conditions:
    """Decision diagrams: a condition is a number, FALSE, TRUE, or that of a node
    (variable, condition if it is false, condition if it is true).
    """

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int, int]] = [(1 << 62, 0, 0), (1 << 62, 1, 1)]
        self._depth = [0, 0]
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._both: dict[tuple[int, int], int] = {}
        self._not: dict[int, int] = {FALSE: TRUE, TRUE: FALSE}
        self._variables = 0

    def fresh(self) -> int:
        """A new variable, of which nothing is known."""
        self._variables += 1
        return self._node(self._variables - 1, FALSE, TRUE)

    def _node(self, variable: int, low: int, high: int) -> int:
        if low == high:
            return low
        key = (variable, low, high)
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(key)
            self._depth.append(1 + max(self._depth[low], self._depth[high]))
        return self._numbers[key]

    def negate(self, a: int) -> int:
        """not a"""
        if a not in self._not:
            variable, low, high = self.nodes[a]
            self._not[a] = self._node(variable, self.negate(low), self.negate(high))
        return self._not[a]

    def both(self, a: int, b: int) -> int:
        """a and b; something unknown where the diagrams grow beyond all use."""
        if a == b or FALSE in (a, b) or TRUE in (a, b):
            return min(a, b) if FALSE in (a, b) or a == b else max(a, b)
        key = (min(a, b), max(a, b))
        if key not in self._both:
            deep = self._depth[a] + self._depth[b] > _MOST_DEEP
            if deep or len(self.nodes) > _MOST_NODES:
                return self.fresh()
            (va, la, ha), (vb, lb, hb) = self.nodes[a], self.nodes[b]
            top = min(va, vb)
            low = self.both(la if va == top else a, lb if vb == top else b)
            high = self.both(ha if va == top else a, hb if vb == top else b)
            self._both[key] = self._node(top, low, high)
        return self._both[key]

    def either(self, a: int, b: int) -> int:
        """a or b"""
        return self.negate(self.both(self.negate(a), self.negate(b)))

    def counterexample(self, a: int) -> dict[int, bool]:
        """Values of variables that make `a` false; of none if it is TRUE."""
        found: dict[int, bool] = {}
        while a not in (FALSE, TRUE):
            variable, low, high = self.nodes[a]
            found[variable] = low == TRUE
            a = high if low == TRUE else low
        return found


class Deadness:
    """The conditions of all values of a sound dataflow graph (`frames.faults` is empty)."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self._irregular: set[Frame] = set()
        while True:  # once, and once more for each loop that turns out to be irregular
            self._begin()
            for op in frames.order:
                self._op(op)
            odd = {f for f in frames.inner if f not in self._irregular and not self.is_regular(f)}
            if not odd:
                return
            self._irregular |= odd

    def _begin(self) -> None:
        self.conditions = Conditions()
        self.of_value: dict[Value, int] = dict.fromkeys(
            (v for v in self.frames.of_value if v.op is None), TRUE
        )
        self.of_op: dict[Operation, int] = {}
        self.predicates: dict[Value, int] = {}
        self.decider: dict[int, Operation] = {}  # variable -> what it is of: switch, enter or exit
        self.switched: dict[Operation, int] = {}  # switch -> the variable of its predicate
        self.missed: dict[Operation, int] = {}  # exit -> when its loop may end without it
        self._running: dict[tuple[Frame, int], int] = {}
        self._received: dict[int, int] = {}  # by the number that a recv has for it

    # -- questions --------------------------------------------------------------------------------

    def always_live(self, value: Value) -> bool:
        """Whether a value is live in every run, if it is outside of loops."""
        return self.of_value[value] == TRUE

    def why_dead(self, value: Value) -> str:
        """Of a value that may be dead: which switch decides that, by what, and on which line."""
        return self._why(self.of_value[value], value.op)

    def _why(self, condition: int, at: Operation | None) -> str:
        found = self.conditions.counterexample(condition)
        known = [v for v in found if v in self.decider]
        if not known:
            return "no switch is known that makes it live"
        label = self.frames.label
        reasons: list[str] = []
        for variable in known[:3]:
            op, side = self._behind(at, variable) or self.decider[variable], found[variable]
            if op.name == "exit" and self.missed[op] == FALSE:
                frame = self.frames.of_op[op]
                return f"not all enters and next_iterations of {frame} are live together"
            if op.name == "exit":
                why = self._why(self.conditions.negate(self.missed[op]), op.operands[0].op)
                return f"the loop of {label(op.result)} may end with a dead operand of it, as {why}"
            if op.name == "recv":
                reasons.append(f"{label(op.result)} may be sent dead")
                continue
            if op.name == "enter":
                reasons.append(f"{label(op.result)} may enter dead")
                continue
            reasons.append(
                f"{label(op.results[not side])} is dead where its switch's predicate, "
                f"{label(op.operands[1])}, is {str(side).lower()}"
            )
        return ", and ".join(reasons)

    def _behind(self, op: Operation | None, variable: int) -> Operation | None:
        """The nearest switch by that predicate on the way to `op`."""
        queue = [op] if op is not None else []
        seen = set(queue)
        for now in queue:  # breadth first
            if self.switched.get(now) == variable:
                return now
            for value in (*now.operands, *now.control):
                if value.op is not None and value.op not in seen:
                    seen.add(value.op)
                    queue.append(value.op)
        return None

    def exclusive(self, a: Operation, b: Operation) -> bool:
        """Whether never both of two ops run in one iteration of the innermost frame around them."""
        around = set(self.frames.of_op[a].around())
        common = next(f for f in self.frames.of_op[b].around() if f in around)
        return self.conditions.both(self._within(a, common), self._within(b, common)) == FALSE

    def _within(self, op: Operation, frame: Frame) -> int:
        """When `op` may run, as a condition in `frame`, which is around it."""
        inner = self.frames.of_op[op]
        if inner is frame:
            return self.of_op[op]
        while inner.parent is not None and inner.parent is not frame:
            inner = inner.parent
        return reduce(self.conditions.either, (self.of_op[e] for e in inner.enters), FALSE)

    def predicate(self, value: Value) -> int | None:
        """The condition that a predicate is true; None if no switch has it."""
        return self.predicates.get(_source(value))

    # -- the analysis -----------------------------------------------------------------------------

    def _op(self, op: Operation) -> None:
        both = self.conditions.both
        given = [self.of_value[v] for v in inputs_of(op)]
        control = [self.of_value[v] for v in op.control]
        runs = reduce(both, [*given, *control], TRUE)
        results = [runs] * len(op.results)
        if op.name == "switch":
            pred = self._predicate(op)
            results = [both(runs, self.conditions.negate(pred)), both(runs, pred)]
        elif op.name == "merge" and not op.attrs["loop"]:
            runs = reduce(self.conditions.either, given, FALSE)
            results = [runs] * 2
        elif op.name == "merge" and self.frames.of_op[op] in self._irregular:
            runs = self.conditions.fresh()
            results = [runs] * 2
        elif op.name == "enter":
            self.of_op[op] = runs
            results = [self._in_iterations(op)]
        elif op.name == "exit":
            results = [self._after_loop(op, runs)]
        elif op.name == "send":  # it runs with dead data, too
            runs = results[0] = reduce(both, [*given[1:], *control], TRUE)
        elif op.name == "recv" and op.attrs["live"]:
            results = [both(runs, self._sent(op))]
        self.of_op[op] = runs
        self.of_value.update(zip(op.results, results, strict=True))

    def _predicate(self, switch: Operation) -> int:
        value = _source(switch.operands[1])
        if value not in self.predicates:
            made = self.predicates[value] = self.conditions.fresh()
            self.decider[self.conditions.nodes[made][0]] = switch
        made = self.predicates[value]
        self.switched[switch] = self.conditions.nodes[made][0]
        return made

    def _in_iterations(self, enter: Operation) -> int:
        """When what enters is live in an iteration of the frame."""
        entered, frame = self.of_op[enter], self.frames.of_value[enter.result]
        if entered in (TRUE, FALSE):
            return entered
        key = (frame, entered)
        if key not in self._running:
            made = self._running[key] = self.conditions.fresh()
            self.decider[self.conditions.nodes[made][0]] = enter
        return self._running[key]

    def _sent(self, recv: Operation) -> int:
        """When what is received was sent alive."""
        number = int_attr(recv.attrs, "live")
        if number not in self._received:
            made = self._received[number] = self.conditions.fresh()
            self.decider[self.conditions.nodes[made][0]] = recv
        return self._received[number]

    def _loop_enters(self, frame: Frame) -> Sequence[Operation]:
        """The ops by which the loop starts."""
        starts = [m.operands[0].op for m in frame.merges]
        return [op for op in starts if op is not None] or frame.enters

    def is_regular(self, frame: Frame) -> bool:
        """Whether all that enters a loop does so together, and all that goes round."""
        goes_on = {self.of_op[n] for n in frame.nexts.values()}
        return len({self.of_op[e] for e in self._loop_enters(frame)}) == 1 and len(goes_on) <= 1

    def _after_loop(self, op: Operation, live: int) -> int:
        """When an exit gives a value, as a condition in the frame around its own."""
        conditions, frame = self.conditions, self.frames.of_op[op]
        starts = self._loop_enters(frame)
        entered = reduce(conditions.either, (self.of_op[e] for e in starts), FALSE)
        running = reduce(conditions.both, map(self._in_iterations, starts), TRUE)
        goes_on = reduce(conditions.either, (self.of_op[n] for n in frame.nexts.values()), FALSE)
        missed = conditions.both(
            conditions.both(running, conditions.negate(goes_on)), conditions.negate(live)
        )
        if missed == FALSE and frame not in self._irregular:
            return entered
        self.missed[op] = missed
        unknown = conditions.fresh()
        self.decider[conditions.nodes[unknown][0]] = op
        return conditions.both(entered, unknown)


def _source(predicate: Value) -> Value:
    """What a predicate is, before it was marked or passed on."""
    while predicate.op is not None and predicate.op.name in ("identity", "loop_cond"):
        predicate = predicate.op.operands[0]
    return predicate


def double_merges(deadness: Deadness) -> Iterator[tuple[Operation, str]]:
    """The merges two operands of which are live under one condition, so always together."""
    for op in deadness.frames.order:
        if op.name != "merge" or op.attrs["loop"]:
            continue
        first: dict[int, Value] = {}
        for value in op.operands:
            condition = deadness.of_value[value]
            other = first.setdefault(condition, value)
            if other is not value or op.operands.count(value) > 1:
                label = deadness.frames.label
                yield op, f"merges {label(other)} and {label(value)}, which are live together"
                break


def impossible_results(results: Sequence[Value], deadness: Deadness) -> Iterator[tuple[Value, str]]:
    """The results of a graph that are in a loop, or dead in every run, and why.

    One that may be dead is an error of the runs in which it is (`dead_result`). Tokens may be dead:
    fetching an effect asks for it where it is live.
    """
    frames = deadness.frames
    for i, value in enumerate(results):
        frame, name = frames.of_value[value], frames.label(value)
        if frame.parent is not None:
            yield value, f"result {i}, {name}, is in {frame}: return an exit's"
        elif isinstance(value.type, TensorType) and deadness.of_value[value] == FALSE:
            why = deadness.why_dead(value)
            yield value, f"result {i}, {name}, is dead in every run: {why}"


def dead_result(block: Block, number: int, arg_names: Sequence[str] = ()) -> InvalidArgumentError:
    """The error for a result that a run had no value for: which switch sent it another way."""
    value, frames = block.results[number], find_frames(block, arg_names)
    why = Deadness(frames).why_dead(value)
    return InvalidArgumentError(
        f"result {number}, {frames.label(value)}, is dead in this run: {why}",
        hint="fetch what wf.tf1.merge gives of both sides, or the side that is taken",
        location=value.op.locations if value.op is not None else (),
    )


def check_dataflow(graph: Graph) -> None:
    """Refuse a graph whose frames do not match, whose merges get two values at once, or of which a
    result is in a loop or never has a value.

    Raises InvalidArgumentError with the user's line and the switch that decides. `verify` finds the
    same, and shows the whole graph.
    """
    if is_dataflow(graph.block) and graph.stage != "partitioned":  # of parts the whole was checked
        checked(graph)


def checked(graph: Graph) -> Deadness:
    """When the values of a graph are live. InvalidArgumentError as `check_dataflow`."""
    frames = find_frames(graph.block, graph.arg_names)
    for op, what in frames.faults:
        raise InvalidArgumentError(f"op '{op.name}' {what}", location=op.locations)
    deadness = Deadness(frames)
    for op, what in double_merges(deadness):
        raise InvalidArgumentError(f"op '{op.name}' {what}", location=op.locations)
    for value, what in impossible_results(graph.results, deadness):
        at = value.op.locations if value.op is not None else ()
        raise InvalidArgumentError(what, location=at)
    return deadness
