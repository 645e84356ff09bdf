"""Guards on sizes: a `Tape` records what planning decides by the sizes it is made for.

A tape gives out integers that remember how they were computed (`ir/sizes.py`: `Traced`). Passes and
planning compute with them as with any others; each decision that depends on one, such as a
comparison, is recorded as a guard together with its answer. Where all guards hold for other sizes,
planning would have gone the same way, so the same plan is right with its numbers computed anew:
`Sizes.evaluate`. (PyTorch 2 compiles for "dynamic shapes" in this way: Ansel et al., 2024, section
4.4.)

A number is a polynomial, with integer or float coefficients, over numbered *atoms*: the given sizes
and whatever is no polynomial of them, such as a quotient that leaves a remainder. For each atom an
interval is known; what follows from the intervals needs no guard. Most guards are on one size
alone, and narrow its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import added, multiplied, subtracted, without

Monomial = tuple[int, ...]  # numbers of atoms, sorted, repeated for powers; () is the constant
Terms = Mapping[Monomial, int]
FloatTerms = Mapping[Monomial, float]
#: A polynomial of floats, and the monomial that it is divided by.
Fraction = tuple[FloatTerms, Monomial]
#: What is left of equal factors that were rounded in different ways, as a part of them.
ROUNDING = 1e-14


def text_of(terms: Mapping[Monomial, Any]) -> str:
    """A polynomial as an expression over `x0`, `x1`, ..."""
    parts = ["*".join([repr(c), *(f"x{k}" for k in m)]) for m, c in sorted(terms.items())]
    return f"({' + '.join(parts) or '0'})"


def atoms_in(monomials: Iterable[Monomial]) -> frozenset[int]:
    """The numbers of the atoms in monomials, a polynomial's for example."""
    return frozenset(k for m in monomials for k in m)


def linear(terms: Mapping[Monomial, Any]) -> tuple[int | None, Any, Any]:
    """Of `factor * x + rest`: the number of the atom x (None if it is something else), factor,
    rest."""
    symbolic = [(m, c) for m, c in terms.items() if m]
    if len(symbolic) != 1 or len(symbolic[0][0]) != 1:
        return None, 0, 0
    ((number,), factor) = symbolic[0]
    return number, factor, terms.get((), 0)


def fraction_sum(a: Fraction, b: Fraction, sign: int) -> Fraction:
    """The sum over a common denominator; of the difference what is left of equal terms is 0."""
    if a[1] == b[1]:
        left, right, by = a[0], b[0], a[1]
    else:
        left, right = multiplied(a[0], {b[1]: 1.0}), multiplied(b[0], {a[1]: 1.0})
        by = tuple(sorted(a[1] + b[1]))
    out = dict(left)
    for m, c in right.items():
        total = out.get(m, 0.0) + sign * c
        out[m] = total if abs(total) > ROUNDING * abs(c) else 0.0
    return cancelled({m: c for m, c in out.items() if c}, by)


def cancelled(terms: FloatTerms, by: Monomial) -> Fraction:
    """Without the atoms that all terms have in common with the denominator."""
    for atom in by:
        parts = {without(m, (atom,)): c for m, c in terms.items()}
        if None not in parts:
            terms = {m: c for m, c in parts.items() if m is not None}
            by = without(by, (atom,)) or ()
    return terms, by


Key = frozenset[tuple[Monomial, float]]
Numbers = np.ndarray[Any, Any]
#: Larger sizes have plans of their own.
MOST = 1 << 40
#: Smaller ones, too: axes of size 1 broadcast, and are dropped from loops.
LEAST = 2
FAR = 1 << 62
#: Conditions with larger numbers are computed in floats: `x[i:]` stops at 2**63 - 1.
HUGE = 1 << 53
#: Floats closer than this part of them might compare otherwise when computed in another order.
CLOSE = 1e-9


def floor_apart(x: float) -> int:
    """math.floor. ValueError where another order of the operations might give another number."""
    if abs(x - round(x)) <= CLOSE * (abs(x) + 1):
        raise ValueError(x)
    return math.floor(x)


