"""The sizes of symbols, from dimensions whose size is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.ir.dims import Dim, SymbolicDim, substitute_dim


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
