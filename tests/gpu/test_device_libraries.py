"""cuBLASLt beside weft's own kernels: layouts, choice, cache, errors, recordings - over a library
that is faked on a faked driver (fake_cublaslt.py), and NVIDIA's own descriptors."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_device import use_library, use_no_library
from fake_cublaslt import FakeClock, FakeCublasLt, Offer
from fake_cublaslt import tf32 as rounded
from fake_driver import FakeCompiler
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import GPU_SUPPORT, ROOT, SUPPORT

import weft as wf
from weft.codegen.call import Address
from weft.codegen.llvm.cache import KernelCache
from weft.codegen.products.gemm import Product
from weft.ir import dtypes
from weft.ir.ops.builder import Builder
from weft.ir.types import tensor_type
from weft.runtime.device.backends import registry
from weft.runtime.device.backends.driver import Driver
from weft.runtime.device.execution.executable import DeviceExecutable, compile_for_device
from weft.runtime.device.gemm_conv import gemm_of
from weft.runtime.device.libraries import cublaslt
from weft.runtime.device.libraries.choice import MOST_ALGORITHMS, agree, tolerance
from weft.runtime.device.libraries.cublaslt import CublasLt
from weft.runtime.device.plan import DevicePlan, Place, PlannedProduct
from weft.runtime.device.planning.routes import Way, with_routes

Array = np.ndarray[Any, Any]
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}

Machine = Callable[..., tuple[FakeClock, FakeCublasLt]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """Make /gpu:0 one with a driver and a cuBLASLt, as after the start of a process; the cache on
    disk stays from one to the next."""

    def make(*offers: Offer, **options: Any) -> tuple[FakeClock, FakeCublasLt]:
        api = FakeClock(FakeCompiler())
        library = FakeCublasLt(api, list(offers) or None, **options)
        use_library(api, cublaslt, library, monkeypatch)
        return api, library

    use_no_library(monkeypatch, tmp_path)
    yield make
    gc.collect()


def _dense(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
    return wf.matmul(x, w)


def _inputs(m: int = 6, n: int = 5, k: int = 9, dtype: Any = np.float32) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)


def _explained(function: Any, *args: Any) -> str:
    return str(function.explain(*args))


# ---------------------------------------------------------------------------------------- layouts


@st.composite
def _walks(draw: st.DrawFn, rows: int, columns: int, batch: int) -> tuple[Any, ...]:
    """Strides (row, column, batch) and an offset, in elements: row- or column-major, with gaps."""
    gap = draw(st.integers(0, 3))
    by_rows = draw(st.booleans())
    inner, outer = (columns, rows) if by_rows else (rows, columns)
    pitch = inner + gap
    steps = (pitch, 1) if by_rows else (1, pitch)
    whole = outer * pitch
    stride = draw(st.sampled_from([0, whole, whole + 5])) if batch > 1 else 0
    return (*steps, stride, draw(st.integers(0, 4)))


def _matrix(memory: Array, walk: tuple[Any, ...], k: int, rows: int, columns: int) -> Array:
    row, column, stride, offset = walk
    size = memory.itemsize
    start = memory[offset + k * stride :]
    return np.lib.stride_tricks.as_strided(start, (rows, columns), (row * size, column * size))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_layouts_are_those_of_the_matrices(data: st.DataObject) -> None:
    """Strides, transposes, gaps, batches and offsets, against NumPy's views of the same memory."""
    m, n, k = (data.draw(st.integers(1, 6)) for _ in range(3))
    batch = data.draw(st.sampled_from([1, 1, 2, 3]))
    dtype = data.draw(st.sampled_from(sorted(NUMPY)))
    a_walk, b_walk = data.draw(_walks(m, k, batch)), data.draw(_walks(k, n, batch))
    c_row = n + data.draw(st.integers(0, 2))
    c_at = [3 + i * (m * c_row + 1) for i in range(batch)]
    epilogue = data.draw(st.sampled_from(["none", "bias", "relu", "relu_bias"]))
    mode = data.draw(st.sampled_from(["ieee", "tf32"]))
    a_at, b_at = (tuple([w[3] + i * w[2] for i in range(batch)]) for w in (a_walk, b_walk))
    p = Product(dtype, m, n, k, a_at, b_at, tuple(c_at), a_walk[:2], b_walk[:2], c_row)
    gemm = gemm_of(p, mode, epilogue)
    assert gemm is not None
    api = FakeClock()
    device = registry.CudaDevice(0, FakeCompiler(), Driver(api))
    library = CublasLt(FakeCublasLt(api), 13000, 1 << 20)
    held = [_random(i, 200, dtype) for i in range(4)]
    addresses = _put(device, held)
    (algorithm,) = library.algorithms(gemm, MOST_ALGORITHMS)
    words = np.array(
        [addresses[2] + gemm.d.offset, addresses[1] + gemm.a.offset, addresses[0] + gemm.b.offset,
         addresses[3]], np.int64,
    )  # fmt: skip
    library.prepared(gemm, algorithm, 0)(words, device.stream)
    made = np.empty_like(held[2])
    device.download(made.view(np.uint8), int(addresses[2]))
    wanted = held[2].copy()
    wide = np.float64 if dtype == "f64" else np.float32
    for i in range(batch):
        a = _matrix(held[0], a_walk, i, m, k).astype(wide)
        b = _matrix(held[1], b_walk, i, k, n).astype(wide)
        a, b = (rounded(a), rounded(b)) if gemm.mode == "tf32" else (a, b)
        c = a @ b + (held[3][:n].astype(wide) if "bias" in epilogue else 0)
        c = np.maximum(c, 0) if "relu" in epilogue else c
        _matrix(wanted, (c_row, 1, 0, c_at[i]), 0, m, n)[...] = c.astype(NUMPY[dtype])
    rounding = 4 * float(ml_dtypes.finfo(NUMPY[dtype]).eps)
    got, expected = (v.astype(np.float64) for v in (made, wanted))
    np.testing.assert_allclose(got, expected, rtol=rounding, atol=k * rounding)


