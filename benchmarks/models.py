"""The models whose training steps are compared: loss functions of a vocabulary, and their data.

Each takes (vocabulary, parameters by name, x, labels) and returns the loss; parameters are f32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Params = dict[str, Array]

WIDTH, HEADS, TIME, BATCH, LAYERS, VOCABULARY = 128, 4, 64, 8, 2, 64  # of the GPT-style model


@dataclass(frozen=True)
class Model:
    """A loss function, its first parameters and one batch."""

    name: str
    loss: Callable[..., Any]
    params: Params
    x: Array
    labels: Array


def _mlp_loss(m: Any, p: Any, x: Any, labels: Any) -> Any:
    hidden = m.relu(m.matmul(x, p["w1"]) + p["b1"])
    hidden = m.relu(m.matmul(hidden, p["w2"]) + p["b2"])
    return m.cross_entropy(m.matmul(hidden, p["w3"]) + p["b3"], labels)


def _attention(m: Any, p: Any, k: int, x: Any, mask: Any) -> Any:
    size = WIDTH // HEADS

    def heads(name: str) -> Any:
        split = m.reshape(m.matmul(x, p[f"{name}{k}"]), (BATCH, TIME, HEADS, size))
        return m.permute(split, (0, 2, 1, 3))

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = m.matmul(query, m.permute(key, (0, 1, 3, 2))) / np.float32(size**0.5)
    weights = m.softmax(m.where(mask, scores, float("-inf")))
    mixed = m.permute(m.matmul(weights, value), (0, 2, 1, 3))
    return m.matmul(m.reshape(mixed, (BATCH, TIME, WIDTH)), p[f"out{k}"])


def _gpt_loss(mask: Any) -> Callable[..., Any]:
    def loss(m: Any, p: Any, x: Any, labels: Any) -> Any:
        for k in range(LAYERS):
            x = x + _attention(m, p, k, m.layer_norm(x, p[f"g1{k}"], p[f"o1{k}"]), mask)
            normal = m.layer_norm(x, p[f"g2{k}"], p[f"o2{k}"])
            hidden = m.gelu(m.matmul(normal, p[f"up{k}"]) + p[f"upb{k}"])
            x = x + m.matmul(hidden, p[f"down{k}"]) + p[f"downb{k}"]
        return m.cross_entropy(m.matmul(m.layer_norm(x, p["g"], p["o"]), p["head"]), labels)

    return loss


def _conv_loss(m: Any, p: Any, x: Any, labels: Any) -> Any:
    hidden = m.max_pool(m.relu(m.conv(x, p["k1"]) + p["c1"]))
    hidden = m.max_pool(m.relu(m.conv(hidden, p["k2"]) + p["c2"]))
    hidden = m.max_pool(m.relu(m.conv(hidden, p["k3"]) + p["c3"]))
    flat = m.reshape(hidden, (x.shape[0], 4 * 4 * 64))
    return m.cross_entropy(m.matmul(flat, p["w"]) + p["b"], labels)


def _weight(rng: np.random.Generator, *shape: int) -> Array:
    fan_in = int(np.prod(shape[:-1]))
    return (rng.standard_normal(shape) / fan_in**0.5).astype(np.float32)


def mlp(batch: int = 256) -> Model:
    """Three layers, 512 wide, ten classes."""
    rng = np.random.default_rng(0)
    params = {
        "w1": _weight(rng, 512, 512),
        "w2": _weight(rng, 512, 512),
        "w3": _weight(rng, 512, 10),
        "b1": np.zeros(512, np.float32),
        "b2": np.zeros(512, np.float32),
        "b3": np.zeros(10, np.float32),
    }
    x = rng.standard_normal((batch, 512), dtype=np.float32)
    return Model(f"MLP 3 x 512, batch {batch}", _mlp_loss, params, x, rng.integers(0, 10, batch))


def gpt(as_mask: Callable[[Array], Any]) -> Model:
    """Two pre-norm transformer layers; `as_mask` makes the framework's array of the causal mask."""
    rng = np.random.default_rng(0)
    params: Params = {}
    for k in range(LAYERS):
        for name in ("query", "key", "value", "out"):
            params[f"{name}{k}"] = _weight(rng, WIDTH, WIDTH)
        params[f"up{k}"] = _weight(rng, WIDTH, 4 * WIDTH)
        params[f"upb{k}"] = np.zeros(4 * WIDTH, np.float32)
        params[f"down{k}"] = _weight(rng, 4 * WIDTH, WIDTH)
        params[f"downb{k}"] = np.zeros(WIDTH, np.float32)
        for name in ("1", "2"):
            params[f"g{name}{k}"] = np.ones(WIDTH, np.float32)
            params[f"o{name}{k}"] = np.zeros(WIDTH, np.float32)
    params["g"], params["o"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    params["head"] = _weight(rng, WIDTH, VOCABULARY)
    x = rng.standard_normal((BATCH, TIME, WIDTH), dtype=np.float32)
    labels = rng.integers(0, VOCABULARY, (BATCH, TIME))
    mask = as_mask(np.tril(np.ones((TIME, TIME), np.bool_)))
    name = f"GPT block, {LAYERS} layers, d={WIDTH}, T={TIME}, batch {BATCH}"
    return Model(name, _gpt_loss(mask), params, x, labels)


def conv_net(batch: int = 32) -> Model:
    """Three 3x3 convolutions (32, 64, 64 channels), each with ReLU and 2x2 max pooling, NHWC."""
    rng = np.random.default_rng(0)
    params = {
        "k1": _weight(rng, 3, 3, 3, 32),
        "k2": _weight(rng, 3, 3, 32, 64),
        "k3": _weight(rng, 3, 3, 64, 64),
        "c1": np.zeros(32, np.float32),
        "c2": np.zeros(64, np.float32),
        "c3": np.zeros(64, np.float32),
        "w": _weight(rng, 4 * 4 * 64, 10),
        "b": np.zeros(10, np.float32),
    }
    x = rng.standard_normal((batch, 32, 32, 3), dtype=np.float32)
    return Model(f"conv net, batch {batch}", _conv_loss, params, x, rng.integers(0, 10, batch))


LSTM_TIME, LSTM_BATCH, LSTM_WIDTH = 50, 16, 128


def lstm_inputs(batch: int = LSTM_BATCH) -> tuple[tuple[Array, ...], Array]:
    """The weights of the input and of the state, the bias; and x."""
    rng = np.random.default_rng(0)
    shapes = (LSTM_WIDTH, 4 * LSTM_WIDTH), (LSTM_WIDTH, 4 * LSTM_WIDTH), (4 * LSTM_WIDTH,)
    params = tuple((0.08 * rng.standard_normal(s)).astype(np.float32) for s in shapes)
    return params, rng.standard_normal((LSTM_TIME, batch, LSTM_WIDTH)).astype(np.float32)


def lstm_loss(m: Any, sigmoid: Any, scan: Any, params: Any, x: Any) -> Any:
    """Mean square of all hidden states; gates in PyTorch's order i, f, g, o."""
    w, u, b = params

    def step(carry: Any, row: Any) -> Any:
        h, c = carry
        z = row @ w + h @ u + b
        i, f, g, o = (z[:, k * LSTM_WIDTH : (k + 1) * LSTM_WIDTH] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * m.tanh(g)
        h = sigmoid(o) * m.tanh(c)
        return (h, c), h

    zero = m.zeros((x.shape[1], LSTM_WIDTH), dtype=m.float32)
    _, hs = scan(step, (zero, zero), x)
    return m.mean(hs * hs)


def torch_lstm_step(params: tuple[Array, ...], x: Array) -> Callable[[], Any]:
    """The loss by torch.nn.LSTM, with the gradients of its weights and of x."""
    import torch  # the peers that measure something else do without

    module = torch.nn.LSTM(LSTM_WIDTH, LSTM_WIDTH)
    with torch.no_grad():
        module.weight_ih_l0.copy_(torch.from_numpy(params[0].T.copy()))
        module.weight_hh_l0.copy_(torch.from_numpy(params[1].T.copy()))
        module.bias_ih_l0.copy_(torch.from_numpy(params[2]))
        module.bias_hh_l0.zero_()
    given = torch.from_numpy(x).requires_grad_()

    def step() -> Any:
        module.zero_grad(set_to_none=True)
        given.grad = None
        loss = (module(given)[0] ** 2).mean()
        loss.backward()
        return loss.detach()

    return step
