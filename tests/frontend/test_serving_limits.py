"""Serving under load and under attack: batches, limits, and requests that are wrong."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi import Client, Reply, binary_request
from hypothesis import example, given
from hypothesis import strategies as st

import weft as wf
from weft.frontend.serving.app import App
from weft.frontend.serving.batching import (
    Limits,
    QuickCalls,
    Scheduler,
    Waiting,
    joined,
    prepare,
)
from weft.frontend.serving.metrics import Metrics
from weft.frontend.serving.repository import Repository

F32 = wf.float32


class Held:
    """A signature whose calls wait until `go` is set; shapes: of the first input of each."""

    def __init__(self, signature: Any) -> None:
        self.signature, self.go = signature, threading.Event()
        self.begun, self.shapes = threading.Semaphore(0), list[tuple[int, ...]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.signature, name)

    def is_quick(self, rows: int) -> bool:
        return False

    def __call__(self, arrays: Sequence[Any]) -> Any:
        self.shapes.append(arrays[0].shape)
        self.begun.release()
        assert self.go.wait(60)
        return self.signature(arrays)


class Served:
    """A model under the name "m", its application, and a client."""

    def __init__(self, path: Path, **options: Any) -> None:
        limits = Limits(**{k: options.pop(k) for k in list(options) if hasattr(Limits, k)})
        repository = Repository([f"m={path}"])
        signatures = repository.find("m").signatures
        self.held = signatures["serving_default"] = Held(signatures["serving_default"])  # type: ignore[assignment]
        self.app = App(repository, limits, **options)
        self.told, self.client = self.app.service.told, Client(self.app)

    def __enter__(self) -> Served:
        self.client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.held.go.set()
        self.client.__exit__(*error)

    def send(self, x: Any, gone: asyncio.Event | None = None) -> Future[Reply]:
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape),
                                       "data": x.tolist()}]}).encode()  # fmt: skip
        return self.client.send("POST", "/v2/models/m/infer", body, None, gone)

    def queued(self, count: int) -> None:
        """Wait until so many requests are in the queue."""
        end = time.monotonic() + 60
        while len(self.app.service.scheduler) != count:
            assert time.monotonic() < end, len(self.app.service.scheduler)
            time.sleep(0.001)


def result(reply: Future[Reply]) -> Any:
    told = reply.result(60).json()["outputs"][0]
    return np.array(told["data"], np.float32).reshape(told["shape"])


def model(path: Path, function: Callable[[Any], Any], shape: tuple[Any, ...] = ("n", 3)) -> Path:
    wf.export(function, path / "m", example=wf.TensorType(F32, shape))
    return path / "m"


def rows_of(count: int, seed: int, width: int = 3) -> Any:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


class TestBatches:
    def test_requests_that_wait_go_together(self, tmp_path: Path) -> None:
        path = model(tmp_path, lambda x: wf.tanh(x) + wf.sum(x, axis=1, keepdims=True))
        loaded = wf.load(path)
        with Served(path, max_batch=8) as served:
            assert served.told == ["m/1:serving_default: batched up to 8 rows"]
            inputs = [rows_of(n, i) for i, n in enumerate([1, 1, 3, 0, 4, 1, 12, 2])]
            replies = [served.send(inputs[0])]
            assert served.held.begun.acquire(timeout=60)  # the only thread is busy with it
            for i, x in enumerate(inputs[1:], 1):
                replies.append(served.send(x))
                served.queued(i)
            served.held.go.set()
            for x, reply in zip(inputs, replies, strict=True):
                assert np.array_equal(result(reply), np.asarray(loaded(x)))
            # 1 + 3 + 0 + 4 rows are 8; 12 are more than fit with any
            assert served.held.shapes == [(1, 3), (8, 3), (1, 3), (12, 3), (2, 3)]
            timing = [reply.result().headers["server-timing"] for reply in replies]
            assert 'batch;desc="8"' in timing[2]
            assert 'batch;desc="12"' in timing[6]
            text = served.client.get("/metrics").body.decode()
        assert 'weft_requests_total{model="m",status="200"} 8' in text
        assert 'weft_batch_rows_bucket{model="m",le="1"} 2' in text
        assert 'weft_batch_rows_bucket{model="m",le="8"} 4' in text
        assert 'weft_batch_rows_sum{model="m"} 24' in text
        assert 'weft_queue_seconds_count{model="m"} 8' in text
        assert 'weft_compute_seconds_bucket{model="m",le="+Inf"} 5' in text

    def test_products_are_close(self, tmp_path: Path) -> None:
        w = np.random.default_rng(5).normal(size=(3, 7)).astype(np.float32)
        path = model(tmp_path, lambda x: wf.matmul(x, w))
        with Served(path, max_delay=0.2) as served:
            served.held.go.set()
            inputs = [rows_of(i % 3 + 1, i) for i in range(10)]
            replies = [served.send(x) for x in inputs]
            for x, reply in zip(inputs, replies, strict=True):
                assert np.allclose(result(reply), x @ w, rtol=1e-5, atol=1e-6)
            assert len(served.held.shapes) < len(inputs)

    def test_a_delay_waits_for_more_and_ends_when_full(self, tmp_path: Path) -> None:
        with Served(model(tmp_path, lambda x: x + 1), max_batch=4, max_delay=30.0) as served:
            served.held.go.set()
            begun = time.monotonic()
            replies = [served.send(rows_of(2, i)) for i in range(2)]
            assert [result(r).shape for r in replies] == [(2, 3), (2, 3)]
            assert time.monotonic() - begun < 20
            assert served.held.shapes == [(4, 3)]

    def test_other_sizes_go_apart(self, tmp_path: Path) -> None:
        path = model(tmp_path, lambda x: x * 2, ("n", "m"))
        with Served(path) as served:
            first = served.send(rows_of(1, 0))
            assert served.held.begun.acquire(timeout=60)
            inputs = [rows_of(1, i, 3 + i % 2) for i in range(6)]
            replies = []
            for i, x in enumerate(inputs, 1):
                replies.append(served.send(x))
                served.queued(i)
            served.held.go.set()
            for x, reply in zip(inputs, replies, strict=True):
                assert np.array_equal(result(reply), x * 2)
            result(first)
            assert served.held.shapes == [(1, 3), (3, 3), (3, 4)]

    def test_one_that_fails_spoils_no_other(self, tmp_path: Path) -> None:
        table = np.arange(12, dtype=np.float32).reshape(4, 3)
        wf.export(lambda x: wf.take(table, x, axis=0), tmp_path / "m",
                  example=wf.TensorType(wf.int64, ("n",)))  # fmt: skip

        def send(served: Served, number: int) -> Future[Reply]:
            entry = {"name": "x", "datatype": "INT64", "shape": [1], "data": [number]}
            body = json.dumps({"inputs": [entry]}).encode()
            return served.client.send("POST", "/v2/models/m/infer", body)

        with Served(tmp_path / "m") as served:
            assert served.told == ["m/1:serving_default: batched up to 64 rows"]
            first = send(served, 0)
            assert served.held.begun.acquire(timeout=60)
            replies = []
            for i, number in enumerate((1, 99, 3), 1):
                replies.append(send(served, number))
                served.queued(i)
            served.held.go.set()
            assert np.array_equal(result(first), table[:1])
            assert np.array_equal(result(replies[0]), table[1:2])
            assert np.array_equal(result(replies[2]), table[3:])
            assert replies[1].result(60).status == 400
            assert "99" in replies[1].result().json()["error"]

    @pytest.mark.parametrize(("function", "shape", "why"), [
        (lambda x: wf.nn.softmax(x, axis=0), ("n", 3), "rows of 'result' depend on other rows"),
        (lambda x: x - wf.mean(x), ("n", 3), "rows of 'result' depend on other rows"),
        (lambda x: wf.sum(x), ("n", 3), "the first size of 'result' is not 'n'"),
        (lambda x: x, ("n", "n"), "'x' has 'n' among its other sizes"),
        (lambda x: x, (2, 3), "its first input has no open first size"),
    ])  # fmt: skip
    def test_what_is_not_batched(
        self, tmp_path: Path, function: Any, shape: tuple[Any, ...], why: str
    ) -> None:
        with Served(model(tmp_path, function, shape)) as served:
            assert served.told == [f"m/1:serving_default: not batched: {why}"]

    @pytest.mark.parametrize(("seconds", "sums", "chosen"), [
        ([1.0, 1.1, 1.2, 1.3], [1, 2, 3, 4, 8], 5),  # more rows cost little
        ([1.0, 8.0, 9.0, 9.0], [1, 2, 4, 7], 1),  # a few cost more than each alone
        ([1.0, 8.0, 9.0, 4.0], [1, 2, 4, 8], 4),  # many are worth it
        ([1.0, 1.5, 9.0, 20.0], [1, 2, 3, 4], 2),  # of two rows a call is best
        ([1.0, 1.5, 9.0, 20.0], [1, 1, 2, 2, 9], 4),  # of none rows, too
        ([1.0, 2.2, 4.4, 8.8], [1, 2, 3, 20], 4),  # a little longer is as good: fewer calls
        ([1.0, 1.1, 1.2, 1.3], [0, 0, 2], 3),
        ([], [1, 2, 30], 3),  # it was not tried
    ])  # fmt: skip
    def test_how_many_go_together(
        self, tmp_path: Path, seconds: list[float], sums: list[int], chosen: int
    ) -> None:
        version = Repository([str(model(tmp_path, lambda x: x + 1))]).find("m")
        signature = version.signature()
        signature.by_rows = True
        signature.pace = [(1 << i, s) for i, s in enumerate(seconds)]
        scheduler = Scheduler(Limits(), Metrics())
        scheduler.close()
        counts = [b - a for a, b in pairwise([0, *sums])]
        waiting = [Waiting(version, signature, [rows_of(n, 0)], Future()) for n in counts]
        assert len(joined(waiting)) == chosen

    def test_quick_calls_of_one_turn_go_together(self, tmp_path: Path) -> None:
        """Sizes that ran before, as large as they come; what is cancelled is not called, and one
        that fails spoils no other."""
        version = Repository([str(model(tmp_path, lambda x: x * 2))]).find("m")
        signature = version.signature()
        signature.by_rows = True  # and its pace, whatever else runs here
        signature.ran, signature.pace = {1, 2, 4, 8}, [(n, 1e-5) for n in (1, 2, 4, 8)]
        calls: list[Any] = []

        class Noted:
            def __getattr__(self, name: str) -> Any:
                return getattr(signature, name)

            def __call__(self, arrays: Any) -> Any:
                calls.append(len(arrays[0]))
                if np.any(arrays[0] == 99):
                    raise wf.errors.InvalidArgumentError("99")
                return signature(arrays)

        async def run() -> list[Any]:
            quick, noted = QuickCalls(Limits(max_batch=8), Metrics()), Noted()
            sizes = [1, 1, 1, 2, 0, 3, 1, 1]
            given = [rows_of(n, i) for i, n in enumerate(sizes)]
            given[5][0] = 99
            asked = [quick.submit(version, noted, [x]) for x in given]  # type: ignore[arg-type]
            asked[1].cancel()
            assert calls == []  # they wait for the others of this turn
            found = await asyncio.gather(*asked, return_exceptions=True)
            for x, one in zip(given, found, strict=True):
                if x is given[1]:
                    assert isinstance(one, asyncio.CancelledError)
                elif x is given[5]:
                    assert isinstance(one, wf.errors.InvalidArgumentError)
                else:
                    assert np.array_equal(one.arrays[0], x * 2)
            assert quick.take(version, signature, [rows_of(1, 0)])
            assert not quick.take(version, signature, [rows_of(7, 0)])  # it never ran
            signature.note(7)
            assert quick.take(version, signature, [rows_of(7, 0)])
            version.add_writer(1)
            assert not quick.take(version, signature, [rows_of(1, 0)])  # it would wait for that
            version.add_writer(-1)
            signature.pace = [(1, 1.0)]
            assert not quick.take(version, signature, [rows_of(1, 0)])
            return found

        asyncio.run(run())
        # 1 + 1 + 2 + 0 + 3 + 1 are 8 rows, which fail as one; then the last
        assert calls == [8, 1, 1, 2, 0, 3, 1, 1]

    def test_quick_calls_without_batches(self, tmp_path: Path) -> None:
        """Each alone, of sizes that ran; with sizes that rows do not say, none is quick."""
        f32 = wf.float32
        examples = {"rows": wf.TensorType(f32, ("n",)), "fixed": wf.TensorType(f32, (3,)),
                    "open": wf.TensorType(f32, ("n", "m"))}  # fmt: skip
        calls: list[int] = []

        async def run(name: str) -> bool:
            path = tmp_path / name
            wf.export(lambda x: x * 2, path, example=examples[name])
            version = Repository([str(path)]).find(name)
            (told,) = prepare(version, Limits(max_batch=1))
            assert "not batched" in told
            signature = version.signature()
            signature.pace = signature.pace and [(1, 1e-5)]  # whatever else runs here
            quick = QuickCalls(Limits(max_batch=1, max_delay=1.0), Metrics())
            x = np.ones({"open": (1, 5)}.get(name, 3), np.float32)
            if name == "rows":
                assert not quick.take(version, signature, [x])  # 3 rows never ran
                assert quick.take(version, signature, [x[:1]])
                signature.note(3)
            if not quick.take(version, signature, [x]):
                return False
            asked = [quick.submit(version, signature, [x * i]) for i in range(3)]
            for i, one in enumerate(await asyncio.gather(*asked)):
                assert np.array_equal(one.arrays[0], x * 2 * i)
                calls.append(len(one.arrays[0]))
                assert one.rows is None
            return True

        found = {name: asyncio.run(run(name)) for name in examples}
        assert found == {"rows": True, "fixed": True, "open": False}
        assert calls == [3] * 6

    def test_a_call_that_writes_is_not_quick(self, tmp_path: Path) -> None:
        v = wf.Variable(0.0)
        path = model(tmp_path, lambda x: v.assign_add(wf.sum(x)) + x)
        version = Repository([str(path)]).find("m")
        prepare(version, Limits(max_batch=1))
        signature = version.signature()
        signature.note(1)
        assert signature.writes
        assert not QuickCalls(Limits(), Metrics()).take(version, signature, [rows_of(1, 0)])

    def test_quick_calls_are_of_rows_that_ran(self, tmp_path: Path) -> None:
        """Those that would be quicker for each row have no kernel yet, and are not called."""
        version = Repository([str(model(tmp_path, lambda x: x * 2))]).find("m")
        signature = version.signature()
        signature.by_rows, signature.ran = True, {1, 4}
        signature.pace = [(1, 1e-5), (2, 1e-5), (4, 1e-4)]

        async def run() -> list[int | None]:
            quick = QuickCalls(Limits(max_batch=8), Metrics())
            asked = [quick.submit(version, signature, [rows_of(1, i)]) for i in range(4)]
            return [one.rows for one in await asyncio.gather(*asked)]

        assert asyncio.run(run()) == [1, 1, 1, 1]
        assert signature.ran == {1, 4}

    @pytest.mark.slow
    def test_calls_are_tried_for_their_pace(self, tmp_path: Path) -> None:
        """What is quick for two rows and slow for more is called for two."""
        version = Repository([str(model(tmp_path, lambda x: x * 2))]).find("m")
        real = version.signature()

        class Slow(type(real)):  # type: ignore[misc]
            def __call__(self, arrays: Any, context: Any = None) -> Any:
                rows = len(arrays[0])
                time.sleep({0: 0, 1: 0.01, 2: 0.011}.get(rows, 0.04 * rows))
                return super().__call__(arrays, context)

        real.__class__ = Slow
        assert prepare(version, Limits(max_batch=16)) == [
            "m/1:serving_default: batched up to 2 rows: more take longer for each"
        ]
        assert prepare(version, Limits(max_batch=2)) == [
            "m/1:serving_default: batched up to 2 rows"
        ]


class TestLimits:
    def test_a_full_queue(self, tmp_path: Path) -> None:
        with Served(model(tmp_path, lambda x: x + 1), max_queue=2) as served:
            replies = [served.send(rows_of(1, 0))]
            assert served.held.begun.acquire(timeout=60)
            for i in (1, 2):
                replies.append(served.send(rows_of(1, i)))
                served.queued(i)
            refused = served.send(rows_of(1, 3)).result(60)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "error" in refused.json()
            served.held.go.set()
            assert [r.result(60).status for r in replies] == [200] * 3

    def test_a_timeout(self, tmp_path: Path) -> None:
        with Served(model(tmp_path, lambda x: x + 1), timeout=1.0) as served:
            runs = served.send(rows_of(1, 0))
            assert served.held.begun.acquire(timeout=60)
            waits = served.send(rows_of(2, 1))
            assert runs.result(60).status == waits.result(60).status == 504
            served.queued(0)
            served.held.go.set()
            assert served.send(rows_of(3, 2)).result(60).status == 200
            assert served.held.shapes == [(1, 3), (3, 3)]  # what waited is not called

    def test_a_client_that_goes(self, tmp_path: Path) -> None:
        with Served(model(tmp_path, lambda x: x + 1), max_batch=1) as served:
            first = served.send(rows_of(1, 0))
            assert served.held.begun.acquire(timeout=60)
            gone = asyncio.Event()
            left = served.send(rows_of(2, 1), gone)
            served.queued(1)
            served.client.loop.call_soon_threadsafe(gone.set)
            assert left.result(60).status == 499
            served.queued(0)
            served.held.go.set()
            assert first.result(60).status == 200
        assert served.held.shapes == [(1, 3)]

    def test_a_body_that_is_too_long(self, tmp_path: Path) -> None:
        with Served(model(tmp_path, lambda x: x), max_body=1000) as served:
            path, client = "/v2/models/m/infer", served.client
            assert client.ask("POST", path, b" " * 1001).status == 413
            assert client.ask("POST", path, [b" " * 300] * 4).status == 413
            lie = {"Content-Length": "9" * 30}
            assert client.ask("POST", path, b"{}", lie).status == 413
            assert client.ask("POST", path, [b" " * 300] * 3).status == 400
            coded = {"Content-Encoding": "gzip"}
            assert client.ask("POST", path, b"{}", coded).status == 415

    @pytest.mark.parametrize(("said", "status"), [({}, 499), ({"Content-Length": "2000"}, 413)])
    def test_a_client_that_goes_within_its_body(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, said: dict[str, str], status: int
    ) -> None:
        with Served(model(tmp_path, lambda x: x), max_body=1000) as served:
            gone = asyncio.Event()
            sent = served.client.send("POST", "/v2/models/m/infer", [b" " * 10], said, gone)
            served.client.loop.call_soon_threadsafe(gone.set)
            assert sent.result(60).status == status
        assert caplog.text == ""  # it is no fault of the server

    def test_bodies_that_are_too_long_together(self, tmp_path: Path) -> None:
        with Served(model(tmp_path, lambda x: x), max_body=1000) as served:
            entry = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
            body = json.dumps({"inputs": [entry]}).encode().ljust(1000)

            def send() -> Future[Reply]:
                return served.client.send("POST", "/v2/models/m/infer", body)

            replies = [send()]
            assert served.held.begun.acquire(timeout=60)
            for i in range(1, 16):
                replies.append(send())
                served.queued(i)
            refused = send().result(60)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            served.held.go.set()
            assert [r.result(60).status for r in replies] == [200] * 16
            assert [send().result(60).status for _ in range(20)] == [200] * 20

    def test_a_token(self, tmp_path: Path) -> None:
        with Served(model(tmp_path, lambda x: x), token="secret") as served:
            ask = served.client.get
            assert ask("/v2/health/live").status == ask("/v2/health/ready").status == 200
            for headers in ({}, {"Authorization": "secret"}, {"Authorization": "Bearer secre"},
                            {"Authorization": "Bearer sécret"}):  # fmt: skip
                for path in ("/v2", "/metrics", "/v1/models/m", "/none"):
                    reply = ask(path, headers)
                    assert reply.status == 401
                    assert "token" in reply.json()["error"]
            assert ask("/v2", {"Authorization": "Bearer secret"}).status == 200

    def test_a_server_that_stops(self, tmp_path: Path) -> None:
        with Served(model(tmp_path, lambda x: x)) as served:
            reply = served.send(rows_of(1, 0))
            assert served.held.begun.acquire(timeout=60)
            closing = threading.Thread(target=served.app.close)
            closing.start()
            while served.app.service.ready:
                time.sleep(0.001)
            for path in ("/v2/health/ready", "/v2/models/m/ready"):
                assert served.client.get(path).status == 503
            assert served.client.get("/v2/health/live").status == 200
            served.held.go.set()
            closing.join(60)
            assert reply.result(60).status == 200
            assert served.send(rows_of(1, 0)).result(60).status == 503

    @pytest.mark.parametrize("wrong", [{"threads": 0}, {"max_batch": 0}, {"max_queue": 0},
                                       {"max_delay": -1.0}, {"timeout": float("nan")}])  # fmt: skip
    def test_limits_that_are_none(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(wf.errors.InvalidArgumentError, match="must be"):
            Limits(**wrong)


# ------------------------------------------------------------------------------- wrong requests


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("wrong")
    kinds = {"x": wf.TensorType(F32, ("n", 2)), "i": wf.TensorType(wf.uint8, ("n",)),
             "s": wf.TensorType(wf.string, ())}  # fmt: skip
    wf.export(lambda x, i, s: (x, i, s), path / "m", example=kinds)
    wf.export(lambda b: b, path / "b", example=wf.TensorType(wf.bool, ("n",)))
    with Client(App(Repository([str(path / "m"), str(path / "b")]))) as made:
        yield made


X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
I = {"name": "i", "datatype": "UINT8", "shape": [1], "data": [3]}  # noqa: E741
S = {"name": "s", "datatype": "BYTES", "shape": [], "data": ["a"]}
GOOD = {"inputs": [X, I, S]}


def refused(client: Client, reply: Reply, *, text: str = "") -> None:
    """A status from 400 to 499, with why as JSON; and the server goes on."""
    assert 400 <= reply.status < 500, (reply.status, reply.body)
    error = reply.json()
    assert list(error) == ["error"]
    assert "Traceback" not in error["error"]
    assert text in error["error"]
    assert client.post("/v2/models/m/infer", GOOD).status == 200


def x_with(**changed: Any) -> Any:
    return {"inputs": [{**X, **changed}, I, S]}


WRONG: dict[str, tuple[Any, str]] = {
    "no inputs": ({}, "the input 'x' is missing"),
    "inputs of another type": ({"inputs": 3}, "no list"),
    "an input is missing": ({"inputs": [X, S]}, "the input 'i' is missing"),
    "an input twice": ({"inputs": [X, X, I, S]}, "twice"),
    "an unknown input": ({"inputs": [X, I, S, {**X, "name": "y"}]}, "no input 'y'"),
    "an unknown output": ({**GOOD, "outputs": [{"name": "y"}]}, "no output 'y'"),
    "another dtype": (x_with(datatype="FP64"), "is FP32, but the request says FP64"),
    "no shape": (x_with(shape=None), "the shape of input 'x'"),
    "a negative size": (x_with(shape=[-1, 2]), "the shape of input 'x'"),
    "a size that is true": (x_with(shape=[True, 2]), "the shape of input 'x'"),
    "a huge size": (x_with(shape=[10**18, 2]), "takes 2000000000000000000"),
    "a size beyond all": (x_with(shape=[10**30, 2]), "the shape of input 'x'"),
    "nothing of a huge size": (x_with(shape=[0, 10**12], data=[]), "no elements"),
    "many axes": (x_with(shape=[1] * 40), "at most 32"),
    "another rank": (x_with(shape=[2]), "takes [-1, 2]"),
    "another static size": (x_with(shape=[1, 3], data=[1, 2, 3]), "takes [-1, 2]"),
    "sizes that differ": (x_with(shape=[2, 2], data=[1, 2, 3, 4]), "input 'i' has the shape [1]"),
    "too few values": (x_with(data=[1]), "has 1 values"),
    "no data": (x_with(data=None), "no data"),
    "ragged lists": (x_with(shape=[2, 2], data=[[1, 2], [3]]), "do not nest"),
    "lists too deep": (x_with(data=[[[1], [2]]]), "type list"),
    "text": (x_with(data=["1", 2]), "type str"),
    "a float that is too large": (x_with(data=[1e39, 0]), "beyond FP32"),
    "an int that is too large": (x_with(data=[10**400, 0]), "beyond FP32"),
    "a byte that is too large": ({"inputs": [X, {**I, "data": [256]}, S]}, "beyond UINT8"),
    "a byte below zero": ({"inputs": [X, {**I, "data": [-1]}, S]}, "beyond UINT8"),
    "a fraction": ({"inputs": [X, {**I, "data": [1.5]}, S]}, "type float"),
    "true for an int": ({"inputs": [X, {**I, "data": [True]}, S]}, "type bool"),
    "half a pair": ({"inputs": [X, I, {**S, "data": ["\ud800"]}]}, "not Unicode"),
    "an id that is none": ({**GOOD, "id": 3}, "the id"),
    "parameters that are none": ({**GOOD, "parameters": []}, "no JSON object"),
    "a list as parameter": ({**GOOD, "parameters": {"a": []}}, "the parameter 'a'"),
    "a signature that is none": ({**GOOD, "parameters": {"signature": "a"}}, "no signature 'a'"),
    "a number for a signature": ({**GOOD, "parameters": {"signature": 1}}, "must be a string"),
    "shared memory": (x_with(parameters={"shared_memory_region": "a"}), "not supported"),
    "bytes that are not there": (
        {"inputs": [{k: X[k] for k in ("name", "datatype", "shape")}
                    | {"parameters": {"binary_data_size": 8}}, I, S]}, "0 are left"),
    "bytes and data": (x_with(parameters={"binary_data_size": 0}), "both"),
    "a flag that is none": (
        {**GOOD, "parameters": {"binary_data_output": 1}}, "must be true or false"),
}  # fmt: skip


class TestWrongRequests:
    @pytest.mark.parametrize("name", WRONG)
    def test_infer(self, client: Client, name: str) -> None:
        told, text = WRONG[name]
        refused(client, client.post("/v2/models/m/infer", told), text=text)

    @pytest.mark.parametrize("body", [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"inputs": ' + b"[" * 100_000,
        b'{"id": ' + b"9" * 10_000 + b"}",
    ])  # fmt: skip
    def test_bodies_that_are_no_request(self, client: Client, body: bytes) -> None:
        for path in ("/v2/models/m/infer", "/v1/models/m:predict"):
            refused(client, client.ask("POST", path, body))

    @pytest.mark.parametrize("length", ["-1", "x", "", "1e3", "99999", "9" * 40, "²", "3"])
    def test_lying_lengths(self, client: Client, length: str) -> None:
        headers = {"Inference-Header-Content-Length": length}
        body = json.dumps(GOOD).encode()
        refused(client, client.ask("POST", "/v2/models/m/infer", body, headers))

    @pytest.mark.parametrize(("size", "tail", "text"), [
        (8, b"\0" * 7, "7 are left"), (8, b"\0" * 9, "1 bytes of the request are of no tensor"),
        (7, b"\0" * 7, "takes 8"), (-1, b"", "-1 bytes"), ("8", b"\0" * 8, "8 bytes"),
        (True, b"\0", "True bytes"), (10**30, b"", "bytes, but 0"),
    ])  # fmt: skip
    def test_bytes_of_numbers(self, client: Client, size: Any, tail: bytes, text: str) -> None:
        x = {"name": "x", "datatype": "FP32", "shape": [1, 2],
             "parameters": {"binary_data_size": size}}  # fmt: skip
        body, headers = binary_request({"inputs": [x, I, S]}, tail)
        reply = client.ask("POST", "/v2/models/m/infer", body, headers)
        refused(client, reply, text=text)

    @pytest.mark.parametrize("tail", [
        b"", b"\0", struct.pack("<I", 5) + b"abcd", struct.pack("<I", 2**32 - 1),
        struct.pack("<I", 0) * 2,
    ])  # fmt: skip
    def test_bytes_of_strings(self, client: Client, tail: bytes) -> None:
        s = {"name": "s", "datatype": "BYTES", "shape": [],
             "parameters": {"binary_data_size": len(tail)}}  # fmt: skip
        body, headers = binary_request({"inputs": [X, I, s]}, tail)
        refused(client, client.ask("POST", "/v2/models/m/infer", body, headers))

    def test_bytes_that_are_no_booleans(self, client: Client) -> None:
        b = {"name": "b", "datatype": "BOOL", "shape": [3],
             "parameters": {"binary_data_size": 3}}  # fmt: skip
        body, headers = binary_request({"inputs": [b]}, b"\x00\x02\xff")
        reply = client.ask("POST", "/v2/models/b/infer", body, headers)
        assert reply.json()["outputs"][0]["data"] == [False, True, True]

    @pytest.mark.parametrize("told", [
        {}, {"instances": [], "inputs": []}, {"instances": []}, {"instances": 3},
        {"instances": [1]}, {"instances": [{"x": [1, 2]}]}, {"inputs": {"x": [[1, 2]], "i": [1]}},
        {"instances": [{"x": [1, 2], "i": 1, "s": "a", "y": 1}]},
        {"instances": [{"x": [1, 2], "i": 1, "s": {"b64": "%"}}]}, {"inputs": {"b64": "YQ=="}},
        {"inputs": {"x": [[1, 2]], "i": [1], "s": {"b64": 3}}},
        {"inputs": {"x": [[1, 2]], "i": [1], "s": {"c": "a"}}},
        {"inputs": {"x": [[1, 2], [3]], "i": [1, 2], "s": "a"}},
        {"inputs": {"x": [[[1, 2]]], "i": [1], "s": "a"}}, {"inputs": {}, "signature_name": []},
        {"inputs": {"x": [1, [2]], "i": [1], "s": "a"}}, {"inputs": {}, "signature_name": "no"},
        {"inputs": {"x": [[]], "i": [1], "s": "a"}},
        {"inputs": {"x": [[1, 2]], "i": [1], "s": "a"}, "signature_name": {"a": 1}},
    ], ids=str)  # fmt: skip
    def test_predict(self, client: Client, told: Any) -> None:
        refused(client, client.post("/v1/models/m:predict", told))

    @pytest.mark.parametrize("path", [
        "/v2/models", "/v2/models/", "/v2/models/..", "/v2/models/../m", "/v2/models//m",
        "/v2/models/m/", "/v2/models/m/versions/2", "/v2/models/m/versions/", "/v2/models/m\x00",
        "/v2/models/m/versions/../1", "/v2/models/%2e%2e", "/v2/models//etc/passwd", "/v3",
        "/v2/models/" + "m" * 5000, "/v1/models/m:predict", "/v1/models/m/labels/stable",
        "/v2/models/m/infer", "/v1/models/é", "/v2/models/m/versions/01", "/docs",
    ])  # fmt: skip
    def test_paths(self, client: Client, path: str) -> None:
        refused(client, client.get(path))

    @pytest.mark.parametrize("path", ["/v1/models/m:explain", "/v1/models/m", "/v2", "/metrics"])
    def test_methods(self, client: Client, path: str) -> None:
        refused(client, client.post(path, {}))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["name", "shape", "data", "datatype", "b64", "x", "i", "s", "parameters"]),
        inner, max_size=3,
    ),
    max_leaves=8,
)  # fmt: skip
ENTRY = st.fixed_dictionaries({}, optional={
    "name": st.sampled_from(["x", "i", "s"]) | VALUES,
    "shape": st.lists(st.integers(-1, 3), max_size=3) | VALUES,
    "datatype": st.sampled_from(["FP32", "UINT8", "BYTES"]) | VALUES,
    "data": VALUES, "parameters": VALUES | st.fixed_dictionaries({"binary_data_size": VALUES}),
})  # fmt: skip
REQUEST = st.fixed_dictionaries({}, optional={
    "inputs": st.lists(ENTRY, max_size=4) | VALUES, "outputs": st.lists(ENTRY) | VALUES,
    "parameters": VALUES, "id": VALUES, "instances": VALUES, "signature_name": VALUES,
    "examples": st.lists(st.dictionaries(st.sampled_from("xis"), VALUES)) | VALUES,
})  # fmt: skip


@given(REQUEST, st.binary(max_size=20), st.integers(-3, 40))
@example(GOOD, b"", 0)
def test_made_up_requests(client: Client, told: Any, tail: bytes, off: int) -> None:
    """Whatever comes, the answer is JSON, and never that the server is at fault."""
    head = json.dumps(told).encode()
    headers = {"Inference-Header-Content-Length": str(len(head) + min(off, len(tail)))}
    for path, more in (("/v2/models/m/infer", headers), ("/v2/models/m/infer", {}),
                       ("/v1/models/m:predict", {}), ("/v1/models/m:classify", {})):  # fmt: skip
        reply = client.ask("POST", path, head + (tail if more else b""), more)
        assert reply.status < 500, reply.body
        if reply.status != 200:
            assert list(reply.json()) == ["error"]


@given(st.binary(max_size=200), st.none() | st.text(max_size=5) | st.integers(0, 250).map(str))
def test_made_up_bytes(client: Client, body: bytes, length: str | None) -> None:
    latin = None if length is None else length.encode("latin-1", "replace").decode("latin-1")
    headers = {} if latin is None else {"Inference-Header-Content-Length": latin}
    reply = client.ask("POST", "/v2/models/m/infer", body, headers)
    assert 400 <= reply.status < 500
    assert list(reply.json()) == ["error"]


# ------------------------------------------------------------------------- calls that are stopped


ENDLESS, SHORT = {"inputs": [10**12]}, {"inputs": [3]}


class TestCallsThatRun:
    """A loop of 10 ** 12 rounds, asked by a client that goes or has no time, holds the only thread
    no longer than that."""

    @pytest.fixture(params=["while", "scan"])
    def served(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
        def rounds(n: Any) -> Any:
            def step(i: Any, s: Any) -> Any:
                return i + 1, wf.sin(s) + 1.0

            start = (wf.constant(np.int64(0)), wf.constant(np.float32(0)))
            most = wf.max(n)
            if request.param == "while":
                return wf.while_loop(lambda i, s: i < most, step, start)[1] + wf.astype(n, F32)

            def inner(c: Any, x: Any) -> Any:
                found = wf.while_loop(lambda i, s: i < most, step, start)[1] + c + x
                return found, found

            return wf.scan(inner, wf.constant(np.float32(0)), wf.astype(n, F32))[1]

        wf.export(rounds, tmp_path / "m", example=wf.TensorType(wf.int64, ("n",)))
        app = App(Repository([str(tmp_path / "m")]), Limits(timeout=30.0))
        with Client(app) as client:
            yield client

    def asked(self, client: Client, told: Any, gone: asyncio.Event | None = None) -> Future[Reply]:
        body = json.dumps(told).encode()
        return client.send("POST", "/v1/models/m:predict", body, None, gone)

    def until_it_runs(self, client: Client, reply: Future[Reply]) -> None:
        end = time.monotonic() + 60
        time.sleep(0.2)
        while len(client.app.service.scheduler):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not reply.done()

    def test_a_client_that_goes(self, served: Client) -> None:
        gone = asyncio.Event()
        left = self.asked(served, ENDLESS, gone)
        self.until_it_runs(served, left)
        waits = self.asked(served, SHORT)
        served.loop.call_soon_threadsafe(gone.set)
        assert left.result(60).status == 499
        assert waits.result(10).status == 200

    def test_a_request_that_has_no_time(self, served: Client) -> None:
        entry = {"name": "n", "datatype": "INT64", "shape": [1], "data": [10**12]}
        told = {"inputs": [entry], "parameters": {"timeout": 100_000}}
        begun = time.monotonic()
        reply = served.post("/v2/models/m/infer", told)
        assert reply.status == 504
        assert "no result within 0.1 seconds" in reply.json()["error"]
        assert self.asked(served, SHORT).result(10).status == 200
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("all_go", [False, True])
def test_a_call_of_several_runs_while_one_is_waited_for(tmp_path: Path, all_go: bool) -> None:
    version = Repository([str(model(tmp_path, lambda x: x + 1))]).find("m")
    begun, stopped = threading.Semaphore(0), list[str]()
    may = [threading.Event(), threading.Event()]  # of each call

    class Looping:
        name, by_rows, loops, writes, calls = "looping", True, True, False, 0

        def seconds(self, rows: int) -> float:
            return 1.0

        def note(self, rows: int) -> None:
            pass

        def __call__(self, arrays: Sequence[Any], context: Any) -> Sequence[Any]:
            go = may[self.calls]
            self.calls += 1
            begun.release()
            while not go.wait(0.01):
                if context.cancel.is_cancelled:
                    stopped.append(context.cancel.reason)
                    raise context.cancel.error("it looped")
            return arrays

    scheduler, signature = Scheduler(Limits(), Metrics()), Looping()
    asked = [scheduler.submit(version, signature, [rows_of(1, 0)])]  # type: ignore[arg-type]
    assert begun.acquire(timeout=60)
    asked += [scheduler.submit(version, signature, [rows_of(1, i)]) for i in (1, 2)]  # type: ignore[arg-type]
    may[0].set()
    assert begun.acquire(timeout=60)
    assert not asked[1].cancel()
    if all_go:
        asked[2].cancel()
        for one in asked[1:]:
            with pytest.raises(wf.errors.CancelledError):
                one.result(60)
        assert stopped == ["nobody waits for its results"]
    else:
        time.sleep(0.1)
        may[1].set()
        assert np.array_equal(asked[2].result(60).arrays[0], rows_of(1, 2))
        assert stopped == []
    scheduler.close()


@pytest.mark.parametrize("given", [-1, 1.5, "x", True, [], 10**30])
def test_timeouts_that_are_none(client: Client, given: Any) -> None:
    refused(client, client.post("/v2/models/m/infer", {**GOOD, "parameters": {"timeout": given}}))


@pytest.mark.parametrize("given", [0, 60_000_000, "60000000"])
def test_timeouts(client: Client, given: Any) -> None:
    told = {**GOOD, "parameters": {"timeout": given}}
    assert client.post("/v2/models/m/infer", told).status == 200
