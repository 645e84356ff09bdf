"""Readers: the records of files whose names a queue gives, eagerly and in graphs.

What is expected is what TensorFlow 2.21's compat.v1 readers gave on the same files.
"""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.runtime.dataflow.executor import DataflowStep

Pairs = list[tuple[str, bytes]]
Make = Callable[[], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(b"h1\none\r\ntwo\n\nthree")
    (tmp_path / "b.txt").write_bytes(b"h2\n")
    (tmp_path / "c.txt").write_bytes(b"h3\nx\n")
    (tmp_path / "f.bin").write_bytes(b"HHaabbccF")
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"HHaabbccF"))
    with wf.data.TFRecordWriter(tmp_path / "r.tfr") as writer:
        for record in (b"abc", b"", b"z" * 10):
            writer.write(record)
    return tmp_path


CASES: list[tuple[str, Make, list[str], Pairs, int]] = [
    ("text", lambda: wf.TextLineReader(skip_header_lines=1), ["a.txt", "b.txt", "c.txt"],
     [("a.txt:2", b"one"), ("a.txt:3", b"two"), ("a.txt:4", b""), ("a.txt:5", b"three"),
      ("c.txt:2", b"x")], 3),
    ("whole", wf.WholeFileReader, ["b.txt", "c.txt"], [("b.txt", b"h2\n"), ("c.txt", b"h3\nx\n")],
     2),
    ("fixed", lambda: wf.FixedLengthRecordReader(2, 2, 1), ["f.bin"],
     [("f.bin:0", b"aa"), ("f.bin:1", b"bb"), ("f.bin:2", b"cc")], 1),
    ("fixed gzip", lambda: wf.FixedLengthRecordReader(2, 2, 1, encoding="GZIP"), ["f.gz"],
     [("f.gz:0", b"aa"), ("f.gz:1", b"bb"), ("f.gz:2", b"cc")], 1),
    ("hop", lambda: wf.FixedLengthRecordReader(2, 2, 1, 1), ["f.bin"],
     [("f.bin:0", b"aa"), ("f.bin:1", b"ab"), ("f.bin:2", b"bb"), ("f.bin:3", b"bc"),
      ("f.bin:4", b"cc")], 1),
    ("hop far", lambda: wf.FixedLengthRecordReader(1, 2, 1, 3), ["f.bin"],
     [("f.bin:0", b"a"), ("f.bin:1", b"b")], 1),
    ("tfrecord", wf.TFRecordReader, ["r.tfr"],
     [("r.tfr:0", b"abc"), ("r.tfr:19", b""), ("r.tfr:35", b"z" * 10)], 1),
]  # fmt: skip
IDS = [name for name, *_ in CASES]


def names_queue(folder: Path, names: list[str]) -> Any:
    queue = wf.FIFOQueue(10, wf.string, shapes=[[]])
    queue.enqueue_many([[str(folder / n) for n in names]])
    queue.close()
    return queue


@pytest.mark.parametrize(("_", "make", "names", "pairs", "files"), CASES, ids=IDS)
def test_records_eagerly(
    folder: Path, _: str, make: Make, names: list[str], pairs: Pairs, files: int
) -> None:
    queue, reader, found = names_queue(folder, names), make(), []
    for _i in pairs:
        key, value = reader.read(queue)
        found.append((key.numpy()[()].decode(), value.numpy()[()]))
    with pytest.raises(wf.errors.OutOfRangeError):
        reader.read(queue)
    assert found == [(f"{folder}/{key}", value) for key, value in pairs]
    assert reader.num_records_produced().numpy() == len(pairs)
    assert reader.num_work_units_completed().numpy() == files


@pytest.mark.parametrize(("_", "make", "names", "pairs", "files"), CASES, ids=IDS)
def test_records_in_a_graph(
    folder: Path, _: str, make: Make, names: list[str], pairs: Pairs, files: int
) -> None:
    queue = names_queue(folder, names)
    with wf.Graph().as_default():
        reader = make()
        both = reader.read(queue)
        counts = [reader.num_records_produced(), reader.num_work_units_completed()]
        reset = reader.reset()
        with wf.Session() as session:
            found = [session.run(both) for _ in pairs]
            with pytest.raises(wf.errors.OutOfRangeError, match="closed"):
                session.run(both)
            assert session.run(counts) == [len(pairs), files]
            session.run(reset)
            assert session.run(counts) == [0, 0]
    assert found == [(f"{folder}/{key}".encode(), value) for key, value in pairs]


