"""`wf.summary` in graphs and sessions, in compiled functions, on clusters and GPUs; its hooks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import event_files
import numpy as np
import pytest

import weft as wf

FileWriter = wf.summary.FileWriter
train = wf.train


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return event_files.values(folder)[tag]


# ------------------------------------------------------------------------------------- graphs
def test_summaries_of_a_graph(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None], name="x")
        with wf.name_scope("train"):
            first = wf.summary.scalar("loss", wf.mean(x))
            wf.summary.scalar("loss", wf.sum(x))
        wf.summary.histogram("x", x, buckets=2)
        wf.summary.image("picture", wf.broadcast_to(wf.mean(x) / 10, (4, 2, 1, 1)), max_outputs=1)
        wf.summary.text("said", wf.tf1.as_string(x))
        merged = wf.summary.merge_all()
        some = wf.summary.merge_all(scope="train")
        assert merged is not None
        assert some is not None
    assert list(graph.summaries) == ["train/loss", "train/loss_1", "x", "picture", "said"]
    assert graph.get_collection("summaries")[0] is first
    with wf.Session(graph=graph) as session, FileWriter(tmp_path) as writer:
        writer.add_summary(session.run(merged, {x: [1, 2, 3, 4]}), 5)
        writer.add_summary(session.run(some, {x: [1, 2]}), global_step=6)
        text = session.run(some, {x: [1, 2]})
        assert isinstance(text, bytes)
        writer.add_summary(text)
    found = event_files.values(tmp_path)
    assert found["train/loss"] == [(5, 2.5), (6, 1.5), (0, 1.5)]
    assert found["train/loss_1"] == [(5, 10), (6, 3), (0, 3)]
    assert found["x"][0][1].tolist() == [[1, 2.5, 2], [2.5, 4, 2]]
    assert found["picture"][0][1][:2] == [b"1", b"2"]
    assert len(found["picture"][0][1]) == 3
    assert found["said"][0][1] == [b"1.000000", b"2.000000", b"3.000000", b"4.000000"]


def test_eager_summaries(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        writer.add_summary(wf.summary.scalar("a", 1.5), 1)
        writer.add_summary(
            wf.summary.merge([wf.summary.scalar("b", 1), wf.summary.scalar("c", 2)]), 2
        )
        with writer.as_default(3):
            wf.summary.scalar("a", 2.5)
    assert event_files.values(tmp_path) == {
        "a": [(1, 1.5), (3, 2.5)], "b": [(2, 1)], "c": [(2, 2)]
    }  # fmt: skip


def test_a_graph_from_text(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [], name="x")
        wf.summary.scalar("loss", x)
        merged = wf.summary.merge_all()
        wf.name_tensor(merged, "merged")
    again = wf.Graph.from_text(graph.as_text())
    with wf.Session(graph=again) as session:
        (value,) = event_files.summary(session.run("merged", {"x": 2.0}))
    assert (value.tag, value.value) == ("loss", 2.0)


def test_no_summaries() -> None:
    with wf.Graph().as_default():
        assert wf.summary.merge_all() is None
    with pytest.raises(wf.errors.InvalidArgumentError, match="at least one summary"):
        wf.summary.merge([])
    with pytest.raises(wf.errors.TypeRuleError, match="one string"):
        wf.summary.merge([1.0])


@pytest.mark.parametrize("wrong", ["loss", 3.0, np.zeros(3)])
def test_what_is_no_summary(tmp_path: Path, wrong: Any) -> None:
    with FileWriter(tmp_path) as writer:
        with pytest.raises(wf.errors.TypeRuleError, match="takes a serialized summary, bytes"):
            writer.add_summary(wrong, 0)
        with wf.Graph().as_default():
            symbolic = wf.summary.scalar("a", wf.placeholder(wf.float32, []))
            with pytest.raises(wf.errors.TypeRuleError, match="takes a serialized summary"):
                writer.add_summary(symbolic, 0)


def test_wrong_types_in_a_graph() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [2])
        with pytest.raises(wf.errors.ShapeError, match=r"'loss'\) takes one number") as caught:
            wf.summary.scalar("loss", x)
        assert "test_summaries.py" in str(caught.value)
        with pytest.raises(wf.errors.ShapeError, match="1, 3 or 4 channels"):
            wf.summary.image("x", x)
        with pytest.raises(wf.errors.InvalidArgumentError, match="limit"):
            wf.summary.histogram("x", x, buckets=0)

        def body(i: Any, c: Any) -> Any:
            wf.summary.scalar("c", c)
            return c

        with pytest.raises(wf.errors.UnsupportedError, match="nobody could fetch") as unsupported:
            wf.fori_loop(0, 2, body, wf.sum(x))
        assert "FileWriter.scalar" in str(unsupported.value)


# -------------------------------------------------------------------------- writing in programs
def program(writer: wf.summary.FileWriter) -> Any:
    def body(i: Any, carry: Any) -> Any:
        writer.scalar("carry", carry, i)
        return carry * 2

    def f(x: Any) -> Any:
        writer.text("about", "text", 0)
        total = wf.sum(x)
        writer.scalar("total", total, 1)
        result = wf.fori_loop(0, 3, body, total)
        writer.histogram("x", x, 2, buckets=1)
        writer.scalar("result", result, wf.astype(total, wf.int64))
        return result

    return f


WANTED = {
    "about": [(0, [b"text"])],
    "total": [(1, 6.0)],
    "carry": [(0, 6.0), (1, 12.0), (2, 24.0)],
    "result": [(6, 48.0)],
}


def check(folder: Path, times: int = 1) -> None:
    found = event_files.values(folder)
    assert [rows.tolist() for _, rows in found.pop("x")] == [[[1, 3, 3]]] * times
    assert found == {tag: rows * times for tag, rows in WANTED.items()}
    tags = [v.tag for e in event_files.events(folder) for v in e.values]
    assert tags == ["about", "total", "carry", "carry", "carry", "x", "result"] * times


def test_in_a_compiled_function(tmp_path: Path) -> None:
    """In the order of the program, each time it runs; eagerly the same."""
    x = np.array([1, 2, 3], np.float32)
    with FileWriter(tmp_path / "compiled") as writer:
        f = wf.compile(program(writer))
        for _ in range(3):
            assert float(f(x)) == 48
    check(tmp_path / "compiled", 3)
    with FileWriter(tmp_path / "eager") as writer:
        program(writer)(wf.asarray(x))
    check(tmp_path / "eager")
    with pytest.raises(wf.errors.FailedPreconditionError, match="is closed") as caught:
        f(x)
    assert "test_summaries.py" in str(caught.value)


def test_in_a_gradient(tmp_path: Path) -> None:
    """Once, with the values of the function."""
    with FileWriter(tmp_path) as writer:

        def loss(w: Any) -> Any:
            made = wf.sum(w**2)
            writer.scalar("loss", made, 0)
            return made

        g = wf.compile(wf.grad(loss))(np.array([1.0, 2.0]))
    assert g.numpy().tolist() == [2, 4]
    assert scalars(tmp_path, "loss") == [(0, 5.0)]


def test_on_an_emulated_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    with FileWriter(tmp_path) as writer:
        f = wf.compile(program(writer), device="gpu:0")
        assert float(f(np.array([1, 2, 3], np.float32))) == 48
    check(tmp_path)


def test_on_several_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary in the scope of a GPU is made by the CPU of its task."""
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None])
        with wf.device("/gpu:0"):
            y = wf.exp(x)
            wf.summary.scalar("first", wf.sum(y))
        with wf.device("/gpu:1"):
            wf.summary.scalar("second", wf.sum(y * 2))
        merged = wf.summary.merge_all()
    report = wf.RunMetadata()
    options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
    with wf.Session(graph=graph) as session, FileWriter(tmp_path, graph) as writer:
        writer.add_summary(session.run(merged, {x: [0, 0]}, options, report), 0)
        writer.add_run_metadata(report, "a step")
    assert report.executor == "devices"
    assert scalars(tmp_path, "first") == [(0, 2.0)]
    assert scalars(tmp_path, "second") == [(0, 4.0)]
    (tagged,) = [e for e in event_files.events(tmp_path) if e.tag]
    micros = event_files.node_micros(tagged.run_metadata)
    assert "exp" in micros["/device:GPU:0"]
    assert "multiply" in micros["/device:GPU:1"]
    assert "scalar/summary" in micros["/device:CPU:0"]


