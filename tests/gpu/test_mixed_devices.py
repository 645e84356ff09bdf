"""Steps whose ops are on the CPU and on GPUs (emulated) of one process."""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from gpu_kinds import need_gpus, on_a_real_one_too
from paths import ROOT

import weft as wf
from weft.codegen import native_language
from weft.ir.analysis.verify import verify_program
from weft.ir.text.parser import parse_graph, parse_program
from weft.passes.control.dataflow_regions import plan_regions, steering
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.runtime.cluster import definition, multi_device
from weft.runtime.cluster.server import Server
from weft.runtime.device.array import DeviceValue
from weft.runtime.device.backends.registry import gpu
from weft.runtime.device.execution.executable import DeviceExecutable
from weft.runtime.device.execution.regions import OnGpu

sys.path.insert(0, str(ROOT / "examples"))
CPU = "/job:localhost/task:0/cpu:0"
DEVICES = (CPU, "/job:localhost/task:0/gpu:0", "/job:localhost/task:0/gpu:1")
FULL = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)


@pytest.fixture(autouse=True)
def _two(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are emulated; on the machine's own, as many as there are."""
    if place == "emulated":
        monkeypatch.setenv("WEFT_EMULATE_GPU", "2")


# -------------------------------------------------------------------------------- steps of sessions
def _both(build: Callable[[str], Any]) -> list[Any]:
    """What `build(device of the model)` fetches, with the model on the CPU and on the GPU."""
    out = []
    for device in ("/cpu:0", "/gpu:0"):
        with wf.Graph().as_default(), wf.device("/cpu:0"):
            out.append(build(device))
    return out


def _training(device: str) -> list[float]:
    """Losses of a classifier: batches come through a queue and an embedding of the CPU."""
    rng = np.random.default_rng(0)
    queue = wf.FIFOQueue(8, [wf.int64, wf.float32], [[5], [5, 3]])
    ids, labels = wf.placeholder(wf.int64, [5]), wf.placeholder(wf.float32, [5, 3])
    put = queue.enqueue([ids, labels])
    table = wf.Variable(rng.standard_normal((10, 4)).astype(np.float32), name="table")
    batch_ids, batch_labels = queue.dequeue()
    rows = wf.nn.embedding_lookup(table, batch_ids)
    with wf.device(device):
        w = wf.Variable(rng.standard_normal((4, 3)).astype(np.float32), name="w")
        logits = wf.matmul(wf.tanh(rows), w)
        each = wf.nn.softmax_cross_entropy_with_logits(labels=batch_labels, logits=logits)
        loss = wf.reduce_mean(each)
    train = wf.train.GradientDescentOptimizer(0.5).minimize(loss)
    losses = []
    with wf.Session() as session:
        session.run(wf.global_variables_initializer())
        for _ in range(4):
            one_hot = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 5)]
            session.run(put, {ids: rng.integers(0, 10, 5), labels: one_hot})
            losses.append(float(session.run([loss, train])[0]))
        assert (w.state.resident is not None) == ("gpu" in device)
        assert table.state.resident is None
        losses += np.asarray(session.run(table)).ravel().tolist()
    return losses


@on_a_real_one_too
def test_a_queue_and_an_embedding_of_the_cpu_feed_a_model_on_the_gpu() -> None:
    on_cpu, on_gpu_ = _both(_training)
    np.testing.assert_allclose(on_gpu_, on_cpu, rtol=1e-5, atol=1e-6)
    assert on_cpu[3] != on_cpu[0]


def _digits(device: str) -> list[float]:
    """Losses of Figure 1's program; a thread fills the queue that its batches come from."""
    import digits

    data, start = digits.load_digits(), digits.initial_weights()
    x, y = wf.placeholder(wf.float32, [32, 64]), wf.placeholder(wf.float32, [32, 10])
    queue = wf.FIFOQueue(2, [wf.float32, wf.float32], [[32, 64], [32, 10]])
    put, (images, labels) = queue.enqueue([x, y]), queue.dequeue()
    with wf.device(device):
        w_1, b_1 = wf.Variable(start.w1), wf.Variable(start.b1)
        w_2, b_2 = wf.Variable(start.w2), wf.Variable(start.b2)
        logits = wf.matmul(wf.nn.relu(wf.matmul(images, w_1) + b_1), w_2) + b_2
        loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        train = wf.train.AdagradOptimizer(0.05).minimize(loss)
    with wf.Session() as session:
        session.run(wf.global_variables_initializer())

        def fill() -> None:
            for batch in data.batches(6, 32):
                session.run(put, dict(zip((x, y), batch, strict=True)))

        thread = threading.Thread(target=fill)
        thread.start()
        late = wf.RunOptions(timeout=60)
        losses = [float(session.run([loss, train], options=late)[0]) for _ in range(6)]
        thread.join(60)
    return losses


