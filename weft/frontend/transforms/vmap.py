"""`vmap`: a function of one example becomes a function of a batch of them.

The function is traced once, for one example; `passes/batching` makes the ops for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.core import pytree
from weft.frontend.core.function_trace import function_name, run_traced
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace, check_usable, current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.dispatch import apply, fixed_sizes
from weft.frontend.transforms.axes import NamedAxis, axes_called
from weft.frontend.transforms.body import Transformed
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, same
from weft.ir.errors import InvalidArgumentError, ShapeError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType
from weft.passes.autodiff.control_flow import in_batch
from weft.passes.batching.batch import Batched, batch_block


class RowsDifferError(InvalidArgumentError):
    """A result that is to be the same for all examples differs. path: which one."""

    path = ""


#: A number for each leaf, or None for a leaf that all examples share; trees may end early.
Axes = Any


def vmap(
    fn: Callable[..., Any],
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    *,
    axis_size: int | None = None,
    axis_name: str | None = None,
) -> Callable[..., Any]:
    """The function that does `fn` for each example of a batch, as one computation (JAX's jax.vmap).

    fn: takes and returns trees of tensors, of one example each. in_axes: for each positional
    argument the axis along which its tensors hold the examples, or None: all examples share it; one
    number for all arguments, or a tuple of one for each, which may be a tree like the argument or
    its beginning. Negative axes count from the end. Keyword arguments have axis 0. out_axes:
    likewise, where the results have the examples; None for a result that is the same for all.
    axis_size: how many examples there are, needed only where no argument has an axis. axis_name: by
    which `wf.collectives` in fn mean all examples.

    `vmap(grad(f))` are per-example gradients. A branch (`wf.cond`) whose predicate differs by
    example computes both sides; a `wf.while_loop` goes on until the last example is done. Random
    numbers of a generator differ by example; a key that all share gives all the same. An op with no
    rule for batches runs example by example.

    InvalidArgumentError for axes that do not fit the arguments, ShapeError for sizes that differ,
    UnsupportedError for ops that act outside the graph on values that differ by example, and for
    assignments of such values to variables.

    >>> gradients = wf.vmap(wf.grad(lambda w, x: (w * x) ** 2), in_axes=(None, 0))
    >>> gradients(wf.asarray(3.0), wf.asarray([1.0, 2.0]))
    Tensor([ 6., 24.], dtype=float32)
    """
    if not callable(fn):
        raise InvalidArgumentError(
            f"vmap: fn is a {type(fn).__name__}, not a function", location=caller_location()
        )
    return batched_function(fn, in_axes, out_axes, axis_size, _checked_name(axis_name))


def batched_function(
    fn: Callable[..., Any],
    in_axes: Axes,
    out_axes: Axes,
    axis_size: int | None,
    axis: str,
    apart: bool = False,
) -> Callable[..., Any]:
    """`vmap`, for what is checked. apart: the examples are shards, each of which is to have the
    bits that a process of its own would have."""

    @shows_as_seen
    @functools.wraps(fn)
    def batched(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.flatten((args, kwargs))
        assert structure is not None
        given, named = structure.children
        found = [*_argument_axes(in_axes, given), *_prefix("in_axes", 0, named)]
        names = pytree.paths(structure, "arguments")
        inputs = _Inputs(function_name(fn), leaves, found, names, axis_size)

        def call(rows: list[Any]) -> Any:
            given, named = pytree.unflatten(structure, rows)
            return fn(*given, **named)

        def compute(tensors: list[Tensor]) -> Any:
            return _batch(fn, inputs, tensors, call, out_axes, axis, apart)

        if current_trace() is not None:
            return compute(inputs.tensors)
        return run_traced(f"vmap_{function_name(fn)}", compute, inputs.tensors)

    return batched


def _checked_name(axis_name: object) -> str:
    """The name of an axis, "" for None. InvalidArgumentError for what is none."""
    if axis_name is None:
        return ""
    if not isinstance(axis_name, str) or not axis_name:
        raise InvalidArgumentError(
            f"vmap: axis_name is a str, got {axis_name!r:.60}", location=caller_location()
        )
    return axis_name


def _argument_axes(in_axes: Axes, args: pytree.Structure) -> list[int | None]:
    """An axis for each leaf of the positional arguments."""
    assert args is not None
    axes = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args.children)
    if len(axes) != len(args.children):
        raise InvalidArgumentError(
            f"vmap: in_axes names {len(axes)} arguments, but the function was called with "
            f"{len(args.children)} positional ones",
            location=caller_location(),
        )
    return _prefix("in_axes", axes, args)


@dataclass(frozen=True, slots=True)
class _Row:
    """A leaf of the arguments that is a tensor: its number among them, and the examples' axis."""

    leaf: int
    axis: int | None


class _Inputs:
    """The leaves of the arguments: tensors, those that have an axis, and what is no tensor."""

    def __init__(
        self,
        name: str,
        leaves: Sequence[Any],
        axes: Sequence[int | None],
        names: Sequence[str],
        size: int | None,
    ) -> None:
        self.leaves, self.rows, self.tensors = list(leaves), [], []
        self.size: Dim = size
        first = "axis_size"
        for k, (leaf, axis, path) in enumerate(zip(leaves, axes, names, strict=True)):
            if axis is None and not isinstance(leaf, Tensor):
                continue
            t = as_tensor(leaf)
            if t._data is None:
                check_usable(t, current_trace())
            if axis is not None:
                axis, length = self._length(t, axis, path)
                if self.size is not None and not same(self.size, length):
                    raise ShapeError(
                        f"vmap of '{name}': {first} has {self.size} examples, and {path} "
                        f"{length}, along its axis {axis}",
                        location=caller_location(),
                    )
                if self.size is None or isinstance(length, int):
                    first, self.size = path, length
            self.rows.append(_Row(k, axis))
            self.tensors.append(t)
        if self.size is None:
            raise InvalidArgumentError(
                f"vmap of '{name}': no argument has an axis of examples",
                hint="say how many there are with axis_size, or give an argument an axis",
                location=caller_location(),
            )

    def _length(self, t: Tensor, axis: int, path: str) -> tuple[int, Dim]:
        if not -t.ndim <= axis < t.ndim:
            raise InvalidArgumentError(
                f"vmap: in_axes says axis {axis} for {path}, which is {t.describe()}",
                hint="None is for what all examples share",
                location=caller_location(),
            )
        axis %= t.ndim
        return axis, t.shape[axis]


def _prefix(what: str, axes: Axes, structure: pytree.Structure) -> list[int | None]:
    """An axis for each leaf of a structure, from a tree of axes that may end before it."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        return [axes] * pytree.count_leaves(structure)
    parts = pytree.children(axes)
    if structure is None or parts is None or len(parts) != len(structure.children):
        raise InvalidArgumentError(
            f"vmap: {what} has {axes!r:.60} for {pytree.describe(structure)}",
            hint="an axis is an int or None; a tuple, list or dict of axes nests as its tensors do",
            location=caller_location(),
        )
    pairs = zip(parts, structure.children, strict=True)
    return [axis for part, child in pairs for axis in _prefix(what, part, child)]


def _batch(
    fn: Callable[..., Any],
    inputs: _Inputs,
    tensors: Sequence[Tensor],
    call: Callable[[list[Any]], Any],
    out_axes: Axes,
    axis_name: str,
    apart: bool,
) -> Any:
    """Trace the function for one example, and append what it is for all to the current trace."""
    trace = current_trace()
    assert trace is not None
    size = inputs.size
    kinds, given = [], []
    for t, row in zip(tensors, inputs.rows, strict=True):
        moved = t if row.axis is None else _moved(t, row.axis, 0)
        shape = moved.shape if row.axis is None else moved.shape[1:]
        kinds.append((TensorType(t.dtype, shape), t.weak))
        given.append((trace.lift(moved), row.axis is not None))

    def one(rows: list[Tensor]) -> Any:
        leaves = list(inputs.leaves)
        for row, t in zip(inputs.rows, rows, strict=True):
            leaves[row.leaf] = t
        with fixed_sizes():
            return call(leaves)

    with axes_called({axis_name: NamedAxis(size)} if axis_name else {}), in_batch():
        body = Transformed("vmap", fn, one, kinds)
    operands = [*given, *((v, False) for v in body.captured)]
    found = batch_block(trace.builder, body.block, operands, size, body.states, axis_name, apart)
    body.placed()
    states = found[len(body.leaves) :]
    for variable, (_, is_batched) in zip(body.written, states, strict=True):
        if is_batched:
            raise UnsupportedError(
                f"vmap: variable '{variable.name}' would be assigned one value for each example",
                hint="return the values, and assign what is made of them outside",
                location=caller_location(),
            )
    axes = _prefix("out_axes", out_axes, body.structure)
    results = [
        _placed(trace, made, axis, leaf, size, path)
        for made, axis, leaf, path in zip(found, axes, body.leaves, body.paths, strict=False)
    ]
    return body.nested(results, [v for v, _ in states])


def _moved(t: Tensor, source: int, target: int) -> Tensor:
    axes = [k for k in range(t.ndim) if k != source]
    axes.insert(target, source)
    if axes == list(range(t.ndim)):
        return t
    out = apply("permute_dims", t, axes=tuple(axes))
    out.weak = t.weak
    return out


def _placed(
    trace: Trace, made: Batched, axis: int | None, leaf: Tensor, size: Dim, path: str
) -> Tensor:
    """A result with the examples along the axis that `out_axes` says."""
    value, is_batched = made
    out = trace.tensor(value, leaf.weak)
    if axis is None:
        if is_batched:
            error = RowsDifferError(
                f"vmap: out_axes is None for {path}, which differs from example to example",
                hint="give it an axis",
                location=caller_location(),
            )
            error.path = path
            raise error
        return out
    rank = leaf.ndim + 1
    if not -rank <= axis < rank:
        raise InvalidArgumentError(
            f"vmap: out_axes says axis {axis} for {path}, which has {rank} axes with that of the "
            "examples",
            location=caller_location(),
        )
    if not is_batched:
        out = apply("broadcast_to", out, shape=(size, *out.shape))
        out.weak = leaf.weak
    return _moved(out, 0, axis % rank)
