"""Patterns of ops that are one operator of ONNX: what people expect to see in a model.

`steps` walks a block from its results to its arguments: a pattern takes the place of the ops that
it stands for, and what only they read is not written. Most patterns are functions of weft's own
(`wf.nn.gelu`), traced for the types that are there and compared op by op (`Template`): a pattern
follows its function. The numbers of parameters are traced as marks that stand for any number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from weft.frontend.bundle.export import exported_function
from weft.frontend.bundle.freeze import frozen
from weft.frontend.bundle.signature import Weights
from weft.frontend.nn import activations, losses
from weft.frontend.onnx.nodes import products, reductions, windows
from weft.frontend.onnx.nodes.dtypes import RUNS_IN
from weft.frontend.onnx.nodes.graph import GraphWriter, Held, dtype_of, inverted, tensor_of
from weft.frontend.onnx.nodes.moves import bind_turned
from weft.frontend.ops.elementwise import add, divide, multiply, square
from weft.frontend.ops.reduction import mean
from weft.frontend.ops.special import rsqrt, sqrt
from weft.ir import dtypes
from weft.ir.analysis.known_values import constant_of
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, product
from weft.ir.errors import WeftError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.spec import ConstArray, int_attr, ints_attr
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]

#: A number that stands for any number where a template has it.
MARK = 0.80078125


@dataclass(frozen=True, slots=True)
class Pattern:
    """Ops that become one operator: the values that it reads, and what writes it."""

    reads: Sequence[Value]
    write: Callable[[GraphWriter], None]


Finder = Callable[[Operation, "_Block"], Pattern | None]


@dataclass(frozen=True, slots=True)
class _Block:
    """A block, how often its values are read, and the writer of the graph."""

    readers: Counter[Value]
    writer: GraphWriter


def steps(block: Block, writer: GraphWriter) -> Iterator[tuple[Operation, Pattern | None]]:
    """The ops of a block that its results need, in order, each with the pattern that writes it."""
    readers = Counter(v for op in block.ops for v in op.operands)
    readers.update(block.results)
    around = _Block(readers, writer)
    needed = set(block.results)
    found: list[tuple[Operation, Pattern | None]] = []
    for op in reversed(block.ops):
        acts = lookup(op.name).traits & {"no_dce", "writes_state"}
        if needed.isdisjoint(op.results) and not acts:
            continue
        pattern = _pattern(op, around)
        needed.update(op.operands if pattern is None else pattern.reads)
        found.append((op, pattern))
    return reversed(found)


def _pattern(op: Operation, around: _Block) -> Pattern | None:
    for find in _FINDERS.get(op.name, ()):
        pattern = find(op, around)
        if pattern is not None:
            return pattern
    return None


# ---------------------------------------------------------------------------------------- templates
@dataclass(frozen=True, slots=True)
class Template:
    """A function of weft's that is one operator. attrs: of the operator, from the number that was
    found for the mark."""

    kind: str
    function: Callable[..., Any]
    attrs: Callable[[float], dict[str, Any]] = lambda mark: {}


@dataclass(slots=True)
class _Found:
    arguments: dict[Value, Value] = field(default_factory=dict)
    mark: float | None = None


@lru_cache(1024)
def _traced(function: Callable[..., Any], kinds: tuple[TensorType, ...]) -> Graph | None:
    """The graph of a template for arguments of these types; None if it has none."""
    try:
        weights = Weights()
        return frozen(exported_function(function, kinds, weights), weights).graph
    except WeftError:
        return None


def _match(wanted: Value, value: Value, found: _Found) -> bool:
    """Whether a value is computed as the template's is; notes what its arguments are."""
    if wanted.op is None:
        return found.arguments.setdefault(wanted, value) is value
    one, other = wanted.op, value.op
    if other is None or one.name != other.name or wanted.index != value.index:
        return False
    if one.name == "constant":
        return _match_constant(one, other, found)
    if one.attrs != other.attrs or len(one.operands) != len(other.operands) or one.regions:
        return False
    orders = [list(other.operands)]
    if "commutative" in lookup(one.name).traits:
        orders.append(list(reversed(other.operands)))
    for operands in orders:
        tried = _Found(dict(found.arguments), found.mark)
        if all(_match(a, b, tried) for a, b in zip(one.operands, operands, strict=True)):
            found.arguments, found.mark = tried.arguments, tried.mark
            return True
    return False


