"""A small language model: a causal transformer that predicts the next character of a text.

    characters -> embedding + position -> blocks of attention and a two-layer network -> logits

The decoder of Vaswani et al., "Attention is all you need" (2017), with layer norms before attention
and network, and gelu, as in GPT-2 (Radford et al., 2019). The text is the language reference in
`pydoc_data.topics`, which comes with Python; its last tenth is held out. Training is Adam with a
warm-up, a cosine schedule, and gradients clipped by their global norm.

    python examples/transformer.py [--steps 1200] [--checkpoint DIR] [--until STEP] [--batch 16]
        [--context 64] [--width 64] [--layers 2] [--heads 4] [--seed 0]

Printed are the held-out loss in bits per character and a text that the model makes up. With
`--checkpoint` the training is saved to a folder every 100 steps and at the end, and goes on from
there the next time. `--until` ends a run early: `--until 500 --checkpoint DIR`, then
`--checkpoint DIR`, is the same training, bit by bit, as one run.
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft as wf

Ids = NDArray[np.int32]
Parameters = dict[str, Any]  # of variables; "blocks" is a list of such dicts
RATE, WARM_UP, CLIP, DROPOUT = 8e-3, 50, 1.0, 0.1
TESTS, SAMPLE = 20, 300  # batches of held-out text; characters to make up


# ------------------------------------------------------------------------------------ the text
@dataclass(frozen=True)
class Text:
    """characters: those that occur, in order; learn, held_out: both parts, as places in them."""

    characters: list[str]
    learn: Ids
    held_out: Ids

    @staticmethod
    def of(text: str) -> Text:
        characters = sorted(set(text))
        number = {character: i for i, character in enumerate(characters)}
        ids = np.array([number[character] for character in text], np.int32)
        cut = len(ids) * 9 // 10
        return Text(characters, ids[:cut], ids[cut:])

    def read(self, ids: Ids) -> str:
        return "".join(self.characters[i] for i in ids)


def windows(ids: Ids, count: int, length: int, seed: tuple[int, int]) -> Ids:
    """Pieces of the text from random places, a row each; the same ones for the same seed."""
    starts = np.random.default_rng(seed).integers(0, len(ids) - length + 1, count)
    rows: Ids = ids[starts[:, None] + np.arange(length)]
    return rows


# ----------------------------------------------------------------------------------- the model
def parameters(characters: int, context: int, width: int, layers: int, seed: int) -> Parameters:
    """Weights are normal numbers, the scales of layer norms 1."""
    rng = wf.random.Generator(seed)

    def weights(*shape: int) -> wf.Variable:
        return wf.Variable(rng.normal(shape, stddev=0.08))

    def scale() -> wf.Variable:
        return wf.Variable(wf.ones([width]))

    def block() -> Parameters:
        return {
            "attention_scale": scale(),
            "qkv": weights(width, 3 * width),
            "out": weights(width, width),
            "network_scale": scale(),
            "up": weights(width, 4 * width),
            "down": weights(4 * width, width),
        }

    return {
        "embedding": weights(characters, width),
        "position": weights(context, width),
        "blocks": [block() for _ in range(layers)],
        "scale": scale(),
    }


def attention(p: Parameters, x: wf.Tensor, heads: int) -> wf.Tensor:
    """Each character looks back: x is (batch, time, width), as is the result."""
    batch, length, _ = x.shape
    qkv = wf.reshape(wf.matmul(x, p["qkv"]), (batch, length, 3, heads, -1))
    # Each of the three: (batch, head, time, depth).
    query, key, value = wf.unstack(wf.permute_dims(qkv, (2, 0, 3, 1, 4)))
    seen = wf.nn.scaled_dot_product_attention(query, key, value, is_causal=True)
    return wf.matmul(wf.reshape(wf.permute_dims(seen, (0, 2, 1, 3)), x.shape), p["out"])


def network(p: Parameters, x: wf.Tensor) -> wf.Tensor:
    return wf.matmul(wf.nn.gelu(wf.matmul(x, p["up"])), p["down"])


def logits(p: Parameters, ids: wf.Tensor, heads: int, key: wf.Tensor | None = None) -> wf.Tensor:
    """What may follow each of `ids`, (batch, time). With a key there is dropout: in training."""
    keys = iter([] if key is None else wf.random.split(key, 1 + 2 * len(p["blocks"])))

    def dropout(x: wf.Tensor) -> wf.Tensor:
        return x if key is None else wf.nn.dropout(x, rate=DROPOUT, key=next(keys))

    x = dropout(wf.nn.embedding_lookup(p["embedding"], ids) + p["position"])
    for block in p["blocks"]:
        x = x + dropout(attention(block, wf.nn.layer_norm(x, block["attention_scale"]), heads))
        x = x + dropout(network(block, wf.nn.layer_norm(x, block["network_scale"])))
    return wf.matmul(wf.nn.layer_norm(x, p["scale"]), p["embedding"].mT)  # one table at both ends


def loss_of(p: Parameters, ids: wf.Tensor, heads: int, key: wf.Tensor | None = None) -> wf.Tensor:
    """The mean of -log(probability) of each row's characters but the first, in nats."""
    losses = wf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=ids[:, 1:], logits=logits(p, ids[:, :-1], heads, key)
    )
    return wf.mean(losses)


