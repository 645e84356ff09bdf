"""Op specifications: `OpSpec`, one row per op with its attributes, type rule and NumPy reference.

`AttrSpec` is the schema of one compile-time attribute, `ConstArray` the immutable array that an
attribute may hold. References are NumPy functions; `quietly` calls them without NumPy's warnings,
as inf, NaN and wrapped integers are results, not errors."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import TypeRuleError, suggest
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
        out[name] = value
    return out


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
        "host",  # carried out by Python, may wait; never in a compiled step
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
