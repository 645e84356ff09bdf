"""Sorting and searching as CUDA launches, in the emulator, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_op_checks import check, graph_of
from cuda_ops import run_graph

from weft.codegen.cuda.kernels import sort
from weft.codegen.cuda.lowerings import launches_of
from weft.ir.dtypes import as_dtype

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(6)


def mixed(shape: tuple[int, ...], dtype: str) -> Array:
    """Few different numbers, so that many are equal; NaN, both zeros and infinities of floats."""
    x = RNG.integers(0, 7, shape).astype(as_dtype(dtype).numpy)
    if dtype[0] in "fb" and dtype != "bool":
        for special in (np.nan, -0.0, np.inf, -np.inf):
            x[RNG.random(shape) < 0.1] = special
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("op", ["sort", "argsort"])
@pytest.mark.parametrize("dtype", ["f32", "bool", "f16", "i8", "u64"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 50), 1), ((20, 3), 0), ((1,), 0), ((2, 0), 1)])
def test_one_run(op: str, dtype: str, shape: tuple[int, ...], axis: int, descending: bool) -> None:
    check(op, [mixed(shape, dtype)], axis=axis, descending=descending)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("op", ["sort", "argsort"])
@pytest.mark.parametrize("n", [8, 9, 17, 40, 100])
def test_runs_are_merged(
    op: str, n: int, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sort, "RUN", 8)
    for shape, axis in (((3, n), 1), ((2, n, 3), 1)):
        x = mixed(shape, "f32")
        (node,) = graph_of(op, [x], axis=axis, descending=descending).ops
        assert len(launches_of(node)) == 1 + ((n - 1) // 8).bit_length()
        check(op, [x], axis=axis, descending=descending)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["f32", "i16", "f64"])
def test_searchsorted(dtype: str, side: str) -> None:
    data = np.sort(mixed((37,), dtype))
    check("searchsorted", [data, mixed((4, 9), dtype)], side=side)
    check("searchsorted", [data[:0], mixed((5,), dtype)], side=side)


def test_first_occurrence() -> None:
    index = RNG.integers(-6, 6, 300)
    check("first_occurrence", [index], size=6)
    index[170] = 6
    graph = graph_of("first_occurrence", [index], size=6)
    with pytest.raises(IndexError) as raised:
        run_graph(graph, [index])
    assert raised.value.args == (0, 170, 6)
