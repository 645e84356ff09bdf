"""`.trace`, `.ir`, `.explain`, `.cost` and own pipelines of compiled functions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.tools.main import main
from weft.ir.dtypes import float32
from weft.ir.errors import InvalidArgumentError, PassError
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse
from weft.passes.simplify.cse_dce import dce

ONES = np.ones(3, np.float32)
ROWS = np.ones((64, 32), np.float32)


@wf.compile(static_argnames=("power",))
def model(x: Any, params: dict[str, Any], power: int = 1) -> Any:
    return wf.sum(wf.exp(x * params["w"]) + params["w"]) ** power


def test_trace_gives_the_graph_without_compiling() -> None:
    graph = model.trace(ONES, {"w": ONES})
    assert graph.arg_names == ("x", "params_w")
    assert [str(a.type) for a in graph.args] == ["f32[3]", "f32[3]"]
    assert graph.stage == "traced"
    same = model.trace(TensorType(float32, (3,)), {"w": TensorType(float32, (3,))})
    assert same is graph


def test_ir_after_a_pass() -> None:
    args = (ONES, {"w": ONES})
    assert "stage=traced" in model.ir(*args, after="traced")
    assert "fused" in model.ir(*args)
    assert "fused" not in model.ir(*args, after="cse")
    assert "loc(test_explain:" in model.ir(*args)
    assert f'file test_explain = "{__file__}"' in model.ir(*args)
    assert "loc(" not in model.ir(*args, loc=False)
    assert "test_explain" not in model.ir(*args, loc=False)
    with pytest.raises(PassError, match="no pass 'fues'; did you mean 'fuse'"):
        model.ir(*args, after="fues")


def test_explain_names_the_field_that_differed() -> None:
    f = wf.compile(lambda x, params: x + params["w"])
    small = (np.ones(2, np.float32), {"w": 1.0})
    text = f.explain(*small)
    assert "compiled because\n  first call" in text
    text = f.explain(np.ones(5, np.float32), {"w": 1.0})
    assert "x: f32[5] instead of f32[2] (specialisation 1)" in text
    text = f.explain(np.ones(5, np.float32), {"w": 1})
    assert "params['w']: i64[] weak instead of f64[] weak (specialisation 2)" in text
    text = f.explain(np.ones(5, np.float32), {"w": 1, "v": 2})
    assert "the structure of the arguments: (*, {'v': *, 'w': *}) instead of (*, {'w': *})" in text


def test_explain_shows_passes_kernels_and_memory() -> None:
    text = model.explain(ONES, {"w": ONES}, power=2)
    for part in (
        "signature",
        "params['w']  f32[3]",
        "power        static 2",
        "fuse",
        "for i0",
        "peak",
    ):
        assert part in text, part


def test_explain_says_what_keeps_ops_apart() -> None:
    f = wf.compile(lambda x: x / wf.sum(x))
    assert "the result of the reduction 'sum' is complete only after its nest" in f.explain(ONES)


def test_cost() -> None:
    cost = model.cost(ONES, {"w": ONES})
    assert cost.kernels >= 1
    assert cost.ops >= 1
    assert cost.bytes is not None
    assert cost.peak_bytes >= 4


def test_own_pipelines() -> None:
    by_name = wf.compile(passes=["order_effects", "dce", "fuse"])(lambda x: x + x)
    assert by_name(ONES).tolist() == [2, 2, 2]
    names = [r.name for r in next(iter(by_name._specializations.entries.values())).reports()]
    assert names == ["traced", "order_effects", "dce", "fuse"]
    by_function = wf.compile(passes=[dce])(lambda x: x)
    assert "stage=" in by_function.ir(ONES, after="dce")
    with pytest.raises(PassError, match="no pass 'fold_all'"):
        wf.compile(passes=["fold_all"])


def test_kernels_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    f = wf.compile(lambda x: wf.exp(x) + 1)
    x = np.ones(100, np.float32)
    f(x)
    (plan,) = tmp_path.glob("*/plan.txt")
    assert "v0: f32 = exp(l0)" in plan.read_text()
    assert "memory: peak 400 bytes" in plan.read_text()
    assert "define internal" in f.llvm(x)
    assert "ret" in f.asm(x)


def test_pipelines() -> None:
    """Names, one or several, and functions; what is wrong with one is said."""
    for passes in ("fuse", "fold, fuse", ["standard"], ["standard", lambda g: g], (fuse,), fuse):
        assert float(wf.compile(passes=passes)(wf.sin)(0.0)) == 0
    unfused = wf.compile(passes="fold")(lambda x: wf.sin(x))
    assert " sin(" in unfused.ir(1.0)
    with pytest.raises(PassError, match=r"does not end with 'fuse'(.*\n)+.*add 'fuse' as the last"):
        unfused(1.0)

    def forgets(graph: Any) -> None:
        pass

    with pytest.raises(
        PassError, match="pass 'forgets' returned a NoneType, not a graph"
    ) as caught:
        wf.compile(passes=[forgets])(lambda x: x)(1.0)
    assert caught.value.locations[0].file == __file__
    with pytest.raises(PassError, match=r"3 in passes= is no pass"):
        wf.compile(passes=[3])


def test_products_and_what_they_are_joined_with() -> None:
    x, w = np.ones((8, 16), np.float32), np.ones((16, 32), np.float32)

    def text(f: Any) -> str:
        shown = wf.compile(f).explain(x, w)
        return str(shown.split("\nproducts\n")[1].split("\n\n")[0])

    assert ": joined with tanh, which is applied to its blocks" in text(lambda x, w: wf.tanh(x @ w))
    assert "nothing follows it, its result is returned" in text(lambda x, w: x @ w)
    assert "needed in 2 places" in text(lambda x, w: (lambda c: (c, wf.tanh(c)))(x @ w))
    assert "sums otherwise than over all its rows" in text(lambda x, w: wf.sum(x @ w))
    assert "does rows, or other folds than sums" in text(lambda x, w: wf.max(x @ w))
    assert "'cumulative_sum', which reads it" in text(lambda x, w: wf.cumulative_sum(x @ w, axis=1))
    assert "has taken over another product" in text(lambda x, w: wf.tanh(x @ w) * (2 * x @ w))
    assert "\nproducts\n" not in wf.compile(lambda x: x + 1).explain(x)


def not_fused(f: Any, *args: Any) -> list[str]:
    """The lines of the section, without the places in this file."""
    shown = wf.compile(f).explain(*args).split("\nnot fused\n")[1].split("\n\n")[0]
    return [re.sub(r" \(\S+:\d+\)", "", line).strip() for line in shown.splitlines()]


NOTHING = ["nothing: every edge that could be is"]


def test_what_computes_nothing_is_not_said_to_be_a_kernel() -> None:
    """Variables are read and written where they are, a reshape is a view."""
    w = wf.Variable(np.ones(3, np.float32))

    def update(x: Any) -> None:
        w.assign(w - 2 * x)

    assert not_fused(update, ONES) == NOTHING
    assert not_fused(lambda x: wf.reshape(wf.exp(x), (32, 64)), ROWS) == NOTHING
    assert not_fused(lambda x, y: wf.stack([wf.exp(x), wf.sin(y)]), ROWS, ROWS) == [
        "exp -> concat: 'concat' is no loop nest: it is done by itself",
        "sin -> concat: 'concat' is no loop nest: it is done by itself",
    ]
    assert not_fused(lambda x: wf.sum(wf.reshape(wf.exp(x), (32, 64)), axis=1), ROWS) == [
        "exp -> sum: their iteration spaces differ"
    ]


def test_a_stored_index_map_is_said_to_be_stored() -> None:
    ids = np.zeros(64, np.int64)
    lines = not_fused(lambda x, i: wf.segment_sum(x * 2, i, 10), ROWS, ids)
    assert "multiply -> scatter_nd_add: 'scatter_nd_add' is no loop nest: it is done by itself" in (
        lines
    )
    assert not any("not kept apart" in line or "'reshape'" in line for line in lines)
    # the transpose of what a nest makes, sorted: a copy, and the sort
    assert not_fused(lambda x: wf.sort(wf.exp(x).T, axis=-1), ROWS) == [
        "permute_dims -> sort: 'sort' is no loop nest: it is done by itself",
        "exp -> permute_dims: what 'permute_dims' makes is needed in memory: it is copied there",
    ]


def test_numbers_that_are_made_of_sums() -> None:
    assert not_fused(lambda x: x / wf.sqrt(wf.sum(x * x)), ROWS) == [
        "sum -> sqrt: the result of 'sum' over everything is complete only after its nest",
        "sqrt -> divide: their iteration spaces differ",
    ]
    (line,) = not_fused(lambda x, y: x / wf.sum(y), ROWS, ONES)
    assert (
        line == "sum -> divide: the result of the reduction 'sum' is complete only after its nest"
    )


def test_nests_that_read_the_same() -> None:
    why = "both read the same 8192 bytes, which stay in the first-level cache"
    assert not_fused(lambda x: (wf.sin(x), wf.cos(x)), ROWS) == [f"sin beside cos: {why}"]
    # other loops, other operands, or only one number in common: nothing is read twice
    assert not_fused(lambda x: (wf.sin(x), wf.cos(x.T)), ROWS) == NOTHING
    assert not_fused(lambda x, y: (wf.sin(x), wf.cos(y)), ROWS, ROWS) == NOTHING
    assert not_fused(lambda x, y, a: (x * a, y + a), ROWS, ROWS, np.float32(2)) == NOTHING


def test_what_products_take_over_is_not_called_apart() -> None:
    x, w = np.ones((8, 32), np.float32), np.ones((32, 64), np.float32)
    assert not_fused(lambda x, w: wf.tanh(x @ w), x, w) == NOTHING
    heads = np.ones((2, 32, 4, 16), np.float32)
    swapped = wf.compile(lambda x: wf.transpose(wf.exp(x), (0, 2, 1, 3)) @ np.ones((16, 16), "f4"))
    text = swapped.explain(heads)
    assert ("'permute_dims' makes is needed in memory" in text) != ("read through by" in text)


def test_loops_are_no_kernels() -> None:
    lines = not_fused(lambda x: wf.scan(lambda c, r: (c + r, c), wf.zeros(32), x * 2)[0], ROWS)
    assert "multiply -> scan: 'scan' is a loop: what it reads and gives is stored" in lines
    assert lines[-1] == "(the bodies of loops and branches are not looked into)"


def test_explain_begins_in_short() -> None:
    """Kinds of kernels, lines that take the time, memory, reasons; a kernel's text stands once."""

    @wf.compile
    def step(x: Any, w: Any) -> Any:
        small = wf.sort(wf.matmul(x, w), axis=1)
        return wf.exp(small) + 1, wf.exp(small[::-1]) + 1

    square = np.ones((256, 256), np.float32)
    lines = step.explain(square, square).splitlines()
    begin = lines.index("in short") + 1
    short = lines[begin : lines.index("", begin)]
    assert re.match(r"  \d kernel calls: .*\b1 gemm\b", short[0])
    product = step.__wrapped__.__code__.co_firstlineno + 2
    assert re.match(
        rf"  expected: [\d,]+ us on one core; of it test_explain\.py:{product} \d\d", short[1]
    )
    assert re.match(r"  memory: [\d,]+ bytes for values in between \(without reuse ", short[2])
    assert re.match(r"  not fused: \d pairs?: ", short[3])
    assert len(short) == 4
    unchanged = next(line for line in lines if line.startswith("  unchanged, "))
    assert "lower_stacks" in unchanged
    (first,) = [n for n, line in enumerate(lines) if re.match(r"  \d+\. gemm_f32 -> f32", line)]
    assert f"f32[256,256] at test_explain.py:{product}" in lines[first]


