"""Tensors from nothing: filled, counted, identity and triangle matrices, grids, one-hot codes.

`shape` is an int or a sequence of ints; in a graph symbolic sizes and tensors of integers, too.
`dtype` is a weft or NumPy dtype or a name; None means what the values suggest: the default float
(float32), int64 for integers. Inside a trace these are ops, not stored arrays. Errors, at the
caller's line: ShapeError for a negative size, TypeRuleError for an unknown dtype, TracerError where
a number must be known at trace time but is traced.

`device` is "cpu" or a GPU of this process ("gpu:0"), as tensors have it as `.device`; None (the
default) is where the arguments are, or the CPU. In a graph it is what `wf.device` takes. What a
device cannot be raises as `weft.frontend.ops.dispatch.on_device` says.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from weft.frontend.core.float64 import in_float64
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import (
    BUFFERS,
    NoDLPack,
    Tensor,
    as_tensor,
    contiguous,
    foreign_array,
    is_foreign,
    plain_array,
)
from weft.frontend.core.trace import current_trace, graph_around
from weft.frontend.eager.numpy_moves import (
    counted,
    quick_filled,
    quick_made,
    quick_moved,
    triangle,
)
from weft.frontend.ops.dispatch import (
    apply,
    in_order,
    known_sizes,
    on_device,
    open_sizes,
    sizes_from,
)
from weft.frontend.ops.elementwise import (
    add,
    divide,
    equal,
    floor_divide,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    maximum,
    multiply,
    subtract,
    where,
)
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    check_dtype,
    check_offset,
    check_shape,
    check_size,
    common_dtype,
    concrete_array,
    expand,
    filled,
    is_concrete,
    is_scalar,
    strong_tensor,
    to_inexact,
)
from weft.ir.dims import Dim, Shape, SymbolicDim, divided, largest
from weft.ir.dlpack import is_on_gpu
from weft.ir.dtypes import (
    DEFAULT_FLOAT,
    DEFAULT_INT,
    DType,
    bool_,
    complex128,
    float64,
    int64,
    scalar_dtype,
    string,
    uint64,
)
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location


def asarray(
    x: TensorLike,
    /,
    *,
    dtype: object = None,
    device: str | None = None,
    copy: bool | None = None,
) -> Tensor:
    """x as a tensor: NumPy arrays keep their dtype, Python numbers take the default one of their
    kind. The result is not weak.

    Tensors are immutable, so arrays are copied, and tensors need not be. copy=True: they are, too
    (outside of traces), and may be donated apart. copy=False: the result shares the memory of an
    array, as `from_dlpack`'s does; InvalidArgumentError, a ValueError, where it cannot.

    >>> wf.asarray([1, 2.5]), wf.asarray(3)
    (Tensor([1. , 2.5], dtype=float32), Tensor(3, dtype=int64))
    >>> array = np.zeros(2)
    >>> tensor = wf.asarray(array)  # NumPy's arrays stay float64
    >>> array[0] = 5
    >>> tensor
    Tensor([0., 0.], dtype=float64)
    """
    if device is not None:
        return on_device(device, asarray, x, dtype=dtype, copy=copy)
    target = None if dtype is None else check_dtype(dtype)
    if copy is False and not isinstance(x, Operators):
        return _shared(x, target)
    if target is None:
        made = strong_tensor(x)
    elif isinstance(x, (list, tuple)):
        made = as_tensor(x, target)
    else:
        made = cast(x if is_scalar(x) else as_tensor(x), target)
    if made is not x:
        if copy is False and isinstance(x, Tensor):
            raise _cannot_share(f"{x.dtype.name} as {made.dtype.name}")
        return made
    return _copied(made) if copy else made


def _copied(t: Tensor) -> Tensor:
    """A tensor of its own memory; a symbolic one, which has none yet, itself."""
    if type(t) is not Tensor:  # on a GPU
        return t.__deepcopy__(None)
    return t if t._data is None else Tensor(t._data.copy())


def _shared(x: Any, target: DType | None) -> Tensor:
    """A tensor on the memory of an array or buffer."""
    if isinstance(x, (np.ndarray, *BUFFERS)):
        array = plain_array(x)
    elif is_foreign(x):
        array = foreign_array(x)
    else:
        raise _cannot_share(f"a {type(x).__name__}")
    dtype, held = check_dtype(array.dtype), contiguous(array)
    if held is not array:
        raise _cannot_share("an array that is not contiguous, aligned and of native byte order")
    if dtype is string or (target is not None and dtype is not target):
        raise _cannot_share(f"{dtype.name} as {(target or string).name}")
    return Tensor(held)


def _cannot_share(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"wf.asarray(copy=False) would have to copy {what}",
        hint="leave copy out",
        location=caller_location(),
    )


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """An array of another library (PyTorch, JAX, CuPy, NumPy), through DLPack: a `wf.DeviceArray`
    if it is on a GPU.

    It shares the memory where that is contiguous, unless `copy`: do not write to `x` while the
    tensor is in use. device: where the result is to be, as `wf.to_device` names it (None: where
    `x` is). BufferError if copy=False and a copy is needed; TypeRuleError (an AttributeError,
    too) for what has no DLPack,
    and on a GPU for what is not contiguous.

    >>> array = np.arange(3)
    >>> tensor = wf.from_dlpack(array)
    >>> np.shares_memory(array, tensor.numpy())
    True
    >>> tensor
    Tensor([0, 1, 2], dtype=int64)
    """
    there = isinstance(x, Tensor) and type(x) is not Tensor  # emulated GPUs say they are the host
    if device not in (None, "cpu") or is_on_gpu(x) or there:
        # who has no GPU does not wait for this module when weft is imported
        from weft.frontend.core.device_array import from_device

        return from_device(x, device, copy)
    if not hasattr(x, "__dlpack__"):
        raise NoDLPack(
            f"a {type(x).__name__} has no DLPack", hint="use wf.asarray", location=caller_location()
        )
    array = foreign_array(x)
    check_dtype(array.dtype)
    held = contiguous(array)
    if copy is False and held is not array:
        raise BufferError("wf.from_dlpack(copy=False): the array is not contiguous and aligned")
    if copy and held is array:
        return as_tensor(array)
    return Tensor(held)


def constant(value: TensorLike, dtype: object = None, shape: Any = None) -> Tensor:
    """A tensor with this value; with `shape`, the value reshaped or, if it is one element, repeated
    (TF1). In a `wf.Graph` it is a tensor of the graph, which can be fed.

    >>> wf.tf1.constant([1, 2, 3, 4], shape=(2, 2))
    Tensor([[1, 2],
            [3, 4]], dtype=int64)
    >>> wf.tf1.constant(0.5, shape=(3,))
    Tensor([0.5, 0.5, 0.5], dtype=float32)
    """
    t = asarray(value, dtype=dtype)
    if shape is None:
        trace = graph_around(current_trace())
        return t if trace is None else in_order(trace.tensor(trace.lift(t), t.weak))
    wanted = check_shape("constant", shape)
    if t.size == 1:
        return expand(apply("reshape", t, shape=()), wanted)
    return apply("reshape", t, shape=wanted)


def full(
    shape: Any, fill_value: TensorLike, *, dtype: object = None, device: str | None = None
) -> Tensor:
    """A tensor of `shape` with every element `fill_value` (a number or a 0-d tensor).

    >>> wf.full((2, 2), 7)
    Tensor([[7, 7],
            [7, 7]], dtype=int64)
    >>> wf.full(3, True)
    Tensor([ True,  True,  True], dtype=bool)
    """
    if device is not None:
        return on_device(device, full, shape, fill_value, dtype=dtype)
    wanted = check_shape("full", shape)
    if is_scalar(fill_value):
        target = check_dtype(dtype, scalar_dtype(fill_value))
        whole = isinstance(fill_value, int)
        if whole or (target.is_inexact and not isinstance(fill_value, complex)):
            return filled(fill_value, target, wanted)
    value = asarray(fill_value, dtype=dtype)
    if value.ndim:
        raise InvalidArgumentError(
            f"wf.full: fill_value must be a scalar, got shape {list(value.shape)}",
            hint="wf.broadcast_to repeats an array",
            location=caller_location(),
        )
    made = None if value._data is None else quick_filled(wanted, value._data, value.dtype)
    return expand(value, wanted) if made is None else made


def zeros(shape: Any, *, dtype: object = None, device: str | None = None) -> Tensor:
    """A tensor of `shape` filled with 0 (float32 by default).

    >>> wf.zeros(3)
    Tensor([0., 0., 0.], dtype=float32)
    >>> wf.zeros((2, 2), dtype=wf.int32)
    Tensor([[0, 0],
            [0, 0]], dtype=int32)
    """
    if device is not None:
        return on_device(device, zeros, shape, dtype=dtype)
    return filled(0, check_dtype(dtype, DEFAULT_FLOAT), check_shape("zeros", shape))


def ones(shape: Any, *, dtype: object = None, device: str | None = None) -> Tensor:
    """A tensor of `shape` filled with 1 (float32 by default).

    >>> wf.ones((1, 3), dtype="bfloat16")
    Tensor([[1, 1, 1]], dtype=bfloat16)
    """
    if device is not None:
        return on_device(device, ones, shape, dtype=dtype)
    return filled(1, check_dtype(dtype, DEFAULT_FLOAT), check_shape("ones", shape))


def empty(shape: Any, *, dtype: object = None, device: str | None = None) -> Tensor:
    """A tensor of `shape` whose values mean nothing. Tensors are immutable, so they are all 0.

    >>> wf.empty(2).shape
    (2,)
    """
    return zeros(shape, dtype=dtype, device=device)


def _beside(x: Tensor, device: str | None) -> str | None:
    """The device of an array like `x`: that of an array on a GPU, where nothing else is said and
    the array is made at once."""
    away = device is None and type(x) is not Tensor and current_trace() is None
    return x.device if away else device


def full_like(
    x: TensorLike,
    /,
    fill_value: TensorLike,
    *,
    dtype: object = None,
    device: str | None = None,
) -> Tensor:
    """A tensor with the shape of x (and its dtype, by default) filled with `fill_value`.

    >>> wf.full_like([1, 2], 0.5)  # int64, as x
    Tensor([0, 0], dtype=int64)
    >>> wf.full_like([1, 2], 0.5, dtype=wf.float32)
    Tensor([0.5, 0.5], dtype=float32)
    """
    t = strong_tensor(x)
    return full(t.shape, fill_value, dtype=check_dtype(dtype, t.dtype), device=_beside(t, device))


def zeros_like(x: TensorLike, /, *, dtype: object = None, device: str | None = None) -> Tensor:
    """A tensor with the shape of x (and its dtype, by default) filled with 0.

    >>> wf.zeros_like([[1, 2]])
    Tensor([[0, 0]], dtype=int64)
    >>> wf.zeros_like([[1, 2]], dtype=wf.bool)
    Tensor([[False, False]], dtype=bool)
    """
    t = strong_tensor(x)
    return zeros(t.shape, dtype=check_dtype(dtype, t.dtype), device=_beside(t, device))


def ones_like(x: TensorLike, /, *, dtype: object = None, device: str | None = None) -> Tensor:
    """A tensor with the shape of x (and its dtype, by default) filled with 1.

    >>> wf.ones_like(np.array([0.5, 2.0]))
    Tensor([1., 1.], dtype=float64)
    """
    t = strong_tensor(x)
    return ones(t.shape, dtype=check_dtype(dtype, t.dtype), device=_beside(t, device))


def empty_like(x: TensorLike, /, *, dtype: object = None, device: str | None = None) -> Tensor:
    """`empty` with the shape of x and, by default, its dtype.

    >>> x = wf.empty_like([1, 2])
    >>> x.shape, x.dtype
    ((2,), weft.int64)
    """
    return zeros_like(x, dtype=dtype, device=device)


def iota(shape: Any, axis: int = 0, *, dtype: object = None) -> Tensor:
    """A tensor of `shape` in which each element is its index along `axis` (int64 by default).

    >>> wf.iota((2, 3), axis=1)
    Tensor([[0, 1, 2],
            [0, 1, 2]], dtype=int64)
    """
    wanted = check_shape("iota", shape)
    along = check_axis("iota", axis, len(wanted))
    return apply("iota", dtype=check_dtype(dtype, DEFAULT_INT), shape=wanted, axis=along)


def _known_number(op: str, value: object, name: str) -> int | float:
    """A real number that is known at trace time."""
    if isinstance(value, (bool, int, float)):
        return value
    array = concrete_array(op, value, name)
    if array.ndim or array.dtype.kind not in "biuf":
        raise InvalidArgumentError(
            f"wf.{op}: {name} must be a real number, got {value!r}", location=caller_location()
        )
    number: int | float = array.item()
    return number


def arange(
    start: Any,
    /,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: object = None,
    device: str | None = None,
) -> Tensor:
    """The numbers start, start + step, ... before `stop`; with one argument 0, 1, ... before it.

    The length is ceil((stop - start) / step), at least 0. Integers give int64, floats float32 by
    default, each element being start + i*step rounded once. In a graph the three may be symbolic
    sizes and scalar tensors.

    >>> wf.arange(5, 0, -2)
    Tensor([5, 3, 1], dtype=int64)
    >>> wf.arange(0, 1, 0.25)  # NumPy gives float64
    Tensor([0.  , 0.25, 0.5 , 0.75], dtype=float32)
    """
    if device is not None:
        return on_device(device, arange, start, stop, step, dtype=dtype)
    low, high = (0, start) if stop is None else (start, stop)
    if _is_computed(low) or _is_computed(high) or _is_computed(step):
        return _computed_range(low, high, step, dtype)
    a, b, s = (
        _known_number("arange", v, n) for v, n in ((low, "start"), (high, "stop"), (step, "step"))
    )
    if s == 0:
        raise InvalidArgumentError("wf.arange: step must not be 0", location=caller_location())
    integral = all(isinstance(v, int) for v in (a, b, s))
    target = check_dtype(dtype, DEFAULT_INT if integral else DEFAULT_FLOAT)
    if integral:
        length = max(0, -((int(a) - int(b)) // int(s)))
        if not (-_FAR < a < _FAR and -_FAR < b < _FAR and -_FAR < s < _FAR):
            a, s, integral = _far_integers(int(a), int(s), length, target)
    else:
        steps = (b - a) / s
        if not math.isfinite(steps):
            raise InvalidArgumentError(
                f"wf.arange: there are {steps} steps of {s} from {a} to {b}",
                location=caller_location(),
            )
        length = max(0, math.ceil(steps))
    work = int64 if integral else float64
    made = quick_made(counted, a, s, length, work, target)
    if made is not None:
        return made
    if integral:
        return cast(_steps(int(a), int(s), length, work), target)
    with in_float64():
        return cast(_steps(float(a), float(s), length, work), target)


#: Integers below it can be subtracted in int64.
_FAR = 2**62


def _far_integers(start: int, step: int, length: int, target: DType) -> tuple[int, int, bool]:
    """start and step of an `arange` of integers, modulo 2**64 if all its elements are integers of
    the target, and whether it is computed in int64."""
    start, step = start if length else 0, step if length > 1 else 1
    ends = start, start + step * max(length - 1, 0)
    if not target.is_integer:
        return start, step, max(map(abs, (*ends, step))) < 2**63
    low, high = (0, 2**64) if target is uint64 else (-(2**63), 2**63)
    if low <= min(ends) and max(ends) < high:
        start, step = _signed(start), _signed(step)
    return start, step, True


def _signed(n: int) -> int:
    """n modulo 2**64, as an int64."""
    return (n + 2**63) % 2**64 - 2**63


def _is_computed(x: object) -> bool:
    """Whether `x` is a size that a graph does not know, or a value that it computes."""
    if isinstance(x, Tensor) and not is_concrete(x) and x.ndim == 0:
        return open_sizes() or None not in (known_sizes(x) or [None])
    return isinstance(x, SymbolicDim)


_LENGTH = "the length, -1 where the step is 0, a bound is NaN or both are too far apart,"


def _computed_range(low: Any, high: Any, step: Any, dtype: object) -> Tensor:
    """`arange` of sizes and tensors. Its length is a size of the graph where the step is a number
    and the bounds are sizes; else it depends on values."""
    ends = [low, high, step]
    for i, x in enumerate(ends):
        if isinstance(x, Tensor) and not is_concrete(x) and (known := known_sizes(x)) != [None]:
            ends[i] = known[0] if known else x
        elif not isinstance(x, (Tensor, SymbolicDim)):
            ends[i] = _known_number("arange", x, "a bound or the step")
    a, b, s = ends
    if isinstance(s, (int, float)) and s == 0:
        raise InvalidArgumentError("wf.arange: step must not be 0", location=caller_location())
    if isinstance(s, int) and all(isinstance(v, (int, SymbolicDim)) for v in (a, b)):
        gap, each = largest(b - a if s > 0 else a - b, 0), abs(s)
        many = gap if each == 1 else divided(gap + (each - 1), each)
        return cast(_steps(a, s, many, int64), check_dtype(dtype, DEFAULT_INT))
    values = [SymbolicDim.as_operand(v) if isinstance(v, SymbolicDim) else v for v in ends]
    integral = all(isinstance(v, int) or (isinstance(v, Tensor) and v.dtype.is_integer)
                   for v in values)  # fmt: skip
    work = int64 if integral else float64
    target = check_dtype(dtype, DEFAULT_INT if integral else DEFAULT_FLOAT)
    with in_float64():
        start, stop, by = (cast(v, work) for v in values)
        if integral:  # differences that int64 does not have come out with the other sign
            found = apply("negative", floor_divide(subtract(start, stop), by))
            ahead = where(greater(by, 0), greater(stop, start), less(stop, start))
            count = where(ahead, where(greater(found, 0), found, -1), 0)
        else:
            steps = divide(subtract(stop, start), by)
            found = cast(apply("ceil", steps), int64)
            count = where(greater(steps, 0), found, where(less_equal(steps, 0), 0, -1))
        count = where(equal(by, 0), -1, count)
        (length,) = sizes_from("arange", count, _LENGTH)
        return cast(_steps(start, by, length, work), target)


def _steps(start: Any, step: Any, length: Dim, dtype: DType) -> Tensor:
    index = apply("iota", dtype=dtype, shape=(length,), axis=0)
    known = isinstance(start, (int, float)) and isinstance(step, (int, float))
    scaled = index if known and step == 1 else multiply(index, step)
    # the sum makes a first -0, of a negative step, 0
    plain = known and start == 0 and not (dtype.is_floating and step < 0)
    return scaled if plain else add(scaled, start)


def linspace(
    start: TensorLike,
    stop: TensorLike,
    /,
    num: Any,
    *,
    dtype: object = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced numbers from `start` to `stop` (which is left out without `endpoint`).

    start and stop are scalars, num an integer, in a graph a size or a scalar tensor of integers,
    too. Integers give the default float. Known numbers are computed in float64 and rounded once,
    integers between known integers exactly; the last is exactly `stop`.

    >>> wf.linspace(0, 1, 5)
    Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    >>> wf.linspace(0, 1, 4, endpoint=False)
    Tensor([0.  , 0.25, 0.5 , 0.75], dtype=float32)
    >>> wf.linspace(-1, 1, 4, dtype=wf.int64)  # rounded down
    Tensor([-1, -1,  0,  1], dtype=int64)
    """
    if device is not None:
        return on_device(device, linspace, start, stop, num, dtype=dtype, endpoint=endpoint)
    count = check_size("linspace", num, "num")
    ends = [x if is_scalar(x) else strong_tensor(x) for x in (start, stop)]
    result = check_dtype(dtype, to_inexact(common_dtype("linspace", ends), "linspace"))
    if result.is_integer and isinstance(count, int):
        low, high = ends
        if isinstance(low, int) and isinstance(high, int):
            return _whole_numbers(low, high, count, endpoint, result)
    work = result if result.is_inexact else float64
    if all(is_scalar(x) for x in ends):
        work = complex128 if work.is_complex else float64
    low, high = (cast(x, work) for x in ends)
    if low.ndim or high.ndim:
        raise InvalidArgumentError(
            "wf.linspace: start and stop must be scalars", location=caller_location()
        )
    with in_float64():
        index = apply("iota", dtype=work, shape=(count,), axis=0)
        values = _between(index, low, high, count, endpoint)
        # integers are rounded down, also below 0 (NumPy)
        return cast(values if result.is_inexact else apply("floor", values), result)


