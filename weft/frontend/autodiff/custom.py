"""`custom_gradient`: a function whose gradient another one gives.

The function of the gradient is traced with the call, into the region of an op `custom_gradient`.
If it calls its own function again, directly or by way of others, that call's gradient is traced
only where a second derivative asks for it: its region holds an op `custom_rule`, which knows the
Python function. Derivatives of any order then are those of the rule, as in JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, NoReturn

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import StateHandle, Trace, current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.dispatch import apply
from weft.ir.dataclass import dataclass
from weft.ir.dims import same
from weft.ir.errors import GradientError
from weft.ir.graph import Block, Value
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.ir.ops.core import CustomRule
from weft.ir.types import Type


@dataclass(frozen=True, slots=True)
class _Outer:
    """Tensors from outside that rules use, by the value that each has in `trace`, where the
    outermost rule was called; likewise variables."""

    trace: Trace
    tensors: Mapping[Value, Tensor]
    variables: Mapping[StateHandle, Value]


class _Rules:
    """The rules that are being traced here: of these functions, one in another."""

    def __init__(self, functions: tuple[object, ...], outer: _Outer) -> None:
        self.functions, self.outer = functions, outer
        self.has_deferred = False


_rules: ContextVar[_Rules | None] = ContextVar("rules", default=None)
_numbers = count()


@contextmanager
def _tracing(rules: _Rules) -> Iterator[None]:
    token = _rules.set(rules)
    try:
        yield
    finally:
        _rules.reset(token)


def custom_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `fn(*args)` that returns `(y, grad_fn)`, as TensorFlow's tf.custom_gradient.

    `grad_fn(dy)` gets a cotangent like y (several arguments if y is a tuple or list) and returns
    the gradient of the only argument, or a tuple with one for each (None: zero). It may use values
    from the forward part and is itself differentiable. Keyword arguments and integer arguments have
    no gradient, nor have variables and other tensors that `fn` uses without taking them as
    arguments. Raises GradientError where what the functions return does not fit.

    >>> @wf.custom_gradient
    ... def clipped(x):  # the identity, whose gradient stays within 1
    ...     return x, lambda dy: wf.clip(dy, -1.0, 1.0)
    >>> wf.grad(lambda x: wf.sum(clipped(x) * [0.5, 7.0]))(wf.asarray([1.0, 2.0]))
    Tensor([0.5, 1. ], dtype=float32)
    """

    @shows_as_seen
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return with_gradient(fn, fn, args, kwargs)

    return call


