"""Loops: `while_loop`, and `fori_loop`, which counts; over the rows of arrays, `scan`, `map_fn`,
`foldl`, `foldr`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from weft.frontend.control.loop_options import (
    Call,
    Limit,
    complete,
    computed_length,
    counted,
    invariant_shapes,
    is_count,
    iteration_limit,
    opened_kinds,
    traced_length,
)
from weft.frontend.control.region import (
    Body,
    Kind,
    anchor,
    as_kind,
    captures,
    carry_body,
    check_callable,
    check_stacked,
    done,
    holds_effects,
    operand_tensors,
    outer_control,
    overlap,
    predicate,
    store,
    with_effects,
    without_effects,
    without_gradient,
)
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import run_traced
from weft.frontend.core.operators import METHODS
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, StateHandle, current_trace, graph_around, must_be_live
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.manipulation import concat
from weft.frontend.ops.promotion import TensorLike, cast, check_dtype
from weft.ir.dims import Dim, Shape, same
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue, int_attr
from weft.ir.types import TensorType


@shows_as_seen
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    maximum_iterations: Any = None,
    *,
    checkpoint_every: int | None = None,
    gradient_memory: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """`loop_vars = body(loop_vars)` while `cond(loop_vars)`, nested as `loop_vars`.

    As JAX's lax.while_loop, the functions take one argument nested like `loop_vars`; as in
    TensorFlow the items of a list or tuple if that is how many they require (and those of a list of
    one item), also of one that takes any number after the first (`lambda i, *_: i < 3`).

    maximum_iterations: an int or a scalar tensor of integers, not negative (of a tensor a step
    checks it); the loop ends after that many at the latest. parallel_iterations: an int >= 1; how
    many may be under way at once on the dataflow executor, as far as they need not wait for each
    other; 1: one after another. It changes no result. shape_invariants: in a wf.Graph and eagerly,
    the shapes of loop variables that change them, nested as loop_vars: a tuple of sizes, None for
    one that changes, or a wf.TensorType; None for a variable that keeps its shape. No gradient goes
    through those that change (GradientError).
    A gradient needs values of every iteration. checkpoint_every: an int k >= 1; the gradient keeps
    the loop variables of one iteration in k, and computes k iterations at a time again: the same
    bits for less memory. gradient_memory: an int; the most bytes that a gradient may keep for this
    loop, beyond which the step ends with a ResourceExhaustedError. back_prop: False makes what the
    loop gives constants to differentiation. swap_memory, name: taken for TensorFlow's sake.

    Raises TypeRuleError or ShapeError where a loop variable would change its dtype or shape,
    InvalidArgumentError for wrong options.
    In a wf.Graph the body may act on queues and other objects of the host: once in each iteration,
    on one object in the order of the iterations. A loop without loop variables that acts is an
    Effect, and its body may return None or an Effect.

    >>> @wf.compile
    ... def root(a):  # Newton's iteration
    ...     return wf.while_loop(lambda x: x * x - a > 1e-3, lambda x: (x + a / x) / 2, a)
    >>> print(root(wf.asarray(9.0)).numpy().round(3))
    3.0
    >>> wf.while_loop(lambda i, total: i <= 4, lambda i, total: (i + 1, total + i), (1, 0))
    (Tensor(5, dtype=int64, weak), Tensor(10, dtype=int64, weak))
    >>> wf.while_loop(lambda x: wf.sum(x) < 9, lambda x: wf.concat([x, x]), wf.ones(3), (None,))
    Tensor([1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1.], dtype=float32)
    """
    check_callable("wf.while_loop", cond=cond, body=body)
    limit, most = iteration_limit(maximum_iterations)
    attrs: dict[str, AttrValue] = {
        "limit": limit,
        "parallel_iterations": overlap("wf.while_loop", parallel_iterations),
        "gradient_memory": _at_least("gradient_memory", gradient_memory, 0),
    }
    every = _at_least("checkpoint_every", checkpoint_every, 1)
    made = _traced(cond, body, loop_vars, attrs, every, most, shape_invariants)
    return made if back_prop else without_gradient(made)


def _traced(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    attrs: dict[str, AttrValue],
    every: int,
    most: Limit | None,
    invariants: Any,
) -> Any:
    """The loop as part of the current trace; without one it runs at once. most: a number of
    iterations that is known when it runs."""
    inputs, structure = operand_tensors("wf.while_loop", loop_vars, "loop_vars")
    shapes = invariant_shapes(structure, inputs, invariants)
    if current_trace() is None:

        def at_once(given: list[Tensor]) -> Any:
            nested = pytree.unflatten(structure, given)
            return _traced(cond, body, nested, attrs, every, most, invariants)

        return run_traced("while_loop", at_once, inputs)
    if not inputs and graph_around(current_trace()) is not None:
        return _loop_of_effects(cond, body, loop_vars, attrs, most)
    test, step = _calls(cond, body, loop_vars, structure)
    whole = complete("wf.while_loop", body, step, inputs, structure)
    if whole is not None:
        return _traced(cond, body, whole, attrs, every, most, invariants)
    if most is not None:
        test, step, inputs, structure = counted(most, test, step, inputs, structure)
        shapes = None if shapes is None else [(), *shapes]
    if every > 0:
        found = _in_segments(cond, body, test, step, inputs, structure, attrs, every, shapes)
    else:
        found = _emit_while(cond, body, test, step, inputs, structure, attrs, shapes)[0]
    return found if most is None else found[1]


def _calls(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    structure: pytree.Structure,
) -> tuple[Callable[[list[Tensor]], Any], Callable[[list[Tensor]], Any]]:
    """The two functions on the leaves of `loop_vars`."""
    spread = _spreads(cond, body, loop_vars)

    def call(fn: Callable[..., Any], xs: list[Tensor]) -> Any:
        tree = pytree.unflatten(structure, xs)
        return fn(*tree) if spread else fn(tree)

    def step(xs: list[Tensor]) -> Any:
        found = call(body, xs)
        if spread:  # TensorFlow takes lists for tuples, and the only value without either
            if len(loop_vars) == 1 and not isinstance(found, (list, tuple)):
                found = [found]
            if type(found) in (list, tuple) and type(loop_vars) in (list, tuple):
                found = type(loop_vars)(found)
        return found

    return lambda xs: call(cond, xs), step


def _loop_of_effects(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    attrs: dict[str, AttrValue],
    most: Limit | None,
) -> Any:
    """A loop without loop variables: it carries true, which what comes after it depends on."""
    spread = _spreads(cond, body, loop_vars)
    given = () if spread else (loop_vars,)
    _, nothing = pytree.flatten(loop_vars)

    def act(xs: list[Tensor]) -> Any:
        found = without_effects(body(*given))
        if found is not None:
            what = "wf.while_loop: the carry and what the body returns for it"
            pytree.same_structure(what, nothing, pytree.flatten(found)[1])
        return xs

    start, structure = operand_tensors("wf.while_loop", [True], "loop_vars")
    test: Call = lambda xs: cond(*given)  # noqa: E731
    step: Call = act
    if most is not None:
        test, step, start, structure = counted(most, test, step, start, structure)
    effect = _emit_while(cond, body, test, step, start, structure, attrs)[1]()
    return loop_vars if effect is None else effect


def _in_segments(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    test: Callable[[list[Tensor]], Any],
    step: Callable[[list[Tensor]], Any],
    inputs: list[Tensor],
    structure: pytree.Structure,
    attrs: dict[str, AttrValue],
    every: int,
    shapes: Sequence[Shape] | None,
) -> Any:
    """A loop over segments of `every` iterations, of which the gradient keeps the starts only."""

    def run(xs: list[Tensor], iterations: int) -> Any:
        within = {**attrs, "limit": iterations}
        return _emit_while(cond, body, test, step, xs, structure, within, shapes)[0]

    limit = int_attr(attrs, "limit")
    outer = {**attrs, "limit": limit if limit < 0 else limit // every, "recompute": True}
    segment = lambda xs: run(xs, every)  # noqa: E731
    found, _ = _emit_while(cond, body, test, segment, inputs, structure, outer, shapes)
    if limit < 0 or limit % every == 0:
        return found
    return run(operand_tensors("wf.while_loop", found, "loop_vars")[0], limit % every)


def _at_least(name: str, given: Any, least: int) -> int:
    """An option that is an int of at least `least`; -1 for None."""
    if given is None:
        return -1
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool) and given >= least:
        return int(given)
    raise InvalidArgumentError(
        f"wf.while_loop: {name} is {given!r:.60}, not an int >= {least}",
        hint="it must be known before the loop runs",
        location=caller_location(),
    )


def _spreads(cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Any) -> bool:
    """Whether the functions take the items of `loop_vars` as arguments of their own."""
    if not isinstance(loop_vars, (list, tuple)):
        return False
    count = len(loop_vars)
    required, more = zip(*(_positional(fn) for fn in (cond, body)), strict=True)
    if not count:
        return not any(required)
    if count == 1:
        return type(loop_vars) is list and all(n in (0, 1) for n in required)
    if any(n == 1 and not any_number for n, any_number in zip(required, more, strict=True)):
        return False
    for name, n in zip(("cond", "body"), required, strict=True):
        if n > count:
            raise InvalidArgumentError(
                f"wf.while_loop: {name} requires {n} arguments, loop_vars has {count} items",
                hint="take one argument for all loop variables, or one for each",
                location=caller_location(),
            )
    return True


def _positional(fn: Callable[..., Any]) -> tuple[int, bool]:
    """How many positional arguments a function cannot do without, 1 where Python cannot say; and
    whether it takes any number more, as `lambda i, *_: i < 3` does."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 1, False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(p.kind in positional and p.default is p.empty for p in parameters)
    return required, any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def _emit_while(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    test_call: Callable[[list[Tensor]], Any],
    body_call: Callable[[list[Tensor]], Any],
    inputs: list[Tensor],
    structure: pytree.Structure,
    attrs: dict[str, AttrValue],
    shapes: Sequence[Shape] | None = None,
) -> tuple[Any, Callable[[], Effect | None]]:
    """The op: what it gives, and what makes the effect that it is in a graph, if it is one.
    shapes: those that the loop variables have in every iteration, None in them for open sizes."""
    trace = current_trace()
    assert trace is not None
    opened = None if shapes is None else opened_kinds(inputs, shapes)
    name = "body of wf.while_loop"
    live: list[StateHandle] = []
    while True:
        step, kinds, written = carry_body(
            "wf.while_loop", name, body, body_call, inputs, structure, live=live, given=opened
        )
        live = list(step.trace.live)
        test = Body("cond of wf.while_loop", cond, test_call, kinds, written, live=live)
        acting = must_be_live([test.trace, step.trace])
        if not acting:
            break
        live += acting
    assigned = [*test.written, *test.trace.updated]
    if assigned:
        raise TypeRuleError(
            f"wf.while_loop: cond assigns to variable '{assigned[0].name}'",
            hint="assign in the body",
            location=caller_location(),
        )
    with test.trace.active():
        if len(test.leaves) != 1 or test.structure is not None:
            raise TypeRuleError(
                f"wf.while_loop: cond returns {pytree.describe(test.structure)}, not one bool",
                location=caller_location(),
            )
        decision = test.trace.lift(predicate("wf.while_loop: what cond returns", test.leaves[0]))
    results = [step.trace.lift(t) for t in step.leaves] + step.values_of(written)
    outer = captures(test, step)
    regions = [test.block([decision], outer), step.block(results, outer)]
    starts = [trace.lift(as_kind(t, kind)) for t, kind in zip(inputs, kinds, strict=True)]
    starts += [trace.lift(trace.value_of(v, step.trace)) for v in written]
    attrs = {"carries": len(starts), **attrs}
    control = outer_control(test, step)
    values = trace.emit("while", [*starts, *outer], attrs, regions=regions, control=control)
    found = [trace.tensor(v, w) for v, (_, w) in zip(values, kinds, strict=False)]
    found, tokens = store(written, values[len(kinds) :], found)
    acts = test.trace.acts or step.trace.acts
    made = pytree.unflatten(structure, found)
    return made, lambda: done("while_loop", acts, values, tokens)


