"""ONNX files from anywhere: damaged, cut, contradicting themselves, made to harm. Each is a clear
error, without much memory and without waiting, or the model that was meant."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser

import weft as wf
from weft.frontend.onnx import budget
from weft.ir.errors import (
    DataLossError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnsupportedError,
    WeftError,
)

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
m (float[2, 3] x) => (float[2, 3] y) { a = Add(x, w)  y = Relu(a) }"""
X = np.ones((2, 3), np.float32)


def good() -> onnx.ModelProto:
    model = parser.parse_model(TEXT.replace("x)", "x, float[3] w)", 1))
    del model.graph.input[1:]
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, -2, 3]), "w"))
    return model


DATA = good().SerializeToString()


def refused(source: Any, match: str, kind: type[WeftError] = DataLossError) -> None:
    with pytest.raises(kind, match=match):
        wf.onnx.load(source)


def test_the_good_one() -> None:
    np.testing.assert_array_equal(wf.onnx.load(DATA)(X)["y"], [[2, 0, 4]] * 2)


class TestBytes:
    @pytest.mark.parametrize("data", [b"", b"abc", b"\x00" * 40, b"PK\x03\x04" * 9, DATA[:10]])
    def test_no_model(self, data: bytes) -> None:
        refused(data, "is no ONNX model")

    @examples(60)
    @given(st.integers(0, len(DATA) - 1), st.integers(0, len(DATA) - 1), st.integers(0, 255))
    def test_changed_and_cut(self, end: int, at: int, value: int) -> None:
        """Errors of weft, or a model that runs or says why it does not."""
        changed = bytearray(DATA)
        changed[at] = value
        for data in (DATA[:end], bytes(changed)):
            with suppress(WeftError):
                wf.onnx.load(data).apply({}, X)

    def test_a_folder_and_a_missing_file(self, tmp_path: Path) -> None:
        refused(tmp_path, "cannot be read", NotFoundError)
        refused(tmp_path / "none.onnx", "there is no file", NotFoundError)


class TestGraphs:
    def test_a_cycle(self) -> None:
        model = good()
        model.graph.node[0].input[0] = "y"
        refused(model, r"'' \(Add\) uses 'y' before anything makes it")

    def test_a_name_that_is_not_there(self) -> None:
        model = good()
        model.graph.node[0].input[1] = "v"
        refused(model, "uses 'v' before")

    def test_an_output_that_nothing_makes(self) -> None:
        model = good()
        model.graph.output[0].name = "z"
        refused(model, "nothing makes the output 'z'")

    def test_a_function_that_calls_itself(self) -> None:
        model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
            m (float[n] x) => (float[n] y) { y = local.f(x) }
            <domain: "local", opset_import: ["" : 20, "local" : 1]>
            f (a) => (b) { b = local.f(a) }""")
        refused(model, "its function 'f' calls itself")

    def test_later_versions(self) -> None:
        model = good()
        model.opset_import[0].version = 1000
        refused(model, "opset 1000, the package onnx knows", UnsupportedError)
        model = good()
        model.ir_version = 99
        refused(model.SerializeToString(), "IR version 99", UnsupportedError)

    def test_an_attribute_without_a_type(self) -> None:
        model = good()
        model.graph.node[1].attribute.add(name="strange")
        refused(model, "its attribute 'strange' has no type")


class TestTensors:
    @pytest.mark.parametrize(
        "dims", [[4], [2], [3, 1000000000000], [1 << 62, 1 << 62], [-1], [-3, -1]]
    )
    def test_lying_shapes(self, dims: list[int]) -> None:
        for as_raw in (True, False):
            model = good()
            w = model.graph.initializer[0]
            if not as_raw:
                w.ClearField("raw_data")
                w.float_data.extend([1, -2, 3])
            del w.dims[:]
            w.dims.extend(dims)
            refused(model, "'w' has the shape")

    def test_many_axes(self) -> None:
        model = good()
        model.graph.initializer[0].dims.extend([1] * 100000)
        refused(model, "the shape of 100001 axes")

    @pytest.mark.parametrize("number", [0, 27, 99])
    def test_dtypes_that_are_none(self, number: int) -> None:
        model = good()
        model.graph.initializer[0].data_type = number
        with pytest.raises(WeftError, match=r"'w'|dtype"):
            wf.onnx.load(model)
        model = good()
        model.graph.input[0].type.tensor_type.elem_type = number
        with pytest.raises(UnsupportedError, match=f"dtype number {number}"):
            wf.onnx.load(model)

    def test_sizes_beyond_memory(self) -> None:
        model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            m (float[n] x) => (float[n] y) {
                s = Constant<value_ints = [4000000, 4000000, 4000]>()
                big = ConstantOfShape(s)
                y = Add(x, big)
            }""")
        with pytest.raises(WeftError):
            wf.onnx.load(model)(np.ones(4000, np.float32))

    def test_wrong_inputs_of_operators(self) -> None:
        """What no node may say is an error that names it."""
        for line in (
            "y = Add(x)",
            "y = Add(x, w, w)",
            "y = Concat<axis = 7>(x, x)",
            "y = Transpose<perm = [0, 0]>(x)",
            "y = Reshape(x, w)",
            "y = Conv(x, w)",
            "y = Cast<to = 99>(x)",
            "y = Softmax<axis = 5>(x)",
        ):
            model = good()
            nodes = parser.parse_graph(f"g (float[2, 3] x, float[3] w) => (float y) {{ {line} }}")
            del model.graph.node[:]
            model.graph.node.extend(nodes.node)
            with pytest.raises(WeftError, match="the ONNX node 'y'"):
                wf.onnx.load(model)(X)


