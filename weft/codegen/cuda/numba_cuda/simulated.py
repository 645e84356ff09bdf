"""The names of the kernel language for kernels that Python runs thread by thread on Numba's CUDA
simulator: casts that wrap, NumPy's functions, shuffles and votes, which the simulator has not.
Its threads are those of `simulator.py`, or Numba's own in a process with NUMBA_ENABLE_CUDASIM=1.

Integers of less than 64 bits are computed in 64: a cast to them takes the lower bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.codegen.cuda.emulator.numpy_functions import NUMPY_FUNCTIONS, multiply_add
from weft.codegen.cuda.source.kernel import (
    ATOMICS,
    CASTS,
    FUNCTIONS,
    LANES,
    LOADS,
    MMAS,
    NUMPY,
    SHUFFLES,
    STORES,
    VOTES,
    WARP,
)

Value = Any
_U64 = np.dtype(np.uint64)
#: Seconds that a lane waits for the others of its warp.
PATIENCE = 60.0


class Cast:
    """A dtype of the kernel language: a call casts to it. `dtype`: NumPy's, of arrays of it."""

    def __init__(self, name: str) -> None:
        self.dtype = NUMPY[name]
        kind, bits = self.dtype.kind, 8 * self.dtype.itemsize
        self._wide = np.dtype({"i": np.int64, "u": np.uint64}.get(kind, self.dtype))
        self._bits = bits if kind in "iu" else 0

    def __call__(self, value: Value) -> Value:
        if not self._bits:
            return self.dtype.type(value)
        if isinstance(value, int):
            return self._wide.type(_wrapped(value, self._bits, self.dtype.kind == "i"))
        return np.asarray(value).astype(self.dtype).astype(self._wide)[()]


def _wrapped(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _taken(value: Value, dtype: np.dtype[Any]) -> Value:
    """The value as a NumPy scalar of the dtype."""
    return np.asarray(value).astype(dtype)[()]


def _of(dtype: str, function: Callable[..., Value], result: Cast) -> Callable[..., Value]:
    """A function of values of the dtype."""
    taken = NUMPY[dtype]
    return lambda *values: result(function(*(_taken(v, taken) for v in values)))


def _loads(count: int) -> Callable[..., Value]:
    return lambda p, i: tuple(p[int(i) + k] for k in range(count))


def _store(p: Any, i: Value, *values: Value) -> None:
    for k, value in enumerate(values):
        p[int(i) + k] = value


_memory_lock = threading.Lock()


def _atomic(name: str) -> Callable[..., Value]:
    change = {"add": np.add, "max": np.maximum, "min": np.minimum}[name]

    def atomic(p: Any, i: Value, value: Value) -> Value:
        with _memory_lock:
            before = np.asarray(p[i])
            p[i] = change(before, np.asarray(value).astype(before.dtype))
        return before[()]

    return atomic


# ------------------------------------------------------------------------------------------- warps
class _Meeting:
    """Where lanes of a warp, threads that run at once, bring a value each and take the others'."""

    def __init__(self, lanes: int) -> None:
        self.brought: list[Value] = [None] * WARP
        self._barrier = threading.Barrier(lanes)

    def exchange(self, lane: int, value: Value) -> list[Value]:
        """What all have brought. BrokenBarrierError if one does not come."""
        self.brought[lane] = value
        self._barrier.wait(PATIENCE)
        taken = list(self.brought)
        self._barrier.wait(PATIENCE)  # nobody brings the next before all have taken these
        return taken


_meetings_lock = threading.Lock()


def _together(mask: Value, value: Value) -> tuple[int, list[Value]]:
    """This thread's lane, and what each lane of the mask has brought."""
    thread: Any = threading.current_thread()
    lane = thread.thread_id % WARP
    mask = int(mask) & ((1 << WARP) - 1)
    if not mask >> lane & 1:
        raise ValueError(f"lane {lane} is not in the mask {mask:#x} that it gives")
    if hasattr(thread, "exchange"):
        brought: list[Value] = [None] * WARP
        for other, its in thread.exchange(mask, value):
            brought[other] = its
        return lane, brought
    return lane, _meeting(thread, mask).exchange(lane, value)


def _meeting(thread: Any, mask: int) -> _Meeting:
    """Where the lanes of the mask meet that are threads of Numba's own simulator."""
    block = thread._manager
    warp = thread.thread_id // WARP
    there = min(WARP, int(np.prod(block._block_dim)) - warp * WARP)
    with _meetings_lock:
        meetings: dict[Any, _Meeting] = block.__dict__.setdefault("weft_meetings", {})
        if (warp, mask) not in meetings:
            meetings[warp, mask] = _Meeting((mask & ((1 << there) - 1)).bit_count())
        return meetings[warp, mask]


def _shuffle(name: str) -> Callable[..., Value]:
    source: Callable[[int, int], int] = {
        "shfl_sync": lambda lane, by: by % WARP,
        "shfl_xor_sync": lambda lane, by: lane ^ by,
        "shfl_up_sync": lambda lane, by: lane - by,
        "shfl_down_sync": lambda lane, by: lane + by,
    }[name]

    def shuffle(mask: Value, value: Value, by: Value) -> Value:
        lane, brought = _together(mask, value)
        other = source(lane, int(by))
        got = brought[other] if 0 <= other < WARP else None
        return value if got is None else got

    return shuffle


def _vote(name: str) -> Callable[..., Value]:
    def vote(mask: Value, said: Value) -> Value:
        _, brought = _together(mask, bool(said))
        if name == "all_sync":
            return np.bool_(all(one is not False for one in brought))
        if name == "any_sync":
            return np.bool_(any(one is True for one in brought))
        return _U64.type(sum((one is True) << lane for lane, one in enumerate(brought)))

    return vote


def _syncthreads_or(said: Value) -> Value:
    thread: Any = threading.current_thread()
    return np.bool_(thread.syncthreads_or(bool(said)))


def _product(name: str) -> Callable[..., tuple[Value, ...]]:
    dtypes = [np.uint32] * 6 + [np.float32] * 4

    def product(*values: Value) -> tuple[Value, ...]:
        lane, brought = _together((1 << WARP) - 1, values)
        columns = [
            np.array([[one[k] for one in brought]]).astype(dtype) for k, dtype in enumerate(dtypes)
        ]
        return tuple(c[0, lane] for c in multiply_add(name, columns))

    return product


# ------------------------------------------------------------------------------------------- names
def _division(remainder: bool) -> Callable[..., Value]:
    return lambda a, b: a % b if remainder else a // b


def _names() -> dict[str, Any]:
    casts = {dtype: Cast(dtype) for dtype in (*CASTS, "bool")}
    names: dict[str, Any] = {dtype: casts[dtype] for dtype in CASTS}
    names |= {"boolean": casts["bool"], "device": lambda function: function}
    for name, (taken, result) in FUNCTIONS.items():
        names[name] = _of(taken[0], NUMPY_FUNCTIONS[name], casts[result])
    for dtype in ("u32", "u64"):
        names[f"div_{dtype}"] = _division(False)
        names[f"rem_{dtype}"] = _division(True)
    names |= {name: _loads(LANES[dtype]) for dtype, name in LOADS.items()}
    names |= dict.fromkeys(STORES.values(), _store)
    names |= {f"atomic_{name}": _atomic(name) for name in ATOMICS}
    names |= {name: _shuffle(name) for name in SHUFFLES}
    names |= {name: _vote(name) for name in VOTES}
    names["syncthreads_or"] = _syncthreads_or
    names |= {name: _product(name) for name in MMAS}
    return names


NAMES = _names()
