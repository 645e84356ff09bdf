"""`wf.py_function`: a Python function of the user's as part of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor, contiguous
from weft.frontend.core.trace import (
    Running,
    current_trace,
    inside_step,
    suspend_trace,
)
from weft.frontend.extend.ops import user_error
from weft.frontend.ops.dispatch import apply_many, fresh_for
from weft.frontend.ops.promotion import check_dtype, strong_tensor
from weft.ir.dtypes import DType
from weft.ir.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    ShapeError,
    TypeRuleError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.ir.ops.io import FunctionName, register_host_function
from weft.ir.spec import AttrValue
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
Shape = tuple[int | None, ...]


def py_function(
    func: Callable[..., Any], inp: Any, Tout: Any, shapes: Any = None, name: str | None = None
) -> Any:
    """What `func(*inp)` gives, called by Python each time the op runs: eagerly at once, in a
    compiled function where it stands, in a wf.Graph once in each step that needs it.

    inp: a list of tensors (one tensor stands for itself); func gets tensors that have values. Tout:
    the dtype of the result, or a list of several (an empty one: func is called for what it does,
    and the op gives nothing eagerly). shapes: the shape of the result, or a list with one for each;
    needed in graphs and compiled functions; None in it is any size, in a graph.

    Numbers and nested lists become arrays of Tout; arrays and tensors must have that dtype, and
    their shape. An error of func comes out at the user's line with the original as `__cause__`:
    InvalidArgumentError for ValueError and TypeError, NotFoundError for LookupError, else
    UnknownError; weft's own as they are. Not differentiable by itself: wrap it with
    wf.custom_gradient. In the body of a branch or loop it is called each time the body runs, in the
    order of the iterations; a compiled step waits for it. On a task of a cluster, and in a graph
    that is read from text, it is the function that was registered there by its name
    (`wf.register_function`).

    >>> wf.py_function(lambda x: float(x) ** 2, [wf.asarray(3.0)], wf.float32)
    Tensor(9., dtype=float32)
    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     word = wf.placeholder(wf.string, [])
    ...     length = wf.py_function(lambda s: len(s.item()), [word], wf.int64, shapes=[])
    ...     print(session.run(length, {word: "seven"}))
    5
    """
    try:
        types = _Types(Tout, shapes)
        if not callable(func):
            raise InvalidArgumentError(f"wf.py_function: func must be a function, got {func!r}")
        inputs = [strong_tensor(x) for x in (inp if isinstance(inp, (list, tuple)) else [inp])]
        registered = registered_name(func)
        called = registered or name or str(getattr(func, "__qualname__", type(func).__name__))
        function = _Function(func, called, types)
        trace = current_trace()
        if trace is None:
            arrays = [t._concrete("wf.py_function", "pass concrete tensors") for t in inputs]
            results: Sequence[Tensor] = [Tensor(a) for a in function(arrays)]
        else:
            known = types.known(called)
            function.running = trace.root().running
            attrs: Mapping[str, AttrValue] = {
                "function": FunctionName(called, function, registered is not None),
                "parts": tuple(str(t) for t in known),
                "listed": registered is not None and not types.single,
                "sizes": fresh_for(trace, "py_function", known),
            }
            results = apply_many("py_function", inputs, attrs)
    except WeftError as error:
        raise error.at(caller_location()) from error.__cause__
    return results[0] if types.single else list(results)


#: Functions by the names that they have been given.
_functions: dict[str, Callable[..., Any]] = {}


def register_function(
    name: str, func: Callable[..., Any] | None = None, *, replace: bool = False
) -> Any:
    """Give a Python function a name by which `wf.py_function` calls it in other processes, too.

    name: the same in all of them. func: the function, which is returned; without it, this is a
    decorator. Every process that runs a graph with it registers a function of that name: a task of
    a cluster by `weft worker --import MODULE`, or in its own program. Code is never sent. replace:
    take the place of one that has the name, which else is an InvalidArgumentError.

    >>> @wf.register_function("example_following", replace=True)
    ... def following(x):
    ...     return x + 1
    >>> with wf.Graph().as_default() as graph:
    ...     y = wf.name_tensor(wf.py_function(following, [4], wf.int64, shapes=[]), "y")
    >>> with wf.Session(graph=wf.Graph.from_text(graph.as_text())) as session:  # or on a task
    ...     print(session.run("y"))
    5
    """
    given: tuple[object, object] = name, func  # whatever the caller gave
    if not (isinstance(given[0], str) and name and (func is None or callable(given[1]))):
        raise InvalidArgumentError(
            f"wf.register_function takes a name and a function, got {name!r} and {func!r}",
            hint="@wf.register_function('tokenize')",
            location=caller_location(),
        )
    if func is None:
        return lambda given: register_function(name, given, replace=replace)
    if not replace and _functions.get(name, func) is not func:
        raise InvalidArgumentError(
            f"wf.register_function: there is a function '{name}'",
            hint="give it another name, or pass replace=True",
            location=caller_location(),
        )
    _functions[name] = func

    def make(parts: Sequence[TensorType], listed: bool) -> _Function:
        dtypes = [t.dtype for t in parts]
        shapes = [tuple(d if isinstance(d, int) else None for d in t.shape) for t in parts]
        types = _Types(dtypes, shapes) if listed or len(parts) != 1 else _Types(*dtypes, *shapes)
        return _Function(func, name, types)

    register_host_function(name, make)
    return func


def registered_name(func: object) -> str | None:
    """The name that a function was given."""
    return next((name for name, known in _functions.items() if known is func), None)


class _Types:
    """Tout and shapes, checked."""

    def __init__(self, given: Any, shapes: Any) -> None:
        self.single = not isinstance(given, (list, tuple))
        listed = [given] if self.single else list(given)
        self.dtypes = [check_dtype(d) for d in listed]
        found: list[Any] = [None] * len(self.dtypes)
        if shapes is not None:
            found = [shapes] if self.single else list(shapes)
        if len(found) != len(self.dtypes):
            raise InvalidArgumentError(
                f"wf.py_function: {len(found)} shapes are given for {len(self.dtypes)} dtypes"
            )
        self.shapes = [None if s is None else _shape(s) for s in found]

    def known(self, name: str) -> list[TensorType]:
        """The types, whose ranks a graph must know. InvalidArgumentError."""
        types = []
        for i, (dtype, shape) in enumerate(zip(self.dtypes, self.shapes, strict=True)):
            if shape is None:
                raise InvalidArgumentError(
                    f"wf.py_function: in a graph the shape of result {i} of '{name}' must be known",
                    hint="give shapes=(2, None), None for a size that only the call knows, or a "
                    "list of such tuples if Tout is a list",
                )
            types.append(TensorType(dtype, shape))
        return types


def _shape(given: Any) -> Shape:
    sizes = (given,) if isinstance(given, int) else given
    try:
        made = tuple(None if d is None else int(d) for d in sizes)
    except (TypeError, ValueError):
        made = (-1,)
    if any(d is not None and d < 0 for d in made):
        raise InvalidArgumentError(f"wf.py_function: {given!r} is not a shape")
    return made


class _Function:
    """From arrays to arrays of the types wanted, through the user's function."""

    def __init__(self, func: Callable[..., Any], name: str, types: _Types) -> None:
        self.func, self.name, self.types = func, name, types
        self.running: Running | None = None  # of the graph that calls it

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Call it. Raises WeftErrors only: the user's own with its error as the cause."""
        inputs = [Tensor(np.array(a, order="C", copy=True)) for a in arrays]
        # what it does is done now, and is no part of a graph
        with suspend_trace(), inside_step(self.running):
            try:
                made = self.func(*inputs)
            except WeftError:
                raise
            except StopIteration as error:
                raise OutOfRangeError(f"wf.py_function: '{self.name}' raised {error!r}") from error
            except Exception as error:
                raise user_error(f"wf.py_function: '{self.name}'", error) from error
            return self._results(made)

    def _results(self, made: Any) -> list[Array]:
        if self.types.single:
            made = [made]
        elif not self.types.dtypes and made is None:
            made = []
        count = len(made) if isinstance(made, (list, tuple)) else None
        if count != len(self.types.dtypes):
            raise InvalidArgumentError(
                f"wf.py_function: '{self.name}' returned "
                f"{f'{count} values' if count is not None else repr(type(made).__name__)}, "
                f"Tout has {len(self.types.dtypes)}"
            )
        pairs = zip(made, self.types.dtypes, self.types.shapes, strict=True)
        return [self._result(i, *row) for i, row in enumerate(pairs)]

    def _result(self, number: int, value: Any, dtype: DType, shape: Shape | None) -> Array:
        what = f"wf.py_function: result {number} of '{self.name}'"
        try:
            plain = isinstance(value, (bool, int, float, complex, str, bytes, list, tuple))
            t = as_tensor(value, dtype) if plain else as_tensor(value)
        except (WeftError, TypeError, ValueError, OverflowError) as error:
            why = error.what if isinstance(error, WeftError) else str(error)
            raise TypeRuleError(f"{what} is no {dtype.name}: {why}") from error
        if t.dtype is not dtype:
            raise TypeRuleError(
                f"{what} is {t.dtype.name}, Tout says {dtype.name}",
                hint=f"return it as {dtype.name}, or change Tout",
            )
        if shape is not None and (
            len(shape) != len(t.shape)
            or any(a is not None and a != b for a, b in zip(shape, t.shape, strict=True))
        ):
            raise ShapeError(f"{what} has shape {tuple(t.shape)}, shapes says {shape}")
        return contiguous(np.array(t._data, order="C", copy=True))
