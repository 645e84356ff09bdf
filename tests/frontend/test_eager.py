"""Large eager calls run as native code: what they give is what the interpreter gives, and NumPy."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special as sp
from eager_calls import INF, NAN, calls_of, every_function, interpreted, outcome
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from weft.codegen.llvm.jit import compile_count
from weft.frontend.eager import kinds, native, numpy_calls
from weft.frontend.eager.numpy_calls import LARGE, SWITCH, tensor_of
from weft.frontend.ops import promotion
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, WeftError
from weft.ir.spec import QUIET, quietly

RNG = np.random.default_rng(5)
Call = Callable[..., Any]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large eager calls run as native code, as they do by default outside the tests."""
    monkeypatch.setattr(SWITCH, "on", True)


class Natively:
    """In this context some call of any function runs as native code, and it is an error if none
    does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        checked = kinds.Kind._checked

        def counted(kind: kinds.Kind, step: kinds.Run) -> kinds.Run:
            run = checked(kind, step)

            def call(arrays: list[Any]) -> Any:
                self.runs += 1
                return run(arrays)

            return call

        monkeypatch.setattr(kinds.Kind, "_checked", counted)
        for calls in every_function():
            monkeypatch.setattr(calls, "_known", {})
            monkeypatch.setattr(calls, "_again", {})
            monkeypatch.setattr(calls, "_kinds", {})


@pytest.fixture
def natively(monkeypatch: pytest.MonkeyPatch) -> Natively:
    return Natively(monkeypatch)


def test_the_oracle_of_all_other_tests_is_the_interpreter() -> None:
    assert not SWITCH.on
    assert os.environ["WEFT_EAGER"] == "interpreter"
    before = compile_count()
    known = sum(len(c._known) for c in every_function())
    x = np.ones(4 * LARGE, np.float32)
    assert float(wf.sum(wf.nn.mish(x) * x + 1)) > 0
    assert compile_count() == before
    assert sum(len(c._known) for c in every_function()) == known


ROWS = RNG.normal(size=(300, 211)).astype(np.float32) * 3
WIDE: dict[str, tuple[Call, Call]] = {
    "add": (lambda x: x + x[0], lambda x: x + x[0]),
    "weak": (lambda x: 2 * x - 0.5, lambda x: 2 * x - 0.5),
    "where": (lambda x: wf.where(x > 0.5, x, -1), lambda x: np.where(x > 0.5, x, -1)),
    "exp": (wf.exp, np.exp),
    "tanh": (wf.tanh, np.tanh),
    "clip": (lambda x: wf.clip(x, -1, 1), lambda x: np.clip(x, -1, 1)),
    "gelu": (wf.nn.gelu, lambda x: x * sp.ndtr(x)),
    "silu": (wf.nn.silu, lambda x: x * sp.expit(x)),
    "mish": (wf.nn.mish, lambda x: x * np.tanh(np.logaddexp(0, x))),
    "softmax": (wf.nn.softmax, lambda x: sp.softmax(x, -1)),
    "softmax0": (lambda x: wf.nn.softmax(x, axis=0), lambda x: sp.softmax(x, 0)),
    "layer_norm": (
        wf.nn.layer_norm,
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    ),
    "sum": (wf.sum, np.sum),
    "sum0": (lambda x: wf.sum(x, 0), lambda x: x.sum(0)),
    "mean": (lambda x: wf.mean(x, axis=1), lambda x: x.mean(1)),
    "std": (wf.std, np.std),
    "max": (lambda x: wf.max(x, axis=1), lambda x: x.max(1)),
    "argmax": (wf.argmax, np.argmax),
    "argmax0": (lambda x: wf.argmax(x, axis=0), lambda x: x.argmax(0)),
    "cumsum": (lambda x: wf.cumulative_sum(x, axis=1), lambda x: x.cumsum(1)),
    "sort": (lambda x: wf.sort(x, axis=0), lambda x: np.sort(x, 0)),
    "argsort": (lambda x: wf.take_along_axis(x, wf.argsort(x), axis=-1), np.sort),
    "any": (wf.any, np.any),
    "mse": (lambda x: wf.nn.mean_squared_error(x, x + 1), lambda x: np.float64(1.0)),
    "cross_entropy": (
        lambda x: wf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=np.arange(len(x)) % x.shape[1], logits=x
        ),
        lambda x: -sp.log_softmax(x, -1)[np.arange(len(x)), np.arange(len(x)) % x.shape[1]],
    ),
}


@pytest.mark.share(6)
@pytest.mark.parametrize("name", WIDE)
def test_against_numpy_in_many_sizes(name: str, on: None, natively: Natively) -> None:
    ours, numpys = WIDE[name]
    for rows in (ROWS, ROWS[:250].copy(), ROWS.T.copy(), ROWS):
        before = natively.runs
        x = wf.asarray(rows)
        got = ours(x)
        assert natively.runs > before
        wanted = numpys(rows.astype(np.float64))
        np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=3e-6 * max(1, len(rows) ** 0.5))
        again = interpreted(partial(ours, x))
        assert (got.dtype, got.shape, got.weak) == (again.dtype, again.shape, again.weak)


UNARY = (
    "negative", "abs", "sign", "square", "reciprocal", "ceil", "floor", "trunc", "round", "sqrt",
    "isnan", "isinf", "isfinite", "signbit", "logical_not",
)  # fmt: skip
BINARY = (
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "maximum", "minimum",
    "equal", "less", "greater_equal", "logical_and", "copysign", "nextafter",
)  # fmt: skip
EXACT: dict[str, tuple[Call, int]] = {
    **{n: (getattr(wf, n), 1) for n in UNARY},
    **{n: (getattr(wf, n), 2) for n in BINARY},
    "where": (lambda x, y: wf.where(x, x, y), 2),
    "clip": (lambda x, y: wf.clip(x, -1, y), 2),
    "max": (wf.max, 1), "min": (partial(wf.min, axis=-1), 1), "argmax": (wf.argmax, 1),
    "all": (wf.all, 1), "count": (partial(wf.count_nonzero, axis=0), 1), "sort": (wf.sort, 1),
    "argsort": (wf.argsort, 1), "relu": (wf.nn.relu, 1), "relu6": (wf.nn.relu6, 1),
    "nan_to_num": (wf.nan_to_num, 1), "cummax": (partial(wf.cumulative_max, axis=0), 1),
}  # fmt: skip
#: Of few elements they are the same NumPy call; compiled code sums in another order.
FEW: dict[str, tuple[Call, int]] = {
    **EXACT,
    "sum": (partial(wf.sum, axis=0), 1), "sums": (partial(wf.sum, axis=(-1, 0)), 1),
    "prod": (partial(wf.prod, keepdims=True), 1), "mean": (partial(wf.mean, axis=-1), 1),
    "argmin": (partial(wf.argmin, axis=0, keepdims=True), 1),
    "means": (wf.mean, 1), "exp": (wf.exp, 1), "pow": (wf.pow, 2), "silu": (wf.nn.silu, 1),
    "astype": (partial(wf.sum, dtype=wf.float32), 1), "softmax": (wf.nn.softmax, 1),
}  # fmt: skip
DTYPES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
HARD = (0.0, -0.0, 1.0, -1.5, 2.5, NAN, INF, -INF, 1e-40, 6e4, 300.0)


def operands(draw: Callable[..., Any], count: int) -> list[Any]:
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=count, min_dims=1, max_dims=3,
                                                    max_side=5)).input_shapes  # fmt: skip
    out: list[Any] = []
    for shape in shapes:
        dtype = draw(st.sampled_from(DTYPES))
        values = np.array(draw(st.lists(st.sampled_from(HARD), min_size=8, max_size=8)))
        made = np.resize(values, shape)
        if dtype not in ("float16", "bfloat16", "float32", "float64"):
            made = np.nan_to_num(made, posinf=100, neginf=0).clip(0, 100)
        out.append(wf.asarray(made).astype(getattr(wf, {"bool": "bool"}.get(dtype, dtype))))
    if count == 2 and draw(st.integers(0, 3)) == 0:
        out[1] = draw(st.sampled_from([0, 1, 2, -1, 2.5, True, 300, 1e300, -0.0]))
    return out


@pytest.mark.share(2)
@pytest.mark.parametrize("large", [2, LARGE])
def test_the_same_bits_and_errors_as_the_interpreter(large: int, natively: Natively) -> None:
    quickly = 0

    @examples(1000)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        table = EXACT if large == 2 else FEW
        name = data.draw(st.sampled_from(sorted(table)))
        function, count = table[name]
        given = operands(data.draw, count)
        call = lambda: function(*given)  # noqa: E731
        nonlocal quickly

        def counted(array: Any) -> Any:
            nonlocal quickly
            quickly += 1
            return tensor_of(array)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SWITCH, "on", True)
            patch.setattr(numpy_calls, "LARGE", large)
            patch.setattr(promotion, "tensor_of", counted)
            patch.setattr(numpy_calls, "tensor_of", counted)
            got = outcome(call)
        assert got == outcome(call), name

    check()
    assert (natively.runs if large == 2 else quickly) > 3


@pytest.mark.parametrize("dtype", [wf.float16, wf.bfloat16, wf.float32, wf.float64])
def test_after_equal_numbers_comes_the_second(dtype: Any) -> None:
    zero, other = (wf.asarray(v, dtype=dtype) for v in ([0.0, -0.0], [-0.0, 0.0]))
    got = wf.nextafter(zero, other)
    assert np.signbit(np.asarray(got, np.float64)).tolist() == [True, False]


def test_errors_are_the_interpreters(on: None) -> None:
    x, labels = np.zeros((9000, 7), np.float32), np.zeros(9000, np.int64)
    logits = wf.asarray(x)

    def message(call: Callable[[], Any], kind: type[WeftError]) -> str:
        with pytest.raises(kind) as info:
            call()
        with pytest.raises(kind) as plain:
            interpreted(call)
        assert str(info.value) == str(plain.value)
        return str(info.value)

    loss = wf.nn.sparse_softmax_cross_entropy_with_logits
    loss(labels=labels, logits=logits)
    labels[4000] = 7
    text = message(lambda: loss(labels=labels, logits=logits), InvalidArgumentError)
    assert "label 7 at [4000]" in text
    assert __file__ in text
    text = message(lambda: wf.add(logits, np.zeros((8000, 7))), ShapeError)
    assert re.search(rf"wf.add(.|\n)*{__file__}:\d+", text)
    message(lambda: wf.add(logits, "text"), TypeRuleError)
    message(lambda: wf.sum(logits, axis=2), InvalidArgumentError)
    message(lambda: logits.astype(wf.uint8) + 300, InvalidArgumentError)
    text = message(lambda: wf.bitwise_and(logits, 1), TypeRuleError)
    assert "bitwise_and" in text


def test_results_are_their_own_and_arguments_are_not_kept(on: None, natively: Natively) -> None:
    x = np.full(2 * LARGE, -1.0, np.float32)
    results = [wf.nn.relu(x), wf.clip(x, -2, 2), wf.positive(x), wf.where(True, x, x)]
    assert natively.runs >= 3
    x[:] = 7
    assert [float(r[5]) for r in results] == [0, -1, -1, -1]
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["softmax", "sum", "layer_norm", "mean", "gelu", "cumsum"])
def test_bits_do_not_depend_on_threads_or_plans(
    name: str, on: None, natively: Natively, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "OFTEN", 4)
    x = wf.asarray(RNG.normal(size=(700, 193)).astype(np.float32))
    other = wf.asarray(RNG.normal(size=(350, 200)).astype(np.float32))
    function = WIDE[name][0]
    first = outcome(lambda: function(x))  # a plan of its own
    for calls in every_function():
        calls._known.clear()
        calls._kinds.clear()
    function(other)
    threads = wf.get_num_threads()
    try:
        for count in (1, 2, 1, 2, 1, 2):  # a plan for many sizes, then one of its own
            wf.set_num_threads(count)
            assert outcome(lambda: function(x)) == first
    finally:
        wf.set_num_threads(threads)


def test_what_stays_op_by_op(on: None, natively: Natively) -> None:
    x = wf.asarray(np.ones((LARGE, 2), np.float32))
    wf.nn.silu(x[:3])  # small
    wf.reshape(x, (-1,))  # moves nothing
    assert natively.runs == 0
    graph = wf.Graph()
    with graph.as_default():
        assert wf.nn.silu(x)._data is None  # an op of the graph
    assert wf.compile(lambda: wf.nn.silu(x))().shape == x.shape
    with wf.device("/cpu:0"):
        wf.nn.silu(x)
    assert natively.runs == 0
    wide = wf.asarray(np.ones((1, 300))) + wf.asarray(np.ones((300, 1)))  # broadcast to a large one
    assert natively.runs == 1
    assert wide.shape == (300, 300)


def test_a_changing_number_compiles_once_and_settings_not_for_ever(
    on: None, natively: Natively, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "MOST_SETTINGS", 3)
    x = wf.asarray(np.ones(2 * LARGE))
    x * 0.5
    before = compile_count()
    for k in range(20):
        assert float((x * (k + 0.25))[0]) == k + 0.25
    assert compile_count() == before
    for k in range(20):
        assert float(wf.nn.leaky_relu(-x, 0.5 + k)[0]) == -0.5 - k
    assert len(calls_of(wf.nn.leaky_relu)._kinds) == 3


def test_many_threads_at_once(on: None, natively: Natively) -> None:
    xs = [wf.asarray(np.full(LARGE + k, float(k), np.float32)) for k in range(6)]
    out: dict[int, Any] = {}

    def work(k: int) -> None:
        for i in range(30):
            x = xs[(k + i) % 6]
            assert float(wf.nn.relu(x * 2)[-1]) == 2 * ((k + i) % 6)
        out[k] = True

    started = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in started:
        t.start()
    for t in started:
        t.join()
    assert len(out) == 4


def test_nothing_warns_in_calls_within_calls_and_in_threads() -> None:
    one, zero = np.ones(3), np.zeros(3)

    def both() -> list[float]:
        return [*np.divide(one, zero), *quietly(np.divide, one, zero)]

    def check() -> None:
        assert [*quietly(both), *QUIET.run(both)] == [INF] * 12
        with pytest.raises(RuntimeError, match="own"):
            quietly(_raise)
        assert not QUIET.inside

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = np.geterr()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: check(), range(4)))
        check()
        assert np.geterr() == before


def _raise() -> None:
    raise RuntimeError("its own")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**{k: v for k, v in os.environ.items() if k != "WEFT_EAGER"}, **environment},
        text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_variable_that_turns_it_off(tmp_path: Any) -> None:
    code = "import weft as wf; wf.nn.relu(wf.ones(100000)); wf.exp(wf.ones(9))"
    keep = {"WEFT_CACHE": "1", "WEFT_CACHE_DIR": str(tmp_path), "WEFT_LOG": "compile"}
    assert "compiled eager_relu" in run(code, **keep).stderr
    assert "loaded the plan of eager_relu" in run(code, **keep).stderr  # from the disk
    assert "eager" not in run(code, WEFT_EAGER="interpreter", **keep).stderr
    assert "WEFT_EAGER='no'" in run(code, WEFT_EAGER="no").stderr
