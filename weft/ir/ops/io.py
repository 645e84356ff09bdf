"""Input and output ops: readers, files, checkpoints, summaries, prints, assertions, calls of Python
functions.

Python carries them out (`runtime.dataflow.host_ops`); `runtime.files` knows the formats.
`py_function` and `debug_callback` call a
function of the user's each time the op runs."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import Formatter
from typing import Any, cast

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import bool_, float32, float64, int32, int64, string, uint8
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.graph import Block, Operation
from weft.ir.ops.collectives import EXCHANGE
from weft.ir.ops.dynamic import SIZES, fill_sizes
from weft.ir.ops.resources import asks, part_type, parts_of
from weft.ir.ops.strings import strings_operands
from weft.ir.spec import Array, Attrs, AttrSpec, OpSpec, int_attr, ints_attr, tensors
from weft.ir.types import TOKEN, HandleType, TensorType, Type

_FILE_EFFECT = frozenset({"host", "no_fold", "no_cse", "no_dce"})
_LOOK = frozenset({"host", "no_fold", "no_cse"})  # what it gives may change
_PURE = frozenset({"host", "no_fold"})
_SIZES = AttrSpec("strs", ())
#: The folders whose files it may use; none: any file.
_WITHIN = AttrSpec("strs", ())
_TEXT = TensorType(string)
#: The ops that use files by names which they are given; each has the attribute `within`.
USES_FILES = frozenset({"reader", "read_file", "write_file", "matching_files", "save", "restore"})
#: What a reader may read.
READER_KINDS = ("text_line", "tfrecord", "whole_file", "fixed_length", "identity")
_CSV_DTYPES = (float32, float64, int32, int64, string)


# ------------------------------------------------------------------------------------------ readers
def _reader_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    if attrs["kind"] not in READER_KINDS:
        raise TypeRuleError(
            f"op 'reader': there is no kind {attrs['kind']!r}",
            hint=f"the kinds are {', '.join(READER_KINDS)}",
        )
    if attrs["kind"] == "fixed_length" and int_attr(attrs, "record") < 1:
        raise InvalidArgumentError("op 'reader': records have at least one byte")
    return [HandleType("reader", ())]


def _check_reader(op: str, types: Sequence[Type]) -> None:
    """A reader, and a queue of names."""
    parts_of(op, types, "reader")
    rest = types[1:]
    if len(rest) != 1 or rest[0] != HandleType("queue", (_TEXT,)):
        raise TypeRuleError(
            f"op '{op}' takes a queue of names (queue<string[]>), got {rest[0] if rest else None}",
            hint="make it with wf.train.string_input_producer, or "
            "wf.tf1.FIFOQueue(n, wf.string, [[]])",
        )


def _read_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check_reader("reader_read", types)
    return [_TEXT, _TEXT]


def _read_up_to_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check_reader("reader_read_up_to", types)
    if int_attr(attrs, "n") < 1:
        raise InvalidArgumentError("op 'reader_read_up_to': n must be at least 1")
    (found,) = fill_sizes("reader_read_up_to", [TensorType(string, (None,))], attrs)
    return [found, found]


# -------------------------------------------------------------------------------------- whole files
def _names(op: str, types: Sequence[Type], count: int) -> None:
    for t in strings_operands(op, types[:count]):
        if t.shape:
            raise ShapeError(f"op '{op}' takes one name of a file, got {t}")


def _read_file_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _names("read_file", types, 1)
    return [_TEXT]


def _write_file_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _names("write_file", types, 2)
    return [TOKEN]


def _matching_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (pattern,) = strings_operands("matching_files", types)
    if pattern.rank > 1:
        raise ShapeError(f"op 'matching_files' takes a pattern or a list of them, got {pattern}")
    return fill_sizes("matching_files", [TensorType(string, (None,))], attrs)


# -------------------------------------------------------------------------------- what records hold
def _csv_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    records, *defaults = tensors("decode_csv", types)
    strings_operands("decode_csv", [records])
    chosen = ints_attr(attrs, "columns")
    rising = list(chosen) == sorted({*chosen}) and min(chosen, default=0) >= 0
    if chosen and (len(chosen) != len(defaults) or not rising):
        raise InvalidArgumentError(
            f"op 'decode_csv': columns {list(chosen)} for {len(defaults)} defaults: they must be "
            "as many, at least 0, and rise"
        )
    for key in ("delimiter", "quote"):
        if len(str(attrs[key])) > 1 or (key == "delimiter" and not attrs[key]):
            raise InvalidArgumentError(f"op 'decode_csv': {key}={attrs[key]!r} is no character")
    for i, d in enumerate(defaults):
        if d.dtype not in _CSV_DTYPES or d.shape not in ((), (0,), (1,)):
            raise TypeRuleError(
                f"op 'decode_csv': the default of column {i} is {d}",
                hint="float32, float64, int32, int64 or string; of one value, or none (shape [0])",
            )
    return [TensorType(d.dtype, records.shape) for d in defaults]


def _example_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    serialized, *defaults = tensors("parse_example", types)
    strings_operands("parse_example", [serialized])
    names, parts = attrs["names"], attrs["parts"]
    assert isinstance(names, tuple)
    assert isinstance(parts, tuple)
    given = ints_attr(attrs, "defaults")
    if len(names) != len(parts) or len(given) != len(defaults):
        raise TypeRuleError("op 'parse_example': names, parts and defaults do not fit together")
    found = [part_type(str(p)) for p in parts]
    for t in found:
        if t.dtype not in (float32, int64, string):
            raise TypeRuleError(f"op 'parse_example': an Example holds no {t.dtype.name}")
        if not t.is_static and (serialized.rank > 1 or t.shape != (None,)):
            raise ShapeError(
                "op 'parse_example': a feature of any length is for one example, or for a list "
                f"of them, got examples of shape {format_shape(serialized.shape)}",
                hint="reshape them to [n], or use a FixedLenFeature",
            )
    for at, d in zip(given, defaults, strict=True):
        if not 0 <= at < len(found) or d != found[at]:
            raise TypeRuleError(f"op 'parse_example': the default {d} of feature {at} does not fit")
    whole = [() if serialized.rank and not t.is_static else serialized.shape for t in found]
    made = [TensorType(t.dtype, (*n, *t.shape)) for n, t in zip(whole, found, strict=True)]
    out: list[Type] = []
    for filled, wanted in zip(fill_sizes("parse_example", made, attrs), found, strict=True):
        t = cast(TensorType, filled)
        if serialized.rank and not wanted.is_static:  # entries of a sparse [examples, most values]
            out += [TensorType(int64, (*t.shape, 2)), t, TensorType(int64, (2,))]
        else:
            out.append(t)
    return out


def _image_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _names("decode_image", types, 1)
    sizes = [int_attr(attrs, k) for k in ("height", "width", "channels")]
    if sizes[2] not in (0, 1, 2, 3, 4):
        raise InvalidArgumentError("op 'decode_image': channels is one of 0 (as it is), 1, 2, 3, 4")
    shape = tuple(None if n == (0 if i == 2 else -1) else n for i, n in enumerate(sizes))
    return fill_sizes("decode_image", [TensorType(uint8, shape)], attrs)


# -------------------------------------------------------------------------------------- checkpoints
def _save_names(op: str, attrs: Attrs) -> list[str]:
    names = attrs["names"]
    assert isinstance(names, tuple)
    if len({*names}) != len(names) or not all(re.fullmatch(r".+", str(n)) for n in names):
        raise InvalidArgumentError(f"op '{op}': the names must be different, and not empty")
    return [str(n) for n in names]


def _save_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _names("save", types, 1)
    values = tensors("save", types[1:])
    if len(_save_names("save", attrs)) != len(values) or not values:
        raise TypeRuleError(f"op 'save' needs a name for each of {len(values)} tensors, at least 1")
    return [TOKEN]


def _restore_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _names("restore", types, 1)
    parts = attrs["parts"]
    assert isinstance(parts, tuple)
    found = [part_type(str(p)) for p in parts]
    if len(_save_names("restore", attrs)) != len(found):
        raise TypeRuleError("op 'restore' needs a name for each type")
    return fill_sizes("restore", found, attrs)


# ---------------------------------------------------------------------------------------- summaries
#: What TensorBoard shows of a value.
SUMMARY_KINDS = ("scalar", "histogram", "image", "text")


def summary_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    """The type rule of `summary`. TypeRuleError or ShapeError for what has no such summary."""
    kind, tag = attrs["kind"], attrs["tag"]
    (x,) = tensors("summary", types)
    what = f"a summary of kind '{kind}' ('{tag}')"
    if kind not in SUMMARY_KINDS or not tag or int_attr(attrs, "limit") < 1:
        raise InvalidArgumentError(
            f"{what} with limit={attrs['limit']}: a summary has one of the kinds "
            f"{', '.join(SUMMARY_KINDS)}, a name, and a limit of at least 1"
        )
    if kind == "text":
        strings_operands("summary", [x])
        if x.rank > 2:
            raise ShapeError(f"{what} is a string or a table of them, with at most 2 axes, got {x}")
    elif kind == "image":
        if x.dtype is not uint8 and not x.dtype.is_floating:
            raise TypeRuleError(
                f"{what} takes uint8, or floats from 0 to 1, got {x}",
                hint="wf.astype(x, wf.uint8), or x / 255",
            )
        if not 2 <= x.rank <= 4 or (x.rank > 2 and x.shape[-1] not in (1, 3, 4)):
            raise ShapeError(
                f"{what} takes [n, height, width, channels], [height, width, channels] or "
                f"[height, width], with 1, 3 or 4 channels, got {x}"
            )
    else:
        if x.dtype is string or x.dtype.is_complex:
            hint = "wf.abs(x), wf.real(x), wf.imag(x)" if x.dtype.is_complex else "wf.summary.text"
            raise TypeRuleError(f"{what} takes real numbers, got {x}", hint=hint)
        if kind == "scalar" and x.rank:
            raise ShapeError(
                f"{what} takes one number, got {x}", hint="wf.mean(x), or wf.summary.histogram"
            )
    return [_TEXT]


FILE_TABLE = (
    OpSpec(
        "reader", 0, _reader_type, None,
        "A handle to the reader called `name`, which steps share.",
        {
            "name": AttrSpec("str"), "kind": AttrSpec("str"), "skip": AttrSpec("int", 0),
            "record": AttrSpec("int", 0), "footer": AttrSpec("int", 0), "hop": AttrSpec("int", 0),
            "compression": AttrSpec("str", ""), "within": _WITHIN,
        },
        frozenset({"handle", "no_fold"}),
    ),
    OpSpec(
        "reader_read", 2, _read_type, None,
        "The key and value of the next record of the files that the queue names; waits for it.",
        traits=_FILE_EFFECT,
    ),
    OpSpec(
        "reader_read_up_to", 2, _read_up_to_type, None,
        "The keys and values of the next records of one file, `n` at most.",
        {"n": AttrSpec("int"), "sizes": _SIZES}, _FILE_EFFECT,
    ),
    asks(
        "reader_num_records_produced", ["reader"], TensorType(int64),
        "How many records it has read.", traits=_LOOK,
    ),
    asks(
        "reader_num_work_units_completed", ["reader"], TensorType(int64),
        "How many files it has read to their end.", traits=_LOOK,
    ),
    asks("reader_reset", ["reader"], TOKEN, "Make the reader as new."),
    OpSpec(
        "read_file", 1, _read_file_type, None, "All bytes of a file.", {"within": _WITHIN}, _LOOK
    ),
    OpSpec(
        "write_file", 2, _write_file_type, None,
        "Write a file, in place of the one that is there.", {"within": _WITHIN}, _FILE_EFFECT,
    ),
    OpSpec(
        "matching_files", 1, _matching_type, None,
        "The names of the files that fit a pattern, sorted.",
        {"sizes": _SIZES, "within": _WITHIN}, _LOOK,
    ),
    OpSpec(
        "decode_csv", None, _csv_type, None,
        "The fields of each record; the operands after the records are defaults.",
        {
            "delimiter": AttrSpec("str", ","), "quote": AttrSpec("str", '"'),
            "na_value": AttrSpec("str", ""), "columns": AttrSpec("ints", ()),
        },
        _PURE,
    ),
    OpSpec(
        "parse_example", None, _example_type, None,
        "Features of serialized tf.train.Examples, of the types `parts` for each of them. One of "
        "any length, of a list of examples, is indices, values and shape of a sparse matrix.",
        {
            "names": AttrSpec("strs"), "parts": AttrSpec("strs"),
            "defaults": AttrSpec("ints", ()), "sizes": _SIZES,
        },
        _PURE,
    ),
    OpSpec(
        "decode_image", 1, _image_type, None,
        "The pixels of an image, u8[height, width, channels].",
        {
            "height": AttrSpec("int", -1), "width": AttrSpec("int", -1),
            "channels": AttrSpec("int", 0), "sizes": _SIZES,
        },
        _PURE,
    ),
    OpSpec(
        "save", None, _save_type, None,
        "Write a checkpoint: the operands after the file's name, under `names`. With `keep` >= 0 "
        "the folder's state file names it, and so many of its name stay (0: all).",
        {"names": AttrSpec("strs"), "keep": AttrSpec("int", -1), "within": _WITHIN}, _FILE_EFFECT,
    ),
    OpSpec(
        "restore", 1, _restore_type, None, "What a checkpoint holds under `names`.",
        {
            "names": AttrSpec("strs"), "parts": AttrSpec("strs"), "within": _WITHIN,
            "sizes": _SIZES,
        },
        _LOOK,
    ),
    OpSpec(
        "summary", 1, summary_type, None,
        "What TensorBoard shows of a value, as a serialized Summary. limit: of images how many, of "
        "a histogram how many buckets.",
        {"kind": AttrSpec("str"), "tag": AttrSpec("str"), "limit": AttrSpec("int", 1)}, _PURE,
    ),
)  # fmt: skip


_EFFECT = frozenset({"host", "no_fold", "no_cse", "no_dce"})
#: format: as of `str.format`, "" for the message and the operands in brackets, as TensorFlow 1
#: prints them; summarize: how many elements of each (-1: all). stream: "stderr", "stdout" or a
#: file's name, to which lines are added. relation: which one should hold between the elements of
#: the first two operands after the condition; the error says where it does not.
_REPORT_ATTRS = {
    "message": AttrSpec("str", ""), "summarize": AttrSpec("int", 3), "format": AttrSpec("str", ""),
}  # fmt: skip


def _print_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    tensors("print", types)
    return [TOKEN]


def _assert_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    found = tensors("assert", types)
    if not found or found[0].dtype is not bool_:
        raise TypeRuleError(f"op 'assert' takes a bool first, got {found[0] if found else None}")
    if found[0].shape:
        raise ShapeError(
            f"op 'assert' takes a bool without axes, got {found[0]}", hint="wf.all(condition)"
        )
    return [TOKEN]


def summary(array: Array, summarize: int) -> str:
    """The first `summarize` elements (-1: all) in brackets, as TensorFlow prints them."""
    count = array.size if summarize < 0 else summarize
    shown = " ".join(_element(x) for x in array.reshape(-1)[:count])
    if not array.ndim:
        return shown or _element(array[()])
    return f"[{shown}{'...' if array.size > count else ''}]"


def _element(x: Any) -> str:
    if isinstance(x, bytes):
        return x.decode("utf-8", "backslashreplace")
    return f"{x:.6g}" if isinstance(x, (float, np.floating)) else str(x)


#: NumPy cannot lay out elements that are shown as nothing.
_OF_STRINGS: Any = {"object": lambda x: _element(x) or "''"}


class Shown:
    """An array in a format string: `{}` gives it as NumPy prints it, `{:.3f}` each of its elements
    in that format; summarize: how many elements at each end of each axis (-1: all)."""

    __slots__ = ("array", "summarize")

    def __init__(self, array: Array, summarize: int) -> None:
        self.array, self.summarize = array, summarize

    def __str__(self) -> str:
        return format(self, "")

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        array = self.array
        if not array.ndim:
            value = array.item()
            if isinstance(value, bytes):
                value = value.decode("utf-8", "backslashreplace")
            elif array.dtype.kind in "fV" and not spec:  # an f32 shows its own digits
                return str(array[()])
            return format(value, spec)
        many = self.summarize < 0
        edge = 3 if many else self.summarize
        each: Any = {"all": lambda x: format(x.item() if hasattr(x, "item") else x, spec)}
        return np.array2string(
            array, separator=" ", threshold=array.size if many else 2 * edge, edgeitems=edge,
            formatter=each if spec else _OF_STRINGS if array.dtype == object else None,
        )  # fmt: skip


def _check_fields(text: str) -> None:
    """ValueError for a field that is no number: attributes and items of a value lead to all that
    the process holds, which a graph of somebody else must not show."""
    for _, field, spec, _ in Formatter().parse(text):
        if field and not (field.isascii() and field.isdigit()):
            raise ValueError(f"the field {field!r} is no number of a value")
        if spec:
            _check_fields(spec)


def report(arrays: Sequence[Array], attrs: Attrs) -> str:
    """The message and the data of a print or an assertion. InvalidArgumentError for a format
    that does not fit them."""
    count = attrs["summarize"]
    assert isinstance(count, int)
    if not attrs["format"]:
        return str(attrs["message"]) + "".join(f"[{summary(a, count)}]" for a in arrays)
    try:
        _check_fields(str(attrs["format"]))
        return str(attrs["format"]).format(*[Shown(a, count) for a in arrays])
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"the format {attrs['format']!r} does not fit its values: {error}"
        ) from None


class _Muted(threading.local):
    """Whether prints and callbacks do nothing in this thread, and whether assertions do."""

    on = False
    assertions = False


_MUTED = _Muted()


@contextmanager
def muted(*, assertions: bool = True) -> Iterator[None]:
    """Prints, assertions and callbacks of this thread do nothing in the block: who runs a graph to
    see what it computes, on made-up inputs, does not want to hear of them. assertions: False where
    they are to be checked all the same, as on the inputs that the step really had."""
    before = _MUTED.on, _MUTED.assertions
    _MUTED.on, _MUTED.assertions = True, assertions
    try:
        yield
    finally:
        _MUTED.on, _MUTED.assertions = before


def _print(arrays: Sequence[Array], attrs: Attrs) -> list[Any]:
    """Write the line, in one write."""
    if _MUTED.on:
        return [None]
    line, stream = report(arrays, attrs) + "\n", str(attrs["stream"])
    if stream in ("stderr", "stdout"):
        file = sys.stderr if stream == "stderr" else sys.stdout
        file.write(line)
        file.flush()
        return [None]
    try:
        with open(stream, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise FailedPreconditionError(f"{stream}: {error.strerror or error}") from error
    return [None]


_RELATIONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater,
    ">=": np.greater_equal,
}  # fmt: skip


def _where(relation: str, x: Array, *more: Array) -> str:
    """Where the relation does not hold: "finite", one of `_RELATIONS`, or "~ RTOL ATOL"."""
    x, *others = np.broadcast_arrays(x, *more)
    if relation == "finite":
        holds = np.isfinite(x.astype(np.float64) if x.dtype.kind == "V" else x)
    elif relation.startswith("~"):
        rtol, atol = map(float, relation.split()[1:])
        holds = np.abs(x - others[0]) <= atol + rtol * np.abs(others[0])
    else:
        holds = _RELATIONS[relation](x, others[0])
    bad = np.argwhere(~holds)
    if not len(bad):  # a kernel rounds otherwise
        return f": of {holds.size} elements, by the last bit of one"
    first = tuple(bad[0].tolist())
    sign = {"finite": "", "~": "!~"}.get(relation[:1] if others else relation, relation)
    values = f" not {sign} ".join(_element(a[first]) for a in (x, *others))
    return f": {len(bad)} of {holds.size} elements, first " + (
        f"element {list(first)}: {values}" if first else values
    )


def _assert(arrays: Sequence[Array], attrs: Attrs) -> list[Any]:
    """InvalidArgumentError if the condition, the first array, does not hold."""
    if not (bool(arrays[0]) or _MUTED.assertions):
        what = report(arrays[1:], attrs)
        if attrs["format"]:
            where = _where(str(attrs["relation"]), *arrays[1:3]) if attrs["relation"] else ""
            raise InvalidArgumentError(what + where)
        raise InvalidArgumentError(f"assertion failed{': ' if what else ''}{what}")
    return [None]


REPORT_TABLE = (
    OpSpec(
        "print", None, _print_type, _print,
        "Write the message and the operands, `summarize` elements each, as a line of `stream`.",
        {**_REPORT_ATTRS, "stream": AttrSpec("str", "stderr")}, _EFFECT,
    ),
    OpSpec(
        "assert", None, _assert_type, _assert,
        "End the step with an error that shows the other operands if the first one is False.",
        {**_REPORT_ATTRS, "relation": AttrSpec("str", "")}, _EFFECT,
    ),
)  # fmt: skip


_Array = np.ndarray[Any, Any]
HostFunction = Callable[[Sequence[_Array]], list[_Array]]


#: From the types of the results, and whether they come as a list, to what computes them.
MakeFunction = Callable[[Sequence[TensorType], bool], HostFunction]
_registered: dict[str, MakeFunction] = {}


def register_host_function(name: str, make: MakeFunction) -> None:
    """In this process a graph's text finds a function by that name, the last one registered."""
    _registered[name] = make


