"""ONNX's own models with one thing wrong: an attribute, an input, an operator, a value, an opset.
Each runs, or is an error of weft's."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx_cases
import pytest

import weft as wf

NUMBERS = [0, 1, -1, 2, 7, -9, 255, 10**10, 2**31, -(2**31), 2**63 - 1, -(2**63)]


def change(rng: random.Random, model: onnx.ModelProto, inputs: list[Any], kinds: list[str]) -> None:
    node = rng.choice(model.graph.node)
    what = rng.choice(["attribute", "swap", "cut", "operator", "value", "opset"])
    if what == "attribute" and node.attribute:
        attribute = rng.choice(node.attribute)
        if attribute.type == attribute.INT:
            attribute.i = rng.choice(NUMBERS)
        elif attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
        elif attribute.type == attribute.FLOAT:
            attribute.f = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30])
        elif attribute.type == attribute.STRING:
            attribute.s = rng.choice([b"", b"none", b"reflect"])
        else:
            del node.attribute[:]
    elif what == "swap" and node.input:
        names = ["", *(i.name for i in model.graph.input)]
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif what == "cut" and node.input:
        del node.input[rng.randrange(len(node.input)) :]
    elif what == "operator":
        node.op_type = rng.choice(kinds)
    elif what == "value":
        numbers = [
            x for x in inputs if isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.size
        ]
        if numbers:
            x = rng.choice(numbers)
            limits = np.iinfo(x.dtype)
            at, value = rng.randrange(x.size), rng.choice(NUMBERS)
            x.flat[at] = max(min(value, limits.max), limits.min)
    elif what == "opset":
        model.opset_import[0].version = rng.choice([1, 5, 7, 9, 11, 13, 18, 20, 23])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_one_change(seed: int) -> None:
    rng = random.Random(seed)
    cases = onnx_cases.node_cases()
    kinds = sorted({n.op_type for c in cases for n in c.model.graph.node})
    ran = 0
    for _ in range(1500):
        case = rng.choice(cases)
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        inputs = [onnx_cases.as_held(x) for x in case.data_sets[0][0]]
        inputs = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
        change(rng, model, inputs, kinds)
        with suppress(wf.errors.WeftError):
            wf.onnx.load(model).apply({}, *inputs)
            ran += 1
    assert 500 < ran < 1400
