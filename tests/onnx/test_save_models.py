"""Whole models as ONNX: what people expect to see in them, and the numbers that runtimes give."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from corpus import corpus
from onnx_runs import check, close, kinds, run_runtime, saved
from paths import ROOT
from program_forms import Program

import weft as wf
from weft.ir.errors import UnsupportedError, WeftError

F32 = wf.float32
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def open_rows(*shape: int) -> wf.TensorType:
    return wf.TensorType(F32, ("n", *shape))


X = normal(3, 4)


class TestPatterns:
    """Ops of weft that are one operator of ONNX are that, and give the same."""

    @pytest.mark.parametrize(
        ("function", "kind"),
        [
            (wf.nn.relu, "Relu"), (wf.nn.relu6, "Clip"), (wf.nn.gelu, "Gelu"),
            (lambda x: wf.nn.gelu(x, approximate=True), "Gelu"), (wf.nn.softmax, "Softmax"),
            (lambda x: wf.nn.softmax(x, axis=0), "Softmax"), (wf.nn.log_softmax, "LogSoftmax"),
            (wf.nn.elu, "Elu"), (lambda x: wf.nn.elu(x, 0.3), "Elu"), (wf.nn.selu, "Selu"),
            (lambda x: wf.nn.leaky_relu(x, 0.3), "LeakyRelu"), (wf.nn.softplus, "Softplus"),
            (wf.nn.softsign, "Softsign"), (wf.nn.hard_sigmoid, "HardSigmoid"),
            (wf.nn.mish, "Mish"), (lambda x: wf.clip(x, -0.5, 0.5), "Clip"),
            (lambda x: wf.mean(x, axis=1), "ReduceMean"), (wf.nn.layer_norm, "LayerNormalization"),
            (wf.sigmoid, "Sigmoid"), (wf.tanh, "Tanh"),
        ],
    )  # fmt: skip
    def test_one_operator(self, function: Callable[..., Any], kind: str) -> None:
        big = np.concatenate([X, 30 * X, np.array([[0.0, -0.0, 6.0, -3.0]], np.float32)])
        model = check(function, open_rows(4), (big,), (X[:1],))
        assert kinds(model) == [kind]

    def test_at_the_ends(self) -> None:
        """NaN and infinities are what they are in weft."""
        x = np.array([[np.nan, np.inf, -np.inf, 0.0]], np.float32)
        for function in (wf.nn.relu, wf.nn.relu6, wf.nn.leaky_relu, wf.nn.elu, wf.nn.softplus):
            check(function, open_rows(4), (x,))

    def test_not_what_is_nearly_one(self) -> None:
        """Other numbers, other operands: the formula stays."""

        def halves(x: Any) -> Any:
            return wf.where(x <= 0, 0.5, x), x * (wf.erf(x * 0.7) + 1) * 0.5, wf.exp(x) / wf.sum(x)

        model = check(halves, open_rows(4), (X,))
        assert not {"Relu", "Gelu", "Softmax"} & set(kinds(model))

    def test_layer_norm_with_scale_and_offset(self) -> None:
        scale, offset = normal(4), normal(4)
        for args in ((scale, offset), (scale, None), (None, offset), (2.5, offset)):
            model = check(lambda x, a=args: wf.nn.layer_norm(x, *a), open_rows(4), (X,), (X[:0],))
            assert kinds(model) == ["LayerNormalization"]

    def test_norms_by_the_root_mean_square(self) -> None:
        """From opset 23 on, in the four ways that people write."""
        s = normal(4)

        def norms(x: Any) -> Any:
            product = wf.mean(x * x, axis=-1, keepdims=True) + 1e-6
            power = wf.mean(x**2, axis=-1, keepdims=True) + 1e-5
            return (
                x * wf.rsqrt(product) * s, x / wf.sqrt(power) * s, x * wf.rsqrt(power),
                x / wf.sqrt(product),
            )  # fmt: skip

        model = check(norms, open_rows(4), (X,), (X[:0],), opset=23, reference=False)
        assert kinds(model) == ["RMSNormalization"] * 4
        assert "RMSNormalization" not in kinds(check(norms, open_rows(4), (X,)))

    def test_silu(self) -> None:
        assert kinds(check(wf.nn.silu, open_rows(4), (X,), (30 * X,))) == ["Sigmoid", "Mul"]

    def test_means_of_open_sizes(self) -> None:
        example = wf.TensorType(F32, ("b", "t", 4))
        calls = [(normal(2, n, 4),) for n in (1, 2, 5)]
        model = check(lambda x: (wf.mean(x, axis=1), wf.mean(x)), example, *calls)
        assert kinds(model) == ["ReduceMean", "ReduceMean"]

    def test_a_dense_layer_is_gemm(self) -> None:
        w, b = normal(4, 5), normal(5)
        assert kinds(check(lambda x: x @ w + b, open_rows(4), (X,), (X[:0],))) == ["Gemm"]
        assert kinds(check(lambda x: b + x @ w, open_rows(4), (X,))) == ["Gemm"]
        turned = check(
            lambda x, y: wf.transpose(y) @ x + b[:4], (X, normal(3, 2)), (X, normal(3, 2))
        )
        assert kinds(turned) == ["Gemm"]
        assert kinds(check(lambda x: x @ w + 1.0, open_rows(4), (X,))) == ["MatMul", "Add"]

    def test_a_product_that_others_read(self) -> None:
        w, b = normal(4, 5), normal(5)

        def f(x: Any) -> Any:
            y = x @ w
            return y + b, y

        assert kinds(check(f, open_rows(4), (X,))) == ["MatMul", "Add"]

    def test_top_k(self) -> None:
        model = check(lambda x: wf.top_k(x, 2), open_rows(4), (X,), (X[:0],))
        assert kinds(model) == ["TopK"]
        check(lambda x: wf.sort(x, axis=0)[:2], wf.TensorType(F32, (3, 4)), (X,))

    def test_slices_from_an_end(self) -> None:
        """Bounds that Python cuts off at the ends, as ONNX does: for sizes below them, too."""

        def f(x: Any) -> Any:
            return x[1::2], x[::-1], x[-2:], x[:-1], x[:2], x[::-2], x[2:0:-1]

        model = check(f, open_rows(4), *[(normal(n, 4),) for n in (0, 1, 2, 3, 7)])
        assert set(kinds(model)) <= {"Slice", "Shape", "Add", "Sub", "Max", "Mul", "Min"}
        assert kinds(saved(lambda x: x[1::2, ::-1], open_rows(4))) == ["Slice"]

    def test_pooling(self) -> None:
        image = normal(2, 9, 8, 3)
        rows = open_rows(9, 8, 3)
        for padding in ("SAME", "VALID"):
            for kind, pool in (("MaxPool", wf.nn.max_pool), ("AveragePool", wf.nn.avg_pool)):
                model = check(
                    lambda x, p=pool, s=padding: p(x, 3, strides=2, padding=s), rows, (image,)
                )
                assert kinds(model) == ["Transpose", kind, "Transpose"]

    def test_attention(self) -> None:
        q, k, v = (normal(2, 3, n, 8) for n in (5, 6, 6))
        mask = RNG.random((2, 1, 5, 6)) > 0.2
        mask[..., 0] = True

        def masked(q: Any, k: Any, v: Any) -> Any:
            return wf.nn.scaled_dot_product_attention(q, k, v, mask)

        def added(q: Any, k: Any, v: Any) -> Any:
            return wf.nn.scaled_dot_product_attention(q, k, v, normal(5, 6) * 0 + 0.5)

        for function in (wf.nn.scaled_dot_product_attention, masked, added):
            old = check(function, (q, k, v), (q, k, v))
            assert "Softmax" in kinds(old)
            new = check(function, (q, k, v), (q, k, v), opset=23, reference=False)
            assert kinds(new).count("Attention") == 1
            assert "Softmax" not in kinds(new)


class TestLayouts:
    """Channels are last in weft and first in ONNX; no Transpose stands between two layers."""

    W = normal(3, 3, 3, 8), normal(8), normal(3, 3, 8, 8)

    def net(self, x: Any, layout: str = "NHWC") -> Any:
        w, b, w2 = self.W
        bias = b if layout == "NHWC" else wf.reshape(b, (8, 1, 1))
        y = wf.nn.relu(wf.nn.conv2d(x, w, padding="SAME", data_format=layout) + bias)
        y = wf.nn.max_pool2d(y, 2, strides=2, data_format=layout)
        z = wf.nn.conv2d(y, w2, padding="SAME", data_format=layout)
        return wf.nn.gelu(z) + y

    def test_channels_last(self) -> None:
        image = normal(2, 8, 8, 3)
        model = check(self.net, open_rows(8, 8, 3), (image,), near=1e-4)
        assert kinds(model) == [
            "Transpose", "Conv", "Relu", "MaxPool", "Conv", "Gelu", "Add", "Transpose",
        ]  # fmt: skip

    def test_channels_first(self) -> None:
        image = normal(2, 3, 8, 8)
        model = check(lambda x: self.net(x, "NCHW"), open_rows(3, 8, 8), (image,), near=1e-4)
        assert kinds(model) == ["Conv", "Relu", "MaxPool", "Conv", "Gelu", "Add"]

    def test_what_follows_in_that_layout(self) -> None:
        """Reductions, joins, pads and slices of channels-first tensors; a softmax of channels."""

        def f(x: Any) -> Any:
            y = self.net(x)
            joined = wf.concat([y, wf.nn.relu(y)], axis=-1)
            return (
                wf.mean(y, axis=(1, 2)), wf.sum(y, axis=3, keepdims=True), wf.nn.softmax(joined),
                wf.max(y, axis=(0, 3)), wf.pad(y, ((0, 0), (1, 0), (0, 2), (0, 1)))[:, 1:, ::2, 3:],
                wf.cumulative_sum(y, axis=1), wf.argmax(y, axis=-1), y[:, 0] * y[:, 1, :, :1],
            )  # fmt: skip

        check(f, open_rows(8, 8, 3), (normal(2, 8, 8, 3),), near=1e-4)

    @pytest.mark.parametrize("groups", [1, 2, 4])
    def test_groups_and_transposed(self, groups: int) -> None:
        w, back = normal(3, 2, 4 // groups, 8), normal(3, 3, 6, 4)

        def f(x: Any) -> Any:
            y = wf.nn.conv2d(x, w, strides=(2, 1), padding="SAME", groups=groups)
            z = wf.nn.conv2d_transpose(x, back, strides=2, padding="SAME")
            return y, z

        check(f, open_rows(7, 6, 4), (normal(2, 7, 6, 4),), near=1e-4)

    def test_one_and_three_axes(self) -> None:
        w1, w3 = normal(3, 4, 5), normal(2, 2, 2, 4, 3)
        check(lambda x: wf.nn.conv1d(x, w1), open_rows(9, 4), (normal(2, 9, 4),), near=1e-4)
        check(
            lambda x: wf.nn.avg_pool3d(wf.nn.conv3d(x, w3), 2), open_rows(5, 5, 5, 4),
            (normal(2, 5, 5, 5, 4),), near=1e-4,
        )  # fmt: skip


class TestControlFlow:
    def test_branches(self) -> None:
        """Values of around are read within; a branch that gives them as they are."""

        def f(x: Any) -> Any:
            y = x * 2
            return wf.cond(wf.sum(x) > 0, lambda: (y + 1, x), lambda: (wf.exp(x), y))

        model = check(f, open_rows(4), (np.abs(X),), (-np.abs(X),), (X[:0],))
        assert "If" in kinds(model)

    def test_a_loop(self) -> None:
        def f(x: Any, n: Any) -> Any:
            w = wf.tanh(x)
            return wf.while_loop(
                lambda i, y: wf.logical_and(i < n, wf.sum(y) < 100),
                lambda i, y: (i + 1, y + w * y),
                (0, x),
            )

        example = (open_rows(4), wf.TensorType(wf.int64))
        counts = [np.asarray(n, np.int64) for n in (0, 1, 5, 50)]
        model = check(f, example, *[(np.abs(X), n) for n in counts], near=1e-4)
        assert "Loop" in kinds(model)

    def test_loops_within_branches_within_scans(self) -> None:
        def f(x: Any) -> Any:
            def step(total: Any, row: Any) -> Any:
                grown = wf.cond(
                    wf.sum(row) > 0,
                    lambda: wf.fori_loop(0, 3, lambda i, y: y + row * total, row),
                    lambda: wf.scan(lambda c, _: (c * 0.5, None), row, None, length=4)[0],
                )
                return total + wf.sum(grown), grown

            return wf.scan(step, wf.asarray(1.0), x), wf.scan(
                step, wf.asarray(1.0), x, reverse=True
            )

        check(
            f, open_rows(4), *[(normal(n, 4) / 4,) for n in (0, 1, 5)], near=1e-4, reference=False
        )
        model = check(f, wf.TensorType(F32, (3, 4)), (X,), near=1e-4, reference=False)
        assert kinds(model).count("Scan") == 2

    @pytest.mark.parametrize("axis", [0, 1])
    def test_running_products_of_nothing(self, axis: int) -> None:
        """onnxruntime's Scan ends the process for these: a Loop stands there."""
        example = wf.TensorType(F32, ("a", "b"))
        calls = [(np.ones(s, np.float32),) for s in ((0, 4), (4, 0), (0, 0), (2, 3))]
        for reverse in (False, True):
            check(
                lambda x, r=reverse: wf.flip(wf.cumulative_prod(wf.flip(x), axis=axis))
                if r else wf.cumulative_prod(x, axis=axis),
                example, *calls, reference=False,
            )  # fmt: skip


