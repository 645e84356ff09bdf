"""float64 in a model of narrower floats: a warning where it gets in, and the check of
`wf.compile(x64=False)`, which forbids it.

A NumPy scalar has a dtype, float64 mostly, and a Python number has none (the array API's promotion
rules): `scores / np.sqrt(64)` computes in float64, `scores / math.sqrt(64)` in the dtype of
`scores`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from weft.frontend.core.slow import PerformanceWarning, warn_once
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace, current_trace
from weft.ir.dtypes import DType, complex128, float64
from weft.ir.errors import TypeRuleError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.locations import Locations, caller_location
from weft.ir.types import TensorType

#: What holds numbers of 64 bits.
WIDE = (float64, complex128)
_HINT = (
    "a Python number takes the dtype of what it meets: write float(s) for a NumPy scalar; "
    "x.astype(np.float32), or wf.astype(x, wf.float32), converts an array"
)
_FORBIDDEN = "which wf.compile(x64=False) forbids"


class Float64Warning(PerformanceWarning):
    """An op of a traced function converts float32, or narrower floats, to float64.

    >>> import warnings
    >>> scaled = wf.compile(lambda x: x / np.sqrt(64))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     print(scaled(wf.asarray([8.0])))
    Tensor([1.], dtype=float64)
    >>> print(caught[0].message)
    wf.divide: float32 meets a NumPy scalar or array of float64, 8.0, so float64 is computed from
    here on, which takes twice the time and memory
      hint: a Python number takes the dtype of what it meets: write float(s) for a NumPy scalar; ...
    """


def note_operands(op: str, operands: Sequence[Tensor], trace: Trace) -> None:
    """Strong operands of an op that computes in float64: TypeRuleError where the function forbids
    it, a Float64Warning, once for each line of the user's, where narrower floats are converted."""
    strong = [t for t in operands if not t.weak]
    narrow = next(
        (t for t in strong if t.dtype.is_inexact and t.dtype not in WIDE and t._data is None), None
    )
    wide = next((t for t in strong if t.dtype in WIDE), None)
    if trace.root().x64 is False:
        what = f"wf.{op} computes with {_described(wide)}"
        raise TypeRuleError(f"{what}, {_FORBIDDEN}", hint=_HINT, location=caller_location())
    if narrow is None or wide is None or trace.root().x64 is None:
        return
    place = caller_location()
    message = (
        f"wf.{op}: {narrow.dtype.name} meets {_described(wide)}, so float64 is computed from here "
        f"on, which takes twice the time and memory\n  hint: {_HINT}"
    )
    if trace.root().kind != "graph":
        message += "; wf.compile(x64=False) makes it an error"
    line = (place[0].file, place[0].line) if place else None
    warn_once(("float64", line), message, Float64Warning, place)


def in_float64() -> AbstractContextManager[None]:
    """Around what weft computes in float64 by itself and rounds once: numbers that are known."""
    return _with_x64(None)


def forbidden(x64: bool) -> AbstractContextManager[None]:
    """Around a function that becomes a part of another trace. x64: whether it may compute in
    float64."""
    return nullcontext() if x64 else _with_x64(False)


@contextmanager
def _with_x64(x64: bool | None) -> Iterator[None]:
    trace = current_trace()
    if trace is None:
        yield
        return
    root = trace.root()
    kept, root.x64 = root.x64, x64
    try:
        yield
    finally:
        root.x64 = kept


def _described(wide: Tensor | None) -> str:
    if wide is None:
        return "float64"
    if wide._data is None:
        trace, value = wide._trace, wide._value
        name = "" if trace is None or value is None else trace.argument_name(value)
        return f"the argument '{name}', {wide._type}" if name else f"the tensor {wide.describe()}"
    if wide.ndim == 0:
        return f"a NumPy scalar or array of {wide.dtype.name}, {wide._data.item()}"
    return f"an array of {wide.dtype.name}{list(wide.shape)}"


def check_argument(name: str, function: str, dtype: DType) -> None:
    """TypeRuleError for an argument that holds float64."""
    if dtype in WIDE:
        raise TypeRuleError(
            f"argument {name} of '{function}' is {dtype.name}, {_FORBIDDEN}",
            hint=_HINT,
            location=caller_location(),
        )


def check_graph(graph: Graph, function: str) -> None:
    """TypeRuleError for an op that makes an array of float64 from what is not known before the
    call. Single numbers may be those of Python, which are held so until they meet others."""
    for op, kind in _arrays(graph):
        if kind.dtype in WIDE:
            raise _made(f"op '{op.name}' of '{function}' makes {kind}", op.locations)


def _arrays(graph: Graph) -> Iterator[tuple[Operation, TensorType]]:
    """The ops that make arrays and depend on an argument or a variable, with their types."""
    known: set[Value] = set()
    for op in graph.walk():
        if not op.regions and known.issuperset(op.operands) and not op.control:
            if op.name in ("constant", "iota") or op.operands:
                known.update(op.results)
                continue
        for value in op.results:
            if isinstance(value.type, TensorType) and value.type.shape:
                yield op, value.type


def check_result(function: str, path: str, t: Tensor) -> None:
    """TypeRuleError for a result of float64 that is not a Python number."""
    if t.dtype in WIDE and not t.weak:
        raise _made(f"'{function}' returns {t.dtype.name} at {path}", caller_location())


def _made(what: str, location: Locations) -> TypeRuleError:
    return TypeRuleError(f"{what}, {_FORBIDDEN}", hint=_HINT, location=location)


def wide_ops(graph: Graph) -> tuple[int, int, Locations]:
    """How many arrays of floats the ops of a graph make, how many of float64, and where the first
    of these is made. What is known before the call does not count."""
    made = [(op, kind.dtype) for op, kind in _arrays(graph) if kind.dtype.is_inexact]
    wide = [op for op, dtype in made if dtype in WIDE]
    return len(made), len(wide), wide[0].locations if wide else ()
