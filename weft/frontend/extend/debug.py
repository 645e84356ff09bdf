"""Looking into a running program: `wf.print`, `wf.check`, `wf.debug_callback` and the assertions.

Each is an op that Python carries out (`ir.ops.io.PYTHON_CALLS`): at once outside of traces, in the
middle of a native step in a compiled function, as an op of the host in a session's step. A call's
format is read when it is traced: what it says of Python objects is in the text then, and tensors
are numbered."""

from __future__ import annotations

import functools
import itertools
import os
import string as strings
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, current_trace, suspend_trace
from weft.frontend.extend.ops import user_error
from weft.frontend.extend.py_function import registered_name
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.promotion import binary, unary
from weft.ir.errors import InvalidArgumentError, ShapeError, WeftError
from weft.ir.locations import caller_location
from weft.ir.ops.io import FunctionName
from weft.ir.spec import AttrValue
from weft.runtime.dataflow.host_dispatch import run_now

Array = np.ndarray[Any, Any]


def python_effect(
    op: str, operands: Sequence[Tensor], /, *, name: str | None = None, **attrs: AttrValue
) -> Effect:
    """An op that Python carries out for its effect: done at once, or added to the trace. Errors
    are at the user's line."""
    try:
        trace = current_trace()
        if trace is None:
            what = f"wf.{op}"
            arrays = [
                t._concrete(what, "pass tensors that have values") if t._data is None else t._data
                for t in operands
            ]
            run_now(op, (), arrays, attrs)
            return Effect(name or op)
        (token,) = trace.emit(op, [trace.lift(t) for t in operands], attrs)
        return Effect(trace.name_scope + (name or op), token, trace)
    except WeftError as error:
        raise error.at(caller_location()) from error.__cause__


def _to_fetch(effect: Effect) -> Effect | None:
    """What a public function returns: None for what was done at once."""
    return effect if effect.value is not None else None


# ------------------------------------------------------------------------------------------ formats
def _is_tensor(x: object) -> bool:
    return isinstance(x, (Operators, np.ndarray, np.generic))


class _Format(strings.Formatter):
    """A format string and its arguments as one of tensors alone. text: with fields by number,
    from `first` on."""

    def __init__(
        self, what: str, text: object, args: Sequence[Any], named: dict[str, Any], first: int = 0
    ) -> None:
        self.what, self.given, self.tensors, self.first = what, text, list[Tensor](), first
        self.numbers: dict[int, tuple[int, Any]] = {}  # by id; the object keeps it
        if not isinstance(text, str):
            raise InvalidArgumentError(
                f"{what}: the format must be a str, got {type(text).__name__}: {text!r:.60}",
                hint=f'{what}("x = {{}}", x); Python\'s own is builtins.print',
                location=caller_location(),
            )
        self.used: set[int | str] = set()
        try:
            self.text = self._text(text, args, named)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise self._wrong(str(error)) from None
        unused = [str(i) for i in range(len(args)) if i not in self.used]
        unused += [n for n in named if n not in self.used]
        if unused:
            raise self._wrong(f"nothing in it names argument {', '.join(unused)}")

    def _wrong(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self.what}: the format {self.given!r} does not fit its arguments: {why}",
            hint='as str.format: wf.print("{} {x:.3f}", step, x=x); braces are {{ and }}',
            location=caller_location(),
        )

    def _text(self, text: str, args: Sequence[Any], named: dict[str, Any]) -> str:
        count, out = itertools.count(), []
        for literal, field, spec, conversion in self.parse(text):
            out.append(_escaped(literal))
            if field is None:  # the end
                continue
            if not field or field[0] in ".[":
                field = f"{next(count)}{field}"
            if field[0].isdigit() and int(field.partition(".")[0].partition("[")[0]) >= len(args):
                raise LookupError(f"it wants more than {len(args)} arguments")
            found, first = self.get_field(field, args, named)
            self.used.add(first)
            spec = spec or ""
            if "{" in spec:
                fields = [name for _, name, _, _ in self.parse(spec) if name]
                self.used.update(int(n) if n.isdigit() else n for n in fields)
                spec = spec.format(*args, **named)
            if _is_tensor(found):
                out.append(self._field(found, spec, conversion))
            else:
                found = self.convert_field(found, conversion)
                out.append(_escaped(format(found, spec)))
        return "".join(out)

    def _field(self, given: Any, spec: str, conversion: str | None) -> str:
        number, _ = self.numbers.setdefault(id(given), (len(self.tensors), given))
        if number == len(self.tensors):
            self.tensors.append(as_tensor(given))
        t = self.tensors[number]
        if not conversion and t.dtype.kind != "string":
            format(np.zeros((), t.dtype.numpy).item(), spec)  # ValueError now, not in the step
        number += self.first
        return f"{{{number}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}"


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _summarize(what: str, given: int | None) -> int:
    if given is None:
        return 3
    if type(given) is int and given >= -1:
        return given
    raise InvalidArgumentError(
        f"{what}: summarize={given!r} is no count of elements",
        hint="-1 shows all",
        location=caller_location(),
    )


