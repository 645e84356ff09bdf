"""Convolutions and pooling as CUDA launches, in the emulator, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_op_checks import check, graph_of
from cuda_window_spaces import RNG, SPACES, attributes, numbers

from weft.codegen.cuda.kernels import conv
from weft.codegen.cuda.lowerings import launches_of

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("space", SPACES)
def test_conv_and_its_derivatives(space: str, groups: int) -> None:
    (large, window, small), attrs = attributes(space)
    x = numbers((2, *large, 2 * groups))
    w, y = numbers((*window, 2, 3 * groups)), numbers((2, *small, 3 * groups))
    check("conv", [x, w], groups=groups, size=small, **attrs)
    check("conv_input", [y, w], groups=groups, size=large, **attrs)
    check("conv_kernel", [x, y], groups=groups, size=window, **attrs)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i8", "u32"])
def test_conv_dtypes(dtype: str) -> None:
    (large, window, small), attrs = attributes("same")
    x, w = numbers((2, *large, 2), dtype), numbers((*window, 2, 3), dtype)
    check("conv", [x, w], groups=1, size=small, **attrs)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_sums_over_the_batch_in_parts(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (large, window, small), attrs = attributes("plain")
    x, y = numbers((5, *large, 2)), numbers((5, *small, 3))
    monkeypatch.setattr(conv, "WANTED", parts * 3 * 2 * 2 * 3)
    (op,) = graph_of("conv_kernel", [x, y], groups=1, size=window, **attrs).ops
    assert len(launches_of(op)) == (1 if parts == 1 else 2)
    check("conv_kernel", [x, y], groups=1, size=window, **attrs)


@pytest.mark.parametrize("dtype", ["f32", "i32", "f16"])
@pytest.mark.parametrize("space", SPACES)
def test_pooling(space: str, dtype: str) -> None:
    (large, window, small), attrs = attributes(space)
    x, t = numbers((2, *large, 3), dtype), numbers((2, *large, 3), dtype)
    y = numbers((2, *small, 3), dtype)
    for op, inputs in {
        "window_sum": [x],
        "window_max": [x],
        "window_pick": [x, t],
    }.items():
        check(op, inputs, window=window, size=small, **attrs)
    check("window_spread", [y], window=window, size=large, **attrs)
    check("window_place", [x, y], window=window, **attrs)


def test_nan_is_largest() -> None:
    (large, window, small), attrs = attributes("plain")
    x = numbers((2, *large, 3))
    x[RNG.random(x.shape) < 0.2] = np.nan
    check("window_max", [x], window=window, size=small, **attrs)
    check("window_pick", [x, numbers(x.shape)], window=window, size=small, **attrs)
    check("window_place", [x, numbers((2, *small, 3))], window=window, **attrs)


def test_nothing() -> None:
    (large, window, small), attrs = attributes("plain")
    check(
        "conv", [numbers((0, *large, 2)), numbers((*window, 2, 3))], groups=1, size=small, **attrs
    )
    check(
        "conv", [numbers((2, *large, 0)), numbers((*window, 0, 3))], groups=1, size=small, **attrs
    )
    check("window_max", [numbers((0, *large, 2))], window=window, size=small, **attrs)
