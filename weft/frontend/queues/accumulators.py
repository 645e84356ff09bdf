"""Accumulators and barriers of TensorFlow 1: `ConditionalAccumulator` and
`SparseConditionalAccumulator` give the mean once enough workers' gradients are in; `Barrier` gives
elements all of whose components have arrived, by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from weft.frontend.autodiff.indexed_slices import IndexedSlices
from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.elementwise import add, greater_equal, less, logical_and, where
from weft.frontend.queues.host_ops import host_effect, host_op
from weft.frontend.state.resources import (
    dtype_list,
    eager,
    eager_or_graph,
    element_shapes,
    integer,
    label,
    made_at_once,
    one_shape,
    operand,
    shape_list,
    shared,
    trace_of_host_ops,
    whole_number,
    whole_numbers,
)
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.runtime.resources.accumulators import Accumulator, DenseAccumulator, SparseAccumulator
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.components import Components, ComponentShape
from weft.runtime.resources.queue_kinds import Barrier as BarrierCore


class SparseGradient(NamedTuple):
    """Some rows of an array: `indices` i64[n], `values` [n, ...], `shape` that of the array as an
    i64 tensor (None where it is not known)."""

    indices: Tensor
    values: Tensor
    shape: Tensor | None


class ConditionalAccumulatorBase:
    """The base class of both kinds of accumulators. A gradient with `local_step` before the global
    step is dropped.

    In a `wf.Graph` the accumulator is made at once, and the methods add ops: what applies a
    gradient is an effect, what takes one gives symbolic tensors.
    """

    __slots__ = ("_accumulator", "__weakref__")

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator

    @property
    def name(self) -> str:
        """The name given."""
        return self._accumulator.name

    @property
    def dtype(self) -> DType:
        """The dtype of the gradients."""
        return self._accumulator.dtype

    @eager_or_graph
    def num_accumulated(self, name: str | None = None) -> Tensor:
        """How many gradients were added since the last take, an int32 tensor."""
        return host_op("accumulator_num_accumulated", (), (self._accumulator,))[0]

    @eager_or_graph
    def set_global_step(self, new_global_step: Any, name: str | None = None) -> Any:
        """Drop gradients of steps before this one from now on."""
        a = self._accumulator
        step = whole_number(new_global_step, lambda: f"{a.describe()}: new_global_step", 0)
        return host_effect("accumulator_set_global_step", [step], (a,), name=name)

    @made_at_once
    @eager
    def state_dict(self) -> dict[str, Any]:
        """The sum, how many gradients are in it, and the global step, for a checkpoint."""
        return self._accumulator.state_dict()

    @made_at_once
    @eager
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Hold what the accumulator that gave `state` held. Returns self. InvalidArgumentError, and
        no change, if it does not fit."""
        self._accumulator.load_state_dict(state)
        return self

    def _apply(
        self, op: str, local_step: Any, indices: Sequence[Tensor], values: Any, name: str | None
    ) -> Any:
        a = self._accumulator
        step = whole_number(local_step, lambda: f"{a.describe()}: local_step")
        gradient = operand(values, a.dtype, lambda: f"{a.describe()}: apply_grad: the gradient")
        element_shapes(a, [gradient.ndim])  # of rows, too: the array has as many axes
        given = [step, *indices, gradient]
        return host_effect(op, given, (a,), name=name)

    def _take(self, op: str, num_required: Any, **how: Any) -> list[Tensor]:
        a = self._accumulator
        required = whole_number(num_required, lambda: f"{a.describe()}: num_required", 1)
        return host_op(op, [required], (a,), **how)


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """Adds up gradients of one dtype and shape; `take_grad` waits for enough and gives their mean
    (reduction_type="MEAN") or sum ("SUM"), starts anew and moves the global step on by one.

    The order of arrival is the order of the sum. 16-bit gradients are added up in float32.
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, dtype: Any, shape: Any = None, shared_name: str | None = None,
        name: str | None = None, reduction_type: str = "MEAN",
    ) -> None:  # fmt: skip
        name = label(name, "conditional_accumulator")
        super().__init__(
            _accumulator(DenseAccumulator, dtype, shape, shared_name, name, reduction_type)
        )

    @eager_or_graph
    def apply_grad(self, grad: Any, local_step: Any = 0, name: str | None = None) -> Any:
        """Add a gradient, unless it is stale. ShapeError or TypeRuleError if it does not fit."""
        return self._apply("accumulator_apply_gradient", local_step, (), grad, name)

    @eager_or_graph
    def take_grad(
        self, num_required: int, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Tensor:  # fmt: skip
        """Wait until `num_required` gradients are there; the mean of all that are."""
        (made,) = self._take(
            "accumulator_take_gradient", num_required, shapes=element_shapes(self._accumulator),
            timeout=timeout, cancel=cancel,
        )  # fmt: skip
        return made


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """As `ConditionalAccumulator`, of gradients that are some rows of an array of `shape`.

    The mean of a row is over those gradients that have it (TensorFlow's rule).
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, dtype: Any, shape: Any = None, shared_name: str | None = None,
        name: str | None = None, reduction_type: str = "MEAN",
    ) -> None:  # fmt: skip
        name = label(name, "sparse_conditional_accumulator")
        super().__init__(
            _accumulator(SparseAccumulator, dtype, shape, shared_name, name, reduction_type)
        )

    @eager_or_graph
    def apply_grad(
        self, grad_indices: Any, grad_values: Any, grad_shape: Any = None, local_step: Any = 0,
        name: str | None = None,
    ) -> Any:  # fmt: skip
        """Add a gradient, unless it is stale: rows `grad_values` [n, ...] at `grad_indices` i64[n];
        rows of one index add up. `grad_shape`, if given, must be the accumulator's shape."""
        what = f"{self._accumulator.describe()}: apply_grad"
        self._check_shape(grad_shape, what)
        indices = whole_numbers(grad_indices, f"{what}: grad_indices")
        op = "sparse_accumulator_apply_gradient"
        return self._apply(op, local_step, [indices], grad_values, name)

    @eager_or_graph
    def take_grad(
        self, num_required: int, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> SparseGradient:  # fmt: skip
        """Wait until `num_required` gradients are there; the rows that any of them has."""
        shape, (array,) = self._accumulator.shape, element_shapes(self._accumulator)
        indices, rows = self._take(
            "sparse_accumulator_take_gradient", num_required, sizes=1, shapes=[(array or ())[1:]],
            timeout=timeout, cancel=cancel,
        )  # fmt: skip
        if shape is None or None in shape:
            return SparseGradient(indices, rows, None)
        whole, trace = Tensor(np.array(shape, np.int64)), trace_of_host_ops()
        return SparseGradient(indices, rows, trace.tensor(trace.lift(whole)) if trace else whole)

    def apply_indexed_slices_grad(
        self, grad: Any, local_step: Any = 0, name: str | None = None
    ) -> Any:
        """`apply_grad` of `wf.IndexedSlices`, or anything with values, indices, dense_shape."""
        what = f"{self._accumulator.describe()}: apply_indexed_slices_grad"
        try:
            slices = _slices_of(grad, what)
        except WeftError as error:
            raise error.at(caller_location()) from None
        rows, at = slices.dense_shape[0], slices.indices
        from_end = logical_and(less(at, 0), greater_equal(at, -rows))
        indices = where(from_end, add(at, rows), at)
        return self.apply_grad(indices, slices.values, slices.dense_shape, local_step, name)

    def take_indexed_slices_grad(
        self, num_required: int, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> IndexedSlices:  # fmt: skip
        """`take_grad` as `wf.IndexedSlices`. FailedPreconditionError if the accumulator was made
        without the number of rows, which is part of them."""
        sizes = self._accumulator.shape
        if sizes is None or None in sizes:
            raise FailedPreconditionError(
                f"{self._accumulator.describe()}: take_indexed_slices_grad needs the whole shape",
                hint="give shape= when the accumulator is made",
                location=caller_location(),
            )
        indices, values, *_ = self.take_grad(num_required, name, timeout=timeout, cancel=cancel)
        return IndexedSlices(values, indices, [n for n in sizes if n is not None])

    def _check_shape(self, given: Any, what: str) -> None:
        declared = self._accumulator.shape
        if given is None or declared is None:
            return
        sizes = one_shape(given, f"{what}: grad_shape") or ()
        fits = len(sizes) == len(declared) and all(
            d is None or d == n for n, d in zip(sizes, declared, strict=True)
        )
        if not fits:
            raise InvalidArgumentError(
                f"{what}: grad_shape={format_shape(sizes)}, the accumulator has "
                f"{format_shape(declared)}"
            )


def _slices_of(grad: Any, what: str) -> IndexedSlices:
    """`grad` as IndexedSlices: anything with values, indices and dense_shape."""
    if isinstance(grad, IndexedSlices):
        return grad
    try:
        return IndexedSlices(grad.values, grad.indices, tuple(grad.dense_shape))
    except AttributeError:
        raise InvalidArgumentError(
            f"{what} takes wf.IndexedSlices, got a {type(grad).__name__}",
            hint="apply_grad takes indices and values",
        ) from None


def _accumulator(
    kind: type[DenseAccumulator] | type[SparseAccumulator], dtype: Any, shape: Any,
    shared_name: str | None, name: str, reduction: str,
) -> Accumulator:  # fmt: skip
    """The one that is shared under that name, or a new one."""
    owner = f"{kind.kind} '{name}'"
    element, sizes = as_dtype(dtype), one_shape(shape, owner)
    if not element.is_inexact:
        raise InvalidArgumentError(
            f"{owner}: gradients of dtype {element.name}", hint="gradients are floats or complex"
        )
    if reduction not in ("MEAN", "SUM"):
        raise InvalidArgumentError(
            f"{owner}: reduction_type={reduction!r}", hint='it is "MEAN" or "SUM"'
        )
    if kind is SparseAccumulator and sizes == ():
        raise InvalidArgumentError(f"{owner}: an array without axes has no rows")
    declared = f"{reduction} of {element.short} {sizes}"
    return shared(
        shared_name, kind, declared, lambda: kind(element, sizes, name, reduction == "MEAN")
    )


class Barrier:
    """Components arrive one by one, by key (strings); complete elements leave in the order in which
    their keys first came (TensorFlow 1's Barrier). types, shapes: those of the components.

    In a `wf.Graph` the barrier is made at once, and the methods add ops, as those of queues do.
    """

    __slots__ = ("_barrier", "__weakref__")

    @made_at_once
    @eager
    def __init__(
        self, types: Any, shapes: Any = None, shared_name: str | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        owner = f"Barrier '{(name := label(name, 'barrier'))}'"
        components = Components(owner, dtype_list(types), shape_list(shapes, owner))
        self._barrier = shared(
            shared_name, BarrierCore, str(components), lambda: BarrierCore(components, name)
        )

    @property
    def name(self) -> str:
        """The name given."""
        return self._barrier.name

    @eager_or_graph
    def insert_many(
        self, component_index: int, keys: Any, values: Any, name: str | None = None
    ) -> Any:
        """Give one component of the elements `keys` (a list of n strings) their `values` (stacked).

        InvalidArgumentError if a key has that component already, CancelledError if a key is new and
        the barrier is closed; then nothing is inserted.
        """
        parts = self._barrier.parts
        i = self._component(component_index)
        what = f"{parts.owner}: insert_many"
        given = [
            operand(keys, string, lambda: f"{what}: keys"),
            operand(values, parts.dtypes[i], lambda: f"{what}: {parts.label(i)}", by_rows=True),
        ]
        if given[1]._data is not None:
            parts.check(i, given[1]._data, "insert_many", batch=True)
        self._shapes(i, given[1].ndim - 1)
        return host_effect("barrier_insert_many", given, (self._barrier,), name=name, component=i)

    @eager_or_graph
    def take_many(
        self, num_elements: int, allow_small_batch: bool = False, timeout: float | None = None,
        name: str | None = None, *, cancel: CancelToken | None = None,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
        """Take `num_elements` complete elements, waiting for them: (indices, keys, values), values
        stacked, one tensor for each component. `indices` count keys from -2**63 on.

        If the barrier is closed and too few can become complete: OutOfRangeError, or, with
        `allow_small_batch`, those that there are. DeadlineExceededError after `timeout` seconds.
        ShapeError, and they stay, for values of a component that differ in shape.
        """
        barrier, shapes = self._barrier, self._shapes()
        n = integer(num_elements, f"{barrier.describe()}: take_many: num_elements")
        op = "barrier_take_up_to" if allow_small_batch else "barrier_take_many"
        indices, keys, *values = host_op(
            op, (), (barrier,), n=n, sizes=int(allow_small_batch), shapes=shapes, timeout=timeout,
            cancel=cancel,
        )  # fmt: skip
        return indices, keys, values

    @eager_or_graph
    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Any:
        """Accept no new keys. Those that miss components may still get them, or (with
        `cancel_pending_enqueues`) are dropped."""
        pending = bool(cancel_pending_enqueues)
        return host_effect("barrier_close", (), (self._barrier,), name=name, cancel_pending=pending)

    @eager_or_graph
    def ready_size(self, name: str | None = None) -> Tensor:
        """The number of complete elements, an int32 tensor."""
        return host_op("barrier_ready_size", (), (self._barrier,))[0]

    @eager_or_graph
    def incomplete_size(self, name: str | None = None) -> Tensor:
        """The number of keys that miss components, an int32 tensor."""
        return host_op("barrier_incomplete_size", (), (self._barrier,))[0]

    @made_at_once
    @eager
    def state_dict(self) -> dict[str, Any]:
        """The complete elements, the keys that miss components and what they have, for a
        checkpoint."""
        return self._barrier.state_dict()

    @made_at_once
    @eager
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Hold what the barrier that gave `state` held. Returns self. InvalidArgumentError, and no
        change, if it does not fit."""
        self._barrier.load_state_dict(state)
        return self

    def _shapes(self, component: int | None = None, axes: int = 0) -> Sequence[ComponentShape]:
        """The shapes of the components, outside of graphs as declared.

        In a graph, and in each trace of a function, each has one number of axes: where any shape
        will do, that of what is inserted first (so many `axes` of `component`), or of what is there
        while the graph is built, or was last. UnsupportedError where nothing says it and all must
        be known, as component is None.
        """
        barrier, trace = self._barrier, trace_of_host_ops()
        shapes = barrier.parts.shapes
        if trace is None or None not in shapes:
            return shapes
        known = trace.root().element_ranks
        ranks = list(known.get(barrier) or [None] * len(shapes))
        if component is None:
            pairs = zip(ranks, barrier.ranks(), strict=True)
            ranks = [there if rank is None else rank for rank, there in pairs]
        elif ranks[component] is None:
            ranks[component] = axes
            last = barrier.last_ranks or [None] * len(shapes)
            barrier.last_ranks = [axes if i == component else r for i, r in enumerate(last)]
        known[barrier] = ranks
        missing = [i for i, shape in enumerate(shapes) if shape is None and ranks[i] is None]
        if component is None and missing:
            raise UnsupportedError(
                f"{barrier.describe()}: {barrier.parts.label(missing[0])} may have any shape; a "
                "graph must know how many axes it has",
                hint="what is inserted first says it: add that op before this one, or give shapes= "
                "when the barrier is made, with None for sizes that vary",
            )
        return [
            (None,) * (rank or 0) if shape is None else shape
            for shape, rank in zip(shapes, ranks, strict=True)
        ]

    def _component(self, given: Any) -> int:
        parts = self._barrier.parts
        i = integer(given, f"{parts.owner}: component_index")
        if i >= len(parts):
            raise InvalidArgumentError(
                f"{parts.owner}: component_index={i}, but it has {len(parts)} components"
            )
        return i
