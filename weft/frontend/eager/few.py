"""Functions of several steps on few elements: a call of a kind that comes often is replayed as the
NumPy calls that it consists of, without the tensors and checks in between.

The calls are those of the ops' references, so the bits are those of the interpreter; the first
replay is checked against it. Nothing is compiled: a program of NumPy calls is made once for each
dtypes, shapes and settings that came `OFTEN` times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.eager.keys import NotPlain
from weft.frontend.eager.quick import REDUCTIONS
from weft.frontend.tensor import Tensor
from weft.ir.attributes import Attrs, ConstArray
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops import OPS
from weft.ir.ops.elementwise import FUNCTIONS
from weft.ir.quiet import QUIET
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
Run = Callable[[list[Array]], Any]
#: Calls of so many equal keys are replayed from then on.
OFTEN = 64
#: Keys that are remembered for one function; then it begins anew.
MOST_KEYS = 256
#: Functions of which so many programs could not be made are not asked again.
MOST_FAILURES = 8
_CHARS = frozenset("fdl?")
#: Ops that give arrays of their own.
_MAKERS = frozenset(("where", *FUNCTIONS, *REDUCTIONS))


class Replays:
    """The programs of one function. scan: of (args, kwargs, key, arrays), appends to key and
    arrays. make: of (args, kwargs, arrays, key), such a call as (graph, what packs its results, its
    results), or None."""

    def __init__(self, scan: Callable[..., None], make: Callable[..., Any]) -> None:
        self._scan, self._make = scan, make
        self._known: dict[Hashable, Run | None] = {}
        self._counts: dict[Hashable, int] = {}
        self.failures = 0

    def find(self, args: Any, kwargs: Any, arrays: list[Array]) -> Run | None:
        """What replays a call, whose operands are put into `arrays`."""
        if self.failures >= MOST_FAILURES:
            return None
        key: list[Any] = []
        try:
            self._scan(args, kwargs, key, arrays)
        except NotPlain:
            return None
        held = tuple(key)
        try:
            return self._known[held]
        except KeyError:
            pass
        count = self._counts[held] = self._counts.get(held, 0) + 1
        if count < OFTEN:
            if len(self._counts) > MOST_KEYS:
                self._counts.clear()
            return None
        if len(self._known) >= MOST_KEYS:
            self._known.clear()
        run = self._known[held] = self._new(args, kwargs, held, arrays)
        self.failures += run is None
        return run

    def _new(self, args: Any, kwargs: Any, key: tuple[Any, ...], arrays: list[Array]) -> Run | None:
        try:
            made = self._make(args, kwargs, arrays, key)
            if made is None:
                return None
            graph, pack, wanted = made
            program = numpy_program(graph)
            return None if program is None else _checked(program, pack, arrays, wanted)
        except WeftError:
            return None


def _checked(
    program: Callable[..., list[Array]], pack: Callable[[list[Array]], Any],
    arrays: list[Array], wanted: Any,
) -> Run | None:  # fmt: skip
    """The replay, if it gives the bits of `wanted` for these operands."""
    run = QUIET.run

    def replay(arrays: list[Array]) -> Any:
        return pack(run(program, *arrays))

    try:
        got = replay(arrays)
    except Exception:  # a reference that takes no scalars, say
        return None
    pairs = zip(pytree.flatten(got)[0], pytree.flatten(wanted)[0], strict=True)
    return replay if all(map(_same, *zip(*pairs, strict=True))) else None


def _same(a: Any, b: Any) -> bool:
    if type(a) is not Tensor or type(b) is not Tensor or a.weak != b.weak:
        return False
    x, y = a._data, b._data
    if x is None or y is None or (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    return x.tobytes() == y.tobytes() and x.flags.owndata and x.flags.c_contiguous


# ------------------------------------------------------------------------------------- the program


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


def numpy_program(graph: Graph) -> Callable[..., list[Array]] | None:
    """The graph as a function from arrays to the list of its results, arrays of their own; None
    where an op is none that NumPy computes on its own dtypes."""
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
    lines = [f"def made({arguments}):", *writer.lines, f" return [{results}]"]
    exec("\n".join(lines), writer.names)
    program: Callable[..., list[Array]] = writer.names["made"]
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
        writer.held[result] = writer.held[op.operands[0]]
        given = writer.held[op.operands[0]][1]
        return given == () or len(given) == len(shape)
    elif name in FUNCTIONS or name == "where":
        function = np.where if name == "where" else FUNCTIONS[name]
        given = [writer.held[v] for v in op.operands]
        if np.broadcast_shapes(*(s for _, s in given)) != shape:
            return False
        writer.line(result, f"{writer.name(function)}({', '.join(t for t, _ in given)})")
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
    attrs: Attrs = op.attrs
    writer.line(op.result, f"{writer.name(spec.reference)}(({operands}), {writer.name(attrs)})")
    return True


#: Ops whose references are called as they are.
_BY_REFERENCE = frozenset(("reshape", "astype", "permute_dims"))


def _is_plain(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and kind.is_static and kind.dtype.numpy.char in _CHARS


def _type_of(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def is_plain(arrays: Sequence[Array]) -> bool:
    """Whether programs are made for operands of these dtypes."""
    return all(a.dtype.char in _CHARS for a in arrays)
