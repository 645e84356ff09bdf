"""Graphs that are bound to folders, and files named by URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.ir.errors import PermissionDeniedError
from weft.ir.text.parser import parse_graph
from weft.runtime.checkpoint.folder import restore_arrays, save_arrays
from weft.runtime.files import paths
from weft.runtime.files.decoding import bytes_array, matching_files
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
        "s3://bucket/data/..%2Fx", "s3://bucket/data/..%5cx", "s3://bucket/data/.\t./x",
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


@pytest.mark.parametrize("kind", ["file", "local"])
def test_links_in_urls_of_files_of_the_system(tmp_path: Path, kind: str) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a").write_bytes(b"")
    (inside / "link").symlink_to(outside)
    (tmp_path / "other").symlink_to(inside)
    within = grant_folders(f"{kind}://{inside}/")
    for fine in (f"{kind}://{inside}/a", f"{kind}://{tmp_path}/other/a"):
        assert confined(fine, within) == fine
    for bad in (f"{kind}://{inside}/link/a", f"{kind}://{inside}/../out/a", f"{inside}/a"):
        with pytest.raises(PermissionDeniedError):
            confined(bad, within)
    assert confined("file:///etc/passwd", grant_folders("file:///")) == "file:///etc/passwd"


def grant_folders(allowed: str) -> Any:
    text = (
        "graph @g(%s: string[]) -> () stage=traced {\n"
        "  %0 = read_file(%s) : string[]\n  return\n}\n"
    )
    return grant(parse_graph(text), allowed).ops[0].attrs["within"]


def test_what_is_not_allowed_reaches_no_file_system(tmp_path: Path, monkeypatch: Any) -> None:
    """To ask whether a file is there, too, is a connection, with the user's credentials."""

    def asked(url: Any) -> Any:
        raise AssertionError(f"a file system was asked about {url}")

    monkeypatch.setattr(paths, "file_system", asked)
    for within in ([str(tmp_path)], ["memory://a"]):
        for name in (b"sftp://host/x", b"memory://b/x", b"memory://a/x::sftp://host/y"):
            with pytest.raises(PermissionDeniedError):
                save_arrays(name, {}, within=within)
            with pytest.raises(PermissionDeniedError):
                restore_arrays(name, [], [], within)
            with pytest.raises(PermissionDeniedError):
                matching_files(bytes_array([name]), within)
    with pytest.raises(PermissionDeniedError):
        matching_files(bytes_array([b"memory://a/*::sftp://host/y"]), ["memory://a"])
