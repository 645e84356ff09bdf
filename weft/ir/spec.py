"""Op specifications: `OpSpec`, one row per op with its attributes, type rule and NumPy reference;
and helpers of type rules: typed access to attributes, checks of shapes, classes of dtypes.

`AttrSpec` is the schema of one compile-time attribute, `ConstArray` the immutable array that an
attribute may hold. A `DTypeClass` is a set of dtypes that an op accepts, with the words of its type
errors. References are NumPy functions; `quietly` calls them without NumPy's warnings, as inf, NaN
and wrapped integers are results, not errors."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np

from weft.ir import dtypes
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, same
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, suggest
from weft.ir.sizes import is_traced
from weft.ir.types import TensorType, Type

if TYPE_CHECKING:
    from weft.ir.graph import Block


class ConstArray:
    """An immutable, hashable NumPy array: the value of a `constant`. Equal if dtype, shape and
    bits are.
    """

    __slots__ = ("_hash", "array")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        copy = np.array(array, dtype=as_dtype(array.dtype).numpy, order="C", copy=True)
        copy.setflags(write=False)
        self.array = copy
        self._hash: int | None = None

    @property
    def dtype(self) -> DType:
        return as_dtype(self.array.dtype)

    def is_valid(self) -> bool:
        """Whether its elements are of its dtype: strings are `bytes`, and only they are objects."""
        if self.array.dtype != object:
            return True
        return all(isinstance(value, bytes) for value in self.array.flat)

    def _key(self) -> object:
        data = (
            tuple(self.array.ravel().tolist())
            if self.array.dtype == object
            else self.array.tobytes()
        )
        return (self.array.dtype.str, self.array.dtype.name, self.array.shape, data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstArray) and (self is other or self._key() == other._key())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def __repr__(self) -> str:
        return f"ConstArray({self.array!r})"


AttrKind = Literal["int", "float", "bool", "str", "dtype", "ints", "dim", "shape", "array", "strs"]
AttrValue = int | float | bool | str | DType | ConstArray | SymbolicDim | tuple[Any, ...] | None
Attrs = Mapping[str, AttrValue]

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class AttrSpec:
    """One attribute of an op: its kind, its default (REQUIRED: none), whether None is a legal
    value.
    """

    kind: AttrKind
    default: Any = REQUIRED
    optional: bool = False

    def accepts(self, value: AttrValue) -> bool:
        """Whether `value` is of this kind."""
        if value is None:
            return self.optional
        is_int = isinstance(value, int) and not isinstance(value, bool)
        match self.kind:
            case "int":
                return is_int
            case "dim":
                return is_int or isinstance(value, SymbolicDim)
            case "float":
                return isinstance(value, float)
            case "bool":
                return isinstance(value, bool)
            case "str":
                return isinstance(value, str)
            case "dtype":
                return isinstance(value, DType)
            case "array":
                return isinstance(value, ConstArray)
            case "strs":
                return isinstance(value, tuple) and all(isinstance(v, str) for v in value)
            case "ints":
                return isinstance(value, tuple) and all(_is_size(v) for v in value)
            case "shape":
                return isinstance(value, tuple) and all(
                    v is None or type(v) is SymbolicDim or _is_size(v) for v in value
                )


def _is_size(value: object) -> bool:
    """Whether `value` is an integer, of which its users may take what they like: no bool."""
    return type(value) is int or is_traced(value)


def complete_attrs(op: str, schema: Mapping[str, AttrSpec], given: Attrs) -> dict[str, AttrValue]:
    """`given` in schema order with defaults filled in. Raises TypeRuleError for a wrong set of
    attributes.
    """
    unknown = [k for k in given if k not in schema]
    if unknown:
        raise TypeRuleError(
            f"op '{op}' has no attribute '{unknown[0]}'{suggest(unknown[0], list(schema))}",
            hint=f"its attributes are: {', '.join(schema) or 'none'}",
        )
    out: dict[str, AttrValue] = {}
    for name, spec in schema.items():
        value = given.get(name, spec.default)
        if value is REQUIRED:
            raise TypeRuleError(f"op '{op}' needs the attribute '{name}' ({spec.kind})")
        if not spec.accepts(value):
            raise TypeRuleError(
                f"op '{op}': attribute '{name}' must be of kind {spec.kind}, got {value!r}"
            )
        if spec.kind in ("str", "strs") and value is not None:
            _check_text(op, name, value)
        out[name] = value
    return out


def _check_text(op: str, name: str, value: Any) -> None:
    """InvalidArgumentError for text that no bytes stand for, in UTF-8 or, for what is none, as
    `os.fsdecode` has them."""
    for text in (value,) if isinstance(value, str) else value:
        if not text.isascii():
            try:
                as_bytes(text)
            except UnicodeEncodeError as error:
                raise InvalidArgumentError(
                    f"op '{op}': {name}={text!r:.60} has at {error.start} one half of a surrogate "
                    "pair, which is no character",
                    hint="errors='replace' of str.encode or bytes.decode leaves none",
                ) from None


def as_bytes(text: str) -> bytes:
    """The bytes of an attribute's text; U+DC80 to U+DCFF are those of no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