def run(text: str, x: Any = None) -> Any:
    model = wf.onnx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}'))
    return model(np.ones(4, np.float32) if x is None else x)


@contextmanager
def little_memory(most: int = 3 * 2**28) -> Iterator[None]:
    """What the process held at most has not grown by more bytes when this ends."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < most


DOUBLED = " ".join(f"a{i + 1} = Concat<axis = 0>(a{i}, a{i})" for i in range(36))


class TestWhatIsComputedOfConstants:
    """It is not computed before the trace where that would take much memory."""

    @pytest.mark.share(3)
    @pytest.mark.parametrize(
        "line",
        [
            "y = ConstantOfShape(many)",
            "z = ConstantOfShape(many)  y = Exp(z)",
            "y = Expand(one, many)",
            "y = Tile(one, many)",
            "y = Range(zero, much, step)",
            "zeros = ConstantOfShape(two)  y = Pad(zeros, ends)",
            "z = Resize(two_floats, , , many)  y = Identity(z)",
            "y = Resize(x, , , many)",
            'y = Pad<mode = "wrap">(x, ends)',
            "y = OneHot(two, much, two_floats)",
            "y = HannWindow(much)",
            "c = ConstantOfShape(square)  y = EyeLike(c)",
            "y = RandomNormal<seed = 1.0, shape = [900000, 900000]>()",
            "a = ConstantOfShape(tall)  b = ConstantOfShape(wide)  y = Add(a, b)",
            "a = ConstantOfShape(tall)  b = ConstantOfShape(wide)  y = MatMul(a, b)",
            f"a0 = Identity(two_floats)  {DOUBLED}  y = Identity(a36)",
            f"a0 = Neg(x)  {DOUBLED}  y = Identity(a36)",
        ],
    )
    def test_too_large(self, line: str) -> None:
        numbers: dict[str, dict[str, Any]] = {
            "value_ints": {"many": [9000000000], "ends": [0, 9000000000], "two": [1, 2],
                           "square": [900000, 900000], "tall": [1000000, 1],
                           "wide": [1, 1000000]},
            "value_int": {"zero": 0, "much": 9000000000, "step": 1},
            "value_float": {"one": 1.0},
            "value_floats": {"two_floats": [0.0, 1.0]},
        }  # fmt: skip
        constants = "  ".join(
            f"{name} = Constant<{kind} = {value}>()"
            for kind, values in numbers.items()
            for name, value in values.items()
        )
        line = line.replace("ConstantOfShape(two)  y", "Cast<to = 1>(two)  y")
        with little_memory(), pytest.raises(ResourceExhaustedError):
            run(f"m (float[n] x) => (float y) {{ {constants}  {line} }}")

    def test_what_is_not_needed_costs_nothing(self) -> None:
        made = run("""m (float[n] x) => (float[a, b] y) {
            s = Constant<value_ints = [1000000, 1000000]>()
            o = Constant<value_ints = [0, 0]>()
            l = Constant<value_ints = [2, 4]>()
            big = ConstantOfShape(s)
            part = Slice(big, o, l)
            y = Add(part, x)
        }""")
        np.testing.assert_array_equal(made["y"], np.ones((2, 4)))

    @pytest.mark.slow
    def test_many_that_are_large(self) -> None:
        """Each may be computed, not all of them."""
        count = 40
        lines = " ".join(f"b{i} = ConstantOfShape(s)  c{i} = Exp(b{i})" for i in range(count))
        added = ", ".join(f"c{i}" for i in range(count))
        with little_memory(2**30):
            made = run(f"""m (float[n] x) => (float[k] y) {{
                s = Constant<value_ints = [4000000]>()
                {lines}
                total = Sum({added})
                o = Constant<value_ints = [0]>()
                l = Constant<value_ints = [4]>()
                part = Slice(total, o, l)
                y = Add(part, x)
            }}""")
        np.testing.assert_array_equal(made["y"], np.full(4, count + 1, np.float32))

    def test_many_whose_sizes_depend_on_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Places of what is not zero: eight bytes of each byte for each axis, of any constant."""

        def places(count: int) -> Any:
            lines = " ".join(f"b{i} = NonZero(z)  c{i} = Gather<axis = 1>(b{i}, one)"
                             for i in range(count))  # fmt: skip
            added = ", ".join(f"c{i}" for i in range(count))
            return run(f"""m (float[n] x) => (int64[1, 1] y) {{
                s = Constant<value_ints = [1000, 1000]>()
                one = Constant<value_ints = [1002]>()
                filled = ConstantOfShape(s)
                none = IsNaN(filled)
                z = Not(none)
                {lines}
                total = Max({added})
                y = ReduceSum<keepdims = 1>(total)
            }}""")["y"]

        monkeypatch.setattr(budget, "MOST_BYTES", 2**25)
        assert places(1).item() == 1 + 2
        with pytest.raises(ResourceExhaustedError, match="computed of constants"):
            places(9)

    def test_polynomials_of_open_sizes(self) -> None:
        """(n + 1) ** 2, plus one, squared, and so on: beyond some terms in 64-bit integers."""
        lines = " ".join(f"t{i} = Add(s{i}, one)  s{i + 1} = Mul(t{i}, t{i})" for i in range(40))
        model = wf.onnx.load(
            parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
            m (float[n] x) => (int64[1] y) {{
                one = Constant<value_ints = [1]>()
                s0 = Shape(x)
                {lines}
                y = Identity(s40)
            }}""")
        )
        kind = model.inputs["x"]
        made = wf.compile(model, input_signature=[kind])(np.ones(3, np.float32))["y"]
        want = 3
        for _ in range(40):
            want = (want + 1) ** 2 % 2**64
        assert int(made[0]) % 2**64 == want

    def test_strings(self) -> None:
        doubled = " ".join(f"a{i + 1} = StringConcat(a{i}, a{i})" for i in range(40))
        with little_memory(), pytest.raises(ResourceExhaustedError, match="strings of"):
            run(
                "m (string[n] x) => (string[n] y) { "
                f'a0 = Constant<value_strings = ["abcdefgh"]>() {doubled} '
                "y = StringConcat(x, a40) }",
                np.array(["a"], object),
            )

    @pytest.mark.parametrize(
        ("line", "kind"),
        [
            ("y = MaxPool<kernel_shape = [90000000000], pads = [90000000000, 90000000000]>(x)",
             ResourceExhaustedError),
            ("y = AveragePool<kernel_shape = [9000000000], pads = [9000000000, 9000000000], "
             "count_include_pad = 1, ceil_mode = 1, strides = [7]>(x)", ResourceExhaustedError),
            ("y = Conv<pads = [9000000000, 9000000000]>(x, w)", ResourceExhaustedError),
            ("y = ConvTranspose<strides = [9000000000]>(x, w)", ResourceExhaustedError),
            ("f = Constant<value_floats = [1.0, 1.0, 1e30]>()  y = Resize(x, , f)",
             ResourceExhaustedError),
            ('f = Constant<value_floats = [1.0, 1.0, 1e-8]>()  y = Resize<mode = "linear", '
             "antialias = 1>(x, , f)", WeftError),
            ("l = Constant<value_int = 9000000000>()  a = Constant<value_int = 2>()  "
             "s = Constant<value_ints = [1, 4, 1]>()  z = Reshape(x, s)  y = DFT(z, l, a)",
             WeftError),
        ],
    )  # fmt: skip
    def test_windows_and_tables(self, line: str, kind: type[WeftError]) -> None:
        with little_memory(), pytest.raises(kind, match="the ONNX node"):
            run(
                "m (float[1, 1, n] x) => (float y) { one = Constant<value_floats = [1.0]>() "
                f"shape = Constant<value_ints = [1, 1, 1]>() w = Reshape(one, shape) {line} }}",
                np.ones((1, 1, 4), np.float32),
            )

    def test_windows_over_many_channels(self) -> None:
        x = np.random.default_rng(1).standard_normal((1, 5, 2, 2)).astype(np.float32)
        made = [
            run(f"m (float[1, 5, 2, 2] x) => (float[1, 5, 2, 2] y) {{ y = LRN<size = {size}, "
                f"alpha = {size}.0, beta = 1.0>(x) }}", x)["y"]
            for size in (9, 100000000001)
        ]  # fmt: skip
        np.testing.assert_allclose(made[0], x / (1 + (x * x).sum(1, keepdims=True)), rtol=1e-5)
        np.testing.assert_allclose(made[1], made[0], rtol=1e-5)


class TestHowManyNodes:
    def test_functions_that_call_functions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """2 ** 30 nodes in 31 functions."""
        monkeypatch.setattr(budget, "MOST_NODES", 5000)
        functions = [
            f"""<domain: "local", opset_import: ["" : 20, "local" : 1]>
            f{i} (a) => (b) {{ c = local.f{i + 1}(a)  b = local.f{i + 1}(c) }}"""
            for i in range(30)
        ]
        functions.append("""<domain: "local", opset_import: ["" : 20, "local" : 1]>
            f30 (a) => (b) { b = Neg(a) }""")
        model = parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>\n'
            "m (float[n] x) => (float[n] y) { y = local.f0(x) }\n" + "\n".join(functions)
        )
        refused(model, "more than 5000 nodes", ResourceExhaustedError)

    def test_loops_that_are_written_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A loop over sequences in a loop over sequences."""
        monkeypatch.setattr(budget, "MOST_NODES", 3000)
        with pytest.raises(ResourceExhaustedError, match="node number 3001"):
            run("""m (float[n] x) => (float[n] y) {
                count = Constant<value_int = 1000>()
                yes = Cast<to = 9>(count)
                none = SequenceEmpty()
                last = Loop(count, yes, none) <body = outer (int64 i, bool c, seq(float) s)
                    => (bool d, seq(float) t) {
                        d = Identity(c)
                        t = Loop(count, yes, s) <body = inner (int64 j, bool e, seq(float) u)
                            => (bool f, seq(float) v) { f = Identity(e)  v = SequenceInsert(u, x) }>
                    }>
                zero = Constant<value_int = 0>()
                y = SequenceAt(last, zero)
            }""")

    def test_many_inputs_and_branches(self) -> None:
        """Names are looked up, not compared with all others nor copied for each branch."""
        count = 5000
        model = good()
        branch = parser.parse_graph("g () => (float[2, 3] z) { z = Neg(x) }")
        condition = onnx.helper.make_node("Constant", [], ["c"], value_int=1)
        cast = onnx.helper.make_node("Cast", ["c"], ["yes"], to=9)
        nodes = [condition, cast]
        for i in range(count):
            kind = onnx.helper.make_tensor_value_info(f"x.{i}", 1, [2, 3])
            model.graph.input.append(kind)
            nodes.append(onnx.helper.make_node(
                "If", ["yes"], [f"z{i}"], then_branch=branch, else_branch=branch
            ))  # fmt: skip
        model.graph.node.extend(nodes)
        model.graph.output.append(onnx.helper.make_tensor_value_info("z7", 1, [2, 3]))
        made = wf.onnx.load(model)
        assert len(made.inputs) == count + 1

    def test_graphs_within_each_other(self) -> None:
        """As deep as protobuf allows."""
        empty = parser.parse_graph("g () => (float[2, 3] z) { z = Identity(x) }")
        graph = parser.parse_graph("g () => (float[2, 3] z) { z = Neg(x) }")
        for _ in range(30):
            node = onnx.helper.make_node("If", ["c"], ["z"], then_branch=graph, else_branch=empty)
            graph = onnx.helper.make_graph([node], "g", [], graph.output)
        model = good()
        model.graph.initializer.append(numpy_helper.from_array(np.bool_(True), "c"))
        model.graph.node.append(graph.node[0])
        model.graph.output[0].name = "z"
        np.testing.assert_array_equal(wf.onnx.load(model)(X)["z"], -X)


class TestSparseTensors:
    def test_zeros_that_do_not_fit(self) -> None:
        for dims in ([1 << 40], [1 << 16, 1 << 16], [1 << 62, 1 << 62]):
            model = good()
            sparse = model.graph.sparse_initializer.add()
            sparse.values.CopyFrom(numpy_helper.from_array(np.float32([1]), "s"))
            sparse.indices.CopyFrom(numpy_helper.from_array(np.int64([2])))
            sparse.dims.extend(dims)
            with little_memory():
                refused(model, "'s' of the shape", ResourceExhaustedError)

    def test_many_of_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(budget, "MOST_DENSE", 2**26)
        model = good()
        for i in range(20):
            sparse = model.graph.sparse_initializer.add()
            sparse.values.CopyFrom(numpy_helper.from_array(np.float32([1]), f"s{i}"))
            sparse.indices.CopyFrom(numpy_helper.from_array(np.int64([2])))
            sparse.dims.extend([1 << 20])
        refused(model, "'s16' of the shape", ResourceExhaustedError)


class TestExternalData:
    def model(self, folder: Path, **entries: Any) -> Path:
        model = good()
        w = model.graph.initializer[0]
        (folder / "w.bin").write_bytes(w.raw_data)
        w.ClearField("raw_data")
        w.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": "w.bin", **entries}.items():
            w.external_data.add(key=key, value=str(value))
        path = folder / "m.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def test_beside_the_model(self, tmp_path: Path) -> None:
        made = wf.onnx.load(self.model(tmp_path, offset=0, length=12))
        np.testing.assert_array_equal(made(X)["y"], [[2, 0, 4]] * 2)

    @pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "", "."])
    def test_outside_of_the_folder(self, tmp_path: Path, location: str) -> None:
        (tmp_path / "w.bin").write_bytes(bytes(12))
        inner = tmp_path / "inner"
        inner.mkdir()
        refused(self.model(inner, location=location), "not in its folder", PermissionDeniedError)

    def test_links_that_lead_outside(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(bytes(12))
        inner = tmp_path / "inner"
        inner.mkdir()
        path = self.model(inner, location="link")
        (inner / "link").symlink_to(tmp_path / "secret")
        refused(path, "not in its folder", PermissionDeniedError)

    @pytest.mark.parametrize(
        ("entries", "match", "kind"),
        [
            ({"offset": 4}, "is too short", DataLossError),
            ({"offset": -4}, "another length", DataLossError),
            ({"offset": 1 << 60}, "is too short", DataLossError),
            ({"length": 8}, "another length", DataLossError),
            ({"length": "many"}, "cannot be read", DataLossError),
            ({"location": "none"}, "cannot be read", NotFoundError),
        ],
    )
    def test_what_it_says(
        self, tmp_path: Path, entries: dict[str, Any], match: str, kind: type[WeftError]
    ) -> None:
        refused(self.model(tmp_path, **entries), match, kind)

    def test_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        refused(self.model(tmp_path, location="pipe"), "'pipe' is no file")

    def test_the_same_bytes_many_times(self, tmp_path: Path) -> None:
        path = self.model(tmp_path)
        model = onnx.ModelProto.FromString(path.read_bytes())
        (tmp_path / "w.bin").write_bytes(bytes(1 << 22))
        held = model.graph.initializer[0]
        del held.dims[:]
        held.dims.append(1 << 20)
        for i in range(20):
            other = model.graph.initializer.add()
            other.CopyFrom(held)
            other.name = f"w{i}"
        path.write_bytes(model.SerializeToString())
        refused(path, "have 'w.bin' more than 8 times")

    def test_without_a_path(self, tmp_path: Path) -> None:
        data = self.model(tmp_path).read_bytes()
        refused(data, "was not read from a path", NotFoundError)
