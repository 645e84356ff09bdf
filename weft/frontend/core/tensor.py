"""`Tensor`: a concrete array, or the symbolic result of an op in a graph being built; and NumPy
arrays as tensors hold them: contiguous, native, of a dtype that weft has, owned.

Concrete tensors are immutable and behave like NumPy arrays; symbolic ones have a dtype and a shape
but no value, and say so, with the user's line and what to write instead, where Python or NumPy asks
for one. A tensor whose memory a call took (`donate=`) says which call that was.

Arrays of other libraries become NumPy arrays, and tensors become theirs, without copies, by DLPack
and `__array_interface__`
(https://data-apis.org/array-api/latest/design_topics/data_interchange.html)."""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weft.frontend.core.operators import (
    METHODS,
    Operators,
    array_function,
    array_ufunc,
    holds_arrays,
)
from weft.ir.device import is_local, named_device
from weft.ir.dims import Dim, Shape, SymbolicDim, product
from weft.ir.dlpack import CPU, Fields
from weft.ir.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    bool_,
    complex128,
    float64,
    int64,
    scalar_dtype,
    string,
)
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TracerError,
    TypeRuleError,
    WeftError,
)
from weft.ir.locations import Location, Locations, caller_location
from weft.ir.types import TensorType

if TYPE_CHECKING:
    from weft.frontend.core.trace import Trace
    from weft.ir.graph import Value


Array = np.ndarray[Any, Any]
#: The versions of the array API whose names `weft` has, with the meaning of the last.
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
#: Python's own arrays, which NumPy takes by their buffers; bytes are a string.
BUFFERS = (memoryview, bytearray, array.array)


def contiguous(array: Array) -> Array:
    """`array` itself, or a C-contiguous copy in native byte order: what a Tensor holds."""
    if array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def plain_array(x: Any) -> Array:
    """`x` as an array of class ndarray. TypeRuleError, at the user's line, for a masked array."""
    if hasattr(x, "mask") and isinstance(x, np.ma.MaskedArray):
        raise TypeRuleError(
            "a masked array is not a tensor: its mask would be lost",
            hint="use x.filled(value), or pass x.data and x.mask as two tensors",
            location=caller_location(),
        )
    return np.asarray(x)


def owned_array(array: Array) -> Array:
    """A copy of `array` that a tensor may hold. TypeRuleError for a dtype that weft does not
    have."""
    try:
        dtype = as_dtype(array.dtype)
    except WeftError as error:
        raise error.at(caller_location()) from None
    if dtype is string:
        return string_array(array)
    return np.array(array, dtype=dtype.numpy, order="C", copy=True)


def string_array(array: Array) -> Array:
    """An object array of bytes; str elements are encoded as UTF-8, names of files of other bytes
    (`os.fsdecode`) as those. TypeRuleError for other elements."""
    out = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        item: Any = array[index]
        if isinstance(item, str):
            item = _encoded(item)
        if not isinstance(item, bytes):
            raise TypeRuleError(
                f"an array of Python objects that holds a {type(item).__name__} is not a tensor",
                hint="object arrays hold str or bytes",
                location=caller_location(),
            )
        out[index] = bytes(item)
    return out


def python_array(x: list[Any] | tuple[Any, ...], wanted: DType | None) -> Array:
    """A nested list of Python scalars as an array, of `wanted` if that is an integer dtype.

    InvalidArgumentError for a ragged list and for integers that do not fit (int64 by default).
    """
    if isinstance(first_leaf(x), (str, bytes)):  # NumPy would read bytes as ASCII beside a str
        return np.asarray(x, object)
    try:
        array = np.asarray(x) if x else np.zeros((0,))
        if _may_be_integers(array) and _all_integers(x):
            target = int64 if wanted is None else wanted
            return np.asarray(x, target.numpy if target.is_integer else np.float64)
    except OverflowError as error:
        fits = (wanted or int64).name
        raise InvalidArgumentError(
            f"this nested list is not an array of {fits}: {error}",
            hint=f"use a dtype that holds all of the integers; {fits} does not",
            location=caller_location(),
        ) from None
    except ValueError as error:
        raise InvalidArgumentError(
            f"this nested list is not an array: {error}",
            hint="all rows must have the same length",
            location=caller_location(),
        ) from None
    return array


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise TypeRuleError(
            f"{text!r:.60} is no text: {error.reason}",
            hint="give bytes, which may be anything",
            location=caller_location(),
        ) from None


