"""Gates on the tree itself: sizes, docstrings, import arrows, what `import weft` may load."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from paths import ROOT

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60

# Exceptions to the size limits, each with the reason why the longer form is the clearer one.
# Keys: "weft/dir/file.py" for a file, "weft/dir/file.py:function" for a function.
LONG: dict[str, str] = {
    "weft/ir/text/parser.py": "one grammar, from dimensions to graphs",
    "weft/runtime/device/backends/cuda.py": "a device: streams, memory, copies, recordings",
}

SOURCES = sorted((ROOT / "weft").rglob("*.py"))

# Spelled in two halves, or this file would find itself.
NOTE_TO_SELF = re.compile(r"\b(TO" + r"DO|FIX" + r"ME)\b")


def name_of(path: Path) -> str:
    """The path as people write it: relative to the root, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        if not isinstance(node, ast.expr):  # most nodes of a file are expressions
            yield from functions(node)


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end of the body, docstring included, decorators not."""
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


class Facts(NamedTuple):
    """Of a source: its docstring, its functions as (line, name, lines), what the module assigns
    to."""

    doc: str
    functions: list[tuple[int, str, int]]
    assigned: list[str]


@cache
def facts_of(path: Path) -> Facts:
    """Each source is parsed once for all tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [(node.lineno, node.name, function_lines(node)) for node in functions(tree)]
    return Facts(ast.get_docstring(tree) or "", found, list(names_of_module(tree)))


def tree_files() -> list[Path]:
    """The text files that people write, without caches and environments."""
    found = [p for p in ROOT.iterdir() if p.suffix in {".md", ".toml"}]
    found += [ROOT / ".ci" / "run", ROOT / ".ci" / "lines"]
    for folder in ("weft", "tests", "benchmarks", "examples", "docs"):
        found += [
            p
            for p in (ROOT / folder).rglob("*")
            if p.suffix in {".py", ".md", ".toml", ".weft", ".txt", ".sh"}
        ]
    return sorted(found)


def test_package_is_found() -> None:
    """The gates below run over something."""
    assert len(SOURCES) > 10


def test_files_are_short() -> None:
    lines = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    long = [f"{p}: {n} lines" for p, n in lines.items() if n >= MAX_FILE_LINES and p not in LONG]
    assert not long, "\n".join(
        ["more than one idea? split these, or give a reason in LONG:", *long]
    )


def test_functions_are_short_and_modules_have_docstrings() -> None:
    long, bare = [], []
    for path in SOURCES:
        facts, name = facts_of(path), name_of(path)
        long += [
            f"{name}:{line} {function}: {lines} lines"
            for line, function, lines in facts.functions
            if lines >= MAX_FUNCTION_LINES and f"{name}:{function}" not in LONG
        ]
        bare += [] if facts.doc else [name]
    assert not long, "\n".join(["split these, or give a reason in LONG:", *long])
    assert not bare, "\n".join(["these do not say what they are for:", *bare])


def names_of_module(tree: ast.Module) -> Iterator[str]:
    """What statements of the module itself assign to, each time; "_" aside."""
    for statement in tree.body:
        given = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else given
        for node in (node for target in targets for node in ast.walk(target)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id != "_":
                yield node.id


def test_a_module_assigns_to_a_name_once() -> None:
    """Two thresholds of one name were each other's values, which no type checker minds."""
    for path in SOURCES:
        names = facts_of(path).assigned
        assert sorted(names) == sorted(set(names)), name_of(path)
    assert [*names_of_module(ast.parse("A, b = 1, 2\nfor c in b: pass\nA: int = 3"))] == [
        "A", "b", "A",
    ]  # fmt: skip


def test_exceptions_are_still_needed() -> None:
    """An entry of LONG goes when its file or function is short, moved or gone."""
    long: set[str] = set()
    named = {entry.partition(":")[0] for entry in LONG}
    for path in SOURCES:
        if name_of(path) not in named:
            continue
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) >= MAX_FILE_LINES:
            long.add(name_of(path))
        long |= {
            f"{name_of(path)}:{function}"
            for _, function, lines in facts_of(path).functions
            if lines >= MAX_FUNCTION_LINES
        }
    assert set(LONG) <= long, f"not long any more: {sorted(set(LONG) - long)}"
    assert all(LONG.values()), "every exception needs its reason"


