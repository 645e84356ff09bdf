"""Advantage actor-critic on CartPole: environment, episode and update in one compiled function.

The cart and its pole (Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve
difficult learning control problems", 1983; Gymnasium's constants and its limit of 500 steps) are
wf ops, so a batch of them runs inside a `wf.while_loop` until the last pole has fallen. Returns are
a `wf.scan` from the last row to the first. The method is that of Mnih et al., "Asynchronous methods
for deep reinforcement learning" (2016), with one learner and whole episodes: the actor follows the
gradient of log pi(action) * (return - value), with a bonus for entropy; the critic learns the
returns. The gradient goes through the loop, which keeps what it needs of each of its iterations.

    python examples/actor_critic.py [--updates 200] [--envs 16] [--seed 0] [--device cpu]

Printed are what was compiled, the time of a step of all environments, and the mean return of the
greedy policy over fresh episodes, beside that of random actions.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import weft as wf

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TICK = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
LIMIT = 500  # steps of an episode at most; each has the reward 1
HIDDEN, DISCOUNT, ENTROPY, LEARNING_RATE = 64, 0.99, 0.01, 0.01
HELD_OUT = 100  # fresh episodes
Choose = Callable[[wf.Tensor, wf.Tensor], wf.Tensor]  # (key, logits) -> an action for each row


# ------------------------------------------------------------------------------- the environment
def move(state: wf.Tensor, action: wf.Tensor) -> wf.Tensor:
    """One tick for rows of (position, its speed, angle, its speed): Euler's method."""
    x, speed, angle, turn = wf.unstack(state, axis=1)
    force = wf.where(action == 1, FORCE, -FORCE)
    sin, cos, mass = wf.sin(angle), wf.cos(angle), CART + POLE
    push = (force + POLE * HALF_LENGTH * turn**2 * sin) / mass
    spin = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / mass))
    slide = push - POLE * HALF_LENGTH * spin * cos / mass
    return wf.stack(
        [x + TICK * speed, speed + TICK * slide, angle + TICK * turn, turn + TICK * spin], axis=1
    )


def stands(state: wf.Tensor) -> wf.Tensor:
    """Whether the cart is on its track and the pole within 12 degrees of upright."""
    return (wf.abs(state[:, 0]) <= 2.4) & (wf.abs(state[:, 2]) <= math.radians(12))


# ------------------------------------------------------------------------------------- the model
class Network:
    """Four numbers of the state -> tanh -> `outputs` numbers."""

    def __init__(self, rng: np.random.Generator, outputs: int, name: str) -> None:
        w1 = rng.normal(scale=0.5, size=(4, HIDDEN)).astype(np.float32)
        w2 = rng.normal(scale=0.1, size=(HIDDEN, outputs)).astype(np.float32)
        self.w1, self.b1 = wf.Variable(w1, name=f"{name}_w1"), wf.Variable(wf.zeros([HIDDEN]))
        self.w2, self.b2 = wf.Variable(w2, name=f"{name}_w2"), wf.Variable(wf.zeros([outputs]))

    def __call__(self, state: wf.Tensor) -> wf.Tensor:
        return wf.matmul(wf.tanh(wf.matmul(state, self.w1) + self.b1), self.w2) + self.b2