# ------------------------------------------------------------------------------------ training
class Training:
    """step: one step as a compiled function; count: of steps done; state: what is saved."""

    def __init__(self, p: Parameters, heads: int, steps: int, seed: int) -> None:
        count = wf.Variable(0, name="count")

        def rate() -> wf.Tensor:
            return wf.train.linear_warmup(wf.train.cosine_decay(RATE, count, steps), count, WARM_UP)

        optimizer = wf.train.Adam(rate)

        @wf.compile
        def step(ids: wf.Tensor) -> wf.Tensor:
            key = wf.random.fold_in(wf.random.key(seed), count)  # each step drops out others
            loss = loss_of(p, ids, heads, key)
            gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
            clipped, _ = wf.train.clip_by_global_norm(gradients, CLIP)
            optimizer.apply_gradients(list(zip(clipped, variables, strict=True)), global_step=count)
            return loss

        self.step, self.count = step, count
        self.state = {"model": p, "count": count, "optimizer": optimizer}


@dataclass(frozen=True)
class Result:
    """first: the steps that were done before; losses: of this run's steps, in bits per character;
    held_out: the same at the end, on held-out text; sample: what the model made up."""

    first: int
    losses: list[float]
    held_out: float
    sample: str


def train(training: Training, ids: Ids, options: argparse.Namespace) -> tuple[int, list[float]]:
    """Train from the last checkpoint on, if there is one. The steps before, this run's losses."""
    saver = wf.train.Saver(training.state, every_n_steps=100)
    folder: Path | None = options.checkpoint
    if folder is not None:
        saver.restore_or_initialize(None, folder)
    first, last = int(training.count.numpy()), min(options.until or options.steps, options.steps)
    losses, seconds = [], []
    for number in wf.data.progress(range(first, last), "training"):
        batch = windows(ids, options.batch, options.context + 1, (options.seed, number))
        began = time.perf_counter()
        losses.append(float(training.step(batch)) / math.log(2))
        seconds.append(time.perf_counter() - began)
        if folder is not None:
            saver.save_if_due(None, folder / "model", training.count)
    if losses:
        if folder is not None:
            saver.save(None, folder / "model", training.count)
        usual = np.median(seconds[1:] or seconds) * 1e6
        print(f"steps {first + 1} to {last}: first {seconds[0]:.2f} s, then {usual:.0f} us a step")
        print(training.step.summary(batch))
    return first, losses


# ------------------------------------------------------------------------------------- the program
def sample(p: Parameters, heads: int, start: Ids, seed: int, temperature: float = 0.8) -> Ids:
    """Characters that go on from `start`, drawn one after the other, in one native call."""

    @wf.compile
    def draw(window: wf.Tensor, key: wf.Tensor) -> wf.Tensor:
        def following(window: wf.Tensor, i: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            last = logits(p, window[None], heads)[0, -1]
            new = wf.random.categorical(wf.random.fold_in(key, i), last / temperature)
            new = wf.astype(new, wf.int32)
            return wf.concat([window[1:], new[None]]), new

        drawn: wf.Tensor = wf.scan(following, window, wf.arange(SAMPLE))[1]
        return drawn

    return np.asarray(draw(start, wf.random.key(seed)))


def run(options: argparse.Namespace) -> Result:
    text = Text.of("\n".join(map(str, pydoc_data.topics.topics.values())))
    context, heads, seed = options.context, options.heads, options.seed
    p = parameters(len(text.characters), context, options.width, options.layers, seed)
    first, losses = train(Training(p, heads, options.steps, seed), text.learn, options)
    loss = wf.compile(lambda ids: loss_of(p, ids, heads))
    tests = [windows(text.held_out, options.batch, context + 1, (seed, i)) for i in range(TESTS)]
    held_out = float(np.mean([loss(ids) for ids in tests])) / math.log(2)
    made_up = sample(p, heads, text.held_out[:context], seed)
    return Result(first, losses, held_out, text.read(made_up))


def main(argv: list[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in (("steps", 1200), ("batch", 16), ("context", 64), ("width", 64),
                        ("layers", 2), ("heads", 4), ("seed", 0)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--checkpoint", type=Path, help="a folder to save to and to go on from")
    parser.add_argument("--until", type=int, help="end this run after so many of the steps")
    result = run(parser.parse_args(argv))
    if result.losses:
        print(f"training loss: {np.mean(result.losses[-100:]):.3f} bits per character (dropout)")
    print(f"held-out loss: {result.held_out:.3f} bits per character\n\n{result.sample}")
    return result


if __name__ == "__main__":
    main()
