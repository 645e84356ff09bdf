"""Words and substrings of strings, joined strings, and letters in the other case, by kernels: only
objects are made under the GIL. What is cut in another way the references do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.codegen.dynamic import words as native
from weft.codegen.dynamic.text_hash import BYTES_DATA
from weft.ir.spec import Array, Attrs, as_bytes
from weft.runtime.dynamic.calls import chunks_of, per_chunk, run_kernel, starts_of
from weft.runtime.dynamic.new_strings import put_blank_strings, put_strings
from weft.runtime.dynamic.strings import STRINGS, are_bytes
from weft.runtime.native.ahead import address

_BLANKS = b" \t\n\r\v\f"  # ASCII's white space, as of `bytes.split`


def split_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    """The words between the bytes `delimiter`: (row, number) of each, the words, rows and words in
    a row."""
    (x,), delimiter = arrays, attrs["delimiter"]
    if not isinstance(delimiter, str) or not delimiter or not are_bytes(x):
        return None
    cut = native.RUNS if attrs["skip_empty"] else native.AT_BYTES
    starts, values, indices = _cut(x, cut, as_bytes(delimiter), empty=False, places=True)
    shape = np.array([x.size, np.diff(starts).max(initial=0)], np.int64)
    return [indices, values, shape]


def split_rows_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    """The words, and where those of each string begin."""
    (x,), pattern, most = arrays, attrs["pattern"], attrs["maxsplit"]
    if attrs["kind"] != "separator" or not isinstance(pattern, str) or not are_bytes(x):
        return None
    if not isinstance(most, int) or most >= 0:
        return None
    separator = as_bytes(pattern)
    cut = native.AT_BYTES if len(separator) == 1 else native.AT_SEPARATORS
    if not separator:
        cut, separator = native.RUNS, _BLANKS
    starts, values, _ = _cut(x, cut, separator, empty=True, places=False)
    return [values, starts]


def _cut(
    x: Array, cut: int, separator: bytes, *, empty: bool, places: bool
) -> tuple[Array, Array, Array]:
    """Where the words of each string begin, the words, and (row, number) of each if `places` are
    asked for. empty: whether empty text is an empty word."""
    table = np.zeros(256, np.uint8)
    table[list(separator)] = 1
    at = address(table) if cut != native.AT_SEPARATORS else id(separator) + BYTES_DATA
    counts = np.empty(x.size, np.int64)
    chosen, chunks = (("CUT", cut),), chunks_of(x.size, STRINGS)
    given = (address(x), x.size, STRINGS)
    how = (at, len(separator), int(empty))
    run_kernel("count_words", chosen, (*given, address(counts), *how), chunks)
    starts = starts_of(counts)
    total = int(starts[-1])
    lies, indices = np.empty((total, 2), np.int64), np.empty((total if places else 0, 2), np.int64)
    more = (address(lies), address(indices) if places else 0)
    run_kernel("fill_words", chosen, (*given, address(starts), *how, *more), chunks)
    values = np.empty(total, object)
    put_strings(lies, values)
    return starts, values, indices


def substr_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    """The bytes of each string from a position on, as many as there are up to a length."""
    x, positions, lengths = arrays
    if not are_bytes(x):
        return None
    begin, count = (np.ascontiguousarray(p, np.int64) for p in (positions, lengths))
    lies = np.empty((x.size, 2), np.int64)
    more = (address(begin), address(count), address(lies))
    if per_chunk("cut_strings", (), x, *more, chunk=STRINGS).any():
        return None
    values = np.empty(x.shape, object)
    put_strings(lies, values)
    return [values]


def length_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    """How many bytes each string has."""
    (x,) = arrays
    if not are_bytes(x):
        return None
    out = np.empty(x.shape, np.int32)
    given = (address(x), x.size, STRINGS, address(out))
    run_kernel("count_bytes", (), given, chunks_of(x.size, STRINGS))
    return [out]


def join_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    """The strings of the operands one after the other, with a separator in between."""
    first, separator = arrays[0], as_bytes(str(attrs["separator"]))
    if any(x.shape != first.shape for x in arrays) or not all(map(are_bytes, arrays)):
        return None
    places, out = np.empty((first.size, 2), np.int64), np.empty(first.shape, object)
    held = np.array([address(x) for x in arrays], np.int64)
    given = (address(held), first.size, STRINGS, len(arrays))
    how, chunks = (id(separator) + BYTES_DATA, len(separator)), chunks_of(first.size, STRINGS)
    run_kernel("measure_joined", (), (*given, address(places), *how), chunks)
    put_blank_strings(places, out)
    run_kernel("fill_joined", (), (*given, address(out), *how), chunks)
    return [out]


def case_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    """Strings in lower or upper case: of ASCII, or if only ASCII's letters are to change."""
    (x,) = arrays
    if attrs["case"] not in ("lower", "upper") or not are_bytes(x):
        return None
    places, out = np.empty((x.size, 2), np.int64), np.empty(x.shape, object)
    others = (("OTHERS", int(not attrs["ascii"])),)
    if per_chunk("measure_ascii", others, x, address(places), chunk=STRINGS).any():
        return None
    put_blank_strings(places, out)
    letters = (("LETTERS", ord("A" if attrs["case"] == "lower" else "a")),)
    given = (address(x), x.size, STRINGS, address(out))
    run_kernel("fill_case", letters, given, chunks_of(x.size, STRINGS))
    return [out]
