"""`quantize`: a function whose products and convolutions have weights of few bits, and perhaps
activations.

The function is traced once and frozen (`wf.export(freeze=True)`): its variables are constants, and
batch normalisation is part of them. Its layers, matmuls and convolutions of f32 with constant
weights, are then found in the graph, and each is replaced where the graph becomes part of a trace:

* weights only: `wf.quantization.matmul` with a `QuantizedMatrix`; a convolution dequantises;
* with activations: quantise and dequantise around the float op, as ONNX's QDQ, which the pass
  `integer_products` computes in integers. Dynamic: a scale for each row, of what it holds. Static:
  one for all, from `calibration`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import count
from typing import Any

import numpy as np

from weft.frontend.bundle.export import exported_function
from weft.frontend.bundle.freeze import frozen
from weft.frontend.bundle.load import Bundle, LoadedSignature, compiled_signature
from weft.frontend.bundle.signature import DEFAULT, Exported, Weights
from weft.frontend.bundle.structure import structure_from_json
from weft.frontend.compile.decorator import compile
from weft.frontend.compile.function import CompiledFunction
from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import abs, astype, divide, multiply
from weft.frontend.ops.manipulation import pad
from weft.frontend.ops.reduction import max
from weft.frontend.quantization.calibration import (
    Method,
    Observer,
    checked_method,
    scale_and_zero,
)
from weft.frontend.quantization.linear import dequantize_linear, quantize_linear
from weft.frontend.quantization.report import LayerError, Report, relative_error, report_of
from weft.frontend.quantization.weights import QuantizedMatrix, matmul, not_zero, quantize_weights
from weft.ir.analysis.known_values import constant_of, uniform
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import float32
from weft.ir.errors import InvalidArgumentError, NotFoundError, suggest
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import (
    bind,
    extend,
    readers_of,
    tensor,
    with_block,
    with_operands,
)

Array = np.ndarray[Any, Any]
#: What `weights=` and `activations=` take.
_BITS = {"int8": 8, "int4": 4}
_ACTIVATIONS = (None, "dynamic", "static")
#: The ops that are layers if their weights are known.
_LAYERS = ("matmul", "conv")


@dataclass(frozen=True, slots=True)
class Layer:
    """A matmul or convolution with constant weights. name: that of the variable they were, or of
    the op and its number; shape: of the weights; bits: theirs, 0 if the layer stays as it is.

    activations: None, "dynamic" or "static"; scale, zero_point: of static ones.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    bits: int
    activations: str | None = None
    scale: float = 1.0
    zero_point: int = 0


@dataclass(frozen=True, slots=True)
class _Found:
    """A layer in its graph: its number among the products and convolutions of the top block, and
    its weights [..., channels out]. held: those in few bits, and their scales."""

    number: int
    layer: Layer
    array: Array
    held: tuple[Array, ...] = ()


def quantize(
    model: Any,
    example: Any = None,
    *,
    weights: str = "int8",
    block_size: int | None = None,
    activations: str | None = None,
    calibration: Iterable[Any] | None = None,
    method: str = "minmax",
    percentile: float = 99.99,
    layers: Callable[[Layer], bool] | Sequence[str] | str | None = None,
) -> QuantizedFunction:
    """A function with the weights of its matmuls and convolutions in 8 or 4 bits.

    model: a function of tensors, compiled or not, a `wf.nn.Module` (as after `eval()`) or a loaded
    bundle; it is frozen: later changes of its variables are not seen. example: the arguments of a
    call, or their types, as for `wf.export`; what has an `input_signature` needs none.

    weights: "int8", a scale for each output channel, or for `block_size` numbers of it; "int4", in
    blocks of `block_size` (32; of convolutions, which stay at 8 bits, none). activations: None:
    floats, dequantised weights; "dynamic": the rows that matmuls take become int8 by what they
    hold; "static": int8 of one range for each layer, from `calibration`: batches, each the
    arguments of a call as a tuple (or the one argument). With either, weights are int8 with a
    scale for each channel. method: how ranges follow from batches: "minmax", "percentile" (all but
    100 - `percentile` percent of the numbers, half on each side) or "entropy". layers: which, by
    a name or several, or by a function of the `Layer`; None: all.

    Only layers outside of loops and branches are taken, with constant weights and a float32 input.
    InvalidArgumentError for arguments that do not fit, or if there is no layer; NotFoundError for a
    name that is none.

    >>> w = wf.Variable(wf.eye(64), name="w")
    >>> kind = wf.TensorType(wf.float32, ("n", 64))
    >>> q = wf.quantization.quantize(lambda x: wf.nn.relu(x @ w), kind)
    >>> q.layers[0].name, q.layers[0].shape, q.layers[0].bits
    ('w', (64, 64), 8)
    >>> q(wf.full((1, 64), 2.0))[0, :2]
    Tensor([2., 2.], dtype=float32)
    """
    _check(weights, activations, calibration, block_size, percentile)
    by, bits = checked_method(method), _BITS[weights]
    if isinstance(model, Bundle):
        model = model[DEFAULT]
    kept = Weights()
    found = exported_function(model, example, kept)
    given = frozen(found, kept)
    there = _layers(given.graph, kept)
    chosen, base = _chosen(there, layers), _signature(given)
    batches = None if calibration is None else list(calibration)
    ranges = _calibrated(given, base, chosen, batches, by, percentile)
    made = [_quantized(one, bits, block_size, activations, ranges) for one in chosen]
    fields = {**_fields(base), "graph": _without_weights(given.graph, made)}
    signature = _Replacing(**fields, layers={one.number: one for one in made})
    function = compiled_signature(given.graph.name, given.parameters, signature)
    names = {one.number: one.layer for one in [*there, *made]}
    return QuantizedFunction(function, tuple(names.values()), given, base, tuple(made))


