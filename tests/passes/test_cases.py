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
Each pass is verified, and the graph is executed before and after it on random inputs. `partition`
gives a program with a part for each device. A case with no `// passes:` shows how the
parser or the verifier takes the input.
"""

from pathlib import Path

import numpy as np
import pytest
from golden_cases import Case, read_cases, rewrite
from paths import CASES

from weft.frontend.tools.main import program_passes
from weft.ir.analysis.verify import verify_program
from weft.ir.errors import WeftError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.interpreter.state import DictState
from weft.ir.program import Program
from weft.ir.text.parser import parse_program
from weft.ir.text.printer import print_program
from weft.passes.differential import random_inputs, random_sizes, random_state
from weft.passes.manager import PassOptions, run_pipeline
from weft.passes.partition.partition import partition_pass

FILES = sorted(CASES.glob("*.weft"))


def run_case(case: Case, folder: Path) -> str:
    """What the passes make of the input: a graph, or the lines of an error."""
    try:
        program = parse_program(case.source, "case")
        verify_program(program)
        options = PassOptions(verify="run", dump=folder)
        passes = program_passes(case.passes, {"partition": partition_pass()})
        program, reports = run_pipeline(program, passes, options=options)
        if not program.is_whole and reports[-2].program.is_whole:
            assert parse_program(print_program(program)) == program
            check_parts(reports[-2].graph, program)
    except WeftError as error:
        message = str(error).replace(str(folder), "FOLDER")
        return "".join(f"// error: {line}".rstrip() + "\n" for line in message.splitlines())
    return print_program(program)


def check_parts(graph: Graph, made: Program) -> None:
    """The parts of a graph give, bit for bit, what it does itself on random inputs."""
    sizes = random_sizes(graph, 0)
    inputs, state = random_inputs(graph, 0, sizes), random_state(graph, 0, sizes)
    whole, cut = DictState(state), DictState(state)
    expected = interpret(graph, inputs, whole)
    for a, b in zip(expected, interpret_parts(made.parts, inputs, cut), strict=True):
        np.testing.assert_array_equal(a, b)
    for name, value in whole.values.items():
        np.testing.assert_array_equal(value, cut.values[name])


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