@shows_as_seen
def fori_loop(
    lower: TensorLike,
    upper: TensorLike,
    body: Callable[[Any, Any], Any],
    init: Any,
    maximum_iterations: Any = None,
) -> Any:
    """`for i in range(lower, upper): init = body(i, init)`, as JAX's lax.fori_loop.

    lower, upper: integers. If both are numbers of Python or NumPy the loop is a `wf.scan`, which
    has gradients; otherwise a `wf.while_loop`, and maximum_iterations is as there. `i` is a tensor
    of the dtype that `lower` and `upper` promote to: of Python ints alone, int64 that yields to the
    dtype of what it meets.

    >>> wf.fori_loop(0, 5, lambda i, total: total + i, 0)
    Tensor(10, dtype=int64, weak)
    >>> wf.grad(lambda x: wf.fori_loop(0, 3, lambda i, y: y * x, 1.0))(wf.asarray(2.0))
    Tensor(12., dtype=float32)
    """
    check_callable("wf.fori_loop", body=body)
    first, last = as_tensor(lower), as_tensor(upper)
    for name, t in (("lower", first), ("upper", last)):
        if not t.dtype.is_integer or t.ndim:
            raise TypeRuleError(
                f"wf.fori_loop: {name} is {t.describe()}, not an integer without axes",
                location=caller_location(),
            )
    if last.dtype is not first.dtype or last.weak != first.weak:
        total = METHODS["add"](first, last)  # in the dtype that both promote to
        first = METHODS["astype"](first, total.dtype) if not total.weak else first
    plain = (int, np.integer)
    if isinstance(lower, plain) and isinstance(upper, plain) and maximum_iterations is None:
        count = max(0, int(upper) - int(lower))

        def counted(state: Any, _: None) -> Any:
            i, carry = state
            return (METHODS["add"](i, 1), body(i, carry)), None

        (_, result), _ = scan(counted, (first, init), length=count)
        return result
    _, result = while_loop(
        lambda state: METHODS["less"](state[0], last),
        lambda state: (METHODS["add"](state[0], 1), body(state[0], state[1])),
        (first, init),
        maximum_iterations=maximum_iterations,
    )
    return result


