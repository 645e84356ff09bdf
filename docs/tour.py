"""weft from scratch: a toy weft in one file, in the order in which a program goes through weft.

A Python function is traced to a graph; the graph is printed, verified, interpreted, differentiated,
simplified and fused; fused ops become loops in machine code; a table says which loops to run on
which memory; and running it trains a small network. The toy has one dtype (float32), nine ops and
one thread, and needs only NumPy and llvmlite. Each chapter ends with the files of weft that do the
real thing; the last chapter runs the function of the first through weft and compares.

`python docs/tour.py` takes some seconds. It prints the graphs as text, what the passes did, facts
of the machine code, times beside an interpreter and NumPy, and the loss of the training. Results
are compared by assertions, times are only printed.
"""
# ruff: noqa: E402, T201  (it imports weft at the end, and prints)

from __future__ import annotations

import ctypes
import functools
import json
import math
import re
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Shape = tuple[int, ...]

# ---- 1. Trace
#
# A compiler needs a graph, people prefer to write Python. Tracing turns one into the other: the
# function runs once, on tensors that have a shape and no numbers, and what it does is noted.
#
# This is what is noted. A value is the result of an op, or an input of the graph (`op` is None). An
# op has operands, which are values, and attributes, which are known already. The `fused` ops of
# chapter 6 also have a body, a graph of their own. A pass changes no graph, it makes another one.


@dataclass(eq=False, repr=False)
class Value:
    shape: Shape
    op: Op | None = None

    @property
    def type(self) -> str:
        return f"f32[{','.join(map(str, self.shape))}]"


@dataclass(eq=False)
class Op:
    name: str
    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    results: tuple[Value, ...]
    body: Graph | None = None

    def __post_init__(self) -> None:
        for value in self.results:
            value.op = self


@dataclass(frozen=True, eq=False)
class Graph:
    name: str
    inputs: dict[str, Value]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]
    stage: str = "traced"


# The shape of a result follows from the operands and attributes. One function says how; the
# verifier of chapter 2 asks it again.

ELEMENTWISE = ("add", "subtract", "multiply", "divide", "negative", "sqrt")


def result_shape(name: str, operands: Sequence[Value], attrs: Mapping[str, Any]) -> Shape:
    shapes = [v.shape for v in operands]
    if name == "constant" or (name == "sum" and len(shapes) == 1):
        return ()
    if name == "broadcast_to" and shapes == [()]:
        return tuple(attrs["shape"])
    if name in ELEMENTWISE and len(set(shapes)) == 1:
        return shapes[0]
    raise TypeError(f"op '{name}' does not take {', '.join(v.type for v in operands)}")


class Builder:  # of a graph, op by op
    def __init__(self, ops: Sequence[Op] = ()) -> None:
        self.ops = list(ops)

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        result = Value(result_shape(name, operands, attrs))
        self.ops.append(Op(name, operands, attrs, (result,)))
        return result

    def constant(self, number: float, shape: Shape = ()) -> Value:
        scalar = self.emit("constant", value=np.float32(number))
        return self.emit("broadcast_to", scalar, shape=shape) if shape else scalar


# A tensor is a value with the builder that notes what is done to it. For `a + b` Python calls
# `a.__add__(b)`, or `b.__radd__(a)` where a is a number.


def operator(name: str, swapped: bool = False) -> Callable[[Any, Any], Tensor]:
    return lambda a, b: elementwise(name, b, a) if swapped else elementwise(name, a, b)


@dataclass(frozen=True, eq=False)
class Tensor:
    value: Value
    builder: Builder

    @property
    def shape(self) -> Shape:
        return self.value.shape

    __add__, __radd__ = operator("add"), operator("add", swapped=True)
    __sub__, __rsub__ = operator("subtract"), operator("subtract", swapped=True)
    __mul__, __rmul__ = operator("multiply"), operator("multiply", swapped=True)
    __truediv__, __rtruediv__ = operator("divide"), operator("divide", swapped=True)

    def op(self, name: str, **attrs: Any) -> Tensor:
        return Tensor(self.builder.emit(name, self.value, **attrs), self.builder)

    def __neg__(self) -> Tensor:
        return self.op("negative")


