"""TensorFlow Serving's classify and regress requests."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from asgi import Client, Reply

import weft as wf
from weft.frontend.serving.app import App
from weft.frontend.serving.repository import Repository

F32 = wf.float32
W = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 1.0]], np.float32)


def classify(x: Any) -> Any:
    scores = wf.matmul(x, W)
    return {"classes": wf.take(wf.asarray(["no", "yes"]), wf.argsort(scores, axis=1)),
            "scores": wf.sort(scores, axis=1)}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("examples")
    rows, text = wf.TensorType(F32, ("n", 3)), wf.TensorType(wf.string, ("n",))
    features = {"x": rows, "age": wf.TensorType(wf.int64, ("n",)), "word": text}
    wf.export(None, path / "m", signatures={
        "serving_default": (classify, rows),
        "scores": (lambda x: wf.matmul(x, W), rows),
        "value": (lambda x: wf.sum(x, axis=1), rows),
        "column": (lambda x: wf.sum(x, axis=1, keepdims=True), rows),
        "several": (lambda x, age, word: {"outputs": wf.sum(x, axis=1) + wf.astype(age, F32),
                                          "word": word}, features),
        "open": (lambda x: wf.sum(x, axis=1), wf.TensorType(F32, ("n", "m"))),
        "words": (lambda x: x, text),
        "ids": (lambda x: {"classes": x}, wf.TensorType(wf.int32, ("n", 2))),
        "none": (lambda x: {"a": x, "b": x}, rows),
        "flat": (lambda x: wf.sum(x), rows),
        "scalar": (lambda x: x, wf.TensorType(F32, ())),
    })  # fmt: skip
    parsed = {"x": wf.data.FixedLenFeature((3,), F32)}
    wf.export(
        lambda s: wf.matmul(wf.parse_example(s, parsed)["x"], W), path / "proto", example=text
    )
    with Client(App(Repository([str(path / "m"), str(path / "proto")]))) as made:
        yield made


def ask(client: Client, what: str, signature: str | None, examples: Any, **more: Any) -> Reply:
    told = {"examples": examples, **more}
    if signature is not None:
        told["signature_name"] = signature
    return client.post(f"/v1/models/m:{what}", told)


ROWS = [[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]]
SCORES = np.array(ROWS, np.float32) @ W


class TestClassify:
    def test_labels_and_scores(self, client: Client) -> None:
        reply = ask(client, "classify", None, [{"x": row} for row in ROWS])
        wanted = [[[["no", "yes"][i], float(row[i])] for i in np.argsort(row)] for row in SCORES]
        assert reply.json() == {"result": wanted}
        again = client.post("/v1/models/m/versions/1:classify", {"examples": [{"x": ROWS[0]}]})
        assert again.json()["result"] == wanted[:1]
        assert "queue" in reply.headers["server-timing"]

    def test_scores_alone(self, client: Client) -> None:
        reply = ask(client, "classify", "scores", [{"x": row} for row in ROWS])
        assert reply.json()["result"] == [[["", float(s)] for s in row] for row in SCORES]

    def test_classes_alone(self, client: Client) -> None:
        reply = ask(client, "classify", "ids", [{"x": [1, 2]}, {"x": [3, 4]}])
        assert reply.json()["result"] == [[["1", 0.0], ["2", 0.0]], [["3", 0.0], ["4", 0.0]]]

    def test_a_label_that_is_no_text(self, client: Client) -> None:
        (((label, score),),) = ask(client, "classify", "words", [{"x": 1.5}]).json()["result"]
        example = wf.data.decode_example(base64.b64decode(label["b64"]))
        assert (example["x"].tolist(), score) == ([1.5], 0.0)

    def test_serialized_examples(self, client: Client) -> None:
        told = {"context": {"x": ROWS[0]}, "examples": [{}, {"x": ROWS[1]}, {"y": "more"}]}
        reply = client.post("/v1/models/proto:classify", told)
        wanted = [SCORES[0], SCORES[1], SCORES[0]]
        assert reply.json()["result"] == [[["", float(s)] for s in row] for row in wanted]
        reply = client.post("/v1/models/proto:classify", {"examples": [{"y": 1}]})
        assert reply.status == 400
        reply = client.post("/v1/models/proto:classify", {"examples": [{"x": [10**30]}]})
        assert reply.status == 400


class TestRegress:
    @pytest.mark.parametrize("signature", ["value", "column"])
    def test_numbers(self, client: Client, signature: str) -> None:
        reply = ask(client, "regress", signature, [{"x": row} for row in ROWS])
        assert reply.json() == {"result": [6.0, 3.0]}

    def test_features_and_context(self, client: Client) -> None:
        examples = [{"x": ROWS[0], "word": "a"}, {"x": ROWS[1], "word": {"b64": "YQ=="}, "age": 9}]
        reply = ask(client, "regress", "several", examples, context={"age": [5]})
        assert reply.json() == {"result": [11.0, 12.0]}

    def test_an_open_size(self, client: Client) -> None:
        reply = ask(client, "regress", "open", [{"x": [1, 2]}, {"x": [3.5, 4]}])
        assert reply.json() == {"result": [3.0, 7.5]}
        assert ask(client, "regress", "open", [{"x": [1]}, {"x": [3, 4]}]).status == 400

    def test_what_is_no_number(self, client: Client) -> None:
        reply = ask(client, "regress", "value", [{"x": [float("inf"), 1, 2]}])
        assert reply.json()["result"] == [math.inf]


@pytest.mark.parametrize(("what", "signature", "told", "text"), [
    ("classify", "none", {"examples": [{"x": [1, 2, 3]}]}, "no outputs 'scores' or 'classes'"),
    ("regress", "none", {"examples": [{"x": [1, 2, 3]}]}, "no output of one number"),
    ("regress", "flat", {"examples": [{"x": [1, 2, 3]}] * 2}, "no output of one number"),
    ("classify", "flat", {"examples": [{"x": [1, 2, 3]}]}, "no row for each example"),
    ("regress", "scalar", {"examples": [{"x": 1}]}, "no row for each example"),
    ("classify", None, {}, "'examples' is no list"),
    ("classify", None, {"examples": []}, "'examples' is no list"),
    ("classify", None, {"examples": {"x": 1}}, "'examples' is no list"),
    ("classify", None, {"examples": [1]}, "no JSON object"),
    ("classify", None, {"examples": [{}], "context": []}, "no JSON object"),
    ("classify", None, {"examples": [{}]}, "lacks the feature 'x'"),
    ("classify", None, {"examples": [{"x": [1, 2, 3], "y": 1}]}, "has the feature 'y'"),
    ("classify", None, {"examples": [{"x": [1, 2]}]}, "has 2 values"),
    ("classify", None, {"examples": [{"x": ["a", "b", "c"]}]}, "type str"),
    ("classify", "words", {"examples": [{"x": "\ud800"}]}, "no example"),
    ("classify", "words", {"examples": [{"\ud800": "a"}]}, "no example"),
    ("classify", None, {"examples": [{"x": [1, "b", 2]}]}, "no number or string"),
    ("classify", None, {"examples": [{"x": [1, None, 2]}]}, "no number or string"),
    ("classify", None, {"examples": [{"x": [[1], [2], [3]]}]}, "no number or string"),
    ("classify", None, {"examples": [{"x": {"b64": "%"}}]}, "not base64"),
    ("classify", None, {"examples": [{"x": [1e39, 1, 1]}]}, "beyond FP32"),
    ("classify", "other", {"examples": [{"x": [1, 2, 3]}]}, "no signature 'other'"),
])  # fmt: skip
def test_what_is_wrong(
    client: Client, what: str, signature: str | None, told: dict[str, Any], text: str
) -> None:
    named = told if signature is None else {**told, "signature_name": signature}
    reply = client.post(f"/v1/models/m:{what}", named)
    assert 400 <= reply.status < 500, reply.body
    assert text in reply.json()["error"]
