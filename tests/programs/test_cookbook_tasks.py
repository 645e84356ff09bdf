"""Programs of the cookbook: actor-critic, a parameter server, data-parallel training, word2vec."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from example_programs import load_example, run

import weft as wf

REPORT = r"(\d+ kernel calls.*; compiled in \d+\.\d\d s; cpu, .*thread)"


@pytest.fixture(autouse=True)
def float32_only() -> Iterator[None]:
    """No program computes in float64 by accident."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", wf.Float64Warning)
        yield


# ------------------------------------------------------------------------------------ actor-critic
actor_critic = load_example("actor_critic")


def gymnasium_tick(state: np.ndarray, action: int) -> np.ndarray:
    """CartPole-v1's step, by hand in float64."""
    x, v, theta, omega = state.astype(np.float64)
    force = 10.0 if action == 1 else -10.0
    temp = (force + 0.05 * omega**2 * np.sin(theta)) / 1.1
    turn = (9.8 * np.sin(theta) - np.cos(theta) * temp) / (
        0.5 * (4.0 / 3.0 - 0.1 * np.cos(theta) ** 2 / 1.1)
    )
    slide = temp - 0.05 * turn * np.cos(theta) / 1.1
    return np.array([x + 0.02 * v, v + 0.02 * slide, theta + 0.02 * omega, omega + 0.02 * turn])


def test_the_cart_moves_as_gymnasiums() -> None:
    rng = np.random.default_rng(0)
    states = rng.uniform(-2, 2, (50, 4)).astype(np.float32)
    actions = rng.integers(0, 2, 50)
    moved = wf.compile(actor_critic.move)(states, actions).numpy()
    assert moved.dtype == np.float32
    expected = [gymnasium_tick(s, a) for s, a in zip(states, actions, strict=True)]
    np.testing.assert_allclose(moved, expected, rtol=1e-5, atol=1e-5)
    stands = actor_critic.stands(np.float32([[2.3, 9, 0.2, 9], [2.5, 0, 0, 0], [0, 0, -0.22, 0]]))
    assert stands.numpy().tolist() == [True, False, False]


def test_actor_critic_learns(capsys: pytest.CaptureFixture[str]) -> None:
    result = actor_critic.main(["--updates", "40"])
    assert 15 < result.random < 30
    assert result.held_out > 5 * result.random
    assert np.mean(result.returns[-5:]) > 3 * np.mean(result.returns[:5])
    said = capsys.readouterr().out
    assert re.search(REPORT, said)
    assert re.search(r"first update \d+\.\d\d s, then \d+ us an update, \d+\.\d us a step", said)
    assert f"greedy policy {result.held_out:.1f}, random actions {result.random:.1f}" in said


@pytest.mark.slow
def test_actor_critic_as_it_is() -> None:
    result = actor_critic.main([])
    assert result.held_out > 400
    again = actor_critic.main([])
    assert again.returns == result.returns  # the same seed, the same bits
    assert again.held_out == result.held_out


# -------------------------------------------------------------------------------- parameter server
def accuracy(said: str) -> float:
    """The last one that was printed, 0..100."""
    return float(re.findall(r"held-out accuracy (\d+\.\d\d)%", said)[-1])


@pytest.mark.slow
def test_parameter_server_learns() -> None:
    said = run("parameter_server", "--steps", "400")
    assert accuracy(said) > 85
    steps = re.findall(r"worker (\d): (\d+) steps, the first \d+\.\d\d s, then \d+ us a step", said)
    assert [worker for worker, _ in steps] == ["0", "1"]
    assert 400 <= sum(int(count) for _, count in steps) <= 402  # a worker may be within a step
    assert re.search(REPORT, said)
    assert re.search(r"40[0-2] steps in \d+\.\d s, 0 restarts", said)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [(), ("worker:0",), ("worker:1",), ("ps:0",)])
def test_parameter_server_as_it_is(lost: tuple[str, ...]) -> None:
    said = run("parameter_server", *(f"--kill={task}" for task in lost))
    assert f"{len(lost)} restarts" in said
    assert accuracy(said) > 95


# ----------------------------------------------------------------------------------- data-parallel
data_parallel = load_example("data_parallel")


@pytest.mark.slow
def test_two_processes_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    many, alone = data_parallel.main(["--steps", "60"])
    np.testing.assert_allclose(many.losses, alone.losses, rtol=1e-4)
    assert data_parallel.largest_difference(alone, many) < 1e-5
    assert many.accuracy > 0.9
    assert many.losses[-1] < many.losses[0] / 4
    said = capsys.readouterr().out
    pattern = r"process(?:es)?: 60 steps, the first \d+\.\d\d s, then \d+ us a step; held-out"
    assert len(re.findall(pattern, said)) == 2
    assert re.search(r"largest difference of a parameter: \d\.\de-\d\d of", said)


@pytest.mark.slow
def test_data_parallel_as_it_is() -> None:
    said = run("data_parallel")
    assert accuracy(said) > 95
    assert run("data_parallel", "--workers", "4", "--steps", "50").count("held-out accuracy") == 2


# ----------------------------------------------------------------------------------------- elastic
@pytest.mark.slow
def test_elastic(capsys: pytest.CaptureFixture[str]) -> None:
    """The program itself compares all losses with those of one process."""
    losses, changes = load_example("elastic").main(["--steps", "400"])
    assert sorted(losses) == list(range(400))
    assert losses[399] < losses[0] / 10
    assert re.fullmatch(r"step \d+: rank \d \(process \d+\) is lost; 2 go on", changes[0])
    assert "has come; 3 go on" in changes[1]
    assert "each loss is bit for bit that of one process" in capsys.readouterr().out


# ---------------------------------------------------------------------------------- model parallel
@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_a_model_that_is_cut(kind: str) -> None:
    """The program itself compares the losses with those of the whole model."""
    losses = load_example("model_parallel").main([kind, "--steps", "5"])
    assert list(losses) == ["not cut", "one process"]
    assert losses["one process"][-1] < losses["one process"][0] * 0.7


@pytest.mark.slow
def test_a_model_that_is_cut_over_processes() -> None:
    losses = load_example("model_parallel").main(["pipeline", "--steps", "5", "--processes"])
    assert len(losses["processes"]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_a_model_that_is_cut_over_tasks(kind: str) -> None:
    losses = load_example("model_parallel").main([kind, "--steps", "5", "--tasks"])
    assert len(losses["tasks"]) == 5


# ---------------------------------------------------------------------------------------- word2vec
@pytest.mark.slow
def test_word2vec_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    result = load_example("skipgram").main([])
    before, after = result.losses
    assert after < before - 0.8
    assert {"denominator", "numerator"} & set(result.nearest("float", count=12))
    said = capsys.readouterr().out
    assert re.search(r"\d steps of the graph compiled; first \d+\.\d\d s, then \d+ us a step", said)
    assert f"held-out loss over all words: {before:.3f} before, {after:.3f} after" in said