@dataclass(slots=True)
class _Atom:
    """A number that is no polynomial of others. value: as it is now. low, high: where it lies where
    the guards hold; derived: what follows of that by itself. line: which one computes it (-1: it is
    given)."""

    value: int
    low: int
    high: int
    derived: tuple[int, int]
    line: int


@dataclass(frozen=True, slots=True)
class _Line:
    """One statement of the function that evaluates; atoms: that it reads; first, count: the numbers
    of those that it makes."""

    text: str
    atoms: frozenset[int]
    first: int
    count: int


@dataclass(slots=True)
class Tape:
    """Guards and lines so far. wide: rather compute more for each set of sizes than note conditions
    on what only steers speed."""

    wide: bool = False

    atoms: list[_Atom] = field(default_factory=list)
    leaves: int = 0
    lines: list[_Line] = field(default_factory=list)
    functions: list[Callable[..., Any]] = field(default_factory=list)
    _known: dict[str, _Line] = field(default_factory=dict)
    _positive: dict[Key, FloatTerms] = field(default_factory=dict)
    _zero: dict[Key, Terms] = field(default_factory=dict)
    _other: dict[Key, Terms] = field(default_factory=dict)
    _more: dict[Key, FloatTerms] = field(default_factory=dict)

    def leaf(self, value: int) -> Terms:
        """A new size, from LEAST to MOST. All are made before anything else is."""
        self.leaves += 1
        self.atoms.append(_Atom(value, LEAST, MOST, (-FAR, FAR), -1))
        return {(len(self.atoms) - 1,): 1}

    # ------------------------------------------------------------------------------- what is known
    def interval(self, terms: Mapping[Monomial, Any]) -> tuple[Any, Any]:
        """Between which numbers a polynomial lies."""
        low = high = 0
        for monomial, factor in terms.items():
            a = b = factor
            for number in monomial:
                atom = self.atoms[number]
                ends = (a * atom.low, a * atom.high, b * atom.low, b * atom.high)
                a, b = min(ends), max(ends)
            low, high = low + min(a, b), high + max(a, b)
        return low, high

    def is_positive(self, terms: Terms, value: int) -> bool:
        """Whether the polynomial, now `value`, is more than 0; a condition unless that is known."""
        low, high = self.interval(terms)
        if low > 0 or high <= 0:
            return bool(low > 0)
        held = value > 0
        kept = terms if held else subtracted({(): 1}, terms)
        number, factor, rest = linear(kept)
        if number is None:
            huge = any(abs(c) >= HUGE for c in kept.values())
            (self._more if huge else self._positive)[frozenset(kept.items())] = kept
        elif factor > 0:  # x > -rest / factor
            self._narrow(number, int(-rest // factor) + 1, FAR)
        else:  # x < rest / -factor
            self._narrow(number, -FAR, int(-(-rest // -factor)) - 1)
        return held

    def is_zero(self, terms: Terms, value: int) -> bool:
        """Whether the polynomial, now `value`, is 0; a condition unless that is known."""
        low, high = self.interval(terms)
        if low > 0 or high < 0 or low == high:
            return bool(low == high == 0)
        if terms.get((), 0) % math.gcd(*(c for m, c in terms.items() if m)):
            return False
        number, factor, rest = linear(terms)
        if number is None and any(abs(c) >= HUGE for c in terms.values()):
            self.pin(terms)
            return value == 0
        if number is None:
            (self._other if value else self._zero)[frozenset(terms.items())] = terms
            return value == 0
        atom, place = self.atoms[number], -rest // factor
        if value == 0:
            self._narrow(number, place, place)
        elif place in (atom.low, atom.high):
            self._narrow(number, atom.low + (place == atom.low), atom.high - (place == atom.high))
        else:
            self._other[frozenset(terms.items())] = terms
        return value == 0

    def is_more(self, terms: FloatTerms, value: float, scale: float) -> bool:
        """Whether a polynomial of floats, now `value`, is more than 0; a condition unless that is
        known. scale: how large its terms are. Where it is so close to 0 that another order of the
        operations might decide, the sizes are for another plan."""
        held = value > 0
        if not any(terms):
            return held
        if abs(value) <= CLOSE * scale:
            self.pin(terms)
            return held
        kept = terms if held else {m: -c for m, c in terms.items()}
        low, _ = self.interval(kept)
        number, factor, rest = linear(kept)
        if low > CLOSE * scale:
            return held
        if number is None:
            self._more[frozenset(kept.items())] = kept
            return held
        place = -rest / factor
        apart = CLOSE * (abs(place) + 1)
        if factor > 0:
            self._narrow(number, math.floor(place + apart) + 1, FAR)
        else:
            self._narrow(number, -FAR, math.ceil(place - apart) - 1)
        return held

    def _narrow(self, number: int, low: int, high: int) -> None:
        atom = self.atoms[number]
        atom.low, atom.high = max(atom.low, low), min(atom.high, high)
        if not atom.low <= atom.value <= atom.high:
            atom.low = atom.high = atom.value

    def pin(self, terms: Mapping[Monomial, Any]) -> None:
        """The atoms must be what they are now."""
        for number in atoms_in(terms):
            self._narrow(number, self.atoms[number].value, self.atoms[number].value)

    # ------------------------------------------------------------------------------------ new atoms
    def opaque(
        self, text: str, atoms: Iterable[int], values: Sequence[int], ends: tuple[int, int]
    ) -> list[Terms]:
        """The atoms that an expression gives, now `values`, between `ends`; one, or a tuple."""
        line = self._known.get(text)
        if line is None:
            first, count = len(self.atoms), len(values)
            names = ", ".join(f"x{first + k}" for k in range(count))
            line = _Line(f"{names} = {text}", frozenset(atoms), first, count)
            self.atoms += [_Atom(v, *ends, ends, len(self.lines)) for v in values]
            self.lines.append(line)
            self._known[text] = line
        return [{(line.first + k,): 1} for k in range(line.count)]

    def quotient(self, a: Terms, b: Terms, value: int) -> Terms:
        """floor(a / b), now `value`: what is a multiple of b stays a polynomial."""
        if len(b) == 1:
            ((by, factor),) = b.items()
            if not by:
                whole = {m: c // factor for m, c in a.items() if m and c % factor == 0}
                rest = {m: c for m, c in a.items() if not m or c % factor}
                if any(rest):
                    return added(whole, self._opaque_quotient(rest, b, value - self._now(whole)))
                left = rest.get((), 0) // factor
                return added(whole, {(): left} if left else {})
            parts = {without(m, by): c for m, c in a.items()}
            low, high = self.interval(b)
            exact = None not in parts and not any(c % factor for c in a.values())
            if exact and (low > 0 or high < 0):
                return {m: c // factor for m, c in parts.items() if m is not None}
        return self._opaque_quotient(a, b, value)

    def _now(self, terms: Terms) -> int:
        return sum(c * math.prod(self.atoms[k].value for k in m) for m, c in terms.items())

    def _opaque_quotient(self, a: Terms, b: Terms, value: int) -> Terms:
        (low, high), (least, most) = self.interval(a), self.interval(b)
        ends = [x // y for x in (low, high) for y in (least, most)] if least > 0 else [-FAR, FAR]
        if min(ends) == max(ends):
            return {(): ends[0]} if ends[0] else {}
        text = f"{text_of(a)} // {text_of(b)}"
        atoms = atoms_in(a) | atoms_in(b)
        return self.opaque(text, atoms, [value], (min(ends), max(ends)))[0]

    def called(self, function: Callable[..., Any]) -> str:
        """The name of a function in expressions."""
        if function not in self.functions:
            self.functions.append(function)
        return f"g{self.functions.index(function)}"

    def alias(self, terms: Terms) -> int | None:
        """The number of the atom that `opaque` made of a polynomial as it is."""
        line = self._known.get(text_of(terms))
        return None if line is None else line.first

    # --------------------------------------------------------------------------------------- result
    def sizes(self, outputs: Sequence[Terms]) -> Sizes:
        """The function that evaluates `outputs`."""
        groups: list[list[FloatTerms]] = [
            list(outputs), *(list(h.values()) for h in (self._positive, self._zero, self._other))
        ]  # fmt: skip
        rows, more = [row for group in groups for row in group], list(self._more.values())
        monomials = list(dict.fromkeys([(), *(m for row in (*rows, *more) for m in row)]))
        text = self._source(monomials)
        scope: dict[str, Any] = {f"g{k}": g for k, g in enumerate(self.functions)}
        scope["floor"] = floor_apart
        exec(compile(text, "<sizes>", "exec"), scope)  # numbers and names of ours alone
        ends = np.cumsum([len(group) for group in groups]).tolist()
        matrix = _matrix(rows, monomials, np.int64)
        large = FAR / max(1.0, np.abs(matrix * 1.0).sum(axis=1).max(initial=0.0))
        return Sizes(
            scope["evaluate"], matrix, _matrix(more, monomials, np.float64), tuple(ends), text,
            large,
        )  # fmt: skip

    def _source(self, monomials: Sequence[Monomial]) -> str:
        """Atoms that are needed, their bounds as soon as they are known, and the monomials."""
        lines = self._needed(atoms_in(monomials))
        body = [self._bounds(k) for k in range(self.leaves)]
        for number in sorted(lines):
            line = self.lines[number]
            body.append(line.text)
            body += [self._bounds(line.first + k) for k in range(line.count)]
        products = ["*".join(f"x{k}" for k in m) or "1" for m in monomials]
        body.append(f"return ({', '.join(products)},)")
        head = f"def evaluate({', '.join(f'x{k}' for k in range(self.leaves))}):"
        return "\n    ".join([head, *filter(None, body)]) + "\n"

    def _needed(self, atoms: Iterable[int]) -> set[int]:
        """The lines that these and the narrowed atoms are made of."""
        narrowed = [k for k, a in enumerate(self.atoms) if a.derived != (a.low, a.high)]
        todo, lines = [*atoms, *narrowed], set[int]()
        while todo:
            number = self.atoms[todo.pop()].line
            if number >= 0 and number not in lines:
                lines.add(number)
                todo += self.lines[number].atoms
        return lines

    def _bounds(self, number: int) -> str:
        atom = self.atoms[number]
        if atom.derived == (atom.low, atom.high):
            return ""
        return f"if not {atom.low} <= x{number} <= {atom.high}: return None"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The result of a tape. function: of the sizes, the monomials; None where an atom is not where
    it must be. matrix: a row for each output, then for each polynomial that must be positive, 0,
    another than 0, up to the numbers in `ends`; more: those of floats that must be positive. text:
    the function's. large: below which monomials no sum overflows."""

    function: Callable[..., tuple[int, ...] | None]
    matrix: Numbers
    more: Numbers
    ends: tuple[int, ...]
    text: str
    large: float

    @property
    def conditions(self) -> int:
        """How many conditions there are on several atoms, or that one is not some number."""
        return self.ends[3] - self.ends[0] + len(self.more)

    def evaluate(self, given: Sequence[int]) -> Numbers | None:
        """The outputs for these sizes (int64[count]); None if a condition does not hold."""
        try:
            monomials = self.function(*given)
            if monomials is None:
                return None
            values = np.array(monomials, np.int64)
        except (ZeroDivisionError, OverflowError, ValueError):
            return None  # of what is only right where the conditions hold; too large
        if max(map(abs, monomials)) > self.large:  # sums might not fit
            if (np.abs(self.matrix * 1.0) @ np.abs(values * 1.0) >= FAR).any():
                return None
        found = self.matrix @ values
        a, b, c, d = self.ends
        if d > a and ((found[a:b] <= 0).any() or found[b:c].any() or not found[c:].all()):
            return None
        if len(self.more):
            sums, scale = self.more @ values, np.abs(self.more) @ np.abs(values)
            if (sums <= CLOSE * scale).any():
                return None
        return found[:a]


def _matrix(
    rows: Sequence[Mapping[Monomial, Any]], monomials: Sequence[Monomial], dtype: Any
) -> Numbers:
    number = {m: k for k, m in enumerate(monomials)}
    matrix = np.zeros((len(rows), len(monomials)), dtype)
    for k, row in enumerate(rows):
        for monomial, factor in row.items():
            matrix[k, number[monomial]] = factor
    return matrix
