"""`wf.train.Elastic`: the losses of one process, whoever takes part; what it refuses.

Members are threads here; processes that are killed are in tests/cluster/test_comm_elastic.py."""

from __future__ import annotations

import os
import random
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from at_once import outcomes

import weft as wf

X = np.random.default_rng(0).normal(size=(10, 24, 6)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(10, 24)).astype(np.float32)


def fresh() -> str:
    return f"test-{os.getpid()}-{random.randrange(1 << 40)}"


class Model:
    """Two layers and an optimizer with slots."""

    def __init__(self, seed: int = 0, dtype: Any = np.float32) -> None:
        rng = np.random.default_rng(seed)
        self.w = wf.Variable(wf.cast(rng.normal(size=(6, 5)), dtype))
        self.v = wf.Variable(wf.cast(rng.normal(size=5), dtype))
        self.optimizer = wf.train.Adam(0.05)

    def loss(self, x: Any, y: Any) -> Any:
        made = wf.sum(wf.tanh(wf.matmul(wf.cast(x, self.w.dtype), self.w)) * self.v, axis=1)
        error = wf.cast(made, wf.float32) - y
        return wf.mean(error**2), {"largest": wf.max(wf.abs(error))}

    def elastic(self, name: str, size: int | None, **options: Any) -> Any:
        given = {"timeout": 20.0, "connect_timeout": 20.0, **options}
        return wf.train.Elastic(
            self.loss, self.optimizer, [self.w, self.v], name=name, size=size, **given
        )


def floats(made: Any) -> tuple[float, float]:
    loss, more = made
    return float(loss), float(more["largest"])


def trained(name: str, size: int | None, steps: int = 10, **options: Any) -> dict[int, Any]:
    """The results of the steps that this member takes part in."""
    found, model = {}, Model(**{k: options.pop(k) for k in ("seed", "dtype") if k in options})
    with model.elastic(name, size, **options) as train:
        while train.step < steps:
            step = train.step
            found[step] = floats(train(X[step], Y[step]))
    return found


def test_it_is_the_usual_training() -> None:
    """Of the whole batch by one compiled step, but for rounding."""
    model = Model()

    @wf.compile
    def step(x: Any, y: Any) -> Any:
        loss, _ = model.loss(x, y)
        model.optimizer.minimize(loss)
        return loss

    usual = [float(step(x, y)) for x, y in zip(X, Y, strict=True)]
    found = trained(fresh(), 1)
    np.testing.assert_allclose([loss for loss, _ in found.values()], usual, rtol=2e-4)


@pytest.mark.parametrize("size", [2, 3])
def test_the_bits_do_not_depend_on_who_takes_part(size: int) -> None:
    """All begin with the variables of one, whatever their own are."""
    wanted, name = trained(fresh(), 1), fresh()
    found = outcomes([lambda: trained(name, size) for _ in range(size)])
    assert found == [wanted] * size


def test_all_begin_with_the_variables_of_one() -> None:
    name = fresh()
    first, other = outcomes([partial(trained, name, 2, seed=k) for k in range(2)])
    assert first == other
    assert first in (trained(fresh(), 1, seed=0), trained(fresh(), 1, seed=1))


def test_a_newcomer_has_variables_and_slots() -> None:
    """It comes in the midst, with the step, the variables and the optimizer's slots of the run."""
    wanted, name = trained(fresh(), 1), fresh()
    reached, seen = threading.Event(), {}

    def first() -> Any:
        found, model = {}, Model()
        with model.elastic(name, 1) as train:
            while train.step < 10:
                step = train.step
                if step == 5:
                    reached.set()
                    waiting.wait(20)
                found[step] = floats(train(X[step], Y[step]))
                seen[step] = train.size
            assert any("has come" in text for text in train.changes)
        return found

    waiting = threading.Event()

    def second() -> Any:
        reached.wait(20)
        timer = threading.Timer(0.5, waiting.set)  # when it waits to be let in
        timer.start()
        found = trained(name, 1, seed=7)
        timer.join()
        return found

    all_steps, some = outcomes([first, second])
    assert all_steps == wanted
    assert some == {step: wanted[step] for step in some}
    assert set(some) == {step for step, size in seen.items() if size == 2}
    assert 5 in some


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes(dtype: str) -> None:
    """16-bit floats are added as float32."""
    name, options = fresh(), {"dtype": dtype, "steps": 3}
    wanted = trained(fresh(), 1, **options)
    assert outcomes([lambda: trained(name, 2, **options) for _ in range(2)]) == [wanted] * 2


