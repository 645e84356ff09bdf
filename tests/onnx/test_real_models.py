"""Models that packages use, against onnxruntime; skipped where the packages are not installed:
magika, silero-vad, rapidocr-onnxruntime (`pip install --no-deps`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import weft as wf

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (1, 2048)).astype(np.int32)
SOUND = {
    "input": RNG.standard_normal((1, 576)).astype(np.float32) * np.float32(0.1),
    "state": np.zeros((2, 1, 128), np.float32),
    "sr": np.array(16000, np.int64),
}
SLOW = {**SOUND, "input": SOUND["input"][:, :288], "sr": np.array(8000, np.int64)}
OCR = "rapidocr_onnxruntime"


def image(*shape: int) -> dict[str, Any]:
    return {"x": RNG.random(shape, np.float32)}


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("package", "file", "given"),
    [
        ("magika", "models/standard_v3_3/model.onnx", {"bytes": BYTES}),
        (OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", image(2, 3, 48, 192)),
        (OCR, "models/ch_PP-OCRv4_det_infer.onnx", image(1, 3, 320, 224)),
        (OCR, "models/ch_PP-OCRv4_rec_infer.onnx", image(1, 3, 48, 320)),
        ("silero_vad", "data/silero_vad.onnx", SOUND),
        ("silero_vad", "data/silero_vad.onnx", SLOW),
        ("silero_vad", "data/silero_vad_16k_op15.onnx", SOUND),
        ("silero_vad", "data/silero_vad_op18_ifless.onnx", SOUND),
        ("silero_vad", "data/silero_vad_half.onnx", SOUND),
    ],
)
def test_as_onnxruntime(package: str, file: str, given: dict[str, Any]) -> None:
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    path = Path(found.origin).parent / file
    model = wf.onnx.load(path)
    inputs = {n: x for n, x in given.items() if n in model.inputs}
    session = onnxruntime.InferenceSession(str(path))
    for made in (model(**inputs), model.apply({}, **inputs)):
        for (name, got), want in zip(made.items(), session.run(None, inputs), strict=True):
            np.testing.assert_allclose(got.numpy(), want, 1e-4, 1e-5, err_msg=name)
