"""L-BFGS: quasi-Newton steps from the last few changes of the parameters and of the gradient.

Nocedal and Wright, "Numerical Optimization", 2nd edition, algorithms 7.4 (the two loops) and 7.5.
The history has a fixed length, so a step is one straight-line graph: pairs that are not there yet
have weight 0.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.frontend.autodiff.aggregation import check_gradient_options
from weft.frontend.control.branches import cond
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Effect, current_trace, suspend_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.creation import asarray
from weft.frontend.ops.elementwise import (
    abs,
    add,
    divide,
    equal,
    greater,
    less_equal,
    logical_and,
    logical_or,
    minimum,
    multiply,
    negative,
    subtract,
    where,
)
from weft.frontend.ops.linalg import vecdot
from weft.frontend.ops.manipulation import concat, expand_dims, flatten, reshape, split, unstack
from weft.frontend.ops.promotion import TensorLike, check_int
from weft.frontend.ops.reduction import sum
from weft.frontend.optim.optimizer import Hyper, Optimizer, dense_gradient, hyper
from weft.frontend.state.scopes import group
from weft.frontend.state.variable import Variable
from weft.ir.errors import InvalidArgumentError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType

#: Pairs with less curvature than this are not remembered (PyTorch's bound).
_LEAST_CURVATURE = 1e-10
_STATE = ("s", "y", "rho", "gamma", "x", "g", "count")


class LBFGS(Optimizer):
    """One L-BFGS step for each call; all variables together are one vector of parameters.

    learning_rate: the length of a step in units of the quasi-Newton step; the first, for want of a
    history, is along the gradient with length at most min(1, 1/|grad|_1) times it (PyTorch's rule).
    history: how many pairs are remembered. line_search: with a number n > 0, a step that does not
    lower the loss enough (Armijo's condition, armijo=1e-4) is halved up to n times; the loss must
    then be a function, in a wf.Graph, too, and is computed n times more for each step. Every call
    must be given the same variables. Example: the minimum of a quadratic, to 3 digits in 20 steps.

    >>> w = wf.Variable([0.0, 0.0])
    >>> optimizer = wf.train.LBFGS(line_search=8)
    >>> @wf.compile
    ... def step():
    ...     optimizer.minimize(lambda: wf.sum((w - [1.0, 2.0]) ** 2 * [1.0, 30.0]))
    >>> for _ in range(20):
    ...     step()
    >>> w.numpy().round(3).tolist()
    [1.0, 2.0]
    """

    def __init__(
        self,
        learning_rate: Hyper = 1.0,
        history: int = 10,
        line_search: int = 0,
        armijo: float = 1e-4,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, name)
        self.history = check_int(self.name, history, "history")
        self.line_search = check_int(self.name, line_search, "line_search")
        self.armijo = float(self._checked("armijo", armijo, below=1))
        if history < 1 or line_search < 0:
            raise InvalidArgumentError(
                f"{self.name}: history must be at least 1 and line_search at least 0, got "
                f"{history} and {line_search}",
                location=caller_location(),
            )
        self._state: dict[str, Variable] = {}
        self._targets: list[Variable] = []

    def variables(self) -> list[Variable]:
        """The history, the last parameters and gradient, and the number of steps made."""
        return list(self._state.values())

    @shows_as_seen
    def minimize(
        self,
        loss: Any,
        var_list: Sequence[Variable] | Variable | None = None,
        *,
        global_step: Variable | None = None,
        grad_loss: TensorLike | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        gate_gradients: Any = None,
        aggregation_method: Any = None,
    ) -> Effect:
        """As `Optimizer.minimize`; with `line_search`, `loss` must be a function."""
        check_gradient_options(self.name, aggregation_method, gate_gradients)
        if not self.line_search:
            return super().minimize(
                loss,
                var_list,
                global_step=global_step,
                grad_loss=grad_loss,
                colocate_gradients_with_ops=colocate_gradients_with_ops,
                name=name,
            )
        trace = current_trace()
        if grad_loss is not None:
            raise UnsupportedError(
                f"{self.name}: a line search needs the loss itself; grad_loss is not supported",
                location=caller_location(),
            )
        if not callable(loss):
            raise UnsupportedError(
                f"{self.name}: a line search computes the loss again at other points",
                hint="pass the loss as a function without arguments that computes it",
                location=caller_location(),
            )

        def searched() -> tuple[()]:
            before = asarray(loss())
            pairs = self.compute_gradients(loss if trace is None else before, var_list)
            connected = [(dense_gradient(g), v) for g, v in pairs if g is not None]
            step, _ = self._step(connected)
            self._search(loss, before, step)
            return ()

        done: list[Any] = []
        if trace is not None and trace.kind == "graph":
            # reads and writes in a body follow the program, those of a graph do not
            done.append(cond(True, searched, lambda: ()))
        else:
            searched()
        if global_step is not None:
            done.append(global_step.assign_add(1))
        return group(*done, name=name or self.name)

    def _apply(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[Tensor]:
        if self.line_search:
            raise UnsupportedError(
                f"{self.name}: a line search computes the loss again, and here are its gradients "
                "only",
                hint="call its own minimize, or make it without line_search",
                location=caller_location(),
            )
        step, done = self._step(pairs)
        moves = _parts(multiply(step.direction, step.length), self._targets)
        return [*done, *(v.assign_add(m) for v, m in zip(self._targets, moves, strict=True))]

    def _search(self, loss: Callable[[], Any], before: Tensor, step: _Step) -> None:
        """Move along the direction, halving the length until the loss falls enough (Armijo)."""
        starts = [v.read() for v in self._targets]
        moves = _parts(step.direction, self._targets)

        def move(length: Tensor) -> None:
            for v, start, m in zip(self._targets, starts, moves, strict=True):
                v.assign(add(start, multiply(m, length)))

        length = step.length
        accepted: Tensor | None = None
        for _ in range(self.line_search):
            move(length)
            enough = add(before, multiply(multiply(step.slope, length), self.armijo))
            good = less_equal(loss(), enough)
            accepted = good if accepted is None else logical_or(accepted, good)
            length = where(accepted, length, multiply(length, 0.5))
        move(length)

    def _step(self, pairs: Sequence[tuple[Tensor, Variable]]) -> tuple[_Step, list[Tensor]]:
        """The next step, and the assignments that remember the change since the last one."""
        self._check_targets([v for _, v in pairs])
        state = self._state
        x = concat([flatten(v) for v in self._targets])
        g = concat([flatten(grad) for grad, _ in pairs])
        count = state["count"].read()
        s, y = subtract(x, state["x"]), subtract(g, state["g"])
        curvature = vecdot(s, y)
        fresh = logical_and(greater(count, 0), greater(curvature, _LEAST_CURVATURE))
        safe = where(fresh, curvature, 1)
        gamma = where(fresh, divide(safe, where(fresh, vecdot(y, y), 1)), state["gamma"])
        rows = {"s": s, "y": y, "rho": divide(1, safe)}
        new = {
            name: where(fresh, concat([state[name][1:], expand_dims(row, 0)]), state[name])
            for name, row in rows.items()
        }
        direction = negative(_two_loops(g, new["s"], new["y"], new["rho"], gamma))
        rate = hyper(self.learning_rate, self._targets[0])
        first = minimum(divide(1, sum(abs(g))), 1)
        length = multiply(where(equal(count, 0), first, 1), rate)
        values = {**new, "gamma": gamma, "x": x, "g": g, "count": add(count, 1)}
        done = [state[name].assign(value) for name, value in values.items()]
        return _Step(direction, length, vecdot(g, direction)), done

    def _check_targets(self, variables: list[Variable]) -> None:
        if not self._targets:
            self._targets = variables
            self._create_state()
        same = len(variables) == len(self._targets) and all(map(_is, variables, self._targets))
        if not same:
            now, then = (", ".join(v.name for v in vs) for vs in (variables, self._targets))
            raise InvalidArgumentError(
                f"{self.name}: called with the variables ({now}), before with ({then})",
                hint="the history belongs to one list of variables: make an optimizer for each",
                location=caller_location(),
            )

    def _create_state(self) -> None:
        dtypes = {v.dtype for v in self._targets}
        if len(dtypes) != 1:
            raise InvalidArgumentError(
                f"{self.name}: the variables have different dtypes: "
                + ", ".join(sorted(d.name for d in dtypes)),
                location=caller_location(),
            )
        dtype = dtypes.pop().numpy
        n, m = builtins.sum(v.size for v in self._targets), self.history
        shapes: dict[str, tuple[int, ...]] = {
            "s": (m, n), "y": (m, n), "rho": (m,), "gamma": (), "x": (n,), "g": (n,), "count": (),
        }  # fmt: skip
        with suspend_trace():
            for name, shape in shapes.items():
                start = np.full(shape, name == "gamma", np.int64 if name == "count" else dtype)
                self._state_variable(name, start)

    def _state_type(self, name: str, stored: TensorType) -> TensorType | None:
        return stored if name in _STATE else None  # for which variables shows when they are given

    def _make_state(self, name: str, wanted: TensorType) -> Variable:
        with suspend_trace():
            return self._state_variable(name, np.zeros(wanted.static_shape, wanted.dtype.numpy))

    def _state_variable(self, name: str, start: np.ndarray[Any, Any]) -> Variable:
        """The variable `name` of the state; one that a checkpoint made must fit the variables."""
        found = self._state.get(name)
        if found is None:
            label = f"{self.name}/{name}"
            found = self._state[name] = Variable(start, trainable=False, name=label)
        if found.shape != start.shape or found.dtype.numpy != start.dtype:
            raise InvalidArgumentError(
                f"{self.name}: the restored state '{name}' is {found.dtype.short}"
                f"{list(found.shape)}, these variables need {start.dtype}{list(start.shape)}",
                hint="it was saved with another history, or for other variables",
                location=caller_location(),
            )
        return found


class _Step(NamedTuple):
    """A step of the line search. direction: a vector over all parameters; length: how far along it;
    slope: of the loss along it.
    """

    direction: Tensor
    length: Tensor
    slope: Tensor


def _is(a: Variable, b: Variable) -> bool:
    return a is b


def _two_loops(g: Tensor, s: Tensor, y: Tensor, rho: Tensor, gamma: Tensor) -> Tensor:
    """The inverse Hessian's approximation times g (algorithm 7.4); the newest pair is the last
    row.
    """
    pairs = list(zip(unstack(s), unstack(y), unstack(rho), strict=True))
    alphas: list[Tensor] = []
    q = g
    for s_i, y_i, rho_i in reversed(pairs):
        alpha = multiply(rho_i, vecdot(s_i, q))
        q = subtract(q, multiply(y_i, alpha))
        alphas.append(alpha)
    r = multiply(q, gamma)
    for (s_i, y_i, rho_i), alpha in zip(pairs, reversed(alphas), strict=True):
        beta = multiply(rho_i, vecdot(y_i, r))
        r = add(r, multiply(s_i, subtract(alpha, beta)))
    return r


def _parts(vector: Tensor, variables: Sequence[Variable]) -> list[Tensor]:
    """A vector over all parameters cut into tensors of the variables' shapes."""
    cut = split(vector, [v.size for v in variables])
    return [reshape(part, v.shape) for part, v in zip(cut, variables, strict=True)]
