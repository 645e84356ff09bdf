"""Two endpoints of one process: links, control messages, tensors of all sizes, backpressure."""

from __future__ import annotations

import gc
import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from comm_peers import FAST, TIMES, Here

from weft.comm import protocol
from weft.comm.endpoint import Endpoint
from weft.comm.errors import (
    AddressError,
    EndpointClosedError,
    MessageTooLargeError,
    PeerLostError,
    StaleIncarnationError,
    UnknownPeerError,
    UnreachableError,
    UnsendableError,
)
from weft.comm.limits import Limits
from weft.comm.rendezvous import DEAD

_counter = itertools.count()


@pytest.fixture(params=["tcp", "ipc", "shared memory"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Here, Here]]:
    ipc = f"ipc://@weft-test-{os.getpid()}-{next(_counter)}"
    where = "tcp://127.0.0.1:0" if request.param == "tcp" else ipc
    shared = request.param == "shared memory"
    with Here("a", shared=shared) as a, Here("b", where, shared=shared) as b:
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        assert (link.memory is not None) == shared
        yield a, b


def test_link_is_of_both(pair: tuple[Here, Here]) -> None:
    a, b = pair
    assert [p.name for p in a.connected()] == ["b"]
    assert a.connected()[0].incarnation == b.incarnation
    assert b.connected()[0].incarnation == a.incarnation
    assert a.connect("b", b.address, b.incarnation).incarnation == b.incarnation
    assert b.connect("", a.address).name == "a"
    assert len(a.connected()) == len(b.connected()) == 1


def test_both_connect_at_once() -> None:
    for _ in range(5):
        with Here("a") as a, Here("b") as b:
            other = threading.Thread(target=b.connect, args=("a", a.address))
            other.start()
            a.connect("b", b.address)
            other.join()
            a.send("b", 1, 0, "to b")
            b.send("a", 2, 0, "to a")
            assert b.messages.get(timeout=5).meta == "to b"
            assert a.messages.get(timeout=5).meta == "to a"
            assert a.lost.empty()
            assert b.lost.empty()


def test_control_messages_arrive_in_order(pair: tuple[Here, Here]) -> None:
    a, b = pair
    meta = {
        "text": "é",
        "n": -5,
        "list": [1, 2.5, None, True],
        "bytes": b"\0\xff",
        "deep": {"1": []},
    }
    big = np.arange(700_000, dtype=np.float64)
    a.send("b", 0, 1 << 63, meta)
    a.send("b", 127, 2, None, [np.array([b"one", b""], object), np.float32(2), np.zeros((0, 3))])
    a.send("b", 5, 3, [], [big, big[:3]])
    first, second, third = (b.messages.get(timeout=5) for _ in range(3))
    assert (first.peer, first.incarnation, first.kind) == ("a", a.incarnation, 0)
    assert (first.step, first.meta, first.buffers) == (1 << 63, meta, ())
    strings, scalar, empty = second.buffers
    assert strings.tolist() == [b"one", b""]
    assert (scalar.shape, scalar.dtype, scalar[()]) == ((), np.float32, 2)
    assert (empty.shape, second.kind) == ((0, 3), 127)
    np.testing.assert_array_equal(third.buffers[0], big)
    np.testing.assert_array_equal(third.buffers[1], big[:3])
    assert b.rejections.counts() == {}


def tensors() -> list[Any]:
    rng = np.random.default_rng(0)
    dtypes: list[Any] = [*"?bhilBHILefdFD", ml_dtypes.bfloat16]
    small = [rng.integers(0, 2, (3, 5)).astype(dtype) for dtype in dtypes]
    large = rng.standard_normal((1000, 1237))
    return [
        *small,
        np.array(3.5, np.float32),
        np.zeros((0, 4), np.int8),
        np.array([[b"", b"abc"], [b"\0", b"x" * 300]], object),
        np.array(b"scalar", object),
        np.array([b"s" * 40_000] * 5, object),
        rng.standard_normal(64 << 7),  # 64 KB: the last in the header's frame
        rng.standard_normal((64 << 7) + 1),
        rng.standard_normal(256 << 7),  # 256 KB: the last that is pushed
        rng.standard_normal((256 << 7) + 1),
        rng.standard_normal(1 << 17),  # one chunk
        large,
        large.T,  # not contiguous
        large[::3, ::-1],
        large.astype(">f8"),
    ]


