"""`weft replay`: every option, what it prints, how it ends."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wrong_kernels import tanh_by

import weft as wf
from weft.frontend.tools.main import DIFFERENT, ERROR, SUCCESS, main

HERE = "test_replay_cli.py"
LINE = 1 + Path(__file__).read_text("utf-8").splitlines().index(
    "            return i + 1, c * row  # the product"
)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


@wf.compile
def looped(x: Any, at: Any) -> Any:
    def outer(total: Any, row: Any) -> Any:
        def inner(i: Any, c: Any) -> Any:
            return i + 1, c * row  # the product

        _, c = wf.while_loop(lambda i, c: i < 2, inner, [0, row])
        return total + c, total

    total, totals = wf.scan(outer, 0.0, x)
    return wf.tanh(total), wf.take(totals, at)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two records: of a call that was right, and of one that raised."""
    with wf.record(tmp_path):
        looped(f32(1, 2, 3), 1)
        with pytest.raises(wf.errors.InvalidArgumentError):
            looped(f32(1, 2, 3), 9)
    return tmp_path


@pytest.fixture
def wrong_tanh() -> Iterator[None]:
    with tanh_by(halved):
        yield


def halved(x: Any) -> Any:
    return math.tanh(x) / 2


def run(*words: object) -> int:
    return main(["replay", *map(str, words)])


def test_records_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--list") == SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0  looped-")
    assert lines[0].endswith("-failed.safetensors")
    assert "raised BoundsError: op 'take' (f32[3], i64[]): index 9" in lines[1]
    assert lines[3].endswith("2 inputs, 0 variables (20 bytes), ran as 'native', gave results")


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("step", "engine"), [(1, None), (1, "numba"), (1, "dataflow"), (0, "recorded"), (0, "native")]
)
def test_it_runs_again(
    folder: Path, capsys: pytest.CaptureFixture[str], step: int, engine: str | None
) -> None:
    words = [] if engine is None else ["--engine", engine]
    assert run(folder, "--step", step, *words, "--bits") == SUCCESS
    out = capsys.readouterr().out
    assert f"'{engine or 'recorded'}' gives the same bits as the recorded run" in out
    assert ("result 1: 1." in out) == (step == 1)
    assert ("the step raised BoundsError: op 'take'" in out) == (step == 0)


def test_other_versions_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(folder, "--step", 1) == SUCCESS
    assert "recorded with" not in capsys.readouterr().out
    here = {"numpy": "9.9", "isa": "none"}
    monkeypatch.setattr("weft.runtime.record.recorder.versions", lambda: here)
    assert run(folder, "--step", 1) == SUCCESS
    assert ", here 9.9" in capsys.readouterr().out


def test_the_program_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--program") == SUCCESS
    assert "graph @looped(%x: f32[3], %at: i64[]) -> (f32[], f32[])" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [
        ("multiply", ["multiply, iteration 0, 0", "gave %", ": f32[] = 1."]),
        ("multiply:2,1", ["multiply, iteration 2, 1", "= 9.", "= 3.", "= 27.", f"{HERE}:{LINE}:"]),
        (f"{HERE}:{LINE}:1,0", [", iteration 1, 0", f"{HERE}:{LINE}:"]),
        (f"{HERE}:{LINE}", [", iteration 0, 0", f"{HERE}:{LINE}:"]),
        ("tanh", ["tanh\n", "given", "= 36.", "= 1."]),
        ("#0", ["#0 "]),
        ("error", ["take\n", ": i64[] = 9", "raised BoundsError: index 9"]),
    ],
)
def test_until(
    folder: Path, capsys: pytest.CaptureFixture[str], stop: str, wanted: list[str]
) -> None:
    assert run(folder, "--step", 0, "--until", stop) == SUCCESS
    out = capsys.readouterr().out
    assert [text for text in wanted if text not in out] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--until", "cosh"], "'looped' does not come to cosh"),
        (["--until", "multiply:7,7"], "'looped' does not come to multiply:7,7"),
        (["--until", "error"], "'looped' does not come to error"),
        (["--until", "a b"], "'a b' is no place to stop at"),
        (["--until", "model.py:x"], "'model.py:x' is no place to stop at"),
        (["--step", "5"], "has 2 records, there is no number 5"),
        (["--engine", "native", "--engine", "numba", "--engine", "dataflow"], "not more"),
    ],
)
def test_wrong_words(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run(folder, "--step", 1, *words) == ERROR
    assert message in capsys.readouterr().err


def test_wrong_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "nowhere") == ERROR
    assert "there are no records in" in capsys.readouterr().err
    (tmp_path / "x.safetensors").write_bytes(b"no record")
    assert run(tmp_path) == ERROR
    with pytest.raises(SystemExit):
        run(tmp_path, "--engine", "tpu")


def test_an_error_comes_before(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--step", 0, "--until", "multiply:8,8") == DIFFERENT
    out = capsys.readouterr().out
    assert "the step does not come to multiply:8,8, as this raises before:\n" in out


@pytest.mark.usefixtures("wrong_tanh")
def test_engines_that_differ_are_told_and_shrunk(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(folder, "--step", 1, "--engine", "interpreter") == SUCCESS
    assert run(folder, "--step", 1, "--engine", "native") == DIFFERENT
    out = capsys.readouterr().out
    assert "'native' against the recorded run: result 0 at [0] is np.float32(0.5)" in out
    small = tmp_path / "small.safetensors"
    engines = ["--engine", "interpreter", "--engine", "native"]
    assert run(folder, "--step", 1, *engines, "-o", small) == DIFFERENT
    out = capsys.readouterr().out
    assert f"a program of 1 ops on which they differ: {small}" in out
    assert "= tanh(%x0) : f32[]" in out
    assert np.isclose(float(wf.replay(small).run("native")[0]), 0.5)  # type: ignore[arg-type]
    assert run(small, *engines, "--no-shrink") == DIFFERENT
    assert "ops on which they differ" not in capsys.readouterr().out


def test_rounding_differs_in_bits_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the smaller program is written there
    f = wf.compile(lambda x: wf.sum(wf.exp(x)))
    with wf.record("records"):
        f(np.linspace(0, 1, 10007, dtype=np.float32))
    assert run("records", "--engine", "interpreter") == SUCCESS
    assert "has other bits in 1 of 1 elements, by rounding" in capsys.readouterr().out
    both = ["--engine", "interpreter", "--engine", "native", "--bits"]
    assert run("records", *both) == DIFFERENT
    assert "ops on which they differ" in capsys.readouterr().out
    assert [file.name[-18:] for file in tmp_path.glob("*.safetensors")] == ["-small.safetensors"]


def test_at_the_prompt(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["next", "", "until multiply:1,1", "print %0", "p %99", "until ?", "help next", "c"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(said) + "\n"))
    assert run(folder, "--step", 1, "-i") == SUCCESS
    out = capsys.readouterr().out
    assert out.index("#0 ") < out.index("#1 ") < out.index("#2 ") < out.index("iteration 1, 1")
    assert "8.\n" in out or "8.0\n" in out
    assert "there is no %99 here" in out
    assert "'?' is no place to stop at" in out
    assert "carry out one op more" in out
    assert out.endswith("result 0: 1.\nresult 1: 1.\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("until error\n"))  # then the input ends
    assert run(folder, "--step", 0, "-i", "--until", "multiply") == SUCCESS
    assert "raised BoundsError: index 9" in capsys.readouterr().out
