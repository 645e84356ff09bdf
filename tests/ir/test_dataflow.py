"""What switch, merge and frames mean: small programs, each in many orders, and errors.

The programs are the cases of tests/cases/dataflow.weft, which also holds their canonical text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_cases import read_cases
from paths import CASES

from weft.frontend.tools.main import main
from weft.ir.analysis.deadness import check_dataflow
from weft.ir.analysis.verify import verify
from weft.ir.dtypes import int64
from weft.ir.errors import InternalError, InvalidArgumentError, VerifyError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext

SCHEDULES = (None, *range(12))


@dataclass(frozen=True)
class Run:
    """Inputs, what comes out, and the variables before and after."""

    inputs: tuple[Any, ...]
    results: tuple[Any, ...]
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)


def state(before: int, after: int) -> dict[str, dict[str, int]]:
    """The variable `w`."""
    return {"before": {"w": before}, "after": {"w": after}}


T, F = True, False

#: What the programs do, by the name of the case.
PROGRAMS: dict[str, list[Run]] = {
    "branch": [Run((T, 5), (-5, 1)), Run((F, 5), (10, 0))],
    "dead_values_spread_to_a_merge": [Run((T, 5), (-20,)), Run((F, 5), (5,))],
    "a_merge_of_dead_values_is_dead": [
        Run((F, F, 5), (5, 0)),
        Run((F, T, 5), (5, 0)),
        Run((T, F, 5), (-5, 1)),
        Run((T, T, 5), (5, 1)),
    ],
    "merge_of_three": [
        Run((F, F, 5), (10, 0)),
        Run((F, T, 5), (25, 1)),
        Run((T, T, 5), (5, 2)),
    ],
    "two_switches_by_one_predicate": [Run((T, 5, 3), (2,)), Run((F, 5, 3), (3,))],
    "a_dead_control_operand": [
        Run((T, 5), (5,), **state(1, 5)),
        Run((F, 5), (1,), **state(1, 1)),
    ],
    "exclusive_effects_need_no_order": [
        Run((T, 5), (5,), **state(1, 5)),
        Run((F, 5), (-5,), **state(1, -5)),
    ],
    "a_dead_token_may_be_fetched": [
        Run((T, 5), (None,), **state(1, 5)),
        Run((F, 5), (None,), **state(1, 1)),
    ],
    "handles_are_switched": [
        Run((T,), (3,), {"v": 3, "w": 4}, {"v": 3, "w": 4}),
        Run((F,), (4,), {"v": 3, "w": 4}, {"v": 3, "w": 4}),
    ],
    "loop": [
        Run((0, 3), (0, 3)),
        Run((-1, 3), (0, 3)),
        Run((1, 3), (1, 6)),
        Run((25, 3), (25, 3 << 25)),
    ],
    "values_change_places": [Run((0,), (0,)), Run((1,), (1,)), Run((30,), (832040,))],
    "the_index_of_a_loops_merge": [Run((0,), (0, 0)), Run((7,), (0, 7))],
    "one_iteration_at_a_time": [
        Run((0,), (0,), **state(1, 1)),
        Run((5,), (5,), **state(1, 58)),
    ],
    "effects_in_the_order_of_iterations": [
        Run((0,), (1,), **state(1, 1)),
        Run((5,), (58,), **state(1, 58)),
    ],
    "a_control_edge_that_is_dead_in_some_iterations": [
        Run((0,), (100,), **state(100, 100)),
        Run((1,), (100,), **state(100, 100)),
        Run((6,), (109,), **state(100, 109)),
    ],
    "nested_frames": [
        Run((0, 5), (0,)),
        Run((5, 0), (0,)),
        Run((4, 3), (18,)),
        Run((7, 7), (441,)),
    ],
    "a_loop_that_is_entered_dead": [Run((T, 9), (0, 1)), Run((F, 9), (9, 0))],
    "a_branch_in_a_loop": [Run((1,), (1, 0)), Run((6,), (1, 8)), Run((27,), (1, 111))],
    "an_exit_in_the_middle_of_a_loop": [
        Run((6, 4), (6, 16), **state(-1, 16)),
        Run((6, 0), (6, 0), **state(-1, 0)),
        Run((6, 6), (6, -1), **state(-1, -1)),
        Run((0, 0), (0, -1), **state(-1, -1)),
    ],
    "a_frame_without_a_loop": [Run((2, 3), (5,))],
    "one_loop_after_another": [Run((0,), (0,)), Run((7,), (7,)), Run((8,), (15,))],
    "a_structured_op_in_a_frame": [
        Run((0, np.float32([1, 2])), (np.float32([1, 2]),)),
        Run((2, np.float32([1, 2])), (np.float32([64, 128]),)),
    ],
    "an_invariant_that_comes_late": [Run((0, 1), (0,)), Run((20, 1), (-80,))],
    "a_next_iteration_that_stays_dead": [
        Run((0, 5), (5,), **state(1, 5)),
        Run((3, 5), (1,), **state(1, 1)),
    ],
}


def sources() -> dict[str, str]:
    """The text of each program."""
    text = (CASES / "dataflow.weft").read_text("utf-8")
    return {c.name: c.source for c in read_cases(text)[1] if "// error" not in c.expected}


SOURCES = sources()


def test_every_program_runs() -> None:
    assert set(SOURCES) == set(PROGRAMS)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    graph = parse_graph(SOURCES[name])
    verify(graph)
    check_dataflow(graph)
    assert parse_graph(print_graph(graph)) == graph
    for run in PROGRAMS[name]:
        for schedule in SCHEDULES:
            check(graph, run, schedule)


def check(graph: Graph, run: Run, schedule: int | None) -> None:
    held = DictState({k: np.array(v) for k, v in run.before.items()})
    found = interpret(graph, [np.asarray(x) for x in run.inputs], held, schedule=schedule)
    for got, wanted in zip(found, run.results, strict=True):
        assert (got is None) == (wanted is None)
        np.testing.assert_array_equal(got, wanted)
    assert {k: int(v) for k, v in held.values.items()} == run.after


@pytest.mark.share(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_executor_does_the_same(name: str) -> None:
    graph = parse_graph(SOURCES[name])
    for run in PROGRAMS[name]:
        held = {k: VariableState(k, int64, (), np.array(v)) for k, v in run.before.items()}
        inputs = [np.asarray(x) for x in run.inputs]
        found = DataflowStep(graph, held).run(inputs, RunContext(timeout=10))
        for got, wanted in zip(found, run.results, strict=True):
            assert (got is None) == (wanted is None)
            np.testing.assert_array_equal(got, wanted)
        assert {k: int(v.read()) for k, v in held.items()} == run.after


# -------------------------------------------------------------------------------- at run time

HEAD = "graph @g(%p: bool[], %x: i64[], %z: i64[]) -> (i64[]) stage=dataflow {\n"


def run_broken(body: str) -> None:
    interpret(parse_graph(HEAD + body + "}\n"), [np.array(True), np.array(1), np.array(2)])


def test_two_live_operands_of_a_merge() -> None:
    text = """
      %n = logical_not(%p) : bool[] loc("m.py":1:1)
      %m = logical_not(%n) : bool[] loc("m.py":1:2)
      %f, %t = switch(%x, %p) : i64[], i64[] loc("m.py":2:1)
      %g, %u = switch(%z, %m) : i64[], i64[] loc("m.py":3:1)
      %y, %i = merge(%t, %u) : i64[], i32[] loc("m.py":4:1)
      %o, %j = merge(%y, %f) : i64[], i32[] loc("m.py":5:1)
      return %o
    """
    wanted = r"op 'merge' has two live operands: 0, %3 of op 'switch' at m.py:2:1, and 1, %5 of"
    with pytest.raises(InvalidArgumentError, match=wanted) as caught:
        run_broken(text)
    assert caught.value.locations[0].line == 4


def test_two_values_of_an_exit() -> None:
    text = """
      %one = constant() {value=i64[] 1} : i64[]
      %e = enter(%x) {frame="f"} : i64[]
      %s = enter(%one) {frame="f", constant=true} : i64[]
      %n = enter(%z) {frame="f", constant=true} : i64[]
      %i, %i_ = merge(%e) {loop=true} : i64[], i32[]
      %q = less(%i, %n) : bool[]
      %f, %t = switch(%i, %q) : i64[], i64[]
      %j = add(%t, %s) : i64[]
      %k = next_iteration(%j, %i) : token
      %y = exit(%i) : i64[] loc("m.py":7:1)
      return %y
    """
    with pytest.raises(InvalidArgumentError, match="a second value in iteration 1, after that of"):
        run_broken(text)


def test_a_dead_result() -> None:
    text = """
      %f, %t = switch(%x, %p) : i64[], i64[]
      return %f
    """
    with pytest.raises(InvalidArgumentError, match="result 0, %0 of op 'switch', is dead"):
        run_broken(text)
    check_dataflow(parse_graph(HEAD + text + "}\n"))  # it may have a value
    text = """
      %f, %t = switch(%x, %p) : i64[], i64[]
      %n, %y = switch(%f, %p) : i64[], i64[]
      return %y
    """
    with pytest.raises(InvalidArgumentError, match=r"result 0, %3 .*, is dead in every run"):
        check_dataflow(parse_graph(HEAD + text + "}\n"))


def test_what_does_not_verify_does_not_run() -> None:
    text = """
      %e = enter(%x) {frame="f"} : i64[]
      %y = add(%e, %z) : i64[]
      %o = exit(%y) : i64[]
      return %o
    """
    with pytest.raises(InternalError, match="mixes frames"):
        run_broken(text)
    with pytest.raises(VerifyError, match="mixes frames"):
        verify(parse_graph(HEAD + text + "}\n"))
    with pytest.raises(InvalidArgumentError, match="mixes frames"):
        check_dataflow(parse_graph(HEAD + text + "}\n"))


# -------------------------------------------------------------------------------- programs


@pytest.mark.parametrize("options", [[], ["--compiled"]])
def test_weft_run(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The interpreter, and with --compiled the executor."""
    (tmp_path / "loop.weft").write_text(SOURCES["loop"])
    for name, value in (("n", 5), ("x", 3)):
        np.save(tmp_path / f"{name}.npy", np.array(value))
    feeds = [f"--feed={name}={tmp_path}/{name}.npy" for name in ("n", "x")]
    assert main(["run", str(tmp_path / "loop.weft"), *feeds, *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed == "result 0: i64[] 5 result 1: i64[] 96"


def test_weft_opt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the standard pipeline: what is fused is lowered as it is."""
    file = tmp_path / "cond.weft"
    file.write_text("""graph @g(%p: bool[], %x: f32[2]) -> (f32[2]) stage=traced {
      %0 = cond(%p, %x) : f32[2] {
        ^(%a0: f32[2])
        %0 = sin(%a0) : f32[2]
        yield %0
      } {
        ^(%a0: f32[2])
        yield %a0
      }
      return %0
    }""")
    assert main(["opt", str(file), "--passes=standard,lower_control_flow"]) == 0
    graph = parse_graph(capsys.readouterr().out)
    assert [op.name for op in graph.ops] == ["switch", "fused", "merge"]
    verify(graph)
    assert main(["opt", str(file), "--passes=lower_control_flow,standard"]) == 2
    assert "run it before lower_control_flow" in capsys.readouterr().err