def _random(seed: int, size: int, dtype: str) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, size).astype(NUMPY[dtype])


_memory: list[Any] = []


def _put(device: Any, arrays: list[Array]) -> list[int]:
    _memory[:] = [device.allocate(a.nbytes, "a test") for a in arrays]
    for memory, array in zip(_memory, arrays, strict=True):
        device.upload(memory.address, array.view(np.uint8))
    device.synchronize()
    device.begin()
    return [memory.address for memory in _memory]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dtype": "i32"}, "integers"),
        ({"k": 0}, "nothing to add up"),
        ({"a_steps": (12, 2)}, "gaps between neighbours of rows and of columns"),
        ({"a_steps": (2, 1)}, "rows that overlap"),
        ({"a_at": (0, 30, 50)}, "unequal distances"),
        ({"c_at": (0, 10, 20)}, "results that overlap"),
    ],
)
def test_what_libraries_do_not_take(change: dict[str, Any], why: str) -> None:
    p = Product("f32", 4, 5, 6, (0, 24, 48), (0, 30, 60), (0, 20, 40), (6, 1), (5, 1), 5)
    assert gemm_of(p) is not None
    assert gemm_of(replace(p, **change)) is None, why


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("dtype", "batch"), [("f16", ()), ("bf16", (3,)), ("f32", ()), ("f32", (3,)), ("f64", ())]
)
def test_compiled_products_are_those_of_the_cpu(machine: Machine, dtype: str, batch: Any) -> None:
    """Transposes, a shared operand, slices: the whole way from wf.matmul."""
    _, library = machine(Offer(1, 0.001, workspace=4096))
    rng = np.random.default_rng(0)
    x, w, v = (
        rng.standard_normal(s).astype(NUMPY[dtype])
        for s in ((*batch, 6, 7), (*batch, 5, 7), (7, 16))
    )

    def products(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> Any:
        y = wf.matmul(x, wf.matrix_transpose(w))
        return y, wf.matmul(x, v), wf.matmul(wf.matrix_transpose(y), x)

    on_gpu, on_cpu = wf.compile(device="gpu:0")(products), wf.compile(products)
    wanted = on_cpu(x, w, v)
    for _ in range(3):  # asked for one by one, recorded, replayed
        for got, one in zip(on_gpu(x, w, v), wanted, strict=True):
            rounding = 8 * float(ml_dtypes.finfo(NUMPY[dtype]).eps)
            got, one = (np.asarray(t).astype(np.float64) for t in (got, one))
            np.testing.assert_allclose(got, one, rtol=rounding, atol=8 * rounding)
    assert len(library.calls) > 3
    assert "weft's own kernels (" not in _explained(on_gpu, x, w, v)


def test_heads_are_read_where_they_are(machine: Machine) -> None:
    """[position, head, feature], as attention has it."""
    _, library = machine(Offer(1, 0.001))
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((6, 3, 8)).astype(np.float32) for _ in range(2))

    @wf.compile(device="gpu:0")
    def step(q: wf.Tensor, k: wf.Tensor) -> wf.Tensor:
        return wf.matmul(wf.permute_dims(q, (1, 0, 2)), wf.permute_dims(k, (1, 2, 0)))

    for _ in range(2):
        wanted = np.einsum("ihf,jhf->hij", q, k)
        np.testing.assert_allclose(step(q, k), wanted, rtol=1e-5, atol=1e-5)
    assert library.calls[-1] == ("6x6 epilogue 1", 1)


def test_offsets_of_matrices_are_part_of_their_places(machine: Machine) -> None:
    machine()
    on_gpu = wf.compile(device="gpu:0")(_dense)
    on_gpu(*_inputs())
    (product,) = _plans(_dense)[0].products()
    gemm = gemm_of(Product("f32", 4, 5, 6, (3,), (7,), (11,), (6, 1), (5, 1), 5))
    assert gemm is not None
    assert [x.alignment for x in (gemm.a, gemm.b, gemm.d)] == [4, 4, 4]
    op = product.op
    way = Way(gemm, (Address(op.result), Address(op.operands[1]), Address(op.operands[0])))
    whole = Place("arena", 0, 64, 400)
    ((made,), nbytes) = with_routes(op, product.own, [way], lambda _: whole)
    assert isinstance(made, PlannedProduct)
    assert [str(place) for place in made.routes[0].args] == ["arena+108", "arena+92", "arena+76"]
    assert nbytes == 0


