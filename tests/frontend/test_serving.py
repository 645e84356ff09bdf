"""Serving: what the protocols give, against the bundle called directly."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi import Client, Reply, binary_request
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.frontend.serving.app import App
from weft.frontend.serving.batching import Limits
from weft.frontend.serving.repository import Repository

NUMBERS = [
    wf.bool, wf.int8, wf.int16, wf.int32, wf.int64, wf.uint8, wf.uint16, wf.uint32, wf.uint64,
    wf.float16, wf.bfloat16, wf.float32, wf.float64,
]  # fmt: skip
NAMES = {"bool": "BOOL", "float16": "FP16", "bfloat16": "BF16", "float32": "FP32",
         "float64": "FP64", "string": "BYTES"}  # fmt: skip


def named(kind: wf.DType) -> str:
    return NAMES.get(kind.name, kind.name.upper())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serving")
    for kind in NUMBERS:
        wf.export(
            lambda x, k: {"turned": wf.transpose(x), "same": x, "k": k},
            path / kind.name,
            example=(wf.TensorType(kind, ("n", 3)), wf.TensorType(kind, ())),
        )
    wf.export(lambda s: s, path / "string", example=wf.TensorType(wf.string, ("n", 2)))
    wf.export(lambda x: wf.tanh(x) * 2, path / "curve", example=wf.TensorType(wf.float32, ("n", 3)))
    for version in (1, 2, 10):
        example = wf.TensorType(wf.float32, ("n",))
        wf.export(_times(version), path / "many" / str(version), example=example)
    (path / "many" / "notes").mkdir()
    pair = {"p": wf.TensorType(wf.float32, ("n", 2)), "q": [wf.TensorType(wf.int32, ("n",))]}
    wf.export(
        None, path / "several",
        signatures={
            "nested": (lambda d, *, k: (d["p"] * k, {"b": d["q"][0] + 1}),
                       {"d": pair, "k": wf.TensorType(wf.float32, ())}),
            "sum": (lambda x: wf.sum(x), wf.TensorType(wf.float32, ("n", "m"))),
            "complex": (lambda x: x, wf.TensorType(wf.complex64, ("n",))),
        },
    )  # fmt: skip
    return path


def _times(by: int) -> Any:
    return lambda x: x * float(by)


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    paths = [str(p) for p in folder.iterdir() if p.name != "many"]
    with Client(App(Repository([*paths, f"times={folder / 'many'}"]))) as made:
        yield made


def fitting(kind: wf.DType, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Values to the ends of the dtype; of floats NaN and infinities, too."""
    rng = np.random.default_rng(seed)
    if kind is wf.bool:
        return rng.integers(0, 2, shape) > 0
    if kind.is_integer:
        ends = np.iinfo(kind.numpy)
        array = rng.integers(ends.min, ends.max, shape, kind.numpy, endpoint=True)
    else:
        array = np.asarray(rng.normal(size=shape)).astype(kind.numpy)
    flat = array.reshape(-1)
    if kind.is_floating and flat.size > 3:
        flat[:4] = [np.nan, np.inf, -np.inf, -0.0]
    elif flat.size > 3:
        flat[:2] = [ends.min, ends.max]
    return array


def raw(array: Any) -> bytes:
    if array.dtype == object:
        return b"".join(struct.pack("<I", len(s)) + s for s in array.reshape(-1))
    return bytes(np.ascontiguousarray(array).tobytes())


def listed(array: Any) -> Any:
    return (array.astype(np.float32) if array.dtype.itemsize == 2 and
            array.dtype.kind not in "iu" else array).tolist()  # fmt: skip


