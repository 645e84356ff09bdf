"""Built-in suites: small functions that weft, NumPy, JAX and PyTorch all compute, and the
comparison of the four by interleaved timing.

Each function takes arrays and a vocabulary, the few words that benchmark models are written in, in
the terms of one of the four. So every contestant computes the same thing.

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
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from weft.codegen.llvm.target import isa_line
from weft.frontend import nn
from weft.frontend.autodiff.gradients import value_and_grad
from weft.frontend.compile.decorator import compile
from weft.frontend.compile.function import CompiledFunction
from weft.frontend.ops import elementwise, indexing, manipulation, special
from weft.frontend.ops import linalg as ops_linalg
from weft.frontend.ops import reduction as ops_reduction
from weft.ir.dataclass import dataclass
from weft.runtime.native.machine import cpu_name
from weft.runtime.trace.replay import Timing

EPSILON = 1e-5  # of layer norm


class Weft:
    """Words of weft."""

    sum = staticmethod(ops_reduction.sum)
    max = staticmethod(ops_reduction.max)
    mean = staticmethod(ops_reduction.mean)
    matmul = staticmethod(ops_linalg.matmul)
    relu = staticmethod(nn.relu)
    reshape = staticmethod(manipulation.reshape)
    permute = staticmethod(manipulation.permute_dims)
    where = staticmethod(elementwise.where)
    abs = staticmethod(elementwise.abs)
    exp = staticmethod(special.exp)
    log = staticmethod(special.log)
    log1p = staticmethod(special.log1p)
    sqrt = staticmethod(special.sqrt)
    tanh = staticmethod(special.tanh)
    erf = staticmethod(special.erf)
    concat = staticmethod(manipulation.concat)

    @staticmethod
    def take(x: Any, rows: Any) -> Any:
        return indexing.take(x, rows, axis=0)

    @staticmethod
    def softmax(x: Any) -> Any:
        return nn.softmax(x)

    @staticmethod
    def gelu(x: Any) -> Any:
        return nn.gelu(x, approximate=True)

    @staticmethod
    def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
        return nn.layer_norm(x, scale=gamma, offset=beta, epsilon=EPSILON)

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        losses = nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return ops_reduction.mean(losses)

    @staticmethod
    def conv(x: Any, kernel: Any) -> Any:
        return nn.conv2d(x, kernel, padding="SAME")

    @staticmethod
    def max_pool(x: Any) -> Any:
        return nn.max_pool2d(x, 2, strides=2)


class NumPy:
    """Words of NumPy, as people write them."""

    sum = staticmethod(np.sum)
    max = staticmethod(np.max)
    mean = staticmethod(np.mean)
    matmul = staticmethod(np.matmul)
    reshape = staticmethod(np.reshape)
    permute = staticmethod(np.transpose)
    where = staticmethod(np.where)
    abs = staticmethod(np.abs)
    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    sqrt = staticmethod(np.sqrt)
    tanh = staticmethod(np.tanh)
    concat = staticmethod(np.concatenate)

    @staticmethod
    def erf(x: Any) -> Any:
        return importlib.import_module("scipy.special").erf(x)

    @staticmethod
    def relu(x: Any) -> Any:
        return np.maximum(x, 0)

    @staticmethod
    def take(x: Any, rows: Any) -> Any:
        return np.take(x, rows, axis=0)

    @staticmethod
    def softmax(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    @staticmethod
    def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + EPSILON) * gamma + beta

    @staticmethod
    def conv(x: Any, kernel: Any) -> Any:
        raise NotImplementedError("NumPy has no convolutions of images")

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        shifted = logits - logits.max(-1, keepdims=True)
        rows = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return -np.take_along_axis(rows, labels[..., None], axis=-1).mean()


def jax_vocabulary() -> Any:
    """Words of JAX. ImportError without it."""
    jax = importlib.import_module("jax")
    jnp = importlib.import_module("jax.numpy")

    class Jax:
        sum = staticmethod(jnp.sum)
        max = staticmethod(jnp.max)
        mean = staticmethod(jnp.mean)
        matmul = staticmethod(jnp.matmul)
        relu = staticmethod(jax.nn.relu)
        reshape = staticmethod(jnp.reshape)
        permute = staticmethod(jnp.transpose)
        where = staticmethod(jnp.where)
        softmax = staticmethod(jax.nn.softmax)
        gelu = staticmethod(jax.nn.gelu)
        abs = staticmethod(jnp.abs)
        exp = staticmethod(jnp.exp)
        log = staticmethod(jnp.log)
        log1p = staticmethod(jnp.log1p)
        sqrt = staticmethod(jnp.sqrt)
        tanh = staticmethod(jnp.tanh)
        erf = staticmethod(jax.scipy.special.erf)
        concat = staticmethod(jnp.concatenate)

        @staticmethod
        def take(x: Any, rows: Any) -> Any:
            return jnp.take(x, rows, axis=0)

        @staticmethod
        def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
            centred = x - x.mean(-1, keepdims=True)
            variance = (centred * centred).mean(-1, keepdims=True)
            return centred * jax.lax.rsqrt(variance + EPSILON) * gamma + beta

        @staticmethod
        def cross_entropy(logits: Any, labels: Any) -> Any:
            rows = jax.nn.log_softmax(logits)
            return -jnp.take_along_axis(rows, labels[..., None], axis=-1).mean()

        @staticmethod
        def conv(x: Any, kernel: Any) -> Any:
            layout = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)

        @staticmethod
        def max_pool(x: Any) -> Any:
            window = (1, 2, 2, 1)
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

    return Jax


def torch_vocabulary() -> Any:
    """Words of PyTorch. ImportError without it."""
    torch = importlib.import_module("torch")
    functional = importlib.import_module("torch.nn.functional")

    class Torch:
        sum = staticmethod(torch.sum)
        max = staticmethod(torch.amax)
        mean = staticmethod(torch.mean)
        matmul = staticmethod(torch.matmul)
        relu = staticmethod(torch.relu)
        reshape = staticmethod(torch.reshape)
        permute = staticmethod(torch.permute)
        abs = staticmethod(torch.abs)
        exp = staticmethod(torch.exp)
        log = staticmethod(torch.log)
        log1p = staticmethod(torch.log1p)
        sqrt = staticmethod(torch.sqrt)
        tanh = staticmethod(torch.tanh)
        erf = staticmethod(torch.erf)
        concat = staticmethod(torch.cat)

        @staticmethod
        def take(x: Any, rows: Any) -> Any:
            return torch.index_select(x, 0, rows)

        @staticmethod
        def where(condition: Any, x: Any, y: Any) -> Any:
            return torch.where(condition, x, torch.tensor(y, dtype=x.dtype))

        @staticmethod
        def softmax(x: Any) -> Any:
            return torch.softmax(x, -1)

        @staticmethod
        def gelu(x: Any) -> Any:
            return functional.gelu(x, approximate="tanh")

        @staticmethod
        def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
            return functional.layer_norm(x, gamma.shape, gamma, beta, eps=EPSILON)

        @staticmethod
        def cross_entropy(logits: Any, labels: Any) -> Any:
            flat = logits.reshape(-1, logits.shape[-1])
            return functional.cross_entropy(flat, labels.reshape(-1))

        @staticmethod
        def conv(x: Any, kernel: Any) -> Any:
            # channels last in memory, which is what oneDNN likes best
            out = functional.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), padding=1)
            return out.permute(0, 2, 3, 1)

        @staticmethod
        def max_pool(x: Any) -> Any:
            return functional.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)

    return Torch


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Workload:
    """A built-in workload: function(vocabulary, *arrays), on what `make(quick)` gives. wrt: with
    its value, the gradients with respect to these arguments (the function gives a scalar then)."""

    suite: str
    name: str
    function: Callable[..., Any]
    make: Callable[[bool], list[Array]]
    wrt: tuple[int, ...] = ()


# ---------------------------------------------------------------------------------------- chains


def gelu_chain(m: Any, x: Any, w: Any, b: Any) -> Any:
    """gelu(x * w + b), tanh form."""
    v = x * w + b
    return 0.5 * v * (1 + m.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v)))


def normal_pdf(m: Any, x: Any, w: Any, b: Any) -> Any:
    """Normal density at x, mean b, deviation |w| + 1."""
    s = m.abs(w) + 1
    z = (x - b) / s
    return m.exp(-0.5 * z * z) / (s * math.sqrt(2 * math.pi))


def mish(m: Any, x: Any, w: Any, b: Any) -> Any:
    """x tanh(softplus(x)) of x * w + b."""
    v = x * w + b
    return v * m.tanh(m.log1p(m.exp(v)))


def swish_gate(m: Any, x: Any, w: Any, b: Any) -> Any:
    """swish(x) * w + b, swish(x) = x / (1 + exp(-x))."""
    return x / (1 + m.exp(-x)) * w + b


def black_scholes(m: Any, spot: Any, strike: Any, years: Any) -> Any:
    """European call option: rate 2 %, volatility 30 %; the arguments' exponentials are used."""
    spot, strike, years = m.exp(0.1 * spot), m.exp(0.1 * strike), m.exp(0.1 * years)
    deviation = 0.3 * m.sqrt(years)
    d1 = (m.log(spot / strike) + (0.02 + 0.5 * 0.3**2) * years) / deviation
    discounted = strike * m.exp(-0.02 * years)
    return spot * _normal_cdf(m, d1) - discounted * _normal_cdf(m, d1 - deviation)


