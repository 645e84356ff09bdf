"""Graph import: adding one graph to another, as reading a graph from text,
`wf.tf1.import_graph_def` and `Session.extend` do; a `wf.Graph` as text, and back.

The text is the IR's. Named tensors and effects are the results of the printed graph, by their
names. A result `NAME/initial_value` is what the initializer of the variable NAME assigns.
Collections say which variables optimizers change, and which have their initial value from the
start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from weft.frontend.core.function_trace import identifier
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, Trace
from weft.frontend.state.resources import Shareable, shared
from weft.frontend.state.variable import Variable, _restored, variables_of
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
    suggest,
)
from weft.ir.graph import Block, Operation, Value, unique_name
from weft.ir.graph import Graph as IRGraph
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder, make_op
from weft.ir.ops.state import UPDATES
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import HandleType, RefType, TensorType, TokenType, Type
from weft.passes.sizes import made_symbols, specialize
from weft.runtime.resources.shared_names import shared_as
from weft.runtime.resources.store import remake
from weft.runtime.resources.variables import VariableState

if TYPE_CHECKING:
    from weft.frontend.session.graph import Graph


#: The result that is the initial value of a variable, after its name.
INITIAL = "/initial_value"


def values_by_name(named: IRGraph, ir: IRGraph) -> dict[str, Value]:
    """The results of `ir` that have names, and the inputs that are none of these, by the names in
    `named`: the same graph, maybe with other sizes."""
    names = {n: v for n, v in zip(named.result_names, ir.results, strict=False) if n}
    placed = set(names.values())
    for arg, name in zip(ir.args, named.arg_names, strict=True):
        if arg not in placed:
            names.setdefault(name, arg)
    return names


def near(name: str, known: Iterable[str]) -> str:
    """`suggest` of a tensor's name, whose number (":0") is no part of what is compared."""
    return suggest(name.partition(":")[0], list(known))


def given_tensors(given: object, named: Mapping[str, Value]) -> dict[str, Tensor]:
    """An `input_map` without `:0`; numbers and lists take the dtypes of what they stand for."""
    if not isinstance(given, Mapping):
        raise TypeRuleError(
            f"input_map is a {type(given).__name__}, not a dict of tensors by name",
            location=caller_location(),
        )
    made = {str(n).removesuffix(":0"): x for n, x in given.items()}
    for name in made:
        if name not in named:
            raise NotFoundError(
                f"input_map: the graph has no tensor named '{name}'{near(name, named)}",
                location=caller_location(),
            )
    return {n: _as_type(x, named[n].type) for n, x in made.items()}


def _as_type(x: Any, wanted: Type) -> Tensor:
    if isinstance(x, (bool, int, float, complex, list, tuple)) and isinstance(wanted, TensorType):
        return as_tensor(x, wanted.dtype)
    return as_tensor(x)


def check_fits(name: str, wanted: Type, given: TensorType) -> None:
    """ShapeError or TypeRuleError if the tensor cannot stand for what has the name."""
    if wanted == given:
        return
    same_dtype = isinstance(wanted, TensorType) and wanted.dtype is given.dtype
    raise (ShapeError if same_dtype else TypeRuleError)(
        f"input_map: '{name}' is {wanted}, and a {given} was given for it",
        location=caller_location(),
    )


def check_wanted(wanted: Sequence[str], named: Iterable[str]) -> None:
    """NotFoundError with the closest names for `return_elements` that are none."""
    if isinstance(wanted, str):
        raise TypeRuleError(
            f"return_elements is the name {wanted!r:.60}, not a list of names",
            location=caller_location(),
        )
    known = [name for name in named if not name.endswith(INITIAL)]
    for name in map(str, wanted):
        if name.removesuffix(":0") not in known:
            raise NotFoundError(
                f"return_elements: the imported graph has no tensor or effect named '{name}'"
                f"{near(name, known)}",
                location=caller_location(),
            )


