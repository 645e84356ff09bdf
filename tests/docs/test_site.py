"""The site of docs/ in a browser: its pages show what they hold, and ask nobody else for it.

Screenshots of what was seen lie in build/screenshots. Needs the extra `browser` and Chromium
(Debian: `apt-get install chromium`)."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from browser import SHOTS, is_dark, opened_browser
from paths import ROOT

pytestmark = pytest.mark.browser

SHOWN = ["index", "tutorial/1-arrays", "reference/wf", "cookbook/transformer"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_page_as_people_see_it(name: str, dark: bool, address: str, browser: Any) -> None:
    scheme = "dark" if dark else "light"
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    asked, failed = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on("response", lambda r: failed.append(r.url) if r.status >= 400 else None)
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(f"{address}/{name}.html")
    page.wait_for_load_state("networkidle")
    assert failed == []
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    broken = "[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)"
    assert page.evaluate(broken) == []
    assert page.locator("h1").first.inner_text()
    assert page.locator("nav.md-nav--primary a").count() > 20
    assert page.locator("input.md-search__input").count() == 1
    # nothing is wider than the window
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    shot = SHOTS / f"{name.replace('/', '-')}-{scheme}.png"
    shot.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(shot))
    page.close()
    assert is_dark(shot) == dark


def test_search(address: str, browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{address}/index.html")
    page.locator("input.md-search__input").fill("searchsorted")
    found = page.locator("li.md-search-result__item a").first
    found.wait_for()
    assert "reference/wf.html" in found.get_attribute("href")
    page.close()


class Links(HTMLParser):
    """What a page refers to, and what of it can be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {a for a in (given.get("id"), given.get("name")) if a}
        self.targets += [t for t in (given.get("href"), given.get("src")) if t]


def test_links(site: Path) -> None:
    """Each target within the site is there, with the place in it that is named."""
    pages = {p: Links(p.read_text(encoding="utf-8")) for p in site.rglob("*.html")}
    broken = []
    for page, links in pages.items():
        if page.name == "404.html":  # its links begin at the root of the server
            continue
        for target in links.targets:
            full, anchor = urldefrag(urljoin(page.as_uri(), target))
            if not full.startswith("file:"):
                continue
            path = Path(unquote(full.removeprefix("file://")))
            path = path / "index.html" if path.is_dir() else path
            there = path in pages and unquote(anchor) in pages[path].anchors
            if not (there or (path not in pages and path.exists())):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert len(pages) > 30
    assert broken == []