_MISSING: Any = object()


@shows_as_seen
def scan(
    f: Callable[..., Any],
    init: Any = _MISSING,
    xs: Any = None,
    length: Any = None,
    reverse: bool = False,
    unroll: int = 1,
    *,
    elems: Any = _MISSING,
    initializer: Any = _MISSING,
) -> Any:
    """As JAX's lax.scan: `carry, y = f(carry, x)` for each row x of `xs`; (carry, stacked ys).

    init: the first carry, any nesting of tensors; f must return the same nesting, dtypes and shapes
    (Python numbers take the dtypes that f gives them). xs: a nesting of tensors with one size of
    the first axis, or None: then f gets None, `length` times. length: an int, in a wf.Graph also a
    scalar tensor of integers (the result then has as many rows as that says); in a compiled
    function a tensor only where there are neither xs nor ys. reverse: from the last row to the
    first; ys[i] still belongs to xs[i]. Where y is an Effect, or nothing at all is carried or
    returned, ys is the Effect of all iterations. unroll: taken for JAX's sake; at least 1.

    As TensorFlow's tf.scan with `elems=`, with `initializer=`, and with neither xs nor length,
    which JAX's needs: `a = f(a, x)` for each row, from `initializer`, or from the first row if that
    is not given; the result is every a, stacked. (A third argument without a name is xs.)

    Differentiable to any order; the backward pass stores what it needs of each iteration. Raises
    TypeRuleError or InvalidArgumentError where rows, carries or lengths do not fit.

    >>> wf.scan(lambda total, x: (total + x, total * x), 0.0, wf.asarray([1.0, 2.0, 3.0]))
    (Tensor(6., dtype=float32), Tensor([0., 2., 9.], dtype=float32))
    >>> wf.scan(lambda a, x: a + x, wf.asarray([1.0, 2.0, 3.0]))  # TensorFlow's form
    Tensor([1., 3., 6.], dtype=float32)
    """
    check_callable("wf.scan", f=f)
    if _is_tensorflows(init, xs, length, elems, initializer):
        return _scan_tf(f, init if elems is _MISSING else elems, initializer, reverse)
    if init is _MISSING:
        raise InvalidArgumentError(
            "wf.scan: init is missing",
            hint="wf.scan(f, init, xs) or wf.scan(f, elems=x, initializer=a)",
            location=caller_location(),
        )
    if not is_count(unroll) or unroll < 1:
        raise InvalidArgumentError(
            f"wf.scan: unroll is {unroll!r:.40}, not an int >= 1", location=caller_location()
        )
    return _scan("wf.scan", f, init, xs, length, reverse)