def _check(
    weights: str, activations: str | None, calibration: Any, block_size: int | None,
    percentile: float,
) -> None:  # fmt: skip
    wrong: str | None = None
    if weights not in _BITS:
        wrong = f"weights={weights!r:.40} is none of {', '.join(map(repr, _BITS))}"
    elif activations not in _ACTIVATIONS:
        wrong = f"activations={activations!r:.40} is none of None, 'dynamic', 'static'"
    elif (activations == "static") != (calibration is not None):
        wrong = "static activations need calibration=batches, others take none"
    elif activations is not None and (weights != "int8" or block_size is not None):
        wrong = "with activations weights are int8 with a scale for each channel, without blocks"
    elif not 0.0 < percentile <= 100.0:
        wrong = f"percentile={percentile!r} is not in (0, 100]"
    if wrong is not None:
        raise InvalidArgumentError(f"wf.quantization.quantize: {wrong}", location=caller_location())


# ---------------------------------------------------------------------------------- the layers
def _layers(graph: Graph, kept: Weights) -> list[_Found]:
    """The layers of a frozen graph, in order. InvalidArgumentError if it has none."""
    made: list[_Found] = []
    used: set[str] = set()
    for number, op in enumerate(op for op in graph.block.ops if op.name in _LAYERS):
        if op.attrs.get("transpose_a"):
            continue
        (x, w), kind = op.operands, op.result.type
        array = _known(w)
        if array is None or _known(x) is not None or not isinstance(kind, TensorType):
            continue
        if kind.dtype is not float32 or not array.size or (op.name == "matmul" and array.ndim != 2):
            continue
        array = array.T if op.attrs.get("transpose_b") else array
        name = _name(array, kept, f"{op.name}_{len(made)}", used)
        made.append(_Found(number, Layer(name, op.name, array.shape, 0), array))
    if not made:
        raise InvalidArgumentError(
            f"wf.quantization.quantize: '{graph.name}' has no matmul or convolution of float32 "
            "with weights that are known, outside of loops",
            location=caller_location(),
        )
    return made


def _known(value: Value) -> Array | None:
    """The elements of a constant, or of one that is repeated."""
    constant, number, kind = constant_of(value), uniform(value), value.type
    if constant is not None:
        return constant.array
    if number is None or not isinstance(kind, TensorType) or not kind.is_static:
        return None
    return np.full(kind.static_shape, number)


def _name(array: Array, kept: Weights, default: str, used: set[str]) -> str:
    """The name of the variable that weights were, if they still are what it held."""
    for name, held in kept.arrays.items():
        for one in (held, held.T):
            same = one.shape == array.shape and one.dtype == array.dtype
            if name not in used and same and np.array_equal(one, array):
                used.add(name)
                return name
    return default


def _chosen(
    there: Sequence[_Found], layers: Callable[[Layer], bool] | Sequence[str] | str | None
) -> list[_Found]:
    if layers is None:
        return list(there)
    if callable(layers):
        return [one for one in there if layers(one.layer)]
    layers = (layers,) if isinstance(layers, str) else layers
    names = [one.layer.name for one in there]
    for name in layers:
        if name not in names:
            raise NotFoundError(
                f"wf.quantization.quantize: there is no layer {name!r:.60}"
                f"{suggest(str(name), names)}",
                hint=f"the layers are: {', '.join(names)}",
                location=caller_location(),
            )
    return [one for one in there if one.layer.name in set(layers)]


