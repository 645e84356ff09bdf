"""CONTRIBUTING.md and README.md are true: recipes name real files, commands are one line."""

import ast
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest
from paths import ROOT

from weft.ir.ops.resources import QUEUE_TABLE, RESOURCE_TABLE

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text of CONTRIBUTING.md under `## title`."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", CONTRIBUTING, re.M | re.S)
    assert found, f"CONTRIBUTING.md has no section '{title}'"
    return found[1]


def file_lists(title: str) -> list[list[str]]:
    """The bullet lists of a section, each as the file that opens each of its bullets."""
    blocks = re.findall(r"(?:^- .*\n(?:  .*\n)*)+", section(title), re.M)
    lists = [re.findall(r"^- `([^`]+)`", block, re.M) for block in blocks]
    assert all(
        len(files) == block.count("\n- ") + 1 for files, block in zip(lists, blocks, strict=True)
    )
    return lists


def readme_command(name: str) -> str:
    """The one line in the fenced block under `<!-- command: name -->` in README.md."""
    block = re.search(rf"<!-- command: {name} -->\n```sh\n(.*?)```", README, re.S)
    assert block, f"README.md has no command '{name}'"
    lines = block[1].splitlines()
    assert len(lines) == 1, f"the command '{name}' is not one line: {lines}"
    return lines[0]


@pytest.mark.parametrize("title", ["Add an op", "Add a pass"])
def test_recipes_name_real_files(title: str) -> None:
    """`*` and NAME stand for a family or a name: at least one such file must exist."""
    lists = file_lists(title)
    assert lists
    missing = [
        path for files in lists for path in files if not list(ROOT.glob(path.replace("NAME", "*")))
    ]
    assert not missing, f"'{title}' names files that are not there: {missing}"


@cache
def names_in(path: Path) -> set[str]:
    """The functions that a file defines and the strings in its code: where rows of tables are."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return strings | {n.name for n in nodes if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("recipe", "op"),
    [
        (0, "hypot"),
        (0, "log1p"),
        (0, "sigmoid"),
        (1, "matmul"),
        (1, "take"),
        (1, "sort"),
        (2, "enqueue_many"),
        (2, "barrier_take_many"),
        (2, "table_insert"),
    ],
)
def test_op_recipes_are_complete(recipe: int, op: str) -> None:
    """Ops that are there now have their row in each place that their recipe names."""
    lists = file_lists("Add an op")
    assert len(lists) == 3, "one list for elementwise ops, for structural ops, for host ops"
    without = [
        pattern
        for pattern in lists[recipe]
        if "/kernels/" not in pattern  # a kernel's name is its own: several ops may share it
        and not any(op in names_in(path) for path in ROOT.glob(pattern))
    ]
    assert not without, f"'{op}' is not in {without}"


def test_ops_on_resources_are_written_nowhere_else() -> None:
    """Two tables and the public method: no engine has a list of them, no other caller its own
    way."""
    rows, does, public = file_lists("Add an op")[2]
    allowed = {
        *ROOT.glob(does),
        *ROOT.glob(public),
        *(ROOT / "weft/runtime/resources").glob("*.py"),
    }
    allowed.add(ROOT / rows)
    names = {s.name for s in (*QUEUE_TABLE, *RESOURCE_TABLE) if "host" in s.traits}
    said = re.compile("|".join(names))
    others = [p for p in (ROOT / "weft").rglob("*.py") if p not in allowed]
    found = {p.name: names & names_in(p) for p in others if said.search(p.read_text("utf-8"))}
    assert found
    assert not {name: ops for name, ops in found.items() if ops}


def test_pass_recipe_is_complete() -> None:
    """Every pass module that pipelines.py imports has the golden cases that the recipe asks for."""
    pass_file, pipelines, cases = file_lists("Add a pass")[0]
    tree = ast.parse((ROOT / pipelines).read_text(encoding="utf-8"))
    imported = [
        (node.module.replace(".", "/"), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.startswith("weft.passes.")
        and node.module != "weft.passes.manager"
        for alias in node.names
    ]
    assert imported
    files = set(ROOT.glob(pass_file.replace("NAME", "*")))
    assert all(ROOT / f"{module}.py" in files for module, _ in imported)
    without = [name for _, name in imported if not (ROOT / cases.replace("NAME", name)).is_file()]
    assert not without, f"passes without golden cases: {without}"


@pytest.mark.parametrize("name", ["run", "test"])
def test_readme_commands_need_only_python_and_pip(name: str) -> None:
    """One line that makes its own environment and starts nothing that it has not installed."""
    line = readme_command(name)
    assert not line.endswith("\\")
    commands = [shlex.split(part) for part in line.split("&&")]
    assert commands[0][:3] == ["python3", "-m", "venv"]
    environment = commands[0][3]
    assert all(words[0].startswith(f"{environment}/bin/") for words in commands[1:])
    assert commands[1][1] == "install"


def test_readme_commands_do_what_they_are_for() -> None:
    assert readme_command("run").endswith("examples/digits.py")
    assert "-m pytest" in readme_command("test")


def test_ci_runs_the_readme_commands() -> None:
    """CI reads its commands from README.md and gets these very lines."""
    listed = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run"), "--list"], capture_output=True, text=True, check=True
    )
    assert listed.stdout.splitlines() == [readme_command("run"), readme_command("test")]
