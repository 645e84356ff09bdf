"""Integers and floats that a `size_tape.Tape` gives out: they remember how they came about
(`ir/sizes.py` has what others need of them).

They behave as the numbers that they are now. A comparison gives a plain bool and is a condition on
the tape, unless what is known answers it; so does whatever needs the number itself: `int(n)`,
`range(n)`, `f"{n}"`, NumPy. They say that their class is `int` or `float`, as code asks by
`isinstance`, but they are no subclasses: C code that would take a subclass's digits without asking
asks these.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.polynomials import Terms, added, atoms_in, multiplied, subtracted, text_of
from weft.ir.size_tape import Tape
from weft.ir.traced_floats import OnTape, TracedFloat, as_float, fraction_of, is_number

Operator = Callable[[Any, Any], Any]


class Traced(OnTape):
    """An integer: a polynomial over the atoms of its tape."""

    __slots__ = ()
    terms: Terms
    value: int

    def __init__(self, tape: Tape, value: int, terms: Terms) -> None:
        self.tape, self.value, self.terms = tape, value, terms

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    @property
    def text(self) -> str:
        """As an expression."""
        return text_of(self.terms)

    @property
    def atoms(self) -> frozenset[int]:
        """The atoms that it is made of."""
        return atoms_in(self.terms)

    # ---------------------------------------------------------------------------------- arithmetic
    def _make(self, terms: Terms, value: int) -> Any:
        if not terms:
            return 0
        if len(terms) == 1 and () in terms:
            return terms[()]
        return Traced(self.tape, value, terms)

    def _quotient(self, a: Terms, now: int, b: Terms, by: int) -> Any:
        return self._make(self.tape.quotient(a, b, now // by), now // by)

    def _float(self) -> TracedFloat:
        terms = {m: float(c) for m, c in self.terms.items()}
        return TracedFloat(self.tape, float(self.value), terms)

    def _apart(self, compute: Operator, other: Any, *, reflected: bool = False) -> Any:
        """An operation with what is no integer, or whose result is none."""
        if isinstance(other, np.ndarray):
            return compute(other, int(self)) if reflected else compute(int(self), other)
        if fraction_of(self.tape, other) is None:
            return NotImplemented  # `[0] * n`: Python then asks for the number
        if reflected:
            return compute(as_float(self.tape, other), self)
        return compute(self._float(), other)

    def __add__(self, other: Any) -> Any:
        given = _operand(self.tape, other)
        if given is None:
            return self._apart(operator.add, other)
        return self._make(added(self.terms, given[0]), self.value + given[1])

    def __sub__(self, other: Any) -> Any:
        given = _operand(self.tape, other)
        if given is None:
            return self._apart(operator.sub, other)
        return self._make(subtracted(self.terms, given[0]), self.value - given[1])

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        given = _operand(self.tape, other)
        if given is None:
            return self._apart(operator.mul, other)
        return self._make(multiplied(self.terms, given[0]), self.value * given[1])

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self._make({m: -c for m, c in self.terms.items()}, -self.value)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __pow__(self, other: Any) -> Any:
        return math.prod([self] * operator.index(other))

    def __floordiv__(self, other: Any) -> Any:
        given = _operand(self.tape, other)
        if given is None:
            return self._apart(operator.floordiv, other)
        return self._quotient(self.terms, self.value, *given)

    def __rfloordiv__(self, other: Any) -> Any:
        given = _operand(self.tape, other)
        if given is None:
            return self._apart(operator.floordiv, other, reflected=True)
        return self._quotient(*given, self.terms, self.value)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other if _operand(self.tape, other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return other - other // self * self if _operand(self.tape, other) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return self._apart(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apart(operator.truediv, other, reflected=True)

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << operator.index(other))

    def __rlshift__(self, other: Any) -> Any:
        return other << int(self)

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << operator.index(other))

    def __and__(self, other: Any) -> Any:
        return int(self) & other

    def __or__(self, other: Any) -> Any:
        return int(self) | other

    __rand__, __ror__ = __and__, __or__

    def __floor__(self) -> Any:
        return self

    __ceil__ = __trunc__ = __floor__

    def __round__(self, digits: None = None) -> Any:
        return self

    # --------------------------------------------------------------------------------- comparisons
    def __eq__(self, other: object) -> bool:
        given = _operand(self.tape, other)
        if given is None:
            return self._float() == other if is_number(other) else False
        if self.terms == given[0]:
            return True
        return self.tape.is_zero(subtracted(self.terms, given[0]), self.value - given[1])

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> Any:
        given = _operand(self.tape, other)
        if given is None:
            return self._apart(operator.lt, other)
        return self.tape.is_positive(subtracted(given[0], self.terms), given[1] - self.value)

    def __gt__(self, other: Any) -> Any:
        given = _operand(self.tape, other)
        if given is None:
            return self._apart(operator.gt, other)
        return self.tape.is_positive(subtracted(self.terms, given[0]), self.value - given[1])

    def __le__(self, other: Any) -> Any:
        return not self > other if is_number(other) else self._apart(operator.le, other)

    def __ge__(self, other: Any) -> Any:
        return not self < other if is_number(other) else self._apart(operator.ge, other)

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        """What a table says of sizes that it holds is a condition only where it finds one: a pass
        that does not see that two are equal now, and may be others later, is right, too."""
        return hash(frozenset(self.terms.items()))

    # ---------------------------------------------------------------------------- the number itself
    def __index__(self) -> int:
        if self != self.value:  # notes that it is
            raise AssertionError
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def bit_length(self) -> int:
        """As `int.bit_length`."""
        return int(self).bit_length()

    def __repr__(self) -> str:
        return repr(int(self))

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)


def _operand(tape: Tape, x: Any) -> tuple[Terms, int] | None:
    """An integer's polynomial and value; None for anything else. One of another tape is what a
    cache has kept: a plain number here."""
    if type(x) is Traced:
        if x.tape is tape:
            return x.terms, x.value
        x = x.value
    if isinstance(x, (int, np.integer)):
        value = int(x)
        return ({(): value} if value else {}), value
    return None


OnTape.size = Traced
