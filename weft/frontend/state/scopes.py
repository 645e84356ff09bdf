"""Scopes around the code that builds a graph: `wf.name_scope`, `wf.control_dependencies`,
`wf.device`, `wf.tf1.colocate_with`, `wf.bfloat16_transfer`; effects that stand for others
(`wf.group`, `wf.no_op`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.frontend.core import pytree
from weft.frontend.core.device_scope import (
    DeviceFunction,
    Scope,
    as_spec,
    device_scopes,
    enter_scopes,
    group_of,
    leave_scopes,
    placed_as,
)
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import (
    Effect,
    RegionTrace,
    Trace,
    check_usable,
    current_trace,
    graph_around,
)
from weft.frontend.ops.promotion import TensorLike, cast
from weft.frontend.state.resources import RESOURCES, handle
from weft.frontend.state.variable import Variable
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import bfloat16, float32
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location, name_scopes
from weft.runtime.resources.attempts import Resource


@contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Prefix the names of variables and placeholders made in the block with `name/`; ops made there
    belong to the scope `name`, by which `view` and TensorBoard group them.

    >>> with wf.Graph().as_default():
    ...     with wf.name_scope("layer1"):
    ...         print(wf.Variable(1.0, name="w").name)
    layer1/w
    """
    trace = current_trace()
    around = name_scopes.get()
    token = name_scopes.set(f"{around}/{name}".strip("/"))
    before = "" if trace is None else trace.name_scope
    try:
        if trace is None:
            yield f"{name}/"
        else:
            trace.name_scope = f"{before}{name}/"
            yield trace.name_scope
    finally:
        name_scopes.reset(token)
        if trace is not None:
            trace.name_scope = before


@contextmanager
def control_dependencies(control_inputs: Sequence[Any] | None) -> Iterator[None]:
    """In a graph: whoever runs an op made in the block runs `control_inputs` before it.

    control_inputs: tensors, effects, ops, variables; None lifts the surrounding ones. In the body
    of a branch or loop, what is outside of it comes before the whole branch or loop. In compiled
    functions and outside graphs it changes nothing: effects follow program order there.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     v = wf.Variable(1)
    ...     start, add = wf.global_variables_initializer(), v.assign_add(1)
    ...     with wf.control_dependencies([add]):
    ...         after = wf.asarray(10) * 2
    ...     session.run(start)
    ...     print(session.run(after), session.run(v))
    20 2
    """
    trace = graph_around(current_trace())
    given = [] if control_inputs is None else control_inputs
    values = tuple(_dependencies("wf.control_dependencies", given, trace))
    if trace is None:
        yield
        return
    before = trace.control
    trace.control = () if control_inputs is None else tuple(dict.fromkeys((*before, *values)))
    try:
        yield
    finally:
        trace.control = before


def _dependencies(what: str, items: Any, trace: Trace | None) -> Iterator[Value]:
    for item in pytree.tree_leaves(items):
        if not isinstance(item, (Operators, Effect)):
            raise TypeRuleError(
                f"{what}: a {type(item).__name__} is not a tensor or effect: {item!r:.60}",
                location=caller_location(),
            )
        if trace is None:
            continue
        if isinstance(item, Effect):
            owner, value = item.trace, item.value
        else:
            t = as_tensor(item)
            if t._trace is not None:
                check_usable(t, trace)
            owner, value = t._trace, t._value
        if owner is None or value is None:
            continue  # done, or known
        if owner is trace:
            if value.op is not None or trace.kind == "graph":
                yield value
        elif isinstance(trace, RegionTrace) and owner.encloses(trace) and not owner.closed:
            trace.wait_for(owner, value)
        else:
            assert isinstance(item, Effect)  # of tensors check_usable says so
            raise _foreign(what, item, owner)


def _foreign(what: str, effect: Effect, owner: Trace) -> InvalidArgumentError:
    if owner.kind == "graph":
        made, hint = "belongs to another graph", None
    else:
        made = f"was made in the {owner.name}"
        hint = "what a body does is done whenever it runs; depend on what the branch or loop gives"
    return InvalidArgumentError(
        f"{what}: the effect '{effect.name}' {made}", hint=hint, location=caller_location()
    )


