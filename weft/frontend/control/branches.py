"""Branches: `cond`, `case`, `switch_case`, and the dataflow primitives of a `wf.Graph` (the paper,
section 3.4), Switch, Merge and the ops of frames, of which users build branches and loops
themselves.

All functions given to them are traced, also outside `wf.compile` (then the result is computed at
once): a tensor that depends on an argument has no value while they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.control.region import (
    Body,
    Kind,
    anchor,
    captures,
    check_callable,
    done,
    holds_effects,
    joined,
    kind_of,
    meeting,
    mismatch,
    operand_tensors,
    outer_control,
    predicate,
    store,
    with_effects,
)
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import run_traced
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, StateHandle, current_trace, must_be_live
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.dispatch import apply_many
from weft.frontend.ops.elementwise import equal, greater, less, logical_or, where
from weft.frontend.ops.promotion import TensorLike
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue
from weft.ir.types import TensorType


@shows_as_seen
def cond(
    pred: TensorLike,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    *operands: Any,
    name: str | None = None,
) -> Any:
    """`true_fn(*operands)` if `pred`, a bool without axes, is true, else `false_fn(*operands)`.

    Only the chosen function runs; both are traced. Without operands, as in TensorFlow, the
    functions use what they need from outside. Both must return the same nesting of tensors with the
    same dtypes and shapes (a Python number takes the dtype of its counterpart); TypeRuleError or
    InvalidArgumentError shows where they differ. Where a function returns an Effect (in a wf.Graph:
    of `queue.enqueue`, `wf.no_op`) or None, an Effect of the whole takes its place. name: taken for
    TensorFlow's sake; ops are known by the line that made them.

    >>> @wf.compile
    ... def magnitude(x):
    ...     return wf.cond(x < 0, lambda: -x, lambda: x)
    >>> magnitude(-3.0), magnitude(4.0)
    (Tensor(3., dtype=float64, weak), Tensor(4., dtype=float64, weak))
    """
    check_callable("wf.cond", true_fn=true_fn, false_fn=false_fn)
    test = predicate("wf.cond: pred", pred)
    return _cond("wf.cond", test, ("true_fn", true_fn), ("false_fn", false_fn), operands)


#: A function that is a branch, and what its parameter is called.
Branch = tuple[str, Callable[..., Any]]


def _cond(what: str, test: Tensor, first: Branch, second: Branch, operands: Sequence[Any]) -> Any:
    """`wf.cond`, for the public function `what`."""
    inputs, structure = operand_tensors(what, tuple(operands), "operands")
    if current_trace() is None:

        def at_once(given: list[Tensor]) -> Any:
            return _cond(what, given[0], first, second, pytree.unflatten(structure, given[1:]))

        return run_traced("cond", at_once, [test, *inputs])
    kinds = [kind_of(t) for t in inputs]

    live: list[StateHandle] = []

    def branch(name: str, fn: Callable[..., Any]) -> Body:
        call = lambda xs: fn(*pytree.unflatten(structure, xs))  # noqa: E731
        return Body(f"{name} of {what}", fn, call, kinds, live=live)

    while True:
        then, orelse = branch(*first), branch(*second)
        acting = must_be_live([then.trace, orelse.trace])
        if not acting:
            break
        live += acting
    results = _join_branches(what, (first[0], then), (second[0], orelse))
    return _emit_cond(test, inputs, then, orelse, results)


def _join_branches(what: str, first: tuple[str, Body], second: tuple[str, Body]) -> list[Kind]:
    """Give both branches results of the same kinds."""
    (name, then), (other, orelse) = first, second
    pytree.same_structure(
        f"{what}: {name} and {other} return different structures", then.structure, orelse.structure
    )
    kinds = []
    for path, a, b in zip(then.paths, then.leaves, orelse.leaves, strict=True):
        both = joined(kind_of(a), kind_of(b))
        if both is None:
            raise mismatch(
                f"{what}: the branches return different types",
                path,
                f"{name} gives {a.describe()}",
                f"{other} gives {b.describe()}",
            )
        shape = meeting(a.shape, b.shape)
        kinds.append((TensorType(both[0].dtype, shape), both[1]))
    then.convert(kinds)
    orelse.convert(kinds)
    return kinds


def _emit_cond(
    test: Tensor, inputs: Sequence[Tensor], then: Body, orelse: Body, kinds: Sequence[Kind]
) -> Any:
    trace = current_trace()
    assert trace is not None
    bodies = (then, orelse)
    written = list(dict.fromkeys([*then.written, *orelse.written]))
    results = [
        [*(body.trace.lift(t) for t in body.leaves), *body.values_of(written)] for body in bodies
    ]
    anchor(bodies, results)
    outer = captures(*bodies)
    regions = [body.block(found, outer) for body, found in zip(bodies, results, strict=True)]
    operands = [trace.lift(t) for t in (test, *inputs)] + outer
    control = outer_control(*bodies)
    values = trace.emit("cond", operands, {}, regions=regions, control=control)
    weak = [w for _, w in kinds]
    tensors = [trace.tensor(v, w) for v, w in zip(values, weak, strict=False)]
    tensors, tokens = store(written, values[len(kinds) :][: len(written)], tensors)
    made = pytree.unflatten(then.structure, tensors)
    returned = [body.returned for body in bodies]
    if tensors and not holds_effects(*returned):
        return made
    effect = done("cond", any(b.trace.acts for b in bodies), values, tokens)
    if not holds_effects(*returned):  # nothing at all: what it does, if anything
        return made if effect is None else effect
    return with_effects(made, returned, effect)


@shows_as_seen
def case(
    pred_fn_pairs: Sequence[tuple[TensorLike, Callable[[], Any]]],
    default: Callable[[], Any] | None = None,
) -> Any:
    """The result of the first function whose predicate is true, else that of `default`.

    As TensorFlow's tf.case, from pairs (predicate, function without arguments). Without a default
    the last function runs where no predicate is true. Types as in `wf.cond`.
    """
    pairs = _checked_pairs("wf.tf1.case: pred_fn_pairs", pred_fn_pairs, "predicate")
    if not pairs:
        raise InvalidArgumentError(
            "wf.tf1.case: there are no (predicate, function) pairs", location=caller_location()
        )
    functions = {f"pred_fn_pairs[{i}][1]": fn for i, (_, fn) in enumerate(pairs)}
    if default is None:
        default = pairs.pop()[1]
    else:
        functions["default"] = default
    check_callable("wf.tf1.case", **functions)
    return _first_true(pairs, default)


def _first_true(
    pairs: Sequence[tuple[TensorLike, Callable[[], Any]]], default: Callable[[], Any]
) -> Any:
    if not pairs:
        return default()
    (pred, fn), *rest = pairs
    return cond(pred, fn, (lambda: _first_true(rest, default)) if rest else default)


def _checked_pairs(what: str, given: Any, first: str) -> list[tuple[Any, Any]]:
    """`given` as pairs (`first`, function). InvalidArgumentError for what is none."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    for pair in listed:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise InvalidArgumentError(
                f"{what} holds {pair!r:.60}, not a pair ({first}, function)",
                location=caller_location(),
            )
    return [(pair[0], pair[1]) for pair in listed]


