"""The manager: reports, dumps, logs, and what WEFT_VERIFY finds in passes that are wrong."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from weft.ir.errors import PassError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.spec import ConstArray
from weft.ir.text.parser import parse_graph
from weft.passes import manager
from weft.passes.differential import difference
from weft.passes.manager import PassOptions, PassReport, pass_name, run_passes
from weft.passes.pipelines import PASSES, STANDARD
from weft.passes.rewriting.rewrite import rewrite
from weft.passes.simplify.cse_dce import cse, dce

LOGGER = re.compile(r'getLogger\("weft\.(\w+)"\)')
TEXT = """
graph @step(%x: f32[b,4], %y: f32[b,4], %i: i64[3]) -> (f32[b], f32[3,4]) stage=traced {
  %0 = exp(%x) : f32[b,4] loc("m.py":1:1)
  %1 = exp(%x) : f32[b,4] loc("m.py":2:1)
  %2 = multiply(%0, %1) : f32[b,4] loc("m.py":3:1)
  %3 = subtract(%2, %y) : f32[b,4] loc("m.py":4:1)
  %4 = sum(%3) {axes=[1]} : f32[b] loc("m.py":5:1)
  %5 = take(%y, %i) {axis=0} : f32[3,4] loc("m.py":6:1)
  return %4, %5
}
"""


@pytest.fixture
def graph() -> Graph:
    return parse_graph(TEXT)


@pytest.fixture
def passes_log() -> Iterator[logging.Logger]:
    """The logger `weft.passes`, put back as it was."""
    logger = logging.getLogger("weft.passes")
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers, logger.level = handlers, level


def swap_subtract(graph: Graph) -> Graph:
    """A wrong pass: a - b becomes b - a."""
    return rewrite(
        graph,
        lambda b, op: (
            b.emit("subtract", op.operands[::-1], locations=op.locations)
            if op.name == "subtract"
            else None
        ),
    )


def lose_locations(graph: Graph) -> Graph:
    """A wrong pass: multiplications forget where they come from."""

    def forget(builder: Builder, op: Operation) -> Sequence[Value] | None:
        return builder.emit(op.name, op.operands, locations=()) if op.name == "multiply" else None

    return rewrite(graph, forget)


def test_reports(graph: Graph) -> None:
    new, reports = run_passes(graph, [cse, dce], options=PassOptions())
    assert [r.name for r in reports] == ["traced", "cse", "dce"]
    assert [(r.ops_before, r.ops_after) for r in reports] == [(6, 6), (6, 5), (5, 5)]
    assert [r.changed for r in reports] == [False, True, False]
    assert reports[-1].graph is new
    assert isinstance(reports[0], PassReport)
    assert (reports[0].kernels, reports[1].kernels) == (6, 5)
    assert reports[1].bytes is reports[1].peak_bytes is None  # symbolic
    assert all(r.seconds >= 0 for r in reports)


def test_passes_by_name_are_those_of_the_pipeline() -> None:
    assert set(STANDARD) <= set(PASSES.values())
    assert all(pass_name(run) == name for name, run in PASSES.items())


def test_dump_writes_what_changed(graph: Graph, tmp_path: Path) -> None:
    options = PassOptions(dump=tmp_path)
    run_passes(graph, [dce, cse, dce], options=options)
    assert [p.name for p in sorted((tmp_path / "step").iterdir())] == [
        "00-traced.weft",
        "02-cse.weft",
    ]
    assert parse_graph((tmp_path / "step/00-traced.weft").read_text()) == graph
    assert parse_graph((tmp_path / "step/02-cse.weft").read_text()) == cse(graph)
    run_passes(graph, [cse], options=options)  # another compilation of the same name
    assert {p.name for p in (tmp_path / "step.2").iterdir()} == {"00-traced.weft", "01-cse.weft"}


def test_options_from_the_environment(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes_log: logging.Logger
) -> None:
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    monkeypatch.setenv("WEFT_VERIFY", "run")
    monkeypatch.setenv("WEFT_LOG", "compile, passes")
    expected = PassOptions("run", tmp_path, frozenset({"compile", "passes"}))
    assert PassOptions.from_environment() == expected
    run_passes(graph, [cse])
    assert (tmp_path / "step" / "01-cse.weft").exists()
    monkeypatch.setenv("WEFT_VERIFY", "yes")
    with pytest.raises(PassError, match=r"WEFT_VERIFY=yes(?s:.*)'run' or 'native'"):
        run_passes(graph, [cse])


def test_who_is_not_asked_any_more_logs_no_more(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, passes_log: logging.Logger,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    level = passes_log.level
    for topics, logs in (("passes", True), ("compile", False), ("passes,run", True), ("", False)):
        monkeypatch.setenv("WEFT_LOG", topics)
        run_passes(graph, [cse])
        assert ("weft.passes: " in capsys.readouterr().err) is logs
    assert passes_log.level == level


def test_passes_that_run_again_for_people_leave_the_log_as_it_is(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, passes_log: logging.Logger,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("WEFT_LOG", "passes")
    run_passes(graph, [cse])
    run_passes(graph, [cse], options=PassOptions())
    capsys.readouterr()
    passes_log.debug("still here")
    assert "still here" in capsys.readouterr().err


def test_unknown_log_topics_are_refused(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> None:
    monkeypatch.setenv("WEFT_LOG", "compile,pases")
    with pytest.raises(PassError, match=r"the topic 'pases'.*did you mean 'passes'") as caught:
        run_passes(graph, [cse])
    topics = "checkpoint, cluster, comm, compile, data, passes, place, resources, run, serving, "
    topics += "summary, train, transfers"
    assert caught.value.hint == f"the topics are: {topics} (several with commas)"
    root = Path(manager.__file__).parents[1]
    made = {m for p in root.rglob("*.py") for m in LOGGER.findall(p.read_text(encoding="utf-8"))}
    assert made == set(manager.TOPICS)


def test_a_dump_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("WEFT_DUMP", str(blocked))
    with pytest.raises(PassError, match=r"WEFT_DUMP: .*cannot be written") as caught:
        run_passes(graph, [cse])
    assert str(blocked) in caught.value.what
    assert "WEFT_DUMP" in str(caught.value.hint)
    gone = PassOptions(dump=tmp_path / "there").for_step("step")
    shutil.rmtree(tmp_path / "there")
    with pytest.raises(PassError, match="cannot be written"):
        run_passes(graph, [cse], options=gone)


def test_log(graph: Graph, capsys: pytest.CaptureFixture[str], passes_log: logging.Logger) -> None:
    options = PassOptions(log=frozenset({"passes"}))
    run_passes(graph, [cse, cse], options=options)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ms, ")[1] for line in lines] == ["6 -> 5 ops", "5 -> 5 ops, unchanged"]
    assert lines[0].startswith("weft weft.passes: step: cse: ")


def test_the_log_goes_where_stderr_is_now(graph: Graph, passes_log: logging.Logger) -> None:
    options = PassOptions(log=frozenset({"passes"}))
    first, second = io.StringIO(), io.StringIO()
    for target in (first, second):
        with contextlib.redirect_stderr(target):
            run_passes(graph, [cse], options=options)
    assert [t.getvalue().count("6 -> 5 ops") for t in (first, second)] == [1, 1]


def test_verify_ir_names_the_pass_that_broke_the_graph(graph: Graph) -> None:
    run_passes(graph, [lose_locations], options=PassOptions())  # unnoticed
    with pytest.raises(PassError, match=r"pass 'lose_locations' broke graph 'step'"):
        run_passes(graph, [cse, lose_locations], options=PassOptions(verify="ir"))


def test_verify_run_names_the_pass_and_writes_a_small_repro(graph: Graph, tmp_path: Path) -> None:
    options = PassOptions(verify="run", dump=tmp_path)
    with pytest.raises(PassError, match=r"'swap_subtract' changes what graph 'step'") as caught:
        run_passes(graph, [cse, swap_subtract, dce], options=options)
    assert caught.value.locations[0].line == 4
    (file,) = tmp_path.glob("repro-*.weft")
    assert str(file) in str(caught.value)
    text = file.read_text()
    assert text.startswith("// pass 'swap_subtract' changes what this graph computes: result 0 at")
    small = parse_graph(text)
    assert [op.name for op in small.ops] == ["subtract"]
    assert [str(a.type) for a in small.args] == ["f32[b,4]", "f32[b,4]"]
    assert difference(small, swap_subtract(small), 0)
    assert "// x0 = [[" in text


def test_verify_run_finds_a_wrong_state(tmp_path: Path) -> None:
    graph = parse_graph("""
    graph @g(%x: f32[2]) -> () stage=traced {
      %v = variable() {name="v", dtype=f32, shape=[2]} : ref<f32[2]>
      %a = exp(%x) : f32[2]
      %b = subtract(%a, %x) : f32[2]
      %t = assign(%v, %b) : token
      return
    }""")
    options = PassOptions(verify="run", dump=tmp_path)
    with pytest.raises(PassError, match=r"'swap_subtract' changes .*variable 'v'(?s:.*)repro-"):
        run_passes(graph, [swap_subtract], options=options)


def test_verify_run_finds_a_pass_that_makes_a_graph_fail(tmp_path: Path) -> None:
    def spoil_index(graph: Graph) -> Graph:
        far = ConstArray(np.array([0, 1, 99]))
        return rewrite(
            graph,
            lambda b, op: (
                b.emit("take", [op.operands[0], b.emit1("constant", value=far)], {"axis": 0})
                if op.name == "take" and not _is_constant(op)
                else None
            ),
        )

    graph = parse_graph("""
    graph @g(%x: f32[4], %i: i64[3]) -> (f32[3]) stage=traced {
      %0 = take(%x, %i) {axis=0} : f32[3]
      return %0
    }""")
    with pytest.raises(PassError, match=r"it fails: (?s:.*)out of bounds"):
        run_passes(graph, [spoil_index], options=PassOptions(verify="run", dump=tmp_path))


def _is_constant(op: Operation) -> bool:
    made_by = op.operands[1].op
    return made_by is not None and made_by.name == "constant"


def test_a_graph_that_always_fails_is_said_to_be_uncompared(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    graph = parse_graph("""
    graph @g(%x: f32[4]) -> (f32[]) stage=traced {
      %i = constant() {value=i64[] 9} : i64[]
      %j = constant() {value=i64[] 9} : i64[]
      %0 = take(%x, %j) {axis=0} : f32[]
      return %0
    }""")
    run_passes(graph, [cse], options=PassOptions(verify="run", dump=tmp_path))
    assert "g: not compared, it fails on all random inputs" in caplog.text


def test_the_standard_pipeline_passes_its_own_verification(graph: Graph, tmp_path: Path) -> None:
    new, reports = run_passes(graph, STANDARD, options=PassOptions("run", tmp_path))
    assert new.stage == "fused"
    assert len(reports) == len(STANDARD) + 1
    assert not list(tmp_path.glob("repro-*"))