def elementwise(name: str, *operands: Tensor | float) -> Tensor:
    """Numbers become constants, and scalars are broadcast to the shape of the others."""
    tensors = [t for t in operands if isinstance(t, Tensor)]
    builder, shape = tensors[0].builder, max((t.shape for t in tensors), key=len)
    values = [x.value if isinstance(x, Tensor) else builder.constant(x) for x in operands]
    wide = [v if v.shape == shape else builder.emit("broadcast_to", v, shape=shape) for v in values]
    return Tensor(builder.emit(name, *wide), builder)


def trace(function: Callable[..., Any], shapes: Mapping[str, Shape]) -> Graph:
    """The graph of what the function does to arguments of these names and shapes."""
    builder, inputs = Builder(), {name: Value(shape) for name, shape in shapes.items()}
    made = function(**{name: Tensor(value, builder) for name, value in inputs.items()})
    results = tuple(t.value for t in (made if isinstance(made, tuple) else (made,)))
    return Graph(function.__name__, inputs, tuple(builder.ops), results)


# Functions that are no operators come in a namespace, `xp` as in the array API standard: so the
# same Python function runs in the toy, in NumPy (xp=np) and, in chapter 10, in weft (xp=wf). Our
# example fits a curve by one weight. `squash` looks like tanh, and needs only what a processor has
# instructions for.

TOY = SimpleNamespace(
    sqrt=lambda x: x.op("sqrt"),
    sum=lambda x: x.op("sum", axes=tuple(range(len(x.shape))), keepdims=False),
)


def squash(z: Any, xp: Any) -> Any:
    return z / xp.sqrt(1 + z * z)


def loss(w: Any, x: Any, y: Any, xp: Any = TOY) -> Any:
    error = squash(w * x, xp) - y
    return xp.sum(error * error) * (1 / x.shape[0])


forward = trace(loss, {"w": (), "x": (1000,), "y": (1000,)})
print("1. Trace\n" + " ".join(op.name for op in forward.ops))
assert [op.name for op in forward.ops[:2]] == ["broadcast_to", "multiply"]  # w * x

# In weft: `weft/frontend/core/trace.py` traces, and orders reads and writes of variables;
# `weft/ir/ops` is the table of ops, and its `weft/ir/ops/builder.py` notes the user's lines, too.

# ---- 2. SSA
#
# The graph is in SSA form (static single assignment): each value is defined once, before all uses.
# As text that is one op a line: results, op, operands, attributes, types. This is weft's own text
# form; in chapter 10 weft reads ours.


def show(graph: Graph) -> str:
    names = {v: f"%{name}" for name, v in graph.inputs.items()}
    inputs = ", ".join(f"{name}: {v.type}" for v, name in names.items())
    types = ", ".join(v.type for v in graph.results)
    head = f"graph @{graph.name}({inputs}) -> ({types}) stage={graph.stage} {{"
    return "\n".join([head, *lines_of(graph, names, "  ", "return"), "}\n"])


def lines_of(graph: Graph, names: dict[Value, str], indent: str, last: str) -> Iterator[str]:
    def listed(values: Sequence[Value]) -> str:
        return ", ".join(names[v] for v in values)

    for number, value in enumerate(v for op in graph.ops for v in op.results):
        names[value] = f"%{number}"
    for op in graph.ops:
        texts = [f"f32[] {x!s}" if key == "value" else json.dumps(x) for key, x in op.attrs.items()]
        attrs = ", ".join(f"{key}={text}" for key, text in zip(op.attrs, texts, strict=True))
        call = f"{op.name}({listed(op.operands)})" + (f" {{{attrs}}}" if attrs else "")
        line = f"{indent}{listed(op.results)} = {call} : {', '.join(v.type for v in op.results)}"
        if op.body is None:
            yield line
        else:
            own = {v: f"%{name}" for name, v in op.body.inputs.items()}
            yield f"{line} {{"
            yield f"{indent}  ^({', '.join(f'{name}: {v.type}' for v, name in own.items())})"
            yield from lines_of(op.body, own, f"{indent}  ", "yield")
            yield f"{indent}}}"
    yield f"{indent}{last} {listed(graph.results)}"


# A pass that goes wrong should be found out there, not where a kernel crashes. The verifier checks
# what all others rely on; every pass below ends with it.


