"""examples/figure2.py: the paper's Figure 2 as one graph learns, survives kill -9, and says what
went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from example_programs import FOLDER, load_example
from paths import ROOT

import weft as wf

pytest.importorskip("sklearn")
pytest.importorskip("PIL")
PATH = FOLDER / "figure2.py"


example = load_example("figure2")


def step_of(checkpoint: str | None) -> int:
    return 0 if checkpoint is None else int(Path(checkpoint).stem.rpartition("-")[2])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths: list[Path] = example.write_files(tmp_path_factory.mktemp("digits"))
    return paths


def test_trains_and_goes_on(files: list[Path], tmp_path: Path) -> None:
    before = set(threading.enumerate())
    first = example.train(tmp_path, files, 60, 32, 0.1)
    assert (first.first, first.step, len(first.losses)) == (0, 60, 60)
    assert np.mean(first.losses[-5:]) < 0.7 * np.mean(first.losses[:5])
    assert step_of(first.checkpoint) == 60
    assert not set(threading.enumerate()) - before  # readers, runners, saver: all ended
    second = example.train(tmp_path, files, 75, 32, 10.0)
    assert (second.first, second.step, len(second.losses)) == (60, 75, 15)
    assert np.mean(second.losses) < np.mean(first.losses[:5])


@pytest.mark.slow
@pytest.mark.parametrize(
    "delays", [(0.11,), pytest.param([0.037 * i for i in range(8)], marks=pytest.mark.slow)]
)
def test_killed_at_any_moment_it_goes_on(
    files: list[Path], tmp_path: Path, delays: Sequence[float]
) -> None:
    for path in files:
        (tmp_path / path.name).symlink_to(path)
    command = [sys.executable, "-P", str(PATH), "--folder", str(tmp_path), "--batch", "16",
               "--seconds", "0.02", "--steps", "1000000"]  # fmt: skip
    reached = 0
    for delay in delays:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            until = time.monotonic() + 40
            while step_of(wf.train.latest_checkpoint(tmp_path)) <= reached:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        reached = step_of(wf.train.latest_checkpoint(tmp_path))
        # whole, and of one point in time: every array's checksum fits
        assert wf.train.load_variable(wf.train.latest_checkpoint(tmp_path), "step") == reached
    last = example.train(tmp_path, files, reached + 5, 16, 10.0)
    assert (last.first, last.step) == (reached, reached + 5)


def test_a_damaged_file_is_named(files: list[Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tfrecord"
    damaged.write_bytes(files[0].read_bytes()[:-100])
    with pytest.raises(wf.errors.DataLossError, match=r"damaged\.tfrecord: record \d+ at byte"):
        example.train(tmp_path, [damaged], 1000, 8, 10.0)
