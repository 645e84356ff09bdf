"""Whether ops leave the session's task where nobody has said so: what is known of the other tasks,
and what many that do the same step leave of a gain."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from weft.ir.dtypes import float32
from weft.ir.graph import Graph
from weft.ir.ops.builder import Builder
from weft.ir.types import tensor_type
from weft.passes.placement import CostModel, Device, Links, Placement, place
from weft.passes.placement.automatic import Machine, place_where_it_wins
from weft.passes.placement.choose import HOME
from weft.passes.placement.report import explain_placement

FAST = CostModel(Links(latency_s=1e-5, bytes_per_s=1e11, message_s=1e-6))


def products(count: int, server: str = "/job:ps") -> Graph:
    """Independent products of a matrix that is on a server."""
    builder = Builder([tensor_type(float32, 800, 800)])
    ref = builder.emit(
        "variable", (), {"name": "w", "dtype": float32, "shape": (800, 800)},
        locations=(), device=server,
    )[0]  # fmt: skip
    w = builder.emit1("read", ref, locations=())
    made = [builder.emit1("matmul", builder.args[0], w, locations=()) for _ in range(count)]
    made = [builder.emit1("matmul", v, builder.args[0], locations=()) for v in made]
    sums = [builder.emit1("sum", v, axes=(0, 1), keepdims=False, locations=()) for v in made]
    return builder.graph("products", ["x"], sums)


def large_sum() -> Graph:
    """A number that is the sum of a matrix of 64 MB on a server."""
    builder = Builder([tensor_type(float32, 2)])
    ref = builder.emit(
        "variable", (), {"name": "w", "dtype": float32, "shape": (4000, 4000)},
        locations=(), device="/job:ps",
    )[0]  # fmt: skip
    value = builder.emit1("read", ref, locations=())
    return builder.graph(
        "sum", ["x"], [builder.emit1("sum", value, axes=(0, 1), keepdims=False, locations=())]
    )


def placed(
    graph: Graph, jobs: Mapping[str, int], *, serving: Collection[str] = (), apart: bool = True,
    costs: CostModel = FAST,
) -> Placement:  # fmt: skip
    """As a session of /job:worker/task:0 places it. apart: each task has a machine."""
    names = [f"/job:{job}/task:{k}" for job, count in jobs.items() for k in range(count)]
    tasks = {name: Machine(name if apart else "m", 1, 1) for name in names}
    devices = [Device(f"{name}/cpu:0") for name in names]
    return place_where_it_wins(graph, devices, tasks, lambda: serving, costs=costs)


def tasks_of(made: Placement) -> set[str]:
    return {d.task for d in made.devices if any(op.device == d.name for op in made.graph.ops)}


HERE, SERVER, SIBLING = "/job:worker/task:0", "/job:ps/task:0", "/job:worker/task:1"


def test_one_worker_uses_its_servers() -> None:
    made = placed(products(4), {"worker": 1, "ps": 2})
    assert tasks_of(made) == {HERE, SERVER, "/job:ps/task:1"}
    assert made.note.startswith("ops that nothing binds may leave the session's task, as the step")
    assert made.note in explain_placement(made)
    assert "if a task does such a step at once, phase by phase, it takes" in explain_placement(made)
    alone = place(products(4), made.devices, costs=FAST, spread=False)
    assert made.predict().seconds * 1.1 < alone.predict().seconds


def test_many_workers_do_not() -> None:
    made = placed(products(4), {"worker": 8, "ps": 2})
    assert {op.device for op in made.graph.ops if op.name == "matmul"} == {f"{HERE}/cpu:0"}
    assert "over 2 other tasks, 8 of which are taken to be done at once, takes" in made.note
    assert made.choice.why == HOME


@pytest.mark.parametrize("workers", [1, 8, 64])
def test_many_workers_have_sums_made_where_the_matrix_is(workers: int) -> None:
    """A number is sent in place of 64 MB."""
    made = placed(large_sum(), {"worker": workers, "ps": 1}, costs=CostModel())
    assert [op.device for op in made.graph.ops if op.name == "sum"] == [f"{SERVER}/cpu:0"]
    assert made.predict().replicas == workers
    many = "a task does" if workers == 1 else f"{workers} tasks do"
    assert f"if {many} such a step at once" in explain_placement(made)


def test_tasks_of_ones_own_job_are_used_if_they_only_serve() -> None:
    graph = products(4, SIBLING)  # something is bound to one of them
    made = placed(graph, {"worker": 4})
    assert {op.device for op in made.graph.ops if op.name == "matmul"} == {f"{HERE}/cpu:0"}
    assert made.note.endswith("the others may do the same step for their own sessions")
    others = [f"/job:worker/task:{k}" for k in (1, 2, 3)]
    made = placed(graph, {"worker": 4}, serving=others)
    assert tasks_of(made) == {HERE, *others}
    # one of two that may have a program would do the same step
    made = placed(graph, {"worker": 4}, serving=others[:2])
    assert made.choice.why == HOME or tasks_of(made) == {HERE, *others[:2]}
    assert made.note


def test_where_processors_are_shared_nothing_is_gained() -> None:
    made = placed(products(4), {"worker": 1, "ps": 2}, apart=False)
    assert {op.device for op in made.graph.ops if op.name == "matmul"} == {f"{HERE}/cpu:0"}
    assert made.note.endswith("no other task has processors of its own")
    # one machine with a processor for each of the three is as good as three
    names = [HERE, SERVER, "/job:ps/task:1"]
    made = place_where_it_wins(
        products(4), [Device(f"{n}/cpu:0") for n in names],
        {n: Machine("m", 3, 1) for n in names}, tuple, costs=FAST,
    )  # fmt: skip
    assert tasks_of(made) == set(names)


def test_threads_make_work_cheap_beside_messages() -> None:
    """With 64 threads the products are not worth their messages."""
    names = [HERE, *(f"/job:ps/task:{k}" for k in range(3))]
    devices = [Device(f"{n}/cpu:0") for n in names]
    slow = CostModel(replace(FAST.links, bytes_per_s=2e9))
    found = []
    for threads in (1, 64):
        tasks = {n: Machine(n, threads, threads) for n in names}
        made = place_where_it_wins(products(8), devices, tasks, tuple, costs=slow)
        found.append(made.choice.why == HOME)
    assert found == [False, True]


def test_nobody_is_asked_where_nothing_can_be_gained() -> None:
    def refuse() -> Collection[str]:
        raise AssertionError

    names = [HERE, SIBLING]
    tasks = {n: Machine(n, 1, 1) for n in names}
    devices = [Device(f"{n}/cpu:0") for n in names]
    builder = Builder([tensor_type(float32, 2)])
    small = builder.graph("small", ["x"], [builder.emit1("exp", builder.args[0], locations=())])
    made = place_where_it_wins(small, devices, tasks, refuse)
    assert {op.device for op in made.graph.ops} == {f"{HERE}/cpu:0"}
    assert "takes" in made.note
    assert place_where_it_wins(small, devices[:1], tasks, refuse).note == ""
