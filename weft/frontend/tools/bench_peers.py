"""Comparison of the same workload in weft, NumPy, JAX and PyTorch, by interleaved timing.

Every contestant runs in every round, so that a noisy machine disturbs all alike. A figure is a
ratio against a peer measured in the same run, from minima and from medians; the absolute times are
there to show the scale.

Some libraries' threads look for work for milliseconds after a call (GNU OpenMP's, which PyTorch
uses, for about 10 ms) and would take a processor from whoever is next. So each turn begins with a
pause, and then with calls that are not timed: threads that have slept may share one processor for
the first milliseconds (JAX's did, 2.7 ms for a step of 1.9). What is timed is the steady state."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from weft.codegen.llvm.target import isa_line
from weft.frontend.autodiff.gradients import value_and_grad
from weft.frontend.compile.decorator import compile
from weft.frontend.compile.function import CompiledFunction
from weft.frontend.tools.bench_workloads import (
    NumPy,
    Weft,
    Workload,
    jax_vocabulary,
    torch_vocabulary,
)
from weft.ir.dataclass import dataclass
from weft.runtime.native.machine import cpu_name
from weft.runtime.trace.replay import Timing

#: Before each turn, longer than OpenMP's idle threads spin; where OpenBLAS has several threads, in
#: another process say, they spin for longer (up to 100 ms).
PAUSE_SECONDS, LONG_PAUSE_SECONDS = 0.02, 0.15
#: Untimed calls at the beginning of each turn: at least one, and for so long.
WARM_SECONDS = 0.03


@dataclass(frozen=True)
class Comparison:
    """One workload: the timing of each contestant by name ("weft" among them)."""

    workload: str
    timings: dict[str, Timing]

    def ratio(self, peer: str) -> tuple[float, float]:
        """How many times faster weft is than `peer`, by minima and by medians."""
        mine, other = self.timings["weft"], self.timings[peer]
        return other.minimum / mine.minimum, other.median / mine.median


def compare(
    workload: str,
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 200,
    inner: int = 1,
    elsewhere: Mapping[str, Callable[[int], float]] | None = None,
    pause: float = PAUSE_SECONDS,
) -> Comparison:
    """Time `inner` calls of each contestant in turn, `rounds` times, after a warm-up.

    A contestant must finish its work before it returns (block until ready). Those `elsewhere` run
    in another process: given `inner`, they return the seconds of one call. Each turn begins with
    a pause, of so many seconds, and with calls that are not timed.
    """
    elsewhere = elsewhere or {}
    for run in contestants.values():
        for _ in range(max(3, rounds // 20)):
            run()
    for time_there in elsewhere.values():
        time_there(max(3, rounds // 20))
    seconds: dict[str, list[float]] = {name: [] for name in (*contestants, *elsewhere)}
    for _ in range(rounds):
        for name, run in contestants.items():
            _settle(run, pause)
            started = time.perf_counter()
            for _ in range(inner):
                run()
            seconds[name].append((time.perf_counter() - started) / inner)
        for name, time_there in elsewhere.items():
            _settle(partial(time_there, 1), pause)
            seconds[name].append(time_there(inner))
            time.sleep(LONG_PAUSE_SECONDS)
    return Comparison(workload, {n: Timing.of(s) for n, s in seconds.items()})


def _settle(run: Callable[[], object], pause: float) -> None:
    time.sleep(pause)
    until = time.perf_counter() + WARM_SECONDS
    run()
    while time.perf_counter() < until:
        run()


def machine() -> dict[str, object]:
    """What a reader must know of the machine and the peers' versions."""
    versions = {}
    for package in ("numpy", "numba", "llvmlite", "scipy", "jax", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "isa": isa_line(),
        "python": platform.python_version(),
        "versions": versions,
    }


Array = np.ndarray[Any, Any]
#: run() does the work once; flat() gives the results as a flat list of arrays.
Contestant = tuple[Callable[[], object], Callable[[], list[Any]]]
#: Peer -> the package that it needs.
PEERS = {"numpy": "numpy", "jax": "jax", "torch": "torch", "torch.compile": "torch"}
DEFAULT = ("numpy", "jax", "torch")


class NoContestantError(Exception):
    """The reason why a peer does not take part in a workload."""


