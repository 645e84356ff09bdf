"""`wf.reducer`: a function of two numbers as a reduction over axes.

One that is the op of a reduction of weft's (`a + b`, `wf.maximum(a, b)`) is that reduction. Any
other is a tree of elementwise calls: `WAYS` slices of the axis are combined in one loop, what is
left of them in the next, until one element is left. Nothing of it is new to the IR, so it runs, and
has gradients, wherever the function itself does."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.extend.scalar_functions import ElementwiseFunction
from weft.frontend.extend.scalar_tracing import single_op
from weft.frontend.ops import creation, manipulation, reduction
from weft.frontend.ops.promotion import Axes, TensorLike, check_axes, is_scalar, strong_tensor
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.locations import caller_location
from weft.ir.ops.reduction import FOLDS

#: Slices that one loop combines: so much less is left for the next.
WAYS = 8

Decorator = Callable[[Callable[..., Any]], "Reducer"]


def reducer(*, init: bool | int | float) -> Decorator:
    """Decorate a function of two numbers: a reduction, called as `f(x, axis=None, keepdims=False)`.

    The function has to be associative and commutative, which weft takes its word for: elements are
    combined in an order that depends on the sizes alone. `init` is its neutral element, the result
    over no elements. It is traced or compiled as `wf.elementwise` says, and has gradients as there:
    `f.def_gradient` where it branches. The result has the dtype of x. The sizes of the axes must be
    known when the graph is built.

    Raises InvalidArgumentError for what is no function of two parameters or no number as `init`; a
    call raises UnsupportedError for an axis whose size is not known, TypeRuleError if the function
    gives another dtype than it takes, and what `wf.elementwise` raises.

    >>> @wf.reducer(init=0)
    ... def largest_magnitude(a, b):
    ...     return a if abs(a) > abs(b) else b
    >>> largest_magnitude([[1, -7, 3], [2, 4, -5]], axis=1)
    Tensor([-7, -5], dtype=int64)
    """

    def decorate(function: Callable[..., Any]) -> Reducer:
        try:
            return Reducer(function, init)
        except WeftError as error:
            raise error.at(caller_location()) from None

    return decorate


class Reducer:
    """A function of two numbers that reduces axes of a tensor (`wf.reducer`)."""

    def __init__(self, function: Callable[..., Any], init: bool | int | float) -> None:
        self._combine = ElementwiseFunction(function)
        functools.update_wrapper(self, self._combine.__scalar__)
        self.__name__ = self._combine.__name__
        if len(self._combine.__signature__.parameters) != 2:
            raise InvalidArgumentError(
                f"wf.reducer: '{self.__name__}' takes {self._combine.__signature__}",
                hint="it combines two numbers: def f(a, b)",
            )
        if not is_scalar(init):
            raise InvalidArgumentError(f"wf.reducer: init must be a Python number, got {init!r}")
        self._init = init
        #: Decorates its gradient, as that of a function of `wf.elementwise`.
        self.def_gradient = self._combine.def_gradient
        self._known: dict[DType, str | None] = {}

    def __repr__(self) -> str:
        return f"<wf.reducer {self.__name__}{self._combine.__signature__}>"

    def __call__(self, x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """The elements over `axis` combined. Errors as `wf.reducer` says, at the user's line."""
        try:
            t = strong_tensor(x)
            axes = check_axes(self.__name__, axis, t.ndim)
            known = self._op(t.dtype)
            if known is not None:
                more = {"dtype": t.dtype} if known in ("sum", "prod") else {}
                made: Tensor = getattr(reduction, known)(t, axes, keepdims=keepdims, **more)
                return made
            return self._reduced(t, axes, keepdims)
        except WeftError as error:
            raise error.at(caller_location()) from error.__cause__

    def _op(self, dtype: DType) -> str | None:
        """The reduction of weft's own that it is at this dtype; None if it is another."""
        if dtype not in self._known:
            op = single_op(self._combine.traced_copy(), dtype)
            found = (r for r, fold in FOLDS.items() if fold == op and self._starts(r, dtype))
            self._known[dtype] = next(found, None)
        return self._known[dtype]

    def _starts(self, name: str, dtype: DType) -> bool:
        """Whether `init` is what this reduction starts from."""
        if name in ("max", "min"):
            if dtype.is_floating:
                return self._init == (-math.inf if name == "max" else math.inf)
            if not dtype.is_integer:
                return False
            info: Any = np.iinfo(dtype.numpy.name)
            return bool(self._init == (info.min if name == "max" else info.max))
        return self._init == (1 if name in ("prod", "all") else 0)

    def _reduced(self, t: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
        for a in axes:
            if not isinstance(t.shape[a], int):
                raise UnsupportedError(
                    f"the reducer '{self.__name__}' needs the size of axis {a} of {t._type}, which "
                    "is not known while the graph is built",
                    hint="give the placeholder a size, or use wf.scan, which goes element by "
                    "element",
                )
        shape = t.shape
        kept = tuple(1 if k in axes else n for k, n in enumerate(shape))
        if not axes:
            return t
        if any(shape[a] == 0 for a in axes):
            made = creation.full(kept, self._init, dtype=t.dtype)
        else:
            made = t
            for a in sorted(axes, key=lambda k: -k):
                made = self._fold(made, a)
        return made if keepdims else manipulation.squeeze(made, axes)

    def _fold(self, t: Tensor, axis: int) -> Tensor:
        """The axis with one element."""
        n = t.shape[axis]
        assert isinstance(n, int)
        rest: list[Tensor] = []
        while n > 1:
            ways = min(WAYS, n)
            each = n // ways
            parts = [_part(t, axis, k * each, (k + 1) * each) for k in range(ways)]
            rest += [_part(t, axis, k, k + 1) for k in range(ways * each, n)]
            t, n = functools.reduce(self._both, parts), each
        return functools.reduce(self._both, rest, t)

    def _both(self, a: Tensor, b: Tensor) -> Tensor:
        made: Tensor = self._combine(a, b)
        if made.dtype is not a.dtype:
            raise TypeRuleError(
                f"the reducer '{self.__name__}' gives {made.dtype.name} for two of {a.dtype.name}",
                hint="what it gives is combined again: it must be of the dtype that it takes",
            )
        return made


def _part(t: Tensor, axis: int, start: int, stop: int) -> Tensor:
    index = (slice(None),) * axis + (slice(start, stop),)
    made: Tensor = t[index]
    return made
