"""Symbolic dimensions: integer polynomials over named sizes, such as `b*28+1`.

A dimension of a shape is an `int`, a `SymbolicDim`, or None (unknown, printed `?`). Symbols come
from placeholders; `substitute_dim` gives them their sizes when a graph is specialised, and
`solve_dims` finds those sizes from dimensions that are known.

With integers and dimensions, `+`, `-`, `*`, exact `//` and `**` give dimensions. Everything else
needs the value: an operator with a tensor or a float works on the size as a tensor, which the
frontend makes; a comparison with an integer, `int(dim)` and `range(dim)` are errors.

A factor may also be no polynomial of others (`Factor`): `max(p,0)`, and `p // q` as `div(p,q)`. A
slice of an axis whose size is a symbol has them in its bounds, as Python cuts bounds off at the
ends: x[1:] of `b` rows has `max(b-1,0)`, x[1::2] `div(max(b-1,0)+1,2)`. Sizes are never negative,
by which many are simplified: `max(max(b-1,0)-1,0)` is `max(b-2,0)`, `div(div(b,2),2)` is
`div(b,4)`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Number
from typing import Any, ClassVar, NoReturn, TypeAlias, TypeVar

from weft.ir.errors import ShapeError
from weft.ir.locations import caller_location

Monomial = tuple[str, ...]  # sorted factors, repeated for powers; () is the constant term
Operator = Callable[[Any, Any], Any]
Polynomial = Callable[["SymbolicDim", "int | SymbolicDim"], "int | SymbolicDim"]


#: An atom of a monomial: the name of a size, or the number of one (`size_tape.py`).
A = TypeVar("A", str, int)
N = TypeVar("N", int, float)


def added(a: Mapping[tuple[A, ...], N], b: Mapping[tuple[A, ...], N]) -> dict[tuple[A, ...], N]:
    """The sum of two polynomials, coefficients by monomials."""
    out = dict(a)
    for monomial, factor in b.items():
        total = out.get(monomial, 0) + factor
        if total:
            out[monomial] = total
        else:
            out.pop(monomial, None)
    return out


def subtracted(
    a: Mapping[tuple[A, ...], N], b: Mapping[tuple[A, ...], N]
) -> dict[tuple[A, ...], N]:
    """The difference of two polynomials."""
    return added(a, {m: -c for m, c in b.items()})


def multiplied(
    a: Mapping[tuple[A, ...], N], b: Mapping[tuple[A, ...], N]
) -> dict[tuple[A, ...], N]:
    """The product of two polynomials."""
    out: dict[tuple[A, ...], N] = {}
    for m, c in a.items():
        for n, d in b.items():
            monomial = tuple(sorted(m + n)) if m and n else m or n
            out[monomial] = out.get(monomial, 0) + c * d
    return {m: c for m, c in out.items() if c}


def without(monomial: tuple[A, ...], by: tuple[A, ...]) -> tuple[A, ...] | None:
    """The monomial divided by another; None if that is no monomial."""
    left = list(monomial)
    for atom in by:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _no_tensors(dim: SymbolicDim) -> NoReturn:
    raise dim._no_value(f"the dimension {dim}")


def _by_value(compute: Operator, reflected: bool = False) -> Operator:
    """An operator that no dimension results from: it works on the size as a tensor."""

    def operate(self: SymbolicDim, other: object) -> Any:
        if not isinstance(other, (Number, SymbolicDim)) and not _is_tensor(other):
            return NotImplemented  # `[0] * dim`: Python then asks for the value
        value = SymbolicDim.as_operand(self)
        return compute(other, value) if reflected else compute(value, other)

    return operate


def _polynomial(by_value: Operator) -> Callable[[Polynomial], Polynomial]:
    """Decorate what is right for an integer or a dimension; anything else goes to `by_value`."""

    def decorate(compute: Polynomial) -> Polynomial:
        def operate(self: SymbolicDim, other: Any) -> Any:
            if isinstance(other, SymbolicDim):
                return compute(self, other)
            if isinstance(other, Integral):
                return compute(self, int(other))
            return by_value(self, other)

        return operate

    return decorate


def _comparison(sign: str, compute: Operator) -> Operator:
    by_value = _by_value(compute)

    def compare(self: SymbolicDim, other: object) -> Any:
        if _is_tensor(other):
            return by_value(self, other)
        raise self._no_value(f"the comparison `{self} {sign} {other!r:.20}`")

    return compare


def _is_tensor(x: object) -> bool:
    """Whether `x` is a tensor, a variable or a NumPy array; scalars and dimensions are not."""
    return hasattr(type(x), "__array_ufunc__") and not isinstance(x, (Number, SymbolicDim))


class Factor(str):
    """A factor of a dimension that is no symbol but made of others, such as `max(b-1,0)`: never
    negative, and equal where the text is."""

    __slots__ = ()

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols in its operands."""
        raise NotImplementedError

    def at(self, sizes: Mapping[str, int]) -> int | SymbolicDim:
        """Itself with the sizes of symbols filled in."""
        raise NotImplementedError


