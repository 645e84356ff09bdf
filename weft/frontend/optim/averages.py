"""`ExponentialMovingAverage` of variables, whose averages are often better parameters than what
the last step left (Polyak and Juditsky 1992), with TensorFlow 1's methods."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, current_trace, graph_around, suspend_trace
from weft.frontend.ops.elementwise import add, divide, minimum, multiply, subtract
from weft.frontend.ops.promotion import TensorLike, cast, is_scalar
from weft.frontend.ops.special import pow
from weft.frontend.optim.optimizer import Hyper, hyper
from weft.frontend.state.scopes import beside, group, put_beside
from weft.frontend.state.variable import FullName, Variable, variables_of
from weft.ir.dims import format_shape
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock


class ExponentialMovingAverage:
    """Averages that follow variables: average -= (1 - d) * (average - variable), each time that
    `apply` runs.

    decay: d, in [0, 1). num_updates: a step count, with which d = min(decay, (1 + num_updates) /
    (10 + num_updates)), so that averages move faster in the beginning. zero_debias: averages of
    variables begin at 0 and are divided by 1 - d^n after n updates (Kingma and Ba 2014, section 3),
    not with the variable. TypeRuleError for a decay that is no real number, InvalidArgumentError
    for one out of range.

    >>> w = wf.Variable(0.0)
    >>> averages = wf.train.ExponentialMovingAverage(0.5)
    >>> @wf.compile
    ... def step():
    ...     w.assign_add(1.0)
    ...     averages.apply([w])
    >>> for _ in range(3):  # begins with the variable, at 0; then 0.5, 1.25
    ...     step()
    >>> float(w), float(averages.average(w)), averages.average_name(w)
    (3.0, 2.125, 'variable/ExponentialMovingAverage')
    """

    def __init__(
        self,
        decay: Hyper,
        num_updates: TensorLike | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self.name = name
        self.decay = _checked(decay)
        self.num_updates = num_updates
        self.zero_debias = zero_debias
        self._averages: dict[Variable, Variable] = {}
        # of what begins at 0: the sum without the division, and the number of updates
        self._biased: dict[Variable, tuple[Variable, Variable]] = {}
        self._of_tensors: dict[int, tuple[Tensor, Variable]] = {}
        self._lock = ForkLock()

    def apply(
        self, var_list: Sequence[Variable | Tensor] | Variable | Tensor | None = None
    ) -> Effect:
        """Update the averages of `var_list`, by default all trainable variables of the graph or of
        the function so far. In a graph: the effect that does it.

        The first time it makes them, with the variables' (initial) values. In a graph tensors have
        averages, too, which begin at 0 with zero_debias. UnsupportedError for tensors elsewhere,
        InvalidArgumentError if there are no variables.
        """
        trace = current_trace()
        if var_list is None and trace is not None:
            known = trace.root().effects.reads if trace.root().kind != "graph" else None
            held = variables_of(trace.root()).values() if known is None else known
            var_list = [
                v for v in held if isinstance(v, Variable) and v.trainable and v.dtype.is_floating
            ]
        given: Any = [var_list] if isinstance(var_list, (Variable, Tensor)) else var_list
        items: list[Any] = list(given or [])
        if not items:
            raise InvalidArgumentError(
                f"{self.name}: there are no variables to be averaged",
                hint="pass var_list; without one, those that the graph or function has read",
                location=caller_location(),
            )
        done: list[Tensor] = []
        for item in items:
            if not isinstance(item, (Variable, Tensor)) or not item.dtype.is_floating:
                raise TypeRuleError(
                    f"{self.name}: floating variables have averages, not {item!r:.60}",
                    location=caller_location(),
                )
            with beside(item):
                done += self._updated(item)
        return group(*done, name=self.name)

    def average(self, var: Variable | Tensor) -> Variable | None:
        """The variable that holds its average; None before `apply` has seen it.

        >>> averages = wf.train.ExponentialMovingAverage(0.9)
        >>> print(averages.average(wf.Variable(1.0)))
        None
        """
        if isinstance(var, Variable):
            return self._averages.get(var)
        held = self._of_tensors.get(id(var))
        return None if held is None else held[1]

    def average_name(self, var: Variable) -> str:
        """The name of the variable that holds its average, or will hold it: to restore it from a
        checkpoint without making it.

        >>> v = wf.Variable(1.0, name="v")
        >>> wf.train.ExponentialMovingAverage(0.9).average_name(v)
        'v/ExponentialMovingAverage'
        """
        made = self.average(var)
        return f"{var.name}/{self.name}" if made is None else made.name

    def variables_to_restore(
        self, moving_avg_variables: Sequence[Variable] | None = None
    ) -> dict[str, Variable]:
        """For `wf.train.Saver`: by name the variables of the graph, those that have averages by the
        names of these, so that restoring gives them the averages.

        moving_avg_variables: which have averages; by default those that `apply` has seen, and the
        trainable ones of the graph.

        >>> with wf.Graph().as_default():
        ...     w, n = wf.Variable([1.0], name="w"), wf.Variable(0, trainable=False, name="n")
        ...     found = wf.train.ExponentialMovingAverage(0.9).variables_to_restore()
        >>> sorted(found)
        ['n', 'w/ExponentialMovingAverage']
        """
        trace = current_trace()
        known = [] if trace is None else list(variables_of(trace.root()).values())
        if moving_avg_variables is None:
            trainable = [v for v in known if v.trainable and v.dtype.is_floating]
            averaged = dict.fromkeys([*self._averages, *trainable])
        else:
            averaged = dict.fromkeys(moving_avg_variables)
        own = {*self.variables()}
        found = {self.average_name(v): v for v in averaged}
        return found | {v.name: v for v in known if v not in averaged and v not in own}

    def variables(self) -> list[Variable]:
        """The averages, and what they are computed from: save and restore them with the model's."""
        parts = [part for both in self._biased.values() for part in both]
        held = [*self._averages.values(), *(v for _, v in self._of_tensors.values()), *parts]
        return list(dict.fromkeys(held))

    # ----------------------------------------------------------------------------------- the inside
    def _updated(self, item: Variable | Tensor) -> list[Tensor]:
        from_zero = self.zero_debias or not isinstance(item, Variable)
        shadow = self._made(item, from_zero)
        value = item.read() if isinstance(item, Variable) else item
        decay = self._decay(shadow)
        rest = 1 - decay if is_scalar(decay) else subtract(1, decay)
        if not from_zero:
            return [shadow.assign_sub(multiply(subtract(shadow, value), rest))]
        biased, count = (put_beside(v, shadow) for v in self._biased[shadow])
        total = add(multiply(biased, decay), multiply(value, rest))
        number = count.assign_add(1)
        share = subtract(1, pow(decay, cast(number, shadow.dtype)))
        return [number, biased.assign(total), shadow.assign(divide(total, share))]

    def _decay(self, shadow: Variable) -> TensorLike:
        decay = hyper(self.decay, shadow)
        if self.num_updates is None:
            return decay
        n = cast(as_tensor(self.num_updates), shadow.dtype)
        return minimum(divide(add(n, 1), add(n, 10)), decay)

    def _made(self, item: Variable | Tensor, from_zero: bool) -> Variable:
        """The variable with the average, which is made if it is not there."""
        trace = graph_around(current_trace())
        with self._lock:
            made = self.average(item)
            if made is None:
                made = self._new(item, from_zero, trace is not None)
                if isinstance(item, Variable):
                    self._averages[item] = made
                else:
                    self._of_tensors[id(item)] = item, made
        return made

    def _new(self, item: Variable | Tensor, from_zero: bool, in_graph: bool) -> Variable:
        if isinstance(item, Variable):
            label, shape = f"{item.name}/{self.name}", item.shape
        else:
            shape = tuple(n for n in item.shape if isinstance(n, int))
            label = f"{self.name}/tensor_{len(self._of_tensors)}"
            self._check_tensor(item, shape, in_graph)
        start = np.zeros(shape, item.dtype.numpy)
        if from_zero or not isinstance(item, Variable):
            with suspend_trace():
                names = ("", "/biased", "/updates")
                values = (start, start, np.zeros((), int64.numpy))
                parts = [
                    Variable(v, trainable=False, name=label + n)
                    for n, v in zip(names, values, strict=True)
                ]
            self._biased[parts[0]] = parts[1], parts[2]
            return parts[0]
        if in_graph:  # its initializer comes with that of the variable
            first = item.initialized_value()
            return Variable(first, trainable=False, name=FullName(label))
        with suspend_trace():
            return Variable(item.numpy(), trainable=False, name=label)

    def _check_tensor(self, item: Tensor, shape: tuple[int, ...], in_graph: bool) -> None:
        if not in_graph:
            raise UnsupportedError(
                f"{self.name}: {item.describe()} has an average only in a graph",
                hint="elsewhere keep the value in a wf.Variable, or use wf.metrics.Mean",
                location=caller_location(),
            )
        if len(shape) < item.ndim:
            raise ShapeError(
                f"{self.name}: a tensor of the shape {format_shape(item.shape)}, which is not "
                "known, has no average",
                location=caller_location(),
            )


def _checked(decay: Any) -> Any:
    if callable(decay) or isinstance(decay, (Tensor, Variable)):
        return decay
    if isinstance(decay, bool) or not isinstance(decay, numbers.Real):
        raise TypeRuleError(
            f"ExponentialMovingAverage: decay must be a real number, got {decay!r:.60}",
            location=caller_location(),
        )
    if not 0 <= float(decay) < 1:
        raise InvalidArgumentError(
            f"ExponentialMovingAverage: decay must be in [0, 1), got {decay!r:.60}",
            location=caller_location(),
        )
    return float(decay)
