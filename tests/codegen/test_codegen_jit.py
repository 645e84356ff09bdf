"""The table of compiled kernels: batches, threads, failures."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from scale_kernels import scale_kernel, scaled

from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import (
    CodegenError,
    Kernel,
    compile_count,
    compile_kernels,
    kernel_asm,
    kernel_llvm,
)


def test_a_key_compiles_once() -> None:
    before = compile_count()
    first = compile_kernels([scale_kernel("jit.once", 2.0)])
    again = compile_kernels([scale_kernel("jit.once", 3.0), scale_kernel("jit.other", 5.0)])
    assert compile_count() == before + 2
    assert first["jit.once"] == again["jit.once"]
    assert scaled(again["jit.once"]) == 2.0
    assert scaled(again["jit.other"]) == 5.0


def test_texts_are_of_one_kernel() -> None:
    compile_kernels([scale_kernel("jit.text.a", 7.0), scale_kernel("jit.text.b", 9.0)])
    for text in (kernel_llvm("jit.text.a"), kernel_asm("jit.text.a")):
        assert "scale_by_7_0" in text
        assert "scale_by_9_0" not in text
    assert "define internal" in kernel_llvm("jit.text.a")
    assert "noalias" in kernel_llvm("jit.text.a")
    with pytest.raises(KeyError):
        kernel_llvm("jit.text.never_compiled")


def test_many_threads_compile_at_once() -> None:
    before = compile_count()
    start = threading.Barrier(16)

    def work(number: int) -> list[float]:
        # Each thread shares kernels with its neighbours.
        factors = [float(number + k) for k in range(4)]
        start.wait()
        table = compile_kernels([scale_kernel(f"jit.thread.{f}", f) for f in factors])
        return [scaled(table[f"jit.thread.{f}"]) - f for f in factors]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == [[0.0] * 4] * 16
    assert compile_count() == before + 19


def refuse(e: Emitter) -> None:
    raise ZeroDivisionError("emitter says no")


def emit_invalid(e: Emitter) -> None:
    """A value used before the block that defines it: only LLVM's verifier objects."""
    late = e.builder.append_basic_block("late")
    entry = e.builder.block
    e.builder.position_at_end(late)
    value = e.builder.add(e.argument(0), e.index(1))
    e.builder.unreachable()
    e.builder.position_at_end(entry)
    e.builder.mul(value, value)


@pytest.mark.parametrize("emit", [refuse, emit_invalid])
def test_a_broken_kernel_is_named_and_alone(emit: object) -> None:
    name = emit.__name__  # type: ignore[attr-defined]
    broken = Kernel(f"jit.broken.{name}", f"broken {name}", emit)  # type: ignore[arg-type]
    good = [scale_kernel(f"jit.good.{name}.{k}", 1.0 + k) for k in range(2)]
    with pytest.raises(CodegenError, match=f"weft bug: kernel 'broken {name}' did not compile"):
        compile_kernels([good[0], broken, good[1]])
    count = compile_count()
    assert scaled(compile_kernels(good)[good[1].key]) == 2.0
    assert compile_count() == count


def test_args_are_read_at_the_entry_only() -> None:
    def emit(e: Emitter) -> None:
        with e.loop_function("loop", []) as (inner, _, _):
            inner.argument(0)

    with pytest.raises(CodegenError, match="pass values to loop_function"):
        compile_kernels([Kernel("jit.entry", "entry", emit)])


def test_what_is_imported_when() -> None:
    """LLVM with the first kernel; Numba and SciPy not even with products and reductions."""
    code = """
import sys
import numpy as np
import weft as wf
from weft.codegen.llvm.target import is_loaded
early = {"numba", "llvmlite.binding", "scipy"} & set(sys.modules)
assert not is_loaded()
f = wf.compile(lambda x, w: wf.nn.softmax(wf.matmul(x, w)))
f(np.ones((40, 50), np.float64), np.ones((50, 60), np.float64))
late = {"numba", "llvmlite.binding", "scipy.linalg"} & set(sys.modules)
assert is_loaded()
sys.exit(f"{early} {late}" if early | late else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_table_of_llvmlites_printer_is_full_before_threads_print() -> None:
    """It fills it at the first string, and a thread that prints meanwhile meets a KeyError."""
    script = (
        "from llvmlite.ir import values; table, = values._escape_string.__defaults__;"
        "before = len(table); import weft.codegen.llvm.engine; print(before, len(table))"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert made.stdout.split() == ["0", "256"], made.stderr