@pytest.mark.slow
@on_a_real_one_too
def test_the_digits_with_an_input_queue_have_the_losses_of_the_cpu() -> None:
    on_cpu, there = _both(_digits)
    assert on_cpu[-1] < on_cpu[0]
    np.testing.assert_allclose(there, on_cpu, rtol=1e-5)


def _mixed_graph() -> tuple[wf.Graph, Any, Any, Any]:
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [3])
        with wf.device("/gpu:0"):
            a = wf.exp(x) + 1.0
        with wf.device("/cpu:0"):
            b = a * 2.0
        with wf.device("/gpu:0"):
            c = wf.sum(b + a)
    return graph, x, b, c


@on_a_real_one_too
def test_values_go_there_and_back() -> None:
    graph, x, b, c = _mixed_graph()
    with wf.Session(graph=graph) as session:
        for _ in range(3):
            found = session.run([b, c], {x: np.arange(3, dtype=np.float32)})
        expected = np.exp(np.arange(3)) + 1
        np.testing.assert_allclose(found[0], 2 * expected, rtol=1e-6)
        np.testing.assert_allclose(found[1], 3 * expected.sum(), rtol=1e-6)


@on_a_real_one_too
def test_what_is_told_of_parts_and_copies() -> None:
    graph, x, b, c = _mixed_graph()
    held = wf.RunMetadata()
    feed = {x: np.ones(3, np.float32)}
    with wf.Session(graph=graph) as session:
        session.run([b, c], feed, options=FULL, run_metadata=held)
        text = session.explain([b, c], feed)
    assert (held.executor, held.devices) == ("devices", ("/cpu:0", "/gpu:0"))
    assert (held.copies, held.copied_bytes) == (2, 24)
    assert "2 parts, on /cpu:0, /gpu:0, with 2 copies (24 bytes) between them" in str(held)
    assert {"send", "recv"} <= {name for event in held.events for name in event.ops}
    assert "2 parts, on /cpu:0 and /gpu:0" in text
    assert "part of /gpu:0" in text
    assert "launches of" in text
    assert "f32[3], 12 bytes, /gpu:0 -> /cpu:0 at " in text


def _loop_with_gradient(around: str) -> Callable[[str], Any]:
    """A loop, led from `around`, half of whose body is on the device that it is built for."""

    def build(inner: str) -> Any:
        x = wf.placeholder(wf.float32, [4])
        n = wf.placeholder(wf.int32, [])

        def body(i: Any, v: Any) -> Any:
            with wf.device(inner):
                u = wf.exp(wf.sin(v)) * 0.5  # the gradient reads what was computed here
            with wf.device("/cpu:0"):
                return i + 1, u * 1.5

        with wf.device(around):
            _, last = wf.while_loop(lambda i, v: i < n, body, [wf.constant(0), x])
            loss = wf.sum(wf.square(last))
        with wf.device(inner):  # what the iterations keep is there, too
            (slope,) = wf.gradients([loss], [x])
        with wf.Session() as session:
            feeds = {x: np.linspace(0, 1, 4, dtype=np.float32)}
            return [session.run([loss, slope], {**feeds, n: np.int32(k)}) for k in (0, 3, 5, 5)]

    return build


@on_a_real_one_too
@pytest.mark.parametrize("around", ["/cpu:0", "/gpu:0"])
def test_a_loop_and_its_gradient_over_both(around: str) -> None:
    for got, want in zip(*_both(_loop_with_gradient(around)), strict=True):
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-6)