def test_a_fold_that_follows_has_scratch_memory_of_its_own(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.001))
    rng = np.random.default_rng(0)
    shapes = ((300, 16), (16, 48), (300, 48))
    x, w, r = (rng.standard_normal(s).astype(np.float32) for s in shapes)

    @wf.compile(device="gpu:0")
    def folded(x: wf.Tensor, w: wf.Tensor, r: wf.Tensor) -> Any:
        y = wf.matmul(x, w) * r
        return y, wf.sum(y, axis=0)

    y = (x @ w) * r
    for _ in range(2):
        made, total = folded(x, w, r)
        np.testing.assert_allclose(made, y, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(total, y.sum(0), rtol=1e-3, atol=1e-4)
    (product,) = _plans(folded)[0].products()
    (route,) = product.routes
    assert len(route.after) == 2
    assert route.args[0].offset > 0  # after what the fold has there
    assert library.calls[-1] == ("48x300 epilogue 1", 1)


def _plans(step: Any) -> list[DevicePlan]:
    gc.collect()
    held = (o for o in gc.get_objects() if isinstance(o, DeviceExecutable))
    return [one.plan for one in held if one.name == step.__name__]


# ----------------------------------------------------------------------------------------- choice


def test_the_fastest_is_chosen_and_all_times_are_told(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.5), Offer(2, 0.25, parts=4, scheme=2), Offer(3, 0.4))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    text = _explained(on_gpu, x, w)
    assert "cuBLASLt algorithm 2 tile 20 stages 5, k in 4 parts (measured" in text
    assert "weft's own kernels: 1000.0 us" in text
    for line in ("algorithm 1 tile 20 stages 5: 500.0 us", "algorithm 3 tile 20 stages 5: 400.0"):
        assert line in text
    assert library.calls[-1][1] == 2


def test_own_kernels_are_chosen_where_they_are_faster(machine: Machine) -> None:
    api, library = machine(Offer(1, 1.5))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    on_gpu(x, w)
    tried, done = len(library.calls), len(api.calls)
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    assert len(library.calls) == tried
    assert [c for c in api.calls[done:] if c.startswith("launch matmul")]
    assert "weft's own kernels (measured" in _explained(on_gpu, x, w)


