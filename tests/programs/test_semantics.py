"""The programs of `semantic_programs`, `_loops` and `_gradients`, run in every way there is.

The interpreter on the structured form is what they mean; it agrees with the interpreter on the
lowered form in several orders, with native code where that can hold the program, and with the
dataflow executor that lowers all branches and loops or only what it must.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from golden_cases import read_cases
from paths import CASES
from semantic_gradients import PROGRAMS as GRADIENTS
from semantic_loops import PROGRAMS as LOOPS
from semantic_programs import PROGRAMS as BRANCHES
from semantic_programs import Case

import weft as wf
from weft.frontend.core import pytree
from weft.frontend.core.function_trace import BoundState
from weft.frontend.core.trace import Effect
from weft.frontend.session.step import step_graph
from weft.ir.analysis.frames import is_dataflow
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.text.printer import print_graph
from weft.ir.types import TensorType
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.runtime.dataflow.executor import executor_op
from weft.runtime.dataflow.host_dispatch import HostObjects

PROGRAMS = {**BRANCHES, **LOOPS, **GRADIENTS}
FILE = CASES / "semantics.weft"
WAYS = ("structured", "lowered", "any order", "native", "auto", "dataflow")


@dataclass(frozen=True)
class Built:
    """A program, the graph that holds it, and its step as the session makes it."""

    case: Case
    graph: wf.Graph
    step: Graph
    arrays: list[Any]


def build(name: str) -> Built:
    graph = wf.Graph(name)
    with graph.as_default():
        case = PROGRAMS[name]()
    trace = graph._trace
    values = [leaf.value if isinstance(leaf, Effect) else leaf._value for leaf in leaves(case)]
    results = [v for v in values if isinstance(v.type, TensorType)]
    effects = [v for v in values if not isinstance(v.type, TensorType)]
    fed = {t._value: np.asarray(x, t.dtype.numpy) for t, x in case.feed.items()}
    step = step_graph(trace, results, effects, [(v, a.shape) for v, a in fed.items()])
    step = step.at_stage("dataflow") if is_dataflow(step.block) else step
    return Built(case, graph, step, list(fed.values()))


def leaves(case: Case) -> list[Any]:
    return pytree.flatten(case.fetch)[0]


def run(built: Built, way: str) -> Sequence[Any]:
    """The values of the tensors fetched."""
    case, graph = built.case, built.graph
    if way in ("native", "auto", "dataflow"):
        if way == "native" and executor_op(built.step) is not None:
            pytest.skip("no native plan holds it")
        with wf.Session(graph=graph, control_flow=way) as session:
            options = wf.RunOptions(timeout=20)
            found = session.run(leaves(case), dict(case.feed), options=options)
        return [x for x in found if x is not None]
    verify(built.step)
    host = HostObjects(graph.resources, timeout=2.0)
    state = BoundState({name: v.state for name, v in graph._trace.variables.items()})
    if way == "structured":
        return interpret(built.step, built.arrays, state, host=host)
    lowered = lower_control_flow(built.step)
    verify(lowered)
    schedule = None if way == "lowered" else 11
    return interpret(lowered, built.arrays, state, host=host, schedule=schedule)


@pytest.mark.share(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, way: str) -> None:
    built = build(name)
    case = built.case
    if case.error is not None:
        kind, message = case.error
        with pytest.raises(wf.errors.WeftError) as caught:
            run(built, way)
        text = str(caught.value)
        static = isinstance(caught.value, wf.errors.VerifyError)  # the interpreter is asked first
        assert static or isinstance(caught.value, getattr(wf.errors, kind)), text
        assert static or re.search(message, text), text
    else:
        found = run(built, way)
        for i, (a, b) in enumerate(zip(found, case.want, strict=True)):
            np.testing.assert_allclose(a, b, rtol=2e-6, err_msg=f"result {i}")
    for q, elements in case.queues.items():
        assert [float(x) for (x,) in q._queue._elements] == list(elements), q.name
    for v, value in case.variables.items():
        np.testing.assert_allclose(v.state.read(), value, rtol=2e-6)
    assert case.seen[0] == case.seen[1]


def test_there_are_fifty() -> None:
    assert len(PROGRAMS) >= 50
    assert len(PROGRAMS) == len(BRANCHES) + len(LOOPS) + len(GRADIENTS)


def golden() -> str:
    """What the golden file has to be, but for the outputs, which `test_cases` checks."""
    parts = ["// The programs of tests/programs/test_semantics.py, which writes them here.\n"]
    for name in PROGRAMS:
        step = build(name).step
        head = f"// case: {name}\n// passes: lower_control_flow\n"
        bare = print_graph(step, locations=False)
        try:
            verify(step)
            lowered = print_graph(lower_control_flow(step), locations=False)
        except wf.errors.WeftError:
            continue  # refused, as the program says
        parts.append(f"{head}{bare}// ----\n{lowered}")
    return "\n".join(parts)


def test_texts(update: bool) -> None:
    """Each program as text, before and after lowering."""
    text = golden()
    if update:
        FILE.write_text(text, encoding="utf-8")
    wanted = {c.name: (c.source, c.expected) for c in read_cases(FILE.read_text("utf-8"))[1]}
    found = {c.name: (c.source, c.expected) for c in read_cases(text)[1]}
    assert found == wanted, "pytest --update rewrites tests/cases/semantics.weft"
