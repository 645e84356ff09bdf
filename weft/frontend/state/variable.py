"""`Variable`: state that outlives a call, read and assigned eagerly, in compiled functions and in
graphs.

Outside a graph a variable has its initial value from the start. One that is made while a `wf.Graph`
is current has none until the session runs its initializer (TensorFlow 1's rule). The state belongs
to the Variable, not to a session: every function, graph and session that uses it sees the same
value, but for sessions with values of their own (`own_variables`). Before the class: initial values
and the state that a variable gets, and the checks of the operands of updates with what updates
compute outside graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn
from typing import cast as cast_type

import numpy as np

from weft.frontend.core.function_trace import constant_value
from weft.frontend.core.operators import METHODS, Operators, array_function
from weft.frontend.core.tensor import Tensor, as_tensor, contiguous
from weft.frontend.core.trace import (
    Effect,
    RegionTrace,
    StateHandle,
    Trace,
    current_trace,
    effect_trace,
    suspend_trace,
)
from weft.frontend.core.trace import in_graph as building_graph
from weft.frontend.ops.dispatch import check_eager_device, fresh_sizes
from weft.frontend.ops.promotion import cast, common_dtype, expand, is_scalar
from weft.frontend.state.resources import current_container, shared
from weft.ir.dims import Shape, broadcast_shapes, format_shape, product
from weft.ir.dtypes import DEFAULT_COMPLEX, DEFAULT_FLOAT, DType, as_dtype
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Value, unique_name
from weft.ir.interpreter.state import check_initialized
from weft.ir.locations import caller_location
from weft.ir.spec import fits
from weft.ir.types import TensorType
from weft.passes.sizes import needed_ops
from weft.runtime.resources.variables import VariableState, copy_name


class FullName(str):
    """The name of a variable with all its scopes: that of the trace is not put before it."""

    __slots__ = ()


def check_creation(trace: Trace | None, name: str | None, **other: str | None) -> None:
    """UnsupportedError where a variable is made anew on every trace of a compiled function,
    TypeRuleError for a name, or one of the `other` names, that is no str."""
    for what, given in {"name": name, **other}.items():
        if given is not None and not isinstance(given, str):
            raise TypeRuleError(
                f"wf.Variable: {what} is a {type(given).__name__}, not a str",
                location=caller_location(),
            )
    if trace is not None and trace.kind != "graph" and not trace.root().creates_variables:
        raise UnsupportedError(
            f"variable '{name or 'variable'}' is created again: '{trace.root().name}' was traced "
            "before",
            hint="create variables outside the compiled function, or once, on its first call",
            location=caller_location(),
        )


def initial_tensor(
    initial: Any, dtype: object, trace: Trace | None, validate_shape: bool = True
) -> Tensor:
    """The initial value, of a static shape unless it need not be; concrete except in a graph, which
    may compute it."""
    in_graph = trace is not None and trace.kind == "graph"
    if in_graph:
        t = as_tensor(initial() if callable(initial) else initial)
    else:
        with suspend_trace():
            if callable(initial):
                initial = initial()
            t = initial if isinstance(initial, Tensor) else as_tensor(initial)
    if t._data is None and not in_graph:
        value = constant_value(t)
        if value is None:
            raise InvalidArgumentError(
                "the initial value of a variable depends on the inputs of the traced function: "
                f"{t.describe()}",
                hint="create the variable outside, and assign to it here",
                location=caller_location(),
            )
        t = Tensor(contiguous(value), weak=t.weak)
    if validate_shape and not all(isinstance(d, int) for d in t.shape):
        raise ShapeError(
            f"the initial value of a variable has the shape {format_shape(t.shape)}, which is not "
            "known",
            hint="give it a static shape, or let it change: validate_shape=False",
            location=caller_location(),
        )
    target = as_dtype(dtype) if dtype is not None else t.dtype
    if dtype is None and t.weak and t.dtype.is_inexact:
        target = DEFAULT_FLOAT if t.dtype.is_floating else DEFAULT_COMPLEX
    if t._data is not None:
        return Tensor(contiguous(t._data.astype(target.numpy)))
    return t if target is t.dtype else METHODS["astype"](t, target)


def made_state(
    name: str, initial: Tensor, trace: Trace | None, shared_name: str | None,
    container: str | None, validate_shape: bool,
) -> VariableState:  # fmt: skip
    """The state of a new variable: its own, or the one of that shared name.

    Outside a graph it has a value; one that is shared keeps the value that it has.
    """
    in_graph = trace is not None and trace.kind == "graph"
    shape = initial.shape if validate_shape else (None,) * initial.ndim
    place = current_container() if container is None else container
    array = None if in_graph else initial._data
    declared = f"{initial.dtype.short}{format_shape(shape)}"
    first = None if shared_name else array

    def make() -> VariableState:
        # what has a value from the start and is nobody else's is not cleared with a container
        held = place if in_graph or shared_name or place else None
        return VariableState(name, initial.dtype, shape, first, held)

    try:
        state = shared(shared_name, VariableState, declared, make, place)
    except WeftError as error:
        raise error.at(caller_location()) from None
    if first is None and array is not None:
        with state.lock:
            if not state.initialized:
                state.write(array)
    if in_graph and shared_name:
        assert trace is not None
        _check_no_cycle(name, state, initial, trace)
    return state


def _check_no_cycle(name: str, state: VariableState, initial: Tensor, trace: Trace) -> None:
    """InvalidArgumentError if the initial value is computed, at the end, from `state` itself."""
    todo, seen = [initial], set[VariableState]()
    while todo:
        t = todo.pop()
        if t._value is None or t._trace is not trace:
            continue
        for op in needed_ops(trace.builder.ops, [t._value])[0]:
            if op.name != "variable":
                continue
            used = variables_of(trace)[str(op.attrs["name"])]
            if used.state is state:
                raise InvalidArgumentError(
                    f"the initial value of variable '{name}' is computed from that variable itself",
                    hint="variables of one shared_name are one; begin with a value of its own",
                    location=caller_location(),
                )
            if used.state not in seen and used._initial_tensor is not None:
                seen.add(used.state)
                todo.append(used._initial_tensor)


def misfit(variable: Variable, given: DType) -> TypeRuleError:
    """The error for a value of another dtype."""
    return TypeRuleError(
        f"a {given.name} value does not fit variable '{variable.name}' ({variable.dtype.name})",
        hint=f"convert it with wf.astype(x, wf.{variable.dtype.name})",
        location=caller_location(),
    )


def _converted(variable: Variable, op: str, value: Any) -> Tensor:
    """`value` in the variable's dtype, if computing with both gives that."""
    held = value if is_scalar(value) else as_tensor(value)
    stands_for = Tensor(np.empty(0, variable.dtype.numpy))
    dtype = common_dtype(f"Variable.{op}", [stands_for, held])
    if dtype is not variable.dtype:
        raise misfit(variable, dtype)
    return cast(held, dtype)


