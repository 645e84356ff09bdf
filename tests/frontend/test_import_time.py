"""What `import weft` loads, and the names that are loaded when they are first used (PEP 562)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import weft as wf

#: All of weft that `import weft` may load: what ops on arrays need.
LOADED = (
    "weft.ir", "weft.frontend.ops", "weft.frontend.linalg",
    "weft.frontend.core.device_scope", "weft.frontend.core.operators", "weft.frontend.core.pytree",
    "weft.frontend.core.float64", "weft.frontend.core.public_names", "weft.frontend.core.slow",
    "weft.frontend.core.tensor", "weft.frontend.core.trace", "weft.frontend.eager.native",
    "weft.frontend.eager.numpy_calls", "weft.frontend.eager.numpy_moves",
    "weft.frontend.eager.by_value",
)  # fmt: skip
PACKAGES = {"weft", "weft.frontend", "weft.frontend.core", "weft.frontend.eager"}
#: Other people's packages, and Python's own, that it must not load.
OTHERS = {"numba", "llvmlite", "scipy", "zmq", "msgpack", "networkx", "ray", "rich", "PIL",
          "asyncio", "subprocess", "shutil", "tempfile", "fractions"}  # fmt: skip
SOURCE = ast.parse(Path(str(wf.__file__)).read_text(encoding="utf-8"))


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_import_loads_what_ops_on_arrays_need_and_no_more() -> None:
    """Also after such an op ran: nothing was put off that everybody pays for with the next line."""
    ops = "assert float(wf.sum(wf.matmul(wf.ones((3, 4)), wf.ones((4, 2))) * 2.0 + 1)) == 54"
    for line in ("", ops):
        program = f"import sys, weft as wf\n{line}\nprint(*sys.modules)"
        found = set(_run(program).split())
        ours = {m for m in found if m.split(".")[0] == "weft"} - PACKAGES
        more = sorted(m for m in ours if not m.startswith(LOADED))
        assert not more, f"import weft loads {more}"
        assert not OTHERS & found, f"import weft loads {sorted(OTHERS & found)}"
        assert len(ours) < 120  # 85 of more than 500, on 2026-11-21


def _told(source: ast.Module) -> set[tuple[str | None, str]]:
    """What type checkers see: modules, and the names that are imported from them."""
    block = next(n for n in source.body if isinstance(n, ast.If) and "TYPE" in ast.dump(n.test))
    return {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_table_holds_what_type_checkers_see() -> None:
    table = {(module, name) for name, module in wf._HOME.items()}
    table |= {("weft.frontend", name) for name in wf._MODULES}
    assert _told(SOURCE) == table | {("weft.frontend.tf1", "*")}
    assert len(wf._HOME) == sum(len(names.split()) for names in wf._LATER.values())


def test_second_names_are_found_and_not_shown() -> None:
    """Of `wf.tf1`: `wf.NAME` finds each, `dir(wf)` shows none, and no name is in both lists."""
    tf1 = wf.tf1
    source = ast.parse(Path(str(tf1.__file__)).read_text(encoding="utf-8"))
    assert _told(source) == {(module, name) for name, module in tf1._HOME.items()}
    assert tf1.__all__ == sorted(tf1._HOME)
    assert len(tf1._HOME) == sum(len(names.split()) for names in tf1._LATER.values())
    for name, module in tf1._HOME.items():
        assert getattr(tf1, name) is getattr(wf, name) is getattr(import_module(module), name)
    assert not {*tf1.__all__} & {*dir(wf), *wf.__all__}  # now that each was used once
    assert {*tf1.__all__} == {n for n in dir(tf1) if n[0] != "_"}
    # 152 of them are the array API's, 20 are modules, 4 of shards: JAX's, data_parallel
    assert len(wf.__all__) <= 306


def test_second_names_load_no_more_than_their_own_module() -> None:
    program = """
