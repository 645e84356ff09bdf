"""Gradients of the ops on stacks: the cotangent of a stack is a stack of its elements' cotangents.

Of a push it is popped, of a pop pushed; so loops that keep values on stacks, the gradients of other
loops, have gradients again.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import AttrValue
from weft.ir.errors import InternalError
from weft.ir.types import StackType, TensorType, Type
from weft.passes.expression import Expr
from weft.passes.gradients.rule import Rule, Site


def new_stack(at: Expr, element: Type) -> Expr:
    """A stack without elements, of values of type `element`, where `at` is."""
    if not isinstance(element, TensorType | StackType):
        raise InternalError(f"no stack holds a {element}", location=at.locations)
    held = StackType(element)
    attrs: dict[str, AttrValue] = {
        "dtype": held.tensor.dtype,
        "shape": held.tensor.shape,
        "depth": held.depth,
    }
    return at.wrap(at.builder.emit("stack_new", (), attrs, locations=at.locations)[0])


def zeros_like(x: Expr) -> Expr:
    """The zero of the type of `x`: of a stack the one without elements."""
    held = x.value.type
    return new_stack(x, held.element) if isinstance(held, StackType) else x.full(0)


def pushed(stack: Expr, value: Expr, limit: int = -1) -> Expr:
    """The stack with `value` on top."""
    return stack.op("stack_push", value, limit=limit)


def popped(stack: Expr) -> tuple[Expr, Expr]:
    """The stack without its top, and the top."""
    below, top = stack.builder.emit("stack_pop", (stack.value,), locations=stack.locations)
    return stack.wrap(below), stack.wrap(top)


def _push(s: Site) -> Sequence[Expr | None]:
    return popped(s.g)


def _pop(s: Site) -> Sequence[Expr | None]:
    below, top = s.cotangents
    rest = zeros_like(s.results[0]) if below is None else below
    return [pushed(rest, zeros_like(s.results[1]) if top is None else top)]


GRADIENTS: dict[str, Rule] = {
    "stack_push": _push,
    "stack_pop": _pop,
    "stack_add": lambda s: [s.g, s.g],
}
#: After autodiff there are handles for stacks.
NO_GRADIENT: frozenset[str] = frozenset({"stack_new", "arena_push", "arena_pop", "arena_add"})
