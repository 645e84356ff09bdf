"""Arguments of ops: checks of axes, shapes and sizes, and type promotion, from what users pass to
operands of the IR, of one dtype and one shape.

Dtypes promote by `ir.dtypes.promote` (the Python array API standard, plus a number wins over bool
and a float over an integer). Python scalars and weak tensors (a Python scalar that became a tensor,
or was computed from such ones only) take the dtype of what they meet, unless they are of a higher
kind. Composed functions compute 16-bit floats in float32 (`widened`), as PyTorch and JAX.

The array API's data type functions are at the end: `result_type`, `can_cast`, `isdtype`, `finfo`,
`iinfo`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from weft.frontend.core.device_scope import device_scopes
from weft.frontend.core.float64 import WIDE, note_operands
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import at_once, current_trace
from weft.frontend.eager import numpy_calls
from weft.frontend.eager.native import EagerCalls, runs_native
from weft.frontend.eager.numpy_calls import SWITCH, alike, quick_number, quick_row, tensor_of
from weft.frontend.eager.numpy_moves import quick_filled
from weft.frontend.ops.dispatch import apply, known_sizes, open_sizes, sizes_from
from weft.ir.dataclass import dataclass
from weft.ir.dims import (
    Dim,
    Shape,
    SymbolicDim,
    broadcast_shapes,
    divided,
    format_shape,
    never_negative,
    product,
)
from weft.ir.dtypes import (
    DEFAULT_FLOAT,
    DType,
    as_dtype,
    bfloat16,
    bool_,
    complex128,
    float16,
    float32,
    float64,
    int64,
    promote,
    promote_scalar,
    real_of,
    scalar_dtype,
)
from weft.ir.errors import (
    BoundsError,
    InvalidArgumentError,
    ShapeError,
    TracerError,
    TypeRuleError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.ir.spec import QUIET

Axes = int | Sequence[int] | None


def check_axis(op: str, axis: object, rank: int, name: str = "axis") -> int:
    """`axis` in 0 .. rank-1, negative ones counted from the end. BoundsError for others,
    InvalidArgumentError for what is no integer."""
    try:
        value = operator.index(axis)  # type: ignore[arg-type]
    except TypeError as error:
        if isinstance(error, WeftError):
            raise
        raise InvalidArgumentError(
            f"wf.{op}: {name} must be an integer, got {axis!r}", location=caller_location()
        ) from None
    if not -rank <= value < rank:
        allowed = f"{-rank} to {rank - 1}" if rank else "none: it is a scalar"
        raise BoundsError(
            f"wf.{op}: {name} {value} is out of range for a tensor of rank {rank}",
            hint=f"the axes of this tensor are {allowed}",
            location=caller_location(),
        )
    return value % rank


def check_axes(op: str, axis: Axes, rank: int, name: str = "axis") -> tuple[int, ...]:
    """`axis` (one, several, or None for all) as sorted, distinct axes in 0 .. rank-1."""
    if axis is None:
        return tuple(range(rank))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [check_axis(op, a, rank, name) for a in given]
    if len(set(axes)) != len(axes):
        raise InvalidArgumentError(
            f"wf.{op}: {name} {tuple(given)} names an axis twice", location=caller_location()
        )
    return tuple(sorted(axes))


def check_shape(op: str, shape: Any, *, infer: bool = False) -> Shape:
    """A `shape` argument (an int or a sequence of sizes) as a tuple; -1 is allowed with `infer`.

    In a graph sizes, and the shape as a whole, may be tensors of integers (`sizes_from`).
    """
    if isinstance(shape, (Tensor, np.ndarray)):
        known = traced_sizes(op, shape)
        shape = concrete_array(op, shape, "shape").tolist() if known is None else known
    items = shape if isinstance(shape, (tuple, list)) else (shape,)
    out: list[Dim] = []
    for item in items:
        known = traced_sizes(op, item)
        if known is not None and len(known) == 1:
            (item,) = known
        if item is None or isinstance(item, SymbolicDim):
            out.append(item)
            continue
        size = check_int(op, item, "a size in the shape")
        if size < (-1 if infer else 0):
            raise ShapeError(
                f"wf.{op}: shape {tuple(items)} has the negative size {size}",
                location=caller_location(),
            )
        out.append(size)
    return tuple(out)


def traced_sizes(op: str, x: object, what: str = "a size in the shape") -> list[Dim] | None:
    """The sizes in a traced tensor, in a graph or where they are known; None for anything else."""
    if not isinstance(x, Tensor) or is_concrete(x):
        return None
    if not open_sizes() and None in (known_sizes(x) or [None]):
        return None
    return sizes_from(op, x, what)


def check_size(op: str, value: object, name: str) -> int | SymbolicDim:
    """`value` as a size: an integer, a size of a tensor, or in a graph a scalar tensor of integers.
    InvalidArgumentError for others, for a negative one (of a tensor when a step runs), TracerError
    for a traced value in a compiled function."""
    count = check_number(op, value, name)
    if isinstance(count, int) and count < 0:
        raise InvalidArgumentError(
            f"wf.{op}: {name} must not be negative, got {count}", location=caller_location()
        )
    return count


def check_number(op: str, value: object, name: str) -> int | SymbolicDim:
    """As `check_size`, but that a number may be negative."""
    if isinstance(value, Tensor) and value.ndim:
        raise InvalidArgumentError(
            f"wf.{op}: {name} must be a number, got {value.describe()}", location=caller_location()
        )
    known = traced_sizes(op, value, name)
    size = value if known is None else known[0]
    return size if isinstance(size, SymbolicDim) else check_int(op, size, name)


def check_offset(op: str, value: object, name: str) -> int | Tensor:
    """`value` as a number that shifts places, not a size: an integer, or a traced scalar of
    integers (int64). InvalidArgumentError for others."""
    if not isinstance(value, Tensor) or is_concrete(value):
        return check_int(op, value, name)
    if value.ndim or not value.dtype.is_integer:
        raise InvalidArgumentError(
            f"wf.{op}: {name} must be an integer, got {value.describe()}",
            location=caller_location(),
        )
    return cast(value, int64)


def numbers_of(op: str, given: Any, what: str) -> Any:
    """A vector of numbers as a list, of sizes where a graph computes it; else what is given."""
    if not isinstance(given, (Tensor, np.ndarray)) or given.ndim != 1:
        return given
    known = traced_sizes(op, given, what)
    return concrete_array(op, given, what).tolist() if known is None else known


def infer_shape(op: str, shape: Shape, given: Shape) -> Shape:
    """`shape` with its one -1 worked out from the number of elements in `given`."""
    unknown = [i for i, d in enumerate(shape) if d == -1]
    if not unknown:
        return shape
    rest = product(d for d in shape if d != -1)
    total = product(given)
    found: Dim = None
    problem = len(unknown) > 1
    if not problem and rest is not None and total is not None:
        try:
            if isinstance(total, int):
                problem = not isinstance(rest, int) or rest == 0 or total % rest != 0
                found = None if problem or not isinstance(rest, int) else total // rest
            else:
                found = total // rest
        except ShapeError:
            problem = True
    if problem and len(unknown) == 1:
        found = _quotient(op, total, rest)
    if problem and found is None:
        raise ShapeError(
            f"wf.{op}: cannot tell the -1 in shape {format_shape(shape)} from a tensor of shape "
            f"{format_shape(given)}",
            hint="at most one -1, and the other sizes must divide the number of elements",
            location=caller_location(),
        )
    return tuple(found if d == -1 else d for d in shape)


def _quotient(op: str, total: Dim, rest: Dim) -> Dim:
    """The size for a -1 that is known when the graph runs, if only then; that it leaves no
    remainder is checked there."""
    if isinstance(total, SymbolicDim) and isinstance(rest, int) and rest > 0:
        return divided(total, rest) if never_negative(total) else None
    if total is None or not isinstance(rest, SymbolicDim) or not open_sizes():
        return None
    count = as_tensor(total) if isinstance(total, int) else SymbolicDim.as_operand(total)
    by = elementwise("maximum", SymbolicDim.as_operand(rest), 1)
    return sizes_from(op, cast(elementwise("floor_divide", count, by), int64))[0]


def check_int(op: str, value: object, name: str) -> int:
    """`value` as a Python int. InvalidArgumentError, or TracerError for a traced value."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except WeftError as error:
            raise error.at(caller_location()) from None
        except TypeError:
            pass
    raise InvalidArgumentError(
        f"wf.{op}: {name} must be an integer, got {value!r}", location=caller_location()
    )


