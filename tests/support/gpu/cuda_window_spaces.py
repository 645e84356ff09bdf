"""Attributes and operands of convolutions and pooling for GPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.dtypes import as_dtype

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)

#: large, window, small; strides, lo, dilation
SPACES: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]] = {
    "plain": (((6, 7), (3, 2), (4, 6)), ((1, 1), (0, 0), (1, 1))),
    "same": (((6, 7), (3, 3), (6, 7)), ((1, 1), (1, 1), (1, 1))),
    "strides": (((9, 8), (3, 3), (5, 4)), ((2, 2), (1, 1), (1, 1))),
    "dilation": (((9, 9), (3, 2), (5, 7)), ((1, 1), (0, 0), (2, 2))),
    "outside": (((4, 4), (2, 2), (4, 4)), ((3, 2), (5, -1), (1, 1))),
    "line": (((11,), (4,), (5,)), ((2,), (0,), (1,))),
    "cube": (((4, 3, 5), (2, 2, 2), (3, 2, 2)), ((1, 1, 2), (0, 0, 0), (1, 1, 1))),
}


def numbers(shape: tuple[int, ...], dtype: str = "f32") -> Array:
    """Small whole numbers: their sums are exact."""
    return RNG.integers(-4 if dtype[0] != "u" else 0, 5, shape).astype(as_dtype(dtype).numpy)


def attributes(space: str) -> tuple[tuple[tuple[int, ...], ...], dict[str, Any]]:
    sizes, (strides, lo, dilation) = SPACES[space]
    return sizes, {"strides": strides, "lo": lo, "dilation": dilation}
