"""Plans on disk: which graphs share one, that nothing is lost by it, and what it survives."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE
from cut_calls import assert_same_bits
from example_counts import examples
from forgotten_kernels import forget_kernels_of, known_kernels
from graph_makers import MAKERS
from graphs import Case, graph_and_inputs
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from native_runs import packed_in, run, states, traced

import weft as wf
from weft.codegen.llvm import cache as cache_key
from weft.codegen.llvm.cache import PLAN_SUFFIX, KernelCache, plan_cache
from weft.codegen.llvm.jit import wait_for_background
from weft.frontend.tools.main import main
from weft.ir.dtypes import bool_, float16, float32, float64, int32, int64, uint8
from weft.ir.graph import Graph
from weft.ir.ops import lookup
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.text.parser import parse_graph
from weft.passes.pipelines import PASSES, STANDARD
from weft.runtime import plan_store
from weft.runtime.native import executable, step_plan
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.native.pool import POOL
from weft.runtime.plan_store import digest_graph

#: Compiled steps have no ops of the host.
OPS = sorted(
    n for n in MAKERS if not lookup(n).traits & {"host", "handle"} and n not in COLLECTIVES
)
DTYPES = [float32, float64, int32, int64, uint8, bool_, float16]
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of this test's own, turned on."""
    where = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(where))
    # whoever edits weft while its tests run
    monkeypatch.setattr(cache_key, "LOADED_AT", math.inf)
    for known in (cache_key._common, cache_key._plan_sources):
        known.cache_clear()
    yield where
    wait_for_background()


def forget_kernels() -> None:
    """As if this process had compiled none: a kernel that it has is not written again."""
    forget_kernels_of(k for k in known_kernels() if k.startswith(("nest-", "rows-")))


def plans(folder: Path) -> list[Path]:
    wait_for_background()
    return sorted(folder.glob("*.plan"))


def twice(graph: Graph, *inputs: Any, **options: Any) -> tuple[Executable, Executable]:
    """Compiled, and made from the plan that this left; both were run and agree."""
    first = compile_graph(graph, {}, **options)
    wait_for_background()
    second = compile_graph(graph, {}, **options)
    results = [step.run([np.array(x, order="C") for x in inputs]) for step in (second, first)]
    assert_same_bits(*results)
    return first, second


def is_from_disk(step: Executable) -> bool:
    return step.report.plan_loaded


# ---------------------------------------------------------------- nothing runs, all is there
PROGRAM = """
import json, sys
import numpy as np
import weft as wf
import weft.codegen.llvm.jit
import weft.runtime.native.executable
weft.codegen.llvm.jit.LOADED_AT = float("inf")  # whoever edits weft while its tests run
from weft.codegen.llvm.jit import compile_count
from weft.runtime.native import step_plan as details
planned, runs = details.planned, []
for module in (details, sys.modules["weft.runtime.native.executable"]):
    module.planned = lambda *a, **k: (runs.append(1), planned(*a, **k))[1]
rng = np.random.default_rng(0)
w, b = wf.Variable(rng.standard_normal((8, 4)).astype("f4")), wf.Variable(np.zeros(4, "f4"))
optimizer = wf.train.AdamOptimizer(0.01)
mask = np.tri(6, 4, dtype=np.float32)
@wf.compile
def step(x):
    h = wf.nn.softmax(x @ w + b) * mask
    h = wf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, wf.tanh(h)), (wf.asarray(0), h))[1]
    loss = wf.sum(h * h)
    optimizer.minimize(loss)
    return loss, h
x = rng.standard_normal((6, 8)).astype("f4")
results = [np.asarray(r).tolist() for _ in range(3) for r in step(x)]
passes = len(runs)
texts = [step.ir(x), step.ir(x, after="cse"), step.explain(x), step.llvm(x), step.asm(x)]
print(json.dumps([compile_count(), passes, results, w.numpy().tolist(), texts]))
"""


