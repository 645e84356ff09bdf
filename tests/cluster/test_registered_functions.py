"""`wf.register_function` and `weft worker --import`: Python functions, ops and kernels by name, in
other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import weft as wf
from weft.frontend.extend.ops import unregister_op
from weft.frontend.tools.main import main

TASK = "/job:worker/task:0"

#: What both processes import.
MODULE = """
import math
import os

import numpy as np
import weft as wf


@wf.register_function("test_lengths", replace=True)
def lengths(lines):
    return np.array([len(line) for line in lines.tolist()], np.int64)


@wf.register_function("test_pair", replace=True)
def pair(x):
    return [x + 1, np.int64(os.getpid())]


cube = wf.register_op("test_cube", elementwise=True, reference=lambda x: x * x * x, replace=True)


@wf.register_kernel(cube)
def cube_element(x):
    return x * x * x


@wf.elementwise
def bent(x):
    return x if x > 0.375 else math.exp(x)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "registered_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import registered_here  # type: ignore[import-not-found]

    yield registered_here
    del sys.modules["registered_here"]
    unregister_op("test_cube")


@contextmanager
def worker(folder: Path, *options: str) -> Iterator[str]:
    """A task in a process of its own; its address."""
    address = f"ipc://{folder}/worker0"
    (folder / "cluster.json").write_text(json.dumps({"worker": [address]}))
    own = ["--cluster", "cluster.json", "--job", "worker", "--task", "0", *options]
    code = "from weft.frontend.tools.main import main; main()"  # as `weft` does, not `python -m`
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, "worker", *own],
        cwd=folder, env=dict(os.environ, PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert "listens at" in process.stdout.readline()
        yield address
    finally:
        process.kill()
        process.wait(30)


def test_in_another_process(tmp_path: Path, module: Any) -> None:
    with worker(tmp_path, "--import", "registered_here") as target, wf.Graph().as_default():
        lines = wf.placeholder(wf.string, [None])
        x = wf.placeholder(wf.float32, [2])
        with wf.device(TASK):
            sizes = wf.py_function(module.lengths, [lines], wf.int64, shapes=(None,))
            more, number = wf.py_function(
                module.pair, [x], [wf.float32, wf.int64], shapes=[(2,), ()]
            )
        with wf.Session(target) as session:
            found = session.run([sizes, more, number], {lines: ["a", "bcd"], x: [1, 2]})
    assert found[0].tolist() == [1, 3]
    assert found[1].tolist() == [2, 3]
    assert found[2] != os.getpid()


@pytest.mark.slow  # a kernel takes Numba some seconds
def test_ops_and_kernels_in_another_process(tmp_path: Path, module: Any) -> None:
    with worker(tmp_path, "--import", "registered_here") as target, wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [2])
        with wf.device(TASK):
            y = module.cube(x)
        with wf.Session(target) as session:
            assert session.run(y, {x: [1, 2]}).tolist() == [1, 8]


@pytest.mark.slow
def test_one_that_the_task_has_not(tmp_path: Path, module: Any) -> None:
    with worker(tmp_path) as target, wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [2])
        y = wf.py_function(module.pair, [x], [wf.float32, wf.int64], shapes=[(2,), ()])[0]
        other = wf.py_function(lambda a: a, [x], wf.float32, (2,), name="test_pair")
        with wf.Session(target) as session:
            with pytest.raises(wf.errors.FailedPreconditionError) as caught:
                session.run(y, {x: [1, 2]})
            assert "registered as 'test_pair'" in str(caught.value)
            assert "--import" in str(caught.value)
            assert "test_registered_functions.py" in str(caught.value)
            # of the same name, and not the one that has been registered by it
            with pytest.raises(wf.errors.UnsupportedError, match="register_function"):
                session.run(other, {x: [1, 2]})


def bent_on_the_task(target: str, module: Any) -> Any:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [3])
        with wf.device(TASK):
            y = module.bent(x) * 2
        with wf.Session(target) as session:
            return session.run(y, {x: [-1, 0, 1]})


@pytest.mark.slow
def test_a_scalar_function_that_has_to_be_compiled(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task finds it by its name, and compiles its own code."""
    monkeypatch.setenv("WEFT_CACHE", "0")  # not what this process left on disk
    with worker(tmp_path, "--import", "registered_here") as target:
        got = bent_on_the_task(target, module)
    np.testing.assert_allclose(got, [2 * np.exp(-1), 2, 2], rtol=1e-6)


def test_a_scalar_function_that_the_task_has_not(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    with worker(tmp_path) as target, pytest.raises(wf.errors.FailedPreconditionError) as caught:
        bent_on_the_task(target, module)
    said = str(caught.value)
    assert "the scalar function 'registered_here.bent' of the graph is not defined here" in said
    assert "weft worker --import registered_here" in said
    assert "test_registered_functions.py" in said


def test_in_a_graph_from_text(module: Any) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [2], name="x")
        made = wf.py_function(module.pair, [x], [wf.float32, wf.int64], shapes=[(2,), ()])
        wf.identity(made[0], name="y")
    again = wf.Graph.from_text(graph.as_text())
    with wf.Session(graph=again) as session:
        assert session.run("y:0", {"x:0": [1, 2]}).tolist() == [2, 3]


def test_names() -> None:
    def one() -> None: ...

    def two() -> None: ...

    assert wf.register_function("test_names", one) is one
    assert wf.register_function("test_names")(one) is one
    with pytest.raises(wf.errors.InvalidArgumentError, match="there is a function 'test_names'"):
        wf.register_function("test_names", two)
    wf.register_function("test_names", two, replace=True)
    for bad in (("", one), (one, one), ("test_bad", 3)):
        with pytest.raises(wf.errors.InvalidArgumentError, match="a name and a function"):
            wf.register_function(*bad)  # type: ignore[arg-type]


def test_modules_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_here.py").write_text("import no_such_thing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["worker", "--import", "nowhere.at.all"]) == 2
    assert "there is no module 'nowhere.at.all'" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        main(["worker", "--import", "broken_here"])


def test_which_task_it_is_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--job", "worker"], ["--task", "0"]):
        assert main(["worker", "--cluster", "cluster.json", *options]) == 2
        assert "all three are needed" in capsys.readouterr().err