def test_what_computes_something_else_is_not_taken(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine(Offer(1, 0.001, wrong=True), Offer(2, 0.5))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    with caplog.at_level(logging.WARNING, "weft.compile"):
        np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    assert "its results are not those of weft's own kernels" in caplog.text
    text = _explained(on_gpu, x, w)
    assert "algorithm 1 tile 20 stages 5: its results are not those of weft's own" in text
    assert "cuBLASLt algorithm 2 tile 20 stages 5 (measured" in text
    assert "libraries: cuBLASLt 13.1.2" in text


def test_nan_hides_no_wrong_results(machine: Machine) -> None:
    """The NaN that ways are tried with is in all sums over the rows."""
    machine(Offer(1, 0.001, wrong=True))
    x, w = _inputs(300, 64, 64)
    on_gpu = wf.compile(device="gpu:0")(lambda x, w: wf.sum(wf.matmul(x, w) * 0.5, axis=0))
    on_gpu(x, w)
    text = _explained(on_gpu, x, w)
    assert "columns: its results are not those of weft's own kernels" in text


def test_an_algorithm_that_the_library_refuses_to_run_is_not_taken(machine: Machine) -> None:
    machine(Offer(1, 0.001, status=15), Offer(2, 0.5))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    assert "cuBLASLt algorithm 2 tile 20 stages 5 (measured" in _explained(on_gpu, x, w)


def test_only_reductions_in_order_are_taken(machine: Machine) -> None:
    """In place sums, and partial sums in the results' dtype, are refused, offered or not."""
    _, library = machine(Offer(1, 0.001, parts=4, scheme=1), Offer(2, 0.001, scheme=4), obeys=False)
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    on_gpu(x, w)
    assert not library.calls
    assert "the library has no algorithm for it" in _explained(on_gpu, x, w)
    _, library = machine(Offer(1, 0.001, scheme=1), Offer(2, 0.5, scheme=2))
    wf.compile(device="gpu:0")(_dense)(x, w)
    assert {number for _, number in library.calls} == {2}


def test_the_choice_is_kept_for_other_processes(machine: Machine) -> None:
    offers = Offer(1, 0.5), Offer(2, 0.2)
    x, w = _inputs()
    machine(*offers)
    wf.compile(device="gpu:0")(_dense)(x, w)
    api, library = machine(Offer(1, 0.1), offers[1])  # a day on which 1 would be faster
    on_gpu = wf.compile(device="gpu:0")(_dense)
    on_gpu(x, w)
    assert library.calls == [("5x6 epilogue 1", 2)]  # not tried again: one call, one product
    assert not library.asked
    assert not any(call.startswith("launch") for call in api.calls)
    assert "measured, and kept in the cache" in _explained(on_gpu, x, w)


@pytest.mark.parametrize(
    "change", [{"version": 130203}, {"offers": [Offer(1, 0.1), Offer(7, 0.2)]}]
)
def test_a_choice_is_of_one_version_and_of_algorithms_that_there_are(
    machine: Machine, change: dict[str, Any]
) -> None:
    x, w = _inputs()
    machine(Offer(1, 0.5), Offer(2, 0.2))
    wf.compile(device="gpu:0")(_dense)(x, w)
    offers = change.pop("offers", [Offer(1, 0.1), Offer(2, 0.2)])
    _, library = machine(*offers, **change)
    wf.compile(device="gpu:0")(_dense)(x, w)
    assert library.asked == 1


def test_without_a_cache_nothing_depends_on_the_clock(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    _, library = machine(Offer(1, 0.5), Offer(2, 0.2))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    assert {number for _, number in library.calls} == {1}
    assert "not measured: there is no cache to keep the choice in" in _explained(on_gpu, x, w)


@pytest.mark.parametrize("offers", [[Offer(1, 0.5, wrong=True)], [Offer(1, 0.5, status=15)]])
def test_what_is_not_measured_is_right_all_the_same(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, offers: list[Offer]
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    x, w = _inputs()
    _, library = machine(*offers, Offer(2, 0.2))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    assert library.calls[-1][1] == 2
    machine(*offers)
    on_gpu = wf.compile(device="gpu:0")(_dense)
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    assert "weft's own kernels (the library has none that" in _explained(on_gpu, x, w)


def test_a_choice_that_cannot_be_kept_is_one_that_is_right(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelCache, "store_record", lambda *_: None)
    machine(Offer(1, 0.1, wrong=True), Offer(2, 0.3), Offer(3, 0.2))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    text = _explained(on_gpu, x, w)
    assert "algorithm 2 tile 20 stages 5 (not kept: the cache cannot be written)" in text


def test_what_is_kept_and_of_no_use_is_kept_anew(machine: Machine) -> None:
    """A choice whose algorithm the library refuses by now is replaced, not tried again for ever."""
    x, w = _inputs()
    machine(Offer(1, 0.5), Offer(2, 0.2))
    wf.compile(device="gpu:0")(_dense)(x, w)
    for asked in (1, 0):
        _, library = machine(Offer(1, 0.1), Offer(7, 0.05))
        on_gpu = wf.compile(device="gpu:0")(_dense)
        on_gpu(x, w)
        assert library.asked == asked
        assert "algorithm 7 tile 20 stages 5 (measured, and kept" in _explained(on_gpu, x, w)


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_a_damaged_choice_is_made_anew(machine: Machine, tmp_path: Path, cut: int) -> None:
    x, w = _inputs()
    machine(Offer(1, 0.5))
    wf.compile(device="gpu:0")(_dense)(x, w)
    (file,) = tmp_path.rglob("*.choice")
    file.write_bytes(file.read_bytes()[:cut])
    _, library = machine(Offer(1, 0.5))
    np.testing.assert_allclose(wf.compile(device="gpu:0")(_dense)(x, w), x @ w, rtol=1e-5)
    assert library.asked == 1


@pytest.mark.parametrize("cache", ["1", "0"])
def test_without_memory_to_try_nothing_of_the_library_is_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    """What was not tried may have a relu of its own; weft's kernels need no workspace."""
    monkeypatch.setenv("WEFT_CACHE", cache)
    allocate = registry.CudaDevice.allocate

    def short(self: Any, nbytes: int, what: str, early: bool = False) -> Any:
        if "trying" in what:
            raise wf.errors.ResourceExhaustedError("none left")
        return allocate(self, nbytes, what, early)

    _, library = machine(Offer(1, 0.001, drops_nan=True, workspace=1 << 20))
    monkeypatch.setattr(registry.CudaDevice, "allocate", short)
    x, w = _inputs()
    x[2, 3] = np.nan
    on_gpu = wf.compile(device="gpu:0")(lambda x, w: wf.nn.relu(wf.matmul(x, w)))
    assert np.isnan(np.asarray(on_gpu(x, w))[2]).all()
    assert not library.calls
    text = _explained(on_gpu, x, w)
    assert "weft's own kernels (not tried: there is no memory for that)" in text


def test_a_kept_algorithm_without_memory_for_its_workspace(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else takes its place: that would have other bits. The error says what helps."""
    allocate = registry.CudaDevice.allocate

    def short(self: Any, nbytes: int, what: str, early: bool = False) -> Any:
        if "workspace" in what:
            raise wf.errors.ResourceExhaustedError("none left", hint="take less")
        return allocate(self, nbytes, what, early)

    x, w = _inputs()
    for kept in (False, True):  # what is kept is not tried
        machine(Offer(1, 0.001, workspace=1 << 16))
        on_gpu = wf.compile(device="gpu:0")(_dense)
        with monkeypatch.context() as patch:
            if kept:
                patch.setattr(registry.CudaDevice, "allocate", short)
                with pytest.raises(wf.errors.ResourceExhaustedError, match=r"(?s)none left.*take "
                                   r"less; WEFT_GPU_LIBRARIES=0: weft's own kernels"):  # fmt: skip
                    on_gpu(x, w)
        np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-4, atol=1e-5)


def test_the_workspace_is_one_for_all_threads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings and descriptors keep its address: a second one would free what they write to."""
    sizes = range(3, 9)
    for _ in range(2):  # what is kept is not tried: each thread is the first to need it
        _, _ = machine(Offer(1, 0.001, workspace=1 << 16))
        allocate, made = registry.CudaDevice.allocate, []

        def slow(
            self: Any, nbytes: int, what: str, early: bool = False, made: Any = made,
            allocate: Any = allocate,
        ) -> Any:  # fmt: skip
            if "workspace" in what:
                made.append(what)
                time.sleep(0.05)
            return allocate(self, nbytes, what, early)

        with monkeypatch.context() as patch:
            patch.setattr(registry.CudaDevice, "allocate", slow)

            def call(k: int) -> None:
                x, w = _inputs(k=k)
                made = wf.compile(device="gpu:0")(_dense)(x, w)
                np.testing.assert_allclose(made, x @ w, rtol=1e-4, atol=1e-5)

            with ThreadPoolExecutor(len(sizes)) as pool:
                list(pool.map(call, sizes))
        assert len(made) == 1


def test_a_product_is_measured_once_in_a_process(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.2))
    x, w = _inputs()
    wf.compile(device="gpu:0")(_dense)(x, w)
    tried = len(library.calls)
    wf.compile(device="gpu:0")(lambda x, w: wf.matmul(x, w))(x, w)
    assert library.asked == 1
    assert len(library.calls) == tried + 1
    x, w = _inputs(k=10)
    wf.compile(device="gpu:0")(_dense)(x, w)
    assert library.asked == 2


def test_trying_writes_no_variable_and_gives_its_memory_back(machine: Machine) -> None:
    api, _ = machine(Offer(1, 0.2, workspace=512))
    x, w = _inputs(5, 5, 5)
    v = wf.Variable(x, name="v")

    @wf.compile(device="gpu:0")
    def step(w: wf.Tensor) -> None:
        v.assign(wf.matmul(v.read(), w))

    step(w)
    np.testing.assert_allclose(np.asarray(v.read()), x @ w, rtol=1e-5)
    step(w)
    np.testing.assert_allclose(np.asarray(v.read()), x @ w @ w, rtol=1e-4)
    held = registry.gpu(0).resident.describe()
    assert "trying" not in held
    assert "cuBLASLt's workspace (33,554,432 bytes)" in held
    del api


# -------------------------------------------------------------------------------- what follows it

FOLLOWS: dict[str, tuple[Callable[..., Any], str]] = {
    "bias": (lambda y, b, r: y + b, "epilogue 4"),
    "relu": (lambda y, b, r: wf.nn.relu(y), "epilogue 2"),
    "bias, relu": (lambda y, b, r: wf.nn.relu(y + b), "epilogue 6"),
    "bias, maximum": (lambda y, b, r: wf.maximum(b + y, 0.0), "epilogue 6"),
    "relu, bias": (lambda y, b, r: wf.nn.relu(y) + b, "epilogue 1"),
    "column": (lambda y, b, r: y + r[..., :1], "epilogue 1"),
    "residual": (lambda y, b, r: y + r, "epilogue 1"),
    "gelu": (lambda y, b, r: wf.nn.gelu(y + b), "epilogue 1"),
    "scale": (lambda y, b, r: y * 0.5, "epilogue 1"),
    "transposed": (lambda y, b, r: wf.matrix_transpose(y), "epilogue 1"),
    "bias, transposed": (lambda y, b, r: wf.matrix_transpose(y + b), "epilogue 4"),
    "sums of columns": (lambda y, b, r: (y * r, wf.sum(y * r, axis=-2)), "epilogue 1"),
    "two": (lambda y, b, r: (wf.nn.relu(y + b), y * r), "epilogue 1"),
}


@pytest.mark.parametrize(
    ("name", "batch"),
    [*((name, ()) for name in sorted(FOLLOWS)), ("bias, relu", (2,)), ("transposed", (2,))],
)
def test_what_follows_is_done_by_the_library_or_after_it(
    machine: Machine, name: str, batch: Any
) -> None:
    follow, epilogue = FOLLOWS[name]
    _, library = machine(Offer(1, 0.001))
    rng = np.random.default_rng(0)
    shapes = ((*batch, 6, 9), (*batch, 9, 5), (5,), (*batch, 6, 5))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    if not name.startswith("sum"):
        arrays[0][..., 2, 3] = np.nan

    def step(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, r: wf.Tensor) -> Any:
        return follow(wf.matmul(x, w), b, r)

    on_gpu, on_cpu = wf.compile(device="gpu:0")(step), wf.compile(step)
    wanted = on_cpu(*arrays)
    for k in range(3):
        done = len(library.calls)
        got = on_gpu(*arrays)
        for one, other in zip(_tuple(got), _tuple(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-5)
        if k == 1:  # recorded: asked for once more
            ((call, _),) = library.calls[done:]
            assert call.endswith(epilogue)


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def test_a_relu_that_makes_zeros_of_nan_is_not_taken(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.001, drops_nan=True))
    x, w = _inputs()
    x[2, 3] = np.nan
    on_gpu = wf.compile(device="gpu:0")(lambda x, w: wf.nn.relu(wf.matmul(x, w)))
    for _ in range(2):
        assert np.isnan(np.asarray(on_gpu(x, w))[2]).all()
    text = _explained(on_gpu, x, w)
    assert "algorithm 1 tile 20 stages 5: its results are not those of weft's own kernels" in text
    assert library.calls[-1][0] == "5x6 epilogue 1"  # a kernel follows it


@pytest.mark.parametrize("cache", ["1", "0"])
@pytest.mark.parametrize("constant", ["neither", "a", "b"])
def test_nan_is_tried_wherever_it_may_come_from(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, constant: str, cache: str
) -> None:
    monkeypatch.setenv("WEFT_CACHE", cache)
    machine(Offer(1, 0.001, drops_nan=True))
    x, w = _inputs()
    held = {"a": x.copy(), "b": w.copy()}
    given = x.copy(), w.copy()
    given[0][2, 3] = given[1][3, 1] = np.nan

    def step(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        x = wf.constant(held["a"]) if constant == "a" else x
        return wf.nn.relu(wf.matmul(x, wf.constant(held["b"]) if constant == "b" else w))

    wanted = np.asarray(wf.compile(step)(*given))
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(wf.compile(device="gpu:0")(step)(*given), wanted, rtol=1e-4)


def test_half_precision_is_rounded_before_what_follows(machine: Machine) -> None:
    """A bias is added by a kernel, which reads the product in bf16, as the CPU does."""
    _, library = machine(Offer(1, 0.001))
    rng = np.random.default_rng(3)
    x, w, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((16, 32), (32, 8), (8,)))
    for name, epilogue in (("bias", "1"), ("bias, relu", "1"), ("relu", "2")):
        follow = FOLLOWS[name][0]

        def step(
            x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, follow: Callable[..., Any] = follow
        ) -> Any:
            return follow(wf.matmul(x, w), b, None)

        got, wanted = (
            np.asarray(f(x, w, b)).astype(np.float32)
            for f in (wf.compile(device="gpu:0")(step), wf.compile(step))
        )
        np.testing.assert_allclose(got, wanted, rtol=2.0**-6, atol=2.0**-5)
        assert library.calls[-1][0] == f"8x16 epilogue {epilogue}"


def test_tf32_is_for_those_who_ask(machine: Machine) -> None:
    x, w = _inputs(8, 8, 64)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    errors = []
    for mode, compute in (("ieee", 69), ("tf32", 77)):
        _, library = machine(Offer(1, 0.001))
        on_gpu = wf.compile(device="gpu:0", math=mode)(_dense)
        errors.append(np.abs(np.asarray(on_gpu(x, w)) - exact).max())
        assert set(library.computes) == {compute}
        assert f"8 x 8 x 64, f32 ({mode})" in _explained(on_gpu, x, w)
    assert errors[0] < 1e-5 < errors[1] < 1e-1


def test_one_plan_for_many_sizes_has_the_layouts_of_each(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.001))

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        y = wf.nn.gelu(wf.matmul(x, w) + b)
        return wf.matmul(wf.matrix_transpose(y), x)

    on_cpu = wf.compile(step.__wrapped__)
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((7, 5)).astype(np.float32), np.ones(5, np.float32)
    for rows in (6, 9, 13, 9, 20):
        x = rng.standard_normal((rows, 7)).astype(np.float32)
        np.testing.assert_allclose(step(x, w, b), on_cpu(x, w, b), rtol=1e-4, atol=1e-4)
        assert library.calls[-2:] == [(f"5x{rows} epilogue 1", 1), ("7x5 epilogue 1", 1)]


# --------------------------------------------------------------------------------- what may be set


def test_own_kernels_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    _, library = machine(Offer(1, 0.001))
    monkeypatch.setenv("WEFT_GPU_LIBRARIES", "0")
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    assert not library.calls
    assert not library.held
    assert "libraries: weft's own kernels do all products: WEFT_GPU_LIBRARIES=0" in _explained(
        on_gpu, x, w
    )
    monkeypatch.setenv("WEFT_GPU_LIBRARIES", "yes")
    with pytest.raises(wf.errors.InvalidArgumentError, match="WEFT_GPU_LIBRARIES is 0 or 1, not"):
        wf.compile(device="gpu:0")(_dense)(x, w)


MISSING = {
    "not installed": ({}, "the package nvmath-python is not installed"),
    "too old": ({"version": 110801}, "cuBLASLt 11.8.1 is too old: weft needs 12.0 or later"),
    "too new": (
        {"version": 140000, "release": 14000},
        "cuBLASLt 14.0.0 is of CUDA 14, the NVIDIA driver runs CUDA 13.0",
    ),
}


@pytest.mark.parametrize("name", sorted(MISSING))
def test_a_library_that_cannot_be_used_is_told_of(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options, text = MISSING[name]
    load = cublaslt.load
    _, library = machine(Offer(1, 0.001), **options)
    if not options:
        monkeypatch.setattr(cublaslt, "load", load)
        monkeypatch.setattr(cublaslt, "installed", lambda: False)
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)
    assert f"libraries: weft's own kernels do all products: {text}" in _explained(on_gpu, x, w)
    monkeypatch.setenv("WEFT_GPU_LIBRARIES", "1")
    with pytest.raises(wf.errors.ToolchainError) as caught:
        wf.compile(device="gpu:0")(_dense)(x, w)
    assert f"WEFT_GPU_LIBRARIES=1, but {text}" in str(caught.value)
    assert "hint: " in str(caught.value)
    assert "test_device_libraries.py" in str(caught.value)
    assert not library.calls


def test_a_library_that_does_not_load_says_what_its_loader_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError("Failed to dlopen libcublasLt.so.13\nand more")

    monkeypatch.setattr(cublaslt, "installed", lambda: True)
    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(wf.errors.ToolchainError) as caught:
        cublaslt.load()
    said = str(caught.value)
    assert "cuBLASLt cannot be loaded: Failed to dlopen libcublasLt.so.13\n" in said
    assert "pip install 'weft[cublas]'" in said


def test_planning_asks_for_no_routes_where_nothing_is_installed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernels are an eighth of planning."""
    machine()
    x, w = _inputs()
    for there in (True, False):
        monkeypatch.setattr(cublaslt, "installed", lambda there=there: there)
        step = wf.compile(device="gpu:0")(_dense)
        step(x, w)
        assert [len(p.routes) for p in _plans(_dense)[0].products()] == [int(there)]
        del step
    builder = Builder([tensor_type(dtypes.float32, *v.shape) for v in (x, w)])
    made = builder.emit1("tanh", builder.emit1("matmul", *builder.args))
    graph = builder.graph("step", ["x", "w"], [made])
    for ahead in (False, True):  # the machine that it is for may have one
        plan = compile_for_device(graph, find=lambda: registry.gpu(0), ahead=ahead).plan
        assert len(plan.kernels_after()) == int(ahead)


def test_the_emulated_device_has_none_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    monkeypatch.setattr(cublaslt, "load", lambda: pytest.fail("loaded"))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    x, w = _inputs()
    on_gpu(x, w)
    assert "libraries: weft's own kernels do all products: the device is emulated" in _explained(
        on_gpu, x, w
    )
    assert "nvmath" not in sys.modules


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (1, wf.errors.FailedPreconditionError), (3, wf.errors.ResourceExhaustedError),
        (7, wf.errors.InternalError), (8, wf.errors.UnsupportedError),
        (11, wf.errors.InternalError), (13, wf.errors.InternalError),
        (14, wf.errors.InternalError), (15, wf.errors.UnsupportedError),
        (16, wf.errors.FailedPreconditionError),
    ],
)  # fmt: skip
def test_each_status_is_an_error_at_the_users_line(
    machine: Machine, status: int, error: type[Exception]
) -> None:
    x, w = _inputs()
    _, library = machine(Offer(1, 0.001))
    on_gpu = wf.compile(device="gpu:0")(_dense)
    on_gpu(x, w)
    library.failing["matmul"] = status
    with pytest.raises(error) as caught:
        on_gpu(x, w)
    text = str(caught.value)
    assert f"cuBLASLt's matmul failed: it went wrong (STATUS {status})." in text
    assert "You can set" not in text
    assert "test_device_libraries.py" in text
    del library.failing["matmul"]
    np.testing.assert_allclose(on_gpu(x, w), x @ w, rtol=1e-5)


def test_a_failure_while_ways_are_tried_is_an_error(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.001))
    library.failing["matmul_desc_create"] = 3
    with pytest.raises(wf.errors.ResourceExhaustedError, match="matmul_desc_create failed"):
        wf.compile(device="gpu:0")(_dense)(*_inputs())


def test_no_handle_is_an_error(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.001))
    library.failing["create"] = 1
    on_gpu = wf.compile(device="gpu:0")(_dense)
    for _ in range(2):  # an error each time, not weft's own kernels from then on
        with pytest.raises(wf.errors.FailedPreconditionError, match="cuBLASLt's create failed"):
            on_gpu(*_inputs())
    del library.failing["create"]
    on_gpu(*_inputs())
    assert library.calls


# ------------------------------------------------------------------------------------- recordings


def test_products_are_part_of_a_recorded_step(machine: Machine) -> None:
    api, library = machine(Offer(1, 0.001, workspace=1 << 16))
    x, w = _inputs()

    @wf.compile(device="gpu:0")
    def two(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.matmul(wf.matmul(x, w), wf.matrix_transpose(w))

    two(x, w)
    before = len(library.calls)
    two(x, w)  # recorded: asked for once more
    assert len(library.calls) == before + 2
    done = len(api.calls)
    for k in range(3):
        given = x + np.float32(k)
        np.testing.assert_allclose(two(given, w), given @ w @ w.T, rtol=1e-4)
    assert len(library.calls) == before + 2
    assert api.calls[done:].count("graph") == 3


def test_products_in_loops_follow_their_rows(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.001))
    w = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32) / 4
    xs = np.random.default_rng(2).standard_normal((5, 4, 8)).astype(np.float32)

    def run(xs: wf.Tensor, w: wf.Tensor) -> Any:
        def body(carry: wf.Tensor, x: wf.Tensor) -> Any:
            made = wf.matmul(wf.tanh(carry) + x, w)
            return made, made

        return wf.scan(body, init=wf.zeros((4, 8)), xs=xs)

    on_gpu, on_cpu = wf.compile(device="gpu:0")(run), wf.compile(run)
    for k in range(4):
        got, wanted = on_gpu(xs + np.float32(k), w), on_cpu(xs + np.float32(k), w)
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)
    assert library.calls


def test_descriptors_go_with_the_plans_that_they_are_of(machine: Machine) -> None:
    _, library = machine(Offer(1, 0.001))
    x, w = _inputs()
    wf.compile(device="gpu:0")(_dense)(x, w)
    gc.collect()
    left = len(library.held)
    for _ in range(5):
        wf.compile(device="gpu:0")(_dense)(x, w)
        gc.collect()
    assert len(library.held) == left


# -------------------------------------------------------------------------------------- agreement


def test_what_is_rounding_and_what_is_not() -> None:
    gemm = gemm_of(Product("f32", 64, 64, 256, (0,), (0,), (0,), (256, 1), (64, 1), 64))
    assert gemm is not None
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (64, 256)), rng.uniform(-1, 1, (256, 64))
    exact = a @ b

    def same(x: Array, y: Array, allowed: float) -> bool:
        a, b = (np.asarray(v, np.float32).reshape(-1).view(np.uint8) for v in (x, y))
        return agree("f32", a, b, allowed)

    tf32 = gemm_of(Product("f32", 64, 64, 256, (0,), (0,), (0,), (256, 1), (64, 1), 64), "tf32")
    assert tf32 is not None
    cut = rounded(a) @ rounded(b)
    assert same(exact, (a.astype("f") @ b.astype("f")), tolerance(gemm))
    assert same(exact, cut, tolerance(tf32))
    assert not same(exact, cut, tolerance(gemm))  # tf32 where ieee is asked for
    assert not same(exact, exact.T, tolerance(tf32))
    nan = exact.copy()
    nan[3] = np.nan
    assert same(nan, nan, tolerance(gemm))
    assert not same(nan, np.maximum(nan, 0), tolerance(gemm)) or (nan >= 0).all()
    assert not same(nan, np.nan_to_num(nan), tolerance(tf32))


def test_what_is_no_float_may_differ_where_rounding_decides() -> None:
    x = np.zeros(1000, bool)
    y = x.copy()
    y[:30] = True
    assert agree("bool", x.view(np.uint8), y.view(np.uint8), 0.0)
    y[:100] = True
    assert not agree("bool", x.view(np.uint8), y.view(np.uint8), 0.0)
    numbers = np.arange(1000, dtype=np.int64)
    assert not agree("i64", numbers.view(np.uint8), (numbers + 1).view(np.uint8), 0.0)
    empty = np.empty(0, np.uint8)
    assert agree("f32", empty, empty, 0.0)
    assert agree("i32", empty, empty, 0.0)


# ----------------------------------------------------------------------------- NVIDIA's own library


@pytest.mark.slow
def test_the_real_library_takes_the_descriptors(tmp_path: Path) -> None:
    """What weft sets is what NVIDIA's cuBLASLt has then: that needs no GPU."""
    gcc, found = shutil.which("gcc") or shutil.which("cc"), importlib.util.find_spec("nvmath")
    if gcc is None or found is None:
        pytest.skip("needs a C compiler and weft[cublas] with nvidia-cublas")
    library = tmp_path / "libcuda.so.1"
    source = tmp_path / "libcuda.c"
    source.write_text("int cuDriverGetVersion(int *v) { *v = 13000; return 0; }\n")
    built = [gcc, "-shared", "-fPIC", "-o", str(library), str(source), "-Wl,-soname,libcuda.so.1"]
    subprocess.run(built, check=True, timeout=60)
    path = os.pathsep.join(map(str, (GPU_SUPPORT, SUPPORT, ROOT)))
    done = subprocess.run(
        [sys.executable, "-P", str(GPU_SUPPORT / "real_cublaslt.py")],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")