def test_pages_and_sources_name_files_that_are_there() -> None:
    """A page, docstring or comment names a file by the end of its path, a folder from the root on,
    in lower case.
    """
    files = [name_of(path) for path in tree_files()]
    gone = [
        f"{name_of(page)}:{number}: {named}"
        for page in tree_files()
        if page.suffix == ".md" or page in SOURCES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for named in re.findall(r"`([\w/]+\.py|(?:weft|tests)/[a-z_/.]+)`", line)
        if not any(f"/{file}".endswith(f"/{named}") for file in files)
        if not (ROOT / named).exists()
    ]
    assert not gone, "\n".join(gone)


def test_files_of_tests_have_names_of_their_own_and_import_no_test_file() -> None:
    """They are imported by these names alone; what two of them need is in tests/support."""
    files = [p for p in (ROOT / "tests").rglob("*.py") if p.parent.name != "snapshot"]
    names = [p.stem for p in files]
    assert len(set(names)) == len(names), sorted(n for n in set(names) if names.count(n) > 1)
    wrong = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r"\s*(from|import) test_", line)
    ]
    assert not wrong, "\n".join(wrong)


def folder_table() -> str:
    """The folders of `weft/` with the first paragraph of their docstrings, as a Markdown table."""
    rows = ["| folder | what it is |", "|---|---|"]
    for path in sorted((ROOT / "weft").rglob("__init__.py"), key=lambda p: p.parent.parts):
        first = " ".join(facts_of(path).doc.split("\n\n")[0].split())
        rows.append(f"| `{name_of(path.parent)}` | {first} |")
    return "\n".join(rows)


def test_a_page_lists_the_folders(update: bool) -> None:
    """docs/internals/folders.md has the folders as they are; `--update` writes them there."""
    page = ROOT / "docs" / "internals" / "folders.md"
    text = page.read_text(encoding="utf-8")
    start, end = "<!-- folders -->\n", "\n<!-- end of folders -->"
    before, rest = text.split(start)
    after = rest.split(end)[1]
    if update:
        page.write_text(f"{before}{start}{folder_table()}{end}{after}", encoding="utf-8")
    else:
        assert rest.split(end)[0] == folder_table(), "pytest tests/docs/test_layout.py --update"


def test_the_menu_has_each_page() -> None:
    """As building the site wants it (test_site.py, where there is a browser)."""
    menu = re.findall(r"^ +- (?:.+: )?(\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    folders = tuple(name for name in menu if name.endswith("/"))
    assert "decisions/" in folders
    missing = [name for name in pages if name not in menu and not name.startswith(folders)]
    assert not missing, f"mkdocs.yml, nav: {missing}"


def test_no_notes_to_self() -> None:
    """What is left to do is an issue or a sentence in the docs, never a mark in the code."""
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in tree_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NOTE_TO_SELF.search(line)
    ]
    assert not found, "\n".join(found)