def _is_tensorflows(init: Any, xs: Any, length: Any, elems: Any, initializer: Any) -> bool:
    """Whether these are the arguments of tf.scan. InvalidArgumentError for a mixture."""
    if elems is _MISSING and initializer is _MISSING:
        if init is _MISSING or xs is not None or length is not None:
            return False
        return all(t.ndim for t in operand_tensors("wf.scan", init, "init")[0])
    given = [x for x in (init, elems) if x is not _MISSING]
    if len(given) != 1 or xs is not None or length is not None:
        raise InvalidArgumentError(
            "wf.scan: elems= and initializer= are TensorFlow's arguments, init, xs and length "
            "are JAX's",
            hint="wf.scan(f, init, xs) or wf.scan(f, elems=x, initializer=a)",
            location=caller_location(),
        )
    return True


def _scan(
    what: str, f: Callable[..., Any], init: Any, xs: Any, length: Any, reverse: bool
) -> tuple[Any, Any]:
    inputs, structure = operand_tensors(what, init, "init")
    sequences, nesting = operand_tensors(what, xs, "xs")
    computed = None if sequences else computed_length(length)
    if computed is not None:
        with suppress(_StackedError):
            return _scan_counting(what, f, init, xs, computed)
    count = _length(what, sequences, pytree.paths(nesting, "xs"), length)
    if current_trace() is None:

        def at_once(given: list[Tensor]) -> Any:
            first = pytree.unflatten(structure, given[: len(inputs)])
            rows = pytree.unflatten(nesting, given[len(inputs) :])
            return _scan(what, f, first, rows, length, reverse)

        result: tuple[Any, Any] = run_traced("scan", at_once, [*inputs, *sequences])
        return result
    rows: list[Kind] = [(TensorType(t.dtype, t.shape[1:]), False) for t in sequences]

    def call(given: list[Tensor]) -> Any:
        carry = pytree.unflatten(structure, given[: len(inputs)])
        return _pair(what, f(carry, pytree.unflatten(nesting, given[len(inputs) :])))

    carried = complete(what, f, call, inputs, structure, rows, lambda found: _first(found))
    if carried is not None:
        return _scan(what, f, carried, xs, length, reverse)
    return _emit_scan(what, f, call, inputs, structure, sequences, rows, count, reverse)