def compiled(workload: Workload, threads: int | None = None) -> CompiledFunction[Any, Any]:
    """The workload as weft compiles it."""

    def forward(*arrays: Any) -> Any:
        return workload.function(Weft, *arrays)

    forward.__name__ = "".join(c if c.isalnum() else "_" for c in workload.name)
    step = value_and_grad(forward, argnums=workload.wrt) if workload.wrt else forward
    return compile(threads=threads)(step)


def numpy_contestant(
    f: Callable[..., Any], arrays: Sequence[Array], wrt: tuple[int, ...]
) -> Contestant:
    """NumPy, which has no gradients. NoContestantError."""
    if wrt:
        raise NoContestantError("NumPy has no gradients")
    return (lambda: f(NumPy, *arrays)), (lambda: [f(NumPy, *arrays)])


def jax_contestant(
    f: Callable[..., Any], arrays: Sequence[Array], wrt: tuple[int, ...]
) -> Contestant:
    """jax.jit. ImportError without JAX."""
    jax = importlib.import_module("jax")
    vocabulary = jax_vocabulary()

    def forward(*a: Any) -> Any:
        return f(vocabulary, *a)

    step = jax.jit(jax.value_and_grad(forward, argnums=wrt) if wrt else forward)
    given = [jax.numpy.asarray(a) for a in arrays]

    def flat() -> list[Any]:
        out = step(*given)
        return [out[0], *out[1]] if wrt else [out]

    return (lambda: jax.block_until_ready(step(*given))), flat


def torch_contestant(
    f: Callable[..., Any],
    arrays: Sequence[Array],
    wrt: tuple[int, ...],
    *,
    compiled: bool = True,
) -> Contestant:
    """torch.compile, or eager PyTorch. ImportError without it."""
    torch = importlib.import_module("torch")
    vocabulary = torch_vocabulary()
    given = [torch.from_numpy(a.copy()) for a in arrays]

    def forward(*a: Any) -> Any:
        return f(vocabulary, *a)

    step = torch.compile(forward) if compiled else forward
    if not wrt:
        return (lambda: step(*given)), (lambda: [step(*given)])
    for i in wrt:
        given[i].requires_grad_()

    def run() -> list[Any]:
        value = step(*given)
        return [value.detach(), *torch.autograd.grad(value, [given[i] for i in wrt])]

    return run, run


_MAKERS: dict[str, Callable[..., Contestant]] = {
    "numpy": numpy_contestant,
    "jax": jax_contestant,
    "torch": lambda f, a, w: torch_contestant(f, a, w, compiled=False),
    "torch.compile": torch_contestant,
}


def missing(peers: Sequence[str]) -> list[str]:
    """Those of the peers whose package is not installed."""
    return [p for p in peers if importlib.util.find_spec(PEERS[p]) is None]


def contest(
    workload: Workload,
    step: CompiledFunction[Any, Any],
    arrays: Sequence[Array],
    peers: Sequence[str],
    rounds: int,
) -> tuple[Comparison, list[str]]:
    """Time whole calls of weft and of the peers; and why some are not among them.

    A peer takes part only if its results agree with weft's.
    """
    results = step(*arrays)
    mine = [results[0], *results[1]] if workload.wrt else [results]
    runs: dict[str, Callable[[], object]] = {"weft": lambda: step(*arrays)}
    footnotes = []
    for peer in peers:
        try:
            run, flat = _MAKERS[peer](workload.function, arrays, workload.wrt)
            _check(mine, flat())
        except NoContestantError as reason:
            footnotes.append(f"{workload.name}: no {peer}: {reason}")
        except Exception as error:
            # whatever goes wrong in a peer (no C++ compiler, say) is told, and weft goes on
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            footnotes.append(f"{workload.name}: no {peer}: {type(error).__name__}: {first:.200}")
        else:
            runs[peer] = run
    return compare(workload.name, runs, rounds=rounds), footnotes


def _check(mine: Sequence[Any], theirs: Sequence[Any]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        found = b.detach() if hasattr(b, "detach") else b
        x, y = np.asarray(a), np.asarray(found)
        if x.shape != y.shape or not np.allclose(
            x, y, rtol=1e-3, atol=1e-3 * float(np.abs(y).max())
        ):
            raise NoContestantError("its results differ from weft's")