def _whole_numbers(start: int, stop: int, count: int, endpoint: bool, result: DType) -> Tensor:
    """`linspace` in integers: numbers of 64 bits are not all floats."""
    gaps = max(count - endpoint, 1)
    step, rest = divmod(stop - start, gaps)
    index = apply("iota", dtype=int64, shape=(count,), axis=0)
    # modulo 2**64; index * rest is less than count**2
    carried = floor_divide(multiply(index, rest), gaps)
    return cast(add(add(multiply(index, _signed(step)), carried), _signed(start)), result)


def _between(index: Tensor, low: Tensor, high: Tensor, count: Any, endpoint: bool) -> Tensor:
    """The numbers of `linspace` at the indices."""
    gaps: Any = count - 1 if endpoint else count
    if isinstance(gaps, int):
        whole: Any = max(gaps, 1)
    else:
        whole = cast(maximum(SymbolicDim.as_operand(gaps), 1), float64)
    values = add(multiply(index, divide(subtract(high, low), whole)), low)
    if endpoint and not (isinstance(count, int) and count <= 1):
        last = equal(index, gaps)
        if not isinstance(count, int):
            last = logical_and(last, greater_equal(gaps, 1))
        values = where(last, high, values)
    return values


def eye(
    n_rows: Any,
    n_cols: Any = None,
    /,
    *,
    k: Any = 0,
    dtype: object = None,
    device: str | None = None,
) -> Tensor:
    """A matrix with ones on the k-th diagonal (above the main one if k > 0) and zeros elsewhere.

    In a graph all three may be scalar tensors of integers.

    >>> wf.eye(2, 3, k=1)
    Tensor([[0., 1., 0.],
            [0., 0., 1.]], dtype=float32)
    """
    if device is not None:
        return on_device(device, eye, n_rows, n_cols, k=k, dtype=dtype)
    shape = check_shape("eye", (n_rows, n_rows if n_cols is None else n_cols))
    offset, target = check_offset("eye", k, "k"), check_dtype(dtype, DEFAULT_FLOAT)
    if target.kind != "string" and isinstance(offset, int):
        made = quick_made(np.eye, *shape, offset, target.numpy)
        if made is not None:
            return made
    row, column = _grid(shape)
    return cast(equal(_shifted(row, offset), column), target)


