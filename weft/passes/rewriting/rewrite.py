"""Block rewriting: rebuild a block op by op, sharing everything that did not change.

Ops and values are immutable, so a pass returns new `Block`s that hold the old `Operation` objects
wherever operands stayed the same, and the very same `Graph` object where nothing changed at all.

A graph that is not placed yet may say of an op where it is to run, by a device or a group. What
replaces such an op is there, too, and no rule looks at it from an op that is elsewhere: a slice of
a slice on another device stays one, or all that the first one cut off would be sent.

`in_regions` runs a pass on the bodies of branches and loops, each as a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from weft.ir.analysis.effects import INERT, accesses
from weft.ir.analysis.known_values import constant_of
from weft.ir.dims import Shape
from weft.ir.errors import InternalError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations, merge_locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL
from weft.ir.spec import AttrValue
from weft.ir.types import TensorType

#: A local rule: given an op whose operands are final, append what computes its results to the
#: builder and return them, or return None to keep the op.
Rule = Callable[[Builder, Operation], Sequence[Value] | None]


def rewrite(graph: Graph, rule: Rule, *, anywhere: bool = False) -> Graph:
    """Apply `rule` once to every op, in order, also inside regions; same object if none applies.

    Replacements must have the types of what they replace (InternalError names the op otherwise).
    Ops with effects, and ops that take part in the effect order, are kept as they are, and so is
    an op whose replacement would not be where it is to run (see the module's text), unless it may
    be `anywhere`: the op computes nothing.
    """
    return with_block(graph, rewrite_block(graph.block, rule, anywhere=anywhere))


def rewrite_block(block: Block, rule: Rule, *, anywhere: bool = False) -> Block:
    """`rewrite` for one block."""
    ordering = {v for op in block.ops for v in op.control}
    bound = not anywhere and any(op.device or op.group for op in block.ops)
    builder = extend(block)
    mapping: dict[Value, Value] = {}
    for op in block.ops:
        regions = op.regions and tuple(
            rewrite_block(r, rule, anywhere=anywhere) for r in op.regions
        )
        new = with_operands(op, mapping, regions)
        results: Sequence[Value] | None = None
        start = len(builder.ops)
        ordered = not ordering.isdisjoint(op.results)
        if not (op.control or ordered or has_effect(op)):
            results = rule(builder, new)
            if bound and results is not None and not _put(new, builder.ops[start:], results):
                results = None
        if results is None:
            if len(builder.ops) > start:
                del builder.ops[start:]  # what the rule began and gave up
            builder.ops.append(new)
            results = new.results
        bind(mapping, op, results)
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


#: So many ops behind the one that a rule is given are looked at.
_MOST_BEHIND = 64


def _put(op: Operation, made: Sequence[Operation], results: Sequence[Value]) -> bool:
    """Put what a rule has made of `op` where that is to run. False if the results are values that
    are made elsewhere, or the rule has looked behind ops that are."""
    new = set(made)
    given = [v for v in results if v.op not in new]
    if op.device or op.group:
        for value in given:
            if value.op is None or not (same_place(value.op, op) or value.op.name == "constant"):
                return False
    read = (v for o in made for v in o.operands if v.op not in new)
    far = {v for v in (*given, *read) if constant_of(v) is None}.difference(op.operands)
    if far and not far <= _behind(op):
        return False
    for one in made:  # constants are where they are needed
        if one.name != "constant" or one.result in results:
            placed_as(op, one)
    return True


def _behind(op: Operation) -> set[Value]:
    """What `op` is made of, as far as that is done by ops that are to run where it does."""
    ops, found = [op], set(op.operands)
    for one in ops:  # breadth first
        for value in one.operands:
            found.add(value)
            made = value.op
            if made is not None and len(ops) < _MOST_BEHIND and same_place(made, op):
                ops.append(made)
    return found


def same_place(a: Operation, b: Operation) -> bool:
    """Whether two ops are to run on the same device and in the same group, as far as is said."""
    return a.device == b.device and a.group == b.group


def extend(block: Block) -> Builder:
    """A builder with the arguments of `block` and no ops yet."""
    builder = Builder()
    builder.args = list(block.args)
    return builder


def bind(mapping: dict[Value, Value], op: Operation, results: Sequence[Value]) -> None:
    """Note in `mapping` what stands for the results of `op` from now on. Checks the types."""
    if results is op.results:
        return
    for old, new in zip(op.results, results, strict=True):
        if old is new:
            continue
        if old.type != new.type:
            raise InternalError(
                f"a pass replaced op '{op.name}' of type {old.type} by a {new.type}",
                location=op.locations,
            )
        mapping[old] = new


def with_operands(
    op: Operation, mapping: Mapping[Value, Value], regions: tuple[Block, ...] | None = None
) -> Operation:
    """`op` with its operands mapped and other regions; itself if nothing changes."""
    regions = op.regions if regions is None else regions
    if not op.control and regions == op.regions:  # nearly all ops: nothing is made for them
        for value in op.operands:
            if value in mapping:
                break
        else:
            return op
    operands = tuple(mapping.get(v, v) for v in op.operands)
    control = tuple(dict.fromkeys(mapping.get(v, v) for v in op.control))
    if operands == op.operands and control == op.control and regions == op.regions:
        return op
    types = [r.type for r in op.results]
    made = Operation(op.name, operands, op.attrs, types, regions, control, op.locations)
    return placed_as(op, made)


def with_control(op: Operation, control: Sequence[Value]) -> Operation:
    """`op` with other control operands; itself if they are the same."""
    if tuple(control) == op.control:
        return op
    types = [r.type for r in op.results]
    made = Operation(op.name, op.operands, op.attrs, types, op.regions, control, op.locations)
    return placed_as(op, made)


def rebuilt(block: Block, ops: Sequence[Operation], results: Sequence[Value]) -> Block:
    """`block` with other ops and results; the same object if they are the same."""
    if tuple(ops) == block.ops and tuple(results) == block.results:
        return block
    return Block(block.args, tuple(ops), tuple(results))


def relocate(block: Block, merged: Mapping[Operation, Sequence[Locations]]) -> Block:
    """`block` in which the ops that now stand for several have the locations of all of them."""
    if not merged:
        return block
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    for op in block.ops:
        new = with_operands(op, mapping)
        if op in merged:
            new = with_locations(new, merge_locations(op.locations, *merged[op]))
        bind(mapping, op, new.results)
        ops.append(new)
    return rebuilt(block, ops, [mapping.get(v, v) for v in block.results])


def with_locations(op: Operation, locations: Locations) -> Operation:
    """`op` with other source locations; itself if they are the same."""
    if locations == op.locations:
        return op
    types = [r.type for r in op.results]
    made = Operation(op.name, op.operands, op.attrs, types, op.regions, op.control, locations)
    return placed_as(op, made)


def placed_as(op: Operation, made: Operation) -> Operation:
    """`made`, which is new, with the device and the group of `op`."""
    made.device, made.group = op.device, op.group
    return made


def with_block(graph: Graph, block: Block) -> Graph:
    """`graph` around another top block; the same object if the block is the same."""
    return graph if block is graph.block else replace(graph, block=block)


def fixed_point(graph: Graph, step: Callable[[Graph], Graph], limit: int = 100) -> Graph:
    """Apply `step` until it changes nothing. InternalError if it still does after `limit` times."""
    for _ in range(limit):
        new = step(graph)
        if new is graph:
            return graph
        graph = new
    raise InternalError(f"a pass over graph '{graph.name}' does not come to rest")


def emit_at(
    builder: Builder, op: Operation, name: str, *operands: Value, **attrs: AttrValue
) -> Value:
    """Append an op with one result that has the source locations of `op`, to run where it does."""
    made = builder.emit1(name, *operands, locations=op.locations, **attrs)
    if made.op is not None and name != "constant":  # those are where they are needed
        placed_as(op, made.op)
    return made


def tensor(value: Value) -> TensorType:
    """The type of a value that must be a tensor."""
    if not isinstance(value.type, TensorType):
        raise InternalError(f"{value!r} is not a tensor")
    return value.type


def shape_of(value: Value) -> Shape:
    """The shape of a tensor value."""
    return tensor(value).shape


def readers_of(graph: Graph) -> dict[Value, list[Operation | None]]:
    """Who uses each value, as an operand or to be ordered after it, once each; None: it is a result
    of the graph."""
    readers: dict[Value, list[Operation | None]] = {}
    for op in graph.ops:
        for value in dict.fromkeys((*op.operands, *op.control)):
            readers.setdefault(value, []).append(op)
    for value in graph.results:
        readers.setdefault(value, []).append(None)
    return readers


def is_view(op: Operation) -> bool:
    """Whether the result may share its operand's buffer."""
    return "view" in lookup(op.name).traits


def behind_views(value: Value) -> Value:
    """The value that `value` is a view of, through any number of views; itself if it is none."""
    while value.op is not None and is_view(value.op):
        value = value.op.operands[0]
    return value


def has_effect(op: Operation) -> bool:
    """Whether the op reads or writes state, or must run for another reason than its results."""
    if not (op.regions or _may_have_effect(op.name)):
        return False
    return must_run(op) or any(True for _ in accesses(op))


@cache
def _may_have_effect(name: str) -> bool:
    return bool(lookup(name).traits & {"no_dce", "reads_state", "writes_state"})


@cache
def _always_runs(name: str) -> bool:
    return "no_dce" in lookup(name).traits


def must_run(op: Operation) -> bool:
    """Whether the op stays even if nobody uses its results."""
    if _always_runs(op.name):
        return True
    if not op.regions or op.name in INERT:
        return False
    return any(must_run(inner) for region in op.regions for inner in region.ops)


def in_regions(graph: Graph, run: Callable[[Graph], Graph]) -> Graph:
    """`run` on every region of `cond`, `while` and `scan`, each of which becomes its op's own.

    `run` is called with the regions as graphs at the stage of `graph`; it sees to their own regions
    itself. The result has the stage of `graph`.
    """
    if not any(op.name in CONTROL for op in graph.ops):
        return graph
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    for op in graph.ops:
        made = builder.clone(_on_regions(op, graph.stage, run), mapping)
        mapping.update(zip(op.results, made, strict=True))
    results = [mapping[v] for v in graph.results]
    return builder.graph(graph.name, graph.arg_names, results, graph.stage)


def _on_regions(op: Operation, stage: str, run: Callable[[Graph], Graph]) -> Operation:
    if op.name not in CONTROL:
        return op
    regions = [_run_on(block, op, stage, run) for block in op.regions]
    types = [r.type for r in op.results]
    made = Operation(op.name, op.operands, op.attrs, types, regions, op.control, op.locations)
    return placed_as(op, made)


def _run_on(block: Block, op: Operation, stage: str, run: Callable[[Graph], Graph]) -> Block:
    names = tuple(f"a{k}" for k in range(len(block.args)))
    return run(Graph(f"{op.name} body", block, names, stage)).block


def copy_needed(
    builder: Builder, body: Block, results: Sequence[Value], mapping: dict[Value, Value]
) -> None:
    """Copy the ops that the results need, up to what `mapping` has already, and note the copies."""
    known = set(mapping)
    needed = set(results)
    for op in reversed(body.ops):
        if any(r in needed and r not in known for r in op.results):
            needed.update(op.operands)
    for op in body.ops:
        if any(r in needed and r not in known for r in op.results):
            for old, new in zip(op.results, builder.clone(op, mapping), strict=True):
                mapping.setdefault(old, new)
