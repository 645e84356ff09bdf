"""The viewer's document and page: what they say is what the step is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.tools.main import main
from weft.frontend.viewer.document import Document, PassFacts
from weft.frontend.viewer.facts import Event
from weft.frontend.viewer.page import View
from weft.frontend.viewer.static import MOST_BARS, draw_timeline
from weft.ir.program import Program
from weft.ir.text.parser import parse_program
from weft.ir.text.printer import print_program


def make() -> tuple[Any, np.ndarray[Any, Any]]:
    w = wf.Variable(np.full((3, 4), 0.5, np.float32), name="w")
    optimizer = wf.train.Adam(0.1)

    @wf.compile
    def step(x):  # type: ignore[no-untyped-def]
        with wf.name_scope("layer"):
            h = wf.nn.relu(x @ w)
        loss = wf.mean(h * h)
        optimizer.minimize(loss)
        return loss

    return step, np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def shown() -> tuple[View, dict[str, Any], Any]:
    step, x = make()
    before = float(step(x))
    view = step.view(x)
    assert float(step(x)) < before  # the variables were not changed in between, nor the step
    return view, view.document.to_dict(), step


def lines(data: dict[str, Any], graph: int) -> list[str]:
    return [data["lines"][n][0] for n in data["texts"][graph]]


@pytest.mark.slow
def test_texts_are_those_of_the_passes(shown: tuple[View, dict[str, Any], Any]) -> None:
    view, data, _ = shown
    for facts, row in zip(view.document.passes, data["passes"], strict=True):
        text = "\n".join(lines(data, row["graph"]))
        again = print_program(parse_program(text), locations=False)
        assert again == print_program(facts.program, locations=False)
        assert row["ops"] == sum(1 for _ in facts.program.walk())
    assert data["passes"][0]["name"] == "traced"
    assert data["passes"][-1]["graph"] == len(data["graphs"]) - 1


def test_diffs_lead_from_text_to_text(shown: tuple[View, dict[str, Any], Any]) -> None:
    _, data, _ = shown
    for graph, diff in enumerate(data["diffs"]):
        old, new = lines(data, graph), lines(data, graph + 1)
        made: list[str] = []
        for tag, a, b, c, d in diff:
            if tag == "e":
                assert [t.strip() for t in old[a:b]] == [t.strip() for t in new[c:d]]
            made += new[c:d]
        assert made == new
        assert any(tag != "e" for tag, *_ in diff)


def trees(data: dict[str, Any], tree: int) -> list[int]:
    row = data["trees"][tree]
    inner = [t for t, _, _ in row[5]] if len(row) > 3 else []
    return [tree, *(n for t in inner for n in trees(data, t))]


def test_ids_stay_from_pass_to_pass(shown: tuple[View, dict[str, Any], Any]) -> None:
    _, data, _ = shown
    ids = []
    for graph in data["graphs"]:
        ((_, root),) = graph["parts"]
        ids.append([data["nodes"][data["trees"][t][0]][0] for t in trees(data, root)])
        assert len(ids[-1]) == len(set(ids[-1]))
    first, last = set(ids[0]), set(ids[-1])
    assert {"variable%0", "graph|%x"} <= first & last


def test_kernels_have_ops_lines_times_and_code(shown: tuple[View, dict[str, Any], Any]) -> None:
    _, data, _ = shown
    assert len(data["kernels"]) >= 2
    ids = {
        data["nodes"][data["trees"][t][0]][0]
        for t in trees(data, data["graphs"][-1]["parts"][0][1])
    }
    for kernel in data["kernels"]:
        assert kernel["microseconds"] > 0
        assert kernel["bytes"] > 0
        assert kernel["nodes"]
        assert all(data["nodes"][n][0] in ids for n in kernel["nodes"])
        assert {data["files"][place[0]] for place in kernel["places"]} == {__file__}
        assert "define" in data["codes"][kernel["code"]["LLVM"]]
        assert "ret" in data["codes"][kernel["code"]["assembly"]]
    number = data["files"].index(__file__)
    assert data["sources"][str(number)] == Path(__file__).read_text(encoding="utf-8")
    assert data["explain"].splitlines()[0].startswith("step: specialisation 1")


def test_kernels_of_many_ops_are_called_by_what_they_compute(
    shown: tuple[View, dict[str, Any], Any],
) -> None:
    _, data, _ = shown
    names = " ".join(kernel["name"] for kernel in data["kernels"])
    assert "relu" in names
    assert "_more" not in names


def test_memory_is_the_plan(shown: tuple[View, dict[str, Any], Any]) -> None:
    _, data, _ = shown
    memory = data["memory"]
    ranges = memory["ranges"]
    assert memory["bytes"] == max(offset + size for offset, size, *_ in ranges)
    for i, (a, s, begin, end, *_) in enumerate(ranges):
        assert 0 <= begin < end <= memory["events"]
        for b, t, start, stop, *_ in ranges[:i]:  # what is needed at once does not overlap
            assert end <= start or stop <= begin or a + s <= b or b + t <= a


def test_the_timeline_is_of_a_run(shown: tuple[View, dict[str, Any], Any]) -> None:
    _, data, _ = shown
    assert len(data["events"]) == len(data["kernels"])
    for event in data["events"]:
        assert 0 <= event["begin"] < event["end"]
        assert event["lines"][0].startswith(__file__)


def test_the_page_is_one_file_that_asks_for_nothing(
    shown: tuple[View, dict[str, Any], Any], tmp_path: Path
) -> None:
    view, data, _ = shown
    path = view.save(tmp_path / "step.html")
    html = path.read_text(encoding="utf-8")
    code = html.replace(
        re.findall(r'<script type="application/json".*?</script>', html, re.S)[0], ""
    )
    assert len(code) < 1 << 20
    assert not re.search(r"https?://(?!www\.w3\.org)|src=|@import|url\(|fetch\(", code)
    assert "default-src 'none'" in html
    (text,) = re.findall(r'id="data">(.*?)</script>', html, re.S)
    assert json.loads(text) == json.loads(json.dumps(data))
    assert "<iframe srcdoc=" in view.show()._repr_html_()
    assert repr(view).startswith("<View of step: ")
    with pytest.raises(wf.errors.NotFoundError, match="there is no folder"):
        view.save(tmp_path / "no" / "step.html")


def test_text_cannot_leave_the_data() -> None:
    @wf.compile
    def f(x):  # type: ignore[no-untyped-def]
        with wf.name_scope("</script><script>alert(1)"):
            return wf.nn.softmax(x)

    program = Program.of(f.trace(np.ones(3, np.float32)))
    html = View(Document("<b>t", [PassFacts("traced", program, True)])).html
    assert html.count("<script") == 2
    assert "<b>t" not in html


def test_a_step_of_a_session_with_its_timeline() -> None:
    with wf.Graph("g").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None], name="x")
        y = wf.sum(wf.exp(x) * 2)
        feeds = {x: np.ones(3, np.float32)}
        report = wf.RunMetadata()
        options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
        session.run(y, feeds, options=options, run_metadata=report)
        data = session.view(y, feeds, run_metadata=report).document.to_dict()
        assert data["events"]
        assert "step of 'g'" in data["explain"]
        assert data["kernels"]
        assert all(kernel["microseconds"] > 0 for kernel in data["kernels"])
        untraced = wf.RunMetadata()
        session.run(y, feeds, run_metadata=untraced)
        with pytest.raises(wf.errors.InvalidArgumentError, match="without a trace"):
            session.view(y, feeds, run_metadata=untraced)


def test_a_native_step_of_a_session_is_measured_on_copies() -> None:
    with wf.Graph("g").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, 4], name="x")
        w = wf.Variable(np.ones((4, 4), np.float32), name="w")
        n = wf.placeholder(wf.float32, [], name="n")
        step = w.assign_add(wf.nn.relu(wf.matmul(x, w)) * n)
        feeds = {x: np.ones((4, 4), np.float32), n: np.float32(2)}
        data = session.view(step, feeds).document.to_dict()  # no value yet: nothing can run
        assert data["kernels"]
        assert all(kernel["microseconds"] is None for kernel in data["kernels"])
        assert "no times, as the step fails" in data["missing"][0]
        assert "'w'" in data["missing"][0]
        session.run(wf.global_variables_initializer())
        before = session.run(w)
        data = session.view(step, feeds).document.to_dict()
        np.testing.assert_array_equal(session.run(w), before)
        assert data["missing"] == []
        assert data["events"]
        for kernel in data["kernels"]:
            assert kernel["microseconds"] > 0
            assert kernel["bytes"] > 0
            assert kernel["percent"] is not None
            assert kernel["nodes"] or kernel["name"] == "copy"
        assert any(kernel["flops"] >= 2 * 4**3 for kernel in data["kernels"])


def test_what_calls_python_is_run_once_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the user's may do anything: measuring would call it a thousand times."""
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    called: list[int] = []

    def twice(array: Any) -> Any:
        called.append(1)
        return array * 2

    for device in ("cpu:0", "gpu:0"):

        @wf.compile(device=device)
        def f(x):  # type: ignore[no-untyped-def]
            return wf.exp(wf.py_function(twice, [x], wf.float32, shapes=(3,)))

        f(np.ones(3, np.float32))
        called.clear()
        data = f.view(np.ones(3, np.float32)).document.to_dict()
        assert len(called) == 1
        assert "run once" in " ".join(data["missing"])
        assert data["events"]
        kernel = next(k for k in data["kernels"] if k["name"].startswith("exp"))
        assert (kernel["bytes"], kernel["flops"]) == (24, 0)  # exp is none
        assert kernel["microseconds"] is None or device == "gpu:0"


