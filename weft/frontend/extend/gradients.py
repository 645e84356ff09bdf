"""`wf.register_gradient`: the gradient of a registered op, in wf ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.frontend.extend.ops import op_name
from weft.frontend.extend.schema import of_weft
from weft.frontend.ops.operators import Operators
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Trace
from weft.ir.dataclass import dataclass
from weft.ir.errors import AlreadyExistsError, GradientError, InvalidArgumentError, WeftError
from weft.ir.locations import caller_location
from weft.ir.type_rules import fits
from weft.passes.autodiff.rule import Site
from weft.passes.autodiff.table import GRADIENTS
from weft.passes.rewriting.expression import Expr


@dataclass(frozen=True, slots=True)
class OpSite:
    """The op whose gradient is wanted, as TensorFlow's gradient functions get it."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attrs: Mapping[str, Any]

    def get_attr(self, name: str) -> Any:
        """The value of an attribute."""
        return self.attrs[name]


Gradient = Callable[..., Any]


def register_gradient(op: object, *, replace: bool = False) -> Callable[[Gradient], Gradient]:
    """Decorate `fn(op, *gradients)`, the gradient of a registered op (name or function).

    `op.inputs`, `op.outputs`: its tensors; `op.attrs`, `op.get_attr(name)`: its attributes. There
    is one gradient for each output (None for integers). `fn` returns the gradient of the only
    input, or a tuple with one for each (None: zero), computed with wf ops, so it has a gradient
    itself. It may use nothing of another trace, and no variables: make them inputs.
    NotFoundError if the op is not registered, AlreadyExistsError if it has a gradient.
    """
    try:
        name = op_name(op)
        if isinstance(GRADIENTS[name], _UserRule) and not replace:
            raise AlreadyExistsError(
                f"op '{name}' has a gradient already", hint="replace=True registers the new one"
            )
    except WeftError as error:
        raise error.at(caller_location()) from None

    def decorate(function: Gradient) -> Gradient:
        if not callable(function):
            raise InvalidArgumentError(
                f"the gradient of op '{name}' must be a function, got {function!r}",
                location=caller_location(),
            )
        GRADIENTS[name] = _UserRule(name, function)
        return function

    return decorate


class _UserRule:
    """A `gradients.rule.Rule` that calls the user's function in a trace of its own."""

    def __init__(self, name: str, function: Gradient) -> None:
        self.name, self.function = name, function

    def __call__(self, site: Site) -> list[Expr | None]:
        trace = Trace("region", f"gradient of {self.name}")
        trace.builder = site.x.builder  # its ops go where all gradients go
        with trace.scope():
            inputs = tuple(trace.tensor(x.value) for x in site.operands)
            outputs = tuple(trace.tensor(y.value) for y in site.results)
            gradients = [self._cotangent(trace, y, g) for y, g in
                         zip(site.results, site.cotangents, strict=True)]  # fmt: skip
            given = OpSite(self.name, inputs, outputs, of_weft(site.attrs))
            made = self._one_each(self.function(given, *gradients), inputs, site)
            found = [
                None if g is None else self._fit(trace, g, x, i, site)
                for i, (g, x) in enumerate(zip(made, inputs, strict=True))
            ]
        if trace.variables:
            raise GradientError(
                f"the gradient of op '{self.name}' reads the variable "
                f"'{next(iter(trace.variables))}'",
                hint="make what it needs an operand of the op",
                location=site.op.locations,
            )
        return found

    def _cotangent(self, trace: Trace, y: Expr, g: Expr | None) -> Tensor | None:
        held = trace.tensor(y.value)
        if not held.dtype.is_inexact:
            return None
        return trace.tensor((y.full(0) if g is None else g).value)

    def _one_each(self, made: Any, inputs: Sequence[Tensor], site: Site) -> Sequence[Any]:
        several = isinstance(made, (tuple, list))
        found = tuple(made) if several else (made,)
        if len(found) != len(inputs):
            raise GradientError(
                f"the gradient of op '{self.name}' gave {len(found)} gradients for "
                f"{len(inputs)} operands",
                hint="return a tuple with one for each operand, None for those without",
                location=site.op.locations,
            )
        return found

    def _fit(self, trace: Trace, g: Any, x: Tensor, number: int, site: Site) -> Expr:
        if not isinstance(g, Operators):
            g = as_tensor(g)
        t = as_tensor(g)
        if t.weak:
            t = as_tensor(t, x.dtype)
        value = trace.lift(t)
        if t.dtype is not x.dtype or not fits(t.shape, x.shape):
            raise GradientError(
                f"the gradient of op '{self.name}' for operand {number} has type {t._type}, the "
                f"operand {x._type}",
                hint="a gradient has the dtype and shape of its operand",
                location=site.op.locations,
            )
        return site.x.wrap(value)
