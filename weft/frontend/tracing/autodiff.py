"""Derivatives: `grad`, `value_and_grad`, `vjp`, `jvp`, `gradients`, `stop_gradient`,
`custom_gradient`.

While a trace is current they add ops to it, so derivatives of derivatives need nothing special.
Called outside, `grad` and its kin trace the function themselves and run the graph in the
interpreter.

Complex tensors: the gradient of a real loss with respect to z is dL/dRe(z) + i dL/dIm(z) (PyTorch's
convention; JAX gives its conjugate).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.indexed_slices import IndexedSlices, added
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.operators import Operators
from weft.frontend.ops.promotion import weaken
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.autodiff_arguments import (
    ArgNums,
    argument_numbers,
    argument_positions,
    check_inexact,
    checked_cotangents,
    function_name,
    inexact_inputs,
)
from weft.frontend.tracing.device_scope import colocate, place_new
from weft.frontend.tracing.evaluate import Linearized, linearize, run_traced
from weft.frontend.tracing.sparse_gradients import as_slices
from weft.frontend.tracing.trace import Trace, check_usable, current_trace
from weft.frontend.tracing.update_gradients import of_value_before, refuse_live
from weft.frontend.variable import Variable
from weft.ir.errors import GradientError, InvalidArgumentError
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.passes.autodiff.reverse_mode import gradients as _graph_gradients


def grad(fn: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives the gradient of `fn`, whose result is one real number.

    argnums: the positional arguments to differentiate; each may nest tensors, and so does its
    gradient. A tuple gives a tuple of gradients. has_aux: `fn` returns (loss, aux) and the result
    is (gradient, aux). An argument that the loss does not depend on has the gradient zero. Raises
    GradientError for a loss that is not a real scalar and for arguments that are not floating or
    complex.
    """
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return gradient