def _spread(
    variable: Variable, op: str, value: Tensor, what: str, lead: Shape = (), first: int = 0
) -> Tensor:
    """`value` as large as the axes of the variable from `first` on, after those of `lead`."""
    shape = (*lead, *variable.state.type.shape[first:])
    if variable.state.open is not None:
        given: Shape = (*(1,) * (len(shape) - value.ndim), *value.shape)
        kept = [(n, d) for n, d in zip(given, shape, strict=False) if n != 1]
        if len(given) == len(shape) and fits(tuple(n for n, _ in kept), tuple(d for _, d in kept)):
            if 1 not in given:
                return value
            now = (*lead, *variable.read().shape[first:])
            return expand(value, tuple(d if n == 1 else n for n, d in zip(given, now, strict=True)))
    else:
        try:
            if broadcast_shapes(value.shape, shape) == shape:
                return expand(value, shape)
        except WeftError:
            pass
    known = all(isinstance(n, int) for n in (*value.shape, *shape))
    raise ShapeError(
        f"{op}: a value of shape {format_shape(value.shape)} does not fit {what}variable "
        f"'{variable.name}' ({variable.dtype.short}{format_shape(variable.shape)})"
        + ("" if shape == variable.shape else f": {format_shape(shape)}"),
        hint="a variable keeps its shape; use wf.broadcast_to or wf.reshape"
        if known
        else 'sizes that are always equal should have one name: wf.placeholder(dtype, ["n"])',
        location=caller_location(),
    )


