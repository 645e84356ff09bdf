"""Shared libraries of bundles: `weft compile BUNDLE --target cpu`, and a program in C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.frontend.tools.main import ERROR, SUCCESS, main

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
RNG = np.random.default_rng(5)
W = RNG.standard_normal((6, 5)).astype(np.float32)


def test_a_recurrent_model(tmp_path: Path) -> None:
    """From a bundle, whose variables are constants of the library."""
    cell = wf.nn.LSTMCell(4)
    x = RNG.random((2, 9, 3), np.float32)
    wf.nn.dynamic_rnn(cell, x, dtype=wf.float32)
    wf.export(lambda x: wf.nn.dynamic_rnn(cell, x, dtype=wf.float32), tmp_path / "m", example=x)
    assert main(["compile", str(tmp_path / "m"), "--target", "cpu", "-o", str(tmp_path)]) == SUCCESS
    wanted = wf.tree_leaves(wf.compile(wf.load(tmp_path / "m")["serving_default"], threads=1)(x))
    wanted = [np.asarray(a) for a in wanted]
    got = [np.empty_like(a) for a in wanted]
    c = ctypes.CDLL(str(tmp_path / "libm.so"))
    given = (ctypes.c_void_p * 1)(x.ctypes.data)
    assert c.weft_m_run(given, (ctypes.c_void_p * 3)(*[a.ctypes.data for a in got])) == 0
    assert [a.tobytes() for a in got] == [a.tobytes() for a in wanted]


C_PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "classifier.h"

int main(void)
{
    const weft_tensor *in = weft_classifier_inputs, *out = weft_classifier_outputs;
    if (weft_classifier_input_count != 1 || strcmp(in->name, "x") || strcmp(in->dtype, "float32"))
        return 2;
    if (in->rank != 2 || in->shape[0] != 4 || in->shape[1] != 6)
        return 3;
    void *x = malloc(in->bytes), *y = malloc(out->bytes);
    if (fread(x, 1, in->bytes, stdin) != in->bytes)
        return 4;
    const void *inputs[] = {x};
    void *outputs[] = {y};
    int error = weft_classifier_run(inputs, outputs);
    if (error) {
        fprintf(stderr, "%s\\n", weft_classifier_message(error));
        return 1;
    }
    fwrite(y, 1, out->bytes, stdout);
    return 0;
}
"""


def test_a_bundle_and_a_c_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`weft compile BUNDLE --target cpu`, and a program that knows nothing of Python."""
    w = wf.Variable(W, name="w")
    bundle = tmp_path / "classifier"
    wf.export(
        lambda x: wf.nn.softmax(wf.matmul(x, w)), bundle,
        example=wf.TensorType(wf.float32, ("batch", 6)),
    )  # fmt: skip
    folder = tmp_path / "out"
    assert main(["compile", str(bundle), "--target", "cpu", "-o", str(folder)]) == ERROR
    assert "--size batch=N" in capsys.readouterr().err
    words = ["compile", str(bundle), "--target", "cpu", "--size", "batch=4", "-o", str(folder)]
    assert main(words) == SUCCESS
    assert "libclassifier.so" in capsys.readouterr().out
    (folder / "main.c").write_text(C_PROGRAM)
    subprocess.run(
        ["cc", "-std=c99", "-pedantic", "-Wall", "-Werror", "main.c", "-o", "main", "-L.",
         "-lclassifier", "-Wl,-rpath,$ORIGIN"],
        cwd=folder, check=True,
    )  # fmt: skip
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    told = subprocess.run(
        [str(folder / "main")], input=x.tobytes(), capture_output=True, check=False, env={}
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout == np.asarray(wf.load(bundle)(x)).tobytes()
    linked = subprocess.run(
        ["ldd", str(folder / "main")], capture_output=True, text=True, check=True
    )
    assert "python" not in linked.stdout


def test_several_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "m"
    wf.export(lambda x: x @ W, bundle, example=wf.TensorType(wf.float32, ("batch", 6)))
    words = ["compile", str(bundle), "--target", "cpu", "-o", str(tmp_path), "--size"]
    for given, told in (
        ("batch=1-4,x", "sizes are integers and ranges of them"),
        ("batch=0-2000", "at most 1024 sets of sizes"),
        ("batch=1-999999999", "at most 1024 sets of sizes"),
        ("batch=4-1", "sizes are integers and ranges of them"),
        ("rows=1,2", "no symbolic dimension 'rows'"),
    ):
        assert main([*words, given]) == ERROR
        assert told in capsys.readouterr().err
    assert main([*words, "batch=1-3,7,2"]) == SUCCESS
    assert "weft_m_run_sized(sizes, inputs, outputs)" in capsys.readouterr().out
    c = ctypes.CDLL(str(tmp_path / "libm.so"))
    for n in (1, 2, 3, 4, 7):
        x, y = RNG.random((n, 6), np.float32), np.zeros((n, 5), np.float32)
        given, got = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
        code = c.weft_model_run_sized((ctypes.c_longlong * 1)(n), given, got)
        assert code == (-2 if n == 4 else 0)
        wanted = np.asarray(wf.load(bundle)(x))
        assert n == 4 or y.tobytes() == wanted.tobytes()


def test_errors_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = wf.Variable(np.int64(0), name="count")
    bundle = str(tmp_path / "b")
    wf.export(
        None, bundle,
        signatures={"up": lambda: count.assign_add(1), "read": lambda: count.read()},
    )  # fmt: skip
    for words, told in (
        ([bundle, "--target", "cpu"], "no signature 'serving_default'"),
        ([f"{bundle}:up", "--target", "cpu"], "writes the variable 'count'"),
        ([f"{bundle}:read", "--target", "cpu,sm_90"], "one instruction set"),
        ([f"{bundle}:read", "--target", "avx"], "a target is cpu, x86-64-v2"),
    ):
        assert main(["compile", *words]) == ERROR
        assert told in capsys.readouterr().err
    assert main(["run", f"{bundle}:read", "--seed", "0"]) == SUCCESS
    folder = tmp_path / "lib"
    assert main(["compile", f"{bundle}:read", "--target", "cpu", "-o", str(folder)]) == SUCCESS
    assert sorted(p.name for p in folder.iterdir()) == ["b_read.h", "libb_read.so"]


def test_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They take a bundle where they take the text of a graph."""
    bundle, page = str(tmp_path / "b"), str(tmp_path / "page.html")
    wf.export(lambda x: x * 2, bundle, example=wf.TensorType(wf.float32, ("n",)))
    for words, told in (
        (["opt", bundle, "--passes", "cse"], "multiply("),
        (["view", bundle], "digraph"),
        (["view", bundle, "--html", page], "1 graph"),
        (["explain", bundle, "--size", "n=3"], "multiply"),
    ):
        assert main(words) == SUCCESS, words
        assert told in capsys.readouterr().out, words