class SymbolicDim:
    """A non-constant polynomial with integer coefficients; immutable and hashable."""

    __slots__ = ("_hash", "terms")

    #: The size as a tensor of the graph being built; the frontend sets it.
    as_operand: ClassVar[Callable[[SymbolicDim], Any]] = staticmethod(_no_tensors)

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = tuple(sorted((m, c) for m, c in terms.items() if c))
        self._hash = hash(self.terms)

    @staticmethod
    def symbol(name: str) -> SymbolicDim:
        """The dimension that is just the symbol `name` (an identifier)."""
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ShapeError(
                f"{name!r} is not a dimension name", hint="use an identifier such as 'batch'"
            )
        return SymbolicDim({(name,): 1})

    @property
    def symbols(self) -> frozenset[str]:
        found = (s.symbols if isinstance(s, Factor) else {s} for m, _ in self.terms for s in m)
        return frozenset().union(*found)

    @property
    def is_polynomial(self) -> bool:
        """Whether all factors are symbols."""
        return not any(isinstance(s, Factor) for m, _ in self.terms for s in m)

    def __eq__(self, other: object) -> Any:
        """Whether two dimensions are the same polynomial; elementwise with a tensor."""
        if isinstance(other, SymbolicDim):
            return self.terms == other.terms
        return _by_value(operator.eq)(self, other) if _is_tensor(other) else False

    def __ne__(self, other: object) -> Any:
        if _is_tensor(other):
            return _by_value(operator.ne)(self, other)
        return not self == other

    def __hash__(self) -> int:
        return self._hash

    @_polynomial(_by_value(operator.add))
    def __add__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        return sum_of(terms_of(self), terms_of(other))

    @_polynomial(_by_value(operator.mul))
    def __mul__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        return sum_of(multiplied(terms_of(self), terms_of(other)))

    def __neg__(self) -> int | SymbolicDim:
        return sum_of({m: -c for m, c in self.terms})

    @_polynomial(_by_value(operator.sub))
    def __sub__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        return self + (other * -1)

    @_polynomial(_by_value(operator.sub, reflected=True))
    def __rsub__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        return (self * -1) + other

    __radd__, __rmul__ = __add__, __mul__

    @_polynomial(_by_value(operator.pow))
    def __pow__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        if isinstance(other, int) and other >= 0:
            return math.prod([self] * other)
        raise ShapeError(
            f"`{self} ** {other}` is no size",
            hint="use an exponent that is an integer >= 0",
            location=caller_location(),
        )

    @_polynomial(_by_value(operator.floordiv))
    def __floordiv__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        """Exact division by an integer or a monomial; ShapeError where the result is no
        polynomial.
        """
        divisor = terms_of(other)
        if len(divisor) == 1:
            (mono, coef) = next(iter(divisor.items()))
            parts = [_divide_term(m, c, mono, coef) for m, c in self.terms] if coef else [None]
            if all(part is not None for part in parts):
                return sum_of(*(dict([part]) for part in parts if part is not None))
        raise ShapeError(
            f"dimension {self} is not known to be divisible by {other}",
            hint=f"wf.shape(x)[i] // {other} is the value as a tensor",
            location=caller_location(),
        )

    __truediv__ = _by_value(operator.truediv)
    __rtruediv__ = _by_value(operator.truediv, reflected=True)
    __rfloordiv__ = _by_value(operator.floordiv, reflected=True)
    __mod__ = _by_value(operator.mod)
    __rmod__ = _by_value(operator.mod, reflected=True)
    __rpow__ = _by_value(operator.pow, reflected=True)
    __lt__ = _comparison("<", operator.lt)
    __le__ = _comparison("<=", operator.le)
    __gt__ = _comparison(">", operator.gt)
    __ge__ = _comparison(">=", operator.ge)
    __array_ufunc__ = None  # NumPy leaves `array * dim` to __rmul__

    def __repr__(self) -> str:
        out = ""
        for mono, coef in sorted(self.terms, key=lambda t: (-len(t[0]), t[0])):
            factors = ([str(abs(coef))] if abs(coef) != 1 or not mono else []) + list(mono)
            out += ("-" if coef < 0 else "+" if out else "") + "*".join(factors)
        return out

    def __bool__(self) -> bool:
        return True

    def __int__(self) -> int:
        raise self._no_value(f"the dimension {self}")

    def _no_value(self, what: str) -> ShapeError:
        return ShapeError(
            f"{what} has no value yet: '{self}' is symbolic in this graph",
            hint="wf.shape(x) gives the sizes as a tensor (choose by them with wf.where); or build "
            "the graph with a known size",
            location=caller_location(),
        )

    __index__ = __int__