@pytest.mark.share(24)
@pytest.mark.parametrize("x", tensors(), ids=lambda x: f"{x.dtype}-{x.nbytes}")
def test_tensors_of_all_kinds(pair: tuple[Here, Here], x: Any) -> None:
    a, b = pair
    waiting = b.ask(1, 1)
    a.send_tensor("b", 1, 1, (), x)
    a.send_tensor("b", 1, 2, (4, 5), x)
    for got in (waiting.get(timeout=10), b.take(1, 2, (4, 5))):
        assert got.dtype == x.dtype.newbyteorder("=")
        assert got.shape == x.shape
        assert got.flags.c_contiguous
        assert got.flags.aligned
        assert got.flags.writeable
        assert got.tobytes() == x.astype(got.dtype).tobytes() if got.dtype != object else True
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("checksums", [False, True])
def test_tensors_pushed_in_a_frame_of_their_own(checksums: bool) -> None:
    """With a larger `eager_bytes` than what goes into the header's frame."""
    limits = Limits(**{**TIMES, "eager_bytes": 1 << 20})  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n) for n in (8192, 8193, 1 << 17)]
    strings = np.array([b"s" * 40_000] * 5, object)
    with Here("a", limits=limits, checksums=checksums) as a, Here("b") as b:
        a.connect("b", b.address)
        for key, x in enumerate([*arrays, strings]):
            a.send_tensor("b", 1, key, (), x)
            np.testing.assert_array_equal(b.take(1, key), x)
        assert a.transfers.outgoing == 0


def test_dead_values(pair: tuple[Here, Here]) -> None:
    a, b = pair
    a.send_tensor("b", 1, 1, (2,), DEAD)
    assert b.take(1, 1, (2,)) is DEAD


@pytest.mark.parametrize("shared", [False, True])
def test_checksums(shared: bool) -> None:
    with Here("a", checksums=True, shared=shared) as a, Here("b", shared=shared) as b:
        a.connect("b", b.address)
        x = np.random.default_rng(1).standard_normal(300_000)
        a.send_tensor("b", 1, 1, (), x)
        a.send_tensor("b", 1, 2, (), x[:10])
        a.send("b", 1, 0, "m", [x, x[:5]])
        np.testing.assert_array_equal(b.take(1, 1), x)
        np.testing.assert_array_equal(b.take(1, 2), x[:10])
        np.testing.assert_array_equal(b.messages.get(timeout=5).buffers[0], x)
        assert b.rejections.counts() == {}


def test_to_itself() -> None:
    with Here("a") as a:
        assert a.connect("a", a.address).incarnation == a.incarnation
        x = np.arange(5)
        a.send_tensor("a", 1, 1, (), x)
        assert a.take(1, 1) is x
        ended: list[int] = []
        a.send_tensor("a", 1, 2, (), x, released=lambda: ended.append(1))
        got = a.take(1, 2)
        assert got is not x
        assert ended == [1]
        a.send_tensor("a", 1, 3, (), DEAD)
        assert a.take(1, 3) is DEAD
        a.send("a", 4, 9, {"t": (1, 2)}, [x])
        message = a.messages.get(timeout=5)
        assert (message.peer, message.kind, message.step, message.meta) == (
            "a",
            4,
            9,
            {"t": [1, 2]},
        )
        assert message.buffers[0].tolist() == x.tolist()


@pytest.mark.parametrize("count", [8000, 32_768])
def test_pushed_tensors_are_copied_before_send_returns(pair: tuple[Here, Here], count: int) -> None:
    a, b = pair
    ended: list[int] = []
    for step in range(50):
        x = np.full(count, step, np.float64)
        a.send_tensor("b", step, 1, (), x, released=lambda: ended.append(1))
        x[:] = -1
    assert len(ended) == 50
    for step in range(50):
        assert (b.take(step, 1) == step).all()