def check_positive(op: str, value: object, name: str) -> int:
    """`value` as an int of at least 1. Errors as `check_int`, InvalidArgumentError for less."""
    number = check_int(op, value, name)
    if number < 1:
        raise InvalidArgumentError(
            f"wf.{op}: {name} must be at least 1, got {number}", location=caller_location()
        )
    return number


def concrete_array(op: str, value: object, name: str) -> np.ndarray[Any, Any]:
    """The NumPy value of an argument that must be known at trace time. TracerError if it is
    traced.
    """
    t = as_tensor(value)
    if not is_concrete(t):
        raise TracerError(
            f"wf.{op}: {name} must be known when the function is traced, but it is a traced tensor",
            hint="pass it as a Python value, or name it in static_argnames",
            location=caller_location(),
        )
    return t.numpy()


def is_concrete(t: Tensor) -> bool:
    """Whether the tensor holds a value now (it is not symbolic)."""
    return t._data is not None


#: What every op takes: tensors, variables, NumPy arrays and scalars, Python scalars, nested lists.
TensorLike: TypeAlias = Any
Scalar: TypeAlias = bool | int | float | complex

REPRESENTATIVE: dict[str, Scalar] = {"bool": False, "int": 0, "float": 0.0, "complex": 0j}
#: The dtypes in which weak values are held, lowest kind first.
_WIDE = {"bool": bool_, "int": int64, "float": float64, "complex": complex128}