Dim = int | SymbolicDim | None
Shape = tuple[Dim, ...]


def _divide_term(
    mono: Monomial, coef: int, by_mono: Monomial, by_coef: int
) -> tuple[Monomial, int] | None:
    """The exact quotient of two terms, or None."""
    left = without(mono, by_mono)
    return None if left is None or coef % by_coef else (left, coef // by_coef)


def terms_of(value: int | SymbolicDim) -> dict[Monomial, int]:
    return dict(value.terms) if isinstance(value, SymbolicDim) else {(): int(value)}


def sum_of(*parts: Mapping[Monomial, int]) -> int | SymbolicDim:
    total: dict[Monomial, int] = {}
    for part in parts:
        total = added(total, part)
    if not total:
        return 0
    return total[()] if set(total) == {()} else SymbolicDim(total)


def substitute_dim(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """`dim` with the symbols in `sizes` replaced by their values."""
    if not isinstance(dim, SymbolicDim):
        return dim
    total: int | SymbolicDim = 0
    for mono, coef in dim.terms:
        value: int | SymbolicDim = coef
        for name in mono:
            if isinstance(name, Factor):
                value = value * name.at(sizes)
            else:
                value = value * (sizes[name] if name in sizes else SymbolicDim.symbol(name))
        total = total + value
    return total


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions; None if one is unknown (0 wins over unknown)."""
    total: Dim = 1
    for dim in dims:
        if dim == 0 or total == 0:
            total = 0
        elif dim is None or total is None:
            total = None
        else:
            total = total * dim
    return total


def same(a: Dim, b: Dim) -> bool:
    """False only if the two are known to differ (two ints that are unequal)."""
    return not (isinstance(a, int) and isinstance(b, int)) or a == b


def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """The broadcast of two dimensions; an unknown or symbolic one is taken to fit. Raises
    ShapeError.
    """
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ShapeError(f"dimensions {a} and {b} do not broadcast")
    if isinstance(a, int):
        return a
    return b if isinstance(b, int) or a is None else a


def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy's broadcasting over any number of shapes. Raises ShapeError naming all of them."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            try:
                out[i] = broadcast_dim(out[i], dim)
            except ShapeError:
                listed = ", ".join(format_shape(s) for s in shapes)
                raise ShapeError(
                    f"shapes {listed} do not broadcast together",
                    hint="sizes must be equal or 1, compared from the last dimension",
                ) from None
    return tuple(out)


def format_dim(dim: Dim) -> str:
    return "?" if dim is None else str(dim)


def format_shape(shape: Shape) -> str:
    """`[2,b,?]`."""
    return "[" + ",".join(format_dim(d) for d in shape) + "]"


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


def solve_dims(
    pairs: Iterable[tuple[Dim, int]], known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The sizes of symbols, `known` and those that follow from pairs (dimension, its size).

    A symbol follows where a dimension is ``coefficient*symbol + constant`` with no other symbol
    that is not known. Whether all pairs agree is for the caller to check.
    """
    sizes = dict(known or {})
    left = [(d, n) for d, n in pairs if isinstance(d, SymbolicDim)]
    while any(_solve(dim, size, sizes) for dim, size in left):
        pass  # each round may settle one of two symbols in another dimension
    return sizes


def _solve(dim: Dim, size: int, sizes: dict[str, int]) -> bool:
    """Note the size of the one unknown symbol of a linear dimension; whether one was found."""
    rest = substitute_dim(dim, sizes)
    if not isinstance(rest, SymbolicDim) or len(rest.symbols) != 1:
        return False
    (name,) = rest.symbols
    terms = dict(rest.terms)
    coefficient, constant = terms.pop((name,), 0), terms.pop((), 0)
    if terms or not coefficient or (size - constant) % coefficient:
        return False
    value = (size - constant) // coefficient
    if value >= 0:
        sizes[name] = value
    return value >= 0
