"""Functions of kernel source as LLVM functions, statement by statement.

Variables live on the stack; LLVM's first pass makes SSA values of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from weft.codegen.cuda.llvm.expressions import Expressions
from weft.codegen.cuda.llvm.scalars import TYPES
from weft.codegen.cuda.llvm.text import Module, type_of
from weft.codegen.cuda.reading.kinds import Pointer
from weft.codegen.cuda.reading.program import Function


def function_text(module: Module, function: Function, head: str, end: str) -> str:
    """The definition of a function; head: what stands before its parameters, `end` after them."""
    return _Statements(module, function).text(head, end)


class _Statements(Expressions):
    def __init__(self, module: Module, function: Function) -> None:
        super().__init__(module, function)
        self.loops: list[tuple[str, str]] = []  # where `continue` and `break` go

    def text(self, head: str, end: str) -> str:
        parameters = []
        for name, kind in self.f.parameters.items():
            parameters.append(f"{type_of(kind)} %p_{name}")
            if isinstance(kind, Pointer):
                self.places[name] = f"%p_{name}"
        for name, kind in self.f.variables.items():
            if not isinstance(kind, Pointer):
                self.places[name] = self.variable(type_of(kind))
        for name, kind in self.f.parameters.items():
            if not isinstance(kind, Pointer):
                self.line(f"store {type_of(kind)} %p_{name}, ptr {self.places[name]}")
        self.block(self.f.body)
        if self.live:
            self.line("ret void")
        lines = [f"{head}({', '.join(parameters)}){end} {{", *self.allocated, *self.lines, "}"]
        return "\n".join(lines) + "\n"

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, value)
            case ast.Expr(value=ast.Call() as call):
                self.call_of(call)
            case ast.If(test=test, body=body, orelse=orelse):
                self.fork(test, body, orelse)
            case ast.While(test=test, body=body):
                self.loop(lambda: self.of(test), body)
            case ast.For():
                self.count(node)
            case ast.Return(value=value):
                self.leave(value)
            case ast.Break():
                self.jump(self.loops[-1][1])
            case ast.Continue():
                self.jump(self.loops[-1][0])
            case ast.Pass():
                pass
            case _:
                raise AssertionError(ast.dump(node))

    def fork(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        then, other, end = self.new("l"), self.new("l"), self.new("l")
        self.branch(self.of(test), then, other if orelse else end)
        self.label(then)
        self.block(body)
        reached = self.live or not orelse
        self.jump(end)
        if orelse:
            self.label(other)
            self.block(orelse)
            reached = reached or self.live
            self.jump(end)
        if reached:
            self.label(end)

    def loop(
        self,
        test: Callable[[], str],
        body: list[ast.stmt],
        first: Callable[[], None] | None = None,
        last: Callable[[], None] | None = None,
    ) -> None:
        """first, last: what is done before the body and after it."""
        head, inside, more, end = (self.new("l") for _ in range(4))
        self.jump(head)
        self.label(head)
        self.branch(test(), inside, end)
        self.label(inside)
        if first is not None:
            first()
        self.loops.append((more, end))
        self.block(body)
        self.loops.pop()
        self.jump(more)
        self.label(more)
        if last is not None:
            last()
        self.jump(head)
        self.label(end)

    def count(self, node: ast.For) -> None:
        """`for i in range(...)`, counting how often."""
        call, target = node.iter, node.target
        assert isinstance(call, ast.Call)
        assert isinstance(target, ast.Name)
        dtype = self.f.counters[node]
        of = TYPES[dtype]
        bounds = [self.as_dtype(a, dtype) for a in call.args]
        start = bounds[0] if len(bounds) > 1 else "0"
        stop = bounds[min(1, len(bounds) - 1)]
        stride = bounds[2] if len(bounds) > 2 else "1"
        times, counter = self.times(of, start, stop, stride), self.variable(of)
        self.line(f"store {of} 0, ptr {counter}")

        def goes_on() -> str:
            done = self.value(f"load {of}, ptr {counter}")
            return self.value(f"icmp ult {of} {done}, {times}")

        def first() -> None:
            done = self.value(f"load {of}, ptr {counter}")
            by = self.value(f"mul {of} {done}, {stride}")
            self.put(target.id, self.value(f"add {of} {start}, {by}"))

        def last() -> None:
            done = self.value(f"load {of}, ptr {counter}")
            more = self.value(f"add nuw {of} {done}, 1")
            self.line(f"store {of} {more}, ptr {counter}")

        self.loop(goes_on, node.body, first, last)

    def times(self, of: str, start: str, stop: str, stride: str) -> str:
        """How many numbers there are from `start` to before `stop`, a `stride` apart: unsigned."""
        up = self.value(f"icmp sgt {of} {stride}, 0")
        low = self.value(f"select i1 {up}, {of} {start}, {of} {stop}")
        high = self.value(f"select i1 {up}, {of} {stop}, {of} {start}")
        down = self.value(f"sub {of} 0, {stride}")
        apart = self.value(f"select i1 {up}, {of} {stride}, {of} {down}")
        span = self.value(f"sub {of} {high}, {low}")
        before = self.value(f"sub {of} {span}, 1")
        whole = self.value(f"udiv {of} {before}, {apart}")
        times = self.value(f"add {of} {whole}, 1")
        some = self.value(f"icmp slt {of} {low}, {high}")
        return self.value(f"select i1 {some}, {of} {times}, {of} 0")

    def leave(self, value: ast.expr | None) -> None:
        result = type_of(self.f.result)
        if value is None:
            self.line("ret void")
        elif isinstance(value, ast.Tuple):
            assert isinstance(self.f.result, tuple)
            whole = "poison"
            pairs = zip(self.all_of(value), self.f.result, strict=True)
            for k, (one, kind) in enumerate(pairs):
                whole = self.value(f"insertvalue {result} {whole}, {TYPES[kind]} {one}, {k}")
            self.line(f"ret {result} {whole}")
        else:
            self.line(f"ret {result} {self.of(value)}")
        self.live = False

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            pointer = self.f.kinds[target.value]
            assert isinstance(pointer, Pointer)
            text = f"{TYPES[pointer.dtype]} {self.of(value, pointer.dtype)}"
            self.line(f"store {text}, {self.address(target.value, target.slice)}")
        elif isinstance(target, ast.Tuple):
            for name, one in zip(target.elts, self.all_of(value), strict=True):
                assert isinstance(name, ast.Name)
                self.put(name.id, one)
        else:
            assert isinstance(target, ast.Name)
            kind = self.f.variables[target.id]
            text = self.of(value)
            if isinstance(kind, Pointer):
                self.places[target.id] = text
            else:
                self.put(target.id, text)

    def put(self, name: str, value: str) -> None:
        self.line(f"store {type_of(self.f.variables[name])} {value}, ptr {self.places[name]}")