def verify(graph: Graph) -> Graph:
    """The graph, unless it breaks a rule."""
    known = set(graph.inputs.values())
    for op in graph.ops:
        if not known.issuperset(op.operands):
            raise ValueError(f"op '{op.name}' reads a value that is not defined before it")
        if op.body is None:
            expected = [result_shape(op.name, op.operands, op.attrs)]
        else:
            expected = [v.shape for v in verify(op.body).results]
            if [v.shape for v in op.operands] != [v.shape for v in op.body.inputs.values()]:
                raise ValueError(f"the body of op '{op.name}' takes other operands")
        if [v.shape for v in op.results] != expected or not known.isdisjoint(op.results):
            raise ValueError(f"op '{op.name}' has a result of a wrong type, or one defined before")
        known.update(op.results)
    if not known.issuperset(graph.results):
        raise ValueError("a result of the graph is not defined")
    return graph


print("\n2. SSA\n" + show(verify(forward)))
try:
    verify(replace(forward, ops=forward.ops[::-1]))
except ValueError as error:
    print("backwards:", error)

# In weft: `weft/ir/graph.py`, printed and parsed by `weft/ir/text`; `weft/ir/analysis/verify.py`
# also knows what each stage may hold.

# ---- 3. Interpreter
#
# What does an op mean? A function of NumPy says it, and the interpreter runs a graph by these, op
# by op. That is slow and easy to trust, and it works after any pass: the oracle of what follows.

REFERENCE: dict[str, Callable[..., Any]] = {
    "constant": lambda value: value,
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape),
    "sum": lambda x, axes, keepdims: np.sum(x, axis=axes, keepdims=keepdims),
    **{name: getattr(np, name) for name in ELEMENTWISE},  # as NumPy calls them
}


def interpret(graph: Graph, inputs: Mapping[str, Any]) -> list[Any]:
    values = {v: inputs[name] for name, v in graph.inputs.items()}
    for op in graph.ops:
        operands = [values[v] for v in op.operands]
        if op.body is None:
            results = [REFERENCE[op.name](*operands, **op.attrs)]
        else:
            results = interpret(op.body, dict(zip(op.body.inputs, operands, strict=True)))
        values.update(zip(op.results, results, strict=True))
    return [values[v] for v in graph.results]


def points(size: int) -> dict[str, Array]:
    """A weight, and points on the curve of another one."""
    x = np.linspace(-2, 2, size, dtype=np.float32)
    return {"w": np.array(0.5, np.float32), "x": x, "y": squash(2 * x, np)}


inputs = points(1000)
(interpreted,) = interpret(forward, inputs)
print(f"\n3. Interpreter\n{interpreted:.5f}; the function in NumPy {loss(**inputs, xp=np):.5f}")
assert np.allclose(interpreted, loss(**inputs, xp=np))

# In weft: `weft/ir/interpreter`, with branches, loops and state; WEFT_VERIFY=run has it check each
# pass.

# ---- 4. Gradient
#
# Reverse mode: go through the ops backwards, from the result to the inputs. The cotangent g of a
# value is the derivative of the result by that value. An op's rule says which cotangent each of its
# operands gets, given that of its result; where several ops read a value, they add up.
#
# The rules do not compute, they emit: a gradient is more ops in the same graph, and all that is
# done to graphs is done to it, too.

GRADIENTS: dict[str, Callable[..., tuple[Tensor, ...]]] = {  # by g, the result y, the operands
    "constant": lambda g, y: (),
    "broadcast_to": lambda g, y, x: (TOY.sum(g),),
    "sum": lambda g, y, x: (g.op("broadcast_to", shape=x.shape),),
    "add": lambda g, y, a, b: (g, g),
    "subtract": lambda g, y, a, b: (g, -g),
    "multiply": lambda g, y, a, b: (g * b, g * a),
    "divide": lambda g, y, a, b: (g / b, -(g * (y / b))),
    "negative": lambda g, y, x: (-g,),
    "sqrt": lambda g, y, x: (g * (0.5 / y),),
}


def gradients(y: Tensor, xs: Sequence[Tensor]) -> list[Tensor]:
    """The derivatives of y, a scalar, by each of the xs: ops behind those that made y."""
    builder = y.builder
    cotangents = {y.value: Tensor(builder.constant(1.0), builder)}
    for op in builder.ops[::-1]:
        if op.results[0] in cotangents:
            operands = [Tensor(v, builder) for v in (*op.results, *op.operands)]
            parts = GRADIENTS[op.name](cotangents[op.results[0]], *operands)
            for value, part in zip(op.operands, parts, strict=True):
                cotangents[value] = cotangents[value] + part if value in cotangents else part
    return [cotangents[x.value] for x in xs]


