"""`weft bench` and `f.cost`: tables, JSON, the picture, what cannot be compared."""

import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.compile.cost import RowNotes
from weft.frontend.tools import bench_report
from weft.frontend.tools import bench_workloads as bench_peers
from weft.frontend.tools.bench_workloads import WORKLOADS, suites
from weft.frontend.tools.main import main
from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.runtime.native.pool import POOL
from weft.runtime.trace.peaks import machine_peaks, vector_bytes

MODEL = """\
import numpy as np
import weft as wf

v = wf.Variable(np.ones((8, 4), np.float32))

@wf.compile
def step(x, y):
    p = wf.tanh(x @ v)
    v.assign(v - 0.1 * (wf.transpose(x) @ (p - y)))
    return wf.sum(wf.square(p - y))

def plain(x, scale=2.0):
    return wf.exp(x) * scale

def batch():
    return np.ones((6, 8), np.float32), np.zeros((6, 4), np.float32)

NAMED = {"x": np.ones((6, 8), np.float32), "y": np.zeros((6, 4), np.float32)}
number = 3
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "bench_model.py"
    path.write_text(MODEL, encoding="utf-8")
    return str(path)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def bench(*argv: str) -> int:
    return main(["bench", *argv, "--quick"])


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The message of a command that must fail."""
    assert bench(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


# ----------------------------------------------------------------------------------------- f.cost


@wf.compile
def gelu(x: Any, w: Any, b: Any) -> Any:
    v = x * w + b
    return 0.5 * v * (1 + wf.tanh(0.8 * (v + 0.044715 * v * v * v)))


def test_cost_of_a_chain() -> None:
    cost = gelu.cost(*normal(3, 4096))
    (row,) = cost.rows
    assert (cost.kernels, row.number, row.runs, row.calls) == (1, 1, 1, 1)
    assert row.work.flops == 10 * 4096
    assert row.work.transcendentals == 4096
    assert row.bytes == 4 * 4 * 4096
    assert row.dtype == "f32"
    assert [line.rpartition(":")[0] for line in row.lines] == [__file__] * len(row.lines)
    # LLVM takes 256 bits of 512 on processors that it knows to be no faster with more (Ice Lake)
    widest = 8 * vector_bytes()
    assert row.asm.vector_bits in (widest, min(widest, 256))
    assert row.asm.vector_instructions > 10
    rates = row.rates(cost.peaks)
    assert rates is not None
    assert rates.level in ("L1", "L2")
    assert rates.flops_per_second == pytest.approx(40960 / rates.seconds)
    assert rates.bytes_per_second == pytest.approx(row.bytes / rates.seconds)
    assert cost.step is not None


def test_no_kernel_is_above_its_roof() -> None:
    double = wf.compile(lambda x: x * 2.0)
    best = 1e9
    for _ in range(5):  # a machine with other work may have shown a roof that is too low
        (row,) = double.cost(normal(4096)).rows
        rates = row.rates(machine_peaks())
        assert rates is not None
        assert rates.percent_of_peak is not None
        best = min(best, rates.percent_of_peak)
    assert 0 < best <= 105


def test_cost_leaves_values_alone() -> None:
    v = wf.Variable(normal(64, 8))

    @wf.compile
    def update(x: Any) -> Any:
        v.assign(v * 1.01 + x)
        return wf.sum(v)

    x = normal(64, 8)
    before, given = v.numpy().copy(), x.copy()
    cost = update.cost(x)
    assert v.numpy().tobytes() == before.tobytes()
    assert x.tobytes() == given.tobytes()
    assert any("put back" in note for row in cost.rows for note in row.notes)


def test_cost_of_next_to_nothing() -> None:
    assert wf.compile(lambda x: wf.exp(x)).cost(normal(0, 4)).rows[0].bytes == 0
    nothing = wf.compile(lambda x: wf.reshape(x, (4, 2))).cost(normal(2, 4))
    assert "kernel call" in str(nothing)


def test_cost_takes_types() -> None:
    t = wf.compile(lambda x: wf.exp(x)).trace(normal(8, 4)).args[0].type
    (row,) = wf.compile(lambda x: wf.exp(x)).cost(t).rows
    assert row.work.transcendentals == 32


def test_cost_as_text_and_json() -> None:
    cost = wf.compile(lambda x: wf.sum(wf.exp(x), axis=1)).cost(normal(64, 64))
    text = str(cost)
    for part in (
        "multiply-add of",
        "of peak",
        "GB/s",
        "exp_sum",
    ):
        assert part in text
    held = json.loads(cost.to_json())
    assert held["rows"][0]["work"]["flops"] == 64 * 63
    assert held["rows"][0]["rates"]["seconds"] == cost.rows[0].rates(cost.peaks).seconds  # type: ignore[union-attr]
    assert held["peaks"]["bandwidth"]["memory"]["copy"][0] > 0


@pytest.mark.slow
def test_a_table_of_those_that_take_most() -> None:
    """Sorted by time, with shares; few rows by `top`, and the others as one."""

    @wf.compile
    def f(x: Any) -> Any:
        for _ in range(3):
            x = wf.sort(wf.matmul(x, x), axis=0)
        return x

    cost = f.cost(normal(64, 64))
    assert len(cost.rows) > 4
    assert [row.number for row in cost.rows] == list(range(1, len(cost.rows) + 1))
    ranked, others = cost.ranked()
    assert others == []
    assert ranked == sorted(cost.rows, key=lambda row: -row.seconds)
    few = cost.top(2)
    lines = str(few).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.lstrip().startswith("#"))
    shown = [line.split() for line in lines[begin + 1 : begin + 4]]
    assert (
        [int(re.match(r"\d+", line[0])[0]) for line in shown[:2]]
        == [  # type: ignore[index]
            row.number for row in ranked[:2]
        ]
    )
    assert shown[2][:2] == [str(len(cost.rows) - 2), "others"]
    assert few.rows == cost.rows
    shares = [float(re.search(r"([\d.]+) %", line)[1]) for line in lines[begin + 1 : begin + 4]]  # type: ignore[index]
    assert sum(shares) == pytest.approx(100, abs=2)
    with pytest.raises(wf.errors.InvalidArgumentError, match="n must not be negative, got -1"):
        cost.top(-1)


