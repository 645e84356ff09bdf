"""The real TensorBoard reads what `wf.summary` writes, by its HTTP endpoints and in a browser.

Needs the extra `tensorboard`; the screenshots of docs/guide/tensorboard.md, which `--update`
writes, the extra `browser` and Chromium, too."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import event_files
import numpy as np
import pytest
from browser import SHOTS, opened_browser
from paths import ROOT

import weft as wf

pytestmark = pytest.mark.tensorboard

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000
STEPS = 60
Get = Callable[..., Any]


def executable() -> str:
    """TensorBoard's program. Where CI runs it has to be there."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which("tensorboard", path=places)
    if found is None and "CI" not in os.environ:
        pytest.skip("no TensorBoard: pip install 'weft[tensorboard]'")
    assert found is not None, "no TensorBoard: pip install 'weft[tensorboard]'"
    return found


# ------------------------------------------------------------------------------------ what is shown
def train_in_a_session(folder: Path, make: Any, seed: int) -> None:
    """A run of two layers: summaries, graph, step stats, hyperparameters."""
    rng = np.random.default_rng(seed)
    x_data = rng.normal(size=(256, 32)).astype(np.float32)
    y_data = np.sin(x_data.sum(1, keepdims=True)).astype(np.float32)
    with wf.Graph("model").as_default() as graph:
        x = wf.placeholder(wf.float32, [None, 32], name="x")
        y = wf.placeholder(wf.float32, [None, 1], name="y")
        h: Any = x
        for i, (rows, columns) in enumerate([(32, 64), (64, 1)]):
            with wf.name_scope(f"layer{i + 1}"):
                start = rng.normal(size=(rows, columns)) / np.sqrt(rows)
                w = wf.Variable(start.astype(np.float32), name="w")
                h = wf.matmul(h, w)
                h = wf.tanh(h) if columns > 1 else h
                wf.summary.histogram("weights", w)
        with wf.name_scope("loss"):
            loss = wf.mean((h - y) ** 2)
        wf.summary.scalar("loss", loss)
        optimizer = make()
        train = optimizer.minimize(loss)
        merged, init = wf.summary.merge_all(), wf.global_variables_initializer()
    report, options = wf.RunMetadata(), wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
    with wf.Session(graph=graph) as session, wf.summary.FileWriter(folder, graph) as writer:
        writer.hparams({"optimizer": optimizer.name, "rate": 0.05})
        session.run(init)
        for step in range(STEPS):
            found, _ = session.run([merged, train], {x: x_data, y: y_data})
            writer.add_summary(found, step)
        for tag in ("first", "a step"):
            session.run(train, {x: x_data, y: y_data}, options, report)
            writer.add_run_metadata(report, tag, STEPS)


def write_values(folder: Path) -> None:
    """Values of each kind by a compiled function, in two files."""
    with wf.summary.FileWriter(folder) as writer:

        @wf.compile
        def f(x: Any) -> Any:
            def body(i: Any, carry: Any) -> Any:
                writer.scalar("carry", carry, i)
                return carry / 2

            writer.histogram("x", x, 0, buckets=4)
            return wf.fori_loop(0, 5, body, wf.sum(x))

        f(np.array([1.0, 2.0, 2.0, 3.0], np.float32))
    with wf.summary.FileWriter(folder) as writer:
        writer.histogram("broken", [1.0, np.nan], 3)
        writer.image("square", np.full((2, 6, 5, 3), [0.0, 0.5, 1.0]), 3)
        writer.text("about", "a **bold** word", 3)
        writer.scalar("carry", np.nan, 5)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    train_in_a_session(folder / "sgd", lambda: wf.train.SGD(0.05), 0)
    train_in_a_session(folder / "adam", lambda: wf.train.Adam(0.05), 0)
    write_values(folder / "values")
    return folder