def _match_constant(one: Operation, other: Operation, found: _Found) -> bool:
    a, b = one.attrs["value"], other.attrs["value"]
    assert isinstance(a, ConstArray)
    assert isinstance(b, ConstArray)
    if a == b:
        return True
    if a.array.size != 1 or b.array.size != 1 or a.dtype is not b.dtype:
        return False
    if float(a.array.reshape(())) != MARK:
        return False
    number = float(b.array.reshape(()))
    if found.mark not in (None, number):
        return False
    found.mark = number
    return True


def _template(template: Template, op: Operation, around: _Block) -> Pattern | None:
    """A template of one argument, which has the type of the result."""
    kind = tensor_of(op.result)
    if kind.dtype.short not in (*RUNS_IN.get(template.kind, ("f32", "f64")), "f16"):
        return None
    graph = _traced(template.function, (kind,))
    found = _Found()
    if graph is None or not _match(graph.results[0], op.result, found):
        return None
    x = found.arguments.get(graph.args[0])
    if x is None or x.type != kind:
        return None
    attrs = template.attrs(MARK if found.mark is None else found.mark)
    return Pattern([x], partial(_write_unary, op, x, template.kind, attrs))


def _write_unary(
    op: Operation, x: Value, kind: str, attrs: dict[str, Any], writer: GraphWriter
) -> None:
    """An operator of each element, in the layout of the operand."""
    held = writer.held[x]
    numbers = [writer.constant(np.asarray(n).astype(dtype_of(x).numpy)) for n in attrs.pop("", ())]
    name = writer.call(kind, [held.name, *numbers], dtype_of(x), **attrs)
    writer.held[op.result] = Held(name, held.shape, held.perm, held.full)


def _silu(op: Operation, around: _Block) -> Pattern | None:
    """x sigmoid(x): at -inf as runtimes have it."""
    made = _template(Template("Sigmoid", activations.silu), op, around)
    if made is None:
        return None
    (x,) = made.reads

    def write(writer: GraphWriter) -> None:
        held = writer.held[x]
        share = writer.call("Sigmoid", [held.name], dtype_of(x))
        name = writer.call("Mul", [held.name, share], dtype_of(x))
        writer.held[op.result] = Held(name, held.shape, held.perm, held.full)

    return Pattern([x], write)


def _along_axis(kind: str, function: Callable[..., Any], op: Operation, around: _Block) -> (
    Pattern | None
):  # fmt: skip
    """Softmax or log_softmax, over the axis of the sum that is in it."""
    total = _behind(op.operands[1], "sum", 3)
    if total is None or len(ints_attr(total.attrs, "axes")) != 1:
        return None
    (axis,) = ints_attr(total.attrs, "axes")
    made = _template(Template(kind, _with_axis(function, axis)), op, around)
    if made is None:
        return None
    (x,) = made.reads

    def write(writer: GraphWriter) -> None:
        held = writer.held[x]
        perm = held.perm if held.full else ()
        order = inverted(perm)
        own = perm[axis] if perm else axis
        name = writer.call(kind, [writer.use(x, order)], dtype_of(x), axis=own)
        bind_turned(writer, op.result, name, perm)

    return Pattern([x], write)


@lru_cache(64)
def _with_axis(function: Callable[..., Any], axis: int) -> Callable[..., Any]:
    def along(x: Any) -> Any:
        return function(x, axis=axis)

    return along


def _behind(value: Value, name: str, most: int) -> Operation | None:
    """The first op of a name behind a value, along first operands, within so many steps."""
    for _ in range(most):
        if value.op is None:
            return None
        if value.op.name == name:
            return value.op
        if not value.op.operands:
            return None
        value = value.op.operands[0]
    return None


# -------------------------------------------------------------------------------------- layer norms
def _plain_norm(x: Any) -> Any:
    return losses.layer_norm(x, epsilon=MARK)


def _scaled_norm(x: Any, scale: Any) -> Any:
    return losses.layer_norm(x, scale, epsilon=MARK)


def _shifted_norm(x: Any, offset: Any) -> Any:
    return losses.layer_norm(x, None, offset, epsilon=MARK)


def _whole_norm(x: Any, scale: Any, offset: Any) -> Any:
    return losses.layer_norm(x, scale, offset, epsilon=MARK)


def _mean_square(x: Any) -> Any:
    return mean(multiply(x, x), axis=-1, keepdims=True)


def _rms_norm(x: Any) -> Any:
    return multiply(x, rsqrt(add(mean(square(x), axis=-1, keepdims=True), MARK)))


