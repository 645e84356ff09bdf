"""docs/decisions: each record has the form that its index asks for, and names what is there."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from paths import ROOT

FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(p for p in FOLDER.glob("*.md") if p.name != "index.md")
INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")
MOST_WORDS = 500
STATUS = re.compile(
    r"^Status: (?:(in force|tried and dropped)|superseded by \[(\d{4})\]\((\d{4}-[\w-]+\.md)\))",
    re.MULTILINE,
)
FILE = re.compile(r"`([\w./-]+\.(?:py|json|c)|(?:weft|tests|benchmarks|docs|examples)/[\w./-]+)`")


def name_of(page: Path) -> str:
    return page.stem


def date_of(text: str) -> date:
    """The first date of a record's third line."""
    found = re.match(r"# [^\n]+\n\nDate: (\d{4}-\d\d-\d\d)\b[^\n]*\nStatus: ", text)
    assert found is not None, "# Title, an empty line, Date: YYYY-MM-DD ..., Status: ..."
    return date.fromisoformat(found[1])


def test_numbers_are_consecutive() -> None:
    assert [p.name[:5] for p in RECORDS] == [f"{n:04d}-" for n in range(1, len(RECORDS) + 1)]
    dates = [date_of(p.read_text(encoding="utf-8")) for p in RECORDS]
    assert dates == sorted(dates)


@pytest.mark.parametrize("page", RECORDS, ids=name_of)
def test_form(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    date_of(text)
    status = STATUS.search(text)
    assert status is not None, "in force, tried and dropped, or superseded by [NNNN](NNNN-slug.md)"
    if status[3] is not None:
        assert status[3].startswith(status[2])
        assert (FOLDER / status[3]).exists()
    parts = [text.find(f"\n**{name}**") for name in ("Problem", "Decision", "Measured")]
    assert -1 not in parts
    assert parts == sorted(parts)
    assert len(text.split()) <= MOST_WORDS


@pytest.mark.parametrize("page", RECORDS, ids=name_of)
def test_files_are_there(page: Path) -> None:
    """A file is named by its path from the root, or beside one that is."""
    text = page.read_text(encoding="utf-8")
    named = FILE.findall(text)
    folders = {ROOT, *(ROOT / name for name in named), *((ROOT / n).parent for n in named)}
    gone = [n for n in named if not any((folder / n).exists() for folder in folders)]
    assert gone == []


def test_index_has_each_record_once() -> None:
    """With the record's status unless it is in force."""
    rows = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \| [^|]+ \| ([^|]*)\|$", INDEX, re.MULTILINE)
    assert sorted(row[1] for row in rows) == [p.name for p in RECORDS]
    for number, name, said in rows:
        text = (FOLDER / name).read_text(encoding="utf-8")
        status = STATUS.search(text)
        assert status is not None
        assert number == name[:4]
        wanted = status[1] or f"superseded by [{status[2]}]"
        assert said.startswith("" if wanted == "in force" else wanted)
        assert bool(said.strip()) == (wanted != "in force")
