"""The kernels of steps that are not one plan, on the page: of regions, of devices, of tasks, with
the times of a traced run, or why they have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from clusters import local_cluster

import weft as wf

FULL = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
NODES = wf.RunOptions(trace_level=wf.RunOptions.SOFTWARE_TRACE)
ONES = np.ones((4, 64), np.float32)


def shown(session: wf.Session, fetches: Any, feeds: Any, options: Any = None) -> dict[str, Any]:
    """The page's data, with the report of a run if there are options."""
    report = None
    if options is not None:
        report = wf.RunMetadata()
        session.run(fetches, feeds, options, report)
    data: dict[str, Any] = session.view(fetches, feeds, report).document.to_dict()
    return data


def ops(data: dict[str, Any], kernel: dict[str, Any]) -> set[str]:
    """The names of the nodes that a kernel lights."""
    return {data["nodes"][n][4] for n in kernel["nodes"] if len(data["nodes"][n]) > 4}


def test_kernels_of_regions_have_the_times_of_a_traced_run() -> None:
    with wf.Graph("q").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [4, 64], name="x")
        w = wf.Variable(np.ones((64, 64), np.float32), name="w")
        queue = wf.FIFOQueue(9, wf.float32, shapes=[[4, 64]])
        put = queue.enqueue(wf.nn.softmax(wf.matmul(wf.exp(x), w.read())))
        session.run(wf.global_variables_initializer())
        plain = shown(session, put, {x: ONES})
        assert queue.size().eval() == 0  # a page runs nothing
        data = shown(session, put, {x: ONES}, FULL)
        whole = shown(session, put, {x: ONES}, NODES)
    for page in (plain, whole):
        assert page["kernels"]
        for kernel in page["kernels"]:
            assert kernel["microseconds"] is None
            assert kernel["untimed"] == "not timed"
    assert "run_metadata=" in plain["missing"][0]
    assert "SOFTWARE_TRACE" in whole["missing"][0]
    assert "means of the traced run" in data["missing"][0]
    for kernel, other in zip(data["kernels"], plain["kernels"], strict=True):
        assert (kernel["name"], kernel["region"]) == (other["name"], other["region"])
        assert kernel["microseconds"] > 0
        assert kernel["runs"] == 1
        assert kernel["untimed"] == ""
    (product,) = (k for k in data["kernels"] if "matmul" in ops(data, k))
    assert product["flops"] == 2 * 4 * 64 * 64
    spent = sum(k["microseconds"] for k in data["kernels"])
    regions = [e for e in data["events"] if e["kind"] in ("plan", "state")]
    assert spent < sum(e["end"] - e["begin"] for e in regions)


def test_loops_of_the_executor_run_a_kernel_again_and_native_ones_say_that_they_are_loops() -> None:
    with wf.Graph("q").as_default(), wf.Session(control_flow="dataflow") as session:
        x = wf.placeholder(wf.float32, [4, 64], name="x")
        y = wf.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, wf.sin(a)), (0, x))[1]
        data = shown(session, y, {x: ONES}, FULL)
    (sine,) = (k for k in data["kernels"] if "sin" in ops(data, k))
    assert sine["runs"] == 5
    with wf.Graph("n").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [400, 400], name="x")
        queue = wf.FIFOQueue(9, wf.float32, shapes=[[400, 400]])
        y = wf.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, wf.matmul(a, x) / wf.sum(a)), (0, x)
        )[1]
        put = queue.enqueue(y)
        data = shown(session, put, {x: np.ones((400, 400), np.float32)}, FULL)
    inside = [k for k in data["kernels"] if k["microseconds"] is None]
    assert inside
    for kernel in inside:
        assert kernel["untimed"].startswith("in a loop or branch of ")


def test_regions_of_any_size_are_listed_after_a_traced_run() -> None:
    with wf.Graph("s").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [4], name="x")
        found = wf.sum(wf.cos(wf.boolean_mask(x, x > 1)))
        feeds = {x: np.float32([0, 1, 2, 3])}
        plain = shown(session, found, feeds)
        data = shown(session, found, feeds, FULL)
    assert any("listed after a traced run" in line for line in plain["missing"])
    assert not any("listed after a traced run" in line for line in data["missing"])
    names = [k["name"] for k in data["kernels"]]
    assert any("cos" in name for name in names)
    assert len(names) > len(plain["kernels"])
    assert all(k["microseconds"] > 0 for k in data["kernels"])


def test_kernels_of_several_devices_have_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    with wf.Graph("d").as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [4, 64], name="x")
        with wf.device("gpu:0"):
            y = wf.nn.softmax(wf.exp(x))
        with wf.device("cpu:0"):
            z = wf.sum(wf.sin(y))
        data = shown(session, z, {x: ONES}, FULL)
        report = wf.RunMetadata()
        made = session.run(z, {x: ONES}, FULL, report)
        np.testing.assert_allclose(made, session.run(z, {x: ONES}))
    assert len(data["kernels"]) >= 2
    assert {k["device"] for k in data["kernels"]} == {d for d, _ in data["devices"]}
    for kernel in data["kernels"]:
        assert kernel["microseconds"] > 0
        assert kernel["runs"] == 1
    assert any("emulated" in line for line in data["missing"])
    assert {e.device for e in report.kernel_events} == {d for d, _ in data["devices"]}


TASKS = ["/job:ps/task:0/cpu:0", "/job:worker/task:0/cpu:0"]


def on_tasks() -> tuple[Any, Any]:
    x = wf.placeholder(wf.float32, [4, 64], name="x")
    with wf.device("/job:worker/task:0"):
        y = wf.nn.softmax(wf.exp(x))
    with wf.device("/job:ps/task:0"):
        z = wf.sum(wf.sin(y) * 2.0, axis=0)
    return z, {x: ONES}


def test_kernels_of_tasks_are_on_the_page_with_the_times_of_a_traced_run() -> None:
    with local_cluster({"ps": 1, "worker": 1}) as servers, wf.Graph("c").as_default():
        z, feeds = on_tasks()
        with wf.Session(servers[0].target) as session:
            plain = shown(session, z, feeds)
            data = shown(session, z, feeds, FULL)
    assert [device for device, _ in data["devices"]] == TASKS
    assert all(k["untimed"] == "not timed" for k in plain["kernels"])
    for page in (plain, data):
        by_task = {d: [k for k in page["kernels"] if k["device"] == d] for d in TASKS}
        assert any("softmax" in k["name"] for k in by_task[TASKS[1]])
        assert any("sin" in ops(page, k) for k in by_task[TASKS[0]])
        for kernel in page["kernels"]:
            assert kernel["bytes"] >= 64 * 4
            assert {page["files"][place[0]] for place in kernel["places"]} == {__file__}
            code = {language: page["codes"][n] for language, n in kernel["code"].items()}
            assert "def kernel(" in code["source"]
            assert "define" in code["LLVM"]
            assert "ret" in code["assembly"]
    for kernel in data["kernels"]:
        assert kernel["microseconds"] > 0
        assert kernel["runs"] == 1


@pytest.mark.slow
def test_a_task_that_is_gone_has_no_kernels_and_the_page_says_so() -> None:
    with local_cluster({"ps": 1, "worker": 1}) as servers, wf.Graph("c").as_default():
        z, feeds = on_tasks()
        with wf.Session(servers[0].target) as session:
            session.run(z, feeds)
            servers[1].stop()
            data = shown(session, z, feeds)
    assert all(k["device"] == TASKS[0] for k in data["kernels"])  # none, or what the other told
    assert any("/job:worker/task:0" in line for line in data["missing"])
