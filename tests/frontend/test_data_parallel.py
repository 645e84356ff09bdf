"""`wf.data_parallel` over processes: gradients are summed in buckets while the others are computed,
and the bits are those of one process with as many shards."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_processes import in_the_midst, outputs, processes, two_hosts

import weft as wf
from weft.frontend.collectives import mean_of_gradients
from weft.frontend.transforms import processes as buckets

Array = np.ndarray[Any, Any]
_numbers = itertools.count()

#: A sum for each gradient.
SMALL = """
from weft.frontend.transforms import processes
processes.FIRST_GRADIENT_BYTES = processes.GRADIENT_BYTES = 1
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[wf.Mesh]:
    """A mesh of this process alone, in which each gradient has a sum of its own."""
    monkeypatch.setattr(buckets, "FIRST_GRADIENT_BYTES", 1)
    monkeypatch.setattr(buckets, "GRADIENT_BYTES", 1)
    address = f"ipc:///tmp/none-{os.getpid()}-{next(_numbers)}"
    spec = wf.train.ClusterSpec({"worker": [address]})
    with wf.Mesh({"data": 1}, task=wf.train.ClusterTask(spec, "worker", 0)) as mesh:
        yield mesh


def net() -> tuple[list[wf.Variable], Callable[..., Any]]:
    rng = np.random.default_rng(1)
    shapes = [(8, 16), (16,), (16, 16), (16,), (16, 4), (4,)]
    weights = [wf.Variable(rng.normal(size=s).astype(np.float32)) for s in shapes]
    optimizer = wf.train.Adam(0.01)

    def step(x: Any, y: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = weights
        h = wf.tanh(wf.matmul(wf.tanh(wf.matmul(x, w1) + b1), w2) + b2)
        loss = wf.mean((wf.matmul(h, w3) + b3 - y) ** 2)
        optimizer.minimize(loss)
        return loss

    return weights, step


X = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
Y = X[:, :4] ** 2


def test_sums_start_as_soon_as_their_gradients_are_there(alone: wf.Mesh) -> None:
    """In the order in which the backward pass has them; all are done before the first update, and
    nothing is packed."""
    _, step = net()
    f = wf.compile(wf.data_parallel(step, alone))
    lines = f.ir(X, Y).splitlines()
    marks = {
        mark: [k for k, line in enumerate(lines) if text in line]
        for mark, text in {"start": '"start"', "done": '"done"', "product": " matmul(",
                           "assign": " assign("}.items()
    }  # fmt: skip
    assert len(marks["start"]) == len(marks["done"]) == 6
    assert sum(k > marks["start"][0] for k in marks["product"]) >= 3
    assert marks["start"][-1] < marks["done"][0]
    assert marks["done"][-1] < marks["assign"][0]
    assert "concat" not in f.ir(X, Y)
    report = f.explain(X, Y)
    assert "strided_copy" not in report
    assert "copy_bytes" not in report


def test_one_process_of_a_mesh_has_the_bits_of_none(alone: wf.Mesh) -> None:
    """Sums are in the arena, in buckets; and eagerly."""
    wanted, plain = net()
    held = [net() for _ in range(2)]
    steps = [wf.compile(wf.data_parallel(held[0][1], alone), passes="reproducible")]
    steps.append(wf.data_parallel(held[1][1], alone))
    one = wf.compile(plain, passes="reproducible")
    losses = [[float(f(X, Y)) for _ in range(5)] for f in (one, *steps)]
    assert losses[1] == losses[0]
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)
    for a, b in zip(wanted, held[0][0], strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_derivatives_and_batches_of_a_sum_in_two_halves(alone: wf.Mesh) -> None:
    """Of a mesh of one process: what is done without a mesh."""

    def plain(x: Any) -> Any:
        return wf.sum(wf.sin(x) ** 3) + wf.sum(x[:2] ** 4)

    def summed(x: Any) -> Any:
        a, b = mean_of_gradients([wf.sin(x), x[:2] ** 2], ("data",))
        return wf.sum(a**3) + wf.sum(b**2)

    there = wf.shard_map(summed, alone, None, None)
    x, t = wf.asarray(X[0]), wf.asarray(X[1])
    for f, g in [
        (plain, there),
        (wf.grad(plain), wf.grad(there)),
        (wf.grad(lambda x: wf.sum(wf.grad(plain)(x) ** 2)),
         wf.grad(lambda x: wf.sum(wf.grad(there)(x) ** 2))),
        (lambda x: wf.jvp(plain, (x,), (t,))[1], lambda x: wf.jvp(there, (x,), (t,))[1]),
        (lambda x: wf.vmap(plain)(wf.stack([x, t])), lambda x: wf.vmap(there)(wf.stack([x, t]))),
    ]:  # fmt: skip
        np.testing.assert_allclose(f(x).numpy(), g(x).numpy(), rtol=1e-5)
    np.testing.assert_allclose(wf.compile(g)(x).numpy(), g(x).numpy(), rtol=1e-5)


def test_a_step_that_fails_settles_what_it_began(
    alone: wf.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By both ways to call it, before its memory is used again."""
    told: list[BaseException] = []
    monkeypatch.setattr(
        "weft.runtime.mesh.ProcessMesh.settle", lambda mesh, error: told.append(error)
    )
    _, step = net()

    def shard(x: Any, y: Any, k: Any) -> Any:
        return step(x, y) + wf.take(wf.sum(x, axis=1), k)

    f = wf.compile(wf.data_parallel(shard, alone))
    good, bad = np.int64(3), np.int64(99)
    for _ in range(3):
        with pytest.raises(wf.errors.BoundsError):
            f(X, Y, bad)
        f(X, Y, good)
    assert [type(error) for error in told] == [wf.errors.BoundsError] * 3


BITS = """
from weft.frontend.transforms import processes
processes.FIRST_GRADIENT_BYTES = processes.GRADIENT_BYTES = 1000


def trained(m):
    rng = np.random.default_rng(1)
    shapes = [(64, 100), (100,), (100, 10), (10,)]
    held = [wf.Variable(rng.normal(size=s).astype(np.float32) / 8) for s in shapes]
    optimizer = wf.train.Adagrad(0.1)

    def step(x, y):
        w1, b1, w2, b2 = held
        logits = wf.matmul(wf.nn.relu(wf.matmul(x, w1) + b1), w2) + b2
        each = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        loss = wf.mean(each)
        optimizer.minimize(loss)
        return loss

    f = wf.compile(wf.data_parallel(step, m), passes="reproducible")
    rng = np.random.default_rng(2)
    xs = [rng.normal(size=(60, 64)).astype(np.float32) for _ in range(10)]
    return [float(f(x, x[:, :10].argmax(1))) for x in xs], [v.numpy().tobytes() for v in held]


found = trained(mesh)
assert found[0][-1] < found[0][0]
assert found == trained(one)
print("same")
"""


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_the_bits_of_one_process_with_as_many_shards(tmp_path: Path, count: int) -> None:
    """Losses and variables, of the digits' model, under `reproducible`."""
    assert outputs(tmp_path, {"data": count}, BITS) == ["same\n"] * count


@pytest.mark.slow
def test_the_bits_of_processes_on_two_hosts(tmp_path: Path) -> None:
    found = outputs(tmp_path, {"data": 3}, BITS, addresses=two_hosts(3))
    assert found == ["same\n"] * 3


MODELS = """
import sys
sys.path.insert(0, EXAMPLES)
import language_model
from weft.frontend.transforms import processes
processes.FIRST_GRADIENT_BYTES = processes.GRADIENT_BYTES = 1000
compiled = wf.compile
wf.compile = lambda f: compiled(f, passes="reproducible")


def language(m, sampled):
    sizes = language_model.Sizes(vocabulary=100, units=16, projection=16, batch=8, length=5,
                                 parts=1, sampled=sampled)
    runner = language_model.OnMesh(sizes, 0, m)
    rng = np.random.default_rng(0)
    losses = [runner.step(rng.integers(0, 100, (8, 6)).astype(np.int32)) for _ in range(5)]
    held = [rng.integers(0, 100, (8, 6)).astype(np.int32) for _ in range(3)]
    return losses, language_model.perplexity(runner, sizes, held)


def convolution(m, dtype):
    rng = np.random.default_rng(1)
    k, g, b, w = (wf.Variable(wf.astype(wf.asarray(rng.normal(size=s) / 4), dtype))
                  for s in [(3, 3, 1, 8), (8,), (8,), (8 * 8 * 8, 10)])
    optimizer = wf.train.Adam(0.01)

    def step(x, y):
        h = wf.nn.relu(wf.nn.layer_norm(wf.nn.conv2d(x, k, padding="SAME"), scale=g, offset=b))
        logits = wf.matmul(wf.reshape(h, (h.shape[0], -1)), w)
        each = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        optimizer.minimize(wf.mean(each))
        return wf.mean(each)

    f = wf.compile(wf.data_parallel(step, m))
    x = wf.astype(wf.asarray(rng.normal(size=(16, 8, 8, 1))), dtype)
    losses = [float(f(x, rng.integers(0, 10, 16))) for _ in range(5)]
    return losses, [v.numpy().tobytes() for v in (k, g, b, w)]


for run, given in [(language, 0), (language, 8), (convolution, "float32"),
                   (convolution, "bfloat16")]:
    assert run(mesh, given) == run(one, given), (run.__name__, given)
print("same")
"""


@pytest.mark.slow
def test_the_bits_of_other_models(tmp_path: Path) -> None:
    """The language model with a full and a sampled softmax, a convolution with a norm, 16-bit
    floats; over two axes."""
    from example_programs import FOLDER

    program = f"EXAMPLES = {str(FOLDER)!r}\n{MODELS}"
    assert outputs(tmp_path, {"a": 2, "b": 2}, program) == ["same\n"] * 4


TRAINS = f"""
{SMALL}
w = [wf.Variable(np.ones((16, 16), np.float32) / 16) for _ in range(6)]
optimizer = wf.train.Momentum(0.01, 0.9)


def step(x):
    h = x
    for v in w:
        h = wf.tanh(wf.matmul(h, v))
    loss = wf.mean(h ** 2)
    optimizer.minimize(loss)
    return loss


f = wf.compile(wf.data_parallel(step, mesh))
x = X.astype(np.float32)
f(x)
print("here", flush=True)
try:
    while True:
        f(x)
except KeyboardInterrupt:
    print("interrupted")
except wf.errors.UnavailableError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_who_is_interrupted_or_killed_in_the_midst_of_sums(
    tmp_path: Path, sent: signal.Signals, hosts: int
) -> None:
    addresses = two_hosts(2) if hosts == 2 else ()
    with processes(tmp_path, {"data": 2}, TRAINS, addresses=addresses) as made:
        in_the_midst(made)
        made[1].send_signal(sent)
        first, second = (process.communicate(timeout=60)[0] for process in made)
        assert second == ("interrupted\n" if sent == signal.SIGINT else "")
        assert first.startswith("rank 1 "), first


OTHER_WAYS = f"""
{SMALL}
queue = wf.tf1.FIFOQueue(10, [wf.float32], [()])


def trained(m, way):
    w = [wf.Variable(np.full((16, 16), 0.05, np.float32)) for _ in range(3)]
    optimizer = wf.train.Momentum(0.01, 0.9)

    def step(x):
        h = x
        for v in w:
            h = wf.tanh(wf.matmul(h, v))
        loss = wf.mean(h ** 2)
        optimizer.minimize(loss)
        return loss

    parallel = wf.data_parallel(step, m)

    def queued(x):
        queue.enqueue(parallel(x))
        return queue.dequeue()

    def looped(x):
        return wf.fori_loop(0, 2, lambda k, total: total + parallel(x), wf.asarray(np.float32(0)))

    f = {{"eager": parallel, "native": wf.compile(parallel), "executor": wf.compile(queued),
         "gpu": wf.compile(parallel, device="gpu:0")}}[way]
    losses = [float(f(X.astype(np.float32))) for _ in range(3)]
    return losses, [v.numpy() for v in w]


wanted = trained(one, "native")
for way in ("eager", "native", "executor", "gpu"):
    losses, held = trained(mesh, way)
    np.testing.assert_allclose(losses, wanted[0], rtol=1e-5)
    for a, b in zip(held, wanted[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
print("done")
"""


@pytest.mark.slow
def test_eagerly_on_the_executor_and_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    assert outputs(tmp_path, {"data": 2}, OTHER_WAYS) == ["done\n"] * 2