def run_program(folder: Path, source: str, **more: str) -> Any:
    environment = {**os.environ, "WEFT_CACHE": "1", "WEFT_CACHE_DIR": str(folder), **more}
    environment["WEFT_NATIVE_CALLS"] = "0"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_second_process_runs_no_pass_and_tells_the_same(folder: Path) -> None:
    compiled, passes, *first, texts = run_program(folder, PROGRAM)
    assert compiled > 0
    assert passes == 1
    again, none, *second, later = run_program(folder, PROGRAM)
    assert (again, none) == (0, 0)
    assert second == first
    told, told_later = texts.pop(2), later.pop(2)
    assert later == texts, "graphs, LLVM and assembly"
    assert "plan from disk" in told_later
    assert "plan from disk" not in told
    assert without_times(told_later) == without_times(told)
    kernels_only = run_program(folder, PROGRAM, WEFT_CACHE="kernels")
    assert kernels_only[:2] == [0, 1]
    assert run_program(folder, PROGRAM, WEFT_VERIFY="ir")[:2] == [0, 1], (
        "it wants to see the passes"
    )


def without_times(text: str) -> list[str]:
    """What `explain` says but for times and for what came from disk."""
    lines = [re.sub(r" +\d+\.\d\d(?= )", " ", line) for line in text.splitlines()]
    return [re.sub(r"kernels \(.*", "kernels", line) for line in lines]


@pytest.mark.slow
def test_an_error_names_the_line_of_this_program(folder: Path, tmp_path: Path) -> None:
    """Not the one of the program that made the plan."""
    source = (
        "import numpy as np, weft as wf, weft.codegen.llvm.jit as jit\n"
        "jit.LOADED_AT = float('inf')\n"
        "@wf.compile\n"
        "def look_up(x, i):\n"
        "    y = wf.exp(x) + 1\n"
        "    return wf.take(y, i, axis=0)\n"
        "try:\n"
        "    look_up(np.ones((3, 2), 'f4'), np.array([0, 7]))\n"
        "except Exception as error:\n"
        "    print(error)\n"
        "print(look_up.explain(np.ones((3, 2), 'f4'), np.array([0, 7])))\n"
    )
    texts = []
    for lines in (0, 5):
        file = tmp_path / "program.py"
        file.write_text("#\n" * lines + source)
        done = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, timeout=60,
            env={**os.environ, "WEFT_CACHE_DIR": str(folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "out of bounds" in done.stdout
        assert f"program.py:{6 + lines}:" in done.stdout
        texts.append(done.stdout)
    assert "plan from disk" in texts[1]
    assert "program.py:6:" not in texts[1]


def test_packed_constants_are_packed_again(folder: Path) -> None:
    """The file of a plan says how a traced constant is packed, and holds none of it."""
    rng = np.random.default_rng(6)
    w, x = rng.random((256, 512), np.float32), rng.random((40, 256), np.float32)
    f = wf.compile(lambda x: wf.matmul(x, wf.asarray(w)))
    first = compile_graph(f.trace(x))
    (wanted,) = first.run([x])
    wait_for_background()
    assert all(file.stat().st_size < 10_000 for file in folder.glob(f"*{PLAN_SUFFIX}"))
    second = compile_graph(f.trace(x))
    assert is_from_disk(second)
    assert len(packed_in(second)) == 1
    np.testing.assert_array_equal(second.run([x])[0], wanted)
    np.testing.assert_allclose(wanted, x @ w, rtol=1e-4)


@examples(60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph_and_inputs(stage="traced", ops=OPS, dtypes=DTYPES, max_ops=8), st.booleans())
def test_random_graphs(folder: Path, case: Case, everything: bool) -> None:
    """A plan from disk has the bits of the first one, and passes make it again."""
    passes = STANDARD if everything else PIPELINE
    variables = states(case)
    first = compile_graph(case.graph, variables, passes=passes)
    wanted = run(first, variables, case)
    wait_for_background()
    second = compile_graph(case.graph, variables, passes=passes)
    assert_same_bits(run(second, variables, case), wanted)
    assert is_from_disk(second)
    assert second.describe() == first.describe()
    assert second.graph == first.graph


# ---------------------------------------------------------------- the key
TEXT = """graph @g(%x: f32[4], %y: f32[4]) -> (f32[4], f32[]) stage=traced {
  %k = constant() {value=f32[4] [1.0, 2.0, 3.0, 4.0]} : f32[4] loc("m.py":1:1)
  %a = multiply(%x, %y) : f32[4] loc("m.py":1:1)
  %b = subtract(%a, %k) : f32[4] loc("m.py":2:1)
  %c = sum(%b) {axes=[0], keepdims=false} : f32[] loc("m.py":2:1)
  return %a, %c
}
"""
SAME = [
    ("@g", "@h"),
    ("%x", "%first"),
    ("m.py", "other.py"),
    ('"m.py":1:1', '"m.py":31:7'),
    ("%b", "%other"),
]
OTHER = [
    ("traced", "optimized"),
    ("(%a, %k)", "(%k, %a)"),
    ("multiply(%x, %y)", "multiply(%x, %x)"),
    ("subtract", "add"),
    ("3.0", "3.5"),
    ("3.0, 4.0]", "3.0, -0.0]"),
    ("return %a, %c", "return %b, %c"),
    ("  return", "  %d = exp(%a) : f32[4]\n  return"),
    ("f32", "f64"),
    ('%b = subtract(%a, %k) : f32[4] loc("m.py":2:1)',
     '%b = subtract(%a, %k) : f32[4] loc("m.py":3:1)'),
]  # fmt: skip


def changed(old: str, new: str) -> str:
    text = TEXT.replace(old, new)
    assert text != TEXT
    return digest_graph(parse_graph(text))[0]


def test_what_counts() -> None:
    digest, constants = digest_graph(parse_graph(TEXT))
    assert [c.array.tolist() for c in constants] == [[1, 2, 3, 4]]
    assert {changed(*change) for change in SAME} == {digest}
    others = {changed(*change) for change in OTHER}
    assert len(others | {digest}) == len(OTHER) + 1


@pytest.mark.parametrize("count", [3, 1000])
def test_constants_count_by_their_bytes(count: int) -> None:
    def digest(values: Any) -> str:
        return digest_graph(traced(lambda x: x + values, np.zeros(count, values.dtype)))[0]

    values = np.arange(count, dtype=np.float64)
    changed = values.copy()
    changed[-1] = np.nextafter(changed[-1], np.inf)
    digests = [digest(v) for v in (values, values.copy(), changed, values.astype(np.int64))]
    assert len(set(digests)) == 3
    assert digests[0] == digests[1]


def test_regions_count() -> None:
    def digest(change: Any) -> str:
        def f(x: Any) -> Any:
            return wf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, change(a)),
                                 (wf.asarray(0), x))  # fmt: skip

        return digest_graph(traced(f, X))[0]

    assert len({digest(c) for c in (wf.sin, wf.cos, lambda a: a + 0.0, lambda a: a + -0.0)}) == 4