def test_notes_are_letters() -> None:
    """Notes that differ in numbers alone have one, with the least and the greatest."""
    rows = wf.compile(lambda x: (wf.sort(x, axis=0), wf.exp(x))).cost(normal(16, 16)).rows
    notes = RowNotes()
    marks = [
        notes.marks(replace(rows[0], notes=("put back before every 9 runs", "alone"))),
        notes.marks(replace(rows[0], notes=("put back before every 20 runs",))),
        notes.marks(replace(rows[0], notes=())),
    ]
    assert marks == ["ab", "a", ""]
    assert notes.legend() == ["a put back before every 9 to 20 runs", "b alone"]


def test_rows_of_loops_say_how_often_they_run() -> None:
    def f(x: Any) -> Any:
        return wf.scan(lambda c, row: (wf.tanh(c @ x) + row, c), x, wf.stack([x] * 5))

    cost = wf.compile(f).cost(normal(16, 16))
    assert 5 in [row.runs for row in cost.rows]


# ---------------------------------------------------------------------------------------- suites


def test_workloads_are_the_same_everywhere() -> None:
    for workload in WORKLOADS:
        arrays = workload.make(True)
        if workload.wrt or workload.suite == "conv":
            continue
        mine = bench_peers.compiled(workload)(*arrays)
        theirs = bench_peers.numpy_contestant(workload.function, arrays, ())[1]()
        bench_peers._check([mine], theirs)