@on_a_real_one_too
def test_a_branch_with_a_side_on_each() -> None:
    def build(device: str) -> Any:
        x = wf.placeholder(wf.float32, [3])

        def yes() -> Any:
            with wf.device(device):
                return wf.exp(x)

        def no() -> Any:
            with wf.device("/cpu:0"):
                return x - 1.0

        y = wf.cond(wf.sum(x) > 0, yes, no)
        (slope,) = wf.gradients([wf.sum(wf.square(y))], [x])
        with wf.Session() as session:
            return [session.run([y, slope], {x: np.full(3, k, np.float32)}) for k in (1, -1, 2)]

    for got, want in zip(*_both(build), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@on_a_real_one_too
def test_an_optimizer_with_variables_on_both_counts_in_a_loop() -> None:
    def build(device: str) -> Any:
        on_cpu = wf.Variable(np.float32(1.0), name="c")
        with wf.device(device):
            there = wf.Variable(np.ones(3, np.float32), name="g")
            loss = wf.sum(wf.square(there * on_cpu - 3.0))
        train = wf.train.AdamOptimizer(0.1).minimize(loss)
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            return [*(session.run([loss, train])[0] for _ in range(5)), session.run(on_cpu)]

    got, want = _both(build)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.fixture
def lazy_driver(fake: Callable[..., FakeDriver]) -> FakeDriver:
    """/gpu:0 over a fake driver whose streams do nothing before somebody waits."""
    return fake()


def test_no_wait_is_missing_between_regions(lazy_driver: FakeDriver) -> None:
    got, want = _both(_loop_with_gradient("/cpu:0"))
    for found, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)
    on_cpu, there = _both(_training)
    np.testing.assert_allclose(there, on_cpu, rtol=1e-5, atol=1e-6)
    assert lazy_driver.calls.count("upload") > 0


# ------------------------------------------------------------------------------------------- errors
def _with_indices() -> tuple[Any, Any, Any, Any]:
    """A lookup on the GPU and one on the CPU, each feeding the other device."""
    table = wf.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    first, second = wf.placeholder(wf.int64, [2]), wf.placeholder(wf.int64, [2])
    with wf.device("/gpu:0"):
        there = wf.gather(table * 2.0, first)
    with wf.device("/cpu:0"):
        here = wf.gather(table + wf.sum(there), second)
    with wf.device("/gpu:0"):
        total = wf.sum(here * there)
    return first, second, here, total


@on_a_real_one_too
@pytest.mark.parametrize(("bad", "line"), [("first", "there ="), ("second", "here =")])
def test_an_index_out_of_bounds_ends_the_step_and_the_next_one_works(bad: str, line: str) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        first, second, here, total = _with_indices()
        good = {first: np.array([0, 1]), second: np.array([2, 3])}
        expected = session.run([here, total], good)
        for _ in range(3):
            key = first if bad == "first" else second
            with pytest.raises(wf.errors.InvalidArgumentError, match=r"index 9 .*\n.*") as caught:
                session.run([here, total], {**good, key: np.array([0, 9])})
            assert "gather" in str(caught.value) or "take" in str(caught.value)
            lines = Path(__file__).read_text(encoding="utf-8").splitlines()
            assert line in lines[caught.value.locations[0].line - 1]
            for got, want in zip(session.run([here, total], good), expected, strict=True):
                np.testing.assert_array_equal(got, want)


def test_a_python_function_that_fails_ends_the_part_of_the_gpu() -> None:
    def check(x: Any) -> Any:
        if x[0] > 5:
            raise ValueError("too large")
        return x + 1

    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [3])
        with wf.device("/gpu:0"):
            y = wf.exp(x)
        with wf.device("/cpu:0"):
            z = wf.py_function(check, [y], wf.float32, shapes=(3,))
        with wf.device("/gpu:0"):
            w = z * y
        feed = {x: np.zeros(3, np.float32)}
        np.testing.assert_allclose(session.run(w, feed), 2 * np.ones(3))
        with pytest.raises(wf.errors.InvalidArgumentError, match="too large"):
            session.run(w, {x: np.full(3, 9, np.float32)})
        np.testing.assert_allclose(session.run(w, feed), 2 * np.ones(3))


def _waiting() -> tuple[Any, Any, Any]:
    """A queue of the CPU that a product on the GPU waits for."""
    with wf.device("/cpu:0"):
        queue = wf.FIFOQueue(4, [wf.float32], [[2]])
        given = wf.placeholder(wf.float32, [2])
        put, taken = queue.enqueue(given), queue.dequeue()
    with wf.device("/gpu:0"):
        return given, put, taken * 3.0


