"""What `repr` says of objects that people meet: one line, what a person wants to know."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import weft as wf

X = np.ones((4, 3), np.float32)
W = wf.Variable(np.ones((3, 2), np.float32), name="w")


def schedule() -> float:
    return 0.1


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (W, "<Variable 'w' f32[3,2]: [[1., 1.], [1., 1.], [1., 1.]]>"),
        (wf.train.SGD(0.1), "SGD(learning_rate=0.1)"),
        (wf.train.SGD(schedule), "SGD(learning_rate=schedule)"),
        (wf.train.Momentum(0.1, use_nesterov=True),
         "Momentum(learning_rate=0.1, momentum=0.9, use_nesterov=True)"),
        (wf.train.AdamW(0.1), "AdamW(learning_rate=0.1, beta1=0.9, beta2=0.999, epsilon=1e-08, "
         "weight_decay=0.01)"),
        (wf.train.LBFGS(), "LBFGS(learning_rate=1.0, history=10, line_search=0, armijo=0.0001)"),
        (wf.train.Saver([W], max_to_keep=3), "<wf.train.Saver 'Saver' that keeps 3 checkpoints>"),
        (wf.train.Saver([W], max_to_keep=None),
         "<wf.train.Saver 'Saver' that keeps all checkpoints>"),
        (wf.random.Generator(0, name="r"),
         "<wf.random.Generator with the key in <Variable 'r' u32[2]: [0, 0]>>"),
    ],
)  # fmt: skip
def test_shown(made: Any, shown: str) -> None:
    assert repr(made) == shown


def test_compiled_functions_graphs_and_costs() -> None:
    @wf.compile
    def step(x: Any) -> Any:
        return wf.sum(wf.matmul(x, W))

    assert repr(step) == "<compiled step(x: 'Any') -> 'Any': not called>"
    step(X)
    assert repr(step).endswith(": 1 signature>")
    step(X[:2])
    assert repr(step).endswith(": 2 signatures>")
    assert repr(step.trace(X)) == "<Graph 'step', traced: 1 inputs, 4 ops, 1 results>"
    cost = repr(step.cost(X))
    assert cost.startswith("<Cost of 'step': ")
    assert " us a call, " in cost
    assert " bytes moved, " in cost


def test_sessions() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [3])
        y = x * 2
    session = wf.Session(graph=graph)
    assert repr(session) == "<wf.Session of 'graph': 0 steps compiled>"
    session.run(y, {x: X[0]})
    assert repr(session) == "<wf.Session of 'graph': 1 step compiled>"
    session.close()
    assert repr(session) == "<wf.Session of 'graph': closed>"


def test_summary_of_a_call() -> None:
    f = wf.compile(lambda x: wf.exp(x) * 2)
    pattern = r"1 kernel call(, 1 of them new)?; compiled in \d+\.\d\d s; cpu, .+, 1 thread"
    assert re.fullmatch(pattern, f.summary(X))
    assert re.fullmatch(pattern, f.summary(wf.TensorType(wf.float32, (4, 3))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_EMULATE_GPU", "1")
        g = wf.compile(device="gpu:0")(lambda x: wf.exp(x) * 2)
        assert re.fullmatch(r"1 kernel call; gpu:0", g.summary(X))
