"""Files named by URLs: read and written by fsspec, here its file system in memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

InvalidArgumentError = wf.errors.InvalidArgumentError


@pytest.fixture
def folder() -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec")
    name = f"memory://{uuid.uuid4().hex}"
    yield name
    system = fsspec.filesystem("memory")
    if system.exists(name):
        system.rm(name, recursive=True)


def put(url: str, data: bytes) -> str:
    wf.tf1.write_file(url, data)
    return url


def test_whole_files_eagerly_and_in_graphs(folder: str) -> None:
    names = [put(f"{folder}/{n}.txt", n.encode()) for n in ("b", "a")]
    put(f"{folder}/c.bin", b"")
    assert wf.tf1.read_file(names[0]).item() == b"b"
    found = wf.tf1.matching_files(f"{folder}/*.txt").tolist()
    assert [wf.tf1.read_file(n).item() for n in found] == [b"a", b"b"]
    assert all(n.startswith(b"memory://") for n in found)
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.string, [])
        write = wf.tf1.write_file(wf.tf1.string_join([folder, "/d"]), x)
        session.run(write, {x: b"\xff"})
        assert session.run(wf.tf1.read_file(f"{folder}/d")) == b"\xff"
        with pytest.raises(wf.errors.NotFoundError, match=r"memory://.*/none"):
            session.run(wf.tf1.read_file(f"{folder}/none"))


def test_files_of_others_are_found(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores keep what they have listed, until they are told to forget it."""
    from fsspec.implementations.memory import MemoryFileSystem

    listed: dict[Any, Any] = {}
    plain = MemoryFileSystem.find

    def find(self: Any, path: str, **options: Any) -> Any:
        if path not in listed:
            listed[path] = plain(self, path, **options)
        return listed[path]

    monkeypatch.setattr(MemoryFileSystem, "find", find)
    monkeypatch.setattr(MemoryFileSystem, "invalidate_cache", lambda *_: listed.clear())
    for wanted in (["a"], ["a", "b"]):
        known = dict(listed)
        put(f"{folder}/{wanted[-1]}", b"")
        listed.update(known)  # another process has written it
        found = wf.tf1.matching_files(f"{folder}/*").tolist()
        assert [os.path.basename(n.decode()) for n in found] == wanted


