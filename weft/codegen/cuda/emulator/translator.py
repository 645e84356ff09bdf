"""Translator of kernel source to Python over NumPy values: the expressions, for both emulators, and
the mathematical functions and products of tensor cores that they call.

A value is a NumPy scalar, or (in `lanes.py`) an array with an element for each thread: operators
and `astype` mean the same on both. Types are settled (`source/typecheck.py`), so no text looks at
them again.

Functions of f32 are computed in f64 and rounded, which is nearly always the nearest f32."""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from scipy import special

from weft.codegen.cuda.emulator.user_functions import native_function
from weft.codegen.cuda.source.kernel import (
    CASTS,
    DIVISIONS,
    FLOATS,
    MMAS,
    NARROW,
    NUMPY,
    Pointer,
    constant,
    signature_of,
    user_function,
    wide,
)
from weft.codegen.cuda.source.typecheck import Function, Program, cuda_name

#: A NumPy scalar, or an array of one for each thread.
Value = Any


def _power(x: Value, y: Value) -> Value:
    # For one exponent 0.5 NumPy takes square roots, NaN of -inf; for an array of them it does not.
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    many = np.broadcast_to(y, shape or (2,)).copy()
    return np.power(x, many) if shape else np.power(x, many)[0]


def _erfc(x: Value) -> Value:
    # SciPy's gives 0 below 2e-308; libdevice, as the C library, has the subnormal numbers as well.
    made = special.erfc(x)
    small = (made == 0) & np.isfinite(x)
    if not np.any(small):
        return made
    return np.where(small, np.vectorize(math.erfc, otypes=[np.float64])(x), made)[()]


_F64: dict[str, Callable[..., Value]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "cbrt": np.cbrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": special.erf,
    "erfc": _erfc,
    "erfinv": special.erfinv,
    "lgamma": lambda x: special.gammaln(np.where(x == -np.inf, np.inf, x)[()]),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "fabs": np.abs,
    "pow": _power,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "fmod": np.fmod,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
}

#: Exact on f32 as they are, so that nothing is gained in f64 (nextafter would be wrong there).
_EXACT = {"floor", "ceil", "trunc", "rint", "fabs", "fmod", "copysign", "nextafter", "sqrt"}

_F32T, _F64T, _U16T = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16)
_U32T, _U64T = np.dtype(np.uint32), np.dtype(np.uint64)

_NORMAL = np.finfo(np.float32).smallest_normal
#: The bits of an f64 that an f32 has not, and those bits in the middle between two f32.
_BELOW_F32, _MIDDLE = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)


