"""What weft is measured against on a GPU: PyTorch, eager and compiled, and JAX.

A peer has the same arguments, computes in the same math mode, and gives results that are compared
with weft's before it is timed. `Absent` says that there is none to compare with here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from figure1 import LEARNING_RATE, Params, jax_step_ahead

from weft.runtime.device.backends.cuda import fill_bytes

Array = np.ndarray[Any, Any]
#: Seconds of some runs.
Times = list[float]
#: Of torch.compile. Inductor, its own default, needs Triton, and Triton a compiler of C.
BACKEND = "inductor"
#: Fills of memory before work of PyTorch is timed: at first, and at most. CUDA takes about 1,000
#: requests before it lets the host wait.
FIRST_FILLS, MOST_FILLS = 16, 512
#: "ieee": products of f32 are those of f32. "tf32": they may be those of TF32.
Mode = str


class Absent(Exception):
    """A peer is not installed here, or finds no GPU."""


@dataclass(frozen=True)
class Peer:
    """Another library, at one workload.

    make: given the arguments and the math mode, a call that leaves its work on the device, on
    state of its own; `Absent`. read: what such a call returned, as NumPy's. time: the call and a
    number of rounds to the seconds that each took on the device, without the host's time to ask
    for it; `Absent` where that cannot be had.
    """

    make: Callable[[tuple[Array, ...], Mode], Callable[[], Any]]
    read: Callable[[Any], list[Array]]
    time: Callable[[Callable[[], Any], int], Times]


# ----------------------------------------------------------------------------------------- PyTorch


def torch_here() -> Any:
    """PyTorch, if it finds the GPU."""
    torch = _module("torch")
    if not torch.cuda.is_available():
        raise Absent("torch finds no GPU")
    return torch


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"{name} is not installed") from error


def torch_mode(torch: Any, mode: Mode) -> None:
    """Products and convolutions of f32 in this mode; sums of 16-bit products in f32, as weft's."""
    torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    torch.backends.cudnn.allow_tf32 = mode == "tf32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def torch_tensor(torch: Any, x: Array) -> Any:
    """A copy on the GPU, of bfloat16 too, which NumPy does not know."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(x).cuda()


def read_torch(made: Any) -> list[Array]:
    """Tensors as arrays of NumPy, in f64."""
    tensors = made if isinstance(made, tuple | list) else [made]
    return [t.detach().double().cpu().numpy() for t in tensors]


def time_torch(run: Callable[[], Any], rounds: int) -> Times:
    """Seconds on the device of each call, by CUDA events.

    As `CudaDevice.timed`, the device fills memory until all of the call was asked for, or the
    host's time would be counted. Whether it did is seen: the first event is not reached then. A
    round in which it is, is done again with twice as many fills. `Absent` if there are too many.
    """
    import torch

    memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    scratch = torch.empty(fill_bytes(memory), dtype=torch.uint8, device="cuda")
    for _ in range(3):
        run()
    times: Times = []
    fills = FIRST_FILLS
    while len(times) < rounds:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for _ in range(fills):
            scratch.zero_()
        first.record()
        run()
        last.record()
        too_few = first.query()
        torch.cuda.synchronize()
        if not too_few:
            times.append(first.elapsed_time(last) / 1e3)
        elif fills < MOST_FILLS:
            fills *= 2
        else:
            raise Absent(f"the host asks for a call for longer than {fills} fills of memory last")
    return times


def torch_peer(
    function: Callable[..., Any], compiled: bool = False, gradient: bool = False
) -> Peer:
    """A function of torch and of tensors. compiled: by torch.compile. gradient: in place of its
    result that by the first tensor, where the last one is given for the result; the function is
    compiled without that, as `figure1.torch_step` does."""

    def make(args: tuple[Array, ...], mode: Mode) -> Callable[[], Any]:
        torch = torch_here()
        if compiled and BACKEND == "inductor":
            need_inductor()
        torch_mode(torch, mode)
        given = [torch_tensor(torch, a) for a in args]

        def call(*tensors: Any) -> Any:
            return function(torch, *tensors)

        run = call
        if compiled:
            run = torch.compile(call, dynamic=False, fullgraph=True, backend=BACKEND)
        if not gradient:
            return lambda: run(*given)
        *inner, out = given
        inner[0].requires_grad_()
        return lambda: torch.autograd.grad(run(*inner), inner[0], out)[0]

    return Peer(make, read_torch, time_torch)


def need_inductor() -> None:
    """`Absent` if torch.compile cannot make kernels for a GPU here."""
    if importlib.util.find_spec("triton") is None:
        raise Absent("triton, which torch.compile needs, is not installed")
    given = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([given] if given else ["gcc", "clang"])):
        raise Absent("triton needs a compiler of C when it runs: no $CC, gcc or clang was found")


def torch_both(function: Callable[..., Any], gradient: bool = False) -> dict[str, Peer]:
    """Eager and compiled."""
    return {
        "torch": torch_peer(function, gradient=gradient),
        "torch.compile": torch_peer(function, compiled=True, gradient=gradient),
    }


# --------------------------------------------------------------------- the paper's training step
# Each gives, from the start of training: a step that may return before the device is done, whose
# result `float` waits for. on_device: the batch is there already; else each step takes it there.


def torch_figure1(params: Params, x: Array, y: Array, on_device: bool) -> Callable[[], Any]:
    """PyTorch's step, eager."""
    torch = torch_here()
    torch_mode(torch, "ieee")
    p = {k: torch_tensor(torch, a).requires_grad_() for k, a in params.items()}
    optimizer = torch.optim.Adagrad(
        p.values(), LEARNING_RATE, initial_accumulator_value=0.1, eps=0.0
    )
    held = [torch_tensor(torch, a) for a in (x, y)]

    def step() -> Any:
        data, labels = held if on_device else [torch_tensor(torch, a) for a in (x, y)]
        optimizer.zero_grad(set_to_none=True)
        logits = torch.relu(data @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        loss = -(labels * torch.log_softmax(logits, -1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def jax_figure1(params: Params, x: Array, y: Array, on_device: bool) -> Callable[[], Any]:
    """JAX's step, parameters and accumulators donated."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of it
    jax = _module("jax")
    if jax.default_backend() != "gpu":
        raise Absent("jax finds no GPU")
    jax.config.update("jax_default_matmul_precision", "highest")
    step = jax_step_ahead(params)
    given = [jax.device_put(a) for a in (x, y)] if on_device else [x, y]
    return lambda: step(*given)


def time_steps(step: Callable[[], Any], rounds: int, inner: int) -> Times:
    """Seconds of a step by the clock of the host: `inner` are asked for, the last is waited for.
    The host's part is in it on all sides, as it is for users."""
    for _ in range(5):
        float(step())
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(inner - 1):
            step()
        float(step())
        times.append((time.perf_counter() - began) / inner)
    return times
