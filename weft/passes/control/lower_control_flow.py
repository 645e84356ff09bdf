"""Lowering of control flow: `cond`, `while` and `scan` become switch, merge and frames.

The dataflow executor runs these. Before::

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

A `scan` is lowered as a while on (i, carries, stacks) that counts, takes `gather_nd(%xs, i)` for a
row and gives `scatter_nd_update(stack, i, %3)` (`scan_to_while`; with reverse, i counts down from
the last row). Bits are the same: rows are moved, nothing is computed otherwise.

Which ops are lowered (`decide`): all of them, or those that native code cannot hold. Native code
runs a branch or loop faster than the dataflow executor does. So of its own accord the compiler
lowers only bodies with ops of the host, or that read and write variables themselves, and what is
around those.

`unroll`, before that and after fusion: native code keeps the values of a loop on small arrays in
registers, one for each element, and adds them up one after another; a kernel of its own would do so
in the lanes of vectors. Before, in the loop's body::

    %2 = fused(%0) {kind="multiply_sum"} : f32[] { ... }

After::

    %2 = unrolled(%0) : f32[] {
      ^(%a0: f32[4])
      %0 = fused(%a0) {kind="multiply_sum"} : f32[] { ... }
      yield %0
    }

So the lowered loop has the bits of the native one. What only goes through elements one by one has
its bits anyway."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import numpy as np

from weft.ir.analysis.effects import (
    StateKey,
    accesses,
    effect_keys,
    host_keys,
    is_open_call,
    runs_on_host,
    state_key,
)
from weft.ir.analysis.frames import find_frames, is_dataflow
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import string
from weft.ir.errors import UnsupportedError
from weft.ir.graph import WITH_DEAD_VALUES, Block, Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder, make_op
from weft.ir.ops.control_flow import CONTROL
from weft.ir.spec import Attrs, AttrValue, ConstArray, int_attr
from weft.ir.types import HandleType, RefType, TensorType, Type
from weft.passes.control.loops import Loop
from weft.passes.control.lower_stacks import lower_stacks
from weft.passes.rewriting.rewrite import has_effect, rebuilt, rewrite, with_block, with_operands
from weft.passes.simplify.effects import strip_mark
from weft.passes.sizes import telling

#: What `mode` may be: lower what must be, all that can be, nothing.
MODES = ("auto", "dataflow", "native")
_NONE: Mapping[Operation, str] = {}


def lowering_reasons(graph: Graph, mode: str = "auto") -> list[tuple[Operation, bool, str]]:
    """Each `cond`, `while` and `scan` of a graph, nested ones too, in order of the text: whether it
    becomes Switch and Merge, and why, in words."""
    whole = carried_updates(graph.block) if mode == "dataflow" else {}
    return list(_reasons(graph.block, mode, None, whole))


def _reasons(
    block: Block, mode: str, kept: Operation | None, whole: Mapping[Operation, str] = _NONE
) -> Iterator[tuple[Operation, bool, str]]:
    for op in block.ops:
        if op.name not in CONTROL:
            continue
        if kept is not None:
            lowered, why = False, f"is in op '{kept.name}'{_at(kept)}, which stays native"
        else:
            lowered, why = (False, whole[op]) if op in whole else decide(op, mode)
        yield op, lowered, why
        for region in op.regions:
            yield from _reasons(region, mode, None if lowered else kept or op)


def decide(op: Operation, mode: str) -> tuple[bool, str]:
    """Whether a `cond`, `while` or `scan` becomes Switch and Merge if what is around it does."""
    if mode == "native":
        return False, "control_flow='native'"
    if op.name == "scan" and not isinstance(op.attrs["length"], int):
        return False, "how many iterations there are is known only when it runs"
    if mode == "dataflow":
        return True, "control_flow='dataflow'"
    inside = next((o for r in op.regions for o in Block.walk(r) if _needs_executor(o)), None)
    if inside is not None:
        what = "runs on the host" if runs_on_host(inside) else "acts on a variable each time"
        return True, f"op '{inside.name}' in it{_at(inside)} {what}"
    if executor_only((op,)) is not None:
        what = "takes a handle" if _takes_handle(op) else "takes or gives strings"
        return True, f"it {what}, which native branches and loops do not"
    return False, "nothing in it needs the executor, and native code is faster"


def carried_updates(block: Block) -> dict[Operation, str]:
    """The branches and loops that update variables, read before them and assigned after them, and
    why they stay native whatever the mode is: lowered, they would lie in other regions than the
    read and the assignment, and other steps could change the variable in between."""
    starts: dict[Operation, set[str | Value]] = {}
    for op in block.ops:
        if op.name in CONTROL and executor_only((op,)) is None:
            reads = (v.op for v in op.operands if v.op is not None and v.op.name == "read")
            starts[op] = {state_key(read.operands[0]) for read in reads}
    found: dict[Operation, str] = {}
    for op in block.ops:
        made = op.operands[1].op if op.name == "assign" else None
        if made is not None and state_key(op.operands[0]) in starts.get(made, ()):
            name = state_key(op.operands[0])
            found[made] = f"it updates variable '{name}', which no other step may do meanwhile"
    return found


def _needs_executor(op: Operation) -> bool:
    return not op.regions and (runs_on_host(op) or any(True for _ in accesses(op)))


def executor_only(ops: Iterable[Operation], allowed: Container[str] = ()) -> Operation | None:
    """The first op, regions included, that no native loop or branch of a session's step can hold;
    None if all can be there. allowed: names of calls of Python that are held all the same."""
    for op in ops:
        if op.name in allowed and not is_open_call(op):
            continue
        for region in op.regions:
            found = executor_only(region.ops, allowed)
            if found is None and op.name in CONTROL:
                found = next((o for o in region.ops if any(True for _ in accesses(o))), None)
            if found is not None:
                return found
        if runs_on_host(op) or (op.name in CONTROL and _takes_handle(op)):
            return op
    return None


def _takes_handle(op: Operation) -> bool:
    return any(isinstance(v.type, (HandleType, RefType)) for v in op.operands)


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""


class InsertionPoint:
    """Where ops are emitted: the top, a branch, or a loop's test or body.

    outer: the place around the branch or loop. pivot: makes the value that is live if and only if
    this place runs (None: it always does). enter: in a loop, brings a value of `outer` in. after:
    at the top, what ops come after that nothing else puts into the frame of the op being lowered.
    """

    def __init__(
        self,
        builder: Builder,
        outer: InsertionPoint | None = None,
        pivot: Callable[[], Value] | None = None,
        enter: Callable[[Value], Value] | None = None,
        anchored: Sequence[Value] = (),
    ) -> None:
        self.builder = builder
        self.outer = outer
        self.enter = enter
        self._make_pivot = pivot
        self._pivot: Value | None = None
        self.after: tuple[Value, ...] = ()
        self.anchored: set[Value] = set()  # live only if this place runs
        self._anchor(anchored)

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        locations: Locations,
        attrs: Attrs | None = None,
        control: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        """Append a new op."""
        control = self._pinned(operands, control)
        made = self.builder.emit(name, operands, attrs, control=control, locations=locations)
        self._anchor(made)
        return made

    def clone(
        self, op: Operation, operands: Sequence[Value], control: Sequence[Value]
    ) -> tuple[Value, ...]:
        """Append a copy of `op`; in a loop, what depends on nothing is made once, outside."""
        if self.enter is not None and self.outer is not None and _hoistable(op):
            made = self.outer.clone(op, (), ())
            return tuple(self.enter(v) for v in made)
        control = self._pinned(operands, control)
        if not (operands or control):
            control = self.after
        types = [r.type for r in op.results]
        new = Operation(op.name, operands, op.attrs, types, op.regions, control, op.locations)
        new.device, new.group = op.device, op.group
        self.builder.ops.append(new)
        self._anchor(new.results)
        return new.results

    def pinned(self, value: Value, locations: Locations) -> Value:
        """`value`, made to depend on this place."""
        if self._make_pivot is None or value in self.anchored:
            return value
        return self.emit("identity", [value], locations)[0]

    def _pinned(self, operands: Sequence[Value], control: Sequence[Value]) -> tuple[Value, ...]:
        """The control operands with which an op on `operands` depends on this place."""
        control = tuple(dict.fromkeys(v for v in control if v not in operands))
        if self._make_pivot is None or any(v in self.anchored for v in (*operands, *control)):
            return control
        if self._pivot is None:
            self._pivot = self._make_pivot()
        return (*control, self._pivot)

    def _anchor(self, values: Sequence[Value]) -> None:
        place: InsertionPoint | None = self
        while place is not None:  # what runs only in a branch runs only where that stands
            if place._make_pivot is not None:
                place.anchored.update(values)
            place = place.outer


def _hoistable(op: Operation) -> bool:
    """Whether an op gives the same in every iteration, and only costs its result."""
    if op.operands or op.control or op.regions or has_effect(op):
        return False
    return "no_cse" not in lookup(op.name).traits


class Switches:
    """The switches of one branch or body, each made when it is first asked for."""

    def __init__(
        self, place: InsertionPoint, pred: Value, control: Sequence[Value], locations: Locations
    ) -> None:
        self.place = place
        self.pred = pred
        self.control = control
        self.locations = locations
        self._made: dict[Value, tuple[Value, ...]] = {}

    def get(self, value: Value, side: bool) -> Value:
        """`value` where the predicate is `side`."""
        if value not in self._made:
            self._made[value] = self.place.emit(
                "switch", [value, self.pred], self.locations, control=self.control
            )
        return self._made[value][side]

    def pivot(self, side: bool) -> Callable[[], Value]:
        """Makes the pivot of one side."""

        def make() -> Value:
            switched = self.get(self.pred, side)
            return self.place.emit("identity", [switched], self.locations)[0]

        return make


def used_args(region: Block) -> set[int]:
    """The numbers of the arguments that a region uses."""
    used = {v for op in region.ops for v in (*op.operands, *op.control)} | set(region.results)
    return {i for i, arg in enumerate(region.args) if arg in used}


def scan_to_while(op: Operation) -> Block:
    """What makes the starts, and at last a `while`, the results of which after the first are those
    of the scan; on the operands of `op`."""
    loop, where = Loop.of(op), op.locations
    builder = Builder([v.type for v in op.operands])
    operands = builder.args
    length = int_attr(op.attrs, "length")
    reverse = bool(op.attrs["reverse"])
    stacks = [op.results[i].type for i in loop.ys]
    first = length - 1 if reverse else 0
    starts = [_number(builder, op, first), *operands[: loop.carries]]
    starts += [_empty(builder, op, t, operands) for t in stacks]
    types = [*(v.type for v in starts), *(v.type for v in operands[loop.carries :])]
    test = _test(op, types, -1 if reverse else length, reverse)
    body = _body(op, loop, types, len(stacks), reverse)
    attrs: dict[str, AttrValue] = {
        "carries": len(starts), "limit": -1, "parallel_iterations": 10,
    }  # fmt: skip
    given = [*starts, *operands[loop.carries :]]
    made = builder.emit("while", given, attrs, regions=(test, body), locations=where)
    return builder.block(made[1:])


def _number(builder: Builder, op: Operation, number: int) -> Value:
    value = ConstArray(np.array(number, np.int64))
    return builder.emit1("constant", value=value, locations=op.locations)


def _empty(builder: Builder, op: Operation, kind: Type, given: Sequence[Value]) -> Value:
    """Where the rows of a result will be: zeros, as long as nothing is written. given: which may
    tell its sizes."""
    assert isinstance(kind, TensorType)
    zero = np.array(b"", object) if kind.dtype is string else np.zeros((), kind.dtype.numpy)
    scalar = builder.emit1("constant", value=ConstArray(zero), locations=op.locations)
    (made,) = builder.emit(
        "broadcast_to", [scalar], {"shape": kind.shape}, control=telling(kind, given),
        locations=op.locations,
    )  # fmt: skip
    return made


def _test(op: Operation, types: Sequence[Type], end: int, reverse: bool) -> Block:
    builder = Builder(types)
    bound = _number(builder, op, end)
    name = "greater" if reverse else "less"
    return builder.block(builder.emit(name, [builder.args[0], bound], locations=op.locations))


def _body(op: Operation, loop: Loop, types: Sequence[Type], stacks: int, reverse: bool) -> Block:
    builder, where = Builder(types), op.locations
    count, *rest = builder.args
    carries, written = rest[: loop.carries], rest[loop.carries : loop.carries + stacks]
    given = rest[loop.carries + stacks :]
    place = count
    if loop.rows or stacks:
        place = builder.emit1("reshape", count, shape=(1,), locations=where)
    rows = [builder.emit1("gather_nd", x, place, locations=where) for x in given[: loop.rows]]
    mapping = dict(zip(loop.body.args, [*carries, *rows, *given[loop.rows :]], strict=True))
    for inner in loop.body.ops:
        mapping.update(zip(inner.results, builder.clone(inner, mapping), strict=True))
    found = [mapping[v] for v in loop.body.results]
    pairs = zip(written, found[loop.carries :], strict=True)
    ys = [
        builder.emit1("scatter_nd_update", stack, place, y, locations=where) for stack, y in pairs
    ]
    step = _number(builder, op, -1 if reverse else 1)
    following = builder.emit1("add", count, step, locations=where)
    return builder.block([following, *found[: loop.carries], *ys])


def unroll(graph: Graph, is_unrolled: Callable[[Operation], bool]) -> Graph:
    """`graph` with sums and products of matrices in `unrolled` ops, in the loops that
    `is_unrolled`; the same object if there are none."""
    return with_block(graph, _block(graph.block, is_unrolled, inside=False))


def _block(block: Block, is_unrolled: Callable[[Operation], bool], inside: bool) -> Block:
    builder = Builder()
    builder.args = list(block.args)
    mapping: dict[Value, Value] = {}
    for op in block.ops:
        new = with_operands(op, mapping)
        if op.name in CONTROL:
            within = inside or is_unrolled(op)
            regions = tuple(_block(r, is_unrolled, within) for r in op.regions)
            new = with_operands(op, mapping, regions)
        elif inside and _folds(op):
            new = _unrolled(new)
        builder.ops.append(new)
        mapping.update((a, b) for a, b in zip(op.results, new.results, strict=True) if a is not b)
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


def _folds(op: Operation) -> bool:
    """Whether the order in which an op, or one in its nest, adds up is the code generator's."""
    inner = op.regions[0].ops if op.name == "fused" else (op,)
    return any(o.name == "matmul" or "reduction" in lookup(o.name).traits for o in inner)