def test_import_loads_no_compiler() -> None:
    """`import weft` is quick: the compiler comes with the first compile, sockets with comm."""
    heavy = ("numba", "zmq", "matplotlib", "sklearn", "jax", "torch")
    code = (
        "import sys, weft\n"
        f"print(*sorted({{m.partition('.')[0] for m in sys.modules}} & set({heavy!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], f"`import weft` loads {done.stdout.strip()}"


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with the contracts of pyproject.toml on the package `weft` in `root`."""
    code = (
        "import sys; sys.path.insert(0, '.'); "
        "from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_arrows() -> None:
    """frontend -> runtime -> passes | codegen | comm -> ir, and the folders of each among them;
    imports inside functions too."""
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 10 kept, 0 broken." in done.stdout


#: A wrong import by the file that it is in, what of it import-linter says, and the contract.
WRONG = [
    ("ir/a.py", "import weft.runtime", "weft.ir.a -> weft.runtime", "arrows point down"),
    ("passes/b.py", "from weft.codegen import y", "weft.passes.b -> weft.codegen.y",
     "arrows point down"),
    ("codegen/c.py", "def f():\n    import weft.frontend", "weft.codegen.c -> weft.frontend",
     "arrows point down"),
    ("ir/d.py", "import weft", "weft.ir.d -> weft", "arrows point down"),  # it imports frontend
    ("ir/e.py", "import numba", "weft.ir.e -> numba", "ir and passes know no backend"),
    ("passes/f.py", "def f():\n    import zmq", "weft.passes.f -> zmq",
     "ir and passes know no backend"),
    ("passes/g.py", "from llvmlite import ir", "weft.passes.g -> llvmlite",
     "ir and passes know no backend"),
    ("comm/h.py", "import weft.ir", "weft.comm.h -> weft.ir",
     "comm moves bytes and knows no graph"),
    ("frontend/core/i.py", "import weft.frontend.ops", "weft.frontend.core.i -> weft.frontend.ops",
     "folders of frontend"),
    ("runtime/native/j.py", "import weft.runtime.dataflow",
     "weft.runtime.native.j -> weft.runtime.dataflow", "folders of runtime"),
    ("runtime/device/backends/k.py", "import weft.runtime.device.planning",
     "weft.runtime.device.backends.k -> weft.runtime.device.planning", "folders of runtime.device"),
    ("codegen/nests/l.py", "import weft.codegen.products",
     "weft.codegen.nests.l -> weft.codegen.products", "folders of codegen"),
    ("codegen/cuda/nests/m.py", "import weft.codegen.cuda.kernels",
     "weft.codegen.cuda.nests.m -> weft.codegen.cuda.kernels", "folders of codegen.cuda"),
    ("passes/fusion/n.py", "import weft.passes.autodiff",
     "weft.passes.fusion.n -> weft.passes.autodiff", "folders of passes"),
    ("ir/ops/o.py", "import weft.ir.text", "weft.ir.ops.o -> weft.ir.text", "folders of ir"),
]  # fmt: skip


def empty_tree(root: Path, files: Mapping[str, str]) -> None:
    """A package `weft` of empty folders as they are here, with these files."""
    package = root / "weft"
    for path in (ROOT / "weft").rglob("__init__.py"):
        (package / path.parent.relative_to(ROOT / "weft")).mkdir(parents=True, exist_ok=True)
    for file in files:
        (package / file).parent.mkdir(exist_ok=True)
    for folder in (package, *package.rglob("*/")):
        (folder / "__init__.py").touch()
    (package / "__init__.py").write_text("import weft.frontend\n", encoding="utf-8")
    for file, text in {
        "codegen/y.py": "",
        "runtime/native/y.py": "",
        "runtime/compile_step.py": "",
        "runtime/local_devices.py": "",
        "runtime/mesh.py": "",
        "runtime/step.py": "",
        "runtime/step_kernels.py": "",
        "runtime/plan_store.py": "",
        "runtime/progress.py": "",
        "runtime/sized_step.py": "",
        "runtime/recorder.py": "",
        "runtime/run_log.py": "",
        "codegen/cuda/lowerings.py": "",
        "passes/in_place.py": "",
        "passes/sizes.py": "",
        # the arrows that pyproject.toml allows
        "ir/graph.py": "from weft.ir.text import printer\nfrom weft.ir.drawing import notebook",
        "ir/text/printer.py": "",
        "ir/drawing/notebook.py": "",
        **files,
    }.items():
        (package / file).write_text(text + "\n", encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", root)


def test_arrows_bite(tmp_path: Path) -> None:
    """In a tree of empty packages each wrong import is told, by the contract meant for it."""
    empty_tree(tmp_path, {module: statement for module, statement, _, _ in WRONG})
    done = lint_imports(tmp_path)
    assert done.returncode != 0, done.stdout
    told = re.split(r"\n([\w. ]+)\n-+\n", done.stdout.split("Broken contracts")[1])
    said = dict(zip(told[1::2], told[2::2], strict=True))
    assert said.keys() == {contract for *_, contract in WRONG}
    for module, _, says, contract in WRONG:
        assert re.search(rf"{re.escape(says)} \(", said[contract]), (module, said[contract])


@pytest.mark.parametrize(
    ("module", "broken"),
    [("extra/x.py", "arrows point down"), ("frontend/extra/x.py", "folders of frontend")],
)
def test_a_folder_needs_a_place(tmp_path: Path, module: str, broken: str) -> None:
    empty_tree(tmp_path, {module: ""})
    done = lint_imports(tmp_path)
    assert done.returncode != 0, done.stdout
    assert f"{broken} BROKEN" in done.stdout
    assert "9 kept, 1 broken." in done.stdout


def test_extras_that_are_named_can_be_installed() -> None:
    """Such as `weft[cuda13]` in an error or on a page: pip only warns of one that is not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        extra
        for path in tree_files()
        for extra in re.findall(r"\bweft\[(\w+)\]", path.read_text(encoding="utf-8"))
    }
    assert {"cuda", "cuda13", "cublas"} <= named
    assert sorted(named - project["optional-dependencies"].keys()) == []
