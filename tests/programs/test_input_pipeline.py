"""examples/input_pipeline.py: it learns, goes on from its checkpoint, and says what went wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from example_programs import FOLDER, load_example

import weft as wf

pytest.importorskip("sklearn")
PATH = FOLDER / "input_pipeline.py"


example = load_example("input_pipeline")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths: list[Path] = example.write_files(tmp_path_factory.mktemp("digits"))
    return paths


@pytest.mark.slow
def test_trains_and_goes_on(files: list[Path], tmp_path: Path) -> None:
    before = set(threading.enumerate())
    first = example.train(files, tmp_path, 60, every=25, disable=True)
    assert first.step == len(first.losses) == 60
    assert np.mean(first.losses[-5:]) < 0.6 * np.mean(first.losses[:5])
    assert first.checkpoint == f"{tmp_path}/model-50.safetensors"
    assert set(threading.enumerate()) - before == set()  # readers, runner, writer: all ended
    second = example.train(files, tmp_path, 75, every=25, disable=True)
    assert (second.step, len(second.losses)) == (75, 25)  # from step 50 on
    assert second.losses[0] < np.mean(first.losses[:5])
    assert second.checkpoint == f"{tmp_path}/model-75.safetensors"


def test_preprocessing(files: list[Path]) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    records = wf.data.read_tfrecords(files[1], "GZIP")
    for i, record in zip(range(1, 40, 4), records, strict=False):
        image, label = example.preprocess(record)
        np.testing.assert_allclose(image, digits.images[i].reshape(64) / 16, rtol=1e-6)
        assert label.argmax() == digits.target[i]


def test_a_damaged_file_ends_the_training(files: list[Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tfrecord"
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 8
    damaged.write_bytes(data)
    before = set(threading.enumerate())
    with pytest.raises(wf.errors.DataLossError, match=r"damaged\.tfrecord: record \d+ at byte"):
        example.train([damaged], tmp_path, 1000, disable=True)
    assert set(threading.enumerate()) - before == set()


def test_command(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x", "--folder", str(tmp_path / "new"), "--steps", "3"])
    example.main()
    assert len(list((tmp_path / "new").glob("*.tfrecord"))) == 4