@shows_as_seen
def switch_case(
    branch_index: TensorLike,
    branch_fns: Sequence[Callable[..., Any]] | Mapping[int, Callable[..., Any]],
    *operands: Any,
    default: Callable[..., Any] | None = None,
) -> Any:
    """`branch_fns[branch_index](*operands)`, `default(*operands)` for an index that has none; of a
    list, also of pairs (index, function), or of a dict.

    Without a default that of the highest index. As TensorFlow's tf.switch_case, and as JAX's
    lax.switch but for indices below 0, which lax clamps to 0. The branches are found by halving.
    Types as in `wf.cond`.

    >>> wf.switch_case(1, [lambda x: x, lambda x: -x, lambda x: 0 * x], wf.asarray(5.0))
    Tensor(-5., dtype=float32)
    >>> wf.switch_case(7, {1: lambda: 10, 5: lambda: 50}, default=lambda: -1)
    Tensor(-1, dtype=int64, weak)
    """
    index = as_tensor(branch_index)
    if not index.dtype.is_integer or index.ndim:
        raise TypeRuleError(
            f"wf.switch_case: branch_index is {index.describe()}, not an integer without axes",
            location=caller_location(),
        )
    keys, fns = _numbered(branch_fns)
    if default is not None:
        fns.append(default)
    check_callable("wf.switch_case", **{f"branch_fns[{i}]": fn for i, fn in enumerate(fns)})
    last = len(fns) - 1
    if keys == list(range(len(keys))):
        bad = logical_or(less(index, 0), greater(index, last))
        return _halve(where(bad, last, index), fns, 0, operands)
    place: TensorLike = last
    for number, at in enumerate(keys):
        place = where(equal(index, at), number, place)
    return _halve(as_tensor(place), fns, 0, operands)


