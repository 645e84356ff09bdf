"""Derivatives backward: `grad`, `value_and_grad`, `vjp`, `gradients`, `stop_gradient`.

While a trace is current they add ops to it, so derivatives of derivatives need nothing special.
Called outside, `grad` and its kin trace the function themselves and run the graph in the
interpreter. Gradients of a table that are rows are read off the graph that differentiation has
built, and given as `IndexedSlices`; those with respect to a variable go through its updates.

Complex tensors: the gradient of a real loss with respect to z is dL/dRe(z) + i dL/dIm(z) (PyTorch's
convention; JAX gives its conjugate)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.autodiff.aggregation import check_gradient_options
from weft.frontend.autodiff.indexed_slices import IndexedSlices, added
from weft.frontend.core import pytree
from weft.frontend.core.device_scope import colocate, on_its_shard, place_new
from weft.frontend.core.function_trace import (
    Linearized,
    function_name,
    linearize,
    run_traced,
)
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace, check_usable, current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.manipulation import reshape
from weft.frontend.ops.promotion import weaken
from weft.frontend.state.variable import Variable
from weft.ir.analysis.effects import accesses
from weft.ir.analysis.known_values import uniform
from weft.ir.dims import format_shape, same
from weft.ir.errors import GradientError, InvalidArgumentError
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.ir.spec import int_attr
from weft.ir.types import TensorType
from weft.passes.autodiff.reverse_mode import gradients as _graph_gradients
from weft.passes.autodiff.reverse_mode import pull_back
from weft.passes.autodiff.rule import Placed
from weft.passes.sizes import needed_ops

ArgNums = int | Sequence[int]


def argument_numbers(argnums: ArgNums) -> tuple[bool, tuple[int, ...]]:
    """Whether it is one position, and the positions. InvalidArgumentError for anything else."""
    single = not isinstance(argnums, (tuple, list))
    given: Any = (argnums,) if single else argnums
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in given):
        raise InvalidArgumentError(
            f"grad: argnums must be a position or a tuple of positions, got {argnums!r}",
            hint="0 is the first argument; arguments are chosen by position, not by name",
            location=caller_location(),
        )
    return single, tuple(int(n) for n in given)


def argument_positions(what: str, numbers: Sequence[int], count: int) -> list[int]:
    for n in numbers:
        if not -count <= n < count:
            raise GradientError(
                f"{what}: argnums {n} is out of range: the function was called with {count} "
                "positional arguments",
                hint="arguments to differentiate must be passed by position",
                location=caller_location(),
            )
    return [n % count for n in numbers]


def inexact_inputs(what: str, leaves: Sequence[Any], paths: Sequence[str]) -> list[Tensor]:
    """The leaves as tensors. GradientError for those that have no gradient."""
    out = []
    for leaf, path in zip(leaves, paths, strict=True):
        t = leaf if isinstance(leaf, Tensor) else _leaf_tensor(what, leaf, path)
        if t._data is None:
            check_usable(t, current_trace())
        check_inexact(t, f"{what}: {path}")
        out.append(t)
    return out


def _leaf_tensor(what: str, leaf: Any, path: str) -> Tensor:
    if isinstance(leaf, (Operators, bool, int, float, complex, np.ndarray, np.generic)):
        return as_tensor(leaf)
    raise GradientError(
        f"{what}: {path} is a {type(leaf).__name__}, which has no gradient",
        hint="choose the arguments to differentiate with argnums",
        location=caller_location(),
    )


def check_inexact(t: Tensor, what: str) -> None:
    if not t.dtype.is_inexact:
        raise GradientError(
            f"{what} is {t.dtype.name}; only floating and complex tensors have gradients",
            hint="convert it first: wf.astype(x, wf.float32)",
            location=caller_location(),
        )


def checked_cotangents(
    tree: Any, structure: pytree.Structure, types: Sequence[Any], what: str = "cotangent"
) -> list[Tensor]:
    """The leaves of a cotangent or tangent, checked against the (dtype, shape) that each must
    have."""
    leaves, given = pytree.flatten(tree)
    pytree.same_structure(f"{what}: what it belongs to and what was given", structure, given)
    out = []
    for leaf, path, (dtype, shape) in zip(leaves, pytree.paths(given, what), types, strict=True):
        t = as_tensor(leaf)
        if t.weak and dtype.is_inexact:
            t = as_tensor(t, dtype)
        fits = len(t.shape) == len(shape) and all(map(same, t.shape, shape))
        if not fits or t.dtype is not dtype:
            raise InvalidArgumentError(
                f"{path} has type {t._type}, but what it belongs to is "
                f"{dtype.short}{format_shape(shape)}",
                hint="it must have the same dtype and shape",
                location=caller_location(),
            )
        out.append(t)
    return out


def as_slices(gradient: Tensor) -> IndexedSlices | None:
    """The gradient as rows, if that is all it is: sums of rows added into zeros, which is what the
    lookups of a table leave. None if anything dense is in it."""
    trace, value = gradient._trace, gradient._value
    if trace is None or value is None or not isinstance(value.type, TensorType):
        return None
    found = _rows(value)
    if not found or not value.type.is_static:
        return None
    shape = value.type.static_shape
    parts = []
    for indices, updates in found:
        rows = reshape(trace.tensor(updates), [-1, *shape[1:]])
        parts.append(IndexedSlices(rows, reshape(trace.tensor(indices), [-1]), shape))
    return added(parts)


def _rows(value: Value) -> list[tuple[Value, Value]]:
    """The (indices, rows) that `value` is the sum of; none if it is not."""
    out: list[tuple[Value, Value]] = []
    todo = [value]
    while todo:
        op = todo.pop().op
        if op is None:
            return []
        if op.name == "add":
            todo += reversed(op.operands)
            continue
        base, *rows = op.operands or (None,)
        if not _adds_rows(op.name, rows) or (op.name == "index_add" and int_attr(op.attrs, "axis")):
            return []
        zero = None if base is None else uniform(base)
        if zero is None or zero.item() != 0:
            return []
        out.append((rows[0], rows[1]))
    return out


def _adds_rows(op: str, rows: list[Value]) -> bool:
    """Whether an op adds into the first axis: `index_add`, or `scatter_nd_add` by one number."""
    if op != "scatter_nd_add":
        return op == "index_add"
    kind = rows[0].type
    return isinstance(kind, TensorType) and kind.shape[-1] == 1


def of_value_before(source: Tensor, g: Tensor) -> Tensor:
    """The gradient with respect to a variable's value, from that of `source`: a read, or what an
    update gives, which holds the value before it but for the rows that it replaced."""
    op = None if source._value is None else source._value.op
    if op is None or op.name != "scatter_update" or source._trace is None:
        return g
    indices, rows = (source._trace.tensor(v) for v in op.operands[1:])
    zeros = apply("broadcast_to", Tensor(np.zeros((), rows.dtype.numpy)), shape=rows.shape)
    columns = apply("reshape", indices, shape=(*indices.shape, 1))
    return apply("scatter_nd_update", g, columns, zeros)


def refuse_live(trace: Trace, xs: Sequence[object], ys: Sequence[Tensor]) -> None:
    """GradientError for a variable of `xs` that changes within a branch or loop on the way to `ys`:
    what it was at each moment is not kept."""
    root = trace.root()
    holding: dict[Value, list[Operation]] = {}
    for op in root.builder.ops:
        for value in op.operands if op.regions else ():
            holding.setdefault(value, []).append(op)
    for x in xs:
        if not isinstance(x, Variable) or trace is not root or x.state is None:
            continue
        ref = root.effects.refs.get(root.effects.first(x))
        holders = set(holding.get(ref, ())) if ref is not None else set()
        if not holders:
            continue
        ops, _ = needed_ops(root.builder.ops, [root.lift(y) for y in ys])
        for op in ops:
            if op in holders and any(access.writes for access in accesses(op)):
                raise GradientError(
                    f"the gradient with respect to variable '{x.name}' leads through op "
                    f"'{op.name}', in which it changes, and what it was is not kept",
                    hint="give the gradient a tensor: read the variable before the loop or branch",
                    location=op.locations,
                )


def grad(fn: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives the gradient of `fn`, whose result is one real number.

    argnums: the positional arguments to differentiate; each may nest tensors, and so does its
    gradient. A tuple gives a tuple of gradients. has_aux: `fn` returns (loss, aux) and the result
    is (gradient, aux). An argument that the loss does not depend on has the gradient zero. Raises
    GradientError for a loss that is not a real scalar and for arguments that are not floating or
    complex.

    >>> slope = wf.grad(lambda x: x**3)
    >>> slope(wf.asarray(2.0))
    Tensor(12., dtype=float32)
    >>> wf.grad(slope)(wf.asarray(2.0))
    Tensor(12., dtype=float32)
    >>> wf.grad(lambda p: wf.sum(p["w"] * 3 + p["b"]))({"w": np.ones(2), "b": 1.0})
    {'b': Tensor(2., dtype=float64, weak), 'w': Tensor([3., 3.], dtype=float64)}
    """
    both = value_and_grad(fn, argnums, has_aux)

    @shows_as_seen
    @functools.wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return gradient