def is_scalar(x: object) -> bool:
    """Whether `x` is a plain Python scalar (NumPy's are not: they carry a dtype)."""
    return type(x) in (bool, int, float, complex)


def is_weak(x: object) -> bool:
    """Whether `x` yields to the dtype of what it meets."""
    return is_scalar(x) or (isinstance(x, Tensor) and x.weak)


def scalar_tensor(value: Scalar, dtype: DType) -> Tensor:
    """A 0-d tensor of exactly `dtype`. InvalidArgumentError for an integer that does not fit."""
    if dtype.is_integer and isinstance(value, int):
        info: Any = np.iinfo(dtype.numpy.name)
        if not info.min <= value <= info.max:
            raise InvalidArgumentError(
                f"the Python integer {value} does not fit {dtype.name} ({info.min} to {info.max})",
                hint="convert the other operand to a wider dtype with wf.astype",
                location=caller_location(),
            )
    with np.errstate(over="ignore"):  # beyond the range of a float: infinity, as in NumPy
        return as_tensor(np.asarray(value).astype(dtype.numpy))


def cast(x: TensorLike, dtype: DType) -> Tensor:
    """`x` as a tensor of `dtype` that is not weak. InvalidArgumentError for a Python integer that
    does not fit; if it is an input of a compiled function, when that is called."""
    if is_scalar(x) and not (dtype.is_integer and isinstance(x, (float, complex))):
        return scalar_tensor(x, dtype)
    t = as_tensor(x)
    if t.weak and dtype.is_integer and t.dtype is int64 and dtype is not int64:
        if t._data is not None and t._data.size:
            for end in (t._data.min(), t._data.max()):
                scalar_tensor(int(end), dtype)  # says what does not fit
        if t._value is not None and t._trace is not None:
            t._trace.note_narrowed(t._value, dtype)
    return t if t.dtype is dtype and not t.weak else apply("astype", t, dtype=dtype)