def _rms_norm_product(x: Any) -> Any:
    return multiply(x, rsqrt(add(_mean_square(x), MARK)))


def _rms_norm_divided(x: Any) -> Any:
    return divide(x, sqrt(add(mean(square(x), axis=-1, keepdims=True), MARK)))


def _rms_norm_product_divided(x: Any) -> Any:
    return divide(x, sqrt(add(_mean_square(x), MARK)))


@lru_cache(64)
def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    def with_scale(x: Any, scale: Any) -> Any:
        return multiply(function(x), scale)

    return with_scale


_LAYER_NORMS = (
    (_whole_norm, ("scale", "offset")), (_scaled_norm, ("scale",)), (_shifted_norm, ("offset",)),
    (_plain_norm, ()),
)  # fmt: skip
_RMS_NORMS = tuple(
    row
    for function in (_rms_norm, _rms_norm_product, _rms_norm_divided, _rms_norm_product_divided)
    for row in ((_scaled(function), ("scale",)), (function, ()))
)


def _normalisation(op: Operation, around: _Block) -> Pattern | None:
    """Over the last axis: a layer norm, or, from opset 23 on, one by the root mean square."""
    kind = tensor_of(op.result)
    if not kind.rank or kind.dtype not in (dtypes.float32, dtypes.float64, dtypes.float16):
        return None
    width = kind.shape[-1]
    if not isinstance(width, int) or not width or not _has_root(op):
        return None
    found = _norm("LayerNormalization", _LAYER_NORMS, op)
    if found is None and around.writer.opset >= 23:
        found = _norm("RMSNormalization", _RMS_NORMS, op)
    return found


def _norm(
    name: str, norms: Sequence[tuple[Callable[..., Any], Sequence[str]]], op: Operation
) -> Pattern | None:
    """The first of the norms that an op is."""
    kind = tensor_of(op.result)
    width = kind.shape[-1]
    row = TensorType(kind.dtype, (width,))
    for function, names in norms:
        graph = _traced(function, (kind, *[row] * len(names)))
        found = _Found()
        if graph is None or not _match(graph.results[0], op.result, found):
            continue
        x, *more = (found.arguments.get(a) for a in graph.args)
        fits = all(m is not None and tensor_of(m).shape in ((), (1,), (width,)) for m in more)
        if x is None or x.type != kind or not fits or found.mark is None:
            continue
        given = {n: m for n, m in zip(names, more, strict=True) if m is not None}
        write = partial(_write_norm, name, op, x, given, found.mark)
        return Pattern([x, *given.values()], write)
    return None


def _has_root(op: Operation) -> bool:
    """A quick look: a normalisation has a root in it, not far."""
    names = ("rsqrt", "sqrt", "multiply", "divide")
    return any(_behind(v, name, 2) is not None for v in op.operands for name in names)


def _write_norm(
    name: str, op: Operation, x: Value, given: dict[str, Value], epsilon: float, writer: GraphWriter
) -> None:
    kind = tensor_of(x)
    dtype = kind.dtype
    width = kind.shape[-1]
    assert isinstance(width, int)

    def row(name: str, default: int) -> str:
        value = given.get(name)
        if value is None:
            return writer.constant(np.full(width, default, dtype.numpy))
        held = writer.held[value]
        if held.name in writer.arrays:
            return writer.constant(np.broadcast_to(writer.arrays[held.name], (width,)))
        if tensor_of(value).shape == (width,):
            return writer.use(value)
        return writer.node("Expand", writer.use(value), writer.ints(width))

    inputs = [writer.use(x), row("scale", 1)]
    inputs += [row("offset", 0)] if "offset" in given else []
    made = writer.call(name, inputs, dtype, axis=-1, epsilon=epsilon)
    writer.bind(op.result, made)


# --------------------------------------------------------------------------------- sums with a bias
def _spread(value: Value) -> Value:
    """What a broadcast repeats, or the value itself."""
    op = value.op
    return op.operands[0] if op is not None and op.name == "broadcast_to" else value


def _is_array(value: Value, around: _Block) -> bool:
    held = around.writer.held.get(value)
    weight = held is not None and held.name in around.writer.arrays
    return weight or constant_of(value) is not None


_BIASED = ("conv", "matmul", "permute_dims")


