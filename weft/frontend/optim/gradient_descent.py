"""Gradient descent: SGD, plain and with momentum, and the optimizers that scale each element's step
by its past gradients: Adagrad, Adadelta, RMSProp, Adam, AdamW.

Formulas and defaults are TensorFlow 1's (its training_ops documentation), which differ in places
from the papers': RMSProp's mean square starts at 1 and its epsilon is inside the root; Adagrad's
accumulator starts at 0.1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.frontend.core.device_scope import device_scopes
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import suspend_trace
from weft.frontend.ops.elementwise import (
    add,
    divide,
    equal,
    multiply,
    pow,
    rsqrt,
    sqrt,
    square,
    subtract,
    where,
)
from weft.frontend.ops.promotion import TensorLike, cast, is_scalar
from weft.frontend.optim.optimizer import Hyper, Optimizer, hyper
from weft.frontend.state.scopes import beside, put_beside
from weft.frontend.state.variable import Variable
from weft.ir.dtypes import DType, int64
from weft.ir.types import TensorType


class SGD(Optimizer):
    """var -= learning_rate * grad (TF1's GradientDescentOptimizer)."""

    takes_complex = True

    def __init__(self, learning_rate: Hyper = 0.01, name: str | None = None) -> None:
        super().__init__(learning_rate, name)

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        return [var.assign_sub(multiply(grad, self._rate(var)))]


class Momentum(Optimizer):
    """accum = momentum*accum + grad; var -= learning_rate*accum (TF1's MomentumOptimizer; Polyak
    1964).

    use_nesterov: var -= learning_rate*(grad + momentum*accum) (Sutskever et al. 2013, in TF1's
    form).
    """

    takes_complex = True

    def __init__(
        self,
        learning_rate: Hyper = 0.01,
        momentum: Hyper = 0.9,
        use_nesterov: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, name)
        self.momentum = self._checked("momentum", momentum)
        self.use_nesterov = use_nesterov

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        accum = self._slot(var, "momentum")
        keep = hyper(self.momentum, var)
        velocity = add(multiply(accum, keep), grad)
        step = add(grad, multiply(velocity, keep)) if self.use_nesterov else velocity
        return [accum.assign(velocity), var.assign_sub(multiply(step, self._rate(var)))]


def _decayed(slot: Variable, decay: TensorLike, new: Tensor) -> Tensor:
    """decay*slot + (1 - decay)*new."""
    rest = 1 - decay if is_scalar(decay) else subtract(1, decay)
    return add(multiply(slot, decay), multiply(new, rest))


class Adagrad(Optimizer):
    """accum += grad^2; var -= learning_rate * grad / sqrt(accum) (Duchi, Hazan and Singer 2011).

    Where grad is 0, var stays as it is, also if accum is 0 there. So of a table that is looked up
    (`wf.nn.embedding_lookup`) a compiled step touches the looked-up rows only.
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        initial_accumulator_value: float = 0.1,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, name)
        self.initial_accumulator_value = float(
            self._checked("initial_accumulator_value", initial_accumulator_value)
        )

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        slot = self._slot(var, "accumulator", self.initial_accumulator_value)
        accum = add(slot, square(grad))
        step = multiply(multiply(grad, self._rate(var)), rsqrt(accum))
        step = where(equal(grad, 0), 0, step)
        return [slot.assign(accum), var.assign_sub(step)]


class Adadelta(Optimizer):
    """Steps in the ratio of past steps to past gradients (Zeiler 2012, algorithm 1).

    accum = rho*accum + (1-rho)*grad^2; step = sqrt(accum_update + epsilon) / sqrt(accum + epsilon)
    * grad; accum_update = rho*accum_update + (1-rho)*step^2; var -= learning_rate*step.
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        rho: Hyper = 0.95,
        epsilon: Hyper = 1e-8,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, name)
        self.rho = self._checked("rho", rho, below=1)
        self.epsilon = self._checked("epsilon", epsilon)

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        accum, updates = self._slot(var, "accum"), self._slot(var, "accum_update")
        rho, epsilon = hyper(self.rho, var), hyper(self.epsilon, var)
        squares = _decayed(accum, rho, square(grad))
        ratio = multiply(sqrt(add(updates, epsilon)), rsqrt(add(squares, epsilon)))
        step = multiply(ratio, grad)
        return [
            accum.assign(squares),
            updates.assign(_decayed(updates, rho, square(step))),
            var.assign_sub(multiply(step, self._rate(var))),
        ]


