"""`wf.onnx.load`: a model as a function, its weights, open sizes, transformations, what it is used
in. Single operators: test_node_models.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import weft as wf
from weft.frontend.onnx import table

WEIGHTS = {"w1": (4, 8), "b1": (8,), "w2": (8, 3)}
MLP = """<ir_version: 10, opset_import: ["" : 20]>
mlp (float[batch, 4] x) => (float[batch, 3] probs, float[batch, 8] hidden) {
    h0 = MatMul(x, w1)
    h1 = Add(h0, b1)
    hidden = Relu(h1)
    l = MatMul(hidden, w2)
    probs = Softmax<axis = -1>(l)
}"""
X = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)


_NAMES = {"float32": "float", "int64": "int64"}


def model_of(text: str, **weights: Any) -> onnx.ModelProto:
    """A model in ONNX's text form, with these initialisers."""
    head, _, body = text.partition("(")
    declared = ", ".join(
        f"{_NAMES[w.dtype.name]}[{','.join(map(str, w.shape))}] {n}" for n, w in weights.items()
    )
    first, arrow, rest = body.partition(")")
    joined = ", ".join(part for part in (first, declared) if part.strip())
    model = parser.parse_model(f"{head}({joined}{arrow}{rest}")
    kept = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return model


def weights(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in WEIGHTS.items()}


def mlp(w: Any, x: Any) -> Any:
    hidden = wf.nn.relu(wf.matmul(x, w["w1"]) + w["b1"])
    return {"probs": wf.nn.softmax(wf.matmul(hidden, w["w2"])), "hidden": hidden}


@pytest.fixture(scope="module")
def model() -> wf.onnx.Model:
    return wf.onnx.load(model_of(MLP, **weights()))


def alike(got: Any, want: Any, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol, rtol / 10)


