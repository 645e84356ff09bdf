"""Code of scalar functions (`scalar_function`): text, dtypes, kernels, the cache, processes."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import weft as wf
from weft.codegen.llvm import scalar_texts
from weft.codegen.llvm.scalar_from_numba import compile_scalar
from weft.codegen.llvm.scalar_texts import MATHS, ScalarText, scalar_text
from weft.codegen.scalar.if_conversion import has_loop, if_converted
from weft.codegen.scalar.user_functions import can_narrow, function_text, narrowed
from weft.ir.ops.scalar_function import code_of, define_scalar_function, full_name
from weft.ir.python_function import fingerprint

X = np.linspace(-3, 3, 1001, dtype=np.float32)


def helper(x: Any) -> Any:
    return math.tanh(x) * 0.1


def branches(x: Any, n: Any) -> Any:
    if x > 0:
        return helper(x) + n
    return math.exp(x)


def text_of(function: Any, letters: str) -> ScalarText:
    return ScalarText(*compile_scalar(function, letters))


def at(held: ScalarText, letters: str, dtype: str) -> str:
    return function_text(
        "f", held, letters, dtype, lambda op, inside: f"{op}.{inside}", lambda name, *_: name
    )


# ------------------------------------------------------------------------------------------ text
def test_a_text_holds_one_function_and_nothing_of_its_module() -> None:
    held = text_of(branches, "fi")
    assert held.result == "f"
    assert held.text.startswith("define internal double @weft.scalar(double %a0, i64 %a1)")
    assert held.text.count("define") == 1
    assert "!" not in held.text
    assert "#" not in held.text
    assert "alloca" not in held.text


def test_at_f32_every_float_is_f32() -> None:
    held = text_of(branches, "fi")
    narrow = at(held, "fi", "f32")
    assert "double" not in narrow
    assert "@tanh.f32(" in narrow
    assert "@exp.f32(" in narrow
    tenth = f"0x{np.float64(np.float32(0.1)).view(np.uint64):016X}"
    assert tenth in narrow
    assert "@exp.f64(" in at(held, "fi", "f64")


@pytest.mark.parametrize("value", [0.1, 1e-300, 1e300, -0.0, float("inf"), 16777217.0, 1 / 3])
def test_literals_are_rounded(value: float) -> None:
    bits = f"0x{np.float64(value).view(np.uint64):016X}"
    with np.errstate(over="ignore"):
        wanted = np.float64(np.float32(value)).view(np.uint64)
    assert (
        narrowed(f"  %x = fadd double %y, {bits}\n") == f"  %x = fadd float %y, 0x{wanted:016X}\n"
    )


def test_what_looks_at_bits_computes_in_f64() -> None:
    body = "  %b = bitcast double %a0 to i64\n  %c = bitcast i64 %b to double\n  ret double %c\n"
    held = ScalarText(f"define internal double @weft.scalar(double %a0) {{\n{body}}}\n", "f")
    assert not can_narrow(held.text)
    text = at(held, "f", "f32")
    assert "fpext float %a0 to double" in text
    assert "fptrunc double %got to float" in text


def test_loops_are_found() -> None:
    def loops(x: Any) -> Any:
        while x > 1:
            x = x / 3
        return x

    assert has_loop(text_of(loops, "f").text)
    assert not has_loop(text_of(branches, "fi").text)


def test_branches_become_selects_and_loops_stay() -> None:
    def divides(x: Any, n: Any) -> Any:
        if n > 3:
            return n // (n - 5) + x
        if x > 1:
            x = math.exp(x)
        return x if n else 2 * x

    def loops(x: Any) -> Any:
        while x > 1:
            x = x / 3
        return x

    flat = if_converted(text_of(divides, "fi").text)
    assert " br " not in flat
    assert " phi " not in flat
    assert flat.count("ret ") == 1
    for line in flat.splitlines():  # a division of integers may trap
        if re.search(r" [su](div|rem) ", line):
            assert "%if." in line
    held = text_of(loops, "f").text
    assert if_converted(held) == held
    n = np.arange(1001) % 9
    wanted = [divides(float(x), int(k)) if k != 5 else 0 for x, k in zip(X, n, strict=True)]
    got = wf.compile(wf.elementwise(divides))(X, n).numpy()
    np.testing.assert_allclose(got[n != 5], np.array(wanted)[n != 5], rtol=1e-6)


def test_the_digest_follows_what_the_function_does() -> None:
    def make(factor: float, inner: Any = helper) -> Any:
        def f(x: Any) -> Any:
            return inner(x) * factor if x > 0 else x

        return f

    def other(x: Any) -> Any:
        return math.tanh(x) * 0.2

    assert fingerprint(make(1.0)) == fingerprint(make(1.0))
    different = [make(1.0), make(2.0), make(1), make(1.0, other)]
    assert len({fingerprint(f) for f in different}) == len(different)


# --------------------------------------------------------------------------------------- kernels
def test_the_function_is_inlined_and_the_loop_in_vectors() -> None:
    """The call is gone, and weft's own exp is in its place."""

    @wf.elementwise
    def elu(x: Any, *, alpha: float = 0.5) -> Any:
        return x if x > 0 else alpha * (math.exp(x) - 1)

    f = wf.compile(lambda x: elu(x) * 2 + 1)
    wanted = np.where(X > 0, X, np.float32(0.5) * (np.exp(X) - 1)) * 2 + 1
    np.testing.assert_allclose(f(X), wanted, rtol=1e-6)
    text = f.explain(X)
    assert "kernel elu_fma" in text  # one kernel
    assert "one call runs 1 native kernels" in text
    assert "elu (" in text
    assert "compiled by Numba, computes in f32; inline" in text