def test_the_step_of_a_variable(tmp_path: Path) -> None:
    step = wf.Variable(0)
    with FileWriter(tmp_path) as writer:

        @wf.compile
        def f(x: Any) -> Any:
            step.assign_add(1)
            writer.scalar("given", x, step)
            writer.scalar("default", x)
            wf.summary.scalar("summary", x)
            with wf.name_scope("layer"):
                wf.summary.scalar("summary", x)
            return x

        with writer.as_default(step):
            f(1.0)
            f(2.0)
        f_without = wf.compile(lambda x: (wf.summary.scalar("nobody", x), x)[1])
        assert float(f_without(3.0)) == 3
        with pytest.raises(wf.errors.InvalidArgumentError, match="needs a step"):
            f(3.0)
    wanted = [(1, 1.0), (2, 2.0)]
    found = event_files.values(tmp_path)
    assert found.pop("given") == [*wanted, (3, 3.0)]
    assert found == {"default": wanted, "summary": wanted, "layer/summary": wanted}


def test_in_a_session(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer, wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [3])
        result = program(writer)(x)
        both = ["FileWriter.scalar", "FileWriter.histogram", "FileWriter.scalar_1"]
        with wf.Session() as session:
            value, *_ = session.run([result, *both], {x: [1, 2, 3]})
            assert value == 48
            writer.scalar("seen", value, 9)  # it has a value: at once
    found = event_files.values(tmp_path)
    assert found.pop("seen") == [(9, 48.0)]
    assert [rows.tolist() for _, rows in found.pop("x")] == [[[1, 3, 3]]]
    assert found.pop("about") == [(0, [b"text"])]
    assert found == {k: v for k, v in WANTED.items() if k != "about"}


