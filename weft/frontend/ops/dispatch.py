"""Applying one op: at once on concrete tensors, or as a further op of the graph that is being
built.

Sizes that depend on values get names in the graph (`apply_dynamic`, `fresh_sizes`); integers that a
graph computes become sizes of shapes (`sizes_from`). An op that runs at once in a `wf.device` runs
where it would anyway: the device must be one of this process."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec
from weakref import WeakKeyDictionary

from weft.frontend.core.device_scope import (
    Scope,
    device_scopes,
    enter_scopes,
    leave_scopes,
    scopes_spec,
)
from weft.frontend.core.public_names import as_public
from weft.frontend.core.tensor import Tensor, contiguous
from weft.frontend.core.trace import (
    Trace,
    check_usable,
    current_trace,
    is_suspended,
    suspend_trace,
)
from weft.frontend.eager.by_value import large_results
from weft.frontend.eager.numpy_calls import REDUCTIONS, quick_fold
from weft.ir.device import DeviceSpec, check_local, is_local, named_device
from weft.ir.dims import Dim, SymbolicDim, divided, format_shape, never_negative
from weft.ir.errors import (
    InvalidArgumentError,
    TracerError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Operation, Value, unique_name
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.locations import caller_location
from weft.ir.ops import HAVE_KERNELS
from weft.ir.spec import AttrValue, ConstArray, int_attr
from weft.ir.types import TensorType, Type


def check_eager_device() -> None:
    """Raise InvalidArgumentError, which lists the devices, if a `wf.device` around the call names
    one that this process does not have."""
    if device_scopes() and not is_suspended():
        check_local(scopes_spec(), caller_location(), devices=_devices)


def _devices() -> Sequence[str]:
    # only who made a mistake waits for these modules
    from weft.runtime.device.backends.local import local_devices

    return local_devices()


_P = ParamSpec("_P")


def on_device(
    device: str, make: Callable[_P, Tensor], *args: _P.args, **options: _P.kwargs
) -> Tensor:
    """`make(*args, **options)` with its result on a device: what `device=` of the array API's
    functions does.

    Outside of traces "cpu" or a GPU of this process, to which the result is copied. In a graph as
    in a `wf.device`. A compiled function is for one device, which all tensors in it call "cpu".
    TypeRuleError for what is no name, InvalidArgumentError for a device that is not there,
    UnsupportedError for another one than its own in a compiled function.
    """
    spec = _device_argument(device)
    trace = current_trace()
    if trace is None:
        return _moved(make(*args, **options), spec, device)
    if trace.root().kind == "graph":
        token = enter_scopes((*device_scopes(), Scope(spec)))
        try:
            made = make(*args, **options)
            # a constant is where it is needed, so it needs an op that is on the device
            placed = made._value is not None and made._value.op is not None
            return made if placed and made.device == str(spec) else apply("identity", made)
        finally:
            leave_scopes(token)
    if not is_local(spec):
        raise UnsupportedError(
            f"device={device!r} inside '{trace.root().name}', which runs on one device",
            hint="wf.compile(device=...) says which; in a wf.Graph each op may have one",
            location=caller_location(),
        )
    return make(*args, **options)


def _device_argument(device: object) -> DeviceSpec:
    if not isinstance(device, str):
        raise TypeRuleError(
            f"device= takes the name of a device, got {device!r:.60}",
            hint='a name such as "cpu" or "gpu:0", or the .device of a tensor',
            location=caller_location(),
        )
    return named_device(device)


def _moved(made: Tensor, spec: DeviceSpec, device: str) -> Tensor:
    if type(made) is Tensor and is_local(spec):
        return made
    # who has no GPU does not wait for this module when weft is imported
    from weft.frontend.core.device_array import to_device

    moved: Tensor = to_device(made, device)
    return moved


def apply(op_name: str, *operands: Tensor, **attrs: AttrValue) -> Tensor:
    """The one result of an op. Operands have the dtypes and shapes that the IR's type rule asks
    for.

    Symbolic while a trace is current (concrete operands become constants), else computed at once by
    the interpreter. TypeRuleError, ShapeError or InvalidArgumentError with the user's line if it
    does not fit.
    """
    (result,) = apply_many(op_name, operands, attrs)
    return result


def apply_many(
    op_name: str, operands: Sequence[Tensor], attrs: Mapping[str, AttrValue]
) -> tuple[Tensor, ...]:
    """All results of an op; see `apply`."""
    trace = current_trace()
    if trace is not None:
        try:
            values = trace.emit(op_name, [trace.lift(t) for t in operands], attrs)
        except WeftError as error:
            raise as_public(error, op_name) from error.__cause__
        return tuple(trace.tensor(v) for v in values)
    if device_scopes():
        check_eager_device()
    if op_name in REDUCTIONS:
        made = quick_fold(op_name, operands[0], attrs["axes"], attrs["keepdims"])
        if made is not None:
            return (made,)
    if op_name in HAVE_KERNELS:
        found = large_results(op_name, operands, attrs)
        if found is not None:
            return found
    return tuple(Tensor(a) for a in _evaluate(op_name, operands, attrs))


def in_order(t: Tensor) -> Tensor:
    """`t`, of a function that has nothing to do; in `wf.control_dependencies` as the result of an
    op, which comes after these."""
    trace = current_trace()
    if trace is None or not trace.control:
        return t
    made = apply("identity", t)
    made.weak = t.weak
    return made


def _evaluate(
    op_name: str, operands: Sequence[Tensor], attrs: Mapping[str, AttrValue]
) -> list[Any]:
    arrays: list[Any] = []
    for t in operands:
        if t._data is None:
            check_usable(t, None)
        arrays.append(t._data)
    for name, value in attrs.items():
        if isinstance(value, tuple) and any(isinstance(d, SymbolicDim) for d in value):
            raise TracerError(
                f"op '{op_name}' needs {name}={format_shape(value)}, sizes that have values only "
                "while the graph they come from runs",
                hint="build on tensors of a graph inside `with graph.as_default():`",
                location=caller_location(),
            )
    try:
        return [contiguous(a) for a in evaluate_op(op_name, arrays, attrs)]
    except WeftError as error:
        cause = error.__cause__  # an error of the user's own function is worth showing
        told = as_public(error.at(caller_location()), op_name)
        raise told from None if isinstance(cause, WeftError) else cause


#: For each trace, what ops on which operands gave. Values, as tensors keep their trace.
_made: WeakKeyDictionary[Trace, dict[Hashable, tuple[Value, ...]]] = WeakKeyDictionary()

_WHERE = (
    "compute this outside and pass it in; wf.where(condition, x, y) keeps the shape, and "
    "wf.nonzero(x, size=n) gives n indices; a wf.Graph may have sizes that depend on values"
)


def fresh_sizes(trace: Trace | None, what: str, count: int, hint: str = _WHERE) -> tuple[str, ...]:
    """The names of `count` sizes that depend on values, made from `what`; () where no graph is
    being built: they are known at once.

    TracerError in a trace whose sizes must all be known (`open_sizes`): an eager call that would be
    one native plan goes op by op then.
    """
    if trace is None:
        return ()
    taken = trace.root().symbols
    if taken is None:
        raise TracerError(
            f"wf.{what}: a size of its result depends on values, which are not known while "
            f"'{trace.root().name}' is traced",
            hint=hint,
            location=caller_location(),
        )
    names: list[str] = []
    for _ in range(count):
        names.append(unique_name(what.rpartition(".")[2], dict.fromkeys(taken)))
        taken.add(names[-1])
    trace.root().made_sizes.update(names)
    return tuple(names)


_fixed: ContextVar[bool] = ContextVar("fixed sizes", default=False)


@contextmanager
def fixed_sizes() -> Iterator[None]:
    """Within it `exact_sizes` is false: `vmap` has one size for all examples."""
    token = _fixed.set(True)
    try:
        yield
    finally:
        _fixed.reset(token)


def open_sizes() -> bool:
    """Whether sizes may depend on values here: everywhere but where an eager call is traced to be
    one native plan."""
    trace = current_trace()
    return trace is None or trace.root().symbols is not None


def open_sizes_first() -> bool:
    """Whether sizes may depend on values, and nothing is lost by it: in a compiled function they
    cost it the native step, so what has a form with known sizes takes that."""
    trace = current_trace()
    return open_sizes() and not (trace is not None and trace.root().static_first)


def exact_sizes(*, needed: bool = False) -> bool:
    """Whether a function gives as many elements as it finds, not as many as there may be: as
    `open_sizes_first`, and as `open_sizes` if it has no other form (`needed`), but not for one
    example of those of `vmap`."""
    free = open_sizes() if needed else open_sizes_first()
    return free and not _fixed.get()


def nonzero_columns(x: Tensor, what: str) -> list[Tensor]:
    """The indices of the elements that are not 0: a vector for each axis."""
    if _are_constants([x]):
        with suspend_trace():
            return nonzero_columns(x, what)
    (rows,) = apply_dynamic("nonzero", [x], what=what)
    count = rows.shape[0]
    return [
        apply("reshape", apply("slice", rows, starts=(0, i), stops=(count, i + 1), steps=(1, 1)),
              shape=(count,))
        for i in range(x.ndim)
    ]  # fmt: skip


def _are_constants(operands: Sequence[Tensor]) -> bool:
    """Whether a compiled function is traced, and these are known already."""
    return not open_sizes_first() and all(t._data is not None for t in operands)


def fresh_for(trace: Trace | None, what: str, types: Sequence[Type]) -> tuple[str, ...]:
    """`fresh_sizes`, one for each unknown size (`?`) of the types."""
    count = sum(d is None for t in types if isinstance(t, TensorType) for d in t.shape)
    return fresh_sizes(trace, what, count) if count else ()


def apply_dynamic(
    op_name: str,
    operands: Sequence[Tensor],
    attrs: Mapping[str, AttrValue] | None = None,
    *,
    what: str = "",
    count: int = 1,
) -> tuple[Tensor, ...]:
    """All results of a pure op of which `count` sizes depend on values; `what`: its public name.

    At once outside a graph, and on constants of a compiled function. In a graph the same op on the
    same operands is there once, so `x[mask]` and `y[mask]` have the same size. Errors as
    `apply_many` and `fresh_sizes`.
    """
    trace, given = current_trace(), dict(attrs or {})
    if _are_constants(operands):
        with suspend_trace():
            return apply_many(op_name, operands, given)
    if trace is None:
        return apply_many(op_name, operands, given)

    def make() -> tuple[Tensor, ...]:
        sizes = fresh_sizes(trace, what or op_name, count)
        return apply_many(op_name, operands, {**given, "sizes": sizes})

    return once(trace, (op_name, *given.items()), operands, make)


def once(
    trace: Trace,
    what: Hashable,
    operands: Sequence[Tensor],
    make: Callable[[], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """What `make` gives on these operands, in the trace that is current: made once for equal ones,
    in one place."""
    values = [trace.lift(t) for t in operands]
    same = [_content(v) for v in values]
    known = _made.setdefault(trace, {})
    key = (what, *same, trace.control)
    if key not in known:
        known[key] = tuple(trace.lift(t) for t in make())
    return tuple(map(trace.tensor, known[key]))


def _content(value: Value) -> Hashable:
    made = value.op
    return made.attrs["value"] if made is not None and made.name == "constant" else value


# ------------------------------------------------------------------------------- values as sizes
#: For each trace the sizes that `sizes_from` made of values.
_sizes: WeakKeyDictionary[Trace, dict[Hashable, Dim]] = WeakKeyDictionary()

_PASSES_ON = frozenset({"astype", "identity", "reshape", "stop_gradient"})
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
}  # fmt: skip


def known_sizes(t: Tensor) -> list[Dim]:
    """The integers in a tensor, in row-major order, as far as tracing knows them: numbers, and
    sizes of other tensors (of `wf.shape`), also with + - * and // by numbers; None for others. []
    where not even their number is known, or it is large."""
    if not t.dtype.is_integer:
        return []
    if t._data is not None:
        return [int(n) for n in t._data.ravel()] if t._data.size <= _MOST else []
    assert t._value is not None
    assert t._trace is not None
    return _known(t._value, t._trace)


_MOST = 64  # elements of what may be a shape


def _known(value: Value, trace: Trace) -> list[Dim]:
    kind = value.type
    if not isinstance(kind, TensorType) or not kind.is_static or not kind.dtype.is_integer:
        return []
    count = math.prod(kind.static_shape)
    if count > _MOST:
        return []
    found = _known_argument(value, trace) if value.op is None else _known_result(value.op, trace)
    return found if len(found) == count else [None] * count


def _known_argument(value: Value, trace: Trace) -> list[Dim]:
    """Of a region's argument that stands for a value outside."""
    outer = next((o for o, arg in trace.captures.items() if arg is value), None)
    return [] if outer is None or trace.parent is None else _known(outer, trace.parent)


