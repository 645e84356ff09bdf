"""LLVM functions of kernel source, expression by expression and statement by statement.

Variables live on the stack; LLVM's first pass makes SSA values of them."""

from __future__ import annotations

import ast
from collections.abc import Callable

from weft.codegen.cuda.cubins import llvm_instructions as llvm
from weft.codegen.cuda.cubins.llvm_instructions import TYPES, literal
from weft.codegen.cuda.source.kernel import (
    CASTS,
    DIVISIONS,
    Kind,
    Pointer,
    UserFunction,
    signature_of,
    user_function,
    wide,
)
from weft.codegen.cuda.source.typecheck import Function, cuda_name
from weft.codegen.llvm.scalar_texts import TWO_OPERANDS, scalar_text
from weft.codegen.scalar.user_functions import function_text as user_text

#: LLVM's number of each space of memory, as the NVPTX target has them.
SPACES = {"global": "ptr addrspace(1)", "shared": "ptr addrspace(3)", "local": "ptr"}


def type_of(kind: Kind) -> str:
    """LLVM's type of values of a kind."""
    if isinstance(kind, Pointer):
        return SPACES[kind.space]
    if isinstance(kind, tuple):
        return f"{{ {', '.join(type_of(k) for k in kind)} }}"
    return "void" if kind == "none" else TYPES[kind]


class Module:
    """An LLVM module under construction, shared by its functions: declarations, and arrays in
    shared memory. `cc`: the architecture that they are for."""

    def __init__(self, cc: tuple[int, int]) -> None:
        self.cc = cc
        self.declarations: dict[str, str] = {}
        self.arrays: list[str] = []

    def declare(self, name: str, result: str, arguments: list[str]) -> None:
        """Functions that are called are declared, each once."""
        self.declarations[name] = f"declare {result} @{name}({', '.join(arguments)})"

    def array(self, element: str, size: int) -> str:
        """An array of a block's shared memory, of undefined content."""
        name = f"@array_{len(self.arrays)}"
        of = f"[{size} x {element}] undef, align 16"
        self.arrays.append(f"{name} = internal addrspace(3) global {of}")
        return name


class Text:
    """Lines of one function. `live`: whether control reaches the end of the text so far."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.allocated: list[str] = []
        self.lines: list[str] = []
        self.fresh = 0
        self.live = True

    def new(self, letter: str) -> str:
        """A name that no other is."""
        self.fresh += 1
        return f"%{letter}{self.fresh}"

    def line(self, text: str) -> None:
        """Adds an instruction without a result."""
        self.lines.append("  " + text)

    def value(self, text: str) -> str:
        """Adds an instruction; returns its result."""
        name = self.new("x")
        self.lines.append(f"  {name} = {text}")
        return name

    def call(self, name: str, result: str, *arguments: str, attribute: str = "") -> str:
        """Calls a function of the module, or one that it declares; arguments: with their types.
        attribute: LLVM's, of this call."""
        text = f"call {result} @{name}({', '.join(arguments)}) {attribute}".rstrip()
        if result == "void":
            self.line(text)
            return ""
        return self.value(text)

    def intrinsic(self, name: str, result: str, *arguments: str, attribute: str = "") -> str:
        """Calls a function that LLVM or libdevice knows."""
        self.module.declare(name, result, [a.rpartition(" ")[0] for a in arguments])
        return self.call(name, result, *arguments, attribute=attribute)

    def variable(self, element: str) -> str:
        """Room for a value on the stack, which LLVM keeps in registers if it can."""
        name = self.new("v")
        self.allocated.append(f"  {name} = alloca {element}")
        return name

    def label(self, name: str) -> None:
        """The text goes on at a label."""
        self.lines.append(f"{name[1:]}:")
        self.live = True

    def jump(self, label: str) -> None:
        """Goes on at a label, if this point is reached."""
        if self.live:
            self.line(f"br label {label}")
        self.live = False

    def branch(self, condition: str, then: str, other: str) -> None:
        """Goes on at one of two labels."""
        self.line(f"br i1 {condition}, label {then}, label {other}")
        self.live = False


_REGISTERS = {
    "threadIdx.x": "tid.x",
    "blockIdx.x": "ctaid.x",
    "blockDim.x": "ntid.x",
    "gridDim.x": "nctaid.x",
    "laneid": "laneid",
}
_DIVISIONS = {"div": ast.FloorDiv(), "rem": ast.Mod()}


