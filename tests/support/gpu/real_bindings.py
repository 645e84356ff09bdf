"""Run by test_device_bindings: CudaDevice over the real cuda.bindings and fake_libcuda.c."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeCompiler, kernel_args, kernel_words

import weft as wf
from weft.codegen.cuda.emulator import run
from weft.runtime.device import plan
from weft.runtime.device.backends import registry
from weft.runtime.device.execution import segments

LAUNCH, COPY, CLEAR, BEGIN, REPLAY, PEER, CHANGE = 1, 2, 3, 4, 5, 6, 7
compiler = FakeCompiler()
recorded: list[tuple[int, tuple[Any, ...]]] = []
counts = dict.fromkeys((LAUNCH, COPY, CLEAR, BEGIN, REPLAY, PEER, CHANGE), 0)


def hook(what: int, a: int, b: int, c: int, d: int) -> int:
    """What the faked driver asks for."""
    try:
        capturing, kind = 100 <= what < 1000, what % 100
        given: tuple[Any, ...] = (a, b, c)
        if (kind == LAUNCH and what < 1000) or 1000 <= what < 2000:
            given = _launch(a, b, c, d)
        if what >= 1000:
            changed, kind = what % 1000 - 1, CHANGE
            recorded[changed] = (recorded[changed][0], given)
        elif kind == BEGIN:
            recorded.clear()
        elif capturing:
            recorded.append((kind, given))
        else:
            _do(kind, given)
        counts[kind] += 1
    except BaseException as error:
        print(f"the hook failed: {error!r}")
        return 999
    return 0


def _launch(function: int, blocks: int, threads: int, params: int) -> tuple[Any, ...]:
    kernel = compiler.kernels[ctypes.string_at(function).decode()]
    return kernel, blocks, threads, kernel_words(kernel, params)


def _memory(address: int) -> np.ndarray[Any, Any]:
    """It is not known how much is there."""
    return np.frombuffer((ctypes.c_uint8 * (1 << 15)).from_address(address), np.uint8)


def _do(kind: int, given: tuple[Any, ...]) -> None:
    if kind == REPLAY:
        for one, what in recorded:
            _do(one, what)
    elif kind in (COPY, PEER):
        ctypes.memmove(given[0], given[1], given[2])
    elif kind == CLEAR:
        ctypes.memset(given[0], given[1], given[2])
    else:
        kernel, blocks, threads, words = given
        run(kernel, blocks, threads, kernel_args(kernel, words, _memory), check=False)


class Other:
    """Another library's array, which has stream 1."""

    def __init__(self, given: wf.DeviceArray) -> None:
        self.__cuda_array_interface__ = {**given.__cuda_array_interface__, "stream": 1}


def shared_memory(x: Any) -> None:
    """Arrays that stay on the device, and those of others."""
    double = wf.compile(device="gpu:0")(lambda x: x * 2.0)
    first = double(x)
    second = double(first).block_until_ready()
    np.testing.assert_array_equal(second, x * 4)
    assert first.__dlpack_device__() == (2, 0)
    capsule = first.__dlpack__(stream=1, max_version=(1, 0))
    assert first.__cuda_array_interface__["stream"] == registry.gpu(0).stream
    np.testing.assert_array_equal(double(Other(first)), x * 4)
    with pytest.raises(wf.errors.InvalidArgumentError, match="0x8 is not memory of a GPU"):
        registry.gpu(0).number_at(8)
    own = second.__dlpack__(stream=2, max_version=(1, 0))  # whose end is an event of the context
    del capsule, first, own, second
    registry.gpu(0).allocate(8, "after what is gone")


def other_addresses() -> None:
    """What is recorded, with other arrays than when it was."""

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> Any:
        y = wf.cumulative_sum(wf.tanh(x), axis=1)
        return y, wf.scatter_nd_update(x, np.array([[0]]), y[:1])

    begun, changed = counts[BEGIN], counts[CHANGE]
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "DEVICE_SMALL_INPUT_BYTES", 16)
        patch.setattr(plan, "DEVICE_SMALL_RESULT_BYTES", 16)
        patch.setattr(segments, "MOST_SETS", 1)
        for k in range(5):
            x = np.arange(12, dtype=np.float32).reshape(3, 4) / 12 + np.float32(k)
            given = wf.to_device(x, "gpu:0")
            kept.append((given, step(given)))
            y = np.cumsum(np.tanh(x), axis=1)
            np.testing.assert_allclose(kept[-1][1][0], y, rtol=1e-5)
            np.testing.assert_allclose(kept[-1][1][1], np.vstack([y[:1], x[1:]]), rtol=1e-5)
    assert counts[BEGIN] == begun + 1
    assert counts[CHANGE] >= changed + 3 * 3  # a nest, a copy, a scatter at least


def main() -> None:
    """A training step and an index out of bounds."""
    library = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    kept = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(hook)
    library.weft_set_hook(kept)
    registry.compile_for_gpu = compiler  # type: ignore[assignment]
    rng = np.random.default_rng(0)
    x, start = rng.random((6, 5), np.float32), rng.random((5, 3), np.float32)

    def losses(device: str) -> list[float]:
        w = wf.Variable(start)

        @wf.compile(device=device)
        def step(x: wf.Tensor) -> wf.Tensor:
            loss = wf.mean(wf.square(wf.nn.softmax(wf.matmul(x, w))))
            w.assign_sub(0.1 * wf.gradients([loss], [w])[0])
            return loss

        return [float(step(x)) for _ in range(4)] + np.asarray(w.read()).ravel().tolist()

    np.testing.assert_allclose(losses("gpu:0"), losses("cpu"), rtol=1e-5)
    take = wf.compile(device="gpu:0")(lambda t, i: wf.gather(t, i, axis=0))
    np.testing.assert_array_equal(take(x, np.array([2, -1]))[1], x[-1])
    with pytest.raises(wf.errors.InvalidArgumentError, match="index 6"):
        take(x, np.array([0, 6]))
    shared_memory(x)
    other_addresses()
    device = registry.gpu(0)
    assert device.description == "Fake libcuda, sm_80, driver for CUDA 13.0"
    assert device.timed(device.synchronize) == 0.25e-3
    v = wf.Variable(start)
    doubled = [wf.compile(device=f"gpu:{k}")(lambda: v.assign_add(v)) for k in (0, 1)]
    for k in (0, 1, 1, 0):
        doubled[k]()
    np.testing.assert_allclose(np.asarray(v.read()), 16 * start)
    assert counts[PEER] == 2  # from one GPU to the other, and back
    info = registry.gpus()[1]
    assert (info.index, info.cc, info.memory) == (1, (8, 0), 1 << 28)
    assert info.flops == 2 * 108 * 64 * 1.41e9
    assert info.bandwidth == 2 * 1.215e9 * 5120 / 8
    assert counts[BEGIN] >= 1
    assert counts[REPLAY] >= 2
    with pytest.raises(wf.errors.ResourceExhaustedError, match="too much"):
        device.allocate(1 << 40, "too much")
    print("ok")


if __name__ == "__main__":
    main()
