"""`wf.shard_map` over several (emulated) GPUs, and over CPU devices of a session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import PartitionSpec as P
from weft import collectives as c

F32 = np.float32


def shard(x: Any, w: Any) -> Any:
    y = c.psum(wf.matmul(x, w), "m")
    return wf.tanh(y), c.psum(wf.sum(y), "d")


SPECS = (P("d", "m"), P("m")), ("d", None)
X = np.random.default_rng(0).normal(size=(8, 6)).astype(F32)
W = np.random.default_rng(1).normal(size=(6, 900)).astype(F32)


def test_a_compiled_function_and_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")
    mesh = wf.Mesh({"d": 1, "m": 2}, devices=["/gpu:0", "/gpu:1"])
    here = wf.shard_map(shard, mesh, *SPECS)
    there = wf.shard_map(shard, wf.Mesh({"d": 1, "m": 2}), *SPECS)

    def slopes(f: Any) -> Any:
        return wf.grad(lambda x, w: wf.sum(f(x, w)[0] ** 2), argnums=(0, 1))

    run = wf.compile(lambda x, w: (here(x, w), slopes(here)(x, w)))
    wanted = there(X, W), slopes(there)(wf.asarray(X), wf.asarray(W))
    for got, right in zip(wf.tree_leaves(run(X, W)), wf.tree_leaves(wanted), strict=True):
        np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=2e-4, atol=2e-5)
    assert "runs in parts on /cpu:0 and /gpu:0 and /gpu:1" in run.explain(X, W)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"'/gpu:0', which a call outside"):
        here(X, W)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"(?s)'/gpu:1', .*leave device= out"):
        wf.compile(here, device="gpu:0")(X, W)


def test_a_session_over_gpus_and_cpu_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session graph of four shards, and training of a variable that no device is said of."""
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")
    names = ["/gpu:0", "/gpu:1", "/cpu:0", "/cpu:1"]
    found = []
    for devices in (names, None):
        with wf.Graph().as_default(), wf.Session(cpu_devices=2) as session:
            x, w = wf.placeholder(wf.float32, [8, 6]), wf.Variable(W)
            mesh = wf.Mesh({"d": 2, "m": 2}, devices=devices)
            y, _ = wf.shard_map(shard, mesh, *SPECS)(x, w.read())
            loss = wf.mean(y**2)
            update = wf.train.SGD(0.1).minimize(loss)
            session.run(wf.global_variables_initializer())
            found.append([session.run([loss, update], {x: X})[0] for _ in range(3)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)
    assert found[0][2] < found[0][0]
