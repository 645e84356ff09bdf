"""Kernels of a part as a task sends them to a session."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.text.parser import parse_graph
from weft.runtime.compile_step import compile_step
from weft.runtime.step_kernels import StepKernels, list_kernels, pack_kernels, unpack_kernels

TEXT = """
graph @g(%x: f32[8, 8]) -> (f32[8, 8]) stage=traced {
  %a = exp(%x) : f32[8, 8] loc("model.py":3:0)
  %b = matmul(%a, %x) : f32[8, 8] loc("model.py":4:0)
  %c = negative(%b) : f32[8, 8] loc("model.py":5:0)
  return %c
}
"""


def listed() -> StepKernels:
    return list_kernels(compile_step(parse_graph(TEXT), {}), "/job:ps/task:0/cpu:0", "the part")


def test_what_is_packed_comes_out() -> None:
    found = listed()
    again = unpack_kernels(pack_kernels(replace(found, missing=["a line"])))
    assert again.missing == ["a line"]
    assert len(again.kernels) == len(found.kernels) >= 2
    for one, other in zip(again.kernels, found.kernels, strict=True):
        assert one.row() == other.row()
        assert one.op is not None
        assert other.op is not None
        assert (one.op.name, one.op.locations) == (other.op.name, other.op.locations)
    assert unpack_kernels(pack_kernels(StepKernels())) == StepKernels([], [])


def packed(data: Any) -> Any:
    return np.frombuffer(zlib.compress(json.dumps(data).encode()), np.uint8)


def test_what_is_damaged_is_an_error() -> None:
    whole = pack_kernels(listed())
    plan: dict[str, Any] = json.loads(zlib.decompress(whole.tobytes()))["plans"][0]
    bad = [
        whole[:20], np.zeros(9, np.uint8), packed([]), packed({"plans": [], "missing": 5}),
        packed({"plans": [{**plan, "graph": "graph"}], "missing": []}),
        packed({"plans": [{**plan, "kernels": [{}]}], "missing": []}),
        packed({"plans": [{**plan, "kernels": [{**plan["kernels"][0], "op": 99}]}], "missing": []}),
    ]  # fmt: skip
    for one in bad:
        with pytest.raises(wf.errors.InvalidArgumentError, match="kernels that are not well"):
            unpack_kernels(one)


def test_few_have_all_of_their_code() -> None:
    part = compile_step(parse_graph(TEXT), {})
    first, *others = list_kernels(part, "", "the part", 1).kernels
    assert "assembly" in first.code
    assert others
    assert all("assembly" not in kernel.code for kernel in others)
