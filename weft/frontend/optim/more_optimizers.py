"""Optimizers with sparsity, signs, layerwise rates or little state: `Ftrl`, `Lion`, `Lamb`,
`Adafactor`. Formulas are the papers' as TensorFlow 1 (Ftrl) and Optax have them."""

from __future__ import annotations

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.ops.elementwise import (
    abs,
    add,
    divide,
    greater,
    logical_and,
    maximum,
    minimum,
    multiply,
    sign,
    square,
    subtract,
    where,
)
from weft.frontend.ops.manipulation import expand_dims
from weft.frontend.ops.promotion import TensorLike, cast, is_scalar
from weft.frontend.ops.reduction import mean, sum
from weft.frontend.ops.special import pow, rsqrt, sqrt
from weft.frontend.optim.optimizer import (
    Adam,
    CountedOptimizer,
    Hyper,
    Optimizer,
    decayed,
    hyper,
)
from weft.frontend.state.variable import Variable
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location


class Ftrl(Optimizer):
    """Follow the regularized leader, with l1 and l2 penalties (McMahan et al. 2013, algorithm 1).

    n = accum + grad^2; linear += grad - (n^-p - accum^-p) / learning_rate * var, with p =
    learning_rate_power; var = (sign(linear)*l1 - linear) / (n^-p / learning_rate + 2*l2) where
    |linear| > l1, else 0; accum = n. l2_shrinkage_regularization_strength: 2 times it times var is
    added to the grad of `linear` (TF1's).

    A variable is a function of its slots: what it began with counts in the first step only.
    InvalidArgumentError for a power above 0.

    lazy: rows that were not looked up stay as they are, as in TF1 (`apply_gradients`); without it
    they are that function of their slots, too.

    >>> w = wf.Variable([0.5, -0.5])
    >>> optimizer = wf.train.Ftrl(0.5, l1_regularization_strength=4.0)
    >>> for _ in range(10):
    ...     _ = optimizer.minimize(lambda: wf.sum((w - [2.0, 0.125]) ** 2))
    >>> w.numpy().round(2), optimizer.get_slot_names()  # a sum of gradients is not above 4 yet
    (array([1.68, 0.  ], dtype=float32), ['accum', 'linear'])
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Hyper = 0.0,
        l2_regularization_strength: Hyper = 0.0,
        name: str | None = None,
        l2_shrinkage_regularization_strength: Hyper = 0.0,
        lazy: bool = False,
    ) -> None:
        super().__init__(learning_rate, name)
        if not learning_rate_power <= 0:
            raise InvalidArgumentError(
                f"{self.name}: learning_rate_power must be 0 or less, got {learning_rate_power!r}",
                location=caller_location(),
            )
        self.learning_rate_power = float(learning_rate_power)
        self.initial_accumulator_value = float(
            self._checked("initial_accumulator_value", initial_accumulator_value)
        )
        self.l1_regularization_strength = self._checked(
            "l1_regularization_strength", l1_regularization_strength
        )
        self.l2_regularization_strength = self._checked(
            "l2_regularization_strength", l2_regularization_strength
        )
        self.l2_shrinkage_regularization_strength = self._checked(
            "l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength
        )
        self.lazy = lazy

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        accum = self._slot(var, "accum", self.initial_accumulator_value)
        linear = self._slot(var, "linear")
        rate, old = self._rate(var), var.read()
        l1 = hyper(self.l1_regularization_strength, var)
        l2 = hyper(self.l2_regularization_strength, var)
        shrinkage = hyper(self.l2_shrinkage_regularization_strength, var)
        n = add(accum, square(grad))
        root = self._root(n)
        moved = multiply(divide(subtract(root, self._root(accum.read())), rate), old)
        pulled = add(grad, multiply(multiply(old, 2), shrinkage))
        z = add(linear, subtract(pulled, moved))
        step = subtract(multiply(sign(z), l1), z)
        new = divide(step, add(divide(root, rate), multiply(l2, 2)))
        new = where(greater(abs(z), l1), new, 0)
        return [accum.assign(n), linear.assign(z), var.assign(new)]

    def _root(self, x: Tensor) -> Tensor:
        """x^-learning_rate_power."""
        return sqrt(x) if self.learning_rate_power == -0.5 else pow(x, -self.learning_rate_power)


class Lion(Optimizer):
    """var -= learning_rate * (sign(beta1*m + (1-beta1)*grad) + weight_decay*var); m = beta2*m +
    (1-beta2)*grad (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2).

    Steps are of one size in each element, so rates are a third to a tenth of Adam's.

    >>> w = wf.Variable([1.0, -1.0])
    >>> optimizer = wf.train.Lion(0.25)
    >>> _ = optimizer.minimize(lambda: wf.sum(w**4))
    >>> w.read()
    Tensor([ 0.75, -0.75], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Hyper = 1e-4,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.99,
        *,
        weight_decay: Hyper = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, name)
        self.beta1 = self._checked("beta1", beta1, below=1)
        self.beta2 = self._checked("beta2", beta2, below=1)
        self.weight_decay = self._checked("weight_decay", weight_decay)

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        m = self._slot(var, "m")
        step = sign(decayed(m, hyper(self.beta1, var), grad))
        if not (is_scalar(self.weight_decay) and self.weight_decay == 0):
            step = add(step, multiply(var, hyper(self.weight_decay, var)))
        mean_gradient = decayed(m, hyper(self.beta2, var), grad)
        return [m.assign(mean_gradient), var.assign_sub(multiply(step, self._rate(var)))]