def _first(pair: pytree.Structure) -> pytree.Structure:
    """How the carry nests in what `f` gives."""
    return None if pair is None else pair.children[0]


class _StackedError(Exception):
    """A scan by a length that is a value has stacked results, which need it as a size."""


def _scan_counting(
    what: str, f: Callable[..., Any], init: Any, xs: Any, length: Tensor
) -> tuple[Any, Any]:
    """A scan without rows and stacked results, as often as a tensor says: the carry, and what f
    gives besides, which holds no tensor."""
    given: list[Any] = []

    def step(state: dict[str, Any]) -> dict[str, Any]:
        carry, y = _pair(what, f(state["carry"], xs))
        given[:] = [without_effects(y)]
        if pytree.flatten(given[0])[0]:
            raise _StackedError
        return {"carry": carry}

    limit = Limit(length, f"{what}: length")
    made = while_loop(lambda state: True, step, {"carry": init}, maximum_iterations=limit)
    return made["carry"], given[0]


def _pair(what: str, found: Any) -> tuple[Any, Any]:
    """What f gives. TypeRuleError for anything but two values."""
    if not (isinstance(found, (tuple, list)) and len(found) == 2):
        raise TypeRuleError(
            f"{what}: f returned a {type(found).__name__}, not a pair (carry, y)",
            hint="return (carry, None) without a y; for TensorFlow's scan write "
            "wf.scan(f, elems=x, initializer=a)",
            location=caller_location(),
        )
    return found[0], found[1]