Array = np.ndarray[Any, Any]
InferRule = Callable[[Sequence[Type], Attrs, Sequence["Block"]], Sequence[Type]]
Reference = Callable[[Sequence[Array], Attrs], Array | Sequence[Array]]

#: Every trait an op may have.
TRAITS = frozenset(
    {
        "elementwise",  # one output element depends on the same element of each operand
        "commutative",  # the two operands may be swapped
        "view",  # the result may share the operand's buffer (contiguous reshape)
        "reads_state",  # takes a ref and reads it
        "writes_state",  # takes a ref and writes it
        "no_dce",  # kept even if nobody uses its results
        "no_cse",  # two equal ops are two different things
        "no_fold",  # never evaluated at compile time
        "reduction",  # axes, keepdims; folds elements
        "host",  # carried out by Python, may wait; in native steps only `io.PYTHON_CALLS`
        "handle",  # names an object of the host that steps share; no operands
    }
)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row of an op table.

    arity: number of operands, or None for variadic.
    infer: (operand types, completed attributes, regions) -> result types; raises TypeRuleError or
        ShapeError.
    reference: (operand arrays, attributes) -> result array(s), the op's meaning in NumPy; None
        only for ops that the interpreter itself carries out (state, regions).
    scalar: for elementwise ops, the meaning on one element as an expression over the operand names
        a, b, c ("1 / (1 + exp(-a))"): documentation; a test holds it against the
        reference.
    """

    name: str
    arity: int | None
    infer: InferRule
    reference: Reference | None
    doc: str
    attrs: Mapping[str, AttrSpec] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    scalar: str | None = None
    regions: int = 0

    def __post_init__(self) -> None:
        unknown = self.traits - TRAITS
        if unknown:
            raise ValueError(f"op '{self.name}': unknown traits {sorted(unknown)}")


def tensors(op: str, types: Sequence[Type]) -> list[TensorType]:
    """The operand types, all of which must be tensors. Raises TypeRuleError."""
    out = [t for t in types if isinstance(t, TensorType)]
    if len(out) != len(types):
        listed = ", ".join(str(t) for t in types)
        raise TypeRuleError(f"op '{op}' takes tensors, got ({listed})")
    return out


P = ParamSpec("P")
R = TypeVar("R")


class Quiet(threading.local):
    """`run(function, *args)` in a context of this thread's own, in which NumPy warns of nothing.
    RuntimeError for a call from within such a call; `inside`: whether `quietly` is in one."""

    def __init__(self) -> None:
        self.inside = False
        self.run = contextvars.Context().run
        self.run(np.seterr, all="ignore")


QUIET = Quiet()


def quietly(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """`function(*args, **kwargs)` as in `np.errstate(all="ignore")`, which takes three times as
    long as a small sum. It sees no context variables: for functions of arrays that ask for none."""
    quiet = QUIET
    if not quiet.inside:
        quiet.inside = True
        try:
            return quiet.run(function, *args, **kwargs)
        except RuntimeError as error:  # from a finalizer that runs in `QUIET.run`
            if "cannot enter context" not in str(error):
                raise
        finally:
            quiet.inside = False
    return function(*args, **kwargs)  # from within such a call, where nothing warns


def int_attr(attrs: Attrs, name: str) -> int:
    """The attribute `name`, of kind "int"."""
    value = attrs[name]
    assert isinstance(value, int)
    return value


def ints_attr(attrs: Attrs, name: str) -> tuple[int, ...]:
    """The attribute `name`, of kind "ints"."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def strs_attr(attrs: Attrs, name: str) -> tuple[str, ...]:
    """The attribute `name`, of kind "strs"."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def dim_attr(attrs: Attrs, name: str) -> Dim:
    """The attribute `name`, of kind "dim": an int, or a symbolic dimension."""
    value = attrs[name]
    assert value is None or isinstance(value, int | SymbolicDim)
    return value


def shape_attr(attrs: Attrs, name: str) -> Shape:
    """The attribute `name`, of kind "shape"."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def dtype_attr(attrs: Attrs, name: str) -> DType:
    """The attribute `name`, of kind "dtype"."""
    value = attrs[name]
    assert isinstance(value, DType)
    return value


def static_attr(attrs: Attrs, name: str) -> tuple[int, ...]:
    """The attribute `name`, of kind "shape", as ints. ShapeError where a size is not known."""
    shape = shape_attr(attrs, name)
    out = tuple(d for d in shape if isinstance(d, int))
    if len(out) != len(shape):
        raise ShapeError(
            f"the attribute {name}={format_shape(shape)} has a dimension without a value",
            hint="run the graph with inputs whose shapes decide every dimension",
        )
    return out


def checked_axis(op: str, attrs: Attrs, rank: int) -> int:
    """The attribute `axis`, which must be in 0 .. rank-1: in the IR axes are normalised."""
    axis = int_attr(attrs, "axis")
    if not 0 <= axis < rank:
        raise ShapeError(
            f"op '{op}': axis {axis} is not an axis of an operand of rank {rank}",
            hint="axes are 0 to rank-1 in the IR; negative ones are for the frontend",
        )
    return axis


