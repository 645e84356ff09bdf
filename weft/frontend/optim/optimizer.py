"""`Optimizer`, the base class of all optimizers: gradients of a loss, slots, applying updates; and
the optimizers: gradient descent (SGD), plain and with momentum, and those that scale each element's
step by its past gradients, Adagrad, Adadelta, RMSProp, Adam and AdamW.

An optimizer is ordinary code over public ops. It works while `wf.compile` traces a step, in a
`wf.Graph`, and eagerly; its slots are variables, made on first use with their values at once, also
during a trace.

Formulas and defaults are TensorFlow 1's (its training_ops documentation), which differ in places
from the papers': RMSProp's mean square starts at 1 and its epsilon is inside the root; Adagrad's
accumulator starts at 0.1."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.frontend.autodiff.aggregation import check_gradient_options
from weft.frontend.autodiff.gradients import gradients
from weft.frontend.autodiff.indexed_slices import IndexedSlices
from weft.frontend.core.device_scope import device_scopes
from weft.frontend.core.function_trace import run_traced
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, current_trace, suspend_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.ops.elementwise import add, divide, equal, multiply, square, subtract, where
from weft.frontend.ops.promotion import TensorLike, cast, is_scalar
from weft.frontend.ops.special import pow, rsqrt, sqrt
from weft.frontend.optim.rows import RowsOf, summed, table_of
from weft.frontend.state.scopes import beside, group, put_beside
from weft.frontend.state.variable import Variable
from weft.frontend.transforms.axes import averaged_axes
from weft.ir.dtypes import DType, as_dtype, int64
from weft.ir.errors import (
    GradientError,
    InternalError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock
from weft.ir.spec import fits
from weft.ir.types import TensorType

GradientAndVariable: TypeAlias = tuple[Tensor | IndexedSlices | None, Variable]
#: A number, a tensor or a variable, or a function without arguments that gives one (a schedule).
Hyper: TypeAlias = TensorLike | Callable[[], TensorLike]


class Optimizer:
    """Base class: subclasses say in `_update` how one variable changes, given its gradient.

    learning_rate: a number, tensor or variable, or a function that is called for each step (inside
    the trace of a compiled step it is called once; what it computes from variables is computed anew
    each step).

    >>> class SignDescent(wf.train.Optimizer):
    ...     def _update(self, grad, var):
    ...         return [var.assign_sub(wf.sign(grad) * self._rate(var))]
    >>> w = wf.Variable([1.0, -1.0])
    >>> _ = SignDescent(0.25).minimize(lambda: wf.sum(w**2))
    >>> w.read()
    Tensor([ 0.75, -0.75], dtype=float32)
    """

    #: Whether the formula is right for complex variables, too.
    takes_complex = False
    #: Whether gradients of looked-up rows (`IndexedSlices`) change those rows alone, of slots, too.
    lazy = False
    #: TensorFlow 1's values of `gate_gradients`.
    GATE_NONE, GATE_OP, GATE_GRAPH = 0, 1, 2

    def __init__(self, learning_rate: Hyper, name: str | None = None) -> None:
        self.name = type(self).__name__ if name is None else name
        self.learning_rate = self._checked("learning_rate", learning_rate)
        self._slots: dict[tuple[Variable, str], Variable] = {}
        self._lock = ForkLock()

    def __getstate__(self) -> dict[str, Any]:
        """Copied and pickled with the slots, which belong to the copies of the variables."""
        with self._lock:
            held = {**self.__dict__, "_slots": dict(self._slots)}
        del held["_lock"]
        return held

    def __repr__(self) -> str:
        """The call that makes it, with the name of a function for a schedule."""
        hidden = {"name"} | (set() if self.lazy else {"lazy"})
        names = [n for n in inspect.signature(type(self)).parameters if n not in hidden]
        values = {n: getattr(self, n) for n in names if hasattr(self, n)}
        shown = {n: getattr(v, "__qualname__", None) or repr(v) for n, v in values.items()}
        return f"{type(self).__name__}({', '.join(f'{n}={v}' for n, v in shown.items())})"

    def __setstate__(self, held: dict[str, Any]) -> None:
        self.__dict__.update(held, _lock=ForkLock())

    # ------------------------------------------------------------------------------ public
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
        """Compute the gradients of `loss` and apply them; as `compute_gradients`,
        `apply_gradients`.
        """
        check_gradient_options(self.name, aggregation_method, gate_gradients)
        colocated = colocate_gradients_with_ops
        pairs = self._compute(loss, var_list, grad_loss, colocated)
        return self.apply_gradients(pairs, global_step=global_step, name=name)

    @shows_as_seen
    def compute_gradients(
        self,
        loss: Any,
        var_list: Sequence[Variable] | Variable | None = None,
        *,
        grad_loss: TensorLike | None = None,
        colocate_gradients_with_ops: bool = False,
        gate_gradients: Any = None,
        aggregation_method: Any = None,
    ) -> list[GradientAndVariable]:
        """Pairs (gradient, variable); the gradient is None where the loss does not depend on the
        variable, `IndexedSlices` where it has only looked up rows of it (as `wf.gradients`).

        loss: a tensor of the current trace, or a function without arguments that computes it from
        variables; outside a trace it must be a function, since concrete tensors keep no history.
        var_list: by default all trainable variables that the trace has read so far. grad_loss: the
        cotangent of the loss, 1 by default. colocate_gradients_with_ops, gate_gradients,
        aggregation_method: as for `wf.gradients`. (Gradients are of the values before the update,
        as TensorFlow's GATE_GRAPH has them.) GradientError for a loss that has no history, or no
        variables.
        """
        check_gradient_options(self.name, aggregation_method, gate_gradients)
        return self._compute(loss, var_list, grad_loss, colocate_gradients_with_ops)

    def _compute(
        self,
        loss: Any,
        var_list: Sequence[Variable] | Variable | None,
        grad_loss: TensorLike | None,
        colocated: bool,
    ) -> list[GradientAndVariable]:
        variables = [var_list] if isinstance(var_list, Variable) else var_list
        if current_trace() is not None:
            traced = loss() if callable(loss) else loss
            return self._traced_gradients(traced, variables, grad_loss, colocated)
        if not callable(loss):
            raise GradientError(
                f"{self.name}: outside a trace the loss must be a function: a concrete tensor "
                "keeps no history",
                hint="pass a function that computes the loss, or put the step inside @wf.compile",
                location=caller_location(),
            )
        chosen: list[Variable] = []

        def compute(inputs: list[Tensor]) -> list[Tensor | IndexedSlices]:
            pairs = self._traced_gradients(loss(), variables, grad_loss, colocated)
            chosen.extend(v for g, v in pairs if g is not None)
            return [g for g, _ in pairs if g is not None]

        found = run_traced("minimize", compute, [])
        connected = dict(zip(map(id, chosen), found, strict=True))
        listed = chosen if variables is None else variables
        return [(connected.get(id(v)), v) for v in listed]

    def _traced_gradients(
        self,
        loss: Any,
        variables: Sequence[Variable] | None,
        grad_loss: TensorLike | None,
        colocated: bool,
    ) -> list[GradientAndVariable]:
        if variables is None:
            trace = current_trace()
            assert trace is not None
            read = trace.root().effects.reads
            variables = [
                v for v in read if isinstance(v, Variable) and v.trainable and v.dtype.is_inexact
            ]
        for v in variables:
            if not isinstance(v, Variable):
                raise GradientError(
                    f"{self.name}: var_list holds a {type(v).__name__}, not a wf.Variable",
                    location=caller_location(),
                )
        if not variables:
            raise GradientError(
                f"{self.name}: there are no trainable variables",
                hint="read them (as wf.Variable) in the loss, or pass var_list",
                location=caller_location(),
            )
        seeds = None if grad_loss is None else [grad_loss]
        found = gradients(loss, list(variables), seeds, colocate_gradients_with_ops=colocated)
        if averaged_axes():
            # other programs do not load what collectives need
            from weft.frontend.collectives import mean_of_gradients

            found = mean_of_gradients(found, averaged_axes())
        return list(zip(found, variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Sequence[GradientAndVariable],
        *,
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Effect:
        """Change each variable by its gradient; pairs whose gradient is None are left alone.

        IndexedSlices give the same result as the dense gradient that they stand for. In a compiled
        step only the rows are touched where the formula leaves the others as they are
        (`f.explain` says so). An optimizer that is `lazy` applies its formula to the rows alone:
        what others hold, of variable and slots, stays (TensorFlow 1's sparse updates).

        In a graph the result is what a session runs to make one step; elsewhere it has happened (or
        is part of the traced step). global_step: an integer variable to add 1 to. name: of the
        effect, by which a session runs it; that of the optimizer by default. GradientError if no
        pair has a gradient, InvalidArgumentError for a gradient that does not fit its variable.
        """
        pairs = [self._taken(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            names = ", ".join(v.name for _, v in grads_and_vars)
            raise GradientError(
                f"{self.name}: none of the variables ({names}) has a gradient",
                hint="the loss must depend on at least one of them",
                location=caller_location(),
            )
        for g, v in pairs:
            if v.dtype.is_complex and not self.takes_complex:
                raise UnsupportedError(
                    f"{self.name}: variable '{v.name}' is {v.dtype.name}; the formula "
                    "is for real ones",
                    hint="use SGD or Momentum, or two real variables",
                    location=caller_location(),
                )
            if g.dtype is not v.dtype or not fits(g.shape, v.shape):
                raise InvalidArgumentError(
                    f"{self.name}: a gradient {g._type} does not fit variable '{v.name}' "
                    f"({v.dtype.short}{list(v.shape)})",
                    location=caller_location(),
                )
        done = self._apply(pairs)
        if global_step is not None:
            done.append(global_step.assign_add(1))
        return group(*done, name=name or self.name)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot `name` of a variable, or None if it has not been made yet."""
        return self._slots.get((var, name))

    def get_slot_names(self) -> list[str]:
        """The names of the slots made so far."""
        return sorted({name for _, name in self._slots})

    def variables(self) -> list[Variable]:
        """The optimizer's own state: save and restore it with the model's."""
        return list(self._slots.values())

    def _taken(self, gradient: Any, var: Variable) -> tuple[Tensor, Variable]:
        """What `_update` gets: a gradient and its variable, or of rows those rows of both."""
        if not (self.lazy and isinstance(gradient, IndexedSlices)):
            return _dense(gradient, var), var
        if gradient.dense_shape != var.shape:
            raise InvalidArgumentError(
                f"{self.name}: IndexedSlices of shape {list(gradient.dense_shape)} do not fit "
                f"variable '{var.name}' ({var.dtype.short}{list(var.shape)})",
                location=caller_location(),
            )
        rows: Any = RowsOf(var, gradient.indices)
        with beside(var):
            return summed(gradient), rows

    # -------------------------------------------------------------------------- for subclasses
    def _apply(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[Tensor]:
        done = []
        for g, v in pairs:
            with beside(table_of(v)):
                done += self._update(g, v)
        return done

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        """Change one variable and its slots; what the assignments gave."""
        raise UnsupportedError(
            f"{type(self).__name__} does not say how to update a variable",
            hint="a subclass of wf.train.Optimizer defines _update(self, grad, var)",
            location=caller_location(),
        )

    def _slot(self, var: Variable, name: str, initial: float = 0.0) -> Variable:
        """The slot of a variable: same dtype, filled with `initial` when it is made."""
        given: Any = var
        if isinstance(given, RowsOf):
            slot: Any = RowsOf(self._slot(given.table, name, initial), given.indices)
            return slot  # type: ignore[no-any-return]
        with self._lock, suspend_trace():
            if (var, name) not in self._slots:
                start = np.full(self._slot_shape(var, name), initial, var.dtype.numpy)
                label = f"{var.name}/{self.name}/{name}"
                self._slots[var, name] = Variable(start, trainable=False, name=label)
        return put_beside(self._slots[var, name], var)

    def _slot_shape(self, var: Variable, name: str) -> tuple[int, ...]:
        """The shape of a slot: that of the variable, unless a subclass says otherwise."""
        return var.shape

    def _state_type(self, name: str, stored: TensorType) -> TensorType | None:
        """The type of the optimizer's own variable (no slot) of that name, which a checkpoint has
        as `stored` and which is not made here yet; None if it has none of that name.
        """
        return None

    def _make_state(self, name: str, wanted: TensorType) -> Variable:
        """Make that variable."""
        raise InternalError(f"{self.name} has no variable '{name}'")

    def _rate(self, var: Variable) -> TensorLike:
        return hyper(self.learning_rate, var)

    def _checked(self, name: str, value: Any, below: float = math.inf) -> Any:
        """A hyperparameter that must be at least 0 and less than `below`.

        Of functions nothing is checked, of variables and symbolic tensors only the dtype.
        TypeRuleError for what is no real number, InvalidArgumentError for one out of range.
        """
        if callable(value):
            return value
        known: Any = value
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if isinstance(value, (Tensor, Variable, np.ndarray)):
            real = as_dtype(value.dtype).kind in ("int", "uint", "float")
            known = value._data if isinstance(value, Tensor) else value
        if not real:
            raise TypeRuleError(
                f"{self.name}: {name} must be a real number, got {value!r:.60}",
                hint="give a number, tensor or variable, or a function that returns one",
                location=caller_location(),
            )
        if known is None or isinstance(known, Variable):
            return value
        if not np.all((np.asarray(known) >= 0) & (np.asarray(known) < below)):
            limits = "finite and not negative" if below == math.inf else f"in [0, {below:g})"
            raise InvalidArgumentError(
                f"{self.name}: {name} must be {limits}, got {value!r:.60}",
                location=caller_location(),
            )
        return value


def _dense(gradient: Any, var: Variable) -> Tensor:
    with beside(var):  # rows are sent there, not as much as the whole variable
        return dense_gradient(gradient)


def dense_gradient(gradient: Any) -> Tensor:
    """What the formulas take; the compiler's pass `sparse_updates` makes rows of it again."""
    return gradient.to_dense() if isinstance(gradient, IndexedSlices) else as_tensor(gradient)


def hyper(value: Hyper, var: Variable) -> TensorLike:
    """A hyperparameter for the update of `var`: Python numbers as they are, tensors in its
    dtype.
    """
    number = value() if callable(value) else value
    return number if is_scalar(number) else cast(number, var.dtype)


class SGD(Optimizer):
    """var -= learning_rate * grad (TF1's GradientDescentOptimizer).

    >>> w = wf.Variable([1.0, 2.0])
    >>> optimizer = wf.train.SGD(0.25)
    >>> @wf.compile
    ... def step():
    ...     loss = wf.sum(w**2)
    ...     optimizer.minimize(loss)
    ...     return loss
    >>> print(step(), w.read())
    Tensor(5., dtype=float32) Tensor([0.5, 1. ], dtype=float32)
    """

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

    lazy: rows that were not looked up keep their accumulators, as in TF1 (`apply_gradients`).

    >>> w = wf.Variable(0.0)
    >>> optimizer = wf.train.Momentum(0.5, momentum=0.5)
    >>> for _ in range(2):
    ...     _ = optimizer.minimize(lambda: 2.0 * w)  # outside of a trace the loss is a function
    >>> float(w), float(optimizer.get_slot(w, "momentum"))  # -0.5 * 2, then -0.5 * 3
    (-2.5, 3.0)
    """

    takes_complex = True

    def __init__(
        self,
        learning_rate: Hyper = 0.01,
        momentum: Hyper = 0.9,
        use_nesterov: bool = False,
        name: str | None = None,
        lazy: bool = False,
    ) -> None:
        super().__init__(learning_rate, name)
        self.momentum = self._checked("momentum", momentum)
        self.use_nesterov = use_nesterov
        self.lazy = lazy

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        accum = self._slot(var, "momentum")
        keep = hyper(self.momentum, var)
        velocity = add(multiply(accum, keep), grad)
        step = add(grad, multiply(velocity, keep)) if self.use_nesterov else velocity
        return [accum.assign(velocity), var.assign_sub(multiply(step, self._rate(var)))]


def decayed(slot: Variable, decay: TensorLike, new: Tensor) -> Tensor:
    """decay*slot + (1 - decay)*new."""
    rest = 1 - decay if is_scalar(decay) else subtract(1, decay)
    return add(multiply(slot, decay), multiply(new, rest))


class Adagrad(Optimizer):
    """accum += grad^2; var -= learning_rate * grad / sqrt(accum) (Duchi, Hazan and Singer 2011).

    Where grad is 0, var stays as it is, also if accum is 0 there. So of a table that is looked up
    (`wf.nn.embedding_lookup`) a compiled step touches the looked-up rows only.

    >>> w = wf.Variable([0.0, 0.0])
    >>> optimizer = wf.train.Adagrad(0.5, initial_accumulator_value=0.0)
    >>> _ = optimizer.minimize(lambda: wf.sum(w * [3.0, 0.0]))
    >>> w.numpy().round(3).tolist(), optimizer.get_slot(w, "accumulator").numpy().tolist()
    ([-0.5, 0.0], [9.0, 0.0])
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

    lazy: rows that were not looked up keep their averages, as in TF1 (`apply_gradients`).

    >>> w = wf.Variable(1.0)
    >>> optimizer = wf.train.Adadelta(1.0, rho=0.75, epsilon=1.0)
    >>> _ = optimizer.apply_gradients([(wf.asarray(2.0), w)])  # w -= sqrt(0 + 1) / sqrt(1 + 1) * 2
    >>> round(float(w), 4), optimizer.get_slot_names()
    (-0.4142, ['accum', 'accum_update'])
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        rho: Hyper = 0.95,
        epsilon: Hyper = 1e-8,
        name: str | None = None,
        lazy: bool = False,
    ) -> None:
        super().__init__(learning_rate, name)
        self.rho = self._checked("rho", rho, below=1)
        self.epsilon = self._checked("epsilon", epsilon)
        self.lazy = lazy

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        accum, updates = self._slot(var, "accum"), self._slot(var, "accum_update")
        rho, epsilon = hyper(self.rho, var), hyper(self.epsilon, var)
        squares = decayed(accum, rho, square(grad))
        ratio = multiply(sqrt(add(updates, epsilon)), rsqrt(add(squares, epsilon)))
        step = multiply(ratio, grad)
        return [
            accum.assign(squares),
            updates.assign(decayed(updates, rho, square(step))),
            var.assign_sub(multiply(step, self._rate(var))),
        ]


class RMSProp(Optimizer):
    """ms = decay*ms + (1-decay)*grad^2; mom = momentum*mom + learning_rate*grad / sqrt(ms +
    epsilon); var -= mom.

    ms starts at 1. centered: the square of the running mean of grad is subtracted from ms under the
    root. (Tieleman and Hinton 2012, lecture 6.5; Graves 2013, equation 38, for `centered`.)

    lazy: rows that were not looked up keep ms and mom, as in TF1 (`apply_gradients`).

    >>> w = wf.Variable(1.0)
    >>> optimizer = wf.train.RMSProp(0.1, decay=0.75, epsilon=0.0)
    >>> _ = optimizer.apply_gradients([(wf.asarray(1.0), w)])
    >>> round(float(w), 4), optimizer.get_slot_names()
    (0.9, ['momentum', 'rms'])
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        decay: Hyper = 0.9,
        momentum: Hyper = 0.0,
        epsilon: Hyper = 1e-10,
        centered: bool = False,
        name: str | None = None,
        lazy: bool = False,
    ) -> None:
        super().__init__(learning_rate, name)
        self.decay = self._checked("decay", decay, below=1)
        self.momentum = self._checked("momentum", momentum)
        self.epsilon = self._checked("epsilon", epsilon)
        self.centered = centered
        self.lazy = lazy

    def _update(self, grad: Tensor, var: Variable) -> list[Tensor]:
        decay = hyper(self.decay, var)
        ms, mom = self._slot(var, "rms", 1.0), self._slot(var, "momentum")
        squares = decayed(ms, decay, square(grad))
        done = [ms.assign(squares)]
        spread = squares
        if self.centered:
            mg = self._slot(var, "mg")
            mean = decayed(mg, decay, grad)
            done.append(mg.assign(mean))
            spread = subtract(squares, square(mean))
        root = rsqrt(add(spread, hyper(self.epsilon, var)))
        scaled = multiply(multiply(grad, self._rate(var)), root)
        step = add(multiply(mom, hyper(self.momentum, var)), scaled)
        return [*done, mom.assign(step), var.assign_sub(step)]


class CountedOptimizer(Optimizer):
    """The common part of optimizers whose formula has the number of the step in it."""

    def __init__(self, learning_rate: Hyper, name: str | None = None) -> None:
        super().__init__(learning_rate, name)
        self.step: Variable | None = None

    def variables(self) -> list[Variable]:
        """The slots, and the number of steps made."""
        return ([] if self.step is None else [self.step]) + super().variables()

    def _apply(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[Tensor]:
        first = table_of(pairs[0][1])
        with beside(first):
            done = [count := put_beside(self._counter(), first).assign_add(1)]
        shared: dict[DType, Tensor] = {}  # the rates, of which those of one dtype are the same
        for g, v in pairs:
            with beside(table_of(v)):
                done += self._step(g, v, count, {} if device_scopes() else shared)
        return done

    def _step(
        self, grad: Tensor, var: Variable, count: Tensor, shared: dict[DType, Tensor]
    ) -> list[Tensor]:
        """Change one variable in step `count`, from 1 on. shared: for what those of one dtype
        share."""
        raise NotImplementedError

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


class Adam(CountedOptimizer):
    """Steps of running means of grad over roots of running means of grad^2 (Kingma and Ba 2014).

    m = beta1*m + (1-beta1)*grad; v = beta2*v + (1-beta2)*grad^2; var -= learning_rate * sqrt(1 -
    beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon), for step t = 1, 2, ... The epsilon is the
    paper's "epsilon hat" (end of its section 2), as in TF1.

    lazy: rows that were not looked up keep m and v, and do not move (TF1's LazyAdamOptimizer; its
    AdamOptimizer moves all rows, as without it).

    >>> w = wf.Variable([1.0, -3.0])
    >>> optimizer = wf.train.Adam(0.1)
    >>> @wf.compile
    ... def step():
    ...     optimizer.minimize(wf.sum((w - [2.0, 5.0]) ** 2))
    >>> for _ in range(300):
    ...     step()
    >>> w.numpy().round(2).tolist(), optimizer.get_slot_names()
    ([2.0, 5.0], ['m', 'v'])
    """

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        name: str | None = None,
        lazy: bool = False,
    ) -> None:
        super().__init__(learning_rate, name)
        self.beta1 = self._checked("beta1", beta1, below=1)
        self.beta2 = self._checked("beta2", beta2, below=1)
        self.epsilon = self._checked("epsilon", epsilon)
        self.lazy = lazy

    def _step(
        self, grad: Tensor, var: Variable, count: Tensor, shared: dict[DType, Tensor]
    ) -> list[Tensor]:
        m_slot, v_slot = self._slot(var, "m"), self._slot(var, "v")
        beta1, beta2 = hyper(self.beta1, var), hyper(self.beta2, var)
        m = decayed(m_slot, beta1, grad)
        v = decayed(v_slot, beta2, square(grad))
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

    >>> w = wf.Variable([1.0, 2.0])
    >>> optimizer = wf.train.AdamW(0.5, weight_decay=0.5)
    >>> _ = optimizer.apply_gradients([(wf.zeros([2]), w)])  # where the gradient is 0: decay alone
    >>> w.read()
    Tensor([0.75, 1.5 ], dtype=float32)
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