class ActorCritic:
    """actor: logits of the two actions; critic: the discounted return to expect."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.actor, self.critic = Network(rng, 2, "actor"), Network(rng, 1, "critic")
        self.optimizer = wf.train.Adam(LEARNING_RATE)

    def value(self, state: wf.Tensor) -> wf.Tensor:
        return self.critic(state)[:, 0]

    def play(self, key: wf.Tensor, envs: int, choose: Choose) -> tuple[wf.Tensor, dict[str, Any]]:
        """Episodes until the last pole has fallen, or for LIMIT steps: the value of what lies
        beyond, and what was recorded at each step, [LIMIT, envs]. Of an episode that has ended
        "alive" is 0; rows after the last step are zeros."""
        names = ("alive", "log_prob", "entropy", "value")
        records = {n: wf.tf1.TensorArray(wf.float32, LIMIT, element_shape=[envs]) for n in names}
        first, key = wf.random.split(key)
        state = wf.random.uniform(first, (envs, 4), minval=-0.05, maxval=0.05)

        def going(t: wf.Tensor, state: wf.Tensor, alive: wf.Tensor, records: Any) -> wf.Tensor:
            return (t < LIMIT) & wf.any(alive)

        def step(t: wf.Tensor, state: wf.Tensor, alive: wf.Tensor, records: Any) -> Any:
            logits = self.actor(state)
            action = choose(wf.random.fold_in(key, t), logits)
            log_probs = wf.nn.log_softmax(logits)
            found = {
                "alive": wf.astype(alive, wf.float32),
                "log_prob": wf.where(action == 1, log_probs[:, 1], log_probs[:, 0]),
                "entropy": -wf.sum(wf.exp(log_probs) * log_probs, axis=1),
                "value": self.value(state),
            }
            records = {n: records[n].write(t, found[n]) for n in names}
            state = wf.where(alive[:, None], move(state, action), state)
            return t + 1, state, alive & stands(state), records

        start = (0, state, wf.ones([envs], dtype=wf.bool), records)
        _, state, alive, records = wf.while_loop(going, step, start)
        beyond = wf.where(alive, self.value(state), 0.0)  # the limit has cut these, not a fall
        return wf.stop_gradient(beyond), {n: records[n].stack() for n in names}

    def learn(self, key: wf.Tensor, envs: int) -> tuple[wf.Tensor, wf.Tensor]:
        """One update from `envs` episodes: their mean return, and the steps of the longest."""
        beyond, played = self.play(key, envs, wf.random.categorical)
        alive = played["alive"]  # this is the reward, too: 1 for each step

        def earlier(after: wf.Tensor, reward: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            now = reward + DISCOUNT * after
            return now, now

        _, returns = wf.scan(earlier, beyond, alive, reverse=True)
        count = wf.sum(alive)

        def mean(x: wf.Tensor) -> wf.Tensor:
            return wf.sum(alive * x) / count

        error = returns - played["value"]
        advantage = wf.stop_gradient(error)
        advantage = advantage - mean(advantage)
        advantage = advantage / wf.sqrt(mean(advantage**2) + 1e-6)
        gain = played["log_prob"] * advantage + ENTROPY * played["entropy"]
        self.optimizer.minimize(mean(0.5 * error**2 - gain))
        return count / envs, wf.sum(wf.any(alive > 0, axis=1))


# ------------------------------------------------------------------------------------- the program
def greedy(key: wf.Tensor, logits: wf.Tensor) -> wf.Tensor:
    return wf.argmax(logits, axis=1)


def at_random(key: wf.Tensor, logits: wf.Tensor) -> wf.Tensor:
    return wf.random.randint(key, (logits.shape[0],), 0, 2)


@dataclass(frozen=True)
class Result:
    """returns: of each update, the mean of its episodes; held_out: of the greedy policy, in fresh
    episodes; random: of random actions in the same ones."""

    returns: list[float]
    held_out: float
    random: float
    report: str


def train(updates: int, envs: int, seed: int, progress: Progress, device: str = "cpu") -> Result:
    """Learn, then play fresh episodes."""
    model, key = ActorCritic(seed), wf.random.key(seed)
    train_key, test_key = wf.random.split(key)
    learn = wf.compile(device=device)(lambda key: model.learn(key, envs))

    @wf.compile(device=device, static_argnames="choose")
    def mean_return(key: wf.Tensor, choose: Choose) -> wf.Tensor:
        return wf.sum(model.play(key, HELD_OUT, choose)[1]["alive"]) / HELD_OUT

    task = progress.add_task("mean return", total=updates)
    returns, seconds, steps = [], [], []
    for number in range(updates):
        began = time.perf_counter()
        mean, longest = learn(wf.random.fold_in(train_key, number))
        returns.append(float(mean))
        seconds.append(time.perf_counter() - began)
        steps.append(int(longest))
        progress.update(task, advance=1, description=f"mean return {returns[-1]:5.1f}")
    rest = slice(1, None) if updates > 1 else slice(None)  # the first update is compiled
    report = (
        f"{learn.summary(train_key)}\n"
        f"first update {seconds[0]:.2f} s, then {np.median(seconds[rest]) * 1e6:.0f} us an update, "
        f"{sum(seconds[rest]) / sum(steps[rest]) * 1e6:.1f} us a step of {envs} environments"
    )
    held_out, random = (float(mean_return(test_key, way)) for way in (greedy, at_random))
    return Result(returns, held_out, random, report)


def main(argv: Sequence[str] | None = None) -> Result:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--envs", type=int, default=16, help="episodes of an update")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn()) as progress:
        result = train(progress=progress, **vars(options))
    print(result.report)
    print(
        f"mean return of {HELD_OUT} fresh episodes: greedy policy {result.held_out:.1f}, "
        f"random actions {result.random:.1f}"
    )
    return result


if __name__ == "__main__":
    main()
