"""TensorFlow Serving's predict requests: rows (`instances`) or columns (`inputs`) of JSON as
arrays, and arrays as `predictions` or `outputs`.

Source: "RESTful API" of TensorFlow Serving's documentation (tensorflow.org/tfx/serving/api_rest).
Strings of bytes are {"b64": ...}, in answers those of outputs whose names end in `_bytes`, and all
that are not UTF-8. NaN, Infinity and -Infinity stand in the JSON as bare words, as there. All that
is wrong in a request is an InvalidArgumentError."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.serving.models import Port, Signature, Version, shown_shape
from weft.frontend.serving.protocol import array_of, values_of
from weft.frontend.serving.repository import Model
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError

Array = np.ndarray[Any, Any]

#: TensorFlow's names of dtypes that are not the name of weft's in capitals.
_TYPES = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF"}


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """A request that fits its signature. rows: how many instances it has; None for columns.
    timeout: these have none of their own."""

    signature: Signature
    arrays: list[Array]
    rows: int | None
    timeout: float | None = None


def status(model: Model, version: str | None = None) -> dict[str, Any]:
    """The states of the versions of a model, or of one. NotFoundError for one that there is
    not."""
    shown = [s for n, s in sorted(model.states.items()) if version in (None, str(n))]
    if version is not None and not shown:
        raise NotFoundError(f"there is no version '{version:.40}' of model '{model.name}'")

    def told(error: str) -> dict[str, str]:
        return {"error_code": "UNKNOWN" if error else "OK", "error_message": error}

    return {
        "model_version_status": [
            {"version": str(s.number), "state": s.state, "status": told(s.error)} for s in shown
        ]
    }


def metadata(version: Version) -> dict[str, Any]:
    """The signatures of a version as TensorFlow Serving writes them."""

    def info(port: Port) -> dict[str, Any]:
        dims = [{"size": str(d), "name": ""} for d in shown_shape(port.type)]
        name = port.type.dtype.name
        return {
            "dtype": _TYPES.get(name, f"DT_{name.upper()}"), "name": port.name,
            "tensor_shape": {"dim": dims, "unknown_rank": False},
        }  # fmt: skip

    signatures = {
        name: {
            "inputs": {p.name: info(p) for p in s.inputs},
            "outputs": {p.name: info(p) for p in s.outputs},
            "method_name": "tensorflow/serving/predict",
        }
        for name, s in version.signatures.items()
    }
    return {
        "model_spec": {
            "name": version.model, "signature_name": "", "version": str(version.number)
        },
        "metadata": {"signature_def": {"signature_def": signatures}},
    }  # fmt: skip


# --------------------------------------------------------------------------------------- requests


def read_request(version: Version, given: Mapping[str, Any]) -> PredictRequest:
    """A predict request, from its JSON. Errors as `Version.signature`, and
    InvalidArgumentError."""
    signature = version.signature(given.get("signature_name") or None)
    if ("instances" in given) == ("inputs" in given):
        raise InvalidArgumentError("a request has either 'instances' (rows) or 'inputs' (columns)")
    rows = None
    if "instances" in given:
        instances = given["instances"]
        if not isinstance(instances, list) or not instances:
            raise InvalidArgumentError("'instances' is no list of at least one")
        rows = len(instances)
        columns = _columns(signature, instances)
    else:
        columns = _named(signature, given["inputs"], "inputs")
    arrays = [_array(port, columns[port.name]) for port in signature.inputs]
    signature.check(arrays)
    return PredictRequest(signature, arrays, rows)


def _columns(signature: Signature, instances: list[Any]) -> dict[str, Any]:
    """The values of each input in all instances."""
    each = [_named(signature, one, "an instance") for one in instances]
    return {port.name: [one[port.name] for one in each] for port in signature.inputs}


def _named(signature: Signature, given: Any, what: str) -> dict[str, Any]:
    """The values by the names of inputs; an only input may be without."""
    names = [port.name for port in signature.inputs]
    by_name = isinstance(given, dict) and (set(given) != {"b64"} or names == ["b64"])
    if not by_name:
        if len(names) != 1:
            raise InvalidArgumentError(f"{what} must name the inputs: {', '.join(names) or 'none'}")
        return {names[0]: given}
    if set(given) != set(names):
        wrong = sorted(set(given) ^ set(names))[0]
        raise InvalidArgumentError(
            f"{what} {'lacks' if wrong in names else 'has'} '{wrong:.100}': the inputs of "
            f"'{signature.name}' are {', '.join(names) or 'none'}"
        )
    return dict(given)


def _array(port: Port, data: Any) -> Array:
    """Nested lists as an array, whose shape they say."""
    what, wanted = f"input '{port.name}'", shown_shape(port.type)
    shape: list[int] = []
    inner = data
    while isinstance(inner, list) and len(shape) <= len(wanted):
        shape.append(len(inner))
        if not inner:  # what would be in it has the sizes that are known, and no elements
            shape += [max(d, 0) for d in wanted[len(shape) :]]
            break
        inner = inner[0]
    if len(shape) != len(wanted):
        deeper = "more" if len(shape) > len(wanted) else "fewer"
        raise InvalidArgumentError(f"{what} has {deeper} axes than its shape {wanted}")
    if port.type.dtype.kind == "string":
        data = with_bytes(data, what, len(shape))
    return array_of(data, port.type.dtype, shape, what)


def with_bytes(data: Any, what: str, depth: int) -> Any:
    """The lists, `depth` deep, with bytes in place of {"b64": ...}. InvalidArgumentError for other
    objects."""
    if isinstance(data, list) and depth:
        return [with_bytes(one, what, depth - 1) for one in data]
    if not isinstance(data, dict):
        return data
    if set(data) != {"b64"} or not isinstance(data["b64"], str):
        raise InvalidArgumentError(f'{what} has an object that is not {{"b64": text}}')
    try:
        return base64.b64decode(data["b64"], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgumentError(f"{what} has a string that is not base64") from None


# ---------------------------------------------------------------------------------------- answers


def answer(request: PredictRequest, results: Sequence[Array]) -> dict[str, Any]:
    """The JSON of an answer; an only output is without its name. InvalidArgumentError for
    instances where an output does not have one row for each."""
    ports = request.signature.outputs
    values: dict[str, Any] = {}
    for port, array in zip(ports, results, strict=True):
        if request.rows is not None and array.shape[:1] != (request.rows,):
            raise InvalidArgumentError(
                f"output '{port.name}' has the shape {list(array.shape)}, not a row for each of "
                f"the {request.rows} instances: ask with 'inputs' instead"
            )
        found = values_of(array, port.type.dtype)
        if port.type.dtype.kind == "string":
            found = as_text(port, found, array)
        values[port.name] = found
    only = ports[0].name if len(ports) == 1 else None
    if request.rows is None:
        return {"outputs": values if only is None else values[only]}
    if only is not None:
        return {"predictions": values[only]}
    rows = range(request.rows)
    return {"predictions": [{n: column[i] for n, column in values.items()} for i in rows]}


def as_text(port: Port, values: Any, array: Array) -> Any:
    """The strings of an output, nested as they are, as text or {"b64": ...}."""
    return _text(values, port.name.endswith("_bytes") or not _is_text(array))


def _is_text(array: Array) -> bool:
    try:
        for one in array.reshape(-1).tolist():
            one.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(values: Any, as_base64: bool) -> Any:
    if isinstance(values, list):
        return [_text(one, as_base64) for one in values]
    return {"b64": base64.b64encode(values).decode()} if as_base64 else values.decode()
