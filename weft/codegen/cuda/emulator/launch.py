"""Emulated launch: runs a kernel without a GPU, by whole arrays of threads or thread by thread: the
threads of one block as generators, in a random order between barriers.

`ThreadText` makes Python of kernel source, a generator that yields where threads meet; `Block` runs
a block's threads one after the other, from one meeting to the next."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.codegen.cuda.emulator.lanes import Lanes, LaneText
from weft.codegen.cuda.emulator.memory import Elements, Shadow
from weft.codegen.cuda.emulator.numpy_functions import multiply_add
from weft.codegen.cuda.emulator.translator import Text
from weft.codegen.cuda.source.kernel import (
    MMAS,
    NUMPY,
    SHUFFLES,
    THREAD_LIMIT,
    CudaKernel,
    Parameter,
    poison,
)
from weft.codegen.cuda.source.typecheck import EmulationError, Program, is_sync, read


class ThreadText(Text):
    """The text of a program's functions for one thread: NumPy scalars, Python's control flow."""

    def compiled(self) -> Callable[..., Any]:
        """The kernel: `kernel(K, *arguments)`, a generator of (name, line, arguments)."""
        for f in self.program.functions:
            self.f = f
            arguments = "".join(f", v_{name}" for name in f.parameters)
            self.nested(f"def f{f.number}(K{arguments}):", f.body)
            # A kernel is a generator even if no thread ever waits in it.
            self.line("    if False:\n        yield" if f.is_kernel else "")
        text = "\n".join(self.lines)
        exec(compile(text, f"<a thread of {self.program.kernel.name}>", "exec"), self.names)
        made = self.names[f"f{self.program.main.number}"]
        assert callable(made)
        return made

    def block(self, body: list[ast.stmt]) -> None:
        self.indent += 1
        for statement in body:
            self.statement(statement)
        self.indent -= 1

    def nested(self, head: str, body: list[ast.stmt]) -> None:
        self.line(head)
        self.line("    pass")
        self.block(body)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, value)
            case ast.Expr(value=value):
                self.line(self.of(value, "True"))
            case ast.If(test=test, body=body, orelse=orelse):
                self.nested(f"if {self.of(test, 'True')}:", body)
                if orelse:
                    self.nested("else:", orelse)
            case ast.While(test=test, body=body):
                self.nested(f"while {self.of(test, 'True')}:", body)
            case ast.For():
                self.count(node)
            case ast.Return(value=value):
                self.line(f"return {self.several(value) if value is not None else ''}")
            case ast.Break():
                self.line("break")
            case ast.Continue():
                self.line("continue")
            case ast.Pass():
                self.line("pass")

    def count(self, node: ast.For) -> None:
        call, target = node.iter, node.target
        assert isinstance(call, ast.Call)
        assert isinstance(target, ast.Name)
        bounds = ", ".join(f"int({self.of(a, 'True')})" for a in call.args)
        counter = self.new("k")
        self.line(f"for {counter} in range({bounds}):")
        self.line(f"    v_{target.id} = D_{self.f.counters[node]}.type({counter})")
        self.block(node.body)

    def several(self, value: ast.expr) -> str:
        if isinstance(value, ast.Tuple):
            return ", ".join(self.of(v, "True") for v in value.elts)
        return self.of(value, "True")

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            self.store(target, value, "True")
            return
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        variables = [f"v_{name.id}" for name in names if isinstance(name, ast.Name)]
        self.line(f"{', '.join(variables)} = {self.several(value)}")

    def both(self, is_and: bool, left: str, node: ast.expr, mask: str) -> str:
        return f"({left} {'and' if is_and else 'or'} {self.of(node, mask)})"

    def choice(self, node: ast.IfExp, mask: str, dtype: str) -> str:
        body, orelse = self.of(node.body, mask, dtype), self.of(node.orelse, mask, dtype)
        return f"({body} if {self.of(node.test, mask)} else {orelse})"

    def device_call(self, node: ast.Call, mask: str) -> str:
        texts = [self.of(a, mask) for a in node.args]
        return f"f{self.f.calls[node].number}({', '.join(['K', *texts])})"

    def special(self, node: ast.Call, name: str, mask: str) -> str:
        space, _, what = name.partition(".")
        if space == "atomic":
            texts = [self.of(a, mask, str(self.f.kinds[node])) for a in node.args]
            return f"{texts[0]}.atomic({what!r}, {texts[1]}, {texts[2]}, True, {node.lineno})"
        assert is_sync(name)
        texts = [self.of(a, mask) for a in node.args]
        return f"(yield ({name!r}, {node.lineno}, ({''.join(t + ', ' for t in texts)})))"


#: Where a thread waits: the name of the meeting, its line, what it brings.
Meeting = tuple[str, int, tuple[Any, ...]]


class Words:
    """Elements that one thread at a time touches; `bare`: nothing is in them until written."""

    def __init__(self, k: Block, name: str, data: npt.NDArray[Any], bare: bool = False) -> None:
        self.k, self.name, self.data = k, name, data
        self.written = np.zeros(data.size, np.bool_) if bare else None

    def at(self, index: Any, line: int) -> int:
        """The index, within bounds."""
        if not 0 <= index < self.data.size:
            what = f"{self.name}[{index}] of {self.data.size} elements"
            raise self.k.fault(what, line)
        return int(index)

    def load(self, index: Any, mask: bool, line: int) -> Any:
        """An element."""
        i = self.at(index, line)
        self.known(i, 1, line)
        return self.data[i]

    def known(self, i: int, count: int, line: int) -> None:
        """Looks whether `count` elements from i on have been written."""
        if self.written is not None and not self.written[i : i + count].all():
            i += int(np.argmin(self.written[i : i + count]))
            raise self.k.fault(f"{self.name}[{i}] is read before anything is written there", line)

    def store(self, index: Any, value: Any, mask: bool, line: int) -> None:
        """Writes an element."""
        i = self.at(index, line)
        self.data[i] = value
        if self.written is not None:
            self.written[i] = True

    def atomic(self, name: str, index: Any, value: Any, mask: bool, line: int) -> Any:
        """Combines an element with a value; what was there before."""
        before = self.load(index, mask, line)
        combine = {"add": np.add, "max": np.maximum, "min": np.minimum}[name]
        self.data[int(index)] = combine(before, value)
        return before

    def aligned(self, index: Any, count: int, line: int) -> int:
        """The index of `count` elements at a multiple of 16 bytes."""
        self.at(int(index) + count - 1, line)
        i = self.at(index, line)
        if (self.data.ctypes.data + i * self.data.itemsize) % 16:
            what = f"128 bits at {self.name}[{i}], no multiple of 16 bytes"
            raise self.k.fault(what, line)
        return i

    def load_wide(self, index: Any, count: int, mask: bool, line: int) -> tuple[Any, ...]:
        """`count` elements from the index on."""
        i = self.aligned(index, count, line)
        self.known(i, count, line)
        return tuple(self.data[i : i + count])

    def store_wide(self, index: Any, values: tuple[Any, ...], mask: bool, line: int) -> None:
        """Writes elements from the index on."""
        i = self.aligned(index, len(values), line)
        self.data[i : i + len(values)] = values
        if self.written is not None:
            self.written[i : i + len(values)] = True


class Block:
    """A block of threads; what its kernel's text calls K. `thread`: the one that runs."""

    def __init__(self, program: Program, block: int, blocks: int, threads: int) -> None:
        self.program = program
        self.block, self.blocks = np.int32(block), np.int32(blocks)
        self.threads = np.int32(threads)
        self.thread = self.lane = np.int32(0)
        self.arrays: dict[int, Words] = {}

    def fault(self, what: str, line: int, thread: int | None = None) -> EmulationError:
        """An error of the thread that runs, or of another."""
        who = int(self.thread) if thread is None else thread
        return self.program.fault(what, line, int(self.block), who)

    def shared(self, line: int, dtype: str, size: int) -> Words:
        """The shared array of a line."""
        if line not in self.arrays:
            data = np.full(size, poison(dtype))
            self.arrays[line] = Words(self, "a shared array", data, bare=True)
        return self.arrays[line]

    def local(self, line: int, dtype: str, size: int) -> Words:
        """An array of the thread that runs."""
        return Words(self, "a local array", np.full(size, poison(dtype)), bare=True)

    def amount(self, by: Any, mask: bool, line: int) -> Any:
        """By how much is shifted."""
        if not 0 <= by < 64:
            raise self.fault(f"a shift by {by}", line)
        return by

    def divisor(self, by: Any, mask: bool, line: int) -> Any:
        """By what is divided."""
        if by == 0:
            raise self.fault("a division by 0", line)
        return by

    def whole(self, x: Any, dtype: np.dtype[Any], mask: bool, line: int) -> Any:
        """The float as an integer, towards zero."""
        info = np.iinfo(dtype)
        if not (np.isfinite(x) and info.min <= int(x) <= info.max):
            raise self.fault(f"{x} as {dtype}: out of range", line)
        return dtype.type(int(x))

    def run(self, kernel: Callable[..., Any], args: Sequence[Any], order: random.Random) -> None:
        """Runs all threads to their ends; `order`: in which order they take turns."""
        threads = [_Thread(i, kernel(self, *args)) for i in range(int(self.threads))]
        ready = list(threads)
        while ready:
            order.shuffle(ready)
            for thread in ready:
                self.thread, self.lane = np.int32(thread.number), np.int32(thread.number % 32)
                thread.go()
            threads = [t for t in threads if t.waits is not None]
            ready = self.meet(threads)

    def meet(self, threads: list[_Thread]) -> list[_Thread]:
        """The threads that may go on: of warps whose threads have met, else all at a barrier."""
        ready: list[_Thread] = []
        for warp in dict.fromkeys(t.number // 32 for t in threads):
            lanes = {t.number % 32: t for t in threads if t.number // 32 == warp}
            ready += self.warp(lanes)
        if ready or not threads:
            return ready
        first = threads[0].meeting
        for thread in threads:
            if thread.meeting[:2] != first[:2] or not first[0].startswith("syncthreads"):
                name, line, _ = thread.meeting
                what = f"waits in {name}, while thread {threads[0].number} is at line {first[1]}"
                raise self.fault(what, line, thread.number)
        holds = np.bool_(any(t.meeting[2] and t.meeting[2][0] for t in threads))
        for thread in threads:
            thread.answer = holds if first[0] == "syncthreads_or" else None
        return threads

    def warp(self, lanes: dict[int, _Thread]) -> list[_Thread]:
        """The threads of a warp that go on, each with its answer."""
        ready = []
        if len(lanes) == 32 and len({t.meeting[:2] for t in lanes.values()}) == 1:
            name, _, _ = lanes[0].meeting
            if name in MMAS:
                brought = zip(*(lanes[lane].meeting[2] for lane in range(32)), strict=True)
                made = multiply_add(name, [np.array([values]) for values in brought])
                for lane, thread in lanes.items():
                    thread.answer = tuple(c[0, lane] for c in made)
                return [*lanes.values()]
        for lane, thread in lanes.items():
            name, line, brings = thread.meeting
            if name.startswith("syncthreads") or name in MMAS:
                continue
            members = int(brings[0]) & 0xFFFFFFFF
            if not members >> lane & 1:
                raise self.fault(f"{name}: no bit for the thread itself", line, thread.number)
            others = {i: t for i, t in lanes.items() if members >> i & 1}
            if any(t.meeting[:2] != (name, line) for t in others.values()):
                continue
            if any(int(t.meeting[2][0]) & 0xFFFFFFFF != members for t in others.values()):
                what = f"{name}: threads of one warp name different masks"
                raise self.fault(what, line, thread.number)
            thread.answer = self.answer(lane, thread, others)
            ready.append(thread)
        return ready

    def answer(self, lane: int, thread: _Thread, others: dict[int, _Thread]) -> Any:
        """What a thread gets from those of its warp that it has met."""
        name, line, brings = thread.meeting
        if name not in SHUFFLES:
            ballot = sum(1 << i for i, t in others.items() if t.meeting[2][1:] and t.meeting[2][1])
            if name == "ballot_sync":
                return np.uint32(ballot)
            if name == "syncwarp":
                return None
            met = sum(1 << i for i in others)
            return np.bool_(ballot == met if name == "all_sync" else ballot)
        by = int(brings[2])
        source = {
            "shfl_sync": by & 31,
            "shfl_xor_sync": (lane ^ by) & 31,
            "shfl_up_sync": lane - by if by <= lane else lane,
            "shfl_down_sync": lane + by if lane + by < 32 else lane,
        }[name]
        if source not in others:
            what = f"{name} reads lane {source}, which takes no part"
            raise self.fault(what, line, thread.number)
        return others[source].meeting[2][1]


class _Thread:
    """A thread and where it waits (None: it has ended)."""

    def __init__(self, number: int, steps: Generator[Meeting, Any, None]) -> None:
        self.number, self.steps = number, steps
        self.waits: Meeting | None = None
        self.answer: Any = None

    def go(self) -> None:
        """Runs to the next meeting."""
        try:
            self.waits = self.steps.send(self.answer)
        except StopIteration:
            self.waits = None
        self.answer = None

    @property
    def meeting(self) -> Meeting:
        """Where it waits."""
        assert self.waits is not None
        return self.waits


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
