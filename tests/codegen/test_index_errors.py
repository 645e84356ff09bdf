"""An index out of bounds is told of by value, position, axis and size: of several the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.codegen.faults import fault_of
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = POOL.limit
    yield
    POOL.set_limit(before)


def message(f: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(IndexError) as caught:
        wf.compile(f)(*args)
    assert isinstance(caught.value, wf.errors.BoundsError)
    return str(caught.value).splitlines()[0]


def loss(x: Any, i: Any) -> Any:
    return wf.sum(wf.nn.sparse_softmax_cross_entropy_with_logits(labels=i, logits=x))


def indices(*values: int, dtype: Any = np.int64) -> Array:
    return np.array(values, dtype)


CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...], tuple[int, int, int, int]]] = [
    # index, position, axis, size
    ("take", lambda x, i: wf.take(x, i, axis=1), (X, indices(0, -9, 2, 7)), (-9, 1, 1, 4)),
    ("take of single elements", lambda x, i: wf.take(x, i), (X[0], indices(5, 3, 6)), (5, 0, 0, 4)),
    (
        "u8",
        lambda x, i: wf.take(x, i, axis=0),
        (X, indices(0, 200, dtype=np.uint8)),
        (200, 1, 0, 3),
    ),
    (
        "u64",
        lambda x, i: wf.take(x, i, axis=0),
        (X, indices(2**63 + 5, dtype=np.uint64)),
        (2**63 + 5, 0, 0, 3),
    ),
    ("gather_nd", wf.gather_nd, (X, np.array([[2, 9], [9, 0]])), (9, 1, 1, 4)),
    (
        "scatter_nd",
        lambda x, i: wf.scatter_nd_add(x, i, x[:2]),
        (X, np.array([[0], [-4]])),
        (-4, 1, 0, 3),
    ),
    (
        "along an axis",
        lambda x, i: wf.take_along_axis(x, i, axis=1),
        (X, np.array([[0], [4], [5]])),
        (4, 1, 1, 4),
    ),
    (
        "a gradient",
        lambda x, i: wf.grad(lambda x: wf.sum(wf.take(x, i, axis=0) ** 2))(x),
        (X, indices(0, 3, 4)),
        (3, 1, 0, 3),
    ),
    ("within rows", loss, (X, indices(3, 7, 9)), (7, 1, 1, 4)),
    (
        "in a loop in registers",
        lambda x: wf.fori_loop(0, 9, lambda k, s: s + wf.take(x, k, axis=0), np.float32(0)),
        (X[0],),
        (4, 0, 0, 4),
    ),
]


@pytest.mark.parametrize(("f", "args", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_value_position_axis_and_size(
    f: Callable[..., Any], args: tuple[Any, ...], wanted: tuple[int, int, int, int]
) -> None:
    text = message(f, *args)
    found = re.search(
        r"index (-?\d+) \(element (\d+) of .*\) is out of bounds for axis (\d+) of size (\d+)", text
    )
    assert found, text
    assert tuple(map(int, found.groups())) == wanted


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("kind", ["gather", "rows", "scatter", "labels"])
def test_the_first_of_several_whatever_the_threads(threads: int, kind: str) -> None:
    n = 1 << 17
    x = np.zeros((n, 4), np.float32)
    wrong = np.zeros(n, np.int64)
    wrong[[70_001, 70_002, n - 1]] = n, -n - 1, n + 5
    functions: dict[str, Callable[..., Any]] = {
        "gather": lambda x, i: wf.take(x[:, 0], i),
        "rows": lambda x, i: wf.take(x, i, axis=0),
        "scatter": lambda x, i: wf.scatter_nd_add(x, i[:, None], x),
        "labels": loss,
    }
    POOL.set_limit(threads)
    for _ in range(5):
        assert f"index {n} (element 70001 of" in message(functions[kind], x, wrong)


def test_a_step_goes_on_after_a_failure() -> None:
    f = wf.compile(lambda x, i: wf.take(x, i, axis=0))
    for _ in range(4):
        np.testing.assert_array_equal(f(X, indices(2, 0)), X[[2, 0]])
        for bad, place in ((indices(0, 5), 1), (indices(-7, 5), 0)):
            with pytest.raises(wf.errors.InvalidArgumentError, match=rf"{bad[place]} \(element"):
                f(X, bad)


def test_the_word_orders_by_position() -> None:
    assert fault_of(1 << 40) == (0, 0)
    assert fault_of((1 << 40) - 7) == (0, 7)
    assert fault_of((3 << 40) + (1 << 40) - 7) == (3, 7)
