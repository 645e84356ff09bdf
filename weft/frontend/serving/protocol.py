"""The Open Inference Protocol, version 2, over HTTP, with Triton's binary extension: bytes of
requests as arrays, and arrays as bytes of answers.

Sources: github.com/kserve/open-inference-protocol (inference_rest.yaml), and
extension_binary_data, extension_model_repository and extension_statistics of
github.com/triton-inference-server/server. Beyond them, float16 and bfloat16 have a form in JSON,
numbers, which is exact. All that is wrong in a request is an InvalidArgumentError; sizes are
checked against the bytes that are there before any memory is taken."""

from __future__ import annotations

import importlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from weft.frontend.serving.models import Port, Signature, Version, shown_shape
from weft.frontend.serving.repository import AVAILABLE, END, LOADING, UNLOADING, Model
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]

#: The header that says where the JSON of a request or an answer ends and bytes of tensors begin.
HEADER = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data", "statistics", "model_repository"]
#: The most axes that a tensor of a request may have.
_MOST_AXES = 32
#: The most that the other sizes of a tensor without elements may come to: a few bytes of JSON are
#: not to ask for results of gigabytes.
_MOST_EMPTY = 1 << 24
#: Python's types of values, by the kind of a dtype; int for the others.
_PYTHON: dict[str, set[type]] = {"bool": {bool}, "string": {str, bytes}, "float": {int, float}}
_OTHERS = {"bool": "BOOL", "string": "BYTES", "bfloat16": "BF16"}


def datatype(kind: DType) -> str:
    """What the protocol calls a dtype.

    >>> from weft.frontend.serving.protocol import datatype
    >>> [datatype(t) for t in (wf.float32, wf.uint8, wf.bool, wf.string, wf.bfloat16)]
    ['FP32', 'UINT8', 'BOOL', 'BYTES', 'BF16']
    """
    if kind.name in _OTHERS:
        return _OTHERS[kind.name]
    return f"FP{kind.bits}" if kind.is_floating else kind.name.upper()


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request that fits its signature. outputs: for each that is asked for, its number among
    those of the signature, and whether as bytes. shown: what the answer has of the request.
    timeout: seconds, if it says so."""

    signature: Signature
    arrays: list[Array]
    timeout: float | None
    outputs: list[tuple[int, bool]]
    shown: dict[str, Any]


def server_metadata() -> dict[str, Any]:
    """What a server says of itself."""
    version = str(importlib.import_module("weft").__version__)
    return {"name": "weft", "version": version, "extensions": EXTENSIONS}


def metadata(versions: Mapping[int, Version], version: Version) -> dict[str, Any]:
    """What a version takes and gives. `inputs` and `outputs` are those of its default signature, if
    it has one; `signatures` has all."""

    def ports(given: Sequence[Port]) -> list[dict[str, Any]]:
        return [
            {"name": p.name, "datatype": datatype(p.type.dtype), "shape": shown_shape(p.type)}
            for p in given
        ]

    told = {
        name: {
            "inputs": ports(s.inputs), "outputs": ports(s.outputs),
            "batched": s.by_rows, "why_not": s.why_not,
        }
        for name, s in version.signatures.items()
    }  # fmt: skip
    try:
        chosen = version.signature()
        default = {"inputs": ports(chosen.inputs), "outputs": ports(chosen.outputs)}
    except InvalidArgumentError:  # several, of which none is the default
        default = {"inputs": [], "outputs": []}
    return {
        "name": version.model, "versions": [str(n) for n in sorted(versions)],
        "platform": "weft_bundle", **default, "signatures": told,
    }  # fmt: skip


def index(models: Iterable[Model], only_ready: bool) -> list[dict[str, Any]]:
    """The versions of models, and their states, as Triton's repository extension has them."""
    told = []
    for model in models:
        states = [state for _, state in sorted(model.states.items())]
        for one in states:
            ready = one.number in model.versions
            if ready or not only_ready:
                state = "READY" if ready else _STATES[one.state]
                told.append({
                    "name": model.name, "version": str(one.number), "state": state,
                    "reason": one.error or ("" if ready else _REASONS[one.state]),
                })  # fmt: skip
        if not states and not only_ready:
            told.append(
                {"name": model.name, "version": "", "state": "UNAVAILABLE", "reason": "unloaded"}
            )
    return told


_STATES = {LOADING: "LOADING", UNLOADING: "UNLOADING"} | dict.fromkeys(
    (AVAILABLE, END), "UNAVAILABLE"
)
_REASONS = {LOADING: "", UNLOADING: "requests are under way", AVAILABLE: "", END: "unloaded"}


