"""Traced calls as programs of NumPy calls: source text is made and executed, as `dataclasses` does.

`CallKind` traces the calls of one kind: the operands become inputs, settings are what they are. The
NumPy calls are those of the ops' references, so the bits are those of the interpreter. What is
broadcast is left to the call that reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.core.function_trace import Argument, Traced, trace_function
from weft.frontend.core.tensor import Tensor
from weft.frontend.eager.numpy_calls import REDUCTIONS, tensor_of
from weft.ir.dtypes import DType
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops import OPS
from weft.ir.ops.elementwise import FUNCTIONS, choose
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType


class CallKind:
    """Calls of a function that differ in their operands alone.

    args, kwargs: of one such call. places: where in them the operands are, in order: a position or
    a keyword.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        places: Sequence[int | str],
    ) -> None:
        self.name, self._function = f"eager_{name}", function
        # the operands themselves are not kept
        taken = [p for p in places if (args[p] if isinstance(p, int) else kwargs[p]) is not None]
        self._places = taken
        self._args: list[Any] = [None if i in taken else a for i, a in enumerate(args)]
        self._kwargs = {n: None if n in taken else a for n, a in kwargs.items()}

    def traced(
        self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]], weak: Sequence[bool]
    ) -> Traced:
        """The function on operands of these shapes as a graph."""
        rows = zip(dtypes, shapes, weak, strict=True)
        arguments = [
            Argument(TensorType(d, tuple(s)), w, f"x{i}") for i, (d, s, w) in enumerate(rows)
        ]

        def call(inputs: list[Tensor]) -> Any:
            args, kwargs = [*self._args], {**self._kwargs}
            for place, value in zip(self._places, inputs, strict=True):
                if isinstance(place, int):
                    args[place] = value
                else:
                    kwargs[place] = value
            return self._function(*args, **kwargs)

        return trace_function(self.name, call, arguments, x64=None)


Array = np.ndarray[Any, Any]
_CHARS = frozenset("fdl?")
#: Whose bits might depend on whether NumPy is given one number or an array of it.
_INEXACT = frozenset(("power", "atan2", "hypot", "logaddexp"))
#: Ops that give arrays of their own.
_MAKERS = frozenset(("where", *FUNCTIONS, *REDUCTIONS))


class _Writer:
    """Lines of a Python function of arrays, and the objects that they refer to by name."""

    def __init__(self, graph: Graph) -> None:
        self.names: dict[str, Any] = {"array": np.array}
        self.lines: list[str] = []
        #: By value: its text, and the shape of what the text gives, which may still be broadcast.
        self.held: dict[Value, tuple[str, tuple[int, ...]]] = {}
        for i, value in enumerate(graph.args):
            self.held[value] = (f"x{i}", _type_of(value).static_shape)

    def name(self, thing: Any) -> str:
        """A global name for an object."""
        name = f"g{len(self.names)}"
        self.names[name] = thing
        return name

    def line(self, value: Value, text: str) -> None:
        """The value is what the expression gives, in full."""
        name = f"v{len(self.lines)}"
        self.lines.append(f" {name} = {text}")
        self.held[value] = (name, _type_of(value).static_shape)

    def full(self, value: Value) -> str:
        """The text of a value that is to have its shape."""
        text, shape = self.held[value]
        wanted = _type_of(value).static_shape
        if shape == wanted:
            return text
        return f"{self.name(np.broadcast_to)}({text}, {wanted})"


def numpy_program(
    graph: Graph, pack: Callable[[list[Array]], Any] | None
) -> Callable[..., Any] | None:
    """The graph as a function from arrays to what `pack` makes of the list of its results, arrays
    of their own (pack None: to its one result as a tensor); None where an op is none that NumPy
    computes on its own dtypes."""
    if not all(map(_is_plain, graph.args)):
        return None
    writer, fresh = _Writer(graph), set()
    for op in graph.ops:
        plain = not (op.control or op.regions) and all(map(_is_plain, (*op.operands, *op.results)))
        if not plain or len(op.results) != 1 or not _write(writer, op):
            return None
        if op.name in _MAKERS:
            fresh.add(op.result)
    results = ", ".join(_result(writer, v, v in fresh) for v in graph.results)
    arguments = ", ".join(f"x{i}" for i in range(len(graph.args)))
    result = f"{writer.name(tensor_of)}({results})"
    if pack is not None:
        result = f"{writer.name(pack)}([{results}])"
    lines = [f"def made({arguments}):", *writer.lines, f" return {result}"]
    exec("\n".join(lines), writer.names)
    program: Callable[..., Any] = writer.names["made"]
    return program


def _result(writer: _Writer, value: Value, fresh: bool) -> str:
    """NumPy gives numbers, not arrays, of rank 0; what is no op's own result is copied."""
    text = writer.full(value)
    return text if fresh and _type_of(value).rank else f"array({text})"


def _write(writer: _Writer, op: Operation) -> bool:
    """Append the op; False if it is not among those that are written."""
    result, name = op.result, op.name
    shape = _type_of(result).static_shape
    if name == "constant":
        held = op.attrs["value"]
        if not isinstance(held, ConstArray):
            return False
        writer.held[result] = (writer.name(np.array(held.array)), shape)
    elif name == "broadcast_to":
        text, small = writer.held[op.operands[0]]
        writer.held[result] = text, small
        return small == () or len(small) == len(shape)
    elif name in FUNCTIONS or name == "where":
        function = choose if name == "where" else FUNCTIONS[name]
        operands = [writer.held[v] for v in op.operands]
        given = [s for _, s in operands]
        if np.broadcast_shapes(*given) != shape or (name in _INEXACT and set(given) != {shape}):
            return False
        writer.line(result, f"{writer.name(function)}({', '.join(t for t, _ in operands)})")
    elif name in REDUCTIONS and _type_of(result).dtype.numpy.char in "fdl" and op.attrs["axes"]:
        fold, x = writer.name(REDUCTIONS[name]), writer.full(op.operands[0])
        axes, keep = op.attrs["axes"], bool(op.attrs["keepdims"])
        writer.line(result, f"{fold}({x}, axis={axes}, keepdims={keep})")
    else:
        return _write_reference(writer, op)
    return True


def _write_reference(writer: _Writer, op: Operation) -> bool:
    """Any other op by its reference."""
    spec = OPS[op.name]
    if spec.reference is None or "host" in spec.traits or op.name not in _BY_REFERENCE:
        return False
    operands = "".join(f"{writer.full(v)}, " for v in op.operands)
    call = f"{writer.name(spec.reference)}(({operands}), {writer.name(op.attrs)})"
    writer.line(op.result, call)
    return True


#: Ops whose references are called as they are.
_BY_REFERENCE = frozenset(("reshape", "astype", "permute_dims"))


def _is_plain(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and kind.is_static and kind.dtype.numpy.char in _CHARS


def _type_of(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
