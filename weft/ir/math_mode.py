"""How products and convolutions of f32 may be computed on a GPU.

"ieee": their elements are multiplied as f32. "tf32": libraries may round them to 10 bits of
mantissa first (TensorFloat-32, NVIDIA A100 whitepaper, 2020), which tensor cores multiply several
times as fast; sums stay f32. It is a permission, as JAX's `jax_default_matmul_precision` and
PyTorch's `allow_tf32` are: weft's own kernels, and the CPU, always compute as "ieee" says.
"""

from __future__ import annotations

from typing import Literal, get_args

from weft.ir.errors import InvalidArgumentError, suggest
from weft.ir.source import caller_location

MathMode = Literal["ieee", "tf32"]
MATH_MODES: tuple[MathMode, ...] = get_args(MathMode)


def checked_math(mode: str, what: str) -> MathMode:
    """The mode of this name. InvalidArgumentError, saying `what` was given it, for another one."""
    for known in MATH_MODES:
        if mode == known:
            return known
    raise InvalidArgumentError(
        f"{what}: there is no math mode {mode!r}{suggest(str(mode), MATH_MODES)}",
        hint=f"the modes are: {', '.join(MATH_MODES)}",
        location=caller_location(),
    )
