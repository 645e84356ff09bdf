"""Tracing: the graph under construction, and which one the running Python code is building.

Calling an op while a trace is current appends to that trace's builder and gives a symbolic tensor.
Traces are of three kinds: a *function* trace (`wf.compile`, `wf.grad` called eagerly) lives for one
run of the Python function; a *graph* trace (`wf.Graph`) stays open; a *region* trace builds a
nested block of an open trace and turns the outer values it uses into explicit operands. A thread
that is inside a step of a graph adds no ops to it.

Effects. In a function trace they follow program order: a read depends on the last write of its
variable, a write on the reads and the write before it. In a graph trace only
`wf.control_dependencies` orders them (TensorFlow 1's rule), because a step runs just the part of
the graph that is fetched.

Effects in regions. In a `wf.Graph` the body of a branch or loop may act on objects of the host
(queues, files, Python functions). Each time it runs, all that it does is done once; ops on one
object in the order of the program, as in a compiled function, by control operands that are added
here. An op of control flow acts on all that its bodies act on. Variables that a body assigns to
are carried through it, read before and assigned after. A body that acts may take long, and other
steps change the variable meanwhile; so there they are *live*: each read and update is an op in
the body."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np

from weft.frontend.core.device_scope import device_scopes, place
from weft.frontend.core.slow import LARGE_CONSTANT, note_constant
from weft.frontend.core.tensor import Tensor
from weft.ir.analysis.effects import StateKey, calls_python, effect_keys, open_keys, state_key
from weft.ir.analysis.frames import is_dataflow
from weft.ir.dtypes import DType
from weft.ir.errors import FailedPreconditionError, TracerError, UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value, unique_name
from weft.ir.locations import Locations, caller_location
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.spec import Attrs, AttrValue, ConstArray
from weft.ir.types import Type

if TYPE_CHECKING:
    from weft.runtime.resources.variables import VariableState


class StateHandle:
    """What a trace knows of a `Variable`. name: wanted in a graph; trainable: whether optimizers
    change it by default."""

    __slots__ = ()
    name: str
    state: VariableState
    trainable: bool

    @property
    def current_state(self) -> VariableState:
        """The state that Python sees."""
        return self.state

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.state.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes. Where they may change, of the value; in a graph None for those."""
        if self.state.open is None or current_trace() is None:
            return self.current_state.shape
        return cast("tuple[int, ...]", self.state.open)

    def _open_sizes(self, trace: Trace) -> tuple[str, ...]:
        """Names for the sizes of a value that the trace takes of it."""
        raise NotImplementedError

    def _used_in(self, trace: Trace) -> None:
        """A trace uses it for the first time."""
        raise NotImplementedError


class Running(threading.local):
    """State of a thread. step: it is inside a step, or in a function that one calls."""

    step = False


@contextmanager
def inside_step(running: Running | None) -> Iterator[None]:
    """Be inside a step in the block; None: of no graph."""
    if running is None:
        yield
        return
    outer, running.step = running.step, True
    try:
        yield
    finally:
        running.step = outer


