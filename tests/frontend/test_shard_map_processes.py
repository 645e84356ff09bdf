"""`wf.shard_map` over processes: all have the results of one process, and errors say what differs.

Each test starts as many processes as its mesh has, which run one program."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from mesh_processes import errors, in_the_midst, outputs, processes, two_hosts

#: Cases of the default suite.
FEW = ["product", "tiled"]
CASES = """
def product(x, w):
    return c.psum(wf.matmul(x, w), "m")


ring = [(0, 1), (1, 0)]
for name, fn, i, o, args in [
    ("product", product, (P("d", "m"), P("m")), P("d"), (X, W)),
    ("psum", lambda x: c.psum(x * x, ("d", "m")), P("d", "m"), None, (X,)),
    ("pmean", lambda x: c.pmean(wf.mean(x), ("d", "m")), P("d", "m"), None, (X,)),
    ("pmax", lambda x: c.pmax(x, "m"), P(None, "m"), None, (X,)),
    ("pmin", lambda x: c.pmin(x, "d"), P("d"), None, (X,)),
    ("gather", lambda x: c.all_gather(x, "m", 1) * x[:, None], P(None, "m"), P(None, None, "m"),
     (X,)),
    ("tiled", lambda x: c.all_gather(x, "d", tiled=True), P("d", "m"), P(None, "m"), (X,)),
    ("scatter", lambda x: c.psum_scatter(x, "d", 1, tiled=True), P("d"), P(None, "d"), (X,)),
    ("to all", lambda x: c.all_to_all(x, "m", 1, 0, tiled=True), P("m"), P(None, "m"), (X,)),
    ("permute", lambda x: c.ppermute(x, "d", ring) + x, P("d"), P("d"), (X,)),
    ("permute some", lambda x: c.ppermute(x, "d", [(1, 0)]), P(("m", "d")), P(("m", "d")), (X,)),
    ("index", lambda x: x * c.axis_index("d") + c.axis_index("m") * c.axis_size("m"),
     P(("m", "d")), P(("m", "d")), (X,)),
    ("a tree", lambda x: (lambda t: t["a"] + t["b"][0] * t["b"][1])(c.psum(
        {"a": x, "b": [x[0], wf.sum(x)]}, "m")), P(None, "m"), None, (X,)),
    ("shared", lambda x, w: wf.matmul(x, w), (P("d"), None), P("d"), (X, W)),
    ("replicated", lambda x: wf.sin(x), None, None, (X,)),
    ("vmap within", lambda x: wf.vmap(lambda r: c.psum(r, "m") + r[:1])(x), P(None, "m"),
     P(None, "m"), (X,)),
    ("rows within", lambda x: wf.vmap(lambda r: c.psum(r, "m") / c.psum(r * r, "i"),
                                      axis_name="i")(x), P(None, "m"), P(None, "m"), (X,)),
    ("all within", lambda x: wf.vmap(lambda r: c.all_to_all(c.all_gather(r, "m"), "m", 0, 0)[0]
                                     + c.psum_scatter(r, "m", tiled=True)[0])(x),
     P("d"), P("d", "m"), (X,)),
    ("loop", lambda x: wf.fori_loop(0, 3, lambda k, y: y - c.pmean(y, "m") * k, x),
     P(None, "m"), P(None, "m"), (X,)),
    ("branch", lambda x: wf.cond(c.psum(wf.sum(x), ("d", "m")) > 0, lambda: c.psum(x, "d"),
                                 lambda: x * 2), P("d", "m"), P("d", "m"), (X,)),
]:
    if (name in FEW) != few:
        continue
    here, there = over(mesh, fn, i, o), over(one, fn, i, o)
    wanted = there(*args)
    same(here(*args), wanted)
    same(wf.compile(here)(*args), wanted)
    weight = np.random.default_rng(5).normal(size=wanted.shape)
    numbers = tuple(range(len(args)))
    values = tuple(map(wf.asarray, args))

    def loss(f):
        return lambda *a: wf.sum(wf.sin(f(*a)) * weight)

    slopes = [wf.grad(loss(f), argnums=numbers) for f in (here, there)]
    same(slopes[0](*values), slopes[1](*values))
    same(wf.compile(slopes[0])(*args), slopes[1](*values))

    def second(f):
        return lambda *a: wf.grad(lambda *b: sum(
            wf.sum(g * g) for g in wf.grad(loss(f), argnums=numbers)(*b)), argnums=numbers)(*a)

    same(wf.compile(second(here))(*args), second(there)(*values))
    same(*(wf.jvp(f, values, values)[1] for f in (here, there)))
    if name == "product":  # a batch of whole arrays, around
        batch = np.stack([X, 2 * X])
        same(*(wf.vmap(f, in_axes=(0, None))(batch, W) for f in (here, there)))
