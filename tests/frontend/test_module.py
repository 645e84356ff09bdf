"""`wf.nn.Module`: which parameters it finds and by which names; modes; with compiled functions,
sessions, optimizers and checkpoints."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - users may
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf


class Dense(wf.nn.Module):
    def __init__(self, inputs: int, outputs: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.w = wf.Variable(rng.normal(size=(inputs, outputs)).astype(np.float32))
        self.b = wf.Variable(np.zeros(outputs, np.float32))

    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


class Dropout(wf.nn.Module):
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, x: Any) -> Any:
        key = wf.random.key(0)
        return wf.nn.dropout(x, self.rate, key=key) if self.training else x


class Net(wf.nn.Module):
    def __init__(self) -> None:
        self.layers: list[Any] = [Dense(3, 4, 1), Dropout(0.5), Dense(4, 2, 2)]
        self.count = wf.Variable(0, trainable=False)
        self.heads = {"b": Dense(2, 1, 3), "a": Dense(2, 1, 4)}
        self.size, self._hidden = 7, wf.Variable(1.0)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.heads["a"](x)


NAMES = [
    "layers/0/w", "layers/0/b", "layers/2/w", "layers/2/b", "count", "heads/b/w", "heads/b/b",
    "heads/a/w", "heads/a/b",
]  # fmt: skip
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def by_hand(net: Net, x: np.ndarray) -> np.ndarray:
    for layer in (net.layers[0], net.layers[2], net.heads["a"]):
        assert isinstance(layer, Dense)
        x = x @ layer.w.numpy() + layer.b.numpy()
    return x


def test_names() -> None:
    net = Net()
    found = net.named_variables()
    assert list(found) == NAMES
    assert found["heads/a/w"] is net.heads["a"].w
    assert net.variables() == list(found.values())
    assert net.trainable_variables() == [v for v in found.values() if v is not net.count]
    assert net.modules()[0] is net
    assert [type(m).__name__ for m in net.modules()] == [
        "Net", "Dense", "Dropout", "Dense", "Dense", "Dense",
    ]  # fmt: skip
    assert repr(net) == "<Net: 9 variables>"


def test_a_tree() -> None:
    net = Net()
    tree = net.parameters()
    assert list(tree) == ["layers", "count", "heads"]
    assert tree["layers"][1] is None
    values = wf.tree_map(lambda v: v.numpy() + 1, tree)
    net.assign(values)
    np.testing.assert_array_equal(net.count.numpy(), 1)
    np.testing.assert_array_equal(net.layers[0].b.numpy(), 1)
    assert len(wf.tree_leaves(tree)) == len(NAMES)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"Net.assign: the structures"):
        net.assign({"layers": []})


def test_what_is_there_twice_is_one() -> None:
    """Tied weights; modules that know each other."""
    first, second = Dense(2, 2), Dense(2, 2)
    second.w = first.w
    outer = wf.nn.Module()
    outer.first, outer.second = first, second  # type: ignore[attr-defined]
    first.parent = outer  # type: ignore[attr-defined]
    assert list(outer.named_variables()) == ["first/w", "first/b", "second/b"]
    assert len(outer.modules()) == 3


def test_summary() -> None:
    lines = Net().summary().splitlines()
    assert lines[0] == "layers/0/w  f32[3,4]  12"
    assert lines[4] == "count       i64[]      1  not trainable"
    assert lines[-1] == "33 parameters, 32 of them trainable, 136 bytes"
    assert wf.nn.Module().summary() == "0 parameters, 0 of them trainable, 0 bytes"


# ------------------------------------------------------------------------------------------- modes
def test_train_and_eval() -> None:
    net = Net()
    assert not net.training
    assert net.train() is net
    assert all(m.training for m in net.modules())
    assert float(np.abs(net(X).numpy() - by_hand(net, X)).max()) > 0.1
    assert not net.eval().layers[1].training
    np.testing.assert_allclose(net(X), by_hand(net, X), rtol=1e-5, atol=1e-6)


def test_a_function_says_its_mode() -> None:
    net = Net()
    train, predict = wf.compile(lambda x: net.train()(x)), wf.compile(lambda x: net.eval()(x))
    for _ in range(2):
        assert float(np.abs(train(X).numpy() - by_hand(net, X)).max()) > 0.1
        np.testing.assert_allclose(predict(X), by_hand(net, X), rtol=1e-5, atol=1e-6)
    assert not net.training  # what a function says is for it alone
    net.train()
    np.testing.assert_allclose(predict(X), by_hand(net, X), rtol=1e-5, atol=1e-6)
    with pytest.raises(wf.errors.FailedPreconditionError, match="its Dropout is being trained"):
        wf.compile(lambda x: net(x))(X)


def test_a_mode_in_a_branch_and_a_gradient() -> None:
    net = Net()
    net.layers[1].rate = 0.0

    @wf.compile
    def step(x: Any, flag: Any) -> Any:
        net.train()
        return wf.cond(flag, lambda: net(x), lambda: net(x) * 0)

    np.testing.assert_allclose(step(X, True), by_hand(net, X), rtol=1e-5, atol=1e-6)
    net.layers[1].rate = 0.5

    @wf.compile
    def slopes(x: Any) -> Any:
        net.train()
        found = [wf.grad(lambda x: wf.sum(net(x)))(x), wf.vjp(lambda x: net(x), x)[0]]
        loops = wf.map_fn(lambda row: net(row[None])[0], x)
        net.eval()
        return [*found, loops, wf.grad(lambda x: wf.sum(net(x)))(x)]

    trained, _, _, plain = (np.asarray(x) for x in slopes(X))
    assert np.abs(trained - plain).max() > 0.01
    np.testing.assert_allclose(plain, wf.grad(lambda x: wf.sum(net(x)))(X), rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------------- where it is used
def test_training_in_a_compiled_function() -> None:
    net, optimizer = Net(), wf.train.Adam(0.05)
    target = X @ np.float32([[1.0], [2.0], [-1.0]])

    @wf.compile
    def step(x: Any, y: Any) -> Any:
        loss = wf.losses.mean_squared_error(y, net.eval()(x))
        optimizer.minimize(loss)
        return loss

    losses = [float(step(X, target)) for _ in range(200)]
    assert losses[-1] < 0.01 * losses[0]


def test_in_a_session(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph, wf.Session() as session:
        net = Net()
        x = wf.placeholder(wf.float32, [None, 3])
        y = net(x)
        train = wf.train.SGD(0.1).minimize(wf.mean(y**2), net.trainable_variables()[:4])
        assert {*net.variables()} <= {*graph.variables}
        session.run(wf.global_variables_initializer())
        before = session.run(y, {x: X})
        session.run(train, {x: X})
        after = session.run(y, {x: X})
        assert (after**2).mean() < (before**2).mean()
        path = wf.train.Saver(net).save(session, tmp_path / "net")
    other = Net()  # outside of a graph
    wf.train.Saver(other).restore(None, path)
    np.testing.assert_allclose(other(X), after, rtol=1e-5, atol=1e-6)


def test_checkpoints(tmp_path: Path) -> None:
    net, optimizer = Net(), wf.train.Momentum(0.1)
    optimizer.minimize(lambda: wf.sum(net(X) ** 2))
    saver = wf.train.Saver({"model": net, "optimizer": optimizer})
    path = saver.save(None, tmp_path / "all")
    names = [name for name, *_ in wf.train.list_variables(path)]
    assert {f"model/{n}" for n in NAMES} <= set(names)
    assert "model/layers/0/w/optimizer/momentum" in names
    other, again = Net(), wf.train.Momentum(0.1)
    wf.train.Saver({"model": other, "optimizer": again}).restore(None, path)
    np.testing.assert_array_equal(other(X), net(X))
    for n, o in ((net, optimizer), (other, again)):
        o.minimize(lambda n=n: wf.sum(n(X) ** 2))  # type: ignore[misc]
    np.testing.assert_array_equal(other(X), net(X))


def test_copies_are_apart() -> None:
    net = Net()
    wf.compile(lambda x: net.train()(x))(X)
    other = copy.deepcopy(net)
    read = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(read(X), net(X))
    other.layers[0].w.assign_add(np.ones((3, 4), np.float32))
    assert float(np.abs(other(X).numpy() - net(X).numpy()).max()) > 0.01
    assert not {*map(id, net.variables())} & {*map(id, other.variables())}


def test_names_that_are_none() -> None:
    model = wf.nn.Module()
    model.parts = {1: wf.Variable(1.0)}  # type: ignore[attr-defined]
    with pytest.raises(wf.errors.TypeRuleError, match="a parameter's name is a str, not 1"):
        model.parameters()
    model.parts = {"a/b": wf.Variable(1.0)}  # type: ignore[attr-defined]
    with pytest.raises(wf.errors.InvalidArgumentError, match="has a slash"):
        model.named_variables()