def _length(what: str, sequences: Sequence[Tensor], paths: Sequence[str], length: Any) -> Dim:
    """The number of iterations, which all sequences and `length` agree on."""
    known: Dim = None if length is None else traced_length(what, length)
    first = "length"
    for t, path in zip(sequences, paths, strict=True):
        if not t.ndim:
            raise InvalidArgumentError(
                f"{what}: {path} is a {t._type}, which has no first axis to go along",
                hint="pass an array; a list is a nesting of its items (use wf.asarray or wf.stack)",
                location=caller_location(),
            )
        size = t.shape[0]
        if size is None:
            raise UnsupportedError(
                f"{what}: the first axis of {path}, a {t._type}, has no known size",
                hint="give the placeholder a named dimension",
                location=caller_location(),
            )
        if known is not None and not same(known, size):
            raise InvalidArgumentError(
                f"{what}: {first} is {known}, but {path} has {size} rows ({t._type})",
                hint="all sequences must have the same size of the first axis",
                location=caller_location(),
            )
        if known is None:
            known, first = size, f"the first axis of {path}"
    if known is None:
        raise InvalidArgumentError(
            f"{what}: without xs the number of iterations is not known",
            hint="pass length=; for TensorFlow's scan write wf.scan(f, elems=x)",
            location=caller_location(),
        )
    return known


def _emit_scan(
    what: str,
    f: Callable[..., Any],
    call: Callable[[list[Tensor]], Any],
    inputs: Sequence[Tensor],
    structure: pytree.Structure,
    sequences: Sequence[Tensor],
    rows: Sequence[Kind],
    count: Dim,
    reverse: bool,
) -> tuple[Any, Any]:
    trace = current_trace()
    assert trace is not None
    sizes = set(trace.root().made_sizes)
    body, kinds, written = carry_body(what, f"body of {what}", f, call, inputs, structure, rows)
    ys = body.leaves[len(kinds) :]
    check_stacked(what, ys, sizes)
    results = [body.trace.lift(t) for t in body.leaves[: len(kinds)]]
    results += [*body.values_of(written), *(body.trace.lift(t) for t in ys)]
    anchor([body], [results])
    outer = captures(body)
    region = body.block(results, outer)
    starts = [trace.lift(as_kind(t, kind)) for t, kind in zip(inputs, kinds, strict=True)]
    starts += [trace.lift(trace.value_of(v, body.trace)) for v in written]
    attrs = {
        "carries": len(starts), "sequences": len(rows), "length": count, "reverse": bool(reverse),
    }  # fmt: skip
    operands = [*starts, *(trace.lift(t) for t in sequences), *outer]
    control = outer_control(body)
    values = trace.emit("scan", operands, attrs, regions=(region,), control=control)
    found = [trace.tensor(v, w) for v, (_, w) in zip(values, kinds, strict=False)]
    found += [trace.tensor(v, y.weak) for v, y in zip(values[len(starts) :], ys, strict=False)]
    found, tokens = store(written, values[len(kinds) : len(starts)], found)
    assert body.structure is not None
    carry = pytree.unflatten(structure, found[: len(kinds)])
    stacked = pytree.unflatten(body.structure.children[1], found[len(kinds) :])
    returned = body.returned[1]
    if found and not holds_effects(returned):
        return carry, stacked
    effect = done(what.removeprefix("wf."), body.trace.acts, values, tokens)
    if not found and effect is not None:
        return carry, effect
    return carry, with_effects(stacked, [returned], effect)


def _scan_tf(f: Callable[..., Any], elems: Any, initializer: Any, reverse: bool) -> Any:
    """TensorFlow's scan: all accumulators, stacked."""
    start, rest, first = _started("wf.scan", elems, initializer, reverse)
    _, ys = _scan("wf.scan", lambda a, x: (b := f(a, x), b), start, rest, None, reverse)
    if first is None:
        return ys
    if reverse:
        return pytree.tree_map(lambda y, a: concat([y, a]), ys, first)
    return pytree.tree_map(lambda y, a: concat([a, y]), ys, first)


