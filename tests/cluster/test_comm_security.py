"""Keys: without the right one nothing is served; key files; addresses beyond this machine."""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zmq
from comm_peers import ECHO, FAST, Here, spawn

from weft.comm import wire
from weft.comm.addresses import SECRET_BYTES, Secret, parse_address
from weft.comm.errors import AuthenticationError, CommError, InsecureAddressError, KeyFileError
from weft.comm.link import Keys, dealer
from weft.frontend.tools.main import ERROR, SUCCESS, main

SECRET = Secret(bytes(range(SECRET_BYTES)))
OTHER = Secret(bytes(range(1, SECRET_BYTES + 1)))


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "ipc://{}/peer"])
def test_holders_of_the_secret_talk(bind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(500_000)
    with (
        Here("a", secret=SECRET, shared="ipc" in bind) as a,
        Here("b", bind.format(tmp_path), secret=SECRET) as b,
    ):
        a.connect("b", b.address)
        a.send("b", 1, 0, "secret")
        assert b.messages.get(timeout=5).meta == "secret"
        a.send_tensor("b", 1, 1, (), x)
        np.testing.assert_array_equal(b.take(1, 1), x)
        b.send_tensor("a", 1, 1, (), x[:3])
        np.testing.assert_array_equal(a.take(1, 1), x[:3])
        assert a.rejections.counts() == b.rejections.counts() == {}


def test_between_processes() -> None:
    with Here("here", secret=SECRET) as here, spawn("peer", secret=SECRET) as peer:
        here.connect("peer", peer.address)
        here.send("peer", ECHO, 1, "x")
        assert here.messages.get(timeout=5).meta == "x"
        peer.kill()
        assert here.lost.get(timeout=5)[0] == "peer"


@pytest.mark.parametrize("mine", [None, OTHER], ids=["no key", "another key"])
@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "ipc://{}/peer"])
def test_without_the_key_nothing_is_served(mine: Secret | None, bind: str, tmp_path: Path) -> None:
    with Here("guest", secret=mine) as guest, Here("b", bind.format(tmp_path), secret=SECRET) as b:
        with pytest.raises(CommError):
            guest.connect("b", b.address, timeout=1.0)
        with pytest.raises(CommError):
            b.connect("guest", guest.address, timeout=1.0)
        assert b.connected() == guest.connected() == []
        assert b.messages.empty()
        assert b.rendezvous.steps == 0


def test_another_key_is_an_error_at_once() -> None:
    with Here("guest", secret=OTHER) as guest, Here("b", secret=SECRET) as b:
        started = time.monotonic()
        with pytest.raises(AuthenticationError, match="do not go together"):
            guest.connect("b", b.address, timeout=5.0)
        assert time.monotonic() - started < 2.0


