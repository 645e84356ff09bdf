"""Polynomials with integer or float coefficients over numbered atoms, for `ir/size_tape.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Monomial = tuple[int, ...]  # numbers of atoms, sorted, repeated for powers; () is the constant
Terms = Mapping[Monomial, int]
FloatTerms = Mapping[Monomial, float]
#: A polynomial of floats, and the monomial that it is divided by.
Fraction = tuple[FloatTerms, Monomial]
#: What is left of equal factors that were rounded in different ways, as a part of them.
ROUNDING = 1e-14


def added(a: Terms, b: Terms) -> dict[Monomial, int]:
    """The sum of two polynomials."""
    out = dict(a)
    for monomial, factor in b.items():
        total = out.get(monomial, 0) + factor
        if total:
            out[monomial] = total
        else:
            out.pop(monomial, None)
    return out


def subtracted(a: Terms, b: Terms) -> dict[Monomial, int]:
    """The difference of two polynomials."""
    return added(a, {m: -c for m, c in b.items()})


def multiplied(a: Terms, b: Terms) -> dict[Monomial, int]:
    """The product of two polynomials."""
    out: dict[Monomial, int] = {}
    for m, c in a.items():
        for n, d in b.items():
            monomial = tuple(sorted(m + n)) if m and n else m or n
            out[monomial] = out.get(monomial, 0) + c * d
    return {m: c for m, c in out.items() if c}


def without(monomial: Monomial, by: Monomial) -> Monomial | None:
    """The monomial divided by another; None if that is no monomial."""
    left = list(monomial)
    for atom in by:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


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


def float_product(a: FloatTerms, b: FloatTerms) -> dict[Monomial, float]:
    out: dict[Monomial, float] = {}
    for m, c in a.items():
        for n, d in b.items():
            monomial = tuple(sorted(m + n))
            out[monomial] = out.get(monomial, 0.0) + c * d
    return {m: c for m, c in out.items() if c}


def fraction_sum(a: Fraction, b: Fraction, sign: int) -> Fraction:
    """The sum over a common denominator; of the difference what is left of equal terms is 0."""
    if a[1] == b[1]:
        left, right, by = a[0], b[0], a[1]
    else:
        left, right = float_product(a[0], {b[1]: 1.0}), float_product(b[0], {a[1]: 1.0})
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
