"""Functions on tensors of strings (wf.string: arbitrary bytes), with TensorFlow 1's names.

They run eagerly, in a `wf.Graph` and in compiled functions, on the host. str becomes
UTF-8. Errors, at the caller's line: TypeRuleError for numbers where strings are wanted, ShapeError
for shapes that do not fit, InvalidArgumentError for text that stands for no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.ops.dispatch import apply, apply_dynamic, fresh_sizes
from weft.frontend.ops.promotion import TensorLike, check_dtype, check_int, expand, strong_tensor
from weft.ir.dims import Shape
from weft.ir.dtypes import float32
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location


def string_join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Tensor:
    """The strings of `inputs`, tensors of one shape or without axes, joined element by element."""
    given = [strong_tensor(x) for x in inputs]
    if not given:
        raise InvalidArgumentError("wf.tf1.string_join needs an input", location=caller_location())
    shape: Shape = next((t.shape for t in given if t.ndim), ())
    return apply(
        "string_join", *(t if t.ndim else expand(t, shape) for t in given), separator=separator
    )


def as_string(
    input: TensorLike, precision: int = -1, scientific: bool = False, shortest: bool = False,
    width: int = -1, fill: str = "", name: str | None = None,
) -> Tensor:  # fmt: skip
    """Numbers and bools as text of the same shape: %d, and for floats %f (scientific: %e, shortest:
    %g) with `precision` digits, at least `width` characters wide, filled up with `fill`."""
    return apply(
        "as_string", strong_tensor(input), precision=check_int("as_string", precision, "precision"),
        scientific=bool(scientific), shortest=bool(shortest),
        width=check_int("as_string", width, "width"), fill=fill,
    )  # fmt: skip


def string_to_number(
    string_tensor: TensorLike, out_type: object = None, name: str | None = None
) -> Tensor:
    """The numbers that the strings stand for: float32 (the default), float64, int32 or int64."""
    dtype = check_dtype(out_type, float32)
    return apply("string_to_number", strong_tensor(string_tensor), dtype=dtype)


def string_to_hash_bucket(
    string_tensor: TensorLike, num_buckets: int, name: str | None = None
) -> Tensor:
    """A hash of each string in 0 .. num_buckets-1, int64: TensorFlow's of the same name
    (MurmurHash64A), the same in every process."""
    count = check_int("string_to_hash_bucket", num_buckets, "num_buckets")
    return apply("string_to_hash_bucket", strong_tensor(string_tensor), num_buckets=count)


def string_to_hash_bucket_fast(
    input: TensorLike, num_buckets: int, name: str | None = None
) -> Tensor:
    """As `string_to_hash_bucket`, by FarmHash's Fingerprint64, as TensorFlow's of that name."""
    count = check_int("string_to_hash_bucket_fast", num_buckets, "num_buckets")
    return apply("string_to_hash_bucket_fast", strong_tensor(input), num_buckets=count)


class SparseTensorValue(NamedTuple):
    """Some elements of an array: `indices` i64[n, rank], `values` [n], `dense_shape` i64[rank]."""

    indices: Tensor
    values: Tensor
    dense_shape: Tensor


def string_split(
    source: TensorLike, delimiter: str = " ", skip_empty: bool = True, name: str | None = None
) -> SparseTensorValue:
    """The words of each string of `source` (one axis): (row, number) and word of each.

    delimiter: each of its bytes ends a word; "" makes each byte one. skip_empty: leave empty words
    out. How many there are is known when the step runs.
    """
    made = apply_dynamic(
        "string_split", [strong_tensor(source)],
        {"delimiter": delimiter, "skip_empty": bool(skip_empty)},
    )  # fmt: skip
    return SparseTensorValue(*made)


def string_length(input: TensorLike, name: str | None = None) -> Tensor:
    """How many bytes each string has, int32."""
    return apply("string_length", strong_tensor(input))


def substr(input: TensorLike, pos: TensorLike, len: TensorLike, name: str | None = None) -> Tensor:
    """`len` bytes (or what there is) of each string from `pos` on, which counts from the end if it
    is negative; both are integers of the strings' shape, or one for all."""
    x = strong_tensor(input)
    places = [strong_tensor(as_tensor(p)) for p in (pos, len)]
    return apply("substr", x, *(p if p.ndim else expand(p, x.shape) for p in places))


def decode_raw(
    input_bytes: TensorLike, out_type: object, little_endian: bool = True,
    name: str | None = None, *, shape: Sequence[int | None] | None = None,
) -> Tensor:  # fmt: skip
    """The bytes of each string as numbers of `out_type`, of the strings' shape and `shape`.

    shape: of the numbers of one string; one size in it may be None (without shape: of its only
    axis), which the first string decides, in a wf.Graph when the step runs. InvalidArgumentError
    for a string of another length.
    """
    x, dtype = strong_tensor(input_bytes), check_dtype(out_type)
    given = (None,) if shape is None else tuple(shape)
    sizes = tuple(None if d is None else check_int("decode_raw", d, "shape") for d in given)
    if any(d is not None and d < 0 for d in sizes):
        raise ShapeError(
            f"wf.tf1.decode_raw: shape={list(sizes)} has a negative size",
            hint="None is a size that the string decides",
        )
    names: tuple[str, ...] = ()
    if None in sizes:
        names = fresh_sizes(current_trace(), "decode_raw", sizes.count(None))
    return apply(
        "decode_raw", x, out_type=dtype, shape=sizes, little_endian=bool(little_endian), sizes=names
    )
