"""What a training step's updates cost: kernels shared between parameters, passes over memory."""

import re
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.text.parser import parse_graph

OPTIMIZERS: dict[str, tuple[Any, int, int]] = {  # and: kernels, calls besides one per parameter
    "SGD": (wf.train.SGD, 1, 0),
    "Momentum": (wf.train.Momentum, 1, 0),
    "Adagrad": (wf.train.Adagrad, 1, 0),
    "Adadelta": (wf.train.Adadelta, 1, 0),
    "RMSProp": (wf.train.RMSProp, 1, 0),
    "Adam": (wf.train.Adam, 2, 1),  # the bias correction is one kernel for all parameters
    "AdamW": (wf.train.AdamW, 2, 1),
}


def step_of(optimizer: Any, sizes: list[tuple[int, ...]], clip: bool = False) -> tuple[Any, Any]:
    """A compiled update of parameters of these shapes, and the gradients to give it."""
    variables = [wf.Variable(np.ones(s, np.float32)) for s in sizes]
    made = optimizer(0.1)

    @wf.compile
    def step(*gradients: Any) -> None:
        given = list(gradients)
        if clip:
            given, _ = wf.clip_by_global_norm(given, 1.0)
        made.apply_gradients(list(zip(given, variables, strict=True)))

    gradients = [np.full(s, 0.5, np.float32) for s in sizes]
    step(*gradients)
    return step, gradients


@pytest.mark.share(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_parameters_share_their_kernels(name: str) -> None:
    optimizer, kernels, more = OPTIMIZERS[name]
    sizes: list[tuple[int, ...]] = [(n + 2,) for n in range(10)] + [(n + 2, 3) for n in range(10)]
    step, gradients = step_of(optimizer, sizes)
    text = step.explain(*gradients)
    assert len(set(re.findall(r"# (nest-\w+)", text))) == kernels
    assert f"one call runs {20 + more} native kernels" in text
    assert "0 copies" in text


def test_clipping_by_the_global_norm_reads_each_gradient_twice() -> None:
    step, gradients = step_of(wf.train.SGD, [(5,), (4, 3), (7,)], clip=True)
    graph = parse_graph(step.ir(*gradients))
    for argument in graph.args:
        readers = [op for op in graph.ops if argument in op.operands]
        assert [op.name for op in readers] == ["fused", "fused"]
        # once to be summed up, to one number; once for the variable's update
        assert [str(op.results[0].type) for op in readers] == ["f32[]", str(argument.type)]
    kinds = [op.name for op in graph.ops if op.name not in ("variable", "read", "assign")]
    assert kinds == ["fused"] * 7  # three sums, the scale, three updates


def test_one_hot_is_never_in_memory_where_it_is_used_element_by_element() -> None:
    @wf.compile
    def loss(logits: Any, labels: Any) -> Any:
        return wf.sum(wf.one_hot(labels, 10, dtype=wf.float32) * logits)

    inputs = np.ones((6, 10), np.float32), np.array([1, 2, 9, 0, 0, 3])
    assert loss(*inputs).numpy() == 6
    graph = parse_graph(loss.ir(*inputs))
    assert [op.name for op in graph.ops] == ["fused"]
    assert [str(v.type) for v in graph.ops[0].operands] == ["i64[6]", "f32[6,10]"]


def test_a_table_that_a_loop_carries_is_changed_in_place() -> None:
    @wf.compile
    def train(table: Any, ids: Any, rows: Any) -> Any:
        def body(held: Any, given: Any) -> Any:
            i, row = given
            return wf.scatter_nd_add(held, i, row), wf.sum(row)

        return wf.scan(body, table * 2.0, (ids, rows))

    table = np.arange(24, dtype=np.float32).reshape(8, 3)
    ids = np.array([[[1], [1]], [[0], [-1]], [[1], [7]]])
    rows = np.ones((3, 2, 3), np.float32)
    got, _ = train(table, ids, rows)
    wanted = table * 2
    for i, r in zip(ids, rows, strict=True):
        np.add.at(wanted, i[:, 0], r)
    assert got.numpy().tolist() == wanted.tolist()
    text = train.explain(table, ids, rows)
    assert "scatter_nd_add_f32" in text
    assert "strided_copy" not in text