def _quantized(
    one: _Found, bits: int, block_size: int | None, activations: str | None,
    ranges: Mapping[int, tuple[float, int]],
) -> _Found:  # fmt: skip
    """A layer with its weights in few bits."""
    if one.layer.op == "matmul":
        w = quantize_weights(one.array, bits=bits, block_size=block_size)
        held: tuple[Array, ...] = (np.asarray(w.values), np.asarray(w.scale))
    else:
        bits, activations = 8, activations if activations == "static" else None
        most = np.abs(one.array).max(axis=tuple(range(one.array.ndim - 1)))
        scale = np.where(most > 0, most / np.float32(127), np.float32(1)).astype(np.float32)
        values = quantize_linear(one.array, scale, narrow_range=True, axis=-1)
        held = np.asarray(values), scale
    by, zero = ranges.get(one.number, (1.0, 0))
    layer = replace(one.layer, bits=bits, activations=activations, scale=by, zero_point=zero)
    return replace(one, layer=layer, held=held)


# -------------------------------------------------------------------------- graphs as functions
def _signature(given: Exported) -> LoadedSignature:
    """A frozen function as `wf.load` has one."""
    kinds = [a.type for a in given.graph.args]
    inputs = tuple([k for k in kinds if isinstance(k, TensorType)])
    result, order = structure_from_json(given.result)
    return LoadedSignature(given.graph, inputs, result, order, given.weak, (), ())


def _fields(signature: LoadedSignature) -> dict[str, Any]:
    names = ("graph", "inputs", "result", "order", "weak", "weights", "updates")
    return {name: getattr(signature, name) for name in names}


@dataclass(frozen=True, slots=True)
class _Replacing(LoadedSignature):
    """A function some ops of which are quantised layers. seen: gets the tensors that layers take
    and give, by number."""

    layers: Mapping[int, _Found] = field(default_factory=dict)
    seen: Callable[[int, Tensor, Tensor], None] | None = None

    def inline(self, trace: Trace, block: Block, values: Sequence[Value]) -> Sequence[Value]:
        """Append the ops of the graph, with layers in the place of some."""
        builder: Builder = trace.builder
        mapping: dict[Value, Value] = dict(zip(block.args, values, strict=True))
        numbers = count()
        for op in block.ops:
            one = self.layers.get(next(numbers)) if op.name in _LAYERS else None
            x = None if one is None else trace.tensor(mapping.get(op.operands[0], op.operands[0]))
            if one is None or x is None or not one.held:
                made: Sequence[Value] = builder.clone(op, mapping)
            else:
                made = [trace.lift(_computed(trace, op, one, x))]
            if one is not None and x is not None and self.seen is not None:
                self.seen(one.number, x, trace.tensor(made[0]))
            mapping.update(zip(op.results, made, strict=True))
        return [mapping[v] for v in block.results]


def _without_weights(graph: Graph, layers: Sequence[_Found]) -> Graph:
    """The graph with zeros in place of the constants that only these layers read, which none does
    any more: what they held in float32 need not be kept."""
    numbers = {one.number for one in layers}
    found = [op for op in graph.block.ops if op.name in _LAYERS]
    replaced = {op for number, op in enumerate(found) if number in numbers}
    readers = readers_of(graph)
    builder, mapping = extend(graph.block), dict[Value, Value]()
    for op in graph.block.ops:
        if op.name == "constant" and replaced.issuperset(readers.get(op.result, [None])):
            zero = builder.emit1("constant", value=ConstArray(np.zeros((), np.float32)))
            shape = tensor(op.result).shape
            mapping[op.result] = builder.emit1("broadcast_to", zero, shape=shape)
            continue
        new = with_operands(op, mapping)
        bind(mapping, op, new.results)
        builder.ops.append(new)
    return with_block(graph, builder.block([mapping.get(v, v) for v in graph.results]))


def _constant(trace: Trace, array: Array) -> Tensor:
    """An array in a trace, of whatever size: it is the function's own."""
    return trace.tensor(trace.builder.emit1("constant", value=ConstArray(array)))


def _computed(trace: Trace, op: Operation, one: _Found, x: Tensor) -> Tensor:
    """What a layer gives."""
    layer = one.layer
    values, scale = (_constant(trace, a) for a in one.held)
    if layer.op == "conv":
        w = dequantize_linear(values, scale, axis=-1)
        return apply("conv", _in_bytes(x, layer), w, **op.attrs)
    depth = one.held[0].shape[1] * 8 // layer.bits
    if depth > layer.shape[0]:  # here: between x in bytes and the product nothing else may be
        x = pad(x, ((0, 0),) * (x.ndim - 1) + ((0, depth - layer.shape[0]),))
    return matmul(_in_bytes(x, layer), QuantizedMatrix(values, scale, bits=layer.bits, depth=depth))


