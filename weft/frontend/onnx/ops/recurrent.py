"""RNN, LSTM and GRU over sequences: products with the inputs at once, the rest in a `wf.scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.nn.recurrent import chosen_rows
from weft.frontend.onnx.sizes import known_size
from weft.frontend.onnx.table import op
from weft.ir.errors import UnsupportedError

Activation = Callable[[Tensor], Tensor]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    a, b = alpha, beta

    def first(default: float) -> float:
        return default if a is None else a

    def second(default: float) -> float:
        return default if b is None else b

    made: dict[str, Activation] = {
        "relu": wf.nn.relu,
        "tanh": wf.tanh,
        "sigmoid": wf.sigmoid,
        "softsign": wf.nn.softsign,
        "softplus": wf.nn.softplus,
        "elu": lambda x: wf.nn.elu(x, first(1.0)),
        "affine": lambda x: first(1.0) * x + second(0.0),
        "leakyrelu": lambda x: wf.nn.leaky_relu(x, first(0.01)),
        "thresholdedrelu": lambda x: wf.where(x >= first(1.0), x, 0),
        "scaledtanh": lambda x: first(1.0) * wf.tanh(second(1.0) * x),
        "hardsigmoid": lambda x: wf.clip(first(0.2) * x + second(0.5), 0, 1),
    }
    if name.lower() not in made:
        raise UnsupportedError(f"the activation '{name}'")
    return made[name.lower()]


_ALPHA = {"leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu", "affine"}
_BETA = {"scaledtanh", "hardsigmoid", "affine"}


def _activations(
    names: Any, alphas: Any, betas: Any, defaults: list[str], directions: int
) -> list[list[Activation]]:
    """For each direction its functions; alphas and betas are for those that have some, in turn."""
    chosen = list(names or defaults * directions)
    first, second = iter(alphas or []), iter(betas or [])
    made = [
        _activation(
            n,
            next(first, None) if n.lower() in _ALPHA else None,
            next(second, None) if n.lower() in _BETA else None,
        )
        for n in chosen
    ]
    each = len(defaults)
    return [made[i * each : (i + 1) * each] for i in range(directions)]


Step = Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]]


def _sequence(
    step: Step, x: Tensor, state: tuple[Tensor, ...], lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs [time, batch, hidden] and the last state. x: [time, batch, ...]."""
    turned = x
    if reverse and lengths is None:
        turned = wf.flip(x, axis=0)
    elif reverse:
        turned = wf.nn.reverse_sequence(x, lengths, 0, 1)

    def body(carry: Any, row: Tensor) -> Any:
        if lengths is None:
            after = step(carry, row)
            return after, after[0]
        held, left = carry
        after, going = step(held, row), left > 0
        kept = tuple(chosen_rows(going, new, old) for new, old in zip(after, held, strict=True))
        return (kept, left - 1), chosen_rows(going, after[0], 0)

    start: Any = state if lengths is None else (state, lengths)
    last, outputs = wf.scan(body, start, turned)
    if reverse:
        outputs = (
            wf.flip(outputs, axis=0)
            if lengths is None
            else wf.nn.reverse_sequence(outputs, lengths, 0, 1)
        )
    return outputs, last if lengths is None else last[0]


