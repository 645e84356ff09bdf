"""Indices out of bounds in kernels that read through them: told of, and no memory is touched that
is not there, which would end the use of a GPU in the whole process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

#: What reads the rows `x[i]`: nests, row kernels whose threads are lanes of a warp or a whole one.
READERS: dict[str, Callable[[wf.Tensor, wf.Tensor], wf.Tensor]] = {
    "double": lambda x, i: wf.gather(x, i) * 2,
    "sum": lambda x, i: wf.sum(wf.gather(x, i) * 2, axis=1),
    "softmax": lambda x, i: wf.nn.softmax(wf.gather(x, i)),
    "softmax_of_columns": lambda x, i: wf.nn.softmax(wf.gather(x, i, axis=1)),
    "centred": lambda x, i: (r := wf.gather(x, i)) - wf.mean(r, axis=1, keepdims=True),
    "gather_nd": lambda x, i: wf.nn.softmax(wf.gather_nd(x, i[:, None])),
}
INDICES = [
    np.array([0, 5]),
    np.array([-6, 1]),
    np.array([0, 1 << 40]),
    np.array([0, 200], np.uint8),
    np.array([0, (1 << 32) + 1], np.uint64),
    np.array([0, (1 << 64) - 1], np.uint64),
]


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "check")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("columns", [40, 37])
def test_an_index_out_of_bounds_is_told_of(reader: str, columns: int) -> None:
    x: Any = np.ones((5, columns), np.float32)
    x = x[:, :5].copy() if reader == "softmax_of_columns" else x
    function = wf.compile(device="gpu:0")(READERS[reader])
    for index in INDICES:
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"out of bounds for axis \d of"):
            function(x, index)
        np.testing.assert_allclose(
            function(x, index[:0]), wf.compile(READERS[reader])(x, index[:0])
        )


@pytest.mark.parametrize("reader", ["double", "sum", "softmax", "centred"])
def test_every_index_is_out_of_bounds_of_an_axis_that_has_nothing(reader: str) -> None:
    x = np.ones((0, 40), np.float32)
    function = wf.compile(device="gpu:0")(READERS[reader])
    with pytest.raises(wf.errors.InvalidArgumentError, match="for axis 0 of size 0"):
        function(x, np.array([0, 1]))
    on_cpu = wf.compile(READERS[reader])
    np.testing.assert_array_equal(function(x, np.array([], int)), on_cpu(x, np.array([], int)))
