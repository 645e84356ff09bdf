"""The system's Chromium, for tests that look at pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

#: Where screenshots of what was seen lie.
SHOTS = ROOT / "build" / "screenshots"
#: Debian's Chromium by itself asks for updates and the like, which nobody answers here.
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


def chromium() -> str:
    """The path of the system's browser. Where CI runs it has to be there."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None and "CI" not in os.environ:
        pytest.skip("no Chromium: apt-get install chromium")
    assert found is not None, "no Chromium: apt-get install chromium"
    return found


@contextmanager
def opened_browser() -> Iterator[Any]:
    """A Chromium without a window."""
    if "CI" not in os.environ:
        pytest.importorskip("playwright", reason="the extra `browser` is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=OPTIONS)
        yield opened
        opened.close()


def is_dark(shot: Path) -> bool:
    """Whether a picture's most frequent grey, its background, is dark; it must show more, too."""
    from PIL import Image

    grey = np.asarray(Image.open(shot).convert("L"))
    counts = np.bincount(grey.ravel(), minlength=256)
    assert (counts > 0).sum() > 50, "an empty page"
    return bool(counts.argmax() < 128)


@contextmanager
def opened_page(browser: Any, file: Path, *, width: int, **options: Any) -> Iterator[Any]:
    """A file in the browser; it asks for nothing else and reports no error.

    `options` are those of Playwright's `new_context`."""
    context = browser.new_context(viewport={"width": width, "height": 800}, **options)
    page = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.set_default_timeout(10_000)
    page.goto(file.as_uri())
    yield page
    assert asked == [file.as_uri()]
    assert wrong == []
    context.close()
