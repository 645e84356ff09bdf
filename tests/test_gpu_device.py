"""What runs on a GPU, where there is one: `pytest -m gpu`. The op table, training programs, loops.

Each test has a twin that runs everywhere, over a fake driver on fewer cases, so that these tests
are known to work before a GPU is met.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_checks import same
from cuda_device import on_device, use_device
from cuda_graphs import on_gpu, run
from graphs import Case, graph_and_inputs
from hypothesis import HealthCheck, assume, given, settings
from row_graphs import row_cases
from stable_results import Overflow, stable_results
from test_compiled_random import within
from test_cuda_differential import FLOATS, KERNELS, NUMBERS, SINGLE, WHOLE, pipeline
from test_device_loops import PROGRAMS as LOOPS
from test_gpu_programs import PROGRAMS

import weft as wf
from weft.frontend import pytree
from weft.ir.errors import UnsupportedError
from weft.ir.interpreter import interpret
from weft.runtime.device import registry

Array = np.ndarray[Any, Any]
REAL = pytest.param("real", marks=pytest.mark.gpu)
FEW = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=["faked", REAL])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """/gpu:0 is a CUDA device; the real one must be there if these tests are asked for."""
    use_device(request.param, monkeypatch)
    assert not registry.gpu(0).emulated
    return str(request.param)


def _results(case: Case) -> list[Array]:
    graph = pipeline(case.graph)
    assume(any(on_gpu(op) for op in graph.ops))
    try:
        made = run(graph, case.inputs, on_device)
    except UnsupportedError:
        assume(False)
    for x, y in zip(made, run(graph, case.inputs, on_device), strict=True):
        assert same(x, y)  # the same bits on every run
    return made


def _check_exactly(case: Case) -> None:
    for x, y in zip(_results(case), interpret(case.graph, case.inputs), strict=True):
        assert same(x, y), f"{x!r} != {y!r}"


def _check_roughly(case: Case) -> None:
    try:
        wanted, _ = stable_results(case.graph, case.inputs, case.state, 1)
    except Overflow:
        return
    for x, (centre, spread) in zip(_results(case), wanted, strict=True):
        within(x, centre, spread)


def _drawn(check: Any, cases: Any, device: str) -> None:
    (MANY if device == "real" else FEW)(given(cases)(check))()


def test_graphs_of_whole_numbers(device: str) -> None:
    _drawn(_check_exactly, graph_and_inputs(stage="traced", ops=KERNELS, dtypes=WHOLE), device)


def test_graphs_of_floats(device: str) -> None:
    _drawn(_check_roughly, graph_and_inputs(stage="traced", ops=FLOATS, dtypes=SINGLE), device)


def test_rows(device: str) -> None:
    _drawn(_check_exactly, row_cases(NUMBERS), device)
    _drawn(_check_roughly, row_cases(SINGLE[:2], gathers=True), device)


def _same_as_the_cpu(on_there: Any, on_cpu: Any, args: Any, steps: int) -> None:
    for _ in range(steps):
        made, expected = pytree.tree_leaves(on_there(*args)), pytree.tree_leaves(on_cpu(*args))
        for value, other in zip(made, expected, strict=True):
            got, wanted = (np.asarray(v).astype(np.float64) for v in (value, other))
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.gpu
def test_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device("real", monkeypatch)
    make, args = PROGRAMS[name]
    _same_as_the_cpu(wf.compile(device="gpu:0")(make()), wf.compile(make()), args, 6)


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.gpu
def test_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device("real", monkeypatch)
    function, args = LOOPS[name]
    _same_as_the_cpu(wf.compile(device="gpu:0")(function), wf.compile(function), args, 4)
