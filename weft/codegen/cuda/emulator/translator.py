"""Translator of kernel source to Python over NumPy values: the expressions, for both emulators.

A value is a NumPy scalar, or (in `lanes.py`) an array with an element for each thread: operators
and `astype` mean the same on both. Types are settled (`source/typecheck.py`), so no text looks at
them again."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from weft.codegen.cuda.emulator.numpy_functions import NUMPY_FUNCTIONS
from weft.codegen.cuda.emulator.user_functions import native_function
from weft.codegen.cuda.source.kernel import (
    CASTS,
    DIVISIONS,
    FLOATS,
    NARROW,
    NUMPY,
    Pointer,
    constant,
    signature_of,
    user_function,
    wide,
)
from weft.codegen.cuda.source.typecheck import Function, Program, cuda_name

_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.USub: "-",
    ast.Invert: "~",
}
_REGISTERS = {
    "threadIdx.x": "thread",
    "blockIdx.x": "block",
    "blockDim.x": "threads",
    "gridDim.x": "blocks",
    "laneid": "lane",
}


class Text(ABC):
    """Writes the functions of a program; `names`: what the text refers to."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.f: Function = program.main
        self.lines: list[str] = []
        self.indent = 0
        self.fresh = 0
        self.names: dict[str, object] = {"np": np, **NUMPY_FUNCTIONS}
        self.names |= {f"D_{name}": dtype for name, dtype in NUMPY.items()}

    def line(self, text: str) -> None:
        """Adds a line at the current depth."""
        self.lines.append("    " * self.indent + text)

    def new(self, letter: str) -> str:
        """A name that no other is."""
        self.fresh += 1
        return f"{letter}{self.fresh}"

    def constant(self, dtype: str, value: float | int) -> str:
        """The name of a constant."""
        text = value.hex() if isinstance(value, float) else str(int(value)).replace("-", "m")
        name = f"c_{dtype}_{text}".replace("-", "m").replace(".", "_").replace("+", "p")
        self.names[name] = constant(dtype, value)
        return name

    def number(self, node: ast.expr) -> int:
        """The value of a bare integer literal, or of arithmetic on such."""
        return int(eval(compile(ast.Expression(node), "literal", "eval"), {"__builtins__": {}}))

    def of(self, node: ast.expr, mask: str, dtype: str = "i64") -> str:
        """The text of an expression for the threads of `mask`; a bare integer becomes `dtype`."""
        kind = self.f.kinds[node]
        if kind == "int":
            return self.constant(dtype, self.number(node))
        match node:
            case ast.Constant(value=value):
                assert isinstance(value, bool)
                return self.constant("bool", value)
            case ast.Name(id=name):
                return f"v_{name}"
            case ast.BinOp():
                return self.arithmetic(node, mask, str(kind))
            case ast.UnaryOp():
                return self.unary(node, mask, str(kind))
            case ast.Compare():
                return self.comparison(node, mask)
            case ast.BoolOp(op=op, values=values):
                text = self.of(values[0], mask)
                for value in values[1:]:
                    text = self.both(isinstance(op, ast.And), text, value, mask)
                return text
            case ast.IfExp():
                return self.choice(node, mask, str(kind))
            case ast.Subscript(value=value, slice=index):
                return f"{self.of(value, mask)}.load({self.of(index, mask)}, {mask}, {node.lineno})"
            case ast.Attribute():
                return f"K.{_REGISTERS[cuda_name(node) or '']}"
            case ast.Call():
                return self.call(node, mask)
        raise AssertionError(ast.dump(node))

    def arithmetic(self, node: ast.BinOp, mask: str, dtype: str, within: str = "") -> str:
        """`within`: the dtype that the result is cast to at once."""
        left, right = self.of(node.left, mask, dtype), self.amount(node, mask, dtype)
        if dtype in NARROW and within != dtype:
            left, right = f"{left}.astype(D_{wide(dtype)})", f"{right}.astype(D_{wide(dtype)})"
        return f"({left} {_OPERATORS[type(node.op)]} {right})"

    def amount(self, node: ast.BinOp, mask: str, dtype: str) -> str:
        """The right operand; by how much is shifted is looked at."""
        if isinstance(node.op, ast.LShift | ast.RShift):
            if self.f.kinds[node.right] != "int":
                right = self.of(node.right, mask, dtype)
                return f"K.amount({right}, {mask}, {node.lineno})"
            if not 0 <= self.number(node.right) < 64:
                raise self.program.fault("a shift by 64 or more, or by less than 0", node.lineno)
        return self.of(node.right, mask, dtype)

    def unary(self, node: ast.UnaryOp, mask: str, dtype: str, within: str = "") -> str:
        operand = self.of(node.operand, mask, dtype)
        if isinstance(node.op, ast.Not):
            return f"np.logical_not({operand})"
        if dtype in NARROW and within != dtype:
            operand = f"{operand}.astype(D_{wide(dtype)})"
        return f"({_OPERATORS[type(node.op)]}{operand})"

    def comparison(self, node: ast.Compare, mask: str) -> str:
        # A bare integer is compared by its value, whatever the other's dtype.
        texts = [
            str(self.number(side)) if self.f.kinds[side] == "int" else self.of(side, mask)
            for side in (node.left, node.comparators[0])
        ]
        if all(self.f.kinds[side] == "int" for side in (node.left, node.comparators[0])):
            texts[0] = self.of(node.left, mask)
        return f"({texts[0]} {_OPERATORS[type(node.ops[0])]} {texts[1]})"

    @abstractmethod
    def both(self, is_and: bool, left: str, node: ast.expr, mask: str) -> str:
        """`left and node` or `left or node`: the second only where the first does not decide."""

    @abstractmethod
    def choice(self, node: ast.IfExp, mask: str, dtype: str) -> str:
        """A conditional expression."""

    @abstractmethod
    def special(self, node: ast.Call, name: str, mask: str) -> str:
        """A call of `cuda.NAME` that makes no array."""

    def array(self, node: ast.Call, name: str) -> str:
        """A call of `cuda.shared.array` or `cuda.local.array`."""
        kind = self.f.kinds[node]
        assert isinstance(kind, Pointer)
        return f"K.{name.removesuffix('.array')}({node.lineno}, {kind.dtype!r}, {kind.size})"

    def store(self, target: ast.Subscript, value: ast.expr, mask: str) -> None:
        """Adds the line of `target = value`, an element of memory."""
        pointer = self.f.kinds[target.value]
        assert isinstance(pointer, Pointer)
        text = self.of(value, mask, pointer.dtype)
        index, to = self.of(target.slice, mask), self.of(target.value, mask)
        self.line(f"{to}.store({index}, {text}, {mask}, {target.lineno})")

    def call(self, node: ast.Call, mask: str) -> str:
        name = cuda_name(node.func)
        if name is not None:
            made = name.endswith(".array")
            return self.array(node, name) if made else self.special(node, name, mask)
        if node in self.f.calls:
            return self.device_call(node, mask)
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name in CASTS or name == "boolean":
            return self.cast(node.args[0], "bool" if name == "boolean" else name, mask, node.lineno)
        signature = signature_of(name)
        if signature is not None:
            texts = [self.of(a, mask, d) for a, d in zip(node.args, signature[0], strict=True)]
            user = user_function(name)
            if user is not None:
                self.names[name] = native_function(user)
            return f"{name}({', '.join(texts)})"
        if name in DIVISIONS:
            left, right = (self.of(a, mask) for a in node.args)
            sign = "//" if name.startswith("div") else "%"
            return f"({left} {sign} K.divisor({right}, {mask}, {node.lineno}))"
        pointer, index, *values = (self.of(a, mask) for a in node.args)
        if values:
            return f"{pointer}.store_wide({index}, ({', '.join(values)}), {mask}, {node.lineno})"
        kinds = self.f.kinds[node]
        assert isinstance(kinds, tuple)
        return f"{pointer}.load_wide({index}, {len(kinds)}, {mask}, {node.lineno})"

    def device_call(self, node: ast.Call, mask: str) -> str:
        callee = self.f.calls[node]
        texts = [self.of(a, mask) for a in node.args]
        return f"f{callee.number}({', '.join(['K', mask, *texts])})"

    def cast(self, node: ast.expr, dtype: str, mask: str, line: int) -> str:
        kind = self.f.kinds[node]
        if kind in ("int", "float"):
            return self.constant(dtype, _literal(node))
        if isinstance(node, ast.BinOp):
            text = self.arithmetic(node, mask, str(kind), dtype)
        elif isinstance(node, ast.UnaryOp):
            text = self.unary(node, mask, str(kind), dtype)
        else:
            text = self.of(node, mask)
        done = kind == dtype
        if done:
            return text
        if dtype == "bool":
            return f"({text} != 0)"
        if kind in FLOATS and dtype not in FLOATS:
            return f"K.whole({text}, D_{dtype}, {mask}, {line})"
        return f"{text}.astype(D_{dtype})"


def _literal(node: ast.expr) -> float | int:
    value: float | int = eval(compile(ast.Expression(node), "literal", "eval"))
    return value
