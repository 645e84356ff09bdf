"""What `gpu.py` measures: functions of weft, and the same of its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from figure1 import LEARNING_RATE, batch_of, start, weft_function
from gpu_peers import Peer, read_torch, time_torch, torch_both, torch_figure1, torch_peer
from scipy.special import erf

import weft as wf

Array = np.ndarray[Any, Any]
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
#: How far results may be apart that differ by rounding alone, as a share of the largest one: a
#: wrong element, or another math mode than that asked for in f32, is more.
ROUNDING = {("f32", "ieee"): 2e-5, ("f32", "tf32"): 2e-3, ("f16", "ieee"): 4e-3,
            ("bf16", "ieee"): 3e-2}  # fmt: skip
#: Of convolutions: those of cuDNN may be Winograd's, whose numbers in between are larger.
CONV_ROUNDING = ROUNDING | {("f32", "ieee"): 1e-4}


@dataclass(frozen=True)
class Case:
    """A function of weft, its arguments, and peers by name. numpy: the same by NumPy, which is
    compared with where no peer is. each: a share of each element, and an absolute number, by which
    it may be off, beside `rounding`. steps: how many results of calls in a row are compared, as
    training changes its state. mode: the math mode of all of them."""

    name: str
    function: Callable[..., Any]
    args: tuple[Array, ...]
    numpy: Callable[..., Array]
    peers: dict[str, Peer] = field(default_factory=dict)
    nbytes: int = 0
    flops: int = 0
    mode: str = "ieee"
    rounding: float = ROUNDING["f32", "ieee"]
    each: tuple[float, float] | None = None
    steps: int = 1
    note: str = ""


def _random(*shape: int, dtype: str = "f32", seed: int = 0) -> Array:
    found = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return found.astype(DTYPES[dtype])


def elementwise(n: int) -> Case:
    """gelu(x * w + b), elements of its own each."""

    def weft(x: Any, w: Any, b: Any) -> Any:
        return wf.nn.gelu(x * w + b)

    def other(torch: Any, x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.gelu(x * w + b)

    def numpy(x: Array, w: Array, b: Array) -> Array:
        y = x.astype(np.float64) * w + b
        return np.asarray(0.5 * y * (1 + erf(y / np.sqrt(2))))

    args = (_random(n), _random(n, seed=1), _random(n, seed=2))
    return Case(
        f"gelu(x * w + b), {n:,} f32", weft, args, numpy, torch_both(other), nbytes=16 * n,
        each=(2e-5, 2e-6),  # 1 + erf is rounded, and x * w where b is about as large
    )  # fmt: skip


def rows(name: str, shape: tuple[int, int], backward: bool) -> Case:
    """Row softmax or layer norm, with its gradient for a given one."""

    def weft_norm(x: Any) -> Any:
        if name == "softmax":
            return wf.nn.softmax(x)
        mean = wf.mean(x, axis=-1, keepdims=True)
        off = x - mean
        return off / wf.sqrt(wf.mean(off * off, axis=-1, keepdims=True) + 1e-5)

    def weft(x: Any, *g: Any) -> Any:
        return wf.grad(lambda x: wf.sum(weft_norm(x) * g[0]))(x) if g else weft_norm(x)

    def other(torch: Any, x: Any) -> Any:
        if name == "softmax":
            return torch.nn.functional.softmax(x, -1)
        return torch.nn.functional.layer_norm(x, x.shape[-1:])

    size = 4 * shape[0] * shape[1]
    title = f"{name}{' forward and backward' if backward else ''}, {shape[0]} x {shape[1]} f32"
    args = (_random(*shape), _random(*shape, seed=1))[: 2 if backward else 1]
    # elements of softmax are about 1 / columns; gradients are differences
    least = 4e-5 / shape[1] if name == "softmax" else 4e-6
    return Case(
        title, weft, args, softmax if name == "softmax" else layer_norm,
        torch_both(other, gradient=backward), nbytes=(3 if backward else 2) * size,
        each=(1e-5, least if backward or name != "softmax" else 0.0),
    )  # fmt: skip


def softmax(x: Array, *g: Array) -> Array:
    """Of rows, in f64; with `g` its gradient for that of the result."""
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    return y * (g[0] - (g[0] * y).sum(-1, keepdims=True)) if g else y


def layer_norm(x: Array, *g: Array) -> Array:
    """As `softmax`, without scale and bias."""
    off = x - x.mean(-1, keepdims=True, dtype=np.float64)
    deviation = np.sqrt((off * off).mean(-1, keepdims=True) + 1e-5)
    y = off / deviation
    if not g:
        return np.asarray(y)
    means = [v.mean(-1, keepdims=True) for v in (g[0].astype(np.float64), g[0] * y)]
    return np.asarray((g[0] - means[0] - y * means[1]) / deviation)


#: What both sides of a product or a convolution do with its operands.
MATH = {
    ("f32", "ieee"): "f32 without TF32 on both sides",
    ("f32", "tf32"): "TF32 allowed on both sides",
    ("f16", "ieee"): "f16 added up in f32",
    ("bf16", "ieee"): "bf16 added up in f32",
}


def product(n: int, dtype: str, mode: str) -> Case:
    """A square product."""
    note = MATH[dtype, mode]
    if (dtype, mode) == ("f32", "ieee"):
        note += " (by cuBLAS: COMPUTE_32F_PEDANTIC for weft, COMPUTE_32F for torch)"
    args = (_random(n, n, dtype=dtype), _random(n, n, dtype=dtype, seed=1))
    return Case(
        f"matmul {n} x {n} x {n}, {dtype} {mode}", wf.matmul, args, numpy_product,
        {"torch": torch_peer(lambda torch, a, b: a @ b)}, flops=2 * n**3, mode=mode,
        rounding=ROUNDING[dtype, mode], note=note,
    )  # fmt: skip


def numpy_product(a: Array, b: Array) -> Array:
    """In f32: in f64 it would take minutes."""
    return a.astype(np.float32) @ b.astype(np.float32)


def numpy_convolution(x: Array, w: Array) -> Array:
    """In f32, the sum of a product for each of the taps."""
    height, width = x.shape[1:3]
    padded = np.pad(x.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    made = np.zeros((*x.shape[:3], w.shape[3]), np.float32)
    for i, j in np.ndindex(3, 3):
        made += padded[:, i : i + height, j : j + width] @ w[i, j].astype(np.float32)
    return made


def convolution(batch: int, size: int, channels: int, dtype: str, mode: str) -> Case:
    """3 x 3 taps, as many channels out as in, batch x height x width x channels on both sides."""

    def weft(x: Any, w: Any) -> Any:
        return wf.nn.conv2d(x, w, padding="SAME")

    def make(args: tuple[Array, ...], mode: str) -> Callable[[], Any]:
        def channels_last(torch: Any, x: Any, w: Any) -> Any:
            made = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w, padding=1)
            return made.permute(0, 2, 3, 1)

        # the filter as PyTorch has it, in the order of memory that goes with x
        x, w = args
        w = np.ascontiguousarray(np.transpose(w, (3, 0, 1, 2)))
        return torch_peer(lambda torch, x, w: channels_last(torch, x, w.permute(0, 3, 1, 2))).make(
            (x, w), mode
        )

    x = _random(batch, size, size, channels, dtype=dtype)
    w = _random(3, 3, channels, channels, dtype=dtype, seed=1)
    return Case(
        f"conv2d 3 x 3, {batch} x {size} x {size} x {channels}, {dtype} {mode}", weft, (x, w),
        numpy_convolution, {"torch (cuDNN)": Peer(make, read_torch, time_torch)},
        flops=2 * 9 * batch * size**2 * channels**2, mode=mode,
        rounding=CONV_ROUNDING[dtype, mode], note=MATH[dtype, mode],
    )  # fmt: skip


def weft_figure1() -> Callable[[Any, Any], Any]:
    """The paper's training step, on new variables."""
    return weft_function(start(np.random.default_rng(1)))