@pytest.mark.share(4)
@pytest.mark.parametrize("last", [1, (64 << 10) - 1, 64 << 10, 1 << 20])
def test_large_tensors_are_whole_if_written_after_released(
    pair: tuple[Here, Here], last: int
) -> None:
    """The rule for buffers: not written until `released`; then it may be, and nothing is torn.
    `last`: bytes of the last chunk (ZeroMQ's binding copies small ones)."""
    a, b = pair
    x = np.empty((3 << 20) + last, np.int8)
    for step in range(20):
        x[:] = step
        free = threading.Event()
        waiting = b.ask(step, 1)
        a.send_tensor("b", step, 1, (), x, released=free.set)
        assert free.wait(10)
        x[:] = -1
        got = waiting.get(timeout=5)
        assert (got == step).all()


def test_released_when_the_step_or_link_ends(pair: tuple[Here, Here]) -> None:
    a, _ = pair
    x = np.zeros(1 << 20)
    hold = Limits(**{**TIMES, "landing_bytes": 1})  # type: ignore[arg-type]
    with Here("c", limits=hold) as c:
        a.connect("c", c.address)
        ends = [threading.Event() for _ in range(4)]
        for i, end in enumerate(ends):
            a.send_tensor("c", i + 1, 1, (), x, released=end.set)
        while c.transfers.incoming < 4:
            time.sleep(0.01)
        assert not any(end.is_set() for end in ends)
        a.abort(1, RuntimeError("here"))
        assert ends[0].wait(5)
        c.abort(2, RuntimeError("there"))
        assert ends[1].wait(5)
        c.forget(3)
        assert ends[2].wait(5)
    assert ends[3].wait(5)
    assert a.transfers.outgoing == 0


def test_landing_room_bounds_what_nobody_waits_for() -> None:
    """Many large tensors are offered: only so many land; who asks gets its own at once."""
    limits = Limits(**{**TIMES, "landing_bytes": 10 << 20})  # type: ignore[arg-type]
    with Here("a") as a, Here("b", limits=limits) as b:
        a.connect("b", b.address)
        x = np.arange(1 << 19, dtype=np.float64)  # 4 MB
        for key in range(20):
            a.send_tensor("b", 1, key, (), x + key)
        deadline = time.monotonic() + 5
        while b.rendezvous.held_bytes < 2 * x.nbytes and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert b.rendezvous.held_bytes == 2 * x.nbytes
        assert a.transfers.outgoing == 18
        np.testing.assert_array_equal(b.take(1, 19), x + 19)
        for key in range(19):
            np.testing.assert_array_equal(b.take(1, key), x + key)
        assert b.rendezvous.held_bytes == 0
        assert (a.transfers.outgoing, b.transfers.incoming) == (0, 0)


def test_held_bytes_abort_the_step() -> None:
    limits = Limits(**{**TIMES, "held_bytes": 100_000})  # type: ignore[arg-type]
    with Here("a") as a, Here("b", limits=limits) as b:
        a.connect("b", b.address)
        for key in range(5):
            a.send_tensor("b", 1, key, (), np.zeros(5000))
        a.send_tensor("b", 2, 0, (), np.zeros(5))
        assert b.take(2, 0).shape == (5,)
        with pytest.raises(MemoryError, match="held_bytes"):
            b.take(1, 0)
        assert b.rejections.counts()["over a limit"] == 1


def test_a_large_tensor_that_exceeds_held_bytes_aborts_its_step() -> None:
    limits = Limits(**{**TIMES, "held_bytes": 400_000})  # type: ignore[arg-type]
    with Here("a") as a, Here("b", limits=limits) as b:
        a.connect("b", b.address)
        a.send_tensor("b", 1, 0, (), np.zeros(30_000))
        a.send_tensor("b", 2, 0, (), np.zeros(40_000))  # is offered, and lands as there is room
        deadline = time.monotonic() + 5
        while not b.rejections.total and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(MemoryError, match="held_bytes"):
            b.take(2, 0)
        assert b.take(1, 0).shape == (30_000,)
        a.send_tensor("b", 3, 0, (), np.zeros(40_000))
        assert b.take(3, 0).shape == (40_000,)


