"""examples/onnx_finetune.py: a real model learns a type of file, and onnxruntime agrees."""

from __future__ import annotations

from pathlib import Path

import onnxruntime  # noqa: F401 - what the example compares with
import pytest
from example_programs import load_example

pytest.importorskip("magika")


@pytest.mark.slow
def test_a_type_is_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = load_example("onnx_finetune")
    told, kept = example.run(example.magika_folder(), 25, tmp_path / "tuned.onnx", count=96)
    assert told > 0.9
    assert kept > 0.7
    assert "onnxruntime differs by" in capsys.readouterr().out
    model = example.wf.onnx.load(tmp_path / "tuned.onnx")
    texts = example.graph_texts(4, seed=9)
    rows = example.np.array([example.row_of(text) for text in texts], "int32")
    assert example.difference(tmp_path / "tuned.onnx", model, rows) < 1e-4


def test_rows() -> None:
    """As Magika cuts a file: no blanks at its ends, the two halves."""
    example = load_example("onnx_finetune")
    row = example.row_of(b"  \n" + bytes(range(33, 43)) + b" \n")
    begin, end = [*range(33, 43), 32, 10], [32, 32, 10, *range(33, 43)]
    assert row == [*begin, *[256] * (2048 - len(begin) - len(end)), *end]
    assert len(example.row_of(b"a" * 5000)) == 2048
