"""Tables whose gradient comes from looked-up rows: compiled steps change those rows only."""

import random
from typing import Any

import numpy as np
import pytest
from cut_calls import assert_same_bits, cut_calls, cut_everything
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from plan_player import play

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.errors import InvalidArgumentError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.pipelines import PASSES, STANDARD
from weft.passes.simplify.sparse_updates import sparse_updates
from weft.runtime.native.executable import compile_graph
from weft.runtime.resources.variables import VariableState

DENSE = [p for p in STANDARD if p is not sparse_updates]
ROWS = 1200
OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda: wf.train.SGD(0.1),
    "rate": lambda: wf.train.SGD(wf.Variable(np.float32(0.25), trainable=False)),
    "Adagrad": lambda: wf.train.Adagrad(0.1),
    "Momentum": lambda: wf.train.Momentum(0.1, use_nesterov=True),
    "Adam": lambda: wf.train.Adam(0.1),
    "from zero": lambda: wf.train.Adagrad(0.1, initial_accumulator_value=0.0),
}


class Model:
    """An embedding that is trained to give `y`, by an optimizer; `lookups` of it are added."""

    def __init__(self, optimizer: str, width: int = 8, passes: Any = None) -> None:
        rng = np.random.default_rng(0)
        self.table = wf.Variable(rng.standard_normal((ROWS, width)).astype(np.float32), name="w")
        self.optimizer = OPTIMIZERS[optimizer]()
        self.step = wf.compile(self.plain, passes=passes)

    def plain(self, y: Any, *ids: Any) -> Any:
        rows = [wf.nn.embedding_lookup(self.table, i) for i in ids]
        loss = sum(wf.sum(wf.square(r - y)) for r in rows)
        self.optimizer.minimize(loss, [self.table])
        return loss

    def state(self) -> list[Any]:
        variables = [self.table, *self.optimizer.variables()]
        return [np.array(v.numpy()) for v in variables]


def pipelines() -> tuple[None, list[Any]]:
    return None, DENSE


ids_of = st.lists(st.integers(-ROWS, ROWS - 1) | st.integers(0, 3), min_size=1, max_size=24)


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    ids_of, ids_of, st.sampled_from(sorted(OPTIMIZERS)), st.sampled_from([4, 8, 33]),
    st.booleans(),
)  # fmt: skip
def test_as_the_dense_update_bit_for_bit(
    i: list[int], j: list[int], optimizer: str, width: int, twice: bool
) -> None:
    given = [np.array(i, np.int32), np.array(j[: len(i)] * len(i), np.int32)[: len(i)]]
    given = given if twice else given[:1]
    y = np.random.default_rng(len(i)).standard_normal((len(i), width)).astype(np.float32)
    sparse, dense = (Model(optimizer, width, passes) for passes in pipelines())
    with np.errstate(all="ignore"):
        for _ in range(2):
            assert sparse.step(y, *given).numpy() == dense.step(y, *given).numpy()
    assert "scatter_nd_update" in sparse.step.ir(y, *given)
    assert_same_bits(sparse.state(), dense.state())


