"""`wf.strings`: functions on tensors of strings (wf.string: arbitrary bytes; str becomes UTF-8).

They run eagerly, in a `wf.Graph` and in compiled functions, on the host, also in functions for a
GPU. Where characters count, strings are UTF-8; bytes that are none count as one character each and
stay as they are. Errors, at the caller's line: TypeRuleError for numbers where strings are wanted,
ShapeError for shapes that do not fit, InvalidArgumentError for what a string, a pattern or an
encoding is not.

What makes several strings of each gives `Rows`: all values one after the other and where each row
begins. Nothing is filled up, and only one size depends on what the strings are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.core.public_names import renamed
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.data.readers import FixedLenFeature, VarLenFeature
from weft.frontend.ops import strings as _tf1
from weft.frontend.ops.dispatch import apply, apply_dynamic
from weft.frontend.ops.promotion import TensorLike, check_dtype, check_int, expand, strong_tensor
from weft.frontend.queues.files import decode_csv
from weft.ir.dtypes import as_dtype, float32, string
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType


class Rows(NamedTuple):
    """Rows of different lengths: `values` [m], those of all rows one after the other, and
    `row_splits` i64[n+1]: row i is `values[row_splits[i] : row_splits[i + 1]]`.

    >>> rows = wf.strings.split(["a b", "", "c"])
    >>> rows.row_splits[1:] - rows.row_splits[:-1]  # the length of each
    Tensor([2, 0, 1], dtype=int64)
    """

    values: Tensor
    row_splits: Tensor


def _error(what: str, hint: str | None = None) -> InvalidArgumentError:
    return InvalidArgumentError(what, hint=hint, location=caller_location())


@contextmanager
def _named(name: str, op: str) -> Iterator[None]:
    """Errors of an op say the name of the function here."""
    try:
        yield
    except WeftError as error:
        raise renamed(error, op, f"wf.strings.{name}") from error.__cause__


def _apply(name: str, op: str, *operands: Tensor, **attrs: Any) -> Tensor:
    with _named(name, op):
        return apply(op, *operands, **attrs)


def _apply_dynamic(
    name: str, op: str, operands: Sequence[Tensor], attrs: Mapping[str, Any], count: int = 1
) -> tuple[Tensor, ...]:
    with _named(name, op):
        return apply_dynamic(op, operands, attrs, what=f"strings.{name}", count=count)


def _text(what: str, given: object) -> str:
    if not isinstance(given, str):
        raise TypeRuleError(f"{what} is a str, got {given!r:.60}", location=caller_location())
    return given


# ----------------------------------------------------------------------------------- of each string
def lower(input: TensorLike, encoding: str = "utf-8") -> Tensor:
    """Each string in lower case, as `str.lower`; encoding="": only the letters A to Z, as
    `bytes.lower`.

    >>> wf.strings.lower(["ÀB", "c"]).numpy().tolist() == ["àb".encode(), b"c"]
    True
    """
    return _cased("lower", input, encoding)


def upper(input: TensorLike, encoding: str = "utf-8") -> Tensor:
    """Each string in upper case, as `str.upper`; encoding="": only the letters a to z, as
    `bytes.upper`.

    >>> wf.strings.upper("weft").item()
    b'WEFT'
    """
    return _cased("upper", input, encoding)


def _cased(case: str, input: TensorLike, encoding: str) -> Tensor:
    given: object = encoding
    if not isinstance(given, str) or given.lower() not in ("", "utf-8", "utf8"):
        raise _error(f"wf.strings.{case}: encoding={encoding!r:.60} is neither 'utf-8' nor ''")
    return _apply(case, "string_case", strong_tensor(input), case=case, ascii=not encoding)


def strip(input: TensorLike, chars: str | None = None) -> Tensor:
    """Each string without white space (ASCII's) at both ends, or without the characters `chars`.

    >>> wf.strings.strip([" a b ", "\\tc\\n"]).tolist()
    [b'a b', b'c']
    >>> wf.strings.strip("--x-", "-").item()
    b'x'
    """
    if chars == "":
        return strong_tensor(input)
    given = "" if chars is None else _text("wf.strings.strip: chars", chars)
    return _apply("strip", "string_strip", strong_tensor(input), chars=given)


def _is_bytes(what: str, unit: str) -> bool:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise _error(f"wf.strings.{what}: unit={unit!r:.60} is neither 'BYTE' nor 'UTF8_CHAR'")
    return unit == "BYTE"


def length(input: TensorLike, unit: str = "BYTE") -> Tensor:
    """How many bytes each string has, int32; unit="UTF8_CHAR": how many characters.

    >>> wf.strings.length("naïve").item(), wf.strings.length("naïve", "UTF8_CHAR").item()
    (6, 5)
    """
    op = "string_length" if _is_bytes("length", unit) else "string_length_utf8"
    return _apply("length", op, strong_tensor(input))


def substr(input: TensorLike, pos: TensorLike, len: TensorLike, unit: str = "BYTE") -> Tensor:
    """`len` bytes (unit="UTF8_CHAR": characters), or what there is, of each string from `pos` on,
    which counts from the end if it is negative. Both are integers of the strings' shape, or one for
    all. InvalidArgumentError for a position outside of a string.

    >>> wf.strings.substr(["weft", "warp"], [0, -2], 2).tolist()
    [b'we', b'rp']
    """
    op = "substr" if _is_bytes("substr", unit) else "substr_utf8"
    x = strong_tensor(input)
    places = [strong_tensor(as_tensor(p)) for p in (pos, len)]
    return _apply("substr", op, x, *(p if p.ndim else expand(p, x.shape) for p in places))


def regex_replace(
    input: TensorLike, pattern: str, rewrite: str, replace_global: bool = True
) -> Tensor:
    """Each string with `rewrite` in place of what the pattern matches (replace_global=False: of the
    first match), as `re.sub`.

    pattern: of Python's module `re`, on characters: `.` is one of any number of bytes, `(?a)` makes
    `\\w` and `\\d` ASCII. rewrite: `\\1` or `\\g<name>` is what a group has matched, `\\g<0>` all
    of it (in TensorFlow `\\0`, which here is a byte 0). InvalidArgumentError for what is
    no pattern.

    >>> wf.strings.regex_replace(["3 cats", "12 dogs"], r"(\\d+) (\\w+)", r"\\2: \\1").tolist()
    [b'cats: 3', b'dogs: 12']
    """
    what = "wf.strings.regex_replace"
    return _apply(
        "regex_replace",
        "regex_replace", strong_tensor(input), pattern=_text(f"{what}: pattern", pattern),
        rewrite=_text(f"{what}: rewrite", rewrite), replace_global=bool(replace_global),
    )  # fmt: skip


def regex_full_match(input: TensorLike, pattern: str) -> Tensor:
    """Whether the pattern matches all of each string, bool, as `re.fullmatch`. Patterns as of
    `regex_replace`.

    >>> wf.strings.regex_full_match(["ab", "abc"], "a.")
    Tensor([ True, False], dtype=bool)
    """
    given = _text("wf.strings.regex_full_match: pattern", pattern)
    return _apply("regex_full_match", "regex_full_match", strong_tensor(input), pattern=given)


# ------------------------------------------------------------------------------------ apart, joined
def _rows(op: str, input: TensorLike, what: str, **attrs: Any) -> Rows:
    values, splits = _apply_dynamic(what, op, [strong_tensor(input)], attrs)
    return Rows(values, splits)


def _most(what: str, maxsplit: int) -> int:
    return max(check_int(what, maxsplit, "maxsplit"), -1)


def split(input: TensorLike, sep: str | None = None, maxsplit: int = -1) -> Rows:
    """The parts of each string (of one, or with one axis), as `bytes.split`: between separators, or
    between white space (ASCII's) without empty parts. maxsplit: how often at most; -1: always.

    >>> values, row_splits = wf.strings.split(["a b  c", "", "d"])
    >>> values.tolist(), row_splits.tolist()
    ([b'a', b'b', b'c', b'd'], [0, 3, 3, 4])
    >>> wf.strings.split("a, b, , c", ", ").values.tolist()
    [b'a', b'b', b'', b'c']
    """
    if sep == "":
        raise _error("wf.strings.split: the separator is empty", "wf.strings.unicode_split")
    given = "" if sep is None else _text("wf.strings.split: sep", sep)
    most = _most("strings.split", maxsplit)
    return _rows(
        "string_split_rows", input, "split", kind="separator", pattern=given, maxsplit=most
    )


def regex_split(input: TensorLike, pattern: str, maxsplit: int = -1) -> Rows:
    """What lies between the matches of a pattern in each string, as `re.split` gives it, but
    without what groups match. Patterns as of `regex_replace`.

    >>> wf.strings.regex_split("one, two;three", r"[,;]\\s*").values.tolist()
    [b'one', b'two', b'three']
    """
    given = _text("wf.strings.regex_split: pattern", pattern)
    most = _most("strings.regex_split", maxsplit)
    return _rows(
        "string_split_rows", input, "regex_split", kind="regex", pattern=given,
        maxsplit=most,
    )  # fmt: skip


def unicode_split(input: TensorLike) -> Rows:
    """The characters of each string.

    >>> [c.decode() for c in wf.strings.unicode_split("été").values.tolist()]
    ['é', 't', 'é']
    """
    return _rows("string_split_rows", input, "unicode_split", kind="characters")


def join(inputs: Sequence[Any], separator: str = "") -> Tensor:
    """The strings of `inputs`, tensors of one shape or without axes, joined element by element.

    >>> wf.strings.join([["a", "b"], "x"], "-").tolist()
    [b'a-x', b'b-x']
    """
    given = list(inputs)
    if not given:
        raise _error("wf.strings.join needs an input")
    text = _text("wf.strings.join: separator", separator)
    with _named("join", "string_join"):
        return _tf1.string_join(given, text)


def reduce_join(
    input: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False,
    separator: str = "",
) -> Tensor:  # fmt: skip
    """The strings along axes joined; None: all axes. Of several the last goes fastest.

    >>> x = [["a", "b"], ["c", "d"]]
    >>> wf.strings.reduce_join(x, 1, separator=" ").tolist(), wf.strings.reduce_join(x).item()
    ([b'a b', b'c d'], b'abcd')
    """
    x = strong_tensor(input)
    given = range(x.ndim) if axis is None else axis if isinstance(axis, Sequence) else [axis]
    axes = tuple(check_int("strings.reduce_join", a, "axis") for a in given)
    text = _text("wf.strings.reduce_join: separator", separator)
    return _apply(
        "reduce_join", "string_reduce_join", x, axes=axes, keepdims=bool(keepdims), separator=text
    )


def format(template: str, inputs: Any, summarize: int = 3) -> Tensor:
    """One string: the template with tensors in its braces, as `str.format` and `wf.print`: `{}`
    gives one as NumPy shows it, `{:.2f}` each of its elements so. inputs: a tensor, or a list or
    tuple of them. summarize: how many elements at each end of each axis; -1: all.

    >>> wf.strings.format("{0} of {1:.1f}", (3, [1.25, 2.0])).item()
    b'3 of [1.2 2.0]'
    """
    given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    text = _text("wf.strings.format: template", template)
    count = check_int("strings.format", summarize, "summarize")
    return _apply(
        "format",
        "string_format",
        *(strong_tensor(x) for x in given),
        template=text,
        summarize=count,
    )


# ---------------------------------------------------------------------------------------- encodings
def unicode_decode(
    input: TensorLike, input_encoding: str = "utf-8", errors: str = "strict"
) -> Rows:
    """The code points of each string, int32. errors: "strict" (an InvalidArgumentError), "replace"
    (U+FFFD) or "ignore", of bytes that are not of the encoding; any of Python's encodings.

    >>> wf.strings.unicode_decode(["é!", "a"])
    Rows(values=Tensor([233,  33,  97], dtype=int32), row_splits=Tensor([0, 2, 3], dtype=int64))
    """
    given = _text("wf.strings.unicode_decode: input_encoding", input_encoding)
    return _rows("unicode_decode", input, "unicode_decode", encoding=given, errors=errors)


def unicode_encode(input: Any, output_encoding: str = "utf-8", errors: str = "strict") -> Tensor:
    """The strings of rows of code points: `Rows`, or a pair of values (int32) and row splits
    (int64). errors as of `unicode_decode`.

    >>> rows = wf.strings.unicode_decode(["weft", "é"])
    >>> [text.decode() for text in wf.strings.unicode_encode(rows).tolist()]
    ['weft', 'é']
    """
    if not isinstance(input, tuple) or len(input) != 2:
        raise _error(
            f"wf.strings.unicode_encode takes values and row splits, got {input!r:.60}",
            "as wf.strings.unicode_decode gives them",
        )
    values, splits = _numbers(input[0], np.int32), _numbers(input[1], np.int64)
    given = _text("wf.strings.unicode_encode: output_encoding", output_encoding)
    return _apply("unicode_encode", "unicode_encode", values, splits, encoding=given, errors=errors)


def _numbers(given: Any, dtype: type[np.int32 | np.int64]) -> Tensor:
    """A tensor as it is; other numbers, whatever NumPy takes them for, as `dtype`."""
    if isinstance(given, Tensor):
        return given
    array = np.asarray(given)
    made = array.astype(dtype) if array.dtype.kind in "iu" or not array.size else array
    if not np.array_equal(made, array):
        raise _error(f"wf.strings.unicode_encode: {given!r:.60} does not fit {made.dtype}")
    return as_tensor(made)


def unicode_transcode(
    input: TensorLike, input_encoding: str, output_encoding: str, errors: str = "strict"
) -> Tensor:
    """Each string in another encoding; encodings and errors as of `unicode_decode`.

    >>> wf.strings.unicode_transcode("é", "utf-8", "latin-1").item()
    b'\\xe9'
    """
    what = "wf.strings.unicode_transcode"
    return _apply(
        "unicode_transcode",
        "unicode_transcode", strong_tensor(input),
        input_encoding=_text(f"{what}: input_encoding", input_encoding),
        output_encoding=_text(f"{what}: output_encoding", output_encoding), errors=errors,
    )  # fmt: skip


def encode_base64(input: TensorLike, pad: bool = False, urlsafe: bool = True) -> Tensor:
    """Each string in base64 (RFC 4648), as TensorFlow's: with "-" and "_", without "=" at the end.
    pad: with them; urlsafe=False: with "+" and "/".

    >>> wf.strings.encode_base64([b"\\xff\\xfe", "weft"]).tolist()
    [b'__4', b'd2VmdA']
    """
    return _apply(
        "encode_base64", "encode_base64", strong_tensor(input), pad=bool(pad), urlsafe=bool(urlsafe)
    )


def decode_base64(input: TensorLike, urlsafe: bool = True) -> Tensor:
    """The bytes that base64 stands for, with "=" at the end or without. InvalidArgumentError for
    what is none.

    >>> wf.strings.decode_base64(["d2VmdA", "d2VmdA=="]).tolist()
    [b'weft', b'weft']
    """
    return _apply("decode_base64", "decode_base64", strong_tensor(input), urlsafe=bool(urlsafe))


# ------------------------------------------------------------------------------------------ numbers
def to_number(input: TensorLike, dtype: object = None) -> Tensor:
    """The numbers that the strings stand for: float32 (the default), float64, int32 or int64.
    InvalidArgumentError for text that stands for none.

    >>> wf.strings.to_number(["1.5", "-2"])
    Tensor([ 1.5, -2. ], dtype=float32)
    """
    with _named("to_number", "string_to_number"):
        return _tf1.string_to_number(input, check_dtype(dtype, float32))


def as_string(
    input: TensorLike, precision: int = -1, scientific: bool = False, shortest: bool = False,
    width: int = -1, fill: str = "",
) -> Tensor:  # fmt: skip
    """Numbers and bools as text of the same shape: %d, and for floats %f (scientific: %e, shortest:
    %g) with `precision` digits, at least `width` characters wide, filled up with `fill`.

    >>> wf.strings.as_string([1.5, 20.0], precision=2).tolist()
    [b'1.50', b'20.00']
    >>> wf.strings.as_string(7, width=3, fill="0").item()
    b'007'
    """
    with _named("as_string", "as_string"):
        return _tf1.as_string(input, precision, scientific, shortest, width, fill)


def to_hash_bucket(input: TensorLike, num_buckets: int) -> Tensor:
    """A hash of each string in 0 .. num_buckets-1, int64: TensorFlow's of the same name
    (MurmurHash64A), the same in every process.

    >>> wf.strings.to_hash_bucket(["a", "b", "a"], 1000).tolist()
    [868, 370, 868]
    """
    with _named("to_hash_bucket", "string_to_hash_bucket"):
        return _tf1.string_to_hash_bucket(input, num_buckets)


def to_hash_bucket_fast(input: TensorLike, num_buckets: int) -> Tensor:
    """As `to_hash_bucket`, by FarmHash's Fingerprint64, as TensorFlow's of that name.

    >>> wf.strings.to_hash_bucket_fast(["a", "b", "a"], 1000).tolist()
    [939, 822, 939]
    """
    with _named("to_hash_bucket_fast", "string_to_hash_bucket_fast"):
        return _tf1.string_to_hash_bucket_fast(input, num_buckets)


def to_hash_bucket_strong(input: TensorLike, num_buckets: int, key: Sequence[int]) -> Tensor:
    """As `to_hash_bucket`, by SipHash-2-4 with a key of two numbers of 64 bits, as TensorFlow's:
    who does not know the key cannot find strings that share a bucket. It takes longer.

    >>> wf.strings.to_hash_bucket_strong(["Hello", "TF"], 3, key=[1, 2]).tolist()
    [2, 0]
    """
    what = "strings.to_hash_bucket_strong"
    count = check_int(what, num_buckets, "num_buckets")
    pair = tuple(check_int(what, k, "key") for k in key)
    return _apply(
        "to_hash_bucket_strong",
        "string_to_hash_bucket_strong",
        strong_tensor(input),
        num_buckets=count,
        key=pair,
    )


# --------------------------------------------------------------------------------------------- JSON
#: What `decode_json` takes for a field.
Field = FixedLenFeature | VarLenFeature | tuple[Any, Any] | Any


def decode_json(input: TensorLike, fields: Mapping[str, Field]) -> dict[str, Tensor]:
    """Fields of JSON documents (RFC 8259): for each name a tensor of the strings' shape and the
    field's.

    fields: by key of the outermost object, or by JSON Pointer ("/users/0/name", RFC 6901). Each is
    a dtype (float32, float64, int32, int64, bool, string), a pair of it and a default, or a
    `FixedLenFeature` for an array of one shape, or (of one document, a string without axes) a
    `VarLenFeature` for an array of any length. The default is for fields that are not there, or
    null. InvalidArgumentError, naming document and field, for one that is not there without a
    default, or of another kind or size; a bool is no number, 1.0 no integer.

    >>> texts = ['{"id": 1, "at": [0.5, 2]}', '{"id": 2, "at": [1, 1], "tag": "x"}']
    >>> at = wf.data.FixedLenFeature([2], wf.float32)
    >>> found = wf.strings.decode_json(texts, {"id": wf.int64, "at": at, "tag": (wf.string, "")})
    >>> found["id"].tolist(), found["at"].shape, found["tag"].tolist()
    ([1, 2], (2, 2), [b'', b'x'])
    """
    parts: list[str] = []
    defaults: dict[int, Tensor] = {}
    for i, (name, field) in enumerate(fields.items()):
        wanted, default = _field(_text("wf.strings.decode_json: a field's name", name), field)
        parts.append(str(wanted))
        if default is not None:
            defaults[i] = default
    if not parts:
        raise _error("wf.strings.decode_json: no fields are asked for")
    attrs = {"names": tuple(fields), "parts": tuple(parts), "defaults": tuple(defaults)}
    operands, count = [strong_tensor(input), *defaults.values()], sum("?" in p for p in parts)
    made = _apply_dynamic("decode_json", "decode_json", operands, attrs, count)
    return dict(zip(fields, made, strict=True))


def _field(name: str, field: Field) -> tuple[TensorType, Tensor | None]:
    """The type of a field, `[?]` for one of any length, and its default."""
    if isinstance(field, VarLenFeature):
        return TensorType(as_dtype(field.dtype), (None,)), None
    if isinstance(field, FixedLenFeature):
        shape, dtype, default = field
    elif isinstance(field, tuple):
        if len(field) != 2:
            raise _error(f"wf.strings.decode_json: the field {name!r} is {field!r:.60}",
                         "a dtype, or (dtype, default)")  # fmt: skip
        shape, (dtype, default) = (), field
    else:
        shape, dtype, default = (), field, None
    wanted = TensorType(as_dtype(dtype), tuple(int(d) for d in shape))
    if default is None:
        return wanted, None
    try:
        if wanted.dtype is string:
            array = strong_tensor(as_tensor(default)).numpy()
            if array.dtype != object:
                raise ValueError
        else:
            array = np.asarray(default).astype(wanted.dtype.numpy)
        return wanted, Tensor(np.broadcast_to(array, wanted.static_shape).copy())
    except (ValueError, TypeError):
        raise _error(
            f"wf.strings.decode_json: the default {default!r:.60} of {name!r} is no {wanted}"
        ) from None


__all__ = [
    "Rows", "as_string", "decode_base64", "decode_csv", "decode_json", "encode_base64", "format",
    "join", "length", "lower", "reduce_join", "regex_full_match", "regex_replace", "regex_split",
    "split", "strip", "substr", "to_hash_bucket", "to_hash_bucket_fast", "to_hash_bucket_strong",
    "to_number", "unicode_decode", "unicode_encode", "unicode_split", "unicode_transcode", "upper",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
