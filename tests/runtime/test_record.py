"""`wf.record`, WEFT_RECORD, `wf.replay`: what ran anywhere runs again, with the same bits."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import local_cluster
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from weft.ir.text.parser import parse_graph
from weft.runtime.checkpoint.format import write_file
from weft.runtime.record.replay import HostReplay
from weft.runtime.record.step_record import (
    Outcome,
    StepRecord,
    load_record,
    same_bits,
    save_record,
)
from weft.runtime.record.traced_step import Way
from weft.runtime.run_log import HostGroup, HostKey, HostRow, RunLog, host_keys

ENGINES = ("recorded", "interpreter", "native", "numba", "dataflow")


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def only(files: list[Path]) -> Any:
    (file,) = files
    return wf.replay(file)


# ------------------------------------------------------------------------------ compiled functions
def test_a_call_has_the_same_bits_again(tmp_path: Path) -> None:
    w = wf.Variable(f32(1, 2, 3), name="w")

    @wf.compile
    def step(x: Any) -> Any:
        y = wf.tanh(x @ wf.ones((3, 3), dtype=wf.float32) * 0.3 + w)
        w.assign_add(y)
        return wf.sum(y), y

    for _ in range(3):  # the native entry knows it
        step(f32(1, 2, 3))
    before = w.numpy().copy()
    with wf.record(tmp_path) as files:
        total, _ = step(f32(4, 5, 6))
        assert not files  # it is written at the end
    record = only(files)
    assert record.name == "step"
    assert record.error is None
    assert record.run()[0].tobytes() == total.numpy().tobytes()  # type: ignore[attr-defined]
    held = load_record(files[0])
    assert held.inputs[0].tolist() == [4, 5, 6]
    assert held.variables["w"].tolist() == before.tolist()
    assert held.outcome is not None
    assert held.outcome.written["w"].tolist() == w.numpy().tolist()
    for engine in ENGINES:
        assert all(d.close for d in record.differences(engine)), engine
    assert record.differences() == record.differences("recorded") == []
    after = w.numpy().copy()
    step(f32(1, 1, 1))
    assert len(list(tmp_path.iterdir())) == 1  # recording has ended
    assert w.numpy().tolist() != after.tolist()  # and the function has not


def test_the_last_steps_are_kept_and_each_that_raised(tmp_path: Path) -> None:
    f = wf.compile(lambda x, k: wf.take(x, k))
    with wf.record(tmp_path, steps=2) as files:
        for k in range(5):
            f(f32(1, 2, 3), k if k < 3 else 0)
        for _ in range(2):
            with pytest.raises(wf.errors.InvalidArgumentError):
                f(f32(1, 2, 3), 9)
            assert files[-1].exists()  # it is written at once
    assert [f.name.endswith("-failed.safetensors") for f in files] == [True, True, False, False]
    record = wf.replay(files[0])
    assert isinstance(record.error, wf.errors.InvalidArgumentError)
    assert record.error.locations[0].file == __file__
    for engine in ENGINES:
        assert record.differences(engine) == []
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"9.* out of bounds"):
            record.run(engine)
    assert [wf.replay(tmp_path, k).error is None for k in range(4)] == [False, False, True, True]
    with wf.record(tmp_path / "none", steps=0) as files:
        f(f32(1, 2, 3), 1)
    assert files == []


def test_no_more_than_twenty_failures_fill_the_disk(tmp_path: Path) -> None:
    f = wf.compile(lambda x, k: wf.take(x, k))
    with wf.record(tmp_path, steps=0) as files:
        for _ in range(25):
            with pytest.raises(wf.errors.InvalidArgumentError):
                f(f32(1), 9)
    assert len(files) == 20


@pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=pytest.mark.slow) if e == "numba" else e for e in ENGINES]
)
def test_python_functions_are_not_called_again(engine: Any, tmp_path: Path) -> None:
    calls: list[float] = []

    def look(x: Any) -> Any:
        calls.append(float(x))
        return np.float32(len(calls))

    @wf.compile
    def f(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            seen = wf.py_function(look, [row], wf.float32, shapes=[])
            wf.debug_callback(look, total)
            return total + seen * row, seen

        return wf.scan(body, 0.0, x)

    with wf.record(tmp_path) as files:
        total, seen = f(f32(1, 2, 3))
    assert seen.numpy().tolist() == [1, 3, 5]
    count, record = len(calls), only(files)
    again = record.run(engine)
    assert [np.asarray(a).tolist() for a in again] == [total.numpy().tolist(), [1, 3, 5]]
    assert len(calls) == count
    assert [v.value.numpy().tolist() for v in record.values("py_function")] == [1, 3, 5]


def test_what_a_python_function_raised_is_raised_again(tmp_path: Path) -> None:
    def fail(x: Any) -> Any:
        raise ValueError("no such row")

    f = wf.compile(lambda x: wf.py_function(fail, [x], wf.float32, shapes=[2]) + 1)
    with wf.record(tmp_path) as files, pytest.raises(wf.errors.InvalidArgumentError):
        f(f32(1, 2))
    for engine in ENGINES:
        with pytest.raises(wf.errors.InvalidArgumentError, match="no such row"):
            only(files).run(engine)


def test_donated_arguments_are_those_before_the_call(tmp_path: Path) -> None:
    f = wf.compile(lambda x: x * 2 + 1, donate=["x"])
    with wf.record(tmp_path) as files:
        assert f(wf.asarray(f32(1, 2))).numpy().tolist() == [3, 5]
    assert load_record(files[0]).inputs[0].tolist() == [1, 2]
    assert only(files).differences() == []


def test_on_an_emulated_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    f = wf.compile(lambda x: wf.exp(x) * 2, device="gpu:0")
    with wf.record(tmp_path) as files:
        y = f(f32(1, 2)).numpy()
    record = only(files)
    assert record.run()[0].tobytes() == y.tobytes()  # type: ignore[attr-defined]
    assert record.differences() == []
    assert all(d.close for d in record.differences("interpreter", "gpu"))


def test_open_sizes_and_other_passes(tmp_path: Path) -> None:
    for k, options in enumerate(
        ({"input_signature": [wf.TensorType(wf.float32, (None,))]}, {"passes": "reproducible"},
         {"passes": "cse,fuse"}, {"engine": "numba"})
    ):  # fmt: skip
        f: Any = wf.compile(lambda x: wf.sum(wf.exp(x)), **options)  # type: ignore[call-overload]
        with wf.record(tmp_path / str(k)) as files:
            f(np.linspace(0, 1, 100, dtype=np.float32))
        assert only(files).differences() == [], options


def test_every_thread_is_recorded(tmp_path: Path) -> None:
    f = wf.compile(lambda x: x + 1)
    f(f32(1))
    with wf.record(tmp_path, steps=100) as files:
        threads = [threading.Thread(target=lambda: f(f32(1))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({file.name for file in files}) == 4


def test_blocks_nest(tmp_path: Path) -> None:
    f = wf.compile(lambda x: x + 1)
    with wf.record(tmp_path / "outer") as outer:
        f(f32(1))
        with wf.record(tmp_path / "inner") as inner:
            f(f32(2))
        f(f32(3))
    assert (len(outer), len(inner)) == (2, 1)
    assert load_record(inner[0]).inputs[0].tolist() == [2]


# ----------------------------------------------------------------------------------------- sessions
def queue_step() -> tuple[Any, Any, Any, Any]:
    """A loop on the executor that takes from a queue, in two ops on one line, and a branch whose
    two sides do."""
    with wf.Graph().as_default() as graph:
        q = wf.FIFOQueue(100, wf.float32, shapes=[[2]])
        x = wf.placeholder(wf.float32, [2], name="x")
        p = wf.placeholder(wf.bool, [], name="p")
        put = q.enqueue(x)

        def body(i: Any, c: Any) -> Any:
            return i + 1, c * 0.5 + q.dequeue() - 2 * q.dequeue()

        _, c = wf.while_loop(lambda i, c: i < 3, body, [0, q.dequeue()])
        y = wf.cond(p, lambda: q.dequeue() + c, lambda: q.dequeue() - c)
    return graph, put, y, (x, p)


def test_what_came_out_of_a_queue(tmp_path: Path) -> None:
    graph, put, y, (x, p) = queue_step()
    with wf.Session(graph=graph) as session:
        for k in range(26):
            session.run(put, {x: [k, k * k]})
        with wf.record(tmp_path) as files:
            results = [session.run(y, {p: p_}) for p_ in (True, False)]
            session.run(y, {p: True})
            with pytest.raises(wf.errors.DeadlineExceededError):
                session.run(y, {p: True}, options=wf.RunOptions(timeout=0.3))
    for file, result in zip(files[1:3], results, strict=True):
        record = wf.replay(file)
        for engine in ("recorded", "interpreter", "dataflow"):
            assert record.differences(engine) == []
            assert np.asarray(record.run(engine)[0]).tolist() == result.tolist()
    failed = wf.replay(files[0])
    assert isinstance(failed.error, wf.errors.DeadlineExceededError)
    for engine in ("recorded", "interpreter"):
        with pytest.raises(wf.errors.DeadlineExceededError, match="'dequeue' had given nothing"):
            failed.run(engine)
    assert failed.values("dequeue")  # as far as it went


def test_results_go_to_the_ops_that_gave_them(tmp_path: Path) -> None:
    """One function in both branches: its ops share a line, and one of them did not run."""
    with wf.Graph().as_default() as graph:
        q = wf.FIFOQueue(9, wf.float32, shapes=[[]])
        x, p = wf.placeholder(wf.float32, [], "x"), wf.placeholder(wf.bool, [], "p")
        put = q.enqueue(x)

        def take() -> Any:
            return q.dequeue()

        def look() -> Any:
            return wf.py_function(lambda t: t * 10, [x], wf.float32, shapes=[])

        y = wf.cond(p, take, take) + wf.cond(p, look, look)
        cases = wf.tf1.case([(x > 5, take), (x > 3, take)], default=take)
    with wf.Session(graph=graph) as session:
        for k in range(8):
            session.run(put, {x: k})
        with wf.record(tmp_path, steps=9) as files:
            for side in (True, False):
                session.run(y, {p: side, x: 2})
            for k in (6, 4, 0):
                session.run(cases, {x: k})
    for file in files:
        for engine in ("recorded", "interpreter"):
            assert wf.replay(file).differences(engine) == [], engine


def test_what_was_in_files_and_tables(tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_bytes(b"some words")
    with wf.Graph().as_default() as graph:
        table = wf.tf1.MutableHashTable(wf.string, wf.int64, -1)
        put = table.insert(["a", "b"], [1, 2])
        found = table.lookup(["b", "c"])
        read = wf.tf1.read_file(str(text))
    with wf.Session(graph=graph) as session:
        session.run(put)
        with wf.record(tmp_path / "r") as files:
            session.run([found, read])
    text.unlink()
    for engine in ("recorded", "interpreter"):
        got = only(files).run(engine)
        assert np.asarray(got[0]).tolist() == [2, -1]
        assert np.asarray(got[1]).item() == b"some words"


def test_what_is_not_initialised_is_not_in_the_record(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph:
        v = wf.Variable(f32(1, 2), name="v")
        y = v + 1
    with (
        wf.Session(graph=graph) as session,
        wf.record(tmp_path) as files,
        pytest.raises(wf.errors.FailedPreconditionError),
    ):
        session.run(y)
    for engine in ("recorded", "interpreter"):
        assert only(files).differences(engine) == []


def test_several_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")
    with wf.Graph().as_default() as graph:
        with wf.device("/cpu:0"):
            q = wf.FIFOQueue(9, wf.float32, shapes=[[3]])
            put = q.enqueue(f32(1, 2, 3))
            first, second = q.dequeue(), q.dequeue()
        with wf.device("/gpu:0"):
            a = wf.exp(first)
        with wf.device("/gpu:1"):
            b = wf.log(a + second)
    with wf.Session(graph=graph) as session:
        session.run(put)
        session.run(put)
        with wf.record(tmp_path) as files:
            b_ = session.run(b)
    record = only(files)
    assert "gpu:1" in str(record.graph)
    assert np.asarray(record.run()[0]).tobytes() == b_.tobytes()
    assert record.differences() == []


# ----------------------------------------------------------------------------------------- clusters
def cluster_step() -> tuple[Any, Any, Any, Any]:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [2], name="x")
        k = wf.placeholder(wf.int64, [], name="k")
        with wf.device("/job:ps/task:0"):
            w = wf.Variable(np.eye(2, dtype=np.float32) * 2, name="w")
        puts, parts = [], []
        for task in range(2):
            with wf.device(f"/job:worker/task:{task}"):
                q = wf.FIFOQueue(9, wf.float32, shapes=[[2]], name=f"q{task}")
                puts.append(q.enqueue(x + float(task)))
                rows = wf.stack([q.dequeue(), q.dequeue()])
                parts.append(wf.take(wf.sqrt(rows @ w), k, axis=0))
        with wf.device("/job:ps/task:0"):
            update = w.assign_add(wf.ones((2, 2), dtype=wf.float32) * wf.sum(parts[0] + parts[1]))
        init = wf.global_variables_initializer()
    return graph, (init, puts), (parts, update), (x, k)


def test_a_failing_cluster_step_is_taken_home(tmp_path: Path) -> None:
    graph, (init, puts), fetches, (x, k) = cluster_step()
    with (
        local_cluster({"ps": 1, "worker": 2}) as servers,
        wf.Session(servers[1].target, graph=graph) as session,
    ):
        session.run(init)
        for n in range(6):
            session.run(puts, {x: [n, 2 * n]})
        with wf.record(tmp_path) as files:
            first = session.run(fetches, {k: 1})
            with pytest.raises(wf.errors.InvalidArgumentError):
                session.run(fetches, {k: 7})
    failed, fine = (wf.replay(file) for file in files)
    assert [op.device for op in failed.graph.walk() if op.name == "dequeue"] == [
        f"/job:worker/task:{task}/cpu:0" for task in (0, 0, 1, 1)
    ]
    assert fine.differences() == []
    got = fine.run()
    for result, wanted in zip(got, (*first[0], first[1]), strict=True):
        assert np.asarray(result).tobytes() == wanted.tobytes()
    for engine in ("recorded", "interpreter", "native"):
        assert failed.differences(engine) == []
        assert all(d.close for d in fine.differences(engine))
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"7 .*out of bounds"):
            failed.run(engine)
    rows = [v.value.numpy().tolist() for v in failed.values("dequeue")]
    # then the part fails, that of the one task or of the other
    assert sorted(rows) in ([[2, 4], [3, 6]], [[3, 5], [4, 7]])
    assert load_record(files[0]).variables["w"].tolist() == first[1].tolist()


def test_of_a_task_that_died_nothing_is_known(tmp_path: Path) -> None:
    """The record says so when it is run."""
    graph, (init, puts), fetches, (x, k) = cluster_step()
    with (
        local_cluster({"ps": 1, "worker": 2}) as servers,
        wf.Session(servers[1].target, graph=graph) as session,
    ):
        session.run(init)
        for _ in range(2):
            session.run(puts[1:], {x: [1, 2]})  # nothing for the first worker, which waits
        timer = threading.Timer(0.5, servers[2].stop)
        timer.start()
        with wf.record(tmp_path) as files, pytest.raises(wf.errors.UnavailableError):
            session.run(fetches, {k: 0})
        timer.join()
    record = only(files)
    assert isinstance(record.error, wf.errors.UnavailableError)
    assert "nothing is known of /job:worker/task:1" in repr(record)
    for engine in ("recorded", "interpreter"):
        with pytest.raises(wf.errors.UnavailableError) as caught:
            record.run(engine)
        assert re.fullmatch(
            r"the log of /job:worker/task:1 is missing: \d+ of \d+ ops cannot be replayed, for "
            r"nobody knows what these held or gave: 'dequeue' \(.*, on /job:worker/task:0/cpu:0\), "
            r"'dequeue' \(.*, on /job:worker/task:0/cpu:0\), "
            r"'dequeue' \(.*, on /job:worker/task:1/cpu:0\), 1 more",
            caught.value.what,
        )
    with pytest.raises(
        wf.errors.UnsupportedError, match="the log of /job:worker/task:1 is missing"
    ):
        record.differences()
    assert record.differences("interpreter", "native") == []
    (w,) = record.values("read")  # of a task that is alive
    assert w.value.numpy().tolist() == [[2, 0], [0, 2]]


def test_the_variables_of_a_task_that_died_are_not_made_up(tmp_path: Path) -> None:
    """What the others have done is known."""
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [2], name="x")
        with wf.device("/job:ps/task:0"):
            w = wf.Variable(f32(2, 3), name="w")
        with wf.device("/job:worker/task:0"):
            q = wf.FIFOQueue(9, wf.float32, shapes=[[2]], name="q")
            put, row = q.enqueue(x), wf.exp(q.dequeue())
            never = wf.FIFOQueue(9, wf.float32, shapes=[[2]], name="never").dequeue()
            y = row * w + never
        init = wf.global_variables_initializer()
    with (
        local_cluster({"ps": 1, "worker": 1}) as servers,
        wf.Session(servers[1].target, graph=graph) as session,
    ):
        session.run(init)
        session.run(put, {x: [1, 2]})
        timer = threading.Timer(0.5, servers[0].stop)
        timer.start()
        with wf.record(tmp_path) as files, pytest.raises(wf.errors.UnavailableError):
            session.run(y)
        timer.join()
    assert load_record(files[0]).variables == {}
    record = only(files)
    with pytest.raises(
        wf.errors.UnavailableError, match=r"the log of /job:ps/task:0 is missing: .*variable 'w' \("
    ):
        record.run("interpreter")
    (value,) = record.values("exp")
    np.testing.assert_allclose(value.value.numpy(), np.exp(f32(1, 2)), rtol=1e-6)


# -------------------------------------------------------------------------------- whole processes
PROGRAM = """
import os, sys
import numpy as np
import weft as wf

