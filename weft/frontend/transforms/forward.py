"""Derivatives forward: `jvp`, `linearize`, `hvp`, and whole Jacobians: `jacfwd`, `jacrev`,
`hessian`; `custom_jvp` gives a function derivatives of its own.

The ops of tangents are made by `passes/autodiff/forward_mode`; Jacobians are `vmap` over the unit
vectors of the inputs or of the results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.autodiff.custom import with_gradient
from weft.frontend.autodiff.gradients import (
    ArgNums,
    append_on,
    argument_numbers,
    argument_positions,
    checked_cotangents,
    cotangents_of,
    fresh,
    grad,
    in_trace,
    inexact_inputs,
    vjp,
    zeros_of,
)
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import function_name
from weft.frontend.core.function_trace import linearize as run_linearized
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace, check_usable, current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.creation import eye
from weft.frontend.ops.manipulation import moveaxis, reshape
from weft.frontend.transforms.body import Transformed
from weft.frontend.transforms.vmap import vmap
from weft.ir.errors import GradientError, InvalidArgumentError, UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.passes.autodiff.forward_mode import Dual, push_forward, tangents_beside


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
    body = Transformed(
        "jvp",
        fn,
        lambda args: fn(*pytree.unflatten(structure, args)),
        [(x._type, x.weak) for x in xs],
    )
    trace = body.trace
    given = [Dual(trace.lift(x), trace.lift(t)) for x, t in zip(xs, tangents, strict=True)]
    operands = [*given, *(Dual(v, None) for v in body.captured)]
    duals = push_forward(trace.builder, body.block, operands)
    body.placed()
    pairs = list(zip(duals, body.leaves, strict=False))
    ys = [trace.tensor(d.value, leaf.weak) for d, leaf in pairs]
    ts = [
        zeros_of(y) if d.tangent is None else trace.tensor(d.tangent, leaf.weak)
        for y, (d, leaf) in zip(ys, pairs, strict=True)
    ]
    out = body.nested(ys, [d.value for d in duals[len(pairs) :]])
    return out, pytree.unflatten(body.structure, ts)


@shows_as_seen
def linearize(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(fn(*primals), pushforward): `pushforward(*tangents)` is the derivative along them.

    The function runs once. Each pushforward is the linear part only, on values saved from that run;
    loops that carry tangents run again. Errors as `wf.jvp`.

    >>> y, pushforward = wf.linearize(wf.sin, wf.asarray(0.0))
    >>> print(y, pushforward(wf.asarray(2.0)))
    Tensor(0., dtype=float32) Tensor(2., dtype=float32)
    """
    leaves, structure = pytree.flatten(primals)
    inputs = inexact_inputs("linearize", leaves, pytree.paths(structure, "primals"))
    types = [(t.dtype, t.shape) for t in inputs]
    trace = current_trace()
    if trace is not None:
        return _linearize_in(trace, fn, structure, inputs)
    done = run_linearized(
        f"linearize_{function_name(fn)}",
        lambda xs: fn(*pytree.unflatten(structure, xs)),
        inputs,
        _tangents_of,
        forward=True,
    )

    def pushforward(*tangents: Any) -> Any:
        given = checked_cotangents(tangents, structure, types, "tangent")
        found = iter(done.apply(given))
        out = pytree.flatten(done.out)[0]
        parts = [next(found) if y.dtype.is_inexact else zeros_of(y) for y in out]
        return pytree.unflatten(done.structure, parts)

    return done.out, shows_as_seen(pushforward)


