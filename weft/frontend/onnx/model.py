"""`wf.onnx.load`: an ONNX model as a compiled function."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft.frontend.bundle.freeze import FREEZING
from weft.frontend.bundle.signature import type_of
from weft.frontend.compile.arguments import StaticArray
from weft.frontend.compile.decorator import compile
from weft.frontend.core.function_trace import Argument, trace_function
from weft.frontend.core.slow import LARGE_CONSTANT
from weft.frontend.core.tensor import Array, Tensor, as_tensor
from weft.frontend.core.trace import current_trace, suspend_trace
from weft.frontend.onnx.dtypes import NARROW, dtype_of, held
from weft.frontend.onnx.plan import Node, Plan, Reader, uses
from weft.frontend.onnx.reader import damaged, package, read
from weft.frontend.onnx.run import Runner
from weft.frontend.onnx.sizes import Sizes
from weft.frontend.state.variable import Variable
from weft.ir.dims import SymbolicDim, same
from weft.ir.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
    suggest,
)
from weft.ir.graph import Graph, unique_name
from weft.ir.locations import caller_location
from weft.ir.types import TensorType
from weft.passes.manager import STANDARD

if TYPE_CHECKING:
    import onnx

#: What `load` takes.
Source: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"
#: Dtypes and shapes of the arguments of a call.
Kinds: TypeAlias = tuple[tuple[Any, tuple[Any, ...]], ...]
_MOST_KINDS = 256  # so many are remembered


class Model:
    """A model that `wf.onnx.load` has read: a function of its inputs, by position or name, whose
    result is a dict of its outputs by name.

    inputs: a `wf.TensorType` for each by name, whose open sizes are symbols; None for a sequence or
    an optional value, which is None where there is none; those at the end may be left out. outputs:
    their names. parameters: its float weights, tensors by name, which `apply` takes others for.
    metadata: what the file says of itself.
    """

    def __init__(self, proto: onnx.ModelProto, name: str, reader: Reader) -> None:
        self.name = name
        plan = reader.graph(proto.graph)
        reader.check()
        declared = {i.name: i.type for i in proto.graph.input}
        self._plan = plan
        self._runner = Runner(reader, _types(proto))
        self.inputs: Mapping[str, TensorType | None] = {
            n: _input_type(n, declared[n]) for n in plan.inputs
        }
        self.outputs: tuple[str, ...] = plan.outputs
        fixed = _decisive(plan, set(plan.constants))
        self.parameters: dict[str, Tensor] = {
            n: plan.constants[n] for n in plan.weights if n not in fixed
        }
        self.metadata: Mapping[str, str] = {
            "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
            "opset": str(reader.opsets.get("", 1)),
            **{p.key: p.value for p in proto.metadata_props},
        }
        self._names = _identifiers(plan.inputs)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        optional = takewhile(lambda n: declared[n].HasField("optional_type"), plan.inputs[::-1])
        defaults = dict.fromkeys(optional)
        self.__signature__ = inspect.Signature([
            inspect.Parameter(p, kind, default=defaults.get(n, inspect.Parameter.empty))
            for n, p in self._names.items()
        ])  # fmt: skip
        self.__name__ = _identifier(name)
        deciding = _decisive(
            plan, {n for n, k in self.inputs.items() if k is None or len(k.shape) < 2}
        )
        deciding |= {n for node in plan.nodes for n in _decided(node)} & {*plan.inputs}
        self._static = {self._names[n] for n in deciding}
        self._static_places = [i for i, n in enumerate(self.inputs) if n in deciding]
        self._checked: set[Kinds] = set()
        self._values: dict[StaticArray, StaticArray] = {}
        # arguments of the compiled code, which would copy them as constants
        self._large = {
            n: p for n, p in self.parameters.items() if p.numpy().nbytes >= LARGE_CONSTANT
        }
        self._compiled = self._compile()

    # --------------------------------------------------------------------------------------- calls
    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if current_trace() is not None:
            return self._run(self.parameters, self._bound(args, kwargs))
        values = self._as_before(args, kwargs)
        if values is None:
            given = self._bound(args, kwargs)
            self._note(args, kwargs)
            values = list(self._fixed(given).values())
        try:
            result = self._compiled(self._large, *values)  # in the order of names
        except MemoryError as error:
            if isinstance(error, WeftError):
                raise
            raise ResourceExhaustedError(
                f"'{self.name}' needs more memory than there is: {error}",
                location=caller_location(),
            ) from error
        return {n: result[n] for n in self.outputs}

    def _as_before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The arguments of the compiled function, if a call has been checked whose arrays were of
        the same dtypes and shapes; else None."""
        values = self._in_order(args, kwargs)
        if values is None or _kinds(values) not in self._checked:
            return None
        for i in self._static_places:
            value = values[i]
            values[i] = self._static_value(value.numpy() if isinstance(value, Tensor) else value)
        return values

    def _in_order(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The inputs in order, if they are all there by position or ONNX's names; else None."""
        if len(args) + len(kwargs) != len(self.inputs):
            return None
        names = [*self.inputs][len(args) :]
        try:
            return [*args, *[kwargs[n] for n in names]]
        except KeyError:
            return None

    def _note(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Remember the dtypes and shapes of arguments that are right, and need no conversion."""
        values = self._in_order(args, kwargs)
        kinds = None if values is None else _kinds(values)
        if kinds is None:
            return
        for (dtype, _), wanted in zip(kinds, self.inputs.values(), strict=True):
            if wanted is None or wanted.dtype.kind == "string":
                return
            if dtype is not wanted.dtype and dtype != wanted.dtype.numpy:
                return
        if len(self._checked) >= _MOST_KINDS:
            self._checked.clear()
        self._checked.add(kinds)

    def ir(self, *args: Any, **kwargs: Any) -> str:
        """The text of the graph that a call with these inputs runs, as `ir` of compiled functions
        has it."""
        text: str = self._compiled.ir(self._large, **self._fixed(self._bound(args, kwargs)))
        return text

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What a call with these inputs runs and costs, as `explain` of compiled functions has
        it."""
        return str(self._compiled.explain(self._large, **self._fixed(self._bound(args, kwargs))))

    def _fixed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs as the compiled function takes them: those that decide shapes by their values."""
        return {
            self._names[n]: self._static_value(v.numpy())
            if self._names[n] in self._static and isinstance(v, Tensor)
            else v
            for n, v in given.items()
        }

    def _static_value(self, array: Array) -> StaticArray:
        """The argument for these values: the same object as before, by which calls know it."""
        made = StaticArray(array)
        if len(self._values) >= _MOST_KINDS:
            self._values.clear()
        return self._values.setdefault(made, made)

    def apply(self, parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The outputs with other weights: tensors, arrays or variables by the names in
        `parameters`, or some of them; `wf.grad` differentiates with respect to them.

        InvalidArgumentError for a name that is none, ShapeError for another shape.
        """
        for name, value in parameters.items():
            if name not in self.parameters:
                raise InvalidArgumentError(
                    f"'{self.name}' has no parameter {name!r:.60}"
                    f"{suggest(str(name), list(self.parameters))}",
                    location=caller_location(),
                )
            wanted, kind = type_of(self.parameters[name]), type_of(value)
            if wanted != kind:
                raise ShapeError(
                    f"the parameter '{name}' of '{self.name}' is {wanted}, got {kind}",
                    location=caller_location(),
                )
        return self._run({**self.parameters, **parameters}, self._bound(args, kwargs))

    def _run(self, parameters: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        held = {
            n: p.read() if isinstance(p, Variable) else p if isinstance(p, Tensor) else as_tensor(p)
            for n, p in parameters.items()
        }
        plan = self._plan
        values = self._runner.afresh().run(plan, list(given.values()), weights=held)
        return {n: _result(v) for n, v in zip(plan.outputs, values, strict=True)}

    def _compile(self) -> Any:
        """The compiled function of the large weights and the inputs; the others are constants,
        into which scales of batch normalisation are folded."""
        first = unique_name("weights", self._names.values())
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        whole = inspect.Signature(
            [inspect.Parameter(first, kind), *self.__signature__.parameters.values()]
        )

        def call(weights: dict[str, Tensor], *values: Any) -> dict[str, Any]:
            given = dict(zip(self.inputs, map(_value, values), strict=True))
            return self._run({**self.parameters, **weights}, given)

        call.__name__ = call.__qualname__ = self.__name__
        call.__signature__ = whole  # type: ignore[attr-defined]
        passes = (*FREEZING, *STANDARD)
        return compile(call, static_argnames=sorted(self._static), passes=passes)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by ONNX's names, checked. TypeRuleError, ShapeError."""
        try:
            bound = self.__signature__.bind(
                *args, **{self._names.get(n, n): v for n, v in kwargs.items()}
            )
        except TypeError as error:
            raise InvalidArgumentError(
                f"'{self.name}' cannot be called like this: {error}",
                hint=f"its inputs are: {', '.join(self.inputs) or 'none'}",
                location=caller_location(),
            ) from None
        bound.apply_defaults()
        sizes: dict[str, int] = {}
        return {
            name: self._argument(name, kind, value, sizes)
            for (name, kind), value in zip(
                self.inputs.items(), bound.arguments.values(), strict=True
            )
        }

    def _argument(
        self, name: str, kind: TensorType | None, value: Any, sizes: dict[str, int]
    ) -> Any:
        if kind is None:
            return _nested(value)
        tensor = _tensor(value, kind)
        if tensor.dtype is not kind.dtype:
            raise TypeRuleError(
                f"the input '{name}' of '{self.name}' is {kind}, got {type_of(tensor)}",
                hint=f"convert it with wf.astype(x, wf.{kind.dtype.name})",
                location=caller_location(),
            )
        fits = len(tensor.shape) == len(kind.shape)
        for dim, size in zip(kind.shape, tensor.shape, strict=False):
            if isinstance(dim, SymbolicDim) and isinstance(size, int):
                fits = fits and sizes.setdefault(str(dim), size) == size
            elif not isinstance(dim, SymbolicDim):
                fits = fits and same(dim, size)
        if not fits:
            raise ShapeError(
                f"the input '{name}' of '{self.name}' is {kind}, got {type_of(tensor)}"
                + (f", where {sizes}" if sizes else ""),
                location=caller_location(),
            )
        return tensor

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {k if k is not None else '...'}" for n, k in self.inputs.items())
        made = ", ".join(self.outputs)
        return f"<ONNX model {self.name}({shown}) -> {made}; {len(self.parameters)} parameters>"


def load(source: Source) -> Model:
    """An ONNX model as a compiled function. source: a path, the bytes of a file, or an
    `onnx.ModelProto`. Needs the package `onnx` (the extra `onnx`).

    Weights are constants of it; `model.apply(parameters, ...)` takes others, so that gradients and
    training work. Sizes that the file names (`dim_param`) are open, those of one name equal.
    It is compiled for the sizes it is called with, and can be called in other functions,
    differentiated, mapped and exported. Dtypes that weft has not, integers below 8 bits and floats
    of 8 and less, are held in int8, uint8 and float32.

    NotFoundError where there is no file, DataLossError for one that is damaged or contradicts
    itself, PermissionDeniedError for data outside of its folder, UnsupportedError for operators
    that weft has not: all of them are named.

    >>> from onnx import parser
    >>> text = '''<ir_version: 10, opset_import: ["" : 20]>
    ... line (float[n] x) => (float[n] y) <float slope = {3.0}> { y = Mul(x, slope) }'''
    >>> model = wf.onnx.load(parser.parse_model(text))
    >>> model
    <ONNX model line(x: f32[n]) -> y; 1 parameters>
    >>> model(wf.asarray([1.0, 2.0]))["y"]
    Tensor([3., 6.], dtype=float32)
    >>> loss = lambda p: wf.sum(model.apply(p, x=wf.asarray([1.0, 2.0]))["y"])
    >>> wf.grad(loss)(model.parameters)
    {'slope': Tensor(3., dtype=float32)}
    """
    with suspend_trace():
        proto, name, arrays = read(source)
        shown = str(source) if isinstance(source, (str, os.PathLike)) else name
        try:
            return Model(proto, name, Reader(shown, proto, arrays))
        except WeftError as error:
            raise error.at(caller_location()) from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise damaged(shown, repr(error)) from error


def model_graph(path: str, sizes: Mapping[str, int]) -> Graph:
    """The graph of a model, for programs that take graphs. sizes: of its open sizes, by name; the
    others stay open. InvalidArgumentError for a name that is none, UnsupportedError for a model
    with inputs that are no tensors, or that draws random numbers; else as `load`."""
    model = load(path)
    names = {str(d) for k in model.inputs.values() for d in (k.shape if k is not None else ())}
    for name in sizes:
        if name not in names:
            raise InvalidArgumentError(
                f"'{path}' has no open size '{name}'{suggest(name, sorted(names))}"
            )
    arguments = []
    for name, kind in model.inputs.items():
        if kind is None:
            raise UnsupportedError(f"the input '{name}' of '{path}' is no tensor with a shape")
        shape = tuple([sizes.get(str(d), d) for d in kind.shape])
        arguments.append(Argument(TensorType(kind.dtype, shape), False, _identifier(name)))
    traced = trace_function(
        model.__name__, lambda inputs: model(*inputs), arguments, takes_host_ops=True
    )
    if traced.variables:
        raise UnsupportedError(f"'{path}' draws random numbers, which no graph by itself does")
    return traced.graph


def _value(value: Any) -> Any:
    return as_tensor(value.array) if isinstance(value, StaticArray) else value


def _result(value: Any) -> Any:
    if isinstance(value, Sizes):
        return value.tensor()
    return [_result(v) for v in value] if isinstance(value, (list, tuple)) else value


def _tensor(value: Any, kind: TensorType) -> Tensor:
    if isinstance(value, Variable):
        return value.read()
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "dtype"):
        return as_tensor(held(np.asarray(value)))
    wanted = object if kind.dtype.kind == "string" else kind.dtype.numpy
    return as_tensor(np.asarray(value, wanted))


def _kinds(values: Sequence[Any]) -> Kinds | None:
    """Dtypes and shapes; None where not all are arrays or tensors."""
    if any(type(v) is not np.ndarray and type(v) is not Tensor for v in values):
        return None
    return tuple([(v.dtype, v.shape) for v in values])


def _nested(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_nested(v) for v in value]
    if value is None or isinstance(value, Tensor):
        return value
    return as_tensor(held(np.asarray(value)))


def _input_type(name: str, declared: onnx.TypeProto) -> TensorType | None:
    """The type of an input; None for a sequence, an optional value, or one without a type."""
    if not declared.HasField("tensor_type") or not declared.tensor_type.HasField("shape"):
        return None
    shape: list[int | SymbolicDim] = []
    for i, d in enumerate(declared.tensor_type.shape.dim):
        if d.HasField("dim_value") and d.dim_value >= 0:
            shape.append(d.dim_value)
        else:
            known = d.dim_param.strip("?")  # "?" is no name
            named = known if known else f"{name}_{i}"
            shape.append(SymbolicDim.symbol(_identifier(named)))
    return TensorType(dtype_of(declared.tensor_type.elem_type), tuple(shape))


def _identifier(name: str) -> str:
    made = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return made if made.isidentifier() else f"n_{made}"


def _identifiers(names: tuple[str, ...]) -> dict[str, str]:
    made: dict[str, str] = {}
    taken: set[str] = set()
    tried: dict[str, int] = {}
    for name in names:
        made[name] = unique_name(_identifier(name), taken, tried)
        taken.add(made[name])
    return made


def _types(proto: onnx.ModelProto) -> dict[str, int]:
    """ONNX's numbers of the dtypes of all values, if one is of a dtype that weft has not."""
    graph = proto.graph
    numbers = {t.data_type for t in graph.initializer}
    numbers |= {
        v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)
    }
    if not numbers & NARROW:
        return {}
    inference = package().shape_inference
    try:
        found = inference.infer_shapes(proto).graph
    except inference.InferenceError as error:
        raise damaged(graph.name, str(error)) from None
    named = (*found.input, *found.output, *found.value_info)
    return {
        **{t.name: t.data_type for t in found.initializer},
        **{v.name: v.type.tensor_type.elem_type for v in named},
    }


#: Operators that compute values which decide the shapes and axes of others.
_ARITHMETIC = frozenset({
    "Identity", "Cast", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Add",
    "Sub", "Mul", "Div", "Neg", "Min", "Max", "Mod", "Where", "ConstantOfShape", "Range", "Expand",
    "Split", "Equal", "If", "ReduceProd", "Not", "And", "Or", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual",
})  # fmt: skip


def _decisive(plan: Plan, names: set[str]) -> set[str]:
    """Which of these inputs or constants decide sizes and axes, directly or by arithmetic."""
    wanted: set[str] = set()
    for node in reversed(plan.nodes):
        wanted.update(_decided(node))
        if node.kind in _ARITHMETIC and wanted.intersection(node.outputs):
            wanted.update(uses(node))
    return wanted & names


def _decided(node: Node) -> set[str]:
    found: set[str] = set()
    operator = node.operator
    if operator is not None:
        for i in operator.known | operator.sizes:
            if i < len(node.inputs) and node.inputs[i]:
                found.add(node.inputs[i])
    for value in node.attrs.values():
        if isinstance(value, Plan):
            for inside in value.nodes:
                found |= _decided(inside)
    if node.kind == "If":
        found.add(node.inputs[0])  # branches may fit the shapes of one side alone
    if node.kind == "Loop" and _holds_sequences(node.attrs["body"]):
        found.update(n for n in node.inputs[:2] if n)  # it is written out
    if node.body is not None:
        inner = _decisive(node.body, set(node.body.inputs))
        names = zip(node.body.inputs, node.inputs, strict=False)
        found.update(outer for name, outer in names if name in inner and outer)
    return found


def _holds_sequences(plan: Plan) -> bool:
    return any(n.kind in ("SequenceInsert", "SequenceErase", "SequenceEmpty") for n in plan.nodes)