def with_gradient(
    key: object, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What `custom_gradient(fn)` gives; key: the function of the user that it is."""
    trace = current_trace()
    if trace is None:
        return _result_tensors(fn(*args, **kwargs), fn)[0]
    leaves, structure = pytree.flatten(tuple(args))
    start = len(trace.builder.ops)
    given = [_fresh_leaf(leaf) for leaf in leaves]
    inputs = [t for t in given if _is_moving(t)]
    y, grad_fn = _result_tensors(fn(*pytree.unflatten(structure, given), **kwargs), fn)
    outputs, nesting = pytree.flatten(y)
    ys = [as_tensor(leaf) for leaf in outputs]
    for t in ys:
        if not t.dtype.is_inexact:
            raise GradientError(
                f"custom_gradient: '{fn.__name__}' returned a {t._type}; "
                "only floating and complex results have gradients",
                location=caller_location(),
            )
    rules = _rules.get()
    if rules is not None and key in rules.functions:
        called = _Called(key, fn, dict(kwargs), structure, given, rules)
        block, captured = called.deferred(trace, ys)
    else:
        block, captured = _traced_rule(
            key, fn.__name__, structure, given, grad_fn, ys, nesting, start
        )
    operands = [trace.lift(t) for t in (*ys, *inputs)] + captured
    attrs = {"outputs": len(ys), "inputs": len(inputs)}
    results = trace.emit("custom_gradient", operands, attrs, regions=(block,))
    return pytree.unflatten(nesting, [trace.tensor(v) for v in results])


def _traced_rule(
    key: object,
    name: str,
    structure: pytree.Structure,
    given: Sequence[Any],
    grad_fn: Callable[..., Any],
    ys: Sequence[Tensor],
    nesting: pytree.Structure,
    start: int,
) -> tuple[Block, list[Value]]:
    """The region of a rule, and what it captures; start: the first op of the call. A rule that
    calls its function again, and uses what is outside of both, is traced a second time, when it is
    known what that is."""
    trace = current_trace()
    assert trace is not None
    around = _rules.get()
    functions = (key,) if around is None else (*around.functions, key)
    outer = _Outer(trace, {}, {}) if around is None else around.outer
    rules = _Rules(functions, outer)
    region = _Region(trace, name, structure, given)
    with _tracing(rules):
        block, captured = region.trace(grad_fn, ys, nesting)
    if around is not None:
        around.has_deferred |= rules.has_deferred
        return block, captured
    placed = {arg: v for v, arg in region.region.captures.items()}
    seen = region.region.seen.items()
    read = {variable: placed[v] for variable, values in seen for v in values if v in placed}
    own = {v for op in trace.builder.ops[start:] for v in op.results} - set(read.values())
    free = {v: trace.tensor(v) for v in captured if v not in own}
    if not rules.has_deferred or not free:
        return block, captured
    region = _Region(trace, name, structure, given)
    with _tracing(_Rules(functions, _Outer(trace, free, read))):
        return region.trace(grad_fn, ys, nesting)


class _Called:
    """A call in a rule of the function that the rule belongs to: its gradient is traced if it is
    asked for, and computes what it needs of the forward part again."""

    def __init__(
        self,
        key: object,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        structure: pytree.Structure,
        given: Sequence[Any],
        rules: _Rules,
    ) -> None:
        rules.has_deferred = True
        self.key, self.fn, self.kwargs, self.structure = key, fn, kwargs, structure
        self.functions, self.outer = rules.functions, rules.outer
        #: The leaves of the arguments; of tensors only what they are like.
        self.leaves = [_Leaf(t._type, t.weak) if isinstance(t, Tensor) else t for t in given]
        self.tensors = [t for t in given if isinstance(t, Tensor)]

    def deferred(self, trace: Trace, ys: Sequence[Tensor]) -> tuple[Block, list[Value]]:
        """A region of one op, (cotangents, tensors of the arguments, tensors from outside) ->
        gradients; and the values that its further arguments stand for."""
        used = [*self.tensors, *self.outer.tensors.values()]
        moving = [k for k, t in enumerate(self.tensors) if _is_moving(t)]
        rule = CustomRule(f"{self.fn.__name__}#{next(_numbers)}", self.block)
        builder = Builder([t._type for t in (*ys, *used)])
        like = tuple(len(ys) + k for k in moving)
        found = builder.emit("custom_rule", builder.args, {"rule": rule, "like": like})
        values = [trace.lift(t) for t in used]
        self.tensors = []  # of a trace that will have ended
        return builder.block(found), values

    def block(self, types: Sequence[Type]) -> Block:
        """The rule traced, for operands of these types."""
        region = _RuleTrace(f"gradient of {self.fn.__name__}", self.outer)
        with region.scope():
            args = [region.tensor(region.add_arg(t, "operand")) for t in types]
            extra = len(self.outer.tensors)
            own = args[: len(args) - extra]
            known = dict(zip(self.outer.tensors, args[len(own) :], strict=True))
            region.knows(known)
            first = len(own) - sum(isinstance(x, _Leaf) for x in self.leaves)
            seeds, tensors = own[:first], iter(own[first:])
            given = [next(tensors) if isinstance(x, _Leaf) else x for x in self.leaves]
            for t, leaf in zip(given, self.leaves, strict=True):
                if isinstance(leaf, _Leaf):
                    t.weak = leaf.weak
            outer = _Outer(self.outer.trace, known, self.outer.variables)
            with _tracing(_Rules(self.functions, outer)):
                arguments = pytree.unflatten(self.structure, given)
                y, grad_fn = _result_tensors(self.fn(*arguments, **self.kwargs), self.fn)
                found = _cotangents(grad_fn, seeds, pytree.flatten(y)[1])
                fitted = _Fitted(region.name, self.structure, given)
                results = [region.lift(t) for t in fitted.gradients(found)]
        return region.builder.block(results)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What a tensor among the arguments is like."""

    type: Type
    weak: bool


class _RuleTrace(Trace):
    """The trace of a rule that is asked for after the trace in which its function was called."""

    def __init__(self, name: str, outer: _Outer) -> None:
        super().__init__("region", name, outer.trace)
        self.outer = outer
        self.known: Mapping[Value, Tensor] = {}
        self.state = {}

    def knows(self, known: Mapping[Value, Tensor]) -> None:
        """The arguments that stand for tensors from outside."""
        self.known = known
        assert self.state is not None
        for variable, value in self.outer.variables.items():
            if value in known:
                self.state[variable] = known[value]

    def lift(self, t: Tensor) -> Value:
        """The value of `t` in this trace."""
        if t._data is not None or t._trace is self:
            return super().lift(t)
        value = _value_in(self.outer.trace, t)
        if value is None or value not in self.known:
            self._refuse(t.describe())
        return super().lift(self.known[value])

    def value_of(self, variable: StateHandle, body: Trace | None = None) -> Tensor:
        """The value that a variable had where the function was called."""
        if self.state is None or self.root().effects.first(variable) not in self.state:
            self._refuse(f"variable '{variable.name}'")
        return super().value_of(variable, body)

    def _refuse(self, what: str) -> NoReturn:
        raise GradientError(
            f"{self.name}: a derivative of higher order uses {what}, which is not known there",
            hint="make it an argument of the function",
            location=caller_location(),
        )


def _value_in(trace: Trace | None, t: Tensor) -> Value | None:
    """The value that a tensor of `trace`, or of one around it, has there; None if it has none."""
    if trace is None:
        return None
    if t._trace is trace:
        return t._value
    outer = _value_in(trace.parent, t)
    return None if outer is None else trace.captures.get(outer)


def _is_moving(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_inexact


def _cotangents(
    grad_fn: Callable[..., Any], seeds: Sequence[Tensor], nesting: pytree.Structure
) -> Any:
    """What the function of a gradient gives for the leaves of a cotangent."""
    tree = pytree.unflatten(nesting, list(seeds))
    spread = nesting is not None and nesting.cls in (tuple, list)
    return grad_fn(*tree) if spread else grad_fn(tree)


def _fresh_leaf(leaf: Any) -> Any:
    """A tensor argument as a value of its own in the trace; anything else as it is."""
    if not isinstance(leaf, (Operators, float, complex, np.ndarray, np.generic)):
        return leaf
    t = as_tensor(leaf)
    copy = apply("identity", t)
    copy.weak = t.weak
    return copy


def _result_tensors(out: Any, fn: Callable[..., Any]) -> tuple[Any, Callable[..., Any]]:
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
            found = _cotangents(grad_fn, seeds, nesting)
            fitted = _Fitted(region.name, self.structure, self.given)
            results = [region.lift(t) for t in fitted.gradients(found)]
        return region.builder.block(results), list(region.captures)


class _Fitted:
    """Checks what the function of a gradient returns."""

    def __init__(self, name: str, structure: pytree.Structure, given: Sequence[Any]) -> None:
        self.name, self.structure, self.given = name, structure, given

    def gradients(self, found: Any) -> list[Tensor]:
        """One gradient for each differentiable leaf of the arguments."""
        assert self.structure is not None
        count = len(self.structure.children)
        trees = tuple(found) if isinstance(found, (tuple, list)) and count != 1 else (found,)
        if count == 1 and isinstance(found, (tuple, list)) and self.structure.children[0] is None:
            trees = tuple(found)
        if len(trees) != count:
            raise GradientError(
                f"{self.name}: {len(trees)} gradients for {count} arguments",
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
                pytree.same_structure(f"{self.name}: argument {number}", child, structure)
            wanted = [(x, g) for x, g in zip(mine, grads, strict=True) if _is_moving(x)]
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
                f"{self.name}: the gradient of argument {number} has type {t._type}, "
                f"the argument {x._type}",
                hint="a gradient has the dtype and shape of its argument",
                location=caller_location(),
            )
        return t
