"""`Variable`: state that outlives a call, read and assigned eagerly, in compiled functions and in
graphs.

Outside a graph a variable has its initial value from the start. One that is made while a `wf.Graph`
is current has none until the session runs its initializer (TensorFlow 1's rule). The state belongs
to the Variable, not to a session: every function, graph and session that uses it sees the same
value.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from weft.frontend.arrays import contiguous
from weft.frontend.ops.numpy_protocol import array_function
from weft.frontend.ops.operators import METHODS, Operators
from weft.frontend.session.subgraph import constant_value
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import (
    Effect,
    Trace,
    current_trace,
    effect_trace,
    suspend_trace,
    unique_name,
)
from weft.ir.dims import format_shape, product, same
from weft.ir.dtypes import DEFAULT_COMPLEX, DEFAULT_FLOAT, DType, as_dtype
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.graph import Value
from weft.ir.source import caller_location
from weft.ir.types import TensorType
from weft.runtime.variables import VariableState, copy_name


class Variable(Operators):
    """A mutable tensor of fixed dtype and shape.

    initial_value: anything `as_tensor` takes, or a function without arguments that returns it;
    Python floats and lists of them become float32. trainable: whether optimizers change it by
    default. Raises UnsupportedError where one is made anew on every trace of a compiled function.
    """

    __slots__ = ("_initial", "_initial_tensor", "name", "state", "trainable", "__weakref__")

    def __init__(
        self,
        initial_value: Any,
        trainable: bool = True,
        dtype: object = None,
        name: str | None = None,
    ) -> None:
        trace = current_trace()
        _check_creation(trace, name)
        in_graph = trace is not None and trace.kind == "graph"
        initial = _initial_tensor(initial_value, dtype, trace)
        shape = tuple(d for d in initial.shape if isinstance(d, int))
        if len(shape) != initial.ndim:
            raise ShapeError(
                f"the initial value of a variable has the shape {format_shape(initial.shape)}, "
                "which is not known",
                hint="give it a static shape",
                location=caller_location(),
            )
        scope = "" if trace is None else trace.name_scope
        self.name = scope + (name or "variable")
        self.trainable = trainable
        self._initial: np.ndarray[Any, Any] | None = (
            None  # what an initializer assigns, once in a graph
        )
        self._initial_tensor: Tensor | None = None  # the same, where it is computed in the graph
        if in_graph:
            assert trace is not None
            self.name = unique_name(self.name, trace.variables)
            self.state = VariableState(self.name, initial.dtype, shape)
            self._initial, self._initial_tensor = initial._data, initial
            trace.effects.ref(self)
        else:
            self.state = VariableState(self.name, initial.dtype, shape, initial._data)

    # ---------------------------------------------------------------------------------- what it is
    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.state.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self.state.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.state.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = product(self.state.shape)
        assert isinstance(count, int)
        return count

    def __repr__(self) -> str:
        kind = f"{self.dtype.short}{format_shape(self.shape)}"
        array = self.state.array
        value = (
            "not initialised"
            if array is None
            else np.array2string(array, separator=", ", threshold=20)
        )
        return f"<Variable {self.name!r} {kind}: {value}>"

    # ------------------------------------------------------------------------------------- copies
    def __copy__(self) -> Variable:
        """A variable of its own with the same value, as `copy.deepcopy` makes."""
        trace = self._copied_in()
        made = _restored(self.state, self._initial, self.trainable, self._initial_tensor)
        made.name = made.state.name = copy_name(self.name)
        if trace is not None:
            trace.effects.ref(made)  # its initializer is for the copy, too
        return made

    def __deepcopy__(self, memo: object) -> Variable:
        return self.__copy__()

    def __reduce__(self) -> tuple[Callable[..., Variable], tuple[Any, ...]]:
        """Pickled with its name and value; UnsupportedError if a graph has yet to compute that."""
        self._copied_in()
        if self.state.array is None and self._initial is None:
            raise UnsupportedError(
                f"variable '{self.name}' cannot be pickled before it is initialised",
                hint="its initial value is computed in a graph: run its initializer first",
                location=caller_location(),
            )
        return _restored, (self.state, self._initial, self.trainable)

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
            return Tensor(self.state.read())
        return trace.value_of(self)

    value = read

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the value. TracerError while a function that uses the variable is traced."""
        trace = current_trace()
        return self.state.read() if trace is None or trace.kind == "graph" else self.read().numpy()

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
    def assign(self, value: Any) -> Tensor:
        """Store `value` (same dtype and shape; Python numbers convert). Returns the new value."""
        return self._update(lambda old, given: given, value, reads=False)

    def assign_add(self, delta: Any) -> Tensor:
        """Store the value plus `delta`. Returns the new value."""
        return self._update(METHODS["add"], delta)

    def assign_sub(self, delta: Any) -> Tensor:
        """Store the value minus `delta`. Returns the new value."""
        return self._update(METHODS["subtract"], delta)

    def scatter_add(self, indices: Any, updates: Any) -> Tensor:
        """Add the rows of `updates` at `indices`; duplicates add up. Returns the new value."""
        return self._update(lambda old, i, u: old.at[as_tensor(i)].add(u), indices, updates)

    def scatter_sub(self, indices: Any, updates: Any) -> Tensor:
        """Subtract the rows of `updates` from the rows at `indices`. Returns the new value."""
        return self.scatter_add(indices, METHODS["negative"](as_tensor(updates)))

    def scatter_update(self, indices: Any, updates: Any) -> Tensor:
        """Replace the rows at `indices` by those of `updates`; the last duplicate stays."""
        return self._update(lambda old, i, u: old.at[as_tensor(i)].set(u), indices, updates)

    def _update(self, compute: Callable[..., Any], *given: Any, reads: bool = True) -> Tensor:
        """Assign `compute(old value, *given)`; atomic when done at once."""
        inner = current_trace()
        if inner is not None and inner.state is not None:
            return inner.carry(self, self._fit(compute(inner.value_of(self), *given)))
        trace = effect_trace(f"assigning to variable '{self.name}'")
        if trace is None:  # others are read first: two threads could wait for each other's lock
            now = [x.read() if isinstance(x, Variable) and x is not self else x for x in given]
            with self.state.lock:
                old = Tensor(self.state.read() if reads else None)
                new = self._fit(compute(old, *now))
                assert new._data is not None
                self.state.write(new._data)
            return new
        start = trace.effects.read_for_update(self) if reads else None
        new = self._fit(compute(trace.tensor(start) if start is not None else Tensor(None), *given))
        value = trace.lift(new)
        token = trace.effects.write(self, value, start)
        if trace.kind != "graph":
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
            raise TypeRuleError(
                f"a {t.dtype.name} value does not fit variable '{self.name}' ({self.dtype.name})",
                hint=f"convert it with wf.astype(x, wf.{self.dtype.name})",
                location=caller_location(),
            )
        if t.ndim != self.ndim or not all(
            same(a, b) for a, b in zip(t.shape, self.shape, strict=True)
        ):
            raise ShapeError(
                f"a value of shape {format_shape(t.shape)} does not fit variable '{self.name}' "
                f"({self.dtype.short}{format_shape(self.shape)})",
                hint="a variable keeps its shape; use wf.broadcast_to or wf.reshape",
                location=caller_location(),
            )
        return t

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
        `wf.variables_initializer` of all of them uses their initial values.
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
        return TensorType(self.dtype, self.shape)