@wf.compile
def f(x, n):
    def look(v):
        if float(v) > 2:
            os._exit(7)
        return v
    return wf.py_function(look, [wf.sum(x) * n], wf.float32, shapes=[])

for n in range(1, 5):
    f(np.array([0.25, 0.5], np.float32), np.float32(n))
"""


def run_program(folder: Path, **environment: str) -> int:
    given = {**os.environ, "WEFT_RECORD": str(folder), **environment}
    program = folder.parent / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    return subprocess.run([sys.executable, str(program)], env=given, check=False).returncode


@pytest.mark.slow
def test_a_process_that_dies_leaves_the_step(tmp_path: Path) -> None:
    assert run_program(tmp_path / "r", WEFT_RECORD_SYNC="1") == 7
    (file,) = (tmp_path / "r").iterdir()
    record = wf.replay(tmp_path / "r")
    assert "-running" in file.name
    assert "had not ended" in repr(record)
    assert load_record(file).inputs[1] == 3
    with pytest.raises(wf.errors.DeadlineExceededError, match="'py_function' had given nothing"):
        record.run()
    with pytest.raises(wf.errors.UnsupportedError, match="had not ended"):
        record.differences()
    assert run_program(tmp_path / "no") == 7
    assert not (tmp_path / "no").exists()  # nothing was written before


def test_what_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_RECORD", str(tmp_path))
    monkeypatch.setenv("WEFT_RECORD_STEPS", "0")
    f = wf.compile(lambda x, k: wf.take(x, k))
    f(f32(1, 2), 1)
    with pytest.raises(wf.errors.InvalidArgumentError):
        f(f32(1, 2), 5)
    with wf.Graph().as_default(), wf.Session() as session:
        k = wf.placeholder(wf.int64, [])
        with pytest.raises(wf.errors.InvalidArgumentError):
            session.run(wf.take(f32(1, 2), k), {k: 6})
    names = sorted(file.name for file in tmp_path.iterdir())
    assert [name.split("-")[0] for name in names] == ["graph", "lambda"]
    monkeypatch.setenv("WEFT_RECORD_STEPS", "many")
    with pytest.raises(wf.errors.InvalidArgumentError, match="WEFT_RECORD_STEPS='many'"):
        wf.compile(lambda x: x + 1)(f32(1))
    monkeypatch.setenv("WEFT_RECORD_STEPS", "")
    monkeypatch.setenv("WEFT_RECORD_SYNC", "yes")
    with pytest.raises(wf.errors.InvalidArgumentError, match="WEFT_RECORD_SYNC='yes'"):
        wf.compile(lambda x: x + 1)(f32(1))


def test_what_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    """The error of the step, or of the block, is the one that is seen, and recording ends."""
    (tmp_path / "file").write_text("")
    f = wf.compile(lambda x, k: wf.take(x, k))
    with (
        pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"),
        wf.record(tmp_path / "file"),
    ):
        f(f32(1), 5)

    def fail() -> None:
        f(f32(1), 0)
        raise KeyError("mine")

    with pytest.raises(KeyError), wf.record(tmp_path / "file"):
        fail()
    with pytest.raises(wf.errors.FailedPreconditionError), wf.record(tmp_path / "file"):
        f(f32(1), 0)
    with wf.record(tmp_path / "there") as files:
        f(f32(1), 0)
    assert len(files) == 1
    f(f32(1), 0)
    assert len(list((tmp_path / "there").iterdir())) == 1


def test_a_step_runs_though_nothing_can_be_written_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    got = []
    with (
        pytest.raises(wf.errors.FailedPreconditionError),  # of the block's end
        wf.record(tmp_path / "file", sync=True),
        caplog.at_level(logging.WARNING, logger="weft.run"),
    ):
        got.append(wf.compile(wf.exp)(f32(0)).numpy().tolist())
    assert got == [[1]]
    assert "is not recorded" in caplog.text


def test_functions_are_made_while_recording_begins_and_ends(tmp_path: Path) -> None:
    over = threading.Event()
    wrong: list[BaseException] = []

    def make() -> None:
        try:
            while not over.is_set():
                wf.compile(lambda x: x + 1)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with wf.record(tmp_path, steps=0):
            pass
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_input_that_has_ended_is_no_failure(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph:
        q = wf.FIFOQueue(9, wf.float32, shapes=[[]])
        y, close = q.dequeue(), q.close()
    with wf.Session(graph=graph) as session, wf.record(tmp_path) as files:
        session.run(close)
        with pytest.raises(wf.errors.OutOfRangeError):
            session.run(y)
        assert files == []
    assert isinstance(wf.replay(files[-1]).error, wf.errors.OutOfRangeError)
    assert wf.replay(files[-1]).differences("interpreter") == []


CHILD = """
import multiprocessing, sys
import numpy as np
import weft as wf