class RMSProp(Optimizer):
    """ms = decay*ms + (1-decay)*grad^2; mom = momentum*mom + learning_rate*grad / sqrt(ms +
    epsilon); var -= mom.

    ms starts at 1. centered: the square of the running mean of grad is subtracted from ms under the
    root. (Tieleman and Hinton 2012, lecture 6.5; Graves 2013, equation 38, for `centered`.)
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        decay: Hyper = 0.9,
        momentum: Hyper = 0.0,
        epsilon: Hyper = 1e-10,
        centered: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, name)
        self.decay = self._checked("decay", decay, below=1)
        self.momentum = self._checked("momentum", momentum)
        self.epsilon = self._checked("epsilon", epsilon)
        self.centered = centered

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        decay = hyper(self.decay, var)
        ms, mom = self._slot(var, "rms", 1.0), self._slot(var, "momentum")
        squares = _decayed(ms, decay, square(grad))
        done = [ms.assign(squares)]
        spread = squares
        if self.centered:
            mg = self._slot(var, "mg")
            mean = _decayed(mg, decay, grad)
            done.append(mg.assign(mean))
            spread = subtract(squares, square(mean))
        root = rsqrt(add(spread, hyper(self.epsilon, var)))
        scaled = multiply(multiply(grad, self._rate(var)), root)
        step = add(multiply(mom, hyper(self.momentum, var)), scaled)
        return [*done, mom.assign(step), var.assign_sub(step)]


class Adam(Optimizer):
    """Steps of running means of grad over roots of running means of grad^2 (Kingma and Ba 2014).

    m = beta1*m + (1-beta1)*grad; v = beta2*v + (1-beta2)*grad^2; var -= learning_rate * sqrt(1 -
    beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon), for step t = 1, 2, ... The epsilon is the
    paper's "epsilon hat" (end of its section 2), as in TF1.
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, name)
        self.beta1 = self._checked("beta1", beta1, below=1)
        self.beta2 = self._checked("beta2", beta2, below=1)
        self.epsilon = self._checked("epsilon", epsilon)
        self.step: Variable | None = None

    def variables(self) -> list[Variable]:
        """The slots, and the number of steps made."""
        return ([] if self.step is None else [self.step]) + super().variables()

    def _apply(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[Tensor]:
        first = pairs[0][1]
        with beside(first):
            done = [count := put_beside(self._counter(), first).assign_add(1)]
        shared: dict[DType, Tensor] = {}  # the rates, of which those of one dtype are the same
        for g, v in pairs:
            with beside(v):
                done += self._step(g, v, count, {} if device_scopes() else shared)
        return done

    def _counter(self) -> Variable:
        with self._lock, suspend_trace():
            if self.step is None:
                start = np.zeros((), np.int64)
                self.step = Variable(start, trainable=False, name=f"{self.name}/step")
        return self.step

    def _state_type(self, name: str, stored: TensorType) -> TensorType | None:
        return TensorType(int64, ()) if name == "step" else None

    def _make_state(self, name: str, wanted: TensorType) -> Variable:
        return self._counter()

    def _step(
        self, grad: Tensor, var: Variable, count: Tensor, shared: dict[DType, Tensor]
    ) -> list[Tensor]:
        m_slot, v_slot = self._slot(var, "m"), self._slot(var, "v")
        beta1, beta2 = hyper(self.beta1, var), hyper(self.beta2, var)
        m = _decayed(m_slot, beta1, grad)
        v = _decayed(v_slot, beta2, square(grad))
        if any(map(callable, (self.learning_rate, self.beta1, self.beta2))):
            shared = {}
        if var.dtype not in shared:
            shared[var.dtype] = self._corrected_rate(var, count, beta1, beta2)
        step = divide(multiply(m, shared[var.dtype]), add(sqrt(v), hyper(self.epsilon, var)))
        decay = self._weight_decay(var)
        if decay is not None:
            step = add(step, decay)
        return [m_slot.assign(m), v_slot.assign(v), var.assign_sub(step)]

    def _corrected_rate(
        self, var: Variable, count: Tensor, beta1: TensorLike, beta2: TensorLike
    ) -> Tensor:
        """The learning rate for the biased averages after `count` steps."""
        t = cast(count, var.dtype)
        correction = divide(sqrt(subtract(1, pow(beta2, t))), subtract(1, pow(beta1, t)))
        return multiply(correction, self._rate(var))

    def _weight_decay(self, var: Variable) -> Tensor | None:
        return None


class AdamW(Adam):
    """Adam with decoupled weight decay: var -= learning_rate * weight_decay * var besides Adam's
    step.

    Loshchilov and Hutter 2017, algorithm 2; the decay scales with the learning rate, as in PyTorch
    and Optax.
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        *,
        weight_decay: Hyper = 0.01,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name)
        self.weight_decay = self._checked("weight_decay", weight_decay)

    def _weight_decay(self, var: Variable) -> Tensor | None:
        return multiply(var, multiply(self._rate(var), hyper(self.weight_decay, var)))