def test_a_tensor_that_cannot_even_be_refused_ends_the_link() -> None:
    """Its step cannot be noted as aborted, and who asks for it later must not wait for ever."""
    limits = Limits(**{**TIMES, "steps": 2})  # type: ignore[arg-type]
    with Here("a") as a, Here("b", limits=limits) as b:
        a.connect("b", b.address)
        for step in (1, 2, 3):
            a.send_tensor("b", step, 0, (), np.zeros(5))
        assert "over a limit" in str(b.lost.get(timeout=5)[1])
        assert "over a limit" in str(a.lost.get(timeout=5)[1])


def test_a_control_message_that_there_is_no_memory_for_ends_the_link(
    pair: tuple[Here, Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = pair

    def none_left(*_: Any) -> Any:
        raise MemoryError("no memory")

    monkeypatch.setattr(protocol, "copy_out", none_left)
    a.send("b", 1, 0, {}, [np.zeros(5)])
    assert "no memory" in str(a.lost.get(timeout=5)[1])


def test_an_ipc_path_is_not_taken_from_others(tmp_path: Path) -> None:
    """libzmq deletes what lies at the path that it binds to."""
    file = tmp_path / "notes.txt"
    file.write_text("kept")
    with pytest.raises(AddressError, match="something else"):
        Here("a", f"ipc://{file}")
    assert file.read_text() == "kept"
    where = f"ipc://{tmp_path / 'task'}"
    with Here("a", where) as a, Here("b") as b:
        with pytest.raises(AddressError, match="another task listens"):
            Here("a", where)
        b.connect("a", a.address)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "task"))
    left.close()  # as a killed task leaves it
    Here("a", where).close()


def test_abort_and_late_tensors(pair: tuple[Here, Here]) -> None:
    a, b = pair
    waiting = b.ask(1, 1)
    error = RuntimeError("cause")
    b.abort(1, error)
    assert waiting.get(timeout=1) is error
    a.send_tensor("b", 1, 1, (), np.zeros(5))
    a.send_tensor("b", 1, 2, (), np.zeros(1 << 20))
    a.send("b", 1)
    b.messages.get(timeout=5)
    deadline = time.monotonic() + 5
    while a.transfers.outgoing and time.monotonic() < deadline:
        time.sleep(0.01)
    assert a.transfers.outgoing == 0
    assert b.rejections.counts() == {"late": 2}


def test_replies_from_the_callback_do_not_block() -> None:
    """Two endpoints that answer each message with a large one, without reading: no deadlock."""
    done = threading.Semaphore(0)
    ends: dict[str, Endpoint] = {}
    payload = np.zeros(60_000, np.uint8)

    def reply(name: str) -> Any:
        def on_message(message: Any) -> None:
            if message.meta > 0:
                ends[name].send(message.peer, 1, 0, message.meta - 1, [payload])
            else:
                done.release()

        return on_message

    with (
        Endpoint("a", limits=FAST, on_message=reply("a")) as a,
        Endpoint("b", limits=FAST, on_message=reply("b")) as b,
    ):
        ends.update(a=a, b=b)
        a.connect("b", b.address)
        for _ in range(500):
            a.send("b", 1, 0, 3, [payload])
            b.send("a", 1, 0, 3, [payload])
        for _ in range(1000):
            assert done.acquire(timeout=20)


