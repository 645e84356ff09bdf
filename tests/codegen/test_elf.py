"""Objects loaded without LLVM: code, constants, calls of the C library; what is left to LLVM."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import struct
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from weft.codegen.llvm import compile as llvm_compile
from weft.codegen.llvm import link as llvm_link
from weft.codegen.llvm import target
from weft.codegen.llvm.compile import compile_text
from weft.codegen.llvm.link import (
    Image,
    UnknownSymbolError,
    UnsupportedObjectError,
    imports_of,
    link,
    load,
    read_object,
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="objects are x86-64 ELF"
)

# Constants of a table and of a register, a call of the C library, an own function.
WHOLE = """
target triple = "x86_64-unknown-linux-gnu"
@table = private constant [4 x double] [double 1.0, double 2.5, double 4.0, double 8.0]
declare double @cbrt(double)
define internal double @twice(double %x) noinline { %y = fmul double %x, 2.0 ret double %y }
define double @NAME(i64 %k) {
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %k
  %x = load double, ptr %at
  %y = call double @twice(double %x)
  %z = call double @cbrt(double %y)
  %r = fadd double %z, 0.125
  ret double %r
}
"""
ADDRESS = """
declare ptr @memcpy(ptr, ptr, i64)
define i64 @address(i64 %k) { %r = ptrtoint ptr @memcpy to i64 ret i64 %r }
"""
WRITABLE = """
@count = internal global i64 41
define i64 @next(i64 %k) {
  %a = load i64, ptr @count %b = add i64 %a, 1 store i64 %b, ptr @count ret i64 %b
}
"""


def whole(name: str) -> tuple[str, bytes]:
    return name, compile_text(WHOLE.replace("NAME", name)).code


def results(address: int) -> list[float]:
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(address)
    return [function(k) for k in range(4)]


def loaded(*objects: tuple[str, bytes]) -> Image:
    imports: dict[str, int] = {}
    for _, code in objects:
        imports |= imports_of(code)
    return load(objects, imports)


def test_several_objects_have_names_and_constants_of_their_own() -> None:
    second = "other", compile_text(WHOLE.replace("NAME", "other").replace("8.0", "27.0")).code
    image = loaded(whole("one"), second, whole("third"))
    expected = [(2 * x) ** (1 / 3) + 0.125 for x in (1.0, 2.5, 4.0, 8.0)]
    assert results(image.addresses["one"]) == pytest.approx(expected, rel=1e-15)
    assert results(image.addresses["third"]) == results(image.addresses["one"])
    assert results(image.addresses["other"])[3] == pytest.approx(54 ** (1 / 3) + 0.125, rel=1e-15)
    assert read_object(second[1]).undefined() == ["cbrt"]


def test_llvm_links_the_same() -> None:
    made = whole("same")
    imports = imports_of(made[1])
    theirs = llvm_link._link_by_llvm([made], imports)
    ours = loaded(made)
    assert results(theirs.addresses["same"]) == results(ours.addresses["same"])


def test_nothing_can_be_written_and_only_code_runs() -> None:
    image = loaded(whole("protected"))
    ends = image.base, image.base + len(image.memory)
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        start, end = (int(part, 16) for part in fields[0].split("-"))
        if start < ends[1] and end > ends[0]:
            found.append(fields[1])
    assert found == ["r-xp", "r--p"]


def test_memory_is_given_back() -> None:
    held = link([whole("dropped")], imports_of(whole("dropped")[1]))
    # The mapping itself, not its address: a thread that links a kernel may get that at once.
    memory = weakref.ref(held._held.memory)
    assert memory() is not None
    del held
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [(ADDRESS, "address", "relocation"), (WRITABLE, "next", "neither code nor constants")],
)
def test_what_llvm_links_instead(text: str, name: str, reason: str) -> None:
    code = compile_text(text).code
    imports = imports_of(code)
    with pytest.raises(UnsupportedObjectError, match=reason):
        load([(name, code)], imports)
    held = link([(name, code)], imports)
    made = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(held.addresses[name])(0)
    assert made == (42 if text == WRITABLE else imports["memcpy"])


def test_what_is_no_object_of_ours() -> None:
    name, code = whole("foreign")
    arm = code[:18] + struct.pack("<H", 183) + code[20:]
    with pytest.raises(UnsupportedObjectError, match="machine 183"):
        load([(name, arm)], {})
    for other in (b"", b"MZ" + code, code[:16] + b"\x03" + code[17:]):
        with pytest.raises(UnsupportedObjectError, match="no relocatable ELF"):
            load([(name, other)], {})
    with pytest.raises(UnsupportedObjectError, match="does not define 'absent'"):
        load([("absent", code)], imports_of(code))
    with pytest.raises(UnsupportedObjectError, match="'cbrt' is not known"):
        load([(name, code)], {})


def test_a_function_that_is_nowhere() -> None:
    code = compile_text(WHOLE.replace("NAME", "lost").replace("@cbrt", "@no_such_root")).code
    with pytest.raises(UnknownSymbolError, match="no_such_root"):
        imports_of(code)


def test_features_are_what_llvm_says() -> None:
    names = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512dq", "neon")
    with target.using(target.NATIVE):
        features = target.host().features.split(",")
        assert [target.has_feature(n) for n in names] == [f"+{n}" in features for n in names]


def test_the_machine_is_known_by_processor_and_library(monkeypatch: pytest.MonkeyPatch) -> None:
    line = target.machine_line.__wrapped__
    known, processor = line(), target._linux_processor()
    assert processor is not None
    assert line() == known
    without = {**processor, "flags": processor["flags"].replace("avx", "")}
    seen = {known}
    monkeypatch.setattr(target, "_linux_processor", lambda: without)
    seen.add(line())
    monkeypatch.setattr(target, "_linux_processor", lambda: {**processor, "model": "999"})
    seen.add(line())
    monkeypatch.setattr(target, "library_file", lambda: Path(__file__))
    seen.add(line())
    monkeypatch.setattr(target, "_linux_processor", lambda: None)
    assert line() == f"{target.isa()} {target.host().describe()}"
    assert len(seen) == 4


def test_without_cpuinfo_llvm_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = target._linux_processor.__wrapped__
    monkeypatch.setattr(target, "_CPUINFO", tmp_path / "absent")
    assert read() is None
    (tmp_path / "short").write_text("processor\t: 0\nmodel\t: 1\n\nprocessor\t: 1\nflags: x\n")
    monkeypatch.setattr(target, "_CPUINFO", tmp_path / "short")
    assert read() is None
    monkeypatch.setattr(target, "_linux_processor", read)
    with target.using(target.NATIVE):
        assert target.has_feature("sse2") == ("+sse2" in target.host().features.split(","))


def test_no_target_machine_stays_after_compiling() -> None:
    compile_text(WHOLE.replace("NAME", "machines"))
    assert llvm_compile._idle_machines
    llvm_compile.release_memory()
    assert not any(llvm_compile._idle_machines.values())
    image = loaded(whole("again"))
    assert len(set(results(image.addresses["again"]))) == 4


@pytest.mark.slow
def test_a_process_that_finds_its_kernels_does_not_load_llvm(tmp_path: Path) -> None:
    code = """
