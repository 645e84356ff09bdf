"""Optimizers around others: `GradientAccumulation`, which applies the mean of several gradients,
and `LossScaling`, for gradients computed in float16.

Both decide at run time whether the optimizer inside makes a step, by `wf.cond`; they work in
sessions, in compiled functions and eagerly, and one may be inside the other. A checkpoint of theirs
has their own state: save the optimizer inside beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.autodiff.indexed_slices import IndexedSlices
from weft.frontend.control.branches import cond
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import suspend_trace
from weft.frontend.ops.elementwise import (
    add,
    divide,
    equal,
    isfinite,
    logical_and,
    maximum,
    minimum,
    multiply,
    remainder,
    where,
)
from weft.frontend.ops.promotion import TensorLike, cast, check_int, expand, widened
from weft.frontend.ops.reduction import all
from weft.frontend.optim.optimizer import GradientAndVariable, Optimizer
from weft.frontend.state.variable import Variable
from weft.ir.dtypes import DType, float32, int64
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType


class _Wrapper(Optimizer):
    """The common part: an optimizer inside, and variables of one's own."""

    #: Own variables and their dtypes, all without axes.
    _own: tuple[tuple[str, DType], ...] = ()

    def __init__(self, optimizer: Optimizer, name: str | None) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeRuleError(
                f"wf.train.{type(self).__name__}: goes around an optimizer, got a "
                f"{type(optimizer).__name__}",
                location=caller_location(),
            )
        super().__init__(0.0, name)
        self.learning_rate = optimizer.learning_rate  # None of Adafactor's without one, too
        self.optimizer = optimizer
        self.takes_complex = optimizer.takes_complex
        self._states: dict[str, Variable] = {}

    def variables(self) -> list[Variable]:
        """Its own state; that of `optimizer` is its own."""
        return [*self._states.values(), *super().variables()]

    def _traced_gradients(
        self,
        loss: Any,
        variables: Sequence[Variable] | None,
        grad_loss: TensorLike | None,
        colocated: bool,
    ) -> list[GradientAndVariable]:
        # that of the optimizer: it may scale the loss
        return self.optimizer._traced_gradients(loss, variables, grad_loss, colocated)

    def _state(self, name: str, start: float) -> Variable:
        """The own variable of that name, made with its first use."""
        with self._lock, suspend_trace():
            if name not in self._states:
                value = np.asarray(start, dict(self._own)[name].numpy)
                self._states[name] = Variable(value, trainable=False, name=f"{self.name}/{name}")
        return self._states[name]

    def _state_type(self, name: str, stored: TensorType) -> TensorType | None:
        dtype = dict(self._own).get(name)
        return None if dtype is None else TensorType(dtype, ())

    def _make_state(self, name: str, wanted: TensorType) -> Variable:
        return self._state(name, 0)


