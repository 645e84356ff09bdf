"""ONNX models that weft wrote, run by onnxruntime and by the reference evaluator of `onnx`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import weft as wf

Array = np.ndarray[Any, Any]


def saved(model: Any, example: Any = None, **more: Any) -> onnx.ModelProto:
    """`wf.onnx.save` to a message, checked."""
    return checked(wf.onnx.save(model, example=example, **more))


def checked(model: Any) -> onnx.ModelProto:
    """The model, if ONNX's checker and shape inference find nothing."""
    assert isinstance(model, onnx.ModelProto)
    onnx.checker.check_model(model, full_check=True)
    return model


def kinds(model: onnx.ModelProto) -> list[str]:
    """The operators of the graph itself, in order."""
    return [node.op_type for node in model.graph.node]


def run_runtime(model: onnx.ModelProto | str, arrays: Sequence[Array]) -> list[Array]:
    """What onnxruntime gives, on one thread. model: a message, or a path."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    given = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return [np.asarray(x) for x in session.run(None, dict(zip(names, arrays, strict=True)))]


def run_reference(model: onnx.ModelProto, arrays: Sequence[Array]) -> list[Array]:
    """What the reference evaluator gives."""
    names = [i.name for i in model.graph.input]
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    return [np.asarray(x) for x in found]


def close(got: Sequence[Array], wanted: Sequence[Any], near: float = 1e-5) -> None:
    """Dtypes, shapes, and elements as near as two ways to compute floats are."""
    assert len(got) == len(wanted)
    for x, w in zip(got, map(np.asarray, wanted), strict=True):
        assert (x.dtype, x.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(x, w, rtol=near, atol=near)


def check(
    function: Any, example: Any, *calls: Sequence[Array], near: float = 1e-5,
    reference: bool = True, **more: Any,
) -> onnx.ModelProto:  # fmt: skip
    """The model of a function gives weft's numbers for each of the calls; the model."""
    model = saved(function, example, **more)
    for arrays in calls:
        wanted = wf.tree_leaves(function(*map(wf.asarray, arrays)))
        close(run_runtime(model, arrays), wanted, near)
        if reference:
            close(run_reference(model, arrays), wanted, near)
    return model