def number(node: ast.expr) -> float | int:
    """The value of a bare literal, or of arithmetic on such."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    value: float | int = eval(compile(ast.Expression(node), "literal", "eval"), {})
    return value


class Expressions(Text):
    """Writes the expressions of a function. `places`: where its variables are."""

    def __init__(self, module: Module, function: Function) -> None:
        super().__init__(module)
        self.f = function
        self.places: dict[str, str] = {}

    def of(self, node: ast.expr, dtype: str = "i64") -> str:
        """The value of an expression; a bare integer becomes `dtype`."""
        kind = self.f.kinds[node]
        if kind == "int":
            return literal(dtype, number(node))
        match node:
            case ast.Constant(value=value):
                return "true" if value else "false"
            case ast.Name(id=name):
                if isinstance(kind, Pointer):
                    return self.places[name]
                return self.value(f"load {type_of(kind)}, ptr {self.places[name]}")
            case ast.BinOp():
                return self.arithmetic(node, str(kind))
            case ast.UnaryOp():
                return self.unary(node, str(kind))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return self.comparison(left, operator, right)
            case ast.BoolOp(op=operator, values=[first, *others]):
                value = self.of(first)
                for other in others:
                    value = self.both(isinstance(operator, ast.And), value, other)
                return value
            case ast.IfExp():
                return self.choice(node, str(kind))
            case ast.Subscript(value=pointer, slice=index):
                return self.value(f"load {TYPES[str(kind)]}, {self.address(pointer, index)}")
            case ast.Attribute():
                register = _REGISTERS[cuda_name(node) or ""]
                return self.intrinsic(f"llvm.nvvm.read.ptx.sreg.{register}", "i32")
            case ast.Call():
                return self.call_of(node)
        raise AssertionError(ast.dump(node))

    def typed(self, node: ast.expr) -> str:
        """The value with its type; a bare integer becomes i64."""
        kind = self.f.kinds[node]
        return f"{type_of('i64' if kind == 'int' else kind)} {self.of(node)}"

    def all_of(self, node: ast.expr) -> list[str]:
        """The values of an expression that is a tuple."""
        kind = self.f.kinds[node]
        assert isinstance(kind, tuple)
        if isinstance(node, ast.Tuple):
            return [self.of(element) for element in node.elts]
        assert isinstance(node, ast.Call)
        if node not in self.f.calls:
            return llvm.several(self, node)
        both = self.call_of(node)
        return [self.value(f"extractvalue {type_of(kind)} {both}, {k}") for k in range(len(kind))]

    def address(self, pointer: ast.expr, index: ast.expr) -> str:
        """The typed address of an element."""
        kind = self.f.kinds[pointer]
        assert isinstance(kind, Pointer)
        place = self.as_dtype(index, "i64")
        space, element = type_of(kind), TYPES[kind.dtype]
        of = f"{space} {self.of(pointer)}, i64 {place}"
        return f"{space} {self.value(f'getelementptr inbounds {element}, {of}')}"

    def as_dtype(self, node: ast.expr, dtype: str) -> str:
        """An integer as `dtype`, whatever its own."""
        kind = self.f.kinds[node]
        return self.converted(self.of(node, dtype), dtype if kind == "int" else str(kind), dtype)

    def converted(self, value: str, dtype: str, to: str) -> str:
        """A cast."""
        instruction = llvm.cast(value, dtype, to)
        return value if instruction is None else self.value(instruction)

    # -------------------------------------------------------------------------------- operators

    def arithmetic(self, node: ast.BinOp, dtype: str, within: str = "") -> str:
        """`within`: the dtype that the result is cast to at once. All but that is of 64 bits."""
        result = dtype if within == dtype else wide(dtype)
        shift = isinstance(node.op, ast.LShift | ast.RShift)
        if shift and not self.shifts_less(node.right, result):
            result = wide(dtype)
        left = self.converted(self.of(node.left, dtype), dtype, result)
        right = self.converted(self.of(node.right, dtype), dtype, result)
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            value = self.divided(node.op, result, left, right)
        else:
            value = self.value(llvm.arithmetic(node.op, result, left, right))
        return self.converted(value, result, dtype) if within == dtype else value

    def shifts_less(self, amount: ast.expr, dtype: str) -> bool:
        """Whether it is known that less than all bits of `dtype` are shifted out."""
        return self.f.kinds[amount] == "int" and number(amount) < llvm.bits(dtype)

    def divided(self, operator: ast.operator, dtype: str, left: str, right: str) -> str:
        """// and %: rounded down, 0 where the divisor is 0; MIN // -1 is MIN. LLVM's have no
        meaning there, and round towards 0."""
        of, signed = TYPES[dtype], llvm.is_signed(dtype)
        is_zero = bad = self.value(f"icmp eq {of} {right}, 0")
        if signed:
            is_last = self.value(f"icmp eq {of} {right}, -1")
            is_first = self.value(f"icmp eq {of} {left}, {-(1 << (llvm.bits(dtype) - 1))}")
            over = self.value(f"and i1 {is_first}, {is_last}")
            bad = self.value(f"or i1 {is_zero}, {over}")
        by = self.value(f"select i1 {bad}, {of} 1, {of} {right}")
        if isinstance(operator, ast.Mod):
            rest = self.value(f"{'s' if signed else 'u'}rem {of} {left}, {by}")
            return self.floored(of, rest, rest, by, by) if signed else rest
        quotient = self.value(f"{'s' if signed else 'u'}div {of} {left}, {by}")
        if signed:
            rest = self.value(f"srem {of} {left}, {by}")
            quotient = self.floored(of, quotient, rest, by, "-1")
        return self.value(f"select i1 {is_zero}, {of} 0, {of} {quotient}")

    def floored(self, of: str, value: str, rest: str, divisor: str, less: str) -> str:
        """`value`, to which `less` is added where a division was rounded up."""
        signs = self.value(f"xor {of} {rest}, {divisor}")
        differ = self.value(f"icmp slt {of} {signs}, 0")
        some = self.value(f"icmp ne {of} {rest}, 0")
        up = self.value(f"and i1 {differ}, {some}")
        changed = self.value(f"add {of} {value}, {less}")
        return self.value(f"select i1 {up}, {of} {changed}, {of} {value}")

    def unary(self, node: ast.UnaryOp, dtype: str, within: str = "") -> str:
        operand = self.of(node.operand, dtype)
        if isinstance(node.op, ast.Not):
            return self.value(f"xor i1 {operand}, true")
        result = dtype if within == dtype else wide(dtype)
        operand = self.converted(operand, dtype, result)
        of = TYPES[result]
        if isinstance(node.op, ast.Invert):
            return self.value(f"xor {of} {operand}, -1")
        if dtype in ("f32", "f64"):
            return self.value(f"fneg {of} {operand}")
        return self.value(f"sub {of} 0, {operand}")

    def comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> str:
        a, b = self.f.kinds[left], self.f.kinds[right]
        dtype = str(b if a == "int" else a)
        if "int" not in (a, b) or dtype in ("i64", "int"):
            dtype = "i64" if dtype == "int" else dtype
            return self.value(
                llvm.comparison(operator, dtype, self.of(left, dtype), self.of(right, dtype))
            )
        bare = number(left if a == "int" else right)
        if literal(dtype, bare) != str(bare):
            # `dtype` has no such value: all of its values are on the same side, 0 among them.
            side = [ast.Constant(n) for n in ((bare, 0) if a == "int" else (0, bare))]
            same = ast.Compare(side[0], [operator], [side[1]])
            return "true" if number(ast.fix_missing_locations(same)) else "false"
        return self.value(
            llvm.comparison(operator, dtype, self.of(left, dtype), self.of(right, dtype))
        )

    def both(self, is_and: bool, left: str, node: ast.expr) -> str:
        """`left and node` or `left or node`: the second only where the first does not decide."""
        if self.simple(node):
            right = self.of(node)
            values = f"i1 {right}, i1 false" if is_and else f"i1 true, i1 {right}"
            return self.value(f"select i1 {left}, {values}")
        result, more, end = self.variable("i1"), self.new("l"), self.new("l")
        self.line(f"store i1 {left}, ptr {result}")
        self.branch(left, *((more, end) if is_and else (end, more)))
        self.label(more)
        self.line(f"store i1 {self.of(node)}, ptr {result}")
        self.jump(end)
        self.label(end)
        return self.value(f"load i1, ptr {result}")

    def choice(self, node: ast.IfExp, dtype: str) -> str:
        test, of = self.of(node.test), TYPES[dtype]
        if self.simple(node.body) and self.simple(node.orelse):
            then, other = self.of(node.body, dtype), self.of(node.orelse, dtype)
            return self.value(f"select i1 {test}, {of} {then}, {of} {other}")
        result, labels, end = self.variable(of), (self.new("l"), self.new("l")), self.new("l")
        self.branch(test, *labels)
        for label, branch in zip(labels, (node.body, node.orelse), strict=True):
            self.label(label)
            self.line(f"store {of} {self.of(branch, dtype)}, ptr {result}")
            self.jump(end)
        self.label(end)
        return self.value(f"load {of}, ptr {result}")

    def simple(self, node: ast.expr) -> bool:
        """Whether evaluating `node` for nothing is cheap, and nothing can go wrong in it."""
        match node:
            case ast.Constant() | ast.Name():
                return True
            case ast.UnaryOp(operand=operand):
                return self.simple(operand)
            case ast.Compare(left=left, comparators=[right]):
                return self.simple(left) and self.simple(right)
            case ast.Call(func=ast.Name(id=name), args=[operand]):
                return name in (*CASTS, "boolean") and self.simple(operand)
        return False

    # ------------------------------------------------------------------------------------- calls

    def call_of(self, node: ast.Call) -> str:
        name = cuda_name(node.func)
        if name is not None:
            return llvm.special(self, node, name)
        if node in self.f.calls:
            callee = self.f.calls[node]
            arguments = [self.typed(a) for a in node.args]
            return self.call(f"f{callee.number}", type_of(callee.result), *arguments)
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name in CASTS or name == "boolean":
            return self.cast(node.args[0], "bool" if name == "boolean" else name)
        if name in DIVISIONS:
            dtype = name[-3:]
            left, right = (self.of(a, dtype) for a in node.args)
            return self.value(llvm.arithmetic(_DIVISIONS[name[:3]], dtype, left, right))
        signature = signature_of(name)
        if signature is not None:
            wanted = signature[0]
            values = [self.of(a, d) for a, d in zip(node.args, wanted, strict=True)]
            user = user_function(name)
            return llvm.function(self, name, values) if user is None else self.user(user, values)
        llvm.wide_store(self, node)
        return ""

    def user(self, function: UserFunction, values: list[str]) -> str:
        """A call of a scalar function of the user's, whose definition the module takes in."""
        kinds, result = function.signature
        if function.name not in self.module.declarations:
            self.module.declarations[function.name] = user_function_text(self.module, function)
        given = [f"{TYPES[kind]} {value}" for kind, value in zip(kinds, values, strict=True)]
        return self.call(function.name, TYPES[result], *given)

    def cast(self, node: ast.expr, dtype: str) -> str:
        kind = self.f.kinds[node]
        if kind in ("int", "float"):
            return literal(dtype, number(node))
        of = str(kind)
        if isinstance(node, ast.BinOp):
            value = self.arithmetic(node, of, dtype)
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            value = self.unary(node, of, dtype)
        else:
            return self.converted(self.of(node), of, dtype)
        return self.converted(value, of if of == dtype else wide(of), dtype)


#: Functions of libdevice that are called otherwise than ops of weft's.
_LIBDEVICE = {"power": "pow"}
#: Those of LLVM that the NVPTX target leaves to a library, and libdevice has.
_LEFT = ("ldexp", "powi")


def user_function_text(module: Module, function: UserFunction) -> str:
    """The definition of a scalar function of the user's, with libdevice's functions."""

    def maths(op: str, dtype: str) -> str:
        of = TYPES[dtype]
        name = f"__nv_{_LIBDEVICE.get(op, op)}{'f' if dtype == 'f32' else ''}"
        module.declare(name, of, [of] * (2 if op in TWO_OPERANDS else 1))
        return name

    def declare(name: str, result: str, kinds: list[str]) -> str:
        plain = name.split(".")[1]
        if plain in _LEFT:
            name = f"__nv_{plain}{'f' if result == 'float' else ''}"
        module.declare(name, result, kinds)
        return name

    held = scalar_text("", function.code, function.letters)
    return user_text(function.name, held, function.letters, function.dtype, maths, declare)


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
