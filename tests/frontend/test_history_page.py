"""The page of a history of benchmarks in a browser: with and without a script, light, dark and on
paper.

The screenshot of docs/guide/bench.md is taken here: `--update` writes it to docs/images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_runs import TIMES, commit_of, write_run
from browser import SHOTS, is_dark, opened_browser, opened_page
from paths import ROOT

from weft.frontend.tools.main import main

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve commits, each other one on a second machine too: softmax becomes slower in the sixth,
    the product faster in the tenth."""
    folder = tmp_path_factory.mktemp("bench") / "history"
    for day in range(12):
        slow = {"rows: softmax": 1.22 if day >= 5 else 1.0}
        slow["matmul: 512 x 512 x 512"] = 0.8 if day >= 9 else 1.0
        both: dict[str, Any] = {"commit": commit_of(day), "slow": slow}
        write_run(folder, day=day + 0.2, load=1 + 0.05 * (day % 3), **both)
        if day % 2 == 0:
            write_run(folder, day=day, load=1.8, cpu="Graviton 4", threads=8, **both)
    path = folder.parent / "history.html"
    assert main(["view", str(folder), "--html", str(path)]) == 0
    return path


@pytest.fixture
def page(file: Path, browser: Any) -> Iterator[Any]:
    with opened_page(browser, file, width=1120) as page:
        yield page


@pytest.fixture
def still(file: Path, browser: Any) -> Iterator[Any]:
    """The page without a script."""
    with opened_page(browser, file, width=1120, java_script_enabled=False) as page:
        yield page


def choose(page: Any, old: int, new: int) -> None:
    """Two commits by their numbers on the first machine."""
    for box, number in (("old", old), ("new", new)):
        label = next(
            text
            for text in page.locator(f"#{box} option").all_inner_texts()
            if text.startswith(commit_of(number)[:8]) and "EPYC" in text
        )
        page.select_option(f"#{box}", label=label)


def softmax(page: Any) -> str:
    return str(page.locator("#compared tr", has_text="softmax").inner_text())


def test_choosing_two_runs_makes_another_table(page: Any, update: bool) -> None:
    first = page.inner_html("#compared tbody")
    assert page.locator("#compared tr.slower").count() == 0
    choose(page, 4, 5)
    assert page.locator("#compared tr.slower").count() == 1
    assert "▲ slower" in softmax(page)
    assert "1.2" in softmax(page)
    assert "1 slower, 0 faster, 3 same, 0 cannot tell" in page.inner_text("#compared")
    path = (ROOT / "docs" / "images" if update else SHOTS) / "bench-history.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path)
    assert not is_dark(path)
    forward = softmax(page).split("\t")
    page.click("#swap")
    assert "▼ faster" in softmax(page)
    back = softmax(page).split("\t")
    assert back[1:3] == forward[2:0:-1]
    assert float(back[3][:4]) == pytest.approx(1 / float(forward[3][:4]), abs=0.01)
    # what Python wrote at first is what the script makes of the same two
    choose(page, 10, 11)
    assert page.inner_html("#compared tbody") == first
    choose(page, 11, 11)
    assert "the same runs" in page.inner_text("#compared")


def test_swapped_notes_are_swapped_too(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "h", day=0, commit=commit_of(0), numpy="2.4.1")
    write_run(tmp_path / "h", day=1, commit=commit_of(1), numpy="2.5.0")
    path = tmp_path / "x.html"
    assert main(["view", str(tmp_path / "h"), "--html", str(path)]) == 0
    page = browser.new_page()
    page.goto(path.as_uri())
    assert "numpy 2.4.1 and 2.5.0" in page.inner_text("#compared")
    page.click("#swap")
    assert "numpy 2.5.0 and 2.4.1" in page.inner_text("#compared")
    page.close()


def test_two_machines(page: Any) -> None:
    choose(page, 4, 5)
    graviton = next(t for t in page.locator("#old option").all_inner_texts() if "Graviton" in t)
    page.select_option("#old", label=graviton)
    assert "two machines: not the times are compared" in page.inner_text("#compared")
    assert "x numpy" in softmax(page)
    assert page.locator("#compared th").all_inner_texts() == [
        "workload", "old", "new", "new / old", "verdict",
    ]  # fmt: skip


def test_charts_are_there_without_a_script(still: Any) -> None:
    assert still.locator("svg.chart").count() == 2 * len(TIMES)
    assert still.locator("svg.chart").first.is_visible()
    slower = still.locator(".point.slower .mark")
    assert slower.count() == 2  # on each machine
    assert still.locator(".point.faster .mark").count() == 2
    told = [title.text_content() for title in still.locator(".point.slower title").all()]
    assert {text[:8] for text in told} == {commit_of(5)[:8], commit_of(6)[:8]}
    assert still.locator("#compared tbody tr").count() == len(TIMES)
    assert still.locator("select").count() == 0
    assert commit_of(11)[:8] in still.inner_text("#chosen")
    # points stand inside of their chart, and later commits right of earlier ones
    frame = still.locator("svg.chart").first.bounding_box()
    places = [c.bounding_box() for c in still.locator("svg.chart").first.locator("circle").all()]
    assert all(frame["x"] < p["x"] < frame["x"] + frame["width"] for p in places)
    assert all(frame["y"] < p["y"] < frame["y"] + frame["height"] for p in places)
    assert [p["x"] for p in places[:6]] == sorted(p["x"] for p in places[:6])


def test_nothing_shows_above_the_heads(page: Any) -> None:
    page.set_viewport_size({"width": 1120, "height": 300})
    page.evaluate("document.querySelector('main').scrollTop = 180")
    head = page.locator("#compared th").first.bounding_box()
    assert head["y"] <= page.locator("main").bounding_box()["y"]


def test_dark_and_printed(file: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 700}, color_scheme="dark")
    page.goto(file.as_uri())
    path = SHOTS / "bench-dark.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path)
    assert is_dark(path)
    page.emulate_media(media="print", color_scheme="light")
    assert page.locator("svg.chart").last.is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('main')).overflow") == "visible"
    assert not page.locator("#swap").is_visible()
    page.close()


def test_narrow(file: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 420, "height": 800})
    page.goto(file.as_uri())
    assert page.locator("svg.chart").first.bounding_box()["width"] <= 420
    page.close()
