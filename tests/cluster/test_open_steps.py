"""Steps on a cluster whose feeds come in many sizes: a few definitions, the results of one process,
and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shares import every
from sized_layers import DIM

import weft as wf
from weft.frontend.session import sized_steps
from weft.frontend.session.remote import Remote
from weft.frontend.session.sized_steps import MOST_OWN
from weft.runtime.cluster.definition import TaskStep

SIZES = (3, 2, 7, 1, 16, 40, 5, 0, 9)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    servers = wf.train.Server.create_local_cluster({"ps": 1, "worker": 1})
    yield servers[1].target
    for server in servers:
        server.stop()


@pytest.fixture
def definitions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each definition that is made."""
    made: list[str] = []
    step = Remote.step

    def noted(self: Remote, name: str, *args: Any, **options: Any) -> Any:
        made.append(name)
        return step(self, name, *args, **options)

    monkeypatch.setattr(Remote, "step", noted)
    return made


def on(target: str, job: str) -> AbstractContextManager[Any]:
    """Its device, if there is a cluster."""
    return wf.device(f"/job:{job}/task:0") if target else nullcontext()


def sized_steps_of(session: wf.Session) -> list[Any]:
    """For each set of sizes that has no definition of its own the step that runs it."""
    found = [step.executable for step in session._steps.entries.values()]
    return [step for step in found if step.kind == "sized"]


def data(n: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).normal(size=(n, DIM)).astype(np.float32)


@pytest.mark.slow
def test_training_makes_few_definitions(target: str, definitions: list[str]) -> None:
    found = []
    for where in (target, ""):
        with wf.Graph().as_default():
            x, y = wf.placeholder(wf.float32, [None, DIM]), wf.placeholder(wf.int64, [None])
            with on(where, "ps"):
                w = wf.Variable(data(DIM)[:, :5], name="w_training")
            with on(where, "worker"):
                logits = wf.tanh(x @ w)
                losses_of = wf.nn.sparse_softmax_cross_entropy_with_logits
                loss = wf.mean(losses_of(labels=y, logits=logits))
                train = wf.train.AdagradOptimizer(0.1).minimize(loss)
            init = wf.global_variables_initializer()
            with wf.Session(where) as session:
                session.run(init)
                losses = []
                for n in (*range(20, 40), 1, 20, 33, 64):
                    feeds = {x: data(n), y: np.arange(n) % 5}
                    losses.append(session.run([loss, train], feeds)[0])
                found.append([*losses, *session.run(w).ravel()])
    assert_allclose(*found, rtol=2e-5, atol=1e-6)
    assert len(definitions) == 1 + MOST_OWN + 1 + 1  # init, loss and train, w


