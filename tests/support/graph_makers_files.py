"""Makers of ops on strings and files, prints and assertions (see `graph_makers`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphs import GraphMaker, Unfit

from weft.ir.dtypes import ALL, bool_, float32, float64, int32, int64, string
from weft.ir.graph import Value
from weft.ir.ops.io import READER_KINDS
from weft.ir.types import TensorType

PARTS = ("f32[2]", "i64[]", "string[1,2]")


def text(m: GraphMaker, *shape: int) -> Value:
    return m.like(m.dtype([string]), shape)


def strings(m: GraphMaker, op: str) -> None:
    """A pure op on strings, such that it has a meaning for all inputs."""
    m.dtype([string])
    if op == "as_string":
        x = m.some(dtypes=[d for d in ALL if d is not string])
        options = {"scientific": True} if m.flag() else {"shortest": m.flag()}
        m.emit(
            op, [x], precision=m.int(-1, 9), width=m.int(-1, 12),
            fill=m.pick(["", "0", " ", "+", "-"]), **options,
        )  # fmt: skip
        return
    if op == "string_to_number":
        whole = m.some(dtypes=[int32])
        m.emit(op, [m.emit1("as_string", whole)], dtype=m.pick([int32, int64, float32, float64]))
        return
    if op == "decode_raw":
        if m.region:
            raise Unfit
        bytes_ = np.array([b"12345678", b"abcdefgh"], object)
        dtype = m.pick([d for d in ALL if d is not string and d.itemsize <= 8])
        shape = (8 // dtype.itemsize,)
        m.emit(op, [m.constant(bytes_)], out_type=dtype, shape=shape, little_endian=m.flag())
        return
    x = m.some(dtypes=[string])
    match op:
        case "string_join":
            rest = [m.like(string, x.type.shape) for _ in range(m.int(0, 2))]
            m.emit(op, [x, *rest], separator=m.pick(["", ", ", "é"]))
        case "string_length":
            m.emit(op, [x])
        case "string_split":
            row = m.like(string, (3,))
            m.emit(op, [row], delimiter=m.pick([" ", "", "et"]), sizes=_sizes(m))
        case "substr":
            if m.region or not x.type.is_static:
                raise Unfit
            dtype, shape = m.pick([int32, int64]), x.type.static_shape
            places = np.zeros(shape, dtype.numpy), np.full(shape, m.int(0, 9), dtype.numpy)
            m.emit(op, [x, *map(m.constant, places)])
        case _:
            m.emit(op, [x], num_buckets=m.int(1, 1000))


def texts(m: GraphMaker, op: str) -> None:
    """Another pure op on strings, such that it has a meaning for all inputs."""
    m.dtype([string])
    if op == "string_format":
        m.emit(op, [m.some(), m.some()], template="{} and {}", summarize=m.pick([-1, 1, 3]))
        return
    if op in ("unicode_encode", "decode_json"):
        if m.region:
            raise Unfit
        points, splits = np.array([97, 233, 98], np.int32), np.array([0, 2, 2, 3], np.int64)
        if op == "unicode_encode":
            m.emit(op, [m.constant(points), m.constant(splits)])
            return
        given = m.constant(np.array([b'{"a": [1, 2]}', b'{"a": [3, 4], "b": 5}'], object))
        default = m.constant(np.array(7, np.int64))
        m.emit(op, [given, default], names=("a", "b"), parts=("f32[2]", "i64[]"), defaults=(1,))
        return
    if op in ("string_split_rows", "unicode_decode"):
        row = m.like(string, (3,))
        how = {} if op == "unicode_decode" else {"kind": m.pick(["separator", "characters"])}
        options = {"errors": "replace"} if op == "unicode_decode" else {"pattern": "e", **how}
        m.emit(op, [row], sizes=_sizes(m), **options)
        return
    x = m.some(dtypes=[string])
    if op == "substr_utf8":
        if m.region or not x.type.is_static:
            raise Unfit
        shape = x.type.static_shape
        places = np.zeros(shape, np.int64), np.full(shape, m.int(0, 9), np.int64)
        m.emit(op, [x, *map(m.constant, places)])
        return
    if op == "string_reduce_join":
        if not x.type.rank:
            raise Unfit
        m.emit(op, [x], axes=(m.int(0, x.type.rank - 1),), keepdims=m.flag(), separator="-")
        return
    if op == "decode_base64":
        m.emit(op, [m.emit1("encode_base64", x, pad=m.flag())])
        return
    options_of: dict[str, dict[str, Any]] = {
        "string_case": {"case": m.pick(["lower", "upper"]), "ascii": m.flag()},
        "string_strip": {"chars": m.pick(["", "ae"])},
        "regex_replace": {"pattern": "[a-m]+", "rewrite": r"<\g<0>>", "replace_global": m.flag()},
        "regex_full_match": {"pattern": ".?.?"},
        "unicode_transcode": {"errors": "replace", "output_encoding": "utf-16-be"},
        "string_to_hash_bucket_strong": {"num_buckets": m.int(1, 1000), "key": (1, 2)},
        "encode_base64": {"pad": m.flag(), "urlsafe": m.flag()},
    }
    m.emit(op, [x], **options_of.get(op, {}))


def _sizes(m: GraphMaker, count: int = 1) -> tuple[str, ...]:
    number = sum("sizes" in o.attrs for o in m.builder.ops)
    return m.pick([(), tuple(f"n{number}_{i}" for i in range(count))])


def reader(m: GraphMaker, op: str) -> None:
    """A reader, a queue of names, and an op on them."""
    number = sum(o.name == "reader" for o in m.builder.ops)
    made = m.emit1(
        "reader", name=f"r{number}", kind=m.pick(list(READER_KINDS)), skip=m.int(0, 2), record=4,
        footer=m.int(0, 1), hop=m.int(0, 2), compression=m.pick(["", "GZIP"]),
    )  # fmt: skip
    if op in ("reader_read", "reader_read_up_to"):
        queue = m.emit1("queue", name=f"names{number}", parts=("string[]",))
        options: dict[str, Any] = {}
        if op == "reader_read_up_to":
            options = {"n": m.int(1, 9), "sizes": _sizes(m)}
        m.emit(op, [made, queue], **options)
    elif op != "reader":
        m.emit(op, [made])
    m.pool = [v for v in m.pool if isinstance(v.type, TensorType)]


def files(m: GraphMaker, op: str) -> None:
    """An op on files or what they hold."""
    match op:
        case "read_file":
            m.emit(op, [text(m)])
        case "write_file":
            m.emit(op, [text(m), text(m)])
        case "matching_files":
            m.emit(op, [text(m, *m.pick([(), (2,)]))], sizes=_sizes(m))
        case "decode_csv":
            dtypes = [m.dtype([int32, float64, string]) for _ in range(m.int(1, 3))]
            defaults = [m.like(d, m.pick([(), (0,), (1,)])) for d in dtypes]
            columns = m.pick([(), tuple(range(1, len(dtypes) + 1))])
            m.emit(op, [text(m, 2), *defaults], delimiter=m.pick([",", ";"]), columns=columns)
        case "parse_example":
            count = m.int(1, 3)
            with_default = [i for i in range(count) if m.flag()]
            kinds = {
                "f32[2]": (float32, (2,)),
                "i64[]": (int64, ()),
                "string[1,2]": (string, (1, 2)),
            }
            defaults = [m.like(*kinds[PARTS[i]]) for i in with_default]
            m.emit(
                op, [text(m, *m.pick([(), (3,)])), *defaults],
                names=tuple(f"x{i}" for i in range(count)), parts=PARTS[:count],
                defaults=tuple(with_default),
            )  # fmt: skip
            m.emit(op, [text(m, 3)], names=("v",), parts=("i64[?]",), sizes=_sizes(m))
        case "decode_image":
            height, channels = m.pick([-1, 5]), m.pick([0, 3])
            sizes = _sizes(m, 1 + (height < 0) + (not channels))
            m.emit(op, [text(m)], height=height, channels=channels, sizes=sizes)
        case "summary":
            kinds = {
                "scalar": m.like(float32, ()),
                "histogram": m.like(int32, (3,)),
                "image": m.like(float32, (1, 4, 5, 3)),
                "text": text(m),
            }
            kind = m.pick(list(kinds))
            m.emit(op, [kinds[kind]], kind=kind, tag="a/b", limit=m.int(1, 30))
        case "save":
            values = [m.some() for _ in range(m.int(1, 2))]
            names = tuple(f"v{i}" for i in range(len(values)))
            m.emit(op, [text(m), *values], names=names, keep=m.int(-1, 2))
        case "restore":
            m.emit(op, [text(m)], names=("a", "b/c", "ü"), parts=PARTS)


def reports(m: GraphMaker, op: str) -> None:
    """A print or an assertion."""
    data = [m.some() for _ in range(m.int(0, 2))]
    first = [m.like(bool_, ())] if op == "assert" else []
    how = {"relation": m.pick(["", "<"])} if op == "assert" else {"stream": m.pick(["stdout", "a"])}
    text = m.pick(["", "{0:.2f} {{}}"])
    m.emit(
        op,
        [*first, *data],
        message=m.pick(["", "so: "]),
        summarize=m.int(-1, 3),
        format=text,
        **how,
    )
