"""The trace of the body of a branch or loop, and the order of what it does besides its results.

In a `wf.Graph` a body may act on objects of the host (queues, files, Python functions). Each time
it runs, all that it does is done once; ops on one object in the order of the program, as in a
compiled function, by control operands that are added here. An op of control flow acts on all that
its bodies act on.

Variables that a body assigns to are carried through it, read before and assigned after. A body that
acts may take long, and other steps change the variable meanwhile; so there they are *live*: each
read and update is an op in the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import Effects, Trace
from weft.ir.analysis.effects import StateKey, effect_keys
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.spec import Attrs

if TYPE_CHECKING:
    from weft.frontend.variable import Variable

_EFFECTS = frozenset({"no_dce", "reads_state", "writes_state"})


class RegionTrace(Trace):
    """A body under construction: outer tensors and handles that it uses become captures."""

    def __init__(self, name: str, parent: Trace | None, live: Iterable[Variable] = ()) -> None:
        super().__init__("region", name, parent)
        self.state = {}
        self.effects = LiveEffects(self)
        #: Whether ops of the host may be in it: all around it are bodies, too, up to a wf.Graph.
        self.in_graph = graph_around(parent) is not None
        around = parent.live if isinstance(parent, RegionTrace) else ()
        #: The variables that are read and updated where that stands.
        self.live: dict[Variable, None] = dict.fromkeys((*around, *live))
        #: Those that something in it updates so.
        self.updated: dict[Variable, None] = {}
        #: What comes after the last op on each object so far.
        self.last: dict[StateKey, Value] = {}
        #: What is outside and comes before the op that this is a body of.
        self.waits: dict[Value, None] = {}

    def held(self, variable: Variable, value: Tensor) -> None:
        """The variable has this value when the body begins."""
        assert self.state is not None
        self.state[variable] = value

    def is_live(self, variable: Variable) -> bool:
        """Whether reads and updates of the variable are ops in this body."""
        return self.root().effects.first(variable) in self.live

    def value_of(self, variable: Variable, body: Trace | None = None) -> Tensor:
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
        if not (self.in_graph and (regions or lookup(name).traits & _EFFECTS)):
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
        return bool(self.last)

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

    def ref(self, variable: Variable, scoped: bool = False) -> Value:
        """The handle, captured from outside."""
        return bring_in(self.trace, self.trace.root().effects.ref(variable, scoped))

    def read(self, variable: Variable, body: Trace | None = None) -> Value:
        """The value at this point of the program."""
        root = self.trace.root().effects
        root.reads.setdefault(root.first(variable), [])  # optimizers look there for variables
        return self.trace.emit("read", (self.ref(variable),))[0]

    def update(self, op: str, variable: Variable, operands: Sequence[Value]) -> Value:
        """Append an update; the value after it."""
        self._note(variable)
        return self.trace.emit(op, (self.ref(variable), *operands))[0]

    def write(self, variable: Variable, value: Value) -> Value:
        """Append the assignment; the token of it."""
        self._note(variable)
        return self.trace.emit("assign", (self.ref(variable), value))[0]

    def _note(self, variable: Variable) -> None:
        first = self.trace.root().effects.first(variable)
        for trace in self.body.around():
            trace.updated[first] = None


def graph_around(trace: Trace | None) -> Trace | None:
    """`trace` if it is that of a `wf.Graph`, or of a body in one; else None."""
    if isinstance(trace, RegionTrace):
        return trace if trace.in_graph else None
    return trace if trace is not None and trace.kind == "graph" else None


def bring_in(trace: Trace, value: Value) -> Value:
    """A value of the outermost trace, such as a handle, as a value of `trace`."""
    root = trace.root()
    return value if trace is root else trace.lift(Tensor(None, value, root))


def must_be_live(traces: Sequence[RegionTrace]) -> list[Variable]:
    """The variables that the bodies of one op must not carry, though they may do so now: those that
    it assigns to if it acts, and those that are live in bodies within."""
    acts = any(trace.acts for trace in traces)
    found = [v for t in traces for v in (*t.updated, *(t.written if acts else ()))]
    return [v for v in dict.fromkeys(found) if any(v not in trace.live for trace in traces)]
