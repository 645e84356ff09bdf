"""Device scopes: the `wf.device` and `wf.tf1.colocate_with` around the code that builds a graph,
and the device that they give each op.

Nested scopes merge as in TensorFlow 1: part by part, the innermost first; `wf.device(None)` and
`wf.tf1.colocate_with` hide the devices around them; a function sees what the scopes inside of it
said and has the last word. They say nothing of what reads or writes a handle (of a variable, a
queue), which is done where that is, nor of constants, which are where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Operation, Value
from weft.ir.spec import AttrValue
from weft.ir.types import HandleType, RefType, TensorType, Type

if TYPE_CHECKING:
    from weft.frontend.core.trace import Trace

_ANY = DeviceSpec()
_HANDLES = (RefType, HandleType)


class OpToPlace:
    """An op as a function given to `wf.device` sees it: its `type` ("variable", "add" ...), its
    `name` (of variables and other state; else ""), the `device` that the scopes within say, the
    `nbytes` of its results as far as their sizes are known, and its attributes."""

    __slots__ = ("_op", "device")

    def __init__(self, op: Operation, device: str) -> None:
        self._op = op
        self.device = device

    @property
    def type(self) -> str:
        """The op's name in the IR."""
        return self._op.name

    @property
    def name(self) -> str:
        """The name of the state that the op stands for, "" for other ops."""
        return str(self._op.attrs.get("name", ""))

    @property
    def attrs(self) -> dict[str, AttrValue]:
        """The attributes."""
        return dict(self._op.attrs)

    @property
    def nbytes(self) -> int:
        """Bytes of the results; those of a variable for its handle. 0 for sizes not known."""
        return sum(map(_nbytes, (r.type for r in self._op.results)))

    def __repr__(self) -> str:
        return f"<op {self.type} {self.name!r} on {self.device!r}>"


DeviceFunction = Callable[[OpToPlace], "str | DeviceSpec | None"]


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """One `wf.device` or `wf.tf1.colocate_with`.

    spec: what is merged. hides: whether the devices around it do not count. function: called with
    each op. target: the op that others are colocated with; frees: whether colocation around it does
    not count. keeps_state: whether what it hides counts for state. owner: the trace that it is for;
    None: graphs, whichever is built.
    """

    spec: DeviceSpec = _ANY
    hides: bool = False
    function: DeviceFunction | None = None
    target: Operation | None = None
    frees: bool = False
    keeps_state: bool = False
    owner: Trace | None = None


_NONE: tuple[Scope, ...] = ()
_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("weft_device_scopes", default=_NONE)

#: The scopes around this code, outermost first.
device_scopes = _scopes.get
enter_scopes = _scopes.set
leave_scopes = _scopes.reset


def place(op: Operation, trace: Trace, scopes: Sequence[Scope] | None = None) -> None:
    """Note on `op`, which was just added to `trace`, the device and group that the scopes say.

    scopes: those around the code that runs by default. InvalidArgumentError with the op's line for
    a function that gives no device.
    """
    if op.name == "constant":  # where it is needed
        return
    if _handle(op) is not None:
        return
    try:
        _place(op, trace, device_scopes() if scopes is None else scopes)
    except WeftError as error:
        raise error.at(op.locations) from None


def _place(op: Operation, trace: Trace, scopes: Sequence[Scope]) -> None:
    root = trace.root()
    spec, hidden, freed = _ANY, False, False
    targets: list[Operation] = []
    for scope in reversed(scopes):
        if scope.owner is not root and (scope.owner is not None or root.kind != "graph"):
            continue
        if scope.target is not None and not freed:
            targets.append(scope.target)
        if not hidden:
            spec = scope.spec.merged(spec)
            if scope.function is not None:
                spec = _called(scope.function, op, spec)
        if not (scope.keeps_state and _makes_handle(op)):
            hidden |= scope.hides
            freed |= scope.frees
    op.device = str(spec)
    for target in targets:
        _join(op, target, trace)


def scopes_spec() -> DeviceSpec:
    """What the scopes around this code say without an op; functions are for ops of graphs."""
    spec = _ANY
    for scope in device_scopes():
        spec = _ANY if scope.hides else spec.merged(scope.spec)
    return spec