@pytest.mark.share(12)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", sorted(set(MATHS) - {"pow", "fmod", "atan2", "hypot", "cbrt"}))
def test_functions_of_math_are_wefts(name: str, dtype: str) -> None:
    """Compiled, they have the bits of weft's own ops: inline, in vectors or not."""
    scope: dict[str, Any] = {"math": math}
    if not hasattr(math, name):
        pytest.skip(f"Python {sys.version_info[:2]} has no math.{name}")
    exec(f"def f(x):\n    if x > 100: return x\n    return math.{name}(x)\n", scope)
    x = np.linspace(0.05, 0.95, 333).astype(dtype)
    if name == "acosh":
        x += 1
    try:
        got = wf.compile(wf.elementwise(scope["f"]))(x)
    except wf.errors.TypeRuleError as error:
        pytest.skip(f"Numba does not know it: {error}")
    np.testing.assert_array_equal(got, wf.compile(getattr(wf, name))(x))


def test_functions_of_two_numbers() -> None:
    @wf.elementwise
    def f(x: Any, y: Any) -> Any:
        if x > 100:
            return x
        return math.atan2(x, y) + math.hypot(x, y) + abs(x) ** y + x % y + x // y

    y = np.where(X == 0, 1, X[::-1] * 0.7).astype(np.float32)
    y = np.where(y == 0, 1, y).astype(np.float32)
    wide, other = X.astype("f8"), y.astype("f8")
    wanted = np.arctan2(wide, other) + np.hypot(wide, other) + np.abs(wide) ** other
    for x, divisor, limit in ((X, y, 3e-5), (wide, other, 1e-12)):
        quotients = x % divisor + x // divisor
        np.testing.assert_allclose(
            wf.compile(f)(x, divisor), wanted + quotients, rtol=limit, atol=limit
        )


def test_out_of_range_is_some_integer_and_divisions_by_zero_trap_nothing() -> None:
    @wf.elementwise
    def f(x: Any, n: Any) -> Any:
        return int(x) // n if x > 0 else n // (n - n)

    x = np.array([1e30, np.nan, np.inf, -1, 7], np.float32)
    got = wf.compile(f)(x, np.array([1, 2, 3, 4, 2]))
    assert got.tolist()[-1] == 3
    assert got.dtype is wf.int64