def _in_bytes(x: Tensor, layer: Layer) -> Tensor:
    """What a layer takes as int8, dequantised; x if it takes floats."""
    if layer.activations == "static":
        q = quantize_linear(x, layer.scale, layer.zero_point)
        return dequantize_linear(q, layer.scale, layer.zero_point)
    return _by_rows(x) if layer.activations == "dynamic" else x


def _by_rows(x: Tensor) -> Tensor:
    """x as int8 with a scale for each row, dequantised."""
    scale = not_zero(divide(max(abs(x), axis=-1, keepdims=True), 127.0))
    held = quantize_linear(divide(x, scale), 1.0, narrow_range=True)
    return multiply(astype(held, float32), scale)


# --------------------------------------------------------------------------------- calibration
def _arguments(batch: Any) -> tuple[Any, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def _observed(
    given: Exported, base: LoadedSignature, layers: Sequence[_Found]
) -> Callable[..., tuple[Any, list[Any]]]:
    """A function that also gives what each layer takes and gives, a pair for each."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    signature = _Replacing(
        **_fields(base), layers={one.number: one for one in layers},
        seen=lambda number, x, y: seen.__setitem__(number, (x, y)),
    )  # fmt: skip
    plain = compiled_signature(given.graph.name, given.parameters, signature)

    def call(*args: Any) -> Any:
        seen.clear()
        result = plain._fn(*args)
        return result, [list(seen[one.number]) for one in layers]

    made: CompiledFunction[..., Any] = compile(call)
    return made


def _calibrated(
    given: Exported, base: LoadedSignature, layers: Sequence[_Found], batches: Sequence[Any] | None,
    method: Method, percentile: float,
) -> dict[int, tuple[float, int]]:  # fmt: skip
    """Scale and zero point of what each layer takes, by its number; none without batches."""
    if batches is None:
        return {}
    if not batches:
        raise InvalidArgumentError(
            "wf.quantization.quantize: calibration has no batches", location=caller_location()
        )
    observed, observers = _observed(given, base, layers), [Observer() for _ in layers]
    for again in (False, True) if method != "minmax" else (False,):
        for batch in batches:
            _, pairs = observed(*_arguments(batch))
            for observer, (x, _) in zip(observers, pairs, strict=True):
                (observer.count if again else observer.see)(np.asarray(x))
    for one, observer in zip(layers, observers, strict=True):
        if observer.low > observer.high:
            raise InvalidArgumentError(
                f"wf.quantization.quantize: calibration gives layer {one.layer.name!r} no finite "
                "number",
                location=caller_location(),
            )
    return {
        one.number: scale_and_zero(*observer.range(method, percentile))
        for one, observer in zip(layers, observers, strict=True)
    }


# -------------------------------------------------------------------------------------- result
class QuantizedFunction:
    """A function that `quantize` has made; calling it runs it.

    function: it as a compiled function, which `wf.export` takes. layers: all that could be
    quantised, in order, with the bits that they have.
    """

    def __init__(
        self, function: CompiledFunction[..., Any], layers: tuple[Layer, ...], given: Exported,
        base: LoadedSignature, made: tuple[_Found, ...],
    ) -> None:  # fmt: skip
        self.function = function
        self.layers = layers
        self._given, self._base, self._made = given, base, made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def report(self, *args: Any) -> Report:
        """How far results, and what each quantised layer gives, are from those of the function in
        float32, for these arguments; errors of earlier layers count."""
        plain = [replace(one, held=()) for one in self._made]
        exact, floats = _observed(self._given, self._base, plain)(*args)
        found, made = _observed(self._given, self._base, self._made)(*args)
        rows = []
        for one, (_, want), (_, got) in zip(self._made, floats, made, strict=True):
            error = relative_error(np.asarray(want), np.asarray(got))
            layer, size = one.layer, sum(a.nbytes for a in one.held)
            rows.append(LayerError(
                layer.name, layer.op, layer.shape, layer.bits, layer.activations,
                one.array.nbytes, size, error,
            ))  # fmt: skip
        leaves = (pytree.flatten(x)[0] for x in (exact, found))
        pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(*leaves, strict=True)]
        return report_of(rows, pairs)

    def __repr__(self) -> str:
        some = sum(1 for one in self.layers if one.bits)
        return f"<quantized {self._given.graph.name}: {some} of {len(self.layers)} layers>"