def _numbered(branch_fns: Any) -> tuple[list[int], list[Callable[..., Any]]]:
    """The indices, ascending, and their functions."""
    given = list(branch_fns.items()) if isinstance(branch_fns, Mapping) else branch_fns
    if not isinstance(given, (list, tuple)):
        raise InvalidArgumentError(
            f"wf.switch_case: branch_fns is {given!r:.60}, not a list or dict of functions",
            location=caller_location(),
        )
    if not given:
        raise InvalidArgumentError(
            "wf.switch_case: there are no functions", location=caller_location()
        )
    if not any(isinstance(item, tuple) for item in given):
        return list(range(len(given))), list(given)
    pairs = dict(_checked_pairs("wf.switch_case: branch_fns", given, "index"))
    for at in pairs:
        if not isinstance(at, (int, np.integer)) or isinstance(at, bool):
            raise InvalidArgumentError(
                f"wf.switch_case: the index {at!r:.60} is no integer", location=caller_location()
            )
    if len(pairs) < len(given):
        raise InvalidArgumentError(
            "wf.switch_case: two functions have the same index", location=caller_location()
        )
    return sorted(pairs), [pairs[at] for at in sorted(pairs)]


def _halve(
    index: Tensor, fns: Sequence[Callable[..., Any]], start: int, operands: Sequence[Any]
) -> Any:
    if len(fns) == 1:
        return fns[0](*operands)
    half = len(fns) // 2

    def branch(begin: int, end: int) -> Branch:
        if end - begin == 1:
            return f"branch_fns[{start + begin}]", fns[begin]
        call = lambda *xs: _halve(index, fns[begin:end], start + begin, xs)  # noqa: E731
        return f"branch_fns[{start + begin}:{start + end}]", call

    test = less(index, start + half)
    return _cond("wf.switch_case", test, branch(0, half), branch(half, len(fns)), operands)


def switch(data: TensorLike, pred: TensorLike) -> tuple[Tensor, Tensor]:
    """(output_false, output_true): `data` on the side that `pred` says; the other one is dead.

    pred: a bool without axes. An op with a dead operand or control dependency does not run, and
    what it gives is dead, up to a `wf.tf1.merge`. A fetch that is dead is an InvalidArgumentError
    of that run. Only in a `wf.Graph`: UnsupportedError elsewhere. The gradient of a switch is a
    merge, that of a merge a switch by `index`; what one side takes without a switch has a gradient
    in the runs that take it, and none that lives in the others. `wf.cond` has no such limits.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [])
    ...     small, large = wf.tf1.switch(x, x > 10)  # one of the two is dead
    ...     y, _ = wf.tf1.merge([small + 1, large / 2])
    ...     print(session.run(y, {x: 3}), session.run(y, {x: 20}))
    4.0 10.0
    """
    _check_graph("wf.tf1.switch")
    outputs = apply_many("switch", [as_tensor(data), predicate("wf.tf1.switch: pred", pred)], {})
    return outputs[0], outputs[1]


def merge(inputs: Sequence[TensorLike], *, loop: bool = False) -> tuple[Tensor, Tensor]:
    """(output, index): the one of `inputs` that is live, and its number, an int32 without axes.

    All have one dtype and shape (TypeRuleError). Both results are dead only if all inputs are; two
    that are live are an InvalidArgumentError when the graph runs. loop: the merge at the head of a
    loop, with one input, what `wf.tf1.enter` gives; `wf.tf1.next_iteration` brings it the others.
    Only in a `wf.Graph`.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [])
    ...     no, yes = wf.tf1.switch(x, x > 0)
    ...     output, index = wf.tf1.merge([-no, yes])
    ...     print(*session.run([output, index], {x: -2}), *session.run([output, index], {x: 3}))
    2.0 0 3.0 1
    """
    _check_graph("wf.tf1.merge")
    if not isinstance(inputs, (list, tuple)):
        raise TypeRuleError(
            f"wf.tf1.merge: inputs is a {type(inputs).__name__}, not a list of tensors",
            hint="wf.tf1.merge([a, b])",
            location=caller_location(),
        )
    output, index = apply_many("merge", [as_tensor(x) for x in inputs], {"loop": bool(loop)})
    return output, index


