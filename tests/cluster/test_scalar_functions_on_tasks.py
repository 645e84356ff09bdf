"""Scalar functions of the user's on the tasks of a cluster, which get a graph without code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_registered_functions import TASK, worker

import weft as wf

MODULE = """
import math

import weft as wf


@wf.elementwise
def bent(x):
    return x if x > 0.375 else math.exp(x)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "scalar_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import scalar_here  # type: ignore[import-not-found]

    yield scalar_here
    del sys.modules["scalar_here"]


def run(target: str, module: Any) -> Any:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [3])
        with wf.device(TASK):
            y = module.bent(x) * 2
        with wf.Session(target) as session:
            return session.run(y, {x: [-1, 0, 1]})


def test_a_task_that_has_the_function(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")  # the task's own code, not this process's
    with worker(tmp_path, "--import", "scalar_here") as target:
        got = run(target, module)
    np.testing.assert_allclose(got, [2 * np.exp(-1), 2, 2], rtol=1e-6)


def test_a_task_that_has_not(tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    with worker(tmp_path) as target, pytest.raises(wf.errors.FailedPreconditionError) as caught:
        run(target, module)
    said = str(caught.value)
    assert "the scalar function 'scalar_here.bent' of the graph is not defined here" in said
    assert "weft worker --import scalar_here" in said
    assert "test_scalar_functions_on_tasks.py" in said
