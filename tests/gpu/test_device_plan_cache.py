"""Plans for GPUs on disk: the same plan, what it depends on, what it survives."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.codegen.llvm import cache
from weft.codegen.llvm.jit import wait_for_background
from weft.ir.graph import Graph
from weft.passes.manager import PassOptions
from weft.passes.pipelines import GPU, GPU_REPRODUCIBLE
from weft.runtime import plan_store
from weft.runtime.device.backends import registry
from weft.runtime.device.execution.executable import DeviceExecutable, compile_for_device
from weft.runtime.device.libraries import cublaslt, cudnn
from weft.runtime.device.planning import stored_plan
from weft.runtime.device.planning.stored_plan import Wanted
from weft.runtime.step import RunContext

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of this test's own, turned on; an emulated GPU."""
    where = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(where))
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    # whoever edits weft while its tests run
    monkeypatch.setattr(cache, "LOADED_AT", math.inf)
    for known in (cache._common, cache._plan_sources):
        known.cache_clear()
    yield where
    wait_for_background()


def files(folder: Path) -> list[Path]:
    wait_for_background()
    return sorted(folder.glob("*.plan"))


def traced(f: Callable[..., Any], *arguments: Any) -> Graph:
    return wf.compile(f).trace(*arguments)


def made(graph: Graph, **options: Any) -> DeviceExecutable:
    found = compile_for_device(graph, find=lambda: registry.gpu(0), **options)
    wait_for_background()
    return found


def is_from_disk(step: DeviceExecutable) -> bool:
    return step.report.plan_loaded


# -------------------------------------------------------------------------------- the same plan
MASK = np.tri(6, 8, dtype=np.float32)


def _until(x: Any) -> Any:
    return wf.while_loop(lambda y: wf.max(wf.abs(y)) > 1.0, lambda y: wf.sin(y * 0.7), x)


def _scanned(x: Any) -> Any:
    return wf.scan(lambda c, row: (c * 0.5 + row, c * row), init=x[0] * 1.0, xs=x)


def _look_up(x: Any) -> Any:
    return wf.take(wf.exp(x), wf.astype(wf.abs(x[:, 0]), wf.int64), axis=0)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: wf.tanh(x * MASK) + np.float32(2.5),
    "rows": wf.nn.softmax,
    "columns": lambda x: (wf.sum(x, axis=0), wf.mean(x)),
    "many dtypes": lambda x: (wf.astype(x, wf.bfloat16) * 2, x > 0, wf.argsort(x, axis=1)),
    "looked up": _look_up,
    "random": lambda x: x + wf.random.uniform(wf.random.key(3), (6, 8)),
    "scan": _scanned,
    "until": _until,
    "branch": lambda x: wf.cond(wf.sum(x) > 0, lambda: x * 2.0, lambda: wf.sort(x)),
    "gradient of a scan": wf.grad(lambda x: wf.sum(_scanned(x)[1])),
    "gradient of a loop": wf.grad(lambda x: wf.sum(_until(x))),
    "unchanged": lambda x: (x, wf.reshape(x, (8, 6))),
}  # fmt: skip


