"""The pages of the tutorial run, each by itself, and show what they say."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import weft as wf

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))


def run(page: str) -> dict[str, Any]:
    """The names that the blocks of a page leave; a warning is an error."""
    path = ROOT / "docs" / "tutorial" / page
    names: dict[str, Any] = {"__name__": "tutorial"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", wf.Float64Warning)
        warnings.simplefilter("error", wf.RecompileWarning)
        for block in re.findall(
            r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL
        ):
            exec(compile(block, str(path), "exec"), names)
    return names


def test_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("1-arrays.md")
    said = capsys.readouterr().out
    for line in ("(2, 3) weft.float32", "Tensor([5., 7., 9.], dtype=float32)", "1.0 9.0",
                 "Tensor([19., 49.], dtype=float32)"):  # fmt: skip
        assert line in said
    assert "<compiled normalized(x): 2 signatures>" in said
    assert "wf.where(condition, x, y)" in said
    assert names["total"].cache_info().made == 1


def test_training(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("2-training.md")
    said = capsys.readouterr().out
    assert said.count("Tensor(12., dtype=float64, weak)") == 2
    assert "<Variable 'variable' i64[]: 2>" in said
    assert names["accuracy"] > 0.9
    assert said.rstrip().endswith("True")


def test_inside(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("3-inside.md")
    said = capsys.readouterr().out
    assert "fused" in said
    assert "compiled because" in said
    assert "lines of LLVM IR\nTrue\n" in said
    assert names["slowest"].name in str(names["cost"])


def test_loops(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("4-loops.md")
    said = capsys.readouterr().out
    np.testing.assert_allclose(names["square_root"](2.0), np.sqrt(2), rtol=1e-6)
    assert names["losses"][-1] < names["losses"][0] / 10
    assert said.rstrip().endswith("True\n100")


def test_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    run("5-sessions.md")
    said = capsys.readouterr().out
    assert "runs as one native plan" in said
    assert float(said.split()[0]) < 1e-3


def test_processes(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("6-processes.md")
    assert "/job:ps/task:0/cpu:0" in capsys.readouterr().out
    np.testing.assert_allclose(names["results"][0], [1, 2, 3], atol=0.3)


def test_each_page_is_tested_and_short() -> None:
    assert [p.name[0] for p in PAGES] == list("123456")
    for page in PAGES:
        assert len(page.read_text(encoding="utf-8").split()) <= 1500