def _biased(op: Operation, around: _Block) -> Pattern | None:
    """A convolution, or a product of matrices, plus a bias; or a convolution less one."""
    less = op.name == "subtract"
    for k in (0,) if less else (0, 1):
        made, bias = op.operands[k].op, op.operands[1 - k]
        if made is None or made.name not in _BIASED or not dtype_of(op.result).is_floating:
            continue
        axes = tuple(range(tensor_of(op.result).rank))
        read_once = around.readers[made.result] == 1
        if made.name == "permute_dims" and made.operands[0].op is not None and read_once:
            axes, made = ints_attr(made.attrs, "axes"), made.operands[0].op
        if around.readers[made.result] != 1:
            continue
        inner = _spread(bias)
        if made.name == "conv" and _is_array(inner, around):
            if _fits_channels(made, inner, axes):
                return Pattern(
                    [*made.operands, inner],
                    partial(windows.conv_bias, made, inner, op.result, less, axes),
                )
        if made.name == "matmul" and made is op.operands[k].op and inner is not bias and not less:
            row, kind = tensor_of(inner), tensor_of(op.result)
            if kind.rank == 2 and row.shape == kind.shape[1:]:
                write = partial(products.gemm, made, inner, op.result)
                return Pattern([*made.operands, inner], write)
    return None


def _fits_channels(conv: Operation, bias: Value, axes: Sequence[int]) -> bool:
    """Whether a bias has one number for each channel of a convolution, whose axes are permuted."""
    rank = len(axes)
    if 0 in [d for v in (*conv.operands, conv.result) for d in tensor_of(v).shape]:
        return False
    shape = tensor_of(bias).shape
    whole = (1,) * (rank - len(shape)) + shape
    channels = tensor_of(conv.result).shape[-1]
    return len(whole) == rank and all(
        d == 1 or (axes[a] == rank - 1 and d == channels) for a, d in enumerate(whole)
    )


# ---------------------------------------------------------------------------------------- attention
def _attention(op: Operation, around: _Block) -> Pattern | None:
    """softmax(scale Q K^T, masked) V, of four axes, which ONNX has from opset 23 on."""
    weights, value = op.operands
    kind = tensor_of(op.result)
    if around.writer.opset < 23 or kind.rank != 4 or kind.dtype.short not in ("f32", "f16"):
        return None
    if op.attrs["transpose_a"] or op.attrs["transpose_b"] or around.readers[weights] != 1:
        return None
    divide = weights.op
    if divide is None or divide.name != "divide":
        return None
    softmax = _along_axis("Softmax", activations.softmax, divide, around)
    total = _behind(divide.operands[1], "sum", 3)
    if softmax is None or total is None or ints_attr(total.attrs, "axes") != (3,):
        return None
    found = products.scores_of(softmax.reads[0])
    if found is None or tensor_of(value).shape[:2] != tensor_of(found.query).shape[:2]:
        return None
    reads = [found.query, found.key, value, *([found.mask] if found.mask is not None else [])]
    return Pattern(reads, partial(products.attention, found, value, op.result))


# ----------------------------------------------------------------------------------- means, extrema
def _uniform(value: Value) -> Array | None:
    """The constant that is spread, if the value is one."""
    held = constant_of(_spread(value))
    return None if held is None else held.array


def _mean(op: Operation, around: _Block) -> Pattern | None:
    """A sum, divided by how many elements are in it."""
    made, count = op.operands[0].op, _uniform(op.operands[1])
    if made is None or not dtype_of(op.result).is_floating:
        return None
    if made.name == "sum" and ints_attr(made.attrs, "axes"):
        shape = tensor_of(made.operands[0]).shape
        size = product(shape[a] for a in ints_attr(made.attrs, "axes"))
        if size and size == _number(_spread(op.operands[1])):
            return Pattern(made.operands, partial(_write_mean, made, op.result))
    if made.name == "window_sum" and count is not None:
        return _average(op, made, count)
    return None


def _number(value: Value) -> Dim:
    """The whole number that a scalar is, also where it is made of sizes; None for others."""
    op = value.op
    if op is None:
        return None
    held = constant_of(value)
    if held is not None:
        if held.array.size != 1:
            return None
        number = float(held.array.reshape(()))
        return int(number) if number.is_integer() else None
    if op.name == "dim_size":
        return tensor_of(op.operands[0]).shape[int_attr(op.attrs, "axis")]
    if op.name == "astype":
        return _number(op.operands[0])
    if op.name == "multiply":
        return product(map(_number, op.operands))
    return None


