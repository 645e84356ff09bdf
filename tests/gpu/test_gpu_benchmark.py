"""benchmarks/gpu.py without a GPU: what it says then, and that its parts run, on a faked driver;
benchmarks/gpu_plans.py, which needs none. With a GPU (`pytest -m gpu`): a short run of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_device import use_device, use_fake, use_library, use_no_library
from cuda_toolchain import needs_toolchain
from fake_cublaslt import FakeClock, FakeCublasLt, Offer
from fake_driver import FakeCompiler
from gpu_benchmark import BENCHMARKS, gpu_py, into, peer, ran

import weft as wf
from weft.runtime.device.backends import registry
from weft.runtime.device.libraries import cublaslt

__all__ = ["gpu_py", "into"]  # fixtures


def test_without_a_gpu_nothing_is_reported(
    gpu_py: Any, into: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    assert list(into.iterdir()) == []


def test_all_of_it_runs(gpu_py: Any, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without peers, which say that they are not there; kernels are launched, and do nothing, so
    the results are not looked at."""
    use_fake(monkeypatch, runs=False)
    for name in ("difference", "untrained"):
        monkeypatch.setattr(gpu_py, name, lambda *given: "")
    for name in ("torch", "jax"):
        monkeypatch.setitem(sys.modules, name, None)
    rows, page, status = ran(gpu_py)
    assert status == 0
    assert not [row for row in rows if row["errors"] or not row["weft"]]
    names = [row["workload"] for row in rows]
    for dtype, mode in (("f32", "ieee"), ("f32", "tf32"), ("f16", "ieee"), ("bf16", "ieee")):
        products = [n for n in names if n.startswith("matmul") and n.endswith(f" {dtype} {mode}")]
        assert len(products) == 2  # sizes
        assert len([n for n in names if n.startswith("conv") and n.endswith(f" {dtype} {mode}")])
    calls = [row for row in rows if row["workload"].startswith("Figure 1 calls")]
    assert len(calls) == 4
    for row in calls:
        assert {"no jax: jax is not installed", "no torch: torch is not installed"} <= {
            *row["notes"]
        }
    assert len([n for n in names if "batch on the device" in n]) == 2
    assert [row["launches"] for row in rows if "50 launches" in row["workload"]] == [50]
    assert "on Fake GPU, sm_90" in page
    assert page.count("\n|") == len(rows) + 2
    assert "f32 without TF32 on both sides" in page
    assert "torch.compile: torch is not installed" in page


def test_the_launches_are_of_kernels_that_no_library_has(
    gpu_py: Any, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch)
    (row,), _, status = ran(gpu_py, "--only", "launches")
    assert (status, row["launches"], row["errors"]) == (0, 50, [])
    assert list(row["peers"]) == ["weft, one by one"]
    import gpu_cases
    from cuda_models import kernels_of

    kernels = kernels_of(gpu_cases.chain, np.ones(64, np.float32))
    assert not [k.name for k in kernels if "matmul" in k.name or "conv" in k.name]


WRONG: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda a, b: a @ b * 1.001, r"results 0\.\d+ off weft's, of which the largest is "),
    (lambda a, b: np.where(a > 2, np.nan, a @ b), "results that are not finite"),
    (lambda a, b: (a @ b)[:1], r"a result of shape \(1, 16\), weft's has \(16, 16\)"),
    (lambda a, b: a.no_such_thing, "failed: AttributeError"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG)
def test_a_peer_with_other_results_is_an_error_and_has_no_times(
    wrong: Any, told: str, gpu_py: Any, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch)
    product = gpu_py.product

    def with_peers(*given: Any) -> Any:
        peers = {"right": peer(np.matmul, gpu_py), "wrong": peer(wrong, gpu_py)}
        return replace(product(*given), peers=peers)

    monkeypatch.setattr(gpu_py, "product", with_peers)
    (row,), page, status = ran(gpu_py, "--only", "matmul 16 f32 ieee")
    assert status == 1
    assert row["peers"] == {"right": [1.0, 1.0]}
    (error,) = row["errors"]
    assert re.search(f"wrong (has )?{told}", error)
    assert f"ERROR: {error.replace('|', '/')}" in page
    assert row["weft"]


def test_a_step_with_other_losses_is_an_error(
    gpu_py: Any, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch)
    off = {"same": 0.0, "off": 0.01}

    def make(name: str) -> Callable[..., Any]:
        def begin(x: Any, y: Any, there: bool) -> Callable[[], Any]:
            step = gpu_py.weft_steps(x, y, there)
            return lambda: float(step()) + off[name]

        return begin

    monkeypatch.setattr(gpu_py, "STEPS", {name: make(name) for name in off})
    (row,), _, status = ran(gpu_py, "--only", "calls device 1")
    assert status == 1
    assert list(row["peers"]) == ["same"]
    (error,) = row["errors"]
    assert error.startswith("off has results 0.01 off weft's")


