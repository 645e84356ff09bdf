"""Python integers that do not fit: in lists, beside arrays, as arguments; and masked arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.errors import InvalidArgumentError, TypeRuleError

BYTES = np.arange(3, dtype=np.int8)


@wf.compile
def add(x: Any, k: Any) -> Any:
    return x + k


MEETS = add.__wrapped__.__code__.co_firstlineno + 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dtype", "k", "low", "high"),
    [("i1", 300, -128, 127), ("u1", -1, 0, 255), ("i4", 2**31, -(2**31), 2**31 - 1),
     ("u8", -1, 0, 2**64 - 1)],
)  # fmt: skip
def test_an_argument_that_does_not_fit_is_an_error_as_outside(
    dtype: str, k: int, low: int, high: int
) -> None:
    x = np.ones(3, dtype)
    with pytest.raises(InvalidArgumentError, match=rf"{k} does not fit \w+ \({low} to {high}\)"):
        wf.asarray(x) + k
    for call in (lambda: add(x, k), lambda: add(x, k=k), lambda: add(x, wf.add(k, 0))):
        with pytest.raises(InvalidArgumentError, match=rf"{k}, argument k, does not fit") as caught:
            call()
        assert f"({low} to {high})" in caught.value.what
        assert f"{__file__}:{MEETS}:" in caught.value.what  # where it meets the array
        assert caught.value.locations[0].file == __file__
        assert caught.value.locations[0].line != MEETS


def test_what_fits_is_computed_on_the_same_specialisation() -> None:
    before = add.cache_info().made
    x = np.zeros(5, np.int8)
    assert add(x, 127).tolist() == [127] * 5
    assert add(x, -128).tolist() == [-128] * 5
    with pytest.raises(InvalidArgumentError):
        add(x, 128)
    assert add(x, 1).dtype is wf.int8
    assert add.cache_info().made == before + 1
    assert add(x.astype("i8"), 300).tolist() == [300] * 5
    assert add(x.astype("f4"), 300).tolist() == [300] * 5


def test_through_nesting_and_inner_functions_and_gradients() -> None:
    @wf.compile
    def f(p: dict[str, Any]) -> Any:
        def loss(w: Any, k: Any) -> Any:
            return wf.sum(w) * wf.sum(wf.astype(add(p["x"], k), wf.float32))

        return wf.grad(loss)(p["w"], p["k"])

    args = {"x": BYTES, "w": np.ones(2, np.float32)}
    assert f({**args, "k": 2}).tolist() == [9, 9]
    with pytest.raises(InvalidArgumentError, match="1000, argument p_k, does not fit int8"):
        f({**args, "k": 1000})


def test_weak_tensors_are_checked_outside_a_trace() -> None:
    with pytest.raises(InvalidArgumentError, match="301 does not fit int8"):
        wf.add(300, 1) + BYTES
    inner = wf.compile(lambda x: add(x, 300))
    with pytest.raises(InvalidArgumentError, match="300 does not fit int8"):
        inner(BYTES)


# ---------------------------------------------------------------------------------------- lists
@pytest.mark.parametrize(
    ("values", "dtype", "name"),
    [([2**63, 1], None, "int64"), ([2**63], None, "int64"), ([[1], [2**64]], None, "int64"),
     ([-(2**63) - 1, True], None, "int64"), ([300], "int8", "int8"), ([-1, 2], "uint64", "uint64")],
)  # fmt: skip
def test_a_list_of_integers_that_do_not_fit_is_an_error(
    values: list[Any], dtype: Any, name: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"not an array of {name}") as caught:
        wf.asarray(values, dtype=dtype)
    assert name in str(caught.value.hint)
    assert caught.value.locations[0].file == __file__


def test_lists_keep_every_bit_of_large_integers() -> None:
    large = [2**63 + 1, 1]
    assert wf.asarray(large, dtype=wf.uint64).tolist() == large
    assert wf.asarray([2**63 - 1, -(2**63)]).tolist() == [2**63 - 1, -(2**63)]
    assert wf.asarray([2**70, 1], dtype=wf.float32).tolist() == [2.0**70, 1]
    mixed = wf.asarray([2**63, 1.5])
    assert (mixed.dtype, mixed.tolist()) == (wf.float32, [2.0**63, 1.5])
    assert wf.asarray([1.5, -2.5], dtype=wf.int8).tolist() == [1, -2]
    assert wf.asarray([True, 2]).dtype is wf.int64


# -------------------------------------------------------------------------------- masked arrays
def test_masked_arrays_are_refused() -> None:
    masked = np.ma.MaskedArray([1.0, 2.0], mask=[False, True])
    plain = wf.asarray([1.0, 2.0])
    for call in (
        lambda: wf.asarray(masked),
        lambda: wf.sin(np.ma.masked),
        lambda: plain + masked,
        lambda: wf.stack([masked, masked]),
        lambda: wf.Variable(masked),
        lambda: add(masked, 1.0),
        lambda: wf.compile(lambda x: x + masked)(plain),
    ):
        with pytest.raises(TypeRuleError, match="mask would be lost") as caught:
            call()
        assert "x.filled" in str(caught.value.hint)
        assert caught.value.locations[0].file == __file__


# ------------------------------------------------------------------------- choices between numbers
def test_a_choice_between_numbers_takes_the_dtype_of_what_it_meets() -> None:
    """Whatever the shape of the condition: `wf.where` of two Python scalars is as weak as they."""
    x = np.array([2.0, -2.0])
    third = 1.0 / 3.0

    def leak(x: Any) -> Any:
        return wf.where(x > 0, 1.0, third) * x

    def rows(x: Any) -> Any:  # a part of it is weak, too
        return wf.where(x > 0, 1.0, third)[:, None][::-1][0] * x

    for f, expected in ((leak, [2.0, -2 * third]), (rows, [2 * third, -2 * third])):
        for run in (f, wf.compile(f)):
            assert run(x).tolist() == expected
            for dtype in (wf.float32, wf.float16):
                assert run(wf.asarray(x, dtype=dtype)).dtype is dtype
    assert wf.grad(lambda x: wf.sum(leak(x)))(x).tolist() == [1.0, third]
    assert (wf.where(x > 0, 1, -1) * np.int8([3, 3])).dtype is wf.int8
    assert (wf.stop_gradient(wf.identity(third)) * x).tolist() == [2 * third, -2 * third]
    # anything else makes an ordinary tensor of it
    assert wf.asarray(wf.where(x > 0, 1.0, third)).dtype is wf.float32
    assert wf.sum(wf.where(x > 0, 1.0, third)).dtype is wf.float32


def test_a_choice_between_numbers_that_do_not_fit() -> None:
    with pytest.raises(InvalidArgumentError, match="300 does not fit uint8"):
        wf.where(np.array([True, False]), 300, 1) + np.uint8([1])
    with pytest.raises(InvalidArgumentError, match="-1 does not fit uint8"):
        wf.where(np.array([True, False]), 3, -1) + np.uint8([1])