def _linearize_in(
    trace: Trace, fn: Callable[..., Any], structure: pytree.Structure, inputs: Sequence[Tensor]
) -> tuple[Any, Callable[..., Any]]:
    """`linearize` in a trace: a pushforward appends to the trace that is current then."""
    xs = [fresh(t) for t in inputs]
    start = len(trace.builder.ops)
    leaves, nesting = pytree.flatten(fn(*pytree.unflatten(structure, xs)))
    ys = [as_tensor(y) for y in leaves]
    ops = trace.builder.ops[start:]
    types = [(x.dtype, x.shape) for x in xs]

    def pushforward(*tangents: Any) -> Any:
        for t in (*xs, *ys):
            if t._data is None:
                check_usable(t, current_trace())
        given = checked_cotangents(tangents, structure, types, "tangent")
        found = append_on(trace, given, lambda b, ts: _beside(trace, b, ops, xs, ts, ys))
        parts = [zeros_of(y) if t is None else t for y, t in zip(ys, found, strict=True)]
        return pytree.unflatten(nesting, parts)

    return pytree.unflatten(nesting, ys), shows_as_seen(pushforward)


def _beside(
    trace: Trace,
    builder: Builder,
    ops: Sequence[Operation],
    xs: Sequence[Tensor],
    along: Sequence[Value],
    ys: Sequence[Tensor],
) -> list[Value | None]:
    """The tangents of ys along those of xs, all of one trace; the ops between them are given."""
    values, results = [trace.lift(x) for x in xs], [trace.lift(y) for y in ys]
    return tangents_beside(builder, ops, values, along, results)


def _tangents_of(ys: list[Tensor], xs: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    """The tangents of ys, appended to the current trace after the ops that made them."""
    trace = current_trace()
    assert trace is not None
    ops = list(trace.builder.ops)
    found = append_on(trace, tangents, lambda b, ts: _beside(trace, b, ops, xs, ts, ys))
    return [zeros_of(y) if t is None else t for y, t in zip(ys, found, strict=True)]


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

    def columns(run: Callable[..., Any], xs: list[Tensor]) -> tuple[list[list[Tensor]], Any]:
        pushforward = linearize(run, *xs)[1]
        found, nesting = pytree.flatten(vmap(pushforward)(*_basis(xs)))
        cut = [_cut(moveaxis(column, 0, -1), xs, -1) for column in found]
        shapes = [column.shape[1:] for column in found]
        return [
            [reshape(part, (*shape, *x.shape)) for part, x in zip(parts, xs, strict=True)]
            for parts, shape in zip(cut, shapes, strict=True)
        ], nesting

    return _jacobian("jacfwd", fn, argnums, columns)


def jacrev(fn: Callable[..., Any], argnums: ArgNums = 0) -> Callable[..., Any]:
    """As `wf.jacfwd`, row by row: for fewer results than inputs. GradientError for results that are
    not real and floating, too.

    >>> wf.jacrev(lambda x: wf.stack([x[0] * x[1], x[0] ** 2]))(wf.asarray([2.0, 3.0]))
    Tensor([[3., 2.],
            [4., 0.]], dtype=float32)
    """

    def rows(run: Callable[..., Any], xs: list[Tensor]) -> tuple[list[list[Tensor]], Any]:
        out, pullback = vjp(run, *xs)
        ys, nesting = pytree.flatten(out)
        for y in ys:
            if not y.dtype.is_floating:
                raise GradientError(
                    f"jacrev: '{function_name(fn)}' gives {y.describe()}; only real floating "
                    "results have rows of a Jacobian",
                    location=caller_location(),
                )
        found = vmap(lambda *seeds: pullback(pytree.unflatten(nesting, list(seeds))))(*_basis(ys))
        cut = [_cut(g, ys, 0) for g in found]
        return [
            [reshape(c[k], (*y.shape, *x.shape)) for c, x in zip(cut, xs, strict=True)]
            for k, y in enumerate(ys)
        ], nesting

    return _jacobian("jacrev", fn, argnums, rows)


def _jacobian(
    what: str,
    fn: Callable[..., Any],
    argnums: ArgNums,
    blocks: Callable[[Callable[..., Any], list[Tensor]], tuple[list[list[Tensor]], Any]],
) -> Callable[..., Any]:
    """The function that gives, nested, what `blocks` gives of a function of the chosen leaves and
    of these: for each leaf of the result a block for each chosen leaf; and how results nest."""
    single, numbers = argument_numbers(argnums)

    @shows_as_seen
    @functools.wraps(fn)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        inputs, structure, run = _chosen(what, fn, numbers, args, kwargs)

        def compute(xs: list[Tensor]) -> Any:
            found, nesting = blocks(run, xs)
            trees = [pytree.unflatten(structure, parts) for parts in found]
            return pytree.unflatten(nesting, [t[0] if single else t for t in trees])

        return in_trace(f"{what}_{function_name(fn)}", compute, inputs)

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
) -> tuple[list[Tensor], pytree.Structure, Callable[..., Any]]:
    """The leaves to differentiate, how they nest, and fn as a function of them."""
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

    return inputs, structure, run


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