def test_looked_up_rows_and_what_is_not_used() -> None:
    table, unused = wf.Variable(np.ones((5, 2), np.float32)), wf.Variable([3.0])

    def loss(ids: Any) -> Any:
        return wf.mean(wf.sum(wf.nn.embedding_lookup(table, ids), axis=1))

    options: Any = {"name": fresh(), "size": 1, "microbatches": 2}
    with wf.train.Elastic(loss, wf.train.SGD(1.0), [table, unused], **options) as train:
        assert float(train(np.array([0, 1, 1, 3]))) == 2.0
    np.testing.assert_array_equal(table.numpy()[:, 0], [0.75, 0.5, 1, 0.75, 1])
    assert unused.numpy() == [3.0]


def test_more_processes_than_microbatches() -> None:
    name = fresh()
    wanted = trained(fresh(), 1, steps=3, microbatches=2)
    works = [lambda: trained(name, 3, steps=3, microbatches=2) for _ in range(3)]
    assert outcomes(works) == [wanted] * 3


def test_what_is_refused() -> None:
    model = Model()
    with pytest.raises(wf.errors.UnavailableError, match=r"1 processes of the run .* and 2 are"):
        model.elastic(fresh(), 2, connect_timeout=0.2)
    with pytest.raises(wf.errors.InvalidArgumentError, match="microbatches is at least 1, got 0"):
        model.elastic(fresh(), 1, microbatches=0)
    with pytest.raises(wf.errors.TypeRuleError, match="variables is a list"):
        wf.train.Elastic(model.loss, model.optimizer, [], name=fresh(), size=1)
    with pytest.raises(wf.errors.UnsupportedError, match="only real floats are trained"):
        wf.train.Elastic(model.loss, model.optimizer, [wf.Variable([1])], name=fresh(), size=1)
    with model.elastic(fresh(), 1) as train:
        with pytest.raises(wf.errors.ShapeError, match=r"\[23, 6\], \[23\] cannot be cut into 8"):
            train(X[0][:23], Y[0][:23])
        with pytest.raises(wf.errors.ShapeError, match=r"\[24, 6\], \[16\] cannot"):
            train(X[0], Y[0][:16])
        assert train.step == 0
        train(X[0], Y[0])
    with pytest.raises(wf.errors.FailedPreconditionError, match="was closed here"):
        train(X[0], Y[0])


def test_losses_that_are_none() -> None:
    w, count = wf.Variable([1.0]), wf.Variable(0.0, trainable=False)

    def counts(x: Any) -> Any:
        count.assign_add(1.0)
        return wf.mean(x * w)

    for loss, error, said in [
        (counts, wf.errors.UnsupportedError, "the loss assigns to a variable"),
        (lambda x: x * w, wf.errors.InvalidArgumentError, "and not a scalar whose mean"),
        (lambda x: {"a": wf.mean(x * w)}, wf.errors.InvalidArgumentError, "returns {'a'"),
    ]:
        train = wf.train.Elastic(loss, wf.train.SGD(0.1), [w], name=fresh(), size=1)
        with train, pytest.raises(error, match=said):
            train(np.ones((8, 1), np.float32))


def test_programs_that_differ() -> None:
    name = fresh()

    def work(rows: int) -> Any:
        with Model().elastic(name, 2) as train:
            return train(X[0][:rows], Y[0][:rows])

    found = outcomes([lambda: work(24), lambda: work(16)])
    assert any(
        isinstance(x, wf.errors.InvalidArgumentError) and "float32[16, 6]" in str(x) for x in found
    )


def tasks_at_hosts(count: int) -> list[wf.train.ClusterTask]:
    """The tasks of a cluster on so many hosts, which all are this one."""
    held = [socket.create_server((f"127.0.0.{k + 1}", 0)) for k in range(count)]
    hosts = ["{}:{}".format(*one.getsockname()) for one in held]
    for one in held:
        one.close()
    spec = wf.train.ClusterSpec({"worker": hosts})
    return [wf.train.ClusterTask(spec, "worker", k) for k in range(count)]


def test_tasks_on_several_hosts() -> None:
    """By TCP, at the addresses of the tasks: all of them begin."""
    wanted, name = trained(fresh(), 1), fresh()
    found = outcomes([partial(trained, name, None, task=t) for t in tasks_at_hosts(3)])
    assert found == [wanted] * 3


def test_tasks_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WEFT_KEY_FILE", raising=False)
    hosts = {"worker": ["10.0.0.1:1", "10.0.0.2:1"]}
    task = wf.train.ClusterTask(wf.train.ClusterSpec(hosts), "worker", 0)
    with pytest.raises(wf.errors.FailedPreconditionError, match="reached from other machines"):
        trained(fresh(), 2, task=task)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"task is a wf\.train\.ClusterTask"):
        trained(fresh(), 2, task="worker:0")
    with pytest.raises(wf.errors.InvalidArgumentError, match="size=3, and the job 'worker' has 2"):
        trained(fresh(), 3, task=task)
    with pytest.raises(wf.errors.InvalidArgumentError, match="size= or task="):
        trained(fresh(), None)