S = TypeVar("S", bound=Shareable)
#: Collections.
TRAINABLE, STARTED = "trainable_variables", "initialized_variables"
LOCAL = "local_variables"
#: A collection: name in the graph, container, shared name and declaration of each that is shared.
SHARED = "shared_names"


def add_graph(
    graph: Graph,
    ir: IRGraph,
    prefix: str = "",
    given: Mapping[str, Any] | None = None,
    wanted: Sequence[str] | None = None,
) -> list[Tensor | Effect] | None:
    """Add all ops of `ir` to `graph`, every name after `prefix`; what is called `wanted` in `ir`.

    given: tensors of `graph` that take the place of tensors of `ir`, by name. Variables are new:
    those made in a graph have no value, others their initial value. InvalidArgumentError for names
    that are taken, NotFoundError for a name in `given` or `wanted` that is none, UnsupportedError
    for a graph that passes have changed, TypeRuleError and ShapeError for tensors that do not fit.
    """
    if ir.stage not in ("traced", "dataflow") or any(op.name == "fused" for op in ir.walk()):
        raise UnsupportedError(
            f"the graph '{ir.name}' is of stage '{ir.stage}': passes have changed it",
            hint="wf.Graph.as_text() writes graphs as they were built",
            location=caller_location(),
        )
    named = values_by_name(ir, ir)
    check_wanted(wanted or (), named)
    tensors = given_tensors({} if given is None else given, named)
    with graph._lock:
        found = _Adding(graph, ir, prefix, tensors).found
    return None if wanted is None else [found[str(n).removesuffix(":0")] for n in wanted]


