"""ONNX models that weft wrote, run by onnxruntime and by the reference evaluator of `onnx`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from weft.frontend.bundle.signature import Exported, Weights
from weft.frontend.onnx.save import _store, _written
from weft.ir.graph import Graph, unique_name
from weft.passes.functional_state import functional_state
from weft.passes.simplify.cse_dce import dce

Array = np.ndarray[Any, Any]


def model_of(graph: Graph, opset: int = 20) -> onnx.ModelProto:
    """A graph without state as a model, with names that ONNX's checker takes."""
    pure = functional_state(dce(graph)).graph
    names: list[str] = []
    for k in range(len(pure.args)):
        names.append(unique_name(f"x{k}", names))
    outputs = [f"y{k}" for k in range(len(pure.results))]
    plain = Graph("g", pure.block, tuple(names), pure.stage)
    exported = Exported(plain, (), None, (), outputs, len(names), (), ())
    writer, tensors = _written(exported, Weights(), opset)
    made = _store(writer, exported, tensors, None, False, False)
    assert isinstance(made, onnx.ModelProto)
    return made


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """onnxruntime's session, on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run_runtime(model: onnx.ModelProto, arrays: Sequence[Array]) -> list[Array]:
    """What onnxruntime gives."""
    names = [i.name for i in model.graph.input]
    found = session_of(model).run(None, dict(zip(names, arrays, strict=True)))
    return [np.asarray(x) for x in found]


def run_reference(model: onnx.ModelProto, arrays: Sequence[Array]) -> list[Array]:
    """What the reference evaluator gives."""
    names = [i.name for i in model.graph.input]
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    return [np.asarray(x) for x in found]