# ---------------------------------------------------------------------------------------- examples
def example(name: str) -> ModuleType:
    """A program of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(f"onnx_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def drawn(parameters: Any) -> Any:
    """Parameters that are no longer ones and zeros, which would be simplified away."""
    for v in wf.tree_leaves(parameters):
        v.assign(v.numpy() + 0.1 * normal(*v.shape))
    return parameters


class TestExamples:
    def test_a_language_model(self) -> None:
        module = example("transformer")
        p = drawn(module.parameters(50, 16, 32, 2, 0))
        kind = wf.TensorType(wf.int32, ("batch", 16))
        ids = RNG.integers(0, 50, (3, 16)).astype(np.int32)
        model = check(lambda x: module.logits(p, x, 4), kind, (ids,), (ids[:1],), near=1e-4)
        found = Counter(kinds(model))
        assert (found["LayerNormalization"], found["Softmax"], found["Gelu"]) == (5, 2, 2)
        new = check(
            lambda x: module.logits(p, x, 4), kind, (ids,), near=1e-4, opset=23, reference=False
        )
        assert Counter(kinds(new))["Attention"] == 2

    @pytest.mark.parametrize("freeze", [True, False])
    def test_a_conv_net(self, freeze: bool) -> None:
        """Batch normalisation is folded into the convolutions where the model is frozen."""
        module = example("convnet")
        p = drawn(module.parameters(8, 0))
        for v in wf.tree_leaves(p):
            if v.shape == (8,) or v.shape == (16,):
                v.assign(np.abs(v.numpy()) + 0.5)
        x = normal(5, 8, 8, 1)
        model = check(
            lambda x: module.logits(p, x),
            open_rows(8, 8, 1),
            (x,),
            (x[:1],),
            near=1e-3,
            freeze=freeze,
        )
        if freeze:
            assert kinds(model) == [
                "Transpose", "Conv", "Relu", "Conv", "Relu", "MaxPool", "Transpose", "Reshape",
                "Gemm",
            ]  # fmt: skip

    def test_an_lstm(self) -> None:
        module = example("lstm")
        p = drawn(module.parameters(8, 16, 0))
        x = normal(5, 8, 8)
        model = check(lambda x: module.logits(p, x), open_rows(8, 8), (x,), (x[:1],), near=1e-4)
        assert kinds(model)[-2:] == ["Scan", "Gemm"]

    def test_digits(self) -> None:
        module = example("digits")
        weights = vars(module.initial_weights()).values()
        w1, b1, w2, b2 = (np.asarray(v, np.float32) + normal(*v.shape) for v in weights)
        model = check(
            lambda x: wf.nn.relu(x @ w1 + b1) @ w2 + b2, open_rows(w1.shape[0]),
            (normal(3, w1.shape[0]),), near=1e-4,
        )  # fmt: skip
        assert kinds(model) == ["Gemm", "Relu", "Gemm"]


class TestThereAndBack:
    """`wf.onnx.load` of what `wf.onnx.save` has written."""

    @pytest.mark.slow
    @pytest.mark.share(2)
    @pytest.mark.parametrize("opset", [20, 23])
    def test_models(self, opset: int) -> None:
        """A language model, a conv net, an LSTM: the same numbers, for other sizes too."""
        text, conv, cell = example("transformer"), example("convnet"), example("lstm")
        p = drawn(text.parameters(50, 16, 32, 2, 0)), drawn(conv.parameters(8, 0))
        p3 = drawn(cell.parameters(8, 16, 0))
        for v in wf.tree_leaves(p[1]):
            v.assign(np.abs(v.numpy()) + 0.1)
        ids = RNG.integers(0, 50, (3, 16)).astype(np.int32)
        for function, kind, x in (
            (lambda x: text.logits(p[0], x, 4), wf.TensorType(wf.int32, ("b", 16)), ids),
            (lambda x: conv.logits(p[1], x), open_rows(8, 8, 1), normal(3, 8, 8, 1)),
            (lambda x: cell.logits(p3, x), open_rows(8, 8), normal(3, 8, 8)),
        ):
            model = wf.onnx.load(saved(function, kind, opset=opset))
            for given in (x, x[:1]):
                close([*map(np.asarray, model(given).values())], [function(given)], 1e-4)

    def test_trained_on(self) -> None:
        """Gradients in its weights are those of the function that was saved."""
        w, b = wf.Variable(normal(4, 3), name="w"), wf.Variable(normal(3), name="b")

        def f(x: Any, w: Any = w, b: Any = b) -> Any:
            return wf.nn.softmax(wf.matmul(x, w) + b)

        model = wf.onnx.load(saved(f, open_rows(4)))
        assert set(model.parameters) == {"w", "b"}

        def loss(p: Any) -> Any:
            (y,) = model.apply(p, X).values()
            return wf.sum(y**2)

        got = wf.grad(loss)(model.parameters)
        wanted = wf.grad(lambda w, b: wf.sum(f(X, w, b) ** 2), argnums=(0, 1))(
            wf.asarray(w), wf.asarray(b)
        )
        close([np.asarray(got["w"]), np.asarray(got["b"])], list(wanted))

    def test_at_the_ends(self) -> None:
        """The least integer divided, distinct elements of nothing, a scan without steps."""
        a, b = np.array([7, -128, -128, -7], np.int8), np.array([-128, 3, -1, 2], np.int8)
        empty = np.zeros((0, 4), np.float32)

        def f(a: Any, b: Any, x: Any) -> Any:
            values, counts = wf.unique_counts(x)
            return a // b, a % b, values, counts, wf.cumulative_prod(x, axis=0)

        model = wf.onnx.load(saved(f, (a, b, empty)))
        close([*map(np.asarray, model(a, b, empty).values())], f(*map(wf.asarray, (a, b, empty))))

    def test_saved_again(self) -> None:
        """A model that was loaded is a function as others are."""
        w = normal(3, 3, 1, 4)
        first = saved(lambda x: wf.nn.relu(wf.nn.conv2d(x, w)), open_rows(6, 6, 1))
        again = saved(wf.onnx.load(first), open_rows(6, 6, 1))
        x = normal(2, 6, 6, 1)
        close(run_runtime(again, [x]), run_runtime(first, [x]))
        assert Counter(kinds(again)) == Counter(kinds(first))


# --------------------------------------------------------------------------------------- the corpus
#: What acts on state, draws, calls Python or takes matrices apart, of the corpus' functions.
REFUSED = {
    *("training/mlp, Adam", "training/linear, momentum", "training/embedding, Adagrad"),
    *("training/lstm", "training/conv", "training/attention, Adam", "training/dropout"),
    *("training/loop of unknown length", "lstm/looped", "lstm/digits", "scalar/trained"),
    *("scalar/looped", "layers/drawn, 300 rows", "python/looked_at", "linalg/fit"),
}


def _functions() -> list[Program]:
    return [p for p in corpus().values() if p.call is not None]


@pytest.mark.share(48)
@pytest.mark.parametrize("program", _functions(), ids=lambda p: p.name)
def test_functions_of_the_corpus(program: Program) -> None:
    """With their gradients, for the first of their calls; without them if they say why not."""
    assert program.call is not None
    call = program.call()
    arrays = [np.asarray(x) for x in wf.tree_leaves(call.args[0])]
    if program.name in REFUSED:
        with pytest.raises(UnsupportedError):
            wf.onnx.save(call.function, example=tuple(arrays), freeze=False)
        return
    model = saved(call.function, tuple(arrays), freeze=False)
    wanted = wf.tree_leaves(wf.compile(call.function)(*call.args[0]))
    close(run_runtime(model, arrays), wanted, max(program.near or 0, 1e-4))


OPEN = [p for p in _functions() if p.name.startswith("sized/") and p.name not in REFUSED]


@pytest.mark.share(8)
@pytest.mark.parametrize("program", OPEN, ids=lambda p: p.name)
def test_one_file_for_all_sizes(program: Program) -> None:
    """Also 0 and 1."""
    assert program.call is not None
    call = program.call()
    model = saved(call.function, tuple(call.types()))
    for args in call.args:
        try:
            wanted = wf.tree_leaves(wf.compile(call.function)(*args))
        except WeftError:
            continue  # no value over no elements
        close(run_runtime(model, [np.asarray(a) for a in args]), wanted, 2e-3)
