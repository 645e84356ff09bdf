"""Regions: the bodies of `cond`, `while_loop` and `scan`, traced.

A region is isolated: outer tensors that a body uses become further operands. Variables do, too: a
body that assigns to one takes its value as an argument, returns the new value, and the assignment
is made after the op. So the ops themselves hold no effects, but for ops of the host in a
`wf.Graph` (`core/trace.py`).

Sizes that depend on values: what differs between the two sides of a branch, or from one iteration
to the next, gets a name of its own (`meeting`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.function_trace import definition, result_tensor
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import (
    Effect,
    RegionTrace,
    StateHandle,
    current_trace,
    graph_around,
    must_be_live,
)
from weft.frontend.ops.dispatch import apply, fresh_sizes
from weft.frontend.ops.promotion import REPRESENTATIVE, TensorLike, cast
from weft.ir.dims import Dim, Shape, SymbolicDim, same
from weft.ir.dtypes import DType, bool_, complex128, float64, int64, promote_scalar
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.graph import Block, Value
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType


def meeting(a: Shape, b: Shape, own: set[str] | None = None) -> Shape:
    """A shape for values that have either of these: `a`, with a new name for each size that is not
    the same in both and depends on values in one of them.

    own: the names that such sizes of `a` have been given for this purpose, which stay; new ones are
    added.
    """
    trace = current_trace()
    if trace is None or len(a) != len(b):
        return a
    made, kept = trace.root().made_sizes, set() if own is None else own
    apart = [
        x != y and not depends(x, kept) and (depends(x, made) or depends(y, made))
        for x, y in zip(a, b, strict=True)
    ]
    names = fresh_sizes(trace, "size", sum(apart)) if any(apart) else ()
    kept.update(names)
    new = iter(names)
    return tuple(
        SymbolicDim.symbol(next(new)) if is_new else x for x, is_new in zip(a, apart, strict=True)
    )


def renamed(t: Tensor, shape: Shape) -> Tensor:
    """`t` with the names that `meeting` gave to sizes in `shape`, and as one of that shape if it
    may have it, which is checked when the sizes are known; `t` if there is nothing to do."""
    trace = current_trace()
    if trace is None or t.shape == shape:
        return t
    made = trace.root().made_sizes
    new = [a != b and depends(b, made) for a, b in zip(t.shape, shape, strict=True)]
    names = tuple(str(d) for d, is_new in zip(shape, new, strict=True) if is_new)
    out = t
    if names:
        given = tuple(None if is_new else d for d, is_new in zip(t.shape, new, strict=True))
        out = apply("ensure_shape", t, shape=given, sizes=names)
    if out.shape != shape and all(map(_may_be, out.shape, shape)):
        out = apply("broadcast_to", out, shape=shape)  # a reshape would take [2,3] for [3,2]
    out.weak = t.weak
    return out


def _may_be(a: Dim, b: Dim) -> bool:
    """Whether two sizes are equal for some values of their symbols, as far as that is seen."""
    apart = None if a is None or b is None else a - b
    return apart == 0 or isinstance(apart, SymbolicDim)


def check_stacked(what: str, ys: Sequence[Tensor], before: Collection[str]) -> None:
    """ShapeError for results of an iteration whose sizes are made in it: they do not stack. before:
    the sizes that depend on values outside."""
    trace = current_trace()
    assert trace is not None
    made = trace.root().made_sizes - set(before)
    for y in ys:
        if any(depends(d, made) for d in y.shape):
            raise ShapeError(
                f"{what}: a result of an iteration is {y._type}: its size depends on values, and "
                "may be another in the next iteration",
                hint="results are stacked: give them one size, or carry what is put together",
                location=caller_location(),
            )


def depends(dim: Dim, made: Collection[str]) -> bool:
    """Whether a size is made of one of these."""
    return isinstance(dim, SymbolicDim) and not dim.symbols.isdisjoint(made)


#: What an argument of a body is: its type, and whether it yields to the dtype of what it meets.
Kind = tuple[TensorType, bool]

_WIDE = (int64, float64, complex128)  # the dtypes in which weak values are held, lowest first


class Body:
    """One region under construction: a function traced on arguments of these kinds.

    The region takes the values of `variables` between `kinds` and `rows`; those that are `live` are
    read and updated in it.
    """

    def __init__(
        self,
        name: str,
        fn: Any,
        call: Callable[[list[Tensor]], Any],
        kinds: Sequence[Kind],
        variables: Iterable[StateHandle] = (),
        rows: Sequence[Kind] = (),
        live: Sequence[StateHandle] = (),
    ) -> None:
        self.name = name
        self.trace = RegionTrace(name, current_trace(), live)
        try:
            with self.trace.active():
                args = [self._argument(*kind) for kind in kinds]
                for variable in variables:
                    held = TensorType(variable.dtype, variable.shape)
                    self.trace.held(variable, self._argument(held, False))
                args += [self._argument(*kind) for kind in rows]
                self.count = len(self.trace.builder.args)
                #: What the function returned, with Effects.
                self.returned = call(args)
                leaves, self.structure = pytree.flatten(without_effects(self.returned))
                self.paths = pytree.paths(self.structure, "result")
                where = definition(fn)
                pairs = zip(leaves, self.paths, strict=True)
                self.leaves = [self._own(result_tensor(x, p, name, where)) for x, p in pairs]
        except BaseException:
            self.trace.closed = True
            raise

    def _argument(self, kind: TensorType, weak: bool) -> Tensor:
        return self.trace.tensor(self.trace.add_arg(kind, "x"), weak)

    def _own(self, t: Tensor) -> Tensor:
        """`t` as a tensor of this region."""
        return self.trace.tensor(self.trace.lift(t), t.weak)

    @property
    def written(self) -> list[StateHandle]:
        """The variables that the body assigned to, in order."""
        return list(self.trace.written)

    def convert(self, kinds: Sequence[Kind]) -> None:
        """Convert the first results to these dtypes."""
        with self.trace.active():
            for i, kind in enumerate(kinds):
                self.leaves[i] = as_kind(self.leaves[i], kind)

    def values_of(self, variables: Sequence[StateHandle]) -> list[Value]:
        """The values that variables have at the end of the body."""
        with self.trace.active():
            return [self.trace.lift(self.trace.value_of(v)) for v in variables]

    def block(self, results: Sequence[Value], captured: Sequence[Value]) -> Block:
        """The region with the arguments of the body and one for each outer value `captured`."""
        trace = self.trace
        trace.closed = True
        if list(trace.captures) == list(captured):
            return trace.builder.block(results)
        builder = Builder([v.type for v in (*trace.builder.args[: self.count], *captured)])
        mapping = dict(zip(trace.builder.args, builder.args[: self.count], strict=False))
        place = dict(zip(captured, builder.args[self.count :], strict=True))
        mapping.update((arg, place[outer]) for outer, arg in trace.captures.items())
        for op in trace.builder.ops:
            mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
        return builder.block([mapping[v] for v in results])


def without_effects(tree: Any) -> Any:
    """The tree with None in place of Effects."""
    return pytree.tree_map(lambda leaf: None if isinstance(leaf, Effect) else leaf, tree)


def with_effects(tree: Any, returned: Sequence[Any], effect: Effect | None) -> Any:
    """`tree` with `effect` wherever one of the functions returned an Effect."""
    if effect is None:
        return tree
    if any(isinstance(x, Effect) for x in returned):
        return effect
    if type(tree) in (list, tuple):
        found = [
            with_effects(x, [r[i] for r in returned if isinstance(r, (list, tuple))], effect)
            for i, x in enumerate(tree)
        ]
        return type(tree)(found)
    if type(tree) is dict:
        return {
            k: with_effects(x, [r[k] for r in returned if isinstance(r, dict)], effect)
            for k, x in tree.items()
        }
    return tree


def without_gradient(tree: Any) -> Any:
    """`tree` with tensors that are constants to differentiation."""

    def closed(leaf: Any) -> Any:
        return apply("stop_gradient", leaf) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(closed, tree)


def overlap(what: str, parallel: Any) -> int:
    """How many iterations may be under way at once. InvalidArgumentError for no count."""
    if isinstance(parallel, (int, np.integer)) and not isinstance(parallel, bool) and parallel >= 1:
        return int(parallel)
    raise InvalidArgumentError(
        f"{what}: parallel_iterations is {parallel!r:.60}, not an int >= 1",
        hint="1: one iteration after another",
        location=caller_location(),
    )


def holds_effects(*returned: Any) -> bool:
    """Whether one of the functions returned an Effect."""
    leaves = (leaf for tree in returned for leaf in pytree.flatten(tree)[0])
    return any(isinstance(leaf, Effect) for leaf in leaves)


def anchor(bodies: Sequence[Body], results: Sequence[list[Value]]) -> bool:
    """If the bodies act and give nothing, let each give true: what comes after the op depends on
    it. Whether that was needed."""
    needed = not results[0] and any(body.trace.acts for body in bodies)
    if needed:
        for body, found in zip(bodies, results, strict=True):
            found.append(body.trace.constant(np.array(True)))
    return needed


def outer_control(*bodies: Body) -> list[Value]:
    """What the op with these bodies comes after, as the bodies ask."""
    return list(dict.fromkeys(v for body in bodies for v in body.trace.waits))


def done(name: str, acts: bool, values: Sequence[Value], tokens: Sequence[Value]) -> Effect | None:
    """In a graph: what stands for all that an op does, and for assignments of what it gave; None if
    it does nothing."""
    trace = graph_around(current_trace())
    after = [*(values[:1] if acts else ()), *tokens]
    if trace is None or not after:
        return None
    (token,) = trace.emit("group", control=after)
    return Effect(trace.name_scope + name, token, trace)


def captures(*bodies: Body) -> list[Value]:
    """The outer values that any of the bodies uses, each once."""
    return list(dict.fromkeys(v for body in bodies for v in body.trace.captures))


def kind_of(t: Tensor) -> Kind:
    """Type and weakness of a tensor."""
    return t._type, t.weak


def converted(t: Tensor, dtype: DType, weak: bool) -> Tensor:
    """`t` in `dtype`, weak or not."""
    if not weak:
        return cast(t, dtype)
    if t.dtype is not dtype:
        t = apply("astype", t, dtype=dtype)
        t.weak = True
    return t


def as_kind(t: Tensor, kind: Kind) -> Tensor:
    """`t` with the dtype of a kind, weak or not, and the names of sizes that depend on values."""
    return renamed(converted(t, kind[0].dtype, kind[1]), kind[0].shape)


def joined(a: Kind, b: Kind) -> Kind | None:
    """The one kind that values of both kinds can have; None if there is none.

    Weak values yield to the dtypes of others as in an op; dtypes of arrays are never changed.
    """
    (x, x_weak), (y, y_weak) = a, b
    if not _same_shape(a, b):
        return None
    if x_weak and y_weak:
        return (x if _WIDE.index(x.dtype) >= _WIDE.index(y.dtype) else y), True
    if x_weak or y_weak:
        strong, weak = (y, x) if x_weak else (x, y)
        fits = strong.dtype.is_numeric and (
            promote_scalar(strong.dtype, REPRESENTATIVE[weak.dtype.kind]) is strong.dtype
        )
        return (strong, False) if fits else None
    return (x, False) if x.dtype is y.dtype else None


def carried(before: Kind, after: Kind) -> Kind | None:
    """The kind of a carry that starts as `before` and is `after` one iteration later, if any.

    A weak start takes the dtype that the body gives.
    """
    both = joined(before, after)
    if both is None and before[1] and not after[1] and after[0].dtype.is_numeric:
        if _same_shape(before, after):
            dtype = promote_scalar(after[0].dtype, REPRESENTATIVE[before[0].dtype.kind])
            return TensorType(dtype, after[0].shape), False
    return both


def _same_shape(a: Kind, b: Kind) -> bool:
    return a[0].rank == b[0].rank and all(map(same, a[0].shape, b[0].shape))


def mismatch(what: str, path: str, first: str, second: str) -> TypeRuleError:
    """The error for a leaf that has two types."""
    return TypeRuleError(
        f"{what} at {path}: {first}, {second}",
        hint="both must have the same shape and dtype: convert with wf.astype, wf.reshape or "
        "wf.broadcast_to",
        location=caller_location(),
    )


def operand_tensors(what: str, tree: Any, root: str) -> tuple[list[Tensor], pytree.Structure]:
    """The leaves as tensors, and how they nest. TypeRuleError for a leaf that is no tensor."""
    leaves, structure = pytree.flatten(tree)
    named = zip(leaves, pytree.paths(structure, root), strict=True)
    out = []
    for leaf, path in named:
        if not isinstance(leaf, (Operators, bool, int, float, complex, np.ndarray, np.generic)):
            raise TypeRuleError(
                f"{what}: {path} is a {type(leaf).__name__}, not a tensor: {leaf!r:.60}",
                hint="pass tensors, numbers, and lists, tuples, dicts or dataclasses of them; let "
                "the functions use anything else from outside",
                location=caller_location(),
            )
        out.append(as_tensor(leaf))
    return out, structure


def predicate(what: str, pred: TensorLike) -> Tensor:
    t = as_tensor(pred)
    if t.dtype is not bool_ or t.ndim:
        hint = "compare it, as in `x > 0`" if not t.ndim else "reduce it with wf.any or wf.all"
        raise TypeRuleError(
            f"{what} is {t.describe()}, not a bool without axes",
            hint=hint,
            location=caller_location(),
        )
    return t


def carry_body(
    what: str,
    name: str,
    fn: Any,
    call: Callable[[list[Tensor]], Any],
    inputs: Sequence[Tensor],
    structure: pytree.Structure,
    rows: Sequence[Kind] | None = None,
    live: Sequence[StateHandle] = (),
    given: tuple[Sequence[Kind], set[str]] | None = None,
) -> tuple[Body, list[Kind], list[StateHandle]]:
    """Trace a loop's body until what it takes and what it returns agree.

    Weak carries take the dtype that the body gives them, and variables that it assigns to become
    carries. With `rows`, the kinds of further arguments, the body returns a pair (carries, other
    results). given: the kinds to begin with, and the names of sizes in them that may change.
    Returns the body, whose first results are the carries, their kinds, and the variables.
    """
    kinds = [kind_of(t) for t in inputs] if given is None else list(given[0])
    own: set[str] = set() if given is None else set(given[1])
    written: list[StateHandle] = []
    while True:
        body = Body(name, fn, call, kinds, written, rows or (), live)
        found = body.structure
        if rows is not None:
            assert found is not None  # `call` gives a pair
            found = found.children[0]
        pytree.same_structure(
            f"{what}: the carry and what the body returns for it", structure, found
        )
        after = _agreed(what, body, kinds, pytree.paths(structure, "carry"), own)
        acting = must_be_live([body.trace])
        known = set(map(id, (*written, *acting)))  # == would compare values
        more = [v for v in body.written if id(v) not in known]
        if after == kinds and not (more or acting):
            body.convert(kinds)
            return body, kinds, written
        body.trace.closed = True
        live = [*live, *acting]
        now_live = set(map(id, live))
        kinds, written = after, [v for v in (*written, *more) if id(v) not in now_live]


def _agreed(
    what: str, body: Body, kinds: Sequence[Kind], paths: Sequence[str], own: set[str]
) -> list[Kind]:
    """The kinds that carries have before and after an iteration; own: the names of their sizes."""
    out = []
    for kind, leaf, path in zip(kinds, body.leaves, paths, strict=False):
        both = carried(kind, kind_of(leaf))
        if both is None:
            raise mismatch(
                f"{what}: a carry changes its type in the body",
                path,
                f"it is {kind[0]} before the iteration",
                f"the body returns {leaf.describe()}",
            )
        shape = meeting(kind[0].shape, leaf.shape, own)
        out.append((TensorType(both[0].dtype, shape), both[1]))
    return out


def check_callable(what: str, **functions: Any) -> None:
    """Raise InvalidArgumentError for an argument that is no function."""
    for name, fn in functions.items():
        if not callable(fn):
            raise InvalidArgumentError(
                f"{what}: {name} is a {type(fn).__name__}, not a function",
                hint="pass a function, such as `lambda: x`",
                location=caller_location(),
            )


def store(
    variables: Sequence[StateHandle], values: Sequence[Value], results: list[Tensor]
) -> tuple[list[Tensor], list[Value]]:
    """Assign to the variables what the op gives for them; the assignments in a graph.

    In a graph whoever fetches one of `results` makes the assignments happen: they are returned
    with that dependence.
    """
    trace = current_trace()
    assert trace is not None
    tokens = []
    for variable, value in zip(variables, values, strict=True):
        if isinstance(trace, RegionTrace) and trace.is_live(variable):
            trace.effects.write(variable, value)
        elif trace.state is not None:
            trace.carry(variable, trace.tensor(value))
        else:
            tokens.append(trace.effects.write(variable, value))
    if trace.kind != "graph" or not tokens:
        return results, []
    kept = []
    for t in results:
        (value,) = trace.emit("identity", (trace.lift(t),), control=tokens)
        kept.append(trace.tensor(value, t.weak))
    return kept, tokens
