"""`wf.einsum` against NumPy's, which contracts all operands at once (`optimize=False`)."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given

import weft as wf
from weft.ir.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[Array]]:
    """Subscripts, and operands of small integers: sums are exact in any order."""
    letters = "abcdeZ"[: draw(st.integers(1, 6))]
    sizes = {c: draw(st.sampled_from([1, 2, 2, 3, 0])) for c in letters}
    extra = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))  # the axes of ellipses
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    terms, operands, dotted, met = [], [], False, set()
    for _ in range(draw(st.integers(1, 6))):
        term = "".join(draw(st.lists(st.sampled_from(letters), max_size=3)))
        # a label may have size 1 here and be broadcast; NumPy's diagonals want one size
        ones = {c for c in term if draw(st.integers(0, 4)) == 0}
        shape = [1 if c in ones else sizes[c] for c in term]
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(term)))
            kept = extra[draw(st.integers(0, len(extra))) :]
            own = [1 if draw(st.integers(0, 3)) == 0 else d for d in kept]
            term, shape, dotted = f"{term[:at]}...{term[at:]}", shape[:at] + own + shape[at:], True
        met |= set(term) - {"."}
        terms.append(term)
        operands.append(
            rng.integers(-3, 4, shape).astype(draw(st.sampled_from(["f8", "f4", "i8"])))
        )
    text = ",".join(terms)
    if draw(st.booleans()):
        text += "->" + "".join(draw(st.permutations(sorted(met)))[: draw(st.integers(0, 4))])
        text += "..." if dotted else ""
    return text, operands


@examples(400, deadline=None)
@given(calls())
def test_as_numpy(call: tuple[str, list[Array]]) -> None:
    text, operands = call
    expected = np.einsum(text, *operands, optimize=False)
    got = wf.einsum(text, *operands)
    np.testing.assert_array_equal(got, expected)
    compiled = wf.compile(lambda *xs: wf.einsum(text, *xs))
    np.testing.assert_array_equal(compiled(*operands), expected)


@examples(100, deadline=None)
@given(calls())
def test_gradients(call: tuple[str, list[Array]]) -> None:
    """A sum of products is linear in each operand: its slope there times the operand is itself."""
    text, operands = call
    held = [x.astype(np.float64) for x in operands]
    whole = np.einsum(text, *held, optimize=False).sum()
    slopes = wf.grad(lambda xs: wf.sum(wf.einsum(text, *xs)))(held)
    for x, slope in zip(held, slopes, strict=True):
        assert slope.shape == x.shape
        np.testing.assert_allclose(np.sum(np.asarray(slope) * x), whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("bi,kij,bj->bk", [(8, 3), (5, 3, 4), (8, 4)]),
        ("bi,ij,bj->b", [(8, 3), (3, 4), (8, 4)]),
        ("ab,bc,ca->", [(2, 3), (3, 4), (4, 2)]),
        ("a,ab,abc,abcd->d", [(2,), (2, 3), (2, 3, 2), (2, 3, 2, 4)]),
    ],
)
def test_a_step_of_three_operands(text: str, shapes: list[tuple[int, ...]]) -> None:
    """A label that an operand of the same step has, and that waits, is not summed out before."""
    rng = np.random.default_rng(0)
    operands = [rng.integers(-4, 5, s).astype(np.float64) for s in shapes]
    np.testing.assert_array_equal(wf.einsum(text, *operands), np.einsum(text, *operands))


def test_more_labels_than_numpy_has_letters() -> None:
    """Letters and the axes of an ellipsis, together more than 52."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    terms = [letters[i : i + 13] for i in range(0, 52, 13)]
    operands = [np.full((1,) * 13 + (2,) * (i == 0), float(i + 1)) for i in range(4)]
    text = f"{terms[0]}...," + ",".join(terms[1:]) + "->..."
    np.testing.assert_array_equal(wf.einsum(text, *operands), [24.0, 24.0])


def test_no_operands() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one operand"):
        wf.einsum("")