class TestCalls:
    def test_what_it_is(self, model: wf.onnx.Model) -> None:
        assert repr(model) == ("<ONNX model mlp(x: f32[batch,4]) -> probs, hidden; 3 parameters>")
        assert list(model.inputs) == ["x"]
        assert model.outputs == ("probs", "hidden")
        assert {n: p.shape for n, p in model.parameters.items()} == WEIGHTS
        assert model.metadata["opset"] == "20"

    def test_by_position_and_name(self, model: wf.onnx.Model) -> None:
        want = mlp(weights(), X)
        for made in (model(X), model(x=wf.asarray(X)), model(X.tolist())):
            assert tuple(made) == model.outputs
            for name, value in made.items():
                alike(value, want[name])

    def test_of_other_sizes(self, model: wf.onnx.Model) -> None:
        for rows in (1, 3, 0):
            assert model(X[:rows])["probs"].shape == (rows, 3)

    def test_calls_after_one_that_was_right(self, model: wf.onnx.Model) -> None:
        """What is remembered of a call are dtypes and shapes: others are looked at again."""
        want = model(X)["probs"].numpy()
        for given in (X, wf.asarray(X), X[:, ::-1][:, ::-1], np.asfortranarray(X)):
            alike(model(x=given)["probs"], want)
        other = X.copy()
        other[0] = 0
        alike(model(other)["probs"], mlp(weights(), other)["probs"])
        with pytest.raises(wf.errors.TypeRuleError, match="f64"):
            model(X.astype(np.float64))
        with pytest.raises(wf.errors.TypeRuleError, match="f64"):
            model(X.astype(">f8"))
        with pytest.raises(wf.errors.ShapeError):
            model(X[:, :3])
        with pytest.raises(wf.errors.InvalidArgumentError):
            model(X, x=X)
        alike(model(X.astype(">f4"))["probs"], want)

    def test_static_values_after_each_other(self) -> None:
        made = wf.onnx.load(
            model_of("""<ir_version: 10, opset_import: ["" : 20]>
            m (float[n, k] x, int64[r] shape) => (float[p, q] y) { y = Reshape(x, shape) }""")
        )
        for shape in ([2, 6], [6, 2], [2, 6], [12, 1]):
            for given in (np.array(shape), wf.asarray(np.array(shape))):
                assert made(np.ones((3, 4), np.float32), given)["y"].shape == tuple(shape)
        changed = np.array([2, 6])
        for size in (2, 3, 4):
            changed[:] = size, 12 // size
            assert made(np.ones((3, 4), np.float32), changed)["y"].shape[0] == size
        assert "static array([2, 6])" in made.explain(np.ones((3, 4), np.float32), [2, 6])

    def test_names_that_are_no_identifiers(self) -> None:
        held = model_of(MLP, **weights())
        held.graph.input[0].name = held.graph.node[0].input[0] = "serving:x.1"
        held.graph.output[1].name = held.graph.node[2].output[0] = "hidden/out"
        held.graph.node[3].input[0] = "hidden/out"
        made = wf.onnx.load(held)
        assert list(made.inputs) == ["serving:x.1"]
        for found in (made(X), made(**{"serving:x.1": X}), made(serving_x_1=X)):
            alike(found["hidden/out"], mlp(weights(), X)["hidden"])

    def test_optional_inputs(self) -> None:
        """Before others they are given as None, at the end they may be left out."""
        tensor = helper.make_tensor_type_proto(1, ["n"])
        optional = helper.make_optional_type_proto(tensor)
        nodes = [
            helper.make_node("OptionalHasElement", ["first"], ["has"]),
            helper.make_node("OptionalHasElement", ["last"], ["had"]),
            helper.make_node("Where", ["has", "x", "zero"], ["one"]),
            helper.make_node("Where", ["had", "one", "x"], ["y"]),
        ]
        kinds = {"first": optional, "x": tensor, "last": optional}
        graph = helper.make_graph(
            nodes, "g", [helper.make_value_info(n, k) for n, k in kinds.items()],
            [helper.make_value_info("y", tensor)], [numpy_helper.from_array(np.float32(0), "zero")],
        )  # fmt: skip
        model = wf.onnx.load(helper.make_model(graph))
        x = np.float32([1, 2])
        alike(model(None, x)["y"], x)
        alike(model(first=None, x=x, last=x)["y"], 0 * x)
        alike(model(x, x, x)["y"], x)
        with pytest.raises(wf.errors.InvalidArgumentError, match="'x'"):
            model(None)

    def test_paths_and_bytes(self, tmp_path: Path) -> None:
        held = model_of(MLP, **weights())
        data = held.SerializeToString()  # `onnx.save` empties the model
        onnx.save(held, tmp_path / "m.onnx")
        onnx.save(
            held, tmp_path / "apart.onnx", save_as_external_data=True, location="data.bin",
            size_threshold=0,
        )  # fmt: skip
        given = (tmp_path / "m.onnx", str(tmp_path / "apart.onnx"), data)
        for source in given:
            alike(wf.onnx.load(source)(X)["probs"], mlp(weights(), X)["probs"])

    def test_in_a_compiled_function(self, model: wf.onnx.Model) -> None:
        @wf.compile
        def twice(x: Any) -> Any:
            return model(x * 2)["hidden"] + model(x)["hidden"]

        alike(twice(X), mlp(weights(), X * 2)["hidden"] + mlp(weights(), X)["hidden"])

    def test_in_a_graph(self, model: wf.onnx.Model) -> None:
        with wf.Graph().as_default(), wf.Session() as session:
            x = wf.placeholder(wf.float32, ("n", 4))
            y = model(x)["probs"]
            made = session.run(y, {x: X})
        alike(made, mlp(weights(), X)["probs"])


