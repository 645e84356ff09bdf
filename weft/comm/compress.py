"""float32 as bfloat16 on the wire: half the bytes, rounded to nearest even, NaN stays NaN.

Lossy (up to 0.39 % of a value, without bias), so a sender asks for it, edge by edge.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from weft.comm import wire
from weft.comm.errors import BadFrameError, UnsendableError
from weft.comm.wire import Array, TensorMeta

_FLOAT32 = np.dtype(np.float32)


def squeeze(data: Array, code: int) -> Array:
    """The bytes of a float32 tensor as those of its bfloat16. UnsendableError for other dtypes."""
    if code == wire.STRINGS or wire.DTYPES[code] != _FLOAT32:
        raise UnsendableError("only float32 can be sent compressed")
    return data.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint8)


def expand(payload: Array, target: Array) -> None:
    """Write the float32 values of `payload` (bytes of bfloat16) into `target` (uint8): exact."""
    np.left_shift(
        payload.view(np.uint16), np.uint32(16), out=target.view(np.uint32), dtype=np.uint32
    )


def check(meta: TensorMeta, flags: int) -> bool:
    """Whether a tensor comes compressed. BadFrameError if it cannot be."""
    if not flags & wire.BF16_FLAG:
        return False
    if meta.dtype != _FLOAT32:
        raise BadFrameError("compressed, but not float32")
    return True