def test_a_step_of_one_task_is_one_plan(target: str, definitions: list[str]) -> None:
    """No message goes anywhere: nothing of the executor is needed."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, DIM])
        y = wf.nn.softmax(x @ data(DIM)) * x.shape[0]
        with wf.Session(target) as session, wf.Session() as own:
            for n in (*SIZES, 11, 12, 13):
                assert_allclose(session.run(y, {x: data(n)}), own.run(y, {x: data(n)}), rtol=1e-6)
            (entry,) = {s._made for s in sized_steps_of(session)}
            assert len(entry.parts) == 1
    assert len(definitions) == MOST_OWN + 1


def test_sizes_that_do_not_fit_are_told_as_in_one_process(target: str) -> None:
    with wf.Graph().as_default():
        x, y = wf.placeholder(wf.float32, [None], name="x"), wf.placeholder(wf.float32, [None])
        both = x * y
        with wf.Session(target) as session, wf.Session() as own:
            for n in (3, 4, 5, 6, 7, 8, 1):
                assert len(session.run(both, {x: np.ones(n), y: np.ones(n)})) == n
            for n in (4, 1, 0):
                for one in (session, own):
                    with pytest.raises(wf.errors.ShapeError, match=rf"x \[{n}\] for .* \[9\]"):
                        one.run(both, {x: np.ones(n), y: np.ones(9)})
            assert len(session.run(both, {x: np.ones(9), y: np.ones(9)})) == 9


def test_what_is_looked_at_has_a_plan_of_its_own(target: str) -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, DIM])
        with wf.device("/job:ps/task:0"):
            y = wf.tanh(x)
        with wf.device("/job:worker/task:0"):
            z = wf.sum(y)
        with wf.Session(target) as session:
            for n in range(3, 12):
                session.run(z, {x: data(n)})
            metadata = wf.RunMetadata()
            options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
            session.run(z, {x: data(10)}, options, metadata)
            assert "events traced" in str(metadata)
            assert len(sized_steps_of(session)) == 9 - MOST_OWN - 1
            assert f"f32[11,{DIM}]" in session.explain(z, {x: data(11)})


@pytest.mark.slow
def test_a_record_is_of_the_parts_that_ran(target: str, tmp_path: Path) -> None:
    """Those of a step for any sizes are not those of one for the sizes that came: products and sums
    are in other parts, and round otherwise."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, DIM])
        with wf.device("/job:ps/task:0"):
            y = 0.1 * x
        y = (y + 0.3) * x - 0.2
        with wf.device("/job:worker/task:0"):
            z = y * x
            found = wf.unique_values(wf.cast(x[:, 0] * 3, wf.int64))
        z = z + 0.9 * x - x * x * 0.1
        (gradient,) = wf.gradients(wf.sum(z * z), [x])
        with wf.Session(target) as session, wf.record(tmp_path, steps=len(SIZES)) as files:
            made = [session.run([z, gradient, found], {x: data(n)}) for n in SIZES]
    records: list[Any] = [wf.replay(file) for file in files]
    open_ones = [not r.graph.args[0].type.is_static for r in records]
    assert open_ones == [False] * MOST_OWN + [True] * (len(SIZES) - MOST_OWN)
    for record, results in zip(records, made, strict=True):
        assert record.differences() == []
        for again, result in zip(record.run(), results, strict=True):
            assert np.asarray(again).tobytes() == result.tobytes()
        for engine in ("interpreter", "native", "dataflow"):
            assert all(d.close for d in record.differences(engine))


def test_strings_and_fed_results(target: str) -> None:
    with wf.Graph().as_default():
        words = wf.placeholder(wf.string, [None])
        numbers = wf.placeholder(wf.float32, [None])
        with wf.device("/job:ps/task:0"):
            doubled = numbers * 2.0
            lengths = wf.string_length(words)
        with wf.device("/job:worker/task:0"):
            more = doubled + wf.ones([doubled.shape[0]])
        with wf.Session(target) as session:
            for n in range(1, 10):
                given = {words: ["ab"] * n, numbers: np.arange(n)}
                found, sizes = session.run([more, lengths], given)
                assert found.tolist() == [2 * k + 1 for k in range(n)]
                assert sizes.tolist() == [2] * n
            for n in range(1, 10):
                assert session.run(more, {doubled: np.arange(n)}).tolist() == [
                    k + 1 for k in range(n)
                ]


def test_parts_of_strings_go_to_another_task(target: str) -> None:
    """How many there are only the task knows that takes the strings apart."""
    with wf.Graph().as_default():
        text = wf.placeholder(wf.string, [None])
        with wf.device("/job:ps/task:0"):
            words, splits = wf.strings.split(wf.strings.upper(text))
            points = wf.strings.unicode_decode(text)
        with wf.device("/job:worker/task:0"):
            sizes = wf.strings.length(words, "UTF8_CHAR")
            lengths = splits[1:] - splits[:-1]
            again = wf.strings.unicode_encode(points)
            line = wf.strings.format("{}", wf.strings.reduce_join(words, 0, separator="+"))
        with wf.Session(target) as session:
            for given in (["a b", "", "c"], [], ["é  f g"], ["x"] * 9):
                found = session.run([sizes, lengths, again, line], {text: given})
                parts = [g.upper().split() for g in given]
                flat = [w.encode() for row in parts for w in row]
                assert found[0].tolist() == [len(w) for row in parts for w in row]
                assert found[1].tolist() == [len(row) for row in parts]
                assert found[2].tolist() == [g.encode() for g in given]
                assert found[3] == b"+".join(flat)