def test_steps_without_kernels_say_so() -> None:
    with wf.Graph("g").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [4], name="x")
        put = wf.FIFOQueue(3, wf.float32, shapes=[[4]]).enqueue(x)
        for fetches in (put, []):
            data = session.view(fetches, {x: np.ones(4, np.float32)}).document.to_dict()
            assert data["kernels"] == []
            assert "has no kernels" in data["missing"][0]


def test_kernels_without_times_have_their_work() -> None:
    """Those of a step that fails, and those of regions that the page does not run."""
    with wf.Graph("g").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [4], name="x")
        w = wf.Variable(np.ones(4, np.float32), name="w")
        queue = wf.FIFOQueue(3, wf.float32, shapes=[[4]])
        feeds = {x: np.ones(4, np.float32)}
        for fetches in (wf.exp(x) * w, queue.enqueue(wf.exp(x) * 2)):
            kernels = session.view(fetches, feeds).document.to_dict()["kernels"]
            assert any(k["flops"] == 4 and k["bytes"] >= 32 for k in kernels)
            assert all(k["microseconds"] is None for k in kernels)


def test_the_report_must_be_of_the_step() -> None:
    with wf.Graph("g").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None], name="x")
        y, z = wf.exp(x), wf.sin(x)
        report = wf.RunMetadata()
        options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
        session.run(y, {x: np.ones(3)}, options=options, run_metadata=report)
        assert session.view(y, {x: np.ones(5)}, run_metadata=report).document.plan.events
        with pytest.raises(wf.errors.InvalidArgumentError, match="of other fetches"):
            session.view(z, {x: np.ones(3)}, run_metadata=report)
        with pytest.raises(wf.errors.TypeRuleError, match="RunMetadata, got 5"):
            session.view(y, {x: np.ones(3)}, run_metadata=5)  # type: ignore[arg-type]


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    f, x = wf.compile(lambda x: wf.nn.relu(x) + 1), np.ones(3, np.float32)
    for fold in ("x", 1.5, True):
        with pytest.raises(wf.errors.TypeRuleError, match="fold is a whole number"):
            f.ir(x, fold=fold)
    assert f.ir(x, fold=np.int64(1)) == f.ir(x, fold=1)
    for sections in (5, [1], {"memory": 1}):
        with pytest.raises(wf.errors.TypeRuleError, match="beginnings of headings"):
            f.explain(x, sections=sections)
    with pytest.raises(wf.errors.InvalidArgumentError, match="cannot write"):
        f.view(x).save(tmp_path)
    file = tmp_path / "g.weft"
    file.write_text(f.ir(x), encoding="utf-8")
    command = [sys.executable, "-m", "weft", "opt", str(file), "--fold", "-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot be folded" in done.stderr
    assert "  at " not in done.stderr


def on_gpu() -> tuple[Any, Any]:
    w = wf.Variable(np.ones((64, 64), np.float32), name="w")

    @wf.compile(device="gpu:0")
    def step(x):  # type: ignore[no-untyped-def]
        with wf.name_scope("layer"):
            h = wf.nn.softmax(wf.matmul(x, w))
        w.assign(w - 0.1 * wf.sum(h * h))
        return wf.exp(h)

    return step, w


def test_a_function_on_a_gpu_shows_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    step, w = on_gpu()
    x = np.ones((32, 64), np.float32)
    step(x)
    before = w.numpy()
    data = step.view(x).document.to_dict()
    np.testing.assert_array_equal(w.numpy(), before)
    kernels = data["kernels"]
    assert len(kernels) == step.explain(x).count("<<<") >= 3
    for kernel in kernels:
        assert kernel["blocks"] >= 1
        assert kernel["threads"] >= 1
        assert kernel["runs"] == 1
        assert kernel["microseconds"] > 0
        assert kernel["percent"] is None
        assert kernel["nodes"]
        assert {data["files"][place[0]] for place in kernel["places"]} == {__file__}
        code = {language: data["codes"][n] for language, n in kernel["code"].items()}
        assert f"def {kernel['name']}(" in code["source"]
        assert f"{kernel['name']}<<<{kernel['blocks']}, {kernel['threads']}>>>" in code["plan"]
        assert "define ptx_kernel" in code["LLVM"]
        assert ".visible .entry" in code["PTX"]
    product = next(kernel for kernel in kernels if kernel["name"].startswith("matmul"))
    assert product["flops"] == 2 * 32 * 64 * 64
    assert product["bytes"] == 4 * (32 * 64 + 64 * 64 + 32 * 64)
    assert product["shared"] > 0
    assert "variable w" in data["codes"][product["code"]["plan"]]
    assert len(data["events"]) >= len(kernels)
    assert data["memory"]["ranges"]
    assert "emulated" in data["missing"][0]
    assert "emulated" in data["recorded"]


def test_launches_in_a_loop_on_a_gpu_count_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")

    @wf.compile(device="gpu:0")
    def f(x):  # type: ignore[no-untyped-def]
        return wf.while_loop(lambda y: wf.sum(y) < 100.0, lambda y: y * 2, x)

    kernels = f.view(np.ones(8, np.float32)).document.to_dict()["kernels"]
    assert {kernel["runs"] for kernel in kernels} >= {4, 5}  # the body, and the test


def test_without_a_gpu_its_launches_have_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_EMULATE_GPU", raising=False)
    why = "there is no GPU to use"

    def none(index: int) -> Any:
        raise wf.errors.FailedPreconditionError(why)

    monkeypatch.setattr("weft.runtime.device.backends.registry.gpu", none)
    step, _ = on_gpu()
    data = step.view(np.ones((32, 64), np.float32)).document.to_dict()
    assert data["kernels"]
    assert all(kernel["microseconds"] is None for kernel in data["kernels"])
    assert all("PTX" in kernel["code"] for kernel in data["kernels"])
    assert data["missing"] == [f"The launches have no times: {why}"]


def test_a_session_on_a_gpu_shows_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    with wf.Graph("g").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None], name="x")
        with wf.device("gpu:0"):
            y = wf.sum(wf.exp(x))
        data = session.view(y, {x: np.ones(4, np.float32)}).document.to_dict()
    assert all(kernel["microseconds"] > 0 for kernel in data["kernels"])
    assert all(kernel["nodes"] for kernel in data["kernels"])


