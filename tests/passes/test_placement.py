"""Placement: what each rule does, and that random graphs with constraints are placed right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from example_counts import examples
from graphs import Case
from hypothesis import given, settings
from hypothesis import strategies as st
from structured_programs import programs

from weft.ir.analysis.verify import verify
from weft.ir.cost.thresholds import MARGIN
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import float32
from weft.ir.errors import InvalidArgumentError, ResourceExhaustedError, UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.ir.types import RefType, tensor_type
from weft.passes.placement import CostModel, Device, Links, Placement, PlacementError, place
from weft.passes.placement.constraints import Constraint, inside, uses_handle

WORKER, OTHER, PS, PS1 = (
    Device(f"/job:{job}/cpu:0")
    for job in ("worker/task:0", "worker/task:1", "ps/task:0", "ps/task:1")
)
DEVICES = (WORKER, OTHER, PS, PS1)


def graph_of(text: str, stage: str = "traced") -> Graph:
    """The graph with these ops, of an input x: f32[2], that returns %y."""
    text = located(text)
    graph = parse_graph(f"graph @g(%x: f32[2]) -> (f32[2]) stage={stage} {{\n{text}\nreturn %y }}")
    verify(graph)
    return graph


def located(text: str) -> str:
    """The text with lines for the ops that have none: all ops of a graph have one, or none has."""
    rows = text.splitlines()
    for i, row in enumerate(rows):
        if " = " in row and "loc(" not in row and not row.endswith("{"):
            rows[i] += f' loc("x.py":{i}:1)'
    return "\n".join(rows)


def where(placement: Placement, name: str) -> str:
    """The device of the only op of this name."""
    (found,) = (op.device for op in placement.graph.walk() if op.name == name)
    return found


def why(placement: Placement, name: str) -> str:
    (found,) = (text for op, text in placement.reasons.items() if op.name == name)
    return found


# -------------------------------------------------------------------------------------- constraints


def test_without_constraints_and_work_all_stays_with_the_session() -> None:
    placed = place(graph_of("%y = exp(%x) : f32[2]"), DEVICES)
    assert where(placed, "exp") == WORKER.name
    assert why(placed, "exp").startswith("where the session is")
    assert "only device" in why(place(graph_of("%y = exp(%x) : f32[2]"), [PS]), "exp")


def test_a_partial_constraint_leaves_the_choice() -> None:
    placed = place(graph_of('%y = exp(%x) : f32[2] device("/job:ps") loc("m.py":3:1)'), DEVICES)
    assert where(placed, "exp") == PS.name
    assert why(placed, "exp").startswith("asked for: /job:ps at m.py:3:1")
    placed = place(graph_of('%y = exp(%x) : f32[2] device("/task:1")'), DEVICES)
    assert where(placed, "exp") in (OTHER.name, PS1.name)


def test_a_device_that_does_not_exist() -> None:
    graph = graph_of('%y = exp(%x) : f32[2] device("/job:ps/task:7") loc("m.py":3:1)')
    with pytest.raises(PlacementError, match="there is no such device") as caught:
        place(graph, DEVICES)
    assert "  - op 'exp' is to run on /job:ps/task:7 at m.py:3:1" in str(caught.value)
    assert "/job:ps/task:1/cpu:0" in str(caught.value.hint)
    placed = place(graph, DEVICES, soft=True)
    assert where(placed, "exp") == WORKER.name
    assert "asked for /job:ps/task:7, which cannot be" in why(placed, "exp")
    (fallback,) = placed.fallbacks
    assert fallback.startswith("not held (soft placement): op 'exp' is to run on /job:ps/task:7")


def test_a_colocation_group_is_on_one_device() -> None:
    text = """
      %a = exp(%x) : f32[2] group("g")
      %y = tanh(%a) : f32[2] device("/job:ps/task:1") group("g") loc("m.py":4:1)"""
    placed = place(graph_of(text), DEVICES)
    assert where(placed, "exp") == where(placed, "tanh") == PS1.name
    assert why(placed, "exp") == (
        "with colocation group 'g': op 'tanh' is to run on /job:ps/task:1 at m.py:4:1"
    )


def test_a_conflict_is_the_smallest_set_of_constraints() -> None:
    text = """
      %a = exp(%x) : f32[2] device("/job:worker") group("g") loc("m.py":1:1)
      %b = sin(%a) : f32[2] group("g") loc("m.py":2:1)
      %c = cos(%b) : f32[2] device("/cpu:0") group("g") loc("m.py":3:1)
      %y = tanh(%c) : f32[2] device("/job:ps") group("g") loc("m.py":4:1)"""
    with pytest.raises(PlacementError) as caught:
        place(graph_of(text), DEVICES)
    assert {c.what for c in caught.value.constraints} == {
        "op 'exp' is to run on /job:worker",
        "op 'tanh' is to run on /job:ps",
        "op 'exp' is in the colocation group 'g'",
        "op 'tanh' is in the colocation group 'g'",
    }
    assert "m.py:1:1" in str(caught.value)
    assert "m.py:4:1" in str(caught.value)
    assert "m.py:3:1" not in str(caught.value)
    placed = place(graph_of(text), DEVICES, soft=True)
    assert len(placed.fallbacks) == 1
    assert len({op.device for op in placed.graph.ops}) == 1


def test_kernels_decide_what_is_feasible() -> None:
    gpu = Device("/job:worker/task:0/gpu:0", scale=0.01, kernels=frozenset({"exp", "multiply"}))
    text = """
      %a = exp(%x) : f32[2] device("/gpu:*")
      %y = tanh(%a) : f32[2]"""
    placed = place(graph_of(text), [WORKER, gpu])
    assert (where(placed, "exp"), where(placed, "tanh")) == (gpu.name, WORKER.name)
    assert why(placed, "tanh").startswith("op 'tanh' has no kernel for gpu")
    on_gpu = text.replace("tanh(%a) : f32[2]", 'tanh(%a) : f32[2] device("/gpu:0")')
    with pytest.raises(PlacementError, match="op 'tanh' has no kernel for gpu") as caught:
        place(graph_of(on_gpu), [WORKER, gpu])
    assert len(caught.value.constraints) == 2
    placed = place(graph_of(on_gpu), [WORKER, gpu], soft=True)
    assert where(placed, "tanh") == WORKER.name
    assert "only that op 'tanh'" not in placed.fallbacks[0]


def test_a_repeated_constant_is_where_it_is_read() -> None:
    """As the constant is; it is made there, so there is no message."""
    text = """
      %c = constant() {value=f32[] 0.5} : f32[]
      %b = broadcast_to(%c) {shape=[9999]} : f32[9999]
      %v = variable() {name="v", dtype=f32, shape=[9999]} : ref<f32[9999]> device("/job:ps/task:1")
      %t = assign_add(%v, %b) : f32[9999]
      %y = exp(%x) : f32[2]"""
    placed = place(graph_of(text), DEVICES)
    assert where(placed, "constant") == where(placed, "broadcast_to") == PS1.name
    assert why(placed, "constant").startswith("where op 'broadcast_to' reads it first: ")
    assert all(span.nbytes < 100 for span in placed.predict().timeline)


def test_where_nothing_is_left_to_choose_nothing_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> object:
        raise AssertionError

    monkeypatch.setattr(CostModel, "costs_of", never)
    graph = graph_of('%y = exp(%x) : f32[2] device("/job:ps/task:1")')
    placed = place(graph, DEVICES)
    assert where(placed, "exp") == PS1.name
    with pytest.raises(AssertionError):
        placed.predict()


def test_what_is_decided_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of('%y = tanh(%x) : f32[2] device("/job:none")')
    with caplog.at_level("INFO", "weft.place"):
        place(graph, DEVICES, soft=True)
    assert "g: 1 ops, where the session is" in caplog.text
    assert "not held (soft placement): op 'tanh' is to run on /job:none" in caplog.text


def test_soft_placement_keeps_the_task() -> None:
    gpu = Device("/job:ps/task:0/gpu:0", kernels=frozenset({"exp"}))
    graph = graph_of('%y = tanh(%x) : f32[2] device("/job:ps/gpu:0")')
    placed = place(graph, [WORKER, PS, gpu], soft=True)
    assert where(placed, "tanh") == PS.name
    assert "only that op 'tanh' is to run on /job:ps" in placed.fallbacks[0]


def test_strings_and_queues_are_on_cpus() -> None:
    gpu = Device("/job:worker/task:0/gpu:0", kernels=frozenset({"identity", "fifo_queue"}))
    text = """
      %s = constant() {value=string[] b"a"} : string[]
      %t = identity(%s) : string[]
      %l = string_length(%t) : i32[]
      %y = exp(%x) after(%l) : f32[2]"""
    placed = place(graph_of(text), [WORKER, gpu])
    assert {op.device for op in placed.graph.ops} == {WORKER.name}
    assert "runs on the host, not on a gpu" in why(placed, "identity")


@pytest.mark.parametrize(
    "bad", [{"name": "/job:ps"}, {"name": "/job:ps/task:0/cpu:0", "scale": 0.0},
            {"name": "/job:ps/task:0/gpu:0"}],
)  # fmt: skip
def test_devices_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        Device(**bad)  # type: ignore[arg-type]


def test_no_device_and_two_of_one_name() -> None:
    graph = graph_of("%y = exp(%x) : f32[2]")
    with pytest.raises(InvalidArgumentError, match="no device"):
        place(graph, [])
    with pytest.raises(InvalidArgumentError, match="two devices"):
        place(graph, [PS, Device("/job:ps/replica:0/task:0/device:CPU:0")])


# -------------------------------------------------------------------------------------------- state

STEP = """
  %w = variable() {name="w", dtype=f32, shape=[2]} : ref<f32[2]> DEVICE loc("m.py":1:1)
  %a = read(%w) : f32[2] device("/job:worker/task:1")
  %b = add(%a, %x) : f32[2] device("/job:worker/task:1")
  %t = assign(%w, %b) : token
  %y = exp(%b) after(%t) : f32[2]"""


def test_what_uses_a_variable_is_where_it_is() -> None:
    placed = place(graph_of(STEP.replace("DEVICE", 'device("/job:ps")')), DEVICES)
    names = ("variable", "read", "assign", "add")
    assert [where(placed, n) for n in names] == [PS.name, PS.name, PS.name, OTHER.name]
    assert "/job:worker/task:1 is not used: it goes where its state is" in why(placed, "read")
    assert why(placed, "assign").startswith("with variable 'w': nothing says which of 2 devices")


def test_state_that_is_not_placed_is_where_the_session_is() -> None:
    for session in (WORKER, PS1):
        rest = [d for d in DEVICES if d is not session]
        placed = place(graph_of(STEP.replace("DEVICE", "")), [session, *rest])
        assert where(placed, "variable") == where(placed, "assign") == session.name
        assert "it stays in the session's task" in why(placed, "variable")


def test_variables_must_fit_the_memory() -> None:
    text = STEP.replace("DEVICE", 'device("/job:ps")')
    small = Device(PS.name, memory=4)
    with pytest.raises(ResourceExhaustedError, match=r"'w'(.|\n)*: 8 bytes(.|\n)*m\.py:1:1"):
        place(graph_of(text), [WORKER, OTHER, small])
    # the variable, and what is assigned to it
    place(graph_of(text), [WORKER, OTHER, Device(PS.name, memory=16)])


def test_stacks_stay_with_what_pushes_them() -> None:
    text = """
      %n = stack_new() {dtype=f32, shape=[2]} : stack<f32[2]>
      %s = stack_push(%n, %x) : stack<f32[2]> device("/job:ps/task:0")
      %r, %y = stack_pop(%s) : stack<f32[2]>, f32[2]"""
    graph = graph_of(text)
    placed = place(graph, DEVICES)
    assert {op.device for op in placed.graph.ops} == {PS.name}
    assert why(placed, "stack_pop").startswith("with a stack")


def test_stacks_that_are_memory_cannot_be_placed_on_several_tasks() -> None:
    text = """
      %n = constant() {value=i64[] 0} : i64[]
      %s = arena_push(%n, %x) : i64[]
      %r, %y = arena_pop(%s) {dtype=f32, shape=[2]} : i64[], f32[2]"""
    with pytest.raises(UnsupportedError, match="before the pass lower_stacks"):
        place(graph_of(text), DEVICES)
    place(graph_of(text), [PS])


# ------------------------------------------------------------------------------------- control flow

LOOP = """
  %n = constant() {value=i64[] 3} : i64[]
  %z = constant() {value=i64[] 0} : i64[]
  %o = constant() {value=i64[] 1} : i64[]
  %i, %y = while(%z, %x, %n, %o) {carries=2} : i64[], f32[2] {
    ^(%i: i64[], %c: f32[2], %n: i64[], %o: i64[])
    %t = less(%i, %n) : bool[]
    yield %t
  } {
    ^(%i: i64[], %c: f32[2], %n: i64[], %o: i64[])
    %j = add(%i, %o) : i64[]
    %a = exp(%c) : f32[2] FIRST
    %b = tanh(%a) : f32[2] SECOND
    yield %j, %b
  } loc("m.py":9:1)"""


def test_a_loop_is_whole_where_one_of_its_ops_must_be() -> None:
    text = LOOP.replace("SECOND", "").replace("FIRST", 'device("/job:ps/task:1")')
    placed = place(graph_of(text), DEVICES)
    loop = next(op for op in placed.graph.ops if op.name == "while")
    assert {op.device for op in (loop, *inside(loop))} == {PS1.name}
    assert placed.spanning == ()
    assert why(placed, "tanh").startswith("in op 'while' at m.py:9:1, which is whole on one device")


def test_a_loop_that_constraints_pull_apart() -> None:
    text = LOOP.replace("SECOND", 'device("/job:worker/task:1")')
    placed = place(graph_of(text.replace("FIRST", 'device("/job:ps/task:1")')), DEVICES)
    (loop,) = placed.spanning
    assert loop in placed.graph.ops
    assert (where(placed, "exp"), where(placed, "tanh")) == (PS1.name, OTHER.name)
    whole = place(graph_of(text.replace("FIRST", "")), DEVICES)
    # two messages in each of three iterations
    assert placed.predict().seconds > whole.predict().seconds + 6 * Links().latency_s


def test_a_loop_of_switches_stays_whole() -> None:
    text = """
      %n = constant() {value=i64[] 3} : i64[]
      %z = constant() {value=i64[] 0} : i64[]
      %e = enter(%z) {frame="f"} : i64[]
      %f = enter(%x) {frame="f"} : f32[2]
      %m = enter(%n) {frame="f", constant=true} : i64[]
      %i, %i2 = merge(%e) {loop=true} : i64[], i32[]
      %c, %c2 = merge(%f) {loop=true} : f32[2], i32[]
      %p = less(%i, %m) : bool[]
      %l = loop_cond(%p) : bool[]
      %if, %it = switch(%i, %l) : i64[], i64[]
      %cf, %ct = switch(%c, %l) : f32[2], f32[2]
      %o = constant() after(%it) {value=i64[] 1} : i64[]
      %j = add(%it, %o) : i64[]
      %a = exp(%ct) : f32[2] DEVICE
      %b = tanh(%a) : f32[2] OTHER
      %ni = next_iteration(%j, %i) : token
      %nc = next_iteration(%b, %c) : token
      %y = exit(%cf) : f32[2]"""
    whole = text.replace("DEVICE", 'device("/job:ps/task:1")').replace("OTHER", "")
    placed = place(graph_of(whole, "dataflow"), DEVICES)
    assert {op.device for op in placed.graph.ops} == {PS1.name}
    split = text.replace("DEVICE", 'device("/job:ps/task:1")')
    split = split.replace("OTHER", 'device("/job:worker/task:1")')
    placed = place(graph_of(split, "dataflow"), DEVICES)
    merges = [op for op in placed.graph.ops if op.name == "merge"]
    for merge in merges:
        others = [op for op in placed.graph.ops if op.name == "next_iteration"
                  and op.operands[1] is merge.results[0]]  # fmt: skip
        assert {op.device for op in others} == {merge.device}
        assert merge.operands[0].op is not None
        assert merge.operands[0].op.device == merge.device


# ------------------------------------------------------------------------------------ time and cost


def big_graph() -> Graph:
    builder = Builder([tensor_type(float32, 2)])
    ref = builder.emit(
        "variable", (), {"name": "w", "dtype": float32, "shape": (4000, 4000)},
        locations=(), device="/job:ps",
    )[0]  # fmt: skip
    value = builder.emit1("read", ref, locations=())
    total = builder.emit1("sum", value, axes=(0, 1), keepdims=False, locations=())
    spread = builder.emit1("broadcast_to", total, shape=(2,), locations=())
    result = builder.emit1("add", spread, builder.args[0], locations=())
    return builder.graph("big", ["x"], [result])


def test_work_goes_to_large_data() -> None:
    placed = place(big_graph(), DEVICES)
    assert where(placed, "sum") == PS.name
    assert "predicted; where the session is: " in why(placed, "sum")
    stay = place(big_graph(), DEVICES, spread=False)
    assert where(stay, "sum") == WORKER.name
    assert stay.predict().seconds > placed.predict().seconds
    # the whole matrix over the link
    assert stay.predict().seconds > 64e6 / Links().bytes_per_s


def parallel_graph(count: int) -> Graph:
    """Independent large products."""
    square = tensor_type(float32, 800, 800)
    builder = Builder([square])
    made = [builder.emit1("exp", builder.args[0], locations=()) for _ in range(count)]
    for _ in range(2):
        made = [builder.emit1("matmul", v, builder.args[0], locations=()) for v in made]
    sums = [builder.emit1("sum", v, axes=(0, 1), keepdims=False, locations=()) for v in made]
    return builder.graph("parallel", ["x"], sums)


def test_independent_work_is_spread() -> None:
    fast = CostModel(Links(latency_s=1e-5, bytes_per_s=1e11, message_s=1e-6))
    placed = place(parallel_graph(4), DEVICES, costs=fast)
    assert {op.device for op in placed.graph.ops if op.name == "matmul"} == {
        d.name for d in DEVICES
    }
    alone = place(parallel_graph(4), [WORKER], costs=fast)
    assert placed.predict().seconds < 0.3 * alone.predict().seconds
    slow = CostModel(Links(bytes_per_s=1e6))
    placed = place(parallel_graph(4), DEVICES, costs=slow)
    assert {op.device for op in placed.graph.ops} == {WORKER.name}


def test_a_slow_device_is_left_alone() -> None:
    fast = CostModel(Links(latency_s=1e-5, bytes_per_s=1e11, message_s=1e-6))
    slow = [WORKER, Device(OTHER.name, scale=50.0)]
    placed = place(parallel_graph(2), slow, costs=fast)
    assert {op.device for op in placed.graph.ops} == {WORKER.name}


def test_the_timeline_is_possible() -> None:
    placed = place(parallel_graph(4), DEVICES, costs=CostModel(Links(bytes_per_s=1e11)))
    rows: dict[str, list[tuple[float, float]]] = {}
    for span in placed.predict().timeline:
        assert 0 <= span.begin < span.end <= placed.predict().seconds
        if " -> " not in span.where:
            rows.setdefault(span.where, []).append((span.begin, span.end))
    assert len(rows) > 1
    for spans in rows.values():
        assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(sorted(spans)))


def test_a_value_goes_to_a_device_once() -> None:
    text = """
      %a = exp(%x) : f32[2] device("/job:ps/task:0")
      %b = sin(%a) : f32[2] device("/job:worker/task:1")
      %c = cos(%a) : f32[2] device("/job:worker/task:1")
      %y = add(%b, %c) : f32[2] device("/job:worker/task:1")"""
    placed = place(graph_of(text), DEVICES)
    sent = [s.where for s in placed.predict().timeline if " -> " in s.where]
    assert sent.count(f"{PS.name} -> {OTHER.name}") == 1


# ----------------------------------------------------------------------------------------- property

SPECS = (
    "/job:worker",
    "/job:ps",
    "/task:1",
    "/job:ps/task:0",
    "/job:worker/task:1/cpu:0",
    "/cpu:0",
)


@st.composite
def constrained(draw: st.DrawFn) -> Graph:
    """A random program with random constraints on some of its ops."""
    program = draw(programs(effects=draw(st.booleans())))
    ops = list(program.graph.walk())
    if ops:
        chance = draw(st.randoms(use_true_random=False))
        for op in chance.choices(ops, k=chance.choice((0, 1, 3, 6, 12))):
            op.device = chance.choice(SPECS)
        for op in chance.choices(ops, k=chance.choice((0, 2, 4, 8))):
            op.group = chance.choice(("g", "g", "h"))
            if chance.random() < 0.7:
                op.device = chance.choice(SPECS)
    return program.graph


def allowed(constraints: Sequence[Constraint]) -> Iterator[int]:
    """The devices left for each set of numbers that `constraints` tie together: by flooding, which
    shares nothing with the union-find under test."""
    ties: dict[int, set[int]] = {}
    masks: dict[int, int] = {}
    for c in constraints:
        ties.setdefault(c.op, set())
        if c.anchor >= 0:
            ties[c.op].add(c.anchor)
            ties.setdefault(c.anchor, set()).add(c.op)
        else:
            masks[c.op] = masks.get(c.op, -1) & c.mask
    seen: set[int] = set()
    for start in ties:
        mask, todo = (1 << len(DEVICES)) - 1, [start]
        while todo:
            number = todo.pop()
            if number not in seen:
                seen.add(number)
                mask &= masks.get(number, -1)
                todo += ties[number]
        yield mask


@examples(120)
@given(constrained())
def test_constraints_hold_or_the_conflict_is_minimal(graph: Graph) -> None:
    try:
        placed = place(graph, DEVICES)
    except PlacementError as error:
        found = error.constraints
        assert not all(allowed(found))
        for i in range(len(found)):
            assert all(allowed([*found[:i], *found[i + 1 :]]))
        placed = place(graph, DEVICES, soft=True)
        assert placed.fallbacks
        check_placed(graph, placed, hard=False)
        return
    assert not placed.fallbacks
    check_placed(graph, placed, hard=True)
    again = place(graph, DEVICES)
    assert print_graph(again.graph) == print_graph(placed.graph)
    assert again.predict().seconds == placed.predict().seconds
    home = placed.predict().compared["where the session is"]
    assert placed.predict().seconds <= home
    assert placed.predict().seconds <= min(placed.predict().compared.values()) * (1 + MARGIN)


@settings(max_examples=30, deadline=None)
@given(programs(effects=True))
def test_more_devices_are_never_predicted_to_be_slower(program: Case) -> None:
    alone = place(program.graph, [WORKER]).predict().seconds
    assert place(program.graph, DEVICES).predict().seconds <= alone
    assert place(program.graph, DEVICES, spread=False).predict().seconds <= alone


def check_placed(graph: Graph, placed: Placement, *, hard: bool) -> None:
    """The placed graph is the graph with full devices that satisfy all that must hold."""
    verify(placed.graph)
    assert print_graph(parse_graph(print_graph(placed.graph))) == print_graph(placed.graph)
    names = {d.name for d in DEVICES}
    groups: dict[str, set[str]] = {}
    for old, new in zip(graph.walk(), placed.graph.walk(), strict=True):
        assert (old.name, old.group, old.locations) == (new.name, new.group, new.locations)
        assert new.device in names
        assert placed.reasons[new]
        if hard:
            groups.setdefault(new.group or f"alone {id(new)}", set()).add(new.device)
        if hard and old.device and not uses_handle(old):
            assert DeviceSpec.parse(old.device).matches(DeviceSpec.parse(new.device))
    assert all(len(found) == 1 for found in groups.values())
    bare = Graph(graph.name, unplaced(placed.graph.block), graph.arg_names, graph.stage)
    assert bare == Graph(graph.name, unplaced(graph.block), graph.arg_names, graph.stage)
    state: dict[object, set[str]] = {}
    variables(placed.graph.block, {}, state)
    assert all(len(found) == 1 for found in state.values())


def variables(block: Block, known: dict[Value, str], state: dict[object, set[str]]) -> None:
    """The devices of all ops on each variable."""
    for op in block.ops:
        for value in (*op.operands, *op.results):
            if isinstance(value.type, RefType) and not op.regions:
                name = known.get(value) or str(value.op.attrs["name"] if value.op else value)
                state.setdefault(name, set()).add(op.device)
        for region in op.regions:
            given = op.operands[1:] if op.name == "cond" else op.operands
            names = {a: str(v.op.attrs["name"]) if v.op else known[v]
                     for a, v in zip(region.args, given, strict=True)
                     if isinstance(a.type, RefType)}  # fmt: skip
            variables(region, names, state)


def unplaced(block: Block) -> Block:
    """A copy of the block without devices and groups."""
    args = tuple(Value(a.type, None, a.index) for a in block.args)
    mapping = dict(zip(block.args, args, strict=True))
    ops = []
    for op in block.ops:
        operands, control = ([mapping[v] for v in vs] for vs in (op.operands, op.control))
        regions = [unplaced(r) for r in op.regions]
        types = [r.type for r in op.results]
        made = Operation(op.name, operands, op.attrs, types, regions, control, op.locations)
        mapping.update(zip(op.results, made.results, strict=True))
        ops.append(made)
    return Block(args, tuple(ops), tuple(mapping[v] for v in block.results))


def test_loops_that_share_a_body_are_placed_by_themselves() -> None:
    """As the gradient of a loop in a loop has them: the inner one and its clone have one region."""
    graph = parse_graph("""graph @g(%x: f32[]) -> (f32[]) stage=traced {
  %0 = scan(%x) {carries=1, sequences=0, length=2, reverse=false} : f32[] {
    ^(%a0: f32[])
    %0 = exp(%a0) : f32[] device("/job:worker/task:1")
    %1 = sin(%0) : f32[]
    yield %1
  }
  return %0
}
""")
    builder = Builder([graph.args[0].type])
    (first,) = builder.clone(graph.ops[0], dict(zip(graph.args, builder.args, strict=True)))
    (second,) = builder.clone(graph.ops[0], {graph.args[0]: first})
    shared = builder.graph("g", ["x"], [second])
    placed = place(shared, [Device(f"/job:worker/task:{k}/cpu:0") for k in range(2)])
    ops = list(placed.graph.walk())
    assert len(set(ops)) == len(placed.reasons) == 6
    assert all(op.device for op in ops)
