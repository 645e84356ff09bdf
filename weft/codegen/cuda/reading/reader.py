"""Reads kernel source: which functions it has for which types, statement by statement."""

from __future__ import annotations

import ast
from functools import lru_cache

from weft.codegen.cuda.kernel import CudaKernel
from weft.codegen.cuda.reading.expressions import Expressions
from weft.codegen.cuda.reading.faults import EmulationError
from weft.codegen.cuda.reading.kinds import INTEGERS, NUMPY, SHARED_LIMIT, Kind, Pointer
from weft.codegen.cuda.reading.program import Function, Program, cuda_name
from weft.codegen.python_text import parse

#: The variables that are assigned at a point; None: the point is not reached.
Assigned = frozenset[str] | None


def _both(a: Assigned, b: Assigned) -> Assigned:
    return b if a is None else a if b is None else a & b


class Reader:
    """Makes the functions of a program, each for the types that it is called with."""

    def __init__(self, program: Program, nodes: dict[str, ast.FunctionDef]) -> None:
        self.program = program
        self.nodes = nodes
        self.made: dict[tuple[str, tuple[Kind, ...]], Function] = {}
        self.open: list[str] = []

    def function(self, name: str, kinds: list[Kind], line: int) -> Function:
        """The function `name` for arguments of `kinds`."""
        key = name, tuple(kinds)
        fault = self.program.fault
        if name in self.open:
            raise fault(f"{name} calls itself", line)
        if key in self.made:
            return self.made[key]
        node = self.nodes[name]
        names = [a.arg for a in node.args.args]
        if len(names) != len(kinds):
            raise fault(f"{name} takes {len(names)} arguments, not {len(kinds)}", line)
        function = Function(name, node, dict(zip(names, kinds, strict=True)), len(self.made))
        function.is_kernel = not self.open
        self.made[key] = function
        self.open.append(name)
        _Statements(self, function).read()
        self.open.pop()
        self.program.functions.append(function)
        return function


