"""Calls of `weft serve` by tritonclient, which nobody here wrote: a program for a Python that has
it (it pins packages that weft has in other releases). `triton_calls.py HTTP GRPC` prints "fine"."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tritonclient.grpc as grpc  # type: ignore[import-not-found]
import tritonclient.http as http  # type: ignore[import-not-found]


def inputs_of(kind: Any, x: Any, datatype: str, **options: Any) -> list[Any]:
    made = kind.InferInput("x", list(x.shape), datatype)
    made.set_data_from_numpy(x, **options)
    return [made]


def infer(client: Any, kind: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = [kind.InferRequestedOutput("result")]
    reply = client.infer("m", inputs_of(kind, x, "FP32"), outputs=outputs, request_id="7")
    assert np.array_equal(reply.as_numpy("result"), x * 2)
    told = reply.get_response()
    assert (told["id"] if isinstance(told, dict) else told.id) == "7"
    for version, factor in (("1", 2.0), ("", 2.0)):
        reply = client.infer("m", inputs_of(kind, x, "FP32"), model_version=version)
        assert np.array_equal(reply.as_numpy("result"), x * factor)
    words = np.array([["a", "é"], [b"\xff", b""]], object)
    reply = client.infer("words", inputs_of(kind, words, "BYTES"))
    assert reply.as_numpy("result").tolist() == [[b"a", "é".encode()], [b"\xff", b""]]
    half = np.array([1.5, -2.0], np.float16)
    reply = client.infer("half", inputs_of(kind, half, "FP16"))
    assert np.array_equal(reply.as_numpy("result"), half + half)
    for model, wrong, datatype in (
        ("none", x, "FP32"), ("m", x[:, :2], "FP32"), ("m", x.astype(np.float64), "FP64"),
    ):  # fmt: skip
        failed = ""
        try:
            client.infer(model, inputs_of(kind, wrong, datatype))
        except kind.InferenceServerException as error:
            failed = str(error)
        assert failed


def manage(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    client.unload_model("half")
    assert not client.is_model_ready("half")
    client.load_model("half")
    assert client.is_model_ready("half")


def main(http_at: str, grpc_at: str) -> None:
    client = http.InferenceServerClient(http_at)
    manage(client)
    infer(client, http)
    assert client.get_model_metadata("m")["outputs"][0]["shape"] == [-1, 3]
    assert client.get_server_metadata()["name"] == "weft"
    assert {one["name"] for one in client.get_model_repository_index()} == {"m", "words", "half"}
    (one,) = client.get_inference_statistics("m")["model_stats"]
    assert one["inference_stats"]["success"]["count"] == 3
    client = grpc.InferenceServerClient(grpc_at)
    manage(client)
    infer(client, grpc)
    told = client.get_model_metadata("m")
    assert list(told.inputs[0].shape) == [-1, 3]
    assert client.get_server_metadata().name == "weft"
    assert {one.name for one in client.get_model_repository_index().models} == {
        "m",
        "words",
        "half",
    }
    (one,) = client.get_inference_statistics("m").model_stats
    assert one.inference_stats.success.count == 6
    assert sum(b.compute_infer.count for b in one.batch_stats) == one.execution_count
    got: list[Any] = []
    client.start_stream(callback=lambda result, error: got.append((result, error)))
    x = np.ones((1, 3), np.float32)
    for i in range(5):
        client.async_stream_infer("m", inputs_of(grpc, x * i, "FP32"), request_id=str(i))
    client.async_stream_infer("none", inputs_of(grpc, x, "FP32"))
    client.stop_stream()
    assert [r.as_numpy("result")[0, 0] for r, error in got[:5]] == [0, 2, 4, 6, 8]
    assert "no model 'none'" in str(got[5][1])
    print("fine")


if __name__ == "__main__":
    main(*sys.argv[1:])
