"""Versions that come and go while they are served."""

from __future__ import annotations

import http.client
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi import Client
from serve_process import serving

import weft as wf
from weft.frontend.serving.app import App
from weft.frontend.serving.batching import Limits, prepare
from weft.frontend.serving.repository import (
    AVAILABLE,
    END,
    UNLOADING,
    Model,
    Repository,
    State,
)

F32 = wf.float32


def times(folder: Path, number: int, by: float | None = None) -> Path:
    """A version that multiplies, by its number; put there by one rename."""
    factor = float(number if by is None else by)
    place = folder / str(number)
    wf.export(lambda x: x * factor, place, example=wf.TensorType(F32, ("n",)), replace=True)
    return place


def factor_of(client: Client, version: str = "") -> Any:
    reply = client.post(f"/v1/models/m{version}:predict", {"inputs": [1.0]})
    return reply.json()["outputs"][0] if reply.status == 200 else reply.status


def states(client: Client) -> dict[str, str]:
    told = client.get("/v1/models/m").json()["model_version_status"]
    return {one["version"]: one["state"] for one in told}


def index(client: Client, **asked: Any) -> list[tuple[str, str, str]]:
    told = client.post("/v2/repository/index", asked).json()
    return [(one["version"], one["state"], one["reason"]) for one in told]


def until(holds: Callable[[], object], what: object = "") -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    times(tmp_path / "m", 1)
    return tmp_path / "m"


def test_a_new_version_takes_over(folder: Path) -> None:
    repository = Repository([str(folder)])
    old = weakref.ref(repository.find("m"))
    with Client(App(repository)) as client:
        assert states(client) == {"1": "AVAILABLE"}
        times(folder, 2)
        times(folder, 10)
        (folder / "11").mkdir()  # one that is written bit by bit, and not there yet
        (folder / "notes").mkdir()
        assert factor_of(client) == 1.0
        repository.refresh()
        assert factor_of(client) == 10.0
        assert factor_of(client, "/versions/1") == 404
        assert states(client) == {"1": "END", "10": "AVAILABLE"}
        assert client.get("/v2/models/m").json()["versions"] == ["10"]
        assert repository.find("m").signatures["serving_default"].by_rows  # it was tried, too
        until(lambda: old() is None, "the old one is kept")


def test_all_versions(folder: Path) -> None:
    repository = Repository([str(folder)], all_versions=True)
    with Client(App(repository)) as client:
        times(folder, 3)
        repository.refresh()
        assert [factor_of(client, f"/versions/{n}") for n in (1, 3)] == [1.0, 3.0]
        shutil.rmtree(folder / "1")
        repository.refresh()
        assert [factor_of(client, f"/versions/{n}") for n in (1, 3)] == [404, 3.0]