def differentiate(graph: Graph, by: Sequence[str]) -> Graph:
    """A pass: the same graph, which gives the gradients by these inputs besides."""
    builder = Builder(graph.ops)
    xs = [Tensor(graph.inputs[name], builder) for name in by]
    found = tuple(t.value for t in gradients(Tensor(graph.results[0], builder), xs))
    return verify(replace(graph, ops=tuple(builder.ops), results=graph.results + found))


with_gradient = differentiate(forward, by=["w"])
slope = interpret(with_gradient, inputs)[1]
exact = {name: x.astype(np.float64) for name, x in inputs.items()}
above, below = [interpret(forward, {**exact, "w": exact["w"] + h})[0] for h in (1e-6, -1e-6)]
print(f"\n4. Gradient\n{len(forward.ops)} ops, with the gradient {len(with_gradient.ops)}")
print(f"{slope:.5f}; by finite differences {(above - below) / 2e-6:.5f}")
assert np.allclose(slope, (above - below) / 2e-6, rtol=1e-4)

# In weft: `weft/passes/autodiff/reverse_mode.py` is the walk, `weft/passes/autodiff/table.py` has
# the rules, `weft/passes/autodiff/control_flow.py` those of branches and loops.

# ---- 5. Simplify
#
# Rules that are written one by one multiply by 1, compute things twice, and make cotangents that
# nobody asked for. Three short passes clean up. Two of them go op by op, emit each on the new
# operands, and ask a rule for a value to use in its place. What is not used any more the third
# pass takes away.


def rewrite(graph: Graph, rule: Callable[[Builder, Op], Value | None]) -> Graph:
    builder, new = Builder(), {v: v for v in graph.inputs.values()}
    for op in graph.ops:
        builder.emit(op.name, *(new[v] for v in op.operands), **op.attrs)
        copy = builder.ops[-1]
        new[op.results[0]] = rule(builder, copy) or copy.results[0]
    results = tuple(new[v] for v in graph.results)
    return verify(replace(graph, ops=tuple(builder.ops), results=results))


def fold(graph: Graph) -> Graph:
    """Constant folding: what only depends on constants is computed now, by the reference."""

    def rule(builder: Builder, op: Op) -> Value | None:
        numbers = [number_of(v) for v in op.operands]
        if op.name in ELEMENTWISE and None not in numbers:
            return builder.constant(REFERENCE[op.name](*numbers), op.results[0].shape)
        if op.name == "multiply" and 1.0 in numbers:
            return op.operands[1 - numbers.index(np.float32(1))]
        return None

    return rewrite(graph, rule)


def number_of(value: Value) -> np.float32 | None:
    """The number that all elements are, if that is known."""
    while value.op is not None and value.op.name == "broadcast_to":
        (value,) = value.op.operands
    return value.op.attrs.get("value") if value.op is not None else None


def cse(graph: Graph) -> Graph:
    """Common subexpression elimination: equal ops on equal operands become one."""
    seen: dict[object, Value] = {}

    def rule(builder: Builder, op: Op) -> Value:
        return seen.setdefault((op.name, op.operands, repr(op.attrs)), op.results[0])

    return rewrite(graph, rule)


def dce(graph: Graph) -> Graph:
    """Dead code elimination: what no result needs is dropped."""
    needed, kept = set(graph.results), list[Op]()
    for op in reversed(graph.ops):
        if not needed.isdisjoint(op.results):
            kept.insert(0, op)
            needed.update(op.operands)
    return verify(replace(graph, ops=tuple(kept)))


def simplify(graph: Graph) -> Graph:
    return replace(dce(cse(fold(graph))), stage="optimized")


simple = simplify(with_gradient)
print(f"\n5. Simplify\n{len(with_gradient.ops)} ops, simplified {len(simple.ops)}")
print(show(simple))
assert np.allclose(interpret(simple, inputs), interpret(with_gradient, inputs))

# In weft: `weft/passes/simplify` has these passes and algebra; `weft/passes/pipelines.py` all
# passes in their order, with the reason of each place.