def plain(held: Any) -> Any:
    """A plan without what is not kept: equal ones do the same."""
    if isinstance(held, np.ndarray):
        return held.dtype, held.shape, held.tobytes()
    if isinstance(held, (tuple, list)):
        return [plain(x) for x in held]
    if type(held).__name__ in ("Nest", "RowNest"):
        return None
    if type(held).__name__ == "Operation":
        return held.name, held.locations
    if type(held).__name__ == "Launch":
        return held.kernel, held.blocks, held.threads
    if hasattr(held, "__dataclass_fields__"):
        return type(held), [plain(getattr(held, name)) for name in held.__dataclass_fields__]
    return held


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_from_disk_is_the_plan(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = traced(PROGRAMS[name], X)
    first = made(graph)
    wanted = first.run([X])
    with monkeypatch.context() as patch:
        patch.setattr(stored_plan, "run_passes", lambda *_, **__: pytest.fail("a pass ran"))
        second = made(graph)
        assert [r.tobytes() for r in second.run([X])] == [r.tobytes() for r in wanted]
    assert len(files(folder)) == 1
    assert plain(second.plan) == plain(first.plan)
    assert is_from_disk(second) > is_from_disk(first)
    assert second.describe_program() == first.describe_program()
    assert second.graph == first.graph


def test_routes_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a machine that has them; the parts that tell cuBLASLt and cuDNN what to do."""
    image, window = np.ones((2, 6, 6, 4), np.float32), np.ones((3, 3, 4, 8), np.float32)
    graphs = [
        traced(lambda x: wf.nn.relu(wf.matmul(x, wf.matrix_transpose(x)) + MASK[:, 0]), X),
        traced(wf.grad(lambda w: wf.sum(wf.square(wf.nn.conv2d(image, w)))), window),
    ]
    for graph in graphs:
        plan = Wanted(graph, GPU, "tf32", ahead=True).details(PassOptions()).plan
        assert any(product.routes for product in plan.products())
        one = plan.launches()[0]
        narrow = replace(one, launch=replace(one.launch, threads=32))
        plan = replace(plan, nodes=(*plan.nodes, narrow))
        lines = stored_plan.lines_of(graph)
        kept = stored_plan.pack_plan(plan, (), lines)
        fields = json.loads(json.dumps(kept[0]))
        again = stored_plan.unpack_plan(fields, kept[1], (), lines)
        assert plain(again) == plain(plan)
        assert again.kernels_after() == plan.kernels_after()


def test_a_function_and_a_session(folder: Path) -> None:
    """With variables, donated arguments, and what `explain` says of it."""

    def step() -> Any:
        v = wf.Variable(X, name="v")

        @wf.compile(device="gpu:0", donate="x")
        def f(x: Any) -> Any:
            return x * 2.0 + v, v.assign_add(wf.sin(v))

        return f, v

    texts, values = [], []
    for _ in range(2):
        f, v = step()
        y = wf.to_device(X, "gpu:0")
        for _ in range(3):
            y, _ = f(y)
        values.append((y.numpy().tobytes(), v.numpy().tobytes()))
        texts.append(f.explain(X).splitlines())
        wait_for_background()
    assert values[0] == values[1]
    (was,) = (line for line in texts[0] if "one call makes" in line)
    (now,) = (line for line in texts[1] if "one call makes" in line)
    assert "to plan" in was
    assert "(plan from disk, " in now
    assert "result 0 is where the donated argument 'x' was" in "\n".join(texts[1])
    without = [[re.sub(r"\d+\.\d+|\(.*\)", "", x).split() for x in text] for text in texts]
    assert without[0] == without[1]
    before, results = len(files(folder)), []
    for _ in range(2):
        graph = wf.Graph()
        with graph.as_default(), wf.device("/gpu:0"):
            x = wf.placeholder(wf.float32, [6, 8])
            y = wf.tanh(x) * 3.0
        with wf.Session(graph=graph) as session:
            results.append(session.run(y, {x: X}).tobytes())
        assert len(files(folder)) == before + 1
    assert results[0] == results[1]


PROGRAM = """
import json
import numpy as np
import weft as wf
import weft.codegen.llvm.jit
weft.codegen.llvm.jit.LOADED_AT = float("inf")  # whoever edits weft while its tests run
from weft.runtime.device.planning import stored_plan as planned
run_passes, runs = planned.run_passes, []
planned.run_passes = lambda *a, **k: (runs.append(1), run_passes(*a, **k))[1]
v = wf.Variable(np.ones(5, np.float32))
@wf.compile(device="gpu:0")
def step(x, i):
    y = wf.tanh(x) * np.arange(5, dtype=np.float32)
    return wf.take(y, i), v.assign_add(y)
x = np.linspace(-1, 1, 5, dtype=np.float32)
results = [step(x, np.array([1, 4]))[0].tolist() for _ in range(2)]
passes = len(runs)
try:
    step(x, np.array([1, 9]))
except wf.errors.InvalidArgumentError as error:
    print(json.dumps([passes, results, v.numpy().tolist(), str(error)]))
"""


def test_another_process(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It runs no pass, and errors name its own lines."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    monkeypatch.setattr(stored_plan, "run_passes", stored_plan.run_passes)  # put back at the end
    runpy.run_path(str(file))
    passes, *first, told = json.loads(capsys.readouterr().out)
    assert len(files(folder)) == 1
    file.write_text("#\n" * 3 + PROGRAM)
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=100,
        env={**os.environ, "WEFT_NATIVE_CALLS": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    none, *second, told_later = json.loads(done.stdout)
    assert (passes, none) == (1, 0)
    assert first == second
    line = next(k for k, text in enumerate(PROGRAM.splitlines(), 1) if "wf.take" in text)
    assert f"program.py:{line}:" in told
    assert f"program.py:{line + 3}:" in told_later
    assert "out of bounds" in told_later


# ---------------------------------------------------------------------------- what it depends on
def test_what_another_plan_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these misses, and leaves a plan of its own; the first one is still there then."""

    def f(x: Any) -> Any:
        return wf.nn.softmax(x * 2.0)

    def softmax_of(y: Any) -> Any:
        return f(wf.nn.conv2d(wf.reshape(y, (1, 6, 8, 1)), np.ones((1, 1, 1, 2), np.float32)))

    graph, convolves = traced(f, X), traced(softmax_of, X)
    for one in (graph, convolves):
        made(one)
        assert is_from_disk(made(one))

    def misses(
        change: Callable[[pytest.MonkeyPatch], Any], known: Graph = graph, **options: Any
    ) -> None:
        count = len(files(folder))
        with monkeypatch.context() as patch:
            change(patch)
            assert not is_from_disk(made(options.pop("graph", known), **options))
            assert len(files(folder)) == count + 1
        assert is_from_disk(made(known))

    def nothing(patch: pytest.MonkeyPatch) -> None:
        pass

    def instead(where: Any, name: str, made: Any) -> Callable[[pytest.MonkeyPatch], None]:
        return lambda patch: patch.setattr(where, name, lambda: made)

    misses(nothing, passes=GPU_REPRODUCIBLE)
    misses(nothing, passes=[p for p in GPU if p.__name__ != "schedule"])
    misses(nothing, math_mode="tf32")
    misses(nothing, donated=(0,))
    misses(nothing, graph=traced(lambda x: wf.nn.softmax(x * 3.0), X))
    misses(nothing, graph=traced(f, X[:5]))
    for name in ("_plan_sources", "_common"):
        misses(instead(cache, name, "changed"))
    for library in (cublaslt, cudnn):
        now = library.installed()
        misses(instead(library, "installed", not now), convolves)
    with monkeypatch.context() as patch:  # which nobody looks for where there is no convolution
        patch.setattr(cudnn, "installed", lambda: pytest.fail("cuDNN was looked for"))
        assert is_from_disk(made(graph))
    misses(lambda patch: patch.setattr(registry.gpu(0), "cc", (8, 0)))

    def none() -> Any:
        raise wf.errors.FailedPreconditionError("there is no GPU")

    assert compile_for_device(graph, find=none).report.plan_loaded is False


@pytest.mark.parametrize("variable", ["WEFT_CACHE=0", "WEFT_CACHE=kernels", "WEFT_VERIFY=ir",
                                      "WEFT_LOG=passes"])  # fmt: skip
def test_who_keeps_none(variable: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(lambda x: wf.exp(x) - 4, X)
    monkeypatch.setenv(*variable.split("=", 1))
    for _ in range(2):
        assert not is_from_disk(made(graph))
    assert files(folder) == []


# ------------------------------------------------------------------------------ what it survives
def test_a_damaged_plan_is_made_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = traced(lambda x: wf.exp(x) - 4, X)
    made(graph)
    (file,) = files(folder)
    assert file.stat().st_mode & 0o777 == 0o600
    good = file.read_bytes()
    bad = bytearray(good)
    bad[len(good) // 2] ^= 4
    file.write_bytes(bad)
    with caplog.at_level(logging.WARNING, "weft.compile"):
        assert not is_from_disk(made(graph))
    assert "is damaged" in caplog.text
    assert file.read_bytes() == good
    file.chmod(0o666)
    with caplog.at_level(logging.WARNING, "weft.compile"):
        assert not is_from_disk(made(graph))
    assert "other users can write" in caplog.text


def test_what_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many constants; a part that this module does not know; a plan that is not weft's now."""
    graph = traced(lambda x: wf.exp(x) - 4, X)
    with monkeypatch.context() as patch:
        patch.setattr(plan_store, "MOST_CONSTANT_BYTES", -1)
        made(graph)
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "weft.compile"):
        patch.delitem(stored_plan._CLASSES, "PlannedLaunch")
        made(graph)
    assert "is not kept: it holds a PlannedLaunch" in caplog.text
    assert files(folder) == []
    made(graph)
    step = made(graph)
    other = traced(lambda x: wf.sin(x), X)
    monkeypatch.setattr(
        Wanted, "details", lambda self, options: DETAILS(replace(self, graph=other), options)
    )
    with pytest.raises(wf.errors.InternalError, match="weft cache clear"):
        step.report  # noqa: B018


DETAILS = Wanted.details


def test_events_name_the_ops(folder: Path) -> None:
    """They are those of a plan that was made."""
    f = wf.compile(device="gpu:0")(lambda x: wf.tanh(x) * 2.0)
    rows = []
    for _ in range(2):
        graph = f.trace(X)
        step = made(graph)
        recorder = Recorder()
        step.run([X], RunContext(recorder=recorder))
        rows.append([(e.name, e.ops, e.locations, e.nbytes) for e in recorder.rows])
        assert rows[-1][0][1]
    assert rows[0] == rows[1]


class Recorder:
    """What `TraceRecorder` is to a step."""

    device, region, kernels = "", 0, True

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def next_step(self) -> int:
        return 0

    def add(self, watch: Any) -> None:
        self.rows += watch.events()
