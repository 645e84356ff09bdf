"""What the README and the docs show is what happens."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
from paths import ROOT

import weft as wf
from weft.codegen.llvm.jit import compile_count
from weft.frontend.tools.main import make_parser
from weft.ir.analysis.verify import verify
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

README = ROOT / "README.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)


def test_length() -> None:
    assert len(README.read_text().split()) <= 900


def test_tools_page() -> None:
    """Its commands, variables and options are those that there are."""
    page = (ROOT / "docs" / "reference" / "tools.md").read_text()
    commands = set(re.findall(r"`weft (\w+)", page))
    assert commands == set(re.findall(r"^    (\w+) ", make_parser().format_help(), re.MULTILINE))
    sources = "".join(p.read_text() for p in (ROOT / "weft").rglob("*.py"))
    variables = set(re.findall(r"`(WEFT_\w+)", page))
    assert len(variables) > 8
    assert [v for v in sorted(variables) if f'"{v}"' not in sources] == []
    table = page.split("## Options of `wf.compile`")[1]
    options = {
        o for row in re.findall(r"^\| (`.*?) \|", table, re.M) for o in re.findall(r"`(\w+)=", row)
    }
    parameters = set(inspect.signature(wf.compile).parameters) - {"fn"}
    assert options == parameters


def test_graph_in_the_docs_is_canonical_text() -> None:
    page = (README.parent / "docs" / "reference" / "ir.md").read_text()
    texts = re.findall(r"```weft\n(.*?)```", page, re.DOTALL)
    assert len(texts) == 2
    for text in texts:
        graph = parse_graph(text)
        verify(graph)
        assert print_graph(graph) == text


def test_another_batch_size_compiles_nothing_but_for_0_and_1() -> None:
    def loss(w: Any, x: Any) -> Any:
        return wf.sum(wf.nn.softmax(wf.nn.relu(x @ w)) ** 2)

    slope = wf.compile(wf.grad(loss))
    w = np.ones((8, 4), np.float32)

    def call(batch: int) -> int:
        """How many kernels a call compiles."""
        before = compile_count()
        slope(w, np.ones((batch, 8), np.float32))
        return compile_count() - before

    call(4)
    assert [call(batch) for batch in (2, 7, 129)] == [0, 0, 0]
    call(1)
    call(0)
    assert [call(batch) for batch in (1, 0, 5)] == [0, 0, 0]