def check_load(given: Mapping[str, Any]) -> None:
    """InvalidArgumentError for a request to load a model that brings files or options along."""
    parameters = _parameters(given, "the request")
    if parameters:
        raise InvalidArgumentError(
            f"the parameter '{next(iter(parameters)):.100}' is not supported"
        )


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """The seconds that the parameter `timeout` of a request, microseconds as in Triton, gives it;
    None for 0, as there. InvalidArgumentError for what is no number."""
    given = parameters.get("timeout")
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 19:
        given = int(given)  # so clients may write 64-bit numbers
    if given is None:
        return None
    if type(given) is not int or not 0 <= given < 1 << 63:
        raise InvalidArgumentError("the parameter 'timeout' must be a number of microseconds")
    return given / 1e6 if given else None


# --------------------------------------------------------------------------------------- requests


def read_json(body: bytes | memoryview) -> dict[str, Any]:
    """A JSON object; NaN and Infinity may stand in it as bare words. InvalidArgumentError."""
    try:
        given = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the request is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidArgumentError("the request is no JSON object")
    return given


def read_request(version: Version, body: bytes, header_length: str | None) -> InferRequest:
    """An infer request. header_length: the header that says how long the JSON is, if it is there.
    Errors as `Version.signature`, and InvalidArgumentError."""
    split = _header_length(header_length, len(body))
    given, rest = read_json(memoryview(body)[:split]), memoryview(body)[split:]
    request = InferReader(version, given)
    for name, entry in request.entries.items():
        rest = request.read(name, entry, rest)
    if rest.nbytes:
        raise InvalidArgumentError(f"{rest.nbytes} bytes of the request are of no tensor")
    return request.done()


class InferReader:
    """A request whose tensors are read one after the other; then `done` has it. given: its JSON;
    entries: its inputs. Errors as `read_request`."""

    def __init__(self, version: Version, given: Mapping[str, Any]) -> None:
        self._version, self._given = version, given
        self._parameters = _parameters(given, "the request")
        self._signature = version.signature(self._parameters.get("signature"))
        self.entries = _entries(given, "inputs")
        self._ports = {port.name: port for port in self._signature.inputs}
        self._arrays: dict[str, Array] = {}

    def read(self, name: str, entry: Mapping[str, Any], rest: memoryview) -> memoryview:
        """Read a tensor, and return what its bytes leave of those that come after the JSON."""
        port = self._port(name)
        self._arrays[name], rest = _read_tensor(port, entry, rest)
        return rest

    def read_raw(self, name: str, entry: Mapping[str, Any], data: bytes) -> None:
        """Read a tensor that has these bytes."""
        port = self._port(name)
        shape = _shape(port, entry)
        held = memoryview(data)
        self._arrays[name] = _of_bytes(held, port.type.dtype, shape, f"input '{name}'")

    def _port(self, name: str) -> Port:
        if name not in self._ports:
            raise InvalidArgumentError(
                f"signature '{self._signature.name}' has no input '{name:.100}'; it has "
                f"{', '.join(self._ports) or 'none'}"
            )
        return self._ports[name]

    def done(self) -> InferRequest:
        """The request, with its arrays in the order of the signature."""
        version, given, parameters = self._version, self._given, self._parameters
        missing = [name for name in self._ports if name not in self._arrays]
        if missing:
            raise InvalidArgumentError(f"the input '{missing[0]}' is missing")
        ordered = [self._arrays[name] for name in self._ports]
        self._signature.check(ordered)
        shown: dict[str, Any] = {"model_name": version.model, "model_version": str(version.number)}
        if "id" in given:
            if not isinstance(given["id"], str):
                raise InvalidArgumentError("the id of a request must be a string")
            shown["id"] = given["id"]
        if parameters:
            shown["parameters"] = parameters
        outputs = _outputs(self._signature, given, parameters)
        return InferRequest(self._signature, ordered, timeout_of(parameters), outputs, shown)


def _header_length(given: str | None, most: int) -> int:
    if given is None:
        return most
    if not (given.isascii() and given.isdigit() and len(given) < 19 and int(given) <= most):
        raise InvalidArgumentError(
            f"{HEADER} is '{given:.40}', which is no number of bytes of a body of {most}"
        )
    return int(given)


def _parameters(given: Mapping[str, Any], what: str) -> dict[str, Any]:
    found = given.get("parameters", {})
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"the parameters of {what} are no JSON object")
    for name, value in found.items():
        if not isinstance(value, (str, int, float, bool)):
            raise InvalidArgumentError(
                f"the parameter '{name:.100}' of {what} is no string, number or boolean"
            )
        if name.startswith("shared_memory") or name == "classification":
            raise InvalidArgumentError(f"the parameter '{name:.100}' of {what} is not supported")
    return found


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    found = parameters.get(name, default)
    if not isinstance(found, bool):
        raise InvalidArgumentError(f"the parameter '{name}' must be true or false")
    return found


