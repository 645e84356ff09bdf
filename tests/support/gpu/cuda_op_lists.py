"""The lists of ops on docs/reference/gpu-ops.md."""

from __future__ import annotations

import re

from paths import ROOT

PAGE = ROOT / "docs" / "reference" / "gpu-ops.md"


def names_after(start: str) -> set[str]:
    """The ops named on the page after these words, up to the end of the sentence."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(re.escape(start) + r":(.*?)\.\n", text, re.DOTALL)
    assert found, start
    return set(re.findall(r"`(\w+)`", found[1]))
