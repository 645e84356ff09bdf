"""The ops `cond`, `while` and `scan`: types, text, verification, meaning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.ir.analysis.verify import verify
from weft.ir.drawing.dot import dot
from weft.ir.dtypes import bool_, float32, int64
from weft.ir.errors import ParseError, ShapeError, TypeRuleError, VerifyError
from weft.ir.graph import Block, Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.ir.types import TensorType, Type, tensor_type
from weft.passes.differential import check_same_meaning
from weft.passes.simplify.cse_dce import dce
from weft.passes.sizes import specialize

F, B, N = tensor_type(float32), tensor_type(bool_), tensor_type(int64)
F2 = tensor_type(float32, 2)


def region(args: list[Type], results: list[int]) -> Block:
    """A region that returns some of its arguments."""
    builder = Builder(args)
    return builder.block([builder.args[i] for i in results])


TEXT = """\
graph @g(%p: bool[], %x: f32[3], %xs: f32[b,3]) -> (f32[3], f32[3], f32[3], f32[b,3]) stage=traced {
  %0 = cond(%p, %x) : f32[3] {
    ^(%a0: f32[3])
    %0 = negative(%a0) : f32[3]
    yield %0
  } {
    ^(%a0: f32[3])
    yield %a0
  }
  %1 = while(%x) {carries=1, limit=5, parallel_iterations=10, gradient_memory=-1, recompute=false} : f32[3] {
    ^(%a0: f32[3])
    %0 = max(%a0) {axes=[0], keepdims=false} : f32[]
    %1 = constant() {value=f32[] 100.0} : f32[]
    %2 = less(%0, %1) : bool[]
    yield %2
  } {
    ^(%a0: f32[3])
    %0 = add(%a0, %a0) : f32[3]
    yield %0
  }
  %2, %3 = scan(%x, %xs) {carries=1, sequences=1, length=b, reverse=true} : f32[3], f32[b,3] {
    ^(%a0: f32[3], %a1: f32[3])
    %0 = add(%a0, %a1) : f32[3]
    yield %0, %0
  }
  return %0, %1, %2, %3
}
"""  # noqa: E501


@pytest.fixture
def graph() -> Graph:
    return parse_graph(TEXT)


def test_text_round_trips_and_verifies(graph: Graph) -> None:
    assert print_graph(graph) == TEXT
    verify(graph)


def test_meaning(graph: Graph) -> None:
    x, xs = np.arange(3, dtype=np.float32), np.ones((4, 3), np.float32)
    no, doubled, last, sums = interpret(graph, [np.array(False), x, xs])
    np.testing.assert_array_equal(no, x)
    np.testing.assert_array_equal(doubled, x * 2**5)  # the limit, before the test gives false
    np.testing.assert_array_equal(last, x + 4)
    np.testing.assert_array_equal(sums, x + np.array([4, 3, 2, 1], np.float32)[:, None])
    yes, doubled, last, sums = interpret(graph, [np.array(True), x * 30, xs[:0]])
    np.testing.assert_array_equal(yes, x * -30)
    np.testing.assert_array_equal(doubled, x * 60)  # the test, before the limit
    np.testing.assert_array_equal(last, x * 30)
    assert sums.shape == (0, 3)


def test_specialising_gives_the_length_its_size(graph: Graph) -> None:
    small = specialize(graph, {"b": 2})
    verify(small)
    (scan,) = [op for op in small.ops if op.name == "scan"]
    assert scan.attrs["length"] == 2
    assert scan.results[1].type == tensor_type(float32, 2, 3)
    inputs = [np.array(True), np.ones(3, np.float32), np.ones((2, 3), np.float32)]
    for a, b in zip(interpret(graph, inputs), interpret(small, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_regions_are_drawn(graph: Graph) -> None:
    text = dot(graph)
    for name, count in (("cond", 2), ("while", 2), ("scan", 1)):
        assert text.count(f"region of {name}") == count


def test_the_differential_check_runs_regions(graph: Graph, tmp_path: Path) -> None:
    check_same_meaning(
        specialize(graph, {"b": 2}), specialize(graph, {"b": 2}), dce, "dce", tmp_path
    )
    other = parse_graph(TEXT.replace("negative", "abs"))
    with pytest.raises(Exception, match="repro"):
        check_same_meaning(graph, other, dce, "dce", tmp_path)


@pytest.mark.parametrize(
    ("types", "then", "orelse", "match"),
    [
        ([F], ([], []), ([], []), "predicate must be a bool"),
        ([], ([], []), ([], []), "predicate must be a bool"),
        ([tensor_type(bool_, 2)], ([], []), ([], []), "predicate must be a bool"),
        ([B, F], ([N], [0]), ([F], [0]), "arguments of region 'then' are"),
        ([B, F], ([F], [0]), ([], []), "arguments of region 'orelse' are"),
        ([B, F, N], ([F, N], [0]), ([F, N], [1]), "region 'orelse' returns"),
        ([B, F, N], ([F, N], [0]), ([F, N], [0, 1]), "region 'orelse' returns"),
    ],
)
def test_cond_checks_types(types: list[Type], then: object, orelse: object, match: str) -> None:
    builder = Builder(types)
    with pytest.raises(TypeRuleError, match=match):
        builder.emit("cond", builder.args, regions=(region(*then), region(*orelse)))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("carries", "test", "body", "match"),
    [
        (3, ([F, B], [1]), ([F, B], [0]), "carries=3"),
        (-1, ([F, B], [1]), ([F, B], []), "carries=-1"),
        (1, ([F], [0]), ([F, B], [0]), "arguments of region 'test'"),
        (1, ([F, B], [0]), ([F, B], [0]), "region 'test' returns"),
        (1, ([F, B], [1, 1]), ([F, B], [0]), "region 'test' returns"),
        (1, ([F, B], [1]), ([F, B], [1]), "region 'body' returns"),
        (2, ([F, B], [1]), ([F, B], [0]), "region 'body' returns"),
    ],
)
def test_while_checks_types(carries: int, test: object, body: object, match: str) -> None:
    builder = Builder([F, B])
    with pytest.raises(TypeRuleError, match=match):
        builder.emit(
            "while",
            builder.args,
            {"carries": carries},
            regions=(region(*test), region(*body)),  # type: ignore[misc]
        )


@pytest.mark.parametrize(
    ("attrs", "args", "match"),
    [
        ((1, 1, 3), [F, F, N], "first axis of 3"),
        ((1, 1, -2), [F, F, N], "length=-2"),
        ((2, 2, 2), [F, F, N], "sequences=2"),
        ((1, 1, 2), [F, F2, N], "arguments of region 'body'"),
        ((1, 2, 2), [F, F, N], "first axis of 2"),
        ((0, 1, 2), [F, F, N], "first axis of 2"),
    ],
)
def test_scan_checks_types(attrs: tuple[int, int, int], args: list[Type], match: str) -> None:
    builder = Builder([F, F2, N])
    given = dict(zip(("carries", "sequences", "length"), attrs, strict=True))
    with pytest.raises((TypeRuleError, ShapeError), match=match):
        builder.emit("scan", builder.args, given, regions=(region(args, [0]),))


def test_scan_checks_its_carries() -> None:
    builder = Builder([F, N])
    attrs = {"carries": 2, "sequences": 0, "length": 2}
    with pytest.raises(TypeRuleError, match="region 'body' carries"):
        builder.emit("scan", builder.args, attrs, regions=(region([F, N], [1, 0]),))


def test_the_text_shows_a_wrong_type() -> None:
    with pytest.raises(ParseError, match="region 'test' returns"):
        parse_graph(TEXT.replace("yield %2\n", "yield %1\n"))
    with pytest.raises(ParseError, match="a size"):
        parse_graph(TEXT.replace("length=b", "length=[2]"))


def test_a_region_cannot_hold_what_is_outside(graph: Graph) -> None:
    builder = Builder([F2])
    inner = Builder([])
    attrs = {"carries": 0, "sequences": 0, "length": 2}
    builder.emit("scan", (), attrs, regions=(inner.block([builder.args[0]]),))
    with pytest.raises(VerifyError, match="outside the region"):
        verify(builder.graph("g", ("x",), ()))


def test_a_scan_without_results_and_one_without_carries() -> None:
    builder = Builder([F2])
    inner = Builder([F])
    double = inner.emit1("add", inner.args[0], inner.args[0])
    attrs = {"carries": 0, "sequences": 1, "length": 2}
    (ys,) = builder.emit("scan", builder.args, attrs, regions=(inner.block([double]),))
    builder.emit("scan", builder.args, attrs, regions=(Builder([F]).block([]),))
    graph = builder.graph("g", ("x",), [ys])
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    np.testing.assert_array_equal(interpret(graph, [np.float32([1, 2])])[0], [2, 4])


def test_rows_of_strings_and_scalars_are_stacked() -> None:
    text = """\
graph @g(%s: string[2], %t: string[]) -> (string[], string[2]) stage=traced {
  %0, %1 = scan(%t, %s) {carries=1, sequences=1, length=2, reverse=false} : string[], string[2] {
    ^(%a0: string[], %a1: string[])
    yield %a1, %a0
  }
  return %0, %1
}
"""
    graph = parse_graph(text)
    last, before = interpret(graph, [np.array([b"a", b"b"], object), np.array(b"t", object)])
    assert last.item() == b"b"
    assert before.tolist() == [b"t", b"a"]


def test_types_of_results_are_checked() -> None:
    assert isinstance(F2, TensorType)
    wrong = TEXT.replace("reverse=true} : f32[3], f32[b,3]", "reverse=true} : f32[3], f32[3]")
    with pytest.raises(ParseError, match="the type is given as"):
        parse_graph(wrong)