def _shifted(row: Tensor, offset: int | Tensor) -> Tensor:
    return row if isinstance(offset, int) and not offset else add(row, offset)


def _grid(shape: Shape) -> tuple[Tensor, Tensor]:
    """Row and column numbers of the matrices in a tensor of `shape`."""
    matrix = shape[-2:]
    return (
        apply("iota", dtype=int64, shape=matrix, axis=0),
        apply("iota", dtype=int64, shape=matrix, axis=1),
    )


def _triangle(op: Literal["tril", "triu"], x: TensorLike, k: Any) -> Tensor:
    made = quick_moved(triangle, x, k, int(op == "triu"))
    if made is not None:
        return made
    t = strong_tensor(x)
    if t.ndim < 2:
        raise InvalidArgumentError(
            f"wf.{op} needs a matrix or a stack of them, got shape {list(t.shape)}",
            location=caller_location(),
        )
    row, column = _grid(t.shape)
    shifted = _shifted(row, check_offset(op, k, "k"))
    kept = greater_equal(shifted, column) if op == "tril" else greater_equal(column, shifted)
    return where(kept, t, False if t.dtype is bool_ else 0)


def tril(x: TensorLike, /, *, k: Any = 0) -> Tensor:
    """The lower triangle of the matrices x, up to and with the k-th diagonal; zeros above. In a
    graph k may be a scalar tensor of integers.

    >>> wf.tril([[1, 2], [3, 4]])
    Tensor([[1, 0],
            [3, 4]], dtype=int64)
    >>> wf.tril(wf.ones((2, 3)), k=1)
    Tensor([[1., 1., 0.],
            [1., 1., 1.]], dtype=float32)
    """
    return _triangle("tril", x, k)