def test_writers_in_threads(tmp_path: Path) -> None:
    """Each thread's steps are there, in its order."""
    with FileWriter(tmp_path) as writer:
        f = wf.compile(lambda x, i: (writer.scalar("x", x, i), x)[1])

        def run(number: int) -> None:
            for i in range(50):
                f(float(number), number * 1000 + i)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    steps = [step for step, _ in scalars(tmp_path, "x")]
    for n in range(4):
        assert [s for s in steps if s // 1000 == n] == list(range(n * 1000, n * 1000 + 50))


# ------------------------------------------------------------------------------------ clusters
@pytest.fixture
def cluster() -> Iterator[Any]:
    servers = train.Server.create_local_cluster({"worker": 2})
    yield servers
    for server in servers:
        server.stop()


def test_summaries_on_tasks(tmp_path: Path, cluster: Any) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [], name="x")
        with wf.device("/job:worker/task:1"):
            wf.summary.scalar("loss", x * 2)
        with wf.device("/job:worker/task:0"):
            wf.summary.histogram("x", wf.expand_dims(x, axis=0), buckets=1)
        merged = wf.summary.merge_all()
    report = wf.RunMetadata()
    options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
    with wf.Session(cluster[0].target, graph) as session, FileWriter(tmp_path, graph) as writer:
        writer.add_summary(session.run(merged, {x: 2.0}, options, report), 0)
        writer.add_run_metadata(report, "a step", 0)
    assert scalars(tmp_path, "loss") == [(0, 4.0)]
    (tagged,) = [e for e in event_files.events(tmp_path) if e.tag]
    times = event_files.node_micros(tagged.run_metadata)
    assert sorted(times) == [f"/job:worker/task:{i}/device:CPU:0" for i in range(2)]
    assert "multiply" in times["/job:worker/task:1/device:CPU:0"]


def test_a_writer_is_in_this_process(tmp_path: Path, cluster: Any) -> None:
    with FileWriter(tmp_path) as writer, wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [])
        with wf.device("/job:worker/task:1"):
            effect = writer.scalar("loss", x, 0)
        session = wf.Session(cluster[0].target, graph)
        with session, pytest.raises(wf.errors.WeftError, match=r"FileWriter\.scalar"):
            session.run(effect, {x: 1.0})


# --------------------------------------------------------------------------------------- hooks
def model(summaries: bool = True) -> tuple[wf.Graph, Any]:
    with wf.Graph("model").as_default() as graph:
        step = train.create_global_step()
        w = wf.Variable(np.float32(1.0), name="w")
        loss = w**2
        if summaries:
            wf.summary.scalar("loss", loss)
            wf.summary.scalar("w", w)
        update = train.SGD(0.25).minimize(loss, global_step=step)
    return graph, update


def test_a_summary_hook(tmp_path: Path) -> None:
    graph, update = model()
    hooks = [train.SummarySaverHook(save_steps=2, output_dir=tmp_path)]
    with graph.as_default(), train.MonitoredTrainingSession(hooks=hooks) as session:
        for _ in range(5):
            session.run(update)
        with pytest.raises(wf.errors.FailedPreconditionError, match="has an open writer"):
            FileWriter(tmp_path)
    FileWriter(tmp_path).close()  # it is free
    assert [step for step, _ in scalars(tmp_path, "loss")] == [0, 2, 4]
    assert scalars(tmp_path, "w")[0][1] in (1.0, 0.5)  # read before the update, or after it
    events = event_files.events(tmp_path)
    assert [e.step for e in events if e.restart] == [0]
    (drawn,) = [e.graph for e in events if e.graph]
    assert {"w", "loss", "global_step"} - {n.name for n in event_files.nodes(drawn)} == {"loss"}


