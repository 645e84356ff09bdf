"""The page of `weft serve` in a browser: what it shows, a request that is tried, and names that are
no text but HTML."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi import Client
from browser import SHOTS, is_dark, opened_browser
from serve_process import serving

import weft as wf
from weft.frontend.bundle.files import digest_of
from weft.frontend.serving.app import App
from weft.frontend.serving.page import page as page_of_server
from weft.frontend.serving.repository import Repository

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one with a version that is broken and names of inputs that are HTML."""
    path = tmp_path_factory.mktemp("page")
    digits = wf.TensorType(wf.float32, ("n", 3))
    wf.export(lambda x: x * 2, path / "digits" / "1", example=digits)
    (path / "digits" / "2").mkdir()
    (path / "digits" / "2" / "bundle.json").write_text(json.dumps({"weft_bundle": EVIL}))
    odd = path / "odd" / "1"
    wf.export(lambda x: x + 1, odd, example=wf.TensorType(wf.int32, ("n",)))
    manifest = json.loads((odd / "bundle.json").read_text())
    one = manifest["signatures"].pop("serving_default")
    one["inputs"][0]["name"] = one["outputs"][0]["name"] = EVIL
    manifest["signatures"][EVIL] = one
    manifest["sha256"] = digest_of(manifest)
    (odd / "bundle.json").write_text(json.dumps(manifest))
    return path


def test_the_page_may_do_nothing_but_ask_its_server(folder: Path) -> None:
    text, _ = page_of_server()
    assert not any(word in text for word in ("http://", "https://", "innerHTML", "eval(", "src="))\
        or text.count("http://") == text.count("http://www.w3.org/2000/svg")  # fmt: skip
    app = App(Repository([str(folder / "digits")]), token="secret")
    with Client(app) as client:
        reply = client.get("/")
        assert reply.status == 200
        assert reply.body.decode() == text
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert client.get("/v2/models/stats").status == 401


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serving(*[str(folder / n) for n in ("digits", "odd")], "--token", "secret") as (_, at, _l):
        yield at


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(browser: Any, address: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 1000, "height": 900}, color_scheme=scheme)
    page, asked, wrong = context.new_page(), set[str](), list[str]()
    page.set_default_timeout(20_000)
    page.on("request", lambda request: asked.add(request.url.split("/")[2]))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append("an alert: " + dialog.message))

    def until(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < end, page.inner_text("body")
            page.wait_for_timeout(20)

    def send(shown: str) -> Any:
        page.click("#send")
        until(lambda: shown in page.inner_text("#answer"))
        return json.loads(page.inner_text("#answer"))

    page.goto(f"http://{address}/")
    until(lambda: "401" in page.inner_text("#state"))
    page.on("console", lambda message: wrong.append(message.text))
    page.fill("#token", "secret")
    page.press("#token", "Tab")
    until(lambda: "INT32" in page.inner_text("#models"))
    models = page.inner_text("#models")
    assert "x: FP32[?, 3]" in models
    assert "UNAVAILABLE" in models  # the broken version, with why
    assert f"has the format '{EVIL}'" in models
    assert f"{EVIL}: INT32[?]" in models  # as text
    page.select_option("#model", "digits")
    until(lambda: "FP32" in page.input_value("#request"))
    request = json.loads(page.input_value("#request"))
    request["inputs"][0]["data"] = [1, 2, 3]
    page.fill("#request", json.dumps(request))
    assert send("outputs")["outputs"][0]["data"] == [2.0, 4.0, 6.0]
    timing = page.inner_text("#timing")
    assert timing.startswith("200 in ")
    assert "compute;dur=" in timing
    answered = page.locator("#models section", has_text="digits").locator("td.n").nth(1)
    until(lambda: int(answered.inner_text()) > 0)  # the figures follow
    assert "FP32" in page.input_value("#request")
    page.select_option("#model", "odd")
    until(lambda: "onerror" in page.input_value("#request"))
    assert send("onerror")["outputs"][0] == {
        "name": EVIL, "datatype": "INT32", "shape": [1], "data": [1],
    }  # fmt: skip
    assert page.locator("img").count() == 0
    SHOTS.mkdir(parents=True, exist_ok=True)
    shot = SHOTS / f"serve-{scheme}.png"
    page.screenshot(path=shot, full_page=True)
    assert is_dark(shot) == (scheme == "dark")
    assert asked == {address}
    assert wrong == []
    page.fill("#request", "{")
    assert "not JSON" in send("error")["error"]
    context.close()