def _stream(file: Any) -> str:
    if file is None or file is sys.stderr or file is sys.__stderr__:
        return "stderr"
    if file is sys.stdout or file is sys.__stdout__:
        return "stdout"
    if isinstance(file, (str, os.PathLike)):
        return os.path.abspath(os.fsdecode(file))
    raise InvalidArgumentError(
        f"wf.print: file is a {type(file).__name__}, not sys.stdout, sys.stderr or a file's name",
        hint="a step may run in another process; wf.debug_callback(lambda x: print(x, file=file), "
        "x) writes to an object of this one",
        location=caller_location(),
    )


# --------------------------------------------------------------------------------- public functions
def print(
    format: str, /, *tensors: Any, summarize: int | None = None, file: Any = None, **named: Any
) -> Effect | None:
    """Write a line each time the program comes here, with what the tensors are then.

    format: as of `str.format`: `{}`, `{0}`, `{x}`, `{x.shape}`; a format of numbers (`{x:.3f}`) is
    that of each element. Fields of other objects, as Python numbers, are filled in when the call
    is traced. summarize: of larger arrays so many elements at both ends of each axis (3; -1: all).
    file: sys.stderr (the default), sys.stdout, or the name of a file, to which lines are added.

    It works everywhere: eagerly, in compiled functions, branches, loops and functions that are
    differentiated, and keeps the program's order; a gradient prints nothing twice. In a `wf.Graph`
    the Effect that it returns has to be fetched or be among wf.control_dependencies, as
    TensorFlow 1 has it; in bodies of branches and loops each run prints. InvalidArgumentError for a
    format that does not fit.

    >>> import sys
    >>> @wf.compile
    ... def f(x):
    ...     y = x * 2
    ...     wf.print("y = {y} (shape {y.shape}), mean {:.2f}", wf.mean(y), y=y, file=sys.stdout)
    ...     return y + 1
    >>> _ = f(wf.asarray([1.0, 2.0]))
    y = [2. 4.] (shape (2,)), mean 3.00
    """
    made = _Format("wf.print", format, tensors, named)
    count = _summarize("wf.print", summarize)
    stream = _stream(file)
    done = python_effect(
        "print", made.tensors, format=made.text, message="", summarize=count, stream=stream
    )
    return _to_fetch(done)