# ---- 6. Fusion
#
# So far each op reads its operands from memory and writes its result there. Ops over the same
# elements can share a loop: an element is read once, goes through all of them in registers, and
# only what others need is written. Such a group becomes one `fused` op with a body.
#
# Groups run in order, so an op may join one if all that it reads is made there or earlier. A sum
# joins the loop over its operand, but is complete only behind it: its readers go to later groups.
# Constants and broadcasts are in no group; each body that reads them repeats them.

REPEATED = ("constant", "broadcast_to")


def fuse(graph: Graph, alone: bool = False) -> Graph:
    """A graph of `fused` ops; `alone`: of one op each, to see what fusion is good for."""
    spaces: list[Shape] = []  # what the loop of each group runs over
    home: dict[Op | None, int] = {}  # the number of an op's group
    ready = dict.fromkeys(graph.inputs.values(), 0)  # the first group that may read a value
    for op in graph.ops:
        (result,) = op.results
        ready[result] = first = max((ready[v] for v in op.operands), default=0)
        if op.name not in REPEATED or result in graph.results:
            space = op.operands[0].shape if op.name == "sum" else result.shape
            fitting = [k for k in range(first, len(spaces)) if spaces[k] == space and not alone]
            if not fitting:
                spaces.append(space)
            home[op] = fitting[0] if fitting else len(spaces) - 1
            ready[result] = home[op] + 1 if op.name == "sum" else home[op]
    wanted = set(graph.results)  # and what an op outside of the group reads
    for op in graph.ops:
        wanted.update(v for v in op.operands if home.get(v.op) != home.get(op))
    new, ops = {v: v for v in graph.inputs.values()}, list[Op]()
    for number in range(len(spaces)):
        group = [op for op in graph.ops if home.get(op) == number]
        outputs = [op.results[0] for op in group if op.results[0] in wanted]
        operands, body = make_body(group, outputs)
        kind = "_".join(op.name for op in group[:5])
        results = tuple(Value(v.shape) for v in outputs)
        ops.append(Op("fused", tuple(new[v] for v in operands), {"kind": kind}, results, body))
        new.update(zip(outputs, results, strict=True))
    found = tuple(new[v] for v in graph.results)
    return verify(replace(graph, ops=tuple(ops), results=found, stage="fused"))


def make_body(group: Sequence[Op], outputs: Sequence[Value]) -> tuple[list[Value], Graph]:
    """The values that a group reads, and the graph of what it makes of them."""
    builder, inside, operands = Builder(), dict[Value, Value](), list[Value]()

    def value_inside(value: Value) -> Value:
        op = value.op
        if value not in inside and op is not None and (op in group or op.name in REPEATED):
            made = [value_inside(v) for v in op.operands]
            inside[value] = builder.emit(op.name, *made, **op.attrs)
        elif value not in inside:
            inside[value] = Value(value.shape)
            operands.append(value)
        return inside[value]

    for op in group:
        value_inside(op.results[0])
    inputs = {f"a{k}": inside[v] for k, v in enumerate(operands)}
    return operands, Graph("body", inputs, tuple(builder.ops), tuple(inside[v] for v in outputs))


fused = fuse(simple)
print("6. Fusion\n" + show(fused))
print(f"{len(fuse(simple, alone=True).ops)} loops became {len(fused.ops)}")
assert np.allclose(interpret(fused, inputs), interpret(simple, inputs))

# In weft: `weft/passes/fusion/fuse.py` grows groups edge by edge (a softmax is one, too);
# `weft/passes/fusion/rules.py` says what may be in one.

# ---- 7. Loop nest
#
# A fused op becomes an LLVM function, and LLVM makes machine code of it. All kernels are called in
# the same way: with the address of their *words*, which are the addresses of the operands and the
# results, then the size of the loop, which is at least 1. As the size is an argument, one kernel
# does for all sizes. In front of a loop that it vectorises LLVM checks that the arrays do not
# overlap; weft's kernels tell it that they do not (`noalias`).

F32, I64 = ir.FloatType(), ir.IntType(64)
KERNEL = ir.FunctionType(ir.VoidType(), [I64.as_pointer()])