def _known_result(op: Operation, trace: Trace) -> list[Dim]:
    if op.name == "constant":
        held = op.attrs["value"]
        assert isinstance(held, ConstArray)
        return [int(n) for n in held.array.ravel()]
    kind = op.results[0].type
    if isinstance(kind, TensorType) and kind.dtype.numpy.itemsize < 4:
        return []  # it may have wrapped round
    if op.name == "dim_size":
        measured = op.operands[0].type
        assert isinstance(measured, TensorType)
        return [measured.shape[int_attr(op.attrs, "axis")]]
    if op.name in _PASSES_ON:
        return _known(op.operands[0], trace)
    if op.name == "concat" and int_attr(op.attrs, "axis") == 0:
        return [d for v in op.operands for d in _known(v, trace)]
    if op.name == "slice":
        bounds = [op.attrs[name] for name in ("starts", "stops", "steps")]
        cuts = [b[0] if isinstance(b, tuple) and len(b) == 1 else None for b in bounds]
        if not all(isinstance(c, int) and c >= 0 for c in cuts):
            return []
        start, stop, step = cuts
        return _known(op.operands[0], trace)[start:stop:step]
    if op.name in _ARITHMETIC or op.name == "floor_divide":
        pairs = zip(*(_known(v, trace) for v in op.operands), strict=False)
        return [_computed(op.name, a, b) for a, b in pairs]
    return []


