"""Loops over the rows of arrays: `scan`, `map_fn`, `foldl`, `foldr`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.control.region import (
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
    store,
    with_effects,
    without_gradient,
)
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import run_traced
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.ops.manipulation import concat
from weft.frontend.ops.promotion import cast, check_dtype
from weft.ir.dims import Dim, same
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType

_MISSING: Any = object()


def scan(
    f: Callable[..., Any],
    init: Any = _MISSING,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int = 1,
    *,
    elems: Any = _MISSING,
    initializer: Any = _MISSING,
) -> Any:
    """As JAX's lax.scan: `carry, y = f(carry, x)` for each row x of `xs`; (carry, stacked ys).

    init: the first carry, any nesting of tensors; f must return the same nesting, dtypes and shapes
    (Python numbers take the dtypes that f gives them). xs: a nesting of tensors with one size of
    the first axis, or None: then f gets None, `length` times. reverse: from the last row to the
    first; ys[i] still belongs to xs[i]. Where y is an Effect, or nothing at all is carried or
    returned, ys is the Effect of all iterations. unroll: taken for JAX's sake; it must be at least
    1 and changes nothing, as an iteration costs no dispatch.

    With `elems=`, as TensorFlow's tf.scan: `a = f(a, x)` for each row, from `initializer`, or from
    the first row if that is not given; the result is every a, stacked.

    Differentiable to any order; the backward pass stores what it needs of each iteration. Raises
    TypeRuleError or InvalidArgumentError where rows, carries or lengths do not fit.
    """
    check_callable("wf.scan", f=f)
    if elems is not _MISSING or initializer is not _MISSING:
        given = [x for x in (init, elems) if x is not _MISSING]
        if len(given) != 1 or xs is not None or length is not None:
            raise InvalidArgumentError(
                "wf.scan: elems= and initializer= are TensorFlow's arguments, init, xs and length "
                "are JAX's",
                hint="wf.scan(f, init, xs) or wf.scan(f, elems=x, initializer=a)",
                location=caller_location(),
            )
        return _scan_tf(f, given[0], initializer, reverse)
    if init is _MISSING:
        raise InvalidArgumentError(
            "wf.scan: init is missing",
            hint="wf.scan(f, init, xs) or wf.scan(f, elems=x, initializer=a)",
            location=caller_location(),
        )
    if not _is_count(unroll) or unroll < 1:
        raise InvalidArgumentError(
            f"wf.scan: unroll is {unroll!r:.40}, not an int >= 1", location=caller_location()
        )
    return _scan("wf.scan", f, init, xs, length, reverse)


def _scan(
    what: str, f: Callable[..., Any], init: Any, xs: Any, length: Any, reverse: bool
) -> tuple[Any, Any]:
    inputs, structure = operand_tensors(what, init, "init")
    sequences, nesting = operand_tensors(what, xs, "xs")
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
        found = f(carry, pytree.unflatten(nesting, given[len(inputs) :]))
        if not (isinstance(found, (tuple, list)) and len(found) == 2):
            raise TypeRuleError(
                f"{what}: f returned a {type(found).__name__}, not a pair (carry, y)",
                hint="return (carry, None) without a y; for TensorFlow's scan write "
                "wf.scan(f, elems=x, initializer=a)",
                location=caller_location(),
            )
        return tuple(found)

    return _emit_scan(what, f, call, inputs, structure, sequences, rows, count, reverse)


def _is_count(x: object) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool) and int(x) >= 0


def _length(what: str, sequences: Sequence[Tensor], paths: Sequence[str], length: Any) -> Dim:
    """The number of iterations, which all sequences and `length` agree on."""
    if not (length is None or _is_count(length)):
        raise InvalidArgumentError(
            f"{what}: length is {length!r:.60}, not an int >= 0",
            hint="a number of iterations that is computed needs wf.while_loop or wf.fori_loop",
            location=caller_location(),
        )
    known: Dim = None if length is None else int(length)
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