SCALAR: dict[str, Callable[..., Any]] = {  # an op on one element, in LLVM
    "constant": lambda b, value: F32(float(value)),
    "broadcast_to": lambda b, x, shape: x,
    "add": lambda b, x, y: b.fadd(x, y),
    "subtract": lambda b, x, y: b.fsub(x, y),
    "multiply": lambda b, x, y: b.fmul(x, y),
    "divide": lambda b, x, y: b.fdiv(x, y),
    "negative": lambda b, x: b.fneg(x),
    "sqrt": lambda b, x: b.call(b.module.declare_intrinsic("llvm.sqrt", [F32]), [x]),
}


def emit_nest(op: Op) -> str:
    """The kernel of a fused op as LLVM IR. `b` appends instructions to a basic block."""
    assert op.body is not None
    function = ir.Function(ir.Module(), KERNEL, "kernel")
    entry, loop, end = [function.append_basic_block(name) for name in ("entry", "loop", "end")]
    b = ir.IRBuilder(entry)
    count = len(op.operands) + len(op.results)
    words = [b.load(b.gep(function.args[0], [I64(k)])) for k in range(count + 1)]
    buffers = [b.inttoptr(word, F32.as_pointer()) for word in words[:-1]]
    operands = dict(zip(op.body.inputs.values(), buffers, strict=False))
    outputs = list(zip(op.body.results, buffers[len(operands) :], strict=True))
    code = {v: b.load(buffer) for v, buffer in operands.items() if v.shape == ()}
    totals = {x.results[0]: b.alloca(F32) for x in op.body.ops if x.name == "sum"}
    for total in totals.values():  # LLVM will keep them in registers
        b.store(F32(0.0), total)
    b.branch(loop)

    b.position_at_end(loop)
    i = b.phi(I64)  # 0 where we come from the entry, else the last i plus 1
    i.add_incoming(I64(0), entry)
    code |= {v: b.load(b.gep(buffer, [i])) for v, buffer in operands.items() if v.shape != ()}
    for x in op.body.ops:
        result, arguments = x.results[0], [code[v] for v in x.operands]
        if x.name == "sum":  # reassoc: LLVM may add in another order, and so in vectors
            added = b.fadd(b.load(totals[result]), arguments[0], flags=["reassoc"])
            b.store(added, totals[result])
        else:
            code[result] = SCALAR[x.name](b, *arguments, **x.attrs)
    for value, buffer in outputs:
        if value not in totals:
            b.store(code[value], b.gep(buffer, [i]))
    following = b.add(i, I64(1))
    i.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, words[-1]), loop, end)

    b.position_at_end(end)
    for value, buffer in outputs:
        if value in totals:
            b.store(b.load(totals[value]), buffer)
    b.ret_void()
    return str(function.module)


# From this text to a function: parse, optimise for the processor at hand (LLVM's level 2 vectorises
# loops), emit, link. ctypes calls what is at the address. A text is compiled only once.


@functools.cache
def compile_kernel(text: str) -> tuple[Any, str, str, Any]:
    """The function, its optimised LLVM IR, its assembly; the last owns the machine code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    optimised, assembly = str(module), machine.emit_assembly(module)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    return prototype(engine.get_function_address("kernel")), optimised, assembly, engine


call, optimised, assembly, _ = compile_kernel(emit_nest(fused.ops[0]))
for size in (1000, 1_000_003):  # the same machine code
    arrays, sums = points(size), [np.zeros((), np.float32), np.zeros((), np.float32)]
    words = np.array([*(a.ctypes.data for a in (*arrays.values(), *sums)), size], np.int64)
    call(words.ctypes.data)
    assert np.allclose(sums[0] / size, loss(**arrays, xp=np), rtol=1e-4)
lines = assembly.splitlines()
packed = [line for line in lines if re.search(r"^\s+v?\w+ps\s|\bv\d+\.[24]s\b", line)]
lanes = max(map(int, re.findall(r"<(\d+) x float>", optimised)), default=1)
print(f"\n7. Loop nest\nfor {llvm.get_default_triple()}, {llvm.get_host_cpu_name()}:")
print(f"{len(lines)} lines of assembly, {len(packed)} on vectors of floats, up to {lanes} in one")

# In weft: `weft/codegen/nests/nest.py` has loops over several axes, strides and rows, which
# `weft/codegen/nests/writer.py` writes as LLVM; `weft/codegen/llvm/compile.py` runs LLVM;
# `weft/codegen/vector` has exp and sin, `weft/codegen/products` products of matrices.

# ---- 8. Step table
#
# A step is a list of kernel calls. Where values live is decided before anything runs: results in
# arrays of their own, what lies in between in one block of memory, the arena. A value is needed
# from the op that makes it to the last one that reads it; after that its place is free for others.


def plan_memory(graph: Graph) -> tuple[dict[Value, int], int]:
    """The offset of each value in the arena, in the first gap that is free; the arena's bytes."""
    last = {v: now for now, op in enumerate(graph.ops) for v in (*op.results, *op.operands)}
    nbytes = {v: 4 * math.prod(v.shape) for op in graph.ops for v in op.results}
    offsets: dict[Value, int] = {}
    for now, op in enumerate(graph.ops):
        for value in (v for v in op.results if v not in graph.results):
            start = 0
            for other, offset in sorted(offsets.items(), key=lambda item: item[1]):
                if last[other] >= now and offset < start + nbytes[value]:
                    start = max(start, offset + nbytes[other])
            offsets[value] = start
    return offsets, max((start + nbytes[v] for v, start in offsets.items()), default=0)