def _cut(t: Tensor, like: Sequence[Tensor], axis: int) -> list[Tensor]:
    """The parts of an axis that belong to each of the tensors."""
    start, out = 0, []
    for x in like:
        stop = start + _size(x)
        out.append(t[start:stop] if axis == 0 else t[..., start:stop])
        start = stop
    return out


class custom_jvp:
    """Decorate `fn(*args)`, whose derivative the function given to `defjvp` gives (JAX's
    jax.custom_jvp).

    `defjvp(rule)`: `rule(primals, tangents)` gets two tuples with an entry for each argument and
    returns (fn(*primals), tangent of the result). It must be linear in the tangents: reverse mode
    is its transpose. nondiff_argnums: arguments that are no tensors; the rule gets them first, as
    they are, and both tuples are without them. Arguments that are not floating have zero tangents.
    The rule itself is differentiated for derivatives of higher order; the function that it calls
    has its rule there, too. GradientError for a call in a trace of a function without a rule.

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
        functools.update_wrapper(self, fn)

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule; it is returned."""
        self.rule = rule
        return rule

    def __call__(self, *args: Any) -> Any:
        if current_trace() is None:
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
        if not any(leaves[k].dtype.is_inexact for k in places):
            return self.fn(*args)

        @functools.wraps(self.fn)
        def run(*xs: Any) -> Any:
            full = list(kept)
            for k, x in zip(places, xs, strict=True):
                full[k] = x
            primals = pytree.unflatten(structure, full)
            return self.fn(*_put(static, primals)), functools.partial(
                self._pull, static, structure, full, places
            )

        chosen = [leaves[k] for k in places]
        kept = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return with_gradient(self, run, chosen, {})

    def _pull(
        self,
        static: dict[int, Any],
        structure: pytree.Structure,
        full: Sequence[Any],
        places: Sequence[int],
        *cotangents: Any,
    ) -> Any:
        """The transpose of the rule: cotangents of the arguments from those of the results."""
        assert self.rule is not None
        dummies = {k: fresh(zeros_of(full[k])) for k in places if full[k].dtype.is_inexact}
        tangents = [
            dummies[k] if k in dummies else zeros_of(as_tensor(leaf)) for k, leaf in enumerate(full)
        ]
        primals = pytree.unflatten(structure, list(full))
        along = pytree.unflatten(structure, tangents)
        made = self.rule(*(static[k] for k in sorted(static)), primals, along)
        if not (isinstance(made, tuple) and len(made) == 2):
            raise GradientError(
                f"custom_jvp: the rule of '{function_name(self.fn)}' must return (result, "
                f"tangent), it returned a {type(made).__name__}",
                location=caller_location(),
            )
        ts = [as_tensor(t) for t in pytree.flatten(made[1])[0]]
        seeds = [as_tensor(g) for c in cotangents for g in pytree.flatten(c)[0]]
        found = dict(zip(dummies, cotangents_of(ts, list(dummies.values()), seeds), strict=True))
        grads = tuple(found.get(k) for k in places)
        return grads if len(grads) != 1 else grads[0]


def _put(static: dict[int, Any], given: Sequence[Any]) -> list[Any]:
    """All arguments: those that are static at their places."""
    out = list(given)
    for k in sorted(static):
        out.insert(k, static[k])
    return out