def _may_be_integers(array: Array) -> bool:
    """NumPy reads integers beyond int64 as unsigned, as floats (mixed signs) or as objects."""
    kind = array.dtype.kind
    return kind in "iuO" or (kind == "f" and bool((np.abs(array) >= 2.0**63).any()))


def _all_integers(x: object) -> bool:
    if isinstance(x, (list, tuple)):
        return bool(x) and all(map(_all_integers, x))
    return isinstance(x, int)


def first_leaf(x: object) -> object:
    """The first element that is no list, of nested lists."""
    while isinstance(x, (list, tuple)) and x:
        x = x[0]
    return x


def is_foreign(x: object) -> bool:
    """Whether `x` is an array of another library that shows its memory."""
    return hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__")


class NotShown(TypeRuleError, BufferError):
    """An array that its library does not show through DLPack: the array API's BufferError."""


class NoDLPack(TypeRuleError, AttributeError):
    """What has no `__dlpack__`: the array API's AttributeError."""


def foreign_array(x: Any) -> Array:
    """The memory of `x` as an array, not copied. NotShown for what has no DLPack, is on another
    device or has a dtype that NumPy does not have."""
    kind = f"{type(x).__module__.split('.')[0]} {type(x).__name__}"
    if not hasattr(x, "__dlpack__"):
        return np.asarray(x)
    device = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (CPU, 0)
    if device[0] != CPU:
        raise NotShown(
            f"this {kind} is on another device (DLPack device {tuple(map(int, device))})",
            hint="copy it to the CPU first",
            location=caller_location(),
        )
    try:
        if str(getattr(x, "dtype", "")).endswith("bfloat16"):
            return _bfloat16_array(x)
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise NotShown(
            f"this {kind} cannot be taken through DLPack: {error}",
            hint="detach it if it is part of a gradient; convert other dtypes first",
            location=caller_location(),
        ) from None


def _bfloat16_array(x: Any) -> Array:
    """NumPy's DLPack has no bfloat16: PyTorch shows the bits as int16, JAX gives ml_dtypes'."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return np.from_dlpack(x.view(torch.int16)).view(bfloat16.numpy)
    return np.asarray(x)


def export(data: Array, options: dict[str, Any]) -> Any:
    """The capsule of a tensor's array.

    Consumers that know DLPack 1.0 (max_version) are told that it is read-only; for older ones there
    is no such flag, and they must not write to it.
    """
    version = options.get("max_version")
    if version is not None and version[0] >= 1:
        data = data.view()
        data.setflags(write=False)
    if data.dtype != bfloat16.numpy:
        return data.__dlpack__(**options)
    capsule = data.view(np.int16).__dlpack__(**options)
    # nobody else has the capsule yet; NumPy's DLPack has no bfloat16
    Fields(capsule).declare(bfloat=True)
    return capsule


class Donated:
    """A mark in place of a tensor's trace, once a call took its memory: which function, called
    where."""

    closed = True
    fate = "its memory holds a result now"

    def __init__(self, function: str, location: Locations) -> None:
        self.function = function
        self.location = location

    def error(self) -> FailedPreconditionError:
        """What every use of the tensor raises."""
        where = f" at {self.location[0].describe()}" if self.location else ""
        return FailedPreconditionError(
            f"this tensor was donated to '{self.function}'{where}: {self.fate}",
            hint="use the result, or leave the argument out of donate=",
            location=caller_location(),
        )


class DonatedMemory(Donated):
    """A mark in place of the memory of a `wf.DeviceArray` that a call took: each use raises."""

    fate = "its memory holds a result now, or went back to the device"

    def __getattr__(self, name: str) -> NoReturn:
        raise self.error()


def donated(trace: object) -> Donated | None:
    """What stands in place of a tensor's trace if it was donated."""
    return trace if isinstance(trace, Donated) else None


