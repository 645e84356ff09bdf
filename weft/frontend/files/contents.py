"""Whole files, images and records as tensors, eagerly and in a `wf.Graph`, with TensorFlow 1's
names. In compiled functions they are UnsupportedErrors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.data.features import FixedLenFeature, VarLenFeature, part_of
from weft.frontend.files.calls import host_effect, host_op, located, string_tensor
from weft.frontend.ops.arguments import check_int
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Effect
from weft.ir.dtypes import DType, as_dtype, uint8
from weft.ir.errors import InvalidArgumentError, UnsupportedError


@located
def read_file(filename: Any, name: str | None = None) -> Tensor:
    """All bytes of a file, a string without axes. NotFoundError if there is none."""
    return host_op("read_file", [_name("wf.read_file", filename)])[0]


@located
def write_file(filename: Any, contents: Any, name: str | None = None) -> Effect:
    """Write a string to a file, in place of one that is there; makes its folder. An effect.

    FailedPreconditionError with what the system says if it cannot.
    """
    contents = string_tensor("wf.write_file", contents, scalar=True)
    return host_effect("write_file", [_name("wf.write_file", filename), contents], name)


@located
def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """The names of the files that fit a pattern, or one of several (`*`, `?`, `[...]`), sorted: a
    tensor of strings with one axis."""
    return host_op("matching_files", [_name("wf.matching_files", pattern, scalar=False)], 1)[0]


def _name(what: str, x: Any, *, scalar: bool = True) -> Tensor:
    if isinstance(x, os.PathLike):
        x = os.fsencode(x)
    return string_tensor(what, x, scalar=scalar)


# ------------------------------------------------------------------------------------------- images
@located
def decode_image(
    contents: Any, channels: int | None = None, dtype: Any = uint8, name: str | None = None, *,
    shape: Sequence[int | None] | None = None,
) -> Tensor:  # fmt: skip
    """A PNG, JPEG or other image as u8[height, width, channels], by Pillow.

    contents: a string without axes. channels: 0 or None (as it has them), 1, 2, 3, 4. shape:
    (height, width, channels) that the image must have, None for any; in a `wf.Graph` what is not
    given is known when the step runs. InvalidArgumentError for an image of another size,
    DataLossError for what is no whole image, UnsupportedError for another dtype than uint8.
    """
    if as_dtype(dtype) is not uint8:
        raise UnsupportedError(f"images are decoded as uint8, not as {as_dtype(dtype).name}")
    given = string_tensor("wf.decode_image", contents, scalar=True)
    sizes = [None, None, None] if shape is None else list(shape)
    if len(sizes) != 3:
        raise InvalidArgumentError(
            f"wf.decode_image: shape={shape!r} is not height, width, channels"
        )
    wanted = check_int("decode_image", channels or 0, "channels")
    if sizes[2] is not None and wanted not in (0, sizes[2]):
        raise InvalidArgumentError(f"wf.decode_image: channels={wanted}, but shape={shape!r}")
    height, width, last = (
        -1 if n is None else check_int("decode_image", n, "shape") for n in sizes
    )
    last = wanted if last < 0 else last
    return host_op(
        "decode_image", [given], (height < 0) + (width < 0) + (not last),
        height=height, width=width, channels=last,
    )[0]  # fmt: skip


decode_png = decode_jpeg = decode_image


# ------------------------------------------------------------------------------------------ records
@located
def decode_csv(
    records: Any, record_defaults: Sequence[Any], field_delim: str = ",",
    use_quote_delim: bool = True, name: str | None = None, na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:  # fmt: skip
    """The fields of CSV records (RFC 4180), a tensor of the records' shape for each column.

    records: strings. record_defaults: for each column a value ([0], 0), which an empty field or
    `na_value` stands for and which says the dtype, or a dtype alone: there an empty field is an
    error. float32, float64, int32, int64 or string; numbers of Python are float32 and int32, as in
    TensorFlow. select_cols: the columns to give, rising. InvalidArgumentError names record and
    field.
    """
    given = string_tensor("wf.decode_csv", records)
    defaults = [_default(d) for d in record_defaults]
    columns = tuple(check_int("decode_csv", c, "select_cols") for c in select_cols or ())
    return host_op(
        "decode_csv", [given, *defaults], delimiter=field_delim,
        quote='"' if use_quote_delim else "", na_value=na_value, columns=columns,
    )  # fmt: skip


def _default(given: Any) -> Tensor:
    if isinstance(given, (DType, type, np.dtype)):
        return Tensor(np.empty(0, as_dtype(given).numpy))
    if isinstance(given, Tensor):
        return given
    typed = isinstance(given, (np.ndarray, np.generic))
    t = as_tensor(given)
    if not typed and t.dtype.kind in ("int", "float"):  # TensorFlow's types of Python's numbers
        return Tensor(np.asarray(t.numpy(), np.int32 if t.dtype.is_integer else np.float32))
    return t


@located
def parse_example(
    serialized: Any, features: Mapping[str, FixedLenFeature | VarLenFeature],
    name: str | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Features of serialized tf.train.Examples: for each name a tensor of the shape of `serialized`
    (strings of any shape) and of the feature's shape.

    Of one example, a VarLenFeature is a tensor with one axis; in a `wf.Graph` its size is known
    when the step runs. InvalidArgumentError names example and feature, DataLossError what is no
    Example.
    """
    given = string_tensor("wf.parse_example", serialized)
    parts: list[str] = []
    defaults: dict[int, Tensor] = {}
    for i, (key, wanted) in enumerate(features.items()):
        part, default = part_of(key, wanted)
        parts.append(str(part))
        if default is not None:
            defaults[i] = Tensor(default)
    made = host_op(
        "parse_example", [given, *defaults.values()], sum("?" in p for p in parts),
        names=tuple(features), parts=tuple(parts), defaults=tuple(defaults),
    )  # fmt: skip
    return dict(zip(features, made, strict=True))


@located
def parse_single_example(
    serialized: Any, features: Mapping[str, FixedLenFeature | VarLenFeature],
    name: str | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """`parse_example` of one example: a string without axes."""
    return parse_example(
        string_tensor("wf.parse_single_example", serialized, scalar=True), features
    )