@on_a_real_one_too
def test_a_step_that_waits_too_long_says_for_what_and_loses_nothing() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        given, put, product = _waiting()
        with pytest.raises(wf.errors.DeadlineExceededError, match="dequeue") as caught:
            session.run(product, options=wf.RunOptions(timeout=0.15))
        text = str(caught.value)
        assert "/cpu:0 waits in its op dequeue" in text
        assert "/gpu:0 waits for 'dequeue" in text
        for k in range(3):
            session.run(put, {given: np.full(2, k, np.float32)})
        for k in range(3):
            assert session.run(product, options=wf.RunOptions(timeout=20))[0] == 3 * k


def test_parts_for_which_there_is_no_thread_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(multi_device, "_threads", [None])
    with wf.Graph().as_default(), wf.Session() as session:
        given, put, product = _waiting()
        session.run(put, {given: np.ones(2, np.float32)})
        begun = time.monotonic()
        with pytest.raises(AttributeError):
            session.run(product)
        assert time.monotonic() - begun < 4  # compiling, no time of grace
        assert "still runs" not in caplog.text
        monkeypatch.undo()
        monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
        assert session.run(product, options=wf.RunOptions(timeout=20))[0] == 3


def test_ops_without_a_device_go_with_a_gpu_that_only_a_constant_names() -> None:
    """It is gone when they are placed: `x * 1` is `x`."""
    x_ = np.ones((4, 4), np.float32)
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [4, 4])
        with wf.device("/gpu:0"):
            one = wf.constant(1.0)
        with wf.device("/cpu:0"):
            e = wf.exp(x)
        y = wf.matmul(x * one, x)
        text = session.explain([e, y], {x: x_})
        assert "op 'matmul' names no device and goes with the step's" in text
        assert "matmul at" in text.split("part of /gpu:0")[1]
        np.testing.assert_allclose(session.run([e, y], {x: x_})[1], x_ @ x_)


def test_a_repeated_constant_of_a_dtype_that_gpus_have_not_stays_with_its_reader() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [2])
        with wf.device("/gpu:0"):
            y = wf.exp(x)
        with wf.device("/cpu:0"):
            v = wf.Variable(np.zeros(4, np.complex64))
            put = v.assign(np.ones(4, np.complex64))
        session.run(wf.global_variables_initializer())
        got = session.run([y, put], {x: np.zeros(2, np.float32)})
        np.testing.assert_array_equal(got[1], np.ones(4, np.complex64))


def test_closing_the_session_ends_a_step_that_waits() -> None:
    with wf.Graph().as_default():
        _, _, product = _waiting()
        session, seen = wf.Session(), []

        def wait() -> None:
            try:
                session.run(product)
            except wf.errors.CancelledError as error:
                seen.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.3)
        session.close()
        thread.join(10)
        assert not thread.is_alive()
        assert "the session was closed" in seen[0]


def test_ctrl_c_ends_a_step_that_waits() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        given, put, product = _waiting()
        session.run(put, {given: np.ones(2, np.float32)})
        session.run(product)  # compiled
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                session.run(product, options=wf.RunOptions(timeout=30))
            assert time.monotonic() - begun < 10
        finally:
            signal.signal(signal.SIGINT, before)
        session.run(put, {given: np.ones(2, np.float32)})
        assert session.run(product, options=wf.RunOptions(timeout=20))[0] == 3


