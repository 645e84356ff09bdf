"""Run by test_device_bindings: CudaDevice over the real cuda.bindings and tests/fake_libcuda.c."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from fake_driver import NUMPY_OF, FakeCompiler

import weft as wf
from weft.codegen.cuda.emulator import run
from weft.codegen.cuda.language import memory_dtype
from weft.runtime.device import registry

LAUNCH, COPY, CLEAR, BEGIN, REPLAY, PEER = 1, 2, 3, 4, 5, 6
compiler = FakeCompiler()
recorded: list[tuple[int, tuple[Any, ...]]] = []
counts = dict.fromkeys((LAUNCH, COPY, CLEAR, BEGIN, REPLAY, PEER), 0)


def hook(what: int, a: int, b: int, c: int, d: int) -> int:
    """What the faked driver asks for."""
    try:
        capturing, kind = what >= 100, what % 100
        given: tuple[Any, ...] = (a, b, c)
        if kind == LAUNCH:
            given = _launch(a, b, c, d)
        if kind == BEGIN:
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
    words = []
    for k in range(len(kernel.parameters)):
        address = ctypes.c_uint64.from_address(params + 8 * k).value
        words.append(ctypes.c_int64.from_address(address).value)
    return kernel, blocks, threads, words


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
        args: list[Any] = []
        for parameter, word in zip(kernel.parameters, words, strict=True):
            if parameter.kind == "integer":
                args.append(word)
                continue
            dtype = np.dtype(NUMPY_OF[memory_dtype(parameter.dtype)])
            room = (ctypes.c_uint8 * (1 << 15)).from_address(word)  # it is not known how much
            args.append(np.frombuffer(room, dtype))
        run(kernel, blocks, threads, args, check=False)


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
    del capsule, first
    registry.gpu(0).allocate(8, "after what is gone")


def main() -> None:
    """A training step and an index out of bounds."""
    library = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    kept = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(hook)
    library.weft_set_hook(kept)
    registry.compile_kernel = compiler  # type: ignore[assignment]
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
