"""How many examples the longer tests with hypothesis try."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

#: Which share of the examples is tried: WEFT_TEST_EXAMPLES is "all", or "half" as CI sets it for
#: its slow tests. CI draws the same ones each time; who changes what they test tries all.
_TRIED = os.environ.get("WEFT_TEST_EXAMPLES", "")
WHOLE = _TRIED in ("all", "half")


def share(number: int, elsewhere: int) -> int:
    """Of so many examples those that are tried; elsewhere: the part of them, 1 / elsewhere, that a
    developer's run and the default suite try."""
    return -(-number // {"all": 1, "half": 2}.get(_TRIED, elsewhere))


def examples(number: int, **more: Any) -> Callable[[Any], Any]:
    """A decorator of a test: so many examples, or the `share` of them, a twentieth. `more`: other
    settings of hypothesis."""
    chosen = settings(max_examples=share(number, 20), **more)
    return lambda test: pytest.mark.examples(chosen(test))