def _rounded(function: Callable[..., Value]) -> Callable[..., Value]:
    def f32(*args: Value) -> Value:
        return function(*(a.astype(_F64T) for a in args)).astype(_F32T)

    return f32


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and what rounding it lost (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """a * b and what rounding it lost (Dekker, by Veltkamp's splitting)."""
    p = a * b
    splitter = np.float64(134217729.0)
    ca, cb = splitter * a, splitter * b
    ah, bh = ca - (ca - a), cb - (cb - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _odd_sum(a: Value, b: Value) -> Value:
    """a + b rounded to odd: rounded again to fewer bits, it is as if rounded once."""
    s, lost = _two_sum(a, b)
    even = np.logical_not(s.view(_U64T) & np.uint64(1))
    toward = np.where(lost > 0, np.inf, -np.inf)
    fix = even & (lost != 0) & np.isfinite(s) & np.isfinite(lost)
    return _plain(np.where(fix, np.nextafter(s, toward), s))


def fma_f32(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once: the product is exact in f64."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        if not isinstance(c, np.ndarray):
            return _fma_of_one(float(a) * float(b), float(c))
    product = np.multiply(a, b, dtype=_F64T)
    near = np.add(product, c, dtype=_F64T)
    result = near.astype(_F32T)
    # Rounding the rounded sum again goes wrong in the middle between two f32 alone; among those
    # below the normal ones the middles are elsewhere.
    middle = (near.view(_U64T) & _BELOW_F32) == _MIDDLE
    size = np.abs(result)
    if not size.min() >= _NORMAL:  # NaN, too
        middle |= (size < _NORMAL) & (near != 0)
    if not middle.any():
        return result
    where = np.flatnonzero(middle)
    result = np.array(result, ndmin=1)
    product = np.broadcast_to(product, result.shape)[where]
    addend = np.broadcast_to(c, result.shape)[where].astype(_F64T)
    result[where] = _odd_sum(product, addend).astype(_F32T)
    return result if np.ndim(near) else result[0]


def _fma_of_one(product: float, addend: float) -> Value:
    near = np.float64(product + addend)
    result = near.astype(_F32T)
    if (int(near.view(_U64T)) & 0x1FFFFFFF) != 0x10000000 and (near == 0 or abs(result) >= _NORMAL):
        return result
    return _odd_sum(np.float64(product), np.float64(addend)).astype(_F32T)


def fma_f64(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once (Boldo and Melquiond 2008), but for products near the limits of f64,
    whose lost part is none."""
    high, low = _two_product(a, b)
    t, t_lost = _two_sum(c, low)
    v, v_lost = _two_sum(high, t)
    exact = v + _odd_sum(t_lost, v_lost)
    # Of a zero the plain sum has the sign.
    known = np.isfinite(low) & np.isfinite(exact) & (exact != 0)
    return _plain(np.where(known, exact, high + c))


def _plain(value: Value) -> Value:
    """A scalar for an array of no dimension."""
    return value[()]


def f16_to_f32(u: Value) -> Value:
    """The value of 16 bits of IEEE's binary16."""
    return u.view(np.dtype(np.float16)).astype(_F32T)


def f32_to_f16(x: Value) -> Value:
    """The bits of the nearest binary16, ties to even."""
    return x.astype(np.dtype(np.float16)).view(_U16T)


def bf16_to_f32(u: Value) -> Value:
    """The value of the upper 16 bits of an f32."""
    return (u.astype(_U32T) << np.uint32(16)).view(_F32T)


def f32_to_bf16(x: Value) -> Value:
    """The upper 16 bits of x, rounded to nearest, ties to even."""
    return _plain(np.asarray(x).astype(ml_dtypes.bfloat16).view(_U16T))


def mul_high_u32(a: Value, b: Value) -> Value:
    """The upper 32 bits of a * b."""
    return ((a.astype(_U64T) * b.astype(_U64T)) >> np.uint64(32)).astype(_U32T)


def mul_high_u64(a: Value, b: Value) -> Value:
    """The upper 64 bits of a * b, by halves."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    return a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & low)) >> half)


#: Name in kernel source -> what it computes.
NUMPY_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{f"{name}_f64": function for name, function in _F64.items()},
    **{
        f"{name}_f32": function if name in _EXACT else _rounded(function)
        for name, function in _F64.items()
    },
    "fma_f32": fma_f32,
    "fma_f64": fma_f64,
    "f16_to_f32": f16_to_f32,
    "f32_to_f16": f32_to_f16,
    "bf16_to_f32": bf16_to_f32,
    "f32_to_bf16": f32_to_bf16,
    "bits_f32": lambda x: x.view(_U32T),
    "f32_bits": lambda u: u.view(_F32T),
    "bits_f64": lambda x: x.view(_U64T),
    "f64_bits": lambda u: u.view(_F64T),
    "mul_high_u32": mul_high_u32,
    "mul_high_u64": mul_high_u64,
}


Array = npt.NDArray[Any]
_GROUP, _T = np.divmod(np.arange(32), 4)


def multiply_add(name: str, values: Sequence[Array]) -> list[Array]:
    """The four c of each lane; values: its ten, as `source/kernel.py` says, [warp, lane] each.

    Products are exact in f64; their sums, which begin with C, are rounded to f32 once, at the end.
    A GPU's are less exact: "Numerical behavior of NVIDIA tensor cores", M. Fasi et al., 2021."""
    warps = values[0].shape[0]
    a, b, c = (np.empty((warps, *size)) for size in ((16, 16), (16, 8), (16, 8)))
    for half in (0, 1):
        for i, word in enumerate(values[:4]):
            column = 2 * _T + i // 2 * 8 + half
            a[:, _GROUP + i % 2 * 8, column] = _element(MMAS[name], word, half)
        for i, word in enumerate(values[4:6]):
            b[:, 2 * _T + i * 8 + half, _GROUP] = _element(MMAS[name], word, half)
    for i, value in enumerate(values[6:]):
        c[:, _GROUP + i // 2 * 8, 2 * _T + i % 2] = value
    for k in range(16):
        c += a[:, :, k, None] * b[:, k, None, :]
    rounded = c.astype(np.float32)
    return [rounded[:, _GROUP + i // 2 * 8, 2 * _T + i % 2] for i in range(4)]


def _element(dtype: str, word: Array, half: int) -> Array:
    """The lower (0) or upper (1) 16 bits of words as numbers."""
    bits = (word >> np.uint32(16 * half)).astype(np.uint16)
    if dtype == "f16":
        return bits.view(np.float16)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


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