def test_a_monitored_session_writes_summaries(tmp_path: Path) -> None:
    for last in (25, 40):
        graph, update = model()
        with graph.as_default():
            session = train.MonitoredTrainingSession(
                checkpoint_dir=tmp_path, save_summaries_steps=10, log_step_count_steps=5,
                hooks=[train.StopAtStepHook(last_step=last)],
            )  # fmt: skip
        with session:
            while not session.should_stop():
                session.run(update)
    assert [s for s, _ in scalars(tmp_path, "loss")] == [0, 10, 20, 25, 35]
    rates = scalars(tmp_path, "global_step/sec")
    assert len(rates) > 3
    assert all(rate > 0 for _, rate in rates)
    assert len(event_files.files(tmp_path)) == 2
    assert [e.step for e in event_files.events(tmp_path) if e.restart] == [0, 25]


@pytest.mark.parametrize(("has", "options"), [(False, {}), (True, {"save_summaries_steps": None})])
def test_no_event_files(tmp_path: Path, has: bool, options: dict[str, Any]) -> None:
    graph, update = model(has)
    with graph.as_default():
        session = train.MonitoredTrainingSession(checkpoint_dir=tmp_path, **options)
    with session:
        session.run(update)
    assert event_files.files(tmp_path) == []


def test_summaries_in_a_folder_of_their_own(tmp_path: Path) -> None:
    graph, update = model()
    scaffold = train.Scaffold(summary_op=graph.summaries["w"])
    with graph.as_default():
        session = train.MonitoredTrainingSession(
            summary_dir=tmp_path / "logs", save_summaries_secs=1000.0, scaffold=scaffold
        )
    with session:
        session.run(update)
        session.run(update)
    assert [step for step, _ in scalars(tmp_path / "logs", "w")] == [0]
    assert "loss" not in event_files.values(tmp_path / "logs")


def test_a_step_that_fails_frees_the_folder(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph:
        train.create_global_step()
        x = wf.placeholder(wf.float32, [])
        wf.summary.scalar("x", x)
        bad = wf.tf1.Assert(x > 0, [x])
        with wf.control_dependencies([bad]):
            y = x + 1
    for _ in range(2):
        with graph.as_default():
            session = train.MonitoredTrainingSession(checkpoint_dir=tmp_path)
        with pytest.raises(wf.errors.InvalidArgumentError, match="assertion failed"), session:
            session.run(y, {x: -1.0})
    assert len(event_files.files(tmp_path)) == 2

    class Failing(train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            raise wf.errors.FailedPreconditionError("of its own")

    with graph.as_default(), pytest.raises(wf.errors.FailedPreconditionError, match="of its own"):
        train.MonitoredTrainingSession(checkpoint_dir=tmp_path, hooks=[Failing()])
    FileWriter(tmp_path).close()


def test_a_writer_of_the_callers(tmp_path: Path) -> None:
    graph, update = model()
    with FileWriter(tmp_path, graph) as writer:
        both = list(graph.summaries.values())
        hooks = [
            train.SummarySaverHook(1, summary_writer=writer, summary_op=both),
            train.StepCounterHook(1, summary_writer=writer),
        ]
        with graph.as_default(), train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(3):
                session.run(update)
        writer.scalar("after", 1.0, 3)
    found = event_files.values(tmp_path)
    assert [step for step, _ in found["loss"]] == [0, 1, 2]
    assert found["after"] == [(3, 1.0)]
    assert len(found["global_step/sec"]) == 2


def test_hooks_that_cannot_be(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "a") as writer:
        for options in ({}, {"output_dir": tmp_path, "summary_writer": writer}):
            with pytest.raises(wf.errors.InvalidArgumentError, match="output_dir or summary_wr"):
                train.SummarySaverHook(1, **options)  # type: ignore[arg-type]
    graph, _ = model(False)
    hook = train.SummarySaverHook(1, output_dir=tmp_path)
    with graph.as_default(), pytest.raises(wf.errors.FailedPreconditionError, match="no summaries"):
        train.MonitoredTrainingSession(hooks=[hook])