print("done")
"""


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_results_and_derivatives_of_one_process(tmp_path: Path, few: bool) -> None:
    """Of each collective: eagerly and compiled, first and second derivatives, forward mode."""
    found = outputs(tmp_path, {"d": 2, "m": 2}, f"FEW, few = {FEW}, {few}\n{CASES}")
    for text in found:
        assert text == "done\n", text


@pytest.mark.slow
def test_processes_on_two_hosts(tmp_path: Path) -> None:
    """By TCP: along both axes of a mesh, small arrays and large ones, with gradients. A server of
    the process says how much that is."""
    program = """
import re
import urllib.request


def f(x, w):
    y = c.psum(wf.matmul(x, w), "m")
    return wf.sum(c.all_gather(wf.tanh(y), "d", tiled=True)), c.psum(wf.sum(x), ("d", "m"))


X, W = np.tile(X, (1, 900)), np.tile(W, (900, 5))
specs = (P("d", "m"), P("m")), None
here, there = (over(m, f, *specs) for m in (mesh, one))
same(wf.compile(here)(X, W), there(X, W))
slopes = [wf.grad(lambda w, g=g: sum(g(X, w)))(wf.asarray(W)) for g in (here, there)]
same(*slopes)
with wf.train.Server({"here": ["127.0.0.1:0"]}, metrics_port=0) as server:
    text = urllib.request.urlopen(server.metrics_url, timeout=20).read().decode()
for member in f"d:{1 - rank // 2}", f"m:{1 - rank % 2}":
    for way in "sent", "received":
        labels = f'task="/job:here/task:0",member="mesh0/{member}",direction="{way}"'
        assert int(re.search(f"weft_exchange_bytes_total{{{labels}}} (.*)", text)[1]) > 1000, text
