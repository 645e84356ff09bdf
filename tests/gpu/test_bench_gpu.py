"""`weft bench --device` and `--target`: what launches take of a GPU, and their times on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_device import use_fake
from cuda_toolchain import needs_toolchain
from fake_driver import FakeDriver

import weft as wf
from weft.codegen.cuda.cubins.cache import KernelReport, occupancy
from weft.frontend.tools.bench import measure_on_gpu
from weft.frontend.tools.bench_report import Target
from weft.frontend.tools.main import main
from weft.ir.errors import InvalidArgumentError, NotFoundError

MODEL = """\
import numpy as np
import weft as wf

v = wf.Variable(np.full((8, 4), 0.5, np.float32), name="v")

@wf.compile
def step(x):
    p = wf.tanh(x @ v)
    v.assign_sub(0.1 * (wf.transpose(x) @ p))
    return wf.sum(wf.square(p))

def turns(x):
    return wf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y @ x), (0, x))[1]

def batch():
    return np.ones((6, 8), np.float32)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "bench_gpu_model.py"
    path.write_text(MODEL, encoding="utf-8")
    return str(path)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver that does nothing, for what is measured."""
    return use_fake(monkeypatch, runs=False)


def measured(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    assert main(["bench", *argv, "--json", "-"]) == 0
    steps: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["steps"]
    return steps


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "cc", "blocks", "bound"),
    [
        (32, 0, 256, (9, 0), 8, "warps"),
        (64, 0, 256, (9, 0), 4, "registers"),
        (65, 0, 256, (9, 0), 3, "registers"),  # registers are given to warps in 256s
        (32, 48 << 10, 256, (9, 0), 4, "shared memory"),  # 49 KiB of 228 each
        (32, 48 << 10, 256, (7, 5), 1, "shared memory"),
        (16, 0, 32, (9, 0), 32, "blocks"),
        (16, 0, 32, (8, 6), 16, "blocks"),
        (255, 0, 1024, (9, 0), 0, "registers"),
    ],
)
def test_occupancy(
    registers: int, shared: int, threads: int, cc: tuple[int, int], blocks: int, bound: str
) -> None:
    found = occupancy(KernelReport(registers, shared, 0, 0), threads, cc)
    assert found is not None
    assert (found.blocks, found.bound) == (blocks, bound)
    assert 0 <= found.share <= 1


def test_there_is_no_occupancy_of_unknown_architectures() -> None:
    assert occupancy(KernelReport(32, 0, 0, 0), 256, (6, 1)) is None


@needs_toolchain
def test_what_launches_take_needs_no_gpu(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_EMULATE_GPU", raising=False)
    (step,) = measured(capsys, f"{model}:step", "--example", "batch", "--target", "sm_80")
    assert (step["architecture"], step["step"], step["host"]) == ("sm_80", None, None)
    rows = step["rows"]
    assert {r["report"]["spills"] for r in rows} == {0}
    assert all(16 <= r["report"]["registers"] <= 255 for r in rows)
    assert {r["times"] for r in rows} == {None}
    products = [r for r in rows if r["name"].startswith("matmul")]
    update = 3 * 8 * 4  # the second does v's: a negation, a product and a sum for each element
    assert [r["work"]["flops"] for r in products] == [2 * 6 * 8 * 4, 2 * 6 * 8 * 4 + update]
    assert all(f"{model}:" in line for r in rows for line in r["lines"])
    assert main(["bench", f"{model}:step", "--example", "batch", "--target", "sm_80"]) == 0
    shown = capsys.readouterr().out
    assert "no times: compiled, not run" in shown
    assert "blocks/SM" in shown
    assert (
        "\N{HORIZONTAL ELLIPSIS}" not in shown
    )  # names are long, but numbers are not cut for them


@needs_toolchain
def test_an_emulated_gpu_has_no_times(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    assert main(["bench", f"{model}:step", "--example", "batch", "--device", "gpu:0"]) == 0
    assert "no times: /gpu:0" in capsys.readouterr().out


@needs_toolchain
def test_each_launch_is_timed_on_a_device(
    model: str, driver: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"{model}:step"
    (step,) = measured(capsys, target, "--example", "batch", "--device", "gpu:0", "--rounds", "4")
    assert step["step"]["minimum"] > 0
    assert step["host"]["minimum"] > 0
    assert [r["runs"] for r in step["rows"]] == [1] * len(step["rows"])
    assert all(r["times"]["minimum"] > 0 for r in step["rows"])
    (only,) = measured(
        capsys, target, "--example", "batch", "--device", "gpu:0", "--kernel", "matmul"
    )
    assert len(only["rows"]) == len(step["rows"])  # the file has all, the table what was asked for


@needs_toolchain
def test_runs_of_launches_in_loops_are_counted(
    model: str, driver: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--feed", "x=f32[8,8]", "--device", "gpu:0", "--rounds", "4")
    (step,) = measured(capsys, f"{model}:turns", *given)
    assert 3 in [r["runs"] for r in step["rows"] if r["name"].startswith("matmul")]


@needs_toolchain
def test_the_callers_variables_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake(monkeypatch)
    v = wf.Variable(np.zeros(4, np.float32), name="v")

    @wf.compile(device="gpu:0")
    def step(x: Any) -> Any:
        return v.assign_add(x)

    ones = np.ones(4, np.float32)
    step(ones)
    made = step._specialized((ones,), {})
    report = measure_on_gpu(
        [Target("step", made.executable(), [ones], made.traced.variables)],
        None, 2, None, lambda part: None,
    )  # fmt: skip
    assert report.costs[0].step is not None
    assert v.numpy().tolist() == [1] * 4


@needs_toolchain
@pytest.mark.parametrize(
    ("argv", "error", "told"),
    [
        (["--device", "cpu"], InvalidArgumentError, "it names a GPU"),
        (["--device", "gpu:0", "--against", "torch"], InvalidArgumentError, "--against is for the"),
        (["--device", "gpu:0", "--target", "sm_90"], InvalidArgumentError, "one --target, or"),
        (["--target", "sm_9"], InvalidArgumentError, "--target sm_9"),
        (["--device", "gpu:0", "--kernel", "nobody"], NotFoundError, "no kernel 'nobody'"),
    ],
)
def test_errors(
    argv: list[str], error: type[Exception], told: str, model: str, driver: FakeDriver,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(["bench", f"{model}:step", "--example", "batch", *argv]) != 0
    assert told in capsys.readouterr().err
