"""Images, pooling in three axes and grouped convolutions, against JAX and PyTorch: compiled
functions on tensors, two threads.

PyTorch has its channels first, and once more its channels last ("torch last"), which is weft's and
JAX's order. A peer that is not installed is left out.

python benchmarks/image.py [--json benchmarks/image.json] [--rounds 15] [--only PART]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf

try:
    import jax
except ModuleNotFoundError:
    jax = None
try:
    import torch
except ModuleNotFoundError:
    torch = None

Run = Callable[[], Any]
THREADS = 2


def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def with_jax(f: Callable[..., Any], *arrays: Any) -> dict[str, Run]:
    """The compiled function of JAX, which waits for its result."""
    if jax is None:
        return {}
    run, held = jax.jit(f), [jax.numpy.asarray(a) for a in arrays]
    return {"jax": lambda: run(*held).block_until_ready()}


def with_torch(f: Callable[..., Any], x: Any, *arrays: Any) -> dict[str, Run]:
    """PyTorch's eager call; x has its channels last."""
    if torch is None:
        return {}
    torch.set_num_threads(THREADS)
    first = torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)))
    order = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    held = [torch.from_numpy(a) for a in arrays]
    last = first.to(memory_format=order)
    return {"torch": lambda: f(first, *held), "torch last": lambda: f(last, *held)}


def mine(f: Callable[..., Any], *arrays: Any) -> dict[str, Run]:
    run, held = wf.compile(f, threads=THREADS), [wf.asarray(a) for a in arrays]
    return {"weft": lambda: run(*held)}


def resizes() -> dict[str, dict[str, Run]]:
    """32 images of 224 x 224 in RGB, to a larger and a smaller size."""
    x = numbers(32, 224, 224, 3)
    made = {}
    for size in (256, 128):
        for name, method, antialias in (
            ("bilinear", "bilinear", False), ("bilinear, antialias", "bilinear", True),
            ("bicubic", "bicubic", False), ("nearest", "nearest", False),
        ):  # fmt: skip
            shape = (32, size, size, 3)
            theirs = {"bilinear": "linear", "bicubic": "cubic"}.get(method, method)
            f = partial(wf.image.resize, size=(size, size), method=method, antialias=antialias)
            more = {} if method == "nearest" else {"align_corners": False}
            if antialias:
                more["antialias"] = True
            mode = {"nearest": "nearest-exact"}.get(method, method)  # "nearest" has TF1's centres
            g = partial(_interpolated, size=size, mode=mode, more=more)
            h = partial(_resized, shape=shape, method=theirs, antialias=antialias)
            made[f"resize to {size}, {name}"] = {
                **mine(f, x), **with_jax(h, x), **with_torch(g, x),
            }  # fmt: skip
    slope = wf.grad(lambda x: wf.sum(wf.image.resize(x, (256, 256)) ** 2))
    theirs_ = lambda x: (_resized(x, (32, 256, 256, 3), "linear", False) ** 2).sum()  # noqa: E731
    made["gradient of resize to 256, bilinear"] = {
        **mine(slope, x),
        **with_jax(jax.grad(theirs_) if jax else theirs_, x),
    }
    return made


def _interpolated(x: Any, size: int, mode: str, more: dict[str, Any]) -> Any:
    return torch.nn.functional.interpolate(x, (size, size), mode=mode, **more)


def _resized(x: Any, shape: tuple[int, ...], method: str, antialias: bool) -> Any:
    return jax.image.resize(x, shape, method, antialias=antialias)


def pools() -> dict[str, dict[str, Run]]:
    """8 volumes of 16 x 56 x 56 in 64 channels, windows of 2 and of 3."""
    x = numbers(8, 16, 56, 56, 64)
    made = {}
    for size, stride in ((2, 2), (3, 2)):
        for kind in ("max", "avg"):
            f = partial(getattr(wf.nn, f"{kind}_pool3d"), ksize=size, strides=stride)
            g = partial(_torch_pool, kind=kind, size=size, stride=stride)
            h = partial(_jax_pool, kind=kind, size=size, stride=stride)
            made[f"{kind}_pool3d of {size}, strides {stride}"] = {
                **mine(f, x), **with_jax(h, x), **with_torch(g, x),
            }  # fmt: skip
    return made


