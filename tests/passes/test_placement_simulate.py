"""Simulated steps of many workers: exact where a formula says the time, in shape where not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.ir.errors import InvalidArgumentError
from weft.ir.text.parser import parse_graph
from weft.passes.placement import Device, Links, place
from weft.passes.placement.replicas import all_reduced, exchange_seconds, served_by_servers
from weft.passes.placement.simulate import (
    Cluster,
    Transfer,
    Workload,
    backup_curve,
    simulate,
    with_stragglers,
)

QUIET = Cluster(Links(latency_s=1e-3, bytes_per_s=1e9, message_s=0.0), cores=4)


def test_one_worker_and_one_server() -> None:
    load = Workload((0.0,), (0.0,), 0.5, (0.25,), update_s=0.125)
    run = simulate(load, 1, QUIET, steps=3)
    # latencies: begin, parameters, gradient; and of the token that begins the next step
    assert run.steps == pytest.approx((0.5 + 0.25 + 0.125 + 4e-3,) * 3)
    assert run.seconds == pytest.approx(3 * run.median)
    assert run.per_second == pytest.approx(1 / run.median)
    free = simulate(load, 1, QUIET, steps=3, synchronous=False)
    assert free.median == pytest.approx(0.5 + 0.25 + 4e-3)  # the answer, and no update apart


def test_transfers_overlap_with_computing() -> None:
    """Of two layers: the second's parameters come, and its gradients go, while the other computes;
    of the 0.1 s on the link that each takes (and of what the last of four pieces is later) there
    are left what comes first and what goes last."""
    layers = [Transfer(0, 1e8, 0.0), Transfer(0, 1e8, 0.5)], [
        Transfer(0, 1e8, 0.5), Transfer(0, 1e8, 1.0),
    ]  # fmt: skip
    load = Workload((2e8,), (2e8,), 1.0, (0.02,))
    whole, made = (simulate(x, 1, QUIET, steps=3) for x in (load, load.overlapped(*layers)))
    assert whole.median == pytest.approx(0.25 + 1.0 + 0.25 + 0.02, rel=0.02)
    assert made.median == pytest.approx(0.125 + 1.0 + 0.125 + 0.01, rel=0.02)
    slow = replace(QUIET, links=replace(QUIET.links, bytes_per_s=1e8))  # the link decides
    made = simulate(load.overlapped(*layers), 1, slow, steps=3)
    assert made.median == pytest.approx(2.25 + 0.5 + 1.25, rel=0.02)
    assert load.overlapped(*layers).is_overlapped
    assert not load.is_overlapped
    with pytest.raises(InvalidArgumentError, match="rounds are for workers that compute when"):
        served_by_servers(load.overlapped(*layers), 2)
    for wrong in ([Transfer(1, 1.0, 0.0)], [Transfer(0, 1.0, 1.0)]):
        with pytest.raises(InvalidArgumentError):
            load.overlapped(wrong, layers[1])
    with pytest.raises(InvalidArgumentError, match="not the bytes"):
        replace(load, gets=(Transfer(0, 1.0, 0.0),))


@pytest.mark.parametrize("synchronous", [True, False])
def test_one_transfer_for_each_server_is_what_there_is_without(synchronous: bool) -> None:
    load = with_stragglers(Workload.even(3, 3e6, 6e6, 0.1), 0.1, 0.1, 3.0)
    same = load.overlapped([Transfer(s, 1e6, 0.0) for s in range(3)],
                           [Transfer(s, 2e6, 1.0) for s in range(3)])  # fmt: skip
    one, other = (simulate(x, 5, QUIET, needed=4, synchronous=synchronous) for x in (load, same))
    assert one == other


def test_messages_keep_cores_busy() -> None:
    slow = Cluster(Links(latency_s=0.0, bytes_per_s=1e9, message_s=1e-3), cores=1)
    load = Workload.even(4, 0.0, 0.0, 0.0)
    run = simulate(load, 1, slow, steps=5)
    # the worker's core: 4 begins, 4 parameters, 4 gradients, 4 answers, the token; a way ends with
    # the last server's
    assert 16e-3 <= run.median <= 22e-3


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_large_model_is_bound_by_links(pieces: int) -> None:
    nbytes = pieces * 200e6
    one = simulate(Workload.even(4, nbytes, 0.0, 0.0), 1, QUIET, steps=3)
    assert one.median == pytest.approx(nbytes / 1e9, rel=0.1)  # into the worker
    many = simulate(Workload.even(4, nbytes, 0.0, 0.0), 40, QUIET, steps=3)
    assert many.median == pytest.approx(40 * nbytes / 4 / 1e9, rel=0.1)  # out of the servers
    few = simulate(Workload.even(4, nbytes, 0.0, 0.0), 3, QUIET, steps=3)
    assert few.median == pytest.approx(nbytes / 1e9, rel=0.25)


def test_bytes_keep_the_cores_of_machines_busy() -> None:
    cluster = Cluster(Links(0.0, 1e12, 0.0), cores=1, byte_s=1e-9)
    run = simulate(Workload.even(2, 1e9, 0.0, 0.0), 1, cluster, steps=3)
    # out of each server in half a second, and meanwhile into the worker in one
    assert run.median == pytest.approx(1.0 + 0.5 / 4, rel=0.15)


def test_the_slowest_worker_decides_and_backups_help() -> None:
    load = with_stragglers(Workload.even(2, 1e5, 1e5, 1.0), 0.02, 0.1, 2.0)
    alone = simulate(load, 1, QUIET, steps=30)
    many = simulate(load, 40, QUIET, steps=30)
    assert many.median > 1.8  # four stragglers a step, the slowest of which takes so long
    assert alone.median < 1.1
    curve = backup_curve(load, 40, range(0, 16, 5), QUIET)
    times = [t for _, t, _ in curve]
    assert times[0] > times[1] >= times[3]
    assert times[-1] < 1.2
    assert curve[0][2] == 1.0
    assert curve[3][2] == pytest.approx(times[0] / times[3] * 40 / 55)
    backed = simulate(load, 55, QUIET, needed=40, steps=30)
    assert backed.dropped > 0
    assert simulate(load, 55, QUIET, steps=30).dropped == 0


def test_steps_as_they_were_measured() -> None:
    """Each takes one of the measured times, over their median; the slowest worker decides."""
    load = replace(Workload.even(1, 0.0, 0.0, 2.0), spread=5.0, measured=(0.5, 1.0, 1.0, 3.0))
    instant = Cluster(Links(latency_s=0.0, bytes_per_s=1e9, message_s=0.0))
    alone = simulate(load, 1, instant, steps=400, synchronous=False).steps
    for seconds, share in ((1.0, 0.25), (2.0, 0.5), (6.0, 0.25)):
        found = sum(step == pytest.approx(seconds) for step in alone) / len(alone)
        assert found == pytest.approx(share, abs=0.1)
    assert simulate(load, 50, instant, steps=5).steps == pytest.approx((6.0,) * 5)
    with pytest.raises(InvalidArgumentError, match="not negative"):
        replace(load, measured=(1.0, -1.0))


def test_synchronous_steps_are_longer() -> None:
    load = with_stragglers(Workload.even(4, 1e6, 1e6, 0.1), 0.1, 0.0, 1.0)
    together = simulate(load, 20, QUIET, steps=10)
    apart = simulate(load, 20, QUIET, synchronous=False, steps=10)
    assert 1.05 * apart.median < together.median < 2 * apart.median
    assert together.percentile(90) >= together.median


def test_a_simulation_is_repeatable() -> None:
    load = with_stragglers(Workload.even(3, 1e6, 1e6, 0.1), 0.1, 0.1, 3.0)
    assert simulate(load, 5, QUIET, seed=3) == simulate(load, 5, QUIET, seed=3)
    assert simulate(load, 5, QUIET, seed=3) != simulate(load, 5, QUIET, seed=4)


def test_the_workload_of_a_placed_step() -> None:
    text = """graph @step(%x: f32[1000]) -> (token) stage=traced {
      %w = variable() {name="w", dtype=f32, shape=[1000]} : ref<f32[1000]> device("/job:ps/task:0")
      %v = variable() {name="v", dtype=f32, shape=[1000]} : ref<f32[1000]> device("/job:ps/task:1")
      %a = read(%w) : f32[1000]
      %b = read(%v) : f32[1000]
      %c = add(%a, %b) : f32[1000] device("/job:worker")
      %d = add(%c, %x) : f32[1000] device("/job:worker")
      %t = assign(%w, %d) after(%a) : token
      return %t }"""
    devices = [Device(f"/job:{t}/cpu:0") for t in ("worker/task:0", "ps/task:0", "ps/task:1")]
    placed = place(parse_graph(text), devices)
    load = Workload.of_placement(placed)
    assert load.pull == (4000.0, 4000.0)
    assert load.push == (4000.0, 0.0)
    assert load.compute_s > 0
    assert load.apply_s[0] > load.apply_s[1] > 0
    with pytest.raises(InvalidArgumentError, match="no device of the placement is of the job 'x'"):
        Workload.of_placement(placed, job="x")


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"workers": 2, "needed": 3}, {"workers": 2, "needed": 0},
              {"workers": 2, "steps": 0}],
)  # fmt: skip
def test_numbers_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        simulate(Workload.even(2, 1.0, 1.0, 1.0), **wrong)  # type: ignore[arg-type]


def test_workloads_are_checked() -> None:
    with pytest.raises(InvalidArgumentError):
        Workload((), (), 1.0)
    with pytest.raises(InvalidArgumentError):
        Workload((1.0,), (1.0, 2.0), 1.0)
    with pytest.raises(InvalidArgumentError):
        Workload((-1.0,), (1.0,), 1.0)
    with pytest.raises(InvalidArgumentError):
        backup_curve(Workload((1.0,), (1.0,), 1.0), 2, [1, 2])


# ----------------------------------------------------------------------------- thousands of workers

#: Loads of a step: computing, parameters of 100 MB, nearly all on one server, both with servers
#: that take their time.
LOADS = {
    "computing": with_stragglers(Workload.even(4, 1e6, 1e6, 0.5), 0.05, 0.05, 1.3),
    "bytes": Workload.even(8, 1e8, 64.0, 0.0),
    "uneven": Workload((1e8, 0.0, 0.0, 1e6), (64.0,) * 4, 0.2),
    "servers": replace(Workload.even(4, 1e7, 1e7, 0.2), apply_s=(0.02,) * 4),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("workers", [1, 8, 40])
@pytest.mark.parametrize("name", LOADS)
def test_rounds_are_near_the_events(name: str, workers: int) -> None:
    """Where computing or bytes decide; both simulations draw stragglers, so medians differ."""
    events = simulate(LOADS[name], workers, steps=8).median
    rounds = served_by_servers(LOADS[name], workers, steps=8).median
    assert rounds == pytest.approx(events, rel=0.2)


def test_backup_workers_in_rounds() -> None:
    load = with_stragglers(Workload.even(4, 1e6, 1e6, 0.5), 0.05, 0.2, 2.0)
    all_of_them = served_by_servers(load, 44, steps=30)
    first = served_by_servers(load, 44, needed=40, steps=30)
    assert first.median < 0.95 * all_of_them.median
    assert first.dropped
    assert not all_of_them.dropped
    assert served_by_servers(load, 44, needed=40, steps=30) == first


def test_thousands_of_workers_take_what_their_bytes_take() -> None:
    """4000 workers get 1 MB from each of two servers, and send as much."""
    links = Links(latency_s=0.0, bytes_per_s=1e9, message_s=0.0)
    run = served_by_servers(Workload.even(2, 2e6, 2e6, 0.0), 4000, Cluster(links), steps=3)
    assert 4000 * 1e6 / 1e9 <= run.median <= 2.01 * 4000 * 1e6 / 1e9


def test_workers_that_exchange_gradients() -> None:
    links = Links(latency_s=1e-4, bytes_per_s=1e9, message_s=1e-5)
    assert exchange_seconds(1e8, 1, links) == 0.0
    two = exchange_seconds(1e8, 2, links)
    assert two == pytest.approx(0.1 + 2e-5 + 2e-4)
    ring = exchange_seconds(1e8, 1000, links)
    assert ring == pytest.approx(2 * 0.999 * 0.1 + 1998 * 1.1e-4)
    load = Workload((0.0,), (1e8,), 0.25)
    run = all_reduced(load, 1000, Cluster(links), steps=2)
    assert run.median == pytest.approx(0.25 + ring)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"needed": 9}, {"steps": 0}])
def test_rounds_that_make_no_sense(wrong: dict[str, int]) -> None:
    given = {"workers": 8, "needed": 8, "steps": 2} | wrong
    with pytest.raises(InvalidArgumentError, match="steps of"):
        served_by_servers(Workload.even(2, 1e3, 1e3, 0.1), **given)  # type: ignore[arg-type]
