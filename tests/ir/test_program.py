"""Programs: the parts of a cut graph as one text that parses, is verified, and means the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed_programs import place_at_random
from structured_programs import programs

from weft.ir.analysis.verify import verify_program
from weft.ir.errors import InvalidArgumentError, ParseError, PassError, VerifyError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_program
from weft.ir.program import Program
from weft.ir.text.parser import parse_graph, parse_program
from weft.ir.text.printer import print_graph, print_program
from weft.ir.text.views import diff_programs
from weft.passes.manager import BoundPass, PassOptions, ProgramPass, run_pipeline
from weft.passes.partition.partition import partition, partition_pass
from weft.passes.simplify.cse_dce import dce

TWO = """graph @g(%x: f32[2]) -> (f32[2], f32[2]) stage=traced {
  %0 = exp(%x) : f32[2] device("/job:ps/task:0/cpu:0")
  %1 = sin(%0) : f32[2] device("/job:worker/task:0/cpu:0")
  return %1, %0
}
"""


@given(programs(), st.integers(0, 2**16), st.integers(1, 3))
def test_parts_print_as_one_text_that_parses(program: Any, seed: int, count: int) -> None:
    made = partition(place_at_random(program.graph, seed, count, stay=(seed % 4) / 4))
    verify_program(made)
    again = parse_program(print_program(made))
    assert again == made
    assert again.edges == made.edges
    assert not diff_programs(made, again, locations=True)


def test_one_graph_prints_as_it_is() -> None:
    graph = parse_graph(TWO)
    program = parse_program(TWO)
    assert program == Program.of(graph)
    assert program.is_whole
    assert str(program) == print_graph(graph)
    x = np.ones(2, np.float32)
    for a, b in zip(interpret_program(program, [x]), interpret(graph, [x]), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(InvalidArgumentError, match="a program of 2 parts is not one graph"):
        _ = partition(graph).graph


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("feeds [0]", "feeds []", "says 0 feeds and 1 fetches, but its graph has 1"),
        ("feeds [0]", "feeds 0", "expected '\\['"),
        ('"/job:ps/task:0/cpu:0" feeds', '"/jb" feeds', "device"),
        ('part "/job:worker', 'graph "/job:worker', "after the end of the graph"),
    ],
)
def test_what_does_not_parse(old: str, new: str, said: str) -> None:
    text = print_program(partition(parse_graph(TWO)))
    assert old in text
    with pytest.raises(ParseError, match=said):
        parse_program(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("recv() {key=0", "recv() {key=7", "nobody receives what is sent by the key 0"),
        (
            'send(%0) {key=0, tensor="exp_0"',
            'send(%0) {key=0, tensor="y"',
            "two values of 'tensor'",
        ),
        ("fetches [0]", "fetches [1]", "not each one once"),
        ("fetches [0]", "fetches [5]", "not each one once"),
        ("shape=[2], live=0, depth=1} : f32[2]", "shape=[3], live=0, depth=1} : f32[3]", "as f32"),
        ('part "/job:worker', 'part "/job:other', "says /job:worker"),
        ('part "/job:worker/task:0/cpu:0"', 'part "/job:ps/task:0/cpu:0"', "2 parts are on"),
    ],
)
def test_parts_that_do_not_fit(old: str, new: str, said: str) -> None:
    text = print_program(partition(parse_graph(TWO)))
    assert old in text
    changed = text.replace(old, new, 1)
    if "f32[3]" in new:
        changed = changed.replace("sin(%0) : f32[2]", "sin(%0) : f32[3]")
        changed = changed.replace("() -> (f32[2])", "() -> (f32[3])")
    with pytest.raises(VerifyError, match=said):
        verify_program(parse_program(changed))


def test_passes_over_parts() -> None:
    options = PassOptions(verify="run")
    graph = parse_graph(TWO)
    program, reports = run_pipeline(Program.of(graph), [partition_pass(), dce], options=options)
    assert [r.name for r in reports] == ["traced", "partition", "dce"]
    assert len(program.parts) == 2
    assert not reports[2].changed
    assert reports[1].ops_after == 4
    assert reports[1].kernels > 0
    with pytest.raises(PassError, match="has 2 parts already"):
        run_pipeline(program, [partition_pass()], options=options)


def test_what_breaks_a_program_is_found() -> None:
    def without_messages(program: Program) -> Program:
        return Program(program.parts[1:])

    def other_sine(program: Program) -> Program:
        return parse_program(str(program).replace("sin(", "cos("))

    options, cut = PassOptions(verify="run"), partition_pass()
    whole = Program.of(parse_graph(TWO))
    with pytest.raises(PassError, match="'lose' broke graph 'g_ps"):
        run_pipeline(whole, [cut, ProgramPass("lose", without_messages)], options=options)
    with pytest.raises(PassError, match=r"'change' changes what graph .* computes: result 0"):
        run_pipeline(whole, [cut, ProgramPass("change", other_sine)], options=options)
    meant = ProgramPass("change", other_sine, changes_meaning=True)
    run_pipeline(whole, [cut, meant], options=options)


def test_a_bound_pass_has_its_own_name() -> None:
    same = BoundPass("same", lambda graph: graph)
    _, reports = run_pipeline(Program.of(parse_graph(TWO)), [same], options=PassOptions())
    assert [(r.name, r.changed) for r in reports] == [("traced", False), ("same", False)]
