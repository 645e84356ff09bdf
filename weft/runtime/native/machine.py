"""The machine: its processor, caches and memory, and how many processors this process may use."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path

import numpy as np

from weft.codegen.pool import MAX_THREADS
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError

VARIABLE = "WEFT_NUM_THREADS"


def check_threads(given: object, what: str) -> int:
    """`given` as a number of threads. InvalidArgumentError, naming `what`, if it is none."""
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool):
        count = int(given)
        if 1 <= count <= MAX_THREADS:
            return count
    raise InvalidArgumentError(
        f"{what}: {given!r} is not a number of threads",
        hint=f"a number of threads is an int from 1 to {MAX_THREADS}",
    )


def default_threads() -> int:
    """WEFT_NUM_THREADS; else as many as the process has processors.

    InvalidArgumentError for a value of WEFT_NUM_THREADS that is not a number of threads.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        return check_threads(int(text) if text.isdecimal() else text, VARIABLE)
    return min(usable_processors(), MAX_THREADS)


def usable_processors() -> int:
    """Processors that the process may run on, or fewer if its control groups give it less time."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = cgroup_processors()
    return max(1, count if quota is None else min(count, quota))


def cgroup_processors(root: Path = Path("/")) -> int | None:
    """The least CPU quota of the process's control groups and of those around them, in whole
    processors (rounded up); None if there is none, or the files are not there.

    Version 2: `cpu.max` holds "<quota or max> <period>". Version 1: `cpu.cfs_quota_us` (-1: no
    limit) and `cpu.cfs_period_us`. In a container the path in /proc/self/cgroup may be the host's:
    then only the mounted root counts. See the kernel's Documentation/admin-guide/cgroup-v2.rst and
    scheduler/sched-bwc.rst.
    """
    quotas: list[int] = []
    for line in _read_cgroup(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            base, one = root / "sys/fs/cgroup", _quota_2
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            base, one = base if base.is_dir() else root / "sys/fs/cgroup/cpu", _quota_1
        else:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        for depth in range(len(parts) + 1):
            quota = one(base.joinpath(*parts[:depth]))
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota_2(folder: Path) -> int | None:
    words = _read_cgroup(folder / "cpu.max").split()
    return _processors(*words) if len(words) == 2 else None


def _quota_1(folder: Path) -> int | None:
    return _processors(
        _read_cgroup(folder / "cpu.cfs_quota_us").strip(),
        _read_cgroup(folder / "cpu.cfs_period_us").strip(),
    )


def _processors(quota: str, period: str) -> int | None:
    if not quota.isdecimal() or not period.isdecimal() or not int(period):
        return None  # "max", -1, or no file
    return max(1, -(-int(quota) // int(period)))


def _read_cgroup(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


_SYSFS = Path("/sys/devices/system/cpu")
#: Where the system tells no cache sizes: a first and second level that most machines have.
_ASSUMED = {"L1": 32 << 10, "L2": 256 << 10, "L3": 8 << 20}


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of the data caches that one core reaches, by level ("L1", "L2", "L3"); `last`: bytes of
    the last level, all of them together. assumed: the system did not tell, these are guesses."""

    levels: dict[str, int]
    last: int
    assumed: bool


@cache
def caches() -> Caches:
    """The caches of processor 0."""
    levels: dict[str, int] = {}
    last = 0
    for folder in sorted((_SYSFS / "cpu0" / "cache").glob("index*")):
        kind, level = _read(folder / "type"), _read(folder / "level")
        size = re.fullmatch(r"(\d+)([KM]?)", _read(folder / "size"))
        if kind not in ("Data", "Unified") or size is None:
            continue
        nbytes = int(size[1]) << {"": 0, "K": 10, "M": 20}[size[2]]
        levels[f"L{level}"] = nbytes
        last = nbytes * _instances(folder.name)
    if not levels:
        return Caches(dict(_ASSUMED), _ASSUMED["L3"], True)
    return Caches(levels, last, False)


def cpu_name() -> str:
    """The processor as the system names it."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def compresses_slowly() -> bool:
    """Whether AVX-512's stores of chosen lanes are microcode, as on Zen 4: sorts that are made of
    them take twice as long as those for AVX2."""
    return (_cpu_field("vendor_id"), _cpu_field("cpu family")) == ("AuthenticAMD", "25")


def _cpu_field(name: str) -> str:
    """Of the first processor; "" where the system does not tell."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.partition(":")[0].strip() == name:
            return line.partition(":")[2].strip()
    return ""


def free_memory() -> int:
    """Bytes of memory that are free now, roughly; 1 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 30


def _instances(index: str) -> int:
    shared = {_read(p / "cache" / index / "shared_cpu_list") for p in _SYSFS.glob("cpu[0-9]*")}
    return max(1, len(shared - {""}))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
