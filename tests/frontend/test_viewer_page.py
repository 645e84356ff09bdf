"""The viewer's page in a browser: what it shows, folding, search, linking, speed, light and dark.

The screenshots of docs/guide/viewer.md are taken here: `--update` writes them to docs/images."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import SHOTS, is_dark, opened_browser, opened_page
from clusters import local_cluster
from paths import ROOT

import weft as wf
from weft.frontend.tools.main import main
from weft.frontend.viewer.document import Document, PassFacts
from weft.frontend.viewer.facts import Event, PlanFacts
from weft.frontend.viewer.page import View
from weft.ir.program import Program

pytestmark = pytest.mark.browser

IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    w = wf.Variable(np.full((64, 32), 0.1, np.float32), name="w")
    optimizer = wf.train.Adam(0.01)

    @wf.compile
    def step(x, y):  # type: ignore[no-untyped-def]
        with wf.name_scope("layer"):
            hidden = wf.nn.relu(wf.matmul(x, w))
        loss = wf.mean(wf.square(wf.sum(hidden, axis=1) - y))
        optimizer.minimize(loss)
        return loss

    x, y = np.ones((128, 64), np.float32), np.zeros(128, np.float32)
    return step.view(x, y).save(tmp_path_factory.mktemp("viewer") / "step.html")


@contextmanager
def opened(browser: Any, file: Path) -> Iterator[Any]:
    """The viewer's page, drawn."""
    with opened_page(browser, file, width=1300) as page:
        page.wait_for_selector("svg.graph .box")
        yield page


@pytest.fixture
def page(file: Path, browser: Any) -> Iterator[Any]:
    with opened(browser, file) as page:
        yield page


def box(page: Any, label: str) -> Any:
    return page.locator(f'svg.graph .box[aria-label^="{label}"]')


def shot(page: Any, name: str, update: bool) -> Path:
    path = (IMAGES if update else SHOTS) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path)
    return path


def test_the_graph_folds_and_what_is_opened_stays(page: Any) -> None:
    before = page.locator("svg.graph .box").count()
    assert box(page, "layer").count() >= 1
    assert box(page, "matmul").count() == 0  # it is in the folded layer
    layer = box(page, "layer").first
    was = layer.bounding_box()
    layer.dblclick()
    assert page.locator("svg.graph .box").count() > before
    assert box(page, "matmul").count() == 1
    now = box(page, "layer").first.bounding_box()
    assert abs(now["x"] - was["x"]) < 2
    assert abs(now["y"] - was["y"]) < 2
    box(page, "layer").first.dblclick(position={"x": 30, "y": 8})
    assert page.locator("svg.graph .box").count() == before
    page.click("#unfold")
    assert box(page, "matmul").count() >= 1
    page.click("#fold")
    assert page.locator("svg.graph .box").count() == before


def test_passes_texts_and_diffs(page: Any, update: bool) -> None:
    page.click('[data-pass="fuse"]')
    assert page.locator("svg.graph .kernel").count() >= 1
    assert page.locator("svg.graph .fresh").count() >= 1
    page.locator("svg.graph .kernel").last.click()
    assert page.locator("#details .source .lit").count() >= 1
    assert "optimizer.minimize(loss)" in page.inner_text("#details")
    assert not is_dark(shot(page, "viewer-graph.png", update))
    page.click('[data-mode="text"]')
    assert "fused(" in page.inner_text("#pane")
    assert page.locator(".line.lit").count() >= 1
    fold = page.locator(".fold").first
    lines = page.locator(".line").count()
    fold.click()
    assert page.locator(".line").count() > lines
    page.click('[data-mode="diff"]')
    assert page.locator(".diff .ins").count() > 0
    assert "fused(" in "".join(page.locator(".diff .ins").all_inner_texts())
    page.keyboard.press("ArrowUp")  # an earlier pass that changed something
    assert page.locator('#list [aria-selected="true"]').inner_text().split()[0] != "fuse"


