"""ONNX files: read by the `onnx` package (the extra `onnx`), and checked before anything is made of
what they say, as a model may come from anywhere."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.core.tensor import Array
from weft.frontend.onnx.dtypes import PACKED, held
from weft.ir.errors import (
    DataLossError,
    NotFoundError,
    PermissionDeniedError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.locations import caller_location

if TYPE_CHECKING:
    import onnx

#: An array of a TensorProto.
Arrays = Callable[["onnx.TensorProto"], Array]
_NEWEST_IR = 14
_MOST_AXES = 64  # of an array of NumPy
#: So many tensors may share the bytes of a file of more than these.
_TIMES_READ, _SMALL_FILE = 8, 2**20


def package() -> Any:
    """The `onnx` package. UnsupportedError if it is not installed."""
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError:
        raise UnsupportedError(
            "wf.onnx needs the package onnx, which is not installed",
            hint='pip install "weft[onnx]"',
            location=caller_location(),
        ) from None
    return onnx


def damaged(path: str, what: str) -> DataLossError:
    """The error for a file that is no model, or says what cannot be."""
    return DataLossError(f"'{path}' is no ONNX model that can be used: {what}")


def read(source: Any) -> tuple[onnx.ModelProto, str, Arrays]:
    """A model, what messages call it, and what makes arrays of its tensors. source: a path, bytes
    or a ModelProto. NotFoundError, TypeRuleError, DataLossError."""
    onnx = package()
    if isinstance(source, onnx.ModelProto):
        return source, source.graph.name or "model", _arrays("the model", None)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parsed(bytes(source), "the model"), "model", _arrays("the model", None)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeRuleError(
            f"wf.onnx.load: {source!r:.60} is no model",
            hint="give a path, bytes or an onnx.ModelProto",
            location=caller_location(),
        )
    path = Path(os.fsdecode(source))
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(
            f"wf.onnx.load: there is no file '{path}'", location=caller_location()
        ) from None
    except OSError as error:
        raise NotFoundError(
            f"wf.onnx.load: '{path}' cannot be read: {error}", location=caller_location()
        ) from None
    return _parsed(data, str(path)), path.stem, _arrays(str(path), path.parent)


def _parsed(data: bytes, path: str) -> onnx.ModelProto:
    model: onnx.ModelProto = package().ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # of protobuf, whose class depends on how it is built
        raise damaged(path, f"{error}") from None
    if not model.HasField("graph") or not model.ir_version:
        raise damaged(path, "it holds no graph")
    if model.ir_version > _NEWEST_IR:
        raise UnsupportedError(
            f"'{path}' has ONNX's IR version {model.ir_version}, weft reads up to {_NEWEST_IR}",
            location=caller_location(),
        )
    return model


def _arrays(path: str, folder: Path | None) -> Arrays:
    numpy_helper = package().numpy_helper
    taken: dict[Path, int] = {}

    def read(tensor: onnx.TensorProto) -> Array:
        name = tensor.name or "a constant"
        if len(tensor.dims) > _MOST_AXES or any(d < 0 for d in tensor.dims):
            raise damaged(path, f"'{name}' has the shape {shown_dims(tensor.dims)}")
        try:
            if tensor.data_location == tensor.EXTERNAL:
                return held(_external(path, folder, tensor, taken))
            _check_size(path, tensor)
            return held(numpy_helper.to_array(tensor))
        except (ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
            raise damaged(path, f"'{name}' cannot be read: {error}") from None

    return read


def _bits(tensor: onnx.TensorProto) -> int:
    onnx = package()
    if tensor.data_type == onnx.TensorProto.STRING:
        return 0
    if tensor.data_type in PACKED:
        return PACKED[tensor.data_type]
    return 8 * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _check_size(path: str, tensor: onnx.TensorProto) -> None:
    """DataLossError where a tensor says another size than it has: before memory is taken."""
    count = math.prod(tensor.dims)
    bits = _bits(tensor)
    if tensor.HasField("raw_data"):
        has, wanted = len(tensor.raw_data), -(-count * bits // 8)
    elif not bits:
        has, wanted = len(tensor.string_data), count
    else:
        has = max(
            len(field)
            for field in (tensor.float_data, tensor.int32_data, tensor.int64_data,
                          tensor.double_data, tensor.uint64_data)
        )  # fmt: skip
        wanted = -(-count * bits // 8) if bits < 8 else count
        wanted *= 2 if tensor.data_type in (14, 15) else 1
    if has != wanted:
        raise damaged(
            path,
            f"'{tensor.name}' has the shape {shown_dims(tensor.dims)}, but data for {has} of "
            f"{wanted}",
        )


def shown_dims(dims: Sequence[int]) -> str:
    """A shape in messages."""
    return str(list(dims)) if len(dims) <= _MOST_AXES else f"of {len(dims)} axes"


def _external(
    path: str, folder: Path | None, tensor: onnx.TensorProto, taken: dict[Path, int]
) -> Array:
    """The array of a tensor whose data are in a file beside the model. taken: how many bytes were
    read of each file. PermissionDeniedError for files outside the model's folder."""
    onnx = package()
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise NotFoundError(
            f"the data of '{tensor.name}' are in the file '{location}', and the model was not read "
            "from a path",
            hint="wf.onnx.load(path), with the file beside it",
            location=caller_location(),
        )
    root = folder.resolve()
    file = (root / location).resolve()
    if not location or root not in file.parents:
        raise PermissionDeniedError(
            f"'{path}' has data in '{location}', which is not in its folder",
            location=caller_location(),
        )
    count, bits = math.prod(tensor.dims), _bits(tensor)
    if not bits:
        raise damaged(path, f"'{tensor.name}' has strings in another file")
    size = -(-count * bits // 8)
    offset = int(entries.get("offset", 0))
    if int(entries.get("length", size)) != size or offset < 0:
        raise damaged(
            path, f"'{tensor.name}' says another length than its shape {shown_dims(tensor.dims)}"
        )
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise damaged(path, f"'{location}' is no file")
    try:
        with open(file, "rb") as opened:
            whole = os.fstat(opened.fileno()).st_size
            if whole < offset + size:
                raise damaged(path, f"'{location}' is too short for '{tensor.name}'")
            taken[file] = taken.get(file, 0) + size
            if taken[file] > _TIMES_READ * max(whole, _SMALL_FILE):
                raise damaged(path, f"its tensors have '{location}' more than {_TIMES_READ} times")
            opened.seek(offset)
            data = opened.read(size)
    except OSError as error:
        raise NotFoundError(
            f"'{path}' has data in '{location}', which cannot be read: {error}",
            location=caller_location(),
        ) from None
    if bits < 8:
        plain = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
        small: Array = onnx.numpy_helper.to_array(plain)
        return small
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(tuple(tensor.dims))