class FunctionName(str):
    """The name of a Python function, with the function: it lives as long as a graph has the name.

    As text, and in another process, it is the name alone; `register_host_function` says which
    function has it there.
    """

    __slots__ = ("function", "registered")
    function: HostFunction
    registered: bool

    def __new__(cls, name: str, function: HostFunction, registered: bool = False) -> FunctionName:
        made = super().__new__(cls, name)
        made.function, made.registered = function, registered
        return made


def _py_function_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    tensors("py_function", types)
    parts = attrs["parts"]
    assert isinstance(parts, tuple)
    return fill_sizes("py_function", [part_type(str(p)) for p in parts], attrs)


def _callback_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    tensors("debug_callback", types)
    return [TOKEN]


def is_registered(op: Operation) -> bool:
    """Whether the function of a Python call has its name in other processes, too."""
    name = op.attrs["function"]
    return name.registered if isinstance(name, FunctionName) else name in _registered


def call_function(arrays: Sequence[_Array], attrs: Attrs) -> list[_Array]:
    """Call the function. FailedPreconditionError if the graph was read from text, and no function
    is registered by the name; else what the function itself raises, which is a WeftError."""
    name, parts = attrs["function"], attrs["parts"]
    if isinstance(name, FunctionName):
        return name.function(arrays)
    assert isinstance(name, str)
    assert isinstance(parts, tuple)
    make = _registered.get(name)
    if make is None:
        raise FailedPreconditionError(
            f"no Python function is registered as '{name}' in this process",
            hint="wf.register_function does that; a task imports modules that do so with "
            "`weft worker --import MODULE`",
        )
    return make([part_type(str(p)) for p in parts], attrs["listed"] is True)(arrays)


