"""The verifier: checks that a graph obeys the rules of the IR, and shows it with its faults marked.

The rules: SSA form with isolated regions; operands, attributes and types as the op table says;
control operands that order something; state accesses ordered by paths (`effects`); ops legal at the
graph's stage (`LEGALITY`); source locations kept. Where dead values may run through a graph: frames
that match (`frames`), and results that have a value in some run (`deadness`). A part of a
partitioned graph is in order if the whole is: of what may be dead, and of effects, it alone does
not say enough.

On locations: either every op of a graph, nested ones included, has some, or none has. A graph
parsed from text without locations is whole; a graph in which only some ops know where they come
from has been through a pass that lost them.

Each stage of `graph.STAGES` promises something to the code that comes after it, as one table
(`LEGALITY`): from "optimized" on there are no ops that only mean something to autodiff; from
"fused" on there are loop nests. At "dataflow" branches and loops may be ops that dead values run
through; the passes before that stage move ops by their data alone, which would lose what decides
whether they are dead. At "partitioned" a graph is the part of one device, with sends and receives
in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.ir.analysis.deadness import Deadness, double_merges, impossible_results
from weft.ir.analysis.effects import Access, StateKey, overlapping, region_keys, unordered
from weft.ir.analysis.frames import find_frames, is_dataflow
from weft.ir.dataclass import dataclass
from weft.ir.errors import VerifyError, WeftError
from weft.ir.graph import STAGES, WITH_DEAD_VALUES, Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.control_flow import COMMUNICATION, DATAFLOW
from weft.ir.ops.state import UPDATES
from weft.ir.program import Program
from weft.ir.spec import ConstArray, complete_attrs, int_attr
from weft.ir.text.printer import print_graph
from weft.ir.types import RefType, TensorType, TokenType, Type


@dataclass(frozen=True, slots=True)
class Legality:
    """Where an op is legal. stages: those in which it may be. in_nest: whether it may be inside the
    region of a `fused` op."""

    stages: tuple[str, ...] = STAGES
    in_nest: bool = True


_TRACED = STAGES[:1]
_FROM_FUSED = STAGES[2:]
_DATAFLOW = WITH_DEAD_VALUES

#: Ops whose region is one kernel.
KERNELS = frozenset({"fused", "unrolled"})

#: Ops that are not in the table may be anywhere. The region of a `fused` op is one loop nest: it
#: has no state, no effects and no nest in it.
LEGALITY: Mapping[str, Legality] = {
    # dataflow: pivots, and marks in what users built with switch and merge
    "identity": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "stop_gradient": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "tap": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "row_guard": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "loop_mark": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "optimization_barrier": Legality(in_nest=False),
    **{name: Legality(_TRACED, in_nest=False) for name in sorted(COLLECTIVES)},
    "custom_gradient": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "custom_rule": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "fused": Legality(_FROM_FUSED, in_nest=False),
    "unrolled": Legality(_FROM_FUSED, in_nest=False),
    "variable": Legality(in_nest=False),
    "read": Legality(in_nest=False),
    "assign": Legality(in_nest=False),
    **{name: Legality((*_TRACED, *_DATAFLOW), in_nest=False) for name in sorted(UPDATES)},
    "group": Legality(in_nest=False),
    "cond": Legality(in_nest=False),
    "while": Legality(in_nest=False),
    "scan": Legality(in_nest=False),
    "stack_new": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "stack_push": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "stack_pop": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "stack_add": Legality((*_TRACED, *_DATAFLOW), in_nest=False),
    "arena_push": Legality(in_nest=False),
    "arena_pop": Legality(in_nest=False),
    "arena_add": Legality(in_nest=False),
    **{name: Legality(_DATAFLOW, in_nest=False) for name in sorted(DATAFLOW)},
    **{name: Legality(("partitioned",), in_nest=False) for name in sorted(COMMUNICATION)},
}
ANYWHERE = Legality()


def illegal(name: str, stage: str, in_nest: bool) -> str | None:
    """Why op `name` may not be in a graph of `stage` (in a `fused` op or not); None if it may."""
    rule = LEGALITY.get(name, ANYWHERE)
    if stage not in rule.stages:
        return f"is not legal at stage '{stage}', only at: {', '.join(rule.stages)}"
    if in_nest and not rule.in_nest:
        return "is not legal inside the region of a 'fused' op"
    return None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a graph: what is wrong, and at which op; `op` is None for a fault of the graph's
    inputs or results."""

    op: Operation | None
    what: str

    def __str__(self) -> str:
        return self.what if self.op is None else f"op '{self.op.name}': {self.what}"


