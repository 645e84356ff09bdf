"""Native code written as Python functions over int64: a small translator from `ast` to LLVM.

For code that is about addresses: the native call path (`weft.runtime.native.call_path`), kernels
of scalar code (`weft.codegen.dynamic`). A module in this language is Python that ruff and mypy read
as such; its functions take and return int64, are never run by Python, and know:

* local variables, int constants (`name` or `module.name`), and each other;
* `+ - * & | ^ << >>`, comparisons, `not`, `and`/`or` (both sides are computed: no effects in them);
* `if`, `while`, `return`, assignment, calls as statements;
* the functions below: memory, and C functions by address.

`parse` is Python's parser for several threads. CPython (3.11, gh-106905) counts the depth of the
tree that it makes in one place for all threads: where another one parses meanwhile, it raises
SystemError."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from llvmlite import ir

from weft.codegen.llvm.emitter import Emitter
from weft.ir.process import ForkLock

_lock = ForkLock()


def parse(text: str) -> ast.Module:
    """`ast.parse(text)`, one thread at a time."""
    with _lock:
        return ast.parse(text)


I128, I64, I32, I16, I8 = (ir.IntType(bits) for bits in (128, 64, 32, 16, 8))
#: Part of a kernel's key: what this translator makes of a source.
LANGUAGE_VERSION = "3"


def load(address: int) -> int:
    """The int64 at `address`."""
    _native("load")


def load32(address: int) -> int:
    """The int32 at `address`."""
    _native("load32")


def load8(address: int) -> int:
    """The byte at `address`, as 0 .. 255."""
    _native("load8")


def load16(address: int) -> int:
    """The two bytes at `address`, as 0 .. 65535."""
    _native("load16")


def word(address: int) -> int:
    """The int64 at any address: not only at multiples of 8."""
    _native("word")


def word32(address: int) -> int:
    """The four bytes at any address, as 0 .. 2**32-1."""
    _native("word32")


def store(address: int, value: int) -> None:
    """Write the int64 at `address`."""
    _native("store")


def store8(address: int, value: int) -> None:
    """Write the lowest byte of `value` at `address`."""
    _native("store8")


def store16(address: int, value: int) -> None:
    """Write the lowest two bytes of `value` at `address`."""
    _native("store16")


def store32(address: int, value: int) -> None:
    """Write the lowest four bytes of `value` at `address`."""
    _native("store32")


def copy(to: int, source: int, size: int) -> None:
    """Copy `size` bytes, which do not overlap."""
    _native("copy")


def below(a: int, b: int) -> int:
    """Whether a < b as unsigned numbers."""
    _native("below")


def rem(a: int, b: int) -> int:
    """a % b of unsigned numbers."""
    _native("rem")


def high(a: int, b: int) -> int:
    """The upper half of the 128-bit product of unsigned numbers."""
    _native("high")


def leading_zeros(a: int) -> int:
    """How many of the upper bits are 0."""
    _native("leading_zeros")


def narrow(bits: int) -> int:
    """The bits of a float64 rounded to float32."""
    _native("narrow")


def stack(words: int) -> int:
    """The address of so many words on the stack, until the function returns."""
    _native("stack")


def call(function: int, *arguments: int) -> int:
    """Call the C function at an address: 64-bit arguments and result."""
    _native("call")


def call32(function: int, *arguments: int) -> int:
    """Call a C function that returns an `int`."""
    _native("call32")


def _native(name: str) -> NoReturn:
    raise NotImplementedError(f"{name} exists in native code only")


_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "lshr",
}  # fmt: skip
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def emit_source(
    e: Emitter, source: str, constants: Mapping[str, Any], exports: Sequence[str]
) -> dict[str, ir.Function]:
    """Emit all functions of `source`, and give them by name; the kernel stores the addresses of
    `exports` at its arguments. `constants`: int constants, and modules that hold some, by name."""
    definitions = [n for n in parse(source).body if isinstance(n, ast.FunctionDef)]
    functions: dict[str, ir.Function] = {}
    for node in definitions:
        kind = ir.FunctionType(I64, [I64] * len(node.args.args))
        made = ir.Function(e.module, kind, e.module.get_unique_name(f"{e.symbol}.{node.name}"))
        made.linkage = "internal"
        made.attributes.add("nounwind")
        functions[node.name] = made
    for node in definitions:
        _Translator(functions, constants, functions[node.name]).function(node)
    for position, name in enumerate(exports):
        slot = e.builder.gep(e.arguments, [e.index(position)])
        e.builder.store(e.builder.ptrtoint(functions[name], I64), slot)
    return functions


class _Translator:
    """One function. Variables are stack slots; LLVM puts them into registers."""

    def __init__(
        self, functions: Mapping[str, ir.Function], constants: Mapping[str, Any], made: ir.Function
    ) -> None:
        self.functions = functions
        self.constants = constants
        self.made = made
        self.variables: dict[str, ir.Value] = {}
        self.b = ir.IRBuilder(made.append_basic_block("entry"))

    def function(self, node: ast.FunctionDef) -> None:
        for parameter, value in zip(node.args.args, self.made.args, strict=True):
            self._assign(parameter.arg, value)
        self._body(node.body)
        if not self.b.block.is_terminated:
            self.b.ret(self._number(0))

    def _body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if self.b.block.is_terminated:
                break
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                pass  # a docstring
            case ast.Expr(value=value):
                self._value(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, self._value(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                old = self.b.load(self.variables[name])
                self._assign(name, getattr(self.b, _BINARY[type(op)])(old, self._value(value)))
            case ast.Return(value=value):
                self.b.ret(self._number(0) if value is None else self._value(value))
            case ast.If():
                self._if(node)
            case ast.While():
                self._while(node)
            case _:
                raise SyntaxError(f"not in the native language: {ast.unparse(node)}")

    def _assign(self, name: str, value: ir.Value) -> None:
        if name not in self.variables:
            with self.b.goto_entry_block():
                self.variables[name] = self.b.alloca(I64)
        self.b.store(value, self.variables[name])

    def _if(self, node: ast.If) -> None:
        then, other, after = (self.b.append_basic_block(n) for n in ("then", "else", "after"))
        self.b.cbranch(self._condition(node.test), then, other)
        for block, statements in ((then, node.body), (other, node.orelse)):
            self.b.position_at_end(block)
            self._body(statements)
            if not self.b.block.is_terminated:
                self.b.branch(after)
        self.b.position_at_end(after)

    def _while(self, node: ast.While) -> None:
        head, body, after = (self.b.append_basic_block(n) for n in ("head", "body", "after"))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(self._condition(node.test), body, after)
        self.b.position_at_end(body)
        self._body(node.body)
        if not self.b.block.is_terminated:
            self.b.branch(head)
        self.b.position_at_end(after)

    # ------------------------------------------------------------------------------- expressions
    def _number(self, value: int) -> ir.Constant:
        return ir.Constant(I64, value)

    def _value(self, node: ast.expr) -> ir.Value:
        match node:
            case ast.Constant(value=int(value)):
                return self._number(value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                return self._number(-value)
            case ast.Name(id=name) if name in self.variables:
                return self.b.load(self.variables[name])
            case ast.Name(id=name):
                return self._number(int(self.constants[name]))
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                return self._number(getattr(self.constants[module], name))
            case ast.BinOp(left=left, op=op, right=right):
                build = getattr(self.b, _BINARY[type(op)])
                return build(self._value(left), self._value(right))
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.b.zext(self._condition(node), I64)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._call(name, [self._value(a) for a in arguments])
        raise SyntaxError(f"not in the native language: {ast.unparse(node)}")

    def _condition(self, node: ast.expr) -> ir.Value:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.b.icmp_signed(_COMPARE[type(op)], self._value(left), self._value(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.b.not_(self._condition(operand))
            case ast.BoolOp(op=op, values=values):
                join = self.b.and_ if isinstance(op, ast.And) else self.b.or_
                made = self._condition(values[0])
                for value in values[1:]:
                    made = join(made, self._condition(value))
                return made
        return self.b.icmp_signed("!=", self._value(node), self._number(0))

    def _call(self, name: str, arguments: list[ir.Value]) -> ir.Value:
        b = self.b
        if name in _LOADS:
            kind, alignment, signed = _LOADS[name]
            made = b.load(b.inttoptr(arguments[0], kind.as_pointer()), align=alignment)
            if kind is I64:
                return made
            return b.sext(made, I64) if signed else b.zext(made, I64)
        if name in _STORES:
            kind = _STORES[name]
            value = arguments[1] if kind is I64 else b.trunc(arguments[1], kind)
            return b.store(value, b.inttoptr(arguments[0], kind.as_pointer()))
        if name in _ARITHMETIC:
            return _ARITHMETIC[name](b, *arguments)
        match name:
            case "stack":
                return b.ptrtoint(b.alloca(I64, arguments[0]), I64)
            case "copy":
                pointers = [b.inttoptr(a, I8.as_pointer()) for a in arguments[:2]]
                kinds = [I8.as_pointer(), I8.as_pointer(), I64]
                function = b.module.declare_intrinsic("llvm.memcpy", kinds)
                return b.call(function, [*pointers, arguments[2], ir.Constant(ir.IntType(1), 0)])
            case "call" | "call32":
                result = I64 if name == "call" else I32
                kind = ir.FunctionType(result, [I64] * (len(arguments) - 1))
                made = b.call(b.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
                return made if result is I64 else b.sext(made, I64)
        return b.call(self.functions[name], arguments)


#: What a load reads: its type, how it is aligned (None: as the type), whether it has a sign.
_LOADS: Mapping[str, tuple[ir.Type, int | None, bool]] = {
    "load": (I64, None, True), "load32": (I32, None, True), "load16": (I16, None, False),
    "load8": (I8, None, False), "word": (I64, 1, True), "word32": (I32, 1, False),
}  # fmt: skip
_STORES: Mapping[str, ir.Type] = {"store": I64, "store32": I32, "store16": I16, "store8": I8}


def _high(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    whole = b.mul(b.zext(x, I128), b.zext(y, I128))
    return b.trunc(b.lshr(whole, ir.Constant(I128, 64)), I64)


def _leading_zeros(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.ctlz(x, ir.Constant(ir.IntType(1), 0))


def _narrow(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    rounded = b.fptrunc(b.bitcast(bits, ir.DoubleType()), ir.FloatType())
    return b.zext(b.bitcast(rounded, I32), I64)


_ARITHMETIC: Mapping[str, Callable[..., ir.Value]] = {
    "below": lambda b, x, y: b.zext(b.icmp_unsigned("<", x, y), I64),
    "rem": lambda b, x, y: b.urem(x, y),
    "high": _high, "leading_zeros": _leading_zeros, "narrow": _narrow,
}  # fmt: skip
