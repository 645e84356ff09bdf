"""`wf.Mesh`, `wf.PartitionSpec`, `wf.shard_map` in one process, against NumPy on whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from table_model import TableModel

import weft as wf
from weft import PartitionSpec as P
from weft.frontend import collectives as c
from weft.ir.errors import InvalidArgumentError, ShapeError, UnsupportedError

MESH = wf.Mesh({"d": 2, "m": 4})
X = np.random.default_rng(0).normal(size=(8, 16))
W = np.random.default_rng(1).normal(size=(16, 4))
#: Specs for an array of two axes.
ENTRIES = [None, "d", "m", ("d", "m"), ("m", "d")]
SPECS = [
    P(*pair)
    for pair in ((a, b) for a in ENTRIES for b in ENTRIES)
    if len({*P(pair[0]).names, *P(pair[1]).names}) == len(P(pair[0]).names + P(pair[1]).names)
]


def shards(x: Any, spec: P) -> dict[tuple[int, int], Any]:
    """By NumPy: the shard of each index of the mesh."""
    found = {}
    for d in range(2):
        for m in range(4):
            index, part = {"d": d, "m": m}, x
            for axis, names in enumerate(spec.axes):
                for name in names:
                    part = np.split(part, MESH.shape[name], axis)[index[name]]
            found[d, m] = part
    return found


@given(spec=st.sampled_from(SPECS))
@examples(len(SPECS))
def test_what_each_shard_gets(spec: P) -> None:
    """And that whole tensors come back as they were."""
    seen = wf.shard_map(lambda x: (x, x[None, None]), MESH, (spec,), (spec, P("d", "m")))
    whole, each = seen(X)
    np.testing.assert_array_equal(whole.numpy(), X)
    for (d, m), part in shards(X, spec).items():
        rows, columns = part.shape
        found = each.numpy().reshape(2, 4, rows, columns)[d, m]
        np.testing.assert_array_equal(found, part)


def product(x: Any, w: Any) -> Any:
    return c.psum(wf.matmul(x, w), "m")


PRODUCT = wf.shard_map(product, MESH, (P("d", "m"), P("m")), P("d"))


def test_a_product_over_two_axes() -> None:
    for run in (PRODUCT, wf.compile(PRODUCT)):
        np.testing.assert_allclose(run(X, W).numpy(), X @ W, rtol=1e-12)


def test_gradients_from_outside_and_inside() -> None:
    def loss(x: Any, w: Any) -> Any:
        return wf.sum(wf.tanh(PRODUCT(x, w)))

    slopes = wf.compile(wf.grad(loss, argnums=(0, 1)))(X, W)
    wanted = wf.grad(lambda x, w: wf.sum(wf.tanh(x @ w)), argnums=(0, 1))(
        wf.asarray(X), wf.asarray(W)
    )
    for got, right in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=1e-10, atol=1e-12)

    def local(w: Any, x: Any) -> Any:  # a data-parallel step: the mean of the shards' gradients
        return c.pmean(wf.grad(lambda w: wf.mean(wf.tanh(x @ w)))(w), ("d", "m"))

    inside = wf.shard_map(local, MESH, (None, P(("d", "m"))), None)
    whole = wf.grad(lambda w: wf.mean(wf.tanh(X @ w)))(wf.asarray(W))
    np.testing.assert_allclose(inside(W, X).numpy(), whole.numpy(), rtol=1e-12)


def test_the_second_derivative_and_forward_mode() -> None:
    x, w = wf.asarray(X), wf.asarray(W)

    def loss(w: Any) -> Any:
        return wf.sum(wf.tanh(PRODUCT(x, w)))

    def plain(w: Any) -> Any:
        return wf.sum(wf.tanh(x @ w))

    for transform in (
        lambda f: wf.jvp(f, (w,), (w,))[1],
        lambda f: wf.hvp(f, (w,), (w,))[0],
        lambda f: wf.vmap(f)(wf.stack([w, 2 * w])),
    ):
        np.testing.assert_allclose(transform(loss).numpy(), transform(plain).numpy(), rtol=1e-9)


def test_tiled_collectives() -> None:
    mesh = wf.Mesh({"i": 4})
    for fn, given_as, out, wanted in (
        (lambda x: c.all_gather(x, "i", 1, tiled=True), P(None, "i"), None, X),
        (lambda x: c.psum_scatter(x, "i", 1, tiled=True), P("i"), P(None, "i"),
         X.reshape(4, 2, 16).sum(0)),
        (lambda x: c.all_to_all(x, "i", 0, 1, tiled=True), P(None, "i"), P("i"), X),
        (lambda x: c.all_to_all(x, "i", 1, 0, tiled=True), P("i"), P(None, "i"), X),
    ):  # fmt: skip
        run = wf.shard_map(fn, mesh, given_as, out)
        np.testing.assert_allclose(run(X).numpy(), wanted, rtol=1e-12)
        d = np.random.default_rng(2).normal(size=run(X).shape)
        slope = wf.grad(lambda x, run=run, d=d: wf.sum(run(x) * d))(wf.asarray(X))
        h = 1e-6
        numeric = np.sum((run(X + h * X).numpy() - run(X - h * X).numpy()) * d) / (2 * h)
        assert np.sum(slope.numpy() * X) == pytest.approx(numeric, rel=1e-6)


def test_trees_variables_and_a_training_step() -> None:
    """Data-parallel training is that of one process on the whole batch."""
    mesh = wf.Mesh({"data": 4})

    def trained(data_parallel: bool) -> Any:
        w = wf.Variable(np.zeros((16, 4)))

        def gradients(params: Any, batch: Any) -> Any:
            def loss(p: Any) -> Any:
                return wf.mean((wf.matmul(batch["x"], p["w"]) - batch["y"]) ** 2)

            value, slopes = wf.value_and_grad(loss)(params)
            return (value, slopes) if not data_parallel else c.pmean((value, slopes), "data")

        if data_parallel:
            gradients = wf.shard_map(
                gradients, mesh, (None, {"x": "data", "y": "data"}), (None, None)
            )

        @wf.compile
        def step(batch: Any) -> Any:
            value, slopes = gradients({"w": w.read()}, batch)
            w.assign_sub(0.1 * slopes["w"])
            return value

        losses = [float(step({"x": X, "y": X[:, :4]})) for _ in range(5)]
        assert losses[4] < losses[0]
        return losses

    np.testing.assert_allclose(trained(True), trained(False), rtol=1e-12)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: wf.train.SGD(0.5),
        lambda: wf.train.Adagrad(0.5),
        lambda: wf.train.Adam(0.05),
        lambda: wf.train.Momentum(0.3, 0.9),
    ],
    ids=["sgd", "adagrad", "adam", "momentum"],
)
@pytest.mark.parametrize("shape", [{"data": 4}, {"a": 2, "b": 2}], ids=["one axis", "two"])
def test_data_parallel(optimizer: Any, shape: dict[str, int]) -> None:
    """Dense and sparse gradients: the training of one process on the whole batch."""
    rng = np.random.default_rng(4)
    batches = [(rng.integers(0, 50, 16), rng.integers(0, 3, 16)) for _ in range(5)]
    found = []
    for mesh in (None, wf.Mesh(shape)):
        model = TableModel(optimizer)
        step = model.step if mesh is None else wf.data_parallel(model.step, mesh)
        run = wf.compile(step)
        made = [run(*batch, np.float32(0.7)) for batch in batches]
        assert int(model.steps.numpy()) == 5
        found.append([*([float(m["loss"]), float(m["right"])] for m in made)])
        found.append([model.table.numpy(), model.w.numpy()])
    np.testing.assert_allclose(found[0], found[2], rtol=2e-5)
    for one, many in zip(found[1], found[3], strict=True):
        np.testing.assert_allclose(one, many, rtol=2e-4, atol=2e-6)


def test_what_no_data_parallel_step_is() -> None:
    w = wf.Variable(np.zeros((16, 4)))
    mesh = wf.Mesh({"data": 2})

    def by_hand(x: Any) -> Any:
        w.assign_sub(wf.grad(lambda w: wf.mean(wf.matmul(x, w) ** 2))(w.read()))
        return wf.mean(x)

    with pytest.raises(UnsupportedError, match="would be assigned one value for each example"):
        wf.data_parallel(by_hand, mesh)(X)
    for made in (lambda x: x, lambda x: wf.argmax(x), lambda x: [wf.mean(x), wf.sum(x, axis=0)]):
        with pytest.raises(InvalidArgumentError, match="not a scalar whose mean"):
            wf.data_parallel(made, mesh)(X)
    with pytest.raises(ShapeError, match="into 2 shards"):
        wf.data_parallel(wf.mean, mesh)(X[:3])
    assert float(wf.data_parallel(wf.mean, mesh)(X)) == pytest.approx(X.mean())
    with pytest.raises(InvalidArgumentError, match=r"result\[1\] is .* not a scalar"):
        wf.data_parallel(lambda x: (x, wf.sum(x, axis=0)), mesh, (P("data"), None))(X)


def test_a_data_parallel_step_whose_results_are_joined() -> None:
    """Those that out_specs cut; of the others the mean."""
    mesh = wf.Mesh({"data": 2, "more": 2})

    def step(x: Any) -> Any:
        return wf.mean(x), [x * 2, wf.sum(x, axis=0)]

    rows = P(("data", "more"))
    loss, (each, sums) = wf.compile(wf.data_parallel(step, mesh, (None, [rows, rows])))(X)
    assert float(loss) == pytest.approx(X.mean())
    np.testing.assert_array_equal(each.numpy(), X * 2)
    np.testing.assert_allclose(sums.numpy().reshape(4, -1), X.reshape(4, 2, -1).sum(1))


def test_an_axis_that_is_named_twice() -> None:
    """Is summed over twice, and the mean stays the mean."""
    for fn, wanted in ((c.psum, 4 * X), (c.pmean, X)):
        run = wf.shard_map(lambda x, fn=fn: fn(x, ("d", "d")), MESH, None, None)
        np.testing.assert_array_equal(run(X).numpy(), wanted)


def test_index_and_size() -> None:
    def where(x: Any) -> Any:
        return x + 10 * c.axis_index("d") + c.axis_index("m") + 100 * c.axis_size("m")

    found = wf.shard_map(where, MESH, P("d", "m"), P("d", "m"))(np.zeros((2, 4)))
    assert found.numpy().tolist() == [[400, 401, 402, 403], [410, 411, 412, 413]]


def test_bad_input() -> None:
    for shape in ({}, {"d": 0}, {3: 2}, {"d": 2.0}, ("d", 2)):
        with pytest.raises(InvalidArgumentError, match=r"wf\.Mesh takes the size of each axis"):
            wf.Mesh(shape)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="'d' of the mesh stands twice"):
        P("d", ("m", "d"))
    with pytest.raises(InvalidArgumentError, match="no name of an axis"):
        P(3)  # type: ignore[arg-type]
    same = wf.shard_map(lambda x: x, MESH, P("d"), None)
    with pytest.raises(InvalidArgumentError, match="result differs along the axis 'd'") as caught:
        same(X)
    assert caught.value.locations[0].file == __file__
    with pytest.raises(InvalidArgumentError, match=r"no axis 'dd'.*'d'"):
        wf.shard_map(lambda x: x, MESH, P("dd"), None)(X)
    with pytest.raises(InvalidArgumentError, match=r"no axis 'x'"):
        wf.shard_map(lambda x: x, MESH, P("d"), P("x"))(X)
    with pytest.raises(ShapeError, match=r"axis 0 of arguments\[0\], of size 3, into 2 shards"):
        wf.shard_map(lambda x: x, MESH, P("d"), P("d"))(X[:3])
    with pytest.raises(ShapeError, match="a spec has at most an entry for each axis"):
        wf.shard_map(lambda x: x, MESH, P(None, None, "d"), P("d"))(X)
    with pytest.raises(ShapeError, match="a spec has at most an entry for each axis"):
        wf.shard_map(lambda x: x, MESH, P(None, None, None), None)(X)
    with pytest.raises(InvalidArgumentError, match="which has 0 axes in a shard"):
        wf.shard_map(lambda x: wf.sum(x), MESH, P("d"), P("d"))(X)
    with pytest.raises(InvalidArgumentError, match="in_specs has"):
        wf.shard_map(lambda x: x, MESH, (P("d"), P("d")), P("d"))(X)
    for out in (5, (P("d"), 5)):
        with pytest.raises(InvalidArgumentError, match="out_specs has 5"):
            wf.shard_map(lambda x: x, MESH, P("d"), out)(X)
    with pytest.raises(InvalidArgumentError, match=r"takes a function and a wf\.Mesh"):
        wf.shard_map(lambda x: x, {"d": 2}, P("d"), P("d"))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="whose size is open"):
        wf.compile(same, input_signature=[wf.TensorType(wf.float64, (None, 16))])(X)
    with pytest.raises(InvalidArgumentError, match="no axis of rows is called 'x'"):
        wf.shard_map(lambda x: c.psum(x, "x"), MESH, P("d"), P("d"))(X)
    with pytest.raises(ShapeError, match="no parts of one size for 4 rows"):
        wf.shard_map(lambda x: c.psum_scatter(x, "m", tiled=True), MESH, P("d"), P("d"))(X[:6])