def test_options_count(folder: Path) -> None:
    graph = traced(lambda x: wf.exp(x) + 1, X)
    compile_graph(graph, {})
    assert len(plans(folder)) == 1
    compile_graph(graph, {}, donated=(0,))
    assert len(plans(folder)) == 2
    compile_graph(graph, {}, passes=(PASSES["fuse"],))
    assert len(plans(folder)) == 3
    compile_graph(graph, {}, threads=1)
    assert len(plans(folder)) == 3, "plans do not depend on the number of threads"


def test_passes_of_others_are_not_kept(folder: Path) -> None:
    def mine(graph: Graph) -> Graph:
        return graph

    def fuse(graph: Graph) -> Graph:  # named as one of weft's
        return PASSES["fuse"](graph)

    for passes in ((mine, "fuse"), (fuse,)):
        f = wf.compile(passes=passes)(lambda x: wf.exp(x) * 2)
        np.testing.assert_allclose(f(X).numpy(), np.exp(X) * 2, rtol=1e-6)
    assert plans(folder) == []


# ---------------------------------------------------------------- what is in it
def test_donated_inputs_and_results_that_are_inputs(folder: Path) -> None:
    graph = traced(lambda x, y: (x + y, y), X, X)
    first, second = twice(graph, X, X, donated=(0,))
    assert is_from_disk(second)
    assert dict(second.plan.donated) == dict(first.plan.donated) == {0: 0}