def test_reading_up_to_n(folder: Path) -> None:
    names, all_records = ["a.txt", "b.txt", "c.txt"], []
    queue = names_queue(folder, names)
    with wf.Graph().as_default():
        reader = wf.TextLineReader(skip_header_lines=1)
        keys, values = reader.read_up_to(queue, 3)
        lengths = wf.string_length(values)
        with wf.Session() as session:
            for _ in range(3):
                all_records.append([x.tolist() for x in session.run([keys, values, lengths])])
            with pytest.raises(wf.errors.OutOfRangeError):
                session.run(keys)
    assert [values for _, values, _ in all_records] == [[b"one", b"two", b""], [b"three"], [b"x"]]
    assert [n for *_, n in all_records] == [[3, 3, 0], [5], [1]]
    eager = wf.TextLineReader(skip_header_lines=1)
    queue = names_queue(folder, names)
    assert [len(eager.read_up_to(queue, 3)[1].numpy()) for _ in range(3)] == [3, 1, 1]


def test_identity_reader() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        queue = wf.FIFOQueue(9, wf.string, shapes=[[]])
        pair = wf.IdentityReader().read(queue)
        session.run(queue.enqueue_many([["q", "w"]]))
        assert [session.run(pair) for _ in range(2)] == [(b"q", b"q"), (b"w", b"w")]


def cancelled(session: Any, fetch: Any) -> None:
    with pytest.raises(wf.errors.CancelledError):
        session.run(fetch)


def test_a_read_waits_for_a_name_and_can_be_cancelled(folder: Path) -> None:
    with wf.Graph().as_default():
        queue, reader = wf.FIFOQueue(9, wf.string, shapes=[[]]), wf.TextLineReader()
        name = wf.placeholder(wf.string, [], "name")
        put, pair = queue.enqueue(name), reader.read(queue)
        with wf.Session() as session:
            with pytest.raises(wf.errors.DeadlineExceededError):
                session.run(pair, options=wf.RunOptions(timeout=0.05))
            found: list[Any] = []
            threads = [
                threading.Thread(target=lambda: found.append(session.run(pair)[1]))
                for _ in range(2)
            ]
            for t in threads:
                t.start()
            time.sleep(0.05)
            session.run(put, {name: str(folder / "c.txt")})
            for t in threads:
                t.join(5)
            assert sorted(found) == [b"h3", b"x"]
            stuck = threading.Thread(target=cancelled, args=(session, pair))
            stuck.start()
            time.sleep(0.05)
        stuck.join(5)
        assert not stuck.is_alive()


def test_a_name_that_comes_too_late_is_not_lost(folder: Path) -> None:
    queue, reader = wf.FIFOQueue(9, wf.string, shapes=[[]]), wf.TextLineReader()
    with pytest.raises(wf.errors.DeadlineExceededError, match="waits for the name of a file"):
        reader.read(queue, timeout=0.01)
    queue.enqueue(str(folder / "c.txt"))
    assert [reader.read(queue, timeout=1)[1].numpy()[()] for _ in range(2)] == [b"h3", b"x"]


@pytest.mark.parametrize("graph", [False, True])
def test_after_an_error_the_next_file_is_read(folder: Path, graph: bool) -> None:
    damaged = bytearray((folder / "r.tfr").read_bytes())
    damaged[30] ^= 1
    (folder / "bad.tfr").write_bytes(damaged)
    queue = names_queue(folder, ["bad.tfr", "none.tfr", "r.tfr"])

    def read_all(read: Callable[[], bytes]) -> None:
        assert read() == b"abc"
        with pytest.raises(wf.errors.DataLossError, match=r"bad\.tfr: record 1 at byte 19"):
            read()
        with pytest.raises(wf.errors.NotFoundError, match=r"none\.tfr"):
            read()
        assert [read() for _ in range(3)] == [b"abc", b"", b"z" * 10]

    if not graph:
        reader = wf.TFRecordReader()
        read_all(lambda: reader.read(queue)[1].numpy()[()])
        return
    with wf.Graph().as_default(), wf.Session() as session:
        value = wf.TFRecordReader().read(queue)[1]
        read_all(lambda: session.run(value))