def on_two_devices() -> tuple[View, dict[str, Any]]:
    with wf.Graph("g").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [4], name="x")
        with wf.device("gpu:0"), wf.name_scope("far"):
            y = wf.exp(x)
        with wf.device("cpu:0"), wf.name_scope("near"):
            z = wf.sum(wf.sin(y))
        view = session.view(z, {x: np.ones(4, np.float32)})
        return view, view.document.to_dict()


def lit(data: dict[str, Any], kernel: dict[str, Any]) -> set[str]:
    return {data["nodes"][n][2] for n in kernel["nodes"]}


def test_a_step_on_several_devices_shows_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    _, data = on_two_devices()
    cpu, gpu = (f"/job:localhost/task:0/{kind}:0" for kind in ("cpu", "gpu"))
    assert {device for device, _ in data["graphs"][-1]["parts"]} == {cpu, gpu}
    assert data["devices"] == [[cpu, "/cpu:0"], [gpu, "/gpu:0"]]
    assert data["device_of"][cpu] == data["device_of"]["/cpu:0"] == 0
    place = next(p for p in data["passes"] if p["name"] == "place")
    ((_, root),) = data["graphs"][place["graph"]]["parts"]
    nodes = [data["nodes"][data["trees"][t][0]] for t in trees(data, root)]
    assert {(n[4], n[6]) for n in nodes if len(n) > 6} == {("exp", gpu), ("sin", cpu), ("sum", cpu)}
    ones = {kernel["device"]: kernel for kernel in data["kernels"]}
    assert lit(data, ones[gpu]) == {"exp"}
    assert lit(data, ones[cpu]) == {"sin", "sum"}
    assert ones[gpu]["blocks"] == 1
    assert ones[cpu]["blocks"] is None
    assert "ret" in data["codes"][ones[cpu]["code"]["assembly"]]
    assert "no times" in data["missing"][0]


