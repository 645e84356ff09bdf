"""Types of SSA values: tensors, references to state, handles of host objects, stacks, and tokens
that order effects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, product, substitute_dim
from weft.ir.dtypes import DType, as_dtype


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense array: `f32[b,784]`. `shape` holds ints, symbolic dims, or None for unknown; a dtype
    may be given as `wf.asarray` takes it.

    >>> print(wf.TensorType(wf.float32, (None, 784)), wf.TensorType(wf.int64))
    f32[?,784] i64[]
    >>> half = wf.compile(lambda x: x / 2)
    >>> half.trace(wf.TensorType(wf.float32, (8, 3))).results[0].type
    TensorType(dtype=weft.float32, shape=(8, 3))
    """

    dtype: DType
    shape: Shape = ()

    def __post_init__(self) -> None:
        if type(self.dtype) is not DType or type(self.shape) is not tuple:
            given: Any = self.shape
            dims = (given,) if isinstance(given, int) else tuple(given)
            object.__setattr__(self, "dtype", as_dtype(self.dtype))
            object.__setattr__(self, "shape", dims)

    def __str__(self) -> str:
        return f"{self.dtype.short}{format_shape(self.shape)}"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements: 1 for a scalar, None if a dim is unknown."""
        return product(self.shape)

    @property
    def is_static(self) -> bool:
        """True if every dimension is an int."""
        for d in self.shape:  # noqa: SIM110 - asked some hundred thousand times for a graph
            if not isinstance(d, int):
                return False
        return True

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints; ValueError if a dimension is not known."""
        if not self.is_static:
            raise ValueError(f"{self} has no static shape")
        return self.shape  # type: ignore[return-value]

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether an array may have the shape: its rank, and each size that is an int."""
        if len(shape) != len(self.shape):
            return False
        for n, d in zip(shape, self.shape, strict=True):
            if isinstance(d, int) and n != d:
                return False
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous array of this (static) type."""
        total = self.dtype.itemsize
        for d in self.static_shape:
            total *= d
        return total


@dataclass(frozen=True, slots=True)
class RefType:
    """A handle to mutable state that holds a tensor: `ref<f32[784,100]>`."""

    tensor: TensorType

    def __str__(self) -> str:
        return f"ref<{self.tensor}>"


#: What handles there are: objects of the host that ops share.
HANDLE_KINDS = (
    "queue", "table", "barrier", "accumulator", "sparse_accumulator", "host_stack", "reader",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HandleType:
    """A handle to an object of the host: `queue<f32[3], i64[]>` holds elements of two tensors."""

    kind: str
    parts: tuple[TensorType, ...]

    def __str__(self) -> str:
        return f"{self.kind}<{', '.join(map(str, self.parts))}>"


@dataclass(frozen=True, slots=True)
class StackType:
    """A stack of values of one type: `stack<f32[3]>`. A value like any other: pushing to it makes
    another one. Below its last element it holds zeros without end."""

    element: TensorType | StackType

    def __str__(self) -> str:
        return f"stack<{self.element}>"

    @property
    def tensor(self) -> TensorType:
        """What the stacks of the innermost level hold."""
        return self.element.tensor if isinstance(self.element, StackType) else self.element

    @property
    def depth(self) -> int:
        """1 for a stack of tensors, 2 for a stack of those."""
        return self.element.depth + 1 if isinstance(self.element, StackType) else 1


@dataclass(frozen=True, slots=True)
class TokenType:
    """The result of an effect that yields no data; used as a control operand."""

    def __str__(self) -> str:
        return "token"


Type = TensorType | RefType | HandleType | StackType | TokenType
TOKEN = TokenType()


def tensor_type(dtype: DType, *shape: int | str | SymbolicDim | None) -> TensorType:
    """`tensor_type(float32, "b", 784)` is `f32[b,784]`."""
    return TensorType(
        dtype, tuple(SymbolicDim.symbol(d) if isinstance(d, str) else d for d in shape)
    )


def substitute_type(t: Type, sizes: Mapping[str, int]) -> Type:
    """`t` with symbolic dims replaced by sizes."""
    if isinstance(t, TensorType):
        return TensorType(t.dtype, tuple(substitute_dim(d, sizes) for d in t.shape))
    if isinstance(t, StackType):
        element = substitute_type(t.element, sizes)
        assert isinstance(element, TensorType | StackType)
        return StackType(element)
    if isinstance(t, RefType):
        return RefType(
            TensorType(t.tensor.dtype, tuple(substitute_dim(d, sizes) for d in t.tensor.shape))
        )
    return t
