"""The `weft` command: run, opt, diff and view on dumped graphs; messages and exit statuses."""

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_graphs import STEP
from example_counts import examples
from graphs import graphs
from hypothesis import given
from paths import ROOT

from weft.frontend.tools.main import main
from weft.ir.drawing.dot import dot
from weft.ir.dtypes import bfloat16
from weft.ir.graph import Graph, Value
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.ir.text.views import diff_graphs, name_graphs
from weft.passes.fusion.fuse import fuse


@pytest.fixture
def step(tmp_path: Path) -> str:
    """The file with the graph STEP."""
    path = tmp_path / "step.weft"
    path.write_text(STEP, encoding="utf-8")
    return str(path)


def npy(folder: Path, name: str, array: object) -> str:
    np.save(folder / f"{name}.npy", np.asarray(array))
    return str(folder / f"{name}.npy")


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The message of a command that must fail."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("weft: error: ")
    return err


# ------------------------------------------------------------------------------------------ run


@pytest.mark.parametrize("how", [(), ("--compiled",)], ids=["interpreted", "compiled"])
def test_run_computes(
    how: tuple[str, ...], step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    w = np.full((2, 3), 10, np.float32)
    feeds = ["--feed", f"x={npy(tmp_path, 'x', x)}"]
    feeds += ["--feed", f"rate={npy(tmp_path, 'rate', np.float32(0.5))}"]
    feeds += ["--state", f"w={npy(tmp_path, 'w', w)}"]
    assert main(["run", step, *feeds, "--save", str(tmp_path / "out"), *how]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "result0.npy"), w - x)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "variable-w.npy"), w - x)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "result 0: f32[2,3]  min 5  mean 7.5  max 10",
        "result 1: token",
        "variable 'w' is now: f32[2,3]  min 5  mean 7.5  max 10",
    ]


def test_run_prints_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "graph @g(%x: i64[3]) -> (bool[3]) stage=traced { %0 = equal(%x, %x) : bool[3] return %0 }"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["run", "-", "--print", "--feed", f"x={npy(tmp_path, 'x', [1, 2, 3])}"]) == 0
    assert capsys.readouterr().out == "result 0: bool[3]\n[ True,  True,  True]\n"