def value_and_grad(
    fn: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As `grad`, but the function gives (value, gradient); with has_aux, ((value, aux),
    gradient)."""
    single, numbers = argument_numbers(argnums)

    @functools.wraps(fn)
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        selected = tuple(args[i] for i in argument_positions("grad", numbers, len(args)))
        leaves, structure = pytree.flatten(selected)
        inputs = inexact_inputs("grad", leaves, pytree.paths(structure, "argument"))

        def compute(symbolic: list[Tensor]) -> Any:
            full = list(args)
            given = pytree.unflatten(structure, symbolic)
            for i, tree in zip(argument_positions("grad", numbers, len(args)), given, strict=True):
                full[i] = tree
            out = fn(*full, **kwargs)
            loss = _loss(out, has_aux, fn)
            found = pytree.unflatten(structure, _gradients([loss], symbolic))
            return (loss, out[1]) if has_aux else loss, found[0] if single else found

        return _in_trace(f"grad_{function_name(fn)}", compute, inputs)

    return value_and_gradient


def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """(fn(*primals), pullback): `pullback(cotangent)` gives one gradient for each primal.

    The cotangent nests like the result. Outside a trace the function runs once, and each pullback
    runs the backward part only. GradientError for primals that are not floating or complex.
    """
    leaves, structure = pytree.flatten(primals)
    inputs = inexact_inputs("vjp", leaves, pytree.paths(structure, "primals"))
    trace = current_trace()
    if trace is None:
        done = linearize(
            f"vjp_{function_name(fn)}",
            lambda xs: fn(*pytree.unflatten(structure, xs)),
            inputs,
            _gradients,
        )
        return done.out, functools.partial(_pull_back, done, structure)
    xs = [_fresh(t) for t in inputs]
    out = fn(*pytree.unflatten(structure, xs))
    ys, nesting = pytree.flatten(out)
    ys = [as_tensor(y) for y in ys]

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        for t in (*xs, *ys):
            if t._data is None:
                check_usable(t, current_trace())
        given = checked_cotangents(cotangent, nesting, [(y.dtype, y.shape) for y in ys])
        result: tuple[Any, ...] = pytree.unflatten(structure, _gradients(ys, xs, given))
        return result

    return pytree.unflatten(nesting, ys), pullback


def _pull_back(done: Linearized, structure: pytree.Structure, cotangent: Any) -> tuple[Any, ...]:
    types = [(t.dtype, t.shape) for t in done.out_types]
    result: tuple[Any, ...] = pytree.unflatten(
        structure, done.pull_back(checked_cotangents(cotangent, done.structure, types))
    )
    return result


def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(fn(*primals), its directional derivative along `tangents`), nested like the result.

    Made of two reverse passes: the pullback u -> J^T u is linear, and its own pullback at
    `tangents` is J t (the double-backward trick of Townsend, 2017). Costs a few times the function.
    Integer results have the tangent zero. GradientError for primals that are not floating or
    complex.
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
    along = checked_cotangents(
        pytree.unflatten(other, directions),
        structure,
        [(t.dtype, t.shape) for t in inputs],
        "tangent",
    )

    def compute(symbolic: list[Tensor]) -> Any:
        xs, ts = symbolic[: len(inputs)], symbolic[len(inputs) :]
        out = fn(*pytree.unflatten(structure, xs))
        ys, nesting = pytree.flatten(out)
        ys = [as_tensor(y) for y in ys]
        moved = [y for y in ys if y.dtype.is_inexact]
        dummies = [_fresh(_zeros(y)) for y in moved]
        pulled = _gradients(moved, xs, dummies, unconnected=None)
        pairs = [(g, t) for g, t in zip(pulled, ts, strict=True) if g is not None]
        pushed = _gradients([g for g, _ in pairs], dummies, [t for _, t in pairs])
        found = iter(pushed)
        parts = [next(found) if y.dtype.is_inexact else _zeros(y) for y in ys]
        return pytree.unflatten(nesting, ys), pytree.unflatten(nesting, parts)

    out, tangent = _in_trace(f"jvp_{function_name(fn)}", compute, [*inputs, *along])
    return out, tangent


def gradients(
    ys: Any, xs: Any, grad_ys: Any = None, *, colocate_gradients_with_ops: bool = False
) -> list[Tensor | IndexedSlices | None]:
    """The gradients of the sum of `ys` with respect to each of `xs`, as TensorFlow 1's
    tf.gradients.

    ys, xs: a tensor or a list of them; in place of a tensor, xs may have a Variable, meaning every
    value of it that was read in this trace. grad_ys: cotangents of ys (default: ones). The gradient
    of an unconnected x is None; of a variable of which only rows were looked up (take, gather,
    embedding_lookup) it is IndexedSlices, and dense as soon as something dense adds to it.
    colocate_gradients_with_ops: whether each gradient op runs on the device of the op that it
    differentiates; else where `wf.device` says, like any op.
    GradientError outside a trace and for xs that are not floating or complex.
    """
    listed = _listed(xs)
    found: list[Tensor | IndexedSlices | None] = []
    given = source_gradients(ys, listed, grad_ys, colocated=colocate_gradients_with_ops)
    for x, parts in zip(listed, given, strict=True):
        slices = [as_slices(g) for g in parts] if isinstance(x, Variable) else [None]
        sparse = [s for s in slices if s is not None]
        found.append(added(sparse) if len(sparse) == len(parts) > 0 else summed(parts))
    return found


def source_gradients(
    ys: Any, xs: Sequence[Any], grad_ys: Any = None, *, colocated: bool = False
) -> list[list[Tensor]]:
    """As `gradients`: for each x the gradients of the values that it stands for, all dense."""
    trace = current_trace()
    if trace is None:
        raise GradientError(
            "wf.gradients needs a graph: there is none, because concrete tensors keep no history",
            hint="use it inside @wf.compile or a wf.Graph; for a function, wf.grad(fn)(x)",
            location=caller_location(),
        )
    outputs = [as_tensor(y) for y in _listed(ys)]
    for y in outputs:
        check_inexact(y, "gradients: ys")
    seeds = [None] * len(outputs) if grad_ys is None else _listed(grad_ys)
    if len(seeds) != len(outputs):
        raise InvalidArgumentError(
            f"wf.gradients: {len(outputs)} ys but {len(seeds)} grad_ys", location=caller_location()
        )
    seeded = [
        None
        if s is None
        else checked_cotangents(s, pytree.LEAF, [(y.dtype, y.shape)], "grad_ys")[0]
        for s, y in zip(seeds, outputs, strict=True)
    ]
    refuse_live(trace, xs, outputs)
    groups = [_sources(x, trace) for x in xs]
    sources = [t for group in groups for t in group]
    flat = iter(_gradients(outputs, sources, seeded, unconnected=None, colocated=colocated))
    pairs = [[(t, next(flat)) for t in group] for group in groups]
    return [[of_value_before(t, g) for t, g in group if g is not None] for group in pairs]


def summed(parts: Sequence[Tensor]) -> Tensor | None:
    """The sum; None of nothing."""
    return functools.reduce(lambda a, b: apply("add", a, b), parts) if parts else None


def stop_gradient(x: Any) -> Any:
    """`x` (which may nest tensors), through which no gradient flows: a constant to
    differentiation."""

    def stopped(leaf: Any) -> Tensor:
        t = as_tensor(leaf)
        return weaken(apply("stop_gradient", t), [t])

    return pytree.tree_map(stopped, x)


# ------------------------------------------------------------------------------------------ helpers
def _gradients(
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    grad_ys: Sequence[Tensor | None] | None = None,
    unconnected: str | None = "zero",
    colocated: bool = False,
) -> list[Any]:
    """Gradient tensors in the current trace; zero or None for an x that no y depends on."""
    trace = current_trace()
    assert trace is not None
    values = [trace.lift(x) for x in xs]
    seeds: list[Value | None] = [
        None if g is None else trace.lift(g) for g in grad_ys or [None] * len(ys)
    ]
    real = [(trace.lift(y), s) for y, s in zip(ys, seeds, strict=True) if y.dtype.is_inexact]
    start = len(trace.builder.ops)
    found = _graph_gradients(
        trace.builder,
        [y for y, _ in real],
        values,
        [s for _, s in real],
        functools.partial(colocate, trace, set(trace.builder.ops)) if colocated else None,
    )
    place_new(trace, start)
    missing = _zeros if unconnected else lambda x: None
    return [
        missing(x) if g is None else trace.tensor(g, x.weak) for x, g in zip(xs, found, strict=True)
    ]


def _in_trace(name: str, compute: Callable[[list[Tensor]], Any], inputs: Sequence[Tensor]) -> Any:
    """`compute` in the current trace on copies of `inputs`, or traced and run if there is none."""
    if current_trace() is not None:
        return compute([_fresh(t) for t in inputs])
    return run_traced(name, compute, inputs)


def _fresh(t: Tensor) -> Tensor:
    """A value equal to `t` of its own: what else depends on `t` stays out of the derivative."""
    copy = apply("identity", t)
    copy.weak = t.weak
    return copy


def _zeros(t: Tensor) -> Tensor:
    zeros = apply("broadcast_to", Tensor(np.zeros((), t.dtype.numpy)), shape=t.shape)
    zeros.weak = t.weak
    return zeros


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (list, tuple)) else [x]


def _sources(x: Any, trace: Trace) -> list[Tensor]:
    """The tensors that an x of `gradients` stands for."""
    if isinstance(x, Variable):
        if trace.parent is not None:
            x = trace.root().effects.first(x)
            return [trace.tensor(v) for v in trace.seen.get(x, ())]
        return [trace.tensor(v) for v in trace.effects.values(x)]
    if not isinstance(x, Tensor):
        raise GradientError(
            f"wf.gradients: xs holds a {type(x).__name__}; it takes tensors and variables",
            hint="use the tensor that ys was computed from",
            location=caller_location(),
        )
    check_inexact(x, "gradients: xs")
    return [x]


def _loss(out: Any, has_aux: bool, fn: Callable[..., Any]) -> Tensor:
    """The loss among what the function returned. GradientError unless it is one real number."""
    if has_aux and not (isinstance(out, tuple) and len(out) == 2):
        raise GradientError(
            f"grad: with has_aux=True '{function_name(fn)}' must return (loss, aux), it returned a "
            f"{type(out).__name__}",
            location=caller_location(),
        )
    loss = out[0] if has_aux else out
    if not isinstance(loss, (Operators, float, int, np.ndarray, np.generic)):
        hint = "return (loss, aux) and pass has_aux=True" if isinstance(loss, tuple) else None
        raise GradientError(
            f"grad: '{function_name(fn)}' must return one number, it returned a "
            f"{type(loss).__name__}",
            hint=hint,
            location=caller_location(),
        )
    t = as_tensor(loss)
    if t.ndim or not t.dtype.is_floating:
        raise GradientError(
            f"grad: the loss that '{function_name(fn)}' returned has type {t._type}, not a real "
            "scalar",
            hint="reduce it with wf.sum or wf.mean; for other results use wf.vjp",
            location=caller_location(),
        )
    return t