def test_explain_shows_a_kernel_once() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        for _ in range(4):
            x = wf.sort(wf.exp(x) * 2, axis=0)
        return x

    text = f.explain(np.ones(64, np.float32))
    first, second = (
        re.findall(pattern, text)
        for pattern in (
            r"(\d+)\. kernel exp_multiply.*  # nest-",
            r"exp_multiply.*, as (\d+), of in0 = #",
        )
    )
    assert len(first) + len(second) == 4
    assert second
    assert set(second) <= set(first)


def test_explain_says_where_operands_come_from() -> None:
    w = wf.Variable(np.ones((128, 64), np.float32), name="table")

    @wf.compile
    def f(x: Any) -> Any:
        return wf.sort(wf.exp(wf.matmul(x, w)), axis=1)

    text = f.explain(np.ones((256, 128), np.float32))
    assert re.search(
        r" 1\. kernel matmul_exp -> f32\[256,64\] at test_explain\.py:\d+  # nest-.*\n"
        r" +in0 = argument: f32\[256,128\], in1 = variable 'table': f32\[128,64\], "
        r"in2 = a block of the product, in the cache\n",
        text,
    )
    assert re.search(r" 2\. sort_f32 -> f32\[256,64\].*\n +in0 = #1: f32\[256,64\]\n", text)


