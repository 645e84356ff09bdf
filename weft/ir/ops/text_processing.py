"""Ops that change, take apart and put together strings: case, regular expressions, Unicode, base64,
JSON, formats. Where characters count strings are UTF-8 (bytes that are none stand for themselves,
Python's "surrogateescape"), so patterns of Python's `re` see characters.

What makes several strings of each gives rows: all values one after the other, and where each row
begins (`row_splits`, i64[n+1]). No step is compiled with them: the host carries them out."""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from weft.ir.dims import Dim
from weft.ir.dtypes import DType, bool_, float32, float64, int32, int64, string
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.ops.dynamic import SIZES, fill_sizes
from weft.ir.ops.io import report
from weft.ir.ops.resources import part_type
from weft.ir.ops.strings import check_buckets, mapped, strings_operands, substr_type
from weft.ir.spec import (
    Array,
    Attrs,
    AttrSpec,
    InferRule,
    OpSpec,
    Reference,
    add_dims,
    as_bytes,
    int_attr,
    ints_attr,
    strs_attr,
    tensors,
)
from weft.ir.types import TensorType, Type

_M = (1 << 64) - 1
#: What is done with bytes, or characters, that an encoding does not have.
ERRORS = ("strict", "replace", "ignore")


def _of(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _filled(items: Sequence[Any], shape: Sequence[int] | None = None) -> Array:
    out = np.empty(len(items), object)
    out[:] = items
    return out if shape is None else out.reshape(shape)


def _checked(op: str, dtype: DType, check: Callable[[str, Attrs], object] | None) -> InferRule:
    """The rule of an op that makes one value of each string."""

    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        (x,) = strings_operands(op, types)
        if check is not None:
            check(op, attrs)
        return [TensorType(dtype, x.shape)]

    return rule


def _each(made: Callable[[Attrs], Callable[[bytes], Any]], dtype: DType = string) -> Reference:
    return lambda xs, attrs: mapped(xs[0], dtype, made(attrs))


# ------------------------------------------------------------------------------ case, blanks, regex
def _check_case(op: str, attrs: Attrs) -> None:
    if attrs["case"] not in ("lower", "upper"):
        raise InvalidArgumentError(f"op '{op}': case={attrs['case']!r} is neither lower nor upper")


def _cased(attrs: Attrs) -> Callable[[bytes], bytes]:
    lower = attrs["case"] == "lower"
    if attrs["ascii"]:
        return bytes.lower if lower else bytes.upper
    change = str.lower if lower else str.upper
    return lambda text: as_bytes(change(_of(text)))


def _stripped(attrs: Attrs) -> Callable[[bytes], bytes]:
    chars = str(attrs["chars"])
    if not chars:
        return bytes.strip  # ASCII's white space, as TensorFlow
    return lambda text: as_bytes(_of(text).strip(chars))


def pattern_of(op: str, attrs: Attrs) -> re.Pattern[str]:
    """The compiled pattern. InvalidArgumentError, with the place, for what is none."""
    try:
        return re.compile(str(attrs["pattern"]))
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidArgumentError(
            f"op '{op}': pattern={attrs['pattern']!r:.80} is no regular expression: {error}",
            hint="it is one of Python's module re",
        ) from None


def _check_replace(op: str, attrs: Attrs) -> None:
    pattern = pattern_of(op, attrs)
    try:
        pattern.sub(str(attrs["rewrite"]), "")  # it is looked at before the first match
    except (re.error, IndexError) as error:
        raise InvalidArgumentError(
            f"op '{op}': rewrite={attrs['rewrite']!r:.80} does not fit the pattern: {error}",
            hint=r"\1 or \g<name> is what a group matched, \g<0> all of it",
        ) from None


def _replaced(attrs: Attrs) -> Callable[[bytes], bytes]:
    pattern, rewrite = pattern_of("regex_replace", attrs), str(attrs["rewrite"])
    count = 0 if attrs["replace_global"] else 1
    return lambda text: as_bytes(pattern.sub(rewrite, _of(text), count))


def _full_match(attrs: Attrs) -> Callable[[bytes], bool]:
    pattern = pattern_of("regex_full_match", attrs)
    return lambda text: pattern.fullmatch(_of(text)) is not None


# ------------------------------------------------------------------------------------------ Unicode
def _substr(xs: Sequence[Array], attrs: Attrs) -> Array:
    found = []
    for text, at, n in zip(*(x.flat for x in xs), strict=True):
        characters = _of(text)
        start = int(at) + len(characters) if at < 0 else int(at)
        if not 0 <= start <= len(characters):
            raise InvalidArgumentError(
                f"position {at} is not in {text!r:.60} of {len(characters)} characters"
            )
        found.append(as_bytes(characters[start : start + max(int(n), 0)]))
    return _filled(found, xs[0].shape)


def codec(op: str, attrs: Attrs, key: str) -> str:
    """The encoding that an attribute names. InvalidArgumentError for what is no encoding of
    text."""
    name = str(attrs[key])
    try:
        "".encode(name)  # LookupError for what encodes no text, such as "base64"
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise InvalidArgumentError(
            f"op '{op}': {key}={name!r} is no encoding", hint='one of Python\'s, such as "utf-8"'
        ) from None


def _check_errors(op: str, attrs: Attrs) -> None:
    if attrs["errors"] not in ERRORS:
        raise InvalidArgumentError(
            f"op '{op}': errors={attrs['errors']!r} is none of {', '.join(ERRORS)}"
        )


def _check_transcode(op: str, attrs: Attrs) -> None:
    for key in ("input_encoding", "output_encoding"):
        codec(op, attrs, key)
    _check_errors(op, attrs)


def _decoded(text: bytes, encoding: str, errors: str) -> str:
    try:
        return text.decode(encoding, errors)
    except UnicodeError as error:
        raise InvalidArgumentError(
            f"{text!r:.60} is no {encoding}: {error}",
            hint="errors='replace' or 'ignore' reads what is left",
        ) from None


def _encoded(text: str, encoding: str, errors: str) -> bytes:
    try:
        return text.encode(encoding, errors)
    except UnicodeError as error:
        raise InvalidArgumentError(
            f"{text!r:.60} cannot be written in {encoding}: {error}",
            hint="errors='replace' or 'ignore' writes what is left",
        ) from None


def _transcoded(attrs: Attrs) -> Callable[[bytes], bytes]:
    names = [codec("unicode_transcode", attrs, f"{k}_encoding") for k in ("input", "output")]
    errors = str(attrs["errors"])
    return lambda text: _encoded(_decoded(text, names[0], errors), names[1], errors)


# --------------------------------------------------------------------------------------------- rows
def _rows_type(op: str, dtype: DType, check: Callable[[str, Attrs], object]) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        (x,) = strings_operands(op, types)
        if x.rank > 1:
            raise ShapeError(f"op '{op}' takes a string or strings with one axis, got {x}")
        check(op, attrs)
        (values,) = fill_sizes(op, [TensorType(dtype, (None,))], attrs)
        count: Dim = x.shape[0] if x.rank else 1
        return [values, TensorType(int64, (None if count is None else add_dims(count, 1),))]

    return rule


def _rows(made: Callable[[Attrs], Callable[[bytes], Sequence[Any]]], dtype: DType) -> Reference:
    def reference(xs: Sequence[Array], attrs: Attrs) -> list[Array]:
        function = made(attrs)
        rows = [function(text) for text in xs[0].flat]
        values = [value for row in rows for value in row]
        splits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        flat = _filled(values) if dtype is string else np.array(values, dtype.numpy)
        return [flat, splits]

    return reference


#: How `string_split_rows` cuts: at each `pattern` (where it is empty at white space), at each match
#: of the pattern as a regular expression, or between characters.
SPLITS = ("separator", "regex", "characters")


def _check_split(op: str, attrs: Attrs) -> None:
    if attrs["kind"] not in SPLITS:
        raise InvalidArgumentError(f"op '{op}': kind={attrs['kind']!r} is none of {SPLITS}")
    if attrs["kind"] == "regex":
        pattern_of(op, attrs)


def _splitter(attrs: Attrs) -> Callable[[bytes], Sequence[bytes]]:
    kind, most = attrs["kind"], int_attr(attrs, "maxsplit")
    if kind == "characters":
        return lambda text: [as_bytes(c) for c in _of(text)]
    if kind == "separator":
        separator = as_bytes(str(attrs["pattern"])) or None
        return lambda text: text.split(separator, most)
    pattern = pattern_of("string_split_rows", attrs)

    def parts(text: bytes) -> list[bytes]:
        """What lies between the matches; groups of the pattern are no parts."""
        whole, at = _of(text), 0
        found: list[bytes] = []
        for match in pattern.finditer(whole):
            if 0 <= most <= len(found):
                break
            found.append(as_bytes(whole[at : match.start()]))
            at = match.end()
        return [*found, as_bytes(whole[at:])]

    return parts


def _check_decode(op: str, attrs: Attrs) -> None:
    codec(op, attrs, "encoding")
    _check_errors(op, attrs)


def _points(attrs: Attrs) -> Callable[[bytes], list[int]]:
    encoding, errors = codec("unicode_decode", attrs, "encoding"), str(attrs["errors"])
    return lambda text: [ord(c) for c in _decoded(text, encoding, errors)]


def _encode_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op, found = "unicode_encode", tensors("unicode_encode", types)
    points, splits = found
    if points.dtype is not int32 or splits.dtype is not int64:
        raise TypeRuleError(
            f"op '{op}' takes code points (int32) and where rows begin (int64), got {points} and "
            f"{splits}"
        )
    if points.rank != 1 or splits.rank != 1 or splits.shape[0] == 0:
        raise ShapeError(f"op '{op}' takes values and the n+1 splits of n rows, got {splits}")
    _check_decode(op, attrs)
    count = splits.shape[0]
    return [TensorType(string, (None if count is None else add_dims(count, -1),))]


def _encode(xs: Sequence[Array], attrs: Attrs) -> Array:
    points, splits = xs[0].tolist(), xs[1].tolist()
    if splits[0] != 0 or splits[-1] != len(points) or splits != sorted(splits):
        raise InvalidArgumentError(
            f"row splits {splits!r:.60} do not go from 0 up to {len(points)}, the number of values"
        )
    encoding, errors = codec("unicode_encode", attrs, "encoding"), str(attrs["errors"])
    rows = [points[a:b] for a, b in pairwise(splits)]
    return _filled([_encoded(_characters(row, errors), encoding, errors) for row in rows])


def _characters(points: Sequence[int], errors: str) -> str:
    fine = [0 <= p < 0x110000 and not 0xD800 <= p < 0xE000 for p in points]
    if errors == "strict" and not all(fine):
        raise InvalidArgumentError(f"{points[fine.index(False)]} is no code point of Unicode")
    instead = "\ufffd" if errors == "replace" else ""
    return "".join(chr(p) if ok else instead for p, ok in zip(points, fine, strict=True))


# ------------------------------------------------------------------------------------------ joining
def _axes(rank: int, attrs: Attrs) -> list[int]:
    axes = [a + rank if a < 0 else a for a in ints_attr(attrs, "axes")]
    if len({*axes}) != len(axes) or any(not 0 <= a < rank for a in axes):
        raise ShapeError(
            f"op 'string_reduce_join': axes {list(ints_attr(attrs, 'axes'))} of {rank} axes"
        )
    return axes


def _reduce_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = strings_operands("string_reduce_join", types)
    gone, keep = _axes(x.rank, attrs), bool(attrs["keepdims"])
    kept = ((1 if i in gone else d) for i, d in enumerate(x.shape) if keep or i not in gone)
    return [TensorType(string, tuple(kept))]


def _reduce_join(xs: Sequence[Array], attrs: Attrs) -> Array:
    (x,), separator = xs, as_bytes(str(attrs["separator"]))
    gone = _axes(x.ndim, attrs)
    kept = [i for i in range(x.ndim) if i not in gone]
    outer = [x.shape[i] for i in kept]
    shape = [1 if i in gone else n for i, n in enumerate(x.shape)] if attrs["keepdims"] else outer
    rows = x.transpose([*kept, *gone]).reshape(math.prod(outer), -1 if x.size else 0)
    return _filled([separator.join(row) for row in rows], shape)


def _format_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    tensors("string_format", types)
    if int_attr(attrs, "summarize") < -1 or attrs["summarize"] == 0:
        raise InvalidArgumentError("op 'string_format': summarize is -1 (all), or at least 1")
    return [TensorType(string)]


def _format(xs: Sequence[Array], attrs: Attrs) -> Array:
    if not attrs["template"]:  # of which `report` would make a list of the operands
        return _filled([b""], ())
    given = {"message": "", "format": attrs["template"], "summarize": attrs["summarize"]}
    return _filled([as_bytes(report(xs, given))], ())


# ----------------------------------------------------------------------------------- hashes, base64
def sip_hash(key: tuple[int, int], data: bytes) -> int:
    """SipHash-2-4 (J.-P. Aumasson, D. J. Bernstein), 64 bits, with a key of 128."""
    k0, k1 = (k & _M for k in key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261,
         k1 ^ 0x7465646279746573]  # fmt: skip
    whole = len(data) & ~7
    for at in range(0, whole, 8):
        _compress(v, int.from_bytes(data[at : at + 8], "little"))
    _compress(v, int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    v[2] ^= 0xFF
    for _ in range(4):
        _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _compress(v: list[int], word: int) -> None:
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word


def _turned(x: int, by: int) -> int:
    return (x << by | x >> 64 - by) & _M


def _round(v: list[int]) -> None:
    a, b, c, d = v
    a, c = (a + b) & _M, (c + d) & _M
    b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
    a = _turned(a, 32)
    c, a = (c + b) & _M, (a + d) & _M
    b, d = _turned(b, 17) ^ c, _turned(d, 21) ^ a
    v[:] = a, b, _turned(c, 32), d


def _check_strong(op: str, attrs: Attrs) -> None:
    check_buckets(op, attrs)
    key = ints_attr(attrs, "key")
    if len(key) != 2 or any(not -(2**63) <= k <= _M for k in key):
        raise InvalidArgumentError(f"op '{op}': key={list(key)} is no two numbers of 64 bits")


def _strong(attrs: Attrs) -> Callable[[bytes], int]:
    count, (k0, k1) = int_attr(attrs, "num_buckets"), ints_attr(attrs, "key")
    return lambda text: sip_hash((k0, k1), text) % count


def _to_base64(attrs: Attrs) -> Callable[[bytes], bytes]:
    encode = base64.urlsafe_b64encode if attrs["urlsafe"] else base64.b64encode
    pad = bool(attrs["pad"])
    return lambda text: encode(text) if pad else encode(text).rstrip(b"=")


def _from_base64(attrs: Attrs) -> Callable[[bytes], bytes]:
    urlsafe = bool(attrs["urlsafe"])

    def decoded(text: bytes) -> bytes:
        bare = text.rstrip(b"=")
        padding = len(text) - len(bare)
        wanted = -len(bare) % 4
        alien = (b"+" in text or b"/" in text) if urlsafe else (b"-" in text or b"_" in text)
        if not alien and wanted < 3 and padding in (0, wanted):
            plain = bare.translate(bytes.maketrans(b"-_", b"+/")) if urlsafe else bare
            try:
                return base64.b64decode(plain + b"=" * wanted, validate=True)
            except binascii.Error:
                pass
        raise InvalidArgumentError(
            f"{text!r:.60} is no {'URL-safe ' if urlsafe else ''}base64",
            hint=f"urlsafe={not urlsafe} has the other alphabet" if alien else None,
        )

    return decoded


# --------------------------------------------------------------------------------------------- JSON
JSON_DTYPES = (float32, float64, int32, int64, bool_, string)


def _json_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op, (x, *defaults) = "decode_json", tensors("decode_json", types)
    strings_operands(op, [x])
    names, given = strs_attr(attrs, "names"), ints_attr(attrs, "defaults")
    found = [part_type(p) for p in strs_attr(attrs, "parts")]
    if len(names) != len(found) or len({*names}) != len(names) or len(given) != len(defaults):
        raise TypeRuleError(f"op '{op}': names, parts and defaults do not fit together")
    for name, t in zip(names, found, strict=True):
        if t.dtype not in JSON_DTYPES:
            raise TypeRuleError(f"op '{op}': the field {name!r} cannot be {t.dtype.name}")
        if not t.is_static and (x.rank or t.shape != (None,)):
            raise ShapeError(
                f"op '{op}': the field {name!r} may have any length in one document at a time"
            )
    for at, d in zip(given, defaults, strict=True):
        if not 0 <= at < len(found) or d != found[at]:
            raise TypeRuleError(f"op '{op}': the default {d} of field {at} does not fit")
    return fill_sizes(op, [TensorType(t.dtype, (*x.shape, *t.shape)) for t in found], attrs)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")


_MISSING = object()


def _decode_json(xs: Sequence[Array], attrs: Attrs) -> list[Array]:
    x, names = xs[0], strs_attr(attrs, "names")
    types = [part_type(p) for p in strs_attr(attrs, "parts")]
    defaults = dict(zip(ints_attr(attrs, "defaults"), xs[1:], strict=True))
    columns: list[list[Array]] = [[] for _ in names]
    for number, text in enumerate(x.flat):
        place = f"document {number}: " if x.shape else ""
        try:
            tree = json.loads(text.decode(), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{place}{text!r:.60} is no JSON: {error}") from None
        for i, (name, wanted) in enumerate(zip(names, types, strict=True)):
            found = _field(tree, name)
            if (found is _MISSING or found is None) and i in defaults:
                columns[i].append(defaults[i])
            else:
                columns[i].append(_value(place, name, found, wanted))
    return [
        np.stack(c).reshape((*x.shape, *c[0].shape)) if c else
        np.empty((*x.shape, *t.static_shape), t.dtype.numpy)
        for c, t in zip(columns, types, strict=True)
    ]  # fmt: skip


def _field(tree: Any, name: str) -> Any:
    """The value under a key, or where a JSON Pointer ("/a/0", RFC 6901) leads."""
    if not name.startswith("/"):
        return tree.get(name, _MISSING) if isinstance(tree, dict) else _MISSING
    for part in name.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(tree, dict):
            tree = tree.get(key, _MISSING)
        elif isinstance(tree, list) and re.fullmatch(r"0|[1-9][0-9]*", key):
            tree = tree[int(key)] if int(key) < len(tree) else _MISSING
        else:
            return _MISSING
    return tree


def _value(place: str, name: str, found: Any, wanted: TensorType) -> Array:
    if found is _MISSING:
        raise InvalidArgumentError(f"{place}there is no field {name!r}", hint="give it a default")
    sizes: list[int] = []
    level, items = found, [found]
    for _ in wanted.shape:
        if not all(isinstance(i, list) for i in items) or len({len(i) for i in items}) > 1:
            break
        sizes.append(len(items[0]) if items else 0)
        items = [part for item in items for part in item]
    open_ = wanted.shape == (None,)
    if len(sizes) != wanted.rank or not (open_ or tuple(sizes) == wanted.shape):
        raise InvalidArgumentError(f"{place}the field {name!r} is {level!r:.60}, no {wanted}")
    values = [_scalar(item, wanted.dtype) for item in items]
    if None in values:
        bad = items[values.index(None)]
        raise InvalidArgumentError(
            f"{place}the field {name!r} has {bad!r:.60}, no {wanted.dtype.name}"
        )
    if wanted.dtype is string:
        return _filled(values, sizes)
    with np.errstate(over="ignore"):
        return np.array(values, wanted.dtype.numpy).reshape(sizes)


def _scalar(item: Any, dtype: DType) -> Any:
    """A value of the dtype; None for one that is of another kind, or does not fit."""
    if dtype is string:
        return item.encode("utf-8", "surrogatepass") if isinstance(item, str) else None
    if dtype is bool_ or isinstance(item, bool):
        return item if dtype is bool_ and isinstance(item, bool) else None
    if dtype.is_integer:
        most = 2 ** (8 * dtype.itemsize - 1)
        return item if isinstance(item, int) and -most <= item < most else None
    if isinstance(item, (int, float)):
        try:
            return float(item)
        except OverflowError:
            return None
    return None


def _mapped(
    name: str, doc: str, made: Callable[[Attrs], Callable[[bytes], Any]],
    attrs: dict[str, AttrSpec] | None = None, dtype: DType = string,
    check: Callable[[str, Attrs], object] | None = None,
) -> OpSpec:  # fmt: skip
    return OpSpec(name, 1, _checked(name, dtype, check), _each(made, dtype), doc, attrs or {})


_ERRORS = AttrSpec("str", "strict")
TABLE = (
    _mapped(
        "string_case", "Each string in lower or upper case; ascii: only of the letters a to z.",
        _cased, {"case": AttrSpec("str"), "ascii": AttrSpec("bool", False)}, check=_check_case,
    ),
    _mapped(
        "string_strip", "Each string without white space, or `chars`, at both ends.",
        _stripped, {"chars": AttrSpec("str", "")},
    ),
    _mapped(
        "regex_replace", "Each string with `rewrite` in place of what the pattern matches.",
        _replaced,
        {
            "pattern": AttrSpec("str"), "rewrite": AttrSpec("str"),
            "replace_global": AttrSpec("bool", True),
        },
        check=_check_replace,
    ),
    _mapped(
        "regex_full_match", "Whether the pattern matches all of each string.", _full_match,
        {"pattern": AttrSpec("str")}, bool_, pattern_of,
    ),
    _mapped(
        "string_length_utf8", "How many characters each string has.",
        lambda _: lambda text: len(_of(text)), dtype=int32,
    ),
    OpSpec(
        "substr_utf8", 3, substr_type("substr_utf8"), _substr,
        "The characters of each string from a position on, as many as there are up to a length.",
    ),
    _mapped(
        "unicode_transcode", "Each string in another encoding.", _transcoded,
        {
            "input_encoding": AttrSpec("str", "utf-8"),
            "output_encoding": AttrSpec("str", "utf-8"), "errors": _ERRORS,
        },
        check=_check_transcode,
    ),
    OpSpec(
        "string_split_rows", 1, _rows_type("string_split_rows", string, _check_split),
        _rows(_splitter, string),
        "The parts of each string, and where those of each begin.",
        {
            "kind": AttrSpec("str", "separator"), "pattern": AttrSpec("str", ""),
            "maxsplit": AttrSpec("int", -1), **SIZES,
        },
    ),
    OpSpec(
        "unicode_decode", 1, _rows_type("unicode_decode", int32, _check_decode),
        _rows(_points, int32), "The code points of each string, and where those of each begin.",
        {"encoding": AttrSpec("str", "utf-8"), "errors": _ERRORS, **SIZES},
    ),
    OpSpec(
        "unicode_encode", 2, _encode_type, _encode,
        "The strings of rows of code points, which begin at the second operand's places.",
        {"encoding": AttrSpec("str", "utf-8"), "errors": _ERRORS},
    ),
    OpSpec(
        "string_reduce_join", 1, _reduce_type, _reduce_join,
        "The strings along axes joined, the last of `axes` fastest.",
        {
            "axes": AttrSpec("ints"), "keepdims": AttrSpec("bool", False),
            "separator": AttrSpec("str", ""),
        },
    ),
    OpSpec(
        "string_format", None, _format_type, _format,
        "The operands in a template, as `str.format`; summarize: how many elements at each end.",
        {"template": AttrSpec("str"), "summarize": AttrSpec("int", 3)},
    ),
    _mapped(
        "string_to_hash_bucket_strong",
        "A hash of each string modulo `num_buckets` (SipHash-2-4 with a key).", _strong,
        {"num_buckets": AttrSpec("int"), "key": AttrSpec("ints")}, int64, _check_strong,
    ),
    _mapped(
        "encode_base64", "Each string in base64 (RFC 4648).", _to_base64,
        {"pad": AttrSpec("bool", False), "urlsafe": AttrSpec("bool", True)},
    ),
    _mapped(
        "decode_base64", "The bytes that base64 stands for, with padding or without.",
        _from_base64, {"urlsafe": AttrSpec("bool", True)},
    ),
    OpSpec(
        "decode_json", None, _json_type, _decode_json,
        "Fields of JSON documents (RFC 8259), of the types `parts` for each of them.",
        {
            "names": AttrSpec("strs"), "parts": AttrSpec("strs"),
            "defaults": AttrSpec("ints", ()), **SIZES,
        },
    ),
)  # fmt: skip