def test_search_opens_what_it_finds(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("matmul%")
    assert page.inner_text("#hits").startswith("1 of ")
    assert "lit" in (box(page, "matmul").first.get_attribute("class") or "")
    page.keyboard.press("Enter")
    page.fill("#search", "no such op")
    assert page.inner_text("#hits") == "0 of 0"


def test_a_kernel_lights_its_ops_lines_and_code(page: Any, update: bool) -> None:
    page.click("#tab-kernels")
    rows = page.locator("tbody tr")
    assert rows.count() >= 2
    named = [r for r in rows.all() if "gemm" not in r.inner_text()]
    named[0].click()
    assert page.locator("#details .source .lit").count() >= 1
    page.click('[data-code="source"]')
    assert "def kernel(" in page.inner_text("pre.code")
    shot(page, "viewer-kernels.png", update)
    page.click('[data-code="LLVM"]')
    assert "define " in page.inner_text("pre.code")
    page.click('[data-code="assembly"]')
    assert "ret" in page.inner_text("pre.code")
    page.click("#in-graph")
    assert page.locator("svg.graph .kernel.lit").count() >= 1


def test_launches_on_a_gpu(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")

    @wf.compile(device="gpu:0")
    def step(x):  # type: ignore[no-untyped-def]
        return wf.nn.softmax(wf.matmul(x, x))

    path = step.view(np.ones((32, 32), np.float32)).save(tmp_path / "gpu.html")
    with opened(browser, path) as page:
        page.click("#tab-kernels")
        assert "grid × block" in page.inner_text("thead")
        assert "of peak" not in page.inner_text("thead")  # a column with nothing in it
        assert "emulated" in page.inner_text(".missing")
        page.locator("tbody tr").first.click()
        assert page.locator("#details .source .lit").count() >= 1
        page.click('[data-code="PTX"]')
        assert ".visible .entry" in page.inner_text("pre.code")
        page.click("#in-graph")
        assert page.locator("svg.graph .lit").count() >= 1
        page.click("#tab-timeline")
        assert page.locator(".track rect").count() >= 2


def test_devices_by_colour(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    with wf.Graph("step").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [64, 32], name="x")
        with wf.device("gpu:0"):
            hidden = wf.nn.softmax(wf.tanh(x))
        with wf.device("cpu:0"):
            loss = wf.mean(wf.square(hidden))
        view = session.view(loss, {x: np.ones((64, 32), np.float32)})
    with opened(browser, view.save(tmp_path / "devices.html")) as page:

        def fills() -> set[str]:
            boxes = page.locator("svg.graph .box > rect")
            styles = [box.get_attribute("style") or "" for box in boxes.all()]
            return {style.partition(";")[0] for style in styles} & {"fill:#0072b2", "fill:#e69f00"}

        page.click('[data-pass="place"]')
        assert fills() == {"fill:#0072b2", "fill:#e69f00"}
        assert page.locator("#legend span").count() == 2
        assert "/gpu:0" in page.inner_text("#legend")
        page.click('[data-pass="partition"]')
        page.click("#unfold")
        page.click("#fit")
        assert fills() == {"fill:#0072b2", "fill:#e69f00"}
        shot(page, "viewer-devices.png", update)
        box(page, "tanh").first.click()
        assert "/job:localhost/task:0/gpu:0" in page.inner_text("#details")
        page.emulate_media(media="print")
        assert page.locator("#legend").is_visible()
        page.emulate_media(media="screen")
        page.click("#by-device")
        assert fills() == set()
        assert page.locator("#legend").count() == 0
        page.click("#tab-kernels")
        assert page.locator("tbody .swatch").count() >= 2
        page.locator("tbody tr").first.click()
        page.click("#in-graph")
        assert page.locator("svg.graph .lit").count() >= 1


def test_kernels_of_tasks(browser: Any, tmp_path: Path) -> None:
    """Each with its task, its time in a traced run and its code; without a run the page says so."""
    with local_cluster({"ps": 1, "worker": 1}) as servers, wf.Graph("step").as_default():
        x = wf.placeholder(wf.float32, [64, 32], name="x")
        with wf.device("/job:worker/task:0"):
            hidden = wf.nn.softmax(wf.tanh(x))
        with wf.device("/job:ps/task:0"):
            loss = wf.sum(wf.square(hidden), axis=0)
        with wf.Session(servers[0].target) as session:
            feeds, report = {x: np.ones((64, 32), np.float32)}, wf.RunMetadata()
            plain = session.view(loss, feeds).save(tmp_path / "plain.html")
            options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
            session.run(loss, feeds, options, report)
            path = session.view(loss, feeds, report).save(tmp_path / "tasks.html")
    with opened(browser, path) as page:
        page.click("#tab-kernels")
        rows = page.locator("tbody tr")
        assert {row.locator("td").nth(2).inner_text().split()[0] for row in rows.all()} == {
            "/job:ps/task:0/cpu:0", "/job:worker/task:0/cpu:0"
        }  # fmt: skip
        heads = page.locator("thead th").all_inner_texts()
        for row in rows.all():
            assert float(row.locator("td").nth(heads.index("us")).inner_text()) > 0
            assert row.locator("td").nth(heads.index("runs")).inner_text() == "1"
        assert "means of the traced run" in page.inner_text(".missing")
        rows.first.click()
        assert page.locator("#details .source .lit").count() >= 1
        page.click('[data-code="assembly"]')
        assert "ret" in page.inner_text("pre.code")
        page.click("#in-graph")
        assert page.locator("svg.graph .lit").count() >= 1
    with opened(browser, plain) as page:
        page.click("#tab-kernels")
        heads = page.locator("thead th").all_inner_texts()
        for row in page.locator("tbody tr").all():
            assert row.locator("td").nth(heads.index("us")).inner_text() == "not timed"
        assert "run_metadata=" in page.inner_text(".missing")


def test_timeline_memory_and_report(page: Any) -> None:
    page.click("#tab-timeline")
    assert page.locator(".track rect").count() >= 2
    page.locator(".track rect").first.click()
    assert page.locator(".source .lit").count() >= 1
    page.click("#tab-memory")
    assert page.locator(".track rect").count() >= 1
    page.locator(".track rect").first.click()
    assert page.locator(".line.lit").count() >= 1
    page.click("#tab-explain")
    assert page.locator("details[open] summary").first.inner_text() == "signature"
    assert page.locator("details:not([open])").count() >= 2


def test_dark_and_printed(file: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 700}, color_scheme="dark")
    page.goto(file.as_uri())
    assert is_dark(shot(page, "viewer-dark.png", False))
    page.emulate_media(media="print", color_scheme="light")
    assert not page.locator("#list").is_visible()
    assert page.locator("svg.graph").is_visible()
    assert page.locator("#details").is_visible()
    page.close()


def luminance(colour: str) -> float:
    """Of "rgb(1, 2, 3)", as WCAG has it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_chosen_can_be_read(file: Path, browser: Any, scheme: Any) -> None:
    """A pass that changed something, one that did not, and a tab."""
    page = browser.new_page(color_scheme=scheme)
    page.goto(file.as_uri())
    for chosen in ("#list .row:not(.idle)", "#list .row.idle", "#tab-passes"):
        page.locator(chosen).first.click()
        style = page.locator(chosen + '[aria-selected="true"]').evaluate(
            "e => { const s = getComputedStyle(e); return [s.color, s.backgroundColor]; }"
        )
        dark, light = sorted(map(luminance, style))
        assert (light + 0.05) / (dark + 0.05) > 4.5
    page.close()


def test_narrow_windows_have_the_details_below(file: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 600, "height": 800})
    page.goto(file.as_uri())
    main_, graph = (page.locator(s).bounding_box() for s in ("main", "main > section"))
    details = page.locator("#details").bounding_box()
    assert details["width"] == main_["width"]
    assert details["y"] >= graph["y"] + graph["height"] - 1
    assert details["y"] + details["height"] <= 801
    assert graph["height"] > 300
    page.click("#tab-kernels")
    page.locator("tbody tr").first.click()
    page.click('[data-code="LLVM"]')
    assert page.locator("pre.code").is_visible()
    below = page.locator("main > section").bounding_box()
    assert page.locator("#details").bounding_box()["y"] >= below["y"] + below["height"] - 1
    page.emulate_media(media="print")
    assert page.locator("pre.code").is_visible()
    page.emulate_media(media="screen")
    page.click("#tab-timeline")
    assert page.locator("main > section").bounding_box()["height"] == main_["height"]
    page.close()


def test_the_table_of_kernels_has_room(page: Any) -> None:
    page.click("#tab-kernels")
    page.locator("tbody tr").first.click()
    table, room = (page.locator(s).bounding_box() for s in ("main table", "main .fill"))
    assert table["width"] <= room["width"]


def test_names_and_ticks_have_room(browser: Any, tmp_path: Path) -> None:
    """Lanes of tasks do not run into the plot, and no tick is cut or upon another."""
    lanes = [f"/job:worker/task:{k} thread 0" for k in range(2)]
    plan = PlanFacts(events=[Event(lane, "k", "kernel", 0, 45910.6) for lane in lanes])
    program = Program.of(wf.compile(wf.exp).trace(np.ones(3, np.float32)))
    view = View(Document("step", [PassFacts("traced", program, True)], plan=plan))
    with opened(browser, view.save(tmp_path / "lanes.html")) as page:
        for width in (1300, 600):
            page.set_viewport_size({"width": width, "height": 500})
            page.click("#tab-timeline")
            track = page.locator("svg.track").bounding_box()
            begin = min(r.bounding_box()["x"] for r in page.locator(".track rect").all())
            names = page.locator(".track text:not(.tick)")
            assert names.all_text_contents() == lanes
            for name in names.all():
                assert name.bounding_box()["x"] + name.bounding_box()["width"] < begin
            places = [tick.bounding_box() for tick in page.locator(".tick").all()]
            for a, b in pairwise(places):
                assert a["x"] + a["width"] < b["x"]
            assert places[-1]["x"] + places[-1]["width"] <= track["x"] + track["width"]
        page.click("#tab-passes")


def test_without_a_script(file: Path, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("noscript svg").count() == 2
    assert page.locator("noscript svg").last.is_visible()
    context.close()


def test_five_thousand_ops_are_quick(browser: Any, tmp_path: Path) -> None:
    @wf.compile
    def deep(x):  # type: ignore[no-untyped-def]
        for i in range(100):
            with wf.name_scope(f"layer{i}"):
                for _ in range(8):
                    x = wf.nn.softmax(wf.sin(x) * wf.cos(x))
        return x

    graph = deep.trace(np.ones((4, 8), np.float32))
    assert sum(1 for _ in graph.walk()) >= 5000
    text, path = tmp_path / "deep.weft", tmp_path / "deep.html"
    text.write_text(str(graph), encoding="utf-8")
    assert main(["view", str(text), "--html", str(path), "--passes", "standard"]) == 0
    page = browser.new_page(viewport={"width": 1300, "height": 800})
    begun = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("svg.graph .box")
    assert time.perf_counter() - begun < 2
    assert page.locator("svg.graph .box").count() < 250  # folded
    begun = time.perf_counter()
    page.click("#unfold")
    assert page.locator("svg.graph .box").count() > 2000
    assert time.perf_counter() - begun < 2
    page.click("#fold")
    begun = time.perf_counter()
    page.fill("#search", "layer57/softmax")
    assert page.locator("#hits").inner_text().startswith("1 of")
    assert time.perf_counter() - begun < 2
    page.close()