def test_server_key_alone_is_not_enough() -> None:
    """Who knows the public key of the inboxes, but not the secret, is turned away by ZAP."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Here("b", secret=SECRET) as b:
        public, private = zmq.curve_keypair()
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.curve_serverkey = Keys(SECRET)._server_public
        socket.curve_publickey, socket.curve_secretkey = public, private
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        socket.connect(b.address)
        header = wire.HEADER.pack(b"WF", 1, wire.HELLO, 0, 0, 0, 7, 0, 0, 0, 0, 0)
        socket.send(header)
        assert monitor.poll(5000)
        time.sleep(0.1)
        assert b.rejections.counts() == {"unknown key": b.rejections.total}
        monitor.close(0)
        socket.close(0)
    context.term()


def test_wire_is_encrypted() -> None:
    """What goes over the connection does not hold the text (read by a relay in between)."""
    seen = bytearray()
    with Here("a", secret=SECRET, shared=False) as a, Here("b", secret=SECRET) as b:
        listener = sockets.create_server(("127.0.0.1", 0))
        where = parse_address(b.address)

        def pump(source: sockets.socket, sink: sockets.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    seen.extend(data)
                    sink.sendall(data)

        def relay() -> None:
            near, _ = listener.accept()
            with sockets.create_connection((where.host, where.port)) as far, near:
                threading.Thread(target=pump, args=(far, near), daemon=True).start()
                pump(near, far)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        a.connect("b", f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        a.send("b", 1, 0, "attack at dawn" * 100)
        assert b.messages.get(timeout=5).meta == "attack at dawn" * 100
        listener.close()
    assert len(seen) > 1400
    assert b"attack" not in seen


@pytest.mark.parametrize(
    "bind",
    ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://192.0.2.1:0", "tcp://example.org:80"],
)
def test_beyond_this_machine_only_with_keys(bind: str) -> None:
    with pytest.raises(InsecureAddressError, match="weft keygen"):
        Here("a", bind)


def test_connecting_beyond_this_machine_only_with_keys() -> None:
    with Here("a") as a, pytest.raises(InsecureAddressError):
        a.connect("b", "tcp://192.0.2.1:5")


def test_wildcard_with_keys_or_by_choice() -> None:
    with (
        Here("a", "tcp://0.0.0.0:0", secret=SECRET, advertise="tcp://127.0.0.1:0") as a,
        Here("b", secret=SECRET) as b,
    ):
        assert parse_address(a.address).port > 0
        b.connect("a", a.address)
    with Here("a", "tcp://0.0.0.0:0", allow_plain=True, advertise="tcp://127.0.0.1:0"):
        pass


def test_greeting_cannot_make_a_task_connect_elsewhere() -> None:
    """Without keys, a task does not connect to where a stranger's greeting says."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Here("b") as b:
        socket = dealer(context, FAST, None, 10)
        socket.connect(b.address)
        for i, address in enumerate(["tcp://192.0.2.1:5", "tcp://*:5", "nonsense", "tcp://a:0"], 1):
            meta = wire.pack_meta(["stranger", 99, address, 0, []])
            header = wire.HEADER.pack(b"WF", 1, wire.HELLO, len(meta), 0, 0, i, 0, 0, 0, 0, 0)
            socket.send(header + meta)
        deadline = time.monotonic() + 5
        while b.rejections.total < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        counts = b.rejections.counts()
        assert counts["greeting refused: InsecureAddressError"] == 3  # * and names are elsewhere
        assert counts["greeting refused: AddressError"] == 1
        assert b.rejections.total == 4
        assert b.peers.links() == []
        socket.close(0)
    context.term()


# ------------------------------------------------------------------------------------- key files


def test_key_file_is_only_the_users(tmp_path: Path) -> None:
    path = tmp_path / "key"
    SECRET.to_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Secret.from_file(path).hex() == SECRET.hex()
    path.chmod(0o400)
    Secret.from_file(path)
    for mode in (0o640, 0o604, 0o620, 0o666):
        path.chmod(mode)
        with pytest.raises(KeyFileError, match=f"its mode is {mode:04o}.*chmod 600"):
            Secret.from_file(path)


def test_bad_key_files(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read"):
        Secret.from_file(tmp_path / "none")
    with pytest.raises(KeyFileError, match="is not a file"):
        Secret.from_file(os.devnull)
    path = tmp_path / "key"
    for text in ("", "zz" * 32, "00" * 31, "ab" * 33):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(KeyFileError):
            Secret.from_file(path)
    path.write_text("00" * 32)
    with pytest.raises(KeyFileError, match="not random"):
        Secret.from_file(path)


def test_secret_does_not_show_itself() -> None:
    assert SECRET.hex() not in repr(SECRET) + str(SECRET)


def test_keys_differ_by_secret_and_end() -> None:
    keys = [Keys(SECRET), Keys(OTHER)]
    assert len({key for k in keys for key in (k._server, k._client)}) == 4
    assert Keys(SECRET)._server == keys[0]._server


def test_keygen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.key"
    assert main(["keygen", str(path)]) == SUCCESS
    assert capsys.readouterr().out == f"{path}\n"
    first = Secret.from_file(path)
    assert main(["keygen", str(path)]) == ERROR
    assert "there is a file" in capsys.readouterr().err
    assert Secret.from_file(path).hex() == first.hex()
    assert main(["keygen", str(tmp_path / "no" / "such")]) == ERROR
    assert "cannot be written" in capsys.readouterr().err
    assert main(["keygen", str(tmp_path / "second")]) == SUCCESS
    assert Secret.from_file(tmp_path / "second").hex() != first.hex()


def test_keygen_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["keygen"]) == SUCCESS
    folder = tmp_path / "weft"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    Secret.from_file(folder / "cluster.key")