def numpy_figure1() -> Callable[[Array, Array], Array]:
    """The same in f64, from the start of training."""
    p = {k: v.astype(np.float64) for k, v in start(np.random.default_rng(1)).items()}
    sums = {k: np.full_like(v, 0.1) for k, v in p.items()}

    def step(x: Array, y: Array) -> Array:
        hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
        logits = hidden @ p["w2"] + p["b2"]
        logits -= logits.max(-1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        off = (np.exp(logs) - y) / len(x)
        before = (off @ p["w2"].T) * (hidden > 0)
        gradients = {
            "w1": x.T @ before,
            "b1": before.sum(0),
            "w2": hidden.T @ off,
            "b2": off.sum(0),
        }
        for k, g in gradients.items():
            sums[k] += g * g
            p[k] -= LEARNING_RATE * g / np.sqrt(sums[k])
        return np.asarray(-(y * logs).sum(-1).mean())

    return step


def figure1(batch: int) -> Case:
    """The paper's step, its launches alone: parameters and batch are on the device. PyTorch's, too,
    wait for no host here, which they do wherever they are called: `gpu.figure1_calls`."""
    x, y = batch_of(np.random.default_rng(1), batch)

    def make(args: tuple[Array, ...], mode: str) -> Callable[[], Any]:
        data, labels = args
        return torch_figure1(start(np.random.default_rng(1)), data, labels, True)

    return Case(
        f"Figure 1 step, batch {batch}", weft_figure1(), (x, y), numpy_figure1(),
        {"torch": Peer(make, read_torch, time_torch)}, steps=5,
        note="all launches asked for before the first begins, on both sides: the host's part is in "
        "'Figure 1 calls' alone",
    )  # fmt: skip


def weft_steps(x: Array, y: Array, on_device: bool) -> Callable[[], Any]:
    """As those of `gpu_peers`."""
    step = wf.compile(device="gpu:0")(weft_figure1())
    given = wf.to_device((x, y), "gpu:0") if on_device else (x, y)
    return lambda: step(*given)


def chain(x: Any) -> Any:
    """50 launches: no library has them, and none is joined to the next."""
    for _ in range(50):
        x = wf.cumulative_max(x)
    return x
