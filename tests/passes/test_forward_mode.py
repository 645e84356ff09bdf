"""Forward mode against reverse mode over the table of gradients: <gradient, t> is the tangent of a
loss along t. Both come from one table, so `test_transforms` has finite differences, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gradient_cases import CASES, HERE, Case, weighted_loss
from shares import every

from weft.ir.analysis.verify import verify
from weft.ir.dtypes import as_dtype, float32
from weft.ir.errors import GradientError
from weft.ir.graph import Graph, Value
from weft.ir.interpreter.evaluate import interpret, type_of
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.autodiff.forward_mode import (
    LINEAR,
    MULTILINEAR,
    Dual,
    push_forward,
    tangents_beside,
)
from weft.passes.autodiff.reverse_mode import gradients
from weft.passes.autodiff.table import GRADIENTS

Array = np.ndarray[Any, Any]


def loss_of(case: Case) -> Graph:
    builder = Builder([type_of(x) for x in case.operands])
    made = builder.emit(case.op, builder.args, case.attrs, locations=HERE)
    loss = weighted_loss(builder, made, 1)
    return builder.graph("loss", [f"x{i}" for i in range(len(builder.args))], [loss])


def inexact(xs: Sequence[Array]) -> list[int]:
    return [i for i, x in enumerate(xs) if as_dtype(x.dtype).is_inexact]


def tangent_graph(graph: Graph, moving: Sequence[int], copy: bool) -> Graph:
    """From the arguments and a tangent for each of `moving` to the loss and its tangent."""
    types = [a.type for a in graph.args]
    builder = Builder([*types, *(types[i] for i in moving)])
    tangents: dict[int, Value] = dict(zip(moving, builder.args[len(types) :], strict=True))
    own = builder.args[: len(types)]
    if copy:
        duals = [Dual(a, tangents.get(i)) for i, a in enumerate(own)]
        (made,) = push_forward(builder, graph.block, duals)
        loss, tangent = made.value, made.tangent
    else:
        (loss,) = builder.inline(graph.block, own)
        xs, along = [own[i] for i in moving], [tangents[i] for i in moving]
        (tangent,) = tangents_beside(builder, list(builder.ops), xs, along, [loss])
    assert tangent is not None
    names = [f"x{i}" for i in range(len(builder.args))]
    return builder.graph("tangent", names, [loss, tangent])


@pytest.mark.share(2)
@pytest.mark.parametrize("copy", [True, False], ids=["copied", "in place"])
@pytest.mark.parametrize("case", every(2, CASES), ids=str)
def test_tangents_are_gradients_times_directions(case: Case, copy: bool) -> None:
    graph = loss_of(case)
    moving = inexact(case.operands)
    rng = np.random.default_rng(7)
    along: list[Array] = []
    for i in moving:
        x = case.operands[i]
        t = np.asarray(rng.standard_normal(x.shape) + 1j * rng.standard_normal(x.shape))
        along.append((t if np.iscomplexobj(x) else t.real).astype(x.dtype))
    builder = Builder([a.type for a in graph.args])
    (loss,) = builder.inline(graph.block, builder.args)
    found = gradients(builder, [loss], [builder.args[i] for i in moving])
    there = [k for k, g in enumerate(found) if g is not None]
    names = [f"x{i}" for i in range(len(builder.args))]
    reverse = builder.graph("gradients", names, [g for g in found if g is not None])
    wanted = 0.0
    for k, g in zip(there, interpret(reverse, case.operands), strict=True):
        wanted += float(np.sum(g.real * along[k].real + g.imag * along[k].imag))
    if not there:
        pytest.skip("no gradient leads to an operand")
    forward = tangent_graph(graph, moving, copy)
    verify(forward)
    value, tangent = interpret(forward, [*case.operands, *along])
    np.testing.assert_array_equal(value, interpret(graph, case.operands)[0])
    np.testing.assert_allclose(tangent, wanted, rtol=1e-9, atol=1e-11)


def test_tables_name_ops_with_gradients() -> None:
    assert {*LINEAR, *MULTILINEAR} <= set(GRADIENTS) <= set(OPS)


def test_an_op_without_a_gradient_names_its_line() -> None:
    kind = TensorType(float32, (3,))
    builder = Builder([kind, kind])
    inner = Builder([kind])
    (y,) = inner.emit("nextafter", [inner.args[0], inner.args[0]], locations=HERE)
    block = inner.block([y])
    (made,) = push_forward(builder, block, [Dual(builder.args[0], builder.args[1])])
    assert made.tangent is None  # it is in NO_GRADIENT: a constant to differentiation


def test_a_host_op_is_refused() -> None:
    kind = TensorType(float32, (3,))
    builder, inner = Builder([kind, kind]), Builder([kind])
    attrs = {"function": "weft_test_nothing", "parts": ("f32[3]",), "listed": False}
    (y,) = inner.emit("py_function", [inner.args[0]], attrs, locations=HERE)
    with pytest.raises(GradientError, match=r"has no gradient(.|\n)*model.py:7"):
        push_forward(builder, inner.block([y]), [Dual(builder.args[0], builder.args[1])])
