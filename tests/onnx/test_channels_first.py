"""Channels first in ONNX models, last between convolutions: graphs drawn at random against
onnxruntime, and what is left of permutations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import weft as wf


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(1 in pair or pair[0] == pair[1] for pair in zip(a, b, strict=True))


class Drawn:
    """A graph that grows by nodes drawn at random; values are float32 of rank 4."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": (2, 3, 6, 5)}

    def constant(self, shape: Any = (), value: Any = None) -> str:
        name = f"c{len(self.constants)}"
        drawn = self.rng.standard_normal(shape).astype(np.float32) if value is None else value
        self.constants.append(numpy_helper.from_array(np.asarray(drawn), name))
        return name

    def add(self, kind: str, inputs: list[str], *shapes: tuple[int, ...], **attrs: Any) -> None:
        names = [f"v{len(self.shapes) + i}" for i in range(len(shapes))]
        self.nodes.append(helper.make_node(kind, inputs, names, **attrs))
        self.shapes.update(zip(names, shapes, strict=True))

    def grow(self) -> None:
        x = str(self.rng.choice(list(self.shapes)[-3:]))
        kinds = (
            "conv", "conv", "depthwise", "pool", "unary", "binary", "channels", "norm", "concat",
            "split", "slice", "transpose", "mean", "resize", "pad", "softmax", "prelu", "where",
            "shuffle",
        )  # fmt: skip
        getattr(self, str(self.rng.choice(kinds)))(x, self.shapes[x])

    def conv(self, x: str, s: tuple[int, ...]) -> None:
        out, k = int(self.rng.integers(1, 5)), int(self.rng.choice([1, 3]))
        w = self.constant((out, s[1], k, k))
        bias = [self.constant((out,))] if self.rng.random() < 0.5 else []
        self.add("Conv", [x, w, *bias], (s[0], out, *s[2:]), pads=[k // 2] * 4)

    def depthwise(self, x: str, s: tuple[int, ...]) -> None:
        w = self.constant((s[1], 1, 3, 1))
        self.add("Conv", [x, w], s, pads=[1, 0, 1, 0], group=s[1])

    def pool(self, x: str, s: tuple[int, ...]) -> None:
        kind = str(self.rng.choice(["MaxPool", "AveragePool", "GlobalAveragePool"]))
        if kind == "GlobalAveragePool":
            self.add(kind, [x], (*s[:2], 1, 1))
        else:
            self.add(kind, [x], s, kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    def unary(self, x: str, s: tuple[int, ...]) -> None:
        self.add(str(self.rng.choice(["Relu", "Sigmoid", "Identity", "HardSwish", "Elu"])), [x], s)

    def binary(self, x: str, s: tuple[int, ...]) -> None:
        kind = str(self.rng.choice(["Add", "Mul", "Sub", "Max"]))
        fits = [n for n, o in self.shapes.items() if broadcast(s, o)]
        y = str(self.rng.choice(fits))
        self.add(kind, [x, y], tuple(map(max, s, self.shapes[y])))

    def channels(self, x: str, s: tuple[int, ...]) -> None:
        shape = [(), (1,), (s[1], 1, 1), (s[3],), (1, s[1], 1, 1), s][self.rng.integers(6)]
        both = [x, self.constant(shape)]
        self.add("Mul", both if self.rng.random() < 0.5 else both[::-1], s)

    def norm(self, x: str, s: tuple[int, ...]) -> None:
        scale, bias, mean = (self.constant((s[1],)) for _ in range(3))
        var = self.constant(value=np.float32(self.rng.random(s[1])) + np.float32(0.5))
        self.add("BatchNormalization", [x, scale, bias, mean, var], s)

    def concat(self, x: str, s: tuple[int, ...]) -> None:
        axis = int(self.rng.integers(-4, 4))
        made = list(s)
        made[axis] *= 2
        if made[axis] < 20:
            self.add("Concat", [x, x], tuple(made), axis=axis)

    def split(self, x: str, s: tuple[int, ...]) -> None:
        axis = int(self.rng.integers(0, 4))
        if s[axis] > 1:
            sizes = self.constant(value=np.int64([1, s[axis] - 1]))
            shapes = [(*s[:axis], n, *s[axis + 1 :]) for n in (1, s[axis] - 1)]
            self.add("Split", [x, sizes], *shapes, axis=axis)

    def slice(self, x: str, s: tuple[int, ...]) -> None:
        axis = int(self.rng.integers(0, 4))
        if s[axis] > 1:
            parts = [self.constant(value=np.int64([v])) for v in (1, 2**62, axis)]
            self.add("Slice", [x, *parts], (*s[:axis], s[axis] - 1, *s[axis + 1 :]))

    def transpose(self, x: str, s: tuple[int, ...]) -> None:
        order = [int(a) for a in self.rng.permutation(4)]
        self.add("Transpose", [x], tuple(s[a] for a in order), perm=order)

    def mean(self, x: str, s: tuple[int, ...]) -> None:
        axes = sorted({int(a) for a in self.rng.integers(0, 4, 2)})
        given = self.constant(value=np.int64(axes))
        made = tuple(1 if a in axes else d for a, d in enumerate(s))
        self.add("ReduceMean", [x, given], made)

    def resize(self, x: str, s: tuple[int, ...]) -> None:
        if s[2] * s[3] < 50:
            scales = self.constant(value=np.float32([1, 1, 2, 1]))
            mode = str(self.rng.choice(["nearest", "linear"]))
            self.add("Resize", [x, "", scales], (*s[:2], 2 * s[2], s[3]), mode=mode)

    def pad(self, x: str, s: tuple[int, ...]) -> None:
        pads = self.constant(value=np.int64([0, 1, 0, 0, 0, 0, 1, 0]))
        if s[1] < 8:
            self.add("Pad", [x, pads], (s[0], s[1] + 1, s[2] + 1, s[3]))

    def softmax(self, x: str, s: tuple[int, ...]) -> None:
        self.add("Softmax", [x], s, axis=int(self.rng.integers(-4, 4)))

    def prelu(self, x: str, s: tuple[int, ...]) -> None:
        self.add("PRelu", [x, self.constant((s[1], 1, 1))], s)

    def where(self, x: str, s: tuple[int, ...]) -> None:
        chosen = self.constant(value=self.rng.random((s[1], 1, 1)) < 0.5)
        self.add("Where", [chosen, x, self.constant()], s)

    def shuffle(self, x: str, s: tuple[int, ...]) -> None:
        """Of channels, or another exchange of axes between two reshapes."""
        if s[1] % 2:
            return
        order = [[0, 2, 1, 3, 4], [0, 2, 1, 4, 3], [0, 1, 2, 4, 3]][self.rng.integers(3)]
        parts = (s[0], 2, s[1] // 2, *s[2:])
        turned = tuple(parts[a] for a in order)
        made = (s[0], s[1], *turned[3:])
        one, other = f"{x}_g{len(self.nodes)}", f"{x}_t{len(self.nodes)}"
        shapes = [self.constant(value=np.int64(v)) for v in (parts, made)]
        self.nodes.append(helper.make_node("Reshape", [x, shapes[0]], [one]))
        self.nodes.append(helper.make_node("Transpose", [one], [other], perm=order))
        self.add("Reshape", [other, shapes[1]], made)

    def model(self) -> onnx.ModelProto:
        outputs = [
            helper.make_tensor_value_info(n, 1, s) for n, s in list(self.shapes.items())[-3:]
        ]
        graph = helper.make_graph(
            self.nodes, "drawn", [helper.make_tensor_value_info("x", 1, self.shapes["x"])],
            outputs, self.constants,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@examples(12)
@given(st.integers(0, 2**32))
def test_drawn_graphs(seed: int) -> None:
    """Eagerly and compiled, as onnxruntime has it."""
    drawn = Drawn(seed)
    while len(drawn.shapes) < 14:
        drawn.grow()
    held = drawn.model()
    x = drawn.rng.standard_normal(drawn.shapes["x"]).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(held.SerializeToString(), options)
    model = wf.onnx.load(held)
    for made in (model(x), model.apply({}, x)):
        for (name, got), want in zip(made.items(), session.run(None, {"x": x}), strict=True):
            assert got.shape == drawn.shapes[name]
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(got.numpy(), want, 1e-4, 1e-4 * scale, err_msg=name)


CHAIN = """<ir_version: 10, opset_import: ["" : 20]>
m (float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, first)
    b = BatchNormalization(a, s, s, s, s)
    c = Relu(b)
    d = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(c)
    e = Conv<pads = [1, 1, 1, 1]>(d, w)
    f = Add(e, d)
    g = Concat<axis = 1>(f, d)
    h, i = Split<axis = 1, num_outputs = 2>(g)
    j = Mul(h, gate)
    k = Clip(j, low, high)
    y = Conv<pads = [1, 1, 1, 1]>(k, w)
}"""


@pytest.fixture(scope="module")
def chain() -> wf.onnx.Model:
    model = onnx.parser.parse_model(CHAIN.replace("x) =>",
        "x, float[8, 8, 3, 3] first, float[8, 8, 3, 3] w, float[8] s, "
        "float[8, 1, 1] gate, float low, float high) =>"))  # fmt: skip
    del model.graph.input[1:]
    rng = np.random.default_rng(0)
    for name, shape in (
        ("first", (8, 8, 3, 3)),
        ("w", (8, 8, 3, 3)),
        ("s", (8,)),
        ("gate", (8, 1, 1)),
    ):
        value = (rng.random(shape) + 0.5).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    for name, value in (("low", -1.0), ("high", 6.0)):
        model.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
    return wf.onnx.load(model)


def test_no_transpose_between_convolutions(chain: wf.onnx.Model) -> None:
    """One where the input comes, one where the result goes."""
    text = chain.ir(np.zeros((1, 8, 6, 6), np.float32))
    assert text.count(" = permute_dims(") == 2
    assert text.count(" = conv(") == 3


def test_batch_normalisation_is_folded(chain: wf.onnx.Model) -> None:
    """Into the weights of the convolution before it: an offset is left."""
    text = chain.ir(np.zeros((1, 8, 6, 6), np.float32))
    before = text.split(" = conv(")[1].split(" = window_max(")[0]
    assert "multiply" not in before
    assert "fma" not in before
    assert "add" in before