class GradientAccumulation(_Wrapper):
    """Every `steps`-th time the optimizer applies the mean of that many gradients; in between
    nothing changes but the sums (and `global_step`, which counts each).

    average: False for the sum. The state is one slot for each variable. InvalidArgumentError for
    fewer steps than 1, and for other variables than in the call before.

    >>> w = wf.Variable(0.0)
    >>> optimizer = wf.train.GradientAccumulation(wf.train.SGD(1.0), steps=2)
    >>> @wf.compile
    ... def step(x):
    ...     optimizer.minimize(w * x)
    ...     return w.read()
    >>> [float(step(x)) for x in (1.0, 3.0, 10.0, 20.0)]  # the means are 2 and 15
    [0.0, -2.0, -2.0, -17.0]
    """

    _own = (("count", int64),)

    def __init__(
        self, optimizer: Optimizer, steps: int, average: bool = True, name: str | None = None
    ) -> None:
        super().__init__(optimizer, name)
        self.steps = check_int("train.GradientAccumulation", steps, "steps")
        if self.steps < 1:
            raise InvalidArgumentError(
                f"wf.train.GradientAccumulation: steps must be at least 1, got {self.steps}",
                location=caller_location(),
            )
        self.average = average
        self._targets: list[Variable] = []

    def _apply(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[Tensor]:
        self._check_targets([v for _, v in pairs])
        count = self._state("count", 0).assign_add(1)
        slots = [self._slot(v, "sum") for _, v in pairs]
        sums = [slot.assign_add(g) for slot, (g, _) in zip(slots, pairs, strict=True)]

        def apply() -> None:
            found = [divide(s, self.steps) if self.average else s for s in sums]
            self.optimizer._apply([(g, v) for g, (_, v) in zip(found, pairs, strict=True)])
            for slot in slots:
                slot.assign(np.zeros(slot.shape, slot.dtype.numpy))

        done = cond(equal(remainder(count, self.steps), 0), apply, lambda: None)
        return [count, *sums, *([] if done is None else [done])]

    def _check_targets(self, variables: list[Variable]) -> None:
        self._targets = self._targets or variables
        if {*map(id, variables)} != {*map(id, self._targets)}:
            now, then = (", ".join(v.name for v in vs) for vs in (variables, self._targets))
            raise InvalidArgumentError(
                f"{self.name}: called with the variables ({now}), before with ({then})",
                hint="it counts the gradients of one list of variables: make one for each",
                location=caller_location(),
            )


class LossScaling(_Wrapper):
    """Gradients of the loss times a scale, divided by it again, so that small ones are not 0 in
    float16 on the way (Micikevicius et al. 2017, "Mixed precision training", section 3.2).

    Where a gradient is infinite or NaN the step is left out, and the scale is halved; after
    `growth_interval` steps in a row with finite ones it is doubled. factor: other than 2. dynamic:
    False keeps the scale, and leaves out steps all the same. Variables stay float32: the model
    converts them, `wf.astype(w, wf.float16)`, and gets gradients in float32 back.

    InvalidArgumentError for a scale or an interval below 1, and a factor that is not above 1.

    >>> w = wf.Variable([2.0, 4.0])
    >>> optimizer = wf.train.LossScaling(wf.train.SGD(2.0**23), initial_scale=2.0**12)
    >>> @wf.compile
    ... def step(x):
    ...     half = wf.astype(w, wf.float16) * 2.0**-12
    ...     optimizer.minimize(wf.sum(half * half * x))
    ...     return w.read()
    >>> step(wf.asarray(0.0625, dtype=wf.float16))  # gradients 2^-26 and 2^-25: below float16
    Tensor([1.875, 3.75 ], dtype=float32)
    >>> step(wf.asarray(np.inf, dtype=wf.float16)), float(optimizer.loss_scale())
    (Tensor([1.875, 3.75 ], dtype=float32), 2048.0)
    """

    _own = (("scale", float32), ("good_steps", int64))

    def __init__(
        self,
        optimizer: Optimizer,
        initial_scale: float = 2.0**15,
        growth_interval: int = 2000,
        factor: float = 2.0,
        dynamic: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(optimizer, name)
        what = "train.LossScaling"
        self.initial_scale = float(self._checked("initial_scale", initial_scale))
        self.growth_interval = check_int(what, growth_interval, "growth_interval")
        self.factor = float(self._checked("factor", factor))
        self.dynamic = dynamic
        for setting, least in (("initial_scale", 1), ("growth_interval", 1)):
            if getattr(self, setting) < least:
                raise InvalidArgumentError(
                    f"wf.{what}: {setting} must be at least {least}, got {getattr(self, setting)}",
                    location=caller_location(),
                )
        if not self.factor > 1:
            raise InvalidArgumentError(
                f"wf.{what}: factor must be above 1, got {self.factor}", location=caller_location()
            )

    def loss_scale(self) -> Tensor:
        """The scale of the next step.

        >>> float(wf.train.LossScaling(wf.train.SGD(), initial_scale=8.0).loss_scale())
        8.0
        """
        return self._scale().read()

    def _scale(self) -> Variable:
        return self._state("scale", self.initial_scale)

    def _make_state(self, name: str, wanted: TensorType) -> Variable:
        return self._scale() if name == "scale" else self._state(name, 0)

    def _traced_gradients(
        self,
        loss: Any,
        variables: Sequence[Variable] | None,
        grad_loss: TensorLike | None,
        colocated: bool,
    ) -> list[GradientAndVariable]:
        total = as_tensor(loss)
        scale = self._scale().read()
        seed = expand(cast(scale, total.dtype), total.shape)
        if grad_loss is not None:
            seed = multiply(seed, cast(as_tensor(grad_loss), total.dtype))
        pairs = super()._traced_gradients(total, variables, seed, colocated)
        return [(None if g is None else _unscaled(g, scale), v) for g, v in pairs]

    def _apply(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[Tensor]:
        finite = all(isfinite(pairs[0][0]))
        for g, _ in pairs[1:]:
            finite = logical_and(finite, all(isfinite(g)))

        def apply() -> None:
            self.optimizer._apply(pairs)

        done = cond(finite, apply, lambda: None)
        return [*([] if done is None else [done]), *(self._adapt(finite) if self.dynamic else [])]

    def _adapt(self, finite: Tensor) -> list[Tensor]:
        scale, good = self._scale(), self._state("good_steps", 0)
        steps = where(finite, add(good, 1), 0)
        grow = equal(steps, self.growth_interval)
        old = scale.read()
        larger = minimum(multiply(old, self.factor), float(np.finfo(np.float32).max))
        kept = where(grow, larger, old)
        smaller = maximum(divide(old, self.factor), 1.0)
        return [
            scale.assign(where(finite, kept, smaller)),
            good.assign(where(grow, 0, steps)),
        ]


def _unscaled(gradient: Tensor | IndexedSlices, scale: Tensor) -> Tensor | IndexedSlices:
    if isinstance(gradient, IndexedSlices):
        values = _unscaled(gradient.values, scale)
        assert isinstance(values, Tensor)
        return IndexedSlices(values, gradient.indices, gradient.dense_shape)
    wide = widened(gradient)  # the scale may be beyond float16
    return cast(divide(wide, cast(scale, wide.dtype)), gradient.dtype)