def test_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "out.json", tmp_path / "out.png"
    options = ["--json", str(files[0]), "--png", str(files[1]), "--rounds", "2"]
    pytest.importorskip("matplotlib")
    assert bench("copies", "--against", "numpy", *options) == 0
    out = capsys.readouterr().out
    assert "copies: scale 2^24, small" in out
    assert "calls in us (min / median): weft" in out
    assert "workloads.py:" in out
    held = json.loads(files[0].read_text())
    assert set(held) == {"schema", "run", "machine", "peaks", "workloads", "footnotes"}
    assert held["schema"] == 2
    names = [w["name"] for w in held["workloads"]]
    assert len(names) == sum(w.suite == "copies" for w in WORKLOADS)
    first = held["workloads"][0]
    assert set(first["against"]) == {"weft", "numpy"}
    assert first["rows"][0]["rates"]["percent_of_peak"] > 0
    assert any("without flops" in note for note in held["footnotes"]) or "without flops" in out
    head = files[1].read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:24]) == (1600, 1000)


@pytest.mark.slow
def test_missing_peers_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weft.frontend.tools.bench_report.missing", lambda given: ["jax", "torch"])
    assert bench("reductions") == 0
    out = capsys.readouterr().out
    assert "not installed, so not compared with: jax, torch" in out
    assert "numpy " in out


@pytest.mark.slow
def test_a_peer_that_differs_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = (lambda: None), (lambda: [np.zeros(1)])
    monkeypatch.setitem(bench_peers._MAKERS, "numpy", lambda f, arrays, wrt: wrong)
    assert bench("matmul", "--against", "numpy", "--rounds", "1") == 0
    assert "no numpy: its results differ from weft's" in capsys.readouterr().out


def test_one_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("reductions", "--kernel", "max") == 0
    out = capsys.readouterr().out
    assert "row maximum" in out
    assert "squared distance" not in out
    message = fails(capsys, "reductions", "--kernel", "maxx")
    assert "there is no kernel 'maxx'" in message


@pytest.mark.slow
def test_threads_are_set_and_put_back(tmp_path: Path) -> None:
    before = POOL.limit
    file = tmp_path / "one.json"
    assert bench("copies", "--against", "none", "--threads", "1", "--json", str(file)) == 0
    assert POOL.limit == before
    held = json.loads(file.read_text())
    assert held["peaks"]["threads"] == 1
    assert all(row["all"] is None or before == 1 for w in held["workloads"] for row in w["rows"])


# ----------------------------------------------------------------------------- functions and dumps


