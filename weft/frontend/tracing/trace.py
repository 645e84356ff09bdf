"""Tracing: the graph under construction, and which one the running Python code is building.

Calling an op while a trace is current appends to that trace's builder and gives a symbolic tensor.
Traces are of three kinds: a *function* trace (`wf.compile`, `wf.grad` called eagerly) lives for one
run of the Python function; a *graph* trace (`wf.Graph`) stays open; a *region* trace builds a
nested block of an open trace and turns the outer values it uses into explicit operands.

Effects. In a function trace they follow program order: a read depends on the last write of its
variable, a write on the reads and the write before it. In a graph trace only
`wf.control_dependencies` orders them (TensorFlow 1's rule), because a step runs just the part of
the graph that is fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from weft.frontend.tensor import Tensor
from weft.frontend.tracing.device_scope import device_scopes, place
from weft.frontend.tracing.effect import Effect as Effect
from weft.frontend.tracing.effects import Effects as Effects
from weft.frontend.tracing.effects import unique_name as unique_name
from weft.frontend.tracing.running import Running
from weft.ir.analysis.frames import is_dataflow
from weft.ir.dtypes import DType
from weft.ir.errors import FailedPreconditionError, TracerError, UnsupportedError
from weft.ir.graph import Block, Graph, Value
from weft.ir.locations import Locations, caller_location
from weft.ir.ops.builder import Builder
from weft.ir.spec import Attrs, ConstArray
from weft.ir.types import Type

if TYPE_CHECKING:
    from weft.frontend.variable import Variable

Array = np.ndarray[Any, Any]
Kind = Literal["function", "graph", "region"]


class _Suspended:
    """The value of `_current` inside `suspend_trace`."""


_current: ContextVar[Trace | _Suspended | None] = ContextVar("weft_trace", default=None)


class _ThreadDefault(threading.local):
    trace: Trace | None = None


#: The default graph's trace, once `wf.placeholder` was called outside any graph. Not a ContextVar:
#: notebooks run each cell in a context of its own, and the default graph must outlive a cell.
_thread_default = _ThreadDefault()
#: Whether any thread has ever had one: most programs have none, and to ask takes as long as the
#: rest of `current_trace`.
_any_default = False
_SUSPENDED = _Suspended()


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
        self._token = _current.set(_SUSPENDED)

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
        self.variables: dict[str, Variable] = {}
        self.numbers: dict[str, int] = {}  # that names of variables were given last
        self.effects = Effects(self)
        self.control: tuple[Value, ...] = ()  # of the enclosing wf.control_dependencies
        self.name_scope = ""  # prefix of names given inside wf.name_scope, with the final slash
        self.owner: Any = None  # the wf.Graph that this is the trace of
        self.gpu: int | None = None  # of a function: the number of the GPU that it is compiled for
        self.symbols: set[str] | None = None  # names of sizes in use; None: sizes must be known
        self.made_sizes: set[str] = set()  # those that depend on values
        self.is_thread_default = False  # current because of a placeholder outside any graph
        self.captures: dict[Value, Value] = {}  # region: outer value -> block argument
        #: In a body: the values of variables that it carries or has assigned to; None elsewhere.
        self.state: dict[Variable, Tensor] | None = None
        self.written: dict[Variable, None] = {}
        self.seen: dict[Variable, dict[Value, None]] = {}  # region: what reading gave
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
        made = self.builder.emit(name, operands, attrs, regions=regions, control=tuple(both))
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
        return known[1]

    # ------------------------------------------------------------------------------------- state
    def value_of(self, variable: Variable, body: Trace | None = None) -> Tensor:
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

    def carry(self, variable: Variable, value: Tensor) -> Tensor:
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
                "current in this thread: ops add to it until wf.reset_default_graph()"
            )
        return hint

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