def _computed(op: str, a: Dim, b: Dim) -> Dim:
    if a is None or b is None:
        return None
    if op == "floor_divide":
        seen = isinstance(b, int) and b > 0 and never_negative(a)
        return divided(a, b) if seen else None
    made: Dim = _ARITHMETIC[op](a, b)
    return made


def sizes_from(op: str, t: Tensor, what: str = "a size in the shape") -> list[Dim]:
    """The integers in `t`, a traced scalar or vector, as sizes; op: the public name, `what` they
    are for errors.

    Those that `known_sizes` has, but for symbols that may be negative, are these. Others depend on
    values: each is a symbol of its own, the same for the same value; a step raises
    InvalidArgumentError where it is negative. TracerError, as `fresh_sizes`, where all sizes must
    be known, InvalidArgumentError for what holds no integers or not a known number of them.
    """
    count = math.prod(t._type.static_shape) if t._type.is_static else None
    if not t.dtype.is_integer or t.ndim > 1 or count is None or count > _MOST:
        raise InvalidArgumentError(
            f"wf.{op}: {what} is {t.describe()}, not an integer or a vector of so many of them",
            location=caller_location(),
        )
    return [
        d if isinstance(d, int) or (d is not None and never_negative(d)) else _size(op, t, i, what)
        for i, d in enumerate(known_sizes(t))
    ]


def _size(op: str, t: Tensor, i: int, what: str) -> Dim:
    """Element i as a size: the one that it already is, here or where `t` was made."""
    trace = current_trace()
    assert trace is not None
    for around in (t._trace, trace):  # here as what a region is given
        if around is not None and around in _sizes:
            value = t._value if around is t._trace else trace.lift(t)
            found = _sizes[around].get((value, i, around.control))
            if found is not None:
                return found
    key = (trace.lift(t), i, trace.control)
    size = fresh_sizes(trace, op, 1)
    if t.ndim:
        t = apply("slice", t, starts=(i,), stops=(i + 1,), steps=(1,))
        t = apply("reshape", t, shape=())
    attrs: dict[str, AttrValue] = {"sizes": size, "what": f"wf.{op}: {what}"}
    (holder,) = apply_many("dynamic_size", [t], attrs)
    return _sizes.setdefault(trace, {}).setdefault(key, holder.shape[0])
