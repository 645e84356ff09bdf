"""`WEFT_TARGET`, `wf.compile(target=)`: one instruction set for all that is compiled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import weft as wf
from weft.codegen.llvm import target
from weft.frontend.tools.main import main
from weft.ir.errors import InvalidArgumentError

ISAS = target.host_isas()
WIDEST = {"x86-64-v2": "xmm", "x86-64-v3": "ymm", "x86-64-v4": "zmm"}
WIDER = {"x86-64-v2": "[yz]mm", "x86-64-v3": "zmm", "x86-64-v4": "never"}
pytestmark = pytest.mark.skipif(not ISAS, reason="not an x86-64-v2 processor")


def model(x: Any, w: Any) -> Any:
    return wf.nn.softmax(wf.tanh(x @ w), axis=1) + wf.cumsum(x @ w, axis=0)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("isa", ISAS)
def test_a_function_for_each(isa: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((40, 30)), rng.standard_normal((30, 20))
    f = wf.compile(model, target=isa)
    for dtype in (np.float32, np.float64):
        given = x.astype(dtype), w.astype(dtype)
        np.testing.assert_allclose(f(*given), np.asarray(model(*given)), rtol=2e-4, atol=1e-5)
        text = f.asm(*given)
        assert WIDEST[isa] in text
        assert not re.search(f"%{WIDER[isa]}", text)
        assert f"compiled for {isa}" in f.explain(*given)


KEEPING = {
    "argmax": lambda x: wf.argmax(x, axis=0),
    "cumulative_max": lambda x: wf.cumulative_max(x, axis=0),
    "max_pool's gradient": wf.grad(
        lambda x: wf.sum(wf.nn.max_pool(wf.reshape(x, (1, 40, 30, 1)), 3, 1))
    ),
    "product with an end": lambda x: x[:, :4] @ x[:4, :29],
}


@pytest.mark.share(2)
@pytest.mark.skipif("x86-64-v3" not in ISAS, reason="not an x86-64-v3 processor")
@pytest.mark.parametrize("name", KEEPING)
def test_avx2_stores_without_masks(name: str) -> None:
    """A masked store is 20 to 40 steps of AMD's AVX2 processors."""
    x = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    f = wf.compile(KEEPING[name], target="x86-64-v3")
    np.testing.assert_allclose(f(x), wf.compile(KEEPING[name])(x), rtol=1e-4, atol=1e-6)
    text = f.asm(x)
    assert "%ymm" in text or "%xmm" in text
    assert not re.search(r"vp?maskmov\w+\s+%\w+, %\w+, [-\d]*\(", text)


@pytest.mark.parametrize("isa", [*ISAS, target.NATIVE])
def test_loops_use_whole_registers(isa: str) -> None:
    # LLVM's tuning for Intel's processors and for x86-64-v4 would leave half of each
    f, x = wf.compile(lambda x: x * 2 + 1, target=isa), np.zeros(4000, np.float32)
    f(x)
    assert f"%{WIDEST[ISAS[-1] if isa == target.NATIVE else isa]}" in f.asm(x)


def test_no_gathers_on_zen() -> None:
    if not target.host().cpu.startswith("znver"):
        pytest.skip("not compiled for a Zen processor")
    f = wf.compile(wf.searchsorted)
    f(np.arange(9.0), np.arange(99.0))
    assert "gather" not in f.asm(np.arange(9.0), np.arange(99.0))


def test_gradients_are_compiled_for_it() -> None:
    f = wf.compile(wf.grad(lambda x: wf.sum(wf.sin(x) * x)), target=ISAS[0])
    x = np.linspace(-2, 2, 99, dtype=np.float32)
    np.testing.assert_allclose(f(x), np.cos(x) * x + np.sin(x), rtol=1e-5, atol=1e-6)
    assert not re.search("%[yz]mm", f.asm(x))


def test_kernels_of_two_sets_are_two() -> None:
    """And those of one are shared, whoever asks."""
    x = np.linspace(0, 1, 50, dtype=np.float32)

    def texts() -> dict[str, str]:
        made = {isa: wf.compile(lambda x: wf.expm1(x) * 3.25, target=isa) for isa in ISAS}
        return {isa: f.asm(x) for isa, f in made.items()}

    assert len(set(texts().values())) == len(ISAS)
    assert texts() == texts()


def test_a_method_keeps_it() -> None:
    class Model:
        @wf.compile(target=ISAS[0])
        def __call__(self, x: Any) -> Any:
            return wf.exp(x)

    assert not re.search("%[yz]mm", Model().__call__.asm(np.ones(9, np.float32)))


@pytest.mark.parametrize("isa", ["x86-64-v9", "avx2", ""])
def test_no_instruction_set(isa: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is no instruction set\n.*x86-64-v3"):
        wf.compile(model, target=isa)


def test_one_that_the_machine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "host_isas", lambda: ("x86-64-v2",))
    with pytest.raises(InvalidArgumentError, match=r"does not have it\n.*native, x86-64-v2$"):
        wf.compile(model, target="x86-64-v4")


