"""The Numba engine: every op of the table, compiled from its printed source, against the
interpreter; what is printed, and what is refused."""

from __future__ import annotations

import contextvars
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from compiled_checks import Case, check, operands, specials
from elementwise_checks import (
    COMPLEX_ULPS,
    bitcasts,
    casts,
    check_bitcasts,
    check_elementwise,
    domain,
    ops_at,
)
from graphs import graph_and_inputs
from hypothesis import HealthCheck, given, settings
from random_graph_checks import FLOATS, TRACED, WHOLE, check_exactly, check_roughly

import weft as wf
from weft.codegen.engines import engine, using_engine
from weft.codegen.kernels.lowerings import LOWERINGS
from weft.codegen.numba import functions
from weft.codegen.numba.calls import PRINTERS
from weft.codegen.numba.scalars import scalar_text
from weft.codegen.scalar.elementwise import PREDICATES, supported
from weft.ir import dtypes
from weft.ir.dtypes import ALL, DType
from weft.ir.errors import InvalidArgumentError
from weft.ir.ops import OPS
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.passes.pipelines import STANDARD

Array = np.ndarray[Any, Any]
NATIVE = [d for d in ALL if d is not dtypes.string]
#: Without ops that no fused graph has: whole regions, or names. Control flow is in
#: test_numba_loops.
GIVEN = [n for n in TRACED if n not in ("cond", "while", "scan", "unrolled", *DATAFLOW)]
GIVEN += sorted(n for n in LOWERINGS if n.startswith("arena_"))
SOME = {
    dtypes.int8: "add abs floor_divide remainder power bitwise_right_shift",
    dtypes.uint64: "negative remainder",
    dtypes.float32: "maximum floor_divide sign round",
    dtypes.float16: "multiply",
    dtypes.bfloat16: "nextafter",
    dtypes.complex64: "divide",
}
FLOATING = [dtypes.float32, dtypes.float64]
#: Ops in the default suite; the others, whose kernels take Numba seconds, are slow tests.
QUICK = frozenset({"equal", "power", "take", "slice_update", "arena_add"})


def _share(names: list[str]) -> list[Any]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


few = settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@pytest.fixture(autouse=True)
def by_numba() -> Iterator[None]:
    with using_engine("numba"):
        yield


def elementwise(dtype: DType, ops: list[str]) -> Case:
    """Ops on the same operands, so that they are few kernels."""
    case, size = Case(), max(len(specials(dtype)) ** 2 + 37, 151)  # all pairs of special values
    shared = [case.input(x) for x in operands(dtype, 3, size, seed=1)]
    for op in ops:
        arity = OPS[op].arity or 1
        if op in ("digamma", "lgamma"):
            given = [case.input(x) for x in domain(op, operands(dtype, arity, size, seed=1))]
        else:
            given = shared[:arity]
        case.op(op, *given)
    return case


def test_a_step_that_calls_python(capsys: pytest.CaptureFixture[str]) -> None:
    @wf.compile(engine="numba")
    def f(x):  # type: ignore[no-untyped-def]
        wf.print("sum {}", wf.sum(x))
        wf.check(wf.all(x < 2), "too large")
        return wf.exp(x) + 1

    x = np.ones(3, np.float32)
    np.testing.assert_allclose(np.asarray(f(x)), np.exp(x) + 1, rtol=1e-6)
    assert capsys.readouterr().err == "sum 3.0\n"
    with pytest.raises(InvalidArgumentError, match="too large"):
        f(x * 3)


class TestTable:
    """Every op with native code has source."""

    def test_ops_that_are_no_nests(self) -> None:
        assert set(LOWERINGS) - set(PRINTERS) == PYTHON_CALLS | LINEAR_ALGEBRA
        assert set(PRINTERS) <= set(LOWERINGS)

    @pytest.mark.parametrize("dtype", NATIVE, ids=str)
    def test_elementwise_ops(self, dtype: DType) -> None:
        for op in ops_at(dtype):
            if supported(op, dtype.short):
                helpers: set[str] = set()
                result = "bool" if op in PREDICATES else dtype.short
                args = [f"x{k}" for k in range(OPS[op].arity or 1)]
                compile(scalar_text(op, dtype.short, args, result, helpers), "<test>", "eval")
                assert all(hasattr(functions, name) for name in helpers), helpers


class TestOps:
    """The op table."""

    @pytest.mark.slow
    def test_where_numba_and_numpy_differ(self) -> None:
        """Rounding, wrap-around, zero divisors, NaN: a share of the next test."""
        for dtype, names in SOME.items():
            for label, got, wanted in elementwise(dtype, names.split()).run():
                check_elementwise(label, dtype, got, wanted)

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", NATIVE, ids=str)
    def test_elementwise(self, dtype: DType) -> None:
        for label, got, wanted in elementwise(dtype, ops_at(dtype)).run():
            if label == "power" and dtype is dtypes.complex64:  # NumPy's own is 18 eps off here
                check(label, got, wanted, 2 * COMPLEX_ULPS)
            else:
                check_elementwise(label, dtype, got, wanted)

    @pytest.mark.slow
    @pytest.mark.parametrize("source", NATIVE, ids=str)
    def test_casts(self, source: DType) -> None:
        targets = [t for t in NATIVE if t.is_complex or t.kind == "bool" or not source.is_complex]
        for label, got, wanted in casts(source, targets).run():
            check(label, got, wanted)

    @pytest.mark.slow
    @pytest.mark.parametrize("source", [d for d in NATIVE if d.is_numeric], ids=str)
    def test_bitcasts(self, source: DType) -> None:
        if not source.is_complex:
            case = bitcasts(source, [d for d in NATIVE if d.is_numeric and not d.is_complex])
            check_bitcasts(source, case, case.run())

    @pytest.mark.share(5)
    @pytest.mark.parametrize("op", _share(GIVEN))
    def test_whole_numbers_exactly(self, op: str) -> None:
        """Graphs with this op, on integers and bools, have the interpreter's bits."""

        @few
        @given(graph_and_inputs(stage="traced", ops=[op], dtypes=WHOLE, max_ops=3))
        def run(case: Any) -> None:
            check_exactly(case, STANDARD)

        run()

    @pytest.mark.slow
    @pytest.mark.parametrize("op", [n for n in GIVEN if n in FLOATS])
    def test_floats_roughly(self, op: str) -> None:
        @few
        @given(graph_and_inputs(stage="traced", ops=[op], dtypes=FLOATING, max_ops=3))
        def run(case: Any) -> None:
            check_roughly(case, STANDARD)

        run()

    def test_all_kernels_are_numbas(self) -> None:
        f = wf.compile(lambda x, i: (wf.sort(wf.tanh(x) @ x, axis=1), wf.take(x, i, axis=0)))
        x = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
        said = f.explain(x, np.array([1, 2]))
        found = re.search(r"(\d+) kernel calls: (\d+) numba$", said, re.MULTILINE)
        assert found is not None
        assert found[1] == found[2] == "4"