def verify(graph: Graph) -> None:
    """Raise VerifyError, with the graph's text and every fault under its op, unless it has none."""
    faults = find_faults(graph)
    if faults:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise VerifyError(
            f"graph '{graph.name}' breaks a rule of the IR{more}: {first}\n{marked(graph, faults)}",
            location=() if first.op is None else first.op.locations,
        )


def verify_program(program: Program) -> None:
    """As `verify` for each part; VerifyError too where parts do not fit together: a message that is
    not sent once and received once, by the parts that its ops name and as one type, results that no
    part or several give, arguments of different types."""
    for part in program.parts:
        verify(part.graph)
    if program.is_whole:
        return
    fault = next(_unfit(program), None)
    if fault is not None:
        what, op = fault
        raise VerifyError(
            f"the parts of '{program.name}' do not fit together: {what}",
            location=() if op is None else op.locations,
        )


def _unfit(program: Program) -> Iterator[tuple[str, Operation | None]]:
    """What is wrong between parts, and at which op."""
    names = [part.device for part in program.parts]
    for name in names:
        if names.count(name) > 1 or not name:
            yield f"{names.count(name)} parts are on the device '{name}'", None
    given = [number for part in program.parts for number in part.fetches]
    if sorted(given) != list(range(len(given))):
        yield f"they give the results {sorted(given)}, not each one once", None
    types: dict[int, Type] = {}
    for part in program.parts:
        for number, arg in zip(part.feeds, part.graph.args, strict=True):
            if types.setdefault(number, arg.type) != arg.type:
                yield f"argument {number} is {types[number]} and {arg.type}", None
    yield from _unmatched(program)


def _unmatched(program: Program) -> Iterator[tuple[str, Operation | None]]:
    """What is wrong with messages."""
    ends: dict[str, dict[int, Operation]] = {"send": {}, "recv": {}}
    for part in program.parts:
        for op in part.graph.ops:
            if op.name in ends:
                key, own = int_attr(op.attrs, "key"), "src" if op.name == "send" else "dst"
                if key in ends[op.name]:
                    yield f"two ops '{op.name}' have the key {key}", op
                if op.attrs[own] != part.device:
                    yield f"'{op.name}' of key {key} on {part.device} says {op.attrs[own]}", op
                ends[op.name][key] = op
    sends, receives = ends["send"], ends["recv"]
    for key in sorted(sends.keys() | receives.keys()):
        if key not in receives:
            yield f"nobody receives what is sent by the key {key}", sends[key]
        elif key not in sends:
            yield f"nobody sends what is received by the key {key}", receives[key]
        else:
            send, receive = sends[key], receives[key]
            for name in ("tensor", "src", "dst"):
                if send.attrs[name] != receive.attrs[name]:
                    what = f"{send.attrs[name]!r} and {receive.attrs[name]!r}"
                    yield f"the message of key {key} has two values of '{name}': {what}", receive
            sent, came = send.operands[0].type, receive.result.type
            if sent != came:
                yield f"the message of key {key} is sent as {sent} and received as {came}", receive


def find_faults(graph: Graph) -> list[Fault]:
    """Every fault of `graph`, in the order of its ops (effects: only of blocks else sound)."""
    return _Verifier(graph).run()


def marked(graph: Graph, faults: list[Fault]) -> str:
    """The text of `graph` with each fault under its op, those without one under the first line."""
    notes: dict[Operation, str] = {}
    for fault in faults:
        if fault.op is not None:
            notes[fault.op] = "\n".join(filter(None, (notes.get(fault.op), fault.what)))
    head, *lines = print_graph(graph, notes=notes).splitlines()
    top = [f"// ^ {line}" for f in faults if f.op is None for line in f.what.splitlines()]
    return "\n".join([head, *top, *lines])