class Lamb(Adam):
    """Adam's step, for each variable scaled to the length of the variable (You et al. 2019,
    "Large batch optimization for deep learning", algorithm 2).

    u = m' / (sqrt(v') + epsilon) + weight_decay*var with Adam's means, corrected for their start;
    var -= learning_rate * |var| / |u| * u, and without the quotient where a length is 0.

    >>> w = wf.Variable([3.0, 4.0])
    >>> optimizer = wf.train.Lamb(0.1)
    >>> _ = optimizer.apply_gradients([(wf.asarray([1.0, 1.0]), w)])
    >>> w.numpy().round(3)  # a step of length 0.1 * 5
    array([2.646, 3.646], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.999,
        epsilon: Hyper = 1e-6,
        *,
        weight_decay: Hyper = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name)
        self.weight_decay = self._checked("weight_decay", weight_decay)

    def _step(
        self, grad: Tensor, var: Variable, count: Tensor, shared: dict[DType, Tensor]
    ) -> list[Tensor]:
        m_slot, v_slot = self._slot(var, "m"), self._slot(var, "v")
        beta1, beta2 = hyper(self.beta1, var), hyper(self.beta2, var)
        m, v = decayed(m_slot, beta1, grad), decayed(v_slot, beta2, square(grad))
        t = cast(count, var.dtype)
        first = divide(m, subtract(1, pow(beta1, t)))
        second = divide(v, subtract(1, pow(beta2, t)))
        step = divide(first, add(sqrt(second), hyper(self.epsilon, var)))
        step = add(step, multiply(var, hyper(self.weight_decay, var)))
        sizes = [sqrt(sum(square(x))) for x in (var.read(), step)]
        both = logical_and(greater(sizes[0], 0), greater(sizes[1], 0))
        trust = where(both, divide(sizes[0], where(both, sizes[1], 1)), 1)
        change = multiply(step, multiply(trust, self._rate(var)))
        return [m_slot.assign(m), v_slot.assign(v), var.assign_sub(change)]


class Adafactor(CountedOptimizer):
    """Adam's second moments by row and column sums, so n + m numbers for a matrix of n * m (Shazeer
    and Stern 2018, algorithm 4).

    For step t, s = grad^2 + epsilon1, and decay d = 1 - t^-decay_rate: of variables with two axes
    or more row = d*row + (1-d)*mean(s) over the last axis, column likewise over the one before, and
    v = row * column / mean(row); of others v = d*v + (1-d)*s. u = grad / sqrt(v), divided by
    max(1, rms(u) / clipping_threshold); var -= rate * u, where rate is learning_rate, or without
    one min(0.01, 1 / sqrt(t)); times max(epsilon2, rms(var)) if multiply_by_parameter_scale.

    >>> w = wf.Variable(np.ones((30, 40), np.float32))
    >>> optimizer = wf.train.Adafactor()
    >>> _ = optimizer.minimize(lambda: wf.sum(w**2))
    >>> optimizer.get_slot(w, "row").shape, optimizer.get_slot(w, "column").shape, w[0, 0]
    ((30,), (40,), Tensor(0.99, dtype=float32))
    """

    def __init__(
        self,
        learning_rate: Hyper | None = None,
        decay_rate: Hyper = 0.8,
        epsilon1: Hyper = 1e-30,
        epsilon2: Hyper = 1e-3,
        clipping_threshold: Hyper = 1.0,
        multiply_by_parameter_scale: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(0.0 if learning_rate is None else learning_rate, name)
        self.learning_rate = None if learning_rate is None else self.learning_rate
        self.decay_rate = self._checked("decay_rate", decay_rate)
        self.epsilon1 = self._checked("epsilon1", epsilon1)
        self.epsilon2 = self._checked("epsilon2", epsilon2)
        self.clipping_threshold = self._checked("clipping_threshold", clipping_threshold)
        self.multiply_by_parameter_scale = multiply_by_parameter_scale

    def _slot_shape(self, var: Variable, name: str) -> tuple[int, ...]:
        if name == "row":
            return var.shape[:-1]
        return (*var.shape[:-2], var.shape[-1]) if name == "column" else var.shape

    def _step(
        self, grad: Tensor, var: Variable, count: Tensor, shared: dict[DType, Tensor]
    ) -> list[Tensor]:
        t = cast(count, var.dtype)
        decay = subtract(1, pow(t, multiply(hyper(self.decay_rate, var), -1)))
        squares = add(square(grad), hyper(self.epsilon1, var))
        done = []
        if var.ndim < 2:
            v_slot = self._slot(var, "v")
            v = decayed(v_slot, decay, squares)
            done.append(v_slot.assign(v))
            scaled = multiply(grad, rsqrt(v))
        else:
            row_slot, column_slot = self._slot(var, "row"), self._slot(var, "column")
            row = decayed(row_slot, decay, mean(squares, -1))
            column = decayed(column_slot, decay, mean(squares, -2))
            done += [row_slot.assign(row), column_slot.assign(column)]
            # the roots apart: the product of two small means would be 0
            share = rsqrt(divide(row, mean(row, -1, keepdims=True)))
            scaled = multiply(grad, expand_dims(share, -1))
            scaled = multiply(scaled, expand_dims(rsqrt(column), -2))
        most = divide(_rms(scaled), hyper(self.clipping_threshold, var))
        step = divide(scaled, maximum(most, 1))
        return [*done, var.assign_sub(multiply(step, self._step_size(var, t)))]

    def _step_size(self, var: Variable, t: Tensor) -> TensorLike:
        rate = minimum(rsqrt(t), 0.01) if self.learning_rate is None else self._rate(var)
        if not self.multiply_by_parameter_scale:
            return rate
        return multiply(maximum(_rms(as_tensor(var)), hyper(self.epsilon2, var)), rate)


def _rms(x: Tensor) -> Tensor:
    return sqrt(mean(square(x)))
