"""benchmarks/gpu.py without a GPU: what it says then, and that its parts run, on a faked driver;
benchmarks/gpu_plans.py, which needs none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_device import use_fake
from cuda_toolchain import needs_toolchain

import weft as wf


@pytest.fixture
def gpu_py(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import gpu

    yield gpu
    for name in ("gpu", "figure1", "harness"):
        sys.modules.pop(name, None)


def test_without_a_gpu_nothing_is_reported(
    gpu_py: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fake(monkeypatch, missing=True)
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
    use_fake(monkeypatch, runs=False)
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


@pytest.fixture
def plans_py(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """benchmarks/gpu_plans.py, with one model: a layer without an update."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import gpu_plans

    x, w = np.ones((40, 24), np.float32), np.ones((24, 56), np.float32)
    layer = (lambda x, w: wf.nn.relu(wf.matmul(x, w))), (x, w)
    monkeypatch.setattr(gpu_plans, "MODELS", {"layer": lambda: layer})
    yield gpu_plans
    for name in ("gpu_plans", "harness"):
        sys.modules.pop(name, None)


def test_plans_are_counted_with_and_without_passes(plans_py: Any, tmp_path: Path) -> None:
    out = tmp_path / "plans.json"
    plans_py.main(["--plans", "--json", str(out)])
    rows = {row["passes"]: row for row in json.loads(out.read_text())["plans"]}
    operands, product = 4 * (40 * 24 + 24 * 56), 4 * 40 * 56
    together, apart = rows["all passes"], rows["without fuse_epilogues"]
    assert (together["launches"], apart["launches"]) == (1, 2)
    assert (together["bytes read"], together["bytes written"]) == (operands, product)
    assert (apart["bytes read"], apart["bytes written"]) == (operands + product, 2 * product)
    assert rows["without stride_all_products"]["launches"] == 1
    assert rows["without both"]["launches"] == 2


@needs_toolchain
def test_machine_code_of_plans_is_counted(
    plans_py: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plans_py, "in_fresh_process", plans_py.code_row)
    monkeypatch.setattr(plans_py, "WITHOUT", {"all passes": ()})
    out = tmp_path / "plans.json"
    plans_py.main(["--target", "sm_75,sm_90", "--json", str(out)])
    old, new = json.loads(out.read_text())["code"]
    assert (old["target"], new["target"]) == ("sm_75", "sm_90")
    for row in (old, new):
        assert row["most registers"] == row["registers in all"] > 16  # there is one kernel
        assert row["PTX instructions"] > 100
        assert row["spills"] == 0
        assert min(row["PTX s"], row["nvJitLink s"]) > 0


def test_instructions_of_ptx(plans_py: Any) -> None:
    text = """.visible .entry f(
	.param .u64 .ptr .align 1 f_param_0
)
{
	.reg .pred 	%p<2>;
	ld.param.b64 	%rd1, [f_param_0];
	// begin inline asm
	setp.lt.s32 	%p1, %r1, %r2;
	@%p1 bra 	$L__BB0_2;
$L__BB0_2:
	@!%p1 exit;
	ret;
}"""
    assert plans_py.instructions(text) == 5


@pytest.mark.slow
@needs_toolchain
def test_a_fresh_process_counts_a_training_step() -> None:
    page = Path(__file__).parents[1] / "benchmarks" / "gpu_plans.py"
    given = ["--child", "digits", "all passes", "sm_90"]
    done = subprocess.run(
        [sys.executable, str(page), *given], capture_output=True, text=True, check=True
    )
    row = json.loads(done.stdout)
    assert (row["model"], row["target"], row["spills"]) == ("digits", "sm_90", 0)
    assert row["registers in all"] > row["most registers"]
