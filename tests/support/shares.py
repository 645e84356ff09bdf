"""What of a long list the default suite tries; CI's slow tests try the rest."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
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
FILES = {"test_cuda_": 8, "test_device_": 4, "test_gpu_": 4}


#: WEFT_TEST_SHARES=all: all cases stay, as CI has it for other instruction sets than the machine's.
ALL = os.environ.get("WEFT_TEST_SHARES") == "all"


def thin_out(items: Iterable[pytest.Item]) -> None:
    """Of the cases of a test that is marked `share(n)`, or whose file has a share in FILES, one of
    each n stays in the default suite, the others become slow tests. It is the one whose values of
    parameters are least among those that stay so far, or the first."""
    if ALL:
        return
    tests = defaultdict[tuple[Any, ...], list[pytest.Item]](list)
    for item in items:
        file = next((n for begins, n in FILES.items() if item.path.name.startswith(begins)), 1)
        mark = item.get_closest_marker("share")
        step = mark.args[0] if mark else file
        if step > 1 and not item.get_closest_marker("slow"):
            tests[item.parent, getattr(item, "originalname", item.name), step].append(item)
    for (_, _, step), cases in tests.items():
        seen = Counter[tuple[str, int]]()
        for start in range(0, len(cases), step):
            several = cases[start : start + step]
            stays = min(several, key=lambda case: sum(seen[v] for v in _values(case)))
            seen.update(_values(stays))
            for case in several:
                if case is not stays:
                    case.add_marker(pytest.mark.slow)


def _values(case: pytest.Item) -> list[tuple[str, int]]:
    """By parameters which object it has of their values."""
    called = getattr(case, "callspec", None)
    return [] if called is None else [(name, id(value)) for name, value in called.params.items()]


def _of(value: Any, fast: bool) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=() if fast else pytest.mark.slow)
