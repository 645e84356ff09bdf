"""The pipeline `reproducible`: the bits of results do not depend on where a graph is cut, how
branches and loops run, or what is fused; values and gradients."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st
from layer_programs import normal
from layer_programs import programs as layered
from layers_in_parts import EVERY, cut, held_of, same
from shares import every
from structured_programs import Program
from structured_programs import programs as structured

import weft as wf
from weft.ir.dtypes import as_dtype
from weft.passes.pipelines import REPRODUCIBLE
from weft.runtime.dataflow.executor import dataflow_step
from weft.runtime.native.executable import compile_graph

SEEDS = st.integers(0, 2**32)


def check_structured(program: Program, seed: int, count: int) -> None:
    whole = held_of(program.state)
    step = dataflow_step(program.graph, whole, {}, "auto", passes=REPRODUCIBLE)
    wanted = step.run(list(program.inputs))
    held = held_of(program.state)
    same(cut(program.graph, held, program.inputs, seed, count), wanted, "a structured program")
    for name in program.state:
        assert held[name].read().tobytes() == whole[name].read().tobytes()


@given(structured(effects=True), SEEDS, st.integers(1, 3))
@settings(max_examples=6, phases=(Phase.generate,), deadline=None)
def test_programs_with_state(program: Program, seed: int, count: int) -> None:
    check_structured(program, seed, count)


@pytest.mark.slow
@given(structured(effects=True), SEEDS, st.integers(1, 3))
@settings(max_examples=150, phases=(Phase.generate,), deadline=None)
def test_many_programs_with_state(program: Program, seed: int, count: int) -> None:
    check_structured(program, seed, count)


def check_layered(program: Any, slopes: bool, half: str, seed: int, count: int) -> None:
    function, args, what = program
    if half:
        args = [a.astype(as_dtype(half).numpy) for a in args]
    loss = lambda x, w: wf.sum(function(x, w) * x)  # noqa: E731
    traced = wf.value_and_grad(loss, argnums=(0, 1)) if slopes else function
    try:
        graph = wf.compile(traced).trace(*args)
    except wf.errors.TypeRuleError:
        assert half  # a body that gives float32
        reject()
    native = compile_graph(graph, {}, passes=REPRODUCIBLE).run(args)
    lowered = dataflow_step(graph, {}, {}, "dataflow", passes=REPRODUCIBLE).run(args)
    same(lowered, native, f"{what}, lowered")
    same(cut(graph, {}, args, seed, count), native, f"{what}, cut")


HALF = st.sampled_from(["", "", "", "float16", "bfloat16"])


@given(layered(), st.booleans(), HALF, SEEDS, st.integers(2, 3))
@examples(12, phases=(Phase.generate,))
def test_layers(program: Any, slopes: bool, half: str, seed: int, count: int) -> None:
    check_layered(program, slopes, half, seed, count)


@pytest.mark.slow
@given(layered(), st.booleans(), HALF, SEEDS, st.integers(2, 3))
@settings(max_examples=200, phases=(Phase.generate,), deadline=None)
def test_many_layers(program: Any, slopes: bool, half: str, seed: int, count: int) -> None:
    check_layered(program, slopes, half, seed, count)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EVERY))
@pytest.mark.parametrize("rows", every(2, [3, 300]))
def test_each_layer_cut_everywhere(name: str, rows: int) -> None:
    """Every op may be on another task: all reductions and products are by themselves."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 70)).astype(np.float32)
    w = (rng.normal(size=(70, 70)) / 8).astype(np.float32)
    layer = EVERY[name]
    function = wf.value_and_grad(lambda x, w: wf.sum(layer(x, w) * x), argnums=(0, 1))
    graph = wf.compile(function).trace(x, w)
    native = compile_graph(graph, {}, passes=REPRODUCIBLE).run([x, w])
    for seed in (0, 4):
        same(cut(graph, {}, [x, w], seed, 3), native, name)


def test_compiled_functions() -> None:
    """Alone, or with something before and after it, a function has the same bits."""
    x = np.random.default_rng(0).normal(size=(37, 130)).astype(np.float32)
    head = wf.compile(lambda x: wf.tanh(x * 1.25 + 0.5), passes="reproducible")
    body = wf.compile(lambda x: normal(x, x), passes="reproducible")
    tail = wf.compile(lambda x: wf.sum(x * x, axis=0) ** 3, passes="reproducible")
    whole = wf.compile(
        lambda x: (
            wf.sum(normal(wf.tanh(x * 1.25 + 0.5), x) * normal(wf.tanh(x * 1.25 + 0.5), x), axis=0)
            ** 3
        ),
        passes="reproducible",
    )
    assert np.asarray(tail(body(head(x)))).tobytes() == np.asarray(whole(x)).tobytes()


class Digits:
    """The paper's Figure 1: weights on parameter servers, slices of the batch on workers; the
    gradients add up in the order of the slices."""

    def __init__(self, placed: bool) -> None:
        on = wf.device if placed else lambda name: contextlib.nullcontext()
        rng = np.random.default_rng(0)
        with wf.Graph("digits").as_default() as self.graph:
            made = []
            for k, shape in enumerate([(64, 100), (100, 10)]):
                with on(f"/job:ps/task:{k}"):
                    start = (rng.normal(size=shape) / 8).astype(np.float32)
                    made.append(wf.Variable(start, name=f"w{k}"))
            self.x = wf.placeholder(wf.float32, [32, 64], name="x")
            self.labels = wf.placeholder(wf.int64, [32], name="labels")
            losses = []
            for k in range(2):
                half = slice(16 * k, 16 * k + 16)
                with on(f"/job:worker/task:{k}"):
                    hidden = wf.nn.relu(self.x[half] @ made[0])
                    losses.append(
                        wf.mean(
                            wf.nn.sparse_softmax_cross_entropy_with_logits(
                                labels=self.labels[half], logits=hidden @ made[1]
                            )
                        )
                    )
            self.loss = losses[0] + losses[1]
            self.train = wf.train.AdamOptimizer(0.01).minimize(self.loss)
            self.weights = made

    def trained(self, target: str) -> list[bytes]:
        """Losses and weights of 30 steps."""
        rng = np.random.default_rng(1)
        x = rng.normal(size=(32, 64)).astype(np.float32)
        fed = {self.x: x, self.labels: rng.integers(0, 10, 32)}
        with wf.Session(target, graph=self.graph, reproducible=True) as session:
            session.run(wf.global_variables_initializer())
            losses = [session.run([self.loss, self.train], fed)[0] for _ in range(30)]
            assert losses[-1] < losses[0] / 2
            return [np.asarray(v).tobytes() for v in (*losses, *session.run(self.weights))]


def test_training_on_four_tasks_is_that_of_one_process() -> None:
    servers = wf.train.Server.create_local_cluster({"ps": 2, "worker": 2})
    try:
        wanted = Digits(placed=False).trained("")
        assert Digits(placed=True).trained(servers[2].target) == wanted
    finally:
        for server in servers:
            server.stop()
