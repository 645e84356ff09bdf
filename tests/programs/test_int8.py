"""examples/int8.py: quantised forms of a trained network are as accurate, and smaller."""

from __future__ import annotations

import pytest
from example_programs import load_example


@pytest.mark.slow
def test_it_compares(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    example = load_example("int8")
    monkeypatch.setattr(example, "TURNS", 2)
    rows = example.main(["--steps", "150", "--units", "128"])
    first = rows["float32"]
    assert first.accuracy > 0.93
    for name in example.WAYS:
        assert rows[name].accuracy > first.accuracy - 0.02, name
        assert rows[name].nbytes < first.nbytes * (0.3 if "int4" in name else 0.4), name
    printed = capsys.readouterr().out
    assert all(name in printed for name in rows)
    assert "weights/1" in printed  # of the report
