"""Type checker of kernel source: parses a kernel and gives every expression its type.

The emulator and LLVM both start from its result, a `Program` of typed functions. Types are settled
before anything runs. What would have to be widened behind one's back (a u32 and an i64, an f32 and
a bare 0.5, u32 + u32 without a cast) is an `EmulationError`, as is whatever a kernel does that a
GPU must not be asked to do."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache

from weft.codegen.cuda.source.kernel import (
    ATOMIC_DTYPES,
    ATOMICS,
    BARRIERS,
    CASTS,
    DIVISIONS,
    FLOATS,
    INTEGERS,
    MMA,
    MMAS,
    NARROW,
    NUMPY,
    SHARED_LIMIT,
    SHUFFLES,
    SPECIAL,
    VOTES,
    WIDE_LOADS,
    WIDE_STORES,
    CudaKernel,
    Kind,
    Pointer,
    lanes,
    signature_of,
)
from weft.codegen.native_language import parse
from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError


class EmulationError(WeftError):
    """A fault in a kernel: which kernel and line of its source, and the block and the thread that
    did it (-1: found before any ran)."""

    def __init__(
        self, what: str, kernel: str, line: int, text: str = "", block: int = -1, thread: int = -1
    ) -> None:
        self.kernel, self.line, self.block, self.thread = kernel, line, block, thread
        who = f", block {block}, thread {thread}" if block >= 0 else ""
        where = f"kernel {kernel}, line {line}{who}"
        super().__init__(f"{where}: {what}" + (f"\n  {text.strip()}" if text else ""))


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

    @property
    def shared_bytes(self) -> int:
        """Bytes of its shared arrays."""
        kinds = self.variables.values()
        shared = [k for k in kinds if isinstance(k, Pointer) and k.space == "shared"]
        return sum(k.size * NUMPY[k.dtype].itemsize for k in shared)


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


_SHIFTS = (ast.LShift, ast.RShift)
_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor)


class Expressions:
    """Types the expressions of one function and notes them in `function.kinds`."""

    def __init__(self, reader: Reader, function: Function) -> None:
        self.reader = reader
        self.f = function
        self.fault = reader.program.fault
        self.assigned: frozenset[str] = frozenset()

    def of(self, node: ast.expr, wrapped: bool = False) -> Kind:
        """The type of an expression; `wrapped`: it is the argument of a cast."""
        kind = self._of(node, wrapped)
        self.f.kinds[node] = kind
        return kind

    def _of(self, node: ast.expr, wrapped: bool) -> Kind:
        match node:
            case ast.Constant(value=value):
                return self.literal(node, value)
            case ast.Name(id=name):
                return self.variable(node, name)
            case ast.BinOp():
                return self.arithmetic(node, wrapped)
            case ast.UnaryOp():
                return self.unary(node, wrapped)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.comparison(node, left, op, right)
            case ast.BoolOp(values=values):
                if any(self.of(v) != "bool" for v in values):
                    raise self.fault("`and` and `or` are for bools", node.lineno)
                return "bool"
            case ast.IfExp():
                return self.choice(node)
            case ast.Subscript(value=value, slice=index):
                pointer = self.pointer(value)
                self.index(index)
                return pointer.dtype
            case ast.Attribute():
                if cuda_name(node) in SPECIAL:
                    return "i32"
            case ast.Call():
                return self.call(node)
        raise self.fault(f"kernel source has no {ast.unparse(node)}", node.lineno)

    def literal(self, node: ast.Constant, value: object) -> Kind:
        if isinstance(value, bool):
            return "bool"
        if isinstance(value, int):
            return "int"
        if isinstance(value, float):
            return "float"
        raise self.fault(f"a constant {value!r}", node.lineno)

    def variable(self, node: ast.Name, name: str) -> Kind:
        if name not in self.f.variables:
            raise self.fault(f"{name} is not known", node.lineno)
        if name not in self.assigned:
            raise self.fault(f"{name} is read where it may not be assigned yet", node.lineno)
        return self.f.variables[name]

    def pointer(self, node: ast.expr) -> Pointer:
        kind = self.of(node)
        if not isinstance(kind, Pointer):
            raise self.fault(f"{ast.unparse(node)} is {kind}, no pointer", node.lineno)
        return kind

    def index(self, node: ast.expr) -> None:
        kind = self.of(node)
        if kind not in INTEGERS and kind != "int":
            raise self.fault(f"an index of type {kind}", node.lineno)

    def same(self, node: ast.expr, left: ast.expr, right: ast.expr) -> Kind:
        """The one type of two operands."""
        a, b = self.of(left), self.of(right)
        if a == b and not isinstance(a, Pointer | tuple) and a not in ("float", "none"):
            return a
        if {a, b} == {"int", "i64"}:
            return "i64"
        raise self.fault(f"{a} and {b} in {ast.unparse(node)}: cast to one type", node.lineno)

    def arithmetic(self, node: ast.BinOp, wrapped: bool) -> Kind:
        if isinstance(node.op, _SHIFTS):
            kind, amount = self.of(node.left), self.of(node.right)
            if kind not in INTEGERS and kind != "int":
                raise self.fault(f"a shift of {kind}", node.lineno)
            if amount not in (kind, "int"):
                raise self.fault(f"{kind} shifted by {amount}: cast to one type", node.lineno)
        else:
            kind = self.same(node, node.left, node.right)
        if isinstance(node.op, _BITS):
            allowed = kind in INTEGERS or kind in ("bool", "int")
        elif isinstance(node.op, ast.FloorDiv | ast.Mod):
            allowed = kind in INTEGERS or kind == "int"
        elif isinstance(node.op, ast.Div):
            allowed = kind in FLOATS
        elif isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            allowed = kind in INTEGERS or kind in FLOATS or kind == "int"
        else:
            allowed = isinstance(node.op, _SHIFTS)
        if not allowed:
            raise self.fault(f"no {ast.unparse(node)} on {kind}", node.lineno)
        self.narrow(node, kind, wrapped)
        return kind

    def narrow(self, node: ast.expr, kind: Kind, wrapped: bool) -> None:
        if kind in NARROW and not wrapped:
            text = ast.unparse(node)
            raise self.fault(f"{text} is of 64 bits: write {kind}({text})", node.lineno)

    def unary(self, node: ast.UnaryOp, wrapped: bool) -> Kind:
        kind = self.of(node.operand)
        if isinstance(node.op, ast.Not):
            allowed = kind == "bool"
        elif isinstance(node.op, ast.Invert):
            allowed = kind in INTEGERS
        elif isinstance(node.op, ast.USub):
            allowed = kind in INTEGERS or kind in FLOATS or kind in ("int", "float")
        else:
            allowed = False
        if not allowed:
            raise self.fault(f"no {ast.unparse(node)} on {kind}", node.lineno)
        self.narrow(node, kind, wrapped)
        return kind

    def comparison(self, node: ast.expr, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Kind:
        a, b = self.of(left), self.of(right)
        literal = {a, b} - INTEGERS == {"int"}
        if not literal:
            self.same(node, left, right)
        order = isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        if not (order and a != "bool") and not isinstance(op, ast.Eq | ast.NotEq):
            raise self.fault(f"no {ast.unparse(node)} on {a}", node.lineno)
        return "bool"

    def choice(self, node: ast.IfExp) -> Kind:
        if self.of(node.test) != "bool":
            raise self.fault("a condition that is no bool", node.lineno)
        kind = self.same(node, node.body, node.orelse)
        return "i64" if kind == "int" else kind

    def call(self, node: ast.Call) -> Kind:
        if node.keywords:
            raise self.fault("an argument by keyword", node.lineno)
        name = cuda_name(node.func)
        if name is not None:
            return self.special(node, name)
        if not isinstance(node.func, ast.Name):
            raise self.fault(f"no function {ast.unparse(node.func)}", node.lineno)
        name = node.func.id
        if name in self.reader.nodes:
            kinds = [self.of(a) for a in node.args]
            kinds = ["i64" if k == "int" else k for k in kinds]
            if "float" in kinds:
                raise self.fault("a bare float is f64: wrap it", node.lineno)
            callee = self.reader.function(name, kinds, node.lineno)
            self.f.calls[node] = callee
            return callee.result
        if name in CASTS or name == "boolean":
            return self.cast(node, name)
        if name in WIDE_LOADS or name in WIDE_STORES:
            return self.wide_access(node, name)
        if name in DIVISIONS:
            dtype = name[-3:]
            self.arguments(node, dtype, dtype)
            return dtype
        signature = signature_of(name)
        if signature is None:
            raise self.fault(f"no function {name}", node.lineno)
        self.arguments(node, *signature[0])
        return signature[1]

    def cast(self, node: ast.Call, name: str) -> Kind:
        kind = self.of(node.args[0], wrapped=True) if len(node.args) == 1 else "none"
        numbers = kind in NUMPY or kind == "int" or (kind == "float" and name in FLOATS)
        if not numbers:
            raise self.fault(f"{name} of {kind}", node.lineno)
        return "bool" if name == "boolean" else name

    def arguments(self, node: ast.Call, *wanted: str) -> None:
        """Checks the types of a call's arguments; "integer": of any integer type."""
        kinds = [self.of(a) for a in node.args]
        for kind, want in zip(kinds, wanted, strict=False):
            integer = kind == "int" and want in ("integer", "i64")
            if not integer and kind != want and not (want == "integer" and kind in INTEGERS):
                break
        else:
            if len(kinds) == len(wanted):
                return
        what = f"{ast.unparse(node.func)}({', '.join(map(str, kinds))})"
        raise self.fault(f"{what}: takes {', '.join(wanted)}", node.lineno)

    def wide_access(self, node: ast.Call, name: str) -> Kind:
        dtype = WIDE_LOADS.get(name) or WIDE_STORES[name]
        count = lanes(dtype)
        values = 0 if name in WIDE_LOADS else count
        if len(node.args) != 2 + values:
            raise self.fault(f"{name} takes {2 + values} arguments", node.lineno)
        pointer = self.pointer(node.args[0])
        if pointer.dtype != dtype:
            raise self.fault(f"{name} at elements of {pointer.dtype}", node.lineno)
        if pointer.space == "local":
            raise self.fault(f"{name} in local memory", node.lineno)
        self.index(node.args[1])
        if any(self.of(v) != dtype for v in node.args[2:]):
            raise self.fault(f"{name} of values that are not {dtype}", node.lineno)
        return "none" if values else (dtype,) * count

    def special(self, node: ast.Call, name: str) -> Kind:
        if is_sync(name) and not self.f.is_kernel:
            raise self.fault(f"cuda.{name} in a device function", node.lineno)
        if name in BARRIERS:
            wanted = {"syncthreads": [], "syncthreads_or": ["bool"]}.get(name, ["integer"])
            self.arguments(node, *wanted)
            return BARRIERS[name]
        if name in VOTES:
            self.arguments(node, "integer", "bool")
            return VOTES[name]
        if name in SHUFFLES:
            kind = self.of(node.args[1]) if len(node.args) == 3 else "none"
            if not isinstance(kind, str) or kind not in {"i32", "u32", "i64", "u64", *FLOATS}:
                raise self.fault(f"cuda.{name} of {kind}", node.lineno)
            self.arguments(node, "integer", kind, "integer")
            return kind
        if name in MMAS:
            self.arguments(node, *MMA[0])
            return MMA[1]
        space, _, what = name.partition(".")
        if what == "array" and space in ("shared", "local"):
            return self.array(node, space)
        if space == "atomic" and what in ATOMICS and len(node.args) == 3:
            pointer = self.pointer(node.args[0])
            self.index(node.args[1])
            value = self.of(node.args[2])
            if pointer.dtype not in ATOMIC_DTYPES or pointer.space == "local":
                raise self.fault(f"cuda.{name} on {pointer.dtype}", node.lineno)
            if value != pointer.dtype and not (value == "int" and pointer.dtype == "i64"):
                raise self.fault(f"cuda.{name} of {value} on {pointer.dtype}", node.lineno)
            return pointer.dtype
        raise self.fault(f"no function cuda.{name}", node.lineno)

    def array(self, node: ast.Call, space: str) -> Pointer:
        if len(node.args) != 2 or not isinstance(node.args[1], ast.Name):
            raise self.fault(f"cuda.{space}.array(N, dtype)", node.lineno)
        size, dtype = node.args[0], node.args[1].id
        if not isinstance(size, ast.Constant) or not isinstance(size.value, int) or size.value < 1:
            raise self.fault("the size of an array is a literal", node.lineno)
        if dtype not in CASTS:
            raise self.fault(f"an array of {dtype}", node.lineno)
        if space == "shared" and not self.f.is_kernel:
            raise self.fault("shared memory in a device function", node.lineno)
        return Pointer(dtype, space, size.value)


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
        total = f.shared_bytes
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