class Effect:
    """Something done for its effect, with no value: fetch it in a Session (gives None), or depend
    on it.

    `value` is the token in the graph; None if it was done at once, outside any trace. In a
    `wf.Graph` each has a name of its own, by which `Session.run` and `get_operation_by_name` find
    it: the one wanted, or that with _1, _2, ... if it is taken.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     v = wf.Variable(0)
    ...     start, add = wf.global_variables_initializer(), wf.group(v.assign_add(1), name="add")
    ...     start.run()
    ...     print(add, session.run([add, add, "add"]), session.run(v))
    <Effect add> [None, None, None] 1
    """

    __slots__ = ("name", "trace", "value")

    #: Runs one in a session; the session's module sets it.
    in_session: ClassVar[Callable[[Any, Any, Any], Any]]

    def __init__(self, name: str, value: Value | None = None, trace: Trace | None = None) -> None:
        self.name = name
        self.value = value
        self.trace = trace
        if value is not None and trace is not None and trace.owner is not None:
            self.name = trace.owner.add_effect(self)

    @classmethod
    def of(cls, name: str, value: Value, trace: Trace) -> Effect:
        """What runs the op of a value that is there, without a name of its own."""
        made = object.__new__(cls)
        made.name, made.value, made.trace = name, value, trace
        return made

    def __repr__(self) -> str:
        return f"<Effect {self.name}{'' if self.value is not None else ' (done)'}>"

    @property
    def op(self) -> Any:
        """In a `wf.Graph`: the op that does it, with its type, inputs and what it comes after.
        AttributeError for one that was done at once."""
        owner = None if self.trace is None else self.trace.owner
        if owner is None or self.value is None:
            raise AttributeError(f"the effect '{self.name}' is in no wf.Graph, so it has no op")
        owner.operation_names()
        return owner.operation(self.value.op)

    @property
    def type(self) -> str:
        """The kind of that op."""
        return self.op.type  # type: ignore[no-any-return]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that it takes."""
        return self.op.inputs  # type: ignore[no-any-return]

    @property
    def control_inputs(self) -> list[Any]:
        """The ops that it comes after."""
        return self.op.control_inputs  # type: ignore[no-any-return]

    @property
    def node_def(self) -> str:
        """It as a line of text."""
        return self.op.node_def  # type: ignore[no-any-return]

    @property
    def graph(self) -> Any:
        """The `wf.Graph` that it is in."""
        return self.op.graph

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Do it in `session`, or in the default one (`with session:`, `wf.tf1.InteractiveSession`).

        FailedPreconditionError if there is none; else as `Session.run`.
        """
        if self.value is not None:
            Effect.in_session(self, feed_dict, session)


#: The ops for variables whose shape may change.
_OPEN = {"read": "read_open", "assign": "assign_open"}


class Effects:
    """Reads and writes of variables in one trace, and the order between them. Variables that share
    their state are one here: the first of them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.refs: dict[StateHandle, Value] = {}
        self.open: set[StateKey] = set()  # the names of variables whose shape may change
        self.reads: dict[StateHandle, list[Value]] = {}  # every value read, for gradients
        self.updates: dict[StateHandle, list[Value]] = {}  # graph: what updates gave, for gradients
        self._first: dict[VariableState, StateHandle] = {}
        self._since_write: dict[StateHandle, dict[object, Value]] = {}
        self._last_write: dict[StateHandle, Value] = {}

    def first(self, variable: StateHandle) -> StateHandle:
        """The first variable with its state that the trace has met."""
        return self._first.setdefault(variable.state, variable)

    def ref(self, variable: StateHandle, scoped: bool = False) -> Value:
        """The handle, made on first use. scoped: the variable is made here, and so is on the device
        that the scopes say. In a program of shards it is where it is met first."""
        variable = self.first(variable)
        found = self.refs.get(variable)
        if found is None:
            trace = self.trace
            name = unique_name(variable.name, trace.variables, trace.numbers)
            attrs: Mapping[str, AttrValue] = {
                "name": name, "dtype": variable.dtype, "shape": variable.state.type.shape,
            }  # fmt: skip
            (found,) = trace.builder.emit("variable", (), attrs)
            trace.variables[name] = variable
            if variable.state.open is not None:
                self.open.add(name)
            self.refs[variable] = found
            variable._used_in(trace)
            scoped = scoped or any(scope.keeps_state for scope in device_scopes())
            if scoped and found.op is not None:
                place(found.op, trace)
        return found

    def read(self, variable: StateHandle, body: Trace | None = None) -> Value:
        """The value at this point; one read up to the next write, in graphs one for each `body`."""
        variable = self.first(variable)
        known = self._since_write.setdefault(variable, {})
        if variable.state.open is not None and self.trace.kind != "graph":
            if self.trace.open_last.get(state_key(self.ref(variable))) not in known.values():
                known.clear()  # a body may have assigned to it since
        key = self.trace.control, body if self.trace.kind == "graph" else None
        if key not in known:
            written = self._last_write.get(variable)
            after = () if written is None else (written,)
            known[key] = self._emit("read", variable, control=after)
            self.reads.setdefault(variable, []).append(known[key])
        return known[key]

    def update(self, op: str, variable: StateHandle, operands: Sequence[Value]) -> Value:
        """Append an update, one access that reads and writes; the value after it."""
        variable = self.first(variable)
        value = self._written(variable, op, operands)
        self.updates.setdefault(variable, []).append(value)
        return value

    def values(self, variable: StateHandle) -> list[Value]:
        """Every value of it that was read, and what updates of it gave."""
        variable = self.first(variable)
        return [*self.reads.get(variable, ()), *self.updates.get(variable, ())]

    def write(self, variable: StateHandle, value: Value) -> Value:
        """Append the assignment; the token of it."""
        return self._written(self.first(variable), "assign", (value,))

    def _written(self, variable: StateHandle, op: str, operands: Sequence[Value]) -> Value:
        if self.trace.kind == "graph":
            return self._emit(op, variable, operands)
        before = [*self._since_write.pop(variable, {}).values()]
        if variable in self._last_write:
            before.append(self._last_write[variable])
        made = self._last_write[variable] = self._emit(op, variable, operands, before)
        return made

    def _emit(self, op: str, variable: StateHandle, operands: Any = (), control: Any = ()) -> Value:
        """Add `read`, `assign` or an update, as the op for the variable."""
        attrs: dict[str, AttrValue] = {}
        if variable.state.open is not None:
            if op != "assign":
                attrs["sizes"] = variable._open_sizes(self.trace)
            if op not in _OPEN:
                attrs["update"] = op
            op = _OPEN.get(op, "update_open")
        return self.trace.emit(op, (self.ref(variable), *operands), attrs, control=control)[0]