def common_dtype(op: str, xs: Sequence[TensorLike], *, wide: bool = False) -> DType:
    """The dtype in which `op` works on `xs`. TypeRuleError, at the user's line, if there is none.

    If all of `xs` are weak it is the default dtype of the highest kind among them; with `wide`, the
    64-bit one, in which weak values are held.
    """
    strong: DType | None = None
    weak: list[Scalar] = []
    try:
        for x in xs:
            if is_scalar(x):
                weak.append(x)
                continue
            t = as_tensor(x)
            if t.weak:
                weak.append(REPRESENTATIVE[t.dtype.kind])
            else:
                strong = t.dtype if strong is None else promote(strong, t.dtype)
        if strong is None and wide:
            kinds = [scalar_dtype(w).kind for w in weak]
            strong = max((_WIDE[k] for k in kinds), key=list(_WIDE.values()).index, default=None)
        for scalar in weak:
            strong = scalar_dtype(scalar) if strong is None else promote_scalar(strong, scalar)
    except WeftError as error:
        raise renamed(error, op) from None
    if strong is None:
        raise InvalidArgumentError(
            f"wf.{op} needs at least one operand", location=caller_location()
        )
    if strong in WIDE and op != "result_type" and (trace := current_trace()) is not None:
        operands = [as_tensor(x) for x in xs if not is_weak(x)]
        if operands:
            note_operands(op, operands, trace)
    return strong


def renamed(error: WeftError, op: str) -> WeftError:
    """The same error, with the public name of the function and the user's line."""
    return type(error)(f"wf.{op}: {error.what}", hint=error.hint, location=caller_location())


def strong_tensor(x: TensorLike) -> Tensor:
    """`x` as a tensor that is not weak: Python scalars take the default dtype of their kind."""
    t = as_tensor(x)
    return cast(t, scalar_dtype(REPRESENTATIVE[t.dtype.kind])) if t.weak else t


def promote_tensors(*xs: TensorLike, op: str = "result_type") -> list[Tensor]:
    """`xs` as tensors of one dtype, not weak; shapes are left alone. TypeRuleError as above."""
    held = [x if is_scalar(x) else as_tensor(x) for x in xs]
    dtype = common_dtype(op, held)
    return [cast(x, dtype) for x in held]


def broadcast_tensors(*xs: Tensor, op: str = "broadcast_arrays") -> list[Tensor]:
    """`xs` expanded to their common shape. ShapeError, at the user's line, where there is none."""
    try:
        shape = broadcast_shapes(*(x.shape for x in xs))
    except WeftError as error:
        raise renamed(error, op) from None
    return [expand(x, shape) for x in xs]


def expand(x: Tensor, shape: Shape) -> Tensor:
    """`x` broadcast to `shape`; `x` itself if it has that shape."""
    return x if x.shape == shape else apply("broadcast_to", x, shape=shape)


def filled(value: Scalar, dtype: DType, shape: Shape) -> Tensor:
    """A tensor of `shape` and exactly `dtype`, every element `value`. Errors as `scalar_tensor`."""
    made = quick_filled(shape, value, dtype)
    return expand(scalar_tensor(value, dtype), shape) if made is None else made


def unary(op: str, x: TensorLike, inexact: bool = False) -> Tensor:
    """As `elementwise` for one operand: of few elements one call of NumPy."""
    if type(x) is Tensor and not x.weak and SWITCH.on:
        a = x._data
        if a is not None and a.size <= numpy_calls.LARGE and at_once():
            function = quick_row(op, a.dtype, 1)
            if function is not None:
                try:
                    made = QUIET.run(function, a)
                    return tensor_of(made if type(made) is np.ndarray else np.asarray(made))
                except Exception:  # the long way says what is wrong
                    pass
    return elementwise(op, x, inexact=inexact)


def binary(
    op: str, x1: TensorLike, x2: TensorLike, inexact: bool = False, name: str = ""
) -> Tensor:
    """As `elementwise` for two operands: of few elements one call of NumPy."""
    a = x1._data if type(x1) is Tensor and not x1.weak else None
    b = x2._data if type(x2) is Tensor and not x2.weak else None
    if a is None:
        a = None if b is None else quick_number(x1, b)
    elif b is None:
        b = quick_number(x2, a)
    elif not alike(a, b):
        b = None
    if a is not None and b is not None and SWITCH.on and at_once():
        function = quick_row(op, a.dtype, 2)
        if function is not None:
            try:
                made = QUIET.run(function, a, b)
                return tensor_of(made if type(made) is np.ndarray else np.asarray(made))
            except Exception:  # the long way says what is wrong
                pass
    return elementwise(op, x1, x2, inexact=inexact, name=name)


