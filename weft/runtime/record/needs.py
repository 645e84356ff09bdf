"""What of the user's the program of a record needs in a process that runs it again: registered ops,
functions of numbers (`wf.elementwise`, `wf.reducer`), kernels. A record names them, with the module
and the file that they are in; it holds no code of theirs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from weft.codegen.kernels.user_kernels import registered_kernels
from weft.ir.dataclass import dataclass
from weft.ir.errors import FailedPreconditionError
from weft.ir.graph import Graph
from weft.ir.ops import OPS, REGISTERED
from weft.ir.ops.scalar_function import (
    REPLACED,
    defined_function,
    find_scalar_function,
    function_name,
)

#: The module of the script that a process runs.
_SCRIPT = "__main__"


@dataclass(frozen=True, slots=True)
class Need:
    """An op, a function or a kernel of the user's. name: of the op, else the qualified name of the
    function in its module. code: of a function of numbers the digest. op: that a kernel is for."""

    kind: str
    name: str
    module: str
    file: str
    code: str = ""
    op: str = ""

    @property
    def full_name(self) -> str:
        """That by which a program names a function."""
        return f"{self.module}.{self.name}"

    def why_not(self) -> str:
        """Why this process does not have it, "" if it does."""
        if self.kind == "op":
            return "" if self.name in OPS else "is not registered here"
        if self.kind == "kernel":
            known = [k.function for k in registered_kernels(self.op)]
            known += [function for function, _ in REPLACED.get(self.op, ())]
            names = [getattr(f, "__qualname__", "") for f in known]
            return "" if self.name in names else "is not registered here"
        try:
            find_scalar_function(self.full_name, self.code)
        except FailedPreconditionError:
            known_name = defined_function(self.full_name) is not None
            return "has other code or constants here" if known_name else "is not defined here"
        return ""

    def __str__(self) -> str:
        what = f"{self.kind} '{self.name}'" + (f" of op '{self.op}'" if self.op else "")
        return f"{what} (module {self.module}, {self.file})"


def needs_of(graph: Graph) -> tuple[Need, ...]:
    """What a program needs, each once; this process has it."""
    return tuple(dict.fromkeys(_needs(graph)))


def _needs(graph: Graph) -> Iterator[Need]:
    for op in graph.walk():
        held = REGISTERED.get(op.name)
        if held is not None:
            yield Need("op", op.name, held.module, held.file)
        kernels = [k.function for k in registered_kernels(op.name)]
        kernels += [function for function, _ in REPLACED.get(op.name, ())]
        for kernel in kernels:
            yield Need("kernel", *_place(kernel), op=op.name)
        if op.name == "scalar_function":
            name, code = function_name(op.attrs)
            function = defined_function(name)
            if function is not None:
                yield Need("function", *_place(function), code=code)


def _place(function: object) -> tuple[str, str, str]:
    """The qualified name, the module and the file of a function."""
    code = getattr(function, "__code__", None)
    name = str(getattr(function, "__qualname__", function))
    module = str(getattr(function, "__module__", ""))
    return name, module, "" if code is None else str(code.co_filename)


def check_needs(path: Path, needs: Sequence[Need], *, runs: bool = True) -> None:
    """FailedPreconditionError for what this process does not have: the hint is the command that
    replays the record at `path` with all of it. runs: whether the program is to be run; to read it
    the ops alone must be there. Without a kernel of the user's another one does."""
    kinds = ("op", "function") if runs else ("op",)
    missing = {need: why for need in needs if need.kind in kinds and (why := need.why_not())}
    if not missing:
        return
    told = "; ".join(f"{need} {why}" for need, why in missing.items())
    raise FailedPreconditionError(
        f"the record {path} needs what this process does not have: {told}",
        hint=replay_command(path, needs) + _remarks(list(missing)),
    )


def missing_kernels(needs: Sequence[Need]) -> list[Need]:
    """The kernels that the step was recorded with, and this process does not have."""
    return [need for need in needs if need.kind == "kernel" and need.why_not()]


def replay_command(path: Path, needs: Sequence[Need], options: str = "") -> str:
    """The command line that replays a record, with the modules imported that have what it needs."""
    places = dict.fromkeys(found for need in needs if (found := _importable(need)))
    modules = dict.fromkeys(module for module, _ in places)
    roots = dict.fromkeys(str(root) for module, root in places if not _is_found(module, root))
    paths = [*roots, *filter(None, [os.environ.get("PYTHONPATH")])]
    before = f"PYTHONPATH={shlex.quote(os.pathsep.join(paths))} " if roots else ""
    imports = "".join(f" --import {shlex.quote(module)}" for module in modules)
    return f"{before}weft replay {shlex.quote(str(path))}{options}{imports}"


def _importable(need: Need) -> tuple[str, Path] | None:
    """The module to import for what it has, and the folder in which it is looked for; None for what
    was made at a prompt. A script is a module by the name of its file."""
    file = Path(need.file)
    if file.suffix != ".py":
        return None
    if need.module == _SCRIPT:
        return file.stem, file.parent
    depth = need.module.count(".") + (file.name == "__init__.py")
    return need.module, file.parents[depth]


def _is_found(module: str, root: Path) -> bool:
    """Whether `--import` finds a module as things are: it looks in the current folder, too."""
    first = module.partition(".")[0]
    if root == Path.cwd() or not root.is_dir():
        return True
    try:
        return find_spec(first) is not None
    except (ImportError, ValueError):
        return first in sys.modules


def _remarks(missing: Sequence[Need]) -> str:
    """What else is to be known of what is not there."""
    found = [
        f"; {need.kind} '{need.name}' was made at a prompt, or by code without a file: put it in a "
        "module"
        for need in missing
        if _importable(need) is None
    ]
    found += [
        f"; '{need.name}' is made when a function is called, which an import does not do"
        for need in missing
        if "<locals>" in need.name
    ]
    return "".join(found)