def test_ctrl_c_in_a_copy_for_another_part_ends_that_part_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sender, on the main thread, copies to the GPU for the part that waits there."""

    def late(v: Any) -> Any:
        time.sleep(0.2)  # so that the part waits
        return v + 1

    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [3])
        with wf.device("/gpu:0"):
            y = wf.exp(x)
        with wf.device("/cpu:0"):
            z = wf.py_function(late, [y], wf.float32, shapes=(3,))
        with wf.device("/gpu:1"):
            w = z * y
        feed = {x: np.zeros(3, np.float32)}
        session.run(w, feed)
        main, plain = threading.get_ident(), DeviceValue.of

        def of(*given: Any) -> DeviceValue:
            if threading.get_ident() == main:
                raise KeyboardInterrupt
            return plain(*given)

        with monkeypatch.context() as patch:
            patch.setattr(DeviceValue, "of", of)
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                session.run(w, feed)
            assert time.monotonic() - begun < definition.GRACE_SECONDS / 2
        np.testing.assert_array_equal(session.run(w, feed), np.full(3, 2.0))


@pytest.mark.parametrize("optimizer", ["GradientDescentOptimizer", "AdagradOptimizer"])
def test_of_a_table_only_looked_up_rows_cross(optimizer: str) -> None:
    """Though its gradient names no device and so is with the GPU."""
    found, metadata = [], wf.RunMetadata()
    for apart in (False, True):
        with wf.Graph().as_default(), wf.Session() as session:
            ids = wf.placeholder(wf.int64, [8])
            with wf.device("/cpu:0" if apart else None):
                table = wf.Variable(np.full((4000, 16), 0.5, np.float32))
                rows = wf.nn.embedding_lookup(table, ids)
            with wf.device("/gpu:0" if apart else None):
                loss = wf.sum(wf.tanh(rows))
            train = getattr(wf.train, optimizer)(0.1).minimize(loss)
            session.run(wf.global_variables_initializer())
            feeds = {ids: np.array([1, 5, 5, 7, 1, 9, 3999, 5])}
            for _ in range(2):
                session.run(train, feeds, FULL, metadata)
            found.append(session.run(table))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
    assert (found[0] != 0.5).any(axis=1).sum() == 5
    assert metadata.copied_bytes <= 2 * 8 * 16 * 4 + 8  # rows, their gradient, which are the first


@on_a_real_one_too
def test_a_fault_in_an_iteration_ends_the_loop_on_both() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        table = wf.placeholder(wf.float32, [4])
        n = wf.placeholder(wf.int32, [])

        def body(i: Any, v: Any) -> Any:
            with wf.device("/gpu:0"):
                picked = wf.gather(table, i)
            with wf.device("/cpu:0"):
                return i + 1, v * 2.0 + picked

        with wf.device("/cpu:0"):
            start = [wf.constant(0), wf.constant(np.float32(0))]
            _, last = wf.while_loop(lambda i, v: i < n, body, start)
        feed = {table: np.arange(1, 5, dtype=np.float32)}
        late = wf.RunOptions(timeout=60)
        for _ in range(3):
            assert session.run(last, {**feed, n: np.int32(4)}, late) == 26
            with pytest.raises(wf.errors.InvalidArgumentError, match="index 4"):
                session.run(last, {**feed, n: np.int32(9)}, late)


@pytest.mark.slow
def test_values_that_loops_keep_for_gradients_do_not_pile_up() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x, n = wf.placeholder(wf.float32, [64]), wf.placeholder(wf.int32, [])

        def body(i: Any, v: Any) -> Any:
            with wf.device("/gpu:0"):
                u = wf.exp(wf.sin(v))
            with wf.device("/cpu:0"):
                return i + 1, u * 0.5

        with wf.device("/cpu:0"):
            _, last = wf.while_loop(lambda i, v: i < n, body, [wf.constant(0), x])
        with wf.device("/gpu:0"):
            (slope,) = wf.gradients([wf.sum(last)], [x])
        feed = {x: np.linspace(0, 1, 64, dtype=np.float32), n: np.int32(6)}
        held = []
        for _ in range(30):
            session.run(slope, feed)
            gc.collect()
            held.append(gpu(0).resident.nbytes)
        # a region that runs twice at once has two activations, of a few hundred bytes; values of
        # the iterations that stayed would be 256 bytes in each of 6 iterations of 25 steps
        assert held[-1] - held[4] < 25 * 6 * 256 // 4, held
        few, many = held[-1], {**feed, n: np.int32(60)}
        session.run(slope, many)
        assert gpu(0).resident.nbytes < few + (2 << 20)  # one block for all iterations


def test_counters_and_predicates_are_computed_on_the_host() -> None:
    text = """
