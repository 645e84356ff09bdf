"""Products of tensor cores, for both emulators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.codegen.cuda.language import MMAS

Array = npt.NDArray[Any]
_GROUP, _T = np.divmod(np.arange(32), 4)


def multiply_add(name: str, values: Sequence[Array]) -> list[Array]:
    """The four c of each lane; values: the ten of it, as `language.py` says, [warp, lane] each.

    Products are exact in f64; their sums, which begin with C, are rounded to f32 once, at the end.
    A GPU's are less exact: "Numerical behavior of NVIDIA tensor cores", M. Fasi et al., 2021."""
    warps = values[0].shape[0]
    a, b, c = (np.empty((warps, *size)) for size in ((16, 16), (16, 8), (16, 8)))
    for half in (0, 1):
        for i, word in enumerate(values[:4]):
            column = 2 * _T + i // 2 * 8 + half
            a[:, _GROUP + i % 2 * 8, column] = _element(MMAS[name], word, half)
        for i, word in enumerate(values[4:6]):
            b[:, 2 * _T + i * 8 + half, _GROUP] = _element(MMAS[name], word, half)
    for i, value in enumerate(values[6:]):
        c[:, _GROUP + i // 2 * 8, 2 * _T + i % 2] = value
    for k in range(16):
        c += a[:, :, k, None] * b[:, k, None, :]
    rounded = c.astype(np.float32)
    return [rounded[:, _GROUP + i // 2 * 8, 2 * _T + i % 2] for i in range(4)]


def _element(dtype: str, word: Array, half: int) -> Array:
    """The lower (0) or upper (1) 16 bits of words as numbers."""
    bits = (word >> np.uint32(16 * half)).astype(np.uint16)
    if dtype == "f16":
        return bits.view(np.float16)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
