"""What records need of the user's: ops, functions and kernels with their modules, and the command
that imports them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import weft as wf
from weft.frontend.extend.ops import unregister_op
from weft.frontend.tools.main import DIFFERENT, ERROR, SUCCESS, main
from weft.ir.ops.scalar_function import REPLACED

MODULE = """
import math

import weft as wf

cube = wf.register_op("needed_cube", elementwise=True, reference=lambda x: x * x * x)


@wf.register_kernel(cube)
def cube_element(x):
    return x * x * x


@wf.elementwise
def bent(x):
    return x if x > 0.375 else math.exp(x)


@wf.reducer(init=0)
def largest(a, b):
    return a if abs(a) > abs(b) else b
"""
SCRIPT = """
import sys

import numpy as np
import weft as wf


@wf.elementwise
def kinked(x):
    return x if x > 0.25 else x * x


if __name__ == "__main__":
    from pack.ops import bent, cube, largest

    @wf.compile
    def step(x):
        return cube(x), bent(x), largest(x, axis=0)

    @wf.compile
    def scripted(x):
        return kinked(x) + 1

    with wf.record(sys.argv[1], steps=9):
        step(np.array([0.25, -0.5], np.float32))
        scripted(np.array([0.25, -0.5], np.float32))
"""


def run(
    words: str | list[str], folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        words, cwd=folder, env=given, capture_output=True, text=True, check=False,
        shell=isinstance(words, str),
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of the code, and the one of the records: of `step`, and of `scripted`."""
    code, records = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("records")
    (code / "pack").mkdir()
    (code / "pack" / "__init__.py").write_text("")
    (code / "pack" / "ops.py").write_text(MODULE)
    (code / "train.py").write_text(SCRIPT)
    done = run([sys.executable, "train.py", str(records)], code)
    assert done.returncode == 0, done.stderr
    return code, records


def one(folder: Path, name: str) -> Path:
    (file,) = folder.glob(f"{name}-*.safetensors")
    return file


@pytest.mark.slow
def test_the_error_is_the_command(recorded: tuple[Path, Path]) -> None:
    """All that is not there in one error; its hint runs as it stands, from anywhere."""
    code, records = recorded
    path = one(records, "step")
    ops = code / "pack" / "ops.py"
    failed = run([sys.executable, "-m", "weft", "replay", str(path)], records)
    assert failed.returncode == ERROR
    for what in ("op 'needed_cube'", "function 'bent'", "function 'largest'"):
        assert f"{what} (module pack.ops, {ops}) is not " in failed.stderr
    hint = failed.stderr.splitlines()[1].removeprefix("  hint: ")
    assert hint == (f"PYTHONPATH={code}:{ROOT} weft replay {path} --import pack.ops")
    again = run(hint.replace("weft replay", f"{sys.executable} -m weft replay"), records)
    assert "'recorded' gives the same bits as the recorded run" in again.stdout, again.stderr
    here = run([sys.executable, "-m", "weft", "replay", str(path)], code)
    assert f"hint: weft replay {path} --import pack.ops" in here.stderr


@pytest.mark.slow
def test_functions_of_a_script(recorded: tuple[Path, Path]) -> None:
    """A script is a module by the name of its file."""
    code, records = recorded
    path = one(records, "scripted")
    failed = run([sys.executable, "-m", "weft", "replay", str(path)], records)
    script = f"function 'kinked' (module __main__, {code / 'train.py'}) is not defined here"
    assert script in failed.stderr
    hint = failed.stderr.splitlines()[1].removeprefix("  hint: ")
    assert hint.endswith("--import train")
    for engine in ("", " --engine interpreter"):
        command = f"{hint}{engine}".replace("weft replay", f"{sys.executable} -m weft replay")
        again = run(command, records)
        assert "'kinked'" not in again.stderr
        assert again.returncode == SUCCESS, again.stderr