import sys, weft as wf
x = wf.ones((2, 2))
before = set(sys.modules)
assert wf.constant(1.0) == 1 and wf.tf1.rank(x) == 2
assert "constant" not in dir(wf) and "constant" in dir(wf.tf1)
print(*(set(sys.modules) - before))
from weft import cumsum
assert cumsum is wf.tf1.cumsum
"""
    assert _run(program).split() == ["weft.frontend.tf1"]


def test_every_public_name_is_there() -> None:
    assert wf.__all__ == sorted(set(wf.__all__))
    assert {*wf._HOME, *wf._MODULES} <= set(wf.__all__)
    for name, module in wf._HOME.items():
        assert getattr(wf, name) is getattr(import_module(module), name)
    for name in wf._MODULES:
        assert getattr(wf, name) is import_module(f"weft.frontend.{name}")
    assert set(wf.__all__) <= set(dir(wf))


def test_star_import_and_dir_in_a_fresh_process() -> None:
    program = (
        "import weft\n"
        "assert set(weft.__all__) <= set(dir(weft)) and 'Session' not in vars(weft)\n"
        "from weft import *\n"
        "assert not set(weft.__all__) - set(globals())\n"
        "assert Session is weft.Session is vars(weft)['Session']\n"
        "import builtins\n"
        "builtins.print([n for n in dir(weft) if n[0] != '_' and n not in weft.__all__])"
    )
    rest = ast.literal_eval(_run(program))
    assert rest == []


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'Varable'") as caught:
        getattr(wf, "Varable")  # noqa: B009 - as a type checker sees, there is none
    assert (caught.value.name, caught.value.obj) == ("Varable", wf)


def test_first_use_from_many_threads() -> None:
    """Each finds whole modules, whichever of them loads them."""
    program = """
import threading, weft as wf
names = ["Session", "compile", "data", "train", "FIFOQueue", "grad", "while_loop", "Variable"] * 3
start, found = threading.Barrier(len(names)), []
def use(name):
    start.wait()
    found.append(getattr(wf, name))
threads = [threading.Thread(target=use, args=(n,)) for n in names]
for t in threads: t.start()
for t in threads: t.join(60)
assert len(found) == len(names) and len(set(map(id, found))) == 8
print("done")
"""
    assert _run(program) == "done\n"


def test_sources_count_as_read_from_the_first_import_on() -> None:
    """What changes between that and the first step is not what the cache's keys describe."""
    program = """
import time, weft as wf
time.sleep(0.1)
before = time.time()
time.sleep(0.1)
wf.compile
from weft.codegen.llvm import jit
print(before - jit.LOADED_AT)
"""
    assert 0.1 <= float(_run(program)) < 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_names_are_loaded() -> None:
    """The child has whole modules: the fork waits for the thread that loads them."""
    program = """
import os, sys, threading, time, weft as wf
def load():
    wf.compile, wf.Session, wf.train
thread = threading.Thread(target=load)
thread.start()
while "weft.codegen" not in sys.modules:  # in the middle of the first of them
    time.sleep(0.0001)
child = os.fork()
if child == 0:
    assert wf.compile(lambda x: x + 1)(wf.ones(3))[0] == 2
    os._exit(0)
end = time.monotonic() + 50
while time.monotonic() < end:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.01)
else:
    os.kill(child, 9)
    os.waitpid(child, 0)
    sys.exit("the child hangs")
thread.join()
sys.exit(status)
"""
    _run(program)


def test_a_session_on_this_process_loads_nothing_of_clusters() -> None:
    program = """
import sys, weft as wf
with wf.Graph().as_default():
    x = wf.placeholder(wf.float32, [3])
    y = wf.reduce_sum(x * 2)
    with wf.Session() as session:
        metadata = wf.RunMetadata()
        options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
        assert session.run(y, {x: [1, 2, 3]}, options=options, run_metadata=metadata) == 12
        assert metadata.chrome_trace() and str(metadata)
print(*(m for m in sys.modules if m.startswith(%r)))
"""
    ours = ("weft.runtime.cluster", "weft.comm", "weft.passes.partition", "networkx")
    assert _run(program % (ours,)).split() == []


