"""Shared libraries: what a C program and ctypes get of a model, held against the process that made
it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.codegen.llvm.target import host_isas
from weft.frontend.bundle.load import bundle_graph
from weft.frontend.tools.main import ERROR, SUCCESS, main
from weft.runtime.native.library import LibraryFiles, write_library

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
RNG = np.random.default_rng(5)
W = RNG.standard_normal((6, 5)).astype(np.float32)


class Library:
    """A library by ctypes."""

    def __init__(self, made: LibraryFiles, results: Sequence[tuple[Any, Any]]) -> None:
        self.c = ctypes.CDLL(str(made.library))
        self.c.weft_model_message.restype = ctypes.c_char_p
        self.results = results

    def __call__(self, *inputs: Any) -> list[Any]:
        out = [np.full(shape, 77, dtype) for shape, dtype in self.results]
        code = self.c.weft_model_run(_addresses(inputs), _addresses(out))
        if code:
            raise RuntimeError(self.c.weft_model_message(code).decode())
        return out


def _addresses(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * (len(arrays) + 1))(*[a.ctypes.data for a in arrays])


def library(folder: Path, f: Callable[..., Any], *inputs: Any, target: str = "native") -> Library:
    graph = wf.compile(f).trace(*inputs)
    names = [f"out_{k}" for k in range(len(graph.results))]
    made = write_library(graph, names, folder, "model", target)
    kinds: list[Any] = [r.type for r in graph.results]
    return Library(made, [(k.static_shape, k.dtype.numpy) for k in kinds])


def table(i: int) -> Any:
    return wf.take(wf.asarray(W), i, axis=0)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elementwise": (lambda x: (wf.exp(x), x > 0, wf.astype(x, wf.int8)), (W,)),
    "product": (lambda x: wf.nn.gelu(x @ W) @ W.T, (RNG.random((7, 6), np.float32),)),
    "large_product": (lambda x, y: x @ y, tuple(RNG.standard_normal((2, 130, 130)))),
    "convolution": (
        lambda x: wf.nn.max_pool2d(wf.nn.relu(wf.nn.conv2d(x, np.ones((3, 3, 2, 4)))), 2),
        (RNG.standard_normal((2, 10, 10, 2)),),
    ),
    "softmax": (lambda x: wf.nn.softmax(x), (RNG.random((300, 40), np.float32),)),
    "attention": (
        lambda q: wf.nn.scaled_dot_product_attention(q, q, q, is_causal=True),
        (RNG.random((2, 3, 20, 8), np.float32),),
    ),
    "sums": (lambda x: (wf.sum(x), wf.mean(x, axis=0), wf.max(x, axis=1)), (W,)),
    "sort": (lambda x: (wf.sort(x, axis=1), wf.argmax(x), wf.cumulative_sum(x, axis=0)), (W,)),
    "gather": (table, (np.array([5, 0, -1, 2]),)),
    "while": (
        lambda x: wf.while_loop(lambda i, y: wf.sum(y) < 1000, lambda i, y: (i + 1, y * 2 + 1),
                                (0, x)),
        (np.ones(3),),
    ),
    "scan": (lambda x: wf.scan(lambda c, r: (c * 0.5 + r, c), wf.zeros([5]), x), (W,)),
    "cond": (
        lambda x: wf.cond(wf.sum(x) > 0, lambda: wf.sin(x), lambda: x @ wf.ones([5, 5])),
        (W,),
    ),
    "passed_on": (lambda x: (x, x, wf.asarray([1, 2, 3])), (W,)),
    "numbers": (lambda x, y: x * y, (np.float64(3), np.float64(4))),
    "nothing": (lambda x: (wf.sum(x), x + 1), (np.zeros((0, 3)),)),
    "random": (lambda k: wf.random.normal(k, [40]), (np.array([1, 2], np.uint32),)),
    "half": (lambda x: wf.astype(wf.astype(x, wf.float16) * 3, wf.bfloat16), (W,)),
    "complex": (lambda x: wf.astype(x, wf.complex64) * 1j, (W,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(tmp_path: Path, name: str) -> None:
    """As the compiled function gives on one thread, twice, beside others."""
    f, inputs = CASES[name]
    inputs = tuple(np.ascontiguousarray(x) for x in inputs)
    made = library(tmp_path, f, *inputs)
    wanted = [np.asarray(x) for x in wf.tree_leaves(wf.compile(f, threads=1)(*inputs))]
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: made(*inputs), range(8)):
            assert [a.tobytes() for a in got] == [a.tobytes() for a in wanted]


@pytest.mark.parametrize("target", host_isas())
def test_smaller_instruction_sets(tmp_path: Path, target: str) -> None:
    f, inputs = CASES["product"]
    made = library(tmp_path, f, *inputs, target=target)
    wanted = np.asarray(wf.compile(f, target=target, threads=1)(*inputs))
    assert made(*inputs)[0].tobytes() == wanted.tobytes()


def test_a_recurrent_model(tmp_path: Path) -> None:
    """From a bundle, whose variables are constants of the library."""
    cell = wf.nn.LSTMCell(4)
    x = RNG.random((2, 9, 3), np.float32)
    wf.nn.dynamic_rnn(cell, x, dtype=wf.float32)
    wf.export(lambda x: wf.nn.dynamic_rnn(cell, x, dtype=wf.float32), tmp_path / "m", example=x)
    graph = bundle_graph(tmp_path / "m")
    names = graph.result_names
    made = write_library(graph, names, tmp_path, "model")
    kinds: list[Any] = [r.type for r in graph.results]
    got = Library(made, [(k.static_shape, k.dtype.numpy) for k in kinds])(x)
    wanted = wf.tree_leaves(wf.compile(wf.load(tmp_path / "m")["serving_default"], threads=1)(x))
    assert [a.tobytes() for a in got] == [np.asarray(a).tobytes() for a in wanted]


def test_an_index_out_of_bounds(tmp_path: Path) -> None:
    """An error, and the library goes on."""
    made = library(tmp_path, table, np.zeros(3, np.int64))
    with pytest.raises(
        RuntimeError, match=r"an index of op 'take' is out of bounds \(.*test_libra"
    ):
        made(np.array([0, 6, 1]))
    assert made(np.array([0, 5, 1]))[0].tobytes() == W[[0, 5, 1]].tobytes()


def test_what_no_library_holds(tmp_path: Path) -> None:
    refused = {
        "SciPy's BLAS and LAPACK": (lambda x: wf.linalg.eigh(x), np.eye(100)),
        "calls Python": (lambda x: wf.py_function(np.sin, [x], wf.float64, [2]), np.ones(2)),
    }
    for why, (f, x) in refused.items():
        with pytest.raises(wf.errors.UnsupportedError, match=why):
            library(tmp_path, f, x)
    v = wf.Variable(1.0, name="v")
    with pytest.raises(wf.errors.UnsupportedError, match="the variable 'v', which no library"):
        library(tmp_path, lambda x: x * v, np.ones(2))
    graph = wf.compile(lambda x: x).trace(np.ones(2))
    with pytest.raises(wf.errors.InvalidArgumentError, match="'no name' is no name of a library"):
        write_library(graph, ["a"], tmp_path, "no name", "native")
    assert not any(tmp_path.iterdir())


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-cc -m64")
    with pytest.raises(wf.errors.ToolchainError, match="'no-such-cc' is not found"):
        library(tmp_path, lambda x: x + 1, W)
    monkeypatch.setenv("CC", "cc --no-such-option")
    with pytest.raises(wf.errors.ToolchainError, match="no-such-option"):
        library(tmp_path, lambda x: x + 1, W)


def test_names_from_anywhere(tmp_path: Path) -> None:
    """A graph's names are the text of C comments and strings: none of them ends these."""
    evil = 'a*/ int x = 1; /*"\\\n??/'
    graph = wf.compile(lambda x: x + 1).trace(W)
    from dataclasses import replace

    made = write_library(
        replace(graph, name=evil, arg_names=(evil,)), [evil], tmp_path, "model", "native"
    )
    got = Library(made, [(W.shape, W.dtype)])(W)[0]
    assert got.tobytes() == (W + np.float32(1)).tobytes()


C_PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "classifier.h"

int main(void)
{
    const weft_model_tensor *in = weft_model_inputs, *out = weft_model_outputs;
    if (WEFT_MODEL_INPUTS != 1 || strcmp(in->name, "x") || strcmp(in->dtype, "float32"))
        return 2;
    if (in->rank != 2 || in->shape[0] != 4 || in->shape[1] != 6)
        return 3;
    void *x = malloc(in->bytes), *y = malloc(out->bytes);
    if (fread(x, 1, in->bytes, stdin) != in->bytes)
        return 4;
    const void *inputs[] = {x};
    void *outputs[] = {y};
    int error = weft_model_run(inputs, outputs);
    if (error) {
        fprintf(stderr, "%s\\n", weft_model_message(error));
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
        ([f"{bundle}:read", "--target", "avx"], "avx"),
    ):
        assert main(["compile", *words]) == ERROR
        assert told in capsys.readouterr().err
    assert main(["run", f"{bundle}:read", "--seed", "0"]) == SUCCESS