f = wf.compile(lambda x: x + 1)

def work():
    f(np.ones(2, np.float32))

if __name__ == "__main__":
    f(np.ones(3, np.float32))
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    sys.exit(child.exitcode)
"""


@pytest.mark.slow
def test_children_of_multiprocessing_write_their_own(tmp_path: Path) -> None:
    program = tmp_path / "child.py"
    program.write_text(CHILD, encoding="utf-8")
    given = {**os.environ, "WEFT_RECORD": str(tmp_path / "r")}
    assert subprocess.run([sys.executable, str(program)], env=given, check=False).returncode == 0
    shapes = sorted(load_record(f).inputs[0].shape for f in (tmp_path / "r").iterdir())
    assert shapes == [(2,), (3,)]


# -------------------------------------------------------------------------------------------- files
DTYPES = [wf.float16, wf.bfloat16, wf.float32, wf.float64, wf.int8, wf.uint64, wf.bool,
          wf.complex64, wf.complex128]  # fmt: skip
GRAPH = "graph @g(%x: f32[2]) -> (f32[2]) stage=traced {\n  return %x\n}\n"


@st.composite
def arrays(draw: Any) -> Any:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    dtype = draw(st.sampled_from(DTYPES))
    if draw(st.integers(0, 5)) == 0:
        made = np.empty(shape, object)
        for at in np.ndindex(*shape):
            made[at] = draw(st.binary(max_size=4))
        return made
    bits = draw(hnp.arrays(np.uint8, (*shape, dtype.numpy.itemsize)))
    if dtype is wf.bool:
        bits = bits & 1
    return np.ascontiguousarray(bits).view(dtype.numpy).reshape(shape)


@given(arrays(), arrays(), st.booleans())
def test_a_file_keeps_every_bit(tmp_path_factory: Any, x: Any, y: Any, failed: bool) -> None:
    path = tmp_path_factory.mktemp("r") / "one.safetensors"
    error = wf.errors.OutOfRangeError("queue is closed", hint="open it")
    host = (HostGroup((0,), (HostRow((1, 2), [y, None]), HostRow((1, 3), error))),)
    outcome = Outcome(error=error) if failed else Outcome((None, x), {"v": y})
    way = Way("native", "llvm", "native", gpu=None, threads=2)
    made = StepRecord(parse_graph(GRAPH), way, (x,), {"v": y}, host, outcome, 7, 1.5, {"a": "b"})
    save_record(made, path)
    again = load_record(path)
    assert again.graph == made.graph
    assert (again.way, again.number, again.made, again.versions) == (way, 7, 1.5, {"a": "b"})
    assert same_bits(again.inputs[0], x)
    assert same_bits(again.variables["v"], y)
    (group,) = again.host
    assert (group.ops, group.rows[0].iterations) == ((0,), (1, 2))
    assert same_bits(group.rows[0].made[0], y)  # type: ignore[index]
    assert group.rows[0].made[1] is None  # type: ignore[index]
    raised = group.rows[1].made
    assert isinstance(raised, wf.errors.OutOfRangeError)
    assert (raised.what, raised.hint) == ("queue is closed", "open it")
    assert again.outcome is not None
    if failed:
        assert isinstance(again.outcome.error, wf.errors.OutOfRangeError)
    else:
        assert again.outcome.results[0] is None
        assert same_bits(again.outcome.results[1], x)
        assert same_bits(again.outcome.written["v"], y)


@given(arrays(), arrays())
def test_a_log_goes_between_processes(x: Any, y: Any) -> None:
    text = """graph @g() -> (f32[]) stage=traced {
  %0 = queue() {name="q", kind="fifo", capacity=9, parts=["f32[]"]} : queue<f32[]>
  %1 = dequeue(%0) : f32[] loc("a.py":1:2)
  return %1
}
"""
    ((_, key),) = host_keys(parse_graph(text)).items()
    log = RunLog("/job:worker/task:1/cpu:0")
    log.note(key, (3,), [x, None])
    log.note(key, (4,), wf.errors.CancelledError("over"))
    log.variables, log.known = {"v": y}, {"v", "w"}
    again = RunLog.unpacked(log.packed())
    assert (again.device, again.known) == (log.device, {"v", "w"})
    assert same_bits(again.variables["v"], y)
    first, second = again.rows[key]
    assert (first.iterations, second.iterations) == ((3,), (4,))
    assert same_bits(first.made[0], x)  # type: ignore[index]
    assert isinstance(second.made, wf.errors.CancelledError)


def test_what_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(wf.errors.NotFoundError, match="there are no records in"):
        wf.replay(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(wf.errors.DataLossError):
        wf.replay(tmp_path)
    f = wf.compile(lambda x: x + 1)
    with wf.record(tmp_path / "r") as files:
        f(f32(1, 2))
    data = bytearray(files[0].read_bytes())
    data[-3] ^= 1
    files[0].write_bytes(data)
    with pytest.raises(wf.errors.DataLossError):
        wf.replay(files[0])
    with pytest.raises(wf.errors.InvalidArgumentError, match="has 1 records, there is no number 3"):
        wf.replay(tmp_path / "r", 3)
    write_file(tmp_path / "c.safetensors", {"a": f32(1)}, {})
    with pytest.raises(wf.errors.InvalidArgumentError, match="a checkpoint, not the record"):
        wf.replay(tmp_path / "c.safetensors")


def test_arguments_are_checked(tmp_path: Path) -> None:
    for wrong in (-1, 1.5, True, "many"):
        with (
            pytest.raises(wf.errors.InvalidArgumentError, match="is no number of steps"),
            wf.record(tmp_path, steps=wrong),  # type: ignore[arg-type]
        ):
            pass
    f = wf.compile(lambda x: x + 1, passes=[lambda g: g, "standard"])
    with wf.record(tmp_path) as files:
        f(f32(1, 2))
    record = only(files)
    with pytest.raises(wf.errors.InvalidArgumentError, match="'tpu' is no engine of a replay"):
        record.run("tpu")
    with pytest.raises(wf.errors.InvalidArgumentError, match="one engine or two, got 3"):
        record.differences("native", "numba", "interpreter")
    with pytest.raises(wf.errors.UnsupportedError, match="passes of its own"):
        record.run()
    assert record.differences("native") == []
    with pytest.raises(wf.errors.NotFoundError, match="no value of 'lambda' is at where='mul'"):
        record.values("mul")


def test_calls_in_loops_of_the_executor_have_no_order_in_a_native_step() -> None:
    """Which is said, and not guessed."""
    text = """graph @g(%x: f32[]) -> (f32[], f32[]) stage=traced {
  %0 = py_function(%x) {function="f", parts=["f32[]"], listed=false, sizes=[]} : f32[]
  %1 = py_function(%x) after(%0) {function="f", parts=["f32[]"], listed=false, sizes=[]} : f32[]
  return %0, %1
}
"""
    graph = parse_graph(text)
    rows = [HostRow((k,), [np.float32(k)]) for k in range(2)]
    replay = HostReplay(graph, [HostGroup((0,), tuple(rows)), HostGroup((1,), tuple(rows))])
    with pytest.raises(wf.errors.UnsupportedError, match="does not say in which order"):
        replay.given(HostKey(host_keys(graph)[graph.ops[0]].what, -1), ())