def test_a_record_is_read_without_functions(
    recorded: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not so without ops, whose types only they know."""
    _, records = recorded
    assert main(["replay", str(one(records, "scripted")), "--program"]) == SUCCESS
    assert "__main__.kinked" in capsys.readouterr().out
    assert main(["replay", str(records), "--list"]) == DIFFERENT
    out = capsys.readouterr().out
    assert "step 1 of 'scripted'" in out
    assert "cannot be read: the record" in out


def test_with_what_is_registered(tmp_path: Path) -> None:
    """In the process that has it `wf.replay` needs no more."""
    double = wf.register_op("needed_double", elementwise=True, reference=lambda x: x + x)

    @wf.register_kernel(double)
    def double_element(x: Any) -> Any:
        return x + x

    f = wf.compile(lambda x: (double(x), bowed(x)))
    try:
        with wf.record(tmp_path) as files:
            f(np.array([0.25, 2], np.float32))
        record = wf.replay(files[0])
        for engine in ("recorded", "interpreter", "dataflow"):
            assert record.differences(engine) == []
    finally:
        unregister_op("needed_double")
    with pytest.raises(wf.errors.FailedPreconditionError, match="op 'needed_double' ") as caught:
        wf.replay(files[0])
    assert str(caught.value.hint).endswith(f"weft replay {files[0]} --import {__name__}")
    with wf.record(tmp_path):  # `f`, which is still there, is none of its calls
        assert wf.compile(wf.tanh)(np.float32(0)) == 0


def test_without_a_kernel_another_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wf.register_kernel("tanh", dtypes=wf.float32, replace=True)(halved)
    try:
        with wf.record(tmp_path) as files:
            wf.compile(lambda x: wf.tanh(x))(np.array([0.25, 2], np.float32))
        assert main(["replay", str(files[0])]) == SUCCESS
        assert "recorded with" not in capsys.readouterr().out
    finally:
        REPLACED.clear()
    assert main(["replay", str(files[0])]) == DIFFERENT
    out = capsys.readouterr().out
    assert f"recorded with kernel 'halved' of op 'tanh' (module {__name__}, {__file__})" in out
    assert f"weft replay {files[0]} --import {__name__}" in out


def halved(x: Any) -> Any:
    return math.tanh(x) / 2


@wf.elementwise
def bowed(x: Any) -> Any:
    return x if x > 0.5 else x * x * x


def test_a_function_that_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {"wf": wf, "__name__": "changed_module"}
    text = "@wf.elementwise\ndef f(x):\n    return x if x > {} else x * x\n"
    for k, least in enumerate((0.5, 0.75)):
        exec(compile(text.format(least), f"/nowhere/changed_{k}.py", "exec"), scope)
        if not k:
            with wf.record(tmp_path) as files:
                wf.compile(scope["f"])(np.array([0.25, 2], np.float32))
    assert wf.replay(files[0]).differences("interpreter") == []  # it knows both
    from weft.ir.ops import scalar_function

    monkeypatch.setattr(scalar_function, "_by_code", {})
    monkeypatch.setattr(scalar_function, "_by_name", {"changed_module.f": [scope["f"].__scalar__]})
    with pytest.raises(
        wf.errors.FailedPreconditionError,
        match=r"function 'f' \(module changed_module, .*\) has other code or constants here",
    ):
        wf.replay(files[0])


def test_what_no_import_makes(tmp_path: Path) -> None:
    scope: dict[str, Any] = {"wf": wf, "__name__": "__main__"}
    exec(
        "double = wf.register_op('needed_here', elementwise=True, reference=lambda x: x + x)", scope
    )
    try:
        wf.register_kernel("needed_here")(bowed.__scalar__)
        with wf.record(tmp_path) as files:
            wf.compile(scope["double"])(np.array([0.25, 2], np.float32))
    finally:
        unregister_op("needed_here")
    with pytest.raises(wf.errors.FailedPreconditionError) as caught:
        wf.replay(files[0])
    assert "op 'needed_here' was made at a prompt" in str(caught.value.hint)