def elementwise(op: str, *xs: TensorLike, inexact: bool = False, name: str = "") -> Tensor:
    """Apply an elementwise IR op after promotion and broadcasting; weak if all of `xs` are.

    inexact: bools and integers convert to the default float. name: the public name, for errors.
    """
    made = _large.again(op, xs, inexact, name)
    return _elementwise(op, *xs, inexact=inexact, name=name) if made is None else made


@runs_native
def _elementwise(op: str, *xs: TensorLike, inexact: bool, name: str) -> Tensor:
    held = [x if is_scalar(x) else as_tensor(x) for x in xs]
    dtype = common_dtype(name or op, held, wide=True)
    if inexact and not dtype.is_inexact:
        weak = all(is_weak(x) for x in held)
        dtype = float64 if weak else to_inexact(dtype, name or op)
    if any(map(is_scalar, held)):
        operands = _with_literals(held, dtype, name or op)
    else:
        operands = broadcast_tensors(*(cast(x, dtype) for x in held), op=name or op)
    return weaken(apply(op, *operands), held)


_large: EagerCalls = _elementwise.__dict__["calls"]


def _with_literals(held: Sequence[TensorLike], dtype: DType, op: str) -> list[Tensor]:
    """As `broadcast_tensors` of what is cast to `dtype`; while a graph is traced, each Python
    number becomes one constant for all times that the user's line runs."""
    trace = current_trace()
    if trace is None or trace.control or device_scopes():
        return broadcast_tensors(*(cast(x, dtype) for x in held), op=op)
    where, known = caller_location(), trace.literals
    keys: list[object] = []
    tensors: list[Tensor] = []
    for x in held:
        key: object = (type(x), repr(x), dtype, where) if is_scalar(x) else None
        found = None if key is None else known.get(key)
        made = cast(x, dtype) if found is None else found
        if key is not None and made._data is not None:
            known[key] = made
            keys.append(key)
        else:
            keys.append(None)
        tensors.append(made)
    try:
        shape = broadcast_shapes(*(t.shape for t in tensors))
    except WeftError as error:
        raise renamed(error, op) from None
    for k, (key, t) in enumerate(zip(keys, tensors, strict=True)):
        if key is None or t.shape == shape:
            tensors[k] = expand(t, shape)
            continue
        if (key, shape) not in known:
            known[key, shape] = expand(t, shape)
        tensors[k] = known[key, shape]
    return tensors


def weaken(result: Tensor, inputs: Sequence[TensorLike]) -> Tensor:
    """`result`, weak if all of the inputs it was computed from are."""
    if result.dtype.is_numeric and all(is_weak(x) for x in inputs):
        result.weak = True
    return result


def to_inexact(dtype: DType, op: str) -> DType:
    """`dtype` if it is floating or complex, the default float for bool and integers."""
    if dtype.kind == "string":
        raise TypeRuleError(f"wf.{op} does not take strings", location=caller_location())
    return dtype if dtype.is_inexact else DEFAULT_FLOAT


def inexact_tensor(x: TensorLike, op: str) -> Tensor:
    """`x` as a floating or complex tensor; bools and integers become the default float."""
    t = strong_tensor(x)
    return cast(t, to_inexact(t.dtype, op))


def check_dtype(dtype: object, default: DType | None = None) -> DType:
    """A `dtype=` argument as a DType; None means `default`. TypeRuleError at the user's line."""
    if dtype is None and default is not None:
        return default
    try:
        return as_dtype(dtype)
    except WeftError as error:
        raise error.at(caller_location()) from None


def widened(t: Tensor) -> Tensor:
    """float16 and bfloat16 as float32, other dtypes as they are.

    For functions whose steps leave the range of 16 bits on the way to a result that does not, such
    as the squares under a norm. The result is cast back once, at the end.
    """
    return cast(t, float32) if t.dtype in (float16, bfloat16) else t


#: The kinds of dtypes in the array API, as those of `DType.kind`.
KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """The range and precision of a floating dtype. For a complex one all, `dtype` too, is that of
    its parts."""

    dtype: DType
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """The range of an integer dtype."""

    dtype: DType
    bits: int
    max: int
    min: int