def enter(
    data: TensorLike, frame_name: str, is_constant: bool = False, parallel_iterations: int = 10
) -> Tensor:
    """`data` in the frame (the loop) of that name; is_constant: in each of its iterations.

    parallel_iterations: how many of the frame's iterations may be under way at once. A loop by
    hand, in names of `wf.tf1`: enter, `merge([entered], loop=True)`, `loop_cond`, `switch`, then
    `exit` on the false and `next_iteration` on the true side. Only in a `wf.Graph`; what no frame
    allows (ops on values of two frames) is an error that names the ops. `wf.while_loop` does it
    all.

    >>> with wf.Graph().as_default(), wf.Session() as session:  # while i < 3: i = i + 1
    ...     i, _ = wf.tf1.merge([wf.tf1.enter(wf.asarray(0), "loop")], loop=True)
    ...     done, more = wf.tf1.switch(i, wf.tf1.loop_cond(i < 3))
    ...     wf.tf1.next_iteration(more + 1, i)
    ...     print(session.run(wf.tf1.exit(done)))
    <Effect next_iteration>
    3
    """
    _check_graph("wf.tf1.enter")
    attrs: dict[str, AttrValue] = {
        "frame": frame_name,
        "constant": bool(is_constant),
        "parallel_iterations": parallel_iterations,
    }
    return apply_many("enter", [as_tensor(data)], attrs)[0]


def exit(data: TensorLike) -> Tensor:
    """`data` in the frame around its own: what the loop gives, when it has ended.

    A loop in which all next_iterations go by the one `loop_cond`, and all exits are of the false
    sides of switches by it, has the gradients of a `wf.while_loop`; others raise a GradientError.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x, _ = wf.tf1.merge([wf.tf1.enter(wf.asarray(1.0), "loop")], loop=True)
    ...     done, more = wf.tf1.switch(x, wf.tf1.loop_cond(x < 100.0))
    ...     again = wf.tf1.next_iteration(more * 2, x)
    ...     print(session.run(wf.tf1.exit(done)))
    128.0
    """
    _check_graph("wf.tf1.exit")
    return apply_many("exit", [as_tensor(data)], {})[0]


def loop_cond(pred: TensorLike) -> Tensor:
    """`pred`, a bool without axes, as that which decides whether the loop goes on.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x, _ = wf.tf1.merge([wf.tf1.enter(wf.asarray(100), "loop")], loop=True)
    ...     done, more = wf.tf1.switch(x, wf.tf1.loop_cond(x > 9))  # each switch takes it
    ...     again = wf.tf1.next_iteration(more // 2, x)
    ...     print(session.run(wf.tf1.exit(done)))
    6
    """
    _check_graph("wf.tf1.loop_cond")
    return apply_many("loop_cond", [predicate("wf.tf1.loop_cond: pred", pred)], {})[0]


def next_iteration(data: TensorLike, merge_output: Tensor) -> Effect:
    """The next iteration's value of a `merge(..., loop=True)`, whose output is `merge_output`.

    It gives no value: the graph has no cycle, and the merge gets it. A step that needs the merge
    does it.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     i, _ = wf.tf1.merge([wf.tf1.enter(wf.asarray(5), "loop")], loop=True)
    ...     done, more = wf.tf1.switch(i, wf.tf1.loop_cond(i > 0))
    ...     print(wf.tf1.next_iteration(more - 1, i), session.run(wf.tf1.exit(done)))
    <Effect next_iteration> 0
    """
    _check_graph("wf.tf1.next_iteration")
    trace = current_trace()
    assert trace is not None
    values = [trace.lift(as_tensor(data)), trace.lift(as_tensor(merge_output))]
    (token,) = trace.emit("next_iteration", values)
    return Effect(trace.name_scope + "next_iteration", token, trace)


def _check_graph(name: str) -> None:
    trace = current_trace()
    if trace is None or trace.kind != "graph":
        where = "outside of any graph" if trace is None else f"in {trace.describe()}"
        raise UnsupportedError(
            f"{name} belongs to a wf.Graph, and was called {where}",
            hint="call it inside `with graph.as_default():`, or use wf.cond",
            location=caller_location(),
        )
