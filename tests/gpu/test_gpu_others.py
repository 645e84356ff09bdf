"""Others on the same GPU: `pytest -m gpu`. Memory shared with PyTorch, CuPy and JAX; products and
convolutions by NVIDIA's libraries against weft's own kernels. What is not installed is skipped by
its name.

Each test has a twin that runs everywhere, on the emulated device (whose memory NumPy and PyTorch
share) or over a fake library on a fake driver.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_device import use_device, use_library, use_no_library
from fake_cublaslt import FakeClock, FakeCublasLt, Offer
from fake_cudnn import Engine, FakeCudnn
from fake_driver import FakeCompiler
from training_programs import PROGRAMS

import weft as wf
from weft.frontend.core import pytree
from weft.runtime.device.backends import registry
from weft.runtime.device.libraries import cublaslt, cudnn

Array = np.ndarray[Any, Any]
on_gpu = wf.compile(device="gpu:0")
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


# ----------------------------------------------------------------------- memory shared with others


@dataclass(frozen=True)
class Other:
    """A library: its arrays from NumPy's, weft's as its own, its own as NumPy's."""

    array: Callable[[Array], Any]
    share: Callable[[Any], Any]
    numpy: Callable[[Any], Array]


def _numpy(real: bool) -> Other:
    return Other(np.copy, np.from_dlpack, np.asarray)


def _torch(real: bool) -> Other:
    torch = pytest.importorskip("torch")
    if real and not torch.cuda.is_available():
        pytest.skip("torch: finds no GPU (a build for the CPU?)")
    there = "cuda" if real else "cpu"
    return Other(
        lambda x: torch.tensor(x, device=there), torch.from_dlpack, lambda t: t.cpu().numpy()
    )


def _cupy(real: bool) -> Other:
    cupy = pytest.importorskip("cupy")
    return Other(cupy.asarray, cupy.from_dlpack, cupy.asnumpy)


def _jax(real: bool) -> Other:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of it
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax: finds no GPU (a build for the CPU?)")
    return Other(jax.numpy.asarray, jax.dlpack.from_dlpack, np.asarray)


def _at(name: str, make: Callable[[bool], Other], kind: str) -> Any:
    marks = (pytest.mark.gpu,) if kind == "real" else ()
    return pytest.param((make, kind), id=f"{name}-{kind}", marks=marks)


@pytest.fixture(
    params=[
        _at("numpy", _numpy, "emulated"),
        _at("torch", _torch, "emulated"),
        _at("torch", _torch, "real"),
        _at("cupy", _cupy, "real"),
        _at("jax", _jax, "real"),
    ]
)
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Other:
    """Each library on the same device as weft: emulated, in the memory of the host."""
    make, kind = request.param
    if kind == "real":
        use_device(kind, monkeypatch)
    else:
        monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    made: Other = make(kind == "real")
    return made


def _x(n: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)


def _chain(x: wf.Tensor) -> wf.Tensor:
    for _ in range(5):  # a launch each: what reads the result has something to wait for
        x = wf.tanh(wf.cumulative_sum(x, axis=0) * 0.01)
    return x


