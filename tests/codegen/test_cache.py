"""The cache of compiled kernels on disk: what it trusts, what it survives, what it counts."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from forgotten_kernels import forget_kernels_of, known_kernels
from paths import SUPPORT
from scale_kernels import scale_kernel, scaled

import weft as wf
from weft.codegen.llvm import cache as cache_key
from weft.codegen.llvm import jit
from weft.codegen.llvm.cache import (
    CachedObject,
    DamagedFileError,
    KernelCache,
    cache_limit,
    file_name,
    kernel_cache,
    pack,
    unpack,
)
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import CodegenError, Kernel, wait_for_background
from weft.frontend.tools.main import main
from weft.ir.errors import InvalidArgumentError

SAMPLE = CachedObject("name", "symbol", b"\x7fELF code", b"BC bitcode")

# A step whose kernels are compiled or loaded; prints what was done and the result.
PROGRAM = """
import json
import numpy as np
import weft as wf
import weft.codegen.llvm.jit
weft.codegen.llvm.jit.LOADED_AT = float("inf")  # whoever edits weft while its tests run
from weft.codegen.llvm.jit import compile_count, load_count
f = wf.compile(lambda x: wf.sum(wf.exp(x) * 2.0, axis=1))
out = f(np.arange(6, dtype=np.float32).reshape(2, 3))
print(json.dumps([compile_count(), load_count(), np.asarray(out).tolist()]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own, turned on."""
    where = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(where))
    # whoever edits weft while its tests run
    monkeypatch.setattr(cache_key, "LOADED_AT", math.inf)
    for known in (cache_key._common, cache_key._plan_sources):
        known.cache_clear()
    return where


def run(folder: Path, **more: str) -> tuple[int, int, list[float]]:
    environment = {**os.environ, "WEFT_CACHE": "1", "WEFT_CACHE_DIR": str(folder), **more}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    compiled, loaded, result = json.loads(done.stdout)
    return compiled, loaded, result


def compile_kernels(kernels: Sequence[Kernel]) -> dict[str, int]:
    """As `jit.compile_kernels`; the files are written when this returns."""
    table = jit.compile_kernels(kernels)
    wait_for_background()
    return table


def forget(*kernels: Kernel) -> None:
    """As if this process had not compiled them."""
    forget_kernels_of(kernel.key for kernel in kernels)


def counts() -> tuple[int, int]:
    return jit.compile_count(), jit.load_count()


def test_a_second_process_compiles_nothing(folder: Path) -> None:
    compiled, loaded, first = run(folder)
    assert compiled > 0
    assert loaded == 0
    assert run(folder) == (0, compiled, first)
    assert run(folder, WEFT_CACHE="0") == (compiled, 0, first)


def test_loaded_kernels_are_counted_apart_and_keep_their_texts(folder: Path) -> None:
    kernel = scale_kernel("cache.texts", 3.0)
    before = counts()
    compile_kernels([kernel])
    assert counts() == (before[0] + 1, before[1])
    texts = jit.kernel_llvm(kernel.key), jit.kernel_asm(kernel.key)
    forget(kernel)
    assert scaled(compile_kernels([kernel])[kernel.key]) == 3.0
    assert counts() == (before[0] + 1, before[1] + 1)
    assert (jit.kernel_llvm(kernel.key), jit.kernel_asm(kernel.key)) == texts


def test_files_are_private(folder: Path) -> None:
    compile_kernels([scale_kernel("cache.private", 3.0)])
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", ["magic", "checksum", "header", "code", "end", "cut", "empty"])
def test_a_damaged_file_is_replaced(
    folder: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = scale_kernel(f"cache.damaged.{place}", 5.0)
    compile_kernels([kernel])
    (file,) = folder.iterdir()
    good = file.read_bytes()
    positions = {"magic": 2, "checksum": 20, "header": 90, "code": len(good) // 2, "end": -1}
    bad = bytearray(good)
    if place in positions:
        bad[positions[place]] ^= 4
    else:
        del bad[len(bad) // 2 if place == "cut" else 0 :]
    file.write_bytes(bad)
    forget(kernel)
    before = counts()
    with caplog.at_level(logging.WARNING, "weft.compile"):
        assert scaled(compile_kernels([kernel])[kernel.key]) == 5.0
    assert counts() == (before[0] + 1, before[1])
    assert [r.getMessage() for r in caplog.records if "is damaged" in r.getMessage()]
    assert file.read_bytes() == good


def test_every_flipped_bit_is_noticed() -> None:
    data = pack("description", SAMPLE)
    assert unpack(data, "description") == SAMPLE
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedFileError):
                unpack(bytes(flipped), "description")
    with pytest.raises(DamagedFileError, match="another kernel"):
        unpack(data, "other")


def test_another_version_does_not_match(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = scale_kernel("cache.version", 7.0)
    compile_kernels([kernel])
    text = cache_key.describe_kernel(kernel)
    assert text is not None
    monkeypatch.setattr(cache_key, "_common", lambda: "format 1\npipeline 999")
    forget(kernel)
    before = counts()
    compile_kernels([kernel])
    assert counts() == (before[0] + 1, before[1])
    assert len(list(folder.iterdir())) == 2


def test_the_key_names_all_that_code_depends_on(folder: Path) -> None:
    kernel = scale_kernel("cache.key", 7.0)
    text = cache_key.describe_kernel(kernel)
    assert text is not None
    for part in ("format", "pipeline", "sources", "target", "llvm-", "emitter", "cache.key"):
        assert part in text
    # the file that defines `emit` counts, wherever it is
    assert "scale_kernels.py" in text
    other = Kernel("cache.key", kernel.name, kernel.emit, loops=False)
    assert cache_key.describe_kernel(other) != text
    assert cache_key._sources(cache_key._SOURCES) != cache_key._sources(("codegen",))


def test_sources_that_changed_after_loading_turn_it_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else old code would be kept under the new sources' name."""
    kernel = scale_kernel("cache.edited", 7.0)
    monkeypatch.setattr(cache_key, "LOADED_AT", 1.0)
    cache_key._common.cache_clear()
    try:
        compile_kernels([kernel])
    finally:
        cache_key._common.cache_clear()
    assert not folder.exists()


def test_sources_that_are_no_files_turn_it_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """weft in a zip file, say: it compiles, and keeps nothing."""
    monkeypatch.setattr(cache_key, "_PACKAGE", tmp_path / "weft.zip" / "weft")
    cache_key._common.cache_clear()
    try:
        assert cache_key.describe_kernel(scale_kernel("cache.zip", 7.0)) is None
    finally:
        cache_key._common.cache_clear()


def test_code_from_a_console_is_not_kept(folder: Path) -> None:
    space: dict[str, object] = {}
    exec(compile("def emit(e): pass", "<console>", "exec"), space)
    kernel = Kernel("cache.console", "console", space["emit"])  # type: ignore[arg-type]
    compile_kernels([kernel])
    assert not folder.exists()


def test_others_can_write_means_not_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    kernel = scale_kernel("cache.trust", 2.0)
    compile_kernels([kernel])
    (file,) = folder.iterdir()
    for path, mode in ((file, 0o666), (folder, 0o777)):
        before_mode = path.stat().st_mode & 0o777
        path.chmod(mode)
        forget(kernel)
        before = counts()
        with caplog.at_level(logging.WARNING, "weft.compile"):
            compile_kernels([kernel])
        assert counts() == (before[0] + 1, before[1])
        assert "other users can write" in caplog.text
        caplog.clear()
        if path.exists():
            path.chmod(before_mode)
    (folder / file.name).chmod(0o600)


def test_a_link_is_not_followed(folder: Path) -> None:
    kernel = scale_kernel("cache.link", 2.0)
    compile_kernels([kernel])
    (file,) = folder.iterdir()
    moved = folder.parent / "moved"
    file.rename(moved)
    file.symlink_to(moved)
    forget(kernel)
    before = counts()
    compile_kernels([kernel])
    assert counts() == (before[0] + 1, before[1])


def test_no_place_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    compiled, loaded, _ = run(in_the_way / "cache")
    assert compiled > 0
    assert loaded == 0
    monkeypatch.setenv("WEFT_CACHE", "1")
    monkeypatch.delenv("WEFT_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", _no_home)
    assert kernel_cache() is None


def _no_home() -> Path:
    raise RuntimeError("no home directory")


def test_a_folder_that_cannot_be_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A container whose user has somebody else's HOME: any error of `stat` will do."""
    cache = KernelCache(tmp_path / ("long name" * 100))
    assert not cache.exists()
    with caplog.at_level(logging.WARNING, "weft.compile"):
        cache.store("0", SAMPLE)
    assert "going on without" in caplog.text


def test_a_read_only_file_system_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the time of the last use would be due."""
    cache = KernelCache(tmp_path / "cache")
    cache.store("0", SAMPLE)
    os.utime(cache.folder / (file_name("0") + ".kernel"), (1000, 1000))

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert cache.load("0") == SAMPLE


def test_failed_writes_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    cache = KernelCache(in_the_way / "cache")
    with caplog.at_level(logging.WARNING, "weft.compile"):
        for _ in range(3):
            cache.store("description", SAMPLE)
    assert len(caplog.records) == 1
    assert "going on without" in caplog.text


def test_least_recently_used_files_go_first(tmp_path: Path) -> None:
    size = len(pack("0", SAMPLE))
    cache = KernelCache(tmp_path / "cache", limit=10 * size + 20)
    for k in range(10):
        cache.store(str(k), SAMPLE)
        os.utime(cache.folder / (file_name(str(k)) + ".kernel"), (1000 + k, 1000 + k))
    assert cache.load("0") == SAMPLE  # used now: it stays
    stale = cache.folder / ".left-over.tmp"
    stale.write_bytes(b"x")
    os.utime(stale, (1, 1))
    for k in range(10, 13):
        cache.store(str(k), SAMPLE)
    assert sum(f.size for f in cache.files()) <= cache.limit
    assert cache.load("0") == SAMPLE
    assert cache.load("1") is None
    assert cache.load("12") == SAMPLE
    assert not stale.exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 512 << 20),
        ("1000", 1000),
        ("2k", 2048),
        ("3MB", 3 << 20),
        ("1GiB", 1 << 30),
        ("1T", 1 << 40),
        ("1.5M", 3 << 19),
        (".5 k", 512),
        ("2b", 2),
    ],
)
def test_sizes(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_SIZE", text)
    assert cache_limit() == size


@pytest.mark.parametrize("text", ["much", "-5", "-1G", "1e9", "1,5M", "M", "1X", "."])
def test_a_wrong_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_SIZE", text)
    with pytest.raises(InvalidArgumentError, match=f"WEFT_CACHE_SIZE={re.escape(text)} is not"):
        cache_limit()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_no_file_is_a_miss_and_no_more(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = KernelCache(tmp_path / "cache")
    one, two = CachedObject("k", "s", b"1", b"2"), CachedObject("k", "s", b"3", b"4")
    cache.store("one", one)
    path = cache.files()[0].path
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with caplog.at_level("WARNING", logger="weft.compile"):
        assert cache.load("one") is None
    assert "is no file" in caplog.text
    cache.store("one", one)
    assert (cache.load("one") is None) == (kind == "folder"), "a link is replaced, a folder stays"
    assert not (tmp_path / "elsewhere").exists()
    cache.store("two", two)
    found = cache.load("two")
    assert found is not None
    assert found.code == b"3"
    cache.clear()
    assert cache.files() == []


@pytest.mark.slow
def test_processes_fill_one_cache_at_once(folder: Path) -> None:
    environment = dict(os.environ)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(3)
    ]
    results = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    assert len({str(result[2]) for result in results}) == 1
    assert all(child.returncode == 0 for child in children)
    total = results[0][0] + results[0][1]
    assert run(folder)[:2] == (0, total)
    assert not [f for f in folder.iterdir() if f.suffix == ".tmp"]


@pytest.mark.slow
def test_kill_in_the_middle(folder: Path) -> None:
    """Whenever a writer dies, what is there is whole or is not there."""
    _, _, expected = run(folder.parent / "other")
    for delay in (0.35, 0.45, 0.55, 0.65, 0.8):
        child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.DEVNULL)
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)
        for file in folder.glob("*.kernel"):
            unpack(file.read_bytes())
    assert run(folder)[2] == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_while_another_thread_compiles(folder: Path) -> None:
    code = """
import os, threading, time, warnings
warnings.simplefilter("ignore")
from scale_kernels import scale_kernel, scaled
from weft.codegen.llvm.jit import compile_kernels, start_compiling
def work(name):
    for k in range(8):
        compile_kernels([scale_kernel(f"fork.{name}.{k}", 2.0)])
thread = threading.Thread(target=work, args=("thread",))
thread.start()
for turn in range(6):
    start_compiling([scale_kernel(f"fork.ahead.{turn}", 4.0)])
    child = os.fork()
    if child == 0:
        kernels = [scale_kernel(f"fork.ahead.{turn}", 4.0), scale_kernel(f"fork.own.{turn}", 5.0)]
        table = compile_kernels(kernels)
        os._exit(0 if [scaled(table[k.key]) for k in kernels] == [4.0, 5.0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SUPPORT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_missing_symbol_is_named() -> None:
    def emit(e: Emitter) -> None:
        from llvmlite import ir

        kind = ir.FunctionType(ir.VoidType(), [])
        e.builder.call(ir.Function(e.module, kind, "no_such_function"), [])

    good = scale_kernel("cache.symbol.good", 6.0)
    with pytest.raises(CodegenError, match=r"'calls nothing'.*'no_such_function'"):
        compile_kernels([Kernel("cache.symbol", "calls nothing", emit), good])
    assert scaled(compile_kernels([good])[good.key]) == 6.0


def test_started_kernels_are_taken_over() -> None:
    kernels = [scale_kernel(f"cache.started.{k}", 2.0 + k) for k in range(3)]
    before = counts()
    jit.start_compiling(kernels)
    jit.start_compiling(kernels)
    table = compile_kernels(kernels)
    assert [scaled(table[k.key]) for k in kernels] == [2.0, 3.0, 4.0]
    assert counts() == (before[0] + 3, before[1])


def test_the_command_line_lists_and_clears(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_kernels([scale_kernel("cache.cli.a", 2.0), scale_kernel("cache.cli.b", 3.0)])
    size = sum(f.stat().st_size for f in folder.iterdir())
    assert main(["cache", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ends = sorted(line.partition("s  kernel  scale")[2] for line in lines[:2])
    assert ends == [" by 2.0", " by 3.0"]
    assert lines[2] == f"{folder}: 2 kernels, 0 plans, {size:,} bytes (limit 536,870,912)"
    assert main(["cache", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in listed["files"]} == {"scale by 2.0", "scale by 3.0"}
    assert {row["key"] for row in listed["files"]} == {f.stem for f in folder.iterdir()}
    assert main(["cache", "info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    sizes = {"kernels": 2, "cubins": 0, "choices": 0, "functions": 0, "plans": 0, "bytes": size}
    sizes["limit"] = 512 << 20
    assert info == {"path": str(folder), **sizes}
    (folder / "0.kernel").write_bytes(b"nonsense")
    assert main(["cache", "list"]) == 0
    assert "(damaged)" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "removed 3 kernels" in capsys.readouterr().out
    assert list(folder.iterdir()) == []


def test_explain_tells_loaded_from_compiled(folder: Path) -> None:
    def texts() -> str:
        return wf.compile(lambda x: wf.tanh(x) * 3.25 + wf.log(x)).explain(np.ones(3, np.float32))

    step = texts()
    assert "compiled for it, 0 loaded from disk" in step
    wait_for_background()
    forget_kernels_of(k for k in known_kernels() if k.startswith("nest-"))
    assert "0 compiled for it, 1 loaded from disk" in texts()


def test_compiling_while_the_interpreter_goes_down() -> None:
    """Python starts no threads then."""
    code = """
import atexit
import numpy as np
import weft as wf
atexit.register(lambda: print(float(wf.compile(lambda x: wf.sum(x * 3.0))(np.ones(4)))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("12.0\n", "")


@pytest.mark.parametrize("text", ["no", "off", "true", "2"])
def test_a_setting_that_means_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("WEFT_CACHE", text)
    with pytest.raises(InvalidArgumentError, match=f"WEFT_CACHE='{text}' means nothing"):
        kernel_cache()
