"""The processor: its name and the sizes of its caches."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path

from weft.ir.dataclass import dataclass

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
