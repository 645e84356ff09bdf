"""`custom_gradient`: a function whose derivative the user writes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.operators import Operators
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Trace, current_trace
from weft.ir.dims import same
from weft.ir.errors import GradientError
from weft.ir.graph import Block, Value
from weft.ir.locations import caller_location


def custom_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `fn(*args)` that returns `(y, grad_fn)`, as TensorFlow's tf.custom_gradient.

    `grad_fn(dy)` gets a cotangent like y (several arguments if y is a tuple or list) and returns
    the gradient of the only argument, or a tuple with one for each (None: zero). It may use values
    from the forward part and is itself differentiable. Keyword arguments and integer arguments have
    no gradient, nor have variables and other tensors that `fn` uses without taking them as
    arguments. Raises GradientError where what the functions return does not fit.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        if trace is None:
            return _result(fn(*args, **kwargs), fn)[0]
        leaves, structure = pytree.flatten(args)
        given = [_fresh(leaf) for leaf in leaves]
        inputs = [t for t in given if isinstance(t, Tensor) and t.dtype.is_inexact]
        y, grad_fn = _result(fn(*pytree.unflatten(structure, given), **kwargs), fn)
        outputs, nesting = pytree.flatten(y)
        ys = [as_tensor(leaf) for leaf in outputs]
        for t in ys:
            if not t.dtype.is_inexact:
                raise GradientError(
                    f"custom_gradient: '{fn.__name__}' returned a {t._type}; "
                    "only floating and complex results have gradients",
                    location=caller_location(),
                )
        region = _Region(trace, fn.__name__, structure, given)
        block, captured = region.trace(grad_fn, ys, nesting)
        operands = [trace.lift(t) for t in (*ys, *inputs)] + captured
        attrs = {"outputs": len(ys), "inputs": len(inputs)}
        results = trace.emit("custom_gradient", operands, attrs, regions=(block,))
        return pytree.unflatten(nesting, [trace.tensor(v) for v in results])

    return call


def _fresh(leaf: Any) -> Any:
    """A tensor argument as a value of its own in the trace; anything else as it is."""
    if not isinstance(leaf, (Operators, float, complex, np.ndarray, np.generic)):
        return leaf
    t = as_tensor(leaf)
    copy = apply("identity", t)
    copy.weak = t.weak
    return copy


def _result(out: Any, fn: Callable[..., Any]) -> tuple[Any, Callable[..., Any]]:
    if not (isinstance(out, tuple) and len(out) == 2 and callable(out[1])):
        raise GradientError(
            f"custom_gradient: '{fn.__name__}' must return (y, grad_fn), it returned a "
            f"{type(out).__name__}",
            hint="return the result and a function from its cotangent to the gradients",
            location=caller_location(),
        )
    return out


class _Region:
    """Traces `grad_fn` into a block: (cotangents, captures) -> gradients of the inputs."""

    def __init__(
        self, parent: Trace, name: str, structure: pytree.Structure, given: Sequence[Any]
    ) -> None:
        self.region = Trace("region", f"gradient of {name}", parent)
        self.structure = structure
        self.given = given

    def trace(
        self, grad_fn: Callable[..., Any], ys: Sequence[Tensor], nesting: pytree.Structure
    ) -> tuple[Block, list[Value]]:
        """The block, and the outer values that its further arguments stand for."""
        region = self.region
        with region.scope():
            seeds = [region.tensor(region.add_arg(y._type, "cotangent")) for y in ys]
            tree = pytree.unflatten(nesting, seeds)
            spread = nesting is not None and nesting.cls in (tuple, list)
            found = grad_fn(*tree) if spread else grad_fn(tree)
            results = [region.lift(t) for t in self._gradients(found)]
        return region.builder.block(results), list(region.captures)

    def _gradients(self, found: Any) -> list[Tensor]:
        """One gradient for each differentiable leaf of the arguments."""
        assert self.structure is not None
        count = len(self.structure.children)
        trees = tuple(found) if isinstance(found, (tuple, list)) and count != 1 else (found,)
        if count == 1 and isinstance(found, (tuple, list)) and self.structure.children[0] is None:
            trees = tuple(found)
        if len(trees) != count:
            raise GradientError(
                f"{self.region.name}: {len(trees)} gradients for {count} arguments",
                hint="return one gradient for each argument, None for those without",
                location=caller_location(),
            )
        out: list[Tensor] = []
        leaves = iter(self.given)
        for number, (tree, child) in enumerate(zip(trees, self.structure.children, strict=True)):
            mine = [next(leaves) for _ in range(pytree.count_leaves(child))]
            grads, structure = pytree.flatten(tree)
            if tree is None:
                grads = [None] * len(mine)
            else:
                pytree.same_structure(f"{self.region.name}: argument {number}", child, structure)
            wanted = [
                (x, g) for x, g in zip(mine, grads, strict=True)
                if isinstance(x, Tensor) and x.dtype.is_inexact
            ]  # fmt: skip
            out += [self._fit(g, x, number) for x, g in wanted]
        return out

    def _fit(self, gradient: Any, x: Tensor, number: int) -> Tensor:
        if gradient is None:
            return apply("broadcast_to", Tensor(np.zeros((), x.dtype.numpy)), shape=x.shape)
        t = as_tensor(gradient)
        if t.weak or (x.weak and t.dtype.is_inexact and t.dtype.kind == x.dtype.kind):
            t = as_tensor(t, x.dtype)  # a Python number takes gradients of any precision
        if (
            t.dtype is not x.dtype
            or len(t.shape) != len(x.shape)
            or not all(map(same, t.shape, x.shape))
        ):
            raise GradientError(
                f"{self.region.name}: the gradient of argument {number} has type {t._type}, "
                f"the argument {x._type}",
                hint="a gradient has the dtype and shape of its argument",
                location=caller_location(),
            )
        return t
