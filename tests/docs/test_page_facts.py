"""What pages say of names, numbers, files and commands is so."""

from __future__ import annotations

import builtins
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pages import DOCS
from paths import ROOT

import weft as wf
from weft.codegen.cuda.cubins.toolchain import Library, Toolchain
from weft.comm import wire
from weft.comm.limits import FRAME_BYTES, KIB, MIB, Limits
from weft.comm.link import INLINE_BYTES
from weft.frontend.session.session import Session
from weft.frontend.tools.main import make_parser
from weft.ir.analysis.verify import verify
from weft.ir.errors import ToolchainError
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.runtime.cluster import definition, master
from weft.runtime.cluster.spec import CONNECT_TIMEOUT, Cluster

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
#: Names that pages say are not weft's, by the page.
NOT_THERE = {
    "docs/coming-from.md": {"pmap", "concatenate", "nn.Linear"},
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def is_there(dotted: str) -> bool:
    """Whether `wf.DOTTED` is a name; what an instance has is not known here."""
    owner: Any = wf
    for part in dotted.split("."):
        if not (owner is wf or inspect.ismodule(owner) or inspect.isclass(owner)):
            return True
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = set(re.findall(r"(?<![\w/])wf\.(\w+(?:\.\w+)*)", text)) - {"NAME"}
    missing = {name for name in found if not is_there(name)}
    assert missing == NOT_THERE.get(name_of(page), set())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_errors(page: Path) -> None:
    found = set(re.findall(r"`(\w+Error)`", page.read_text(encoding="utf-8")))
    assert {n for n in found if not (hasattr(wf.errors, n) or hasattr(builtins, n))} == set()


def test_reference() -> None:
    """A page for each public module, but `wf.tf1`, whose names have first ones."""
    modules = ["image", "strings", "sparse", "onnx",
               "nn", "losses", "metrics", "initializers", "linalg", "fft", "random", "train",
               "data", "lookup", "summary", "testing", "errors"]  # fmt: skip
    shown = {"wf", *modules}
    others = {"ir", "array-api", "numerics", "error-bounds", "reproducibility", "gpu-ops", "tools"}
    assert {p.stem for p in (DOCS / "reference").glob("*.md")} == shown | others
    assert shown | {"tf1"} == {"wf", "tf1", *(n for n in wf.__all__ if n in modules)}
    for name in modules:
        assert f"\n::: {getattr(wf, name).__name__}\n" in text_of(f"reference/{name}.md")


def test_tools() -> None:
    """Commands, variables and options are those that there are."""
    page = text_of("reference/tools.md")
    commands = set(re.findall(r"`weft (\w+)", page))
    assert commands == set(re.findall(r"^    (\w+) ", make_parser().format_help(), re.MULTILINE))
    sources = "".join(p.read_text() for p in (ROOT / "weft").rglob("*.py"))
    variables = set(re.findall(r"`(WEFT_\w+)", page))
    assert len(variables) > 8
    assert [v for v in sorted(variables) if f'"{v}"' not in sources] == []
    table = page.split("## Options of `wf.compile`")[1]
    options = {
        o for row in re.findall(r"^\| (`.*?) \|", table, re.M) for o in re.findall(r"`(\w+)=", row)
    }
    parameters = set(inspect.signature(wf.compile).parameters) - {"fn"}
    assert options == parameters


def test_clusters() -> None:
    text = text_of("guide/cluster.md")
    (command,) = re.findall(r"^weft (worker .*?) +#", text, re.MULTILINE)
    args = make_parser().parse_args(command.split())
    assert (args.cluster, args.job, args.task) == ("cluster.json", "ps", 0)
    options = {f.name for f in fields(Cluster)} - {"target"}
    assert not options & set(Session.__init__.__kwdefaults__)
    rows = re.findall(r"^\| `(\w+)=.*?`(?:, `(\w+)=)?", text, re.MULTILINE)
    assert {name for row in rows for name in row if name} == options
    assert f"connect_timeout={CONNECT_TIMEOUT:g}" in text
    assert f"looks for it for {master.RECONNECT_SECONDS:g} s" in text
    assert f"waits up to {definition.GRACE_SECONDS:g} s" in text
    assert f"after {definition.STALL_SECONDS:g} s" in text


def test_numbers_of_the_transport() -> None:
    limits = Limits()
    assert wire.HEADER.size == 48
    assert wire.META_BYTES == 60 * KIB
    assert (limits.eager_bytes, INLINE_BYTES) == (256 * KIB, 64 * KIB)
    assert FRAME_BYTES == MIB + 128 * KIB
    assert (limits.heartbeat_timeout_s, limits.silence_s) == (3.0, 30.0)


def test_files_of_the_transport() -> None:
    text = text_of("internals/comm.md")
    folder = Path(wire.__file__).parent
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py", "errors.py"}
    assert {name for name in files if f"`{name}`" not in text} == set()


def test_graphs_are_canonical_text() -> None:
    text = text_of("reference/ir.md") + text_of("internals/switch-merge.md")
    texts = re.findall(r"```weft\n(.*?)```", text, re.DOTALL)
    assert len(texts) == 2
    for text in texts:
        graph = parse_graph(text)
        verify(graph)
        assert print_graph(graph) == text


def test_the_error_of_an_old_driver() -> None:
    libdevice, nvjitlink = (Library(name, "...", "13.0.88") for name in ("libdevice", "nvJitLink"))
    found = Toolchain("", libdevice, nvjitlink, (13, 0))
    with pytest.raises(ToolchainError) as caught:
        found.check(driver=(12, 8))
    assert caught.value.what in text_of("guide/gpu-deploy.md")


def test_which_optimizers_are_lazy() -> None:
    """sparse.md said of LazyAdam that it is not there."""
    text = text_of("guide/sparse.md")
    kinds = [
        kind for kind in (getattr(wf.train, name) for name in dir(wf.train))
        if inspect.isclass(kind) and issubclass(kind, wf.train.Optimizer)
    ]  # fmt: skip
    lazy = {k.__name__ for k in kinds if "lazy" in inspect.signature(k).parameters}
    (there,) = re.findall(r"With `lazy=True` the formula of (.*?) is applied", text)
    (not_there,) = re.findall(r"\* `lazy=True` of (.*)", text)
    assert set(re.findall(r"`(\w+)`", there)) == lazy
    others = {"SGD", "Adagrad", "LBFGS", "Optimizer"}  # of rows as they are; of whole variables
    wrappers = {"GradientAccumulation", "LossScaling", "SyncReplicas"}
    rest = {k.__name__ for k in kinds if not k.__name__.startswith("_")} - lazy - others - wrappers
    assert set(re.findall(r"`(\w+)`", not_there)) == rest