class TestParameters:
    def test_gradients(self, model: wf.onnx.Model) -> None:
        def of(call: Any) -> Any:
            return lambda w: wf.sum(wf.log(call(w, X)["probs"][:, 0]))

        want = wf.grad(of(mlp))({n: wf.asarray(w) for n, w in weights().items()})
        for got in (
            wf.grad(of(model.apply))(model.parameters),
            wf.compile(wf.grad(of(model.apply)))(model.parameters),
        ):
            assert got.keys() == want.keys()
            for name in want:
                alike(got[name], want[name])

    def test_others(self, model: wf.onnx.Model) -> None:
        alike(model.apply(weights(7), X)["probs"], mlp(weights(7), X)["probs"])
        some = {"w2": weights(7)["w2"]}
        alike(model.apply(some, x=X)["probs"], mlp({**weights(), **some}, X)["probs"])

    def test_training(self, model: wf.onnx.Model) -> None:
        held = {n: wf.Variable(p, name=n) for n, p in model.parameters.items()}
        optimizer = wf.train.Adam(0.05)

        @wf.compile
        def step(x: Any) -> Any:
            loss = -wf.mean(wf.log(model.apply(held, x)["probs"][:, 0]))
            optimizer.minimize(loss, list(held.values()))
            return loss

        losses = [float(step(X)) for _ in range(20)]
        assert losses[-1] < 0.2 * losses[0]
        alike(model(X)["probs"], mlp(weights(), X)["probs"])  # its own stay

    def test_shapes_are_no_parameters(self) -> None:
        held = model_of(
            """<ir_version: 10, opset_import: ["" : 20]>
            m (float[n] x) => (float[k, n] y) { s = Mul(x, factor)  y = Expand(s, shape) }""",
            factor=np.float32([2]), shape=np.int64([3, 1]),
        )  # fmt: skip
        made = wf.onnx.load(held)
        assert list(made.parameters) == ["factor"]
        alike(made(np.float32([1, 2]))["y"], [[2, 4]] * 3)

    def test_scales_of_resize_are_no_parameters(self) -> None:
        held = model_of(
            """<ir_version: 10, opset_import: ["" : 19]>
            m (float[1, 1, h, w] x) => (float[1, 1, a, b] y) { y = Resize(x, , scales) }""",
            scales=np.float32([1, 1, 2, 2]),
        )
        made = wf.onnx.load(held)
        assert not made.parameters
        assert made(np.ones((1, 1, 3, 2), np.float32))["y"].shape == (1, 1, 6, 4)


class TestTransformations:
    def test_vmap(self, model: wf.onnx.Model) -> None:
        got = wf.vmap(lambda row: model(wf.expand_dims(row, 0))["probs"][0])(wf.asarray(X))
        alike(got, mlp(weights(), X)["probs"])

    def test_jvp_of_an_input(self, model: wf.onnx.Model) -> None:
        f = lambda x: model(x)["probs"]  # noqa: E731
        g = lambda x: mlp({n: wf.asarray(w) for n, w in weights().items()}, x)["probs"]  # noqa: E731
        for got, want in zip(
            wf.jvp(f, (wf.asarray(X),), (wf.ones_like(X),)),
            wf.jvp(g, (wf.asarray(X),), (wf.ones_like(X),)), strict=True,
        ):  # fmt: skip
            alike(got, want)

    def test_export(self, model: wf.onnx.Model, tmp_path: Path) -> None:
        """To a bundle with an open size, of the same bits."""
        wf.export(model, tmp_path / "b", example=model.inputs["x"])
        bundle = wf.load(tmp_path / "b")
        for rows in (5, 2):
            np.testing.assert_array_equal(bundle(X[:rows])["probs"], model(X[:rows])["probs"])


