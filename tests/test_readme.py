"""What the README and the docs show is what happens."""

from __future__ import annotations

import re
from pathlib import Path

from weft.ir.parser import parse_graph
from weft.ir.printer import print_graph
from weft.ir.verify import verify

README = Path(__file__).parents[1] / "README.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 4
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)


def test_graph_in_the_docs_is_canonical_text() -> None:
    page = (README.parent / "docs" / "ir.md").read_text()
    (text,) = re.findall(r"```weft\n(.*?)```", page, re.DOTALL)
    graph = parse_graph(text)
    verify(graph)
    assert print_graph(graph) == text