def known_dim(a: Dim, b: Dim) -> Dim:
    """Of two equal dimensions the one that says more: an int, else a symbol, else None."""
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a


def fits(a: Shape, b: Shape) -> bool:
    """False only if the shapes are known to differ."""
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def check_shape(op: str, what: str, got: Shape, wanted: Shape) -> None:
    """Raise ShapeError unless `got` fits `wanted`."""
    if not fits(got, wanted):
        raise ShapeError(
            f"op '{op}': {what} has shape {format_shape(got)}, needs {format_shape(wanted)}"
        )


def check_same_dtype(op: str, types: Sequence[TensorType]) -> DType:
    """The dtype that all `types` have. Raises TypeRuleError if they differ."""
    for other in types[1:]:
        if other.dtype is not types[0].dtype:
            listed = ", ".join(map(str, types))
            raise TypeRuleError(
                f"op '{op}' needs operands of one dtype, got ({listed})",
                hint="convert one of them with wf.astype",
            )
    return types[0].dtype


def add_dims(*dims: Dim) -> Dim:
    """The sum of dimensions; None if one is unknown."""
    total: int | SymbolicDim = 0
    for dim in dims:
        if dim is None:
            return None
        total = total + dim
    return total


@dataclass(frozen=True, slots=True)
class DTypeClass:
    """A set of dtypes with the words that an error message uses for it; `|` joins two."""

    words: str
    members: frozenset[DType]

    def __or__(self, other: DTypeClass) -> DTypeClass:
        return DTypeClass(f"{self.words} or {other.words}", self.members | other.members)

    def __contains__(self, dtype: DType) -> bool:
        return dtype in self.members


def _class(words: str, *kinds: str) -> DTypeClass:
    return DTypeClass(words, frozenset(d for d in dtypes.ALL if d.kind in kinds))


BOOL = _class("bool", "bool")
INTEGER = _class("integer", "int", "uint")
FLOATING = _class("real floating", "float")
COMPLEX = _class("complex", "complex")
INEXACT = FLOATING | COMPLEX
REAL = _class("real (integer or floating)", "int", "uint", "float")
NUMERIC = _class("numeric", "int", "uint", "float", "complex")
ORDERED = BOOL | REAL
ANY = DTypeClass("any", frozenset(dtypes.ALL))

# what a NumPy user means by arithmetic on bools
_BOOL_ADVICE = {
    "add": "wf.logical_or",
    "maximum": "wf.logical_or",
    "multiply": "wf.logical_and",
    "minimum": "wf.logical_and",
    "subtract": "wf.logical_xor",
    "negative": "wf.logical_not",
    "max": "wf.any",
    "prod": "wf.all",
    "min": "wf.all",
}


def require_dtype(op: str, given: TensorType, allowed: DTypeClass) -> None:
    """Raises TypeRuleError naming the op, the type and what to do, unless the dtype is allowed."""
    if given.dtype not in allowed:
        raise TypeRuleError(
            f"op '{op}' takes {allowed.words} operands, got {given}",
            hint=_dtype_hint(op, given.dtype, allowed),
        )


def _dtype_hint(op: str, dtype: DType, allowed: DTypeClass) -> str:
    if dtype.kind == "string":
        return "strings can be compared with == and != and chosen by wf.where, not computed with"
    if dtype.kind == "bool":
        advice = f"use {_BOOL_ADVICE[op]}, or " if op in _BOOL_ADVICE else ""
        target = "int64" if dtypes.int64 in allowed else "float32"
        return f"{advice}convert with wf.astype(x, wf.{target})"
    if dtypes.float32 in allowed:
        if dtype.is_complex:
            return "use wf.real, wf.imag or wf.abs to get a real number first"
        return "convert with wf.astype(x, wf.float32)"
    if dtypes.int64 in allowed:
        return "convert to an integer with wf.astype(x, wf.int64)"
    return "make bools by a comparison, such as x != 0"


def elementwise_shape(op: str, types: Sequence[TensorType]) -> Shape:
    """The common shape of operands that must all have the same one. Raises ShapeError."""
    shape = types[0].shape
    for t in types[1:]:
        if not fits(shape, t.shape):
            raise ShapeError(
                f"op '{op}' takes operands of one shape, got ({', '.join(map(str, types))})",
                hint="expand the smaller one with wf.broadcast_to",
            )
        shape = tuple(map(known_dim, shape, t.shape))
    return shape


def one_tensor(op: str, types: Sequence[Type], allowed: DTypeClass) -> TensorType:
    """The only operand type of a unary op, checked to be a tensor of an allowed dtype."""
    (given,) = tensors(op, types)
    require_dtype(op, given, allowed)
    return given


def widen(array: Array) -> Array:
    """float16 and bfloat16 as float32, in which weft computes them; other arrays as they are."""
    if array.dtype in (dtypes.float16.numpy, dtypes.bfloat16.numpy):
        return array.astype(np.float32)
    return array
