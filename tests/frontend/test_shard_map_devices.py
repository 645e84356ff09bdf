"""`wf.shard_map` over a mesh of devices: the results and derivatives of the mesh that is a batch.

Here all devices are this process's processor, by different names, so that one native step holds all
shards; tasks, GPUs and sessions have tests of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from table_model import TableModel

import weft as wf
from weft import PartitionSpec as P
from weft.frontend import collectives as c
from weft.ir.errors import InvalidArgumentError

#: The processor of this process, by names that differ: to a mesh these are several devices.
NAMES = ["/cpu:0", "/task:0/cpu:0", "/job:localhost/cpu:0", "/job:localhost/task:0/cpu:0",
         "/job:localhost", "/job:localhost/task:0", "/task:0", "/device:*:0"]  # fmt: skip
SHAPE = {"d": 2, "m": 2}
ONE, MESH = wf.Mesh(SHAPE), wf.Mesh(SHAPE, devices=NAMES[:4])
X = np.random.default_rng(0).normal(size=(8, 16))
W = np.random.default_rng(1).normal(size=(16, 4))
RING = [(0, 1), (1, 0)]


def same(got: Any, wanted: Any, rtol: float = 1e-10) -> None:
    for a, b in zip(wf.tree_leaves(got), wf.tree_leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=rtol / 100)


def product(x: Any, w: Any) -> Any:
    return c.psum(wf.matmul(x, w), "m")


def tree(x: Any) -> Any:
    found = c.psum({"a": x, "b": [x[0], wf.sum(x)]}, "m")
    return found["a"] + found["b"][0] * found["b"][1]


def index(x: Any) -> Any:
    return x * c.axis_index("d") + c.axis_index("m") * c.axis_size("m")


def all_within(x: Any) -> Any:
    def row(r: Any) -> Any:
        gathered = c.all_to_all(c.all_gather(r, "m"), "m", 0, 0)[0]
        return gathered + c.psum_scatter(r, "m", tiled=True)[0]

    return wf.vmap(row)(x)


def scanned(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = carry + c.psum(row, "m")
        return carry, c.ppermute(carry * row, "m", RING)

    total, rows = wf.scan(step, wf.zeros(x.shape[1], dtype=wf.float64), x)
    return rows + total


def branch(x: Any) -> Any:
    return wf.cond(c.psum(wf.sum(x), ("d", "m")) > 0, lambda: c.psum(x, "d"), lambda: x * 2)


def until(x: Any) -> Any:
    """A loop whose length is found by a collective."""

    def go_on(y: Any) -> Any:
        return c.pmax(wf.max(y), ("d", "m")) < 20

    return wf.while_loop(go_on, lambda y: y * 1.5 + 0.1 * c.pmean(y * y, "m"), x)


def recomputed(x: Any, w: Any) -> Any:
    """A gradient with collectives, of what is cut and of what is not."""
    return wf.checkpoint(lambda x, w: wf.matmul(x, w) * c.psum(wf.sum(wf.sin(x)), "d"))(x, w)


#: Function, specs of arguments and results.
CASES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "product": (product, (P("d", "m"), P("m")), P("d")),
    "psum": (lambda x: c.psum(x * x, ("d", "m")), P("d", "m"), None),
    "pmean": (lambda x: c.pmean(wf.mean(x), ("d", "m")), P("d", "m"), None),
    "pmax": (lambda x: c.pmax(x, "m"), P(None, "m"), None),
    "pmin": (lambda x: c.pmin(x, "d"), P("d"), None),
    "gather": (lambda x: c.all_gather(x, "m", 1) * x[:, None], P(None, "m"), P(None, None, "m")),
    "tiled": (lambda x: c.all_gather(x, "d", tiled=True), P("d", "m"), P(None, "m")),
    "scatter": (lambda x: c.psum_scatter(x, "d", 1, tiled=True), P("d"), P(None, "d")),
    "to all": (lambda x: c.all_to_all(x, "m", 1, 0, tiled=True), P("m"), P(None, "m")),
    "permute": (lambda x: c.ppermute(x, "d", RING) + x, P("d"), P("d")),
    "permute some": (lambda x: c.ppermute(x, "d", [(1, 0)]), P(("m", "d")), P(("m", "d"))),
    "index": (index, P(("m", "d")), P(("m", "d"))),
    "a tree": (tree, P(None, "m"), None),
    "shared": (lambda x: wf.matmul(x, W), P("d"), P("d")),
    "replicated": (lambda x: wf.sin(x), None, None),
    "of what is the same": (lambda x: c.psum(x, "d") + c.all_gather(x[0], "m")[1], None, None),
    "vmap within": (lambda x: wf.vmap(lambda r: c.psum(r, "m") + r[:1])(x), P(None, "m"),
                    P(None, "m")),
    "rows within": (lambda x: wf.vmap(lambda r: c.psum(r, "m") / c.psum(r * r, "i"),
                                      axis_name="i")(x), P(None, "m"), P(None, "m")),
    "all within": (all_within, P("d"), P("d", "m")),
    "loop": (lambda x: wf.fori_loop(0, 3, lambda k, y: y - c.pmean(y, "m") * k, x),
             P(None, "m"), P(None, "m")),
    "loop alone": (lambda x: wf.fori_loop(0, 3, lambda k, y: wf.sin(y) * c.axis_index("m"), x),
                   P(None, "m"), P(None, "m")),
    "scan": (scanned, P(None, "m"), P(None, "m")),
    "branch": (branch, P("d", "m"), P("d", "m")),
    "branch alone": (lambda x: wf.cond(wf.sum(x) > 0, lambda: x * 2, lambda: wf.exp(x)),
                     P("d", "m"), P("d", "m")),
    "until": (until, P("d", "m"), P("d", "m")),
    "recomputed": (recomputed, (P("d"), None), P("d")),
}  # fmt: skip


def both(case: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    fn, given_as, out = CASES[case]
    return wf.shard_map(fn, MESH, given_as, out), wf.shard_map(fn, ONE, given_as, out)


@pytest.mark.share(2)
@pytest.mark.parametrize("case", CASES)
def test_the_results_and_derivatives_of_a_batch(case: str) -> None:
    """Eagerly and compiled, forward mode, and the first derivative."""
    here, there = both(case)
    args = (X, W) if isinstance(CASES[case][1], tuple) else (X,)
    wanted = there(*args)
    same(here(*args), wanted)
    same(wf.compile(here)(*args), wanted)
    weight = np.random.default_rng(5).normal(size=wanted.shape)
    values = tuple(map(wf.asarray, args))

    def slope(f: Any) -> Any:
        return wf.grad(lambda *a: wf.sum(wf.sin(f(*a)) * weight), argnums=tuple(range(len(args))))

    same(wf.compile(slope(here))(*args), slope(there)(*values), 1e-8)
    same(wf.jvp(here, values, values)[1], wf.jvp(there, values, values)[1], 1e-8)


def test_a_batch_around_and_the_second_derivative() -> None:
    here, there = both("product")
    batch = np.stack([X, 2 * X])
    same(*(wf.vmap(f, in_axes=(0, None))(batch, W) for f in (here, there)))

    def second(f: Any) -> Any:
        first = wf.grad(lambda w: wf.sum(wf.tanh(f(wf.asarray(X), w))))
        return wf.compile(wf.grad(lambda w: wf.sum(first(w) ** 2)))(W)

    same(second(here), second(there), 1e-8)


def test_a_gradient_inside() -> None:
    def local(w: Any, x: Any) -> Any:
        return c.pmean(wf.grad(lambda w: wf.mean(wf.tanh(x @ w)))(w), ("d", "m"))

    for mesh in (ONE, MESH):
        inside = wf.shard_map(local, mesh, (None, P(("d", "m"))), None)
        whole = wf.grad(lambda w: wf.mean(wf.tanh(X @ w)))(wf.asarray(W))
        same(wf.compile(inside)(W, X), whole)


MESHES = [
    {"d": 1},
    {"d": 2},
    {"d": 3},
    {"d": 4},
    {"d": 2, "m": 3},
    {"m": 2, "d": 2},
    {"a": 2, "d": 3},
]
DTYPES = [np.float32, np.float64, np.int32, np.float16, np.uint8]


def by_numpy(kind: str, rows: list[Any], rank: int) -> Any:
    """What the shard of that rank gets of the arrays of all."""
    wide = [r.astype(np.float32) if r.dtype == np.float16 else r for r in rows]
    if kind == "psum":
        total = wide[0]
        for row in wide[1:]:
            total = (total + row).astype(wide[0].dtype)
        return total.astype(rows[0].dtype)
    if kind in ("pmax", "pmin"):
        return (np.maximum if kind == "pmax" else np.minimum).reduce(rows)
    if kind == "all_gather":
        return np.stack(rows)
    if kind == "psum_scatter":
        return by_numpy("psum", [r[rank] for r in rows], rank)
    if kind == "all_to_all":
        return np.stack([r[rank] for r in rows])
    return rows[rank - 1] if rank else np.zeros_like(rows[0])  # the next one's, and zeros


@given(
    kind=st.sampled_from(
        ["psum", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute"]
    ),
    shape=st.sampled_from(MESHES),
    dtype=st.sampled_from(DTYPES),
    inner=st.sampled_from([(), (1,), (3,), (2, 5), (0, 2), (7, 1201)]),
    seed=st.integers(0, 9),
)
@examples(40)
@example(kind="psum", shape={"d": 3}, dtype=np.float32, inner=(7, 1201), seed=0)
@example(kind="psum", shape={"d": 4}, dtype=np.float16, inner=(2, 5), seed=0)
@example(kind="psum", shape={"d": 1}, dtype=np.float32, inner=(0, 2), seed=0)
def test_any_collective_has_the_bits_of_numpy(
    kind: str, shape: dict[str, int], dtype: Any, inner: tuple[int, ...], seed: int
) -> None:
    """Sums in the order of ranks, 16-bit floats added as float32; slices of what is large."""
    mesh = wf.Mesh(shape, devices=NAMES[: int(np.prod([*shape.values()]))])
    size, rng = shape["d"], np.random.default_rng(seed)
    own = (size, *inner) if kind in ("psum_scatter", "all_to_all") else inner
    whole = (rng.normal(size=(*shape.values(), *own)) * 20).astype(dtype)
    lead = len(shape)

    def shard(x: Any) -> Any:
        mine = wf.reshape(x, own)
        options = {"ppermute": {"perm": [(k, k + 1) for k in range(size - 1)]},
                   "all_to_all": {"split_axis": 0, "concat_axis": 0}}.get(kind, {})  # fmt: skip
        made = getattr(c, kind)(mine, "d", **options)
        return wf.reshape(made, (*(1,) * lead, *made.shape))

    found = wf.compile(wf.shard_map(shard, mesh, P(*shape), P(*shape)))(whole).numpy()
    along = [*shape].index("d")
    for place in np.ndindex(*shape.values()):
        rows = [whole[(*place[:along], k, *place[along + 1 :])] for k in range(size)]
        wanted = by_numpy(kind, rows, place[along])
        assert found.dtype == wanted.dtype
        assert found[place].tobytes() == np.ascontiguousarray(wanted).tobytes(), place


def test_what_is_added_on_which_device() -> None:
    """Large arrays by slices, each on a device; small ones on all; what is the same once."""
    w = wf.Variable(np.ones((300, 100), np.float32))

    def shard(x: Any) -> Any:
        large, small = c.psum(x * w, "d"), c.psum(x[0], "d")
        return wf.sum(large), x + large * small, wf.tanh(w)

    mesh = wf.Mesh({"d": 2}, devices=NAMES[:2])
    run = wf.compile(wf.shard_map(shard, mesh, P(None, "d"), (None, P(None, "d"), None)))
    ops = [*run.trace(np.ones((300, 200), np.float32)).ops]
    adds = [(op.device, op.result.type.shape) for op in ops if op.name == "add"]
    assert adds.count(("/cpu:0", (15_000,))) == adds.count(("/task:0/cpu:0", (15_000,))) == 1
    assert adds.count(("/cpu:0", (100,))) == adds.count(("/task:0/cpu:0", (100,))) == 1
    assert [op.device for op in ops if op.name == "tanh"] == [""]
    assert {op.device for op in ops if op.name == "sum"} == {"", "/cpu:0", "/task:0/cpu:0"}


def test_what_is_cut_again_stays_where_it_is() -> None:
    """Along one axis, and along two in one dimension."""
    double = wf.shard_map(lambda x: x * 2, MESH, P(("m", "d")), P(("m", "d")))
    run = wf.compile(lambda x: double(double(x)))
    np.testing.assert_array_equal(run(X).numpy(), X * 4)
    graph = run.trace(X)
    whole = graph.args[0]
    slices = [op for op in graph.ops if op.name == "slice"]
    assert len(slices) == 6  # in two parts, each of these in two
    assert sum(whole in op.operands for op in slices) == 2


def test_gradients_are_where_the_shards_are() -> None:
    """Of products on two devices, from outside: two more on each, and the sum of both."""
    mesh = wf.Mesh({"d": 2}, devices=NAMES[:2])
    run = wf.shard_map(lambda x, w: wf.tanh(wf.matmul(x, w)), mesh, ("d", None), "d")
    slopes = wf.compile(wf.grad(lambda x, w: wf.sum(run(x, w)), argnums=(0, 1)))
    devices = [op.device for op in slopes.trace(X, W).ops if op.name == "matmul"]
    assert sorted(devices) == ["/cpu:0"] * 3 + ["/task:0/cpu:0"] * 3


@pytest.mark.parametrize(
    ("optimizer", "shape"),
    [(lambda: wf.train.Adagrad(0.5), {"data": 4}), (lambda: wf.train.Adam(0.05), SHAPE)],
    ids=["one axis", "two"],
)
def test_data_parallel(optimizer: Any, shape: dict[str, int]) -> None:
    """Dense and sparse gradients: the training of a mesh that is a batch; each update once."""
    rng = np.random.default_rng(4)
    batches = [(rng.integers(0, 50, 16), rng.integers(0, 3, 16)) for _ in range(5)]
    found = []
    for mesh in (wf.Mesh(shape), wf.Mesh(shape, devices=NAMES[:4])):
        model = TableModel(optimizer)
        run = wf.compile(wf.data_parallel(model.step, mesh))
        made = [run(*batch, np.float32(0.7)) for batch in batches]
        assert int(model.steps.numpy()) == 5
        found.append([*([float(m["loss"]), float(m["right"])] for m in made)])
        found.append([model.table.numpy(), model.w.numpy()])
    np.testing.assert_allclose(found[0], found[2], rtol=1e-5)
    for one, many in zip(found[1], found[3], strict=True):
        np.testing.assert_allclose(one, many, rtol=1e-4, atol=1e-6)


def test_numbers_of_a_generator_differ_by_shard() -> None:
    generator = wf.random.Generator(0)
    draw = wf.shard_map(lambda x: x + generator.normal((1, 3)), MESH, P(("d", "m")), P(("d", "m")))
    draws = wf.compile(draw)
    first, second = (draws(np.zeros((4, 3), np.float32)).numpy() for _ in range(2))
    assert len({row.tobytes() for row in (*first, *second)}) == 8


def test_state_in_loops_and_branches() -> None:
    """What is the same in all shards stays so, beside what is not: a counter, a generator."""
    for mesh in (MESH, wf.Mesh(MESH.shape)):
        counts, generator = wf.Variable(np.float32(0)), wf.random.Generator(0)

        def step(x: Any, counts: Any = counts, generator: Any = generator) -> Any:
            def yes() -> Any:
                counts.assign_add(1.0)
                return x * 2

            def turn(total: Any, row: Any) -> Any:
                return total + generator.normal(row.shape) * 0 + row, total

            y = wf.cond(c.psum(wf.sum(x), ("d", "m")) < 1e9, yes, lambda: x)
            return wf.scan(turn, wf.zeros_like(y[0]), y)[0][None]

        cut = P(("d", "m"))
        run = wf.compile(wf.shard_map(step, mesh, cut, cut))
        got = run(X).numpy()
        np.testing.assert_allclose(got, 2 * X.reshape(4, -1, *X.shape[1:]).sum(1), rtol=1e-5)
        assert counts.numpy() == 1


def test_after_control_dependencies_of_a_graph() -> None:
    made = [lambda x: wf.shard_map(lambda t: t * 2, MESH, "d", "d")(x), wf.vmap(lambda t: t * 2)]
    for make in made:
        with wf.Graph().as_default(), wf.Session() as session:
            v = wf.Variable(np.float32(0))
            with wf.control_dependencies([v.assign_add(1.0)]):
                y = make(wf.constant(X))
            session.run(wf.global_variables_initializer())
            session.run(y)
            assert session.run(v) == 1


@pytest.mark.parametrize(
    ("says", "fn", "spec"),
    [
        ("result differs along the axis 'd'", lambda x: x, "d"),
        ("result differs along the axis 'm'", lambda x: c.axis_index("m"), None),
        ("a variable would be assigned another value in each shard", "assign", "d"),
        ("the key in a variable gives all shards the same", "draw", None),
        ("the key in a variable gives all shards the same", "draw in a loop", None),
        ("the predicate of op 'cond' differs from shard to shard", lambda x: wf.cond(
            wf.sum(x) > 0, lambda: c.psum(x, "d"), lambda: x), "d"),
        ("the test of op 'while' differs from shard to shard", lambda x: wf.while_loop(
            lambda y: wf.sum(y) < 9, lambda y: y + c.pmax(y, "d"), x), "d"),
        ("of size 7, into 2 shards", lambda x: x[:7], "seven"),
    ],
)  # fmt: skip
def test_errors_of_what_is_traced(says: str, fn: Any, spec: Any) -> None:
    """Each says the line of the op."""
    v = wf.Variable(np.zeros(16))
    state = wf.random.Generator(0).state
    x = X[:7] if spec == "seven" else X
    if fn == "assign":
        fn = lambda x: [v.assign(wf.sum(x, axis=0))][1:]  # noqa: E731
    if fn == "draw":
        fn = lambda x: wf.random.normal(state.read(), (2,))  # noqa: E731
    if fn == "draw in a loop":
        numbers = lambda i: wf.random.normal(wf.random.fold_in(state.read(), i), (2,))  # noqa: E731
        fn = lambda x: wf.scan(lambda t, i: (t + numbers(i), t), wf.zeros(2), wf.arange(3))  # noqa: E731
    run = wf.compile(wf.shard_map(fn, MESH, "d" if spec == "seven" else spec, None))
    with pytest.raises(wf.errors.WeftError, match=says) as error:
        run(x)
    assert "test_shard_map_devices.py:" in str(error.value)


def test_meshes_that_cannot_be() -> None:
    task = wf.train.ClusterTask(wf.train.ClusterSpec({"worker": ["127.0.0.1:1"]}), "worker", 0)
    for says, devices, more in [
        ("a mesh of 4 shards, and 1 devices", "/cpu:0", {}),
        ("a mesh of 4 shards, and 3 devices", ["/cpu:0"] * 3, {}),
        ("task= for processes", ["/cpu:0"] * 4, {"task": task}),
        ("'cuda'", ["cuda"] * 4, {}),
        ("devices is a list of devices", 4, {}),
        ("which names no device", [1, 2, 3, 4], {}),
    ]:  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=says):
            wf.Mesh(SHAPE, devices=devices, **more)  # type: ignore[arg-type]
    cpu = wf.devices("cpu")[0]
    mesh = wf.Mesh({"d": 2}, devices=[cpu, wf.DeviceSpec(kind="cpu")])
    assert [*map(str, mesh.devices)] == ["/job:localhost/task:0/cpu:0", "/cpu:*"]
    assert repr(mesh) == "Mesh({'d': 2} on /job:localhost/task:0/cpu:0, /cpu:*)"
    mesh.close()


def test_devices_that_are_not_reached() -> None:
    """The error says what to do."""
    mesh = wf.Mesh({"d": 2}, devices=["/job:worker/task:0", "/job:worker/task:1"])
    far = wf.shard_map(lambda x: c.psum(x, "d"), mesh, P("d"), None)
    for run in (far, wf.compile(far), wf.compile(wf.grad(lambda x: wf.sum(far(x))))):
        with pytest.raises(
            InvalidArgumentError, match=r"'/job:worker/task:0', which this"
        ) as error:
            run(X)
        assert "wf.compile(cluster=...)" in str(error.value)
