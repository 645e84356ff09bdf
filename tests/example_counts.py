"""How many examples the longer tests with hypothesis try."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings


def examples(number: int, **more: Any) -> Callable[[Any], Any]:
    """A decorator of a test: so many examples where WEFT_TEST_EXAMPLES is "all", as CI sets it for
    its slow tests, and an eighth of them elsewhere. `more`: other settings of hypothesis."""
    whole = os.environ.get("WEFT_TEST_EXAMPLES") == "all"
    chosen = settings(max_examples=number if whole else -(-number // 8), **more)
    return lambda test: pytest.mark.examples(chosen(test))
