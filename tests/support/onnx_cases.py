"""The tests that come with the package `onnx`, and how results are compared with theirs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import weft as wf

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
#: Known nets for images.
LIGHT = sorted((DATA / "light").glob("*.onnx"))


@cache
def node_cases() -> tuple[Any, ...]:
    """Those of single operators, of the core domain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, where they try inf and nan
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind="node")
    return tuple(c for c in found if {n.domain for n in c.model.graph.node} == {""})


def model_folders(kind: str) -> list[Path]:
    """Those of whole models: "simple", "pytorch-operator" or "pytorch-converted"."""
    return sorted(p.parent for p in (DATA / kind).glob("*/model.onnx"))


def with_other_weights(path: Path) -> onnx.ModelProto:
    """A light model, whose weights are all alike, with weights that are not: its results would not
    show a wrong order of anything."""
    model = onnx.load(path)
    rng = np.random.default_rng(0)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = shapes[node.input[0]]
        fan = max(int(np.prod(shape[1:])), 1)
        made = rng.standard_normal(shape).astype(np.float32) * np.float32((2 / fan) ** 0.5)
        if len(shape) == 1:  # scales, variances, biases
            made = np.abs(made) * np.float32(0.1) + np.float32(0.5)
        model.graph.initializer.append(numpy_helper.from_array(made, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def folder_data(folder: Path, model: wf.onnx.Model) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and outputs of a folder."""
    types = [i.type for i in onnx.load(folder / "model.onnx").graph.input]
    for data in sorted(folder.glob("test_data_set_*")):
        inputs = [
            _read(data / f"input_{i}.pb", t) for i, t in enumerate(types[: len(model.inputs)])
        ]
        yield inputs, [_read(p) for p in sorted(data.glob("output_*.pb"))]


def _read(path: Path, kind: onnx.TypeProto | None = None) -> Any:
    sequence = kind is not None and kind.HasField("sequence_type")
    proto = onnx.SequenceProto() if sequence else onnx.TensorProto()
    proto.ParseFromString(path.read_bytes())
    return as_held(proto)


def as_held(x: Any) -> Any:
    """A value of a case as weft holds it."""
    if x is None:
        return None
    if isinstance(x, list):
        return [as_held(v) for v in x]
    if isinstance(x, onnx.SequenceProto):
        return as_held(numpy_helper.to_list(x))
    if isinstance(x, onnx.OptionalProto):
        return as_held(numpy_helper.to_optional(x))
    array = numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)
    name = array.dtype.name
    if array.dtype.type.__module__ != "ml_dtypes" or name == "bfloat16":
        return array.astype(object) if array.dtype.kind in "UT" else array
    if name.startswith("float"):
        return array.astype(np.float32)
    return array.astype(np.uint8 if name.startswith("u") else np.int8)


#: What results of 16 bits may differ by: two units in the last place, as weft rounds once where
#: ONNX's reference rounds after each step.
_ROUGH = {"float16": 0.002, "bfloat16": 0.016}


def difference(got: Any, want: Any, rtol: float = 1e-3, atol: float = 1e-6) -> str:
    """What differs between a result and what a case expects; "" for nothing."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"{got!r:.60} for a sequence of {len(want)}"
        return "".join(difference(g, w, rtol, atol) for g, w in zip(got, want, strict=True))
    if want is None or got is None:
        return "" if got is want else f"{got!r:.60} for {want!r:.60}"
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return f"shape {a.shape} for {b.shape}"
    if b.dtype.hasobject:
        texts = [[t if isinstance(t, bytes) else str(t).encode() for t in x.flat] for x in (a, b)]
        return "" if texts[0] == texts[1] else f"{texts[0]} for {texts[1]}"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype} for {b.dtype}"
    rtol, atol = max(rtol, _ROUGH.get(b.dtype.name, 0)), max(atol, 1e-6)
    wide = np.complex128 if b.dtype.kind == "c" else np.float64
    try:
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol, atol)
    except AssertionError as error:
        return str(error)
    return ""
