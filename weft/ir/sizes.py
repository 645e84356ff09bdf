"""Traced sizes: numbers that record guards on a `size_tape.Tape`, and the queries passes make of
them.

A size in a pass is an `int`, or a `Traced`: it behaves as the number that it is now, and remembers
how it was computed. A comparison gives a plain bool and records a guard, unless what is known
answers it; so does whatever needs the number itself: `int(n)`, `range(n)`, `f"{n}"`, NumPy. Prices
computed from sizes are `TracedFloat`s. Both say that their class is `int` or `float`, as code asks
by `isinstance`, but they are no subclasses: C code reads a subclass's digits directly, but calls
`__index__` and the like on these, which record the guard.

Code that handles sizes uses the functions at the end of this file. Where a number only steers
speed, or is in a text for people, `hint` gives it without a guard."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

import numpy as np

from weft.ir.dims import added, multiplied, subtracted
from weft.ir.size_tape import (
    FAR,
    FloatTerms,
    Fraction,
    Monomial,
    Tape,
    Terms,
    atoms_in,
    cancelled,
    floor_apart,
    fraction_sum,
    text_of,
)


class TracedNumber:
    """A number of a tape: its present value, and the polynomial that it is."""

    __slots__ = ("tape", "terms", "value")
    __array_ufunc__ = None  # NumPy leaves `scalar * size` to __rmul__

    tape: Tape
    terms: Any
    value: Any
    text: Any  # as an expression
    atoms: Any  # frozenset[int]: that it is made of
    #: Makes an integer: `Traced`, which is set at the end, as it is a subclass of this.
    size: ClassVar[Callable[[Tape, int, Any], Any]]


class TracedFloat(TracedNumber):
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
        made = cancelled(multiplied(self.terms, terms), tuple(sorted(self.by + by)))
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
        return TracedNumber.size(self.tape, value, terms)

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
            int(TracedNumber.size(self.tape, self.tape.atoms[number].value, {(number,): 1}))
        return self.value

    def __int__(self) -> int:
        return int(math.floor(self) if self >= 0 else math.ceil(self))

    def __repr__(self) -> str:
        return repr(float(self))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)


def is_size(x: Any) -> bool:
    """Whether x is an integer of a tape."""
    return isinstance(x, TracedNumber) and type(x) is not TracedFloat


def now(x: Any) -> Any:
    """The number as it is."""
    return x.value if isinstance(x, TracedNumber) else x


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


Operator = Callable[[Any, Any], Any]


class Traced(TracedNumber):
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


TracedNumber.size = Traced


def new_size(tape: Tape, value: int) -> int:
    """A size that is now `value`, at least 2."""
    return cast(int, Traced(tape, value, tape.leaf(value)))


def hint(x: int) -> int:
    """The number as it is now: for choices that are right whatever it is."""
    return int(now(x))


def fixed(x: Any) -> Any:
    """A number, or a tuple of such, as Python's own; one from a tape must stay what it is."""
    if isinstance(x, tuple):
        return tuple([fixed(v) for v in x])
    return int(x) if type(x) is Traced else x


def roughly(x: Any) -> int:
    """The number as it is now, for choices that are right whatever it is, and good for numbers like
    it: a condition is that the sizes that it is made of change by a factor of at most 8."""
    if type(x) is not Traced:
        return int(x)
    for number in x.atoms:
        one = Traced(x.tape, x.tape.atoms[number].value, {(number,): 1})
        if not one.value // 8 <= one <= 8 * one.value:
            raise AssertionError
    return int(x.value)


def is_traced(x: object) -> bool:
    """Whether the number comes from a tape."""
    return type(x) is Traced


def terms_of(x: Any) -> Terms:
    """The polynomial that a number is."""
    if type(x) is Traced:
        return x.terms
    return {(): x} if x else {}


def is_wide(x: object) -> bool:
    """Whether the number comes from a tape that is to serve as many sizes as it can."""
    return isinstance(x, TracedNumber) and x.tape.wide