def _entries(given: Mapping[str, Any], field: str) -> dict[str, dict[str, Any]]:
    """The tensors that a request names in a field, by their names."""
    listed = given.get(field, [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise InvalidArgumentError(f"'{field}' is no list of JSON objects")
    found: dict[str, dict[str, Any]] = {}
    for one in listed:
        name = one.get("name")
        if not isinstance(name, str):
            raise InvalidArgumentError(f"one of the {field} has no name")
        if name in found:
            raise InvalidArgumentError(f"'{name:.100}' is twice among the {field}")
        found[name] = one
    return found


def _outputs(
    signature: Signature, given: Mapping[str, Any], parameters: Mapping[str, Any]
) -> list[tuple[int, bool]]:
    binary = _flag(parameters, "binary_data_output", False)
    asked = _entries(given, "outputs")
    names = [port.name for port in signature.outputs]
    if not asked:
        return [(i, binary) for i in range(len(names))]
    found = []
    for name, entry in asked.items():
        if name not in names:
            raise InvalidArgumentError(
                f"signature '{signature.name}' has no output '{name:.100}'; it has "
                f"{', '.join(names) or 'none'}"
            )
        own = _parameters(entry, f"the output '{name}'")
        found.append((names.index(name), _flag(own, "binary_data", binary)))
    return found


def _shape(port: Port, entry: Mapping[str, Any]) -> list[int]:
    """The shape that an entry says, with its dtype checked; its elements may be any number."""
    kind, what = port.type.dtype, f"input '{port.name}'"
    if entry.get("datatype") != datatype(kind):
        raise InvalidArgumentError(
            f"{what} is {datatype(kind)}, but the request says {entry.get('datatype')!s:.40}"
        )
    shape = entry.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_AXES
        or not all(type(d) is int and 0 <= d < 1 << 62 for d in shape)
    ):
        raise InvalidArgumentError(f"the shape of {what} is no list of at most {_MOST_AXES} sizes")
    if 0 in shape and math.prod([max(d, 1) for d in shape]) > _MOST_EMPTY:
        raise InvalidArgumentError(f"{what} has no elements, but sizes up to {max(shape)}")
    return shape


def _read_tensor(
    port: Port, entry: Mapping[str, Any], rest: memoryview
) -> tuple[Array, memoryview]:
    """The tensor of an entry, and what its bytes leave of those after the JSON."""
    kind, what, shape = port.type.dtype, f"input '{port.name}'", _shape(port, entry)
    size = _parameters(entry, what).get("binary_data_size")
    if size is None:
        return array_of(entry.get("data"), kind, shape, what), rest
    if "data" in entry:
        raise InvalidArgumentError(f"{what} has both data and a binary_data_size")
    if type(size) is not int or not 0 <= size <= rest.nbytes:
        raise InvalidArgumentError(
            f"{what} says that it has {size!s:.40} bytes, but {rest.nbytes} are left"
        )
    return _of_bytes(rest[:size], kind, shape, what), rest[size:]


def _of_bytes(data: memoryview, kind: DType, shape: list[int], what: str) -> Array:
    count = math.prod(shape)
    if kind.kind == "string":
        return _filled(_split_strings(data, what), shape, count, what)
    if data.nbytes != count * kind.itemsize:
        raise InvalidArgumentError(
            f"{what} has {data.nbytes} bytes, but its shape {shape} takes {count * kind.itemsize}"
        )
    if kind.kind == "bool":  # other bytes than 0 and 1 are no booleans
        truth: Array = np.frombuffer(data, np.uint8) != 0
        return truth.reshape(shape)
    plain = np.frombuffer(data, np.dtype(f"<u{kind.itemsize}"))
    found: Array = plain.view(kind.numpy).reshape(shape)
    return found


def _split_strings(data: memoryview, what: str) -> list[bytes]:
    found, at = [], 0
    while at < data.nbytes:
        end = at + 4
        length = struct.unpack_from("<I", data, at)[0] if end <= data.nbytes else 0
        if end + length > data.nbytes:
            raise InvalidArgumentError(f"the bytes of {what} end within a string")
        found.append(bytes(data[end : end + length]))
        at = end + length
    return found


def _filled(strings: list[bytes], shape: Sequence[int], count: int, what: str) -> Array:
    if len(strings) != count:
        raise InvalidArgumentError(
            f"{what} has {len(strings)} strings, but its shape {list(shape)} takes {count}"
        )
    flat = np.empty(count, object)
    flat[:] = strings
    return flat.reshape(shape)


# ------------------------------------------------------------------------------- values from JSON


def array_of(data: Any, kind: DType, shape: Sequence[int], what: str) -> Array:
    """Data of JSON, flat or nested as the shape says, as an array. Strings are UTF-8, or
    {"b64": ...} where it is nested. InvalidArgumentError for values that the dtype cannot hold."""
    if not isinstance(data, list):
        if shape:
            raise InvalidArgumentError(f"{what} has no data")
        data = [data]
    count, level = math.prod(shape), data
    if level and isinstance(level[0], list):
        if len(level) != next(iter(shape), None):
            raise _ragged(what, shape)
        for size in shape[1:]:
            if not all(isinstance(one, list) and len(one) == size for one in level):
                raise _ragged(what, shape)
            level = list(chain.from_iterable(level))
    if len(level) != count:
        raise InvalidArgumentError(
            f"{what} has {len(level)} values, but its shape {list(shape)} takes {count}"
        )
    return _flat_array(level, kind, what, shape)


def _ragged(what: str, shape: Sequence[int]) -> InvalidArgumentError:
    return InvalidArgumentError(f"the lists of {what} do not nest as its shape {list(shape)}")


def _flat_array(values: list[Any], kind: DType, what: str, shape: Sequence[int]) -> Array:
    """Values of JSON as an array of a shape that has as many. InvalidArgumentError for those that
    the dtype cannot hold."""
    types: set[type] = set(map(type, values))
    allowed = _PYTHON.get(kind.kind, {int})
    if not types <= allowed:
        wrong = min(t.__name__ for t in types - allowed)
        raise InvalidArgumentError(f"{what} is {datatype(kind)}, but has a value of type {wrong}")
    if kind.kind == "string":
        try:
            strings = [v if isinstance(v, bytes) else v.encode() for v in values]
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"a string of {what} is not Unicode") from None
        return _filled(strings, shape, len(strings), what)
    try:
        if not kind.is_floating:
            return np.array(values, kind.numpy).reshape(shape)
        wide = np.array(values, np.float64)
    except OverflowError:
        raise InvalidArgumentError(f"{what} has a value beyond {datatype(kind)}") from None
    with np.errstate(over="ignore"):
        array = wide.astype(kind.numpy)
    if bool(np.any(np.isinf(array) & np.isfinite(wide))):
        raise InvalidArgumentError(f"{what} has a value beyond {datatype(kind)}")
    return array.reshape(shape)