def _whole(op: str) -> Callable[..., list[Tensor]]:
    def operands(variable: Variable, delta: Any) -> list[Tensor]:
        value = _converted(variable, op, delta)
        return [_spread(variable, op, value, "")]

    return operands


def _rows(op: str) -> Callable[..., list[Tensor]]:
    def operands(variable: Variable, indices: Any, updates: Any) -> list[Tensor]:
        index = checked_indices(variable, op, indices)
        value = _converted(variable, op, updates)
        return [index, _spread(variable, op, value, "the rows of ", index.shape, 1)]

    return operands


def checked_indices(variable: Variable, op: str, indices: Any) -> Tensor:
    """`indices` of rows as a tensor. TypeRuleError if they are no integers, ShapeError if the
    variable has no rows."""
    index = as_tensor(indices)
    if index._data is not None and index.shape == (0,) and not index.dtype.is_integer:
        index = Tensor(np.zeros(0, np.int64))  # an empty list
    if not index.dtype.is_integer:
        raise TypeRuleError(
            f"{op}: the indices of rows of variable '{variable.name}' must be integers, got "
            f"{index.dtype.name}",
            hint="convert them with wf.astype(indices, wf.int64)",
            location=caller_location(),
        )
    if not variable.ndim:
        raise ShapeError(
            f"{op}: variable '{variable.name}' has no axes, so no rows",
            hint="use assign or assign_add",
            location=caller_location(),
        )
    return index


#: By the name of an update: (variable, what the method was given) -> the op's operands.
UPDATE_OPERANDS: Mapping[str, Callable[..., list[Tensor]]] = {
    **{op: _whole(op) for op in ("assign_add", "assign_sub")},
    **{op: _rows(op) for op in ("scatter_add", "scatter_sub", "scatter_update")},
}


def added(old: Any, indices: Any, updates: Any) -> Any:
    """What scatter_add makes of the old value."""
    return old.at[as_tensor(indices)].add(updates)


def subtracted(old: Any, indices: Any, updates: Any) -> Any:
    """What scatter_sub makes of the old value."""
    return old.at[as_tensor(indices)].subtract(updates)


def replaced(old: Any, indices: Any, updates: Any) -> Any:
    """What scatter_update makes of the old value."""
    return old.at[as_tensor(indices)].set(updates)


# ------------------------------------------------------------------------------- asked of the state
def graph_or_none(what: str) -> Trace | None:
    """The graph that is being built, None outside. UnsupportedError in a traced function."""
    trace = effect_trace(what)
    if trace is not None and trace.kind != "graph":
        raise UnsupportedError(
            f"{what} while '{trace.root().name}' is traced is not supported",
            hint="do it outside of the compiled function, or in a wf.Graph",
            location=caller_location(),
        )
    return trace


def count_up_to(variable: Variable, limit: Any) -> Tensor:
    """`Variable.count_up_to`."""
    what = f"count_up_to of variable '{variable.name}'"
    if isinstance(limit, bool) or not isinstance(limit, (int, np.integer)):
        raise TypeRuleError(
            f"{what}: the limit is a {type(limit).__name__}, not an int", location=caller_location()
        )
    if variable.ndim or not variable.dtype.is_integer:
        raise TypeRuleError(
            f"{what}: it holds {variable.dtype.short}{format_shape(variable.shape)}, not one "
            "integer",
            hint="make it with wf.Variable(0)",
            location=caller_location(),
        )
    trace = graph_or_none(what)
    if trace is not None:
        ref = trace.effects.ref(variable)
        return trace.tensor(trace.emit("count_up_to", (ref,), {"limit": int(limit)})[0])
    try:
        return Tensor(variable.current_state.count_up_to(int(limit)))
    except WeftError as error:
        raise error.at(caller_location()) from None