def test_training_in_one_process_loads_nothing_of_clusters() -> None:
    program = """
import sys, weft as wf
wf.train.Adam(0.1), wf.train.Saver
print(*(m for m in sys.modules if m.startswith(%r)))
assert wf.train.Server and "RayCluster" in dir(wf.train)
"""
    ours = ("weft.runtime.cluster", "weft.comm", "weft.passes.partition", "networkx")
    assert _run(program % (ours,)).split() == []
    with pytest.raises(AttributeError, match="no attribute 'Sever'"):
        getattr(wf.train, "Sever")  # noqa: B009 - as a type checker sees, there is none


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_is_registered_during_a_fork_waits_for_the_next() -> None:
    """Nothing runs behind a fork that did not run ahead of it; one that raises keeps none back."""
    program = """
import os
from weft.ir.process import around_fork, in_child
said = []
def before():
    said.append("before")
    around_fork(lambda: said.append("late before"), lambda: said.append("late after"))
def wrong():
    raise ValueError("of a handler")
around_fork(before, lambda: said.append("after"), lambda: said.append("child"))
around_fork(lambda: said.append("last first"), wrong)
in_child(lambda: said.append("only child"))
child = os.fork()
if child == 0:
    os._exit(said != ["last first", "before", "child", "only child"])
assert os.waitpid(child, 0)[1] == 0
assert said == ["last first", "before", "after"], said
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    # parent and child, as Python reports it: in pieces, which mix
    assert done.stderr.count("ValueError") >= 2
    assert done.stderr.count("of a handler") >= 2


def test_a_step_from_disk_loads_what_runs_it_and_no_more(tmp_path: Path) -> None:
    """Neither passes, but for gradients, nor what writes kernels; nor LLVM."""
    program = """
import sys, time, numpy as np, weft as wf
v = wf.Variable(np.ones((4, 3), np.float32))
optimizer = wf.train.Adagrad(0.1)
@wf.compile
def step(x):
    loss = wf.mean(wf.nn.softmax(wf.matmul(x, v)) ** 2)
    optimizer.minimize(loss)
    return loss
step(np.ones((5, 4), np.float32))
from weft.codegen.llvm.jit import compile_count, wait_for_background
wait_for_background()
print(compile_count(), "llvmlite.binding" in sys.modules, *sys.modules)
"""
    environment = {**os.environ, "WEFT_CACHE": "1", "WEFT_CACHE_DIR": str(tmp_path)}
    environment.pop("WEFT_VERIFY", None)
    found: list[str] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, timeout=100, check=False, env=environment,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        found = done.stdout.split()
        assert "networkx" not in found  # nor by the first call, which compiles
    assert found[:2] == ["0", "False"]
    assert not {"subprocess", "fractions"} & set(found)
    for folder in ("passes.fusion", "passes.memory.plan", "passes.pipelines", "codegen.nests",
                   "codegen.scalar", "codegen.products", "codegen.tiles", "codegen.windows",
                   "codegen.vector", "codegen.steps.plan", "codegen.steps.layout",
                   "runtime.native.planning"):  # fmt: skip
        assert not [m for m in found if m.startswith(f"weft.{folder}")], folder
    assert len([m for m in found if m.startswith("weft.")]) < 310  # 276, once 375


def test_an_optimizer_loads_nothing_of_sessions_queues_and_files() -> None:
    program = (
        "import sys, numpy as np, weft as wf\n"
        "v = wf.Variable(np.ones(3, np.float32))\n"
        "optimizer = wf.train.Adagrad(0.1)\n"
        "@wf.compile\n"
        "def step(x):\n"
        "    loss = wf.sum(v * x)\n"
        "    optimizer.minimize(loss)\n"
        "    return loss\n"
        "assert float(step(np.ones(3, np.float32))) == 3\n"
        "print(*sys.modules)"
    )
    found = set(_run(program).split())
    for name in ("session.session", "queues.runners", "queues.inputs", "train.saver"):
        assert f"weft.frontend.{name}" not in found
    assert not [m for m in found if m.startswith("weft.frontend.train.monitored")]


def test_every_name_of_train_is_there_and_told_to_type_checkers() -> None:
    """No submodule has the name of what is public: it would be found in its place."""
    train = Path(str(wf.train.__file__))
    tree = ast.parse(train.read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If) and "TYPE" in ast.dump(n.test))
    told = {
        a.asname or a.name: (n.module, a.name)
        for n in block.body
        if isinstance(n, ast.ImportFrom)
        for a in n.names
    }
    for n in block.body:  # TensorFlow's names
        if isinstance(n, ast.Assign):
            assert isinstance(n.targets[0], ast.Name)
            assert isinstance(n.value, ast.Name)
            told[n.targets[0].id] = told[n.value.id]
    assert told == wf.train._LATER
    old = wf.train._OLD_NAMES
    assert set(wf.train.__all__) == {*told} - {*old} == {n for n in dir(wf.train) if n[0] != "_"}
    assert not {*told} & {p.stem for p in train.parent.glob("*")}
    for name, (module, what) in wf.train._LATER.items():
        assert getattr(wf.train, name) is getattr(import_module(module), what)