# ---------------------------------------------------------------------------------------- answers


def write_answer(request: InferRequest, results: Sequence[Array]) -> tuple[bytes, int | None]:
    """The body of an answer, and how long its JSON is, if bytes of tensors come after it.
    InvalidArgumentError for strings that are not UTF-8 but were asked for as JSON."""
    entries, tails = [], []
    for number, binary in request.outputs:
        port, array = request.signature.outputs[number], results[number]
        kind = port.type.dtype
        entry: dict[str, Any] = {
            "name": port.name, "datatype": datatype(kind), "shape": list(array.shape),
        }  # fmt: skip
        if binary:
            tails.append(to_bytes(array, kind))
            entry["parameters"] = {"binary_data_size": len(tails[-1])}
        else:
            entry["data"] = values_of(array.reshape(-1), kind)
            if kind.kind == "string":
                try:
                    entry["data"] = [s.decode() for s in entry["data"]]
                except UnicodeDecodeError:
                    raise InvalidArgumentError(
                        f"the strings of output '{port.name}' are not UTF-8: ask for them with "
                        '"parameters": {"binary_data": true}'
                    ) from None
        entries.append(entry)
    head = json.dumps({**request.shown, "outputs": entries}).encode()
    return b"".join([head, *tails]), len(head) if tails else None


def values_of(array: Array, kind: DType) -> Any:
    """The elements of an array as Python's values, nested as it is."""
    narrow = kind.is_floating and kind.itemsize == 2
    return (array.astype(np.float32) if narrow else array).tolist()


def to_bytes(array: Array, kind: DType) -> bytes:
    """The elements of an array as the binary extension has them."""
    if kind.kind == "string":
        return b"".join([struct.pack("<I", len(s)) + s for s in array.reshape(-1).tolist()])
    plain = np.ascontiguousarray(array).reshape(-1)
    if kind.kind == "bool":
        return plain.view(np.uint8).tobytes()
    return plain.view(f"u{kind.itemsize}").astype(f"<u{kind.itemsize}", copy=False).tobytes()