def is_initialized(variable: Variable) -> Tensor:
    """`Variable.is_initialized`."""
    trace = graph_or_none(f"asking whether variable '{variable.name}' is initialised")
    if trace is None:
        return Tensor(np.array(variable.current_state.initialized))
    return trace.tensor(trace.emit("is_initialized", (trace.effects.ref(variable),))[0])


def assert_initialized(variables: Sequence[Variable]) -> Effect:
    """An effect that raises FailedPreconditionError for those that have no value; outside a graph
    it is done at once."""
    trace = graph_or_none("asking whether variables are initialised")
    name = "assert_variables_initialized"
    if trace is None:
        try:
            check_initialized([v.name for v in variables if not v.current_state.initialized])
        except WeftError as error:
            raise error.at(caller_location()) from None
        return Effect(name)
    done = [
        trace.emit("assert_initialized", list(dict(pairs)))[0]
        for pairs in by_place(trace, variables)
    ]
    if len(done) > 1:
        done = list(trace.emit("group", control=done))
    return Effect(trace.name_scope + name, done[0], trace)


def by_place(trace: Trace, variables: Sequence[Variable]) -> list[list[tuple[Value, Variable]]]:
    """The variables with their handles, apart where marks say that their devices may differ; at
    least one list."""
    found: dict[tuple[str, str], list[tuple[Value, Variable]]] = {}
    for variable in variables:
        handle = trace.effects.ref(variable)
        marks = ("", "") if handle.op is None else (handle.op.device, handle.op.group)
        found.setdefault(marks, []).append((handle, variable))
    return list(found.values()) or [[]]


def variables_of(trace: Trace) -> dict[str, Variable]:
    """The variables that a trace has met, by their names in the IR."""
    return cast_type("dict[str, Variable]", trace.variables)


