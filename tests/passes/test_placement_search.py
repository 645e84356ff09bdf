"""Search, lower bound and memory of placements: random graphs, and brute force over small ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from example_counts import examples
from graphs import Case
from hypothesis import given
from hypothesis import strategies as st
from structured_programs import programs

from weft.ir.dtypes import float32
from weft.ir.errors import InvalidArgumentError, ResourceExhaustedError
from weft.ir.graph import Graph
from weft.ir.ops.builder import Builder
from weft.ir.text.printer import print_graph
from weft.ir.types import tensor_type
from weft.passes.placement import CostModel, Device, Links, Placement, Search, place
from weft.passes.placement.bounds import lower_bound
from weft.passes.placement.choose import SEARCHED
from weft.passes.placement.search import evaluate, search
from weft.passes.placement.timeline import Simulation

#: Links on which it pays to leave a device, and sometimes does not.
NEAR = CostModel(Links(latency_s=1e-7, bytes_per_s=1e9, message_s=1e-7))


def devices_of(count: int, memory: int | None = None, *, uneven: bool = False) -> list[Device]:
    return [
        Device(f"/job:worker/task:{k}/cpu:0", scale=1 + k / 2 if uneven else 1.0, memory=memory)
        for k in range(count)
    ]


# --------------------------------------------------------------------------------------- properties


def some_placement(placed: Placement, chance: random.Random) -> list[int]:
    return [chance.choice(list(ks)) for ks in placed.choice.allowed]


@examples(96)
@given(programs(effects=True), st.integers(2, 4), st.booleans(), st.integers(0, 99))
def test_the_bound_is_below_every_placement(
    program: Case, count: int, uneven: bool, seed: int
) -> None:
    placed = place(program.graph, devices_of(count, uneven=uneven), costs=NEAR, free_state=True)
    model, bound = placed.choice.model, placed.choice.bound
    chance = random.Random(seed)
    for _ in range(8):
        seconds, _ = evaluate(model, some_placement(placed, chance))
        assert bound.seconds <= seconds * (1 + 1e-9)
    assert all(bound.seconds <= s * (1 + 1e-9) for s in placed.predict().compared.values())


@examples(60)
@given(programs(effects=True), st.integers(2, 3), st.integers(0, 3))
def test_a_search_is_never_worse_and_repeatable(program: Case, count: int, seed: int) -> None:
    devices = devices_of(count, uneven=True)
    greedy = place(program.graph, devices, costs=NEAR)
    found = place(program.graph, devices, costs=NEAR, search=Search(40, seed))
    assert found.predict().seconds <= greedy.predict().seconds
    if found.choice.free:
        least = min(s for n, s in found.predict().compared.items() if n != SEARCHED)
        assert found.predict().compared[SEARCHED] <= least
    again = place(program.graph, devices, costs=NEAR, search=Search(40, seed))
    assert print_graph(again.graph) == print_graph(found.graph)
    assert again.predict().seconds == found.predict().seconds


@examples(60)
@given(programs(effects=True), st.integers(1, 3), st.sampled_from([0.4, 0.6, 0.8, 1.0]))
def test_a_placement_fits_the_memory_or_there_is_an_error(
    program: Case, count: int, part: float
) -> None:
    alone = place(program.graph, devices_of(1), costs=NEAR).predict().peaks
    most = int(max([1, *(p.nbytes for p in alone)]) * part)
    try:
        placed = place(
            program.graph, devices_of(count, most), costs=NEAR, free_state=True, fit=True
        )
    except ResourceExhaustedError as error:
        told, placed = str(error), None
    if placed is None:
        assert part < 1.0  # all of it fits one device
        assert "/job:worker/task:" in told
        assert f"it has {most:,} bytes" in told
        return
    for peak in placed.predict().peaks:
        assert peak.nbytes <= most
        assert sum(life.nbytes for life in peak.largest) <= peak.nbytes * (1 + 1e-9)


@examples(60)
@given(programs(effects=True), st.integers(1, 3), st.integers(0, 99))
def test_no_peak_is_above_all_that_is_made(program: Case, count: int, seed: int) -> None:
    """Peaks against what needs no times: no device holds more than all values made there or sent
    there, its variables and what is inside ops; none less than its variables, or an op's results
    that others read."""
    placed = place(program.graph, devices_of(count), costs=NEAR, free_state=True)
    model = placed.choice.model
    simulation = Simulation(model, some_placement(placed, random.Random(seed)))
    simulation.run()
    lasting, made = [0.0] * count, [0.0] * count
    for i, nbytes in model.lasts.items():
        lasting[simulation.chosen[model.group[i]]] += nbytes
    for v, device in enumerate(simulation.made_on):
        made[max(device, 0)] += model.nbytes[v]
        for other in simulation.copies.get(v, ()):
            made[other] += model.nbytes[v]
    for i, nbytes in enumerate(model.scratch):
        made[simulation.chosen[model.group[i]]] += nbytes
    for peak in simulation.peaks():
        assert lasting[peak.device] <= peak.nbytes <= lasting[peak.device] + made[peak.device]


# -------------------------------------------------------------------------------------- brute force


@st.composite
def small_graphs(draw: st.DrawFn) -> Graph:
    """At most seven products of matrices of different sizes, read by each other at random."""
    size = draw(st.sampled_from([16, 48, 96]))
    square = tensor_type(float32, size, size)
    builder = Builder([square])
    values = [builder.args[0]]
    for _ in range(draw(st.integers(2, 6))):
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        values.append(builder.emit1("matmul", a, b, locations=()))
    return builder.graph("small", ["x"], values[1:])


def optimum(placed: Placement) -> float:
    """The fastest of all placements."""
    allowed = placed.choice.allowed
    return min(evaluate(placed.choice.model, ks)[0] for ks in itertools.product(*allowed))


@examples(60)
@given(small_graphs(), st.integers(2, 3))
def test_bound_optimum_search_greedy(graph: Graph, count: int) -> None:
    devices = devices_of(count, uneven=True)
    placed = place(graph, devices, costs=NEAR, search=Search(300))
    best = optimum(placed)
    compared = placed.predict().compared
    greedy = min(s for n, s in compared.items() if n != SEARCHED)
    assert placed.choice.bound.seconds <= best * (1 + 1e-9)
    assert best <= compared[SEARCHED] <= greedy
    assert compared[SEARCHED] <= best * 1.05


def test_a_search_finds_what_greed_misses() -> None:
    """Each chain finishes first where it is not: its first product is small, the rest are not."""
    builder = Builder([tensor_type(float32, 256, 256)])
    ends = []
    for _ in range(4):
        value = builder.args[0]
        for _ in range(4):
            value = builder.emit1("matmul", value, builder.args[0], locations=())
        ends.append(builder.emit1("sum", value, axes=(0, 1), keepdims=False, locations=()))
    graph = builder.graph("chains", ["x"], ends)
    costs = CostModel(Links(latency_s=2e-4, bytes_per_s=1e9, message_s=1e-5))
    placed = place(graph, devices_of(4), costs=costs, search=Search(400))
    compared = placed.predict().compared
    greedy = min(s for n, s in compared.items() if n != SEARCHED)
    assert compared[SEARCHED] < 0.9 * greedy
    assert placed.choice.why == SEARCHED


# ------------------------------------------------------------------------------------- single facts


def test_the_work_of_devices_that_differ_bounds_a_step() -> None:
    """Eight equal products on devices of speed 1 and 1/2: two thirds of the work of one."""
    builder = Builder([tensor_type(float32, 128, 128)])
    made = [
        builder.emit1("matmul", builder.args[0], builder.args[0], locations=()) for _ in range(8)
    ]
    devices = [Device("/job:a/task:0/cpu:0"), Device("/job:a/task:1/cpu:0", scale=2.0)]
    placed = place(builder.graph("g", ["x"], made), devices)
    model = placed.choice.model
    alone = sum(model.seconds[0])
    bound = lower_bound(model, placed.choice.allowed)
    assert bound.work == pytest.approx(alone * 2 / 3, rel=0.02)
    assert bound.work <= alone * 2 / 3 * (1 + 1e-9)
    assert bound.path == pytest.approx(alone / 8)
    assert bound.group == pytest.approx(alone / 8)


def chain(lengths: Sequence[int]) -> Graph:
    """Sums of growing vectors: each value is read once."""
    builder = Builder([tensor_type(float32, lengths[0])])
    value = builder.args[0]
    for n in lengths[1:]:
        value = builder.emit1("broadcast_to", builder.emit1("sum", value, axes=(0,), keepdims=True,
                              locations=()), shape=(n,), locations=())  # fmt: skip
        value = builder.emit1("cumulative_sum", value, axis=0, locations=())
    return builder.graph("chain", ["x"], [value])


def test_the_peak_of_a_chain() -> None:
    """The feed is the caller's, all the time; of the values two neighbours are alive at once."""
    placed = place(chain([1000, 3000, 2000]), devices_of(1), fit=True)
    (peak,) = placed.predict().peaks
    assert peak.nbytes == 4 * (1000 + 3000 + 1)
    assert peak.largest[0].nbytes == 4 * 3000


