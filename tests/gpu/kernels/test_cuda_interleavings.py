"""Kernels thread by thread in random orders: the same bits as all threads together; and no barrier
of theirs can be left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from compiled_checks import same
from cuda_graphs import Runner, lanes, run, threads
from cuda_random_graphs import pipeline
from shares import every

import weft as wf
from weft.codegen.cuda.emulator import EmulationError
from weft.codegen.cuda.source.kernel import Launch

Array = np.ndarray[Any, Any]


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def layer_norm(x: wf.Tensor, g: wf.Tensor, b: wf.Tensor) -> list[wf.Tensor]:
    """Layer norm and its gradients: row totals, columns and whole sums."""
    loss = wf.sum(wf.square(wf.nn.layer_norm(x, scale=g, offset=b)))
    return [loss, *wf.gradients(loss, [x, g, b])]


INDEX = np.array([3, 0, 3, 7, 3, 1, 4, 0, 2, 2] * 9, np.int32)


def few_updates(x: wf.Tensor, updates: wf.Tensor) -> wf.Tensor:
    """Fewer than there are rows: each looks for earlier ones of the same row."""
    return wf.scatter_nd_add(x, INDEX[:, None] * 11, updates)


def row_totals(x: wf.Tensor, scale: wf.Tensor) -> list[wf.Tensor]:
    """One fold of each row, and sums over several rows by one block."""
    normal = x * scale * wf.rsqrt(wf.sum(x * x, axis=1, keepdims=True))
    return [normal, wf.sum(normal, axis=0)]


def embedding(x: wf.Tensor) -> wf.Tensor:
    """The gradient of rows that are picked: rows are added up."""
    return wf.gradients(wf.sum(wf.exp(wf.take(x, INDEX, axis=0))), [x])[0]


def convolution(x: wf.Tensor, w: wf.Tensor) -> list[wf.Tensor]:
    """A convolution and a maximum over windows, and the gradients of both."""
    y = wf.nn.max_pool2d(
        wf.nn.conv2d(x, w, strides=1, padding="SAME"), 2, strides=2, padding="SAME"
    )
    return [y, *wf.gradients(wf.sum(y * y), [x, w])]


PROGRAMS: dict[str, tuple[Callable[..., Any], Sequence[Array]]] = {
    "softmax": (lambda x: wf.nn.softmax(x, axis=-1), [floats(3, 300)]),
    "long softmax": (lambda x: wf.nn.softmax(x, axis=-1), [floats(2, 1100)]),
    "short softmax": (lambda x: wf.nn.softmax(x, axis=-1), [floats(33, 10)]),
    "layer norm": (layer_norm, [floats(5, 70), floats(70), floats(70)]),
    "sum": (lambda x: wf.sum(x * x), [floats(50, 70)]),
    "column sums": (lambda x: wf.sum(x * x, axis=0), [floats(300, 40)]),
    "row maxima": (lambda x: (wf.max(x, axis=1), wf.argmax(x, axis=1)), [floats(4, 333)]),
    "transposed": (lambda x, y: wf.exp(x.T) + y, [floats(70, 33), floats(33, 70)]),
    "product": (lambda x, y: x @ y, [floats(20, 40), floats(40, 35)]),
    "transposed product": (lambda x, y: x.T @ y.T, [floats(40, 18), floats(35, 40)]),
    "product of halves": (
        lambda x, y: wf.exp(x @ y),
        [floats(20, 40).astype(np.float16), floats(40, 35).astype(np.float16)],
    ),
    "product and what follows": (
        lambda x, y, b: wf.tanh(x @ y + b) * 2,
        [floats(20, 40), floats(40, 36), floats(36)],
    ),
    "product and sums of columns": (
        lambda x, y: wf.sum(wf.exp(x @ y), axis=0),
        [floats(34, 40), floats(40, 20)],
    ),
    "few rows": (lambda x, y: wf.exp(x @ y), [floats(2, 70), floats(70, 9)]),
    "few columns": (lambda x, y: wf.exp(x @ y), [floats(9, 70), floats(70, 2)]),
    "parts of k": (lambda x, y: wf.exp(x @ y), [floats(17, 256), floats(256, 18)]),
    "cumulative sums": (lambda x: wf.cumulative_sum(x, axis=1), [floats(2, 700)]),
    "cumulative maxima": (lambda x: wf.cumulative_max(x, axis=0), [floats(300, 3)]),
    "sort": (lambda x: wf.sort(x, axis=1), [floats(2, 300)]),
    "argsort": (lambda x: wf.argsort(x, axis=0), [floats(40, 3)]),
    "convolution": (convolution, [floats(2, 6, 5, 3), floats(3, 3, 3, 4)]),
    "convolution in tiles": (convolution, [floats(1, 6, 6, 9), floats(2, 2, 9, 9)]),
    "segment sums": (lambda u: wf.segment_sum(u, INDEX, 8), [floats(90, 5)]),
    "embedding": (embedding, [floats(8, 5)]),
    "softmax of columns": (lambda x: wf.nn.softmax(x, axis=0), [floats(12, 40)]),
    "sums over rows": (row_totals, [floats(20, 300), floats(300)]),
    "few updates": (few_updates, [floats(99, 3), floats(90, 3)]),
    "scatter_nd": (
        lambda x, u: wf.scatter_nd_max(x, INDEX[:, None], u),
        [floats(9, 3), floats(90, 3)],
    ),
    "random": (lambda x: wf.random.normal(wf.random.key(3), (300,)) * x, [floats(300)]),
}


def check(name: str, runner: Runner) -> list[Array]:
    program, inputs = PROGRAMS[name]
    return run(pipeline(wf.compile(program).trace(*inputs)), inputs, runner)


@pytest.mark.slow
@pytest.mark.parametrize("name", every(3, PROGRAMS))
def test_random_orders_give_the_same_bits(name: str) -> None:
    for x, y in zip(check(name, threads(1)), check(name, lanes), strict=True):
        assert same(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_more_orders(name: str) -> None:
    wanted = check(name, lanes)
    for seed in range(2, 5):
        for x, y in zip(check(name, threads(seed)), wanted, strict=True):
            assert same(x, y)


def _without(launch: Launch, line: int) -> Launch:
    lines = launch.kernel.source.split("\n")
    indent = len(lines[line]) - len(lines[line].lstrip())
    lines[line] = " " * indent + "pass"
    kernel = dataclasses.replace(launch.kernel, source="\n".join(lines))
    return dataclasses.replace(launch, kernel=kernel)


@pytest.mark.slow
@pytest.mark.parametrize("name", every(3, PROGRAMS))
def test_every_barrier_is_needed(name: str) -> None:
    """Without any one of them there is a race, which is found, or a read of what nobody wrote."""

    def runner(launch: Launch, args: Sequence[Any]) -> None:
        before = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        for i, line in enumerate(launch.kernel.source.split("\n")):
            if line.strip().startswith(("cuda.syncthreads()", "cuda.syncwarp(")):
                with pytest.raises(EmulationError, match=r"a race|before anything is written"):
                    lanes(_without(launch, i), args)
            for array, old in zip(args, before, strict=True):
                if isinstance(array, np.ndarray):
                    array[...] = old
        lanes(launch, args)

    check(name, runner)