import os, sys
import numpy as np
import weft as wf
from weft.codegen.llvm import jit
from weft.codegen.llvm.target import is_loaded
from weft.runtime.native.api import native_api
w, b = wf.Variable(np.ones((64, 32), np.float32)), wf.Variable(np.zeros(32, np.float32))
k = wf.Variable(np.ones((3, 3, 2, 4), np.float32))
train = wf.train.AdamOptimizer(0.01)

@wf.compile
def step(x, image, half):
    y = wf.nn.softmax(wf.matmul(x, w) + b)
    z = wf.nn.conv2d(image, k, padding="SAME")
    loss = wf.sum(y * y) + wf.sum(wf.tanh(z)) + wf.sum(wf.sort(x)) + wf.sum(half.astype("f32"))
    train.minimize(loss)
    return loss

given = [np.ones(s, np.float32) for s in ((8, 64), (1, 8, 8, 2))] + [np.ones(9, np.float16)]
losses = [float(step(*given)) for _ in range(3)]
native_api()
losses.append(float(step(*given)))
print(losses, jit.compile_count(), is_loaded())
"""
    environment = {**os.environ, "WEFT_CACHE": "1", "WEFT_CACHE_DIR": str(tmp_path / "cache")}
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        runs.append(done.stdout.strip().rpartition("] ")[::2])
    assert runs[0][0] == runs[1][0]
    assert runs[0][1].endswith("True")
    assert runs[1][1] == "0 False"