def check(
    condition: Any, message: str = "check failed", /, *values: Any, summarize: int | None = None,
    **named: Any,
) -> Effect | None:  # fmt: skip
    """Raise an InvalidArgumentError with the message if `condition` (a bool, or an array of them)
    does not hold where the program comes here.

    message: a format as of `wf.print`. The step ends there, as it does at an index out of bounds:
    what was assigned to variables before stays, nothing after it happens. What a branch or loop
    assigns to them is stored when it ends. Otherwise as `wf.print`.

    >>> @wf.compile
    ... def root(x):
    ...     wf.check(x >= 0, "roots of {} are not real", x)
    ...     return wf.sqrt(x)
    >>> root(4.0)
    Tensor(2., dtype=float64, weak)
    >>> root(-4.0)
    Traceback (most recent call last):
      ...
    weft.ir.errors.InvalidArgumentError: roots of -4.0 are not real
      ...
    """
    return _check("wf.check", condition, message, values, named, summarize)


def _check(
    what: str, condition: Any, message: str, values: Sequence[Any] = (),
    named: dict[str, Any] | None = None, summarize: int | None = None, relation: str = "",
    operands: Sequence[Any] = (),
) -> Effect | None:  # fmt: skip
    made = _Format(what, message or "check failed", values, named or {}, len(operands))
    holds = as_tensor(condition)
    if holds.dtype.kind != "bool":
        raise InvalidArgumentError(
            f"{what}: the condition is {holds.describe()}, not a bool",
            hint="compare it, as in `x > 0`",
            location=caller_location(),
        )
    if holds.ndim:
        holds = apply("all", holds, axes=tuple(range(holds.ndim)), keepdims=False)
    count = _summarize(what, summarize)
    done = python_effect(
        "assert", [holds, *operands, *made.tensors], format=made.text, message="",
        summarize=count, relation=relation,
    )  # fmt: skip
    return _to_fetch(done)


def tap(name: str, x: Any) -> Tensor:
    """`x`, a value with a name for `f.values` and `session.values`; what runs is the same.

    name: any str; several values may have one (those of a loop's iterations do). Gradients go
    through. InvalidArgumentError for a name that is no str, or empty.

    >>> @wf.compile
    ... def layer(x, w):
    ...     hidden = wf.tap("hidden", x @ w)
    ...     return wf.tanh(hidden)
    >>> layer.values(wf.ones((1, 2)), wf.ones((2, 1)), where="hidden")[0].value
    Tensor([[2.]], dtype=float32)
    """
    given: object = name
    if not isinstance(given, str) or not given:
        raise InvalidArgumentError(
            f"wf.tap takes a name first, got {name!r:.60}",
            hint='wf.tap("hidden", x)',
            location=caller_location(),
        )
    t = as_tensor(x)
    if current_trace() is None:
        return t
    made = apply("tap", t, name=name)
    made.weak = t.weak
    return made


def _caller(
    function: Callable[..., object], name: str, fill: Callable[[Sequence[Array]], Any]
) -> Callable[[Sequence[Array]], list[Array]]:
    """From the arrays of a call: calls the function. fill: its arguments. Raises WeftErrors."""

    def call(arrays: Sequence[Array]) -> list[Array]:
        args, named = fill(arrays)
        with suspend_trace():  # what it does is done now, and is no part of a graph
            try:
                function(*args, **named)
            except WeftError:
                raise
            except Exception as error:
                raise user_error(f"wf.debug_callback: '{name}'", error) from error
        return []

    return call