@pytest.fixture(scope="module", params=["python", "rust"])
def address(logs: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where TensorBoard serves the logs, read by its Python loader or by its Rust one."""
    fast = {"python": "false", "rust": "true"}[request.param]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        executable(), "--logdir", str(logs), "--host", "127.0.0.1", "--port", str(port),
        "--load_fast", fast, "--reload_interval", "1",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(server, lambda: is_read(address))
            yield address
        finally:
            server.terminate()
            server.communicate(timeout=30)


def is_read(address: str) -> bool:
    """Whether TensorBoard knows the last values of all runs."""
    tags = fetch(address, "plugin/scalars/tags")
    if not (tags.keys() == {"adam", "sgd", "values"} and "broken/not_finite" in tags["values"]):
        return False
    rows = [fetch(address, f"plugin/scalars/scalars?run={r}&tag=loss") for r in ("adam", "sgd")]
    graphs = fetch(address, "plugin/graphs/info")
    return {len(r) for r in rows} == {STEPS} and len(graphs["adam"]["tags"]) == 2


def wait_for(server: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert server.poll() is None, server.communicate()[0].decode()
        try:
            if ready():
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)
    raise AssertionError("TensorBoard has not read the logs within a minute")


def fetch(address: str, path: str, body: Any = None, *, raw: bool = False) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/data/{path}", data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = answer.read()
    found = gzip.decompress(found) if found[:2] == b"\x1f\x8b" else found
    return found if raw else json.loads(found)


@pytest.fixture
def get(address: str) -> Get:
    return lambda path, body=None, **options: fetch(address, path, body, **options)


# ------------------------------------------------------------------------------------- its answers
def test_tabs(get: Get) -> None:
    enabled = {name for name, row in get("plugins_listing").items() if row["enabled"]}
    assert enabled >= {
        "scalars", "histograms", "distributions", "images", "text", "graphs", "hparams"
    }  # fmt: skip


def test_scalars(get: Get, logs: Path) -> None:
    tags = get("plugin/scalars/tags")
    assert set(tags["values"]) == {"carry", "broken/not_finite"}
    rows = get("plugin/scalars/scalars?run=values&tag=carry")
    assert [(step, value) for _, step, value in rows[:5]] == [
        (0, 8), (1, 4), (2, 2), (3, 1), (4, 0.5)
    ]  # fmt: skip
    assert len(rows) == 6  # NaN among them
    for run in ("sgd", "adam"):
        rows = get(f"plugin/scalars/scalars?run={run}&tag=loss")
        assert [(step, value) for _, step, value in rows] == event_files.values(logs / run)["loss"]
        assert rows[-1][2] < rows[0][2]


def test_histograms(get: Get) -> None:
    assert set(get("plugin/histograms/tags")["sgd"]) == {"layer1/weights", "layer2/weights"}
    ((_, step, buckets),) = get("plugin/histograms/histograms?run=values&tag=x")
    assert step == 0
    assert [b for b in buckets if b[2]] == [[1, 1.5, 1], [2, 2.5, 2], [2.5, 3, 1]]
    rows = get("plugin/histograms/histograms?run=sgd&tag=layer1/weights")
    assert {sum(count for *_, count in row[2]) for row in rows} == {32 * 64}
    assert len(rows) > 5


def test_images(get: Get) -> None:
    from PIL import Image

    assert get("plugin/images/tags")["values"]["square"]["samples"] == 2
    for sample in range(2):
        (row,) = get(f"plugin/images/images?run=values&tag=square&sample={sample}")
        file = get(f"plugin/images/individualImage?{row['query']}", raw=True)
        pixels = np.asarray(Image.open(io.BytesIO(file)))
        np.testing.assert_array_equal(pixels, np.full((6, 5, 3), [0, 128, 255]))


def test_text(get: Get) -> None:
    ((row),) = get("plugin/text/text?run=values&tag=about")
    assert "<strong>bold</strong>" in row["text"]


def test_hyperparameters(get: Get) -> None:
    experiment = get("plugin/hparams/experiment", {"experimentName": ""})
    domains = {row["name"]: row for row in experiment["hparamInfos"]}
    assert sorted(domains["optimizer"]["domainDiscrete"]) == ["Adam", "SGD"]
    assert domains["rate"]["type"] == "DATA_TYPE_FLOAT64"
    assert ["", "loss"] in [
        [m["name"]["group"], m["name"]["tag"]] for m in experiment["metricInfos"]
    ]
    wanted = {
        "experimentName": "", "allowedStatuses": ["STATUS_SUCCESS", "STATUS_UNKNOWN"],
        "colParams": [], "startIndex": 0, "sliceSize": 10,
    }  # fmt: skip
    groups = get("plugin/hparams/session_groups", wanted)["sessionGroups"]
    assert sorted(g["hparams"]["optimizer"] for g in groups) == ["Adam", "SGD"]
    assert {s["status"] for g in groups for s in g["sessions"]} == {"STATUS_SUCCESS"}


def test_graph(get: Get) -> None:
    info = get("plugin/graphs/info")
    assert info["adam"]["run_graph"] is True
    assert {tag for tag, row in info["adam"]["tags"].items() if row["profile"]} == {
        "first",
        "a step",
    }
    drawn = get("plugin/graphs/graph?run=adam&conceptual=false", raw=True).decode()
    for name in ("x", "layer1/w", "layer1/matmul", "gradients/layer1/matmul", "loss/square"):
        assert f'\n  name: "{name}"\n' in drawn
    stats = get("plugin/graphs/run_metadata?run=adam&tag=a%20step", raw=True).decode()
    assert 'node_name: "layer1/matmul"' in stats
    assert 'device: "/job:localhost/task:0/device:CPU:0"' in stats


def test_memory_of_nodes(logs: Path) -> None:
    """As TensorBoard's own protocol buffers read it."""
    from tensorboard.compat.proto.config_pb2 import RunMetadata

    written = [e.run_metadata for e in event_files.events(logs / "adam") if e.tag == "a step"]
    (device,) = RunMetadata.FromString(written[0]).step_stats.dev_stats
    nodes = {node.node_name: node for node in device.node_stats}
    node = next(n for name, n in nodes.items() if name.startswith("layer1/") and n.memory)
    (held,) = node.memory
    assert held.total_bytes == sum(
        output.tensor_description.allocation_description.allocated_bytes for output in node.output
    )
    shape = [dim.size for dim in node.output[0].tensor_description.shape.dim]
    assert 0 < 4 * np.prod(shape) <= held.total_bytes


# ------------------------------------------------------------------------------------- in a browser
def shot(page: Any, name: str, height: int, update: bool) -> None:
    """Keep a screenshot; that of the docs must be there, and small."""
    path = (IMAGES if update else SHOTS) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(path), clip={"x": 0, "y": 0, "width": 1180, "height": height})
    in_docs = IMAGES / name
    assert in_docs.exists(), "pytest -m tensorboard tests/frontend --update"
    assert in_docs.stat().st_size < MOST_BYTES


