"""Operators and methods that `Tensor` and `Variable` share; each calls the public function of its
name.

`METHODS` maps names to those functions. `ops/methods.py` fills it when weft is imported, so that
this file needs none of them: the functions themselves take tensors, and there would be a circle.

NumPy's protocols, at the end: operators of NumPy arrays with tensors give tensors, NumPy's
functions take concrete values only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from weft.ir.errors import InvalidArgumentError, TracerError, UnsupportedError
from weft.ir.locations import caller_location

if TYPE_CHECKING:
    from weft.frontend.core.tensor import Tensor


#: Operators by the name of their function, as the array API calls them: `x + y` is
#: METHODS["add"](x, y).
BINARY = (
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "matmul",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
)  # fmt: skip
UNARY = ("negative", "positive", "abs", "bitwise_invert")
#: Methods by the name of their function: `x.sum(axis=0)` is METHODS["sum"](x, axis=0). "getitem" is
#: `x[key]`, "at" the property `x.at`, "stack" joins the elements of a list (as_tensor).
NAMED = (
    "getitem", "at", "stack", "astype", "reshape", "broadcast_to", "permute_dims",
    "matrix_transpose", "squeeze", "expand_dims", "take", "clip", "round", "conj", "real", "imag",
    "sum", "prod", "mean", "std", "var", "max", "min", "all", "any", "argmax", "argmin",
    "argsort", "sort", "cumulative_sum", "cumulative_prod",
)  # fmt: skip
METHOD_NAMES = (*BINARY, *UNARY, *NAMED)

METHODS: dict[str, Callable[..., Tensor]] = {}

Axis = int | tuple[int, ...] | None
Method = Callable[[Any, object], "Tensor"]


def _binary(name: str, dunder: str) -> Method:
    def _operator(self: Operators, other: object) -> Tensor:
        return METHODS[name](self, other) if isinstance(other, OPERANDS) else NotImplemented

    _operator.__name__ = _operator.__qualname__ = dunder
    return _operator


def _reflected(name: str, dunder: str) -> Method:
    def _operator(self: Operators, other: object) -> Tensor:
        return METHODS[name](other, self) if isinstance(other, OPERANDS) else NotImplemented

    _operator.__name__ = _operator.__qualname__ = dunder
    return _operator


class _Foreign:
    """An attribute that tensors of other libraries have: an AttributeError that says what to write.

    `__getattr__` would say so, too, but it makes every other attribute slower."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        from weft.frontend.core.foreign_names import hint_for  # only who makes a mistake needs it

        raise AttributeError(
            f"'{owner.__name__}' object has no attribute '{self._name}'\n"
            f"  hint: {hint_for('x', self._name)}"
        )


#: Names of such attributes; `foreign_names.py` says what to write.
FOREIGN_NAMES = (
    "view permute swapaxes t unsqueeze dim numel get_shape set_shape grad backward requires_grad "
    "requires_grad_ detach cpu cuda to float double half int long type clone copy contiguous add_ "
    "sub_ mul_ div_ zero_ fill_ copy_ fill masked_fill expand expand_as repeat add sub mul div "
    "pow matmul mm bmm dot exp log sqrt tanh sigmoid relu softmax norm gather nonzero "
    "searchsorted diagonal trace block_until_ready shard sharding devices read_value "
)