def _write_mean(total: Operation, result: Value, writer: GraphWriter) -> None:
    reductions.reduce(writer, total, "ReduceMean", dtype_of(result))
    writer.held[result] = writer.held.pop(total.result)


def _average(op: Operation, made: Operation, count: Array) -> Pattern | None:
    """Average pooling: of all taps, or of those that see something."""
    taps = int(np.prod(ints_attr(made.attrs, "window")))
    kind = tensor_of(made.operands[0])
    if not all(isinstance(d, int) for d in kind.shape[1:-1]):
        return None
    if not windows.pads_less_than_windows(made):
        return None
    seen = windows.pool_counts(made)
    if count.size == 1 and count.reshape(())[()] == taps:
        outside = True
    elif count.size == seen.size and np.array_equal(count.reshape(seen.shape), seen):
        outside = False
    else:
        return None

    def write(writer: GraphWriter) -> None:
        (x,) = made.operands
        name = windows.average_pool(writer, made, x, window_pads=outside)
        bind_turned(writer, op.result, name, windows.channels_last(kind.rank))

    return Pattern(made.operands, write)


def _clip(op: Operation, around: _Block) -> Pattern | None:
    """minimum(maximum(x, low), high), of numbers."""
    inner = "minimum" if op.name == "maximum" else "maximum"
    for k in (0, 1):
        made, end = op.operands[k].op, _uniform(op.operands[1 - k])
        if made is None or made.name != inner or end is None or end.size != 1:
            continue
        for j in (0, 1):
            start, x = _uniform(made.operands[j]), made.operands[1 - j]
            if start is None or start.size != 1 or x.type != op.result.type:
                continue
            low, high = (start, end) if inner == "maximum" else (end, start)
            if low.reshape(())[()] <= high.reshape(())[()]:
                numbers = [low.reshape(()), high.reshape(())]
                return Pattern([x], partial(_write_unary, op, x, "Clip", {"": numbers}))
    return None


def _top_k(op: Operation, around: _Block) -> Pattern | None:
    """The first elements of what is sorted, or of the places that sort it."""
    made = op.operands[0].op
    if made is None or made.name not in ("sort", "argsort"):
        return None
    write = products.first_sorted(op, made)
    return None if write is None else Pattern(made.operands, write)


# --------------------------------------------------------------------------------------- the tables
def _leaky(x: Any) -> Any:
    return activations.leaky_relu(x, MARK)


def _elu(x: Any) -> Any:
    return activations.elu(x, MARK)


def _gelu_tanh(x: Any) -> Any:
    return activations.gelu(x, approximate=True)


_TEMPLATES: dict[str, tuple[Template, ...]] = {
    "where": (
        Template("Relu", activations.relu),
        Template("Clip", activations.relu6, lambda mark: {"": (0, 6)}),
        Template("LeakyRelu", _leaky, lambda mark: {"alpha": mark}),
        Template("Elu", _elu, lambda mark: {"alpha": mark}),
        Template("Elu", activations.elu, lambda mark: {"alpha": 1.0}),
    ),
    "multiply": (
        Template("Gelu", activations.gelu, lambda mark: {"approximate": "none"}),
        Template("Gelu", _gelu_tanh, lambda mark: {"approximate": "tanh"}),
        Template("Mish", activations.mish),
        Template("Selu", activations.selu),
    ),
    "add": (Template("Softplus", activations.softplus),),
    "divide": (
        Template("Softsign", activations.softsign),
        Template("HardSigmoid", activations.hard_sigmoid, lambda mark: {"alpha": 1 / 6}),
    ),
}

_FINDERS: dict[str, list[Finder]] = {
    name: [partial(_template, one) for one in templates] for name, templates in _TEMPLATES.items()
}
_FINDERS.setdefault("divide", []).extend([
    partial(_along_axis, "Softmax", activations.softmax), _mean,
])  # fmt: skip
_FINDERS["subtract"] = [_biased, partial(_along_axis, "LogSoftmax", activations.log_softmax)]
_FINDERS["add"] = [_biased, _normalisation, *_FINDERS["add"]]
_FINDERS["multiply"] = [_normalisation, *_FINDERS["multiply"], _silu]
_FINDERS["divide"].append(_normalisation)
_FINDERS["minimum"] = [_clip]
_FINDERS["maximum"] = [_clip]
_FINDERS["slice"] = [_top_k]
_FINDERS["matmul"] = [_attention]