def test_one_that_is_broken_leaves_the_old_one(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = Repository([str(folder)])
    with Client(App(repository)) as client, caplog.at_level(logging.ERROR, "weft.serving"):
        whole = times(folder, 2) / "serving_default.weft"
        good = whole.read_bytes()
        whole.write_bytes(good[:-10])
        for _ in range(3):
            repository.refresh()
            assert factor_of(client) == 1.0
        told = [record for record in caplog.records if record.name == "weft.serving"]
        assert len(told) == 1  # it is not read again and again
        assert "version 2 of model 'm' was not loaded" in caplog.text
        assert states(client) == {"1": "AVAILABLE", "2": "END"}
        (one,) = client.get("/v1/models/m/versions/2").json()["model_version_status"]
        assert one["status"]["error_code"] == "UNKNOWN"
        assert "serving_default.weft" in one["status"]["error_message"]
        assert [(v, s) for v, s, _ in index(client)] == [("1", "READY"), ("2", "UNAVAILABLE")]
        assert index(client)[1][2] == one["status"]["error_message"]
        assert index(client, ready=True) == [("1", "READY", "")]
        shutil.rmtree(folder / "1")  # the last that works goes on, whatever becomes of its files
        repository.refresh()
        assert factor_of(client) == 1.0
        whole.write_bytes(good)
        repository.refresh()
        assert factor_of(client) == 2.0


def test_a_server_starts_with_the_newest_that_works(folder: Path) -> None:
    (times(folder, 2) / "serving_default.weft").write_text("nothing")
    assert Repository([str(folder)]).find("m").number == 1
    shutil.rmtree(folder / "1")
    with pytest.raises(wf.errors.DataLossError):
        Repository([str(folder)])


def test_versions_that_are_removed(folder: Path) -> None:
    times(folder, 2)
    repository = Repository([str(folder)])
    with Client(App(repository)) as client:
        shutil.rmtree(folder / "2")
        repository.refresh()
        assert factor_of(client) == 1.0
        away = folder.with_name("away")
        folder.rename(away)  # a disk that is gone for a moment
        repository.refresh()
        assert factor_of(client) == 1.0
        away.rename(folder)
        shutil.rmtree(folder / "1")
        repository.refresh()
        assert factor_of(client) == 503
        assert client.get("/v2/models/m/ready").status == 503
        assert client.get("/v2/health/ready").status == 200
        times(folder, 2)
        repository.refresh()
        assert factor_of(client) == 2.0


def test_an_old_version_answers_what_it_was_asked(folder: Path) -> None:
    repository = Repository([str(folder)])
    version = repository.find("m")
    inner, begun, go = version.signatures["serving_default"], threading.Event(), threading.Event()

    class Held:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def is_quick(self, rows: int) -> bool:
            return False

        def __call__(self, arrays: Any) -> Any:
            begun.set()
            assert go.wait(60)
            return inner(arrays)

    app = App(repository)
    version.signatures["serving_default"] = Held()  # type: ignore[assignment]
    with Client(app) as client:
        body = json.dumps({"inputs": [1.0]}).encode()
        asked = [client.send("POST", "/v1/models/m:predict", body) for _ in range(3)]
        assert begun.wait(60)
        times(folder, 2)
        repository.refresh()
        assert states(client) == {"1": "UNLOADING", "2": "AVAILABLE"}
        assert index(client)[0] == ("1", "UNLOADING", "requests are under way")
        go.set()
        assert [one.result(60).json()["outputs"] for one in asked] == [[1.0]] * 3
        until(lambda: states(client)["1"] == "END")
        assert factor_of(client) == 2.0


def test_states_that_threads_tell_at_once() -> None:
    told = Model("m", "m")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda i=i: [told.tell(State(n, AVAILABLE)) for n in range(i, 2000, 4)]
            )
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(told.states) == list(range(2000))
    assert not told.tell(State(1, END), after=State(1, UNLOADING))  # another one is served by now
    assert told.states[1] == State(1, AVAILABLE)


def test_loading_and_unloading(folder: Path, tmp_path: Path) -> None:
    wf.export(lambda x: x + 7, tmp_path / "one", example=wf.TensorType(F32, ("n",)))
    repository = Repository([str(folder), f"one={tmp_path / 'one'}"])
    with Client(App(repository, may_load=True)) as client:
        path = "/v2/repository/models"
        assert client.ask("POST", f"{path}/m/unload").status == 200
        assert factor_of(client) == 503
        assert index(client)[0] == ("1", "UNAVAILABLE", "unloaded")
        times(folder, 2)
        repository.refresh()
        assert factor_of(client) == 503  # it was told to
        assert client.ask("POST", f"{path}/m/load", b"{}").status == 200
        assert factor_of(client) == 2.0
        times(folder, 2, by=5.0)  # other files under the same number
        repository.refresh()
        assert factor_of(client) == 2.0
        assert client.ask("POST", f"{path}/m/load").status == 200
        assert factor_of(client) == 5.0
        (folder / "2" / "bundle.json").write_text("{}")
        refused = client.ask("POST", f"{path}/m/load")
        assert refused.status >= 400
        assert "bundle.json" in refused.json()["error"]
        assert factor_of(client) == 5.0
        wf.export(
            lambda x: x + 8, tmp_path / "one", example=wf.TensorType(F32, ("n",)), replace=True
        )
        assert client.ask("POST", f"{path}/one/load").status == 200
        assert client.post("/v1/models/one:predict", {"inputs": [0]}).json() == {"outputs": [8.0]}
        files = {"parameters": {"file:1/a": "YQ=="}}
        assert client.post(f"{path}/m/load", files).status == 400
        assert client.ask("POST", f"{path}/none/load").status == 404
        assert client.ask("POST", f"{path}/none/unload").status == 404
        assert client.post("/v2/repository/index", {"ready": 1}).status == 400


def test_loading_is_not_for_everybody(folder: Path) -> None:
    with Client(App(Repository([str(folder)]))) as client:
        for what in ("load", "unload"):
            reply = client.ask("POST", f"/v2/repository/models/m/{what}")
            assert reply.status == 403
            assert "--model-control" in reply.json()["error"]
        assert factor_of(client) == 1.0


