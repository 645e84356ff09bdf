"""`cond` and `while` become switch, merge and frames, which the dataflow executor runs.

Before::

    %0 = cond(%p, %x) : f32[2] {
      ^(%a0: f32[2])
      %0 = sin(%a0) : f32[2]
      yield %0
    } {
      ^(%a0: f32[2])
      yield %a0
    }

After::

    %0, %1 = switch(%x, %p) : f32[2], f32[2]
    %2 = sin(%1) : f32[2]
    %3, %4 = merge(%0, %2) {loop=false} : f32[2], i32[]

A loop gets a frame of its own; its carries enter it once, what it only reads and its constants by
constant enters. An op that depends on nothing of its branch or body gets the *pivot* as a control
operand: the predicate behind its own switch, dead where the branch or body is not to run (Yu et al.
2018, Dynamic control flow in large-scale machine learning, section 4.2).

Effects stay in order: what comes after a branch or loop waits for its effects. An iteration waits
for reads and writes of state of the one before. For each object of the host that the body acts on
there is a *chain*, a further carry of the loop without data: ops on the object wait for it, and it
goes on when they are done; so iterations overlap but for that.

A `scan` is lowered as the while that it is (`scan_to_while`). Which ops are lowered,
`lowering_choice` says: all of them, or those that native code cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np

from weft.ir.attributes import AttrValue, ConstArray
from weft.ir.builder import Builder, make_op
from weft.ir.dataclass import dataclass
from weft.ir.effects import StateKey, effect_keys, host_keys, state_key
from weft.ir.errors import UnsupportedError
from weft.ir.frames import find_frames, is_dataflow
from weft.ir.graph import WITH_DEAD_VALUES, Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.control import CONTROL
from weft.ir.rules import int_attr
from weft.ir.types import HandleType, RefType
from weft.passes.control.lower_stacks import lower_stacks
from weft.passes.control.lowering_choice import carried_updates, decide, executor_only
from weft.passes.control.places import Place, Switches, used_args
from weft.passes.control.scan_to_while import scan_to_while
from weft.passes.rewrite import has_effect, rewrite
from weft.passes.strip import strip_mark

_GRADIENT_ONLY = ("stop_gradient", "custom_gradient")
_HANDLES = (RefType, HandleType)


def lower_control_flow(
    graph: Graph,
    *,
    mode: str = "dataflow",
    parallel_iterations: int | None = None,
    whole_updates: bool = False,
    which: Callable[[Operation], bool] | None = None,
) -> Graph:
    """Lower every `cond`, `while` and `scan`; the stage becomes `dataflow`.

    mode: "dataflow"; or "auto": only what native code cannot hold, and what is around it. The graph
    may hold switch and merge already. parallel_iterations: how many iterations of a loop may be
    under way at once (None: what the op says). whole_updates: what carries the update of a variable
    stays native (see `carried_updates`). which: says which ops may be lowered, where it does for
    all that are around one (`passes.partition`). Marks for gradients are stripped. The graph itself
    if it has nothing to lower.
    """
    graph = lower_stacks(graph)  # handles go through switches and frames as other numbers do
    dataflow = is_dataflow(graph.block)
    done = graph.stage in WITH_DEAD_VALUES or not dataflow
    if done and not any(_decide(op, mode, which)[0] for op in graph.ops):
        return graph
    if any(op.name in _GRADIENT_ONLY for op in graph.walk()):
        graph = rewrite(graph, strip_mark)
    kept = carried_updates(graph.block) if whole_updates else {}
    framed: set[Operation] = set()
    if any(op.name == "enter" for op in graph.ops):
        of_op = find_frames(graph.block).of_op
        framed = {op for op in graph.ops if of_op[op].parent is not None}
    builder = Builder([a.type for a in graph.args])
    taken = {str(op.attrs["frame"]) for op in graph.ops if op.name == "enter"}
    lowering = _Lowering(builder, mode, parallel_iterations, taken, dataflow, kept, which, framed)
    results, _ = lowering.block(Place(builder), graph.block, builder.args)
    stage = "partitioned" if graph.stage == "partitioned" else "dataflow"
    return builder.graph(graph.name, graph.arg_names, results, stage)


def _decide(
    op: Operation, mode: str, which: Callable[[Operation], bool] | None
) -> tuple[bool, str]:
    """Whether `op` is lowered, and why it is or is not, if it is a branch or loop at all."""
    if op.name not in CONTROL or (which is not None and not which(op)):
        return False, ""
    return decide(op, mode)


@dataclass(frozen=True, slots=True)
class _Effect:
    """Something done in a block: to what, and a value that comes after it."""

    keys: frozenset[StateKey]
    hosts: frozenset[StateKey]
    value: Value


class _Lowering:
    def __init__(
        self,
        builder: Builder,
        mode: str,
        parallel_iterations: int | None,
        taken: set[str],
        dataflow: bool,
        kept: Mapping[Operation, str],
        which: Callable[[Operation], bool] | None,
        framed: Container[Operation],
    ) -> None:
        self.builder = builder
        self.mode = mode
        self.parallel_iterations = parallel_iterations
        self.taken = taken  # names of frames
        self.dataflow = dataflow  # operands may be dead
        self.kept = kept  # ops that stay native, and why
        self.which = which
        self.framed = framed  # ops that lie in loops which are frames already

    def block(
        self,
        place: Place,
        block: Block,
        args: Sequence[Value],
        chains: Mapping[StateKey, Value] | None = None,
    ) -> tuple[list[Value], list[_Effect]]:
        """Emit the ops of `block` at `place`: its results, and its effects. chains: what the first
        ops on objects of the host wait for."""
        mapping: dict[Value, Value] = dict(zip(block.args, args, strict=True))
        known = known_keys(block, args)
        effects: list[_Effect] = []
        for op in block.ops:
            operands = [mapping[v] for v in op.operands]
            control = [mapping[v] for v in op.control]
            acts = has_effect(op)
            if acts and chains:
                control += [chains[key] for key in effect_keys(op, known) if key in chains]
            made = self.op(place, op, operands, control, acts)
            mapping.update(zip(op.results, made, strict=False))
            if acts and made:
                keys = frozenset(effect_keys(op, known)), frozenset(host_keys(op, known))
                effects.append(_Effect(*keys, made[0]))
        return [mapping[v] for v in block.results], effects

    def op(
        self,
        place: Place,
        op: Operation,
        operands: Sequence[Value],
        control: list[Value],
        acts: bool,
    ) -> Sequence[Value]:
        """Emit one op; if it has no results, one value that comes after its effects."""
        if op.name in CONTROL and not (op.results or acts):
            return ()  # it gives nothing and does nothing
        place.after = ()
        lowered, why = _decide(op, self.mode, self.which)
        if op in self.kept:
            lowered, why = False, self.kept[op]
        if why and not lowered and executor_only((op,)) is not None:
            raise UnsupportedError(
                f"op '{op.name}' holds ops that only the dataflow executor runs, but cannot be "
                f"lowered: {why}",
                hint="use wf.while_loop, or do that outside of it",
                location=op.locations,
            )
        if lowered:
            if acts or self.dataflow:  # all of the op comes after all of its operands
                given = (v for v in operands if v.op is not None)
                control += [v for v in given if not isinstance(v.type, _HANDLES)]
            if op in self.framed:
                place.after = tuple(control)
            if op.name == "cond":
                return self.cond(place, op, operands, control)
            return (self.scan if op.name == "scan" else self.loop)(place, op, operands, control)
        if op.name in _GRADIENT_ONLY:  # what orders effects by control operands
            passed = operands[: len(op.results)]
            return [place.emit("identity", [v], op.locations, control=control)[0] for v in passed]
        return place.clone(op, operands, control)

    # -- branches ---------------------------------------------------------------------------------

    def cond(
        self, here: Place, op: Operation, operands: Sequence[Value], control: Sequence[Value]
    ) -> list[Value]:
        """The results of a cond, or one value that comes after its effects."""
        pred, *rest = operands
        switches = Switches(here, pred, control, op.locations)
        then, orelse = op.regions
        used = used_args(then) | used_args(orelse)
        sides: list[list[Value]] = []
        waits: list[Value] = []
        for side, region in ((False, orelse), (True, then)):
            args = [switches.get(v, side) if i in used else v for i, v in enumerate(rest)]
            anchored = [args[i] for i in used]
            place = Place(self.builder, here, switches.pivot(side), None, anchored)
            results, effects = self.block(place, region, args)
            sides.append(results)
            waits += (effect.value for effect in effects)
        if not op.results:
            sides = [[switches.get(pred, side)] for side in (False, True)]
        return [
            here.emit("merge", pair, op.locations, control=waits)[0]
            for pair in zip(*sides, strict=True)
        ]

    # -- loops ------------------------------------------------------------------------------------

    def loop(
        self, here: Place, op: Operation, operands: Sequence[Value], control: Sequence[Value]
    ) -> list[Value]:
        """The results of a while, or one value that comes after its effects."""
        return _Loop(self, here, op, control).lower(operands)

    def scan(
        self, here: Place, op: Operation, operands: Sequence[Value], control: Sequence[Value]
    ) -> list[Value]:
        """The results of a scan, or one value that comes after its effects."""
        made = scan_to_while(op)
        *before, loop = made.ops
        mapping = dict(zip(made.args, operands, strict=True))
        for start in before:
            given = [mapping[v] for v in start.operands]
            told = [mapping[v] for v in start.control]
            mapping.update(zip(start.results, here.clone(start, given, told), strict=True))
        found = self.loop(here, loop, [mapping[v] for v in loop.operands], control)
        return found[1:] or found

    def frame_name(self) -> str:
        """A name that no frame has yet."""
        number = len(self.taken) + 1
        while f"while_{number}" in self.taken:
            number += 1
        self.taken.add(f"while_{number}")
        return f"while_{number}"


class _Loop:
    """One `while` being lowered; with a limit, or without carries, it has a counter as well."""

    def __init__(
        self, lowering: _Lowering, here: Place, op: Operation, control: Sequence[Value]
    ) -> None:
        self.lowering = lowering
        self.here = here
        self.op = op
        self.control = control
        self.limit = int_attr(op.attrs, "limit")
        self.parallel = lowering.parallel_iterations or int_attr(op.attrs, "parallel_iterations")
        self.frame = lowering.frame_name()

    def enter(self, value: Value, constant: bool = True) -> Value:
        """`value` in the frame."""
        attrs: dict[str, AttrValue] = {
            "frame": self.frame,
            "constant": constant,
            "parallel_iterations": self.parallel,
        }
        return self.here.emit("enter", [value], self.op.locations, attrs, self.control)[0]

    def constant(self, number: int | bool) -> Value:
        """A number, or a bool, outside of the frame."""
        dtype = np.bool_ if isinstance(number, bool) else np.int64
        attrs = {"value": ConstArray(np.array(number, dtype))}
        made = make_op("constant", (), attrs, locations=self.op.locations)
        return self.here.clone(made, (), ())[0]

    def merge(self, start: Value) -> Value:
        """What starts as `start` outside, in every iteration."""
        entered = self.enter(start, constant=False)
        where = self.op.locations
        return self.lowering.builder.emit("merge", [entered], {"loop": True}, locations=where)[0]

    def lower(self, operands: Sequence[Value]) -> list[Value]:
        """Emit the loop; its results."""
        op, at = self.op, self.op.locations
        test, body = op.regions
        count = int_attr(op.attrs, "carries")
        starts = list(operands[:count])
        if self.limit >= 0 or not count:
            starts.append(self.constant(0))
        used = used_args(test) | used_args(body)
        merged = [self.merge(v) for v in starts]
        rest = [self.enter(v) if i in used else v for i, v in enumerate(operands[count:], count)]
        known = known_keys(body, [*merged[:count], *rest])
        keys = dict.fromkeys(key for inner in body.ops for key in host_keys(inner, known))
        chains = {key: self.merge(self.constant(True)) for key in keys}
        turning = [*merged, *chains.values()]  # not the rest, which is there before its iteration
        testing = Place(self.lowering.builder, self.here, lambda: merged[0], self.enter, turning)
        decision = self.test(testing, [*merged[:count], *rest], merged[-1], chains)
        switches = Switches(testing, decision, (), at)
        self.body(testing, switches, merged, rest, chains)
        left = merged[:count] or merged
        last = [switches.get(v, False) for v in chains.values()]
        return [self.here.emit("exit", [switches.get(v, False)], at, control=last)[0] for v in left]

    def body(
        self,
        testing: Place,
        switches: Switches,
        merged: Sequence[Value],
        rest: Sequence[Value],
        chains: Mapping[StateKey, Value],
    ) -> None:
        """Emit the body, and what goes on to the next iteration."""
        at, region = self.op.locations, self.op.regions[1]
        count = int_attr(self.op.attrs, "carries")
        inside = [switches.get(v, True) for v in merged]
        links = {key: switches.get(v, True) for key, v in chains.items()}
        anchored = [*inside, *links.values()]
        body = Place(testing.builder, self.here, switches.pivot(True), self.enter, anchored)
        results, effects = self.lowering.block(body, region, [*inside[:count], *rest], links)
        if len(merged) > count:
            one = self.enter(self.constant(1))
            results.append(body.emit("add", [inside[count], one], at)[0])
        after = [e.value for e in effects if e.keys - e.hosts or not e.keys]
        for value, merge in zip(results, merged, strict=True):
            body.emit("next_iteration", [body.pinned(value, at), merge], at, control=after)
        for key, merge in chains.items():
            own = [e.value for e in effects if key in e.keys]
            body.emit("next_iteration", [links[key], merge], at, control=own)

    def test(
        self,
        place: Place,
        args: Sequence[Value],
        counter: Value,
        chains: Mapping[StateKey, Value],
    ) -> Value:
        """The predicate by which the loop goes on.

        At the limit the test itself must not run if that can be told, as by an index out of bounds.
        """
        test, at = self.op.regions[0], self.op.locations
        if self.limit < 0:
            (going,), effects = self.lowering.block(place, test, args, chains)
            return place.emit("loop_cond", [going], at, control=[e.value for e in effects])[0]
        limit = self.enter(self.constant(self.limit))
        (within,) = place.emit("less", [counter, limit], at)
        if all(_harmless(o) for o in test.ops):
            (going,), _ = self.lowering.block(place, test, args)
            (going,) = place.emit("logical_and", [within, going], at)
            return place.emit("loop_cond", [going], at)[0]
        switches = Switches(place, within, (), at)
        used = used_args(test)
        given = [switches.get(v, True) if i in used else v for i, v in enumerate(args)]
        inner = Place(
            self.lowering.builder, place, switches.pivot(True), None, [given[i] for i in used]
        )
        links = {key: switches.get(v, True) for key, v in chains.items()}
        (going,), effects = self.lowering.block(inner, test, given, links)
        sides = [switches.get(within, False), going]  # the first is false there
        (going, _) = place.emit("merge", sides, at, control=[e.value for e in effects])
        return place.emit("loop_cond", [going], at)[0]


def known_keys(block: Block, args: Sequence[Value]) -> dict[Value, StateKey]:
    """What the arguments of a block that are refs or handles stand for, given what they become."""
    pairs = zip(block.args, args, strict=True)
    return {arg: state_key(v) for arg, v in pairs if isinstance(arg.type, _HANDLES)}


def _harmless(op: Operation) -> bool:
    """Whether nobody can tell if the op ran: it has no effect and cannot fail."""
    traits = lookup(op.name).traits
    return op.name == "constant" or bool(traits & {"elementwise", "reduction"})
