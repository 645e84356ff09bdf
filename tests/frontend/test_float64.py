"""float64 that gets into float32: the warning, what `explain` says, and `wf.compile(x64=False)`."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from api_cases import ELEMENTWISE, REDUCTIONS, Case
from api_cases_array import CREATION, EINSUM, INDEXING, LINALG, SHAPES

import weft as wf
from weft.frontend.core import slow
from weft.ir.errors import TypeRuleError

X = np.ones((2, 3), np.float32)
WIDE = np.ones((2, 3))


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "told", set())


def told(call: Callable[[], object]) -> list[str]:
    """The float64 warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if w.category is wf.Float64Warning]


class TestWarning:
    def test_a_numpy_scalar(self) -> None:
        f = wf.compile(lambda x: x / np.sqrt(64))
        with pytest.warns(wf.Float64Warning) as caught:
            f(X)
        (one,) = caught
        assert one.filename == __file__
        assert one.lineno == f.__wrapped__.__code__.co_firstlineno
        assert "wf.divide: float32 meets a NumPy scalar or array of float64, 8.0" in str(
            one.message
        )
        assert "write float(s) for a NumPy scalar" in str(one.message)

    def test_an_argument_beside_a_variable(self) -> None:
        w = wf.Variable(np.ones((3, 2), np.float32))
        (one,) = told(lambda: wf.compile(lambda inputs: wf.matmul(inputs, w))(WIDE))
        assert one.startswith("wf.matmul: float32 meets the argument 'inputs', f64[2,3], so")

    def test_in_a_graph_and_in_a_loop(self) -> None:
        def build() -> None:
            with wf.Graph().as_default():
                wf.placeholder(wf.float32, [3]) * np.ones(3)

        (one,) = told(build)
        assert "meets an array of float64[3]" in one
        (two,) = told(lambda: wf.compile(lambda x: wf.fori_loop(
            0, 3, lambda i, v: wf.astype(v * np.float64(2), wf.float32), x))(X))  # fmt: skip
        assert two.startswith("wf.multiply: float32 meets a NumPy scalar")

    def test_once_for_each_line(self) -> None:
        def twice(x: Any) -> Any:
            for _ in range(3):
                x = wf.astype(x * np.float64(2), wf.float32)
            return x * np.float64(2)

        f = wf.compile(twice)
        assert len(told(lambda: (f(X), f(X[:1])))) == 2

    @pytest.mark.parametrize(
        "call",
        [
            lambda: wf.compile(lambda x: x / math.sqrt(64) * 2 + 1)(X),
            lambda: wf.compile(lambda x, s: x * s)(X, 2.0),
            lambda: wf.compile(lambda x: x + 1)(WIDE),
            lambda: wf.compile(lambda x: wf.astype(x, wf.float64) * 2)(X),
            lambda: wf.compile(lambda x: x * np.float32(2))(X),
            lambda: wf.compile(lambda n: n * np.float64(2))(np.ones(3, np.int32)),
            lambda: wf.asarray(X) * np.float64(2),
            lambda: wf.compile(lambda x: wf.result_type(x, WIDE) and x)(X),
        ],
    )
    def test_nothing_is_said(self, call: Any) -> None:
        """Of Python numbers, of float64 alone, of what is asked for, eagerly."""
        assert told(call) == []


class TestExplain:
    def test_mixed(self) -> None:
        f = wf.compile(lambda x: wf.exp(wf.exp(x) * np.float64(2)))
        (line,) = re.findall("^float64: .*", f.explain(X), re.MULTILINE)
        assert re.match(r"float64: 3 of 4 arrays of floats, the first at ", line)
        assert f"{__file__}:" in line

    @pytest.mark.parametrize("x", [X, WIDE])
    def test_not_mixed(self, x: Any) -> None:
        assert "\nfloat64:" not in wf.compile(lambda x: wf.exp(x) * 2 + 1).explain(x)


