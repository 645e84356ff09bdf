"""The example programs train for real, and their losses are those of a float64 NumPy
transcription.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_programs import FOLDER, load_example

from weft.codegen.llvm.jit import compile_count

pytest.importorskip("sklearn")
PATH = FOLDER / "digits.py"


digits = load_example("digits")


def reference_losses(data: Any, start: Any, steps: int, batch: int) -> list[float]:
    """The same program in float64 NumPy: forward, backward by hand, TF1's Adagrad (accumulators
    0.1).
    """
    w = {k: getattr(start, k).astype(np.float64) for k in ("w1", "b1", "w2", "b2")}
    total = {k: np.full_like(v, 0.1) for k, v in w.items()}
    losses = []
    for x32, y32 in data.batches(steps, batch):
        x, y = x32.astype(np.float64), y32.astype(np.float64)
        hidden = np.maximum(x @ w["w1"] + w["b1"], 0)
        logits = hidden @ w["w2"] + w["b2"]
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        losses.append(float(np.mean(-(y * (shifted - log_sum)).sum(axis=1))))
        d_logits = (np.exp(shifted - log_sum) - y) / len(x)
        d_hidden = (d_logits @ w["w2"].T) * (hidden > 0)
        grads = {
            "w1": x.T @ d_hidden, "b1": d_hidden.sum(axis=0),
            "w2": hidden.T @ d_logits, "b2": d_logits.sum(axis=0),
        }  # fmt: skip
        for k, g in grads.items():
            total[k] += g * g
            w[k] -= digits.LEARNING_RATE * g / np.sqrt(total[k])
    return losses


@pytest.mark.parametrize("name", ["train_compiled", "train_session"])
def test_losses_match_float64_reference(name: str) -> None:
    data, start = digits.load_digits(), digits.initial_weights()
    with digits.Progress(disable=True) as progress:
        run = getattr(digits, name)(data, start, 200, 128, progress)
    np.testing.assert_allclose(run.losses, reference_losses(data, start, 200, 128), rtol=1e-4)


@pytest.mark.parametrize("name", ["train_compiled", "train_session"])
def test_held_out_accuracy(name: str) -> None:
    data, start = digits.load_digits(), digits.initial_weights()
    with digits.Progress(disable=True) as progress:
        run = getattr(digits, name)(data, start, 2000, 128, progress)
    assert run.accuracy >= 0.97


def test_command_writes_the_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "curve.png"
    monkeypatch.setattr("sys.argv", ["digits.py", "--steps", "20", "--out", str(out)])
    digits.main()
    assert out.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert said.count("held-out accuracy") == 2
    assert len(re.findall(r"first step \d+\.\d\d s, then \d+ us a step", said)) == 2
    assert re.search(r"13 kernel calls.*; compiled in \d+\.\d\d s; cpu, .*thread", said)


def test_another_batch_size_compiles_nothing() -> None:
    """Whether it is a power of two or not: kernels take extents and constants as arguments."""
    data, start = digits.load_digits(), digits.initial_weights()
    with digits.Progress(disable=True) as progress:
        for name in ("train_compiled", "train_session"):
            getattr(digits, name)(data, start, 1, 128, progress)
            known = compile_count()
            for batch in (96, 33, 1000):
                getattr(digits, name)(data, start, 1, batch, progress)
            assert compile_count() == known
