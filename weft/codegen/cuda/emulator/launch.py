"""Emulated launch: runs a kernel without a GPU, by whole arrays of threads or thread by thread."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.codegen.cuda.emulator.lanes import Lanes, LaneText
from weft.codegen.cuda.emulator.memory import Elements, Shadow
from weft.codegen.cuda.emulator.threads import Block, ThreadText, Words
from weft.codegen.cuda.source.kernel import CudaKernel, Parameter
from weft.codegen.cuda.source.language import NUMPY, THREAD_LIMIT
from weft.codegen.cuda.source.typecheck import EmulationError, Program, read

#: Threads that are carried out together: few enough for their values to stay in a cache.
TOGETHER = 1 << 15

Array = npt.NDArray[Any]
#: Elements of a parameter, its shadow, and where they lie in it.
Shadowed = tuple[Shadow, int, int]


@lru_cache(maxsize=512)
def _in_lanes(kernel: CudaKernel) -> tuple[Program, Callable[..., Any]]:
    program = read(kernel)
    return program, LaneText(program).compiled()


def run(
    kernel: CudaKernel,
    blocks: int,
    threads: int,
    args: Sequence[Array | int],
    seed: int | None = None,
    check: bool = True,
) -> None:
    """Carries out `kernel` on a grid of `blocks` blocks of `threads` threads.

    `args`: for each parameter an integer, or an array whose bytes, which lie in a row, are the
    memory that the parameter points to; it is written in place. Without `seed` all threads go
    together, statement by statement; with `seed` each alone, from one meeting with others to the
    next, in a random order. `check`: races, reads of what nothing was written to and undefined
    casts are looked for as well; indices, alignment and divergence always are.

    Raises EmulationError with the line of the source, the block and the thread.
    """
    memory = [bind(kernel, p, a) for p, a in zip(kernel.parameters, args, strict=True)]
    limit = min(kernel.threads, THREAD_LIMIT)
    if not 1 <= threads <= limit:
        raise EmulationError(f"{threads} threads of a block; at most {limit}", kernel.name, 0)
    if not 1 <= blocks < 1 << 31:
        raise EmulationError(f"{blocks} blocks", kernel.name, 0)
    with np.errstate(all="ignore"):
        if seed is None:
            run_lanes(kernel, blocks, threads, memory, check)
        else:
            run_threads(kernel, blocks, threads, memory, random.Random(seed))


def bind(kernel: CudaKernel, parameter: Parameter, arg: Array | int) -> Array | np.int64:
    """The argument as the kernel takes it."""
    name = parameter.name
    if parameter.kind == "integer":
        if isinstance(arg, np.ndarray):
            raise EmulationError(f"an array for the integer {name}", kernel.name, 0)
        return np.int64(arg)
    if not isinstance(arg, np.ndarray) or not arg.flags.c_contiguous:
        what = f"{name} takes an array whose elements lie in a row, not {type(arg).__name__}"
        raise EmulationError(what, kernel.name, 0)
    dtype = NUMPY[parameter.dtype]
    if arg.dtype.itemsize != dtype.itemsize and arg.nbytes % dtype.itemsize:
        raise EmulationError(f"{arg.nbytes} bytes for {name}: {dtype}", kernel.name, 0)
    flat = arg.reshape(-1)
    return flat if flat.dtype == dtype else flat.view(dtype)


def run_lanes(
    kernel: CudaKernel, blocks: int, threads: int, memory: Sequence[Array | np.int64], check: bool
) -> None:
    """Carries out all threads of many blocks together."""
    program, function = _in_lanes(kernel)
    shadows = shadows_of([a for a in memory if isinstance(a, np.ndarray)]) if check else {}
    together = max(1, TOGETHER // (-(-threads // 32) * 32))
    for first in range(0, blocks, together):
        k = Lanes(program, first, min(together, blocks - first), blocks, threads, check)
        args = [
            Elements(k, p.name, a, a.size, None, *shadows.get(id(a), (None, 0, 1)))
            if isinstance(a, np.ndarray)
            else a
            for p, a in zip(kernel.parameters, memory, strict=True)
        ]
        function(k, k.alive, *args)


@lru_cache(maxsize=512)
def _of_a_thread(kernel: CudaKernel) -> tuple[Program, Callable[..., Any]]:
    program = read(kernel)
    return program, ThreadText(program).compiled()


def run_threads(
    kernel: CudaKernel,
    blocks: int,
    threads: int,
    memory: Sequence[Array | np.int64],
    order: random.Random,
) -> None:
    """Carries out one block after the other, each thread for itself."""
    program, function = _of_a_thread(kernel)
    for block in order.sample(range(blocks), blocks):
        k = Block(program, block, blocks, threads)
        args = [
            Words(k, p.name, a) if isinstance(a, np.ndarray) else a
            for p, a in zip(kernel.parameters, memory, strict=True)
        ]
        k.run(function, args, order)


def shadows_of(arrays: Sequence[Array]) -> dict[int, Shadowed]:
    """For each array (by id) the shadow of the memory that it lies in, which those that overlap it
    share: the first word and the words of an element."""
    found: dict[int, Shadowed] = {}
    groups: list[list[Array]] = []
    end = 0
    for array in sorted(arrays, key=lambda a: a.ctypes.data):
        if array.ctypes.data < end:
            groups[-1].append(array)
        else:
            groups.append([array])
        end = max(end, array.ctypes.data + array.nbytes)
    for group in groups:
        start = group[0].ctypes.data
        word = gcd(*(a.itemsize for a in group), *(a.ctypes.data - start for a in group))
        stop = max(a.ctypes.data + a.nbytes for a in group)
        shadow = Shadow((stop - start) // word)
        for a in group:
            found[id(a)] = shadow, (a.ctypes.data - start) // word, a.itemsize // word
    return found
