"""Variables of a graph: `get_variable` and `variable_scope`, by which they are found again by name
(TensorFlow 1), lists of them, and the effects that give them their initial values.

Each graph has its own names; outside of graphs they are those of the default graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeAlias

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, Trace
from weft.frontend.nn.initial_values import Initializer as NamedInitializer
from weft.frontend.nn.initial_values import glorot_uniform
from weft.frontend.ops.creation import zeros
from weft.frontend.ops.elementwise import add
from weft.frontend.ops.promotion import check_shape
from weft.frontend.random.generator import is_graph_state
from weft.frontend.session.graph import get_default_graph, graph_trace
from weft.frontend.state.scopes import group, name_scope
from weft.frontend.state.variable import FullName, Variable, variables_of
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, as_dtype, float32
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    ShapeError,
    TypeRuleError,
    WeftError,
    suggest,
)
from weft.ir.graph import Operation, Value
from weft.ir.locations import Locations, caller_location
from weft.ir.ops import lookup
from weft.ir.process import ForkLock
from weft.passes.rewriting.rewrite import with_control
from weft.passes.sizes import needed_ops


def variables_initializer(var_list: Sequence[Variable], name: str = "init") -> Effect:
    """An effect that gives the variables their initial values; outside a graph they have them
    already.

    An initial value that is computed from other variables of the list uses their initial values;
    of variables that are not in the list, it uses the values that they have.
    """
    trace = graph_trace("wf.tf1.variables_initializer")
    if trace is None:
        return Effect(name)
    for v in var_list:
        trace.effects.ref(v)
    wanted = set(var_list)
    starts: dict[Value, Value] = {}  # a read of a variable of the list -> its initial value
    states = {trace.effects.ref(v) for v in wanted if is_graph_state(v)}
    done: list[Effect] = []
    known = list(variables_of(trace).values())  # made after those that they are computed from
    for v in known:
        if v in wanted:
            start = _computed_from(trace, trace.lift(v._start_in(trace)), starts, states)
            starts.update((read, start) for read in trace.effects.reads.get(v, ()))
            done.append(v._initialize(trace, start))
    return group(done, name=name)


def _computed_from(
    trace: Trace, value: Value, given: Mapping[Value, Value], states: Container[Value]
) -> Value:
    """`value`, computed again with the values `given` in place of others that it depends on.

    `value` itself if it depends on none of them, or if that would repeat an effect. states: handles
    of the states of random ops; each is one op's own, which draws from the initial state here and
    need not store the next.
    """
    ops, _ = needed_ops(trace.builder.ops, [value], given)
    changed = set(given)
    again: list[Operation] = []
    stored: set[Value] = set()
    for op in ops:
        if changed.isdisjoint((*op.operands, *op.control)):
            continue
        changed.update(op.results)
        if op.name == "assign" and op.operands[0] in states:
            stored.update(op.results)
        else:
            again.append(op)
    if any(lookup(op.name).traits & {"reads_state", "writes_state"} for op in again):
        return value
    mapping = dict(given)
    for op in again:
        after = with_control(op, [v for v in op.control if v not in stored])
        mapping.update(zip(op.results, trace.builder.clone(after, mapping), strict=True))
    return mapping.get(value, value)


def global_variables_initializer() -> Effect:
    """An effect that gives every variable of the graph its initial value.

    That is the value passed to `wf.Variable`; for a variable made outside the graph, the one that
    it had when the graph first used it.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     v = wf.Variable([1.0, 2.0])
    ...     session.run(wf.global_variables_initializer())
    ...     print(session.run(v))
    [1. 2.]
    """
    trace = graph_trace("wf.global_variables_initializer")
    held = [] if trace is None else list(variables_of(trace).values())
    return variables_initializer(held)


def global_variables() -> list[Variable]:
    """The variables of the graph being built."""
    return get_default_graph().variables


def trainable_variables() -> list[Variable]:
    """Those of them that optimizers change by default."""
    return get_default_graph().trainable_variables


initialize_all_variables = global_variables_initializer


class _AutoReuse:
    """The class of `AUTO_REUSE`."""

    def __repr__(self) -> str:
        return "wf.tf1.AUTO_REUSE"


#: For `variable_scope(reuse=)`: take the variable if it is there, make it if it is not.
AUTO_REUSE: Final = _AutoReuse()
Reuse: TypeAlias = bool | _AutoReuse | None
#: A function of a shape and `dtype=`, without arguments if the shape is not given, or a value.
Initializer: TypeAlias = Callable[..., Any] | Any


class VariableScope:
    """A scope that `variable_scope` opens. name: the prefix of the names, without the last slash.
    reuse: whether variables must be there (True), may be (AUTO_REUSE) or must not (False)."""

    def __init__(
        self, name: str = "", reuse: Reuse = False, initializer: Initializer | None = None,
        dtype: DType = float32, regularizer: Callable[[Any], Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.reuse: Reuse = reuse
        self.initializer = initializer
        self.dtype = dtype
        self.regularizer = regularizer

    def reuse_variables(self) -> None:
        """From now on variables of this scope must be there."""
        self.reuse = True

    def __repr__(self) -> str:
        return f"<VariableScope {self.name!r}, reuse={self.reuse!r}>"


class _Names(threading.local):
    """The scopes that are open in a thread, innermost last."""

    def __init__(self) -> None:
        self.scopes: list[VariableScope] = []


class _Store:
    """The variables of one graph by name, with where they were made."""

    def __init__(self) -> None:
        self.root = VariableScope()
        self.open = _Names()
        self.variables: dict[str, tuple[Variable, Locations]] = {}
        self.penalized: list[tuple[Variable, Callable[[Any], Tensor]]] = []
        self.lock = ForkLock()

    @property
    def scope(self) -> VariableScope:
        return self.open.scopes[-1] if self.open.scopes else self.root


def _store() -> _Store:
    """That of the graph: it lies there, as its variables keep the graph alive."""
    held: dict[str, Any] = vars(get_default_graph())
    store: _Store = held.get("_variable_store") or held.setdefault("_variable_store", _Store())
    return store


def get_variable_scope() -> VariableScope:
    """The innermost scope that is open, or that of the whole graph."""
    return _store().scope


def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    *,
    initializer: Initializer | None = None,
    reuse: Reuse = None,
    dtype: object = None,
    regularizer: Callable[[Any], Tensor] | None = None,
) -> AbstractContextManager[VariableScope]:
    """Prefix the names of `get_variable` in the block with `name/`, and of `name_scope`, too.

    name_or_scope: a name within the scope around, or a scope, whose place it then is; None takes
    `default_name` and makes it unique. reuse: True, AUTO_REUSE, or as around (a new scope of the
    graph: variables must not be there). initializer, dtype, regularizer: for variables that give
    none. TypeRuleError for other arguments.
    """
    store = _store()
    around = name_or_scope if isinstance(name_or_scope, VariableScope) else store.scope
    if not (reuse is None or isinstance(reuse, (bool, _AutoReuse))):
        raise TypeRuleError(
            f"wf.tf1.variable_scope: reuse={reuse!r} is not None, True, False or wf.tf1.AUTO_REUSE",
            location=caller_location(),
        )
    if isinstance(name_or_scope, VariableScope):
        full = around.name
    else:
        full = _joined(around.name, _scope_name(store, around, name_or_scope, default_name))
    made = VariableScope(
        full, reuse or around.reuse, initializer or around.initializer,
        around.dtype if dtype is None else as_dtype(dtype), regularizer or around.regularizer,
    )  # fmt: skip
    return _opened(store, made)


@contextmanager
def _opened(store: _Store, made: VariableScope) -> Iterator[VariableScope]:
    store.open.scopes.append(made)
    try:
        with name_scope(made.name.rpartition("/")[2]):
            yield made
    finally:
        store.open.scopes.pop()


def _scope_name(
    store: _Store, around: VariableScope, name: object, default_name: str | None
) -> str:
    if isinstance(name, str) and name:
        return name
    if name is None and default_name:
        taken = [*store.variables, *(s.name + "/" for s in store.open.scopes)]
        candidate, count = default_name, 0
        while any(n.startswith(_joined(around.name, candidate) + "/") for n in taken):
            count += 1
            candidate = f"{default_name}_{count}"
        return candidate
    raise TypeRuleError(
        f"wf.tf1.variable_scope: {name!r} is no name",
        hint="pass a str, a scope, or None with default_name=",
        location=caller_location(),
    )


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def get_variable(
    name: str,
    shape: Sequence[int] | int | None = None,
    dtype: object = None,
    initializer: Initializer | None = None,
    trainable: bool = True,
    regularizer: Callable[[Any], Tensor] | None = None,
    validate_shape: bool = True,
) -> Variable:
    """The variable of that name in the scope around, made if the scope's `reuse` allows.

    shape: of a new variable; may be left out if `initializer` is a value or a function without
    arguments. dtype: default that of the scope, float32. initializer: default that of the scope,
    else uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010), zeros for integers
    and bools. regularizer: default that of the scope; a function of the variable whose value
    `wf.losses.get_regularization_losses` lists. InvalidArgumentError for one that is there and must
    not be, NotFoundError for one that must be there and is not, ShapeError or TypeRuleError for one
    of another shape or dtype; validate_shape=False as of `wf.Variable`.
    """
    _check_name(name)
    store = _store()
    scope = store.scope
    full = _joined(scope.name, name)
    wanted = None if shape is None else _sizes(shape)
    with store.lock:
        known = store.variables.get(full)
        if known is not None:
            _check_known(full, known, scope, wanted, dtype)
            return known[0]
        if scope.reuse is True:
            raise NotFoundError(
                f"wf.tf1.get_variable: there is no variable '{full}', and reuse=True makes none"
                f"{suggest(full, list(store.variables))}",
                hint="only wf.tf1.get_variable makes variables that it finds; wf.tf1.AUTO_REUSE "
                "makes those that are not there",
                location=caller_location(),
            )
        kind = scope.dtype if dtype is None else as_dtype(dtype)
        given = scope.initializer if initializer is None else initializer
        asked = None if dtype is None else kind
        made = _made(full, wanted, kind, asked, given, trainable, validate_shape)
        store.variables[full] = made, caller_location()
        penalty = scope.regularizer if regularizer is None else regularizer
        if penalty is not None:
            store.penalized.append((made, penalty))
    return made


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    """The penalty of each variable that `wf.tf1.get_variable` made with a regularizer, in the order
    of their making (TF1's name). scope: only of variables whose names begin with it.

    Computed where it is called: in a graph, a compiled function or at once.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     penalty = wf.losses.l2_regularizer(0.5)
    ...     w = wf.tf1.get_variable("w", initializer=[1.0, 3.0], regularizer=penalty)
    ...     session.run(wf.global_variables_initializer())
    ...     print(session.run(wf.losses.get_regularization_losses()))
    [np.float32(2.5)]
    """
    known = list(_store().penalized)
    return [penalty(v) for v, penalty in known if scope is None or v.name.startswith(scope)]


def get_regularization_loss(scope: str | None = None) -> Tensor:
    """The sum of `get_regularization_losses`, to be added to the loss; 0 without any.

    >>> with wf.Graph().as_default():
    ...     wf.losses.get_regularization_loss()
    Tensor(0., dtype=float32)
    """
    found = get_regularization_losses(scope)
    total = as_tensor(found[0]) if found else zeros((), dtype=float32)
    for other in found[1:]:
        total = add(total, other)
    return total


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeRuleError(f"wf.tf1.get_variable: {name!r} is no name", location=caller_location())


def _check_known(
    full: str, known: tuple[Variable, Locations], scope: VariableScope,
    shape: tuple[int, ...] | None, dtype: object,
) -> None:  # fmt: skip
    """Errors as `get_variable` for a variable that is there."""
    variable, where = known
    if not scope.reuse:
        made = f", made at {where[0].describe()}" if where else ""
        raise InvalidArgumentError(
            f"wf.tf1.get_variable: there is a variable '{full}' already{made}",
            hint="to take it: wf.tf1.variable_scope(..., reuse=True), or reuse=wf.tf1.AUTO_REUSE",
            location=caller_location(),
        )
    if shape is not None and shape != variable.shape:
        raise ShapeError(
            f"wf.tf1.get_variable: variable '{full}' has shape {format_shape(variable.shape)}, not "
            f"{format_shape(shape)}",
            location=caller_location(),
        )
    if dtype is not None and as_dtype(dtype) is not variable.dtype:
        raise TypeRuleError(
            f"wf.tf1.get_variable: variable '{full}' is {variable.dtype.name}, not "
            f"{as_dtype(dtype).name}",
            location=caller_location(),
        )


def _sizes(shape: Any) -> tuple[int, ...]:
    given = check_shape("get_variable", shape)
    sizes = tuple(n for n in given if isinstance(n, int))
    if len(sizes) < len(given):
        raise ShapeError(
            f"wf.tf1.get_variable: the shape {format_shape(given)} is not known",
            hint="a variable has a static shape",
            location=caller_location(),
        )
    return sizes


def _made(
    full: str, shape: tuple[int, ...] | None, dtype: DType, asked: DType | None,
    initializer: Any, trainable: bool, validate_shape: bool,
) -> Variable:  # fmt: skip
    if shape is None and (initializer is None or isinstance(initializer, NamedInitializer)):
        raise ShapeError(
            f"wf.tf1.get_variable: the new variable '{full}' needs a shape",
            hint="pass shape=, or an initializer that is a value",
            location=caller_location(),
        )
    if initializer is not None and not callable(initializer):
        value = _of_shape(full, as_tensor(initializer), shape)
        return _named(full, value, asked, trainable, validate_shape)

    def start() -> Any:
        if initializer is None:
            assert shape is not None
            return _default(full, shape, dtype)
        if shape is None:
            return initializer()
        return _of_shape(full, as_tensor(initializer(shape, dtype=dtype)), shape)

    return _named(full, start, asked if shape is None else dtype, trainable, validate_shape)


def _of_shape(full: str, value: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """`value`, the initial value of a variable of that shape."""
    if shape is not None and shape != value.shape:
        raise ShapeError(
            f"wf.tf1.get_variable: variable '{full}' of shape {format_shape(shape)} has an initial "
            f"value of shape {format_shape(value.shape)}",
            hint="leave the shape out where the initializer is a value",
            location=caller_location(),
        )
    return value


def _named(
    full: str, initial: Any, dtype: DType | None, trainable: bool, validate_shape: bool
) -> Variable:
    name = FullName(full)
    try:
        return Variable(initial, trainable, dtype, name, validate_shape=validate_shape)
    except WeftError as error:
        raise error.at(caller_location()) from None


def _default(full: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
    if dtype.is_integer or dtype.kind == "bool":
        return zeros(shape, dtype=dtype)
    if not dtype.is_floating:
        raise InvalidArgumentError(
            f"wf.tf1.get_variable: variable '{full}' of dtype {dtype.name} needs an initializer",
            location=caller_location(),
        )
    return glorot_uniform()(shape, dtype)