SHAPES = """<ir_version: 10, opset_import: ["" : 20]>
m (float[b, c, d] x) => (float[b, e] y) {
    s = Shape(x)
    first = Constant<value_ints = [0]>()
    b = Gather(s, first)
    rest = Constant<value_ints = [-1]>()
    shape = Concat<axis = 0>(b, rest)
    y = Reshape(x, shape)
}"""


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "shape"),
        [
            (SHAPES, (2, 12)),
            (SHAPES.replace("rest = Constant<value_ints = [-1]>()", """
                one = Constant<value_ints = [1]>()  three = Constant<value_ints = [3]>()
                tail = Slice(s, one, three)  rest = ReduceProd(tail)"""), (2, 12)),
            (SHAPES.replace("rest = Constant<value_ints = [-1]>()", """
                i = Constant<value_int = 1>()  j = Constant<value_int = 2>()
                c = Gather(s, i)  d = Gather(s, j)  cd = Mul(c, d)
                zero = Constant<value_ints = [0]>()  rest = Unsqueeze(cd, zero)"""), (2, 12)),
        ],
        ids=["minus_one", "product", "scalars"],
    )  # fmt: skip
    def test_shape_arithmetic_leaves_nothing(self, text: str, shape: tuple[int, ...]) -> None:
        """With known sizes, and with open ones."""
        made = wf.onnx.load(parser.parse_model(text))
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        alike(made(x)["y"], x.reshape(shape))
        opened = wf.compile(made, input_signature=[made.inputs["x"]])
        alike(opened(x)["y"], x.reshape(shape))
        with wf.Graph().as_default() as graph:
            given = wf.placeholder(wf.float32, ("b", "c", "d"))
            made(given)
            assert [op.type for op in graph.get_operations()] == ["placeholder", "reshape"]

    def test_expand_of_torchs_exporter(self) -> None:
        """-1 in a wanted shape means the size that is there: Where(Equal(shape, -1), ...)."""
        made = wf.onnx.load(
            parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            m (float[b, 1] x) => (float[b, k] y) {
                s = Shape(x)
                zero = Constant<value_ints = [0]>()
                b = Gather(s, zero)
                three = Constant<value_ints = [3]>()
                wanted = Concat<axis = 0>(b, three)
                minus = Constant<value_ints = [-1, -1]>()
                hole = Equal(wanted, minus)
                ones = Constant<value_ints = [1, 1]>()
                shape = Where(hole, ones, wanted)
                y = Expand(x, shape)
            }""")
        )
        x = np.float32([[1], [2]])
        opened = wf.compile(made, input_signature=[made.inputs["x"]])
        for call in (made, opened):
            alike(call(x)["y"], np.broadcast_to(x, (2, 3)))

    def test_shapes_that_are_inputs(self) -> None:
        """Each value of a shape is compiled anew; in a function it may be computed."""
        made = wf.onnx.load(
            parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            m (float[n] x, int64[k] shape) => (float[a, b] y) { y = Reshape(x, shape) }""")
        )
        x = np.arange(6, dtype=np.float32)
        assert made(x, np.array([2, 3]))["y"].shape == (2, 3)
        assert made(x, np.array([3, -1]))["y"].shape == (3, 2)
        inside = wf.compile(lambda x, n: made(x, wf.stack([n, wf.asarray(2)]))["y"] * 2)
        alike(inside(x, np.int64(3)), x.reshape(3, 2) * 2)

    def test_axes_that_are_traced(self) -> None:
        made = wf.onnx.load(
            parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            m (float[a, b] x, int64[k] axes) => (float y) {
                total = ReduceSum<keepdims = 0>(x, axes)  y = ReduceMax<keepdims = 0>(total)
            }""")
        )
        x = np.ones((2, 3), np.float32)
        assert float(made(x, np.array([1]))["y"]) == 3
        with pytest.raises(wf.errors.UnsupportedError, match=r"'total' .ReduceSum.*'axes' must be"):
            wf.compile(lambda x, a: made(x, a)["y"])(x, np.array([1]))


class TestImagesOfAnySize:
    TEXT = """<ir_version: 10, opset_import: ["" : 20]>
    m (float[n, 3, height, width] x) => (float[n, 4, h, v] y, float[n, 4, 1, 1] mean) {
        c = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w)
        r = Relu(c)
        p = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(r)
        a = AveragePool<kernel_shape = [2, 2], auto_pad = "SAME_UPPER">(p)
        twice = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
        y = Resize<mode = "linear">(a, , twice)
        mean = GlobalAveragePool(y)
    }"""

    @pytest.fixture
    def net(self) -> wf.onnx.Model:
        w = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
        return wf.onnx.load(model_of(self.TEXT, w=w))

    def test_each_size_is_compiled_once(self, net: wf.onnx.Model) -> None:
        rng = np.random.default_rng(2)
        for n, height, width in ((1, 16, 16), (2, 31, 17), (1, 16, 16), (3, 40, 9)):
            x = rng.standard_normal((n, 3, height, width)).astype(np.float32)
            made = net(x)
            h, v = (-(-(-(-size // 2) - 3) // 2) + 1 for size in (height, width))
            assert made["y"].shape == (n, 4, 2 * h, 2 * v)
            eager = net.apply({}, x)  # op by op
            for name, value in made.items():
                alike(value, eager[name], 1e-4)
            with wf.Graph().as_default(), wf.Session() as session:
                given = wf.placeholder(wf.float32, [None, 3, height, width])
                alike(session.run(net(given)["mean"], {given: x}), made["mean"], 1e-4)

    def test_open_ones_in_a_signature(self, net: wf.onnx.Model) -> None:
        made = wf.compile(net, input_signature=[net.inputs["x"]])
        with pytest.raises(wf.errors.ShapeError, match="a call with arrays is compiled for their"):
            made(np.ones((1, 3, 8, 8), np.float32))
        held = wf.compile(net, input_signature=[wf.TensorType(wf.float32, ("n", 3, 8, 8))])
        assert [held(np.ones((n, 3, 8, 8), np.float32))["mean"].shape[0] for n in (1, 2)] == [1, 2]


class TestErrors:
    def test_all_operators_that_are_missing(self) -> None:
        held = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
            m (float[n] x) => (float[n] y) {
                a = mine.Fancy(x)  b = mine.Fancy(a)  c = Relu(b)  y = mine.Other(c)
            }""")
        held.graph.node[0].name = "first"
        with pytest.raises(
            wf.errors.UnsupportedError, match=r"mine\.Fancy \('first', 'b'\); mine\.Other \('y'\)"
        ):
            wf.onnx.load(held)

    def test_the_node_and_torchs_line(self) -> None:
        held = model_of(MLP, **weights())
        held.graph.node[3].name = "/head/MatMul"
        line = 'File "net.py", line 7, in forward'
        held.graph.node[3].metadata_props.add(
            key="pkg.torch.onnx.stack_trace", value=f"{line}\n    return x @ w"
        )
        held.graph.initializer[2].CopyFrom(
            numpy_helper.from_array(np.ones((9, 3), np.float32), "w2")
        )
        with pytest.raises(wf.errors.ShapeError, match=r"'/head/MatMul' \(MatMul\).*net\.py.*7"):
            wf.onnx.load(held)(X)

    @pytest.mark.parametrize(
        ("call", "kind", "match"),
        [
            (lambda m: m(X.astype(np.float64)), wf.errors.TypeRuleError, r"'x' .* got f64\[5,4\]"),
            (lambda m: m(X[:, :3]), wf.errors.ShapeError, r"f32\[batch,4\], got f32\[5,3\]"),
            (lambda m: m(X[0]), wf.errors.ShapeError, r"got f32\[4\]"),
            (lambda m: m(), wf.errors.InvalidArgumentError, "missing"),
            (lambda m: m(X, X), wf.errors.InvalidArgumentError, "too many"),
            (lambda m: m(y=X), wf.errors.InvalidArgumentError, "its inputs are: x"),
            (lambda m: m.apply({"w9": X}, X), wf.errors.InvalidArgumentError, "'w9'"),
            (lambda m: m.apply({"w1": X}, X), wf.errors.ShapeError, r"'w1' .* got f32\[5,4\]"),
            (lambda m: wf.onnx.load("none.onnx"), wf.errors.NotFoundError, "no file 'none.onnx'"),
            (lambda m: wf.onnx.load(7), wf.errors.TypeRuleError, "7 is no model"),
        ],
    )  # fmt: skip
    def test_calls(self, model: wf.onnx.Model, call: Any, kind: type, match: str) -> None:
        with pytest.raises(kind, match=match) as caught:
            call(model)
        assert "test_load.py" in str(caught.value)

    def test_sizes_of_one_name(self) -> None:
        made = wf.onnx.load(
            parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            m (float[n] x, float[n] y) => (float[n] z) { z = Add(x, y) }""")
        )
        with pytest.raises(wf.errors.ShapeError, match=r"'y' of 'm' is f32\[n\], got f32\[3\]"):
            made(np.ones(2, np.float32), np.ones(3, np.float32))

    def test_unknown_attribute(self) -> None:
        held = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            m (float[n] x) => (float[n] y) { y = Relu<strength = 2>(x) }""")
        with pytest.raises(wf.errors.UnsupportedError, match=r"'y' .Relu.*'strength'"):
            wf.onnx.load(held)(np.ones(2, np.float32))

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "onnx", None)
        with pytest.raises(wf.errors.UnsupportedError, match=r"not installed[\s\S]*weft\[onnx\]"):
            wf.onnx.load(b"")