Array = np.ndarray[Any, Any]
Kind = Literal["function", "graph", "region"]


class _Suspended:
    """The value of `_current` inside `suspend_trace`. in_graph: a `wf.Graph` is being built around
    it."""

    __slots__ = ("in_graph",)

    def __init__(self, in_graph: bool = False) -> None:
        self.in_graph = in_graph


_current: ContextVar[Trace | _Suspended | None] = ContextVar("weft_trace", default=None)


class _ThreadDefault(threading.local):
    trace: Trace | None = None


#: The default graph's trace, once `wf.placeholder` was called outside any graph. Not a ContextVar:
#: notebooks run each cell in a context of its own, and the default graph must outlive a cell.
_thread_default = _ThreadDefault()
#: Whether any thread has ever had one: most programs have none, and to ask takes as long as the
#: rest of `current_trace`.
_any_default = False
_SUSPENDED, _SUSPENDED_IN_GRAPH = _Suspended(), _Suspended(in_graph=True)


def current_trace() -> Trace | None:
    """The trace that ops are added to, or None: ops on concrete tensors run at once."""
    trace = _current.get()
    if trace is None:
        return _thread_default.trace if _any_default else None
    return None if isinstance(trace, _Suspended) else trace


def at_once() -> bool:
    """Whether ops run at once, and no `wf.device` says where."""
    if _any_default or _current.get() is not None:
        return current_trace() is None and not device_scopes()
    return not device_scopes()


def is_suspended() -> bool:
    """Whether this code runs inside `suspend_trace`."""
    return isinstance(_current.get(), _Suspended)


def in_graph() -> bool:
    """Whether this code builds a `wf.Graph`, also where `suspend_trace` has ops run at once."""
    found = _current.get()
    if isinstance(found, _Suspended):
        return found.in_graph
    trace = current_trace()
    return trace is not None and trace.root().kind == "graph"


def set_thread_default(trace: Trace | None) -> None:
    """Make a graph current in this thread wherever no other trace is (None: nothing is)."""
    global _any_default
    _thread_default.trace = trace
    if trace is not None:
        _any_default = True
        trace.is_thread_default = True


def thread_default() -> Trace | None:
    """What `set_thread_default` has set in this thread."""
    return _thread_default.trace


class suspend_trace:
    """Inside this context ops run at once on concrete tensors, even during a trace.

    Optimizers use it to create their slot variables on the first trace of a training step.
    """

    _token: Token[Trace | _Suspended | None] | None = None

    def __enter__(self) -> None:
        self._token = _current.set(_SUSPENDED_IN_GRAPH if in_graph() else _SUSPENDED)

    def __exit__(self, *exc: object) -> None:
        assert self._token is not None
        _current.reset(self._token)