def test_records_before_a_damage_are_given(folder: Path) -> None:
    data = (folder / "r.tfr").read_bytes()
    (folder / "short.tfr").write_bytes(data[:-3])
    reader, queue = wf.TFRecordReader(), names_queue(folder, ["short.tfr", "r.tfr"])
    assert reader.read_up_to(queue, 10)[1].numpy().tolist() == [b"abc", b""]
    with pytest.raises(wf.errors.DataLossError, match=r"short\.tfr: record 2 at byte 35"):
        reader.read_up_to(queue, 10)
    assert len(reader.read_up_to(queue, 10)[1].numpy()) == 3


def test_a_fixed_length_file_cut_within_a_record(folder: Path) -> None:
    (folder / "g.bin").write_bytes(b"HHddee_F")
    queue, reader = names_queue(folder, ["g.bin"]), wf.FixedLengthRecordReader(2, 2, 1)
    assert [reader.read(queue)[1].numpy()[()] for _ in range(2)] == [b"dd", b"ee"]
    with pytest.raises(wf.errors.DataLossError, match=r"record 2 at byte 6: .* after 1 of its 2"):
        reader.read(queue)


@pytest.mark.parametrize(("_", "make", "names", "pairs", "files"), CASES, ids=IDS)
def test_state_goes_on_where_it_was(
    folder: Path, _: str, make: Make, names: list[str], pairs: Pairs, files: int
) -> None:
    for stop in range(len(pairs) + 1):
        queue, reader = names_queue(folder, names), make()
        for _i in range(stop):
            reader.read(queue)
        other = make().load_state_dict(reader.state_dict())
        rest = [other.read(queue)[1].numpy()[()] for _ in pairs[stop:]]
        assert rest == [value for _, value in pairs[stop:]]
        assert other.num_records_produced().numpy() == len(pairs)


def test_a_saver_keeps_the_place(folder: Path, tmp_path: Path) -> None:
    queue = names_queue(folder, ["a.txt", "c.txt"])
    with wf.Graph().as_default(), wf.Session() as session:
        reader = wf.TextLineReader()
        value = reader.read(queue)[1]
        saver = wf.train.Saver({"names": queue, "reader": reader})
        first = [session.run(value) for _ in range(3)]
        path = saver.save(session, tmp_path / "input")
        rest = [session.run(value) for _ in range(4)]
        saver.restore(session, path)
        assert [session.run(value) for _ in range(4)] == rest
    assert first + rest == [b"h1", b"one", b"two", b"", b"three", b"h3", b"x"]


def test_sixteen_threads_read_each_record_once(tmp_path: Path) -> None:
    for i in range(20):
        lines = "".join(f"{i}-{j}\n" for j in range(50))
        (tmp_path / f"{i}.txt").write_text(lines)
    queue, reader = wf.FIFOQueue(100, wf.string, shapes=[[]]), wf.TextLineReader()
    found: list[list[bytes]] = [[] for _ in range(16)]

    def work(mine: list[bytes]) -> None:
        try:
            while True:
                mine.append(reader.read(queue, timeout=20)[1].numpy()[()])
        except wf.errors.OutOfRangeError:
            return

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for t in threads:
        t.start()
    for i in range(20):
        queue.enqueue(str(tmp_path / f"{i}.txt"))
    queue.close()
    for t in threads:
        t.join(20)
    values = sorted(v for mine in found for v in mine)
    assert values == sorted(f"{i}-{j}".encode() for i in range(20) for j in range(50))


def test_readers_in_loops(folder: Path) -> None:
    queue = names_queue(folder, ["a.txt"])
    with wf.Graph().as_default(), wf.Session() as session:
        reader = wf.TextLineReader()
        _, text = wf.while_loop(
            lambda i, s: i < 3,
            lambda i, s: (i + 1, wf.string_join([s, reader.read(queue)[1]], ",")),
            (0, wf.asarray("")),
        )
        assert session.run(text) == b",h1,one,two"
        assert session.run(reader.num_records_produced()) == 3