class Variable(Operators, StateHandle):
    """A mutable tensor of fixed dtype and shape, or number of axes (validate_shape=False).

    initial_value: anything `as_tensor` takes, or a function without arguments that returns it;
    Python floats and lists of them become float32. trainable: whether optimizers change it by
    default. Variables with one `shared_name` in one `container` (default: that of the scope
    `wf.tf1.container`) have one value, in whatever graph they are made. validate_shape=False: each
    value that is assigned has sizes of its own, and the initial one may have sizes that are not
    known; steps that use the variable run on the dataflow executor. Raises UnsupportedError where
    one is made anew on every trace of a compiled function; InvalidArgumentError for a shared name
    of another dtype or shape and for an initial value that is computed from the variable itself.

    >>> count = wf.Variable(0)
    >>> @wf.compile
    ... def tick():
    ...     return count.assign_add(1) * 10
    >>> print(tick(), tick())
    Tensor(10, dtype=int64) Tensor(20, dtype=int64)
    >>> count
    <Variable 'variable' i64[]: 2>
    """

    __slots__ = (
        "_initial", "_initial_tensor", "name", "of_graph", "state", "trainable", "__weakref__",
    )  # fmt: skip

    #: The state of one that was made in a graph, as the default session has it; the session's
    #: module sets it.
    in_default_session: ClassVar[Callable[[Variable], VariableState] | None] = None

    def __init__(
        self,
        initial_value: Any,
        trainable: bool = True,
        dtype: object = None,
        name: str | None = None,
        *,
        shared_name: str | None = None,
        container: str | None = None,
        validate_shape: bool = True,
    ) -> None:
        trace = current_trace()
        if trace is None:
            check_eager_device()
        check_creation(trace, name, shared_name=shared_name, container=container)
        initial = initial_tensor(initial_value, dtype, trace, validate_shape)
        scope = "" if trace is None or isinstance(name, FullName) else trace.name_scope
        self.name = scope + (name or shared_name or "variable")
        self.trainable = trainable
        self._initial: np.ndarray[Any, Any] | None = (
            None  # what an initializer assigns, once in a graph
        )
        self._initial_tensor: Tensor | None = None  # the same, where it is computed in the graph
        in_graph = trace is not None and trace.kind == "graph"
        if in_graph:
            assert trace is not None
            self.name = unique_name(self.name, trace.variables, trace.numbers)
        #: Whether it was made where a graph is built: then a session may have a value of its own.
        self.of_graph = building_graph()
        self.state = made_state(self.name, initial, trace, shared_name, container, validate_shape)
        if in_graph:
            assert trace is not None
            self._initial, self._initial_tensor = initial._data, initial
            trace.effects.ref(self, scoped=True)

    # ---------------------------------------------------------------------------------- what it is
    @property
    def current_state(self) -> VariableState:
        """The state that Python sees: `state`, or where the default session has its own
        (`wf.Session(own_variables=True)`), that."""
        found = Variable.in_default_session
        return found(self) if self.of_graph and found is not None else self.state

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.state.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = product(self.current_state.shape)
        assert isinstance(count, int)
        return count

    def __repr__(self) -> str:
        kind = f"{self.dtype.short}{format_shape(self.shape)}"
        state = self.current_state
        with state.lock.shared():
            array = state.read() if state.initialized else None
        value = (
            "not initialised"
            if array is None
            else " ".join(np.array2string(array, separator=", ", threshold=20).split())
        )
        return f"<Variable {self.name!r} {kind}: {value}>"

    # ------------------------------------------------------------------------------------- copies
    def __copy__(self) -> Variable:
        """A variable of its own with the same value, as `copy.deepcopy` makes."""
        trace = self._copied_in()
        state = self.current_state
        made = _restored(state, self._initial, self.trainable, self._initial_tensor)
        made.name = made.state.name = copy_name(self.name)
        if trace is not None:
            trace.effects.ref(made, scoped=True)  # its initializer is for the copy, too
        return made

    def __deepcopy__(self, memo: object) -> Variable:
        return self.__copy__()

    def __reduce__(self) -> tuple[Callable[..., Variable], tuple[Any, ...]]:
        """Pickled with its name and value; UnsupportedError if a graph has yet to compute that."""
        self._copied_in()
        state = self.current_state
        if not state.initialized and self._initial is None:
            raise UnsupportedError(
                f"variable '{self.name}' cannot be pickled before it is initialised",
                hint="its initial value is computed in a graph: run its initializer first",
                location=caller_location(),
            )
        return _restored, (state, self._initial, self.trainable)

    def _copied_in(self) -> Trace | None:
        trace = current_trace()
        if trace is None or trace.kind == "graph":
            return trace
        raise UnsupportedError(
            f"variable '{self.name}' is copied while '{trace.root().name}' is traced",
            hint="copy it outside; `variable.read()` is its value here",
            location=caller_location(),
        )

    # ------------------------------------------------------------------------------------ reading
    def read(self) -> Tensor:
        """The value: now, or at this point of the program that is being traced.

        FailedPreconditionError if the variable is not initialised.
        """
        trace = current_trace()
        if trace is None:
            return Tensor(self._held())
        t = trace.value_of(self)
        if trace.kind == "region" and trace.control:  # no op reads it here: one that comes after
            (value,) = trace.emit("identity", (trace.lift(t),))
            return trace.tensor(value)
        return t

    value = read

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the value. TracerError while a function that uses the variable is traced."""
        trace = current_trace()
        return self._held() if trace is None or trace.kind == "graph" else self.read().numpy()

    def _held(self) -> np.ndarray[Any, Any]:
        try:
            return self.current_state.read()
        except WeftError as error:
            raise error.at(caller_location()) from None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.numpy(), dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        read = [x.read() if isinstance(x, Variable) else x for x in inputs]
        return self.read().__array_ufunc__(ufunc, method, *read, **options)

    __array_function__ = array_function

    def item(self) -> Any:
        """The one element as a Python scalar."""
        return self._now().item()

    def _now(self) -> Tensor:
        return Tensor(self.numpy())

    def __bool__(self) -> bool:
        return bool(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __float__(self) -> float:
        return float(self.read())

    def __index__(self) -> int:
        return self.read().__index__()

    def __len__(self) -> int:
        return len(self.read())

    def __iter__(self) -> Any:
        return iter(self.read())

    def __format__(self, spec: str) -> str:
        return format(self._now(), spec) if spec else repr(self)

    # ------------------------------------------------------------------------------------ writing
    # use_locking is TensorFlow's: updates of weft's are always atomic
    def assign(self, value: Any, use_locking: bool | None = None) -> Tensor:
        """Store `value` (same dtype and shape; Python numbers convert). Returns the new value."""
        return self._update(None, lambda old, given: given, value)

    def assign_add(self, delta: Any, use_locking: bool | None = None) -> Tensor:
        """Store the value plus `delta`. Returns the new value."""
        return self._update("assign_add", METHODS["add"], delta)

    def assign_sub(self, delta: Any, use_locking: bool | None = None) -> Tensor:
        """Store the value minus `delta`. Returns the new value."""
        return self._update("assign_sub", METHODS["subtract"], delta)

    def scatter_add(self, indices: Any, updates: Any, use_locking: bool | None = None) -> Tensor:
        """Add the rows of `updates` at `indices`; duplicates add up. Returns the new value."""
        return self._update("scatter_add", added, indices, updates)

    def scatter_sub(self, indices: Any, updates: Any, use_locking: bool | None = None) -> Tensor:
        """Subtract the rows of `updates` from the rows at `indices`. Returns the new value."""
        return self._update("scatter_sub", subtracted, indices, updates)

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise UnsupportedError(
            f"elements of the variable '{self.name}' cannot be set like this",
            hint="w.scatter_update(rows, values) replaces rows, w.assign(w.at[index].set(value)) "
            "any elements, w.assign(value) all",
            location=caller_location(),
        )

    def scatter_update(self, indices: Any, updates: Any, use_locking: bool | None = None) -> Tensor:
        """Replace the rows at `indices` by those of `updates`; the last duplicate stays."""
        return self._update("scatter_update", replaced, indices, updates)

    def count_up_to(self, limit: int) -> Tensor:
        """Add 1; the value before. OutOfRangeError if that is `limit` or more.

        For variables that hold one integer (TypeRuleError for others), outside of compiled
        functions (UnsupportedError).
        """
        return count_up_to(self, limit)

    def is_initialized(self) -> Tensor:
        """Whether it has a value: now, or when a step of the graph asks. UnsupportedError in a
        compiled function."""
        return is_initialized(self)

    def _update(self, op: str | None, compute: Callable[..., Any], *given: Any) -> Tensor:
        """Assign `compute(old value, *given)`; atomic when done at once. In a graph that is the
        update `op` (None: `compute` does not look at the old value)."""
        inner = current_trace()
        live = isinstance(inner, RegionTrace) and inner.is_live(self)
        if inner is not None and inner.state is not None and not live:
            old = Tensor(None) if op is None else inner.value_of(self)
            return inner.carry(self, self._fit(compute(old, *given)))
        trace = inner if live else effect_trace(f"assigning to variable '{self.name}'")
        if trace is None:  # others are read first: two threads could wait for each other's lock
            now = [
                x.read() if isinstance(x, Variable) and x.state is not self.state else x
                for x in given
            ]
            state = self.current_state
            state.lock.acquire()
            try:
                old = Tensor(None if op is None else self._held())
                new = self._fit(compute(old, *now))
                assert new._data is not None
                if op is not None and new.shape != state.shape:
                    raise self._other_shape(new.shape, state.shape)
                state.write_held(new._data)
            finally:
                state.lock.release()
            return new
        open_shape = self.state.open is not None
        if op is not None and (live or trace.kind == "graph" or open_shape):
            operands = [trace.lift(t) for t in UPDATE_OPERANDS[op](self, *given)]
            return trace.tensor(trace.effects.update(op, self, operands))
        old = trace.tensor(trace.effects.read(self)) if op is not None else Tensor(None)
        value = trace.lift(self._fit(compute(old, *given)))
        token = trace.effects.write(self, value)
        if trace.kind != "graph" and not live:
            return trace.tensor(value)
        # whoever fetches the new value makes the assignment happen
        (after,) = trace.emit("identity", (value,), control=(token,))
        return trace.tensor(after)

    def _fit(self, value: Any) -> Tensor:
        """`value` as a tensor of this variable's dtype and shape."""
        t = as_tensor(value)
        if t.weak and t.dtype is not self.dtype:
            t = METHODS["astype"](t, self.dtype)
        if t.dtype is not self.dtype:
            raise misfit(self, t.dtype)
        held = self.state.type.shape
        if not fits(t.shape, held):
            raise self._other_shape(t.shape, held)
        return t

    def _other_shape(self, given: Shape, held: Shape) -> ShapeError:
        return ShapeError(
            f"a value of shape {format_shape(given)} does not fit variable '{self.name}' "
            f"({self.dtype.short}{format_shape(held)})",
            hint="a variable keeps its shape; use wf.broadcast_to or wf.reshape"
            if self.state.open is None
            else "it keeps its number of axes, and an update keeps its sizes: assign a new value",
            location=caller_location(),
        )

    def _open_sizes(self, trace: Trace) -> tuple[str, ...]:
        return fresh_sizes(trace, self.name, self.ndim)

    def __iadd__(self, other: object) -> NoReturn:
        self._no_in_place("+=", "assign_add")

    def __isub__(self, other: object) -> NoReturn:
        self._no_in_place("-=", "assign_sub")

    def _no_in_place(self, operator: str, method: str) -> NoReturn:
        raise UnsupportedError(
            f"`variable {operator} x` would bind the name to a tensor and leave the state of "
            f"variable '{self.name}' as it is",
            hint=f"use variable.{method}(x)",
            location=caller_location(),
        )

    # ------------------------------------------------------------------------------------- graphs
    @property
    def initializer(self) -> Effect:
        """In a graph: the effect that assigns the initial value.

        Where that is computed from other variables it uses the values that they have then;
        `wf.tf1.variables_initializer` of all of them uses their initial values.
        """
        trace = current_trace()
        if trace is None or trace.kind != "graph":
            raise FailedPreconditionError(
                f"variable '{self.name}' has an initializer only in a graph",
                hint="elsewhere it is initialised from the start",
                location=caller_location(),
            )
        trace.effects.ref(self)
        return self._initialize(trace, trace.lift(self._start_in(trace)))

    @property
    def op(self) -> Any:
        """In a graph: the op that stands for it there, whose name is that of the variable.
        AttributeError outside of graphs."""
        trace = current_trace()
        if trace is None or trace.root().kind != "graph":
            raise AttributeError(f"variable '{self.name}' has an op only in a wf.Graph")
        graph = trace.root().owner
        handle = trace.root().effects.ref(self)
        graph.operation_names()
        return graph.operation(handle.op)

    def initialized_value(self) -> Tensor:
        """The value, for computing another variable's initial value (TF1's name).

        The same as `read`: an initializer of both variables, such as
        `wf.global_variables_initializer()`, uses the initial value of this one. Alone, the other's
        initializer needs this one initialised.
        """
        return self.read()

    def _initialize(self, trace: Trace, start: Value) -> Effect:
        return Effect(f"{self.name}/init", trace.effects.write(self, start), trace)

    def _start_in(self, trace: Trace) -> Tensor:
        """The initial value as a tensor of `trace`, or a concrete one."""
        start = self._initial_tensor
        if start is None or start._trace not in (None, trace):
            return Tensor(self._start_value())
        return start

    def _start_value(self) -> np.ndarray[Any, Any]:
        if self._initial is None:
            raise FailedPreconditionError(
                f"the initial value of variable '{self.name}' is computed in another graph",
                hint="run its initializer in a session of that graph",
                location=caller_location(),
            )
        return self._initial

    def _used_in(self, trace: Trace) -> None:
        """Note the value that the initializer of a graph restores: the one at the first use in a
        graph."""
        if trace.kind == "graph" and self._initial is None and self._initial_tensor is None:
            self._initial = self.state.read()

    def _type(self) -> TensorType:
        return self.state.type


def _restored(
    state: VariableState, initial: Any, trainable: bool, tensor: Tensor | None = None
) -> Variable:
    """A variable with a copy of `state`; `initial` or `tensor` is what an initializer assigns."""
    made = object.__new__(Variable)
    made.state, made.name, made.trainable = copy.copy(state), state.name, trainable
    made.of_graph = building_graph()
    made._initial, made._initial_tensor = initial, tensor
    return made
