"""How benchmarks/gpu.py takes times and compares results: the host's time is in no time of the
device, results are compared with NumPy's where no peer is, and once more after all was timed."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_device import use_driver, use_fake
from fake_driver import OK, FakeCompiler, FakeDriver
from gpu_benchmark import gpu_py, into, peer, ran

import weft as wf
from weft.runtime.device.backends import cuda, registry

__all__ = ["gpu_py", "into"]  # fixtures
LAUNCH, FILL, ASK, ASK_TO_FILL = 1e-6, 20e-6, 5e-6, 3e-6  # seconds


class Timeline:
    """A device that begins a piece of work when it has done those before, and the host has asked
    for it, which takes the host time."""

    def __init__(self) -> None:
        self.host = self.device = 0.0
        self.fills = 0

    def asks(self, on_host: float, on_device: float) -> None:
        self.host += on_host
        self.device = max(self.device, self.host) + on_device

    def fill(self) -> None:
        self.fills += 1
        self.asks(ASK_TO_FILL, FILL)

    def wait(self) -> None:
        self.host = max(self.host, self.device)


class TimedDriver(FakeDriver):
    """A driver whose kernels, fills and events are on such a line."""

    def __init__(self, line: Timeline) -> None:
        super().__init__(FakeCompiler(), runs=False)
        self.line = line

    def cuLaunchKernel(self, kernel: Any, *rest: Any) -> tuple[Any, ...]:
        self.line.asks(ASK, LAUNCH)
        return super().cuLaunchKernel(kernel, *rest)

    def cuMemsetD8Async(self, *given: Any) -> tuple[Any, ...]:
        self.line.fill()
        return super().cuMemsetD8Async(*given)

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[Any, ...]:
        event.at = max(self.line.device, self.line.host)
        return super().cuEventRecord(event, stream)

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:
        self.line.wait()
        done: tuple[Any, ...] = super().cuStreamSynchronize(stream)
        return done

    def cuEventElapsedTime(self, first: Any, last: Any) -> tuple[Any, ...]:
        return (OK, 1e3 * (last.at - first.at))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Timeline]:
    """The host's clock is the line's."""
    made = Timeline()
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: made.host)
        yield made


def chain(x: Any) -> Any:
    for _ in range(40):
        x = wf.cumulative_max(x)
    return x


def test_the_host_is_not_in_times_of_weft(line: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    api = TimedDriver(line)
    use_driver(api, monkeypatch)
    step, x = wf.compile(device="gpu:0")(chain), np.ones(64, np.float32)
    step(x)
    made: Any = step._specialized((x,), {}).executable()
    first, *others = made.measure([x], 4, records=False).device
    assert first > 2 * 40 * LAUNCH  # of how long the host takes nothing was known
    assert others == pytest.approx([40 * LAUNCH] * 3)
    assert [one for (*_, one) in made.launch_times([x], 2)] == pytest.approx([LAUNCH] * 40)
    registry.gpu(0).synchronize()
    assert cuda.fill_bytes(api.memory) not in [len(block) for block in api.blocks.values()]
    monkeypatch.setattr(cuda, "MOST_FILLS", 0)  # as if there were none
    assert min(made.measure([x], 4, records=False).device) > 30 * ASK


class FakeTorch:
    """The part of PyTorch that its timer takes."""

    uint8 = "uint8"

    def __init__(self, line: Timeline) -> None:
        self.line = line
        made = self.Event
        self.cuda = SimpleNamespace(
            Event=lambda enable_timing: made(line), synchronize=line.wait,
            current_device=lambda: 0,
            get_device_properties=lambda index: SimpleNamespace(total_memory=80 << 30),
        )  # fmt: skip

    class Event:
        def __init__(self, line: Timeline) -> None:
            self.line, self.at = line, 0.0

        def record(self) -> None:
            self.at = max(self.line.device, self.line.host)

        def query(self) -> bool:
            return self.at <= self.line.host

        def elapsed_time(self, last: Any) -> float:
            return 1e3 * float(last.at - self.at)

    def empty(self, nbytes: int, dtype: str, device: str) -> Any:
        assert (nbytes, dtype, device) == (64 << 20, "uint8", "cuda")
        return SimpleNamespace(zero_=self.line.fill)


@pytest.mark.parametrize("launches", [1, 400])
def test_the_host_is_not_in_times_of_torch(
    launches: int, line: Timeline, gpu_py: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_peers

    def run() -> None:
        for _ in range(launches):
            line.asks(ASK, LAUNCH)

    monkeypatch.setitem(sys.modules, "torch", FakeTorch(line))
    assert gpu_peers.time_torch(run, 3) == pytest.approx([launches * LAUNCH] * 3)
    line.fills = 0
    with pytest.raises(gpu_peers.Absent, match="longer than 512 fills"):
        gpu_peers.time_torch(lambda: line.asks(1.0, LAUNCH), 3)
    assert line.fills == 16 + 32 + 64 + 128 + 256 + 512


# ----------------------------------------------------------------------------- what is compared


@pytest.mark.parametrize(
    "only", ["elementwise", "softmax", "layer norm", "matmul 8", "conv2d", "figure1"]
)
def test_results_are_those_of_numpy(
    only: str, gpu_py: Any, into: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no peer is. The kernels are emulated."""
    _without_peers(monkeypatch)
    rows, _, status = ran(gpu_py, "--only", only)
    assert [row["errors"] for row in rows if row["errors"]] == []
    assert (status, bool(rows)) == (0, True)


