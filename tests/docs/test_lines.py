"""`.ci/lines`: files and lines of folders, the change against a commit, and trees without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with the program in it, and no history."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "lines", tmp_path / ".ci")
    write(tmp_path, "weft/ir/ops/deep/a.py", 3)
    write(tmp_path, "weft/ir/graph.py", 5)
    write(tmp_path, "weft/ir/__init__.py", 0)
    write(tmp_path, "tests/gpu/kernels/test_a.py", 7)
    write(tmp_path, "tests/picture.png", 9)
    return tmp_path


def write(root: Path, name: str, lines: int) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("x\n" * lines)


def environment() -> dict[str, str]:
    """One in which git looks at no repository above the tree's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return kept | {"GIT_CEILING_DIRECTORIES": "/", "GIT_CONFIG_GLOBAL": os.devnull}


def lines(root: Path, *given: str, status: int = 0, path: str | None = None) -> dict[str, str]:
    """The rows that it prints, by folder; "" is the first line."""
    done = subprocess.run(
        [sys.executable, str(root / ".ci" / "lines"), *given], capture_output=True, text=True,
        env=environment() | ({"PATH": path} if path is not None else {}), check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    first, *rows = done.stdout.splitlines() or [done.stderr.strip()]
    return {"": first} | {row[:32].strip(): " ".join(row[32:].split()) for row in rows}


ALONE = {
    "tests, all of it": "1 files 7 lines", "tests/gpu": "1 files 7 lines",
    "weft, all of it": "3 files 8 lines", "weft/ir": "2 files 5 lines",
    "weft/ir/ops": "1 files 3 lines",
}  # fmt: skip


@pytest.mark.parametrize("path", [None, "/nowhere"], ids=["no repository", "no git"])
def test_counts_alone(tree: Path, path: str | None) -> None:
    assert lines(tree, path=path) == {"": "without a commit to compare with", **ALONE}


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_change(tree: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tree), *who, *words]
        subprocess.run(command, check=True, capture_output=True, env=environment())

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    assert lines(tree)[""] == "without a commit to compare with"
    assert lines(tree, "HEAD") == {"": "change against HEAD", **ALONE}
    assert lines(tree, "HEAD~1", status=2)[""] == "there is no commit 'HEAD~1' here"
    git("tag", "start")
    (tree / "weft/ir/ops/deep/a.py").unlink()
    write(tree, "weft/passes/b.py", 4)
    write(tree, "tests/gpu/kernels/test_a.py", 2)
    git("add", "-A")
    git("commit", "-qm", "second")
    found = lines(tree)
    assert found == lines(tree, "start") | {"": "change against HEAD~1"}
    assert found["tests/gpu"] == "1 files 2 lines +0 files -5 lines"
    assert found["weft/ir"] == ALONE["weft/ir"]
    assert found["weft/ir/ops"] == "0 files 0 lines -1 files -3 lines"
    assert found["weft/passes"] == "1 files 4 lines +1 files +4 lines"
    assert found["weft, all of it"] == "3 files 9 lines +0 files +1 lines"
    git("update-ref", "refs/remotes/origin/main", "start")
    assert lines(tree) == found | {"": "change against origin/main"}