def test_sizes_that_only_a_dead_value_tells(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a gradient needs of a partition has the sizes first, and nobody fetches it."""
    monkeypatch.setattr(sized_steps, "MOST_OWN", 2)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, DIM])
        with wf.device("/job:ps/task:0"):
            which = wf.cast(wf.arange(0, x.shape[0]) % 2, wf.int32)
            even, odd = wf.dynamic_partition(x, which, 2)
        with wf.device("/job:worker/task:0"):
            fetches = [even * 2, odd + 1]
        with wf.Session(target) as session:
            for n in (5, 4, 1, 7, 2):
                ours = session.run(fetches, {x: data(n)})
                for a, b in zip(ours, (data(n)[::2] * 2, data(n)[1::2] + 1), strict=True):
                    assert a.tobytes() == b.tobytes(), n


def looped(kind: str, target: str) -> tuple[Any, Any, list[Any]]:
    """Placeholders, and a result with its gradient, of a program with a branch or loop."""
    x, n = wf.placeholder(wf.float32, [None, 4, 3]), wf.placeholder(wf.int32, [])
    with on(target, "ps"):
        w = wf.Variable(np.full((3, 3), 0.3, np.float32), name=f"w_{kind}")
        z = wf.tanh(x)

    def cell(h: Any, a: Any) -> Any:
        return wf.tanh(h @ w + a)

    def across(i: Any, h: Any) -> Any:
        with on(target, "ps"):
            moved = h @ w + wf.zeros([x.shape[0], 3])
        with on(target, "worker"):
            return i + 1, wf.tanh(moved + z[:, 0])

    def elsewhere() -> Any:
        with on(target, "ps"):
            return cell(z[:, 0], z[:, 1])

    with on(target, "worker"):
        match kind:
            case "scan":
                start, rows = wf.zeros([x.shape[0], 3]), wf.permute_dims(z, (1, 0, 2))
                h, _ = wf.scan(lambda c, a: (cell(c, a), a), init=start, xs=rows)
            case "while":
                _, h = wf.while_loop(
                    lambda i, h: i < n,
                    lambda i, h: (i + 1, cell(h, z[:, 0])),
                    [wf.constant(0), z[:, 1]],
                )
            case "cond":
                h = wf.cond(n > 2, lambda: cell(z[:, 0], z[:, 1]), lambda: z[:, 2] * 2)
            case "loop over tasks":
                _, h = wf.while_loop(lambda i, h: i < n, across, [wf.constant(0), z[:, 1]])
            case "branch over tasks":
                h = wf.cond(n > 2, elsewhere, lambda: wf.ones([x.shape[0], 3]))
        (gradient,) = wf.gradients(wf.mean(wf.square(h)), [w])
    return x, n, [h, gradient]


@pytest.mark.share(4)
@pytest.mark.parametrize("control_flow", every(2, ["auto", "dataflow"]))
@pytest.mark.parametrize(
    ("kind", "made"),
    [("scan", 2), ("while", 2), ("cond", 2), ("loop over tasks", 4), ("branch over tasks", 4)],
)
def test_branches_and_loops(
    kind: str,
    made: int,
    control_flow: str,
    target: str,
    definitions: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that span tasks have a definition for each set of sizes, as before."""
    monkeypatch.setattr(sized_steps, "MOST_OWN", 1)
    found = []
    for where in (target, ""):
        with wf.Graph().as_default():
            x, n, fetches = looped(kind, where)
            init = wf.global_variables_initializer()
            with wf.Session(where, control_flow=control_flow) as session:
                session.run(init)
                for size, count in ((4, 3), (6, 1), (1, 4)):
                    given = np.random.default_rng(size).normal(size=(size, 4, 3))
                    found.append(session.run(fetches, {x: given, n: count}))
    for ours, theirs in zip(found[:3], found[3:], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert len(definitions) == 1 + made


def test_what_a_task_refuses_with_open_sizes_has_sizes_of_its_own(
    target: str, definitions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: TaskStep) -> None:
        raise wf.errors.InternalError("not with open sizes")

    monkeypatch.setattr(TaskStep, "prepare", refuse)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None])
        with wf.device("/job:ps/task:0"):
            y = wf.tanh(x) * 2.0
        with wf.Session(target) as session:
            for n in range(2, 9):
                assert_allclose(session.run(y, {x: np.ones(n)}), np.full(n, 2 * np.tanh(1)), 1e-6)
            assert not sized_steps_of(session)
    assert len(definitions) == 7 + 1


