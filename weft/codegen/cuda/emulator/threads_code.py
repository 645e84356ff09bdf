"""Kernel source as a Python generator for one thread: it yields where threads meet."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from weft.codegen.cuda.emulator.text import Text
from weft.codegen.cuda.reading.program import is_sync


class ThreadText(Text):
    """The text of a program's functions for one thread: NumPy scalars, Python's control flow."""

    def compiled(self) -> Callable[..., Any]:
        """The kernel: `kernel(K, *arguments)`, a generator of (name, line, arguments)."""
        for f in self.program.functions:
            self.f = f
            arguments = "".join(f", v_{name}" for name in f.parameters)
            self.nested(f"def f{f.number}(K{arguments}):", f.body)
            # A kernel is a generator even if no thread ever waits in it.
            self.line("    if False:\n        yield" if f.is_kernel else "")
        text = "\n".join(self.lines)
        exec(compile(text, f"<a thread of {self.program.kernel.name}>", "exec"), self.names)
        made = self.names[f"f{self.program.main.number}"]
        assert callable(made)
        return made

    def block(self, body: list[ast.stmt]) -> None:
        self.indent += 1
        for statement in body:
            self.statement(statement)
        self.indent -= 1

    def nested(self, head: str, body: list[ast.stmt]) -> None:
        self.line(head)
        self.line("    pass")
        self.block(body)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, value)
            case ast.Expr(value=value):
                self.line(self.of(value, "True"))
            case ast.If(test=test, body=body, orelse=orelse):
                self.nested(f"if {self.of(test, 'True')}:", body)
                if orelse:
                    self.nested("else:", orelse)
            case ast.While(test=test, body=body):
                self.nested(f"while {self.of(test, 'True')}:", body)
            case ast.For():
                self.count(node)
            case ast.Return(value=value):
                self.line(f"return {self.several(value) if value is not None else ''}")
            case ast.Break():
                self.line("break")
            case ast.Continue():
                self.line("continue")
            case ast.Pass():
                self.line("pass")

    def count(self, node: ast.For) -> None:
        call, target = node.iter, node.target
        assert isinstance(call, ast.Call)
        assert isinstance(target, ast.Name)
        bounds = ", ".join(f"int({self.of(a, 'True')})" for a in call.args)
        counter = self.new("k")
        self.line(f"for {counter} in range({bounds}):")
        self.line(f"    v_{target.id} = D_{self.f.counters[node]}.type({counter})")
        self.block(node.body)

    def several(self, value: ast.expr) -> str:
        if isinstance(value, ast.Tuple):
            return ", ".join(self.of(v, "True") for v in value.elts)
        return self.of(value, "True")

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            self.store(target, value, "True")
            return
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        variables = [f"v_{name.id}" for name in names if isinstance(name, ast.Name)]
        self.line(f"{', '.join(variables)} = {self.several(value)}")

    def both(self, is_and: bool, left: str, node: ast.expr, mask: str) -> str:
        return f"({left} {'and' if is_and else 'or'} {self.of(node, mask)})"

    def choice(self, node: ast.IfExp, mask: str, dtype: str) -> str:
        body, orelse = self.of(node.body, mask, dtype), self.of(node.orelse, mask, dtype)
        return f"({body} if {self.of(node.test, mask)} else {orelse})"

    def device_call(self, node: ast.Call, mask: str) -> str:
        texts = [self.of(a, mask) for a in node.args]
        return f"f{self.f.calls[node].number}({', '.join(['K', *texts])})"

    def special(self, node: ast.Call, name: str, mask: str) -> str:
        space, _, what = name.partition(".")
        if space == "atomic":
            texts = [self.of(a, mask, str(self.f.kinds[node])) for a in node.args]
            return f"{texts[0]}.atomic({what!r}, {texts[1]}, {texts[2]}, True, {node.lineno})"
        assert is_sync(name)
        texts = [self.of(a, mask) for a in node.args]
        return f"(yield ({name!r}, {node.lineno}, ({''.join(t + ', ' for t in texts)})))"
