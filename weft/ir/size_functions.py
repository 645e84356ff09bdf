"""Sizes that are no polynomials of others: `max(p,0)`, and `p // q` as `div(p,q)`.

A slice of an axis whose size is a symbol has them in its bounds, as Python cuts bounds off at the
ends: x[1:] of `b` rows has `max(b-1,0)`. Sizes are never negative, by which many are simplified:
`max(max(b-1,0)-1,0)` is `max(b-2,0)`, `div(div(b,2),2)` is `div(b,4)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from weft.ir.dims import Factor, Monomial, SymbolicDim, substitute_dim, sum_of, terms_of
from weft.ir.errors import ShapeError
from weft.ir.source import caller_location

Size: TypeAlias = int | SymbolicDim

_LONGEST = 2000  # letters of a factor, which may double with each slice of a slice


class _Function(Factor):
    """`max(first,0)` or `div(first,second)`."""

    __slots__ = ("first", "name", "second")
    name: str
    first: Size
    second: Size

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols in its operands."""
        parts = (self.first, self.second)
        return frozenset().union(*(p.symbols for p in parts if isinstance(p, SymbolicDim)))

    def at(self, sizes: Mapping[str, int]) -> Size:
        """Itself with the sizes of symbols filled in."""
        first, second = _filled(self.first, sizes), _filled(self.second, sizes)
        return positive(first) if self.name == "max" else divided(first, second)


def _filled(value: Size, sizes: Mapping[str, int]) -> Size:
    found = substitute_dim(value, sizes)
    assert found is not None
    return found


def _dim(name: str, first: Size, second: Size) -> SymbolicDim:
    factor = _Function(f"{name}({first},{second})")
    if len(factor) > _LONGEST:
        raise ShapeError(
            f"a size is too involved: {factor[:80]}...",
            hint="slices of slices of an axis whose size is known only when the graph runs: cut "
            "once, or give its size when building the graph",
            location=caller_location(),
        )
    factor.name, factor.first, factor.second = name, first, second
    return SymbolicDim({(factor,): 1})


def positive(value: Size) -> Size:
    """max(value, 0)."""
    if isinstance(value, int):
        return max(value, 0)
    if never_negative(value):
        return value
    if never_negative(-value):
        return 0
    for _, inner, none, itself in _maxima(value):
        # where the inner max is 0, the outer one is, too, and would be without it
        if _never_positive(none, -inner - 1) and _never_positive(itself, -inner - 1):
            return positive(itself)
        if _never_positive(none, inner) and _never_positive(itself, inner):
            return positive(none)
    return _dim("max", value, 0)


def least(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    one, other = (b, a) if isinstance(a, int) else (a, b)
    return one - positive(one - other)


def largest(a: Size, b: Size) -> Size:
    """The larger of two sizes."""
    one, other = (b, a) if isinstance(a, int) else (a, b)
    return other + positive(one - other)


def divided(a: Size, b: Size) -> Size:
    """a // b, rounded down, for a that is never negative and b that is never 0. ShapeError where
    that is not seen."""
    if not (never_negative(a) and never_negative(b - 1)):
        raise ShapeError(f"{a} // {b} is not known to be a size", location=caller_location())
    if isinstance(b, int):
        if isinstance(a, int) or b == 1:
            return a // b
        for mono, factor in terms_of(a).items():  # (p // q + r) // b is (p + r * q) // (q * b)
            inner = _function(mono, "div")
            if inner is None or factor != 1 or not isinstance(inner.second, int):
                continue
            rest = a - SymbolicDim({mono: 1})
            if isinstance(rest, int) and rest >= 0:
                return divided(inner.first + rest * inner.second, inner.second * b)
    return _dim("div", a, b)


def never_negative(value: Size, tries: int = 6) -> bool:
    """Whether that is seen, as no symbol and no factor is negative and max(p,0) is p or 0: `tries`
    such factors are looked into."""
    if min(terms_of(value).values(), default=0) >= 0:
        return True
    for times, _, none, itself in _maxima(value) if tries else ():
        if never_negative(none, tries - 1):
            if times > 0 or never_negative(itself, tries - 1):
                return True
        elif times > 0 and never_negative(itself, tries - 1):
            return True
    return False


def _never_positive(value: Size, given: Size) -> bool:
    """Whether that is seen for all sizes for which `given` is not negative."""
    return any(never_negative(-value - given * k, 3) for k in range(3))


def _maxima(value: Size) -> Iterator[tuple[int, Size, Size, Size]]:
    """For each term max(p,0): how often it is added, p, and the value with 0 and with p for it."""
    terms = terms_of(value)
    for mono, times in terms.items():
        inner = _function(mono, "max")
        if inner is not None:
            none = sum_of({m: c for m, c in terms.items() if m != mono})
            yield times, inner.first, none, none + inner.first * times


def _function(mono: Monomial, name: str) -> _Function | None:
    """What a monomial is, if it is that alone."""
    factor = mono[0] if len(mono) == 1 else None
    return factor if isinstance(factor, _Function) and factor.name == name else None