print("done")
"""
    addresses = two_hosts(4)
    assert outputs(tmp_path, {"d": 2, "m": 2}, program, 30, addresses) == ["done\n"] * 4


TRAINING = """
def trained(m):
    w = wf.Variable(np.zeros((16, 4), np.float32))
    optimizer = wf.train.Adam(0.05)

    def gradients(w, x, y):
        value, slope = wf.value_and_grad(lambda w: wf.mean((wf.matmul(x, w) - y) ** 2))(w)
        return c.pmean((value, slope), "data")

    sharded = wf.shard_map(gradients, m, (None, "data", "data"), None)

    @wf.compile
    def step(x, y):
        value, slope = sharded(w.read(), x, y)
        optimizer.apply_gradients([(slope, w)])
        return value

    x, y = X.astype(np.float32), X[:, :4].astype(np.float32)
    losses = [float(step(x, y)) for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    return losses, w.numpy().tobytes()


losses, bits = trained(mesh)
np.testing.assert_allclose(losses, trained(one)[0], rtol=1e-5)
print((losses[-1], bits.hex()))
"""


@pytest.mark.slow
def test_data_parallel_training(tmp_path: Path) -> None:
    """The losses of one process, and the same bits in all."""
    found = outputs(tmp_path, {"data": 4}, TRAINING)
    assert found[0].startswith("(0.")
    assert len(set(found)) == 1


TREES = """
rng = np.random.default_rng(0)
shapes = [(3, 4), (), (300_000,), (5,), (0, 2), (200_000,), (2, 2)]
tree = [rng.normal(size=(2, *s)).astype(d) for s in shapes for d in ("f4", "f8", "i4")]


def sums(tree):
    return c.psum([x[0] for x in tree], "d")


run = wf.compile(over(mesh, sums, P("d"), None))
for got, x in zip(run(tree), tree, strict=True):
    assert got.numpy().tobytes() == (x[0] + x[1]).astype(x.dtype).tobytes() and got.dtype == x.dtype
ops = [op for op in run.trace(tree).walk() if op.name == "exchange"]
print(sum(op.attrs["kind"] == "psum" for op in ops))
"""


PARALLEL = """
class Model:
    def __init__(self):
        rng = np.random.default_rng(3)
        self.table = wf.Variable(rng.normal(size=(50, 4)).astype(np.float32))
        self.w = wf.Variable(rng.normal(size=(4, 3)).astype(np.float32))
        self.optimizer = wf.train.Adagrad(0.5)

    def step(self, ids, labels):
        rows = wf.nn.embedding_lookup(self.table, ids)
        logits = wf.matmul(wf.tanh(rows), self.w)
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = wf.mean(losses)
        self.optimizer.minimize(loss)
        return loss


rng = np.random.default_rng(4)
batches = [(rng.integers(0, 50, 16), rng.integers(0, 3, 16)) for _ in range(5)]
models = [Model() for _ in range(3)]
steps = [wf.compile(f) for f in (models[0].step, wf.data_parallel(models[1].step, mesh))]
steps.append(wf.data_parallel(models[2].step, mesh))  # eagerly
losses = [[float(step(*batch)) for batch in batches] for step in steps]
for k in (1, 2):
    np.testing.assert_allclose(losses[k], losses[0], rtol=2e-5)
    np.testing.assert_allclose(models[k].table.numpy(), models[0].table.numpy(), rtol=1e-4)


def by_hand(x):
    models[0].w.assign(models[0].w.read() + wf.sum(x))
    return wf.mean(x)


try:
    wf.data_parallel(by_hand, mesh)(np.ones(8, np.float32))
except wf.errors.UnsupportedError as error:
    assert "assigned another value in each process" in str(error)
else:
    raise AssertionError("by hand")
print(models[1].table.numpy().tobytes().hex(), models[1].w.numpy().tobytes().hex())
"""


def test_a_data_parallel_step(tmp_path: Path) -> None:
    """Dense and sparse gradients: the losses of one process, and the same bits in all."""
    first, second = outputs(tmp_path, {"d": 2}, PARALLEL)
    assert len(first) > 1000, first
    assert first == second


@pytest.mark.slow
def test_small_leaves_of_a_tree_go_together(tmp_path: Path) -> None:
    """By dtype, up to a megabyte: of 21 leaves as many exchanges as there are buckets."""
    found = outputs(tmp_path, {"d": 2}, TREES)
    assert found == ["7\n"] * 2


SUMS = """
rows = np.random.default_rng(2).normal(size=(3, LENGTH)).astype(np.float32)
kept = rows.copy()
total = (rows[0] + rows[1]) + rows[2]


def sums(x):
    flat = wf.reshape(x, (-1,))
    return c.psum(flat, "d"), c.psum_scatter(wf.stack([flat, flat, flat]), "d"), flat + 1


run = over(mesh, sums, P("d"), (None, P("d"), P("d")))
for f in (run, wf.compile(run)):
    for _ in range(2):
        first, second, third = f(rows)
        assert first.numpy().tobytes() == total.tobytes()
        assert second.numpy().tobytes() == total.tobytes() * 3
        assert third.numpy().tobytes() == (rows + 1).tobytes()
        assert rows.tobytes() == kept.tobytes()
print("done")
"""


@pytest.mark.share(2)
@pytest.mark.parametrize("length", [5, 700_001])
def test_sums_are_in_the_order_of_ranks(tmp_path: Path, length: int) -> None:
    """With the bits of NumPy, and no operand changes though results may be in its memory."""
    program = f"LENGTH = {length}\n{SUMS}"
    assert outputs(tmp_path, {"d": 3}, program) == ["done\n"] * 3


OTHER_WAYS = """
queue = wf.tf1.FIFOQueue(10, [wf.float32], [()])


def shard(x):
    return c.psum(wf.sum(x), "d"), c.psum(wf.sum(wf.exp(x)), "d"), x * c.axis_index("d")


sharded = over(mesh, shard, P("d"), (None, None, P("d")))
twice = over(mesh, lambda x: c.psum(x, "d"), None, None)


@wf.compile
def step(x):  # a queue, and a size that depends on values: on the dataflow executor
    a, b, y = sharded(x)
    queue.enqueue(a)
    return twice(queue.dequeue()), b, wf.sum(y[y > 0.5])


x = np.arange(8, dtype=np.float32) / 8
for _ in range(20):
    found = [float(t) for t in step(x)]
    np.testing.assert_allclose(found, [2 * x.sum(), np.exp(x).sum(), x[5:].sum()], rtol=1e-6)
on_gpu = wf.compile(sharded, device="gpu:0")(x)
np.testing.assert_allclose(on_gpu[1].numpy(), np.exp(x).sum(), rtol=1e-6)
np.testing.assert_array_equal(on_gpu[2].numpy(), np.where(x < 0.5, 0, x))
slope = wf.compile(wf.grad(lambda x: sharded(x)[1]), device="gpu:0")(x)
np.testing.assert_allclose(slope.numpy(), np.exp(x), rtol=1e-6)
print("done")
"""


@pytest.mark.slow
def test_on_the_executor_and_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    assert outputs(tmp_path, {"d": 2}, OTHER_WAYS) == ["done\n"] * 2


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("length", [30, 300_000])
def test_ctrl_c_ends_the_mesh(tmp_path: Path, length: int) -> None:
    """In who gets it and, by his farewell, in the others."""
    program = f"""
f = wf.compile(over(mesh, lambda x: c.psum(x, "d"), P("d"), None))
x = np.ones({length}, np.float32)
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
    with processes(tmp_path, {"d": 2}, program) as made:
        in_the_midst(made)
        made[1].send_signal(signal.SIGINT)
        first, second = (process.communicate(timeout=60)[0] for process in made)
        assert second == "interrupted\n"
        assert first.startswith("rank 1 ")


def test_programs_that_differ(tmp_path: Path) -> None:
    found = errors(
        tmp_path,
        {"d": 2},
        """
def f(x):
    y = c.psum(x, "d")
    return c.psum(wf.exp(y) if rank else y[:3], "d")
wf.compile(over(mesh, f, None, None))(np.ones(4, np.float32))
""",
    )
    program = (tmp_path / "program.py").read_text(encoding="utf-8").splitlines()
    line = next(k for k, text in enumerate(program, 1) if "return c.psum(wf.exp(y)" in text)
    assert any(text.startswith("InvalidArgumentError the members' programs") for text in found)
    for text in found:
        assert text.startswith(("InvalidArgumentError", "UnavailableError"))
        assert f"psum over 'd' of float32[4] at {tmp_path}/program.py:{line}" in text
        assert f"psum over 'd' of float32[3] at {tmp_path}/program.py:{line}" in text
        assert f"at {tmp_path}/program.py:{line}:" in text  # the line of the op itself


@pytest.mark.slow
def test_a_collective_that_one_makes_and_others_do_not(tmp_path: Path) -> None:
    found = errors(
        tmp_path,
        {"d": 3},
        """
f = wf.compile(over(mesh, lambda x: c.psum(x, "d"), None, None))
for _ in range(3 if rank == 1 else 4):
    f(np.ones(4, np.float32))
print("done")
""",
    )
    assert found[1] == "done\n"
    for text in (found[0], found[2]):
        assert text.startswith("UnavailableError rank ")
        assert "in psum over 'd' of float32[4] at" in text


@pytest.mark.slow
def test_a_process_that_does_not_come_in_time(tmp_path: Path) -> None:
    found = errors(
        tmp_path,
        {"d": 2},
        """
import time
if rank:
    time.sleep(4)
f = over(mesh, lambda x: c.psum(x, "d"), None, None)
f(np.ones(4, np.float32))
""",
        timeout=1.0,
    )
    assert found[0].startswith(
        "DeadlineExceededError rank 1 did not come within 1 s, in psum over 'd' of float32[4] at"
    )
    assert "wf.Mesh(timeout=...)" in found[0]
    assert "rank 1 did not come within 1 s" in found[1]


@pytest.mark.share(2)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_process_is_named(tmp_path: Path, how: signal.Signals) -> None:
    program = """
f = wf.compile(over(mesh, lambda x: c.psum(x, "d"), P("d"), None))
f(np.ones(30, np.float32))
print("here", flush=True)
try:
    while True:
        f(np.ones(30, np.float32))
except wf.errors.UnavailableError as error:
    print(error)
try:
    f(np.ones(30, np.float32))
except wf.errors.AbortedError as error:
    print(error)
"""
    with processes(tmp_path, {"d": 3}, program) as made:
        in_the_midst(made)
        made[2].send_signal(how)
        for process in made[:2]:
            said = process.communicate(timeout=60)[0]
            assert (
                f"rank 2 (process {made[2].pid}) is lost, in psum over 'd' of float32[10]" in said
            )
            assert "has ended: " in said
            assert "make a new one in all processes" in said


@pytest.mark.slow
def test_what_would_make_processes_differ(tmp_path: Path) -> None:
    """Each is found while tracing, with the line; nothing is sent."""
    program = """
def says(text, fn, i=P("d"), o=None, x=X):
    for run in (lambda f: f, wf.compile):
        try:
            run(over(mesh, fn, i, o))(x)
        except wf.errors.WeftError as error:
            assert text in str(error), error
            assert "program.py:" in str(error), error
        else:
            raise AssertionError(text)


v = wf.Variable(np.zeros(16))
generator = wf.random.Generator(0)
says("result differs along the axis 'd'", lambda x: x)
says("result differs along the axis 'd'", lambda x: c.axis_index("d"), i=None)
says("result differs along the axis 'd'", lambda x: c.psum_scatter(x, "d", 1, tiled=True), i=None)
says("no axis 'e'", lambda x: x, i=P("e"))
says("of size 7, into 2 shards", lambda x: x, x=X[:7])
says("the key in a variable gives all processes the same",
     lambda x: wf.random.normal(generator.state.read(), (2,)), i=None)
says("result differs along the axis 'd'", lambda x: generator.normal((2,)), i=None)
draws = over(mesh, lambda x: generator.normal((1, 3)) + wf.nn.dropout(x, 0.5), P("d"), P("d"))
generator.reset(0)
first, second = (wf.compile(draws)(np.ones((2, 3))).numpy() for _ in range(2))
assert (first[0] != first[1]).any() and (first != second).any()
print(first.tobytes().hex(), second.tobytes().hex())
says("assigned another value in each process", lambda x: v.assign(wf.sum(x, axis=0)))
says("no pairs of 2 rows", lambda x: c.ppermute(x, "d", [(0, 5)]))
key = wf.random.key(0)
draw = lambda k: wf.random.normal(wf.random.fold_in(k, c.axis_index("d")), (2, 3))
same(over(mesh, draw, None, P("d"))(key), over(one, draw, None, P("d"))(key))
with wf.Graph().as_default():
    try:
        over(mesh, lambda x: c.psum(x, "d"), P("d"), None)(wf.asarray(X))
    except wf.errors.UnsupportedError as error:
        assert "not for a wf.Graph" in str(error)
    else:
        raise AssertionError("a graph")
mesh.close()
says("the mesh 'mesh0' is not open in this process", lambda x: c.psum(x, "d"))
print("done")
"""
    first, second = outputs(tmp_path, {"d": 2}, program)
    assert first == second  # a generator draws others in each process, the same in each run
    assert first.endswith("\ndone\n")


@pytest.mark.slow
def test_meshes_that_cannot_be(tmp_path: Path) -> None:
    program = """
def says(text, *args, **kwargs):
    try:
        wf.Mesh(*args, **kwargs)
    except wf.errors.WeftError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)


says("a mesh of 3 processes, and the job 'worker' has 1 tasks", {"d": 3}, task=task)
says("task is a wf.train.ClusterTask", {"d": 1}, task=3)
far = wf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
says("can be reached from other machines", {"d": 2}, task=wf.train.ClusterTask(far, "worker", 0))
both = wf.train.ClusterSpec({"worker": ["ipc:///tmp/a", "b:1"]})
says("tasks at ipc addresses", {"d": 2}, task=wf.train.ClusterTask(both, "worker", 0))
near = wf.train.ClusterSpec({"worker": ["a:1", "a:2"]})
says("rank 1 of the group", {"d": 2}, task=wf.train.ClusterTask(near, "worker", 0),
     connect_timeout=0.5)
assert "of processes, here" in repr(mesh)
again = wf.Mesh(shape, task=task)
assert float(over(again, lambda x: c.psum(x, "d"), None, None)(1.0)) == 1.0
print("done")
"""
    assert outputs(tmp_path, {"d": 1}, program) == ["done\n"]