def value_and_grad(
    fn: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As `grad`, but the function gives (value, gradient); with has_aux, ((value, aux),
    gradient).

    >>> @wf.compile
    ... def step(w, x):
    ...     return wf.value_and_grad(lambda w: wf.sum((w * x) ** 2))(w)
    >>> loss, gradient = step(wf.asarray([1.0, 2.0]), wf.asarray([3.0, 1.0]))
    >>> print(loss, gradient)
    Tensor(13., dtype=float32) Tensor([18.,  4.], dtype=float32)
    """
    single, numbers = argument_numbers(argnums)

    @shows_as_seen
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
            found = pytree.unflatten(structure, cotangents_of([loss], symbolic))
            return (loss, out[1]) if has_aux else loss, found[0] if single else found

        return in_trace(f"grad_{function_name(fn)}", compute, inputs)

    return value_and_gradient


@shows_as_seen
def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """(fn(*primals), pullback): `pullback(cotangent)` gives one gradient for each primal.

    The cotangent nests like the result. Outside a trace the function runs once, and each pullback
    runs the backward part only. GradientError for primals that are not floating or complex.

    >>> a, b = wf.asarray([1.0, 2.0]), wf.asarray([3.0, 4.0])
    >>> y, pullback = wf.vjp(lambda a, b: a * b, a, b)
    >>> pullback(wf.asarray([1.0, 0.0]))
    (Tensor([3., 0.], dtype=float32), Tensor([1., 0.], dtype=float32))
    """
    leaves, structure = pytree.flatten(primals)
    inputs = inexact_inputs("vjp", leaves, pytree.paths(structure, "primals"))
    trace = current_trace()
    if trace is None:
        done = linearize(
            f"vjp_{function_name(fn)}",
            lambda xs: fn(*pytree.unflatten(structure, xs)),
            inputs,
            cotangents_of,
        )
        return done.out, functools.partial(_pull_back, done, structure)
    xs = [fresh(t) for t in inputs]
    out = fn(*pytree.unflatten(structure, xs))
    ys, nesting = pytree.flatten(out)
    ys = [as_tensor(y) for y in ys]

    @shows_as_seen
    def pullback(cotangent: Any) -> tuple[Any, ...]:
        for t in (*xs, *ys):
            if t._data is None:
                check_usable(t, current_trace())
        given = checked_cotangents(cotangent, nesting, [(y.dtype, y.shape) for y in ys])
        result: tuple[Any, ...] = pytree.unflatten(structure, cotangents_of(ys, xs, given))
        return result

    return pytree.unflatten(nesting, ys), pullback


def _pull_back(done: Linearized, structure: pytree.Structure, cotangent: Any) -> tuple[Any, ...]:
    types = [(t.dtype, t.shape) for t in done.out_types]
    result: tuple[Any, ...] = pytree.unflatten(
        structure, done.apply(checked_cotangents(cotangent, done.structure, types))
    )
    return result


def gradients(
    ys: Any, xs: Any, grad_ys: Any = None, *, colocate_gradients_with_ops: bool = False,
    gate_gradients: Any = None, aggregation_method: Any = None, stop_gradients: Any = (),
) -> list[Tensor | IndexedSlices | None]:  # fmt: skip
    """The gradients of the sum of `ys` with respect to each of `xs`, as TensorFlow 1's
    tf.gradients.

    ys, xs: a tensor or a list of them; in place of a tensor, xs may have a Variable, meaning every
    value of it that was read in this trace. grad_ys: cotangents of ys (default: ones). The gradient
    of an unconnected x is None; of a variable of which only rows were looked up (take, gather,
    embedding_lookup) it is IndexedSlices, and dense as soon as something dense adds to it.
    colocate_gradients_with_ops: whether each gradient op runs on the device of the op that it
    differentiates; else where `wf.device` says, like any op. gate_gradients, aggregation_method:
    taken for TensorFlow's sake (`wf.tf1.AggregationMethod`). stop_gradients: tensors that are taken
    for constants, so that gradients with respect to several of them are partial derivatives.
    GradientError outside a trace and for xs that are not floating or complex.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [3])
    ...     print(session.run(wf.gradients(x**2, x), {x: [1, 2, 3]}))
    [array([2., 4., 6.], dtype=float32)]
    """
    check_gradient_options("wf.gradients", aggregation_method, gate_gradients)
    listed = _listed(xs)
    found: list[Tensor | IndexedSlices | None] = []
    stops = [as_tensor(t) for t in _listed(stop_gradients)]
    given = source_gradients(
        ys, listed, grad_ys, colocated=colocate_gradients_with_ops, stops=stops
    )
    for x, parts in zip(listed, given, strict=True):
        slices = [as_slices(g) for g in parts] if isinstance(x, Variable) else [None]
        sparse = [s for s in slices if s is not None]
        found.append(added(sparse) if len(sparse) == len(parts) > 0 else summed(parts))
    return found


def source_gradients(
    ys: Any, xs: Sequence[Any], grad_ys: Any = None, *, colocated: bool = False,
    stops: Sequence[Tensor] = (),
) -> list[list[Tensor]]:  # fmt: skip
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
    flat = iter(cotangents_of(outputs, sources, seeded, None, colocated, stops))
    pairs = [[(t, next(flat)) for t in group] for group in groups]
    return [[of_value_before(t, g) for t, g in group if g is not None] for group in pairs]


def summed(parts: Sequence[Tensor]) -> Tensor | None:
    """The sum; None of nothing."""
    return functools.reduce(lambda a, b: apply("add", a, b), parts) if parts else None


def stop_gradient(x: Any) -> Any:
    """`x` (which may nest tensors), through which no gradient flows: a constant to
    differentiation.

    >>> wf.grad(lambda x: x * wf.stop_gradient(x))(wf.asarray(5.0))
    Tensor(5., dtype=float32)
    """

    def stopped(leaf: Any) -> Tensor:
        t = as_tensor(leaf)
        return weaken(apply("stop_gradient", t), [t])

    return pytree.tree_map(stopped, x)


# ------------------------------------------------------------------------------------------ helpers
def cotangents_of(
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    grad_ys: Sequence[Tensor | None] | None = None,
    unconnected: str | None = "zero",
    colocated: bool = False,
    stops: Sequence[Tensor] = (),
) -> list[Any]:
    """Gradient tensors in the current trace; zero or None for an x that no y depends on.

    In a body, ys and xs may both be of one trace around it: the gradient of what was computed
    there. GradientError for ys of the body itself that depend on xs around it: the ops between them
    are in two traces.
    """
    trace = current_trace()
    assert trace is not None
    missing = zeros_of if unconnected else lambda x: None
    owner = _owner(trace, ys, xs)
    stopped = {owner.lift(t) for t in stops if t._data is None}
    placed: Placed | None = None
    if trace.root().shard_devices:
        placed = functools.partial(on_its_shard, trace)
    if owner is not trace:
        given = [ones_of(y) if g is None else g for y, g in _inexact(ys, grad_ys)]

        def pulled(builder: Builder, seeds: Sequence[Value]) -> Sequence[Value | None]:
            outer = [owner.lift(y) for y, _ in _inexact(ys, grad_ys)]
            inner = [owner.lift(x) for x in xs]
            return pull_back(builder, owner.builder.ops, outer, seeds, inner, placed, stopped)

        return [
            missing(x) if g is None else g
            for x, g in zip(xs, append_on(owner, given, pulled), strict=True)
        ]
    values = [trace.lift(x) for x in xs]
    seeds: list[Value | None] = [
        None if g is None else trace.lift(g) for g in grad_ys or [None] * len(ys)
    ]
    real = [(trace.lift(y), s) for y, s in _inexact(ys, seeds)]
    start = len(trace.builder.ops)
    if colocated:
        placed = functools.partial(colocate, trace, set(trace.builder.ops))
    found = _graph_gradients(
        trace.builder,
        [y for y, _ in real],
        values,
        [s for _, s in real],
        placed,
        stopped,
    )
    place_new(trace, start)
    return [
        missing(x) if g is None else trace.tensor(g, x.weak) for x, g in zip(xs, found, strict=True)
    ]


def _inexact(ys: Sequence[Tensor], seeds: Sequence[Any] | None) -> list[tuple[Tensor, Any]]:
    """The ys that have gradients, each with what stands for it in `seeds`."""
    pairs = zip(ys, seeds or [None] * len(ys), strict=True)
    return [(y, s) for y, s in pairs if y.dtype.is_inexact]


def _owner(trace: Trace, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> Trace:
    """The trace in which the ys were made from the xs: the current one, or that of all the xs if no
    y is made further inside. GradientError where both are on the way."""
    outside = {x._trace for x in xs if x._trace is not None} - {trace}
    if not outside:
        return trace
    owner = next(iter(outside))
    inner = [y for y in ys if y._trace is not None and not y._trace.encloses(owner)]
    if len(outside) == 1 and not inner and not any(x._trace is trace for x in xs):
        return owner
    if _reaches(trace, ys, [x for x in xs if x._trace in outside]):
        raise GradientError(
            f"a gradient inside '{trace.name}' leads to a tensor around it, by way of ops in both",
            hint="take the gradient outside, of what the body returns; or compute all of it inside",
            location=caller_location(),
        )
    return trace


def _reaches(trace: Trace, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> bool:
    """Whether a y depends on one of the xs, which are of traces around this one."""
    wanted = {x._value for x in xs}
    values = {trace.lift(y) for y in ys}
    around: Trace | None = trace
    while around is not None:
        _, met = needed_ops(around.builder.ops, values)
        if met & wanted:
            return True
        values = {outer for outer, arg in around.captures.items() if arg in met}
        around = around.parent
    return False


def append_on(
    owner: Trace,
    given: Sequence[Tensor],
    make: Callable[[Builder, Sequence[Value]], Sequence[Value | None]],
) -> list[Tensor | None]:
    """What `make` gives: from values of the current trace (`given`) and of `owner`, which is that
    or one around it, in ops that it appends to a builder. In a body what they use of the owner
    becomes captures."""
    trace = current_trace()
    assert trace is not None
    seeds = [trace.lift(t) for t in given]
    start = len(trace.builder.ops)
    if trace is owner:
        found = make(trace.builder, seeds)
    else:
        apart = Builder([v.type for v in seeds])
        wanted = make(apart, apart.args)
        inside = dict(zip(apart.args, seeds, strict=True))

        def here(value: Value) -> Value:
            if value not in inside:
                inside[value] = trace.lift(owner.tensor(value))
            return inside[value]

        for op in apart.ops:
            for operand in op.operands:
                here(operand)
            inside.update(zip(op.results, trace.builder.clone(op, inside), strict=True))
        found = [None if v is None else here(v) for v in wanted]
    place_new(trace, start)
    return [None if v is None else trace.tensor(v) for v in found]


def in_trace(name: str, compute: Callable[[list[Tensor]], Any], inputs: Sequence[Tensor]) -> Any:
    """`compute` in the current trace on copies of `inputs`, or traced and run if there is none."""
    if current_trace() is not None:
        return compute([fresh(t) for t in inputs])
    return run_traced(name, compute, inputs)


def fresh(t: Tensor) -> Tensor:
    """A value equal to `t` of its own: what else depends on `t` stays out of the derivative."""
    copy = apply("identity", t)
    copy.weak = t.weak
    return copy


def zeros_of(t: Tensor) -> Tensor:
    """Zeros of the tensor's type."""
    return _filled(t, 0)


def ones_of(t: Tensor) -> Tensor:
    """Ones of the tensor's type. GradientError for a complex one, which needs a cotangent."""
    if t.dtype.is_complex:
        raise GradientError(
            f"the gradient of {t.describe()} needs grad_ys",
            hint="take wf.real, wf.imag or wf.abs for a real loss, or pass grad_ys",
            location=caller_location(),
        )
    return _filled(t, 1)


def _filled(t: Tensor, number: int) -> Tensor:
    filled = apply("broadcast_to", Tensor(np.asarray(number, t.dtype.numpy)), shape=t.shape)
    filled.weak = t.weak
    return filled


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
