"""`wf.testing.check_op`, and what WEFT_VERIFY=run says of kernels of registered ops."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.extend.ops import unregister_op
from weft.ir.errors import VerifyError

X = np.array([[1.0, -3.0, 0.5], [2.0, 0.25, -0.75]], np.float32)


@pytest.fixture
def register() -> Iterator[Callable[..., Any]]:
    """`wf.register_op`, whose ops are gone after the test."""
    names = []

    def make(name: str, **options: Any) -> Any:
        names.append(name)
        return wf.register_op(name, **options)

    yield make
    for name in names:
        unregister_op(name)


def soft_sign(register: Callable[..., Any], kernel: Any = None, gradient: Any = None) -> Any:
    op = register("soft", elementwise=True, reference=lambda x: x / (1 + np.abs(x)))
    if kernel is not None:
        wf.register_kernel(op, dtypes=[wf.float32, wf.float64])(kernel)
    if gradient is not None:
        wf.register_gradient(op)(gradient)
    return op


def right_kernel(x: Any) -> Any:
    return x / (1 + abs(x))


def wrong_kernel(x: Any) -> Any:
    return x / (2 + abs(x))


def right_gradient(op: Any, dy: Any) -> Any:
    return dy / wf.square(1 + wf.abs(op.inputs[0]))


def wrong_gradient(op: Any, dy: Any) -> Any:
    return dy / (1 + wf.abs(op.inputs[0]))


class TestCheckOp:
    def test_right(self, register: Any) -> None:
        op = soft_sign(register, right_kernel, right_gradient)
        lines = [
            "reference of 'soft': pure, float32[2, 3]",
            "kernel of 'soft' for float32[2, 3]: as the reference",
            "kernel of 'soft' for float64[2, 3]: as the reference",
            "gradient of 'soft' for operand 0: as differences of float64",
        ]
        assert wf.testing.check_op(op, X) == lines
        assert wf.testing.check_op("soft", X, seed=3) == lines

    @pytest.mark.share(5)
    @pytest.mark.parametrize("x", [1.5, np.zeros((0, 3)), X.astype(np.float64), X[0, 0], X.T])
    def test_shapes_and_dtypes(self, register: Any, x: Any) -> None:
        wf.testing.check_op(soft_sign(register, right_kernel, right_gradient), x)

    def test_nothing_registered(self, register: Any) -> None:
        reference, kernel, gradient = wf.testing.check_op(soft_sign(register), X)
        assert reference == "reference of 'soft': pure, float32[2, 3]"
        assert kernel.startswith("no kernel of 'soft' for float32[2, 3]: ")
        assert gradient.startswith("no gradient of 'soft': ")

    def test_a_kernel_that_contradicts(self, register: Any) -> None:
        op = soft_sign(register, wrong_kernel)
        what = "the kernel of 'soft' for float32[2, 3] contradicts the reference: result 0 at"
        with pytest.raises(wf.testing.CheckError, match=re.escape(what)) as caught:
            wf.testing.check_op(op, X)
        assert isinstance(caught.value, AssertionError)
        assert caught.value.locations[0].file == __file__
        wf.testing.check_op(op, X, rtol=10.0)

    @pytest.mark.slow
    def test_a_gradient_that_is_wrong(self, register: Any) -> None:
        op = soft_sign(register, right_kernel, wrong_gradient)
        with pytest.raises(wf.testing.CheckError, match="the gradient of 'soft' for operand 0 is"):
            wf.testing.check_op(op, X)

    def test_of_several_operands_and_results_with_attributes(self, register: Any) -> None:
        def rule(x: Any, n: Any, y: Any, *, scale: Any) -> Any:
            return wf.TensorType(x.dtype, x.shape), wf.TensorType(wf.int64, ())

        op = register(
            "scaled", type_rule=rule, attrs={"scale": "float"},
            reference=lambda x, n, y, *, scale: (x * y * x.dtype.type(scale), np.int64(n[0])),
        )  # fmt: skip

        @wf.register_gradient(op)
        def gradient(op: Any, dx: Any, dn: Any) -> Any:
            x, _, y = op.inputs
            scale = op.attrs["scale"]
            return dx * y * scale, None, wf.sum(dx * x * scale, axis=0)

        lines = wf.testing.check_op(op, X, np.array([4]), X[1], scale=2.0)
        assert lines[0] == "reference of 'scaled': pure, float32[2, 3], int64[]"
        assert [line for line in lines if line.startswith("gradient")] == [
            f"gradient of 'scaled' for operand {i}: as differences of float64" for i in (0, 2)
        ]

    def test_python_numbers_are_those_of_a_call(self, register: Any) -> None:
        seen = []

        def reference(x: Any, y: Any) -> Any:
            seen.append((x.dtype, y.dtype))
            return x * y

        op = register("times", elementwise=True, reference=reference)
        wf.testing.check_op(op, X, 2.0)
        assert set(seen[:2]) == {(np.dtype("f4"), np.dtype("f4"))}

    def test_an_attribute_that_is_an_option(self, register: Any) -> None:
        op = register("seeded", elementwise=True, attrs={"seed": ("int", 0)},
                      reference=lambda x, *, seed: x + 0)  # fmt: skip
        with pytest.raises(wf.errors.UnsupportedError, match="has the attribute 'seed'"):
            wf.testing.check_op(op, X, seed=3)

    def test_an_op_of_float32_alone(self, register: Any) -> None:
        def rule(x: Any) -> Any:
            if x.dtype is not wf.float32:
                raise TypeError("float32 only")
            return x

        op = register("narrow", type_rule=rule, reference=lambda x: x * x)
        wf.register_gradient(op)(lambda op, dy: dy * 2 * op.inputs[0])
        assert "float32" in wf.testing.check_op(op, X)[-1]

    def test_a_reference_that_changes_its_operand(self, register: Any) -> None:
        def reference(x: Any) -> Any:
            x = x.view()
            x.flags.writeable = True
            x += 1
            return x * 1

        op = register("greedy", elementwise=True, reference=reference)
        with pytest.raises(wf.testing.CheckError, match="of 'greedy' changes its operand 0: at"):
            wf.testing.check_op(op, X)

    def test_a_reference_that_draws(self, register: Any) -> None:
        random = np.random.default_rng(0)

        def reference(x: Any) -> Any:
            return x + random.normal(size=x.shape).astype(x.dtype)

        op = register("noisy", elementwise=True, reference=reference)
        with pytest.raises(wf.testing.CheckError, match="gives another result 0 the second time"):
            wf.testing.check_op(op, X)

    def test_what_is_no_registered_op(self) -> None:
        with pytest.raises(wf.errors.NotFoundError, match="weft's own"):
            wf.testing.check_op("exp", X)

    def test_names(self) -> None:
        assert [n for n in dir(wf.testing) if not n.startswith("__")] == ["CheckError", "check_op"]


class TestVerify:
    @pytest.fixture(autouse=True)
    def verified(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_VERIFY", "run")

    def test_a_kernel_that_contradicts(self, register: Any) -> None:
        op = soft_sign(register, wrong_kernel)
        what = (
            r"the kernel of op 'soft' for f32\[2,3\] contradicts its reference on random operands"
        )
        with pytest.raises(VerifyError, match=what) as caught:
            wf.compile(lambda x: op(x) + 1)(X)
        assert caught.value.locations[0].file == __file__

    def test_in_a_session_with_ops_of_the_host(self, register: Any) -> None:
        op = soft_sign(register, wrong_kernel)
        with wf.Graph().as_default(), wf.Session() as session:
            queue = wf.FIFOQueue(3, [wf.float32], shapes=[()])
            y = wf.sum(op(wf.placeholder(wf.float32, [2, 3], name="x")))
            with pytest.raises(VerifyError, match="contradicts its reference"):
                session.run(queue.enqueue(y), {"x:0": X})

    def test_right_kernels_and_no_registered_ops(self, register: Any) -> None:
        op = soft_sign(register, right_kernel)
        np.testing.assert_allclose(wf.compile(lambda x: op(op(x)))(X[:1]), op(op(X[:1])), rtol=1e-6)
        wf.compile(lambda x: wf.exp(x))(X)

    def test_where_the_op_is_not_defined_nothing_is_compared(self, register: Any) -> None:
        op = register("ln", elementwise=True, reference=lambda x: np.log(x))

        @wf.register_kernel(op)
        def kernel(x: Any) -> Any:
            return 0 * x if x <= 0 else math.log(x)

        wf.compile(op)(np.array([4.0, 9.0], np.float32))

    def test_unverified_nothing_is_said(
        self, register: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WEFT_VERIFY", "")
        op = soft_sign(register, wrong_kernel)
        wf.compile(lambda x: op(x) * 1)(X)


class TestWhatUsedToPass:
    """Faults that a check must not let through."""

    def test_a_gradient_of_another_shape(self, register: Any) -> None:
        op = register("scaled", type_rule=lambda x, b: x, reference=lambda x, b: x * b)
        wf.register_gradient(op)(lambda op, dy: (dy * op.inputs[1], dy * op.inputs[0]))
        with pytest.raises(
            wf.testing.CheckError, match=r"has type f64\[2,3\], the operand f64\[3\]"
        ):
            wf.testing.check_op(op, X, X[0])

    def test_too_few_gradients(self, register: Any) -> None:
        op = register("scaled", type_rule=lambda x, b: x, reference=lambda x, b: x * b)
        wf.register_gradient(op)(lambda op, dy: dy * op.inputs[1])
        with pytest.raises(wf.testing.CheckError, match="the gradient of 'scaled'"):
            wf.testing.check_op(op, X, X)

    def test_a_gradient_that_reads_a_variable(self, register: Any) -> None:
        v = wf.Variable(2.0)
        op = register("my_square", elementwise=True, reference=lambda x: x * x)
        wf.register_gradient(op)(lambda op, dy: v * dy * op.inputs[0])
        with pytest.raises(wf.testing.CheckError, match="reads the variable"):
            wf.testing.check_op(op, X)

    def test_a_python_number(self, register: Any) -> None:
        op = register("scaled", elementwise=True, reference=lambda x, b: x * b)
        wf.register_gradient(op)(lambda op, dy: (dy * op.inputs[1], 100 * dy))
        with pytest.raises(wf.testing.CheckError, match="for operand 1"):
            wf.testing.check_op(op, X, 1.5)

    @pytest.mark.share(2)
    @pytest.mark.parametrize("rows", [2, 5, 64])
    def test_a_kernel_that_fills_a_part(self, register: Any, rows: int) -> None:
        op = register("same", type_rule=lambda x: x, reference=lambda x: x + 0)

        @wf.register_kernel(op)
        def first_row(x: Any, out: Any) -> None:
            for j in range(x.shape[1]):
                out[0, j] = x[0, j]

        x = np.random.default_rng(0).standard_normal((rows, 7)).astype(np.float32)
        with pytest.raises(wf.testing.CheckError, match=r"contradicts the reference.*\[1, 0\]"):
            wf.testing.check_op(op, x)

    @pytest.mark.slow
    def test_the_kernel_of_another_dtype(self, register: Any) -> None:
        op = register("double", elementwise=True, reference=lambda x: 2 * x)
        wf.register_kernel(op, dtypes=[wf.float32])(lambda x: 3 * x)
        wf.register_kernel(op, dtypes=[wf.float64])(lambda x: 2 * x)
        with pytest.raises(wf.testing.CheckError, match=r"float32.*contradicts"):
            wf.testing.check_op(op, X.astype(np.float64))


def test_explain_makes_up_no_time(register: Any) -> None:
    op = soft_sign(register, right_kernel)
    text = wf.compile(lambda x: op(wf.exp(x)))
    (line,) = (x for x in text.explain(X).splitlines() if x.startswith("  expected: "))
    assert line.endswith("; not estimated: soft")
    assert re.match(r"  expected: 0 us on one core; ", line)