def triu(x: TensorLike, /, *, k: Any = 0) -> Tensor:
    """The upper triangle of the matrices x, from the k-th diagonal on; zeros below. In a graph k
    may be a scalar tensor of integers.

    >>> wf.triu([[1, 2], [3, 4]], k=1)
    Tensor([[0, 2],
            [0, 0]], dtype=int64)
    """
    return _triangle("triu", x, k)


def meshgrid(*arrays: TensorLike, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    """Coordinate grids of vectors: the i-th result varies along axis i only.

    indexing "ij": axes in the order of the arguments; "xy" (Cartesian): the first two exchanged.

    >>> x, y = wf.meshgrid([1, 2, 3], [10, 20])
    >>> y
    Tensor([[10, 10, 10],
            [20, 20, 20]], dtype=int64)
    >>> wf.meshgrid([1, 2, 3], [10, 20], indexing="ij")[1].shape
    (3, 2)
    """
    if indexing not in ("xy", "ij"):
        raise InvalidArgumentError(
            f"wf.meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}",
            location=caller_location(),
        )
    vectors = [strong_tensor(a) for a in arrays]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    if any(v.ndim > 1 for v in vectors):
        raise InvalidArgumentError("wf.meshgrid takes vectors", location=caller_location())
    sizes: list[Dim] = [1] * len(vectors)
    for place, vector in zip(order, vectors, strict=True):
        sizes[place] = vector.shape[0] if vector.ndim else 1
    out = []
    for place, vector in zip(order, vectors, strict=True):
        line = tuple(d if i == place else 1 for i, d in enumerate(sizes))
        out.append(expand(apply("reshape", vector, shape=line), tuple(sizes)))
    return tuple(out)


def one_hot(
    indices: TensorLike,
    depth: Any,
    on_value: TensorLike = 1,
    off_value: TensorLike = 0,
    axis: int = -1,
    dtype: object = None,
) -> Tensor:
    """A new axis of size `depth` with `on_value` at the index and `off_value` elsewhere (TF1's
    one_hot).

    An index outside 0 .. depth-1 gives `off_value` everywhere, a negative one too. Integer indices;
    depth an integer, in a graph a size or a scalar tensor of integers, too. Default dtype float32
    for values that are Python integers, else what the values promote to.

    >>> wf.one_hot([0, 2, 5], 3)
    Tensor([[1., 0., 0.],
            [0., 0., 1.],
            [0., 0., 0.]], dtype=float32)
    >>> wf.one_hot([1], 3, on_value=True, off_value=False)
    Tensor([[False,  True, False]], dtype=bool)
    """
    t = strong_tensor(indices)
    if not t.dtype.is_integer:
        raise InvalidArgumentError(
            f"wf.one_hot: indices must be integers, got {t.dtype.name}", location=caller_location()
        )
    (size,) = check_shape("one_hot", [depth])
    along = check_axis("one_hot", axis, t.ndim + 1)
    values = [v if is_scalar(v) else as_tensor(v) for v in (on_value, off_value)]
    default = DEFAULT_FLOAT
    if not all(type(v) is int for v in values):
        default = common_dtype("one_hot", values)
    target = check_dtype(dtype, default)
    shape = (*t.shape[:along], size, *t.shape[along:])
    spread = apply("reshape", cast(t, int64), shape=(*t.shape[:along], 1, *t.shape[along:]))
    number = apply("iota", dtype=int64, shape=shape, axis=along)
    hit = apply("equal", expand(spread, shape), number)
    on, off = (cast(v, target) for v in values)
    return where(hit, on, off)