def same_size(a: int, b: int) -> bool:
    """Whether two sizes are equal whatever the sizes are that they are made of; no condition."""
    return a is b or terms_of(a) == terms_of(b)


def at_most(a: int, b: int) -> bool:
    """Whether a <= b is known, whatever the sizes are that they are made of; no condition."""
    given: tuple[Any, Any] = (a, b)
    tape = next((x.tape for x in given if type(x) is Traced), None)
    if tape is None or same_size(a, b):
        return hint(a) <= hint(b)
    return bool(tape.interval(subtracted(terms_of(b), terms_of(a)))[0] >= 0)


def largest(a: Any, b: Any) -> int:
    """The larger one; no condition which that is."""
    return _chosen(max, a, b)


def smallest(a: Any, b: Any) -> int:
    """The smaller one; no condition which that is."""
    return _chosen(min, a, b)


def _chosen(choose: Callable[[Any, Any], Any], a: Any, b: Any) -> int:
    tape = next((x.tape for x in (a, b) if type(x) is Traced), None)
    if tape is None:
        return int(choose(a, b))
    (low, high), (least, most) = (tape.interval(terms_of(x)) for x in (a, b))
    if low >= most or least >= high:
        first = (low >= most) == (choose is max)
        return cast(int, a if first else b)
    texts = sorted(text_of(terms_of(x)) for x in (a, b))
    atoms = atoms_in((*terms_of(a), *terms_of(b)))
    ends, found = (choose(low, least), choose(high, most)), choose(now(a), now(b))
    (made,) = tape.opaque(f"{choose.__name__}({', '.join(texts)})", atoms, [found], ends)
    return cast(int, Traced(tape, found, made))


def of_sizes(function: Callable[..., tuple[int, ...]]) -> Callable[..., tuple[int, ...]]:
    """Decorate a function from sizes, and what has a plain value, to sizes that is called anew for
    other ones: what it compares is no condition. How many it gives must not depend on them."""

    def call(*args: Any) -> tuple[int, ...]:
        tape = next((a.tape for a in args if isinstance(a, TracedNumber)), None)
        if tape is None:
            return function(*args)
        values = [now(a) for a in args]
        found = function(*values)
        fixed = tuple((k, v) for k, (a, v) in enumerate(zip(args, values, strict=True)) if a is v)
        return _called(tape, _Partial(function, len(args), fixed), args, found)

    return call


class _Partial:
    """A function with some arguments filled in: equal to another one that gives the same."""

    def __init__(
        self, function: Callable[..., Any], count: int, fixed: tuple[tuple[int, Any], ...]
    ) -> None:
        self.function, self.count, self.fixed = function, count, fixed

    def __call__(self, *given: Any) -> Any:
        rest, args = iter(given), [None] * self.count
        for k, value in self.fixed:
            args[k] = value
        taken = {k for k, _ in self.fixed}
        for k in range(self.count):
            if k not in taken:
                args[k] = next(rest)
        return self.function(*args)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Partial) and (self.function, self.count, self.fixed) == (
            other.function, other.count, other.fixed
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.function, self.count))


def _called(
    tape: Tape, function: Callable[..., Any], args: Iterable[Any], found: tuple[int, ...]
) -> tuple[int, ...]:
    given = [a for a in args if isinstance(a, TracedNumber)]
    atoms = frozenset(k for a in given for k in a.atoms)
    text = f"{tape.called(function)}({', '.join(a.text for a in given)})"
    text += "[0]" if len(found) == 1 else ""
    made = tape.opaque(text, atoms, found, (-FAR, FAR))
    return tuple([cast(int, Traced(tape, v, t)) for v, t in zip(found, made, strict=True)])


def next_power(n: int) -> int:
    """The least power of two that is not less than n; of other sizes, that of those."""
    return _next_power(n)[0]


@of_sizes
def _next_power(n: int) -> tuple[int, ...]:
    return (1 << max(n - 1, 0).bit_length(),)
