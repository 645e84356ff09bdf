"""Derivatives forward: `jvp`, `linearize`, `hvp`, and whole Jacobians: `jacfwd`, `jacrev`,
`hessian`; `custom_jvp` gives a function derivatives of its own.

The ops of tangents are made by `passes/autodiff/forward_mode`; Jacobians are `vmap` over the unit
vectors of the inputs or of the results."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.autodiff.gradients import (
    ArgNums,
    argument_numbers,
    argument_positions,
    checked_cotangents,
    cotangents_of,
    custom_gradient,
    fresh,
    grad,
    in_trace,
    inexact_inputs,
    vjp,
    zeros_of,
)
from weft.frontend.control.region import Body, outer_control, store
from weft.frontend.core import pytree
from weft.frontend.core.device_scope import place_new
from weft.frontend.core.function_trace import Linearized, function_name
from weft.frontend.core.function_trace import linearize as run_linearized
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.creation import eye
from weft.frontend.ops.manipulation import moveaxis, reshape
from weft.frontend.transforms.vmap import vmap
from weft.ir.errors import GradientError, InvalidArgumentError, UnsupportedError
from weft.ir.graph import Block
from weft.ir.locations import caller_location
from weft.passes.autodiff.forward_mode import Dual, push_forward


@shows_as_seen
def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(fn(*primals), its directional derivative along `tangents`), nested like the result.

    One pass forward computes both; loops keep nothing of their iterations. primals, tangents: a
    tuple or list with an entry for each argument, trees of one structure, dtypes and shapes. What
    does not depend on the primals, integers too, has the tangent zero. GradientError for primals
    that are not floating or complex, and for ops without a derivative.

    >>> y, moved = wf.jvp(lambda x: x**2, (wf.asarray([1.0, 3.0]),), (wf.asarray([1.0, 0.5]),))
    >>> print(y, moved)
    Tensor([1., 9.], dtype=float32) Tensor([2., 3.], dtype=float32)
    """
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise InvalidArgumentError(
                f"jvp: {name} is a {type(given).__name__}, not a tuple with an entry for each "
                "argument",
                hint="for a function of one argument: wf.jvp(fn, (x,), (tangent,))",
                location=caller_location(),
            )
    leaves, structure = pytree.flatten(tuple(primals))
    directions, other = pytree.flatten(tuple(tangents))
    pytree.same_structure("jvp: primals and tangents", structure, other)
    inputs = inexact_inputs("jvp", leaves, pytree.paths(structure, "primals"))
    types = [(t.dtype, t.shape) for t in inputs]
    tree = pytree.unflatten(other, directions)
    along = checked_cotangents(tree, structure, types, "tangent")

    def compute(symbolic: list[Tensor]) -> Any:
        return _pushed(fn, structure, symbolic[: len(inputs)], symbolic[len(inputs) :])

    out, tangent = in_trace(f"jvp_{function_name(fn)}", compute, [*inputs, *along])
    return out, tangent


def _pushed(
    fn: Callable[..., Any],
    structure: pytree.Structure,
    xs: Sequence[Tensor],
    tangents: Sequence[Tensor],
) -> tuple[Any, Any]:
    """Trace the function, and append its ops with those of tangents to the current trace."""
    trace = current_trace()
    assert trace is not None
    body = Body(
        f"jvp of {function_name(fn)}",
        fn,
        lambda args: fn(*pytree.unflatten(structure, args)),
        [(x._type, x.weak) for x in xs],
    )
    if outer_control(body):
        raise UnsupportedError(
            f"{body.name}: it acts on objects of the host, in a wf.Graph",
            hint="do it outside of what is differentiated",
            location=caller_location(),
        )
    written = body.written
    values = [body.trace.lift(t) for t in body.leaves]
    states = body.values_of(written)
    captured = list(body.trace.captures)
    block = body.block([*values, *states], captured)
    start = len(trace.builder.ops)
    given = [Dual(trace.lift(x), trace.lift(t)) for x, t in zip(xs, tangents, strict=True)]
    duals = push_forward(trace.builder, block, [*given, *(Dual(v, None) for v in captured)])
    place_new(trace, start)
    pairs = list(zip(duals, body.leaves, strict=False))
    ys = [trace.tensor(d.value, leaf.weak) for d, leaf in pairs]
    ts = [
        zeros_of(y) if d.tangent is None else trace.tensor(d.tangent, leaf.weak)
        for y, (d, leaf) in zip(ys, pairs, strict=True)
    ]
    ys, _ = store(written, [d.value for d in duals[len(pairs) :]], ys)
    return pytree.unflatten(body.structure, ys), pytree.unflatten(body.structure, ts)