graph @g(%x: f32[3], %n: i64[]) -> (f32[3]) stage=traced {
  %0 = constant() {value=i64[] 0} : i64[]
  %1, %2 = while(%0, %x, %n) {carries=2} : i64[], f32[3] {
    ^(%a0: i64[], %a1: f32[3], %a2: i64[])
    %0 = less(%a0, %a2) : bool[]
    yield %0
  } {
    ^(%a0: i64[], %a1: f32[3], %a2: i64[])
    %0 = constant() {value=i64[] 1} : i64[]
    %1 = add(%a0, %0) : i64[]
    %2 = sin(%a1) : f32[3]
    yield %1, %2
  }
  return %2
}
"""
    lowered = lower_control_flow(parse_graph(text))
    read, own = steering(lowered)
    assert sorted(op.name for op in own) == ["add", "less"]
    assert not any(v.type.shape for v in read)
    places = plan_regions(lowered, own).regions
    assert {tuple(op.name for op in r.ops if op.name != "constant") for r in places} >= {
        ("less",), ("add",), ("sin",)
    }  # fmt: skip


def test_one_thread_parses_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or CPython raises SystemError, as regions of both devices are compiled beside each other."""
    inside, most, plain = [0], [0], ast.parse

    def parse(text: str) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return plain(text)

    monkeypatch.setattr(native_language.ast, "parse", parse)
    threads = [threading.Thread(target=native_language.parse, args=("a = 1",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    source = Path(wf.__file__).parent.rglob("*.py")
    assert [f.name for f in source if "ast.parse(" in f.read_text()] == ["native_language.py"]


@on_a_real_one_too
def test_steps_of_several_threads_do_not_meet() -> None:
    graph, x, b, c = _mixed_graph()
    wrong: list[str] = []
    with wf.Session(graph=graph) as session:

        def many(k: int) -> None:
            for _ in range(10):
                found = session.run([b, c], {x: np.full(3, k, np.float32)})
                expected = np.exp(np.float32(k)) + 1
                if not np.allclose(np.append(*found), expected * np.array([2, 2, 2, 9])):
                    wrong.append(str(found))

        threads = [threading.Thread(target=many, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong


def test_ops_of_the_host_go_to_the_processor() -> None:
    with wf.Graph().as_default():
        queue = wf.FIFOQueue(2, [wf.float32], [[3]])
        given = wf.placeholder(wf.float32, [3])
        put = queue.enqueue(given)
        taken = queue.dequeue()
        with wf.device("/gpu:0"):
            y = taken + 1.0
        with wf.Session() as session:
            session.run(put, {given: np.ones(3, np.float32)})
            np.testing.assert_array_equal(session.run(y), 2 * np.ones(3))
            session.run(put, {given: np.ones(3, np.float32)})
            assert "op 'queue' runs on the host, not on a gpu" in session.explain(y)


def test_an_op_without_a_kernel_is_not_moved_silently() -> None:
    with wf.Graph().as_default():
        given = wf.placeholder(wf.float32, [3, 3])
        with wf.device("/gpu:0"):
            y = given + 1.0
        factor = wf.linalg.cholesky(y)
        feed = {given: np.eye(3, dtype=np.float32)}
        with wf.Session() as session, pytest.raises(wf.errors.UnsupportedError) as caught:
            session.run(factor, feed)
        assert "op 'cholesky' has no GPU kernel" in str(caught.value)
        assert "test_mixed_devices.py" in str(caught.value)
        with wf.Session(soft_placement=True) as session:
            expected = np.linalg.cholesky(np.eye(3) + 1)
            np.testing.assert_allclose(session.run(factor, feed), expected, rtol=1e-5)
            assert "op 'cholesky' names no device" in session.explain(factor, feed)


@on_a_real_one_too
def test_reproducible_parts_have_the_bits_of_one_plan() -> None:
    def build(cut: str) -> Any:
        with wf.Graph().as_default(), wf.device("/gpu:0"):
            x = wf.placeholder(wf.float32, [7, 5])
            y = wf.nn.softmax(wf.sin(x) * 3.0)
            with wf.device(cut):
                z = wf.identity(y)
            w = wf.sum(wf.exp(z) * y, axis=1)
            with wf.Session(reproducible=True) as session:
                rows = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
                return session.run([y, w], {x: rows})

    for got, want in zip(build("/cpu:0"), build("/gpu:0"), strict=True):
        np.testing.assert_array_equal(got, want)


@on_a_real_one_too
def test_dataflow_control_flow_runs_on_a_gpu() -> None:
    with wf.Graph().as_default(), wf.device("/gpu:0"):
        x = wf.placeholder(wf.float32, [3])
        _, y = wf.while_loop(
            lambda i, v: i < 4, lambda i, v: (i + 1, wf.sin(v) * 2.0), [wf.constant(0), x]
        )
        feed = {x: np.linspace(0, 1, 3, dtype=np.float32)}
        with wf.Session() as session, wf.Session(control_flow="dataflow") as lowered:
            np.testing.assert_allclose(lowered.run(y, feed), session.run(y, feed), rtol=1e-6)
            assert "switch" in lowered.explain(y, feed)


# ----------------------------------------------------------------------------- workers of a cluster
@pytest.fixture
def target() -> Iterator[str]:
    """The address of a worker of a cluster in this process, whose tasks have a GPU each."""
    servers = Server.create_local_cluster({"ps": 1, "worker": 1})
    yield servers[1].target
    for server in servers:
        server.stop()


@on_a_real_one_too
def test_a_worker_offers_its_gpu_and_runs_parts_there(target: str) -> None:
    rng = np.random.default_rng(3)
    start = rng.standard_normal((4, 3)).astype(np.float32)

    def losses(model: str, parameters: str, where: str) -> list[float]:
        with wf.Graph().as_default():
            x = wf.placeholder(wf.float32, [5, 4])
            with wf.device(parameters):
                w = wf.Variable(start, name="w")
            with wf.device(model):
                b = wf.Variable(np.zeros(3, np.float32), name="b")
                loss = wf.reduce_mean(wf.square(wf.tanh(wf.matmul(x, w)) + b - 0.5))
            train = wf.train.GradientDescentOptimizer(0.3).minimize(loss)
            with wf.Session(where) as session:
                session.run(wf.global_variables_initializer())
                feed = {x: np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)}
                out = [float(session.run([loss, train], feed)[0]) for _ in range(4)]
                out += np.asarray(session.run(b)).tolist()
                if where:
                    text = session.explain(loss, feed)
                    assert "/job:worker/task:0/gpu:0" in text
                return out

    found = losses("/job:worker/task:0/gpu:0", "/job:ps/task:0", target)
    wf.Session.reset(target)
    np.testing.assert_allclose(found, losses("/cpu:0", "/cpu:0", ""), rtol=1e-5)


@on_a_real_one_too
def test_what_fails_on_a_gpu_of_a_worker_is_told(target: str) -> None:
    with wf.Graph().as_default(), wf.Session(target) as session:
        k = wf.placeholder(wf.int64, [2])
        with wf.device("/job:worker/task:0/cpu:0"):
            table = wf.constant(np.arange(6, dtype=np.float32)) * 2.0
        with wf.device("/job:worker/task:0/gpu:0"):
            rows = wf.gather(table, k)
        with wf.device("/job:worker/task:0/cpu:0"):
            total = wf.sum(rows) + 1.0
        for _ in range(3):
            with pytest.raises(wf.errors.InvalidArgumentError, match="index 7"):
                session.run(total, {k: np.array([1, 7])})
            assert session.run(total, {k: np.array([1, 2])}) == 7.0


@on_a_real_one_too
def test_two_gpus_hand_values_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    need_gpus(2)
    copied: list[str] = []
    plain = DeviceValue.numpy
    monkeypatch.setattr(DeviceValue, "numpy", lambda v: copied.append(v.device.name) or plain(v))
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [3])
        with wf.device("/gpu:0"):
            a = wf.exp(x)
        with wf.device("/gpu:1"):
            b = a * 2.0
            held = wf.Variable(np.zeros(3, np.float32))
            keep = held.assign(b)
        with wf.device("/gpu:0"):
            c = wf.sum(b + a)
        session.run(keep, {x: np.zeros(3, np.float32)})
        copied.clear()
        for _ in range(2):
            assert session.run(c, {x: np.zeros(3, np.float32)}) == 9.0
        assert copied == ["/gpu:0"] * 2  # what is fetched, and nothing else
        np.testing.assert_array_equal(session.run(held), np.full(3, 2.0))


@on_a_real_one_too
def test_variables_on_both_are_initialised_saved_and_told_of(tmp_path: Path) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        with wf.device("/gpu:0"):
            there = wf.Variable(np.ones(3, np.float32), name="there")
        with wf.device("/cpu:0"):
            here = wf.Variable(np.zeros(3, np.float32), name="here")
        missing = wf.report_uninitialized_variables()
        assert sorted(session.run(missing)) == [b"here", b"there"]
        with pytest.raises(wf.errors.FailedPreconditionError, match="here"):
            session.run([there, here])
        session.run(wf.global_variables_initializer())
        assert list(session.run(missing)) == []
        path = wf.train.Saver().save(session, str(tmp_path / "model"))
        with wf.device("/gpu:0"):
            moved = here + there
            session.run([there.assign(moved * 2.0), here.assign(wf.identity(there))])
        wf.train.Saver().restore(session, path)
        np.testing.assert_array_equal(session.run([there, here]), [np.ones(3), np.zeros(3)])


def test_the_parts_are_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    monkeypatch.setenv("WEFT_VERIFY", "ir")
    graph, x, b, c = _mixed_graph()
    with wf.Session(graph=graph) as session:
        session.run([b, c], {x: np.ones(3, np.float32)})
    (folder,) = tmp_path.iterdir()  # all that one step dumps
    (text,) = [path.read_text() for path in folder.glob("*-partition.weft")]
    assert 'part "/job:localhost/task:0/gpu:0"' in text
    names = [path.name[3:] for path in sorted(folder.glob("*.weft"))]
    expected = ["traced", "step", "place", "partition"]
    assert names == [f"{name}.weft" for name in expected]
    inside = {str(p.parent.relative_to(folder)) for p in folder.glob("*/**/plan.txt")}
    assert inside == {"cpu_0", "cpu_0/region", "gpu_0", "gpu_0/region", "gpu_0/region.2"}
    verify_program(parse_program(text))
    assert text.count("send(") == text.count("recv(") == 2


def test_only_what_crosses_is_copied_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[list[type]] = []
    brought: list[int] = []
    call, bring = DeviceExecutable.call, OnGpu.bring

    def called(made: DeviceExecutable, inputs: list[Any], *options: Any) -> Any:
        taken.append([type(a) for a in inputs])
        return call(made, inputs, *options)

    def brings(there: OnGpu, array: Any, what: str) -> Any:
        brought.append(array.nbytes)
        return bring(there, array, what)

    monkeypatch.setattr(DeviceExecutable, "call", called)
    monkeypatch.setattr(OnGpu, "bring", brings)
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [5])
        with wf.device("/gpu:0"):
            a = wf.exp(x)
        with wf.device("/cpu:0"):
            b = wf.sum(a)  # the GPU has to wait: what follows is another region
        with wf.device("/gpu:0"):
            c = a * b + x
        assert session.run(wf.identity(c), {x: np.zeros(5, np.float32)})[0] == 5
    assert len(taken) > 1  # regions
    assert {kind for kinds in taken for kind in kinds} == {DeviceValue}  # what they read was there
    assert sorted(brought) == [4, 20]  # b, and x once for both regions


def test_a_loop_on_the_gpu_alone_stays_one_plan() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x, n = wf.placeholder(wf.float32, [5]), wf.placeholder(wf.int32, [])
        with wf.device("/gpu:0"):
            start = [wf.constant(0), x]
            _, last = wf.while_loop(lambda i, v: i < n, lambda i, v: (i + 1, wf.sin(v)), start)
            (slope,) = wf.gradients([wf.sum(last)], [x])
        with wf.device("/cpu:0"):
            y = wf.sum(last + slope)
        feed = {x: np.linspace(0, 1, 5, dtype=np.float32), n: np.int32(3)}
        text = session.explain(y, feed)
        assert text.count("control flow: none") == 2
        found = session.run(y, feed)
    with wf.Graph().as_default(), wf.Session() as session:
        x, n = wf.placeholder(wf.float32, [5]), wf.placeholder(wf.int32, [])
        start = [wf.constant(0), x]
        _, last = wf.while_loop(lambda i, v: i < n, lambda i, v: (i + 1, wf.sin(v)), start)
        (slope,) = wf.gradients([wf.sum(last)], [x])
        feed = {x: np.linspace(0, 1, 5, dtype=np.float32), n: np.int32(3)}
        np.testing.assert_allclose(found, session.run(wf.sum(last + slope), feed), rtol=1e-5)


def test_a_gpu_that_is_not_there_is_told_with_those_that_are() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [3])
        with wf.device("/gpu:7"):
            y = wf.exp(x)
        with wf.device("/cpu:0"):
            z = y + 1.0
        with pytest.raises(wf.errors.InvalidArgumentError, match="/gpu:7") as caught:
            session.run(z, {x: np.zeros(3, np.float32)})
        assert DEVICES[2] in str(caught.value)
        assert "test_mixed_devices.py" in str(caught.value)


@on_a_real_one_too
def test_sizes_that_feeds_and_values_decide() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None])
        with wf.device("/cpu:0"):
            kept = wf.boolean_mask(x, x > 0.0)
        with wf.device("/gpu:0"):
            y = wf.exp(kept) * 2.0
        with wf.device("/cpu:0"):
            z = wf.sum(y)
        for rows in (5, 9, 5):
            given = np.linspace(-1, 1, rows, dtype=np.float32)
            found = session.run([y, z], {x: given})
            np.testing.assert_allclose(found[0], 2 * np.exp(given[given > 0]), rtol=1e-6)
            np.testing.assert_allclose(found[1], found[0].sum(), rtol=1e-6)