class _Statements:
    """Reads the statements of one function."""

    def __init__(self, reader: Reader, function: Function) -> None:
        self.reader = reader
        self.f = function
        self.fault = reader.program.fault
        self.results: list[Kind] = []
        self.breaks: list[list[Assigned]] = []
        self.shared_lines: set[int] = set()
        self.expressions = Expressions(reader, function)

    def read(self) -> None:
        f = self.f
        f.variables.update(f.parameters)
        end = self.block(f.body, frozenset(f.parameters))
        if end is not None:
            self.results.append("none")
        if f.is_kernel and any(r != "none" for r in self.results):
            raise self.fault("a kernel returns nothing", f.node.lineno)
        if len(set(self.results)) > 1:
            raise self.fault(
                f"{f.name} returns {' and '.join(map(str, dict.fromkeys(self.results)))}",
                f.node.lineno,
            )
        f.result = self.results[0] if self.results else "none"
        shared = [k for k in f.variables.values() if isinstance(k, Pointer) and k.space == "shared"]
        total = sum(k.size * NUMPY[k.dtype].itemsize for k in shared)
        if total > SHARED_LIMIT:
            raise self.fault(f"{total} bytes of shared memory: above {SHARED_LIMIT}", f.node.lineno)

    def block(self, body: list[ast.stmt], assigned: Assigned) -> Assigned:
        for statement in body:
            if assigned is None:
                raise self.fault("is never reached", statement.lineno)
            self.expressions.assigned = assigned
            assigned = self.statement(statement, assigned)
        return assigned

    def statement(self, node: ast.stmt, assigned: frozenset[str]) -> Assigned:
        match node:
            case ast.Assign(targets=[target], value=value):
                return self.assign(target, value, assigned)
            case ast.Expr(value=ast.Call() as call):
                self.expressions.of(call)
                return assigned
            case ast.If(test=test, body=body, orelse=orelse):
                self.condition(test)
                return _both(self.block(body, assigned), self.block(orelse, assigned))
            case ast.While(test=test, body=body, orelse=[]):
                self.condition(test)
                return self.loop(body, assigned, assigned)
            case ast.For(orelse=[]):
                return self.count(node, assigned)
            case ast.Return(value=value):
                self.results.append("none" if value is None else self.returned(value))
                return None
            case ast.Break():
                self.breaks[-1].append(assigned)
                return None
            case ast.Continue():
                return None
            case ast.Pass():
                return assigned
        raise self.fault(f"kernel source has no {type(node).__name__}", node.lineno)

    def condition(self, test: ast.expr) -> None:
        kind = self.expressions.of(test)
        if kind != "bool":
            raise self.fault(f"a condition of type {kind}, not bool", test.lineno)

    def loop(
        self, body: list[ast.stmt], entered: frozenset[str], without: frozenset[str]
    ) -> frozenset[str]:
        """Reads a loop's body; returns what is assigned after it. `without`: where it ends."""
        self.breaks.append([without])
        self.block(body, entered)
        after: Assigned = None
        for point in self.breaks.pop():
            after = _both(after, point)
        assert after is not None
        return after

    def count(self, node: ast.For, assigned: frozenset[str]) -> Assigned:
        call = node.iter
        named = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if not (named and call.func.id == "range" and isinstance(node.target, ast.Name)):  # type: ignore[attr-defined]
            raise self.fault("a for loop counts a variable over range(...)", node.lineno)
        assert isinstance(call, ast.Call)
        kinds = [self.expressions.of(bound) for bound in call.args]
        if not 1 <= len(kinds) <= 3 or not all(k in INTEGERS or k == "int" for k in kinds):
            raise self.fault(f"range of {', '.join(map(str, kinds))}", node.lineno)
        if "u64" in kinds:
            raise self.fault("range over u64: cast to i64", node.lineno)
        self.f.counters[node] = "i32" if set(kinds) == {"i32"} else "i64"
        name = node.target.id
        self.declare(name, self.f.counters[node], node.lineno)
        inside = assigned | {name}
        literal = all(isinstance(bound, ast.Constant) for bound in call.args)
        if literal and len(range(*(bound.value for bound in call.args))):  # type: ignore[attr-defined]
            # Its body is carried out at least once: what it assigns is there after it, unless a
            # `break` or `continue` stands in it.
            escapes = any(
                isinstance(inner, ast.Break | ast.Continue)
                for statement in node.body
                for inner in ast.walk(statement)
            )
            if not escapes:
                return self.loop_once(node.body, inside)
        return self.loop(node.body, inside, assigned)

    def loop_once(self, body: list[ast.stmt], inside: frozenset[str]) -> Assigned:
        self.breaks.append([])
        after = self.block(body, inside)
        self.breaks.pop()
        return after

    def assign(self, target: ast.expr, value: ast.expr, assigned: frozenset[str]) -> frozenset[str]:
        line = target.lineno
        if isinstance(target, ast.Tuple):
            return self.take_apart(target, value, assigned)
        kind = self.expressions.of(value)
        if isinstance(target, ast.Subscript):
            self.store(target, kind)
            return assigned
        if not isinstance(target, ast.Name):
            raise self.fault("an assignment to neither a name nor an element", line)
        if isinstance(kind, tuple) or kind == "none":
            raise self.fault(f"a variable of type {kind}", line)
        if isinstance(kind, Pointer):
            self.array(target, value)
        if kind == "float":
            raise self.fault("a bare float is f64: wrap it in f32() or f64()", line)
        self.declare(target.id, "i64" if kind == "int" else kind, line)
        return assigned | {target.id}

    def array(self, target: ast.Name, value: ast.expr) -> None:
        """A variable for a shared or local array: once, and one each line."""
        name = cuda_name(value.func) if isinstance(value, ast.Call) else None
        if name is None:
            raise self.fault("a second name for a pointer", target.lineno)
        if target.id in self.f.variables:
            raise self.fault(f"{target.id} is assigned twice", target.lineno)
        if target.lineno in self.shared_lines:
            raise self.fault("one array each line", target.lineno)
        self.shared_lines.add(target.lineno)

    def take_apart(
        self, target: ast.Tuple, value: ast.expr, assigned: frozenset[str]
    ) -> frozenset[str]:
        line = target.lineno
        if isinstance(value, ast.Tuple):
            kinds: Kind = tuple(str(self.expressions.of(v)) for v in value.elts)
            self.f.kinds[value] = kinds
        else:
            kinds = self.expressions.of(value)
        if not isinstance(kinds, tuple) or len(kinds) != len(target.elts):
            raise self.fault(f"{len(target.elts)} variables for {kinds}", line)
        names = []
        for name, kind in zip(target.elts, kinds, strict=True):
            if not isinstance(name, ast.Name) or kind == "float":
                raise self.fault("a tuple is taken apart into names", line)
            self.declare(name.id, "i64" if kind == "int" else kind, line)
            names.append(name.id)
        return assigned.union(names)

    def store(self, target: ast.Subscript, kind: Kind) -> None:
        pointer = self.expressions.pointer(target.value)
        self.expressions.index(target.slice)
        self.f.kinds[target] = pointer.dtype
        if kind != pointer.dtype and not (kind == "int" and pointer.dtype == "i64"):
            raise self.fault(f"a store of {kind} to {pointer.dtype}", target.lineno)

    def returned(self, value: ast.expr) -> Kind:
        if isinstance(value, ast.Tuple):
            kinds = tuple(str(self.expressions.of(v)) for v in value.elts)
            self.f.kinds[value] = kinds
            return tuple("i64" if k == "int" else k for k in kinds)
        kind = self.expressions.of(value)
        if isinstance(kind, Pointer) or kind in ("float", "none"):
            raise self.fault(f"returns {kind}", value.lineno)
        return "i64" if kind == "int" else kind

    def declare(self, name: str, kind: Kind, line: int) -> None:
        known = self.f.variables.setdefault(name, kind)
        if known != kind:
            raise self.fault(f"{name} is {known} and becomes {kind}", line)


