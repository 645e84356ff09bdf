"""Sessions whose steps name a GPU (emulated, or the machine's own): they run there, whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_kinds import on_a_real_one_too

import weft as wf
from weft.codegen.cuda import lowerings

pytestmark = [on_a_real_one_too, pytest.mark.usefixtures("place")]


def _classifier(device: str) -> list[float]:
    """Some steps of a small classifier with placeholders, as the paper writes it; its losses."""
    rng = np.random.default_rng(0)
    with wf.Graph().as_default(), wf.device(device):
        x = wf.placeholder(wf.float32, [None, 12])
        y = wf.placeholder(wf.float32, [None, 4])
        w = wf.Variable(rng.standard_normal((12, 4)).astype(np.float32))
        b = wf.Variable(wf.zeros([4]))
        logits = wf.matmul(x, w) + b
        loss = wf.reduce_mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
        train = wf.train.AdagradOptimizer(0.1).minimize(loss)
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            losses = []
            for rows in (5, 5, 7):
                batch = rng.standard_normal((rows, 12)).astype(np.float32)
                labels = np.eye(4, dtype=np.float32)[rng.integers(0, 4, rows)]
                _, value = session.run([train, loss], {x: batch, y: labels})
                losses.append(float(value))
            assert (w.state.resident is not None) == ("gpu" in device)
            losses += np.asarray(session.run(w)).ravel().tolist()
    return losses


def test_a_training_program_placed_on_the_gpu() -> None:
    np.testing.assert_allclose(_classifier("/gpu:0"), _classifier("/cpu:0"), rtol=1e-5, atol=1e-6)


def _graph() -> tuple[wf.Graph, Any, Any, Any]:
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [3])
        with wf.device("/gpu:0"):
            on_gpu = wf.exp(x) + 1.0
        with wf.device("/cpu:0"):
            on_cpu = x * 2.0
    return graph, x, on_gpu, on_cpu


def test_each_step_runs_where_its_ops_are() -> None:
    graph, x, on_gpu, on_cpu = _graph()
    feed = {x: np.ones(3, np.float32)}
    with wf.Session(graph=graph) as session:
        np.testing.assert_allclose(session.run(on_gpu, feed), np.exp(np.ones(3)) + 1, rtol=1e-6)
        np.testing.assert_allclose(session.run(on_cpu, feed), 2 * np.ones(3))
        both = session.run([on_gpu, on_cpu], feed)  # test_mixed_devices.py has more of these
        np.testing.assert_allclose(both[0], np.exp(np.ones(3)) + 1, rtol=1e-6)
        np.testing.assert_allclose(both[1], 2 * np.ones(3))


def test_what_is_told_of_a_step(place: str) -> None:
    graph, x, on_gpu, _ = _graph()
    feed = {x: np.ones(3, np.float32)}
    held = wf.RunMetadata()
    with wf.Session(graph=graph) as session:
        session.run(on_gpu, feed, run_metadata=held)
        text = session.explain(on_gpu, feed)
        options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
        traced = wf.RunMetadata()
        session.run(on_gpu, feed, options=options, run_metadata=traced)
        assert [event.kind for event in traced.events] == ["kernel"]
    assert held.executor == "gpu"
    assert "one plan of a GPU of 1 launches" in str(held)
    assert ("emulated" in text) == (place == "emulated")
    assert "<<<" in text


def test_parts_are_not_one_native_plan() -> None:
    graph, x, on_gpu, on_cpu = _graph()
    with (
        wf.Session(graph=graph, control_flow="native") as session,
        pytest.raises(wf.errors.UnsupportedError, match=r"on /cpu:0.*control_flow='native'"),
    ):
        session.run([on_gpu, on_cpu], {x: np.ones(3, np.float32)})


def test_host_ops_that_are_put_on_a_gpu_are_named() -> None:
    with wf.Graph().as_default(), wf.device("/gpu:0"):
        text = wf.as_string(wf.placeholder(wf.float32, [], name="x"))
        match = "op 'as_string' runs on the host, not on a gpu"
        with wf.Session() as session, pytest.raises(wf.errors.InvalidArgumentError, match=match):
            session.run(text, {"x:0": 1.0})


def test_an_op_on_a_gpu_without_a_gpu_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(lowerings.GPU_LOWERINGS, "argmax")
    with wf.Graph().as_default(), wf.device("/gpu:0"):
        x = wf.placeholder(wf.float32, [3])
        y = wf.argmax(x)
        with wf.Session() as session, pytest.raises(wf.errors.UnsupportedError, match="argmax"):
            session.run(y, {x: np.ones(3, np.float32)})


def test_a_step_that_is_all_moved_by_soft_placement() -> None:
    """Nothing of it is left on the GPU: what runs is the CPU's, not a plan for the GPU."""
    with wf.Graph().as_default():
        with wf.device("/gpu:0"):
            x = wf.placeholder(wf.float32, [2])
            y = wf.abs(wf.astype(x, wf.complex64))
        feed = {x: np.array([-3, 4], np.float32)}
        with wf.Session() as session, pytest.raises(wf.errors.UnsupportedError, match="astype"):
            session.run(y, feed)
        with wf.Session(soft_placement=True) as session:
            np.testing.assert_array_equal(session.run(y, feed), [3, 4])
            text = session.explain(y, feed)
    assert "in 1 part, on /cpu:0: soft placement has moved ops to the processor" in text
    assert "since op 'astype' has no kernel for gpu on c64[2]" in text


def test_native_sessions_take_what_soft_placement_has_left_alone() -> None:
    with wf.Graph().as_default():
        with wf.device("/gpu:0"):
            x = wf.placeholder(wf.float32, [2])
            y, z = wf.square(x), wf.abs(wf.astype(x, wf.complex64))
        feed = {x: np.array([-3, 4], np.float32)}
        with wf.Session(soft_placement=True, control_flow="native") as session:
            np.testing.assert_array_equal(session.run(y, feed), [9, 16])
            with pytest.raises(wf.errors.UnsupportedError) as caught:
                session.run(z, feed)
    assert "control_flow='native', and not held (soft placement): op 'astype'" in str(caught.value)
