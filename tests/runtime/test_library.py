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


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_smaller_instruction_sets(tmp_path: Path, target: str) -> None:
    f, inputs = CASES["product"]
    try:
        wf.compile(f, target=target)
    except wf.errors.InvalidArgumentError as error:
        pytest.skip(str(error))
    made = library(tmp_path, f, *inputs, target=target)
    wanted = np.asarray(wf.compile(f, target=target, threads=1)(*inputs))
    assert made(*inputs)[0].tobytes() == wanted.tobytes()


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
        r"op 'eigh' calls SciPy's BLAS or LAPACK \(dsy": (lambda x: wf.linalg.eigh(x), np.eye(100)),
        "op 'py_function' calls Python": (
            lambda x: wf.py_function(np.sin, [x], wf.float64, [2]),
            np.ones(2),
        ),
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
    evil = 'a*/ int x = 1; /*"\\\n??/ @WORDS@ @HEADER@ @MESSAGES@'
    graph = wf.compile(lambda x: x + 1).trace(W)
    from dataclasses import replace

    made = write_library(
        replace(graph, name=evil, arg_names=(evil,)), [evil], tmp_path, "model", "native"
    )
    got = Library(made, [(W.shape, W.dtype)])(W)[0]
    assert got.tobytes() == (W + np.float32(1)).tobytes()


def test_two_libraries_in_one_program(tmp_path: Path) -> None:
    """Each header's functions are those of its own library, whatever is linked first."""
    for name, f in (("dbl", lambda x: x * 2), ("plus", lambda x: x + 100)):
        graph = wf.compile(f).trace(np.ones(3))
        write_library(graph, ["y"], tmp_path, name)
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "dbl.h"\n#include "plus.h"\n'
        "int main(void)\n{\n    double x[] = {1, 2, 3}, a[3], b[3];\n"
        "    const void *in[] = {x};\n    void *one[] = {a}, *two[] = {b};\n"
        "    int bad = weft_dbl_run(in, one) + weft_plus_run(in, two);\n"
        '    printf("%g %g\\n", a[2], b[2]);\n    return bad;\n}\n'
    )
    subprocess.run(
        ["cc", "main.c", "-o", "main", "-L.", "-lplus", "-ldbl", "-Wl,-rpath,$ORIGIN"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    told = subprocess.run([str(tmp_path / "main")], capture_output=True, check=True)
    assert told.stdout == b"6 103\n"


def test_sizes_that_depend_on_values(tmp_path: Path) -> None:
    with pytest.raises(wf.errors.UnsupportedError, match="sizes that depend on values"):
        library(tmp_path, lambda x: x[x > 0], W)
