"""docs/tour.py, the toy weft: it runs, prints what its page shows, and names files that exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

TOUR = ROOT / "docs" / "tour.py"
PAGE = ROOT / "docs" / "internals" / "tour.md"
TEXT = TOUR.read_text(encoding="utf-8")
#: Number, heading and text of each chapter.
CHAPTERS = re.findall(r"^# ---- (\d+)\. ([^\n]+)\n(.*?)(?=^# ---- |\Z)", TEXT, re.M | re.S)
FUSED = """\
  %0, %1 = fused(%w, %x, %y) {kind="multiply_multiply_add_sqrt_divide"} : f32[], f32[] {
    ^(%a0: f32[], %a1: f32[1000], %a2: f32[1000])
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    environment |= {"WEFT_CACHE": "0", "PYTHONPATH": str(ROOT)}
    folder: Path = tmp_path_factory.mktemp("tour")
    done = subprocess.run(
        [sys.executable, str(TOUR)], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


def test_prints_graphs_and_results(said: str) -> None:
    heads = re.findall(r"^graph @(\w+)\(%w: f32\[\], .* stage=(\w+) \{$", said, re.M)
    ours = [("loss", "traced"), ("loss", "optimized"), ("loss", "fused")]
    assert heads == [*ours, ("value_and_gradient", "fused")]
    assert FUSED in said
    assert "    yield %10, %27\n  }\n" in said
    assert "backwards: op 'multiply' reads a value that is not defined before it" in said
    assert re.findall(r"^(\d+)\. (.*)$", said, re.M) == [(n, name) for n, name, _ in CHAPTERS]


def test_prints_what_the_page_shows(said: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)
    shown = [block for language, block in blocks if not language]
    assert len(shown) == 4
    for block in shown:
        assert f"\n{block}" in said
    assert len(page.split()) <= 300


def test_the_training_gets_somewhere(said: str) -> None:
    losses = [float(x) for x in re.findall(r"^([\d.]+) after \d+ steps$", said, re.M)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 100


def test_each_chapter_names_files_that_are_there() -> None:
    assert [int(number) for number, _, _ in CHAPTERS] == list(range(1, 11))
    for _, name, text in CHAPTERS[:-1]:
        pointers = re.findall(r"`(weft/[\w/.]+)`", text.split("\n# In weft: ")[1])
        assert pointers, name
        assert [path for path in pointers if not (ROOT / path).exists()] == [], name


def test_needs_weft_only_in_the_last_chapter() -> None:
    first = TEXT[: TEXT.index("# ---- 10.")].count("\n") + 1
    early: set[str] = set()
    for node in ast.walk(ast.parse(TEXT)):
        if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno < first:
            module = getattr(node, "module", None)
            names = [module] if module else [alias.name for alias in node.names]
            early |= {name.partition(".")[0] for name in names}
    assert early - sys.stdlib_module_names == {"llvmlite", "numpy"}


def test_is_short() -> None:
    assert 450 <= len(TEXT.splitlines()) <= 750
