"""docs/internals: the life of a call is that of a real first call, the files named are there."""

import json
import os
import re
import subprocess
import sys

import pytest
from paths import ROOT, SUPPORT

INTERNALS = ROOT / "docs" / "internals"
PAGE = INTERNALS / "architecture.md"
#: `file.py` `function`, or `folder/` and `file.py` for what is passed through.
NAMED = re.compile(r"`([\w/]+(?:\.py|/))`(?: `([\w.]+)`)?")


def stops_of(name: str) -> tuple[int, list[list[tuple[str, str]]]]:
    """How many stops a table of the page has; the (file, function) that each of its rows names."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.split(f"<!-- walk: {name} -->\n")[1].split("<!-- end of walk -->")[0]
    rows = [line.split("|") for line in table.splitlines() if re.match(r"\| \d", line)]
    last = 0
    for row in rows:  # "12-19" is a row that sums up stops of another table
        first, _, end = row[1].strip().partition("-")
        assert int(first) == last + 1
        last = int(end or first)
    return last, [NAMED.findall(row[2]) for row in rows]


def first_entries(name: str) -> list[tuple[str, str, list[str]]]:
    command = [sys.executable, str(SUPPORT / "call_walk.py"), name]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    environment["WEFT_CACHE"] = "0"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.share(3)
@pytest.mark.parametrize(("name", "most"), [("compile", 13), ("session", 15), ("cluster", 22)])
def test_the_page_has_every_stop(name: str, most: int) -> None:
    """Each function named is entered, in the order of the table, and called through no other file.

    A stop is a row: one file, or the files of one folder that hand on to each other.
    """
    count, stops = stops_of(name)
    assert count <= most
    entries = first_entries(name)
    at = {(file, function): k for k, (file, function, _) in enumerate(entries)}
    named = [[x for x in row if x[1]] for row in stops]
    missing = [x for row in named for x in row if x not in at]
    assert not missing, f"not entered: {missing}"
    order = [at[row[0]] for row in named]
    wrong = [named[k + 1][0] for k in range(len(order) - 1) if order[k + 1] < order[k]]
    assert not wrong, f"entered before the row above: {wrong}"
    files = {file for row in stops for file, _ in row}
    passed = {file for row in named for x in row for file in entries[at[x]][2]}
    untold = [
        file
        for file in sorted(passed)
        if file not in files and not any(f.endswith("/") and file.startswith(f) for f in files)
    ]
    assert not untold, f"passed through, but in no row: {untold}"


@pytest.mark.parametrize("page", sorted(p.name for p in INTERNALS.glob("*.md")))
def test_files_named_are_there(page: str) -> None:
    """Each path in backticks is a file or folder of the tree, or the end of a path in weft/."""
    text = (INTERNALS / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", text))
    known = [f"/{p.relative_to(ROOT)}" for p in (ROOT / "weft").rglob("*")]
    missing = [
        path
        for path in sorted(named)
        if not (ROOT / path).exists() and not any(k.endswith(f"/{path.strip('/')}") for k in known)
    ]
    assert not missing, missing