def test_levels_follow_from_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = target.host_isas.__wrapped__
    flags = {f for level in ("x86-64-v2", "x86-64-v3") for f in target.LEVELS[level]}
    monkeypatch.setattr(target, "_linux_processor", lambda: {"flags": " ".join(flags)})
    assert levels() == ("x86-64-v2", "x86-64-v3")
    flags.remove("fma")
    monkeypatch.setattr(target, "_linux_processor", lambda: {"flags": " ".join(flags)})
    assert levels() == ("x86-64-v2",)
    monkeypatch.setattr(target, "_linux_processor", lambda: None)
    held = {"+" + target._LLVM_NAMES.get(f, f) for f in target.LEVELS["x86-64-v2"]}
    monkeypatch.setattr(target, "_host_features", lambda: frozenset(held))
    assert levels() == ("x86-64-v2",)


@pytest.mark.share(3)
@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_variable(isa: str) -> None:
    """All kernels of a process, a session's and Numba's among them, and other cache files."""
    code = """
import numpy as np, re, weft as wf
from weft.codegen.llvm import target
x = np.linspace(0, 1, 64, dtype=np.float32)
f = wf.compile(lambda x: wf.exp(x) * 2.5)
f(x)
with wf.Graph().as_default(), wf.Session() as s:
    p = wf.placeholder(wf.float32, [None])
    assert np.allclose(s.run(wf.exp(p) * 2, {p: x}), np.exp(x) * 2)
print(target.isa(), target.host().cpu, bool(re.search("%zmm", f.asm(x))))
"""
    done = run(code, WEFT_TARGET=isa)
    assert done.stdout.split() == [isa, isa, str(isa == "x86-64-v4")], done.stderr


def test_the_environment_variable_is_checked() -> None:
    done = run("import weft as wf; wf.compile(lambda x: x + 1)(1.0)", WEFT_TARGET="x86-64-v0")
    assert "WEFT_TARGET='x86-64-v0' is no instruction set" in done.stderr
    assert done.returncode == 1


@pytest.mark.slow
def test_users_kernels_have_the_process_s() -> None:
    code = """
import re, numpy as np, weft as wf
op = wf.register_op("twice", elementwise=True, reference=lambda x: x * 2)
wf.register_kernel(op)(lambda x: x * 2)
x = np.ones(99, np.float32)
f = wf.compile(op)
assert f(x).numpy().sum() == 198
print(bool(re.search("%[yz]mm", f.asm(x))))
wf.compile(op, target="native")(x)
"""
    done = run(code, WEFT_TARGET="x86-64-v2")
    assert done.stdout.split() == ["False"]
    assert "one instruction set for the whole process" not in done.stderr
    assert "which Numba compiles for x86-64-v2, as all in this process" in done.stderr
    assert "set WEFT_TARGET=native" in done.stderr


def test_devices_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    told = capsys.readouterr().out
    assert f"compiled for {target.isa_line()}" in told
    assert all(isa in told for isa in ISAS)


ON_ISA = ROOT / "benchmarks" / "on_isa.py"
CPUINFO = target._CPUINFO.read_text() if target._CPUINFO.exists() else ""


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif("cpuid_fault" not in CPUINFO, reason="this processor cannot hide CPUID")
@pytest.mark.parametrize("isa", ISAS[:2])
def test_as_on_a_smaller_processor(isa: str) -> None:
    """`benchmarks/on_isa.py`: weft on a machine that has nothing more, without `WEFT_TARGET`."""
    code = """
import faulthandler, signal, threading
faulthandler.enable()  # whose handler comes second
import numpy as np, weft as wf
from weft.codegen.llvm import target
x = np.linspace(-1, 1, 999, dtype=np.float32).reshape(27, 37)
f = wf.compile(lambda x: wf.tanh(x @ x.T))
assert np.allclose(f(x), np.tanh(x @ x.T), atol=1e-5)
print(target.host_isas()[-1], [name for name in ("xmm", "ymm", "zmm") if name in f.asm(x)][-1])
try:
    wf.compile(f, target="x86-64-v4")
except wf.errors.InvalidArgumentError as error:
    print("x86-64-v4" in str(error))
"""
    done = subprocess.run(
        [sys.executable, str(ON_ISA), isa, "-c", code],
        text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [isa, WIDEST[isa], "True"], done.stderr
    assert done.stderr.startswith(f"on_isa: {isa}, by CPUID hidden")


@pytest.mark.parametrize("isa", [i for i in ISAS if i != "x86-64-v2"])
def test_spilled_vectors_lie_on_cache_lines(isa: str) -> None:
    """An unaligned one would lie across two pages in one process of ten."""

    def sides(x: Any) -> Any:
        middle = wf.where(x < 1, x * wf.sin(x), wf.log(x))
        return wf.nn.softmax(wf.where(x < -1, wf.tanh(x), middle))

    text = wf.compile(sides, target=isa).asm(np.zeros((64, 512), np.float32))
    assert re.search(r"vmova\w+\s+%[yz]mm\d+, -?\d*\(%rsp\)", text)
    assert not re.search(r"vmovu\w+\s+%[yz]mm\d+, -?\d*\(%rsp\)", text)