def group(*inputs: Any, name: str = "group") -> Effect:
    """An effect that is done when all of `inputs` (tensors, effects, lists of them) are.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     a, b = wf.Variable(1), wf.Variable(2)
    ...     session.run(wf.global_variables_initializer())
    ...     session.run(wf.group(a.assign(b), b.assign(0)))
    ...     print(*session.run([a, b]))  # in the order of the program
    2 0
    """
    trace = graph_around(current_trace())
    values = list(_dependencies("wf.group", inputs, trace))
    if trace is None:
        return Effect(name)
    (token,) = trace.emit("group", control=values)
    return Effect(trace.name_scope + name, token, trace)


def no_op(name: str = "no_op") -> Effect:
    """An effect that does nothing; in `control_dependencies` it stands for them.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     v = wf.Variable(0)
    ...     session.run(wf.global_variables_initializer())
    ...     with wf.control_dependencies([v.assign_add(1), v.assign_add(1)]):
    ...         both = wf.no_op(name="both")
    ...     session.run("both")
    ...     print(session.run(v))
    2
    """
    return group(name=name)


@contextmanager
def device(device_name_or_function: str | DeviceSpec | DeviceFunction | None) -> Iterator[None]:
    """The ops that are added to a graph in the block run on this device.

    A full or partial name ("/job:ps/task:0/cpu:0", "/job:worker", "/gpu:1"), a `wf.DeviceSpec`, or
    a function that is called with each op (`.type`, `.name`, `.device` ...) and gives a name, a
    spec, or None for no change. Scopes nest, the inner one wins in each part; None hides those
    around it. A variable or queue is where it was made, and what reads or writes it is there too.

    Constants are where they are needed. Outside graphs the device must be one of this process, and
    the computation is the same. InvalidArgumentError for what is no device; for one that does not
    exist when the graph is run, in the session.

    >>> with wf.Graph().as_default():
    ...     with wf.device("/job:worker"), wf.device("/gpu:1"):  # the inner one wins in each part
    ...         x = wf.exp(wf.placeholder(wf.float32, []))
    ...     print(x.device)
    /job:worker/gpu:1
    """
    given = device_name_or_function
    owner = _function_trace()
    try:
        if given is None:
            scope = Scope(hides=True, owner=owner)
        elif callable(given):
            scope = Scope(function=given, owner=owner)
        else:
            scope = Scope(as_spec(given, "wf.device was given"), owner=owner)
    except WeftError as error:
        raise error.at(caller_location()) from None
    token = enter_scopes((*device_scopes(), scope))
    try:
        yield
    finally:
        leave_scopes(token)


@contextmanager
def colocate_with(op: Any, ignore_existing: bool = False) -> Iterator[None]:
    """The ops that are added to the graph in the block run on the device that `op` runs on.

    op: a tensor, effect, variable or queue of the graph that is being built, or None.
    `wf.device` scopes around the block do not count in it. ignore_existing: nor does colocation.
    TypeRuleError for anything else, InvalidArgumentError for a placeholder and for None without
    ignore_existing, FailedPreconditionError outside of graphs.

    >>> with wf.Graph().as_default():
    ...     with wf.device("/job:ps/task:1"):
    ...         table = wf.Variable(np.zeros((4, 2)))
    ...     with wf.device("/job:worker"), wf.tf1.colocate_with(table):
    ...         rows = wf.take(table, [0, 2], axis=0)
    ...     print(rows.device)
    /job:ps/task:1
    """
    if op is None:
        if not ignore_existing:
            raise InvalidArgumentError(
                "wf.tf1.colocate_with(None) says nothing without ignore_existing=True",
                location=caller_location(),
            )
        scope = Scope(hides=True, frees=True, owner=_function_trace())
    else:
        trace = current_trace()
        if trace is None:
            raise FailedPreconditionError(
                "wf.tf1.colocate_with is for graphs, and none is being built",
                hint="use it inside `with graph.as_default():` or @wf.compile",
                location=caller_location(),
            )
        target = _operation(op, trace)
        scope = Scope(hides=True, target=target, frees=ignore_existing, owner=trace.root())
    token = enter_scopes((*device_scopes(), scope))
    try:
        yield
    finally:
        leave_scopes(token)