def binary_outputs(reply: Reply) -> dict[str, bytes]:
    length = int(reply.headers["inference-header-content-length"])
    told, at, found = json.loads(reply.body[:length]), length, {}
    for one in told["outputs"]:
        size = one["parameters"]["binary_data_size"]
        found[one["name"]] = reply.body[at : at + size]
        at += size
    assert at == len(reply.body)
    return found


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("kind", NUMBERS, ids=lambda k: k.name)
class TestEachDtype:
    def arrays(self, kind: wf.DType, rows: int) -> tuple[Any, Any]:
        return fitting(kind, (rows, 3)), fitting(kind, (), 1)

    @pytest.mark.share(12)
    def test_json(self, client: Client, kind: wf.DType, rows: int) -> None:
        x, k = self.arrays(kind, rows)
        for data in (listed(x), listed(x.reshape(-1))):
            inputs = [
                {"name": "k", "datatype": named(kind), "shape": [], "data": [listed(k)]},
                {"name": "x", "datatype": named(kind), "shape": [rows, 3], "data": data},
            ]
            reply = client.post(f"/v2/models/{kind.name}/infer", {"inputs": inputs, "id": "7"})
            assert reply.status == 200, reply.body
            told = reply.json()
            assert (told["id"], told["model_name"], told["model_version"]) == ("7", kind.name, "1")
            found = {one["name"]: one for one in told["outputs"]}
            assert list(found) == ["k", "same", "turned"]
            for name, wanted in (("k", k), ("same", x), ("turned", x.T)):
                one = found[name]
                assert one["datatype"] == named(kind)
                assert one["shape"] == list(wanted.shape)
                array = np.array(one["data"], np.float32 if kind.itemsize == 2 and kind.is_floating
                                 else kind.numpy).astype(kind.numpy)  # fmt: skip
                assert np.array_equal(array, wanted.reshape(-1), equal_nan=kind.is_floating)

    @pytest.mark.share(3)
    def test_bytes(self, client: Client, folder: Path, kind: wf.DType, rows: int) -> None:
        x, k = self.arrays(kind, rows)
        inputs = [
            {"name": n, "datatype": named(kind), "shape": list(a.shape),
             "parameters": {"binary_data_size": a.nbytes}}
            for n, a in (("k", k), ("x", x))
        ]  # fmt: skip
        body, headers = binary_request(
            {"id": "odd" * rows, "inputs": inputs, "parameters": {"binary_data_output": True}},
            raw(k),
            raw(x),
        )  # the id moves the tensors to addresses that are no multiples of their items
        reply = client.ask("POST", f"/v2/models/{kind.name}/infer", body, headers)
        assert reply.status == 200, reply.body
        here = wf.load(folder / kind.name)(x, k)
        found = binary_outputs(reply)
        assert found == {n: raw(np.asarray(here[n])) for n in ("k", "same", "turned")}

    def test_predict(self, client: Client, kind: wf.DType, rows: int) -> None:
        x, k = self.arrays(kind, rows)
        columns = {"inputs": {"x": listed(x), "k": listed(k)}}
        reply = client.post(f"/v1/models/{kind.name}:predict", columns)
        assert reply.status == 200, reply.body
        found = reply.json()["outputs"]
        assert sorted(found) == ["k", "same", "turned"]
        for name, wanted in (("k", k), ("same", x), ("turned", x.T)):
            array = np.array(found[name], np.float64 if kind.is_floating
                             else kind.numpy).astype(kind.numpy)  # fmt: skip
            assert array.shape[:1] == wanted.shape[:1]  # [] has no sizes but the first
            array = array.reshape(wanted.shape)
            assert np.array_equal(array, wanted, equal_nan=kind.is_floating)


@given(st.sampled_from(NUMBERS), st.integers(0, 5), st.data())
def test_any_bits(client: Client, kind: wf.DType, rows: int, data: st.DataObject) -> None:
    """Bits come back as they went, NaNs of all kinds too; booleans are 0 and 1."""
    size = rows * 3 * kind.itemsize
    bits = data.draw(st.binary(min_size=size, max_size=size))
    if kind is wf.bool:
        bits = bytes(b & 1 for b in bits)
    entries = [
        {"name": "x", "datatype": named(kind), "shape": [rows, 3],
         "parameters": {"binary_data_size": size}},
        {"name": "k", "datatype": named(kind), "shape": [],
         "parameters": {"binary_data_size": kind.itemsize}},
    ]  # fmt: skip
    outputs = [{"name": "same", "parameters": {"binary_data": True}}]
    tails = [bits, bytes(kind.itemsize)]
    body, headers = binary_request({"inputs": entries, "outputs": outputs}, *tails)
    reply = client.ask("POST", f"/v2/models/{kind.name}/infer", body, headers)
    assert binary_outputs(reply) == {"same": bits}