def _call_back(arrays: Sequence[_Array], attrs: Attrs) -> list[Any]:
    if not _MUTED.on:
        call_function(arrays, attrs)
    return [None]


HOST_FUNCTION_TABLE = (
    OpSpec(
        "py_function",
        None,
        _py_function_type,
        call_function,
        "What a Python function of the user's gives, of the types `parts`.",
        {
            "function": AttrSpec("str"),
            "parts": AttrSpec("strs"),
            "listed": AttrSpec("bool", False),
            **SIZES,
        },
        _EFFECT,
    ),
    OpSpec(
        "debug_callback",
        None,
        _callback_type,
        _call_back,
        "Call a Python function of the user's for what it does; `ordered`: in the program's order.",
        {
            "function": AttrSpec("str"),
            "parts": AttrSpec("strs", ()),
            "listed": AttrSpec("bool", True),
            "ordered": AttrSpec("bool", True),
        },
        _EFFECT,
    ),
)

#: Ops that Python carries out wherever a step is, in a native step too (`codegen/python_calls.py`):
#: they wait for nothing in this process, name no object, and do what their reference does.
PYTHON_CALLS = frozenset(spec.name for spec in (*REPORT_TABLE, *HOST_FUNCTION_TABLE, EXCHANGE))
#: Those that do nothing where they are `muted`: what a function of the user's gives may be another
#: thing the second time.
SILENT_CALLS = PYTHON_CALLS - {"py_function", "exchange"}