def test_what_people_see(address: str, update: bool) -> None:
    """The scalars, and the graph with its nodes' times, of TensorBoard's pages."""
    with opened_browser() as browser:
        page = browser.new_page(viewport={"width": 1180, "height": 880})
        failed: list[str] = []
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.goto(f"{address}/#scalars&tagFilter=loss")
        page.locator("text=adam").first.wait_for()
        page.locator("tf-scalar-card").first.wait_for()
        page.wait_for_timeout(2500)  # the curves are drawn bit by bit
        shot(page, "tensorboard-scalars.png", 480, update)
        page.goto("about:blank")
        page.goto(f"{address}/#graphs&run=adam")
        for name in ("layer1", "gradients", "Adam"):
            page.locator(f'g[data-name="{name}"]').wait_for()
        controls = page.locator("tf-graph-controls")
        controls.locator("paper-dropdown-menu").nth(1).click()
        controls.locator("paper-item").get_by_text("a step", exact=True).first.click()
        controls.get_by_text("Profile", exact=True).first.click()
        controls.get_by_text("Compute time", exact=True).first.click()
        page.locator('g[data-name="layer1"]').first.click()
        page.locator("tf-node-info").get_by_text("Memory", exact=True).first.wait_for()
        page.locator('g[data-name="gradients"]').first.click()
        # the card of the group says it only if nodes in it have times
        page.locator("tf-node-info").get_by_text("Compute time").first.wait_for()
        page.wait_for_timeout(1500)
        shot(page, "tensorboard-graph.png", 760, update)
        assert failed == []
