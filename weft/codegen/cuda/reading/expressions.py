"""The type of an expression in kernel source, by the vocabulary's rules."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from weft.codegen.cuda.language import ATOMICS, CASTS, DIVISIONS, MMAS, SHUFFLES
from weft.codegen.cuda.reading.kinds import (
    ATOMIC_DTYPES,
    BARRIERS,
    FLOATS,
    FUNCTIONS,
    INTEGERS,
    MMA,
    NARROW,
    NUMPY,
    SPECIAL,
    VOTES,
    WIDE_LOADS,
    WIDE_STORES,
    Kind,
    Pointer,
    lanes,
)
from weft.codegen.cuda.reading.program import Function, cuda_name, is_sync

if TYPE_CHECKING:
    from weft.codegen.cuda.reading.reader import Reader

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
        if name not in FUNCTIONS:
            raise self.fault(f"no function {name}", node.lineno)
        self.arguments(node, *FUNCTIONS[name][0])
        return FUNCTIONS[name][1]

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
