"""benchmarks/gpu.py without a GPU: what it says then, and that its parts run, on a faked driver."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_driver import FakeCompiler, FakeDriver

from weft.runtime.device import registry
from weft.runtime.device.backends.driver import Driver


@pytest.fixture
def gpu_py(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import gpu

    yield gpu
    for name in ("gpu", "figure1", "harness"):
        sys.modules.pop(name, None)


def _faked(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    api = FakeDriver(FakeCompiler(), **options)
    monkeypatch.setattr(registry, "_devices", {})
    monkeypatch.setattr(registry, "Driver", partial(Driver, api))
    monkeypatch.setattr(registry, "compile_kernel", api.compiler)
    monkeypatch.delenv("WEFT_EMULATE_GPU", raising=False)


def test_without_a_gpu_nothing_is_reported(
    gpu_py: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _faked(monkeypatch, missing=True)
    with pytest.raises(SystemExit) as ended:
        gpu_py.main([])
    assert ended.value.code == 2
    assert "nothing was measured: " in capsys.readouterr().err
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    with pytest.raises(SystemExit) as ended:
        gpu_py.main([])
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("only", "count"), [("copy", 1), ("launches", 1), ("", 10)])
def test_parts_run(
    only: str, count: int, gpu_py: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _faked(monkeypatch, runs=False)
    for name in ("elementwise", "rows", "product", "figure1_step"):  # no peers
        make = getattr(gpu_py, name)
        monkeypatch.setattr(gpu_py, name, lambda *a, make=make: _alone(make(*a)))
    monkeypatch.setattr(gpu_py, "jax_figure1", lambda *a: [1.0])
    out, page = tmp_path / "gpu.json", tmp_path / "page.md"
    given = ["--small", "--rounds", "1", "--only", only, "--json", str(out)]
    gpu_py.main([*given, "--markdown", str(page)])
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == count
    assert not [row for row in rows if "FAILED" in row["note"]]
    if only != "copy":
        assert [row["launches"] for row in rows if "50 launches" in row["workload"]] == [50]
    assert "Fake GPU" in page.read_text()


def _alone(case: Any) -> Any:
    case.peers.clear()
    return case
