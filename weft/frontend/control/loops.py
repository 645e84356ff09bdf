"""Open loops: `while_loop`, and `fori_loop`, which counts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.control.region import (
    Body,
    captures,
    carry_body,
    check_callable,
    converted,
    operand_tensors,
    predicate,
    store,
)
from weft.frontend.control.scan import scan
from weft.frontend.ops.promotion import TensorLike
from weft.frontend.tensor import METHODS, Tensor, as_tensor
from weft.frontend.tracing.evaluate import run_traced
from weft.frontend.tracing.trace import current_trace
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.source import caller_location


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: None = None,
    parallel_iterations: int = 10,
    maximum_iterations: int | None = None,
) -> Any:
    """`loop_vars = body(loop_vars)` while `cond(loop_vars)`, nested as `loop_vars`.

    As JAX's lax.while_loop, the functions take one argument nested like `loop_vars`. As in
    TensorFlow, they get the items of a list or tuple as arguments of their own if that is how many
    they require (and those of a list of one item).

    maximum_iterations: an int; the loop ends after that many at the latest. It is what a gradient
    in reverse mode needs, as it bounds the memory; without it use `wf.scan` or `wf.fori_loop`.
    parallel_iterations: taken for TensorFlow's sake; iterations run one after another, which
    changes no result. shape_invariants: refused, the loop variables keep their shapes. Raises
    TypeRuleError where a loop variable would change its dtype or shape.
    """
    check_callable("wf.while_loop", cond=cond, body=body)
    if shape_invariants is not None:
        raise InvalidArgumentError(
            "wf.while_loop: shape_invariants is not supported: loop variables keep their shapes",
            hint="make room for the final shape from the start, and write with x.at[i].set(y)",
            location=caller_location(),
        )
    limit = _limit(maximum_iterations)
    inputs, structure = operand_tensors("wf.while_loop", loop_vars, "loop_vars")
    if current_trace() is None:

        def at_once(given: list[Tensor]) -> Any:
            again = pytree.unflatten(structure, given)
            return while_loop(cond, body, again, maximum_iterations=maximum_iterations)

        return run_traced("while_loop", at_once, inputs)
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

    return _emit_while(cond, body, lambda xs: call(cond, xs), step, inputs, structure, limit)


def _limit(maximum: Any) -> int:
    if maximum is None:
        return -1
    if isinstance(maximum, (int, np.integer)) and not isinstance(maximum, bool) and maximum >= 0:
        return int(maximum)
    raise InvalidArgumentError(
        f"wf.while_loop: maximum_iterations is {maximum!r:.60}, not an int >= 0",
        hint="a number that is computed belongs into cond; this one must be known beforehand",
        location=caller_location(),
    )


def _spreads(cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Any) -> bool:
    """Whether the functions take the items of `loop_vars` as arguments of their own."""
    if not isinstance(loop_vars, (list, tuple)):
        return False
    count = len(loop_vars)
    required = [_required(fn) for fn in (cond, body)]
    if not count:
        return not any(required)
    if count == 1:
        return type(loop_vars) is list and all(n in (0, 1) for n in required)
    if any(n == 1 for n in required):
        return False
    for name, n in zip(("cond", "body"), required, strict=True):
        if n > count:
            raise InvalidArgumentError(
                f"wf.while_loop: {name} requires {n} arguments, loop_vars has {count} items",
                hint="take one argument for all loop variables, or one for each",
                location=caller_location(),
            )
    return True


def _required(fn: Callable[..., Any]) -> int:
    """How many positional arguments a function cannot do without; 1 where Python cannot say."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


def _emit_while(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    test_call: Callable[[list[Tensor]], Any],
    body_call: Callable[[list[Tensor]], Any],
    inputs: list[Tensor],
    structure: pytree.Structure,
    limit: int,
) -> Any:
    trace = current_trace()
    assert trace is not None
    name = "body of wf.while_loop"
    step, kinds, written = carry_body("wf.while_loop", name, body, body_call, inputs, structure)
    test = Body("cond of wf.while_loop", cond, test_call, kinds, written)
    if test.written:
        raise TypeRuleError(
            f"wf.while_loop: cond assigns to variable '{test.written[0].name}'",
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
    starts = [
        trace.lift(converted(t, kind.dtype, weak))
        for t, (kind, weak) in zip(inputs, kinds, strict=True)
    ]
    starts += [trace.lift(trace.value_of(v)) for v in written]
    attrs = {"carries": len(starts), "limit": limit}
    values = trace.emit("while", [*starts, *outer], attrs, regions=regions)
    found = [trace.tensor(v, w) for v, (_, w) in zip(values, kinds, strict=False)]
    return pytree.unflatten(structure, store(written, values[len(kinds) :], found))


def fori_loop(
    lower: TensorLike,
    upper: TensorLike,
    body: Callable[[Any, Any], Any],
    init: Any,
    maximum_iterations: int | None = None,
) -> Any:
    """`for i in range(lower, upper): init = body(i, init)`, as JAX's lax.fori_loop.

    lower, upper: integers. If both are numbers of Python or NumPy the loop is a `wf.scan`, which
    has gradients; otherwise a `wf.while_loop`, and maximum_iterations is as there. `i` is a tensor
    of the dtype that `lower` and `upper` promote to: of Python ints alone, int64 that yields to the
    dtype of what it meets.
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
