"""Kernel source, read: its functions with the type of every expression.

Types are settled before anything runs. What would have to be widened behind one's back (a u32 and
an i64, an f32 and a bare 0.5, u32 + u32 without a cast) is an error.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from weft.codegen.cuda.kernel import CudaKernel
from weft.codegen.cuda.reading.faults import EmulationError
from weft.codegen.cuda.reading.kinds import Kind
from weft.ir.dataclass import dataclass


@dataclass(eq=False)
class Function:
    """A function for arguments of certain types. `kinds`: of its expressions; `variables`: of its
    names; `calls`: which functions of the source it calls where; `counters`: the dtype of what a
    `for` counts."""

    name: str
    node: ast.FunctionDef
    parameters: dict[str, Kind]
    number: int
    is_kernel: bool = False
    result: Kind = "none"
    kinds: dict[ast.expr, Kind] = field(default_factory=dict)
    variables: dict[str, Kind] = field(default_factory=dict)
    calls: dict[ast.Call, Function] = field(default_factory=dict)
    counters: dict[ast.For, str] = field(default_factory=dict)

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements but for the docstring."""
        return self.node.body[1 if ast.get_docstring(self.node) is not None else 0 :]


@dataclass(eq=False)
class Program:
    """A kernel's functions, callees first and the kernel last."""

    kernel: CudaKernel
    functions: list[Function]
    lines: list[str]

    @property
    def main(self) -> Function:
        """The kernel itself."""
        return self.functions[-1]

    def fault(self, what: str, line: int, block: int = -1, thread: int = -1) -> EmulationError:
        """The error that says `what` about a line of the source."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return EmulationError(what, self.kernel.name, line, text, block, thread)


def cuda_name(node: ast.expr) -> str | None:
    """ "shared.array" of `cuda.shared.array`; None of anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id == "cuda" and parts:
        return ".".join(reversed(parts))
    return None


def is_sync(name: str | None) -> bool:
    """Whether threads meet in `cuda.NAME`."""
    return name is not None and ("sync" in name)


def leaves(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The `return`, `break` and `continue` statements that go on elsewhere than after it."""
    if isinstance(statement, ast.Return | ast.Break | ast.Continue):
        yield statement
    elif isinstance(statement, ast.If):
        for inner in statement.body + statement.orelse:
            yield from leaves(inner)
    elif isinstance(statement, ast.While | ast.For):
        for inner in statement.body:
            yield from (leave for leave in leaves(inner) if isinstance(leave, ast.Return))


def loads(node: ast.AST) -> Counter[str]:
    """How often each variable is read in `node`."""
    return Counter(
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    )


def stored(statement: ast.stmt) -> list[str]:
    """The variables that a statement itself assigns."""
    if isinstance(statement, ast.Assign | ast.For):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        return [name.id for name in names if isinstance(name, ast.Name)]
    return []
