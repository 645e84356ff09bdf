"""What the site of docs/ holds besides docs/: CONTRIBUTING.md and the measured results, as pages.

Links between them and docs/ are those of the repository; here they become those of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
#: The page of the site that a file of the repository becomes.
PAGES = {"CONTRIBUTING.md": "contributing.md", "benchmarks/RESULTS.md": "results.md"}
_LINK = re.compile(r"\]\(((?!https?:)[^)#\s]+)")


def on_config(config: Any) -> None:
    """A folder in the menu (`decisions/`) stands for its pages, in order."""

    def pages(folder: str) -> list[str]:
        found = (ROOT / "docs" / folder).glob("*.md")
        return [f"{folder}{p.name}" for p in sorted(found, key=lambda p: (p.stem != "index", p))]

    def expanded(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: expanded(below) for title, below in entry.items()}
        if isinstance(entry, list):
            return [expanded(below) for below in entry]
        return pages(entry) if entry.endswith("/") else entry

    config.nav = expanded(config.nav)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for path, page in PAGES.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The links of a page, as they are in the repository, as they are on the site."""
    source = page.file.src_uri
    path = next((p for p, made in PAGES.items() if made == source), f"docs/{source}")
    up = "../" * source.count("/")

    def moved(match: re.Match[str]) -> str:
        target = (ROOT / path).parent.joinpath(match[1]).resolve()
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        if name == "README.md":
            return f"]({up}index.md"
        inside = name.removeprefix("docs/") if name.startswith("docs/") else PAGES.get(name)
        return match[0] if inside is None else f"]({up}{inside}"

    return _LINK.sub(moved, markdown)