def _plain(body: list[ast.stmt]) -> None:
    """Writes `v += x` as `v = v + x` in these statements and those inside."""
    for number, statement in enumerate(body):
        if isinstance(statement, ast.AugAssign):
            body[number] = _assignment(statement)
        for part in ("body", "orelse"):
            _plain(getattr(statement, part, []))


def _assignment(node: ast.AugAssign) -> ast.stmt:
    target = node.target
    if isinstance(target, ast.Name):
        read: ast.expr = ast.Name(target.id, ast.Load())
    elif isinstance(target, ast.Subscript):
        read = ast.Subscript(target.value, target.slice, ast.Load())
    else:
        return node
    ast.copy_location(read, target)
    value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
    return ast.copy_location(ast.Assign([target], value), node)


@lru_cache(maxsize=512)
def read(kernel: CudaKernel) -> Program:
    """The functions of `kernel` with their types; EmulationError where source breaks a rule."""
    try:
        tree = parse(kernel.source)
    except SyntaxError as e:
        raise EmulationError(str(e), kernel.name, e.lineno or 0, e.text or "") from e
    _plain(tree.body)
    program = Program(kernel, [], kernel.source.splitlines())
    nodes: dict[str, ast.FunctionDef] = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            raise program.fault("only functions stand in kernel source", node.lineno)
        nodes[node.name] = node
    if kernel.name not in nodes:
        raise program.fault(f"the source has no function {kernel.name}", 0)
    kinds: list[Kind] = [
        Pointer(p.dtype) if p.kind == "pointer" else "i64" for p in kernel.parameters
    ]
    names = [p.name for p in kernel.parameters]
    node = nodes[kernel.name]
    if [a.arg for a in node.args.args] != names:
        raise program.fault(f"its parameters are not {', '.join(names)}", node.lineno)
    Reader(program, nodes).function(kernel.name, kinds, node.lineno)
    return program