def _unrolled(op: Operation) -> Operation:
    inner = Builder([v.type for v in op.operands])
    (*made,) = inner.clone(op, dict(zip(op.operands, inner.args, strict=True)))
    types = [r.type for r in op.results]
    region = inner.block(made)
    return Operation("unrolled", op.operands, {}, types, (region,), op.control, op.locations)


_GRADIENT_ONLY = ("stop_gradient", "tap", "loop_mark", "row_guard", "custom_gradient")
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
    results, _ = lowering.block(InsertionPoint(builder), graph.block, builder.args)
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
        place: InsertionPoint,
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
        place: InsertionPoint,
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
        self,
        here: InsertionPoint,
        op: Operation,
        operands: Sequence[Value],
        control: Sequence[Value],
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
            place = InsertionPoint(self.builder, here, switches.pivot(side), None, anchored)
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
        self,
        here: InsertionPoint,
        op: Operation,
        operands: Sequence[Value],
        control: Sequence[Value],
    ) -> list[Value]:
        """The results of a while, or one value that comes after its effects."""
        return _Loop(self, here, op, control).lower(operands)

    def scan(
        self,
        here: InsertionPoint,
        op: Operation,
        operands: Sequence[Value],
        control: Sequence[Value],
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
        self, lowering: _Lowering, here: InsertionPoint, op: Operation, control: Sequence[Value]
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
        testing = InsertionPoint(
            self.lowering.builder, self.here, lambda: merged[0], self.enter, turning
        )
        decision = self.test(testing, [*merged[:count], *rest], merged[-1], chains)
        switches = Switches(testing, decision, (), at)
        self.body(testing, switches, merged, rest, chains)
        left = merged[:count] or merged
        last = [switches.get(v, False) for v in chains.values()]
        return [self.here.emit("exit", [switches.get(v, False)], at, control=last)[0] for v in left]

    def body(
        self,
        testing: InsertionPoint,
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
        body = InsertionPoint(
            testing.builder, self.here, switches.pivot(True), self.enter, anchored
        )
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
        place: InsertionPoint,
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
        inner = InsertionPoint(
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
