"""The programs of `semantic_programs`, `_loops` and `_gradients` as text, before and after
lowering. `test_ways.py` runs them."""

from __future__ import annotations

from corpus import SEMANTICS, corpus
from golden_cases import read_cases
from paths import CASES

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.text.printer import print_graph
from weft.passes.control.lower_control_flow import lower_control_flow

FILE = CASES / "semantics.weft"


def golden() -> str:
    """What the golden file has to be, but for the outputs, which `test_cases` checks."""
    parts = ["// The programs of tests/programs/test_semantics.py, which writes them here.\n"]
    for name in SEMANTICS:
        (step,) = corpus()[f"semantics/{name}"].graphs
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