class TestStrings:
    X = np.array([[b"", b"plain"], ["é".encode(), b"a\x00b"]], object)
    ODD = np.array([[b"\xff\x00", b"x"]], object)

    def test_bytes(self, client: Client) -> None:
        for x in (self.X, self.ODD, self.X[:0]):
            entry = {"name": "s", "datatype": "BYTES", "shape": list(x.shape),
                     "parameters": {"binary_data_size": len(raw(x))}}  # fmt: skip
            outputs = [{"name": "result", "parameters": {"binary_data": True}}]
            told = {"inputs": [entry], "outputs": outputs}
            body, headers = binary_request(told, raw(x))
            reply = client.ask("POST", "/v2/models/string/infer", body, headers)
            assert binary_outputs(reply) == {"result": raw(x)}

    def test_json(self, client: Client) -> None:
        data = ["", "plain", "é", "a\x00b"]
        entry = {"name": "s", "datatype": "BYTES", "shape": [2, 2], "data": data}
        reply = client.post("/v2/models/string/infer", {"inputs": [entry]})
        assert reply.json()["outputs"][0]["data"] == data

    def test_that_are_not_text_need_bytes(self, client: Client) -> None:
        entry = {"name": "s", "datatype": "BYTES", "shape": [1, 2],
                 "parameters": {"binary_data_size": len(raw(self.ODD))}}  # fmt: skip
        body, headers = binary_request({"inputs": [entry]}, raw(self.ODD))
        reply = client.ask("POST", "/v2/models/string/infer", body, headers)
        assert reply.status == 400
        assert "binary_data" in reply.json()["error"]

    def test_predict(self, client: Client) -> None:
        coded = {"b64": base64.b64encode(b"\xff\x00").decode()}
        for rows, wanted in (
            ([["a", "é"], ["", "b"]], [["a", "é"], ["", "b"]]),
            ([["a", coded]], [[{"b64": "YQ=="}, coded]]),
        ):
            reply = client.post("/v1/models/string:predict", {"instances": rows})
            assert reply.json() == {"predictions": wanted}


class TestPredict:
    def test_rows(self, client: Client, folder: Path) -> None:
        rows = [[0.5, 1.0, 2.0], [3.0, float("nan"), float("-inf")]]
        wanted = np.asarray(wf.load(folder / "curve")(np.array(rows, np.float32)))
        for instances in (rows, [{"x": row} for row in rows]):
            reply = client.post("/v1/models/curve:predict", {"instances": instances})
            found = np.array(reply.json()["predictions"], np.float32)
            assert np.array_equal(found, wanted, equal_nan=True)
        assert b"NaN" in reply.body
        infinite = client.post("/v1/models/times:predict", {"instances": [float("inf")]})
        assert infinite.body == b'{"predictions": [Infinity]}'

    def test_columns_of_an_only_input(self, client: Client) -> None:
        reply = client.post("/v1/models/times:predict", {"inputs": [1.0, 2.0]})
        assert reply.json() == {"outputs": [10.0, 20.0]}

    def test_rows_of_several_outputs(self, client: Client, folder: Path) -> None:
        told = {"signature_name": "nested", "inputs": {"d_p": [[1, 2]], "d_q_0": [5], "k": 2}}
        reply = client.post("/v1/models/several:predict", told)
        assert reply.json() == {"outputs": {"result_0": [[2.0, 4.0]], "result_1_b": [6]}}
        reply = client.post("/v1/models/several:predict", {
            "signature_name": "sum", "instances": [[1, 2], [3, 4]]})  # fmt: skip
        assert reply.status == 400
        assert "a row for each of the 2 instances" in reply.json()["error"]

    def test_what_is_there(self, client: Client) -> None:
        state = client.get("/v1/models/times").json()["model_version_status"]
        assert [(one["version"], one["state"]) for one in state] == [("10", "AVAILABLE")]
        told = client.get("/v1/models/curve/metadata").json()
        assert told["model_spec"]["name"] == "curve"
        one = told["metadata"]["signature_def"]["signature_def"]["serving_default"]
        assert one["inputs"]["x"]["dtype"] == "DT_FLOAT"
        sizes = [d["size"] for d in one["inputs"]["x"]["tensor_shape"]["dim"]]
        assert sizes == ["-1", "3"]