def debug_callback(
    function: Callable[..., object], /, *tensors: Any, ordered: bool = True, **named: Any
) -> Effect | None:
    """Call a Python function each time the program comes here, with tensors that have values.

    tensors, named: its arguments: tensors and nested containers of them; other Python objects in
    them are passed on. What it returns is dropped. ordered: whether the calls keep the order of
    the program among prints, checks and other calls; otherwise they may come in any order. What it
    raises ends the step as at an index out of bounds and comes out at the user's line, the
    original as `__cause__` (classes as of `wf.py_function`).

    It may run while a step of the same program holds variables: a variable that it reads is as
    the step has left it so far (what a branch or loop assigns is stored when that ends); it must
    not assign to those that the step uses. On tasks of a
    cluster, and in a graph read from text, it is the function registered there by its name
    (`wf.register_function`). Otherwise as `wf.print`.

    >>> seen = []
    >>> @wf.compile
    ... def total(x):
    ...     def body(carry, row):
    ...         wf.debug_callback(lambda t: seen.append(float(t)), carry)
    ...         return carry + row, None
    ...     return wf.scan(body, 0.0, x)[0]
    >>> total(wf.asarray([1.0, 2.0, 3.0])), seen
    (Tensor(6., dtype=float32), [0.0, 1.0, 3.0])
    """
    if not callable(function):
        raise InvalidArgumentError(
            f"wf.debug_callback: the function is a {type(function).__name__}: {function!r:.60}",
            hint="wf.debug_callback(lambda x: ..., x)",
            location=caller_location(),
        )
    leaves, structure = pytree.flatten((tensors, named))
    places = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
    given = [as_tensor(leaves[i]) for i in places]
    registered = registered_name(function)
    plain = len(given) == len(tensors) == len(leaves)
    if registered is not None and not plain:
        raise InvalidArgumentError(
            f"wf.debug_callback: '{registered}' is called by its name in other processes: it takes "
            "tensors by position only",
            location=caller_location(),
        )
    called = registered or str(getattr(function, "__qualname__", type(function).__name__))

    def fill(arrays: Sequence[Array]) -> Any:
        held = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            held[i] = Tensor(np.array(array, order="C", copy=True))
        return pytree.unflatten(structure, held)

    call = _caller(function, called, fill)
    named_function = FunctionName(called, call, registered is not None)
    done = python_effect("debug_callback", given, function=named_function, ordered=bool(ordered))
    return _to_fetch(done)


# --------------------------------------------------------------------------------------- assertions
def _compare(what: str, relation: str, op: str, x: Any, y: Any, message: str) -> Effect | None:
    a, b = as_tensor(x), as_tensor(y)
    text = message or f"{what}: x {relation} y does not hold"
    holds = binary(op, a, b)
    return _check(what, holds, _escaped(text), relation=relation, operands=(a, b))


def assert_equal(x: Any, y: Any, message: str = "") -> Effect | None:
    """`wf.check` that all elements are equal (x and y are broadcast); the error names the first
    that are not.

    >>> wf.tf1.assert_equal([1, 2], [1, 3])
    Traceback (most recent call last):
      ...
    weft.ir.errors.InvalidArgumentError: assert_equal: x == y does not hold: 1 of 2 elements, ...
    """
    return _compare("assert_equal", "==", "equal", x, y, message)


def assert_not_equal(x: Any, y: Any, message: str = "") -> Effect | None:
    """`wf.check` that no elements are equal, as `wf.tf1.assert_equal`.

    >>> _ = wf.tf1.assert_not_equal([1, 2], 3)
    """
    return _compare("assert_not_equal", "!=", "not_equal", x, y, message)


def assert_less(x: Any, y: Any, message: str = "") -> Effect | None:
    """`wf.check` that `x < y` for all elements, as `wf.tf1.assert_equal`.

    >>> _ = wf.tf1.assert_less([1, 2], 3)
    """
    return _compare("assert_less", "<", "less", x, y, message)


def assert_less_equal(x: Any, y: Any, message: str = "") -> Effect | None:
    """`wf.check` that `x <= y` for all elements, as `wf.tf1.assert_equal`.

    >>> _ = wf.tf1.assert_less_equal([1, 2], 2)
    """
    return _compare("assert_less_equal", "<=", "less_equal", x, y, message)


def assert_greater(x: Any, y: Any, message: str = "") -> Effect | None:
    """`wf.check` that `x > y` for all elements, as `wf.tf1.assert_equal`.

    >>> _ = wf.tf1.assert_greater([1, 2], 0)
    """
    return _compare("assert_greater", ">", "greater", x, y, message)