@pytest.fixture
def keeping() -> Iterator[dict[str, bytes]]:
    """A store that keeps the sizes it has listed until it is told to forget them, as those of S3
    and Google do: a name "keeping://..." is a key of the dict."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

    held: dict[str, bytes] = {}

    class Opened(AbstractBufferedFile):  # type: ignore[misc]  # it reads as far as the size
        def _fetch_range(self, start: int, end: int) -> bytes:
            return held[self.path][start:end]

    class Keeping(AbstractFileSystem):  # type: ignore[misc]
        protocol = "keeping"

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            listed = self.dircache.setdefault("", [
                {"name": n, "size": len(data), "type": "file"} for n, data in held.items()
            ])  # fmt: skip
            found = [i for i in listed if i["name"].startswith(path)]
            if not found:
                raise FileNotFoundError(path)
            return found if detail else [i["name"] for i in found]

        def invalidate_cache(self, path: Any = None) -> None:
            self.dircache.clear()

        def _open(self, path: str, mode: str = "rb", *options: Any, **more: Any) -> Any:
            return Opened(self, path, mode, **more)

    fsspec.register_implementation("keeping", Keeping, clobber=True)
    yield held
    fsspec.core.get_filesystem_class("keeping").clear_instance_cache()


def test_a_file_is_read_as_large_as_it_is(keeping: dict[str, bytes]) -> None:
    """It was read as large as it had been when the store listed it."""
    url = "keeping://a.txt"
    keeping["a.txt"] = b"one\n"
    assert wf.tf1.matching_files("keeping://*.txt").tolist() == [url.encode()]
    for data in (b"one\ntwo\n", b"1\n", b""):
        keeping["a.txt"] = data  # another process has written it
        assert wf.tf1.read_file(url).item() == data
        assert list(wf.data.read_lines(url)) == data.split()


def test_readers_at_the_same_time_have_positions_of_their_own(folder: str) -> None:
    wanted = [str(n).encode() * 50 for n in range(20_000)]  # more than any buffer holds
    url = put(f"{folder}/lines", b"\n".join(wanted))
    pairs = zip(wf.data.read_lines(url), wf.data.read_lines(url), wanted, strict=True)
    assert all(one == other == line for one, other, line in pairs)
    w = wf.Variable(np.arange(1 << 20, dtype=np.float32), name="w")
    path = wf.train.Saver([w]).save(None, f"{folder}/m")
    readers = ThreadPoolExecutor(4)
    for found in readers.map(lambda _: wf.train.load_variable(path, "w"), range(20)):
        np.testing.assert_array_equal(found, w.numpy())


def test_each_format(folder: str) -> None:
    with wf.data.TFRecordWriter(f"{folder}/r", "GZIP") as writer:
        for word in (b"one", b"two"):
            writer.write(word)
    names = [f"{folder}/r"]
    records = wf.data.Dataset.from_files(names, lambda p: wf.data.read_tfrecords(p, "GZIP"))
    assert list(records) == [b"one", b"two"]
    with pytest.raises(wf.errors.DataLossError, match='compression_type="GZIP"'):
        list(wf.data.read_tfrecords(names[0]))
    lines = put(f"{folder}/l", b"a\r\nb\n")
    assert list(wf.data.read_lines(lines)) == [b"a", b"b"]
    assert list(wf.data.read_fixed_records(lines, 1, 3)) == [b"b", b"\n"]
    rows = wf.data.read_csv(put(f"{folder}/c", "n,é\n1,x\n".encode()), {"é": wf.string})
    assert [r["é"].item() for r in rows] == [b"x"]
    with pytest.raises(wf.errors.NotFoundError, match="none"):
        wf.data.Dataset.from_files([f"{folder}/none"], wf.data.read_lines)


def test_arrays(folder: str, tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, y=x[0])
    url = put(f"{folder}/x.npy", (tmp_path / "x.npy").read_bytes())
    read = wf.data.read_npy(url)
    np.testing.assert_array_equal(read, x)
    assert not read.flags.writeable
    arrays = wf.data.read_npz(put(f"{folder}/x.npz", (tmp_path / "x.npz").read_bytes()))
    np.testing.assert_array_equal(arrays["y"], x[0])
    with pytest.raises(wf.errors.DataLossError, match=r"no whole \.npy file"):
        wf.data.read_npy(put(f"{folder}/y.npy", (tmp_path / "x.npy").read_bytes()[:-4]))


def test_readers_and_caches(folder: str) -> None:
    url = put(f"{folder}/l", b"a\nb\n")
    with wf.Graph().as_default(), wf.Session() as session:
        names = wf.train.string_input_producer([url], num_epochs=1)
        key, value = wf.TextLineReader().read(names)
        session.run(wf.tf1.local_variables_initializer())
        coordinator = wf.train.Coordinator()
        threads = wf.train.start_queue_runners(session, coordinator)
        assert session.run([key, value]) == [f"{folder}/l:1".encode(), b"a"]
        coordinator.request_stop()
        coordinator.join(threads)
    calls: list[int] = []
    dataset = wf.data.Dataset.range(3).map(lambda n: calls.append(int(n)) or n)
    cached = dataset.cache(f"{folder}/cache")
    next(it := iter(cached))
    it.close()
    assert wf.tf1.matching_files(f"{folder}/ca*").tolist() == []  # half a pass is not kept
    for _ in range(2):
        assert [int(n) for n in cached] == [0, 1, 2]
    assert calls == [0, 0, 1, 2]


# -------------------------------------------------------------------------------------- checkpoints
def test_checkpoints(folder: str) -> None:
    w, words = wf.Variable([1.0, 2.0], name="w"), wf.Variable(["a", "bc"], name="words")
    saver = wf.train.Saver([w, words], max_to_keep=2)
    assert wf.train.latest_checkpoint(folder) is None
    for step in (1, 2, 3):
        path = saver.save(None, f"{folder}/model", step, metric=-step)
        w.assign(w * 2)
    assert path == f"{folder}/model-3.safetensors"
    assert wf.train.latest_checkpoint(folder) == path
    assert wf.train.best_checkpoint(folder) == path
    assert saver.last_checkpoints == [f"{folder}/model-{n}.safetensors" for n in (2, 3)]
    assert [wf.train.checkpoint_exists(f"{folder}/model-{n}") for n in (1, 2)] == [False, True]
    assert wf.train.list_variables(folder) == [("w", [2]), ("words", [2])]
    saver.restore(None, f"{folder}/model-2")
    assert w.numpy().tolist() == [2.0, 4.0]
    other = wf.train.Saver([w, words])
    assert other.restore_or_initialize(None, folder).step == 3
    assert (w.numpy().tolist(), words.numpy().tolist()) == ([4.0, 8.0], [b"a", b"bc"])
    with pytest.raises(wf.errors.NotFoundError, match=r"memory://.*/model-1"):
        saver.restore(None, f"{folder}/model-1")
    with pytest.raises(InvalidArgumentError, match="is a folder"):
        saver.save(None, folder)


def test_damaged_checkpoints(folder: str) -> None:
    w = wf.Variable(np.arange(100.0), name="w")
    saver = wf.train.Saver([w])
    first, second = (saver.save(None, f"{folder}/m", n) for n in (1, 2))
    data = wf.tf1.read_file(second).item()
    put(second, data[:-5])
    with pytest.raises(wf.errors.DataLossError, match=r"memory://.* is damaged"):
        saver.restore(None, second)
    report = saver.restore_or_initialize(None, folder, or_previous=True)
    assert report.path == first
    put(f"{folder}/checkpoint", b"{}")
    with pytest.raises(wf.errors.DataLossError, match="the state file 'memory://"):
        saver.restore_or_initialize(None, folder)


def test_a_store_that_refuses(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    saver = wf.train.Saver([wf.Variable(1.0)])
    path = saver.save(None, f"{folder}/m", 1)

    def refuses(*args: Any, **options: Any) -> None:
        raise RuntimeError("no such bucket")

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuses)
    with pytest.raises(wf.errors.FailedPreconditionError, match=r"cannot write.*no such bucket"):
        saver.save(None, f"{folder}/m", 2)
    monkeypatch.undo()
    assert wf.train.latest_checkpoint(folder) == path


def test_checkpoints_as_ops(folder: str) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        v = wf.Variable(1.0, name="v")
        session.run(wf.global_variables_initializer())
        name, more = wf.placeholder(wf.string, [], "name"), v.assign_add(1)
        ops = wf.train.Saver([v]).build(name)
        session.run(ops.save, {name: f"{folder}/m-1"})
        session.run(more)
        session.run(ops.restore, {name: f"{folder}/m-1"})
        assert session.run(v) == 1
    assert wf.train.latest_checkpoint(folder) == f"{folder}/m-1.safetensors"


@pytest.mark.parametrize("devices", [("", ""), ("/job:ps/task:0", "/job:ps/task:1")])
def test_checkpoints_in_parts(folder: str, devices: tuple[str, str]) -> None:
    """Tasks of this process share its store in memory."""
    store = pytest.importorskip("fsspec").filesystem("memory")
    tasks = wf.train.Server.create_local_cluster({"ps": 2}) if devices[0] else []
    try:
        with wf.Graph().as_default():
            held = []
            for n, name in enumerate(devices):
                with wf.device(name):
                    held.append(wf.Variable([float(n), 2.0], name=f"v{n}"))
            saver = wf.train.ShardedSaver(max_to_keep=2)
            begin, more = wf.global_variables_initializer(), [v.assign_add([1, 1]) for v in held]
            with wf.Session(tasks[0].target if tasks else "") as session:
                session.run(begin)
                for step in (1, 2, 3):
                    path = saver.save(session, f"{folder}/m", step, metric=-step)
                    session.run(more)
                assert path == f"{folder}/m-3"
                assert (
                    wf.train.latest_checkpoint(folder) == wf.train.best_checkpoint(folder) == path
                )
                assert saver.last_checkpoints == [f"{folder}/m-{n}" for n in (2, 3)]
                shards = sorted(store.glob(f"{folder}/m-*.safetensors"))
                assert len(shards) == 2 * len(set(devices))  # those of the first are removed
                assert saver.restore(session, f"{folder}/m-2").step == 2
                assert [session.run(v).tolist() for v in held] == [[1, 3], [2, 3]]
                report = saver.restore_or_initialize(session, folder)
                assert report is not None
                assert report.step == 3
                assert [session.run(v).tolist() for v in held] == [[2, 4], [3, 4]]
                store.pipe_file(shards[-1], store.cat_file(shards[-1])[:-5])
                with pytest.raises(wf.errors.DataLossError, match=r"memory://.* is damaged"):
                    saver.restore_or_initialize(session, folder)
                report = saver.restore_or_initialize(session, folder, or_previous=True)
                assert report is not None
                assert report.step == 2
                with pytest.raises(wf.errors.NotFoundError, match=r"memory://.*/m-9"):
                    saver.restore(session, f"{folder}/m-9")
        assert wf.train.load_variable(f"{folder}/m-2", "v1").tolist() == [2, 3]
    finally:
        for task in tasks:
            task.stop()


# -------------------------------------------------------------------------------------- event files
def events_of(folder: str) -> list[int]:
    """How many records each event file of a folder has, oldest first."""
    names = wf.tf1.matching_files(f"{folder}/events.out.tfevents.*").tolist()
    return [len(list(wf.data.read_tfrecords(n.decode()))) for n in names]


def test_event_files(folder: str) -> None:
    before = set(threading.enumerate())
    with wf.summary.FileWriter(f"{folder}/run") as writer:
        writer.scalar("loss", 1.0, 1)
        assert events_of(f"{folder}/run") == []  # it waits
        writer.flush()
        assert events_of(f"{folder}/run") == [2]  # the version, and the value
        writer.scalar("loss", 0.5, 2)
        with pytest.raises(wf.errors.FailedPreconditionError, match="has an open writer"):
            wf.summary.FileWriter(f"{folder}/run/")
    assert events_of(f"{folder}/run") == [3]
    with wf.summary.FileWriter(f"{folder}/run") as writer:
        writer.scalar("loss", 0.25, 3)
    assert events_of(f"{folder}/run") == [3, 2]
    assert set(threading.enumerate()) <= before  # of other tests some may have ended
    with pytest.raises(wf.errors.FailedPreconditionError, match=r"memory://.* is closed"):
        writer.scalar("loss", 0.1, 4)


def test_event_files_are_put_from_time_to_time(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.runtime.files.events._UPLOAD", 0.05)
    with wf.summary.FileWriter(folder) as writer:
        writer.scalar("loss", 1.0, 1)
        end = time.monotonic() + 10
        while events_of(folder) != [2] and time.monotonic() < end:
            time.sleep(0.02)
        assert events_of(folder) == [2]


def test_event_files_that_a_store_refuses(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuses(*args: Any, **options: Any) -> None:
        raise RuntimeError("no such bucket")

    writer = wf.summary.FileWriter(folder)
    writer.scalar("loss", 1.0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "put_file", refuses)
        with pytest.raises(wf.errors.FailedPreconditionError, match="no such bucket"):
            writer.flush()
    writer.close()
    assert events_of(folder) == [2]
    writer = wf.summary.FileWriter(folder)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "put_file", refuses)
        with pytest.raises(wf.errors.FailedPreconditionError, match="the events are in ") as caught:
            writer.close()
    (local,) = re.findall(r"the events are in (\S+), which", str(caught.value))
    assert len(list(wf.data.read_tfrecords(local))) == 1
    shutil.rmtree(os.path.dirname(local))


# ---------------------------------------------------------------------------- monitored sessions
def train(folder: str, steps: int, **given: Any) -> float:
    """A monitored session that halves a variable so many times more; its value then."""
    with wf.Graph().as_default():
        count, w = wf.train.create_global_step(), wf.Variable(1.0, name="w")
        wf.summary.scalar("w", w)
        halve = wf.group([w.assign(w * 0.5), count.assign_add(1)])
        stop = wf.train.StopAtStepHook(num_steps=steps)
        hooks = [stop, *given.pop("hooks", [])]
        with wf.train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=hooks, **given
        ) as session:
            while not session.should_stop():
                session.run(halve)
        return float(wf.train.load_variable(folder, "w"))


def test_a_monitored_session(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"{folder}/run/"
    assert train(url, 3, save_checkpoint_steps=2, save_summaries_steps=1) == 0.125
    assert wf.train.latest_checkpoint(url) == f"{folder}/run/model-3.safetensors"
    assert train(url, 2, save_summaries_steps=1) == 0.125 / 4  # goes on from there
    assert wf.train.latest_checkpoint(url) == f"{folder}/run/model-5.safetensors"
    first, second = events_of(f"{folder}/run")
    assert first == second + 1 >= 5  # of three steps, and of two
    assert list(tmp_path.iterdir()) == []  # no folder called "memory:"


def test_checkpoints_of_a_monitored_session_as_ops(folder: str) -> None:
    def go(steps: int) -> int:
        with wf.Graph().as_default():
            add = wf.train.create_global_step().assign_add(1)
            scaffold = wf.train.Scaffold(saver=wf.train.Saver())
            scaffold.save_ops = scaffold.saver.build()
            stop = wf.train.StopAtStepHook(num_steps=steps)
            with wf.train.MonitoredTrainingSession(
                checkpoint_dir=folder, scaffold=scaffold, hooks=[stop]
            ) as session:
                while not session.should_stop():
                    made = session.run(add)
        return int(made)

    assert go(3) == 3
    assert wf.train.latest_checkpoint(folder) == f"{folder}/model-3.safetensors"
    assert go(4) == 7


def test_hooks_of_one_url_share_a_writer(folder: str) -> None:
    """However it ends: two writers of one folder in a process are an error."""
    with wf.Graph().as_default():
        count = wf.train.create_global_step()
        wf.summary.scalar("count", wf.astype(count, wf.float32))
        add = count.assign_add(1)
        hooks = [
            wf.train.SummarySaverHook(save_steps=1, output_dir=f"{folder}/"),
            wf.train.StepCounterHook(every_n_steps=1, output_dir=folder),
            wf.train.ProfilerHook(save_steps=100, output_dir=f"{folder}/traces"),
        ]
        with wf.train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(3):
                session.run(add)
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    names = [name.rpartition("/")[2] for name in system.ls(folder, detail=False)]
    assert len([n for n in names if n.startswith("events.")]) == 1
    (trace,) = system.ls(f"{folder}/traces", detail=False)
    assert trace.endswith("/timeline-1.json")
    assert json.loads(system.cat_file(trace))["traceEvents"]
    wf.summary.FileWriter(folder).close()  # nobody has it open


@pytest.mark.parametrize(
    "use",
    [
        lambda url: wf.train.SummarySaverHook(output_dir=url, save_steps=1),
        lambda url: wf.train.ProfilerHook(output_dir=url, save_steps=1),
        lambda url: wf.train.CheckpointSaverHook(url, save_steps=1, scaffold=wf.train.Scaffold()),
    ],
)
def test_folders_that_nothing_opens(use: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(wf.errors.UnsupportedError, match="nosuch://bucket/m: fsspec cannot") as e:
        use("nosuch://bucket/m")
    assert "test_url_files.py" in str(e.value)
    assert list(tmp_path.iterdir()) == []  # no folder called "nosuch:"


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(wf.errors.UnsupportedError, match=r"pip install 'weft\[fsspec\]'"):
        wf.tf1.read_file("memory://a")
    with pytest.raises(wf.errors.UnsupportedError, match=r"memory://a: files named by URLs need"):
        list(wf.data.read_lines("memory://a"))


def test_kinds_of_urls_that_are_not_there() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(wf.errors.UnsupportedError, match="nonsense://a: fsspec cannot open"):
        wf.tf1.read_file("nonsense://a")