def test_statistics_by_version(folder: Path) -> None:
    repository = Repository([str(folder)])
    with Client(App(repository)) as client:
        for rows in (1, 3):
            client.post("/v1/models/m:predict", {"inputs": [1.0] * rows})
        (one,) = client.get("/v2/models/m/stats").json()["model_stats"]
        assert (one["name"], one["version"]) == ("m", "1")
        assert (one["inference_count"], one["execution_count"]) == (4, 2)
        assert abs(one["last_inference"] / 1e3 - time.time()) < 60
        told = one["inference_stats"]
        assert told["success"]["count"] == told["queue"]["count"] == 2
        assert told["success"]["ns"] >= told["compute_infer"]["ns"] > 0
        assert [b["batch_size"] for b in one["batch_stats"]] == [1, 3]
        times(folder, 2)
        repository.refresh()
        for path in ("/v2/models/stats", "/v2/models/m/stats", "/v2/models/m/versions/2/stats"):
            (one,) = client.get(path).json()["model_stats"]
            assert (one["version"], one["inference_count"]) == ("2", 0)
        assert client.get("/v2/models/m/versions/1/stats").status == 404


@pytest.mark.slow
@pytest.mark.alone
def test_swaps_leave_nothing_behind(tmp_path: Path) -> None:
    """Memory after thirty swaps of 5 MB of weights, each with kernels of its own."""

    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(one for one in lines if one.startswith("VmRSS")).split()[1])

    def put(number: int) -> None:
        w = wf.Variable(np.full((512, 512), number, np.float32), name="w")
        b = wf.Variable(np.full(1 << 20, number, np.float32), name="b")
        place = tmp_path / "m" / str(number)
        wf.export(lambda x: wf.nn.relu(wf.matmul(x, w)) + wf.sum(b), place,
                  example=wf.TensorType(F32, ("n", 512)))  # fmt: skip

    (tmp_path / "m").mkdir()
    put(1)
    repository = Repository([str(tmp_path / "m")])
    repository.prepared = lambda version: prepare(version, Limits())
    sizes = []
    for number in range(2, 42):
        put(number)
        shutil.rmtree(tmp_path / "m" / str(number - 1))
        repository.refresh()
        assert repository.find("m").number == number
        sizes.append(resident())
    assert max(sizes[-5:]) < max(sizes[5:10]) + (40 << 20)  # what is kept would be 150 MB
    assert len(repository.model("m").states) < 20


def test_a_swap_under_load_loses_no_request(folder: Path) -> None:
    last, published = 4, threading.Event()
    with serving(str(folder), "--poll-s", "0.05") as (process, address, _):
        seen: list[list[float]] = [[] for _ in range(6)]
        failed: list[object] = []

        def ask(mine: list[float]) -> None:
            connection = http.client.HTTPConnection(address, timeout=60)
            try:
                while not (published.is_set() and mine and mine[-1] == last):
                    connection.request("POST", "/v1/models/m:predict", b'{"inputs": [1, 2]}')
                    reply = connection.getresponse()
                    told = json.loads(reply.read())
                    one, two = told["outputs"]
                    assert two == 2 * one
                    mine.append(one)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=ask, args=(mine,)) for mine in seen]
        for thread in threads:
            thread.start()
        for number in range(2, last + 1):
            times(folder, number)
            until(lambda n=number: failed or all(n in mine for mine in seen))  # type: ignore[misc]
            if number == 3:  # one that is broken comes between
                bad = folder / "9"
                shutil.copytree(folder / "3", folder / ".9")
                (folder / ".9" / "bundle.json").write_bytes(os.urandom(50))
                (folder / ".9").rename(bad)
        shutil.rmtree(folder / "9")
        published.set()
        for thread in threads:
            thread.join(60)
        assert failed == []
        for mine in seen:  # a client that has seen the new one never sees the old one again
            assert mine == sorted(mine)
            assert set(mine) == {1.0, 2.0, 3.0, 4.0}
        process.terminate()
        assert process.wait(60) == 0
        assert "version 9 of model 'm' was not loaded" in process.stderr.read()


FROZEN = """
import gc
import weakref
from weft.frontend.serving.repository import collect_and_freeze

class Node:
    me = None

node = Node()
node.me, gone = node, weakref.ref(node)
collect_and_freeze()
assert gc.get_freeze_count()
del node
gc.collect()  # does not look at it
assert gone() is not None
collect_and_freeze()
assert gone() is None
"""


def test_what_is_frozen_is_given_back_when_a_version_goes() -> None:
    """In a process of few objects: those of all tests would be looked through twice."""
    done = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
