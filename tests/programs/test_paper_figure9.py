"""benchmarks/paper/figure9.py: a small run measures both softmaxes on one process and on servers,
and what it predicts follows from the tasks' shares of the processors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "paper"))
import figure9


def test_apart_adds_the_worker_and_the_server_that_takes_longest() -> None:
    rounds = [{"worker0": 0.3, "ps0": 0.1, "ps1": 0.2}, {"worker0": 0.3, "ps0": 0.05, "ps1": 0.1}]
    found = figure9.apart(80, rounds)
    assert found["processor_seconds"] == rounds[1]
    assert found["predicted_words_per_second"] == pytest.approx(200)
    assert figure9.apart(80, [{}]) == {}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the program reads Linux's /proc")
def test_a_small_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [[f"w{k % 7}" for k in range(500)] for _ in range(10)]
    monkeypatch.setattr(figure9.language_model, "read_files", lambda: words)
    sizes = ("vocabulary", "8", "sampled", "4", "units", "8", "batch", "4", "length", "5")
    options = [f"--{a}" if i % 2 == 0 else a for i, a in enumerate(sizes)]
    argv = ["--servers", "0", "2", "--rounds", "1", "--steps", "2", *options]
    result = figure9.main([*argv, "--out", str(tmp_path)])
    assert "one process" in capsys.readouterr().out
    assert json.loads((tmp_path / "figure9.json").read_text()) == result
    assert (tmp_path / "figure9.png").read_bytes().startswith(b"\x89PNG")
    rows = {(row["softmax"], row["servers"]): row for row in result["rows"]}
    assert set(rows) == {(s, n) for s in ("full", "sampled") for n in (0, 2)}
    for (_, servers), row in rows.items():
        assert row["words_per_second"] == pytest.approx(20 / row["seconds"]["minimum"])
        assert ("processor_seconds" in row) == bool(servers)
        if servers:
            assert set(row["processor_seconds"]) == {"worker0", "ps0", "ps1"}
            assert min(row["processor_seconds"].values()) > 0