def result_type(*arrays_and_dtypes: TensorLike) -> DType:
    """The dtype to which these arrays, dtypes and Python scalars promote. TypeRuleError if there
    is none.

    >>> wf.result_type(wf.int64, wf.float32)  # NumPy: float64
    weft.float32
    >>> wf.result_type(wf.int8, 1000), wf.result_type(wf.int8, 0.5)
    (weft.int8, weft.float32)
    >>> wf.result_type(wf.int64, wf.uint64)
    Traceback (most recent call last):
        ...
    weft.ir.errors.TypeRuleError: wf.result_type: no common dtype of int64 and uint64 ...
    """
    stand_ins = [
        _stand_in(x) if _is_dtype(x) or isinstance(x, str) else x for x in arrays_and_dtypes
    ]
    return common_dtype("result_type", stand_ins)


def _is_dtype(x: object) -> bool:
    return isinstance(x, (DType, np.dtype, type))


def _stand_in(x: object) -> Tensor:
    return as_tensor(np.zeros((), check_dtype(x).numpy))


def can_cast(from_: TensorLike, to: object, /) -> bool:
    """Whether a dtype, or that of a tensor, promotes to `to` without changing it.

    >>> wf.can_cast(wf.int8, wf.int16), wf.can_cast(wf.int16, wf.int8)
    (True, False)
    >>> wf.can_cast(wf.int64, wf.float32)  # they promote to float32; NumPy: False
    True
    """
    given = (
        check_dtype(from_) if _is_dtype(from_) or isinstance(from_, str) else as_tensor(from_).dtype
    )
    target = check_dtype(to)
    try:
        return promote(given, target) is target
    except TypeRuleError:
        return False


def isdtype(dtype: object, kind: object) -> bool:
    """Whether `dtype` is `kind`: a dtype, a kind's name in the array API, or a tuple of these.

    >>> wf.isdtype(wf.uint8, "integral"), wf.isdtype(wf.bool, "numeric")
    (True, False)
    >>> wf.isdtype(wf.bfloat16, ("complex floating", "real floating"))
    True
    """
    given = check_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(given, k) for k in kind)
    if isinstance(kind, str) and kind in KINDS and kind != "bool":
        return given.kind in KINDS[kind]
    try:
        return given is check_dtype(kind)
    except WeftError:
        raise InvalidArgumentError(
            f"wf.isdtype: {kind!r} is neither a dtype nor a kind",
            hint="the kinds are " + ", ".join(KINDS),
            location=caller_location(),
        ) from None


def finfo(type: object, /) -> FloatInfo:
    """Range and precision of a floating or complex dtype, or of that of a tensor.

    >>> info = wf.finfo(wf.float16)
    >>> info.bits, info.max, info.eps
    (16, 65504.0, 0.0009765625)
    >>> wf.finfo(wf.complex64).bits  # of each part
    32
    """
    dtype = _dtype_of(type)
    if not dtype.is_inexact:
        raise TypeRuleError(f"wf.finfo: {dtype.name} is not floating", location=caller_location())
    part = real_of(dtype)
    info: Any = ml_dtypes.finfo(part.numpy)  # type: ignore[no-untyped-call]
    eps, top, bottom, normal = (
        float(v) for v in (info.eps, info.max, info.min, info.smallest_normal)
    )
    return FloatInfo(part, part.bits, eps, top, bottom, normal)


def iinfo(type: object, /) -> IntegerInfo:
    """Range of an integer dtype, or of that of a tensor.

    >>> wf.iinfo(wf.int8).min, wf.iinfo(wf.int8).max
    (-128, 127)
    >>> wf.iinfo("uint16")
    IntegerInfo(dtype=weft.uint16, bits=16, max=65535, min=0)
    """
    dtype = _dtype_of(type)
    if not dtype.is_integer:
        raise TypeRuleError(f"wf.iinfo: {dtype.name} is not integer", location=caller_location())
    info: Any = np.iinfo(dtype.name)
    return IntegerInfo(dtype, dtype.bits, int(info.max), int(info.min))


def _dtype_of(x: Any) -> DType:
    if _is_dtype(x) or isinstance(x, str):
        return check_dtype(x)
    return as_tensor(x).dtype if not is_scalar(x) else common_dtype("finfo", [x])