class _Adding:
    def __init__(self, graph: Graph, ir: IRGraph, prefix: str, given: Mapping[str, Tensor]) -> None:
        self.graph, self.trace, self.prefix = graph, graph._trace, prefix
        self.collections = dict(ir.collections)
        self.found: dict[str, Tensor | Effect] = {}
        rows = self.collections.get(SHARED, ())
        self.shared = {rows[i]: rows[i + 1 : i + 4] for i in range(0, len(rows) - 3, 4)}
        sizes = self._sizes(ir, given)
        made = specialize(ir, cast(dict[str, int], sizes)) if sizes else ir
        names = self.names = values_by_name(ir, made)
        self.given = given
        self.handles: dict[str, Operation] = {}  # the first with each name stands for all
        self._check_names(made)
        for name, t in given.items():
            check_fits(name, names[name].type, t._type)
        self.trace._check_open(f"the graph '{ir.name}'")
        self.labels: dict[str, str] = {}  # names of state in `ir` -> in the graph
        self.made: dict[str, Any] = {}  # by those, what is new
        self.held: set[Operation] = set()  # constants that only variables hold
        self._make_state()  # what can fail comes before what changes the graph
        self.trace.made_sizes |= made_symbols(made)
        self.after: set[Value] = set()  # what comes after the control dependencies here
        self.mapping: dict[Value, Value] = {}
        with self.trace.active():
            self.mapping.update((names[n], self.trace.lift(t)) for n, t in given.items())
        self._add_args(ir, made)
        read = {v for op in made.ops for v in (*op.operands, *op.control)}
        self.held = {op for op in self.held if op.result not in read}
        for op in made.ops:
            if op not in self.held:
                self._add_op(op)
        top = set(made.ops)
        for op in self.handles.values():
            if op not in top:  # of variables that only branches and loops use
                self._add_state(op)
        for name, value in names.items():
            self._name(name, value)

    # ------------------------------------------------------------------------------------- checks
    def _check_names(self, ir: IRGraph) -> None:
        graph, prefix = self.graph, self.prefix
        known = {**graph._named, **graph._effects}
        named = [("tensor or effect", prefix + n, known) for n in self.names if n not in self.given]
        taken: dict[str, Any] = {**self.trace.variables, **graph.resources}
        for op in ir.walk():
            if _is_state(op):
                label = str(op.attrs["name"])
                first = self.handles.setdefault(label, op)
                if (first.name, first.attrs) != (op.name, op.attrs):
                    raise InvalidArgumentError(
                        f"two ops '{op.name}' of the graph have the name '{label}', and are not "
                        "alike",
                        location=op.locations,
                    )
                named.append((op.name, prefix + label, taken))
        for what, name, where in named:
            if name in where:
                raise InvalidArgumentError(
                    f"the graph '{graph.name}' has a {what} named '{name}' already",
                    hint="import under another name: wf.tf1.import_graph_def(..., name='other')",
                    location=caller_location(),
                )

    # ------------------------------------------------------------------------------------- adding
    def _sizes(self, ir: IRGraph, given: Mapping[str, Tensor]) -> dict[str, Dim]:
        """Symbols that mean something else here: of given tensors their sizes, else new ones where
        the graph has such a symbol."""
        sizes: dict[str, Dim] = {}
        named = values_by_name(ir, ir)
        for name, t in given.items():
            wanted = named[name].type
            if isinstance(wanted, TensorType) and wanted.rank == t.ndim:
                for dim, here in zip(wanted.shape, t.shape, strict=True):
                    if isinstance(dim, SymbolicDim) and dim.terms == ((tuple(dim.symbols), 1),):
                        sizes.setdefault(next(iter(dim.symbols)), here)
        known = self.graph._symbols
        for symbol in sorted(symbols_of(ir)):
            if symbol not in sizes and symbol in known:
                fresh = unique_name(symbol, dict.fromkeys(known))
                sizes[symbol] = SymbolicDim.symbol(fresh)
                known.add(fresh)
            known.add(symbol)
        return {s: d for s, d in sizes.items() if d != SymbolicDim.symbol(s)}

    def _add_args(self, old: IRGraph, ir: IRGraph) -> None:
        for arg, name in zip(ir.args, old.arg_names, strict=True):
            if arg not in self.mapping:
                called = identifier(self.prefix + name) if self.prefix else name
                self.mapping[arg] = self.trace.add_arg(arg.type, called)

    def _add_op(self, op: Operation) -> None:
        if _is_state(op) and (known := self._known_handle(op)) is not None:
            self.mapping[op.result] = known
            return
        results = self.trace.builder.emit(
            op.name,
            [self.mapping[v] for v in op.operands],
            self._attrs(op),
            regions=[self._region(r) for r in op.regions],
            control=tuple(dict.fromkeys(self._control(op))),
            locations=op.locations,
            device=op.device,
            group=self._group(op),
        )
        for old, new in zip(op.results, results, strict=True):
            self.mapping.setdefault(old, new)
        made = results[0].op if results else None
        if made is not None and _is_state(op):
            self._add_state(op, made.result)
        elif made is not None:
            _note_access(self.trace, made)

    def _control(self, op: Operation) -> Iterator[Value]:
        """What it comes after; what depends on nothing else also after the control dependencies
        that are current here."""
        yield from (self.mapping[v] for v in op.control)
        if not self.trace.control or _is_state(op) or op.name == "constant":
            return
        if self.after.isdisjoint((*op.operands, *op.control)):
            yield from self.trace.control
        self.after.update(op.results)

    def _attrs(self, op: Operation) -> dict[str, AttrValue]:
        """The attributes, with the names of state and frames after the prefix."""
        attrs: dict[str, AttrValue] = dict(op.attrs)
        if _is_state(op) or op.name == "enter":
            label = "frame" if op.name == "enter" else "name"
            name = str(attrs[label])
            attrs[label] = self.labels.get(name, name) if _is_state(op) else self.prefix + name
        return attrs

    def _group(self, op: Operation) -> str:
        """The colocation group, after the prefix."""
        if not op.group:
            return ""
        self.trace.groups.add(self.prefix + op.group)
        return self.prefix + op.group

    def _region(self, block: Block) -> Block:
        """The same with the names of state and of groups after the prefix."""
        if not any(_is_state(op) or op.group for op in block.walk()):
            return block
        builder = Builder([a.type for a in block.args])
        mapping = dict(zip(block.args, builder.args, strict=True))
        for op in block.ops:
            new = make_op(
                op.name,
                [mapping[v] for v in op.operands],
                self._attrs(op),
                regions=[self._region(r) for r in op.regions],
                control=[mapping[v] for v in op.control],
                locations=op.locations,
                device=op.device,
                group=self._group(op),
            )
            builder.ops.append(new)
            mapping.update(zip(op.results, new.results, strict=True))
        return builder.block([mapping[v] for v in block.results])

    def _make_state(self) -> None:
        """Variables and resources. A variable that shares its state with one of the graph is that
        one."""
        names = {v.state: name for name, v in self.trace.variables.items()}
        for label, op in self.handles.items():
            name = self.labels[label] = self.prefix + label
            if op.name != "variable":
                named = make_op(op.name, attrs=self._attrs(op), locations=op.locations)
                self.made[name] = self._shared(op, remake(named))
                continue
            variable = self._variable(op)
            name = self.labels[label] = names.setdefault(variable.state, name)
            if name not in self.trace.variables:
                self.made.setdefault(name, variable)

    def _known_handle(self, op: Operation) -> Value | None:
        """The handle of the same state, if the graph has one by now."""
        name = self.labels[str(op.attrs["name"])]
        if op.name == "variable" and name in self.trace.variables:
            return self.trace.effects.refs.get(self.trace.variables[name])
        return self.mapping.get(self.handles[str(op.attrs["name"])].result)

    def _add_state(self, op: Operation, handle: Value | None = None) -> None:
        """The variable or resource that an op names; handle: that of the graph, if it has one."""
        name = self.labels[str(op.attrs["name"])]
        if op.name != "variable":
            self.graph.resources[name] = self.made[name]
            return
        if name not in self.trace.variables:
            self.trace.variables[name] = self.made[name]
            if op.attrs["name"] in self.collections.get(LOCAL, ()):
                self.graph.local_variables.append(self.made[name])
        if handle is not None:
            first = self.trace.effects.first(self.trace.variables[name])
            self.trace.effects.refs[first] = handle

    def _variable(self, op: Operation) -> Variable:
        name, ref = str(op.attrs["name"]), op.result.type
        assert isinstance(ref, RefType)
        held = ref.tensor
        trainable = TRAINABLE not in self.collections or name in self.collections[TRAINABLE]
        started = name in self.collections.get(STARTED, ())
        place = self.shared[name][0] if name in self.shared else None if started else ""
        fresh = VariableState(self.prefix + name, held.dtype, held.shape, None, place)
        variable = _restored(fresh, None, trainable)
        variable.of_graph = True
        variable.state = self._shared(op, variable.state)
        start = self.names.get(name + INITIAL)
        if start is not None and start.op is not None and start.op.name == "constant" and started:
            value = start.op.attrs["value"]
            assert isinstance(value, ConstArray)
            with variable.state.lock:
                if variable.state.array is None:  # one that is shared may have a value
                    variable.state.write(value.array)
            variable._initial = value.array
            self.held.add(start.op)
        return variable

    def _shared(self, op: Operation, made: S) -> S:
        """`made`, or the object of its shared name. InvalidArgumentError if that was declared
        otherwise."""
        row = self.shared.get(str(op.attrs["name"]))
        if row is None:
            return made
        container, name, declared = row
        try:
            return shared(name, type(made), declared, lambda: made, container)
        except InvalidArgumentError as error:
            raise error.at(caller_location()) from None

    def _name(self, name: str, old: Value) -> None:
        label = self.prefix + name
        if name.endswith(INITIAL) and name.removesuffix(INITIAL) in self.labels:
            variable = self.made.get(label.removesuffix(INITIAL))
            if variable is not None and variable._initial is None:
                variable._initial_tensor = self.trace.tensor(self.mapping[old])
            return
        value = self.mapping[old]
        if isinstance(value.type, TokenType):
            self.found[name] = Effect(label, value, self.trace)
        elif isinstance(value.type, TensorType):
            self.found[name] = t = self.trace.tensor(value)
            if name not in self.given or label not in self.graph._effects:
                self.graph._named.setdefault(label, t)


