"""Shared libraries: what a C program and ctypes get of a model, held against the process that made
it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
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
F32 = np.float32
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


@pytest.mark.share(9)
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


@pytest.mark.share(3)
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


SIZED_C = """
#include <stdio.h>
#include "model.h"

int main(void)
{
    float x[9 * 6], y[9 * 5];
    const void *in[] = {x};
    void *out[] = {y};
    for (int k = 0; k < 9 * 6; ++k)
        x[k] = (float)k / 7;
    for (long long n = 0; n < 10; ++n) {
        const weft_tensor *tensor = weft_model_sized_outputs(&n);
        int error = weft_model_run_sized(&n, in, out);
        if (error || !tensor) {
            printf("%lld: %s\\n", n, weft_model_message(error));
            continue;
        }
        printf("%lld: %lld x %lld, %d bytes, %s %a\\n", n, tensor->shape[0], tensor->shape[1],
               (int)tensor->bytes, weft_model_sizes[0], y[n * 5 - 1]);
    }
    return weft_model_outputs->shape[0] != -1 || weft_model_outputs->bytes;
}
"""


def _layer(x: Any) -> Any:
    return wf.nn.softmax(wf.matmul(x, W)) + wf.mean(x)


def _open_graph(f: Callable[..., Any], *kinds: wf.TensorType) -> wf.Graph:
    arrays = [np.ones([d if isinstance(d, int) else 2 for d in k.shape], F32) for k in kinds]
    return wf.compile(f, input_signature=kinds).trace(*arrays)


def test_calls_choose_sizes(tmp_path: Path) -> None:
    """From C: each size as the compiled function of it alone, on one thread."""
    graph = _open_graph(_layer, wf.TensorType(wf.float32, ("batch", 6)))
    sizes = [{"batch": n} for n in (9, 1, 2, 3, 4)]
    write_library(graph, ["y"], tmp_path, "model", sizes=sizes)
    (tmp_path / "main.c").write_text(SIZED_C)
    subprocess.run(
        ["cc", "-std=c99", "-pedantic", "-Wall", "-Werror", "main.c", "-o", "main", "-L.",
         "-lmodel", "-Wl,-rpath,$ORIGIN"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    told = subprocess.run([str(tmp_path / "main")], capture_output=True, check=True, text=True)
    x = (np.arange(54, dtype=np.float32) / np.float32(7)).reshape(9, 6)
    wanted = []
    for n in range(10):
        if n not in (1, 2, 3, 4, 9):
            wanted.append(f"{n}: the library is not for these sizes")
            continue
        y = np.asarray(wf.compile(_layer, threads=1)(x[:n]))
        last = ctypes.c_float(y[-1, -1]).value
        wanted.append(f"{n}: {n} x 5, {20 * n} bytes, batch {_as_hexadecimal(last)}")
    assert told.stdout.splitlines() == wanted


def _as_hexadecimal(x: float) -> str:
    """As C's %a."""
    sign, _, exponent = x.hex().partition("p")
    return f"{sign.rstrip('0').rstrip('.')}p{exponent}"


def test_two_sizes_at_once(tmp_path: Path) -> None:
    """Programs lie in the order of all their sizes; constants are in the library once."""
    table = RNG.random((40, 50), np.float32)

    def f(x: Any, y: Any) -> Any:
        return wf.matmul(x, table), wf.sum(y)

    graph = _open_graph(f, wf.TensorType(wf.float32, ("n", 40)), wf.TensorType(wf.float32, ("m",)))
    sets = [{"m": m, "n": n} for m in (5, 2) for n in (7, 0, 3)]
    made = write_library(graph, ["a", "b"], tmp_path, "model", sizes=sets)
    assert made.library.read_bytes().count(table[3].tobytes()) <= 2  # as it is, and in panels
    c = ctypes.CDLL(str(made.library))
    for one in sets:
        x, y = RNG.random((one["n"], 40), np.float32), RNG.random(one["m"], np.float32)
        wanted = [np.asarray(t) for t in wf.compile(f, threads=1)(x, y)]
        got = [np.full_like(t, 77) for t in wanted]
        sizes = (ctypes.c_longlong * 2)(one["m"], one["n"])
        assert c.weft_model_run_sized(sizes, _addresses([x, y]), _addresses(got)) == 0
        assert [t.tobytes() for t in got] == [t.tobytes() for t in wanted]


THREADS = """
import ctypes, os, sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np, _ctypes

c = ctypes.CDLL(sys.argv[1])
x, wanted = np.load(sys.argv[2]), np.load(sys.argv[3])

def run(_=0):
    y = np.zeros_like(wanted)
    one = ctypes.c_void_p * 1
    code = c.weft_model_run(one(x.ctypes.data), one(y.ctypes.data))
    return code == 0 and y.tobytes() == wanted.tobytes()

threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()

def run_until(wanted):  # on a machine without a processor to spare, calls work alone for a while
    until = time.monotonic() + 60
    while good := run():
        if threads() >= wanted or time.monotonic() > until:
            break
    return good

assert run() and threads() == before
assert c.weft_model_set_threads(0) == c.weft_model_set_threads(10**6) == -3
for count in (3, 2, 1, 4):
    assert c.weft_model_set_threads(count) == 0
    assert all(run() for _ in range(20))
assert run_until(before + 3)
print("workers", threads() - before)
with ThreadPoolExecutor(3) as pool:
    assert all(pool.map(run, range(40)))
child = os.fork()
if not child:
    here = threads()
    good = run_until(2)
    os._exit(0 if good and threads() > here == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
assert run()
_ctypes.dlclose(c._handle)
print("left", threads() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
def test_threads(tmp_path: Path) -> None:
    """The same bits with each number of threads, from several at once, in a child process; and they
    end with the library."""

    def f(x: Any) -> Any:
        return wf.exp(wf.matmul(x, x) * 0.01) + x

    x = RNG.random((300, 300), np.float32)
    library(tmp_path, f, x)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.asarray(wf.compile(f, threads=1)(x)))
    names = ("libmodel.so", "x.npy", "y.npy")
    told = subprocess.run(
        [sys.executable, "-c", THREADS, *[str(tmp_path / name) for name in names]],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # whose threads end with a fork
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (told.stdout, told.returncode) == ("workers 3\nleft 0\n", 0), told.stderr