# The table has a row for each call: a kernel, and the address of its words. It is made for arrays:
# those of the inputs, and new ones for the results. `assign` is for chapter 9: it has a result, by
# number, written to the array of an input, by name, which no later op may read.


class Step:
    def __init__(self, graph: Graph, inputs: Arrays, assign: Mapping[int, str]) -> None:
        for name, v in graph.inputs.items():
            given = (inputs[name].dtype, inputs[name].shape, inputs[name].flags.c_contiguous)
            assert given == (np.float32, v.shape, True), f"{name} must be {v.type}"
        offsets, nbytes = plan_memory(graph)
        self.graph, self.inputs, self.arena = graph, inputs, np.empty(nbytes, np.uint8)
        assert len({v for v in graph.results if v.op}) == len(graph.results), "a result twice"
        new = [np.empty(v.shape, np.float32) for v in graph.results]
        self.results = [inputs[assign[k]] if k in assign else a for k, a in enumerate(new)]
        address = {v: self.arena.ctypes.data + offset for v, offset in offsets.items()}
        address |= {v: inputs[name].ctypes.data for name, v in graph.inputs.items()}
        address |= {v: a.ctypes.data for v, a in zip(graph.results, self.results, strict=True)}
        target = {graph.results[k]: graph.inputs[name] for k, name in assign.items()}
        words, rows, written = list[int](), list[tuple[Any, int]](), set[Value]()
        for op in graph.ops:
            assert op.body is not None
            assert written.isdisjoint(op.operands), "a value is read after the assignment to it"
            written |= {target[v] for v in op.results if v in target}
            rows.append((compile_kernel(emit_nest(op))[0], len(words)))
            words += [address[v] for v in (*op.operands, *op.results)]
            inside = [v for x in op.body.ops for v in (*x.operands, *x.results)]
            words.append(max(math.prod(v.shape) for v in inside))
        self.words = np.array(words, np.int64)
        self.table = [(call, self.words.ctypes.data + 8 * word) for call, word in rows]

    def __call__(self) -> list[Array]:
        for call, words in self.table:
            call(words)
        return self.results  # the next call writes to the same arrays


# A larger program: one step of gradient descent for a network with one hidden layer. Tracing
# unrolls the Python loop over its units. `by_hand` is what one would write in NumPy.

UNITS, RATE = 4, 0.05
WEIGHTS = [f"{letter}{unit}" for letter in "abc" for unit in range(UNITS)]


def descend(x: Any, y: Any, **w: Any) -> Any:
    error = -y
    for k in range(UNITS):
        error = error + w[f"a{k}"] * squash(w[f"b{k}"] * x + w[f"c{k}"], TOY)
    value = TOY.sum(error * error) * (1 / x.shape[0])
    slopes = gradients(value, list(w.values()))
    return value, *(old - RATE * slope for old, slope in zip(w.values(), slopes, strict=True))


