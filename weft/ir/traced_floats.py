"""Floats that a `size_tape.Tape` gives out, what prices make of sizes; see `ir/traced_sizes.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from weft.ir.polynomials import (
    FloatTerms,
    Fraction,
    Monomial,
    atoms_in,
    cancelled,
    float_product,
    fraction_sum,
    text_of,
)
from weft.ir.size_tape import FAR, Tape, floor_apart


class OnTape:
    """A number of a tape: what it is now, and the polynomial that it is."""

    __slots__ = ("tape", "terms", "value")
    __array_ufunc__ = None  # NumPy leaves `scalar * size` to __rmul__

    tape: Tape
    terms: Any
    value: Any
    text: Any  # as an expression
    atoms: Any  # frozenset[int]: that it is made of
    #: Makes an integer; `traced_sizes` sets it.
    size: ClassVar[Callable[[Tape, int, Any], Any]]


class TracedFloat(OnTape):
    """A float: a polynomial over the atoms of its tape, divided by a positive monomial."""

    __slots__ = ("by",)
    terms: FloatTerms
    value: float

    def __init__(self, tape: Tape, value: float, terms: FloatTerms, by: Monomial = ()) -> None:
        self.tape, self.value, self.terms, self.by = tape, value, terms, by

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    @property
    def text(self) -> str:
        """As an expression."""
        by = "".join(f" / x{k}" for k in self.by)
        return f"({text_of(self.terms)}{by})"

    @property
    def atoms(self) -> frozenset[int]:
        """The atoms that it is made of."""
        return atoms_in((*self.terms, self.by))

    # ---------------------------------------------------------------------------------- arithmetic
    def _sum(self, other: Any, value: float, sign: int) -> Any:
        given = fraction_of(self.tape, other)
        if given is None:
            return NotImplemented
        terms, by = fraction_sum((self.terms, self.by), given, sign)
        return TracedFloat(self.tape, value, terms, by)

    def __add__(self, other: Any) -> Any:
        return self._sum(other, self.value + now(other), 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._sum(other, self.value - now(other), -1)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        given = fraction_of(self.tape, other)
        if given is None:
            return NotImplemented
        terms, by = given
        if is_size(other) and self.by:
            alias = self.tape.alias(other.terms)
            if alias is not None and alias in self.by:
                terms = {(alias,): 1.0}
        made = cancelled(float_product(self.terms, terms), tuple(sorted(self.by + by)))
        return TracedFloat(self.tape, self.value * now(other), *made)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1.0

    def __truediv__(self, other: Any) -> Any:
        if fraction_of(self.tape, other) is None:
            return NotImplemented
        value = self.value / now(other)
        if is_size(other) and other.tape is self.tape:
            return TracedFloat(self.tape, value, *_divide(self, other))
        by = float(other)  # of a traced float: a condition
        return TracedFloat(self.tape, value, {m: c / by for m, c in self.terms.items()}, self.by)

    def __rtruediv__(self, other: Any) -> Any:
        return other / float(self)

    def __floordiv__(self, other: Any) -> Any:
        return float(math.floor(self / other))

    def __floor__(self) -> Any:
        value = math.floor(self.value)
        try:
            floor_apart(self.value)
        except ValueError:  # these sizes are for another plan
            self.tape.pin(dict.fromkeys([*self.terms, self.by], 1))
            return value
        (terms,) = self.tape.opaque(f"floor{self.text}", self.atoms, [value], (-FAR, FAR))
        return OnTape.size(self.tape, value, terms)

    def __ceil__(self) -> Any:
        return -math.floor(-self)

    # --------------------------------------------------------------------------------- comparisons
    def _is_more(self, other: Any, *, less: bool = False) -> Any:
        """self > other; less: the other way round."""
        given = fraction_of(self.tape, other)
        if given is None:
            return NotImplemented
        terms, _ = fraction_sum(
            (self.terms, self.by), given, -1
        )  # what they are divided by is positive
        a, b = self.value, float(now(other))
        by = math.prod(self.tape.atoms[k].value for k in (*self.by, *given[1]))
        terms = {m: -c for m, c in terms.items()} if less else terms
        return self.tape.is_more(terms, (b - a if less else a - b) * by, (abs(a) + abs(b)) * by)

    def __gt__(self, other: Any) -> Any:
        return self._is_more(other)

    def __lt__(self, other: Any) -> Any:
        return self._is_more(other, less=True)

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __eq__(self, other: object) -> bool:
        return not (self > other or self < other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0.0

    def __hash__(self) -> int:
        return hash((self.by, frozenset(self.terms.items())))

    def __float__(self) -> float:
        for number in self.atoms:  # a condition: it is what it is now
            int(OnTape.size(self.tape, self.tape.atoms[number].value, {(number,): 1}))
        return self.value

    def __int__(self) -> int:
        return int(math.floor(self) if self >= 0 else math.ceil(self))

    def __repr__(self) -> str:
        return repr(float(self))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)


def is_size(x: Any) -> bool:
    """Whether x is an integer of a tape."""
    return isinstance(x, OnTape) and type(x) is not TracedFloat


def now(x: Any) -> Any:
    """The number as it is."""
    return x.value if isinstance(x, OnTape) else x


def is_number(x: Any) -> bool:
    """Whether x is an integer or a float, of NumPy or a tape, too."""
    return isinstance(x, (int, float, np.integer, np.floating))


def as_float(tape: Tape, x: Any) -> TracedFloat:
    """A number as a float of a tape."""
    terms, by = fraction_of(tape, x) or ({}, ())
    return TracedFloat(tape, float(now(x)), terms, by)


def fraction_of(tape: Tape, x: Any) -> Fraction | None:
    """A number as a polynomial of floats and what that is divided by; None for anything else."""
    if type(x) is TracedFloat and x.tape is tape:
        return x.terms, x.by
    if is_size(x) and x.tape is tape:
        return {m: float(c) for m, c in x.terms.items()}, ()
    x = now(x)
    if not is_number(x):
        return None
    return ({(): float(x)} if x else {}), ()


def _divide(a: TracedFloat, b: Any) -> Fraction:
    """a / b; a denominator of several terms, or one that may be negative, is an atom."""
    tape = a.tape
    low, _ = tape.interval(b.terms)
    if low <= 0 and not b > 0:
        int(b)
    if len(b.terms) == 1:
        ((by, factor),) = b.terms.items()
        if all(tape.atoms[k].low > 0 for k in by):
            terms = {m: c / factor for m, c in a.terms.items()}
            return cancelled(terms, tuple(sorted(a.by + by)))
    (made,) = tape.opaque(text_of(b.terms), atoms_in(b.terms), [b.value], tape.interval(b.terms))
    ((by, _),) = made.items()
    return cancelled(a.terms, tuple(sorted(a.by + by)))