class Operators:
    """What can be written `x + y`, `x[i]` or `x.sum()`. `x += y` binds the name x to a new
    tensor."""

    __slots__ = ()

    #: Runs one in a session; the session's module sets it.
    in_session: ClassVar[Callable[[Any, Any, Any], Any]]

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """The value in `session`, or in the default one (`with session:`,
        `wf.tf1.InteractiveSession`), as `session.run(self, feed_dict)` gives it.

        FailedPreconditionError if there is none; else as `Session.run`.
        """
        return Operators.in_session(self, feed_dict, session)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        raise NotImplementedError

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - set(FOREIGN_NAMES.split()))

    __add__ = _binary("add", "__add__")
    __radd__ = _reflected("add", "__radd__")
    __sub__ = _binary("subtract", "__sub__")
    __rsub__ = _reflected("subtract", "__rsub__")
    __mul__ = _binary("multiply", "__mul__")
    __rmul__ = _reflected("multiply", "__rmul__")
    __truediv__ = _binary("divide", "__truediv__")
    __rtruediv__ = _reflected("divide", "__rtruediv__")
    __floordiv__ = _binary("floor_divide", "__floordiv__")
    __rfloordiv__ = _reflected("floor_divide", "__rfloordiv__")
    __mod__ = _binary("remainder", "__mod__")
    __rmod__ = _reflected("remainder", "__rmod__")
    __pow__ = _binary("power", "__pow__")
    __rpow__ = _reflected("power", "__rpow__")
    __matmul__ = _binary("matmul", "__matmul__")
    __rmatmul__ = _reflected("matmul", "__rmatmul__")
    __and__ = _binary("bitwise_and", "__and__")
    __rand__ = _reflected("bitwise_and", "__rand__")
    __or__ = _binary("bitwise_or", "__or__")
    __ror__ = _reflected("bitwise_or", "__ror__")
    __xor__ = _binary("bitwise_xor", "__xor__")
    __rxor__ = _reflected("bitwise_xor", "__rxor__")
    __lshift__ = _binary("bitwise_left_shift", "__lshift__")
    __rlshift__ = _reflected("bitwise_left_shift", "__rlshift__")
    __rshift__ = _binary("bitwise_right_shift", "__rshift__")
    __rrshift__ = _reflected("bitwise_right_shift", "__rrshift__")
    __lt__ = _binary("less", "__lt__")
    __le__ = _binary("less_equal", "__le__")
    __gt__ = _binary("greater", "__gt__")
    __ge__ = _binary("greater_equal", "__ge__")
    __eq__ = _binary("equal", "__eq__")  # type: ignore[assignment]  # elementwise, not one bool
    __ne__ = _binary("not_equal", "__ne__")  # type: ignore[assignment]
    __hash__ = object.__hash__  # by identity: tensors are keys of feed_dict

    def __neg__(self) -> Tensor:
        return METHODS["negative"](self)

    def __pos__(self) -> Tensor:
        return METHODS["positive"](self)

    def __abs__(self) -> Tensor:
        return METHODS["abs"](self)

    def __invert__(self) -> Tensor:
        return METHODS["bitwise_invert"](self)

    def __divmod__(self, other: object) -> tuple[Tensor, Tensor]:
        return METHODS["floor_divide"](self, other), METHODS["remainder"](self, other)

    def __rdivmod__(self, other: object) -> tuple[Tensor, Tensor]:
        return METHODS["floor_divide"](other, self), METHODS["remainder"](other, self)

    def __round__(self, digits: int | None = None) -> Tensor:
        if digits:
            raise UnsupportedError(
                f"round(tensor, {digits}) is not supported: tensors round to whole numbers only",
                hint="scale first: wf.round(x * 100) / 100",
                location=caller_location(),
            )
        return METHODS["round"](self)

    def __getitem__(self, key: object) -> Tensor:
        return METHODS["getitem"](self, key)

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise UnsupportedError(
            "tensors cannot be changed in place",
            hint="x = x.at[index].set(value) gives a new tensor; state lives in a wf.Variable",
            location=caller_location(),
        )

    @property
    def at(self) -> Any:
        """`x.at[index].set(y)` is x with the elements at `index` replaced by y; `.add(y)` adds to
        them."""
        return METHODS["at"](self)

    @property
    def T(self) -> Tensor:
        """The matrix with its two axes exchanged. InvalidArgumentError unless there are exactly
        two."""
        if self.ndim != 2:
            raise InvalidArgumentError(
                f"x.T takes a matrix, this tensor has rank {self.ndim}",
                hint="x.mT exchanges the last two axes; wf.permute_dims(x, axes) orders all",
                location=caller_location(),
            )
        return METHODS["permute_dims"](self, (1, 0))

    @property
    def mT(self) -> Tensor:
        """The stack of matrices with the last two axes exchanged."""
        return METHODS["matrix_transpose"](self)

    @property
    def real(self) -> Tensor:
        """The real part."""
        return METHODS["real"](self)

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""
        return METHODS["imag"](self)

    def conj(self) -> Tensor:
        """The complex conjugate."""
        return METHODS["conj"](self)

    def astype(self, dtype: object) -> Tensor:
        """This tensor converted to `dtype`."""
        return METHODS["astype"](self, dtype)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; `x.reshape(2, -1)` and `x.reshape((2, -1))` are the
        same."""
        return METHODS["reshape"](
            self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        )

    def flatten(self) -> Tensor:
        """The elements in row-major order, as one axis."""
        return METHODS["reshape"](self, (-1,))

    ravel = flatten

    def broadcast_to(self, shape: tuple[int, ...]) -> Tensor:
        """This tensor broadcast to `shape`."""
        return METHODS["broadcast_to"](self, shape)

    def transpose(self, *axes: Any) -> Tensor:
        """The axes in the given order; without arguments, in reverse order."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return METHODS["permute_dims"](
            self, tuple(order) if axes else tuple(range(self.ndim))[::-1]
        )

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Without the axes of size 1 (or without those of `axis`)."""
        return METHODS["squeeze"](self, axis)

    def take(self, indices: object, axis: int | None = None) -> Tensor:
        """The elements at `indices` along `axis`."""
        return METHODS["take"](self, indices, axis=axis)

    def clip(self, min: object = None, max: object = None) -> Tensor:
        """Each element limited to [min, max]."""
        return METHODS["clip"](self, min, max)

    def round(self) -> Tensor:
        """Each element rounded, halves to even."""
        return METHODS["round"](self)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The sum over `axis` (all axes by default)."""
        return METHODS["sum"](self, axis=axis, keepdims=keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The product over `axis`."""
        return METHODS["prod"](self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The arithmetic mean over `axis`."""
        return METHODS["mean"](self, axis=axis, keepdims=keepdims)

    def std(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """The standard deviation over `axis`."""
        return METHODS["std"](self, axis=axis, correction=correction, keepdims=keepdims)

    def var(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """The variance over `axis`."""
        return METHODS["var"](self, axis=axis, correction=correction, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The largest element over `axis`."""
        return METHODS["max"](self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The smallest element over `axis`."""
        return METHODS["min"](self, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether all elements over `axis` are true."""
        return METHODS["all"](self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether any element over `axis` is true."""
        return METHODS["any"](self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the largest element along `axis`."""
        return METHODS["argmax"](self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the smallest element along `axis`."""
        return METHODS["argmin"](self, axis=axis, keepdims=keepdims)

    def cumsum(self, axis: int | None = None) -> Tensor:
        """The running sum along `axis`."""
        return METHODS["cumulative_sum"](self, axis=axis)

    def cumprod(self, axis: int | None = None) -> Tensor:
        """The running product along `axis`."""
        return METHODS["cumulative_prod"](self, axis=axis)

    def argsort(self, axis: int = -1, descending: bool = False) -> Tensor:
        """The indices that sort along `axis`."""
        return METHODS["argsort"](self, axis=axis, descending=descending)

    def sort(self, axis: int = -1, descending: bool = False) -> Tensor:
        """The elements sorted along `axis` (a new tensor)."""
        return METHODS["sort"](self, axis=axis, descending=descending)


#: What may stand beside a tensor in an operator; anything else makes Python raise its TypeError.
OPERANDS = (float, Operators, int, complex, np.ndarray, np.generic, list, tuple, str, bytes)


def holds_arrays(x: object) -> bool:
    """Whether a nested list holds tensors or arrays. InvalidArgumentError if it holds itself."""
    try:
        return _holds_arrays(x)
    except RecursionError:
        raise InvalidArgumentError(
            "a list is nested too deeply, or contains itself", location=caller_location()
        ) from None


def _holds_arrays(x: object) -> bool:
    if isinstance(x, (list, tuple)):
        return any(_holds_arrays(item) for item in x)
    return isinstance(x, (Operators, np.ndarray, np.generic))


# `array + tensor` reaches us as numpy.add; these ufuncs are operators and give tensors
_OPERATOR = {
    getattr(np, numpy_name): name
    for name in BINARY
    for numpy_name in (name.removeprefix("bitwise_") if name.endswith("shift") else name,)
}
# where weft's name is not NumPy's
_NAMES = {
    "concatenate": "concat", "hstack": "concat", "vstack": "concat", "transpose": "permute_dims",
    "cumsum": "cumulative_sum", "cumprod": "cumulative_prod", "ravel": "flatten",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "invert": "bitwise_invert", "conjugate": "conj",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "absolute": "abs",
    "fabs": "abs", "true_divide": "divide", "mod": "remainder", "power": "pow", "rint": "round",
    "around": "round", "amax": "max", "amin": "min", "degrees": "rad2deg", "radians": "deg2rad",
    "norm": "linalg.vector_norm", "vdot": "vecdot", "unique": "unique_values",
}  # fmt: skip


def _symbolic(values: Iterable[Any]) -> Tensor | None:
    """The first symbolic tensor in nested lists, tuples and dicts."""
    for value in values:
        if isinstance(value, Operators) and getattr(value, "_trace", None) is not None:
            return value  # type: ignore[return-value]
        if isinstance(value, (list, tuple, dict)):
            found = _symbolic(value.values() if isinstance(value, dict) else value)
            if found is not None:
                return found
    return None


def _arrays(value: Any) -> Any:
    """`value` with the concrete tensors and variables in it as NumPy arrays."""
    if isinstance(value, Operators):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(_arrays(v) for v in value)
    return {k: _arrays(v) for k, v in value.items()} if type(value) is dict else value


def _refuse(name: str, tensor: Tensor) -> None:
    raise TracerError(
        f"NumPy cannot compute np.{name} of the symbolic tensor {tensor.describe()}: "
        "it has no value yet",
        hint=numpy_hint(name),
        location=caller_location(),
    )


def numpy_hint(name: str) -> str:
    """What to use for the NumPy function of that name on symbolic tensors."""
    public: Any = sys.modules["weft"]
    mine = _NAMES.get(name, name)
    if mine in public.__all__ or "." in mine:
        return f"use wf.{mine}"
    if mine in public.linalg.__all__:
        return f"use wf.linalg.{mine}"
    return (
        "weft has no function of that name: return the tensor from the compiled function first, "
        "or build the result of functions that weft has"
    )


def array_ufunc(self: Operators, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's hook for ufuncs (NEP 13): operators go to weft, the rest needs values."""
    if method == "__call__" and ufunc in _OPERATOR and not options:
        return METHODS[_OPERATOR[ufunc]](*inputs)
    tensor = _symbolic([*inputs, *options.values()])
    if tensor is not None:
        _refuse(ufunc.__name__, tensor)
    return getattr(ufunc, method)(*_arrays(inputs), **_arrays(options))


def array_function(
    self: Operators, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
) -> Any:
    """NumPy's hook for its other functions (NEP 18)."""
    tensor = _symbolic([args, kwargs])
    if tensor is not None:
        _refuse(func.__name__, tensor)
    return func(*_arrays(args), **_arrays(kwargs))


for _name in FOREIGN_NAMES.split():
    setattr(Operators, _name, _Foreign(_name))
