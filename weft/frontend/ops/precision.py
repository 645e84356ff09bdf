"""In which precision composed functions compute: 16-bit floats in float32, as PyTorch and JAX."""

from __future__ import annotations

from weft.frontend.ops.promotion import cast
from weft.frontend.tensor import Tensor
from weft.ir.dtypes import bfloat16, float16, float32


def widened(t: Tensor) -> Tensor:
    """float16 and bfloat16 as float32, other dtypes as they are.

    For functions whose steps leave the range of 16 bits on the way to a result that does not, such
    as the squares under a norm. The result is cast back once, at the end.
    """
    return cast(t, float32) if t.dtype in (float16, bfloat16) else t
