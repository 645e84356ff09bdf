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
from weft.runtime.record.step_record import StepRecord, load_record


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


def found(error: wf.errors.VerifyError) -> StepRecord:
    """The record of the small program that an error names."""
    match = re.search(r"weft replay (\S+) --engine", str(error.hint))
    assert match, error
    return load_record(Path(match[1]))
