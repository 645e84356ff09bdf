"""Whole models that come with the package `onnx`, against the results that are stored beside them,
and against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_cases
import onnxruntime
import pytest

import weft as wf

GRADIENTS = "of the domain ai.onnx.preview.training"
EXCEPTIONS = {"test_gradient_of_add": GRADIENTS, "test_gradient_of_add_and_mul": GRADIENTS}


def wrong_in(folder: Path, compiled: bool) -> str:
    model = wf.onnx.load(folder / "model.onnx")
    for inputs, wanted in onnx_cases.folder_data(folder, model):
        made = model(*inputs) if compiled else model.apply({}, *inputs)
        for got, want in zip(made.values(), wanted, strict=True):
            wrong = onnx_cases.difference(got, want, 1e-4, 1e-5)
            if wrong:
                return f"{folder.name}: {wrong:.300}"
    return ""


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", ["simple", "pytorch-operator", "pytorch-converted"])
def test_small_models(kind: str) -> None:
    """Eagerly, and each tenth compiled."""
    folders = [f for f in onnx_cases.model_folders(kind) if f.name not in EXCEPTIONS]
    assert len(folders) > 20
    wrong = [w for f in folders if (w := wrong_in(f, compiled=False))]
    wrong += [w for f in folders[::10] if (w := wrong_in(f, compiled=True))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simple", "pytorch-operator", "pytorch-converted"])
def test_small_models_compiled(kind: str) -> None:
    folders = [f for f in onnx_cases.model_folders(kind) if f.name not in EXCEPTIONS]
    wrong = [w for f in folders if (w := wrong_in(f, compiled=True))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions_say_what_is_missing(name: str) -> None:
    with pytest.raises(wf.errors.UnsupportedError, match=r"training\.Gradient \('my_gradient'\)"):
        wf.onnx.load(onnx_cases.DATA / "simple" / name / "model.onnx")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.stem, marks=() if "squeezenet" in p.stem else pytest.mark.slow)
        for p in onnx_cases.LIGHT
    ],
)
def test_light_models_as_onnxruntime(path: Path) -> None:
    """AlexNet, DenseNet, Inception, ResNet, ShuffleNet, SqueezeNet, VGG, ZFNet."""
    model = onnx_cases.with_other_weights(path)
    for node in model.graph.node:
        if node.op_type == "Softmax":  # which hides differences
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.input[0]))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    rng = np.random.default_rng(1)
    given = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    made = wf.onnx.load(model)(**given)
    for (name, got), want in zip(made.items(), session.run(None, given), strict=True):
        assert np.ptp(want) > 0, name  # it depends on something
        np.testing.assert_allclose(got.numpy(), want, 1e-4, 1e-4 * np.abs(want).max(), err_msg=name)