def _without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake(monkeypatch)
    for name in ("torch", "jax"):
        monkeypatch.setitem(sys.modules, name, None)


def _with(gpu_py: Any, monkeypatch: pytest.MonkeyPatch, maker: str, **changes: Any) -> None:
    made = getattr(gpu_py, maker)
    monkeypatch.setattr(gpu_py, maker, lambda *given: replace(made(*given), **changes))


def _off(x: Any) -> Any:
    """By less than the bound of the largest element."""
    made = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    made /= made.sum(-1, keepdims=True)
    return np.where(made == made.min(), 0, made)


def test_each_element_is_looked_at(gpu_py: Any, into: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_peers(monkeypatch)
    made = gpu_py.rows
    whole: dict[str, Any] = {"each": None}

    def rows(*given: Any) -> Any:
        return replace(made(*given), numpy=_off, rounding=1e-2, **whole)

    monkeypatch.setattr(gpu_py, "rows", rows)
    assert ran(gpu_py, "--only", "softmax")[2] == 1  # its gradient has another reference
    (row, *_), _, _ = ran(gpu_py, "--only", "softmax")
    assert row["errors"] == []
    whole.clear()
    (row, *_), _, _ = ran(gpu_py, "--only", "softmax")
    (error,) = row["errors"]
    assert error.startswith("NumPy has 1 elements off weft's: the first is 0, weft's ")


def test_results_are_compared_once_more(
    gpu_py: Any, into: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is right until it is timed."""
    _without_peers(monkeypatch)
    sound = peer(np.matmul, gpu_py)

    def make(args: Any, mode: str) -> Callable[[], Any]:
        run, calls = sound.make(args, mode), [0]

        def call() -> Any:
            calls[0] += 1
            return run() * (1 if calls[0] < 4 else 1.001)  # compared, and timed twice

        return call

    _with(gpu_py, monkeypatch, "product", peers={"p": replace(sound, make=make)})
    (row,), _, status = ran(gpu_py, "--only", "matmul 16 f32 ieee")
    assert status == 1
    (error,) = row["errors"]
    assert error.startswith("p, once timed, has results 0.")


def test_a_loss_that_does_not_fall_is_an_error(gpu_py: Any) -> None:
    assert gpu_py.untrained(2.0, 1.9) == ""
    assert gpu_py.untrained(2.0, 2.0) == "a loss of 2, that of the first step was 2"
    assert gpu_py.untrained(2.0, float("nan"))


def test_a_peer_whose_time_cannot_be_had_has_a_note(
    gpu_py: Any, into: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_peers(monkeypatch)

    def never(run: Any, rounds: int) -> list[float]:
        raise gpu_py.Absent("the host is too slow")

    slow = replace(peer(np.matmul, gpu_py), time=never)
    _with(gpu_py, monkeypatch, "product", peers={"p": slow, "q": peer(np.matmul, gpu_py)})
    (row,), _, status = ran(gpu_py, "--only", "matmul 16 f32 ieee")
    assert (status, row["peers"]) == (0, {"q": [1.0, 1.0]})
    assert "no times of p: the host is too slow" in row["notes"]


def test_torch_compile_needs_a_compiler_of_c(gpu_py: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_peers

    there = {"triton": True}
    monkeypatch.setattr(gpu_peers.importlib.util, "find_spec", lambda name: there.get(name))
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "gcc" else None)
    monkeypatch.delenv("CC", raising=False)
    gpu_peers.need_inductor()
    monkeypatch.setitem(os.environ, "CC", "/no/such/cc")
    with pytest.raises(gpu_peers.Absent, match=r"no \$CC, gcc or clang"):
        gpu_peers.need_inductor()
    monkeypatch.delenv("CC")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(gpu_peers.Absent, match=r"no \$CC, gcc or clang"):
        gpu_peers.need_inductor()
    there.clear()
    with pytest.raises(gpu_peers.Absent, match="triton, which"):
        gpu_peers.need_inductor()