@pytest.mark.share(2)
@pytest.mark.parametrize("example", ["batch", "NAMED"])
def test_a_function_with_example_arguments(
    example: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(f"{model}:step", "--example", example) == 0
    out = capsys.readouterr().out
    assert "bench_model.py:step" in out
    assert "bench_model.py:8" in out


def test_a_plain_function_with_types(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(f"{model}:plain", "--feed", "x=f32[64,10]") == 0
    assert "exp_multiply" in capsys.readouterr().out


def test_a_function_with_a_file(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", normal(7, 3))
    assert bench(f"{model}:plain", "--feed", f"x={tmp_path / 'x.npy'}") == 0
    assert "exp_multiply" in capsys.readouterr().out


def test_functions_that_cannot_run(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no value for the parameter 'x'" in fails(capsys, f"{model}:plain")
    assert "neither a file" in fails(capsys, f"{model}:plain", "--feed", "x=f32[")
    assert "has no parameter 'z'" in fails(capsys, f"{model}:plain", "--feed", "z=f32[2]")
    assert "has no 'plane'; did you mean 'plain'" in fails(capsys, f"{model}:plane")
    assert "is a int, not a function" in fails(capsys, f"{model}:number")
    assert "there is no file" in fails(capsys, "nothing.py:f")
    assert "there is no module 'no_such_module'" in fails(capsys, "no_such_module:f")
    both = ["--feed", "x=f32[2]", "--example", "batch"]
    assert "not both" in fails(capsys, f"{model}:plain", *both)


def test_every_stage_of_a_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    wf.compile(lambda x: wf.sum(wf.exp(x) * 2.0, axis=1))(normal(32, 16))
    monkeypatch.delenv("WEFT_DUMP")
    files = sorted(tmp_path.rglob("*.weft"))
    assert len(files) >= 2
    for file in (files[0], files[-1]):
        assert bench(str(file)) == 0
        assert "exp_multiply_sum" in capsys.readouterr().out


# ---------------------------------------------------------------------------------- from Python


def test_a_function_from_python() -> None:
    report = wf.bench(gelu, *normal(3, 512), quick=True)
    (cost,) = report.costs
    assert cost.name == "gelu"
    assert cost.rows[0].work.flops == 10 * 512
    assert "of peak" in str(report)
    held = json.loads(report.to_json())
    assert held["workloads"][0]["rows"][0]["number"] == 1
    plain = wf.bench(lambda x, s: wf.exp(x) * s, normal(8, 8), s=2.0, quick=True)
    assert [row.work.transcendentals for row in plain.costs[0].rows] == [0, 64]
    typed = wf.bench(wf.exp, wf.TensorType(wf.float32, (4, 8)), quick=True)
    assert typed.costs[0].rows[0].bytes == 2 * 4 * 32


@pytest.mark.slow
def test_a_suite_from_python(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = wf.bench("reductions", against="numpy", rounds=1, quick=True)
    assert len(report.costs) == sum(w.suite == "reductions" for w in WORKLOADS)
    assert set(report.comparisons) == {c.name for c in report.costs}
    assert "calls in us (min / median): weft" in str(report)
    report.png(tmp_path / "roof.png")
    assert (tmp_path / "roof.png").read_bytes()[:4] == b"\x89PNG"
    (one,) = wf.bench("reductions", kernel="max", threads=1, quick=True).costs
    assert "row maximum" in one.name
    assert one.threads == 1


def test_a_dump_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    wf.compile(lambda x, y: wf.exp(x) * y)(normal(32, 16), normal(16))
    monkeypatch.delenv("WEFT_DUMP")
    file = sorted(tmp_path.rglob("*.weft"))[-1]
    report = wf.bench(file, x=np.zeros((32, 16), np.float32), quick=True)
    assert report.costs[0].rows[0].name == "exp_multiply"
    with pytest.raises(NotFoundError, match="no input 'z'"):
        wf.bench(str(file), z=normal(16))


def test_what_cannot_be_measured_from_python() -> None:
    with pytest.raises(NotFoundError, match="no suite 'chans'"):
        wf.bench("chans")
    with pytest.raises(NotFoundError, match="no file none"):
        wf.bench("none.weft")
    with pytest.raises(InvalidArgumentError, match="takes no arguments"):
        wf.bench("chains", normal(3))
    with pytest.raises(InvalidArgumentError, match="rounds 0"):
        wf.bench(gelu, *normal(3, 8), rounds=0)
    with pytest.raises(NotFoundError, match="'nmupy'"):
        wf.bench("copies", against="nmupy")


def test_sizes_that_quick_makes_equal_are_measured_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench("chains", "--against", "none", "--kernel", "1") == 0
    assert capsys.readouterr().out.count("swish_gate") == 1


def test_json_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("copies", "--against", "none", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 2


def test_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no suite 'chans'; did you mean 'chains'?" in fails(capsys, "chans")
    assert "there is no 'nmupy'" in fails(capsys, "copies", "--against", "nmupy")
    assert "--rounds 0" in fails(capsys, "copies", "--rounds", "0")
    assert "--threads" in fails(capsys, "copies", "--threads", "0")
    assert "there is no file" in fails(capsys, "none.weft")
    assert "there is no folder" in fails(capsys, "copies", "--json", "no/such/folder/x.json")


def test_the_picture_needs_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_report.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'matplotlib" in fails(capsys, "copies", "--png", "x.png")


def test_suites() -> None:
    assert suites()[:5] == ["chains", "rows", "matmul", "reductions", "copies"]