def test_disconnect_tells_the_peer(pair: tuple[Here, Here]) -> None:
    a, b = pair
    a.disconnect("b")
    name, error = b.lost.get(timeout=5)
    assert name == "a"
    assert isinstance(error, PeerLostError)
    assert "a closed the connection: a disconnected from b" in str(error)
    assert a.lost.empty()
    with pytest.raises(UnknownPeerError, match="no link to 'b'"):
        a.send("b", 1)
    a.connect("b", b.address)  # anew
    a.send("b", 1, 0, "again")
    assert b.messages.get(timeout=5).meta == "again"
    b.send("a", 1, 0, "back")
    assert a.messages.get(timeout=5).meta == "back"


def test_close_is_told_and_ends_everything(pair: tuple[Here, Here]) -> None:
    a, b = pair
    waiting = b.ask(1, 1)
    b.close()
    b.close()
    assert isinstance(waiting.get(timeout=1), EndpointClosedError)
    name, error = a.lost.get(timeout=5)
    assert name == "b"  # its last words, unless the connection's end is seen before
    assert "b was closed" in str(error) or "connection to b was lost" in str(error)
    with pytest.raises(EndpointClosedError):
        b.send("a", 1)
    with pytest.raises(EndpointClosedError):
        b.connect("a", a.address)
    with pytest.raises(UnknownPeerError):
        a.send_tensor("b", 1, 1, (), np.zeros(3))


def test_new_incarnation_replaces_the_old(tmp_path: Path) -> None:
    where = f"ipc://{tmp_path}/b"
    with Here("a") as a:
        with Here("b", where) as old:
            a.connect("b", where)
            incarnation = old.incarnation
        assert a.lost.get(timeout=5)[0] == "b"
        with Here("b", where) as new:
            with pytest.raises(StaleIncarnationError, match="b was restarted"):
                a.connect("b", where, incarnation)
            assert a.connect("b", where).incarnation == new.incarnation != incarnation
            a.send("b", 1, 0, "hello")
            assert new.messages.get(timeout=5).meta == "hello"
            with Here("b") as third:  # elsewhere; greets before the second is gone
                third.connect("a", a.address)
                name, error = a.lost.get(timeout=5)
                assert (name, str(error)) == ("b", "b was restarted")
                a.send("b", 1, 0, "third")
                assert third.messages.get(timeout=5).meta == "third"
    assert list(tmp_path.iterdir()) == []


def test_wrong_name_and_nobody_there() -> None:
    with Here("a") as a, Here("b") as b:
        with pytest.raises(UnreachableError, match=r"b answers at tcp://.*, not c"):
            a.connect("c", b.address)
        with pytest.raises(UnreachableError, match=r"d at tcp://127.0.0.1:9 did not answer within"):
            a.connect("d", "tcp://127.0.0.1:9", timeout=0.2)
        assert a.connected() == []
        a.connect("b", b.address)


def test_address_that_nobody_can_connect_to() -> None:
    with Here("a", allow_plain=True) as a:
        with pytest.raises(AddressError, match="cannot be connected to"):
            a.connect("b", "tcp://-%-:5")
        with pytest.raises(AddressError, match="no address to connect to"):
            a.connect("b", "tcp://127.0.0.1:0")
        assert a.peers.links() == []