class TestModels:
    def test_metadata(self, client: Client) -> None:
        assert client.get("/v2").json()["extensions"][0] == "binary_tensor_data"
        assert client.get("/v2/health/live").json() == {"live": True}
        assert client.get("/v2/health/ready").json() == {"ready": True}
        assert client.get("/v2/models/curve/ready").json() == {"name": "curve", "ready": True}
        told = client.get("/v2/models/curve/versions/1").json()
        x = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
        assert told["inputs"] == [x]
        assert told["outputs"] == [{**x, "name": "result"}]
        assert told["versions"] == ["1"]
        several = client.get("/v2/models/several").json()
        assert several["inputs"] == []
        assert sorted(several["signatures"]) == ["nested", "sum"]

    def test_a_signature_by_name(self, client: Client) -> None:
        def ask(**parameters: Any) -> Reply:
            entry = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [3, 4]}
            told = {"inputs": [entry], "parameters": parameters}
            return client.post("/v2/models/several/infer", told)

        reply = ask(signature="sum", mine=3)
        assert reply.json()["outputs"][0]["data"] == [7.0]
        assert reply.json()["parameters"] == {"signature": "sum", "mine": 3}
        assert ask().status == 400
        assert "name one of nested, sum" in ask().json()["error"]
        assert ask(signature="sums").status == 404
        assert "complex" in ask(signature="complex").json()["error"]

    def test_some_outputs(self, client: Client) -> None:
        inputs = [{"name": "x", "datatype": "INT8", "shape": [1, 3], "data": [1, 2, 3]},
                  {"name": "k", "datatype": "INT8", "shape": [], "data": [9]}]  # fmt: skip
        outputs = [{"name": "k", "parameters": {"binary_data": True}},
                   {"name": "same"}]  # fmt: skip
        reply = client.post("/v2/models/int8/infer", {"inputs": inputs, "outputs": outputs})
        length = int(reply.headers["inference-header-content-length"])
        assert reply.body[length:] == b"\x09"
        told = json.loads(reply.body[:length])["outputs"]
        assert [one["name"] for one in told] == ["k", "same"]
        assert told[1]["data"] == [1, 2, 3]

    def test_versions(self, folder: Path) -> None:
        def ten(client: Client, path: str) -> Any:
            entry = {"name": "x", "datatype": "FP32", "shape": [1], "data": [10]}
            reply = client.post(f"/v2/models/m{path}/infer", {"inputs": [entry]})
            return reply.json()["outputs"][0]["data"][0] if reply.status == 200 else reply.status

        given = [f"m={folder / 'many'}"]
        with Client(App(Repository(given))) as newest:
            assert [ten(newest, v) for v in ("", "/versions/10", "/versions/2")] == [100, 100, 404]
        with Client(App(Repository(given, all_versions=True))) as every:
            found = [ten(every, v) for v in ("", "/versions/1", "/versions/2", "/versions/3")]
            assert found == [100, 10, 20, 404]
            assert every.get("/v2/models/m").json()["versions"] == ["1", "2", "10"]

    @pytest.mark.parametrize(("paths", "message"), [
        (["curve", "curve"], "two models 'curve'"),
        (["a b=curve"], "no name for a model"),
        (["nothing"], "neither a bundle nor a folder of versions"),
        (["many/notes"], "neither a bundle nor a folder of versions"),
    ])  # fmt: skip
    def test_paths_that_are_none(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], message: str
    ) -> None:
        monkeypatch.chdir(folder)
        with pytest.raises(wf.errors.WeftError, match=message):
            Repository(paths)

    def test_a_model_without_requests_for_it(self, tmp_path: Path) -> None:
        wf.export(lambda x: x, tmp_path / "m", example=wf.TensorType(wf.complex64, ()))
        with pytest.raises(wf.errors.UnsupportedError, match="'x' is complex"):
            Repository([str(tmp_path / "m")])

    def test_variables_go_on_from_call_to_call(self, tmp_path: Path) -> None:
        total = wf.Variable(np.zeros((), np.float32), name="total")

        def add(x: Any) -> Any:
            total.assign_add(x)
            return total + 0.0

        wf.export(add, tmp_path / "m", example=wf.TensorType(wf.float32, ()))
        repository = Repository([str(tmp_path / "m")])
        app = App(repository, Limits(threads=3))
        assert app.service.told == [
            "m/1:serving_default: not batched: its first input has no open first size"
        ]
        with Client(app) as client:
            body = json.dumps({"inputs": 1.0}).encode()
            replies = [client.send("POST", "/v1/models/m:predict", body) for _ in range(20)]
            found = sorted(reply.result(60).json()["outputs"] for reply in replies)
        assert found == list(range(1, 21))
