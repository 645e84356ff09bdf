"""Components of a queue's element: dtypes, shapes, names, whether arrays fit; saved elements.

What `state_dict` gave is checked when it is taken over: it may come from a file that others made or
cut."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, WeftError

Array = np.ndarray[Any, Any]
Element = tuple[Array, ...]
#: The sizes of a component; None for a size that varies. The shape None: not even the rank is known
ComponentShape = tuple[int | None, ...] | None


class Components:
    """The declared components of a queue or barrier. Raises InvalidArgumentError if `dtypes`,
    `shapes` and `names` do not fit together."""

    __slots__ = ("dtypes", "names", "owner", "shapes")

    def __init__(
        self,
        owner: str,
        dtypes: Sequence[DType],
        shapes: Sequence[ComponentShape] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.owner = owner
        self.dtypes = tuple(dtypes)
        self.shapes = (None,) * len(self.dtypes) if shapes is None else tuple(shapes)
        self.names = None if names is None else tuple(names)
        if not self.dtypes:
            raise InvalidArgumentError(f"{owner}: there must be at least one component")
        for what, given in (("shapes", self.shapes), ("names", self.names)):
            if given is not None and len(given) != len(self.dtypes):
                raise InvalidArgumentError(
                    f"{owner}: {len(self.dtypes)} dtypes, but {len(given)} {what}",
                    hint="give one for each component",
                )
        if self.names is not None and len(set(self.names)) != len(self.names):
            raise InvalidArgumentError(f"{owner}: the names {list(self.names)} are not distinct")

    def __len__(self) -> int:
        return len(self.dtypes)

    def __str__(self) -> str:
        """`queue<f32[3], i64[]>`."""
        return f"queue<{', '.join(map(self.type, range(len(self))))}>"

    def type(self, i: int) -> str:
        """The declared type of a component: `f32[3,?]`, or `f32[...]` where any shape will do."""
        shape = self.shapes[i]
        return f"{self.dtypes[i].short}{'[...]' if shape is None else format_shape(shape)}"

    def parts(self, ranks: Sequence[int | None]) -> tuple[str, ...]:
        """The attribute `parts` of the op in a graph: the types of the components, `f32[...2]`
        where any shape will do and elements have two axes in the graph (None: not known yet)."""
        return tuple(
            self.type(i) if shape is not None else f"{self.dtypes[i].short}[...{ranks[i] or 0}]"
            for i, shape in enumerate(self.shapes)
        )

    def label(self, i: int) -> str:
        """A component for messages: `component 1 'image' (f32[28,28])`."""
        name = "" if self.names is None else f" '{self.names[i]}'"
        return f"component {i}{name} ({self.type(i)})"

    def check(self, i: int, array: Array, operation: str, batch: bool = False) -> None:
        """TypeRuleError or ShapeError if `array` is no value of component i, or (batch) no stack of
        them along a first axis."""
        dtype = self.dtypes[i]
        if array.dtype != dtype.numpy:
            raise TypeRuleError(
                f"{self.owner}: {operation} got {describe_array(array)} for {self.label(i)}",
                hint=f"convert it with wf.astype(x, wf.{dtype.name})",
            )
        if batch and not array.ndim:
            raise ShapeError(
                f"{self.owner}: {operation} got {describe_array(array)} for {self.label(i)}",
                hint="the values need a first axis that counts the elements",
            )
        shape = self.shapes[i]
        given = array.shape[1:] if batch else array.shape
        if shape is not None and not fits(given, shape):
            wanted = format_shape((None, *shape) if batch else shape)
            raise ShapeError(
                f"{self.owner}: {operation} got {describe_array(array)} for {self.label(i)}, "
                f"which takes {wanted}",
                hint="the first axis of each value counts the elements"
                if batch
                else f"{operation}_many takes several elements, stacked along a first axis"
                if fits(given[1:], shape)
                else "give values of the declared shape",
            )

    def check_element(self, element: Element, operation: str) -> None:
        """`check` for all components of one element."""
        for i, array in enumerate(element):
            self.check(i, array, operation)


def describe_array(array: Array) -> str:
    """`f64[2,3]`."""
    return f"{as_dtype(array.dtype).short}{format_shape(array.shape)}"


def fits(shape: tuple[int, ...], declared: tuple[int | None, ...]) -> bool:
    """Whether a shape is one of the declared ones (None: any size)."""
    return len(shape) == len(declared) and all(
        d is None or d == n for n, d in zip(shape, declared, strict=True)
    )


def stack_arrays(arrays: Sequence[Array], dtype: DType, shape: ComponentShape) -> Array:
    """Arrays of one shape, stacked along a new first axis; `shape` is that of none of them."""
    if arrays:
        return np.stack(arrays)
    sizes = [0 if d is None else d for d in shape or ()]
    return np.empty((0, *sizes), dtype.numpy)


def pad_and_stack(arrays: Sequence[Array], dtype: DType, shape: ComponentShape) -> Array:
    """Arrays of one rank, filled with zeros (empty strings) up to the largest sizes, stacked."""
    if len({a.shape for a in arrays}) <= 1:
        return stack_arrays(arrays, dtype, shape)
    sizes = [max(s) for s in zip(*(a.shape for a in arrays), strict=True)]
    out = np.full((len(arrays), *sizes), b"" if dtype is string else 0, dtype.numpy)
    for row, array in zip(out, arrays, strict=True):
        row[tuple(slice(n) for n in array.shape)] = array
    return out


def save_arrays(arrays: Sequence[Array]) -> Array | list[Array]:
    """For a checkpoint: one stack if all have one shape, else a list."""
    if len({a.shape for a in arrays}) == 1:
        return np.stack(arrays)
    return [a.copy() for a in arrays]


def rows(stack: Array) -> list[Array]:
    """The arrays that lie along the first axis of a stack, copied."""
    return [stack[i, ...].copy() for i in range(len(stack))]


def load_arrays(saved: Array | Sequence[Array]) -> list[Array]:
    """The inverse of `save_arrays`: arrays that share no memory with `saved`."""
    if isinstance(saved, np.ndarray):
        return rows(saved)
    return [a.copy() for a in saved]


@contextmanager
def reading_state(owner: str) -> Iterator[None]:
    """InvalidArgumentError for what fails in the block because a part is missing or malformed."""
    try:
        yield
    except WeftError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{owner}: the state is not whole: {type(error).__name__}: {error}",
            hint="load what state_dict gave",
        ) from None


def saved_integer(x: Any, least: int = -(2**63)) -> int:
    """`x` as an int of 64 bits, at least `least`. TypeError or ValueError for others."""
    number = operator.index(x)
    if not least <= number < 2**64:
        raise ValueError(f"{number} is out of range")
    return number


def saved_arrays(saved: Any, dtype: DType) -> list[Array]:
    """What `save_arrays` gave for arrays of that dtype. TypeError for others."""
    arrays = load_arrays(saved)
    for array in arrays:
        check_saved(array, dtype)
    return arrays


def check_saved(array: Any, dtype: DType) -> None:
    """TypeError unless it is an array of the dtype, where of strings then of bytes."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype.numpy:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"an array of {dtype.name} was expected, not {kind}")
    if dtype is string and not all(isinstance(x, bytes) for x in array.flat):
        raise TypeError("strings are bytes")
