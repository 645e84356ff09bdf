"""Feeds of other dtypes: what converts, and what would lose a value (TensorFlow 1's `Session.run`
with `np.asarray(value, dtype)`, but that nothing is cut off or wraps round in silence)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf

InvalidArgumentError, TypeRuleError = wf.errors.InvalidArgumentError, wf.errors.TypeRuleError


@pytest.fixture
def graph() -> Iterator[Any]:
    with wf.Graph("g").as_default() as g:
        yield g


@pytest.mark.parametrize(
    ("dtype", "fed", "value"),
    [
        (wf.bool, 1, True),
        (wf.bool, 0, False),
        (wf.bool, np.int64(1), True),
        (wf.bool, 1.0, True),
        (wf.int32, 3, 3),
        (wf.int32, np.int64(-3), -3),
        (wf.int32, True, 1),
        (wf.int32, 3.0, 3),
        (wf.int32, np.float32(3.0), 3),
        (wf.uint8, np.uint64(255), 255),
        (wf.float32, 3, 3.0),
        (wf.float32, 2**24, 2.0**24),
        (wf.float32, 0.1, np.float32(0.1)),
        (wf.complex64, 2, 2 + 0j),
        (wf.uint64, 2**64 - 1, np.uint64(2**64 - 1)),
        (wf.float32, 2**64, 2.0**64),
        (wf.complex128, -(2**100), -(2.0**100) + 0j),
    ],
)
def test_scalars_that_convert(graph: Any, dtype: Any, fed: Any, value: Any) -> None:
    x = wf.placeholder(dtype, [])
    found = wf.Session().run(x, {x: fed})
    assert found.dtype == dtype.numpy
    assert found == value


def test_lists_and_arrays_convert(graph: Any) -> None:
    p, n = wf.placeholder(wf.bool, [None]), wf.placeholder(wf.int32, [None, 2])
    session = wf.Session()
    assert session.run(p, {p: [0, 1, 1]}).tolist() == [False, True, True]
    assert session.run(p, {p: np.array([0, 1], np.uint8)}).tolist() == [False, True]
    assert session.run(n, {n: [[1.0, 2.0]]}).tolist() == [[1, 2]]
    assert session.run(n, {n: np.arange(4).reshape(2, 2)}).dtype == np.int32
    assert session.run(p, {p: []}).shape == (0,)


@pytest.mark.parametrize(
    ("dtype", "fed", "match"),
    [
        (wf.bool, 2, "an integer fed .* does not fit bool: 2\n(.|\n)*true and false are 1 and 0"),
        (wf.bool, 0.5, "a float64 value fed .* does not fit bool: 0.5"),
        (wf.int32, 2**40, f"does not fit int32: {2**40}"),
        (wf.int32, 3.5, "a float64 value fed .* does not fit int32: 3.5"),
        (wf.int32, float("nan"), "does not fit int32: nan"),
        (wf.int32, np.float64(2.0**31), "does not fit int32: 2147483648.0"),
        (wf.int64, 2.0**63, "does not fit int64"),
        (wf.uint8, -1, "does not fit uint8: -1"),
        (wf.int64, np.uint64(2**64 - 1), f"does not fit int64: {2**64 - 1}"),
        (wf.float32, 2**24 + 1, "does not fit float32: 16777217"),
        (wf.float16, 10**6, "does not fit float16: 1000000"),
    ],
)
def test_values_that_would_be_lost(graph: Any, dtype: Any, fed: Any, match: str) -> None:
    x = wf.placeholder(dtype, [])
    with pytest.raises(InvalidArgumentError, match=match):
        wf.Session().run(x, {x: fed})


@pytest.mark.parametrize(
    ("dtype", "fed"),
    [(wf.float32, 1 + 0j), (wf.int32, "1"), (wf.string, 1), (wf.bool, 1j)],
)
def test_other_kinds_do_not_convert(graph: Any, dtype: Any, fed: Any) -> None:
    x = wf.placeholder(dtype, [])
    with pytest.raises(TypeRuleError, match=r"value was fed for .*\n(.|\n)*convert it first"):
        wf.Session().run(x, {x: fed})


def test_tuples_of_tensors_take_tuples_of_values(graph: Any) -> None:
    x, y, p = (wf.placeholder(t, []) for t in (wf.float32, wf.float32, wf.bool))
    session = wf.Session()
    assert session.run([x + y, p], {(x, (y, p)): (1, [2, True])}) == [3, True]
    with pytest.raises(InvalidArgumentError, match="a tuple of 2 tensors was given 1"):
        session.run(x, {(x, y): 1})
    with pytest.raises(InvalidArgumentError, match=r"a tuple of 2 tensors was given \(1, 2, 3\)"):
        session.run(x, {(x, y): (1, 2, 3)})
    with pytest.raises(TypeRuleError, match="a int cannot be fed"):
        session.run(x, {(x, 1): (1, 2)})


@pytest.mark.parametrize(
    ("dtype", "fed"),
    [
        (wf.uint64, 2**64), (wf.uint64, -(2**63) - 1), (wf.int64, 2**63), (wf.int32, 2**70),
        (wf.bool, 2**64), (wf.float32, 2**64 + 1), (wf.float64, 10**400), (wf.float16, 2**64),
        (wf.bfloat16, 2**64 + 1), (wf.complex64, 2**24 + 1), (wf.complex64, 2**64 + 1),
    ],
)  # fmt: skip
def test_large_integers_that_do_not_fit(graph: Any, dtype: Any, fed: int) -> None:
    x = wf.placeholder(dtype, [])
    with pytest.raises(InvalidArgumentError, match=f"does not fit {dtype.name}") as error:
        wf.Session().run(x, {x: fed})
    assert error.value.locations[0].file == __file__


NUMBERS = [wf.bool, wf.int8, wf.uint8, wf.int32, wf.uint32, wf.int64, wf.uint64]
ANY = st.one_of(
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-300, 300),
    st.floats(width=32),
    st.integers(-300, 300).map(float),
    st.sampled_from([2.0**31, 2.0**32, 2.0**63, -(2.0**63), 2.0**64]),
)


@given(st.sampled_from(NUMBERS), ANY)
@examples(300)
def test_a_feed_is_the_same_number_or_an_error(dtype: Any, value: Any) -> None:
    """Python's exact numbers say whether integers keep their value."""
    with wf.Graph("g").as_default(), wf.Session() as session:
        x = wf.placeholder(dtype, [])
        finite = math.isfinite(value)
        limits = (0, 1) if dtype is wf.bool else (wf.iinfo(dtype).min, wf.iinfo(dtype).max)
        fits = finite and Fraction(value).denominator == 1 and limits[0] <= value <= limits[1]
        if fits:
            assert int(session.run(x, {x: value})) == Fraction(value)
        else:
            with pytest.raises(InvalidArgumentError, match="does not fit"):
                session.run(x, {x: value})