def _called(function: DeviceFunction, op: Operation, spec: DeviceSpec) -> DeviceSpec:
    given = function(OpToPlace(op, str(spec)))
    if given is None:
        return spec
    return as_spec(given, "the function given to wf.device returned")


def as_spec(given: Any, what: str) -> DeviceSpec:
    """A spec of a text or a spec. InvalidArgumentError for anything else."""
    if isinstance(given, DeviceSpec):
        return given
    if isinstance(given, str):
        return DeviceSpec.parse(given)
    raise InvalidArgumentError(
        f"{what} {given!r:.60}, which names no device",
        hint='a device is a string such as "/job:ps/task:0/cpu:0", or a wf.DeviceSpec',
    )


def _join(op: Operation, target: Operation, trace: Trace) -> None:
    """Make `op` one of the group of `target`; two groups that it joins become one."""
    target = placed_as(target)
    group = group_of(target, trace)
    if op.group and op.group != group:
        old = op.group
        for other in _all_ops(trace):
            if other.group == old:
                other.group = group
    op.group = group
    if target.device:
        op.device = target.device


def _handle(op: Operation) -> Value | None:
    """The handle of the state that `op` reads or writes, if it does."""
    if op.regions:
        return None
    return next((v for v in op.operands if isinstance(v.type, _HANDLES)), None)


def placed_as(op: Operation) -> Operation:
    """What is where `op` is and may carry its marks: of what reads or writes state, its maker."""
    handle = _handle(op)
    return op if handle is None or handle.op is None else handle.op


def group_of(op: Operation, trace: Trace) -> str:
    """The colocation group of an op of the trace, or of one around it; made if there is none."""
    if not op.group:
        taken = trace.root().groups
        name = str(op.attrs.get("name", "")) if _makes_handle(op) else ""
        base = name or f"with_{op.name}"
        group, count = base, 0
        while group in taken:
            count += 1
            group = f"{base}_{count}"
        taken.add(group)
        op.group = group
    return op.group


def _makes_handle(op: Operation) -> bool:
    return len(op.results) == 1 and isinstance(op.results[0].type, _HANDLES)


def _all_ops(trace: Trace) -> Iterable[Operation]:
    """All ops of the trace and of those around it, those in finished regions too."""
    around: Trace | None = trace
    while around is not None:
        for op in around.builder.ops:
            yield op
            for region in op.regions:
                yield from region.walk()
        around = around.parent


def place_new(trace: Trace, start: int) -> None:
    """`place` the ops of the trace from number `start` on that no scope has seen, regions and all.

    They were appended by a pass. Regions may hold ops of earlier ones: these stay as they are.
    """
    if not device_scopes():
        return
    ops = trace.builder.ops
    known = {inner for op in ops[:start] for region in op.regions for inner in region.walk()}
    for op in ops[start:]:
        for inner in (op, *(i for region in op.regions for i in region.walk())):
            if inner not in known and not (inner.device or inner.group):
                place(inner, trace)


def colocate(
    trace: Trace, known: Container[Operation], with_op: Operation, ops: Iterable[Operation]
) -> None:
    """Put `ops`, regions and all, where `with_op` is: its device, and its group. An op that is not
    one of the trace's, `known` (but of a copied region), has no group to join unless it is in
    one."""
    own = with_op in known
    with_op = placed_as(with_op) if own else with_op
    for op in ops:
        for inner in (op, *(i for region in op.regions for i in region.walk())):
            if not (inner.device or inner.group) and inner.name != "constant":
                inner.device = with_op.device
                inner.group = group_of(with_op, trace) if own else with_op.group


def on_its_shard(trace: Trace, with_op: Operation, ops: Iterable[Operation]) -> None:
    """Put `ops`, regions and all, on the device of `with_op` if that is one of a mesh's."""
    for op in ops if with_op.device in trace.root().shard_devices else ():
        for inner in (op, *(i for region in op.regions for i in region.walk())):
            if not (inner.device or inner.group) and inner.name != "constant":
                inner.device = with_op.device


def _nbytes(kind: Type) -> int:
    held = kind.tensor if isinstance(kind, RefType) else kind
    return held.nbytes if isinstance(held, TensorType) and held.is_static else 0