def _normal_cdf(m: Any, x: Any) -> Any:
    return 0.5 * (1 + m.erf(x * math.sqrt(0.5)))


CHAINS = (gelu_chain, normal_pdf, mish, swish_gate, black_scholes)

# ------------------------------------------------------------------------------------------- rows


def softmax(m: Any, x: Any) -> Any:
    """Row softmax."""
    return m.softmax(x)


def layer_norm(m: Any, x: Any, gamma: Any, beta: Any, seen: Any) -> Any:
    """sum(layer_norm(x) * seen): its gradients are layer norm's backward pass."""
    return m.sum(m.layer_norm(x, gamma, beta) * seen)


def cross_entropy(m: Any, logits: Any, labels: Any) -> Any:
    """Mean softmax cross entropy with integer labels."""
    return m.cross_entropy(logits, labels)


# ----------------------------------------------------------------------- matmul, reductions, copies


def matmul(m: Any, a: Any, b: Any) -> Any:
    """A product."""
    return m.matmul(a, b)


def dense(m: Any, x: Any, w: Any, b: Any) -> Any:
    """relu(x w + b)."""
    return m.relu(m.matmul(x, w) + b)


def sum_all(m: Any, x: Any) -> Any:
    """The sum of everything."""
    return m.sum(x)


def sum_squares(m: Any, x: Any, y: Any) -> Any:
    """The squared distance."""
    d = x - y
    return m.sum(d * d)


def row_max(m: Any, x: Any) -> Any:
    """The maximum of each row."""
    return m.max(x, axis=1)


def column_sum(m: Any, x: Any) -> Any:
    """The sum of each column."""
    return m.sum(x, axis=0)


def add_transposed(m: Any, x: Any, y: Any) -> Any:
    """A transposed array plus another one, so that nobody returns a view."""
    return m.permute(x, (1, 0)) + y


def scale(m: Any, x: Any) -> Any:
    """2 x: STREAM's scale."""
    return x * 2.0


def join(m: Any, x: Any, y: Any) -> Any:
    """Two arrays below one another."""
    return m.concat([x, y])


def gather_rows(m: Any, x: Any, rows: Any) -> Any:
    """Rows by number: an embedding."""
    return m.take(x, rows)


def conv3x3(m: Any, x: Any, kernel: Any) -> Any:
    """A 3 x 3 convolution, NHWC, same padding."""
    return m.conv(x, kernel)


# ------------------------------------------------------------------------------------------ table


def _normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _vectors(count: int, exponent: int) -> Callable[[bool], list[Array]]:
    def make(quick: bool) -> list[Array]:
        size = 1 << (12 if quick else exponent)
        return list(_normal(count, size))

    return make


def _matrices(*shapes: tuple[int, ...]) -> Callable[[bool], list[Array]]:
    """quick: every extent an eighth."""

    def make(quick: bool) -> list[Array]:
        return [_normal(*(max(3, d // 8) if quick and d > 8 else d for d in s)) for s in shapes]

    return make


def _with_labels(rows: int, classes: int, count: int) -> Callable[[bool], list[Array]]:
    """An array, and `count` numbers that fit either of its axes."""

    def make(quick: bool) -> list[Array]:
        r, c, n = (d // 8 if quick else d for d in (rows, classes, count))
        return [_normal(r, c), np.random.default_rng(0).integers(0, min(r, c), n)]

    return make


def _image(quick: bool) -> list[Array]:
    side = 8 if quick else 32
    return [_normal(32, side, side, 32), _normal(3, 3, 32, 64)]


_WIDE = (4096, 1024)
WORKLOADS: tuple[Workload, ...] = (
    *(
        Workload("chains", f"{f.__name__} 2^{e}", f, _vectors(3, e))
        for e in (20, 24)
        for f in CHAINS
    ),
    Workload("rows", "softmax", softmax, _matrices(_WIDE)),
    Workload(
        "rows", "layer norm, value and gradients", layer_norm,
        _matrices(_WIDE, (1024,), (1024,), _WIDE), (0, 1, 2),
    ),
    Workload(
        "rows", "cross entropy, value and gradient", cross_entropy,
        _with_labels(4096, 1024, 4096), (0,),
    ),
    Workload("matmul", "512 x 512 x 512", matmul, _matrices((512, 512), (512, 512))),
    Workload("matmul", "1024 x 784 x 100", matmul, _matrices((1024, 784), (784, 100))),
    Workload(
        "matmul", "relu(x w + b) 1024 x 512 x 512", dense,
        _matrices((1024, 512), (512, 512), (512,)),
    ),
    Workload("reductions", "sum 2^22", sum_all, _vectors(1, 22)),
    Workload("reductions", "squared distance 2^22", sum_squares, _vectors(2, 22)),
    Workload("reductions", "row maximum 4096 x 1024", row_max, _matrices(_WIDE)),
    Workload("reductions", "column sum 4096 x 1024", column_sum, _matrices(_WIDE)),
    Workload("copies", "scale 2^24", scale, _vectors(1, 24)),
    Workload(
        "copies", "x.T + y 2048 x 2048", add_transposed, _matrices((2048, 2048), (2048, 2048))
    ),
    Workload("copies", "concat 2 x 2048 x 1024", join, _matrices((2048, 1024), (2048, 1024))),
    Workload("copies", "gather 8192 rows of 1024", gather_rows, _with_labels(4096, 1024, 8192)),
    Workload("conv", "3 x 3, 32 to 64 channels, 32 x 32 x 32", conv3x3, _image),
)  # fmt: skip


def suites() -> list[str]:
    """The suites' names."""
    return list(dict.fromkeys(w.suite for w in WORKLOADS))


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
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time `inner` calls of each contestant in turn, `rounds` times, after a warm-up.

    A contestant must finish its work before it returns (block until ready). Those `elsewhere` run
    in another process: given `inner`, they return the seconds of one call. Each turn begins with
    a pause, of so many seconds, and with calls that are not timed. clock: what is read before and
    after the calls here; `time.process_time` counts no time in which other jobs had the processor.
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
            started = clock()
            for _ in range(inner):
                run()
            seconds[name].append((clock() - started) / inner)
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
    versions = {"weft": str(importlib.import_module("weft").__version__)}
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
