"""The same workload in NumPy, JAX and PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.bench.timing import Comparison, compare
from weft.frontend.bench.words import NumPy, Weft, jax_vocabulary, torch_vocabulary
from weft.frontend.bench.workloads import Workload
from weft.frontend.calls.decorator import compile
from weft.frontend.calls.function import CompiledFunction
from weft.frontend.tracing.autodiff import value_and_grad

Array = np.ndarray[Any, Any]
#: run() does the work once; flat() gives the results as a flat list of arrays.
Contestant = tuple[Callable[[], object], Callable[[], list[Any]]]
#: Peer -> the package that it needs.
PEERS = {"numpy": "numpy", "jax": "jax", "torch": "torch", "torch.compile": "torch"}
DEFAULT = ("numpy", "jax", "torch")


class NoContestantError(Exception):
    """Why a peer does not take part in a workload."""


def compiled(workload: Workload, threads: int | None = None) -> CompiledFunction[Any, Any]:
    """The workload as weft compiles it."""

    def forward(*arrays: Any) -> Any:
        return workload.function(Weft, *arrays)

    forward.__name__ = "".join(c if c.isalnum() else "_" for c in workload.name)
    step = value_and_grad(forward, argnums=workload.wrt) if workload.wrt else forward
    return compile(threads=threads)(step)


def weft_contestant(
    f: Callable[..., Any], arrays: Sequence[Array], wrt: tuple[int, ...]
) -> Contestant:
    """weft, of f(vocabulary, *arrays)."""
    step = compiled(Workload("", f.__name__, f, lambda quick: [], wrt))

    def flat() -> list[Any]:
        out = step(*arrays)
        return [out[0], *out[1]] if wrt else [out]

    return (lambda: step(*arrays)), flat


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
