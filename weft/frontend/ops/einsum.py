"""`einsum`: Einstein's summation convention, as permutations, products and matmuls.

The subscripts are parsed here; two operands at a time are contracted, in the order that
`numpy.einsum_path` gives for more than two. A contraction becomes one batched matmul, or a fused
multiply and sum where one side has no axis of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

import numpy as np

from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.linalg import diagonal, product_operands
from weft.frontend.ops.promotion import TensorLike, broadcast_tensors, expand
from weft.frontend.ops.shape import moveaxis, permute_dims, reshape
from weft.frontend.tensor import Tensor
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, broadcast_dim, format_shape, product
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

#: Stand for the axes of an ellipsis, the last axis first, so that they broadcast from the right.
_ELLIPSIS_LABELS = "0123456789"


@dataclass(frozen=True, slots=True)
class Term:
    """A tensor with one label for each axis; all labels differ."""

    tensor: Tensor
    labels: str


def _fail(subscripts: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"wf.einsum({subscripts!r}): {why}", location=caller_location())


def einsum(
    subscripts: str, /, *operands: TensorLike, preferred_element_type: object = None
) -> Tensor:
    """Sums of products named by labels: `einsum("ij,jk->ik", a, b)` is a matrix product.

    As NumPy's: one letter for each axis, `...` for any number of axes that broadcast, repeated
    letters in one operand take its diagonal, letters that are not in the output are summed over;
    without `->` the output has the letters that occur once, in alphabetical order. Dtypes promote
    and stay; preferred_element_type: another one, in which all products and sums are, as for
    `matmul`. Errors, at the caller's line: TypeRuleError for subscripts that are not a string
    (NumPy's form with lists of axes) and for dtypes, InvalidArgumentError for malformed ones,
    ShapeError for sizes that do not fit.
    """
    if not isinstance(subscripts, str):
        raise TypeRuleError(
            f"wf.einsum: the subscripts must be a string, got {type(subscripts).__name__}",
            hint="write wf.einsum('ij->ji', x); NumPy's form einsum(x, [0, 1], ...) is not there",
            location=caller_location(),
        )
    tensors = product_operands("einsum", preferred_element_type, *operands)
    inputs, output = _parse(subscripts, tensors)
    sizes = _sizes(subscripts, inputs, tensors)
    terms = [_distinct(Term(t, labels)) for t, labels in zip(tensors, inputs, strict=True)]
    for step in _path(terms, output, sizes):
        picked = [terms[i] for i in step]
        terms = [t for i, t in enumerate(terms) if i not in step]
        joined, *waiting = picked
        while waiting:
            other = waiting.pop(0)
            wanted = set(output).union(*(t.labels for t in (*terms, *waiting)))
            joined = _sum_out(joined, wanted | set(other.labels))
            other = _sum_out(other, wanted | set(joined.labels))
            joined = _contract(joined, other, wanted, sizes)
        terms.append(joined)
    (last,) = terms
    last = _sum_out(last, set(output))
    placed = permute_dims(last.tensor, [last.labels.index(c) for c in output])
    return expand(placed, tuple(sizes[c] for c in output))


def _parse(subscripts: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """The labels of each operand and of the output, ellipses spelled out."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(tensors):
        raise _fail(subscripts, f"{len(inputs)} terms for {len(tensors)} operands")
    longest = 0
    spelled = []
    for labels, t in zip(inputs, tensors, strict=True):
        letters = labels.replace("...", "", 1)
        if not all(c.isascii() and c.isalpha() for c in letters):
            raise _fail(subscripts, f"{labels!r} may hold letters and one '...' only")
        extra = t.ndim - len(letters)
        if extra < 0 or (extra and "..." not in labels) or extra > len(_ELLIPSIS_LABELS):
            raise _fail(subscripts, f"{labels!r} does not fit the shape {format_shape(t.shape)}")
        longest = max(longest, extra)
        spelled.append(labels.replace("...", _ELLIPSIS_LABELS[:extra][::-1]))
    dots = _ELLIPSIS_LABELS[:longest][::-1]
    if arrow:
        letters = right.replace("...", "", 1)
        output = right.replace("...", dots)
    else:
        joined = "".join(spelled)
        letters = "".join(sorted(c for c in set(joined) if c.isalpha() and joined.count(c) == 1))
        output = dots + letters
    unknown = set(letters) - set("".join(spelled))
    if unknown or len(set(letters)) != len(letters) or not all(c.isalpha() for c in letters):
        raise _fail(subscripts, f"the output {right!r} must hold distinct letters of the inputs")
    return spelled, output


def _sizes(subscripts: str, inputs: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, Dim]:
    sizes: dict[str, Dim] = {}
    for labels, t in zip(inputs, tensors, strict=True):
        for c, d in zip(labels, t.shape, strict=True):
            try:
                sizes[c] = broadcast_dim(sizes.get(c, 1), d)
            except ShapeError:
                shapes = ", ".join(format_shape(t.shape) for t in tensors)
                raise ShapeError(
                    f"wf.einsum({subscripts!r}): the sizes of '{c}' differ in shapes {shapes}",
                    location=caller_location(),
                ) from None
    return sizes


def _distinct(term: Term) -> Term:
    """The term with the diagonal taken for each label that it repeats."""
    t, labels = term.tensor, term.labels
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            i = labels.index(c)
            j = labels.index(c, i + 1)
            if t.shape[i] != t.shape[j]:
                raise ShapeError(
                    f"wf.einsum: the repeated label '{c}' has sizes {t.shape[i]} and {t.shape[j]}",
                    location=caller_location(),
                )
            t = diagonal(moveaxis(t, (i, j), (-2, -1)))
            labels = labels[:i] + labels[i + 1 : j] + labels[j + 1 :] + c
    return Term(t, labels)


def _path(terms: Sequence[Term], output: str, sizes: dict[str, Dim]) -> list[tuple[int, ...]]:
    """Which terms to contract next, by position; results go to the end."""
    if len(terms) <= 2 or len(sizes) > len(ascii_letters):  # NumPy knows no further labels
        return [tuple(range(len(terms)))]
    # only the sizes count: an array of one element stands for each operand
    letters = dict(zip(sizes, ascii_letters, strict=False))
    texts = ["".join(letters[c] for c in t.labels) for t in terms]
    text = ",".join(texts) + "->" + "".join(letters[c] for c in output)
    shapes = [tuple(d if isinstance(d, int) else 64 for d in t.tensor.shape) for t in terms]
    path, _ = np.einsum_path(text, *(np.broadcast_to(0.0, s) for s in shapes), optimize="greedy")
    return [tuple(step) for step in path[1:]]


def _sum_out(term: Term, keep: set[str]) -> Term:
    axes = tuple(i for i, c in enumerate(term.labels) if c not in keep)
    if not axes:
        return term
    summed = apply("sum", term.tensor, axes=axes, keepdims=False)
    return Term(summed, "".join(c for c in term.labels if c in keep))


def _contract(a: Term, b: Term, wanted: set[str], sizes: dict[str, Dim]) -> Term:
    """The product of two terms, summed over the labels that nobody else wants."""
    shared = [c for c in a.labels if c in b.labels]
    inner = [c for c in shared if c not in wanted]
    batch = [c for c in shared if c in wanted]
    left = [c for c in a.labels if c not in b.labels]
    right = [c for c in b.labels if c not in a.labels]
    if not inner or not left or not right:
        return _multiply_sum(a, b, [*batch, *left, *right], inner)
    m = _as_matrices(a, batch, left, inner, sizes)
    n = _as_matrices(b, batch, inner, right, sizes)
    out = apply("matmul", m[0], n[0], transpose_a=m[1], transpose_b=n[1])
    labels = [*batch, *left, *right]
    return Term(reshape(out, tuple(sizes[c] for c in labels)), "".join(labels))


def _multiply_sum(a: Term, b: Term, kept: list[str], inner: list[str]) -> Term:
    labels = [*kept, *inner]
    parts = []
    for term in (a, b):
        present = [c for c in labels if c in term.labels]
        ordered = permute_dims(term.tensor, [term.labels.index(c) for c in present])
        at = iter(ordered.shape)
        parts.append(reshape(ordered, tuple(next(at) if c in present else 1 for c in labels)))
    out = apply("multiply", *broadcast_tensors(*parts, op="einsum"))
    if inner:
        axes = tuple(range(len(kept), len(labels)))
        out = apply("sum", out, axes=axes, keepdims=False)
    return Term(out, "".join(kept))


def _as_matrices(
    term: Term, batch: list[str], rows: list[str], columns: list[str], sizes: dict[str, Dim]
) -> tuple[Tensor, bool]:
    """The term as [batch, rows, columns], or transposed (True) where that moves fewer axes."""
    t = expand(term.tensor, tuple(sizes[c] for c in term.labels))
    transposed = list(term.labels) == [*batch, *columns, *rows] and bool(rows)
    order = [*batch, *columns, *rows] if transposed else [*batch, *rows, *columns]
    ordered = permute_dims(t, [term.labels.index(c) for c in order])
    one, two = (columns, rows) if transposed else (rows, columns)
    lead = tuple(sizes[c] for c in batch)
    shape = (*lead, product(sizes[c] for c in one), product(sizes[c] for c in two))
    return reshape(ordered, shape), transposed
