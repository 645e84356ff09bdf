"""Key of the cache on disk: everything that machine code depends on, as text.

Two processes share a kernel's object only if these lines are equal: the kernel's own content key,
the sources of the code that emits it (their sizes and times, so that an edit never meets a stale
object), the passes, and the processor with the version of LLVM."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from weft.codegen.llvm.compile import PIPELINE_VERSION
from weft.codegen.llvm.jit import LOADED_AT, Kernel
from weft.codegen.llvm.target import machine_line, per_isa
from weft.ir.process import ForkLock

#: Bumped when the layout of a file in the cache changes.
FORMAT_VERSION = 1
_PACKAGE = Path(__file__).resolve().parents[2]
# The parts of weft that write machine code, or say what an op means.
_SOURCES = ("codegen", "ir", "runtime")
# Those that say what a plan is besides.
_PLAN_SOURCES = ("passes",)
# How long importing them may take: what changed since may or may not be what was imported.
_LOADING_SECONDS = 2.0
_log = logging.getLogger("weft.compile")
_lock = ForkLock()


def describe_kernel(kernel: Kernel) -> str | None:
    """All that the kernel's machine code depends on; None if that cannot be known."""
    defined_in, common = _emitter_file(kernel), _common_once()
    if defined_in is None or common is None:
        return None
    return f"{common}\nemitter {defined_in}\nloops {kernel.loops}\nkernel {kernel.key}"


def describe_plan(
    graph: str, passes: Sequence[str], donated: Sequence[int], target: str = ""
) -> str | None:
    """All that the plan of a traced graph depends on; None if that cannot be known.

    graph: its digest (`ir/text/digest.py`). target: what it is for, if not for this processor.
    Constants are folded with NumPy.
    """
    common, sources = _common_once(), _plan_sources()
    if common is None or sources is None:
        return None
    return (
        f"{common}\npasses {' '.join(passes)}\npass sources {sources}\n"
        f"numpy {np.__version__} python {sys.version_info[:2]}\n"
        f"donated {list(donated)}\n{target}graph {graph}"
    )


@cache
def cuda_sources() -> str | None:
    """A digest of the code that writes and compiles CUDA kernels; None if that cannot be known."""
    return _sources(("codegen/cuda", "codegen/llvm"))


@cache
def _plan_sources() -> str | None:
    return _sources(_PLAN_SOURCES)


def _emitter_file(kernel: Kernel) -> str | None:
    """The file of `emit`, with its size and time if `_sources` does not cover it."""
    code = getattr(kernel.emit, "__code__", None)
    if code is None:
        return None
    path = Path(code.co_filename)
    if path.is_relative_to(_PACKAGE):
        return path.relative_to(_PACKAGE).as_posix()
    try:
        status = path.stat()
    except OSError:  # typed into a console, say
        return None
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _common_once() -> str | None:
    # two threads ask at once in a process's first step: one of them waits
    with _lock:
        return _common()


@per_isa
def _common() -> str | None:
    sources = _sources(_SOURCES)
    if sources is None:
        _log.info("cache: not used, weft's sources are no files, or changed while they were loaded")
        return None
    return (
        f"format {FORMAT_VERSION}\npipeline {PIPELINE_VERSION}\n"
        f"sources {sources}\ntarget {machine_line()}"
    )


def _sources(folders: Sequence[str]) -> str | None:
    """A digest of the files' names, sizes and times; None if the code that runs may be older, or
    comes from elsewhere (a zip file)."""
    digest = hashlib.sha256()
    try:
        rows = sorted(row for f in folders for row in _stamps(_PACKAGE / f))
    except OSError:
        return None
    for path, size, changed in rows:
        if changed / 1e9 > LOADED_AT - _LOADING_SECONDS:
            return None
        digest.update(f"{path} {size} {changed}\n".encode())
    return digest.hexdigest()[:32]


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _stamps(Path(entry.path))
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns
