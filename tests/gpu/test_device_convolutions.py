"""cuDNN beside weft's own kernels: layouts, choice, cache, errors, recordings - over a library that
is faked on a faked driver (fake_cudnn.py), and NVIDIA's own plans for GPUs it is told of."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_device import use_library, use_no_library
from fake_cublaslt import FakeClock
from fake_cudnn import FFT, NONDETERMINISTIC, TENSOR_CORE, WINOGRAD, Engine, FakeCudnn
from fake_driver import FakeCompiler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import GPU_SUPPORT, ROOT, SUPPORT

import weft as wf
from weft.ir import dtypes
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import tensor_type
from weft.runtime.device.backends import registry
from weft.runtime.device.execution.executable import compile_for_device
from weft.runtime.device.execution.size_plan import DeviceSizePlan
from weft.runtime.device.gemm_conv import conv_of
from weft.runtime.device.libraries import choice, cudnn, cudnn_api
from weft.runtime.device.plan import PlannedLaunch

Array = np.ndarray[Any, Any]
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
Machine = Callable[..., tuple[FakeClock, FakeCudnn]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """Make /gpu:0 one with a driver and a cuDNN, as after the start of a process; the cache on disk
    stays from one to the next."""

    def make(*engines: Engine, **options: Any) -> tuple[FakeClock, FakeCudnn]:
        api = FakeClock(FakeCompiler())
        library = FakeCudnn(api, list(engines) or None, **options)
        use_library(api, cudnn, library, monkeypatch)
        return api, library

    use_no_library(monkeypatch, tmp_path)
    yield make
    gc.collect()


def _conv(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
    return wf.nn.conv2d(x, w, strides=1, padding="SAME")


def _inputs(size: int = 5, inside: int = 2, outside: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, size, 4, inside)), rng.standard_normal((3, 3, inside, outside))
    return x.astype(np.float32), w.astype(np.float32)


def _explained(function: Any, *args: Any) -> str:
    return str(function.explain(*args))


def _close(got: Any, wanted: Any, dtype: str = "f32", k: int = 64) -> None:
    rounding = 8 * float(ml_dtypes.finfo(NUMPY[dtype]).eps)
    got, wanted = (np.asarray(v).astype(np.float64) for v in (got, wanted))
    np.testing.assert_allclose(got, wanted, rtol=rounding, atol=k * rounding)


# ---------------------------------------------------------------------------------------- layouts


@st.composite
def _geometries(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]], dict[str, Any]]:
    """An op, the shapes of its operands, its attributes: padding, cropped windows, gaps between
    taps, results of sizes that no padding gives."""
    kind = draw(st.sampled_from(["conv", "conv_input", "conv_kernel"]))
    axes = draw(st.sampled_from([1, 2, 2, 3]))

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple([draw(st.integers(low, high)) for _ in range(axes)])

    window, strides, dilation, lo = some(1, 3), some(1, 2), some(1, 2), some(0, 2)
    large = some(1, 5)
    rows = zip(large, window, strides, dilation, lo, some(-1, 2), strict=True)
    small = tuple(
        [max((n + p + more - (k - 1) * d - 1) // s + 1, 1) for n, k, s, d, p, more in rows]
    )
    batch, groups = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2]))
    inside, outside = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x, y = (batch, *large, inside * groups), (batch, *small, outside * groups)
    w = (*window, inside, outside * groups)
    shapes = {"conv": [x, w], "conv_input": [y, w], "conv_kernel": [x, y]}[kind]
    size = {"conv": small, "conv_input": large, "conv_kernel": window}[kind]
    attrs = {"strides": strides, "dilation": dilation, "lo": lo, "groups": groups, "size": size}
    return kind, shapes, attrs


def _graph(kind: str, shapes: list[tuple[int, ...]], dtype: str, attrs: dict[str, Any]) -> Any:
    held = dtypes.as_dtype({"f16": "float16", "bf16": "bfloat16", "f32": "float32"}[dtype])
    builder = Builder([tensor_type(held, *shape) for shape in shapes])
    made = builder.emit1(kind, *builder.args, **attrs)
    return builder.graph("step", ["a", "b"], [made])


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(_geometries(), st.sampled_from(["f32", "f32", "f16", "bf16"]), st.booleans())
def test_layouts_are_those_of_the_convolution(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, drawn: Any, dtype: str, infinite: bool
) -> None:
    """Strides, padding, gaps, groups against the interpreter; an infinity beyond an edge takes no
    part."""
    kind, shapes, attrs = drawn
    monkeypatch.setenv("WEFT_CACHE", "0")  # one example is not to know another's choice
    _, library = machine(Engine(1, 0.001))
    graph = _graph(kind, shapes, dtype, attrs)
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(NUMPY[dtype]) for shape in shapes)
    if infinite:
        b.reshape(-1)[0] = np.inf
    with np.errstate(invalid="ignore"):
        (wanted,) = interpret(graph, [a, b])
    step = compile_for_device(graph, find=lambda: registry.gpu(0))
    (got,) = step.run([a, b])
    got, wanted = (np.asarray(v).astype(np.float64) for v in (got, wanted))
    rounding = 8 * float(ml_dtypes.finfo(NUMPY[dtype]).eps)
    np.testing.assert_allclose(got, wanted, rtol=rounding, atol=64 * rounding)
    routes = [route for product in step.plan.products() for route in product.routes]
    assert len(routes) == (conv_of(graph.ops[0], "ieee") is not None)
    assert bool(library.calls) == bool(routes)
    told = "\n".join(registry.gpu(0).libraries.describe(step.plan.products()))
    assert "weft's own kernels (" not in told  # what was tried is right, NaN included


def test_what_cudnn_does_not_take() -> None:
    def taken(dtype: str = "float32", small: int = 5, lo: int = 1, channels: int = 2) -> bool:
        held = dtypes.as_dtype(dtype)
        shapes = ((1, 5, 5, channels), (3, 3, channels, 3))
        builder = Builder([tensor_type(held, *shape) for shape in shapes])
        walk = {"strides": (1, 1), "dilation": (1, 1), "lo": (lo, lo), "size": (small, small)}
        made = builder.emit1("conv", *builder.args, groups=1, **walk)
        return conv_of(builder.graph("step", ["x", "w"], [made]).ops[0], "ieee") is not None

    assert taken()
    assert taken(small=6)  # zeros after the end are padding
    assert not taken("float64"), "cuDNN has but slow ways"
    assert not taken("int32"), "integers"
    assert not taken(small=3), "a result that is cut off"
    assert not taken(lo=-1, small=2), "padding of less than nothing"
    assert not taken(channels=0), "nothing to add up"


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_compiled_convolutions_are_those_of_the_cpu(machine: Machine, dtype: str) -> None:
    """With what follows them, and their gradients: the whole way from wf.nn.conv2d."""
    _, library = machine(Engine(1, 0.001, workspace=1000))
    x, w = (v.astype(NUMPY[dtype]) for v in _inputs())

    def step(x: wf.Tensor, w: wf.Tensor) -> Any:
        y = wf.nn.relu(wf.nn.conv2d(x, w, strides=2, padding="SAME") + 1)
        return y, *wf.gradients([wf.sum(y * y)], [x, w])

    on_gpu = wf.compile(device="gpu:0")(step)
    wanted = wf.compile(step)(x, w)
    for _ in range(3):  # asked for one by one, recorded, replayed
        for got, one in zip(on_gpu(x, w), wanted, strict=True):
            _close(got, one, dtype)
    assert {kind for kind, _ in library.calls} == set(KINDS)
    text = _explained(on_gpu, x, w)
    assert "libraries: cuDNN 9.28.0\n" in text
    assert text.count("cuDNN engine 1") >= 6
    assert "weft's own kernels (" not in text


@pytest.mark.parametrize("transposed", [False, True])
def test_what_follows_a_convolution_reads_it_from_scratch_memory(
    machine: Machine, transposed: bool
) -> None:
    """With an infinity in the filter, which takes no part beyond the edges."""
    _, library = machine(Engine(1, 0.001))
    x, w = _inputs(8, 8, 8)
    w[0, 0, 0, 0] = np.inf
    b, r = np.linspace(-1, 1, 8).astype(np.float32), np.abs(x) + 1

    def step(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, r: wf.Tensor) -> wf.Tensor:
        if transposed:
            y = wf.nn.conv2d_transpose(x, w, (2, 8, 4, 8), strides=1, padding="SAME")
        else:
            y = _conv(x, w)
        return wf.tanh(y + b) * r

    on_gpu = wf.compile(device="gpu:0")(step)
    wanted = step(*map(wf.asarray, (x, w, b, r)))  # by the interpreter
    for _ in range(2):
        _close(on_gpu(x, w, b, r), wanted)
    text = _explained(on_gpu, x, w, b, r)
    assert "cuDNN engine 1, then conv" in text
    assert "weft's own kernels (" not in text
    assert library.calls[-1] == ("BACKWARD_DATA" if transposed else "FORWARD", 1)


def test_one_plan_for_many_sizes_has_the_layouts_of_each(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, library = machine(Engine(1, 0.001))
    made = []
    init = DeviceSizePlan.__init__

    def noted(self: DeviceSizePlan, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(DeviceSizePlan, "__init__", noted)
    filters = _inputs()[1]
    graph = wf.Graph()
    with graph.as_default(), wf.device("/gpu:0"):
        x = wf.placeholder(wf.float32, [None, 5, 4, 2])
        w = wf.constant(filters)
        y = _conv(x, w)
        fetched = [y, *wf.gradients(wf.sum(y * y), [x, w])]
        session = wf.Session()
    on_cpu = wf.compile(lambda x, w: (y := _conv(x, w), *wf.gradients(wf.sum(y * y), [x, w])))
    for batch in (2, 3, 5, 3):
        given = np.random.default_rng(batch).standard_normal((batch, 5, 4, 2)).astype(np.float32)
        for got, wanted in zip(
            session.run(fetched, {x: given}), on_cpu(given, filters), strict=True
        ):
            _close(got, wanted)
        assert {kind for kind, _ in library.calls} == set(KINDS)
        library.calls.clear()
    assert len(made) < 4


KINDS = ("FORWARD", "BACKWARD_DATA", "BACKWARD_FILTER")


# ----------------------------------------------------------------------------------------- choice


def test_the_fastest_is_chosen_and_all_times_are_told(machine: Machine) -> None:
    engines = Engine(1, 0.5), Engine(2, 0.2, knobs=((2, 1), (6, 3))), Engine(28, 0.4, mode=2)
    _, library = machine(*engines)
    on_gpu = wf.compile(device="gpu:0")(_conv)
    x, w = _inputs()
    _close(on_gpu(x, w), wf.compile(_conv)(x, w))
    text = _explained(on_gpu, x, w)
    assert "conv 2x5x4x2 3x3x2x3 2x5x4x3, f32 (ieee) (" in text
    assert "then cuDNN engine 2 (2=1, 6=3), then " in text
    assert "(measured" in text
    for number, microseconds in ((1, 500), (28, 400)):
        (line,) = (s for s in text.splitlines() if f"then cuDNN engine {number}," in s)
        assert float(line.split(": ")[-1].split()[0]) > microseconds  # with the turned filter
    assert library.calls[-1] == ("FORWARD", 2)
    assert "test_device_convolutions.py" in text


def test_own_kernels_are_chosen_where_they_are_faster(machine: Machine) -> None:
    api, library = machine(Engine(1, 5.0))
    on_gpu = wf.compile(device="gpu:0")(_conv)
    x, w = _inputs()
    on_gpu(x, w)
    tried, done = len(library.calls), len(api.calls)
    _close(on_gpu(x, w), wf.compile(_conv)(x, w))
    assert len(library.calls) == tried
    assert [c for c in api.calls[done:] if c.startswith("launch conv")]
    assert "weft's own kernels (measured" in _explained(on_gpu, x, w)


def test_what_computes_something_else_is_not_taken(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    _, library = machine(Engine(1, 0.001, wrong=True), Engine(2, 0.2))
    on_gpu = wf.compile(device="gpu:0")(_conv)
    x, w = _inputs()
    with caplog.at_level(logging.WARNING, "weft.compile"):
        _close(on_gpu(x, w), wf.compile(_conv)(x, w))
    assert "its results are not those of weft's own kernels" in caplog.text
    assert library.calls[-1] == ("FORWARD", 2)


#: Not the same on every run, Fourier's and Winograd's transforms, sums in 16 bits, operands in
#: fewer bits, code that goes with the plan, and what has no plan, or none for this GPU.
REFUSED: list[dict[str, Any]] = [
    {"notes": (NONDETERMINISTIC,)}, {"notes": (FFT,)}, {"notes": (WINOGRAD,)},
    {"notes": (TENSOR_CORE, 2)}, {"notes": (1,)}, {"behavior": (0,)}, {"refuses": 3000},
    {"refuses": 3007},
]  # fmt: skip


@pytest.mark.parametrize("mode", ["ieee", "tf32"])
def test_engines_that_are_not_taken(machine: Machine, mode: str) -> None:
    engines = [Engine(10 + k, 0.001, **options) for k, options in enumerate(REFUSED)]
    _, library = machine(*engines, Engine(2, 0.2))
    x, w = _inputs()
    wf.compile(device="gpu:0", math=mode)(_conv)(x, w)
    assert {number for _, number in library.calls} == {2}


@pytest.mark.parametrize("without", [2, 3])
def test_a_heuristic_that_refuses_takes_no_others_engines(machine: Machine, without: int) -> None:
    _, library = machine(Engine(1, 0.3), Engine(2, 0.2, mode=2))
    library.without = {without}
    x, w = _inputs()
    wf.compile(device="gpu:0")(_conv)(x, w)
    assert {number for _, number in library.calls} == {1 if without == 2 else 2}


def test_tf32_is_for_those_who_ask(machine: Machine) -> None:
    x, w = _inputs()
    engines = Engine(67, 0.001, notes=(TENSOR_CORE,)), Engine(1, 0.2)
    for mode, number in (("ieee", 1), ("tf32", 67)):
        _, library = machine(*engines)
        on_gpu = wf.compile(device="gpu:0", math=mode)(_conv)
        on_gpu(x, w)
        assert library.calls[-1] == ("FORWARD", number)
        assert any(library.rounded) == (mode == "tf32")
        assert f"f32 ({mode})" in _explained(on_gpu, x, w)
    _, library = machine(*engines)  # 16 bits lose nothing there
    wf.compile(device="gpu:0")(_conv)(x.astype(np.float16), w.astype(np.float16))
    assert library.calls[-1] == ("FORWARD", 67)


def test_some_settings_of_each_engine_are_tried(machine: Machine) -> None:
    many = [Engine(67, 0.5 - k / 100, knobs=((6, k),)) for k in range(5)]
    _, library = machine(*many, Engine(67, 0.5, knobs=((6, 0),)), Engine(36, 0.3))
    on_gpu = wf.compile(device="gpu:0")(_conv)
    x, w = _inputs()
    on_gpu(x, w)
    text = _explained(on_gpu, x, w)
    for label in ("engine 67 (6=0)", "engine 67 (6=1)", "engine 36"):
        assert label in text
    assert "(6=2)" not in text
    assert library.calls[-1] == ("FORWARD", 36)


def test_the_choice_is_kept(machine: Machine) -> None:
    engines = Engine(1, 0.5), Engine(2, 0.2, knobs=((6, 3),))
    x, w = _inputs()
    machine(*engines)
    wf.compile(device="gpu:0")(_conv)(x, w)
    _, library = machine(*engines)
    on_gpu = wf.compile(device="gpu:0")(_conv)
    _close(on_gpu(x, w), wf.compile(_conv)(x, w))
    assert not library.asked
    assert library.calls == [("FORWARD", 2)]
    assert "(measured, and kept in the cache)" in _explained(on_gpu, x, w)
    # of another version; of another CUDA; what is no more
    for change in ({"version": 92900}, {"release": 12080}, {}):
        _, library = machine(*engines[: 1 + bool(change)], **change)
        wf.compile(device="gpu:0")(_conv)(x, w)
        assert library.asked


@pytest.mark.parametrize("part", ["own", "before", "after"])
def test_a_choice_depends_on_each_launch(part: str) -> None:
    """On its kernel, its blocks and threads, its sizes; weft's own, and those around the call."""
    traced = wf.compile(lambda x, w: wf.tanh(_conv(x, w)) * 2.0).trace(*_inputs())
    plan = compile_for_device(traced, find=lambda: registry.gpu(0), ahead=True).plan
    ((product, (route,)),) = ((one, one.routes) for one in plan.products())

    def key(*launches: PlannedLaunch) -> str:
        if part == "own":
            return choice._key(replace(product, own=launches))
        return choice._key(replace(product, routes=(replace(route, **{part: launches}),)))

    *others, last = product.own if part == "own" else getattr(route, part)
    launch, sizes = last.launch, [a + 1 if isinstance(a, int) else a for a in last.args]
    assert sizes != list(last.args)
    keys = [
        key(*others, one)
        for one in (
            last, replace(last, args=tuple(sizes)),
            *(replace(last, launch=replace(launch, **change)) for change in (
                {"blocks": launch.blocks + 1}, {"threads": launch.block_threads // 2},
                {"kernel": replace(launch.kernel, contract=False)},
            )),
        )
    ]  # fmt: skip
    assert keys[0] == choice._key(product)
    assert len({*keys, key(*others)}) == 6


def test_without_a_cache_the_first_that_is_right_is_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    _, library = machine(Engine(1, 0.1, wrong=True), Engine(2, 9.0), Engine(3, 0.1))
    on_gpu = wf.compile(device="gpu:0")(_conv)
    x, w = _inputs()
    _close(on_gpu(x, w), wf.compile(_conv)(x, w))
    assert library.calls[-1] == ("FORWARD", 2)
    assert "(not measured: there is no cache to keep the choice in)" in _explained(on_gpu, x, w)


# ------------------------------------------------------------------------- what may be set, errors


def test_own_kernels_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    _, library = machine()
    monkeypatch.setenv("WEFT_GPU_LIBRARIES", "0")
    on_gpu = wf.compile(device="gpu:0")(_conv)
    x, w = _inputs()
    _close(on_gpu(x, w), wf.compile(_conv)(x, w))
    assert not library.held
    assert "WEFT_GPU_LIBRARIES=0" in _explained(on_gpu, x, w)


MISSING = {
    "not installed": ({}, "cuDNN cannot be loaded: no libcudnn"),
    "too old": ({"version": 90701}, "cuDNN 9.7.1 cannot be used: weft needs 9.8 or later"),
    "of CUDA to come": (
        {"release": 14010}, "cuDNN 9.28.0 is of CUDA 14, the NVIDIA driver runs CUDA 13.0",
    ),
    "not whole": ({"failing": 1008}, "cuDNN's create failed: CUDNN_STATUS_1008 (it went wrong)"),
    "not for this GPU": ({"failing": 3007}, "cuDNN's create failed: CUDNN_STATUS_3007"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MISSING))
def test_a_library_that_cannot_be_used_is_told_of(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options, text = dict(MISSING[name][0]), MISSING[name][1]
    status = options.pop("failing", 0)
    _, library = machine(**options)
    if status:
        library.failing["create"] = status
    if name == "not installed":
        monkeypatch.setattr(cudnn, "load", cudnn_api.load)
        imports = SimpleNamespace(import_module=_nothing_found, util=importlib.util)
        monkeypatch.setattr(cudnn_api, "importlib", imports)  # of that module alone
    on_gpu = wf.compile(device="gpu:0")(_conv)
    x, w = _inputs()
    _close(on_gpu(x, w), wf.compile(_conv)(x, w))
    explained = _explained(on_gpu, x, w)
    assert f"libraries: weft's own kernels do all convolutions: {text}" in explained
    monkeypatch.setenv("WEFT_GPU_LIBRARIES", "1")
    with pytest.raises(wf.errors.ToolchainError) as caught:
        wf.compile(device="gpu:0")(_conv)(x, w)
    assert f"WEFT_GPU_LIBRARIES=1, but {text}" in str(caught.value)
    assert "hint: " in str(caught.value)
    assert not library.calls


def _nothing_found(name: str) -> Any:
    raise RuntimeError("no libcudnn\nand more")


def test_a_cublaslt_of_another_release_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN would end the process."""

    class Library:
        def __getattr__(self, name: str) -> Any:
            numbers = {"cublasLtGetVersion": 120900, "cudnnGetCudartVersion": 13050}
            made = type("Function", (), {"__call__": lambda self: numbers.get(name, 0)})()
            setattr(self, name, made)
            return made

    class Pathfinder:
        @staticmethod
        def load_nvidia_dynamic_lib(name: str) -> Any:
            return type("Loaded", (), {"abs_path": f"/lib/lib{name}.so"})

    monkeypatch.setattr(importlib, "import_module", lambda name: Pathfinder)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library())
    with pytest.raises(wf.errors.ToolchainError) as caught:
        cudnn_api.load()
    said = str(caught.value)
    assert (
        "/lib/libcudnn.so is of CUDA 13, the cuBLASLt beside it, which it needs, of CUDA 12" in said
    )
    assert "nvidia-cudnn-cu12" in said


def test_planning_asks_for_no_routes_where_nothing_is_installed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    graph = _graph("conv", [(1, 4, 4, 2), (3, 3, 2, 3)], "f32", WALK)
    for there in (True, False):
        monkeypatch.setattr(cudnn, "installed", lambda there=there: there)
        step = compile_for_device(graph, find=lambda: registry.gpu(0))
        (product,) = step.plan.products()
        assert (len(product.routes), product.kind) == (there, "convolutions")
    ahead = compile_for_device(graph, find=lambda: registry.gpu(0), ahead=True).plan
    assert len(ahead.kernels_after()) == 2  # the turned filter, NaN: the machine may have cuDNN


WALK = {"strides": (1, 1), "dilation": (1, 1), "lo": (1, 1), "size": (4, 4), "groups": 1}


STATUSES = {
    1001: wf.errors.FailedPreconditionError, 2003: wf.errors.InternalError,
    3002: wf.errors.UnsupportedError, 3005: wf.errors.ToolchainError,
    4000: wf.errors.InternalError, 4003: wf.errors.ResourceExhaustedError,
    4004: wf.errors.ResourceExhaustedError, 5001: wf.errors.InternalError,
}  # fmt: skip


def test_each_status_is_an_error_at_the_users_line(machine: Machine) -> None:
    x, w = _inputs()
    _, library = machine(Engine(1, 0.001))
    on_gpu = wf.compile(device="gpu:0")(_conv)
    on_gpu(x, w)
    for status, error in STATUSES.items():
        library.failing["execute"] = status
        with pytest.raises(error) as caught:
            on_gpu(x, w)
        text = str(caught.value)
        assert f"cuDNN's execute failed: CUDNN_STATUS_{status} (it went wrong)" in text
        assert "test_device_convolutions.py" in text
    del library.failing["execute"]
    _close(on_gpu(x, w), wf.compile(_conv)(x, w))


# ------------------------------------------------------------------------------------- recordings


def test_convolutions_are_part_of_a_recorded_step(machine: Machine) -> None:
    """The plan and its workspace stay where they are; packs are made anew for new addresses."""
    api, library = machine(Engine(1, 0.001, workspace=40 << 20))
    x, w = _inputs(inside=3)

    @wf.compile(device="gpu:0")
    def two(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return _conv(_conv(x, w), w)

    two(x, w)
    assert api.calls.count("cuMemAllocAsync") < 100
    before = len(library.calls)
    two(x, w)  # recorded: asked for once more
    assert len(library.calls) == before + 2
    done = len(api.calls)
    for k in range(3):
        given = x + np.float32(k)
        _close(two(given, w), wf.compile(lambda x, w: _conv(_conv(x, w), w))(given, w))
    assert len(library.calls) == before + 2
    assert api.calls[done:].count("graph") == 3


def test_convolutions_in_loops_follow_their_rows(machine: Machine) -> None:
    _, library = machine(Engine(1, 0.001))
    w = np.random.default_rng(1).standard_normal((3, 3, 2, 2)).astype(np.float32) / 4
    xs = np.random.default_rng(2).standard_normal((4, 1, 4, 4, 2)).astype(np.float32)

    def run(xs: wf.Tensor, w: wf.Tensor) -> Any:
        def body(carry: wf.Tensor, x: wf.Tensor) -> Any:
            made = _conv(wf.tanh(carry) + x, w)
            return made, _conv(x, w)

        return wf.scan(body, init=wf.zeros((1, 4, 4, 2)), xs=xs)

    on_gpu, on_cpu = wf.compile(device="gpu:0")(run), wf.compile(run)
    for k in range(3):
        got, wanted = on_gpu(xs + np.float32(k), w), on_cpu(xs + np.float32(k), w)
        for one, other in zip(got, wanted, strict=True):
            _close(one, other)
    assert library.calls


def test_calls_at_places_that_change_leave_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a pack of its own, while no plan is made that would sweep them up."""
    monkeypatch.setenv("WEFT_GPU_BLOCKING", "1")  # nothing is recorded
    _, library = machine(Engine(1, 0.001))
    xs, w = np.ones((6, 1, 4, 4, 2), np.float32), np.ones((3, 3, 2, 2), np.float32)
    on_gpu = wf.compile(device="gpu:0")(
        lambda xs, w: wf.scan(lambda n, x: (n + 1, _conv(x, w)), init=wf.zeros(()), xs=xs)
    )
    held, calls = [], []
    for _ in range(4):
        on_gpu(xs, w)
        held.append(len(library.held))
        calls.append(len(library.calls))
    assert calls[-1] - calls[-2] == 6
    assert len(set(held[1:])) == 1


def test_descriptors_and_workspaces_go_with_the_plans_that_they_are_of(machine: Machine) -> None:
    _, library = machine(Engine(1, 0.001, workspace=40 << 20))
    x, w = _inputs()
    counts, device = [], registry.gpu(0)
    for _ in range(4):
        wf.compile(device="gpu:0")(_conv)(x, w)
        gc.collect()
        counts.append(len(library.held))
    assert len(set(counts[1:])) == 1
    assert counts[0] < 200
    device.synchronize()
    _ = device.allocate(1, "what gives back what died")
    assert "cuDNN's workspace" not in device.resident.describe(100)


def test_what_dies_while_the_device_is_waited_for_is_in_use(machine: Machine) -> None:
    """It may have been asked for after that: it is destroyed the next time."""
    _, library = machine(Engine(1, 0.001))
    wf.compile(device="gpu:0")(_conv)(*_inputs())
    gc.collect()
    libraries: Any = registry.gpu(0).libraries
    made = libraries._libraries["convolutions"]
    made.sweep()
    early, late = (made.call("descriptor", cudnn_api.Kind.ENGINE) for _ in range(2))
    made.dead.append(early)
    made._synchronize = lambda: made.dead.append(late)
    made.sweep()
    assert list(made.dead) == [late]
    assert early not in library.held


# ----------------------------------------------------------------------------- NVIDIA's own library


@pytest.mark.slow
def test_the_real_library_plans_for_gpus_that_are_not_there(tmp_path: Path) -> None:
    """NVIDIA's cuDNN is told of an H100 and of others, and makes plans of weft's convolutions."""
    gcc, found = shutil.which("gcc") or shutil.which("cc"), importlib.util.find_spec("nvidia")
    if gcc is None or found is None or importlib.util.find_spec("nvidia.cudnn") is None:
        pytest.skip("needs a C compiler and weft[cudnn,cuda13]")
    # a part of cuDNN is linked with the driver, which it calls at nothing that is done here
    names = ("GetErrorString", "ModuleGetFunction", "ModuleLoadData", "ModuleUnload",
             "TensorMapEncodeIm2col", "TensorMapEncodeTiled")  # fmt: skip
    source = tmp_path / "libcuda.c"
    source.write_text("".join(f"int cu{name}(void) {{ return 100; }}\n" for name in names))
    built = [gcc, "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source),
             "-Wl,-soname,libcuda.so.1"]  # fmt: skip
    subprocess.run(built, check=True, timeout=60)
    path = os.pathsep.join(map(str, (GPU_SUPPORT, SUPPORT, ROOT)))
    done = subprocess.run(
        [sys.executable, "-P", str(GPU_SUPPORT / "real_cudnn.py")],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")