@pytest.mark.parametrize("n", [5, 2000])  # 1,000 rows and more are large: they stay where they are
def test_what_weft_computes_is_theirs(other: Other, n: int) -> None:
    step, wanted = on_gpu(_chain), np.asarray(wf.compile(_chain)(_x(n)))
    shared = [other.share(step(_x(n))) for _ in range(4)]
    gc.collect()  # only they hold it now
    later = step(_x(n) + 1)
    for one in shared:
        np.testing.assert_allclose(other.numpy(one), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        later, np.asarray(wf.compile(_chain)(_x(n) + 1)), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("n", [5, 200_000])
def test_what_they_compute_is_an_argument(other: Other, n: int) -> None:
    f = on_gpu(lambda x: x * 2.0 + 1.0)
    for k in range(4):
        given = other.array(_x(n)) * (k + 3) - 1  # nobody waits for it
        np.testing.assert_allclose(f(given), (_x(n) * (k + 3) - 1) * 2 + 1, rtol=1e-4, atol=1e-5)


def test_what_they_hold_is_borrowed(other: Other) -> None:
    theirs = other.array(_x(9)) + 1
    x = wf.from_dlpack(theirs)
    np.testing.assert_array_equal(np.asarray(x), _x(9) + 1)
    del theirs
    gc.collect()
    np.testing.assert_allclose(on_gpu(lambda x: x * 2.0)(x), (_x(9) + 1) * 2, rtol=1e-6)


def test_there_and_back(other: Other) -> None:
    x: Any = wf.to_device(_x(40), "gpu:0")
    step = on_gpu(lambda x: x * 0.5 + 1.0)
    wanted = _x(40)
    for _ in range(6):
        x = step(other.share(x) * 2)
        wanted = wanted * 2 * 0.5 + 1
    np.testing.assert_allclose(x, wanted, rtol=1e-5)


def test_memory_goes_back_when_they_let_go(other: Other) -> None:
    device, step = registry.gpu(0), on_gpu(lambda x: x * 2.0)
    shared = other.share(step(_x(3000)))
    np.testing.assert_array_equal(other.numpy(shared), _x(3000) * 2)
    assert "results of" in device.resident.describe()
    del shared
    gc.collect()
    device.synchronize()
    device.allocate(8, "gives back what died")
    assert "results of" not in device.resident.describe()


@pytest.mark.gpu
def test_on_a_stream_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still being computed on another stream than the default one."""
    use_device("real", monkeypatch)
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch: finds no GPU (a build for the CPU?)")
    f = on_gpu(lambda x: x + 1.0)
    for _ in range(3):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            t = torch.ones(1 << 20, device="cuda")
            for _ in range(50):
                t = t * 1.0 + 1.0
            y = f(t)
            again = torch.from_dlpack(y) * 2.0
        np.testing.assert_array_equal(again.cpu().numpy(), np.full(1 << 20, 104.0))


@pytest.mark.gpu
def test_the_cuda_array_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy takes it; of PyTorch's tensors weft does."""
    use_device("real", monkeypatch)
    cupy = pytest.importorskip("cupy")

    class Told:
        """Nothing but the interface."""

        def __init__(self, x: Any) -> None:
            self.x, self.__cuda_array_interface__ = x, x.__cuda_array_interface__

    y = on_gpu(_chain)(_x(50))
    np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(Told(y))), y.numpy())
    given = cupy.asarray(_x(50)) * 3
    np.testing.assert_allclose(on_gpu(lambda x: x + 1.0)(Told(given)), _x(50) * 3 + 1, rtol=1e-6)


# ------------------------------------------------------------------------------ NVIDIA's libraries


