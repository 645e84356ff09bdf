"""Golden text cases: tests/cases/*.weft hold graphs, passes to run, and what must come out.

    // case: merges_equal_ops
    // passes: cse,dce
    graph @g(%x: f32[2]) -> (f32[2]) stage=traced {
      ...
    }
    // ----
    graph @g(%x: f32[2]) -> (f32[2]) stage=traced {
      ...
    }

The input may be written by hand in any form that parses; what follows `// ----` is exactly what
weft prints, or the error that it raises, each line after `// error: `; `pytest --update` writes it.
Each pass is verified, and the graph is executed before and after it on random inputs. `partition`,
which may come last, gives the graphs of all devices. A case with no `// passes:` shows how the
parser or the verifier takes the input.
"""

from pathlib import Path

import numpy as np
import pytest
from golden_cases import Case, read_cases, rewrite
from paths import CASES

from weft.frontend.tools.main import before_partition, passes_named
from weft.ir.analysis.verify import verify
from weft.ir.errors import WeftError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.passes.differential import random_inputs, random_sizes, random_state
from weft.passes.manager import PassOptions, run_passes
from weft.passes.partition.partition import partition

FILES = sorted(CASES.glob("*.weft"))


def run_case(case: Case, folder: Path) -> str:
    """What the passes make of the input: a graph, or the lines of an error."""
    try:
        graph = parse_graph(case.source, "case")
        verify(graph)
        options = PassOptions(verify="run", dump=folder)
        names, cut = before_partition(case.passes)
        graph, _ = run_passes(graph, passes_named(names), options=options)
        if cut:
            return partitioned(graph)
    except WeftError as error:
        message = str(error).replace(str(folder), "FOLDER")
        return "".join(f"// error: {line}".rstrip() + "\n" for line in message.splitlines())
    return print_graph(graph)


def partitioned(graph: Graph) -> str:
    """The parts of a graph, which are verified and run on random inputs, as the whole is."""
    made = partition(graph)
    sizes = random_sizes(graph, 0)
    inputs, state = random_inputs(graph, 0, sizes), random_state(graph, 0, sizes)
    whole, cut = DictState(state), DictState(state)
    for part in made.parts:
        verify(part.graph)
        assert parse_graph(print_graph(part.graph)) == part.graph
    expected = interpret(graph, inputs, whole)
    for a, b in zip(expected, interpret_parts(made.parts, inputs, cut), strict=True):
        np.testing.assert_array_equal(a, b)
    for name, value in whole.values.items():
        np.testing.assert_array_equal(value, cut.values[name])
    return str(made)


def all_cases() -> list[tuple[Path, Case]]:
    found = [(path, case) for path in FILES for case in read_cases(path.read_text("utf-8"))[1]]
    assert found, f"no cases in {CASES}"
    return found


@pytest.mark.parametrize(
    ("path", "case"), [pytest.param(p, c, id=f"{p.stem}-{c.name}") for p, c in all_cases()]
)
def test_case(path: Path, case: Case, update: bool, tmp_path: Path) -> None:
    found = run_case(case, tmp_path)
    if update:
        rewrite(path, case, found)
    else:
        assert found == case.expected, f"{path.name}: {case.name} (pytest --update rewrites it)"


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_files_are_tidy(path: Path) -> None:
    """Names are unique in a file, and rewriting what is there changes nothing."""
    text = path.read_text("utf-8")
    preface, cases = read_cases(text)
    names = [case.name for case in cases]
    assert len(names) == len(set(names))
    assert preface + "\n".join(c.text(c.expected) for c in cases) == text


def test_update_rewrites_one_case(tmp_path: Path) -> None:
    file = tmp_path / "x.weft"
    file.write_text("// case: a\n// passes: cse\nIN\n// ----\nOLD\n\n// case: b\nIN\n// ----\nB\n")
    case = read_cases(file.read_text())[1][0]
    assert (case.name, case.passes, case.source, case.expected) == ("a", "cse", "IN\n", "OLD\n")
    rewrite(file, case, "NEW\nER\n")
    assert file.read_text() == (
        "// case: a\n// passes: cse\nIN\n// ----\nNEW\nER\n\n// case: b\nIN\n// ----\nB\n"
    )


def test_what_a_case_gives(tmp_path: Path) -> None:
    source = "graph @g(%x: f32[2]) -> (f32[2]) stage=traced { return %x }\n"
    case = Case("a", "dce", "// case: a\n", source, "")
    assert run_case(case, tmp_path) == (
        "graph @g(%x: f32[2]) -> (f32[2]) stage=traced {\n  return %x\n}\n"
    )
    case.source = source.replace("return %x", "return %y")
    assert run_case(case, tmp_path).splitlines()[0] == "// error: case:1:56: %y is not defined"


def test_a_case_needs_its_separator() -> None:
    with pytest.raises(ValueError, match="case a has no"):
        read_cases("// case: a\n// passes: cse\nIN\n")
