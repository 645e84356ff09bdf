"""What of a long list the default suite tries; CI's slow tests try the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from weft.ir.dtypes import DType

#: One of each kind, and those that have ways of their own.
USUAL = frozenset(
    {"bool", "int32", "int64", "uint8", "bfloat16", "float32", "float64", "complex64", "string"}
)


def usual(dtypes: Iterable[DType]) -> list[Any]:
    """Parameters: all the dtypes; those that are not in USUAL are slow tests."""
    return [_of(d, d.name in USUAL) for d in dtypes]


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """Parameters: all the values, tuples for several parameters; each `step`-th, from the first
    one on, is in the default suite, the others are slow tests."""
    return [_of(value, k % step == 0) for k, value in enumerate(values)]


#: How a file's name begins -> the share of its tests' cases. CI runs those of CUDA kernels in a
#: step of their own, all of them.
FILES = {"test_cuda_": 4, "test_device_": 2, "test_gpu_": 2}


def thin_out(items: Iterable[pytest.Item]) -> None:
    """Of the cases of a test that is marked `share(n)`, or whose file has a share in FILES, only
    each n-th, from the first one on, stays in the default suite; the others become slow tests."""
    seen = Counter[tuple[Any, ...]]()
    for item in items:
        file = next((n for begins, n in FILES.items() if item.path.name.startswith(begins)), 1)
        mark = item.get_closest_marker("share")
        step = mark.args[0] if mark else file
        test = item.parent, getattr(item, "originalname", item.name)
        if step > 1 and not item.get_closest_marker("slow"):
            if seen[test] % step:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


def _of(value: Any, fast: bool) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=() if fast else pytest.mark.slow)