def _use(
    provider: ModuleType, kind: str, name: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """/gpu:0 has this library: NVIDIA's, if it is installed, or the fake one."""
    if kind == "real":
        if not provider.installed():
            pytest.skip(f"{name} is not installed")
        use_device(kind, monkeypatch)
        monkeypatch.setenv("WEFT_GPU_LIBRARIES", "1")  # one that cannot be used is an error
        return
    use_no_library(monkeypatch, folder)
    api = FakeClock(FakeCompiler())
    made = FakeCublasLt(api, [Offer(1, 0.001)]) if provider is cublaslt else None
    use_library(api, provider, made or FakeCudnn(api, [Engine(1, 0.001)]), monkeypatch)


def _against_own_kernels(
    step: Callable[..., Any],
    args: Any,
    rounding: float,
    name: str,
    monkeypatch: Any,
    **options: Any,
) -> None:
    """Twice the same bits, and weft's own up to rounding; a library does it, or none is right."""
    by_library = wf.compile(device="gpu:0", **options)(step)
    first, *others = [pytree.tree_leaves(by_library(*args)) for _ in range(4)]
    assert name in str(by_library.explain(*args))
    monkeypatch.setenv("WEFT_GPU_LIBRARIES", "0")
    own = wf.compile(device="gpu:0", **options)(step)
    wanted = pytree.tree_leaves(own(*args))
    assert name not in str(own.explain(*args))
    for k, (got, one) in enumerate(zip(first, wanted, strict=True)):
        a, b = (np.asarray(v).astype(np.float64) for v in (got, one))
        scale = float(np.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=rounding, atol=rounding * scale)
        for again in others:
            assert np.asarray(again[k]).tobytes() == np.asarray(got).tobytes()


EACH: list[Any] = [("faked", "f32", "tf32"), ("faked", "bf16", "ieee")]
EACH += [
    pytest.param("real", dtype, mode, marks=pytest.mark.gpu)
    for dtype, mode in (("f32", "ieee"), ("f32", "tf32"), ("f16", "ieee"), ("bf16", "ieee"))
]


@pytest.mark.parametrize(("kind", "dtype", "mode"), EACH)
def test_products_of_cublaslt(
    kind: str, dtype: str, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each transposed, with what follows, batched."""
    _use(cublaslt, kind, "nvmath-python", monkeypatch, tmp_path)
    m, n, k = (512, 384, 640) if kind == "real" else (8, 16, 24)
    rng = np.random.default_rng(0)
    shapes = ((2, m, k), (k, n), (n, k), (n,))
    args = [rng.uniform(-1, 1, s).astype(NUMPY[dtype]) for s in shapes]

    def step(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor, b: wf.Tensor) -> Any:
        flat = wf.matmul(x[0], w)
        follows = wf.nn.relu(wf.matmul(x[1], wf.matrix_transpose(v)) + b)
        return flat, follows, wf.matmul(wf.matrix_transpose(x), x)

    _against_own_kernels(step, args, _rounding(dtype, mode, k), "cuBLASLt", monkeypatch, math=mode)


def _rounding(dtype: str, mode: str, k: int) -> float:
    """Of a sum of k products of numbers below 1 in size: as a share of the largest one."""
    operands = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-10 if mode == "tf32" else 0.0}
    return 4 * (operands[dtype] + 2.0**-23 * k**0.5)


@pytest.mark.parametrize(("kind", "dtype", "mode"), EACH)
def test_convolutions_of_cudnn(
    kind: str, dtype: str, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With what follows, strided and dilated, and their gradients."""
    _use(cudnn, kind, "cuDNN", monkeypatch, tmp_path)
    batch, size, channels, out = (4, 28, 32, 64) if kind == "real" else (1, 4, 2, 3)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (batch, size, size, channels))
    w = rng.uniform(-1, 1, (3, 3, channels, out))
    args = [v.astype(NUMPY[dtype]) for v in (x, w)]

    def step(x: wf.Tensor, w: wf.Tensor) -> Any:
        plain = wf.nn.conv2d(x, w, padding="SAME")
        strided = wf.nn.conv2d(x, w, strides=2, padding="VALID")
        bent = wf.tanh(wf.astype(plain, wf.float32) * 0.1)  # smooth, as a relu is not
        total = wf.sum(bent) + wf.sum(wf.square(wf.astype(strided, wf.float32)))
        return wf.nn.relu(plain), strided, *wf.gradients([total], [x, w])

    rounding = _rounding(dtype, mode, batch * size * size)  # the longest of the sums
    _against_own_kernels(step, args, rounding, "cuDNN", monkeypatch, math=mode)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mlp, Adam", "conv", "attention, Adam"])
def test_programs_with_libraries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training steps as they run where the libraries are installed: they choose what they take."""
    if not (cublaslt.installed() or cudnn.installed()):
        pytest.skip("neither nvmath-python nor cuDNN is installed")
    use_device("real", monkeypatch)
    monkeypatch.delenv("WEFT_GPU_LIBRARIES")
    make, args = PROGRAMS[name]
    there, here = on_gpu(make()), wf.compile(make())
    for _ in range(6):
        made, wanted = pytree.tree_leaves(there(*args)), pytree.tree_leaves(here(*args))
        for got, one in zip(made, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(one), rtol=1e-4, atol=1e-5)