class _Verifier:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.faults: list[Fault] = []
        self.everything = {v for op in graph.walk() for v in op.results}
        self.everything.update(a for op in graph.walk() for r in op.regions for a in r.args)
        self.variables: dict[str, tuple[RefType, Operation]] = {}

    def run(self) -> list[Fault]:
        self._check_interface()
        self._check_block(self.graph.block, frozenset(), None, {}, in_nest=False)
        self._check_locations()
        place = {op: i for i, op in enumerate(self.graph.walk(), 1)}
        return sorted(self.faults, key=lambda f: place.get(f.op, 0) if f.op is not None else 0)

    def fault(self, op: Operation | None, what: str) -> None:
        self.faults.append(Fault(op, what))

    def _check_interface(self) -> None:
        graph = self.graph
        if graph.stage not in STAGES:
            self.fault(None, f"there is no stage '{graph.stage}', only {', '.join(STAGES)}")
        if len(graph.arg_names) != len(graph.args):
            self.fault(None, f"{len(graph.args)} inputs have {len(graph.arg_names)} names")
        for name in dict.fromkeys(graph.arg_names):
            if graph.arg_names.count(name) > 1:
                self.fault(None, f"two inputs are called '{name}'")
        for i, arg in enumerate(graph.args):
            if not isinstance(arg.type, TensorType):
                self.fault(None, f"input {i} is a {arg.type}; inputs of a graph are tensors")
        for i, value in enumerate(graph.results):
            if isinstance(value.type, RefType):
                self.fault(None, f"result {i} is a {value.type}; read the variable and return that")

    # -- SSA --------------------------------------------------------------------------------------

    def _check_block(
        self,
        block: Block,
        outer: frozenset[Value],
        parent: Operation | None,
        known: Mapping[Value, StateKey],
        in_nest: bool,
    ) -> None:
        """One block: `outer` are the values around it, `parent` is the op that holds it."""
        before = len(self.faults)
        whole = frozenset(block.args).union(*(op.results for op in block.ops))
        around = outer | whole if any(op.regions for op in block.ops) else outer
        for i, arg in enumerate(block.args):
            if arg.op is not None or arg.index != i or block.args.count(arg) > 1:
                self.fault(parent, f"block argument {i} is not a value of its own: {arg!r}")
        defined: set[Value] = set(block.args)
        seen: set[Operation] = set()
        for op in block.ops:
            self._check_uses(op, defined, whole, outer)
            if defined.issuperset(op.operands):
                self._check_types(op)
            self._check_results(op, seen, outer)
            seen.add(op)
            defined.update(op.results)
            why = illegal(op.name, self.graph.stage, in_nest)
            if why is None and parent is not None and op.name in DATAFLOW | COMMUNICATION:
                why = f"is in a region of op '{parent.name}': it belongs to the top of a graph"
            if why is not None and self.graph.stage in STAGES:
                self.fault(op, why)
            for region in op.regions:
                keys = region_keys(op, region, known)
                self._check_block(region, around, op, keys, in_nest or op.name == "fused")
        for i, value in enumerate(block.results):
            if value not in defined:
                name = "result" if parent is None else "result of the region"
                self.fault(parent, f"{name} {i} {self._origin(value, whole, outer)}")
        if len(self.faults) == before:  # paths mean something only in a sound block
            if parent is None and is_dataflow(block):
                self._check_dataflow(block)
            elif parent is not None or self.graph.stage != "partitioned":
                self._check_effects(block, unordered(block, known))

    def _check_uses(
        self, op: Operation, defined: set[Value], whole: frozenset[Value], outer: frozenset[Value]
    ) -> None:
        """Every operand and control operand comes from earlier in the block."""
        for kind, values in (("operand", op.operands), ("control operand", op.control)):
            for i, value in enumerate(values):
                if value not in defined:
                    self.fault(op, f"{kind} {i} {self._origin(value, whole, outer)}")
        for i, value in enumerate(op.control):
            if value.op is None and not _tells(value.type):
                self.fault(
                    op,
                    f"control operand {i} is a block argument, which orders nothing",
                )
            if value in op.control[:i]:
                self.fault(op, f"control operand {i} stands twice")
        if op.name == "send" and op.control:
            self.fault(op, "has control operands: one that is dead would keep it from being sent")

    def _origin(self, value: Value, whole: frozenset[Value], outer: frozenset[Value]) -> str:
        """Where a value that is not defined at its use comes from."""
        if value in whole:
            return "is used before it is defined"
        if value in outer:
            return "is defined outside the region: regions are isolated, pass it as an operand"
        if value in self.everything:
            return "is defined inside another region"
        return f"belongs to another graph: {value!r}"

    def _check_results(self, op: Operation, seen: set[Operation], outer: frozenset[Value]) -> None:
        if op in seen or any(r in outer for r in op.results):
            self.fault(op, "stands twice in the graph, so its results are defined twice")
        for i, result in enumerate(op.results):
            if result.op is not op or result.index != i:
                self.fault(op, f"result {i} says that it is another value: {result!r}")

    # -- the op table -----------------------------------------------------------------------------

    def _check_types(self, op: Operation) -> None:
        """Arity, regions, attributes fit the op's row; its type rule gives its result types."""
        try:
            spec = lookup(op.name)
            if spec.arity is not None and len(op.operands) != spec.arity:
                return self.fault(op, f"takes {spec.arity} operands, got {len(op.operands)}")
            if len(op.regions) != spec.regions:
                return self.fault(op, f"takes {spec.regions} regions, got {len(op.regions)}")
            attrs = complete_attrs(op.name, spec.attrs, op.attrs)
            if list(attrs) != list(op.attrs):
                wanted, got = ", ".join(attrs), ", ".join(op.attrs)
                return self.fault(op, f"attributes must be [{wanted}] in that order, got [{got}]")
            for name, value in attrs.items():
                if isinstance(value, ConstArray) and not value.is_valid():
                    return self.fault(op, f"'{name}' holds elements that are no byte strings")
            types = list(spec.infer([v.type for v in op.operands], attrs, op.regions))
        except WeftError as error:
            return self.fault(op, error.what)
        given = [r.type for r in op.results]
        if types != given:
            listed = ["(" + ", ".join(map(str, t)) + ")" for t in (types, given)]
            return self.fault(op, f"the type rule gives {listed[0]}, the op has {listed[1]}")
        return self._check_variable(op)

    def _check_variable(self, op: Operation) -> None:
        """State is shared by name, so every handle to a name has the same type."""
        if op.name != "variable":
            return
        held, name = op.result.type, str(op.attrs["name"])
        assert isinstance(held, RefType)
        first, _ = self.variables.setdefault(name, (held, op))
        if first != held:
            self.fault(op, f"variable '{name}' is {held.tensor} here and {first.tensor} above")

    # -- effects and locations --------------------------------------------------------------------

    def _check_dataflow(self, block: Block) -> None:
        """Frames, results without a value, the order of effects that do not exclude another."""
        frames = find_frames(block, self.graph.arg_names)
        for op, what in frames.faults:
            self.fault(op, what)
        if frames.faults:
            return
        deadness = Deadness(frames)
        for op, what in double_merges(deadness):
            self.fault(op, what)
        if self.graph.stage == "partitioned":
            return  # what is dead here, and in what order, is decided in other parts, too
        for value, what in impossible_results(block.results, deadness):
            self.fault(value.op, what)
        pairs = unordered(block, {}, frames.order, frames.after_loops())
        self._check_effects(block, [p for p in pairs if not deadness.exclusive(p[0].op, p[1].op)])
        for frame, first, second in overlapping(frames):
            verb = "writes" if second.writes else "reads"
            other = "itself" if first.op is second.op else frames.label(first.op.results[0])
            self.fault(
                second.op,
                f"{verb} {_state(second)} in every iteration of {frame}, up to "
                f"{frame.parallel_iterations} of which overlap, and nothing orders it after "
                f"{other} of the iteration before: put that into after(...) of the "
                "next_iterations, or enter with parallel_iterations=1",
            )

    def _check_effects(self, block: Block, pairs: Sequence[tuple[Access, Access]]) -> None:
        names: dict[Operation, str] = {}
        count = 0
        for op in block.ops:  # as the printer numbers results
            names[op] = f"'{op.name}'" + (f" (%{count})" if op.results else "")
            count += len(op.results)
        for first, second in pairs:
            verbs = ["writes" if a.writes else "reads" for a in (first, second)]
            self.fault(
                second.op,
                f"{verbs[1]} {_state(second)}, and op {names[first.op]} {verbs[0]} it, but no path "
                "of operands or control operands says which comes first",
            )
            self.fault(
                first.op, f"{verbs[0]} {_state(first)}, unordered with op {names[second.op]} below"
            )

    def _check_locations(self) -> None:
        without = [op for op in self.graph.walk() if not op.locations]
        if len(without) == sum(1 for _ in self.graph.walk()):
            return
        for op in without:
            self.fault(
                op,
                "has no source location, though other ops of the graph have: what a pass makes "
                "inherits the locations of what it replaces",
            )


def _state(access: Access) -> str:
    if isinstance(access.key, Value):
        return f"block argument {access.key.index}"
    return f"variable '{access.key}'"


def _tells(t: Type) -> bool:
    """Whether a block argument that is waited for says something: it orders, or has a size that is
    not known before (`passes/sizes.py`)."""
    return isinstance(t, TokenType) or (isinstance(t, TensorType) and not t.is_static)
