"""NumPy's .npy and .npz files, mapped into memory where that is possible. Pickled objects are
never read.
"""

from __future__ import annotations

import mmap
import os
import tokenize
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir.errors import DataLossError, InvalidArgumentError, WeftError
from weft.runtime.files.streams import Path, opened

if TYPE_CHECKING:
    import zipfile

Array = np.ndarray[Any, Any]
# what NumPy's reader of headers raises for damaged ones
_BAD_HEADER = (ValueError, SyntaxError, TypeError, OverflowError, tokenize.TokenError)
_LOCAL_HEADER = 30  # bytes before the name in a zip file's local header (APPNOTE.TXT, 4.3.7)


def read_npy(path: Path) -> Array:
    """The array of a .npy file, read-only and mapped: rows are read from disk when they are used.

    DataLossError if the file is damaged or truncated, InvalidArgumentError if it holds objects.
    """
    with opened(path) as file:
        return _mapped(os.fspath(path), file, 0, os.fstat(file.fileno()).st_size)


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file by name, read-only: mapped if the file is not compressed
    (np.savez); else (np.savez_compressed) read, with zip's checksums."""
    import zipfile  # 4 ms that `import weft` need not take

    name = os.fspath(path)
    out: dict[str, Array] = {}
    with opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    key = member.filename.removesuffix(".npy")
                    place = f"{name}, array {key!r}"
                    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
                        out[key] = _stored(place, file, member)
                    else:
                        out[key] = _compressed(place, archive, member)
        except WeftError:
            raise
        # what zipfile raises for damaged archives: RuntimeError if one looks encrypted, ValueError
        # for names, OSError for places before the file, MemoryError for sizes
        except (
            zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError,
            ValueError, OverflowError, MemoryError,
        ) as error:  # fmt: skip
            raise DataLossError(f"{name}: no whole .npz file ({error})") from error
    return out


def _stored(place: str, file: Any, member: zipfile.ZipInfo) -> Array:
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER)
    if header[:4] != b"PK\x03\x04":
        raise DataLossError(f"{place}: its header at byte {member.header_offset} is damaged")
    sizes = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start = member.header_offset + _LOCAL_HEADER + sizes
    return _mapped(place, file, start, start + member.file_size)


def _compressed(place: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        try:
            array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise DataLossError(f"{place}: there are bytes after the array")
        except _BAD_HEADER as error:
            raise _refused(place, error) from error
    array.flags.writeable = False
    return array


def _mapped(place: str, file: Any, start: int, end: int) -> Array:
    """The array whose .npy header is at byte `start`; its data must end before `end`."""
    file.seek(start)
    try:
        shape, fortran, dtype = _header(file)
    except _BAD_HEADER as error:
        raise _refused(place, error) from error
    if dtype.hasobject:
        raise InvalidArgumentError(
            f"{place}: it holds pickled Python objects, which are not read",
            hint="save numbers; strings go into text, CSV or TFRecord files",
        )
    offset, count = file.tell(), int(np.prod(shape, dtype=object))
    if min(shape, default=0) < 0:
        raise DataLossError(f"{place}: no whole .npy file (its shape is {list(shape)})")
    if offset + count * dtype.itemsize > min(end, os.fstat(file.fileno()).st_size):
        raise DataLossError(
            f"{place}: truncated: {dtype}{list(shape)} needs {count * dtype.itemsize} bytes from "
            f"byte {offset} on"
        )
    if not count:
        return np.empty(shape, dtype)
    block = mmap.mmap(file.fileno(), offset + count * dtype.itemsize, access=mmap.ACCESS_READ)
    flat = np.frombuffer(block, dtype, count, offset)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"its format version {version} is not known")


def _refused(place: str, error: Exception) -> DataLossError | InvalidArgumentError:
    if "allow_pickle" in str(error):
        return InvalidArgumentError(f"{place}: it holds pickled Python objects, which are not read")
    return DataLossError(f"{place}: no whole .npy file ({error})")