def test_as_eager_steps() -> None:
    compiled, eager = Model("Adagrad"), Model("Adagrad")
    ids = np.array([[5, 7, 5], [-1, 1199, 5]])
    y = np.ones((2, 3, 8), np.float32)
    for _ in range(3):
        compiled.step(y, ids)
        eager.optimizer.minimize(
            lambda: wf.sum(wf.square(wf.nn.embedding_lookup(eager.table, ids) - y)), [eager.table]
        )
    for a, b in zip(compiled.state(), eager.state(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6)
    untouched = np.delete(compiled.state()[1], [5, 7, 1199], axis=0)
    assert (untouched == np.float32(0.1)).all()


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Momentum", "Adam"])
def test_no_table_is_copied_or_made(optimizer: str) -> None:
    model, y, ids = Model(optimizer), np.ones((6, 8), np.float32), np.array([1, 2, 3, 1, 2, 9])
    model.step(y, ids)
    graph = parse_graph(model.step.ir(y, ids))
    table = ROWS * 8 * 4
    made = [r for op in graph.ops for r in op.results if str(r.type) == f"f32[{ROWS},8]"]
    dense = {"fused"} if optimizer in ("Momentum", "Adam") else set()
    assert {v.op.name for v in made if v.op} == {"read", "scatter_nd_update"} | dense
    plan = plan_memory(graph)
    assert plan.copies == []
    assert plan.arena_bytes < table / 2
    play(graph, plan)


def test_bad_ids_change_nothing() -> None:
    for optimizer in ("SGD", "Adagrad", "Momentum"):
        model, y = Model(optimizer), np.ones((3, 8), np.float32)
        model.step(y, np.array([1, 2, 3]))
        before = model.state()
        with pytest.raises(InvalidArgumentError, match="element 2 of the index operand"):
            model.step(y, np.array([1, 2, ROWS]))
        assert_same_bits(model.state(), before)


@pytest.mark.parametrize("change", ["scatter_nd_add", "scatter_nd_update", "scatter_nd_max"])
def test_a_scatter_into_a_variable_checks_its_indices_first(change: str) -> None:
    v = wf.Variable(np.arange(12, dtype=np.float32).reshape(4, 3))

    @wf.compile
    def write(index: Any, rows: Any) -> None:
        v.assign(getattr(wf, change)(v, index, rows))

    rows = np.full((3, 3), 100, np.float32)
    with pytest.raises(InvalidArgumentError, match="element 2 of the index operand"):
        write(np.array([[0], [1], [4]]), rows)
    assert v.numpy().tolist() == np.arange(12.0).reshape(4, 3).tolist()
    write(np.array([[0], [1], [-1]]), rows)
    assert v.numpy()[2].tolist() == [6, 7, 8]
    assert (v.numpy()[[0, 1, 3]] >= 100).all()
    assert "copy" not in write.explain(np.array([[0], [1], [4]]), rows).split("memory")[1].replace(
        "0 copies", ""
    )


def test_empty_ids() -> None:
    model = Model("Adagrad")
    before = model.state()
    assert model.step(np.ones((0, 8), np.float32), np.zeros(0, np.int64)).numpy() == 0
    assert_same_bits([model.table.numpy()], before[:1])


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
def test_threads(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_everything(monkeypatch)
    rng = np.random.default_rng(1)
    model = Model(optimizer, width=40)
    inputs = [rng.standard_normal((64, 40)).astype(np.float32), rng.integers(0, 90, 64)]
    model.step(*inputs)
    graph = parse_graph(model.step.ir(*inputs))
    start = model.state()
    names = [op.attrs["name"] for op in graph.ops if op.name == "variable"]

    def run(seed: int | None) -> list[Any]:
        states = {}
        for name, value in zip(names, start, strict=True):
            states[name] = VariableState(name, wf.float32, value.shape)
            states[name].write(value)
        step = compile_graph(graph, states, passes=[])
        if seed is None:
            results = step.run(inputs)
        else:
            with cut_calls(step, random.Random(seed)):
                results = step.run(inputs)
        return [*results, *(states[n].read() for n in names)]

    wanted = run(None)
    for seed in range(5):
        assert_same_bits(run(seed), wanted)


def test_explain_says_why_or_why_not() -> None:
    y, ids = np.ones((3, 8), np.float32), np.array([1, 2, 3])
    assert "only its looked-up rows are updated" in Model("SGD").step.explain(y, ids)
    text = Model("Momentum").step.explain(y, ids)
    assert "the gradient stays in rows: " in text
    assert "'multiply'" in text.split("the gradient stays in rows: ")[1]
    many = np.arange(ROWS) % 7
    text = Model("SGD").step.explain(np.ones((ROWS, 8), np.float32), many)
    assert f"{ROWS} ids are too many for {ROWS} rows" in text


def test_ids_without_a_common_dtype() -> None:
    """Optimizers' gradients are rows with int64 numbers; a gradient as a whole is left alone."""
    model, y = Model("SGD"), np.ones((1, 8), np.float32)
    small, big = np.array([2], np.uint64), np.array([2**64 - 1], np.uint64)
    with pytest.raises(InvalidArgumentError, match="out of bounds"):
        model.step(y, np.array([1]), big)
    assert "only its looked-up rows are updated" in model.step.explain(y, np.array([1]), small)

    @wf.compile
    def whole(y: Any, first: Any, second: Any) -> None:
        def loss(table: Any) -> Any:
            return wf.sum((wf.take(table, first, axis=0) - y) ** 2) + wf.sum(
                (wf.take(table, second, axis=0) - y) ** 2
            )

        model.table.assign_sub(0.1 * wf.grad(loss)(model.table.read()))

    text = whole.explain(y, np.array([1]), small)
    assert "by a gradient as large: the ids are of dtypes that have none in common" in text


def test_an_l2_penalty_changes_all_rows() -> None:
    model = Model("SGD")

    @wf.compile
    def step(y: Any, ids: Any) -> None:
        rows = wf.nn.embedding_lookup(model.table, ids)
        loss = wf.sum(wf.square(rows - y)) + 0.1 * wf.nn.l2_loss(model.table)
        model.optimizer.minimize(loss, [model.table])

    before = model.table.numpy()
    y, ids = np.zeros((2, 8), np.float32), np.array([4, 4])
    step(y, ids)
    gradient = 0.1 * before
    gradient[4] += 4 * before[4]
    np.testing.assert_allclose(model.table.numpy(), before - 0.1 * gradient, rtol=1e-5)
    assert "all rows are updated, the gradient stays in rows" in step.explain(y, ids)


def test_it_is_a_pass_by_name() -> None:
    assert PASSES["sparse_updates"] is sparse_updates


# ------------------------------------------------------------------------------------------- loops


@pytest.mark.share(2)
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_training_steps_in_a_loop_as_dense_ones_bit_for_bit(optimizer: str) -> None:
    y = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)
    ids = np.array([1, 2, 3, 1, -1, 2], np.int32)
    states, losses = [], []
    for passes in pipelines():
        model = Model(optimizer)

        def steps(y: Any, ids: Any, model: Model = model) -> Any:
            return wf.fori_loop(
                0, 3, lambda i, total: total + model.plain(y, (ids + i) % ROWS), np.float32(0)
            )

        model.step(y, ids)  # makes the optimizer's variables
        run = wf.compile(steps, passes=passes)
        losses.append(run(y, ids).numpy())
        states.append(model.state())
        if passes is None:
            (loop,) = (op for op in parse_graph(run.ir(y, ids)).ops if op.regions)
            table = f"f32[{ROWS},8]"
            made = [r.op for op in loop.regions[-1].ops for r in op.results if str(r.type) == table]
            dense = {"fused"} if optimizer in ("Momentum", "Adam") else set()
            assert {op.name for op in made if op} == {"scatter_nd_update"} | dense
            copies = plan_memory(parse_graph(run.ir(y, ids))).copies
            assert [c for c in copies if c.block is not None] == []
            assert "only its looked-up rows" in run.explain(y, ids) or dense
    assert losses[0] == losses[1]
    assert_same_bits(*states)


def test_a_scanned_table_is_updated_in_its_rows() -> None:
    def step(table: Any, ids: Any) -> Any:
        def loss(table: Any) -> Any:
            return wf.sum(wf.square(wf.take(table, ids, axis=0) - 1))

        value, g = wf.value_and_grad(loss)(table)
        return table - 0.1 * g, value

    rng = np.random.default_rng(0)
    table = rng.standard_normal((ROWS, 8)).astype(np.float32)
    ids = rng.integers(0, ROWS, (4, 5))
    got, wanted = (
        wf.compile(lambda t, i: wf.scan(step, t, i), passes=passes)(table, ids)
        for passes in pipelines()
    )
    assert_same_bits([np.asarray(x) for x in got], [np.asarray(x) for x in wanted])
    text = wf.compile(lambda t, i: wf.scan(step, t, i)).ir(table, ids)
    assert "scatter_nd_update" in text
    assert "index_add" in text

    def swapped(both: Any, ids: Any) -> Any:
        (a, b), value = (both[0], both[1]), 0.0
        new, value = step(a, ids)
        return (b, new), value  # the new table is the other carry

    pair = [table, table * 2]
    got, wanted = (
        wf.compile(lambda t, i: wf.scan(swapped, (t, t * 2), i), passes=passes)(pair[0], ids)
        for passes in pipelines()
    )
    assert_same_bits(
        [np.asarray(x) for x in (*got[0], got[1])],
        [np.asarray(x) for x in (*wanted[0], wanted[1])],
    )


@pytest.mark.parametrize("name", ["assign_sub", "assign_add"])
def test_an_update_that_is_one_op_becomes_one_of_rows(name: str) -> None:
    """As before a step is placed: on equal ids, and bit for bit."""
    args = "%ids: i64[6], %g: f32[6,8], %rate: f32[]"
    whole = parse_graph(f"""graph @g({args}) -> (f32[1200,8]) stage=traced {{
  %w = variable() {{name="w", dtype=f32, shape=[1200, 8]}} : ref<f32[1200,8]> group("w")
  %z = constant() {{value=f32[] 0.0}} : f32[]
  %t = broadcast_to(%z) {{shape=[1200,8]}} : f32[1200,8]
  %a = index_add(%t, %ids, %g) {{axis=0}} : f32[1200,8] device("/job:worker")
  %r = broadcast_to(%rate) {{shape=[1200,8]}} : f32[1200,8]
  %m = multiply(%a, %r) : f32[1200,8] device("/job:ps")
  %b = read(%w) : f32[1200,8]
  %s = {name}(%w, %m) after(%b) : f32[1200,8]
  return %s
}}
""")
    rows = sparse_updates(whole)
    verify(rows)
    devices = {op.name: op.device for op in rows.ops if op.name != "broadcast_to"}
    assert name not in devices
    assert devices[name.replace("assign", "scatter")] == ""  # where the variable is
    assert {devices[n] for n in ("first_occurrence", "index_add", "equal")} == {"/job:worker"}
    assert {devices[n] for n in ("multiply", "where")} == {"/job:ps"}
    rng = np.random.default_rng(0)
    given = [
        np.array([3, -1, 3, 1199, 5, 3]), rng.standard_normal((6, 8)).astype(np.float32),
        np.float32(0.3),
    ]  # fmt: skip
    table = rng.standard_normal((1200, 8)).astype(np.float32)
    found = []
    for graph in (whole, rows):
        state = DictState({"w": table.copy()})
        (made,) = interpret(graph, given, state)
        found.append([np.asarray(made), state.values["w"]])
    assert_same_bits(*found)


def test_an_update_by_what_is_not_zero_without_a_gradient_stays_whole() -> None:
    args = "(%ids: i64[6], %g: f32[6,8], %x: f32[1200,8])"
    graph = parse_graph(
        f"graph @g{args} -> (f32[1200,8]) stage=traced "
        + """{
  %w = variable() {name="w", dtype=f32, shape=[1200, 8]} : ref<f32[1200,8]>
  %z = constant() {value=f32[] 0.0} : f32[]
  %t = broadcast_to(%z) {shape=[1200,8]} : f32[1200,8]
  %a = index_add(%t, %ids, %g) {axis=0} : f32[1200,8]
  %m = add(%a, %x) : f32[1200,8]
  %s = assign_sub(%w, %m) : f32[1200,8]
  return %s
}
"""
    )
    assert sparse_updates(graph) is graph