def test_what_fails_is_told_and_the_rest_is_measured(
    gpu_py: Any, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch)
    monkeypatch.setattr(gpu_py, "launch_cost", lambda rounds: 1 / 0)
    rows, page, status = ran(gpu_py, "--only", "la")
    assert status == 1
    assert [row["workload"] for row in rows if row["errors"]] == ["launches"]
    assert "| launches | - | - |  | ERROR: failed: ZeroDivisionError: division by zero |" in page
    assert [row for row in rows if row["weft"]]
    with pytest.raises(SystemExit):
        gpu_py.main(["--only", "nothing like it"])


def test_the_table_says_what_did_a_product(
    gpu_py: Any, into: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_no_library(monkeypatch, tmp_path)
    api = FakeClock(FakeCompiler())
    use_library(api, cublaslt, FakeCublasLt(api, [Offer(1, 0.001)]), monkeypatch)
    monkeypatch.setitem(sys.modules, "torch", None)
    (row,), _, status = ran(gpu_py, "--only", "matmul 16 f32 ieee")
    assert status == 0
    assert any(note.startswith("weft: cuBLASLt algorithm 1") for note in row["notes"])
    monkeypatch.setenv("WEFT_GPU_LIBRARIES", "0")
    (row,), _, _ = ran(gpu_py, "--only", "matmul 16 f32 ieee")
    assert "weft: weft's own kernels do all products: WEFT_GPU_LIBRARIES=0" in row["notes"]


@pytest.mark.slow
def test_peers_compute_the_same_and_are_timed_alike(
    gpu_py: Any, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's and JAX's own functions, on the CPU, where they are installed; torch.compile's
    graphs, which go through no Inductor."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    import gpu_peers

    use_fake(monkeypatch)
    monkeypatch.setattr(gpu_peers, "torch_here", lambda: torch)
    monkeypatch.setattr(gpu_peers, "BACKEND", "aot_eager")
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def clock(run: Callable[[], Any], rounds: int) -> list[float]:
        began = time.perf_counter()
        run()
        return [time.perf_counter() - began]

    run_case = gpu_py.run_case

    def on_the_host(case: Any, rounds: int) -> Any:
        peers = {k: replace(p, time=clock) for k, p in case.peers.items()}
        return run_case(replace(case, peers=peers), rounds)

    monkeypatch.setattr(gpu_py, "run_case", on_the_host)
    rows, _, status = ran(gpu_py)
    assert (status, [row["errors"] for row in rows if row["errors"]]) == (0, [])
    for row in rows:
        assert row["peers"] or row["workload"].startswith("copy"), row["workload"]
    assert len([row for row in rows if "torch.compile" in row["peers"]]) == 5


@pytest.mark.gpu
@pytest.mark.alone
def test_a_short_run_on_this_gpu(gpu_py: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command with few rounds: benchmarks/RESULTS-gpu.md and gpu.json are of this run.
    All results agree with those of every peer that is here."""
    use_device("real", monkeypatch)
    monkeypatch.delenv("WEFT_GPU_LIBRARIES")
    monkeypatch.setenv("WEFT_CACHE", "1")  # choices among libraries are measured, and kept
    began = time.time()
    with suppress(SystemExit):
        gpu_py.main(["--rounds", "5"])
    for written in (gpu_py.HERE / "gpu.json", gpu_py.HERE / "RESULTS-gpu.md"):
        assert written.stat().st_mtime >= began - 1
    found = json.loads((gpu_py.HERE / "gpu.json").read_text())
    assert [f"{row['workload']}: {e}" for row in found["rows"] for e in row["errors"]] == []
    assert len(found["rows"]) >= 20
    assert f"on {registry.gpu(0).description}." in (gpu_py.HERE / "RESULTS-gpu.md").read_text()


@pytest.fixture
def plans_py(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """benchmarks/gpu_plans.py, with one model: a layer without an update."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
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
    page = BENCHMARKS / "gpu_plans.py"
    given = ["--child", "digits", "all passes", "sm_90"]
    done = subprocess.run(
        [sys.executable, str(page), *given], capture_output=True, text=True, check=True
    )
    row = json.loads(done.stdout)
    assert (row["model"], row["target"], row["spills"]) == ("digits", "sm_90", 0)
    assert row["registers in all"] > row["most registers"]