def test_sizes_that_share_no_guards_still_share_the_step(
    target: str, definitions: list[str]
) -> None:
    """However often planning decides otherwise: the tasks have taken it."""
    with wf.Graph().as_default():
        feeds = [wf.placeholder(wf.float32, [name]) for name in "abcde"]
        out = wf.concat([x * 2 for x in feeds], axis=0)
        with wf.Session(target) as session:
            for k in range(2**5):
                given = {x: np.ones(1 + 2 * (k >> i & 1), np.float32) for i, x in enumerate(feeds)}
                assert len(session.run(out, given)) == sum(map(len, given.values()))
    assert len(definitions) == MOST_OWN + 1


def test_a_fault_in_making_the_step_is_raised(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> Any:
        raise AttributeError("a fault")

    monkeypatch.setattr(Remote, "open", fault)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None])
        with wf.Session(target) as session:
            for n in range(2, 2 + MOST_OWN):
                session.run(x * 2, {x: np.ones(n)})
            y = x * 2
            for n in range(2, 2 + MOST_OWN):
                session.run(y, {x: np.ones(n)})
            with pytest.raises(AttributeError, match="a fault"):
                session.run(y, {x: np.ones(40)})


def with_sizes_from_values(where: str) -> list[list[Any]]:
    """New tensors, loops whose variables grow, scans, TensorArrays and queues without shapes."""
    with wf.Graph().as_default():
        n = wf.placeholder(wf.int32, [])
        with on(where, "ps"):
            x = wf.placeholder(wf.float32, [None])
            part = x[:n] * 2
        with on(where, "worker"):
            rows = part + wf.ones([n])
            pieces = wf.tf1.TensorArray(wf.float32, n, infer_shape=False)

            def body(i: wf.Tensor, h: wf.Tensor, ta: wf.TensorArray) -> Any:
                return i + 1, wf.concat([h, rows[:i]]), ta.write(i, rows[:i])

            begin, open_shape = (0, wf.zeros(1), pieces), (None, (None,), None)
            _, grown, pieces = wf.while_loop(lambda i, *_: i < n, body, begin, open_shape)
            powers = wf.scan(lambda c, _: (c * 2, c), wf.asarray(1.0), length=n)[1]
            queue = wf.FIFOQueue(5, wf.float32, name=f"sizes_{bool(where)}")
            put, got = queue.enqueue(rows), queue.dequeue()
        with on(where, "ps"):
            made = [wf.tile(grown, [n]), powers + 1, pieces.concat() * 2, got * 2, rows]
        found = []
        with wf.Session(where) as session:
            for size in (2, 0, 3):
                fed = {n: size, x: np.arange(1, 5)}
                session.run(put, fed)
                found.append([v.tolist() for v in session.run(made, fed)])
    return found


@pytest.mark.slow
def test_sizes_that_values_decide_go_from_task_to_task(target: str) -> None:
    found = with_sizes_from_values(target)
    assert found == with_sizes_from_values("")
    assert found[2][-1] == [3, 5, 7]
    assert found[2][2] == [6, 6, 10]