def test_small_and_large_constants(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    # `large` is in the traced graph; its inverse is made by folding, and so is stored
    graph = traced(lambda x: x @ large + wf.transpose(wf.asarray(large[:8])).sum(), large)
    _, second = twice(graph, large)
    assert is_from_disk(second)
    (plan,) = plans(folder)
    assert plan.stat().st_size < large.nbytes, "it has no copy of the program's own constant"
    monkeypatch.setattr(plan_store, "MOST_CONSTANT_BYTES", 100)
    table = np.arange(1000, dtype=np.int64)
    folded = traced(lambda i: wf.take(wf.sort(wf.asarray(table[::-1])), i), np.array([3]))
    first, second = twice(folded, np.array([3]))
    stored = [a for a in first.plan.table.arrays if a.nbytes > 100]
    assert is_from_disk(second) == (not stored or any(a is t for a in stored for t in [table]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64", "uint8", "bool"])
def test_constants_of_every_kind(folder: Path, dtype: str) -> None:
    kind = wf.asarray(0).numpy().dtype if dtype == "int" else getattr(wf, dtype)
    values = wf.astype(wf.asarray(np.arange(5)), kind).numpy()
    graph = traced(lambda x: wf.where(x, values, values[::-1].copy()), np.ones(5, bool))
    _, second = twice(graph, np.array([1, 0, 0, 1, 1], bool))
    assert is_from_disk(second)


COMPLEX = """
import json, sys
import numpy as np
import weft as wf
import weft.codegen.llvm.jit
weft.codegen.llvm.jit.LOADED_AT = float("inf")  # whoever edits weft while its tests run
x = np.arange(6).reshape(2, 3) * (1 + 2j)
f = wf.compile(lambda x: wf.exp(x / 10) @ x.T)
made = f(x).numpy()
print(json.dumps([repr(made.tolist()), "plan from disk" in f.explain(x)]))
"""


def test_no_address_is_kept(folder: Path) -> None:
    """The system's functions are elsewhere in each process: BLAS, for complex products."""
    first, again = run_program(folder, COMPLEX), run_program(folder, COMPLEX)
    assert again == [first[0], True]
    assert first[1] is False


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_a_routine_is_kept_by_name(folder: Path, dtype: Any) -> None:
    x = X.astype(dtype)
    first, second = twice(traced(lambda x: x @ x.T, x), x)
    assert is_from_disk(second)
    assert first.plan.table.words == second.plan.table.words
    assert max(first.plan.table.words) < 1 << 32
    assert [name for _, name in second.plan.table.routines] == [
        "cgemm" if dtype is np.complex64 else "zgemm"
    ]


def test_short_steps_stay_short(folder: Path) -> None:
    """They keep the GIL."""
    for f, short in ((lambda x: x + 1, True), (lambda x: x @ x.T, False)):
        _, second = twice(traced(f, X), X)
        assert is_from_disk(second)
        assert second.plan.short is short


# ---------------------------------------------------------------- what it survives
def test_a_damaged_plan_is_replaced(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = traced(lambda x: wf.exp(x) - 4, X)
    first = compile_graph(graph, {})
    (file,) = plans(folder)
    good = file.read_bytes()
    for place in (2, 20, 200, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[place] ^= 4
        file.write_bytes(bad)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "weft.compile"):
            again = compile_graph(graph, {})
        assert "is damaged" in caplog.text
        assert "its plan is compiled again" in caplog.text
        assert_same_bits(again.run([X]), first.run([X]))
        assert plans(folder) == [file]
        assert file.read_bytes() == good
    assert is_from_disk(compile_graph(graph, {}))


def test_another_plan_under_its_name(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    graphs = [traced(f, X) for f in (lambda x: wf.exp(x) - 4, lambda x: wf.sin(x) * 3)]
    for graph in graphs:
        compile_graph(graph, {})
    one, two = plans(folder)
    one.write_bytes(two.read_bytes())
    with caplog.at_level(logging.WARNING, "weft.compile"):
        steps = [compile_graph(graph, {}) for graph in graphs]
    assert "it is another plan's" in caplog.text
    np.testing.assert_allclose(steps[0].run([X])[0], np.exp(X) - 4, rtol=1e-5)
    np.testing.assert_allclose(steps[1].run([X])[0], np.sin(X) * 3, rtol=1e-5)


def test_a_plan_whose_kernel_is_gone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = traced(lambda x: wf.exp(x) - 17.5, X)
    first = compile_graph(graph, {})
    assert len(plans(folder)) == 1
    forget_kernels_of(first.plan.table.kernels)
    for kernel in folder.glob("*.kernel"):
        kernel.unlink()
    with caplog.at_level(logging.INFO, "weft.compile"):
        again = compile_graph(graph, {})
    assert "a kernel of the plan" in caplog.text
    assert_same_bits(again.run([X]), first.run([X]))
    wait_for_background()
    assert len(list(folder.glob("*.kernel"))) == 1


def test_a_plan_that_passes_do_not_make_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a report that belongs to other kernel calls."""
    graph, other = traced(lambda x: wf.exp(x), X), traced(lambda x: wf.sin(x), X)
    compile_graph(graph, {})
    wait_for_background()
    step = compile_graph(graph, {})
    made = step_plan.planned
    monkeypatch.setattr(step_plan, "planned", lambda graph, *rest: made(other, *rest))
    with pytest.raises(wf.errors.InternalError, match="weft cache clear"):
        step.report  # noqa: B018


def test_others_may_not_write_it(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = traced(lambda x: wf.exp(x) - 4, X)
    compile_graph(graph, {})
    (file,) = plans(folder)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o666)
    with caplog.at_level(logging.WARNING, "weft.compile"):
        compile_graph(graph, {})
    assert "other users can write" in caplog.text


def test_kernels_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "kernels")
    assert plan_cache() is None
    forget_kernels()
    compile_graph(traced(lambda x: wf.exp(x) - 41, X), {})
    assert plans(folder) == []
    assert len(list(folder.glob("*.kernel"))) == 1


def test_the_limit_holds_for_plans_too(folder: Path) -> None:
    cache = KernelCache(folder, limit=5000)
    plan = step_plan_sample()
    for k in range(10):
        cache.store_record(f"description {k}", PLAN_SUFFIX, plan)
    assert 0 < sum(f.size for f in cache.files()) <= 5000
    assert cache.load_record("description 9", PLAN_SUFFIX, lambda found: found) is not None
    assert cache.load_record("description 0", PLAN_SUFFIX, lambda found: found) is None


def step_plan_sample() -> Any:
    from weft.codegen.llvm.cache import CachedRecord

    return CachedRecord("name", {"some": "field"}, bytes(700))


@pytest.mark.slow
def test_processes_at_once(folder: Path) -> None:
    environment = {**os.environ, "WEFT_NATIVE_CALLS": "0"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(3)
    ]
    results = [json.loads(child.communicate(timeout=60)[0])[2:4] for child in children]
    assert results[0] == results[1] == results[2]
    assert not [f for f in folder.iterdir() if f.suffix == ".tmp"]
    assert run_program(folder, PROGRAM)[:2] == [0, 0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_children_load_and_write(folder: Path) -> None:
    graphs = [traced(lambda x, k=k: wf.exp(x) * float(k) - 2.5, X) for k in (2, 3)]
    wanted = [compile_graph(g, {}).run([X]) for g in graphs[:1]]  # its files may still be written
    child = os.fork()
    if child == 0:
        try:
            step = compile_graph(graphs[0], {})
            good = is_from_disk(step) and np.array_equal(step.run([X])[0], wanted[0][0])
            compile_graph(graphs[1], {}).run([X])
            wait_for_background()
        except BaseException:
            good = False
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_from_disk(compile_graph(graphs[1], {}))


def test_the_command_line_counts_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget_kernels()
    f = wf.compile(lambda x: wf.exp(x) - 23)
    f(X)
    assert len(plans(folder)) == 1
    assert main(["cache", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["kernels"], listed["plans"]) == (1, 1)
    assert {row["kind"]: row["name"] for row in listed["files"]}["plan"] == "lambda"
    assert main(["cache", "list"]) == 0
    assert "plan    lambda" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "removed 1 kernel, 1 plan, " in capsys.readouterr().out
    assert list(folder.iterdir()) == []


# ---------------------------------------------------------------- what the first call waits for
def test_the_first_call_does_not_wait_for_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on one thread, with the same bits; later calls use the pool."""
    x = np.random.default_rng(0).standard_normal((2000, 500)).astype(np.float32)
    monkeypatch.setattr(executable, "native_api_or_none", lambda: None)
    monkeypatch.setattr(executable, "begin_native_api", lambda: None)
    step = compile_graph(traced(lambda x: wf.sum(wf.exp(x), axis=1), x), {})
    assert step.plan.cut
    ready = [False]
    monkeypatch.setattr(type(POOL), "is_ready", lambda self: ready[0])
    first = step.run([x])
    assert step._pool is None
    assert step.idle_activations() == 0, "an activation for one thread is not kept"
    ready[0] = True
    assert_same_bits(step.run([x]), first)
    assert step._pool == (step.pool, step.threads)
    assert step.idle_activations() == 1