class TestControlFlow:
    LOOP = """<ir_version: 10, opset_import: ["" : 20]>
    m (int64 n, float[k] x) => (float[k] y, float[n, k] all) {
        yes = Constant<value = bool {1}>()
        y, all = Loop(n, yes, x) <body = b (int64 i, bool c, float[k] a)
            => (bool d, float[k] z, float[k] out) {
                d = Identity(c)  z = Mul(a, x)  out = Identity(z)
            }>
    }"""

    def test_loop_with_a_number_of_iterations_that_is_computed(self) -> None:
        made = wf.onnx.load(parser.parse_model(self.LOOP))
        x = np.float32([2, 3])
        for n in (1, 3):
            found = made(np.int64(n), x)
            alike(found["y"], x ** (n + 1))
            alike(found["all"], [x ** (i + 2) for i in range(n)])

    def test_loop_has_gradients_where_the_number_is_known(self) -> None:
        text = self.LOOP.replace("int64 n, ", "").replace("[n, k]", "[3, k]")
        held = parser.parse_model(text.replace("yes =", "n = Constant<value_int = 3>()  yes ="))
        made = wf.onnx.load(held)
        got = wf.compile(wf.grad(lambda x: wf.sum(made(x)["y"])))(np.float32([2, 3]))
        alike(got, 4 * np.float32([2, 3]) ** 3)

    def test_loop_that_ends_by_its_condition(self) -> None:
        made = wf.onnx.load(
            parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            m (float x) => (float y) {
                none = Constant<value_int = 1000>()  yes = Constant<value = bool {1}>()
                limit = Constant<value_float = 100.0>()
                y = Loop(none, yes, x) <body = b (int64 i, bool c, float a) => (bool d, float z) {
                    z = Add(a, a)  d = Less(z, limit)
                }>
            }""")
        )
        assert [float(made(np.float32(v))["y"]) for v in (1, 7, 200)] == [128, 112, 400]

    def test_if_sees_what_is_around_it(self) -> None:
        made = wf.onnx.load(
            parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            m (float[n] x, bool up) => (float[n] y) {
                double = Add(x, x)
                y = If(up) <then_branch = a () => (float[n] t) { t = Add(double, x) },
                            else_branch = b () => (float[n] e) { e = Sub(x, double) }>
            }""")
        )
        x = np.float32([1, -2])
        alike(made(x, np.bool_(True))["y"], 3 * x)
        alike(made(x, np.bool_(False))["y"], -x)

    def test_functions_of_the_model(self) -> None:
        made = wf.onnx.load(
            parser.parse_model("""<ir_version: 10,
            opset_import: ["" : 20, "local" : 1]>
            m (float[n] x) => (float[n] y) { h = local.scaled<by = 3.0>(x)  y = local.scaled(h) }
            <domain: "local", opset_import: ["" : 20]>
            scaled <by: float = 2.0> (a) => (b) {
                f = Constant<value_float: float = @by>()  b = Mul(a, f)
            }""")
        )
        alike(made(np.float32([1, 2]))["y"], [6, 12])