class TestForbidden:
    @pytest.mark.parametrize(
        ("call", "arguments", "what"),
        [
            (lambda x: x / np.sqrt(64), (X,),
             "wf.divide computes with a NumPy scalar or array of float64, 8.0, which wf.compile"),
            (lambda x: x, (WIDE,), "argument x of '{}' is float64, which"),
            (lambda x: x["w"][0], ({"w": [WIDE]},), "argument x_w_0 of '{}' is float64, which"),
            (lambda x: wf.astype(x, wf.float64), (X,), "op 'astype' of '{}' makes f64[2,3], which"),
            (lambda x: wf.astype(x, wf.complex128), (X,), "makes c128[2,3], which"),
            (lambda x: wf.sum(wf.astype(x[0, 0], wf.float64)), (X,), "returns float64 at result"),
            (lambda x: wf.sum(wf.zeros((2, 3), dtype=wf.float64)) + x, (X,), "wf.add computes"),
            (lambda x: wf.cond(wf.sum(x) > 0, lambda: x * np.float64(3), lambda: x), (X,),
             "wf.multiply computes with a NumPy scalar"),
        ],
    )  # fmt: skip
    def test_where_it_gets_in(self, call: Any, arguments: Any, what: str) -> None:
        f = wf.compile(x64=False)(call)
        with pytest.raises(TypeRuleError) as caught:
            f(*arguments)
        assert what.format("lambda") in caught.value.what
        assert caught.value.what.endswith("which wf.compile(x64=False) forbids")
        assert caught.value.locations[0].file == __file__
        assert "np.float32" in str(caught.value.hint)

    @pytest.mark.share(4)
    @pytest.mark.parametrize(
        ("call", "arguments"),
        [
            (lambda x: x / math.sqrt(64) * 2 + 1, (X,)),
            (lambda x, s: x * s + (s + 1), (X, 2.0)),
            (lambda n: n * 0.5, (np.ones(3, np.int64),)),
            (lambda x: wf.nn.softmax(x) + wf.mean(x) + wf.std(x) + wf.nn.gelu(x), (X,)),
            (lambda x: wf.random.normal(wf.random.key(0), (2, 3)) + x, (X,)),
            (lambda x: wf.grad(lambda y: wf.sum(wf.nn.layer_norm(y) ** 2 * 0.5))(x), (X,)),
            (lambda x: wf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 0.5), (0, x))[1],
             (X,)),
        ],
    )  # fmt: skip
    def test_a_model_of_float32(self, call: Any, arguments: Any) -> None:
        np.testing.assert_array_equal(
            wf.compile(x64=False)(call)(*arguments), wf.compile(call)(*arguments)
        )

    def test_training(self) -> None:
        w = wf.Variable(np.ones((3, 2), np.float32))
        optimizer = wf.train.Adam(0.1)
        count = wf.Variable(0, trainable=False)

        @wf.compile(x64=False)
        def step(x: Any) -> Any:
            loss, gradients = wf.value_and_grad(lambda v: wf.mean(wf.matmul(x, v) ** 2))(w.read())
            rate = wf.train.cosine_decay(0.1, count.read(), 100)
            optimizer.apply_gradients([(gradients, w)])
            count.assign_add(1)
            return loss * rate

        assert step(X).dtype is wf.float32

    def test_methods_copies_and_other_traces(self) -> None:
        class Model:
            @wf.compile(x64=False)
            def __call__(self, x: Any) -> Any:
                return x * np.float64(2)

        with pytest.raises(TypeRuleError, match="x64=False"):
            Model()(X)
        with pytest.raises(TypeRuleError, match="x64=False"):
            copy.deepcopy(Model().__call__)(X)

    def test_as_a_part_of_another_function(self) -> None:
        f = wf.compile(x64=False)(lambda x: wf.sum(x * np.float64(2)))
        for call in (wf.grad(f), wf.compile(lambda x: f(x)), wf.compile(wf.grad(f))):
            with pytest.raises(TypeRuleError, match="x64=False"):
                call(X)
        # what is around it may compute in float64
        assert wf.compile(lambda x: forbidding(x) + np.float64(1))(X).dtype is wf.float64

    @pytest.mark.parametrize("off", [False, 0, np.bool_(False)])
    def test_what_is_false(self, off: Any) -> None:
        with pytest.raises(TypeRuleError, match="x64=False"):
            wf.compile(x64=off)(lambda x: x * np.float64(2))(X)

    def test_warnings_that_are_errors_are_so_each_time(self) -> None:
        f = wf.compile(lambda x: x * np.float64(2))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                with pytest.raises(wf.Float64Warning):
                    f(X)

    @pytest.mark.share(48)
    @pytest.mark.parametrize(
        "case",
        [*ELEMENTWISE, *REDUCTIONS, *CREATION, *EINSUM, *INDEXING, *LINALG, *SHAPES],
        ids=lambda c: c.name,
    )
    def test_every_function_keeps_float32(self, case: Case) -> None:
        """Of float32 no public function makes float64 inside, unless it is asked for."""
        narrow = {"d": "f", "D": "F"}
        arrays = [np.asarray(x) for x in case.inputs]
        inputs = [x.astype(narrow.get(x.dtype.char, x.dtype)) for x in arrays]
        try:
            expected = wf.compile(case.call)(*inputs)
        except wf.errors.WeftError:
            return  # the case is one of float64
        leaves = wf.tree_leaves(expected)
        if any(t.dtype in (wf.float64, wf.complex128) for t in leaves):
            return
        given = wf.tree_leaves(wf.compile(x64=False)(case.call)(*inputs))
        for one, other in zip(given, leaves, strict=True):
            np.testing.assert_array_equal(one, other)


@wf.compile(x64=False)
def forbidding(x: Any) -> Any:
    return x
