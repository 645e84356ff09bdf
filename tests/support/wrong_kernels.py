"""Wrong kernels for weft's tanh, and what an error of WEFT_VERIFY=native names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import weft as wf
from weft.ir.ops.scalar_function import REPLACED


@contextmanager
def tanh_by(function: Callable[[Any], Any]) -> Iterator[None]:
    """tanh of f32 has this kernel."""
    wf.register_kernel("tanh", dtypes=wf.float32, replace=True)(function)
    try:
        yield
    finally:
        REPLACED.clear()


def almost_tanh(x: Any) -> Any:
    """Wrong from 1 on."""
    if x > 1:
        return x
    return math.tanh(x)


def named_record(error: wf.errors.VerifyError) -> Path:
    """The file of the small program that an error names."""
    match = re.search(r"weft replay (\S+) --engine", str(error.hint))
    assert match, error
    return Path(match[1])