def _run(
    gates: int, X: Tensor, W: Tensor, R: Tensor, B: Tensor | None, lengths: Tensor | None,
    initial: list[Tensor | None], direction: str, layout: int, make: Callable[..., Step],
    split_bias: bool = False,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Y and the last states, as ONNX lays them out. make: a step of direction number i."""
    x = wf.swapaxes(X, 0, 1) if layout else X
    count, hidden = known_size(W, 0), known_size(R, -1)
    batch, dtype = x.shape[1], x.dtype
    outputs, states = [], []
    for i in range(count):
        product = wf.matmul(x, wf.transpose(W[i]))
        bias = None if B is None else B[i]
        if bias is not None:
            own, other = bias[: gates * hidden], bias[gates * hidden :]
            product = product + (own if split_bias else own + other)
        begin = tuple(
            wf.zeros((batch, hidden), dtype=dtype) if s is None else (s[:, i] if layout else s[i])
            for s in initial
        )
        reverse = direction == "reverse" or i == 1
        rest = None if bias is None else bias[gates * hidden :]
        made, last = _sequence(make(i, wf.transpose(R[i]), rest), product, begin, lengths, reverse)
        outputs.append(made)
        states.append(last)
    y = wf.stack(outputs, axis=1)  # [time, directions, batch, hidden]
    if layout:
        y = wf.permute_dims(y, (2, 0, 1, 3))
    lasts = [wf.stack([s[k] for s in states], axis=1 if layout else 0) for k in range(len(initial))]
    return y, lasts


def _clipped(x: Tensor, limit: float | None) -> Tensor:
    return x if not limit else wf.clip(x, -limit, limit)


@op("RNN", since=7)
def _rnn(
    X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, *, activation_alpha: Any = None, activation_beta: Any = None,
    activations: Any = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int = 0, layout: int = 0,
) -> Any:  # fmt: skip
    chosen = _activations(
        activations, activation_alpha, activation_beta, ["Tanh"], known_size(W, 0)
    )

    def make(i: int, r: Tensor, rest: Tensor | None) -> Step:
        (f,) = chosen[i]
        return lambda state, row: (f(_clipped(row + wf.matmul(state[0], r), clip)),)

    y, (last,) = _run(1, X, W, R, B, sequence_lens, [initial_h], direction, layout, make)
    return y, last


@op("LSTM", since=7)
def _lstm(
    X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, initial_c: Tensor | None = None, P: Tensor | None = None, *,
    activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int = 0,
    input_forget: int = 0, layout: int = 0,
) -> Any:  # fmt: skip
    defaults = ["Sigmoid", "Tanh", "Tanh"]
    chosen = _activations(
        activations, activation_alpha, activation_beta, defaults, known_size(W, 0)
    )
    n = known_size(R, -1)

    def make(i: int, r: Tensor, rest: Tensor | None) -> Step:
        f, g, h = chosen[i]
        peep = None if P is None else [P[i, k * n : (k + 1) * n] for k in range(3)]

        def step(state: tuple[Tensor, ...], row: Tensor) -> tuple[Tensor, ...]:
            before, cell = state
            z = row + wf.matmul(before, r)
            gate_i, gate_o, gate_f, new = (z[:, k * n : (k + 1) * n] for k in range(4))
            if peep is not None:
                gate_i, gate_f = gate_i + peep[0] * cell, gate_f + peep[2] * cell
            into = f(_clipped(gate_i, clip))
            kept = 1 - into if input_forget else f(_clipped(gate_f, clip))
            cell = kept * cell + into * g(_clipped(new, clip))
            if peep is not None:
                gate_o = gate_o + peep[1] * cell
            return f(_clipped(gate_o, clip)) * h(cell), cell

        return step

    y, (last, cell) = _run(
        4, X, W, R, B, sequence_lens, [initial_h, initial_c], direction, layout, make
    )
    return y, last, cell


@op("GRU", since=7)
def _gru(
    X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, *, activation_alpha: Any = None, activation_beta: Any = None,
    activations: Any = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int = 0, layout: int = 0, linear_before_reset: int = 0,
) -> Any:  # fmt: skip
    defaults = ["Sigmoid", "Tanh"]
    chosen = _activations(
        activations, activation_alpha, activation_beta, defaults, known_size(W, 0)
    )
    n = known_size(R, -1)

    def make(i: int, r: Tensor, rest: Tensor | None) -> Step:
        f, g = chosen[i]
        update, reset, hidden = (r[:, k * n : (k + 1) * n] for k in range(3))
        bias = [0, 0, 0] if rest is None else [rest[k * n : (k + 1) * n] for k in range(3)]

        def step(state: tuple[Tensor, ...], row: Tensor) -> tuple[Tensor, ...]:
            (h,) = state
            z = f(_clipped(row[:, :n] + wf.matmul(h, update) + bias[0], clip))
            t = f(_clipped(row[:, n : 2 * n] + wf.matmul(h, reset) + bias[1], clip))
            if linear_before_reset:
                new = t * (wf.matmul(h, hidden) + bias[2])
            else:
                new = wf.matmul(t * h, hidden) + bias[2]
            made = g(_clipped(row[:, 2 * n :] + new, clip))
            return ((1 - z) * made + z * h,)

        return step

    y, (last,) = _run(
        3, X, W, R, B, sequence_lens, [initial_h], direction, layout, make, split_bias=True
    )
    return y, last
