"""The page of a server: one HTML file, `assets/page.html`, which asks the server itself alone."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files


@cache
def page() -> tuple[str, str]:
    """The page, and the policy (Content-Security-Policy) that lets it use its own style and script,
    ask this server, and do nothing else."""
    held = files("weft.frontend.serving") / "assets" / "page.html"
    text = held.read_text(encoding="utf-8")
    style, script = (
        " ".join(_digest(found) for found in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
        for tag in ("style", "script")
    )
    policy = (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; "
        "img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _digest(text: str) -> str:
    made = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{made}'"