@shows_as_seen
def linearize(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(fn(*primals), pushforward): `pushforward(*tangents)` is the derivative along them.

    Outside a trace the function runs once, and each pushforward runs the linear part only, on
    values saved from that run (loops run again). Inside a trace each pushforward traces the
    function again, and the compiler merges what is computed twice. Errors as `wf.jvp`.

    >>> y, pushforward = wf.linearize(wf.sin, wf.asarray(0.0))
    >>> print(y, pushforward(wf.asarray(2.0)))
    Tensor(0., dtype=float32) Tensor(2., dtype=float32)
    """
    leaves, structure = pytree.flatten(primals)
    inputs = inexact_inputs("linearize", leaves, pytree.paths(structure, "primals"))
    types = [(t.dtype, t.shape) for t in inputs]
    if current_trace() is not None:

        def push_in_trace(*tangents: Any) -> Any:
            return jvp(fn, primals, tangents)[1]

        return fn(*primals), shows_as_seen(push_in_trace)
    done = run_linearized(
        f"linearize_{function_name(fn)}",
        lambda xs: fn(*pytree.unflatten(structure, xs)),
        inputs,
        _tangents_of,
        forward=True,
    )

    def pushforward(*tangents: Any) -> Any:
        given = checked_cotangents(tangents, structure, types, "tangent")
        return _with_zeros(done, done.pull_back(given))

    return done.out, shows_as_seen(pushforward)


def _tangents_of(ys: list[Tensor], xs: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    """The tangents of ys, appended to the current trace after the ops that made them."""
    trace = current_trace()
    assert trace is not None
    values, along = [trace.lift(x) for x in xs], [trace.lift(t) for t in tangents]
    block = Block(tuple(values), tuple(trace.builder.ops), tuple(trace.lift(y) for y in ys))
    start = len(trace.builder.ops)
    given = [Dual(v, t) for v, t in zip(values, along, strict=True)]
    duals = push_forward(trace.builder, block, given, copy=False)
    place_new(trace, start)
    return [
        zeros_of(y) if d.tangent is None else trace.tensor(d.tangent, y.weak)
        for y, d in zip(ys, duals, strict=True)
    ]


def _with_zeros(done: Linearized, found: Sequence[Tensor]) -> Any:
    """The tangents of all results: zero for those that are not floating or complex."""
    given = iter(found)
    leaves = pytree.flatten(done.out)[0]
    parts = [next(given) if y.dtype.is_inexact else zeros_of(y) for y in leaves]
    return pytree.unflatten(done.structure, parts)


@shows_as_seen
def hvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The product of the Hessian of a real scalar function with `tangents`, nested like them.

    It is the tangent of the gradient (forward over reverse; B. Pearlmutter, "Fast exact
    multiplication by the Hessian", 1994): no Hessian is made. Arguments and errors as `wf.jvp`.

    >>> wf.hvp(lambda x: wf.sum(x**3), (wf.asarray([1.0, 2.0]),), (wf.asarray([1.0, 1.0]),))
    (Tensor([ 6., 12.], dtype=float32),)
    """
    count = len(primals) if isinstance(primals, (tuple, list)) else 1
    return jvp(grad(fn, argnums=tuple(range(count))), primals, tangents)[1]


def jacfwd(fn: Callable[..., Any], argnums: ArgNums = 0) -> Callable[..., Any]:
    """The function that gives the Jacobian of `fn`, column by column: for more results than inputs.

    Each leaf of the result becomes a tree like the argument, whose leaves have the shape of the
    result's leaf and then that of the argument's. argnums: as `wf.grad`. GradientError for
    arguments that are not real and floating.

    >>> wf.jacfwd(lambda x: wf.stack([x[0] * x[1], x[0] ** 2]))(wf.asarray([2.0, 3.0]))
    Tensor([[3., 2.],
            [4., 0.]], dtype=float32)
    """
    single, numbers = argument_numbers(argnums)

    @shows_as_seen
    @functools.wraps(fn)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen, leaves, structure, run = _chosen("jacfwd", fn, numbers, args, kwargs)
        del chosen

        def compute(xs: list[Tensor]) -> Any:
            basis = _basis(xs)
            columns = vmap(lambda *ts: jvp(run, xs, ts)[1])(*basis)
            out, nesting = pytree.flatten(columns)
            found = []
            for column in out:
                moved = moveaxis(column, 0, -1)
                parts = [
                    reshape(part, (*column.shape[1:], *x.shape))
                    for part, x in zip(_cut(moved, xs), xs, strict=True)
                ]
                found.append(_nested(structure, parts, single))
            return pytree.unflatten(nesting, found) if nesting is not None else found[0]

        return in_trace(f"jacfwd_{function_name(fn)}", compute, leaves)

    return jacobian


def jacrev(fn: Callable[..., Any], argnums: ArgNums = 0) -> Callable[..., Any]:
    """As `wf.jacfwd`, row by row: for fewer results than inputs.

    >>> wf.jacrev(lambda x: wf.stack([x[0] * x[1], x[0] ** 2]))(wf.asarray([2.0, 3.0]))
    Tensor([[3., 2.],
            [4., 0.]], dtype=float32)
    """
    single, numbers = argument_numbers(argnums)

    @shows_as_seen
    @functools.wraps(fn)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen, leaves, structure, run = _chosen("jacrev", fn, numbers, args, kwargs)
        del chosen

        def compute(xs: list[Tensor]) -> Any:
            ys, pullback = vjp(run, *xs)
            out, nesting = pytree.flatten(ys)
            for y in out:
                if not y.dtype.is_floating:
                    raise GradientError(
                        f"jacrev: '{function_name(fn)}' gives {y.describe()}; only real floating "
                        "results have rows of a Jacobian",
                        location=caller_location(),
                    )
            basis = _basis(out)

            def row(*seeds: Tensor) -> Any:
                return vjp(run, *xs)[1](pytree.unflatten(nesting, list(seeds)))

            del pullback
            rows = vmap(row)(*basis)
            cut = [_cut(g, out, axis=0) for g in rows]
            found = []
            for k, y in enumerate(out):
                parts = [
                    reshape(pieces[k], (*y.shape, *x.shape))
                    for pieces, x in zip(cut, xs, strict=True)
                ]
                found.append(_nested(structure, parts, single))
            return pytree.unflatten(nesting, found) if nesting is not None else found[0]

        return in_trace(f"jacrev_{function_name(fn)}", compute, leaves)

    return jacobian


def hessian(fn: Callable[..., Any], argnums: ArgNums = 0) -> Callable[..., Any]:
    """The function that gives the second derivatives of `fn`: `jacfwd(jacrev(fn))`.

    >>> wf.hessian(lambda x: x[0] ** 2 * x[1])(wf.asarray([2.0, 3.0]))
    Tensor([[6., 4.],
            [4., 0.]], dtype=float32)
    """
    return jacfwd(jacrev(fn, argnums), argnums)


def _chosen(
    what: str,
    fn: Callable[..., Any],
    numbers: Sequence[int],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[list[int], list[Tensor], pytree.Structure, Callable[..., Any]]:
    """The positions to differentiate, the leaves there, how they nest, and fn of those leaves."""
    places = argument_positions(what, numbers, len(args))
    leaves, structure = pytree.flatten(tuple(args[i] for i in places))
    inputs = inexact_inputs(what, leaves, pytree.paths(structure, "argument"))
    for x in inputs:
        if x.dtype.is_complex:
            raise GradientError(
                f"{what}: an argument is {x.describe()}; Jacobians are of real functions",
                hint="use wf.jvp or wf.vjp, or give real and imaginary part as two arguments",
                location=caller_location(),
            )

    def run(*given: Any) -> Any:
        full = list(args)
        trees = pytree.unflatten(structure, list(given))
        for i, tree in zip(places, trees, strict=True):
            full[i] = tree
        return fn(*full, **kwargs)

    return places, inputs, structure, run


def _size(t: Tensor) -> int:
    total = 1
    for d in t.shape:
        if not isinstance(d, int):
            raise UnsupportedError(
                f"a Jacobian by {t.describe()}, whose size is not known while it is traced",
                hint="give the function inputs whose shapes decide every dimension",
                location=caller_location(),
            )
        total *= d
    return total


def _basis(ts: Sequence[Tensor]) -> list[Tensor]:
    """The unit vectors of the space of all the tensors, as batches of tensors like them."""
    sizes = [_size(t) for t in ts]
    total, start, out = sum(sizes), 0, []
    for t, size in zip(ts, sizes, strict=True):
        rows = eye(total, size, k=-start, dtype=t.dtype)
        out.append(reshape(rows, (total, *t.shape)))
        start += size
    return out


def _cut(t: Tensor, like: Sequence[Tensor], axis: int = -1) -> list[Tensor]:
    """The parts of an axis that belong to each of the tensors."""
    start, out = 0, []
    for x in like:
        stop = start + _size(x)
        out.append(t[start:stop] if axis == 0 else t[..., start:stop])
        start = stop
    return out


def _nested(structure: pytree.Structure, parts: Sequence[Tensor], single: bool) -> Any:
    found = pytree.unflatten(structure, list(parts))
    return found[0] if single else found


class custom_jvp:
    """Decorate `fn(*args)`, whose derivative the function given to `defjvp` gives (JAX's
    jax.custom_jvp).

    `defjvp(rule)`: `rule(primals, tangents)` gets two tuples with an entry for each argument and
    returns (fn(*primals), tangent of the result). It must be linear in the tangents: reverse mode
    is its transpose. nondiff_argnums: arguments that are no tensors; the rule gets them first, as
    they are, and both tuples are without them. Arguments that are not floating have zero tangents.
    Inside the rule `fn` is the function without it: second derivatives are those of what the rule
    computes. GradientError for a call in a trace of a function without a rule.

    >>> @wf.custom_jvp
    ... def safe_log(x):
    ...     return wf.log(x)
    >>> @safe_log.defjvp
    ... def _(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return safe_log(x), t / wf.maximum(x, 0.5)
    >>> wf.grad(safe_log)(wf.asarray(0.25))
    Tensor(2., dtype=float32)
    """

    def __init__(self, fn: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        self.fn = fn
        self.nondiff_argnums = tuple(nondiff_argnums)
        self.rule: Callable[..., Any] | None = None
        self._in_rule = threading.local()
        functools.update_wrapper(self, fn)

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule; it is returned."""
        self.rule = rule
        return rule

    def __call__(self, *args: Any) -> Any:
        if current_trace() is None or getattr(self._in_rule, "now", False):
            return self.fn(*args)
        if self.rule is None:
            raise GradientError(
                f"custom_jvp: '{function_name(self.fn)}' has no rule",
                hint="give it one with defjvp",
                location=caller_location(),
            )
        static = {k % len(args): args[k] for k in self.nondiff_argnums}
        given = [a for k, a in enumerate(args) if k not in static]
        leaves, structure = pytree.flatten(tuple(given))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        inexact = [k for k in places if leaves[k].dtype.is_inexact]
        if not inexact:
            return self.fn(*args)

        @custom_gradient
        def run(*xs: Any) -> Any:
            full = list(leaves)
            for k, x in zip(inexact, xs, strict=True):
                full[k] = x
            primals = pytree.unflatten(structure, full)
            return self.fn(*_put(static, primals)), functools.partial(
                self._pull, static, structure, full, inexact
            )

        return run(*(leaves[k] for k in inexact))

    def _pull(
        self,
        static: dict[int, Any],
        structure: pytree.Structure,
        full: Sequence[Any],
        inexact: Sequence[int],
        *cotangents: Any,
    ) -> Any:
        """The transpose of the rule: cotangents of the arguments from those of the results."""
        assert self.rule is not None
        dummies = {k: fresh(zeros_of(full[k])) for k in inexact}
        tangents = [
            dummies[k] if k in dummies else zeros_of(as_tensor(leaf)) for k, leaf in enumerate(full)
        ]
        primals = pytree.unflatten(structure, list(full))
        along = pytree.unflatten(structure, tangents)
        self._in_rule.now = True
        try:
            made = self.rule(*(static[k] for k in sorted(static)), primals, along)
        finally:
            self._in_rule.now = False
        if not (isinstance(made, tuple) and len(made) == 2):
            raise GradientError(
                f"custom_jvp: the rule of '{function_name(self.fn)}' must return (result, "
                f"tangent), it returned a {type(made).__name__}",
                location=caller_location(),
            )
        ts = [as_tensor(t) for t in pytree.flatten(made[1])[0]]
        seeds = [as_tensor(g) for c in cotangents for g in pytree.flatten(c)[0]]
        found = cotangents_of(ts, list(dummies.values()), seeds)
        return tuple(found) if len(found) != 1 else found[0]


def _put(static: dict[int, Any], given: Sequence[Any]) -> list[Any]:
    """All arguments: those that are static at their places."""
    out = list(given)
    for k in sorted(static):
        out.insert(k, static[k])
    return out