def test_bad_arguments(folder: Path) -> None:
    reader = wf.TextLineReader()
    with pytest.raises(wf.errors.TypeRuleError, match="files that a queue names"):
        reader.read(wf.FIFOQueue(3, wf.int32, shapes=[[]]))
    with pytest.raises(wf.errors.TypeRuleError, match="string_input_producer"):
        reader.read("a.txt")
    for bad in (lambda: wf.FixedLengthRecordReader(0), lambda: wf.TextLineReader(-1),
                lambda: wf.TFRecordReader(options="ZIP"),
                lambda: reader.load_state_dict({"produced": 1})):  # fmt: skip
        with pytest.raises(wf.errors.InvalidArgumentError):
            bad()
    with pytest.raises(wf.errors.UnsupportedError, match="function"):
        wf.compile(lambda x: (reader.read(wf.FIFOQueue(3, wf.string, [[]])), x)[1])(np.ones(2))
    directory = wf.FIFOQueue(3, wf.string)
    directory.enqueue(str(folder))
    with pytest.raises(wf.errors.InvalidArgumentError, match="directory"):
        reader.read(directory)
    directory.enqueue([["a", "b"]])
    with pytest.raises(wf.errors.InvalidArgumentError, match="2 names at once"):
        reader.read(directory)


def test_a_graph_with_readers_runs_from_its_text(folder: Path) -> None:
    with wf.Graph().as_default() as graph:
        name = wf.placeholder(wf.string, [], "name")
        queue = wf.FIFOQueue(3, wf.string, shapes=[[]])
        put = queue.enqueue(name, name="put")
        _, value = wf.FixedLengthRecordReader(2, 2, 1).read(queue)
        wf.name_tensor(
            wf.string_join([value, wf.as_string(wf.decode_raw(value, wf.uint8, shape=[2])[0])]),
            "text",
        )
    assert put.name == "put"
    again = wf.Graph.from_text(graph.as_text(), allow_files=True)
    assert again.as_text() == graph.as_text()
    with wf.Session(graph=again) as session:
        session.run("put", {"name": str(folder / "f.bin")})
        assert [session.run("text") for _ in range(3)] == [b"aa97", b"bb98", b"cc99"]


def test_reads_that_time_out_lose_nothing(tmp_path: Path) -> None:
    """Names come slowly, reads give up all the time: each record is read once all the same."""
    for i in range(60):
        (tmp_path / f"{i}.txt").write_text("".join(f"{i}-{j}\n" for j in range(i % 4)))
    queue, reader = wf.FIFOQueue(100, wf.string, shapes=[[]]), wf.TextLineReader()
    found: list[list[bytes]] = [[] for _ in range(8)]
    gave_up = []

    def work(mine: list[bytes], up_to: int) -> None:
        try:
            while True:
                try:
                    pair = reader.read_up_to(queue, up_to, timeout=0.001 * (up_to - 1))
                    mine += pair[1].numpy().tolist()
                except wf.errors.DeadlineExceededError:
                    gave_up.append(1)
        except wf.errors.OutOfRangeError:
            return

    threads = [threading.Thread(target=work, args=(m, 1 + i % 3)) for i, m in enumerate(found)]
    for t in threads:
        t.start()
    for i in range(60):
        queue.enqueue(str(tmp_path / f"{i}.txt"))
        time.sleep(0.002)
    queue.close()
    for t in threads:
        t.join(20)
        assert not t.is_alive()
    values = sorted(v for mine in found for v in mine)
    assert values == sorted(f"{i}-{j}".encode() for i in range(60) for j in range(i % 4))
    assert gave_up
    assert reader.num_work_units_completed().numpy() == 60


def test_an_input_of_graphs_goes_on_bit_by_bit(folder: Path, tmp_path: Path) -> None:
    """Contents of queues, place in the file, random states and variables in one checkpoint."""
    names = [str(folder / n) for n in ("a.txt", "b.txt", "c.txt")]
    with wf.Graph().as_default(), wf.Session() as session:
        files = wf.FIFOQueue(50, wf.string, shapes=[[]])
        fill = files.enqueue_many([wf.random_shuffle(wf.asarray(names), seed=3)])
        reader = wf.TextLineReader()
        lengths = wf.RandomShuffleQueue(50, 1, wf.int32, shapes=[[]], seed=4)
        put = lengths.enqueue(wf.string_length(reader.read(files)[1]))
        w = wf.Variable(0.0, name="w")
        noise = wf.random_normal([], seed=5)
        train = w.assign(w * 0.5 + wf.astype(lengths.dequeue(), wf.float32) + noise)
        saver = wf.train.Saver(
            {"w": w, "files": files, "reader": reader, "lengths": lengths}, include="random"
        )

        def run(rounds: int) -> list[Any]:
            out = []
            for _ in range(rounds):
                session.run(fill)
                for _i in range(5):
                    session.run(put)
                out += [session.run(train) for _ in range(4)]
            return out

        session.run(wf.global_variables_initializer())
        run(2)
        path = saver.save(session, tmp_path / "all")
        expected = run(4)
        saver.restore(session, path)
        assert run(4) == expected
        assert len({*expected}) > 10