def _restored(
    state: VariableState, initial: Any, trainable: bool, tensor: Tensor | None = None
) -> Variable:
    """A variable with a copy of `state`; `initial` or `tensor` is what an initializer assigns."""
    made = object.__new__(Variable)
    made.state, made.name, made.trainable = copy.copy(state), state.name, trainable
    made._initial, made._initial_tensor = initial, tensor
    return made


def _check_creation(trace: Trace | None, name: str | None) -> None:
    if trace is not None and trace.kind != "graph" and not trace.root().creates_variables:
        raise UnsupportedError(
            f"variable '{name or 'variable'}' is created again: '{trace.root().name}' was traced "
            "before",
            hint="create variables outside the compiled function, or once, on its first call",
            location=caller_location(),
        )


def _initial_tensor(initial: Any, dtype: object, trace: Trace | None) -> Tensor:
    """The initial value; concrete except in a graph, where it may be computed by the graph."""
    if trace is not None and trace.kind == "graph":
        t = as_tensor(initial() if callable(initial) else initial)
    else:
        with suspend_trace():
            if callable(initial):
                initial = initial()
            t = initial if isinstance(initial, Tensor) else as_tensor(initial)
    if t._data is None and (trace is None or trace.kind != "graph"):
        value = constant_value(t)
        if value is None:
            raise InvalidArgumentError(
                "the initial value of a variable depends on the inputs of the traced function: "
                f"{t.describe()}",
                hint="create the variable outside, and assign to it here",
                location=caller_location(),
            )
        t = Tensor(contiguous(value), weak=t.weak)
    target = as_dtype(dtype) if dtype is not None else t.dtype
    if dtype is None and t.weak and t.dtype.is_inexact:
        target = DEFAULT_FLOAT if t.dtype.is_floating else DEFAULT_COMPLEX
    if t._data is not None:
        return Tensor(contiguous(t._data.astype(target.numpy)))
    return t if target is t.dtype else METHODS["astype"](t, target)