@wf.compile
def layered(x: Any) -> Any:
    with wf.name_scope("outer"):
        with wf.name_scope("inner"):
            y = wf.exp(x) + 1
        y = wf.sin(y)
        return wf.while_loop(lambda v: wf.sum(v) < 3, lambda v: wf.nn.softmax(v) + 1, y)


class TestFoldedText:
    def lines(self, **options: Any) -> list[str]:
        text = layered.ir(ONES, after="traced", loc=False, **options)
        return [line.strip() for line in text.splitlines()]

    def test_a_scope_is_a_line(self) -> None:
        (line,) = (one for one in self.lines(fold=0) if '"outer" ' in one and "(%x)" in one)
        assert re.fullmatch(r'%\d+ = "outer" \[\d+ ops\] \(%x\) : f32\[3\]', line)
        total = sum(1 for _ in layered.trace(ONES).walk())
        assert int(re.findall(r"\[(\d+) ops\]", line)[0]) == total

    def test_names_of_the_path_are_open(self) -> None:
        lines = self.lines(fold=1)
        assert any(re.match(r'%3 = "outer/inner" \[4 ops\] \(%x\) : f32\[3\]', s) for s in lines)
        assert "%4 = sin(%3) : f32[3]" in lines  # numbers are those of the whole text
        assert any('"outer/softmax" [' in line for line in lines)  # in the body of the loop
        assert self.lines(fold=9) == self.lines() == self.lines(fold=None)

    def test_places_stand_once(self) -> None:
        text = layered.ir(ONES, after="traced", fold=1)
        (line,) = (one for one in text.splitlines() if '"outer/inner"' in one)
        assert line.count("loc(test_explain:") == 1
        assert 'file test_explain = "' in text

    def test_sessions_and_the_command(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with wf.Graph().as_default(), wf.Session() as session:
            x = wf.placeholder(wf.float32, [2], name="x")
            with wf.name_scope("deep"):
                y = wf.exp(x) + 1
            assert '"deep" [4 ops] (%x)' in session.ir(y, {x: [1, 2]}, after="traced", fold=0)
        path = tmp_path / "g.weft"
        path.write_text(layered.ir(ONES, after="traced"), encoding="utf-8")
        assert main(["opt", str(path), "--passes", "", "--fold", "0"]) == 0
        assert '"outer" [' in capsys.readouterr().out
        assert main(["opt", str(path), "--passes", "", "--fold", "-1"]) == 2

    def test_less_than_none(self) -> None:
        with pytest.raises(InvalidArgumentError, match="cannot be folded with -1 names"):
            layered.ir(ONES, fold=-1)


class TestSections:
    def test_those_that_are_named_are_open(self) -> None:
        whole = layered.explain(ONES)
        text = layered.explain(ONES, sections=["memory", "signature"])
        lines = text.splitlines()
        assert lines[0] == whole.splitlines()[0]
        assert "  x  f32[3]" in lines
        assert any(line.startswith("passes ... ") for line in lines)
        memory = whole[whole.index("\nmemory\n") :].strip()
        assert memory in text
        assert text == text.strip()
        assert "\n\n\n" not in text
        assert layered.explain(ONES, sections="memory").count("\n") < text.count("\n")

    def test_none_is_open(self) -> None:
        text = layered.explain(ONES, sections=())
        assert not [line for line in text.splitlines() if line.startswith(" ")]
        assert "signature ... 1 line\n" in text

    def test_no_such_section(self) -> None:
        with pytest.raises(InvalidArgumentError, match="no section begins with 'memroy'") as caught:
            layered.explain(ONES, sections="memroy")
        assert "'memory'" in str(caught.value)

    def test_sessions_and_the_command(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with wf.Graph().as_default(), wf.Session() as session:
            x = wf.placeholder(wf.float32, [2], name="x")
            text = session.explain(wf.exp(x), {x: [1, 2]}, sections="in short")
            assert "\nin short\n  1 kernel call" in text
            assert "\nmemory ... " in text
        path = tmp_path / "g.weft"
        path.write_text(layered.ir(ONES, after="traced"), encoding="utf-8")
        assert main(["explain", str(path), "--section", "memory"]) == 0
        out = capsys.readouterr().out
        assert "\npasses ... " in out
        assert "\nmemory\n  " in out
