"""How many examples the longer tests with hypothesis try."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

#: Whether as many examples are tried as there are to be: set for CI's slow tests.
WHOLE = os.environ.get("WEFT_TEST_EXAMPLES") == "all"


def examples(number: int, **more: Any) -> Callable[[Any], Any]:
    """A decorator of a test: so many examples where WEFT_TEST_EXAMPLES is "all", as CI sets it for
    its slow tests, and a twelfth of them elsewhere. `more`: other settings of hypothesis."""
    chosen = settings(max_examples=number if WHOLE else -(-number // 12), **more)
    return lambda test: pytest.mark.examples(chosen(test))