def assert_greater_equal(x: Any, y: Any, message: str = "") -> Effect | None:
    """`wf.check` that `x >= y` for all elements, as `wf.tf1.assert_equal`.

    >>> _ = wf.tf1.assert_greater_equal([1, 2], 1)
    """
    return _compare("assert_greater_equal", ">=", "greater_equal", x, y, message)


def assert_positive(x: Any, message: str = "") -> Effect | None:
    """`wf.check` that all elements are greater than 0, as `wf.tf1.assert_equal`.

    >>> _ = wf.tf1.assert_positive([1.0, 2.0])
    """
    return _compare("assert_positive", ">", "greater", x, 0, message)


def assert_non_negative(x: Any, message: str = "") -> Effect | None:
    """`wf.check` that no element is less than 0, as `wf.tf1.assert_equal`.

    >>> _ = wf.tf1.assert_non_negative([0.0, 2.0])
    """
    return _compare("assert_non_negative", ">=", "greater_equal", x, 0, message)


def assert_all_close(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, message: str = ""
) -> Effect | None:
    """`wf.check` that `abs(x - y) <= atol + rtol * abs(y)` for all elements (NaN is close to
    nothing), as `wf.tf1.assert_equal`.

    >>> _ = wf.tf1.assert_all_close([1.0, 2.0], [1.0, 2.00001])
    """
    a, b = as_tensor(x), as_tensor(y)
    rtol, atol = float(rtol), float(atol)
    apart, size = unary("abs", binary("subtract", a, b)), unary("abs", b)
    holds = binary("less_equal", apart, binary("add", binary("multiply", size, rtol), atol))
    text = message or f"wf.tf1.assert_all_close: x and y are apart (rtol {rtol:g}, atol {atol:g})"
    how = f"~ {rtol!r} {atol!r}"
    return _check("wf.tf1.assert_all_close", holds, _escaped(text), relation=how, operands=(a, b))


def assert_finite(x: Any, message: str = "") -> Effect | None:
    """`wf.check` that no element is NaN or infinite, as `wf.tf1.assert_equal`. Integers always are.

    >>> wf.assert_finite([1.0, float("nan")])
    Traceback (most recent call last):
      ...
    weft.ir.errors.InvalidArgumentError: wf.assert_finite: x is not finite: 1 of 2 elements, ...
    """
    t = as_tensor(x)
    text = message or "wf.assert_finite: x is not finite"
    holds = unary("isfinite", t)
    return _check("wf.assert_finite", holds, _escaped(text), relation="finite", operands=(t,))


def assert_shape(x: Any, shape: Sequence[int | None], message: str = "") -> Effect | None:
    """ShapeError unless `x` has the shape, None any size: at once, as shapes are known when a
    function is traced. Sizes that are open then are a `wf.check`.

    >>> wf.tf1.assert_shape(wf.zeros((2, 3)), (None, 3))
    >>> wf.tf1.assert_shape(wf.zeros((2, 3)), (3, 2))
    Traceback (most recent call last):
      ...
    weft.ir.errors.ShapeError: wf.tf1.assert_shape: x has shape (2, 3), not (3, 2)...
    """
    t, wanted = as_tensor(x), tuple(shape)
    found = t.shape
    text = message or f"wf.tf1.assert_shape: x has shape {found}, not {wanted}"
    fits = len(found) == len(wanted) and all(
        b is None or not isinstance(a, int) or a == b for a, b in zip(found, wanted, strict=True)
    )
    if not fits:
        raise ShapeError(text, location=caller_location())
    open_axes = [
        (i, b)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True))
        if b is not None and not isinstance(a, int)
    ]
    if not open_axes:
        return None
    holds = [binary("equal", apply("dim_size", t, axis=i), np.int64(size)) for i, size in open_axes]
    every = functools.reduce(lambda a, b: binary("logical_and", a, b), holds)
    return _check("wf.tf1.assert_shape", every, _escaped(text))
