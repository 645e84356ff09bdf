"""Save and restore as ops of a graph: a checkpoint is a step."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf


def test_a_checkpoint_is_a_step(tmp_path: Path) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        w = wf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3), name="w")
        step = wf.Variable(0, name="step", trainable=False)
        train = wf.group(w.assign_add(np.ones((2, 3), np.float32)), step.assign_add(1))
        ops = wf.train.Saver([w, step], max_to_keep=2).build()
        session.run(wf.global_variables_initializer())
        for i in range(4):
            session.run(train)
            session.run(ops.save, {ops.filename: f"{tmp_path}/model-{i + 1}"})
        before = session.run([w, step])
        session.run(wf.global_variables_initializer())
        latest = wf.train.latest_checkpoint(tmp_path)
        assert latest == f"{tmp_path}/model-4.safetensors"
        session.run(ops.restore, {ops.filename: latest})
        np.testing.assert_array_equal(session.run(w), before[0])
        assert session.run(step) == before[1] == 4
        assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == [
            "model-3.safetensors", "model-4.safetensors",
        ]  # fmt: skip
        # what a Saver writes between steps and what a step writes are the same files
        wf.train.Saver([w, step]).restore(session, f"{tmp_path}/model-3")
        assert session.run(step) == 3
        report = wf.train.Saver([w, step]).restore_or_initialize(session, tmp_path)
        assert report is not None
        assert report.step == 4
        assert report.verified


def test_the_name_may_be_computed(tmp_path: Path) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        step = wf.Variable(0, name="step")
        up = step.assign_add(1)
        with wf.control_dependencies([up]):
            name = wf.string_join([f"{tmp_path}/model-", wf.as_string(step.read())])
        ops = wf.train.Saver([step]).build(name)
        session.run(wf.global_variables_initializer())
        session.run(ops.save)
        session.run(ops.save)
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == [
        "model-1.safetensors", "model-2.safetensors",
    ]  # fmt: skip


def test_raw_ops_hold_every_dtype(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "f": np.float32([1, np.nan]), "i": np.int64(3), "b": np.array([[True], [False]]),
        "c": np.complex128([1j]), "empty": np.zeros((0, 3), np.uint8),
        "s": np.array([b"a", b"", b"\xff\0"], object),
    }  # fmt: skip
    wf.train.save_v2(tmp_path / "eager", list(values), list(values.values()))
    kinds = [wf.float32, wf.int64, wf.bool, wf.complex128, wf.uint8, wf.string]
    shapes = [np.shape(v) for v in values.values()]
    found = wf.train.restore_v2(tmp_path / "eager", list(values), kinds, shapes)
    for value, t in zip(values.values(), found, strict=True):
        np.testing.assert_array_equal(t.numpy(), value)
    assert wf.train.latest_checkpoint(tmp_path) is None
    with wf.Graph().as_default(), wf.Session() as session:
        fed = [wf.placeholder(k, s, n) for k, s, n in zip(kinds, shapes, values, strict=True)]
        save = wf.train.save_v2(str(tmp_path / "graph"), list(values), fed, keep=0)
        back = wf.train.restore_v2(str(tmp_path / "graph"), list(values), kinds, shapes)
        session.run(save, dict(zip(fed, values.values(), strict=True)))
        for value, x in zip(values.values(), session.run(back), strict=True):
            np.testing.assert_array_equal(x, value)
    assert wf.train.latest_checkpoint(tmp_path) == str(tmp_path / "graph.safetensors")


def test_what_is_saved_is_of_one_point_in_time(tmp_path: Path) -> None:
    """Native steps of other threads are wholly in a checkpoint or not at all."""
    with wf.Graph().as_default(), wf.Session() as session:
        vs = [wf.Variable(np.zeros(1000, np.float32), name=f"v{i}") for i in range(4)]
        up = wf.group([v.assign_add(np.ones(1000, np.float32)) for v in vs])
        ops = wf.train.Saver(vs).build()
        session.run(wf.global_variables_initializer())
        stop = threading.Event()

        def train() -> None:
            while not stop.is_set():
                session.run(up)

        threads = [threading.Thread(target=train) for _ in range(3)]
        for t in threads:
            t.start()
        for i in range(10):
            session.run(ops.save, {ops.filename: f"{tmp_path}/m-{i}"})
        stop.set()
        for t in threads:
            t.join()
    for i in range(5, 10):
        path = f"{tmp_path}/m-{i}"
        found = {float(x) for k in range(4) for x in wf.train.load_variable(path, f"v{k}")}
        assert len(found) == 1, found


def test_reads_come_before_the_writes_of_the_step(tmp_path: Path) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        v = wf.Variable(1.0, name="v")
        ops, double = wf.train.Saver([v]).build(f"{tmp_path}/m"), v.assign(v * 2)
        session.run(wf.global_variables_initializer())
        session.run([double, ops.save])
        assert wf.train.load_variable(f"{tmp_path}/m", "v") == 1
        assert session.run(v) == 2
        with wf.control_dependencies([double]):
            after = wf.train.save_v2(f"{tmp_path}/n", ["v"], [v.read()])
        session.run(after)
        assert wf.train.load_variable(f"{tmp_path}/n", "v") == 4


def test_errors_change_nothing(tmp_path: Path) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        v, w = wf.Variable(1.0, name="v"), wf.Variable([1.0, 2.0], name="w")
        ops = wf.train.Saver([v, w]).build()
        with pytest.raises(wf.errors.FailedPreconditionError, match="not initialised"):
            session.run(ops.save, {ops.filename: f"{tmp_path}/m"})
        assert not list(tmp_path.iterdir())
        session.run(wf.global_variables_initializer())
        session.run(ops.save, {ops.filename: f"{tmp_path}/m"})
        other = wf.train.save_v2(f"{tmp_path}/other", ["v", "w"], [np.float32(9), np.zeros(3)])
        session.run(other)
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"'w': f64\[3\], not f32\[2\]"):
            session.run(ops.restore, {ops.filename: f"{tmp_path}/other"})
        session.run(wf.train.save_v2(f"{tmp_path}/less", ["v"], [np.float32(9)]))
        with pytest.raises(wf.errors.NotFoundError, match="has no 'w'"):
            session.run(ops.restore, {ops.filename: f"{tmp_path}/less"})
        with pytest.raises(wf.errors.NotFoundError, match="no checkpoint file"):
            session.run(ops.restore, {ops.filename: f"{tmp_path}/nothing"})
        with pytest.raises(wf.errors.InvalidArgumentError, match="a byte 0"):
            session.run(ops.save, {ops.filename: f"{tmp_path}/a\0b"})
        data = bytearray((tmp_path / "m.safetensors").read_bytes())
        data[-1] ^= 1
        (tmp_path / "bad.safetensors").write_bytes(data)
        with pytest.raises(wf.errors.DataLossError, match="checksum"):
            session.run(ops.restore, {ops.filename: f"{tmp_path}/bad"})
        with pytest.raises(wf.errors.InvalidArgumentError, match="empty"):
            session.run(ops.save, {ops.filename: ""})
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(wf.errors.FailedPreconditionError):
            session.run(ops.save, {ops.filename: f"{tmp_path}/file/m"})
        assert session.run(v) == 1
        assert session.run(w).tolist() == [1, 2]


def test_bad_arguments(tmp_path: Path) -> None:
    v = wf.Variable(1.0, name="v")
    with pytest.raises(wf.errors.FailedPreconditionError, match="adds ops to a graph"):
        wf.train.Saver([v]).build()
    with pytest.raises(wf.errors.TypeRuleError, match="a name for each"):
        wf.train.save_v2(tmp_path / "m", ["a"], [1.0, 2.0])
    with pytest.raises(wf.errors.InvalidArgumentError, match="different"):
        wf.train.save_v2(tmp_path / "m", ["a", "a"], [1.0, 2.0])
    with pytest.raises(wf.errors.InvalidArgumentError, match="as many of each"):
        wf.train.restore_v2(tmp_path / "m", ["a"], [wf.float32], [])
    wf.compile(lambda x: (wf.train.save_v2(str(tmp_path / "m"), ["a"], [x]), x)[1])(np.float32(1))
    assert wf.train.restore_v2(tmp_path / "m", ["a"], [wf.float32], [[]])[0].numpy() == 1.0
    with wf.Graph().as_default():
        queue = wf.FIFOQueue(3, wf.float32, shapes=[[]])
        with pytest.raises(wf.errors.UnsupportedError, match="variables only"):
            wf.train.Saver({"v": v, "q": queue}).build()