def refuse_unused(function: str, unused: Sequence[tuple[str, str]]) -> None:
    """InvalidArgumentError for donated arguments (path, type) that no result can take over."""
    if not unused:
        return
    which = ", ".join(f"'{path}' ({kind})" for path, kind in unused)
    raise InvalidArgumentError(
        f"'{function}' cannot use the donated {which}: no result of that type can be computed in "
        "its memory",
        hint="a result of its dtype and shape is needed that is elementwise in it, or computed "
        "after its last use; leave it out of donate= otherwise",
        location=caller_location(),
    )


class Tensor(Operators):
    """An n-dimensional array of one dtype; `wf.asarray` makes concrete ones.

    `weak` marks a Python scalar that became a tensor: in an op it takes the dtype of what it meets.

    >>> x = wf.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> x.shape, x.dtype, float(x[1, 0])
    ((2, 2), weft.float32, 3.0)
    >>> x.at[0, 0].set(9.0) @ x.T  # x itself never changes
    Tensor([[13., 35.],
            [11., 25.]], dtype=float32)
    >>> np.asarray(x).sum()
    np.float32(10.0)
    """

    __slots__ = ("_data", "_trace", "_value", "weak", "__weakref__")

    # a concrete tensor holds a C-contiguous array in native byte order that nobody else writes to
    def __init__(
        self,
        data: Array | None,
        value: Value | None = None,
        trace: Trace | None = None,
        weak: bool = False,
    ) -> None:
        self._data = data
        self._value = value
        self._trace = trace
        self.weak = weak

    # ------------------------------------------------------------------------------- what is known
    @property
    def _type(self) -> TensorType:
        if self._data is not None:
            return TensorType(as_dtype(self._data.dtype), self._data.shape)
        if gone := donated(self._trace):
            raise gone.error()
        assert self._value is not None
        assert isinstance(self._value.type, TensorType)
        return self._value.type

    @property
    def dtype(self) -> DType:
        """The element type."""
        return as_dtype(self._data.dtype) if self._data is not None else self._type.dtype

    @property
    def shape(self) -> Shape:
        """The sizes of the axes: ints; in a graph also symbolic dimensions or None (unknown)."""
        return self._data.shape if self._data is not None else self._type.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """The number of elements (symbolic or None where a size is)."""
        return product(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements. ValueError where a size is not known."""
        return self._type.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def device(self) -> str:
        """Where the tensor is: "cpu". In a graph, where `wf.device` puts it ("": anywhere)."""
        op = None if self._value is None else self._value.op
        anywhere = self._trace is not None and self._trace.root().kind == "graph"
        return (op.device if op is not None else "") or ("" if anywhere else "cpu")

    def to_device(self, device: str, /, *, stream: object = None) -> Tensor:
        """This tensor, for "cpu"; for a GPU of this process a copy there (`wf.to_device`). Where a
        graph is built this tensor alone: `wf.device` is for graphs."""
        if stream is None and is_local(named_device(device)):
            return self
        if stream is not None or self._data is None:
            raise InvalidArgumentError(
                f"there is no device {device!r} with stream {stream!r}",
                hint='the device of such a tensor is "cpu"; in a graph wf.device says others',
                location=caller_location(),
            )
        # who has no GPU does not wait for this module when weft is imported
        from weft.frontend.core.device_array import to_device

        moved: Tensor = to_device(self, device)
        return moved

    # ------------------------------------------------------------------------------- in a graph
    @property
    def graph(self) -> Any:
        """The `wf.Graph` that it is in. AttributeError elsewhere."""
        return self._graph("graph")

    @property
    def op(self) -> Any:
        """The op of a `wf.Graph` that makes it, which has a name, a type and inputs. AttributeError
        elsewhere, and in the body of a branch or loop."""
        graph, value = self._graph("op", top=True), self._value
        assert value is not None
        graph.operation_names()
        return graph.operation(value if value.op is None else value.op)

    @property
    def name(self) -> str:
        """In a `wf.Graph`: the name of its op and its number there, as `session.run` takes it:
        "x:0". AttributeError elsewhere."""
        graph = self._graph("name", top=True)
        return graph.operation_names().of_tensor(self._value)  # type: ignore[no-any-return]

    def consumers(self) -> list[Any]:
        """The ops of the `wf.Graph` that take it, so far. AttributeError elsewhere."""
        graph = self._graph("consumers", top=True)
        return [graph.operation(op) for op in graph.operation_names().users(self._value)]

    def _graph(self, what: str, top: bool = False) -> Any:
        """The graph. top: only if it is not in a body."""
        trace = None if self._data is not None or donated(self._trace) else self._trace
        owner = None if trace is None else (trace if top else trace.root()).owner
        if owner is None:
            where = "a wf.Graph" if not top else "a wf.Graph, outside of branches and loops"
            raise AttributeError(
                f"'Tensor' object has no attribute '{what}': only tensors of {where} have it\n"
                "  hint: f.trace(x) of a compiled function is its graph"
            )
        return owner

    def describe(self) -> str:
        """Type and origin, for messages: `f32[2,3] (made at model.py:7:4: h = x @ w)`."""
        places = self._locations()
        made = f" (made at {places[0].describe()})" if places else ""
        return f"{self._type}{made}"

    def _locations(self) -> tuple[Location, ...]:
        if self._trace is None or self._value is None:
            return ()
        if self._value.op is not None:
            return self._value.op.locations
        return self._trace.arg_locations.get(self._value, self._trace.location)

    def __repr__(self) -> str:
        if gone := donated(self._trace):
            return f"<tensor donated to '{gone.function}'>"
        if self._data is None:
            return f"<symbolic Tensor {self.describe()}>"
        body = np.array2string(self._data, separator=", ", prefix="Tensor(")
        return f"Tensor({body}, dtype={self.dtype.name}{', weak' if self.weak else ''})"

    # ------------------------------------------------------------------------------------- values
    def _concrete(self, what: str, hint: str) -> Array:
        """The array. TracerError, at the user's line, for a symbolic tensor."""
        if self._data is not None:
            return self._data
        problem = (
            f"{what} needs a value, but the tensor {self.describe()} is symbolic: "
            "it has none until the graph runs"
        )
        if self._trace is not None:
            hint = self._trace.value_hint(hint)
            name = (
                "" if self._value is None or self.ndim else self._trace.argument_name(self._value)
            )
            if name and not hint.startswith("return"):
                static = f"wf.compile(static_argnames={name!r})"
                hint = f"{static} makes the argument a Python value; {hint}"
        raise TracerError(problem, hint=hint, location=caller_location())

    def _scalar(self, what: str, hint: str) -> Any:
        data = self._concrete(what, hint)
        if data.ndim:
            raise InvalidArgumentError(
                f"{what} takes a tensor without axes, but this one has shape {list(data.shape)}",
                hint="reduce it first (wf.any, wf.all, wf.sum) or take one element",
                location=caller_location(),
            )
        return data.item()

    def numpy(self) -> Array:
        """The value as a read-only view. TracerError for a symbolic tensor."""
        view = self._concrete(
            "tensor.numpy()", "return the tensor from the compiled function first"
        ).view()
        view.setflags(write=False)
        return view

    def item(self) -> Any:
        """The one element as a Python scalar."""
        data = self._concrete("tensor.item()", "return the tensor from the compiled function first")
        if data.size != 1:
            raise InvalidArgumentError(
                f"item() takes a tensor of one element, this one has shape {list(data.shape)}",
                location=caller_location(),
            )
        return data.item()

    def tolist(self) -> Any:
        """The elements as nested lists."""
        return self._concrete(
            "tensor.tolist()", "return the tensor from the compiled function first"
        ).tolist()

    def __bool__(self) -> bool:
        hint = f"use wf.where(condition, x, y) in its place; {NO_CONTROL_FLOW}"
        return bool(self._scalar("a Python condition (bool(tensor))", hint))

    def __int__(self) -> int:
        hint = "use the tensor as it is; wf.astype(x, wf.int64) rounds toward zero"
        return int(self._scalar("int(tensor)", hint))

    def __float__(self) -> float:
        hint = "use the tensor as it is; wf.astype converts it to another dtype"
        return float(self._scalar("float(tensor)", hint))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex(tensor)", "use wf.astype(x, wf.complex128)"))

    def __index__(self) -> int:
        hint = "use wf.take(x, i) to index with a tensor"
        value = self._scalar("a Python index or size", hint)
        if not self.dtype.is_integer:
            raise TypeRuleError(
                f"only integer tensors can be an index or a size, this one is {self.dtype.name}",
                hint="convert it with wf.astype(x, wf.int64)",
                location=caller_location(),
            )
        return int(value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeRuleError("len() of a tensor without axes", location=caller_location())
        size = self.shape[0]
        if not isinstance(size, int):
            raise TracerError(
                f"len(tensor): the first size of the tensor {self.describe()} is not known yet",
                hint="use wf.shape(x)[0], the size as a tensor",
                location=caller_location(),
            )
        return size

    def __iter__(self) -> Iterator[Tensor]:
        hint = f"use wf.unstack(x) for a list of known length; {NO_CONTROL_FLOW}"
        data = self._concrete("iterating over a tensor", hint)
        if not data.ndim:
            raise TypeRuleError(
                "a tensor without axes cannot be iterated over", location=caller_location()
            )
        return (Tensor(contiguous(np.asarray(row, dtype=data.dtype))) for row in data)

    def __contains__(self, item: object) -> bool:
        data = self._concrete("`item in tensor`", "use wf.any(x == item)")
        return bool(
            np.any(data == as_tensor(item)._concrete("`item in tensor`", "use wf.any(x == item)"))
        )

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        return format(
            self._scalar(
                f"formatting a tensor with {spec!r}",
                f'wf.print("{{x:{spec}}}", x=x) does it in the step; print it after the step',
            ),
            spec,
        )

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: object) -> Tensor:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (
            Tensor,
            (self._concrete("pickling a tensor", "return it first"), None, None, self.weak),
        )

    # ------------------------------------------------------------------------------------- others
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        data = self._concrete("converting a tensor to a NumPy array", NUMPY_HINT)
        if (dtype is None or data.dtype == dtype) and not copy:
            return self.numpy()
        return np.array(data, dtype=dtype, copy=copy)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # an address has no owner; who keeps the dict (NumPy does) is seen by donate=
        return {**self._interface("__array_interface__"), "owner": self._data}

    @property
    def __array_struct__(self) -> Any:  # NumPy asks this first: it holds our array, as donate= sees
        return self._interface("__array_struct__")

    def _interface(self, name: str) -> Any:
        self._concrete("converting a tensor to a NumPy array", NUMPY_HINT)
        if self.dtype in (bfloat16, string):  # it cannot name them; NumPy then asks __array__
            raise AttributeError(name)
        return getattr(self.numpy(), name)

    __array_ufunc__ = array_ufunc
    __array_function__ = array_function

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of the memory (copy=True: of a copy), read-only to who knows DLPack 1.0.

        BufferError for another device than the CPU, (1, 0), and for strings; RuntimeError for a
        stream, which the CPU does not have.
        """
        data = self._concrete("exporting a tensor through DLPack", NUMPY_HINT)
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
        return export(data, {**options, "copy": copy})

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        if api_version is not None and api_version not in API_VERSIONS:
            raise InvalidArgumentError(
                f"weft has no namespace of version {api_version!r} of the array API",
                hint=f"it has {', '.join(API_VERSIONS)}, all in one",
                location=caller_location(),
            )
        return sys.modules["weft"]


NUMPY_HINT = (
    "use the function of the same name in weft (wf.sin for np.sin; to index a NumPy array with a "
    "tensor, wf.asarray(array)[i]), or return the tensor first"
)
NO_CONTROL_FLOW = (
    "wf.cond and wf.while_loop branch and loop on tensors, and with wf.compile(autograph=True) "
    "Python's `if`, `while` and `for` do"
)


def as_tensor(x: Any, dtype: object = None) -> Tensor:
    """`x` as a tensor, of `dtype` if that is given.

    Python ints and floats become weak 0-d tensors (int64, float64), lists get the default dtypes
    (float32, int64), NumPy arrays keep their dtype and are copied, variables are read. Raises
    TypeRuleError for what is no array, InvalidArgumentError for a ragged list, both at the user's
    line.
    """
    try:
        wanted = None if dtype is None else as_dtype(dtype)
    except WeftError as error:
        raise error.at(caller_location()) from None
    t = x if isinstance(x, Tensor) else _convert(x, wanted)
    if wanted is None or (t.dtype is wanted and not t.weak):
        return t
    if t.dtype.is_complex and not wanted.is_complex:
        raise TypeRuleError(
            f"a complex number cannot be converted to {wanted.name}",
            hint="take wf.real(x), wf.imag(x) or wf.abs(x)",
            location=caller_location(),
        )
    if t._data is not None:
        return Tensor(contiguous(t._data.astype(wanted.numpy)))
    return METHODS["astype"](t, wanted)


def _convert(x: Any, wanted: DType | None) -> Tensor:
    if isinstance(x, Operators):
        return x.read()  # type: ignore[attr-defined, no-any-return]  # a Variable
    if isinstance(x, (np.ndarray, np.generic)):
        return Tensor(owned_array(plain_array(x)))
    if isinstance(x, (bool, int, float, complex)):
        return _scalar(x, wanted)
    if isinstance(x, SymbolicDim):
        return SymbolicDim.as_operand(x)  # type: ignore[no-any-return]
    if isinstance(x, (str, bytes)):
        return Tensor(string_array(np.asarray(x, dtype=object)))
    if isinstance(x, (list, tuple)):
        return _sequence(x, wanted)
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__") or isinstance(x, BUFFERS):
        return Tensor(owned_array(np.asarray(x)))
    raise TypeRuleError(
        f"a {type(x).__name__} is not a tensor: {x!r:.80}",
        hint="tensors are made from numbers, NumPy arrays, nested lists, wf.Tensor and wf.Variable",
        location=caller_location(),
    )


def _scalar(x: bool | int | float | complex, wanted: DType | None) -> Tensor:
    if isinstance(x, bool):
        return Tensor(np.asarray(x, bool_.numpy))
    wide = int64 if isinstance(x, int) else float64 if isinstance(x, float) else complex128
    target = wanted if wanted is not None and wanted.is_integer else wide
    try:
        return Tensor(np.asarray(x, target.numpy), weak=wanted is None)
    except (OverflowError, TypeError, ValueError):
        pass
    if isinstance(x, int):
        raise InvalidArgumentError(
            f"the Python integer {x} does not fit {target.name}",
            hint="pass it as a NumPy scalar of a wider type, or as a float",
            location=caller_location(),
        )
    return Tensor(np.asarray(x).astype(target.numpy), weak=wanted is None)


def _sequence(x: list[Any] | tuple[Any, ...], wanted: DType | None) -> Tensor:
    """A nested list: joined by `stack` if it holds tensors or arrays, else one array of Python
    scalars."""
    if holds_arrays(x):
        return METHODS["stack"](list(x))
    array = python_array(x, wanted)
    if array.dtype.kind in "USO" and isinstance(first_leaf(x), (str, bytes)):
        return Tensor(string_array(array))
    if array.dtype.kind not in "biufc":
        raise TypeRuleError(
            f"a list of {type(first_leaf(x)).__name__} is not a tensor: {x!r:.80}",
            hint="tensors hold numbers, booleans or strings",
            location=caller_location(),
        )
    default = {"b": bool_, "f": scalar_dtype(0.0), "c": scalar_dtype(0j)}.get(
        array.dtype.kind, int64
    )
    target = wanted or default
    with np.errstate(over="ignore"):
        return Tensor(contiguous(array.astype(target.numpy)))
