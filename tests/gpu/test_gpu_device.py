"""What runs on a GPU, where there is one: `pytest -m gpu`. The op table, gradients, training
programs, loops.

Each test has a twin that runs everywhere, over a fake driver on fewer cases, so that these tests
are known to work before a GPU is met.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from compiled_checks import same
from cuda_device import on_device, use_device
from cuda_graphs import on_gpu, run
from cuda_random_graphs import FLOATS, KERNELS, NUMBERS, SINGLE, WHOLE, pipeline
from gpu_kinds import REAL
from gradient_cases import CASES, HERE, loss_graph
from gradient_cases import Case as RuleCase
from graphs import Case, graph_and_inputs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis.errors import Unsatisfiable
from loop_programs import PROGRAMS as LOOPS
from random_graph_checks import within
from row_graphs import row_cases
from stable_results import Overflow, stable_results
from training_programs import PROGRAMS

import weft as wf
from weft.frontend.core import pytree
from weft.ir.dtypes import float32
from weft.ir.errors import GradientError, UnsupportedError
from weft.ir.graph import Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.ops.fourier import FOURIER
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType
from weft.passes.autodiff.reverse_mode import differentiate
from weft.passes.rewriting.expression import Expr
from weft.runtime.device.backends import registry

Array = np.ndarray[Any, Any]
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


# ------------------------------------------------------------------------- the op table, op by op

#: No launch: views, sizes. Of complex numbers: `conj` and its like. Without a bound: `the_others`.
NOT_ALONE = {"reshape", "constant", "dim_size", "conj", "real", "imag", "complex"}
OTHERS = {"copysign", "digamma", "lgamma", "signbit"}
TABLE = sorted({*KERNELS} - NOT_ALONE - OTHERS)
ONE_BY_ONE = settings(FEW, max_examples=30, derandomize=True, database=None)


def _each_op(op: str) -> None:
    """Graphs around one op: of whole numbers, then of floats, until some were launched."""
    looked = [0]

    def looks(check: Callable[[Case], None]) -> Callable[[Case], None]:
        def look(case: Case) -> None:
            check(case)
            looked[0] += 1

        return look

    drawn = {"stage": "traced", "ops": [op], "max_ops": 2}
    with suppress(Unsatisfiable):  # an op of floats alone
        ONE_BY_ONE(given(graph_and_inputs(dtypes=WHOLE, **drawn))(looks(_check_exactly)))()
    if op in FLOATS:
        ONE_BY_ONE(given(graph_and_inputs(dtypes=SINGLE, **drawn))(looks(_check_roughly)))()
    assert looked[0], f"nothing of op '{op}' was launched"


@pytest.mark.parametrize("op", TABLE)
@pytest.mark.gpu
def test_each_op(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device("real", monkeypatch)
    _each_op(op)


@pytest.mark.parametrize("op", ["add", "cumulative_sum"])
def test_some_ops(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device("faked", monkeypatch)
    _each_op(op)


def test_the_others(device: str) -> None:
    """Those for which `stable_results` has no bound: near zeros, or for the sign of a NaN."""
    x = np.linspace(2.5, 9, 100, dtype=np.float32)
    y = np.array([0.0, -0.0, np.inf, -np.inf, 1.5] * 20, np.float32)

    def others(x: Any, y: Any) -> Any:
        return wf.digamma(x), wf.lgamma(x), wf.copysign(x, y), wf.signbit(y)

    made, wanted = wf.compile(device="gpu:0")(others)(x, y), wf.compile(others)(x, y)
    for got, one in zip(made[:2], wanted[:2], strict=True):
        np.testing.assert_allclose(got, one, rtol=2e-6)
    for got, one in zip(made[2:], wanted[2:], strict=True):
        np.testing.assert_array_equal(got, one)


# -------------------------------------------------------------------------------------- gradients


def _gradients(case: Case) -> Case:
    """The gradients of a weighted sum of all floats that a graph results in; none: no example."""
    graph = case.graph
    builder = Builder([arg.type for arg in graph.args])
    total = Expr(
        builder, builder.emit1("constant", value=ConstArray(np.array(0, np.float32))), HERE
    )
    for k, y in enumerate(builder.inline(graph.block, builder.args)):
        if isinstance(y.type, TensorType) and y.type.dtype is float32:
            weight = np.random.default_rng(k).uniform(-2, 2, y.type.static_shape).astype(np.float32)
            held = Expr(builder, builder.emit1("constant", value=ConstArray(weight)), HERE)
            total = total + (Expr(builder, y, HERE) * held).sum(range(y.type.rank))
    wrt = [k for k, arg in enumerate(graph.args) if _is_float(arg)]
    made = builder.graph("loss", graph.arg_names, [total.value], graph.stage)
    assume(bool(wrt))
    try:
        return Case(differentiate(made, wrt), case.inputs, case.state)
    except GradientError:  # of an op without a rule
        assume(False)
        raise


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is float32


def test_gradients_of_graphs(device: str) -> None:
    drawn = graph_and_inputs(stage="traced", ops=FLOATS, dtypes=SINGLE)
    _drawn(lambda case: _check_roughly(_gradients(case)), drawn, device)


def _gradient_of_a_rule(case: RuleCase) -> None:
    """First and second derivatives, as the interpreter has them."""
    for order in (1, 2):
        graph, wrt = loss_graph(
            lambda b, args: b.emit(case.op, args, case.attrs, locations=HERE), case.operands, order
        )
        full = differentiate(graph.at_stage("traced"), wrt)
        wanted = interpret(full, case.operands)
        for x, y in zip(run(pipeline(full), case.operands, on_device), wanted, strict=True):
            scale = max(1.0, float(np.abs(y).max(initial=0)))
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10 * scale)


RULES = [
    case
    for case in CASES
    if case.op not in FOURIER | LINEAR_ALGEBRA  # the CPU's
    and not any(np.iscomplexobj(x) for x in case.operands)
    and not case.attrs.get("dtype", float32).is_complex
]


@pytest.mark.parametrize("case", RULES, ids=str)
@pytest.mark.gpu
def test_each_rule(case: RuleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device("real", monkeypatch)
    _gradient_of_a_rule(case)


@pytest.mark.parametrize("case", RULES[:: len(RULES) // 5], ids=str)
def test_some_rules(case: RuleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device("faked", monkeypatch)
    _gradient_of_a_rule(case)


# --------------------------------------------------------------------------------------- programs


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