def test_in_every_kind_of_kernel() -> None:
    """Rows, folds, products' epilogues, transposes, gathers, scans around it, with operands that
    stand still in a loop."""

    @wf.elementwise
    def f(x: Any, y: Any, *, a: float = 0.3) -> Any:
        return x * y if x > a else y - math.exp(x * a)

    def g(x: Any, y: Any) -> Any:
        return wf.where(x > 0.3, x * y, y - wf.exp(x * 0.3))

    x = np.random.default_rng(0).normal(size=(24, 40)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(40, 16)).astype(np.float32)
    column, index = x[:, :1].copy(), np.arange(24) % 5

    def kernels(f: Any) -> Any:
        def run(x: Any, w: Any, column: Any, index: Any) -> Any:
            return (
                wf.nn.softmax(f(x, column)),
                wf.sum(f(x, column), axis=0),
                wf.sum(f(x, x)),
                f(x @ w, 2.0),
                f(x.T, 1.5) + 1,
                f(wf.take(x, index, axis=0), 0.5),
                wf.cumulative_sum(f(x, 0.1), axis=1),
                wf.max(f(x, column), axis=1),
            )

        return run

    got = wf.compile(kernels(f))(x, w, column, index)
    wanted = wf.compile(kernels(g))(x, w, column, index)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_no_code_and_no_function_is_an_error_at_the_users_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph from text in a process that has neither."""
    monkeypatch.setenv("WEFT_CACHE", "0")

    def gone(x: Any) -> Any:
        return x if x > 0.125 else -x

    name = full_name(gone)
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [3], name="x")
        wf.tf1.identity(wf.elementwise(gone)(x), name="y")
        text = graph.as_text()
    code = code_of(gone)
    monkeypatch.setattr(scalar_texts, "_texts", {})
    monkeypatch.setattr("weft.ir.ops.scalar_function._by_name", {})
    monkeypatch.setattr("weft.ir.ops.scalar_function._by_code", {})
    again = wf.Graph.from_text(text)
    with wf.Session(graph=again) as session:
        with pytest.raises(
            wf.errors.FailedPreconditionError, match="is not defined here"
        ) as caught:
            session.run("y:0", {"x:0": [1, 2, 3]})
        assert name in str(caught.value)
        assert "test_scalar_functions.py" in str(caught.value)
        define_scalar_function(gone)
        assert code_of(gone) == code
        assert session.run("y:0", {"x:0": [-1, 0, 1]}).tolist() == [1, 0, 1]


# ------------------------------------------------------------------------------------- processes
SCRIPT = """
import json, math, sys, time
start = time.perf_counter()
import numpy as np
import weft as wf
from weft.codegen.llvm.jit import compile_count, wait_for_background

FACTOR = float(sys.argv[1])
functions = []
for k in range(int(sys.argv[2])):
    scope = {"math": math, "k": k, "FACTOR": FACTOR}
    exec("def f(x):\\n    return x * FACTOR if x > k else math.exp(x - k)", scope)
    functions.append(wf.elementwise(scope["f"]))
begin = time.perf_counter()
x = np.linspace(0, 1, 7, dtype=np.float32)

@wf.compile
def total(x):
    y = x
    for f in functions:
        y = f(y)
    return y

got = total(x)
took = time.perf_counter() - begin
wait_for_background()
loaded = "weft.codegen.nests.nest" in sys.modules
print(json.dumps([got.tolist(), "numba" in sys.modules, compile_count(), loaded, took]))
"""


def run_script(folder: Path, factor: float, count: int = 2) -> Any:
    environment = {
        **os.environ, "WEFT_CACHE_DIR": str(folder), "WEFT_CACHE": "1", "PYTHONPATH": str(ROOT)
    }  # fmt: skip
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(factor), str(count)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(made.stdout)


@pytest.mark.slow
def test_the_second_process_imports_no_numba_and_edits_are_seen(tmp_path: Path) -> None:
    first = run_script(tmp_path, 2.0)
    second = run_script(tmp_path, 2.0)
    third = run_script(tmp_path, 3.0)
    assert first[1]
    assert first[2] > 0
    assert second[:4] == [first[0], False, 0, False]  # the plan is on disk, too
    assert third[1]
    assert third[0] != first[0]


@pytest.mark.slow
def test_a_hundred_functions_cost_a_second_process_nothing(tmp_path: Path) -> None:
    first = run_script(tmp_path, 0.5, 100)
    second = run_script(tmp_path, 0.5, 100)
    assert second[:4] == [first[0], False, 0, False]
    assert second[4] < first[4] / 10


def test_a_damaged_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "1")
    define_scalar_function(branches)  # type: ignore[arg-type]
    name, code = full_name(branches), code_of(branches)  # type: ignore[arg-type]
    monkeypatch.setattr(scalar_texts, "_texts", {})
    made = scalar_text(name, code, "fi")
    (file,) = tmp_path.glob("*.scalar")
    monkeypatch.setattr(scalar_texts, "_texts", {})
    assert scalar_text(name, code, "fi") == made
    file.write_bytes(file.read_bytes()[:-5])
    monkeypatch.setattr(scalar_texts, "_texts", {})
    assert scalar_text(name, code, "fi") == made
    assert "is damaged" in caplog.text