@contextmanager
def beside(item: Variable | Tensor) -> Iterator[None]:
    """In a graph in which devices play a part, `colocate_with(item)`; else, and for what has no op,
    nothing."""
    trace = _with_devices()
    op = None
    if trace is not None:
        effects = trace.root().effects
        value = effects.ref(item) if isinstance(item, Variable) else _made(item, trace)
        op = None if value is None else value.op
    if op is None or not (placed_as(op).device or placed_as(op).group or device_scopes()):
        yield
        return
    assert trace is not None
    scope = Scope(hides=True, target=op, owner=trace.root())
    token = enter_scopes((*device_scopes(), scope))
    try:
        yield
    finally:
        leave_scopes(token)


def _made(item: Tensor, trace: Trace) -> Value | None:
    """The value of a tensor where it is made, which may be around the body that uses it."""
    value, owner = item._value, item._trace
    while value is not None and value.op is None and owner is not None and owner.parent is not None:
        outer = next((v for v, arg in owner.captures.items() if arg is value), None)
        value, owner = outer, owner.parent
    return value


def bfloat16_transfer(x: TensorLike) -> Tensor:
    """`x` rounded to bfloat16 (8 bits of precision, to nearest even), as a float32 tensor: another
    task gets it in half the bytes.

    It is rounded for all who read it, so results do not depend on where they run. TypeRuleError for
    anything that is not float32.

    >>> wf.bfloat16_transfer(wf.asarray([1.0, 1.001, 257.0]))
    Tensor([  1.,   1., 256.], dtype=float32)
    """
    given = as_tensor(x)
    if given.dtype is not float32:
        raise TypeRuleError(
            f"wf.bfloat16_transfer takes float32, got {given.dtype}", location=caller_location()
        )
    with beside(given):
        low = cast(given, bfloat16)
    with beside(low):
        return cast(low, float32)


def put_beside(made: Variable, variable: Variable) -> Variable:
    """`made`, whose handle is where that of `variable` is, in a graph in which devices play a
    part: what TensorFlow 1 does with an optimizer's slots."""
    trace = _with_devices()
    if trace is not None:
        effects = trace.root().effects
        op, other = effects.ref(made).op, effects.ref(variable).op
        if op is None or other is None or op is other:
            return made
        if other.device or other.group or device_scopes():
            op.device, op.group = other.device, group_of(other, trace.root())
    return made


def _with_devices() -> Trace | None:
    """The current trace if it is of a graph, or of a function that holds the shards of a mesh."""
    trace = current_trace()
    has_shards = trace is not None and bool(trace.root().shard_devices)
    return trace if has_shards else graph_around(trace)


def _function_trace() -> Trace | None:
    """The function that is being traced, if there is one: scopes in it are for it alone."""
    trace = current_trace()
    root = None if trace is None else trace.root()
    return root if root is not None and root.kind == "function" else None


def _operation(item: Any, trace: Trace) -> Operation:
    value = _value(item, trace)
    if value.op is None:
        raise InvalidArgumentError(
            f"wf.tf1.colocate_with: {item!r:.60} is an input, which no device computes",
            hint="give the device by name: with wf.device(...)",
            location=caller_location(),
        )
    return value.op


def _value(item: Any, trace: Trace) -> Value:
    if isinstance(item, Variable):
        return trace.root().effects.ref(item)
    for name in RESOURCES:
        held = getattr(item, name, None)
        if isinstance(held, Resource):
            return handle(trace.root(), held)
    if not isinstance(item, (Effect, Tensor)):  # an op of the graph: what runs it
        item = next(iter(pytree.tree_leaves(item)), item)
    if isinstance(item, Effect) and item.value is not None and item.trace is not None:
        if not item.trace.encloses(trace):
            raise InvalidArgumentError(
                f"wf.tf1.colocate_with: the effect '{item.name}' belongs to another graph",
                location=caller_location(),
            )
        return item.value
    if isinstance(item, Tensor) and item._value is not None:
        check_usable(item, trace)
        return item._value
    if isinstance(item, Tensor):
        raise InvalidArgumentError(
            "wf.tf1.colocate_with: a tensor that has its value is on no device of the graph",
            hint="give the device by name: with wf.device(...)",
            location=caller_location(),
        )
    raise TypeRuleError(
        f"wf.tf1.colocate_with: a {type(item).__name__} is not a tensor, effect, variable or queue",
        location=caller_location(),
    )
