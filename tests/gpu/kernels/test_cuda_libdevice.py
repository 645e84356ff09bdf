"""libdevice as a module takes it: its functions carried out here, and what is asked of it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from cuda_toolchain import needs_toolchain
from libdevice_on_cpu import OnCpu

from weft.codegen.cuda.cubins import compile
from weft.codegen.cuda.cubins.compile import module_text
from weft.codegen.cuda.cubins.llvm_instructions import ONE_INSTRUCTION
from weft.codegen.cuda.cubins.toolchain import toolchain
from weft.codegen.cuda.emulator import numpy_functions
from weft.codegen.cuda.source.kernel import MATHS, TWO, CudaKernel, Parameter

pytestmark = needs_toolchain

# Angles of f64 are reduced in inline assembler of many instructions.
ANGLES = ("sin_f64", "cos_f64", "tan_f64")
NAMES = [f"{n}_{t}" for n in MATHS if n not in ONE_INSTRUCTION for t in ("f32", "f64")]
NAMES = [name for name in NAMES if name not in ANGLES]
#: CUDA C++ Programming Guide, "Mathematical Functions": the most for any but two is 4.
ULPS = 4
# Near a zero, and where SciPy's own are no better, what is left is measured otherwise.
LOOSE = {"lgamma": 1e-6, "erfc": 1e-12}


def of_libdevice(name: str) -> str:
    stem, _, dtype = name.rpartition("_")
    return f"__nv_{stem}{'f' if dtype == 'f32' else ''}"


def path() -> Path:
    return Path(toolchain().libdevice.path)


@cache
def on_cpu() -> OnCpu:
    return OnCpu(path(), {of_libdevice(n): 2 if n[:-4] in TWO else 1 for n in NAMES})


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_libdevice_carried_out_here(name: str) -> None:
    """They are whole: what they refer to came along, and the answers that they got are right."""
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1.0, -1.0, 0.5, 27.1]
    xs = [rng.normal(size=1000) * 10, rng.normal(size=200) * 1e4, rng.uniform(-1, 1, 1000), special]
    x = np.concatenate(xs).astype(np.float32 if name.endswith("f32") else np.float64)
    args = [x, rng.permutation(x)] if name[:-4] in TWO else [x]
    with np.errstate(all="ignore"):
        wanted = numpy_functions.NUMPY_FUNCTIONS[name](*args)
        got = on_cpu()(of_libdevice(name), *args)
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        off = np.where(same, 0, abs(got.astype(np.float64) - wanted))
        bound = ULPS * np.spacing(abs(wanted)).astype(np.float64)
        loose = LOOSE.get(name[:-4], 0.0)
        bound = bound + loose * np.minimum(abs(wanted), 1) if loose else bound
        if name[:-4] == "lgamma":
            bound = bound + (1e-6 if name.endswith("f32") else 1e-14)
        good = same | (off <= bound)
    worst = int(np.argmin(good))
    assert good.all(), ([a[worst] for a in args], got[worst], wanted[worst])


def text_of(body: str, maths: Path | None) -> str:
    source = f"def k(p):\n    p[0] = {body}\n"
    kernel = CudaKernel("k", source, (Parameter("p", "pointer", "f32"),))
    return module_text(kernel, "k", (9, 0), maths)


def test_a_module_takes_what_it_calls() -> None:
    text = text_of("exp_f32(p[1])", path())
    assert re.findall(r"^define [^@]*@(\w+)", text, re.MULTILINE) == ["k", "__nv_expf"]
    assert "declare float @llvm.nvvm.ex2.approx" in text
    assert "reflect" not in text
    assert "add i32 0, 0" in text  # small numbers are not flushed
    assert "add i32 1, 0" not in text
    assert "@__cudart" not in text
    assert "@__cudart_i2opi_f =" in text_of("sin_f32(p[1])", path())
    none = text_of("sqrt_f32(p[1])", path())
    assert "__nv" not in none
    assert "declare float @__nv_expf(float)" in text_of("exp_f32(p[1])", None)


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="__nv_nothing"):
        compile.read_libdevice(path()).taken(["__nv_nothing"], (9, 0))


def test_architectures_get_their_own_answers() -> None:
    """libdevice asks for the architecture; what asks it takes either of two ways."""
    library = compile.read_libdevice(path())
    old, new = (library.taken(["__nv_lgamma"], cc)["__nv_lgamma"] for cc in ((7, 5), (9, 0)))
    assert "add i32 750, 0" in old
    assert "add i32 900, 0" in new
    assert old.replace("750, 0", "900, 0") == new
