"""examples/serve_digits.py: a better version takes over under load, and no request is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_programs import load_example

pytest.importorskip("sklearn")
pytest.importorskip("uvicorn")


def test_a_better_version_takes_over(tmp_path: Path) -> None:
    told = load_example("serve_digits").run(tmp_path, clients=3, steps=600)
    assert not told.lost
    assert set(told.answered) == {"1", "2"}
    assert min(told.answered.values()) >= 400
    rates = {version: told.right[version] / told.answered[version] for version in told.answered}
    assert rates["2"] > 0.9
    assert rates["2"] > rates["1"]
