"""A graph as PyTorch 2.13 exports it: scaled dot-product attention with open batch and length
(`torch.onnx.export(dynamo=True, opset_version=20)`). Its shapes are computed by 20 of 42 nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import weft as wf

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
sdpa (float[b, t, 32] x) => (float[b, t, 32] y) {
    val_64 = Constant<value_floats = [0.5946035385131836]>()
    val_7 = Constant<value_ints = [3]>()
    val_8 = Constant<value_ints = [4]>()
    val_9 = Constant<value_ints = [8]>()
    val_11 = Constant<value_ints = [0]>()
    val_12 = Constant<value_ints = [1]>()
    val_17 = Constant<value_ints = [2]>()
    val_35 = Constant<value_ints = [-2]>()
    val_36 = Constant<value_ints = [-1]>()
    val_42 = Constant<value_float = 1.0>()
    val_45 = Constant<value_float = 0.0>()
    val_47 = Constant<value_float = -3.4028234663852886e+38>()
    val_51 = Constant<value_ints = [9223372036854775807]>()
    val_56 = Constant<value_ints = [-9223372036854775808]>()
    val_74 = Constant<value_ints = [32]>()
    val_0 = Shape<end = 1, start = 0>(x)
    val_1 = Shape<end = 2, start = 1>(x)
    val_3 = MatMul(x, q_weight)
    linear = Add(val_3, q_bias)
    val_10 = Concat<axis = 0>(val_0, val_1, val_7, val_8, val_9)
    view = Reshape<allowzero = 1>(linear, val_10)
    permute = Transpose<perm = [2, 0, 3, 1, 4]>(view)
    val_14 = Slice(permute, val_11, val_12, val_11)
    getitem = Squeeze(val_14, val_11)
    val_19 = Slice(permute, val_12, val_17, val_11)
    getitem_1 = Squeeze(val_19, val_11)
    val_23 = Slice(permute, val_17, val_7, val_11)
    getitem_2 = Squeeze(val_23, val_11)
    val_33 = Shape<start = 0>(getitem)
    val_34 = Shape<start = 0>(getitem_1)
    val_37 = Slice(val_33, val_35, val_36)
    val_40 = Slice(val_34, val_35, val_36)
    val_41 = Concat<axis = 0>(val_37, val_40)
    val_43 = Expand(val_42, val_41)
    val_44 = Trilu<upper = 0>(val_43)
    val_46 = Equal(val_44, val_45)
    val_49 = Where(val_46, val_47, val_45)
    val_53 = Slice(val_34, val_36, val_51)
    val_57 = Slice(val_34, val_56, val_35)
    val_59 = Concat<axis = 0>(val_36, val_40, val_53)
    val_60 = Reshape<allowzero = 0>(getitem_1, val_59)
    val_61 = Transpose<perm = [0, 2, 1]>(val_60)
    val_62 = Concat<axis = 0>(val_57, val_53, val_40)
    val_63 = Reshape<allowzero = 0>(val_61, val_62)
    val_65 = Mul(getitem, val_64)
    val_67 = Mul(val_63, val_64)
    val_68 = MatMul(val_65, val_67)
    val_69 = Add(val_68, val_49)
    val_70 = Softmax<axis = -1>(val_69)
    attended = MatMul(val_70, getitem_2)
    transpose = Transpose<perm = [0, 2, 1, 3]>(attended)
    val_75 = Concat<axis = 0>(val_0, val_1, val_74)
    view_1 = Reshape<allowzero = 1>(transpose, val_75)
    val_77 = MatMul(view_1, o_weight)
    y = Add(val_77, o_bias)
}"""
SHAPES = {"q_weight": (32, 96), "q_bias": (96,), "o_weight": (32, 32), "o_bias": (32,)}
#: What of the graph is left where sizes are open: the mask, and the arithmetic of attention.
LEFT = {"equal", "where", "matmul", "slice", "reshape", "permute_dims", "broadcast_to"}
SIZES = {"dim_size", "concat", "gather", "take", "stack", "squeeze", "expand_dims"}


@pytest.fixture(scope="module")
def proto() -> onnx.ModelProto:
    declared = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in SHAPES.items())
    model = parser.parse_model(TEXT.replace("x) =>", f"x, {declared}) =>"))
    del model.graph.input[1:]
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        value = rng.standard_normal(shape).astype(np.float32) * np.float32(0.2)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    one = numpy_helper.from_array(np.float32([1]), "val_99")
    model.graph.initializer.append(one)
    return model


@pytest.fixture(scope="module")
def model(proto: onnx.ModelProto) -> wf.onnx.Model:
    return wf.onnx.load(proto)


def inputs(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opened", [False, True])
def test_as_onnxruntime(proto: onnx.ModelProto, model: wf.onnx.Model, opened: bool) -> None:
    """Compiled for each size, and once for all of them."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    call = wf.compile(model, input_signature=[model.inputs["x"]]) if opened else model
    for shape in ((2, 9, 32), (1, 5, 32), (3, 1, 32)):
        x = inputs(*shape)
        (want,) = session.run(None, {"x": x})
        np.testing.assert_allclose(call(x)["y"], want, 1e-5, 1e-5)


def test_open_sizes_leave_no_arithmetic_on_shapes(model: wf.onnx.Model) -> None:
    with wf.Graph().as_default() as graph:
        model(wf.placeholder(wf.float32, (None, None, 32)))
        kinds = Counter(op.type for op in graph.get_operations())
    assert not SIZES & kinds.keys()
    assert kinds.keys() >= LEFT
    assert kinds["matmul"] == 4


def test_weights_are_parameters_and_its_constants_are_not(model: wf.onnx.Model) -> None:
    """What torch calls val_N and is one number is the scale, or the mask."""
    assert model.parameters.keys() == SHAPES.keys()
    x = inputs(2, 4, 32)
    got = wf.grad(lambda p: wf.sum(model.apply(p, x)["y"]))(model.parameters)
    np.testing.assert_allclose(got["o_bias"], np.full(32, 8), 1e-5)
    causal = wf.grad(lambda x: wf.sum(model(x)["y"][:, 0]))(wf.asarray(x))
    assert not np.any(causal.numpy()[:, 1:])