def test_parent_and_child_read_on_by_themselves(tmp_path: Path) -> None:
    lines = [b"%d" % i for i in range(200_000)]  # more than is read ahead
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    queue, reader = wf.FIFOQueue(9, wf.string, shapes=[[]]), wf.TextLineReader()
    queue.enqueue(str(tmp_path / "a.txt"))
    assert reader.read_up_to(queue, 1000)[1].numpy().tolist() == lines[:1000]
    child = os.fork()
    rest = [line for _ in range(19) for line in reader.read_up_to(queue, 10_000)[1].numpy()]
    fine = rest == lines[1000:191_000]
    if not child:
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert fine


def test_forks_while_others_read(tmp_path: Path) -> None:
    """A fork takes the locks of all resources; the child reads on with the reader's own place."""
    (tmp_path / "a.txt").write_text("".join(f"{i}\n" for i in range(10_000)))
    queue, reader = wf.FIFOQueue(1000, wf.string, shapes=[[]]), wf.TextLineReader()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                reader.read_up_to(queue, 5000, timeout=0.001)
            except wf.errors.DeadlineExceededError:
                queue.enqueue(str(tmp_path / "a.txt"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    codes = []
    for _ in range(8):
        child = os.fork()
        if not child:
            queue.enqueue(str(tmp_path / "a.txt"))
            fine = bool(len(reader.read_up_to(queue, 10, timeout=20)[1].numpy()))
            os._exit(0 if fine else 1)
        codes.append(os.waitpid(child, 0)[1])
    stop.set()
    for t in threads:
        t.join(20)
        assert not t.is_alive()
    assert codes == [0] * 8


def test_a_name_that_is_none_is_an_error_and_not_a_wait(folder: Path) -> None:
    names = wf.FIFOQueue(10, wf.string, [()])
    names.enqueue_many([[b"a\0b", os.fsencode(folder / "x.txt")]])
    (folder / "x.txt").write_bytes(b"text\n")
    with wf.Graph().as_default(), wf.Session() as session:
        _, text = wf.TextLineReader().read(names)
        soon = wf.RunOptions(timeout=20)
        with pytest.raises(wf.errors.InvalidArgumentError, match="is no name of a file"):
            session.run(text, options=soon)
        assert session.run(text, options=soon) == b"text"


def test_whatever_goes_wrong_in_a_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, layout: Any) -> Any:
        yield b"", b""
        raise RuntimeError("a bug")

    monkeypatch.setattr("weft.runtime.resources.reader.records", broken)
    names = wf.FIFOQueue(10, wf.string, [()])
    names.enqueue("a")
    with wf.Graph().as_default(), wf.Session() as session:
        _, text = wf.TextLineReader().read(names)
        assert session.run(text) == b""
        with pytest.raises(wf.errors.InternalError, match=r"RuntimeError\('a bug'\)"):
            session.run(text, options=wf.RunOptions(timeout=20))


def test_records_that_are_there_do_not_wait(folder: Path) -> None:
    class Noted(SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            raise AssertionError("nothing of this step waits")

    (folder / "many.txt").write_bytes(b"1,a\n" * 50)
    names = wf.FIFOQueue(10, wf.string, [()])
    names.enqueue(str(folder / "many.txt"))
    with wf.Graph().as_default(), wf.Session() as session:
        rows = wf.FIFOQueue(100, [wf.int32, wf.string], [(), ()])
        _, text = wf.TextLineReader().read(names)
        put = rows.enqueue(wf.decode_csv(text, [[0], [""]]))
        session.run(put)
        explained = session.explain(put)
        assert "3 ops of the host" in explained  # the defaults are no ops of the host
        assert "0 compiled regions" in explained
        (step,) = session._steps.entries.values()
        assert isinstance(step.executable, DataflowStep)
        step.executable._idle[0]._done = Noted()
        for _ in range(20):
            session.run(put)
        assert session.run(rows.size()) == 21