def symbols_of(ir: IRGraph) -> set[str]:
    """The symbolic sizes of the graph's inputs, and those that its ops make."""
    types = [a.type for a in ir.args if isinstance(a.type, TensorType)]
    dims = [d for t in types for d in t.shape if isinstance(d, SymbolicDim)]
    return made_symbols(ir) | {s for d in dims for s in d.symbols}


def _is_state(op: Operation) -> bool:
    """Whether it is the handle of a variable or resource, which has a name."""
    made = op.results[0].type if op.results else None
    return isinstance(made, (RefType, HandleType)) and not op.operands and "name" in op.attrs


def _note_access(trace: Trace, op: Operation) -> None:
    """Later reads of the variable are this one, and gradients with respect to it find it."""
    updates = op.name in UPDATES or op.name == "update_open"
    if not updates and op.name not in ("read", "read_open"):
        return
    effects = trace.effects
    variable = next((v for v, ref in effects.refs.items() if ref is op.operands[0]), None)
    if variable is None:
        return
    if updates:
        effects.updates.setdefault(variable, []).append(op.result)
        return
    effects.reads.setdefault(variable, []).append(op.result)
    effects._since_write.setdefault(variable, {}).setdefault(op.control, op.result)


def to_ir(graph: Graph) -> IRGraph:
    """The whole graph with its names. InvalidArgumentError if a tensor has the name that the
    initial value of a variable gets."""
    trace = graph._trace
    names: dict[str, Value] = {n: trace.lift(t) for n, t in graph._named.items()}
    names |= {n: e.value for n, e in graph._effects.items() if e.value is not None}
    ir = trace.graph([])
    ops = list(ir.ops)
    started: list[str] = []
    for name, variable in variables_of(trace).items():
        label = name + INITIAL
        if label in names:
            raise InvalidArgumentError(
                f"the name '{label}' is that of the initial value of variable '{name}'",
                hint="give the tensor or effect another name",
                location=caller_location(),
            )
        start = variable._initial_tensor
        if start is not None and start._trace is trace:
            names[label] = trace.lift(start)
        elif variable._initial is not None:
            where = trace.effects.refs[variable].op
            made = make_op(
                "constant",
                attrs={"value": ConstArray(variable._initial)},
                locations=() if where is None else where.locations,
            )
            ops.append(made)
            names[label] = made.result
        if start is None:
            started.append(name)
    trainable = tuple(n for n, v in trace.variables.items() if v.trainable)
    held = {n: v.state for n, v in trace.variables.items()} | graph.resources
    locals_ = set(graph.local_variables)
    local = tuple(n for n, v in trace.variables.items() if v in locals_)
    others = ((STARTED, tuple(started)), (LOCAL, local), (SHARED, _shared(held)))
    return replace(
        ir,
        block=Block(ir.args, tuple(ops), tuple(names.values())),
        result_names=tuple(names),
        collections=((TRAINABLE, trainable), *((n, c) for n, c in others if c)),
    )


def _shared(held: Mapping[str, Any]) -> tuple[str, ...]:
    """Four strings for each object that has a shared name: its name in the graph, its container,
    the shared name, and how it was declared."""
    found: list[str] = []
    for name, thing in held.items():
        key = shared_as(thing)
        if key is not None:
            found += [name, *key, thing.declared]
    return tuple(found)
