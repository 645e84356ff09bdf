"""TensorFlow Serving's classify and regress requests: examples, each of named features, as arrays,
and scores or values as results.

Source: "RESTful API" of TensorFlow Serving's documentation (tensorflow.org/tfx/serving/api_rest). A
signature either takes one string for each example, which then is a serialized tf.train.Example, as
TensorFlow's do, or its inputs are the features, with a row for each example. All that is wrong in a
request is an InvalidArgumentError."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from weft.frontend.serving.models import Port, Signature, Version, shown_shape
from weft.frontend.serving.predict import PredictRequest, as_text, with_bytes
from weft.frontend.serving.protocol import array_of, values_of
from weft.ir.errors import InvalidArgumentError
from weft.runtime.files.decoding import encode_example

Array = np.ndarray[Any, Any]


def read_request(version: Version, given: Mapping[str, Any]) -> PredictRequest:
    """A classify or regress request, from its JSON. Errors as `Version.signature`, and
    InvalidArgumentError."""
    signature = version.signature(given.get("signature_name") or None)
    context, examples = given.get("context", {}), given.get("examples")
    if not isinstance(examples, list) or not examples:
        raise InvalidArgumentError("'examples' is no list of at least one")
    if not all(isinstance(one, dict) for one in (context, *examples)):
        raise InvalidArgumentError("an example, or the context, is no JSON object")
    features = [
        {name: _feature(name, value) for name, value in {**context, **one}.items()}
        for one in examples
    ]
    if _takes_examples(signature):
        data = np.empty(len(features), object)
        data[:] = [_serialized(one) for one in features]
        arrays = [data]
    else:
        names = {port.name for port in signature.inputs}
        for one in features:
            if set(one) != names:
                wrong = min(set(one) ^ names)
                raise InvalidArgumentError(
                    f"an example {'lacks' if wrong in names else 'has'} the feature '{wrong:.100}':"
                    f" those of '{signature.name}' are {', '.join(sorted(names)) or 'none'}"
                )
        arrays = [_column(port, [one[port.name] for one in features]) for port in signature.inputs]
    signature.check(arrays)
    return PredictRequest(signature, arrays, len(features))


def _takes_examples(signature: Signature) -> bool:
    """Whether its only input is one string for each example."""
    kinds = [port.type for port in signature.inputs]
    return len(kinds) == 1 and kinds[0].dtype.kind == "string" and kinds[0].rank == 1


def _feature(name: str, value: Any) -> list[Any]:
    """The values of a feature: numbers, or strings."""
    found = value if isinstance(value, list) else [value]
    if any(isinstance(one, dict) for one in found):
        found = with_bytes(found, f"the feature '{name:.100}'", 1)
    text = [isinstance(one, (str, bytes)) for one in found]
    if any(text) != all(text) or not all(isinstance(v, (int, float, str, bytes)) for v in found):
        raise InvalidArgumentError(
            f"the feature '{name:.100}' is no number or string, and no list of these"
        )
    return found


def _serialized(features: Mapping[str, list[Any]]) -> bytes:
    try:
        return encode_example(features)
    except (OverflowError, ValueError) as error:
        raise InvalidArgumentError(f"the features are no example: {error}") from None


def _column(port: Port, features: Sequence[list[Any]]) -> Array:
    """The values of a feature in all examples, a row for each."""
    what, wanted = f"the feature '{port.name}'", shown_shape(port.type)
    if not wanted:
        raise InvalidArgumentError(f"input '{port.name}' has no row for each example")
    sizes = {len(values) for values in features}
    known = math.prod([d for d in wanted[1:] if d >= 0])
    (size, *others) = sizes
    opens = sum(d < 0 for d in wanted[1:])
    fits = size == known if opens == 0 else opens == 1 and known > 0 and size % known == 0
    if others or not fits:
        raise InvalidArgumentError(
            f"{what} has {', '.join(map(str, sorted(sizes)))} values, but each example needs those "
            f"of {wanted[1:]}"
        )
    shape = [len(features), *(size // known if d < 0 else d for d in wanted[1:])]
    return array_of(list(chain.from_iterable(features)), port.type.dtype, shape, what)


# ---------------------------------------------------------------------------------------- answers


def classification(request: PredictRequest, results: Sequence[Array]) -> dict[str, Any]:
    """The JSON of an answer: for each example pairs of a label and a score.

    Outputs are `scores` (floats) and `classes`, or end so; an only output is scores, or classes if
    it is strings. A label is "", and a score 0, where there is none. InvalidArgumentError if there
    are no such outputs."""
    ports = request.signature.outputs
    scores = _named(ports, "scores", lambda port: port.type.dtype.is_floating)
    classes = _named(ports, "classes", lambda port: port.type.dtype.kind in ("string", "int"))
    if scores is None and classes is None:
        raise InvalidArgumentError(
            f"signature '{request.signature.name}' has no outputs 'scores' or 'classes'"
        )
    both: list[Any] = []
    for number in (classes, scores):
        if number is None:
            both.append(None)
            continue
        port, array = ports[number], results[number]
        if array.ndim not in (1, 2) or array.shape[0] != request.rows:
            raise InvalidArgumentError(
                f"output '{port.name}' has the shape {list(array.shape)}, no row for each example"
            )
        rows = values_of(array.reshape(len(array), -1), port.type.dtype)
        both.append(as_text(port, rows, array) if port.type.dtype.kind == "string" else rows)
    labels, values = both
    if labels is None:
        labels = [[""] * len(row) for row in values]
    if values is None:
        values = [[0.0] * len(row) for row in labels]
    told = []
    for names, row in zip(labels, values, strict=True):
        if len(names) != len(row):
            raise InvalidArgumentError(f"there are {len(names)} classes for {len(row)} scores")
        shown = [name if isinstance(name, (str, dict)) else str(name) for name in names]
        told.append([list(pair) for pair in zip(shown, row, strict=True)])
    return {"result": told}


def regression(request: PredictRequest, results: Sequence[Array]) -> dict[str, Any]:
    """The JSON of an answer: a number for each example, of the output `outputs`, or the only one.
    InvalidArgumentError if there is no such output."""
    ports = request.signature.outputs
    number = _named(ports, "outputs", lambda port: port.type.dtype.is_floating)
    if number is None or results[number].shape not in ((request.rows,), (request.rows, 1)):
        raise InvalidArgumentError(
            f"signature '{request.signature.name}' has no output of one number for each example"
        )
    flat = results[number].reshape(-1)
    return {"result": values_of(flat, ports[number].type.dtype)}


def _named(ports: Sequence[Port], name: str, fits: Any) -> int | None:
    """The number of the output that is called so, or of the only one."""
    for number, port in enumerate(ports):
        if port.name == name or port.name.endswith(f"_{name}"):
            return number if fits(port) else None
    return 0 if len(ports) == 1 and fits(ports[0]) else None