def by_hand(x: Array, y: Array, a: Array, b: Array, c: Array) -> list[Array]:
    z = b * x + c
    root = np.sqrt(1 + z * z)
    error = (a * (z / root)).sum(axis=0) - y
    g = error * np.float32(2 / len(x))
    dz = a * g / (root * root * root)
    slopes = np.stack([z / root @ g, dz @ x, dz.sum(axis=1)])
    return [np.mean(error * error), *(np.stack([a, b, c])[..., 0] - RATE * slopes).flat]


rng = np.random.default_rng(0)
x = np.linspace(-3, 3, 4096, dtype=np.float32)
state = {"x": x, "y": np.sin(x)} | {n: np.array(rng.normal(), np.float32) for n in WEIGHTS}
matrices = np.array([state[name] for name in WEIGHTS]).reshape(3, UNITS, 1)
graph = simplify(trace(descend, {name: array.shape for name, array in state.items()}))
plain, fused_step = Step(fuse(graph, alone=True), state, {}), Step(fuse(graph), state, {})
print(f"\n8. Step table\n{len(graph.ops)} ops on {x.size} points")
for name, step in (("an op a call", plain), ("fused", fused_step)):
    nbytes = sum(4 * math.prod(v.shape) for op in step.graph.ops for v in op.results)
    print(f"{name}: {len(step.table)} calls, {nbytes:,} bytes in an arena of {step.arena.size:,}")
runs: dict[str, Callable[[], list[Array]]] = {
    "interpreter": lambda: interpret(graph, state),
    "NumPy": lambda: by_hand(x, state["y"], *matrices),
    "table, an op a call": plain,
    "table, fused": fused_step,
}
times = {name: min(timeit.repeat(run, number=5, repeat=10)) / 5 for name, run in runs.items()}
for name, run in runs.items():
    assert np.allclose(run(), interpret(graph, state), rtol=1e-3, atol=1e-5)
    ratio = times["interpreter"] / times[name]
    print(f"{name:19} {times[name] * 1e6:6.0f} us, {ratio:5.1f} times as fast as the interpreter")

# In weft: `weft/passes/memory/plan_memory.py`; `weft/codegen/steps/layout.py` makes the table, and
# `weft/codegen/steps/walker.py` is native code that goes through it, in arenas and for arrays that
# `weft/runtime/native` gives it at each call; `weft/codegen/pool.py` shares it among threads.

# ---- 9. State
#
# Training changes the weights. In TensorFlow's paper such state is part of the graph: a variable
# outlives the step, and ops read and assign it. Here a variable is an array that is an input, and
# its new value is written to the same array. A step of the loop below is a walk of the table.

step = Step(fuse(graph), state, assign=dict(enumerate(WEIGHTS, start=1)))
expected = interpret(graph, state)
losses = [float(step()[0])]
assert np.allclose([losses[0], *(float(state[name]) for name in WEIGHTS)], expected, rtol=1e-3)
losses += [float(step()[0]) for _ in range(20000)]
print(f"\n9. State\n{len(step.table)} calls a step; the loss")
for number in (0, 100, 1000, 20000):
    print(f"{losses[number]:.5f} after {number} steps")
assert losses[-1] < losses[0] / 100

# In weft: `weft/ir/ops/state.py` has the ops variable, read and assign; `weft/runtime/resources`
# keeps variables; `weft/frontend/session` runs parts of one graph as steps that share them, as in
# the paper; `weft/passes/partition` cuts a step by device, `weft/runtime/cluster` runs the parts.

# ---- 10. The same in weft
#
# The function of chapter 1, traced by weft, gives our text. Weft's parser reads the fused graph of
# chapter 6, its verifier accepts it, and its interpreter and compiled code give our numbers.

import weft as wf
from weft.ir.analysis.verify import verify as weft_verify
from weft.ir.interpreter.evaluate import interpret as weft_interpret
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

traced = wf.compile(loss, static_argnames="xp").trace(**inputs, xp=wf)
assert print_graph(traced, locations=False) == show(forward)
parsed = parse_graph(show(fused))
weft_verify(parsed)
native = wf.compile(wf.value_and_grad(functools.partial(loss, xp=wf)))
for value, slope in (weft_interpret(parsed, list(inputs.values())), native(**inputs)):
    assert np.allclose([value, slope], interpret(with_gradient, inputs), rtol=1e-4)
print("\n10. The same in weft\nThe texts and the results agree. The fused graph of weft:")
print(re.sub(r" loc\(.*\)", "", native.ir(*inputs.values())), end="")
