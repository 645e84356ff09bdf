"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from weft.frontend.ops.arithmetic import add, multiply
from weft.frontend.tensor import Tensor
from weft.frontend.train.optimizer import Hyper, Optimizer, hyper
from weft.frontend.variable import Variable


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