def _torch_pool(x: Any, kind: str, size: int, stride: int) -> Any:
    return getattr(torch.nn.functional, f"{kind}_pool3d")(x, size, stride)


def _jax_pool(x: Any, kind: str, size: int, stride: int) -> Any:
    window, steps = (1, size, size, size, 1), (1, stride, stride, stride, 1)
    if kind == "max":
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, steps, "VALID")
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, steps, "VALID") / size**3


def convolutions() -> dict[str, dict[str, Run]]:
    """Grouped ones of 3 x 3 over 16 images of 56 x 56, as in ResNeXt; one in three axes."""
    made = {}
    for groups, channels in ((2, 128), (32, 128), (128, 128)):
        x, w = numbers(16, 56, 56, channels), numbers(3, 3, channels // groups, channels)
        made[f"conv2d 3x3, {channels} channels, {groups} groups"] = _conv(x, w, groups)
    x, w = numbers(4, 8, 28, 28, 64), numbers(3, 3, 3, 16, 64)
    made["conv3d 3x3x3, 64 channels, 4 groups"] = _conv(x, w, 4)
    return made


def _conv(x: Any, w: Any, groups: int) -> dict[str, Run]:
    axes = x.ndim - 2
    names = ("NHWC", "HWIO", "NHWC") if axes == 2 else ("NDHWC", "DHWIO", "NDHWC")

    def theirs(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (1,) * axes, "SAME", dimension_numbers=names, feature_group_count=groups
        )

    def torchs(x: Any, w: Any) -> Any:
        f = getattr(torch.nn.functional, f"conv{axes}d")
        return f(x, w, padding=1, groups=groups)

    turned = np.ascontiguousarray(np.moveaxis(w, (-1, -2), (0, 1)))  # out, in, window
    f = partial(wf.nn.conv, padding="SAME", groups=groups)
    return {**mine(f, x, w), **with_jax(theirs, x, w), **with_torch(torchs, x, turned)}


def others() -> dict[str, dict[str, Run]]:
    """What PyTorch or JAX has no like of in one call, to show the scale."""
    x = numbers(32, 224, 224, 3)
    boxes, scores = numbers(8, 1000, 4), numbers(8, 1000)
    keep = partial(wf.image.non_max_suppression, max_output_size=100)
    return {
        "adjust_hue, 32 x 224 x 224": mine(partial(wf.image.adjust_hue, delta=0.1), x),
        "ssim, 32 x 224 x 224": mine(lambda x: wf.image.ssim(x, x[::-1], 1.0), x),
        "non_max_suppression, 8 x 1000 boxes to 100": mine(lambda b, s: keep(b, s), boxes, scores),
    }


def contest(name: str, runs: dict[str, Run], rounds: int) -> Comparison:
    """All contestants of a workload, after they agree."""
    wanted = None
    for who, run in runs.items():
        made = run()
        made = made[0] if isinstance(made, tuple) else made
        got = np.asarray(made.numpy() if hasattr(made, "numpy") else made)
        got = np.moveaxis(got, 1, -1) if who.startswith("torch") else got
        wanted = got if wanted is None else wanted
        if "bicubic" in name and who.startswith("torch"):
            continue  # its kernel is another one
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3, err_msg=f"{name}: {who}")
    return compare(name, runs, rounds=rounds, inner=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    groups = (resizes, pools, convolutions, others)
    rows = [
        contest(name, runs, options.rounds)
        for group in groups
        for name, runs in group().items()
        if options.only in name
    ]
    report("Images, two threads", rows, options.json)


if __name__ == "__main__":
    main()