def test_run_with_a_seed_is_repeatable(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for seed in ("0", "0", "1"):
        assert main(["run", step, "--print", "--seed", seed]) == 0
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("how", [(), ("--compiled",)], ids=["interpreted", "compiled"])
def test_run_with_symbolic_sizes(
    how: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "g.weft"
    path.write_text(
        "graph @g(%x: f32[b,2], %y: f32[b,2]) -> (f32[b,2]) stage=traced "
        "{ %0 = add(%x, %y) : f32[b,2] return %0 }"
    )
    assert main(["run", str(path), "--seed", "3", "--size", "b=7", *how]) == 0
    assert capsys.readouterr().out.startswith("result 0: f32[7,2]")
    # a fed array decides, and the made up one follows it
    feed = f"x={npy(tmp_path, 'x', np.zeros((5, 2), np.float32))}"
    assert main(["run", str(path), "--seed", "3", "--feed", feed, *how]) == 0
    assert capsys.readouterr().out.startswith("result 0: f32[5,2]")


def test_run_takes_bfloat16_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.weft"
    path.write_text(
        "graph @g(%x: bf16[2]) -> (bf16[2]) stage=traced { %0 = negative(%x) : bf16[2] return %0 }"
    )
    x = np.array([1.5, -2.0]).astype(bfloat16.numpy)
    out = str(tmp_path / "out")
    assert main(["run", str(path), "--feed", f"x={npy(tmp_path, 'x', x)}", "--save", out]) == 0
    saved = np.load(tmp_path / "out" / "result0.npy").view(bfloat16.numpy)
    assert saved.tolist() == [-1.5, 2.0]
    assert capsys.readouterr().out.startswith("result 0: bf16[2]  [-1.5, 2]")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ([], "there is no array for the input 'x'", "--feed 'x=FILE.npy'"),
        (["--feed", "xx=a.npy"], "no input 'xx'; did you mean 'x'?", "it has: x, rate"),
        (["--state", "v=a.npy"], "no variable 'v'", "it has: w"),
        (["--feed", "x"], "--feed x: expected NAME=VALUE", ""),
        (["--feed", "x=a", "--feed", "x=b"], "--feed gives 'x' twice", ""),
        (["--feed", "x=/nowhere.npy"], "/nowhere.npy cannot be read as an array", "numpy.save"),
        (["--feed", f"x={__file__}"], "test_cli.py cannot be read as an array", "numpy.save"),
        (["--seed", "-1"], "--seed -1: it must be 0 or more", ""),
        (["--seed", "0", "--size", "b=3"], "no symbolic dimension 'b'", "it has: none"),
    ],
)
def test_run_errors(
    options: list[str], message: str, hint: str, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    err = fails(capsys, "run", step, *options)
    assert message in err
    assert hint in err


def test_run_refuses_arrays_that_do_not_fit(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = f"x={npy(tmp_path, 'x', np.zeros(3))}"
    err = fails(capsys, "run", step, "--seed", "0", "--feed", feed)
    assert "input 'x' of graph 'step' must be f32[2,3], got f64[3]" in err


def test_run_names_the_uninitialised_variable(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feeds = [f"x={npy(tmp_path, 'x', np.zeros((2, 3), np.float32))}"]
    feeds += [f"rate={npy(tmp_path, 'r', np.float32(1))}"]
    err = fails(capsys, "run", step, "--feed", feeds[0], "--feed", feeds[1])
    assert "'w' is not initialised" in err


def test_run_verifies_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.weft"
    path.write_text(
        STEP.replace("stage=traced", "stage=fused").replace("add(%b, %c)", "add(%b, %b)")
    )
    path.write_text(path.read_text().replace("subtract(%a, %d)", "subtract(%a, %a)"))
    assert main(["run", str(path), "--seed", "0"]) == 0
    path.write_text(path.read_text().replace(' loc("m.py":4:1)', ""))
    assert "breaks a rule of the IR" in (capsys.readouterr(), fails(capsys, "run", str(path)))[1]


# ------------------------------------------------------------------------------------------ opt


def test_opt_runs_passes(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", step, "--passes=cse,dce", "--verify=run", "--time"]) == 0
    out, err = capsys.readouterr()
    assert parse_graph(out).ops[3].locations == parse_graph(STEP).ops[3].locations + (
        parse_graph(STEP).ops[4].locations
    )
    assert out.count("multiply(") == 1
    assert re.search(r"cse +\d+\.\d\d +8 -> 7 +5 ", err)
    assert re.search(r"dce +\d+\.\d\d +unchanged", err)


def test_opt_without_passes_prints_the_canonical_text(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", step, "--passes", ""]) == 0
    assert capsys.readouterr().out == print_graph(parse_graph(STEP))
    out = tmp_path / "out.weft"
    assert main(["opt", step, "--passes=", "--no-locations", "-o", str(out)]) == 0
    assert out.read_text() == print_graph(parse_graph(STEP), locations=False)
    assert capsys.readouterr().out == ""


def test_opt_standard_is_the_standard_pipeline(
    step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", step]) == 0
    default = capsys.readouterr().out
    assert main(["opt", step, "--passes=standard"]) == 0
    assert capsys.readouterr().out == default != print_graph(parse_graph(STEP))


def test_opt_cuts_a_placed_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "placed.weft"
    path.write_text(
        "graph @g(%x: f32[2]) -> (f32[2]) stage=traced {\n"
        '  %0 = exp(%x) : f32[2] device("/job:ps/task:0/cpu:0")\n'
        '  %1 = sin(%0) : f32[2] device("/job:worker/task:0/cpu:0")\n'
        "  return %1\n}\n"
    )
    assert main(["opt", str(path), "--passes=dce,partition"]) == 0
    out = capsys.readouterr().out
    assert out.count('part "') == 2
    head = 'part "/job:ps/task:0/cpu:0" feeds [0] fetches []\n'
    assert f"{head}graph @g_ps_task_0_cpu_0(" in out
    assert out.count(" = send(") == out.count(" = recv(") == 1
    assert main(["opt", str(path), "--passes=partition,dce,partition"]) == 2
    assert "has 2 parts already" in capsys.readouterr().err
    (tmp_path / "cut.weft").write_text(out)
    cut = str(tmp_path / "cut.weft")
    assert main(["opt", cut, "--passes=dce", "--verify=run"]) == 0
    assert capsys.readouterr().out == out  # which parses, and has nothing that is dead
    for command in (["run", str(path), "--seed=1"], ["run", cut, "--seed=1"]):
        assert main(command) == 0
    whole, parts = capsys.readouterr().out.splitlines()
    assert whole == parts
    assert "which the tasks of a cluster" in fails(capsys, "run", cut, "--seed=1", "--compiled")
    (tmp_path / "other.weft").write_text(out.replace(" sin(", " cos("))
    assert main(["diff", cut, str(tmp_path / "other.weft")]) == 1
    changed = [li for li in capsys.readouterr().out.splitlines() if li[:1] in "+-"]
    assert len(changed) == 6  # two of them name the files
    assert main(["view", cut]) == 0
    shown = capsys.readouterr().out
    assert shown.count("subgraph cluster_part_") == 2
    assert shown.count("style=bold") == 1
    assert main(["explain", cut]) == 0
    assert "2 parts, 1 messages" in capsys.readouterr().out


def test_opt_lists_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "--list"]) == 0
    assert re.search(r"^cse +\w", capsys.readouterr().out, re.MULTILINE)


def test_opt_errors(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = fails(capsys, "opt", step, "--passes=csee")
    assert "there is no pass 'csee'; did you mean 'cse'" in err
    assert "there is no file /nowhere.weft" in fails(capsys, "opt", "/nowhere.weft")
    assert "cannot be read as text" in fails(capsys, "opt", str(tmp_path))
    assert "needs a FILE" in fails(capsys, "opt")
    bad = tmp_path / "bad.weft"
    bad.write_text(STEP.replace("subtract", "substract"))
    err = fails(capsys, "opt", str(bad))
    assert f"{bad}:8:8: there is no op 'substract'; did you mean" in err
    assert "'subtract'" in err
    bad.write_bytes(b"\xff\xfe")
    assert "cannot be read as text" in fails(capsys, "opt", str(bad))


# ----------------------------------------------------------------------------------------- diff


def test_diff_hides_renumbering(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One op is put in front: every number moves, and the diff shows one line."""
    new = tmp_path / "new.weft"
    lines = STEP.splitlines(keepends=True)
    lines.insert(1, "  %first = exp(%x) : f32[2,3]\n")
    new.write_text("".join(lines).replace(":6:1", ":60:1"))
    assert main(["diff", step, str(new)]) == 1
    out = capsys.readouterr().out.splitlines()
    changed = [line for line in out[2:] if line[0] in "+-"]
    assert changed == ["+  %new0 = exp(%x) : f32[2,3]"]
    assert out[:2] == [f"--- {step}", f"+++ {new}"]


def test_diff_shows_changed_operands_and_attributes() -> None:
    old = parse_graph(STEP)
    new = parse_graph(STEP.replace("add(%b, %c)", "add(%b, %b)"))
    lines = diff_graphs(old, new).splitlines()
    assert [x for x in lines[2:] if x[0] in "+-"] == [
        "-  %5 = add(%3, %4) : f32[2,3]",
        "+  %5 = add(%3, %3) : f32[2,3]",
    ]
    other = diff_graphs(old, parse_graph(STEP.replace('"w"', '"v"'))).splitlines()
    assert [x for x in other[2:] if x[0] in "+-"] == [
        '-  %0 = variable() {name="w", dtype=f32, shape=[2, 3]} : ref<f32[2,3]>',
        '+  %0 = variable() {name="v", dtype=f32, shape=[2, 3]} : ref<f32[2,3]>',
    ]


def test_diff_goes_into_regions() -> None:
    text = """graph @g(%x: f32[4]) -> (f32[4]) stage=fused {
      %f = fused(%x) : f32[4] {
        ^(%a: f32[4])
        %0 = exp(%a) : f32[4]
        %1 = sin(%0) : f32[4]
        yield %1
      }
      return %f
    }"""
    new = text.replace("%0 = exp", "%z = cos(%a) : f32[4]\n %0 = exp").replace("sin(%0)", "sin(%z)")
    lines = diff_graphs(parse_graph(text), parse_graph(new)).splitlines()
    assert [x.split() for x in lines[2:] if x[0] in "+-"] == [
        ["+", "%new0", "=", "cos(%a0)", ":", "f32[4]"],
        ["-", "%1", "=", "sin(%0)", ":", "f32[4]"],
        ["+", "%1", "=", "sin(%new0)", ":", "f32[4]"],
    ]


def test_diff_of_equal_graphs(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved.weft"
    moved.write_text(STEP.replace("m.py", "n.py").replace("%d", "%sum"))
    assert main(["diff", step, str(moved)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["diff", step, str(moved), "--locations"]) == 1
    assert "n.py" in capsys.readouterr().out
    assert main(["diff", step, str(moved), "--locations", "-q"]) == 1
    assert capsys.readouterr().out == ""
    assert "there is no file" in fails(capsys, "diff", step, "/nowhere")


@given(graphs(), graphs())
@examples(60)
def test_diff_is_empty_exactly_for_equal_graphs(a: Graph, b: Graph) -> None:
    assert diff_graphs(a, parse_graph(print_graph(a)), locations=True) == ""
    assert (diff_graphs(a, b, locations=True) == "") == (a == b)


def test_diff_shows_what_fusion_took() -> None:
    """Fused ops keep their numbers: what is new is the fused op around them."""
    before = parse_graph("""graph @f(%x: f32[8,4]) -> (f32[8,4]) stage=optimized {
      %0 = exp(%x) : f32[8,4]
      %1 = sqrt(%0) : f32[8,4]
      %2 = matmul(%1, %x) {transpose_a=false, transpose_b=true} : f32[8,8]
      %3 = matmul(%2, %1) : f32[8,4]
      %4 = negative(%3) : f32[8,4]
      return %4
    }""")
    lines = diff_graphs(before, fuse(before)).splitlines()
    assert [line for line in lines if line[0] == "-" and line[1] != "-"] == [
        "-graph @f(%x: f32[8,4]) -> (f32[8,4]) stage=optimized {"
    ]
    added = [line[1:].strip() for line in lines if line[0] == "+" and line[1] != "+"]
    assert added == [
        "graph @f(%x: f32[8,4]) -> (f32[8,4]) stage=fused {",
        '%1 = fused(%x) {kind="exp_sqrt"} : f32[8,4] {', "^(%x: f32[8,4])", "yield %1", "}",
        '%4 = fused(%3) {kind="negative"} : f32[8,4] {', "^(%3: f32[8,4])", "yield %4", "}",
    ]  # fmt: skip


@given(graphs(stage="optimized"))
@examples(60)
def test_diff_of_fusion_names_each_value_once(graph: Graph) -> None:
    """In each block; and there is no difference without a line."""
    fused = fuse(graph)
    assert diff_graphs(graph, fused) != ""
    names: dict[Value, str] = {}
    name_graphs(graph, fused, names)
    for block in (fused.block, *(r for op in fused.walk() for r in op.regions)):
        own = [names[v] for v in (*block.args, *(r for op in block.ops for r in op.results))
               if v in names]  # fmt: skip
        assert len(set(own)) == len(own)


# ----------------------------------------------------------------------------------------- view


def test_view_prints_dot(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", step]) == 0
    text = capsys.readouterr().out
    assert text.startswith('digraph "step" {')
    assert 'label="variable\\nname=\\"w\\"\\ndtype=f32\\nshape=[2, 3]"' in text
    assert 'tooltip="m.py:4:1"' in text
    out = tmp_path / "g.dot"
    assert main(["view", step, "-o", str(out)]) == 0
    assert out.read_text() == text


@given(graphs())
@examples(50)
def test_dot_is_well_formed(graph: Graph) -> None:
    """Each node is declared once and before its edges; there is an edge for each use of a value."""
    declared: set[str] = set()
    edges = depth = 0
    for line in dot(graph).splitlines():
        bare = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        assert '"' not in bare.replace('""', "")
        depth += bare.count("{") - bare.count("}")
        if (edge := re.match(r" +(\w+) -> (\w+)( \[|$)", bare)) is not None:
            assert {edge[1], edge[2]} <= declared
            edges += 1
        elif (node := re.match(r" +([nr]\d+) \[", bare)) is not None:
            assert node[1] not in declared
            declared.add(node[1])
    assert depth == 0
    blocks = [graph.block, *(r for op in graph.walk() for r in op.regions)]
    uses = sum(len(op.operands) + len(op.control) for op in graph.walk())
    assert edges == uses + sum(len(b.results) for b in blocks)


# ----------------------------------------------------------------------------------------- main


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(f"    {name} " in out for name in ("run", "opt", "diff", "view"))


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["run"], ["opt", "x", "--verify=no"]])
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: weft" in capsys.readouterr().err


def test_as_a_module_in_a_pipe(step: str) -> None:
    command = [sys.executable, "-m", "weft", "opt", "-", "--passes=cse"]
    done = subprocess.run(
        command, input=STEP, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert parse_graph(done.stdout).name == "step"


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(step: str) -> None:
    script = f"{sys.executable} -m weft view {step} | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"d", b"")