def _started(what: str, elems: Any, initializer: Any, reverse: bool) -> tuple[Any, Any, Any]:
    """The first accumulator, the rows that are left, and the row that became the accumulator."""
    if initializer is not _MISSING and initializer is not None:
        return initializer, elems, None
    leaves, structure = operand_tensors(what, elems, "elems")
    count = _length(what, leaves, pytree.paths(structure, "elems"), None)
    if count == 0:
        raise InvalidArgumentError(
            f"{what}: there are no rows and no initializer", location=caller_location()
        )
    at = slice(-1, None) if reverse else slice(None, 1)
    others = slice(None, -1) if reverse else slice(1, None)
    first = [t[at] for t in leaves]
    start = [t[0] for t in first]
    rest = [t[others] for t in leaves]
    return tuple(pytree.unflatten(structure, x) for x in (start, rest, first))


@shows_as_seen
def map_fn(
    fn: Callable[[Any], Any],
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: Any = None,
) -> Any:
    """`fn` on each row of `elems` (a nesting of tensors), the results stacked.

    As TensorFlow's tf.map_fn and JAX's lax.map: a loop, one row after another. dtype, or
    fn_output_signature: the dtypes of what fn returns, nested likewise; they are not needed, and
    checked: TypeRuleError for others. Where fn returns an Effect, so does map_fn. back_prop: False
    makes the results constants to differentiation. parallel_iterations (an int >= 1), swap_memory,
    infer_shape, name: taken for TensorFlow's sake, and change nothing.

    >>> wf.map_fn(lambda row: wf.sort(row)[0], wf.asarray([[3, 1, 2], [9, 8, 7]]))
    Tensor([1, 7], dtype=int64)
    """
    check_callable("wf.map_fn", fn=fn)
    if parallel_iterations is not None:
        overlap("wf.map_fn", parallel_iterations)
    wanted = dtype if fn_output_signature is None else fn_output_signature

    def step(_: Any, x: Any) -> tuple[None, Any]:
        return None, fn(x) if wanted is None else _of_dtypes(fn(x), wanted)

    made = _scan("wf.map_fn", step, None, elems, None, False)[1]
    return made if back_prop else without_gradient(made)


def _of_dtypes(result: Any, dtypes: Any) -> Any:
    """`result`, whose leaves must have the dtypes of the leaves of `dtypes`; numbers get them."""
    leaves, structure = pytree.flatten(result)
    names, wanted = pytree.flatten(dtypes)
    if structure != wanted:
        raise InvalidArgumentError(
            f"wf.map_fn: dtype is nested as {wanted}, the results of fn as {structure}",
            location=caller_location(),
        )
    out = []
    for leaf, name in zip(leaves, names, strict=True):
        t, target = as_tensor(leaf), check_dtype(name)
        if t.dtype is not target and not t.weak:
            raise TypeRuleError(
                f"wf.map_fn: fn returns {t.describe()}, but dtype says {target.name}",
                hint="leave dtype out, or convert with wf.astype in fn",
                location=caller_location(),
            )
        out.append(cast(t, target))
    return pytree.unflatten(structure, out)


@shows_as_seen
def foldl(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """`a = fn(a, x)` for each row x of `elems`; the last a. As TensorFlow's tf.foldl.

    initializer: the first a, nested as fn's results; by default the first row. back_prop: False
    makes the result a constant to differentiation. parallel_iterations (an int >= 1), swap_memory,
    name: taken for TensorFlow's sake, and change nothing.
    """
    overlap("wf.tf1.foldl", parallel_iterations)
    return _fold("wf.tf1.foldl", fn, elems, initializer, False, back_prop)


@shows_as_seen
def foldr(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """As `foldl`, from the last row to the first. As TensorFlow's tf.foldr."""
    overlap("wf.tf1.foldr", parallel_iterations)
    return _fold("wf.tf1.foldr", fn, elems, initializer, True, back_prop)


def _fold(
    what: str,
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any,
    reverse: bool,
    back_prop: bool,
) -> Any:
    check_callable(what, fn=fn)
    start, rest, _ = _started(what, elems, initializer, reverse)
    made = _scan(what, lambda a, x: (fn(a, x), None), start, rest, None, reverse)[0]
    return made if back_prop else without_gradient(made)