def test_a_step_on_the_executor_shows_the_kernels_of_its_regions() -> None:
    with wf.Graph("q").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [4], name="x")
        queue = wf.FIFOQueue(3, wf.float32, shapes=[[4]])
        with wf.control_dependencies([queue.enqueue(wf.exp(x) * 2)]):
            z = wf.sum(wf.tanh(queue.dequeue()))
        feeds = {x: np.ones(4, np.float32)}
        data = session.view(z, feeds).document.to_dict()
        found = wf.sum(wf.cos(wf.boolean_mask(x, x > 1)))  # of a size that values decide
        text = " ".join(session.view([z, found], feeds).document.plan.missing)
        assert re.search(r"The sizes of region \d depend on values", text)
        assert queue.size().eval() == 0  # nothing ran
    regions = {kernel["region"]: lit(data, kernel) for kernel in data["kernels"]}
    assert {"exp", "multiply 2.0"} in regions.values()
    assert any("tanh" in found for found in regions.values())
    assert [kernel["number"] for kernel in data["kernels"]] == [*range(1, len(data["kernels"]) + 1)]
    assert data["devices"] == []
    assert "no times" in data["missing"][0]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step, x = make()
    file, page = tmp_path / "g.weft", tmp_path / "g.html"
    file.write_text(print_program(Program.of(step.trace(x))), encoding="utf-8")
    assert main(["view", str(file), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}: 1 graph\n"
    assert main(["view", str(file), "--html", str(page), "--passes", "standard"]) == 0
    assert "graphs" in capsys.readouterr().out
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    assert main(["view", str(dumps), "--html", str(page)]) == 2
    assert "there are no dumps" in capsys.readouterr().err
    for number, name in ((0, "traced"), (3, "fuse")):
        (dumps / f"{number:02d}-{name}.weft").write_text(file.read_text(encoding="utf-8"))
    assert main(["view", str(tmp_path), "--html", str(page)]) == 2
    assert "folders of their own: dumps" in capsys.readouterr().err
    assert main(["view", str(dumps), "--html", str(page)]) == 0
    assert '"fuse"' in page.read_text(encoding="utf-8")
    assert main(["view", str(dumps)]) == 2
    assert "add --html FILE" in capsys.readouterr().err


def page_data(path: Path) -> dict[str, Any]:
    (text,) = re.findall(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)
    data: dict[str, Any] = json.loads(text)
    return data


def test_a_dump_shows_kernels_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step, x = make()
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    step(x)
    monkeypatch.delenv("WEFT_DUMP")
    page = tmp_path / "step.html"
    assert main(["view", str(tmp_path / "step"), "--html", str(page)]) == 0
    assert capsys.readouterr().err == ""
    data, live = page_data(page), step.view(x).document.to_dict()
    assert data["memory"]["bytes"] == live["memory"]["bytes"] > 0
    assert [r[:6] for r in data["memory"]["ranges"]] == [r[:6] for r in live["memory"]["ranges"]]
    assert all(row[6] >= 0 for row in data["memory"]["ranges"])

    def ids(data: dict[str, Any], kernel: dict[str, Any]) -> frozenset[str]:
        return frozenset(data["nodes"][n][0] for n in kernel["nodes"])

    measured = {ids(live, kernel): kernel for kernel in live["kernels"]}
    for kernel in data["kernels"]:
        code = {language: data["codes"][n] for language, n in kernel["code"].items()}
        assert "def kernel(" in code["source"]
        assert kernel["nodes"]
        assert kernel["microseconds"] is None
        if kernel["bytes"] is not None:
            same = measured[ids(data, kernel)]
            assert (kernel["bytes"], kernel["flops"]) == (same["bytes"], same["flops"])
    assert any("plan" in kernel["code"] for kernel in data["kernels"])
    assert "no times" in data["missing"][0]
    (tmp_path / "step" / "kernels" / "memory.json").unlink()  # as an older weft wrote it
    assert main(["view", str(tmp_path / "step"), "--html", str(page)]) == 0
    assert page_data(page)["memory"] is None


def test_a_dump_of_several_devices_shows_regions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    on_two_devices()
    page = tmp_path / "g.html"
    (folder,) = (p for p in tmp_path.iterdir() if (p / "gpu_0").is_dir())
    assert main(["view", str(folder), "--html", str(page)]) == 0
    data = page_data(page)
    near, far = data["kernels"]
    assert (near["device"], near["region"]) == ("/job:localhost/task:0/cpu:0", "region 1")
    assert (far["device"], far["region"]) == ("/job:localhost/task:0/gpu:0", "region 1")
    assert lit(data, near) == {"sin", "sum"}
    assert lit(data, far) == {"exp"}
    assert "cpu_0/region" in data["explain"]


def test_a_dump_of_a_gpu_shows_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    step, _ = on_gpu()
    x = np.ones((32, 64), np.float32)
    step(x)
    monkeypatch.delenv("WEFT_DUMP")
    page = tmp_path / "gpu.html"
    (folder,) = (p.parent for p in tmp_path.glob("*/launches"))
    assert main(["view", str(folder), "--html", str(page)]) == 0
    data, live = page_data(page), step.view(x).document.to_dict()
    same = ("name", "key", "blocks", "threads", "shared", "bytes", "flops", "notes")
    assert [[k[n] for n in same] for k in data["kernels"]] == [
        [k[n] for n in same] for k in live["kernels"]
    ]
    assert [lit(data, k) for k in data["kernels"]] == [lit(live, k) for k in live["kernels"]]
    for one, other in zip(data["kernels"], live["kernels"], strict=True):
        assert data["codes"][one["code"]["source"]] == live["codes"][other["code"]["source"]]
    assert data["memory"]["bytes"] == live["memory"]["bytes"] > 0


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The dump of a native step, in a folder beside a file that is nobody else's business."""
    (tmp_path / "secret").write_text("the secret")
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    f = wf.compile(lambda x: wf.exp(x) + wf.sum(x))
    f(np.ones(4, np.float32))
    monkeypatch.delenv("WEFT_DUMP")
    (folder,) = (p.parent for p in tmp_path.glob("*/kernels"))
    return folder


def view_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    page = folder.parent / "page.html"
    assert main(["view", str(folder), "--html", str(page)]) == 2
    assert not page.exists()
    out, err = capsys.readouterr()
    assert "the secret" not in out + err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("name", ["../../secret", "..", "/etc/passwd", 5, None, "a/../x.py"])
def test_a_dump_reads_no_file_elsewhere(
    name: object, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dump / "kernels" / "kernels.json"
    table = json.loads(path.read_text())
    next(iter(table.values()))["file"] = name
    path.write_text(json.dumps(table))
    assert "is damaged" in view_fails(dump, capsys)


@pytest.mark.parametrize(
    "name", ["plan.txt", "kernels/*.py", "kernels/kernels.json", "kernels/memory.json", "00-*.weft"]
)
def test_a_dump_follows_no_links(name: str, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sorted(dump.glob(name))[0]
    path.unlink()
    path.symlink_to(dump.parent / "secret")
    assert "leads out of the dump" in view_fails(dump, capsys)


def test_folders_of_a_dump_that_are_links_are_left_out(dump: Path) -> None:
    (dump / "loop").symlink_to(dump)
    page = dump.parent / "page.html"
    assert main(["view", str(dump), "--html", str(page)]) == 0
    assert page_data(page)["kernels"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("kernels.json", b"{"),
        ("kernels.json", b"[]"),
        ("kernels.json", b"[" * 100_000),
        ("kernels.json", b'{"k": 5}'),
        ("kernels.json", b'{"k": {"op": 0}}'),
        ("kernels.json", b'{"k": {"name": "a", "op": "x"}}'),
        ("kernels.json", b'{"k": {"name": NaN, "op": 0}}'),
        ("kernels.json", b'{"k": {"name": "a", "op": 0, "file": "gone.py"}}'),
        ("kernels.json", b'{"k": {"name": "a", "op": 0, "in_place": 3}}'),
        ("memory.json", b"{"),
        ("memory.json", b"[]"),
        ("memory.json", b'{"bytes": 8, "events": 3, "ranges": [[0, 8, 0, 1, [900]]]}'),
        ("memory.json", b'{"bytes": 8, "events": NaN, "ranges": []}'),
        ("memory.json", b'{"bytes": 8, "events": 3, "ranges": [["a", 8, 0, 1, []]]}'),
        ("../plan.txt", b"\xff\xfe\x00"),
    ],
)
def test_damaged_dumps(
    file: str, text: bytes, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dump / "kernels" / file).write_bytes(text)
    assert "is damaged" in view_fails(dump, capsys)


def test_damaged_dumps_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    step, _ = on_gpu()
    step(np.ones((32, 64), np.float32))
    (path,) = tmp_path.glob("*/launches/launches.json")
    first = json.loads(path.read_text())
    for changed in ({"file": "../../secret"}, {"blocks": {}}, {"op": None}, {"args": 3}):
        path.write_text(json.dumps([first[0] | changed]))
        assert "is damaged" in view_fails(path.parents[1], capsys)
    path.write_text("5")
    assert "is damaged" in view_fails(path.parents[1], capsys)


def test_passes_are_not_run_on_a_dump(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(dump.parent / "page.html")
    assert main(["view", str(dump), "--html", page, "--passes", "standard"]) == 2
    assert "--passes is for graphs" in capsys.readouterr().err


@pytest.mark.slow
def test_notebooks_get_drawings_without_scripts() -> None:
    step, x = make()
    step(x)
    cost = step.cost(x)
    with wf.Graph("g").as_default() as graph, wf.Session() as session:
        y = wf.exp(wf.placeholder(wf.float32, [3], name="x"))
        runs = []
        for level in (wf.RunOptions.NO_TRACE, wf.RunOptions.FULL_TRACE):
            runs.append(wf.RunMetadata())
            session.run(y, {"x": np.ones(3)}, wf.RunOptions(trace_level=level), runs[-1])
    fused, product = step.kernels(x)[0], wf.compile(wf.matmul).kernels(x, x.T)[0]
    shown = (step, cost, graph, step.trace(x), runs[1], fused, product, step.view(x))
    for one in shown:
        html = one._repr_html_()
        assert "<svg" in html
        assert "<script" not in html
        assert len(html.encode()) < 100_000
        ElementTree.fromstring(re.findall(r"<svg.*?</svg>", html, re.S)[0])
    for one in (cost, graph, runs[1], fused, product):
        assert "<iframe" in one.show()._repr_html_()
    assert "exp: " in runs[1]._repr_html_()
    assert "one native plan of 1 kernels" in runs[0]._repr_html_()
    assert "<svg" not in runs[0]._repr_html_()  # not traced
    assert wf.RunMetadata()._repr_html_().startswith("<pre>RunMetadata(")
    assert "def kernel(" in fused._repr_html_()


def test_lanes_of_tasks_are_told_apart() -> None:
    """Their names have room, and where they are too long for that, both ends are there."""
    lanes = [f"/job:worker/task:{t} thread {k}" for t in (0, 1) for k in (0, 1)]
    long = [f"/job:{'w' * 80}/task:0 thread {k}" for k in (0, 1)]
    events = [Event(lane, "k", "kernel", 0, 45910.6) for lane in (*lanes, *long)]
    root = ElementTree.fromstring(draw_timeline(events))
    texts = [one for one in root if one.tag.endswith("text")]
    names = [one.text or "" for one in texts[:6]]
    assert names[:4] == lanes
    assert len(set(names)) == 6
    left = min(float(one.attrib["x"]) for one in root if one.tag.endswith("rect"))
    assert all(6.7 * len(name) < left for name in names)
    assert (texts[-1].text, texts[-1].attrib["text-anchor"]) == ("45,910.6 us", "end")


def test_a_timeline_of_many_events_is_small() -> None:
    events = [
        Event(f"thread {k % 3}", f"kernel{k}<&", "kernel", k, k + 1 + k / 5000, (f"/a/b.py:{k}",))
        for k in range(5000)
    ]
    drawing = draw_timeline(events)
    assert len(drawing.encode()) < 100_000
    root = ElementTree.fromstring(drawing)
    bars = [one for one in root if one.tag.endswith("rect")]
    assert len(bars) == MOST_BARS
    assert "the 300 longest of 5,000 events" in drawing
    assert bars[-1][0].text == "kernel4999<&: 2.00 us b.py:4999"
    assert "<svg" in draw_timeline([])