class Trace:
    """One graph under construction. `variables` maps the state names in the IR to their
    Variables."""

    def __init__(
        self, kind: Kind, name: str, parent: Trace | None = None, *, creates_variables: bool = True
    ) -> None:
        self.kind = kind
        self.name = name
        self.parent = parent
        self.builder = Builder()
        self.arg_names: list[str] = []
        self._arg_numbers: dict[str, int] = {}
        self._known_args: set[str] = set()
        self.arg_locations: dict[Value, Locations] = {}
        self.location: Locations = caller_location()
        self.closed = False
        self.running = Running()
        self.creates_variables = creates_variables
        self.variables: dict[str, StateHandle] = {}
        self.numbers: dict[str, int] = {}  # that names of variables were given last
        self.effects = Effects(self)
        self.control: tuple[Value, ...] = ()  # of the enclosing wf.control_dependencies
        self.name_scope = ""  # prefix of names given inside wf.name_scope, with the final slash
        self.owner: Any = None  # the wf.Graph that this is the trace of
        self.parameters: Collection[str] = ()  # of a compiled function
        #: Whether a function may compute in float64; None: while weft does so by itself.
        self.x64: bool | None = True
        self.gpu: int | None = None  # of a function: the number of the GPU that it is compiled for
        self.cluster: object = None  # of a function: the cluster that it is compiled for
        self.shard_devices: set[str] = set()  # those of a mesh that ops of it are on
        self.symbols: set[str] | None = None  # names of sizes in use; None: sizes must be known
        #: Whether what has a form with known sizes takes that, though sizes may be open.
        self.static_first = False
        #: Of a function: whether ops of the host may be in it, as in a graph.
        self.takes_host_ops = kind == "graph"
        self.resources: dict[str, Any] = {}  # objects of the host, by their names in the graph
        #: How many axes elements have of objects that hold any, as what is put in first.
        self.element_ranks: dict[Any, Sequence[int | None]] = {}
        self.made_sizes: set[str] = set()  # those that depend on values
        #: The last access to each variable whose shape may change, in a function.
        self.open_last: dict[StateKey, Value] = {}
        self.is_thread_default = False  # current because of a placeholder outside any graph
        self.captures: dict[Value, Value] = {}  # region: outer value -> block argument
        #: In a body: the values of variables that it carries or has assigned to; None elsewhere.
        self.state: dict[StateHandle, Tensor] | None = None
        self.written: dict[StateHandle, None] = {}
        self.seen: dict[StateHandle, dict[Value, None]] = {}  # region: what reading gave
        #: Python integers among the inputs that meet a narrower dtype: they must fit it.
        self.narrowed: dict[tuple[Value, DType], Locations] = {}
        self.groups: set[str] = set()  # names of colocation groups, of the outermost trace
        self._constants: dict[int, tuple[Array, Value]] = {}
        #: Python numbers among the operands of ops, and what they were expanded to, by their line:
        #: nobody else has these tensors, so a line that runs many times makes them once.
        self.literals: dict[object, Tensor] = {}

    # ------------------------------------------------------------------------------------ building
    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: Attrs | None = None,
        *,
        regions: Sequence[Block] = (),
        control: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        """Append an op. TypeRuleError or ShapeError with the user's line if it does not fit."""
        self._check_open(f"op '{name}'")
        both = dict.fromkeys((*control, *self.control))
        keys: Sequence[StateKey] = ()
        if (root := self.root()).kind != "graph" and root.effects.open:  # in order in a function
            keys = open_keys(name, operands, regions, root.effects.open)
        both.update((self.open_last[key], None) for key in keys if key in self.open_last)
        made = self.builder.emit(name, operands, attrs, regions=regions, control=tuple(both))
        self.open_last.update((key, made[0]) for key in keys)
        if device_scopes():
            place(self.builder.ops[-1], self)
        return made

    def _check_open(self, what: str) -> None:
        if self.closed:
            ended = f"the trace of '{self.name}' has ended"
            raise FailedPreconditionError(ended, location=caller_location())
        if self.running.step:
            raise FailedPreconditionError(
                f"{what} was added to the graph '{self.name}' while a step of it is running",
                hint="build the whole graph before Session.run",
                location=caller_location(),
            )

    def add_arg(self, type: Type, name: str) -> Value:
        """A further graph input; its name is made unique."""
        self._check_open("an input")
        value = self.builder.add_arg(type)
        name = unique_name(name, self._known_args, self._arg_numbers)
        self.arg_names.append(name)
        self._known_args.add(name)
        if self.kind == "graph":
            self.arg_locations[value] = caller_location()
        return value

    def tensor(self, value: Value, weak: bool = False) -> Tensor:
        """The symbolic tensor for a value of this trace."""
        return Tensor(None, value, self, weak)

    def lift(self, t: Tensor) -> Value:
        """The value of `t` in this trace: a constant for a concrete tensor, a capture for an outer
        one.

        Raises TracerError for a tensor of a trace that has ended or that is not around this one.
        """
        if t._data is not None:
            return self.constant(t._data)
        assert t._value is not None
        if t._trace is self:
            return t._value
        check_usable(t, self)
        assert self.parent is not None
        outer = self.parent.lift(t)
        if outer not in self.captures:
            self.captures[outer] = self.add_arg(outer.type, "captured")
        return self.captures[outer]

    def constant(self, array: Array) -> Value:
        """A `constant` op; one per array object."""
        known = self._constants.get(id(array))
        if known is None:
            self._check_open("a constant")
            (value,) = self.builder.emit("constant", (), {"value": ConstArray(array)})
            # holding the array keeps its id taken
            known = self._constants[id(array)] = (array, value)
            if array.nbytes >= LARGE_CONSTANT and self.root().parameters:
                note_constant(str(value.type), array.nbytes, self.root().name)
        return known[1]

    # ------------------------------------------------------------------------------------- state
    def value_of(self, variable: StateHandle, body: Trace | None = None) -> Tensor:
        """The value of a variable at this point of the program; body: the one that asks for it."""
        variable = self.root().effects.first(variable)
        if self.state is not None and variable in self.state:
            t = self.state[variable]
        elif self.parent is None:
            return self.tensor(self.effects.read(variable, body))
        else:
            t = self.tensor(self.lift(self.parent.value_of(variable, self)))
        self.seen.setdefault(variable, {})[self.lift(t)] = None
        return t

    def carry(self, variable: StateHandle, value: Tensor) -> Tensor:
        """In the body of a loop or branch: the variable has this value from here on."""
        variable = self.root().effects.first(variable)
        assert self.state is not None
        self.state[variable] = self.tensor(self.lift(value))
        self.written[variable] = None
        return self.state[variable]

    # -------------------------------------------------------------------------------------- scope
    @contextmanager
    def active(self) -> Iterator[Trace]:
        """Make this the current trace of the running thread."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    @contextmanager
    def scope(self) -> Iterator[Trace]:
        """`active`, and the trace ends with it: its tensors cannot be used any more."""
        try:
            with self.active():
                yield self
        finally:
            self.closed = True

    def encloses(self, other: Trace) -> bool:
        """Whether `other` is this trace or a region in it."""
        trace: Trace | None = other
        while trace is not None and trace is not self:
            trace = trace.parent
        return trace is self

    def root(self) -> Trace:
        """The outermost trace around this region (itself for other kinds)."""
        return self if self.parent is None else self.parent.root()

    def describe(self) -> str:
        """Name and place, which tells graphs of one name apart: `'graph' (made at a.py:3:9)`."""
        return f"'{self.name}'" + (f" (made at {self.location[0]})" if self.location else "")

    def value_hint(self, hint: str) -> str:
        """What to do where the value of a tensor of this trace is needed; `hint` in a function."""
        root = self.root()
        if root.kind != "graph":
            return hint
        what = hint.split(", or ")[0]
        hint = "wf.Session(graph=...).run(tensor) gives the value of a tensor of a graph"
        if not what.startswith("return"):
            hint = f"{what}; {hint}"
        if root.is_thread_default:
            hint += (
                ". A placeholder made outside `with graph.as_default():` made the default graph "
                "current in this thread: ops add to it until wf.tf1.reset_default_graph()"
            )
        return hint

    def argument_name(self, value: Value) -> str:
        """The parameter of the compiled function that a value is; "" if it is none, or part of
        one."""
        args = self.builder.args
        if value.op is not None or value not in args:
            return ""
        place = args.index(value)
        if place >= len(self.arg_names):  # of a trace that names no parameters
            return ""
        name = self.arg_names[place]
        return name if name in self.parameters else ""

    def note_narrowed(self, value: Value, dtype: DType) -> None:
        """Remember that `value`, a weak integer, becomes `dtype` here, if it is an input."""
        while value.op is not None and value.op.name == "identity":
            (value,) = value.op.operands
        root = self.root()
        if value in root.builder.args:
            root.narrowed.setdefault((value, dtype), caller_location())

    def graph(self, results: Sequence[Value], name: str | None = None) -> Graph:
        """What was traced so far, as a graph with these results."""
        made = self.builder.graph(name or self.name, tuple(self.arg_names), results)
        return made.at_stage("dataflow") if is_dataflow(made.block) else made


def effect_trace(what: str) -> Trace | None:
    """The current trace if an effect can be added to it. UnsupportedError inside a region."""
    trace = current_trace()
    if trace is not None and trace.kind == "region":
        raise UnsupportedError(
            f"{what} inside '{trace.name}' is not supported",
            hint="do it outside; the function may return the new value",
            location=caller_location(),
        )
    return trace


def check_usable(t: Tensor, trace: Trace | None) -> None:
    """Raise TracerError unless symbolic `t` may be used while `trace` is current."""
    owner = t._trace
    assert owner is not None
    if not owner.closed and trace is not None and owner.encloses(trace):
        return
    what = f"a symbolic tensor {t.describe()}"
    if owner.closed:
        raise TracerError(
            f"{what} is used after the trace of '{owner.name}' that made it has ended",
            hint="return it from the traced function; keep state between calls in a wf.Variable",
            location=caller_location(),
        )
    if owner.kind == "graph":
        now = "no graph" if trace is None else trace.root().describe()
        raise TracerError(
            f"{what} belongs to the graph {owner.describe()}, but {now} is current here",
            hint="build on it inside `with graph.as_default():`",
            location=caller_location(),
        )
    elsewhere = "outside the trace" if trace is None else f"while '{trace.name}' is traced, not"
    raise TracerError(
        f"{what} is used {elsewhere} of '{owner.name}', where it belongs",
        hint="pass it to the function as an argument",
        location=caller_location(),
    )


_EFFECTS = frozenset({"no_dce", "reads_state", "writes_state"})


class RegionTrace(Trace):
    """A body under construction: outer tensors and handles that it uses become captures."""

    def __init__(self, name: str, parent: Trace | None, live: Iterable[StateHandle] = ()) -> None:
        super().__init__("region", name, parent)
        self.state = {}
        self.effects = LiveEffects(self)
        #: Whether ops of the host may be in it: all around it are bodies, too, up to a wf.Graph.
        self.in_graph = graph_around(parent) is not None
        around = parent.live if isinstance(parent, RegionTrace) else ()
        #: The variables that are read and updated where that stands.
        self.live: dict[StateHandle, None] = dict.fromkeys((*around, *live))
        #: Those that something in it updates so.
        self.updated: dict[StateHandle, None] = {}
        #: What comes after the last op on each object so far.
        self.last: dict[StateKey, Value] = {}
        #: Whether a call of Python is in it, outside of graphs, where passes put them in order.
        self.calls_python = False
        #: What is outside and comes before the op that this is a body of.
        self.waits: dict[Value, None] = {}

    def held(self, variable: StateHandle, value: Tensor) -> None:
        """The variable has this value when the body begins."""
        assert self.state is not None
        self.state[variable] = value

    def is_live(self, variable: StateHandle) -> bool:
        """Whether reads and updates of the variable are ops in this body."""
        return variable.state.open is not None or self.root().effects.first(variable) in self.live

    def value_of(self, variable: StateHandle, body: Trace | None = None) -> Tensor:
        """The value of a variable at this point of the program."""
        if not self.is_live(variable):
            return super().value_of(variable, body)
        first = self.root().effects.first(variable)
        value = self.effects.read(first)
        self.seen.setdefault(first, {})[value] = None
        return self.tensor(value)

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: Attrs | None = None,
        *,
        regions: Sequence[Block] = (),
        control: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        """As `Trace.emit`, after what was done before to the same objects."""
        if not self.in_graph:
            made = super().emit(name, operands, attrs, regions=regions, control=control)
            self.calls_python = self.calls_python or calls_python(self.builder.ops[-1])
            return made
        if not (regions or lookup(name).traits & _EFFECTS):
            return super().emit(name, operands, attrs, regions=regions, control=control)
        keys = effect_keys(Operation(name, operands, {}, (), regions))
        before = [self.last[key] for key in keys if key in self.last]
        made = super().emit(name, operands, attrs, regions=regions, control=(*control, *before))
        self.last.update((key, made[0]) for key in keys)
        return made

    def wait_for(self, owner: Trace, value: Value) -> None:
        """Make the whole op that this is a body of come after `value` of a trace around it."""
        if value.op is None:  # an argument orders nothing
            return
        if owner is self.parent or not isinstance(self.parent, RegionTrace):
            self.waits[value] = None
        else:
            self.parent.wait_for(owner, value)

    @property
    def acts(self) -> bool:
        """Whether something is done in it besides computing its results."""
        return bool(self.last) or self.calls_python

    def around(self) -> Iterator[RegionTrace]:
        """This body and those around it."""
        trace: Trace | None = self
        while isinstance(trace, RegionTrace):
            yield trace
            trace = trace.parent


class LiveEffects(Effects):
    """Reads and updates of live variables in a body; `RegionTrace.emit` puts them in order."""

    def __init__(self, trace: RegionTrace) -> None:
        super().__init__(trace)
        self.body = trace

    def ref(self, variable: StateHandle, scoped: bool = False) -> Value:
        """The handle, captured from outside."""
        return bring_in(self.trace, self.trace.root().effects.ref(variable, scoped))

    def read(self, variable: StateHandle, body: Trace | None = None) -> Value:
        """The value at this point of the program."""
        root = self.trace.root().effects
        root.reads.setdefault(root.first(variable), [])  # optimizers look there for variables
        return self._emit("read", variable)

    def update(self, op: str, variable: StateHandle, operands: Sequence[Value]) -> Value:
        """Append an update; the value after it."""
        self._note(variable)
        return self._emit(op, variable, operands)

    def write(self, variable: StateHandle, value: Value) -> Value:
        """Append the assignment; the token of it."""
        self._note(variable)
        return self._emit("assign", variable, (value,))

    def _note(self, variable: StateHandle) -> None:
        first = self.trace.root().effects.first(variable)
        for trace in self.body.around():
            trace.updated[first] = None


def graph_around(trace: Trace | None) -> Trace | None:
    """`trace` if it is that of a `wf.Graph`, or of a body in one; else None."""
    if isinstance(trace, RegionTrace):
        return trace if trace.in_graph else None
    return trace if trace is not None and trace.kind == "graph" else None


def host_trace(trace: Trace | None) -> Trace | None:
    """`trace` if ops of the host may be added to it, or to what it is a body of: a `wf.Graph`, or a
    compiled function that may run on the dataflow executor; else None."""
    return trace if trace is not None and trace.root().takes_host_ops else None


def bring_in(trace: Trace, value: Value) -> Value:
    """A value of the outermost trace, such as a handle, as a value of `trace`."""
    root = trace.root()
    return value if trace is root else trace.lift(Tensor(None, value, root))


def must_be_live(traces: Sequence[RegionTrace]) -> list[StateHandle]:
    """The variables that the bodies of one op must not carry, though they may do so now: those that
    it assigns to if it acts, and those that are live in bodies within."""
    acts = any(trace.last for trace in traces)
    found = [v for t in traces for v in (*t.updated, *(t.written if acts else ()))]
    return [v for v in dict.fromkeys(found) if any(v not in trace.live for trace in traces)]
