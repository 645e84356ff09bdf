"""examples/cluster_digits.py: five processes, three schemes, one of them killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from example_programs import FOLDER, load_example

import weft as wf

pytest.importorskip("sklearn")
pytestmark = pytest.mark.slow
STEPS = 40


def run(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    """What the command writes."""
    out = tmp_path / "results.json"
    command = [sys.executable, str(FOLDER / "cluster_digits.py"), "--steps", str(STEPS)]
    env = dict(os.environ, PYTHONPATH=str(FOLDER.parent))
    subprocess.run([*command, *words, "--out", str(out)], check=True, timeout=500, env=env)
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def alone() -> str:
    """The bits of a run in this process, with the mean of three gradients in each step."""
    sys.path.insert(0, str(FOLDER))
    try:
        example = load_example("cluster_digits")
    finally:
        sys.path.remove(str(FOLDER))
    data, workers = example.digits.load_digits(), range(example.WORKERS)
    with wf.Graph().as_default(), wf.Session() as session:
        model = example.build_model(example.digits.initial_weights())
        optimizer = wf.train.AdagradOptimizer(example.LEARNING_RATE)
        variables = wf.trainable_variables()
        pairs = optimizer.compute_gradients(model.loss, variables)
        placed = [wf.placeholder(v.dtype, v.shape) for _ in workers for v in variables]
        n = len(variables)
        given = [list(zip(placed[i * n : (i + 1) * n], variables, strict=True)) for i in workers]
        train = optimizer.apply_gradients(wf.train.mean_gradients(given))
        session.run(wf.global_variables_initializer())
        for step in range(STEPS):
            found: list[Any] = []
            for worker in workers:
                x, y = example.batches(data, worker)(step)
                found += session.run([g for g, _ in pairs], {model.x: x, model.y: y})
            session.run(train, dict(zip(placed, found, strict=True)))
        values = session.run(variables)
    bits: str = example.digest({str(i): v for i, v in enumerate(values)})
    return bits


def test_three_schemes(tmp_path: Path, alone: str) -> None:
    results = {r["scheme"]: r for r in run(tmp_path)}
    assert list(results) == ["async", "sync", "backup"]
    assert all(r["accuracy"] > 0.6 and r["restarts"] == 0 for r in results.values())
    assert results["async"]["steps"] >= STEPS
    assert results["sync"]["steps"] == results["backup"]["steps"] == STEPS
    assert results["sync"]["bits"] == alone


@pytest.mark.parametrize("lost", ["worker:0", "ps:1"])
def test_a_lost_process_changes_no_bit(tmp_path: Path, alone: str, lost: str) -> None:
    (result,) = run(tmp_path, "--scheme", "sync", "--kill", lost)
    assert result["restarts"] >= 1
    assert result["steps"] == STEPS
    assert result["bits"] == alone
