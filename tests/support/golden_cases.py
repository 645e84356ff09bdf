"""The files of tests/cases: read, and rewritten by `pytest --update`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "// ----\n"


@dataclass
class Case:
    """One case of a file: its name, passes, head (comments), input text and expected text."""

    name: str
    passes: str
    head: str
    source: str
    expected: str

    def text(self, output: str) -> str:
        return f"{self.head}{self.source}{SEPARATOR}{output}"


def read_cases(text: str) -> tuple[str, list[Case]]:
    """The text before the first case, and the cases."""
    preface, *parts = re.split(r"^(?=// case: )", text, flags=re.MULTILINE)
    return preface, [read_case(part) for part in parts]


def read_case(text: str) -> Case:
    """The case that starts with `// case: `."""
    body, separator, expected = text.partition(SEPARATOR)
    lines = body.splitlines(keepends=True)
    count = next((i for i, line in enumerate(lines) if not line.startswith("// ")), len(lines))
    head = "".join(lines[:count])
    keys = dict(re.findall(r"^// (case|passes):[ ]*(.*)$", head, flags=re.MULTILINE))
    if not separator:
        raise ValueError(f"case {keys['case']} has no '// ----'")
    return Case(
        keys["case"], keys.get("passes", ""), head, "".join(lines[count:]), expected.rstrip() + "\n"
    )


def rewrite(path: Path, case: Case, output: str) -> None:
    """Replace the expected text of one case in its file."""
    preface, cases = read_cases(path.read_text("utf-8"))
    texts = [c.text(output if c.name == case.name else c.expected) for c in cases]
    path.write_text(preface + "\n".join(texts), encoding="utf-8")