def test_without_descriptors_links_are_refused_not_the_process_ended() -> None:
    program = """
import os, resource
from weft.comm.endpoint import Endpoint
from weft.comm.errors import CommError
with Endpoint("a") as a, Endpoint("b") as b:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    try:
        a.connect("b", b.address, timeout=1.0)
    except CommError as error:
        print("refused:", error)
    for number in taken:
        os.close(number)
    a.connect("b", b.address, timeout=5.0)
    print("connected")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "connected"), done.stderr
    assert "refused: no socket" in done.stdout


def test_who_starts_first_waits_for_the_other(tmp_path: Path) -> None:
    where = f"ipc://{tmp_path}/b"
    with Here("a") as a:
        found: queue.Queue[Any] = queue.Queue()
        thread = threading.Thread(target=lambda: found.put(a.connect("b", where)))
        thread.start()
        time.sleep(0.1)
        with Here("b", where):
            assert found.get(timeout=5).name == "b"
            thread.join()


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ("127.0.0.1:5", "is no address"),
        ("tcp://127.0.0.1", "is no address"),
        ("tcp://127.0.0.1:99999", "has no port"),
        ("ipc://", "names no path"),
        ("ipc:///" + "x" * 110, "longer than a socket's may be"),
        ("ipc:///no/such/folder/x", "cannot listen at"),
        ("http://a:1", "is no address"),
    ],
)
def test_bad_addresses(bind: str, message: str) -> None:
    with pytest.raises(AddressError, match=message):
        Here("a", bind)


def test_address_in_use() -> None:
    with Here("a") as a, pytest.raises(AddressError, match=r"a2 cannot listen at .* in use"):
        Here("a2", a.address)


def test_errors_of_the_sender(pair: tuple[Here, Here]) -> None:
    a, b = pair
    with pytest.raises(UnsendableError, match="cannot be sent as meta data"):
        a.send("b", 1, 0, {"f": object()})
    with pytest.raises(MessageTooLargeError, match="put them in a buffer"):
        a.send("b", 1, 0, "x" * 70_000)
    with pytest.raises(MessageTooLargeError, match="control_bytes"):
        a.send("b", 1, 0, None, [np.zeros(a.limits.control_bytes // 8 + 1)])
    with pytest.raises(UnsendableError, match="no kind of message"):
        a.send("b", 128)
    with pytest.raises(UnsendableError, match="only if all of them are bytes"):
        a.send_tensor("b", 1, 1, (), np.array([1, "x"], object))
    with pytest.raises(UnsendableError, match="datetime64"):
        a.send_tensor("b", 1, 1, (), np.array(0, "datetime64[s]"))
    a.send("b", 1, 0, "still there")
    assert b.messages.get(timeout=5).meta == "still there"


def test_failing_callback_ends_the_link_not_the_endpoint() -> None:
    def fail(message: Any) -> None:
        raise KeyError("bug")

    with Here("a") as a, Endpoint("b", limits=FAST, on_message=fail) as b:
        a.connect("b", b.address)
        a.send("b", 1)
        name, error = a.lost.get(timeout=5)
        assert name == "b"
        assert "could not be handled: KeyError('bug')" in str(error)
        a.connect("b", b.address)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_no_leak_over_many_links() -> None:
    with Here("a") as a:
        x = np.zeros(1 << 18)

        def once() -> None:
            with Here("b") as b:
                assert a.connect("b", b.address).incarnation == b.incarnation
                a.send_tensor("b", 1, 1, (), x)
                b.take(1, 1)

        for _ in range(3):
            once()
        gc.collect()
        before, threads = descriptors(), threading.active_count()
        for _ in range(20):
            once()
        gc.collect()
        # `a` hears of the end of the last link from its own thread
        deadline = time.monotonic() + 10
        while (descriptors() > before or a.peers.links()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert descriptors() <= before
        assert threading.active_count() <= threads
        assert a.peers.links() == []


def test_fork_leaves_the_parents_links_alone() -> None:
    with Here("a") as a, Here("b") as b:
        a.connect("b", b.address)
        child = os.fork()
        if child == 0:
            try:
                a.send("b", 1)
            except EndpointClosedError as error:
                os._exit(0 if "made before the fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        a.send("b", 1, 0, "parent")
        assert b.messages.get(timeout=5).meta == "parent"
        assert a.lost.empty()


@pytest.mark.slow
def test_a_peer_that_comes_when_nobody_waits_for_it_any_more() -> None:
    """The link is given up, and then its connection is made: who watched it is gone by then."""
    for _ in range(3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        with Here("a") as a:
            with pytest.raises(UnreachableError):
                a.connect("b", address, timeout=0.05)
            with Here("b", address) as b:
                time.sleep(0.7)  # libzmq connects meanwhile
                with ThreadPoolExecutor(1) as pool:
                    again = pool.submit(a.connect, "b", b.address, timeout=5)
                    assert again.result(timeout=10).name == "b"
                a.send("b", 1, meta="there")
                assert b.messages.get(timeout=5).meta == "there"
