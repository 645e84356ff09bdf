"""ONNX files where commands take graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from weft.frontend.tools.main import ERROR, SUCCESS, main

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
m (float[rows, cols] x) => (float[rows] y) {
    axis = Constant<value_ints = [1]>()
    total = ReduceSum<keepdims = 0>(x, axis)
    y = Relu(total)
}"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    model = parser.parse_model(TEXT)
    model.graph.node[1].name, model.graph.node[2].name = "/head/Sum", "/head/act/Relu"
    onnx.save(model, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def test_view(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", path]) == SUCCESS
    assert "f32[rows,cols]" in capsys.readouterr().out
    assert main(["view", path, "--html", str(tmp_path / "m.html"), "--passes", "standard"]) == 0
    assert "head/act/Relu" in (tmp_path / "m.html").read_text()


def test_opt_names_the_nodes(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", f"{path}:rows=2", "--passes", "dce"]) == SUCCESS
    found = capsys.readouterr().out
    assert "graph @m(%x: f32[2,cols]) -> (f32[2])" in found
    assert "head/Sum" in found
    assert "head/act/Relu" in found


def test_run(path: str, tmp_path: Path) -> None:
    x = np.float32([[1, 2, 3], [-4, -5, -6]])
    np.save(tmp_path / "x.npy", x)
    feed = ["--feed", f"x={tmp_path / 'x.npy'}"]
    for given, more in (
        (path, []),
        (f"{path}:cols=3", []),
        (f"{path}:rows=2,cols=3", ["--compiled"]),
    ):
        assert main(["run", given, *feed, *more, "--save", str(tmp_path / "out")]) == SUCCESS
        np.testing.assert_array_equal(np.load(tmp_path / "out" / "result0.npy"), [6, 0])


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (":row=2", "has no open size 'row'; did you mean 'rows'"),
        (":rows", "rows: expected NAME=VALUE"),
        (":rows=1,rows=2", "gives 'rows' twice"),
        (":rows=-1", "'rows=-1' are no sizes"),
        (":cols=0,rows=two", "are no sizes"),
    ],
)
def test_sizes(path: str, sizes: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", path + sizes]) == ERROR
    assert said in capsys.readouterr().err


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "no.onnx")]) == ERROR
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "bad.onnx").write_bytes(b"abc")
    assert main(["view", str(tmp_path / "bad.onnx")]) == ERROR
    assert "is no ONNX model" in capsys.readouterr().err