class TestOperators:
    """Those that ONNX's own tests leave out, or cannot test: random ones."""

    def run(self, kind: str, *inputs: Any, outputs: int = 1, opset: int = 22, **attrs: Any) -> Any:
        named = [f"x{i}" for i in range(len(inputs))]
        node = onnx.helper.make_node(kind, named, [f"y{i}" for i in range(outputs)], **attrs)
        kinds = [
            onnx.helper.make_tensor_value_info(n, numpy_helper.from_array(x).data_type, x.shape)
            for n, x in zip(named, inputs, strict=True)
        ]
        made = [onnx.helper.make_empty_tensor_value_info(o) for o in node.output]
        graph = onnx.helper.make_graph([node], kind, kinds, made)
        held = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
        )
        return list(wf.onnx.load(held)(*inputs).values())

    def test_random_numbers(self) -> None:
        (a,) = self.run("RandomNormal", shape=[4000], mean=3.0, scale=2.0)
        assert abs(float(wf.mean(a)) - 3) < 0.2
        assert abs(float(wf.std(a)) - 2) < 0.2
        (b,) = self.run("RandomUniform", shape=[4000], low=-1.0, high=3.0, dtype=11)
        assert b.dtype is wf.float64
        assert -1 <= float(wf.min(b)) < -0.9
        assert 2.9 < float(wf.max(b)) < 3
        x = np.zeros((30, 40), np.float32)
        assert self.run("RandomNormalLike", x)[0].shape == x.shape
        assert self.run("RandomUniformLike", x, dtype=10)[0].dtype is wf.float16

    def test_seeds(self) -> None:
        one, two = (self.run("RandomNormal", shape=[9], seed=4.0)[0] for _ in range(2))
        np.testing.assert_array_equal(one, two)
        three = self.run("RandomNormal", shape=[9], seed=5.0)[0]
        assert not np.array_equal(one, three)

    def test_draws(self) -> None:
        p = np.full((2000,), 0.3, np.float32)
        (drawn,) = self.run("Bernoulli", p)
        assert set(np.unique(drawn)) == {0, 1}
        assert abs(float(wf.mean(drawn)) - 0.3) < 0.05
        logits = np.log(np.float32([[0.2, 0.8, 1e-9]]))
        (classes,) = self.run("Multinomial", logits, sample_size=2000)
        assert classes.shape == (1, 2000)
        assert classes.dtype is wf.int32
        assert abs(float(wf.mean(wf.astype(classes == 1, wf.float32))) - 0.8) < 0.05

    def test_dropout_that_trains(self) -> None:
        x = np.ones(4000, np.float32)
        made, mask = self.run("Dropout", x, np.float32(0.25), np.bool_(True), outputs=2)
        kept = np.asarray(mask)
        assert abs(kept.mean() - 0.75) < 0.05
        alike(made, kept / np.float32(0.75))

    def test_global_lp_pool(self) -> None:
        x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
        want = (np.abs(x) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)
        alike(self.run("GlobalLpPool", x, p=3)[0], want)

    def test_max_roi_pool(self) -> None:
        x = np.random.default_rng(0).standard_normal((2, 3, 8, 9)).astype(np.float32)
        rois = np.float32([[0, 0, 0, 8, 7], [1, 2, 1, 6, 6], [1, 8, 7, 8, 7]])
        (made,) = self.run("MaxRoiPool", x, rois, pooled_shape=[2, 2])
        import onnxruntime

        node = onnx.helper.make_node("MaxRoiPool", ["x", "r"], ["y"], pooled_shape=[2, 2])
        held = onnx.helper.make_model(
            onnx.helper.make_graph(
                [node], "m",
                [onnx.helper.make_tensor_value_info("x", 1, x.shape),
                 onnx.helper.make_tensor_value_info("r", 1, rois.shape)],
                [onnx.helper.make_tensor_value_info("y", 1, None)],
            ),
            opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8,
        )  # fmt: skip
        session = onnxruntime.InferenceSession(held.SerializeToString())
        alike(made, session.run(None, {"x": x, "r": rois})[0])

    @pytest.mark.parametrize("kind", ["Add", "Mul", "Sub", "Div"])
    def test_broadcasts_of_old_opsets(self, kind: str) -> None:
        x = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
        y = np.float32([1, 2, 3])
        compute = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract, "Div": np.divide}[kind]
        (made,) = self.run(kind, x, y, opset=6, broadcast=1, axis=1)
        alike(made, compute(x, y[:, None]))

    def test_versions(self) -> None:
        assert table.find("", "Squeeze", 11) is not table.find("", "Squeeze", 13)
        assert table.find("", "Gelu", 19) is None
        assert "Conv" in table.names()