def test_the_error_names_what_takes_the_memory() -> None:
    with pytest.raises(ResourceExhaustedError) as caught:
        place(chain([1000, 3000, 2000]), devices_of(1, 15_000), fit=True)
    text = str(caught.value)
    assert "memory of /job:worker/task:0/cpu:0: it has 15,000 bytes, and 16,004 are wanted" in text
    assert "f32[3000] of op 'cumulative_sum': 12,000 bytes" in text
    assert "constraints leave no choice" in text
    assert place(chain([1000, 3000, 2000]), devices_of(1, 16_004), fit=True)


def test_a_search_of_nothing() -> None:
    with pytest.raises(InvalidArgumentError, match="finds nothing"):
        Search(0)


def test_variables_go_where_there_is_room() -> None:
    """They stay with the session if nothing else is said; else memory decides."""
    builder = Builder([tensor_type(float32, 100)])
    value = builder.args[0]
    for name in "abc":
        ref = builder.emit("variable", (), {"name": name, "dtype": float32, "shape": (100,)},
                           locations=())[0]  # fmt: skip
        value = builder.emit1("add", value, builder.emit1("read", ref, locations=()), locations=())
    graph = builder.graph("g", ["x"], [value])
    devices = devices_of(3, 1700)
    with pytest.raises(ResourceExhaustedError, match="'a'"):
        place(graph, devices)
    placed = place(graph, devices, free_state=True)
    assert len(set(placed.state.values())) > 1
    assert all(peak.nbytes <= 1700 for peak in placed.predict().peaks)


def test_what_fits_is_better_than_what_is_fast() -> None:
    """Slow links make one device the fastest, which has not enough memory."""
    size = 100_000
    builder = Builder([tensor_type(float32, size)])
    value = builder.args[0]
    for name in "abcd":
        attrs = {"name": name, "dtype": float32, "shape": (size,)}
        (ref,) = builder.emit("variable", (), attrs)
        value = builder.emit1("add", value, builder.emit1("read", ref))
    graph = builder.graph("g", ["x"], [value])
    slow = CostModel(Links(latency_s=1e-2))
    choice = place(graph, devices_of(3, 2_399_990), costs=slow, free_state=True).choice
    assert not evaluate(choice.model, choice.chosen)[1]
    for evaluations in (100, 500):
        found = search(choice.model, choice.allowed, choice.chosen, Search(evaluations, 1))
        assert not found.over