class TestStructures:
    """What random graphs of the table do not hold: fusion, products with what follows, windows."""

    RNG = np.random.default_rng(0)
    X = RNG.normal(size=(6, 70)).astype(np.float32)
    W = RNG.normal(size=(70, 5)).astype(np.float32)
    IMAGE = RNG.normal(size=(2, 5, 6, 3)).astype(np.float32)
    TAPS = RNG.normal(size=(3, 3, 3, 4)).astype(np.float32)

    def near(self, function: Any, *args: Array, rtol: float = 1e-5) -> None:
        with using_engine("llvm"):
            wanted = wf.compile(function)(*args)
        got = wf.compile(function)(*args)
        for a, b in zip(_flat(got), _flat(wanted), strict=True):
            assert a.dtype == b.dtype
            scale = np.abs(b).max(initial=0)
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale)

    @pytest.mark.slow
    def test_a_layer_and_its_gradient(self) -> None:
        def loss(x: Any, w: Any) -> Any:
            return wf.sum(wf.nn.softmax(wf.tanh(x @ w + 1)) ** 2)

        self.near(wf.value_and_grad(loss, argnums=(0, 1)), self.X, self.W, rtol=1e-4)

    @pytest.mark.slow
    def test_convolutions(self) -> None:
        def loss(x: Any, w: Any) -> Any:
            return wf.sum(wf.nn.relu(wf.nn.conv2d(x, w, strides=2, padding="same")) ** 2)

        self.near(wf.value_and_grad(loss, argnums=(0, 1)), self.IMAGE, self.TAPS, rtol=1e-4)

    @pytest.mark.slow
    def test_pooling(self) -> None:
        def loss(x: Any) -> Any:
            return wf.sum(wf.nn.max_pool(x, 2) ** 2) + wf.sum(wf.nn.avg_pool(x, 3) ** 3)

        self.near(wf.grad(loss), self.IMAGE, rtol=1e-4)

    @pytest.mark.slow
    @pytest.mark.parametrize("causal", [False, True])
    def test_attention(self, causal: bool) -> None:
        x = self.RNG.normal(size=(2, 3, 40, 8)).astype(np.float32)

        def loss(q: Any, k: Any, v: Any) -> Any:
            made = wf.nn.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return wf.sum(made**2)

        self.near(wf.value_and_grad(loss, argnums=(0, 1, 2)), x, x * 2, x + 1, rtol=1e-4)

    def test_loops_and_branches(self) -> None:
        def f(x: Any) -> Any:
            y = wf.while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, wf.tanh(v) * 2), (0, x))[1]
            return wf.cond(wf.sum(y) > 0, lambda: y + 1, lambda: y - 1)

        self.near(f, self.X)

    def test_many_threads(self) -> None:
        x = self.RNG.normal(size=(3000, 400)).astype(np.float32)
        self.near(lambda x: (wf.exp(x) + 1, wf.nn.softmax(x)), x)

    def test_variables_and_steps(self) -> None:
        with wf.Graph().as_default():
            v = wf.Variable(np.ones(3, np.float32), name="v")
            step = v.assign_add(v * 2)
            with wf.Session() as session:
                session.run(wf.global_variables_initializer())
                session.run(step)
                session.run(step)
                assert session.run(v).tolist() == [9, 9, 9]


def _flat(made: Any) -> list[Array]:
    if isinstance(made, tuple | list):
        return [x for one in made for x in _flat(one)]
    return [np.asarray(made)]


class TestRefusals:
    """Nothing falls back to the other engine."""

    def test_no_such_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InvalidArgumentError, match=r"wf.compile\(engine=\)='numa'.*did you"):
            wf.compile(lambda x: x, engine="numa")
        with using_engine(None):
            pass
        monkeypatch.setenv("WEFT_ENGINE", "gcc")
        with pytest.raises(InvalidArgumentError, match="WEFT_ENGINE='gcc' is no code generator"):
            _outside(engine)

    def test_an_index_out_of_bounds(self) -> None:
        f = wf.compile(lambda x, i: wf.take(x, i, axis=0))
        x = np.arange(4.0, dtype=np.float32)
        assert np.asarray(f(x, np.array([-1, 0]))).tolist() == [3, 0]
        with pytest.raises(InvalidArgumentError, match=r"index 7 \(element 1.*axis 0 of size 4"):
            f(x, np.array([1, 7]))


def _outside(function: Any) -> Any:
    """The result of a function in a context where no engine is chosen."""
    return contextvars.Context().run(function)
