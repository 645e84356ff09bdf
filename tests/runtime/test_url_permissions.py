"""Graphs that are bound to folders, and files named by URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.ir.errors import PermissionDeniedError
from weft.ir.text.parser import parse_graph
from weft.runtime.files.permissions import confined, grant


def test_a_folder_of_the_system_holds_no_url(tmp_path: Path, monkeypatch: Any) -> None:
    """The name "s3://x" as a path of the system would lie in the present folder."""
    monkeypatch.chdir(tmp_path)
    for url in ("s3://bucket/a", "memory://a", "file:///etc/passwd", f"file://{tmp_path}/a"):
        with pytest.raises(PermissionDeniedError):
            confined(url, [str(tmp_path)])


def test_a_url_holds_what_begins_with_it() -> None:
    within = ["s3://bucket/data"]
    for fine in ("s3://bucket/data", "s3://bucket/data/a/b.csv"):
        assert confined(fine, within) == fine
    for bad in (
        "s3://bucket/database", "s3://bucket/data/../x", "s3://other/data/a", "/s3://bucket/data/a",
        "s3://bucket/data/a::file:///etc/passwd", "s3://bucket/data/%2e%2E/x", "s3://bucket",
    ):  # fmt: skip
        with pytest.raises(PermissionDeniedError):
            confined(bad, within)


def test_folders_that_a_graph_was_bound_to() -> None:
    text = (
        "graph @g(%s: string[]) -> () stage=traced {{\n"
        "  %0 = read_file(%s) {{within=[{}]}} : string[]\n  return\n}}\n"
    )

    def bound(within: str, *allowed: str) -> Any:
        graph = grant(parse_graph(text.format(within)), allowed)
        return graph.ops[0].attrs["within"]

    assert bound('"s3://bucket/data/"', "s3://bucket", "/tmp") == ("s3://bucket/data",)
    assert bound('"s3://bucket"', "s3://bucket/data/") == ("s3://bucket/data",)
    for within, allowed in (('"/tmp"', "s3://bucket"), ('"s3://bucket"', "/tmp")):
        with pytest.raises(PermissionDeniedError, match="uses files in"):
            bound(within, allowed)
