"""`weft explain`: kernels of a graph, nodes of the executor, devices of a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_graphs import STEP

from weft.frontend.tools.main import main

SWITCH = """\
graph @pick(%x: f32[n], %p: bool[]) -> (f32[n]) stage=dataflow {
  %0, %1 = switch(%x, %p) : f32[n], f32[n]
  %2 = negative(%0) : f32[n]
  %3, %4 = merge(%2, %1) : f32[n], i32[]
  return %3
}
"""


def explained(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *more: str) -> str:
    path = tmp_path / "graph.weft"
    path.write_text(text, encoding="utf-8")
    assert main(["explain", str(path), *more]) == 0
    return capsys.readouterr().out


def test_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(tmp_path, capsys, STEP)
    assert "graph 'step'" in out
    assert "one call runs 2 native kernels" in out
    assert "not fused" in out


def test_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(tmp_path, capsys, SWITCH, "--size", "n=5")
    assert "runs on the dataflow executor" in out
    assert "1 switch" in out
    assert "1 merge" in out


def test_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = tmp_path / "devices.json"
    names = ["/job:worker/task:0/cpu:0", "/job:ps/task:0/cpu:0"]
    devices.write_text(json.dumps({"devices": names}))
    text = STEP.replace(": ref<f32[2,3]> loc(", ': ref<f32[2,3]> device("/job:ps") loc(')
    out = explained(tmp_path, capsys, text, "--devices", str(devices))
    assert "/job:ps/task:0" in out
    assert "variable" in out
