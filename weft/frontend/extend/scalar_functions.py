"""`wf.elementwise`: a plain Python function of numbers as an op on tensors, which fuses with the
ops around it.

A call first looks whether the function can be traced on numbers of these dtypes: then its ops are
the result, and nothing tells that a function made them. Where it branches or loops on a value it
becomes one `scalar_function` of the IR, whose code is Numba's (`codegen/llvm/
scalar_texts.py`)."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from weft.codegen.llvm.scalar_texts import scalar_text
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.extend.scalar_tracing import tensor_copy, why_not
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.promotion import (
    TensorLike,
    broadcast_tensors,
    cast,
    common_dtype,
    expand,
    is_scalar,
    is_weak,
    to_inexact,
)
from weft.ir.dims import broadcast_shapes
from weft.ir.dtypes import DType, bool_, float32, float64, int64, uint64
from weft.ir.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.ir.ops.scalar_function import code_of, define_scalar_function, full_name
from weft.ir.python_function import around, global_names, handles_errors

#: Kinds of calls of one function that are remembered.
MOST_CALLS = 256


def elementwise(function: Callable[..., Any]) -> ElementwiseFunction:
    """Decorate a function of numbers: it takes tensors, which broadcast, and is applied to each
    element, in the loops that weft generates for the ops around it.

    Parameters are operands: tensors, or numbers, which are as weak as in `x * 2`. Floats promote to
    one dtype, in which the function computes; integers compute in 64 bits where Numba compiles it.
    The result is a float of that dtype, an integer of the integers' dtype, or a bool, as the
    function returns. Where a call can be traced (`math.exp(x) * alpha`), it is ops of weft, with
    gradients. Where it branches or loops on a number that is known only when it runs, Numba
    compiles it, once for all processes that share a cache (WEFT_CACHE_DIR); its gradient is then
    what `def_gradient` says. Global names are constants, as they were at the first call.

    Raises InvalidArgumentError for what is no plain function of a fixed number of parameters; a
    call raises TypeRuleError, with both reasons, if the function can neither be traced nor compiled
    for its operands, UnsupportedError if it raises errors or calls what weft has no code for, and
    ShapeError for shapes that do not broadcast.

    >>> import math
    >>> @wf.elementwise
    ... def softplus(x, *, beta=1.0):  # traced
    ...     return math.log1p(math.exp(beta * x)) / beta
    >>> softplus(wf.asarray([0.0, -200.0]))
    Tensor([0.6931472, 0.       ], dtype=float32)
    >>> @wf.elementwise
    ... def collatz(n):  # its loop is compiled
    ...     steps = 0
    ...     while n != 1:
    ...         n = n // 2 if n % 2 == 0 else 3 * n + 1
    ...         steps += 1
    ...     return steps
    >>> wf.compile(lambda n: collatz(n) + 1)(wf.asarray([1, 6, 27]))
    Tensor([  1,   9, 112], dtype=int64)
    """
    try:
        return ElementwiseFunction(function)
    except WeftError as error:
        raise error.at(caller_location()) from None


class ElementwiseFunction:
    """A function of numbers that takes tensors (`wf.elementwise`)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, ElementwiseFunction):
            function = function.__scalar__
        if not isinstance(function, FunctionType):
            raise InvalidArgumentError(
                f"wf.elementwise takes a plain Python function, got {function!r}"
            )
        functools.update_wrapper(self, function)
        self.__name__ = function.__name__
        #: The function of numbers.
        self.__scalar__: FunctionType = function
        self.__signature__ = inspect.signature(function)
        kinds = inspect.Parameter
        for parameter in self.__signature__.parameters.values():
            if parameter.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD):
                raise InvalidArgumentError(
                    f"wf.elementwise: '{function.__name__}' takes any number of arguments",
                    hint="name its operands: their number is fixed",
                )
        if handles_errors(function.__code__):
            raise InvalidArgumentError(
                f"wf.elementwise: '{function.__name__}' handles errors (try, with), and no number "
                "raises one: 1 / 0 is inf, log(-1) is NaN",
                hint="ask before: x if x != 0 else ...",
            )
        if "type" in global_names(function.__code__):
            raise InvalidArgumentError(
                f"wf.elementwise: '{function.__name__}' asks for the type of a number, which is "
                "the dtype of a tensor's elements",
                hint="isinstance(x, float) tells floats from integers",
            )
        if not self.__signature__.parameters:
            raise InvalidArgumentError(f"wf.elementwise: '{function.__name__}' has no operand")
        self._gradient: Callable[..., Any] | None = None
        self._copy: FunctionType | None = None
        self._around: list[object] = []
        self._whys: dict[Any, Exception | None] = {}
        define_scalar_function(function)

    def __repr__(self) -> str:
        return f"<wf.elementwise {self.__name__}{self.__signature__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_reference, (self.__scalar__.__module__, self.__scalar__.__qualname__)

    def def_gradient(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate `fn(op, dy)`, the gradient, as that of `wf.register_gradient`: `op.inputs` has
        the positional operands, broadcast, `op.outputs` the result, `op.attrs` the keyword ones; it
        returns the gradient of the only operand, or a tuple with one for each (None: zero).

        It goes before the gradient of what was traced. AlreadyExistsError if there is one.

        >>> @wf.elementwise
        ... def leaky(x, *, slope=0.1):
        ...     return x if x > 0 else slope * x
        >>> @leaky.def_gradient
        ... def leaky_gradient(op, dy):
        ...     return wf.where(op.inputs[0] > 0, dy, dy * op.attrs["slope"])
        >>> wf.grad(lambda x: wf.sum(leaky(x)))(wf.asarray([2.0, -2.0]))
        Tensor([1. , 0.1], dtype=float32)
        """
        if self._gradient is not None:
            raise AlreadyExistsError(
                f"the scalar function '{self.__name__}' has a gradient already",
                location=caller_location(),
            )
        self._gradient = gradient
        return gradient

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function of each element. Errors as `wf.elementwise` says, at the user's line."""
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        given = {n: _operand(v) for n, v in bound.arguments.items()}
        try:
            if self._gradient is None:
                return self._apply(given)
            return self._with_gradient(given)
        except WeftError as error:
            raise error.at(caller_location()) from error.__cause__

    # ------------------------------------------------------------------------------- two ways to do
    def _apply(self, given: dict[str, Any]) -> Tensor:
        if not any(isinstance(v, Tensor) for v in given.values()):  # of numbers alone
            first = next(iter(given))
            given = {**given, first: as_tensor(given[first])}
        why = self._why_not(given)
        if why is not None:
            return self._compiled(given, why)
        args, kwargs = self._arguments(given)
        made = self.traced_copy()(*args, **kwargs)
        shape = broadcast_shapes(*(v.shape for v in given.values() if isinstance(v, Tensor)))
        tensors = [v for v in given.values() if isinstance(v, Tensor)]
        if is_scalar(made):
            made = cast(made, common_dtype(self.__name__, [made, *tensors]))
        return expand(as_tensor(made), shape)

    def _arguments(self, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        bound = inspect.BoundArguments(self.__signature__, given)
        return list(bound.args), bound.kwargs

    def traced_copy(self) -> FunctionType:
        """The function for tensors, with the values that its globals and closure have now."""
        found = around(self.__scalar__)
        same = len(found) == len(self._around) and all(map(operator.is_, found, self._around))
        if self._copy is None or not same:
            self._copy, self._around = tensor_copy(self.__scalar__), found
            self._whys.clear()
        return self._copy

    def _why_not(self, given: dict[str, Any]) -> Exception | None:
        """Why a call like this cannot be traced; None if it can."""
        traced = self.traced_copy()
        key = tuple(
            (v.dtype, v.weak) if isinstance(v, Tensor) else (type(v), repr(v))
            for v in given.values()
        )
        if key not in self._whys:
            if len(self._whys) >= MOST_CALLS:
                self._whys.clear()
            args, kwargs = self._arguments(given)
            self._whys[key] = why_not(traced, args, kwargs)
        return self._whys[key]

    def _compiled(self, given: dict[str, Any], why: Exception) -> Tensor:
        """One `scalar_function`."""
        working, held = _prepared(self.__name__, given)
        letters = "".join(_LETTERS[t.dtype] for t in held)
        name = full_name(self.__scalar__)
        try:
            result = scalar_text(name, code_of(self.__scalar__), letters).result
        except (TypeRuleError, UnsupportedError) as error:
            error.what += f"\nIt cannot be traced either: {_told(why)}"
            error.args = (error._render(),)
            raise
        dtype = {"f": held_float(working), "i": int64, "u": uint64, "b": bool_}[result]
        code = code_of(self.__scalar__)
        made = scalar_call(*held, function=name, code=code, dtype=dtype)
        if result == "f":
            return made if working is dtype else cast(made, working)
        integers = [v for v in given.values() if isinstance(v, Tensor) and v.dtype.is_integer]
        if result == "b" or not integers:
            return made
        return cast(made, common_dtype(self.__name__, integers))

    def _with_gradient(self, given: dict[str, Any]) -> Tensor:
        # not for a step that has its plan on disk: these load code generation
        from weft.frontend.autodiff.custom import custom_gradient
        from weft.frontend.extend.ops import OpSite

        gradient = self._gradient
        assert gradient is not None
        kinds = inspect.Parameter
        keyword = {
            n: v for n, v in given.items()
            if self.__signature__.parameters[n].kind is kinds.KEYWORD_ONLY
        }  # fmt: skip
        names = [n for n in given if n not in keyword]
        positional = broadcast_tensors(*self._promoted([given[n] for n in names]), op=self.__name__)

        def forward(*operands: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
            made = self._apply({**dict(zip(names, operands, strict=True)), **keyword})
            site = OpSite(self.__name__, operands, (made,), keyword)
            return made, lambda dy: gradient(site, dy)

        result: Tensor = custom_gradient(forward)(*positional)
        return result

    def _promoted(self, operands: Sequence[Any]) -> list[Tensor]:
        """Numbers as tensors of the dtype that they take on beside the others."""
        tensors = [v for v in operands if isinstance(v, Tensor) and not v.weak]
        return [
            v if isinstance(v, Tensor) and not v.weak
            else cast(v, common_dtype(self.__name__, [v, *tensors]))
            for v in operands
        ]  # fmt: skip


_LETTERS = {float32: "f", float64: "f", int64: "i", uint64: "u", bool_: "b"}


def _operand(value: Any) -> Any:
    """An argument as it is passed on: numbers and settings as they are, all else as tensors."""
    if is_scalar(value) or value is None or isinstance(value, str):
        return value
    return as_tensor(value)


def _told(why: Exception) -> str:
    return why.what if isinstance(why, WeftError) else f"{type(why).__name__}: {why}"


def held_float(dtype: DType) -> DType:
    """The dtype in which floats of this dtype are computed: f32 for 16-bit ones."""
    return float64 if dtype is float64 else float32


def _prepared(name: str, given: dict[str, Any]) -> tuple[DType, list[Tensor]]:
    """The dtype of the floats, and the operands as a `scalar_function` takes them."""
    for parameter, value in given.items():
        if not isinstance(value, (Tensor, bool, int, float)):
            raise UnsupportedError(
                f"the scalar function '{name}' is compiled, and its argument '{parameter}' is a "
                f"{type(value).__name__}",
                hint="operands are tensors of real numbers, floats, integers and bools",
            )
        if isinstance(value, Tensor) and (value.dtype.is_complex or value.dtype.kind == "string"):
            raise UnsupportedError(
                f"the scalar function '{name}' is compiled, and its operand '{parameter}' is "
                f"{value.dtype.name}",
                hint="a function of complex numbers has to be one that can be traced",
            )
    values = list(given.values())
    floats = [v for v in values if isinstance(v, float) or _is_float(v)]
    strong = [v for v in floats if not is_weak(v)]
    working = common_dtype(name, strong or floats or values)
    working = working if working.is_floating else to_inexact(working, name)
    held = [_as_operand(v, held_float(working)) for v in values]
    return working, broadcast_tensors(*held, op=name)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_floating


def _as_operand(value: Any, working: DType) -> Tensor:
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype is bool_):
        return cast(value, bool_)
    if isinstance(value, float) or _is_float(value):
        return cast(value, working)
    unsigned = isinstance(value, Tensor) and value.dtype.kind == "uint"
    return cast(value, uint64 if unsigned else int64)


@runs_native
def scalar_call(*xs: TensorLike, function: str, code: str, dtype: DType) -> Tensor:
    """A `scalar_function` on operands of one shape."""
    return apply("scalar_function", *map(as_tensor, xs), function=function, code=code, dtype=dtype)


def _by_reference(module: str, name: str) -> Any:
    """What unpickles an elementwise function: it is found by its name."""
    import importlib

    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
