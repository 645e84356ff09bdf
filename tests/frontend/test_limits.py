"""Arrays too large for NumPy or for the machine: clear errors with the user's line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weft as wf
from weft.ir.errors import ResourceExhaustedError, ShapeError

HUGE = (10**7, 10**7)


@pytest.mark.parametrize(
    ("make", "error", "what"),
    [
        (lambda: wf.reshape(1.0, (1,) * 70), ShapeError, "70 dimensions"),
        (lambda: wf.broadcast_to(1.0, (2**40, 2**40)), ShapeError, "can be addressed"),
        (lambda: wf.zeros(HUGE), ResourceExhaustedError, "Unable to allocate"),
        (
            lambda: wf.compile(lambda x: wf.broadcast_to(x, HUGE))(1.0),
            ResourceExhaustedError,
            "needs 400,000,000,000,",
        ),
    ],
)
def test_too_large(make: Callable[[], object], error: type[Exception], what: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert what in str(caught.value)
    assert "test_limits.py" in str(caught.value)
