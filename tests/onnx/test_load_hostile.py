"""ONNX files from anywhere: damaged, cut, contradicting themselves, made to harm. Each is a clear
error, without much memory and without waiting, or the model that was meant."""

from __future__ import annotations

from contextlib import suppress
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
from weft.ir.errors import (
    DataLossError,
    NotFoundError,
    PermissionDeniedError,
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

    def test_without_a_path(self, tmp_path: Path) -> None:
        data = self.model(tmp_path).read_bytes()
        refused(data, "was not read from a path", NotFoundError)
