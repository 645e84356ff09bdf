"""Cache of cubins on disk, beside other kernels (`codegen/llvm/cache.py`), and shipped cubins, with
what their kernels use: registers, shared and local memory, spills, occupancy.

The key: the kernel's content, the architecture, the versions of the toolchain and weft's sources.
WEFT_CUBINS names folders that `weft compile --target` wrote (as PATH does): a cubin found there is
taken first, whichever toolchain made it, so that a machine with a GPU needs none.

Registers, stack and shared memory are read from the cubin, an ELF file: they count what the kernel
calls, too. Layout: `.nv.info` holds records of (format, attribute, size, bytes); those used here
are pairs of a symbol's number and a value. Spills are in no section: nvJitLink's log tells of them.

Occupancy is how many blocks of a kernel a multiprocessor holds at once. Limits: CUDA C++
Programming Guide 13.0, "Technical Specifications per Compute Capability"; granularities: the
occupancy calculator of Nsight Compute 2025.3."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from weft.codegen.cuda.cubins.toolchain import stamp
from weft.codegen.cuda.numba_cuda.compile import numba_cuda_version
from weft.codegen.cuda.source.kernel import WARP, CudaKernel
from weft.codegen.llvm.cache import CUBIN_SUFFIX, CachedRecord, cuda_sources, kernel_cache
from weft.ir.dataclass import dataclass
from weft.ir.errors import DataLossError, InvalidArgumentError

_MAGIC = b"\x7fELF\x02\x01"  # 64-bit, little-endian
_SYMTAB = 2
_FORMAT_SIZED = 4  # EIFMT_SVAL: a size, and so many bytes
_REGISTERS, _STACK = 0x2F, 0x12  # EIATTR_REGCOUNT, EIATTR_MIN_STACK_SIZE
_RESERVED = ".nv.reservedSmem.offset0"  # there from sm_90 on: the system's own kilobyte
_RESERVED_BYTES = 1024
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What a kernel takes of a multiprocessor. registers: of a thread; shared: bytes of a block, as
    the source declares them; stack: bytes of local memory of a thread; spills: bytes stored and
    loaded because registers were too few."""

    registers: int
    shared: int
    stack: int
    spills: int

    def describe(self) -> str:
        """One line for people."""
        line = f"{self.registers} registers, {self.shared} bytes shared"
        line += f", {self.stack} bytes of stack" if self.stack else ""
        return line + (f", {self.spills} bytes spilled" if self.spills else "")

    def fields(self) -> dict[str, int]:
        """The same as JSON has it; `KernelReport(**fields)` is the opposite."""
        return asdict(self)


def read_report(cubin: bytes, symbol: str, log: str) -> KernelReport:
    """What the kernel `symbol` of this cubin takes; log: nvJitLink's, made with -Xptxas=-v.

    Raises ValueError if there is no such kernel in it."""
    if not cubin.startswith(_MAGIC):
        raise ValueError("it is no ELF file of 64 bits")
    sections = _sections(cubin)
    names = _symbols(cubin, sections)
    number = names.index(symbol)
    registers = _attribute(cubin, sections, _REGISTERS).get(number)
    if registers is None:
        raise ValueError(f"symbol {symbol} is no kernel")
    shared = next((s.size for s in sections if s.name == f".nv.shared.{symbol}"), 0)
    if _RESERVED in names:
        shared = max(shared - _RESERVED_BYTES, 0)
    stack = _attribute(cubin, sections, _STACK).get(number, 0)
    return KernelReport(registers, shared, stack, sum(map(int, _SPILLS.findall(log))))


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def _sections(cubin: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    rows = [struct.unpack_from("<IIQQQQI", cubin, start + k * entry_size) for k in range(count)]
    strings = rows[names][4]
    return [_Section(_text(cubin, strings + r[0]), r[1], r[4], r[5], r[6]) for r in rows]


def _text(cubin: bytes, offset: int) -> str:
    return cubin[offset : cubin.index(b"\0", offset)].decode()


def _symbols(cubin: bytes, sections: list[_Section]) -> list[str]:
    table = next(s for s in sections if s.kind == _SYMTAB)
    strings = sections[table.link].offset
    rows = range(table.offset, table.offset + table.size, 24)
    return [_text(cubin, strings + struct.unpack_from("<I", cubin, row)[0]) for row in rows]


def _attribute(cubin: bytes, sections: list[_Section], attribute: int) -> dict[int, int]:
    """Number of a symbol -> its value of the attribute."""
    info = next(s for s in sections if s.name == ".nv.info")
    found = _records(cubin[info.offset : info.offset + info.size])
    return dict(struct.unpack("<II", data) for code, data in found if code == attribute)


def _records(info: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(info):
        form, code, size = struct.unpack_from("<BBH", info, offset)
        offset += 4
        if form == _FORMAT_SIZED:
            yield code, info[offset : offset + size]
            offset += size


REGISTERS = 64 << 10  # of a multiprocessor
_REGISTER_UNIT = 256  # of a warp
_WARP_UNIT = 4  # warps of a block get registers in fours: one for each quarter of a multiprocessor


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a multiprocessor. shared: bytes. unit: bytes by which blocks get shared
    memory. reserved: bytes of it that the system takes of each block."""

    warps: int
    blocks: int
    shared: int
    unit: int = 128
    reserved: int = 1024


_LIMITS = {
    (7, 5): Limits(32, 16, 64 << 10, unit=256, reserved=0),
    (8, 0): Limits(64, 32, 164 << 10),
    (8, 6): Limits(48, 16, 100 << 10),
    (8, 7): Limits(48, 16, 164 << 10),
    (8, 9): Limits(48, 24, 100 << 10),
    (9, 0): Limits(64, 32, 228 << 10),
    (10, 0): Limits(64, 32, 228 << 10),
    (10, 3): Limits(64, 32, 228 << 10),
    (12, 0): Limits(48, 24, 100 << 10),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Occupancy of a kernel. blocks: that a multiprocessor holds at once. share: of the warps that
    it can hold. bound: of what there is too little for one more: "warps", "blocks", "registers" or
    "shared memory"."""

    blocks: int
    share: float
    bound: str


def occupancy(report: KernelReport, threads: int, cc: tuple[int, int]) -> Occupancy | None:
    """Of a kernel in blocks of `threads`; None for a compute capability that is not in the table.

    Needs no device: it is arithmetic on what the cubin says."""
    limits = _LIMITS.get(cc)
    if limits is None:
        return None
    warps = -(-threads // WARP)
    registers = _up(report.registers * WARP, _REGISTER_UNIT) * _up(warps, _WARP_UNIT)
    shared = _up(report.shared + limits.reserved, limits.unit)
    fits = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if registers:
        fits["registers"] = REGISTERS // registers
    if shared:
        fits["shared memory"] = limits.shared // shared
    bound = min(fits, key=fits.__getitem__)
    blocks = fits[bound]
    return Occupancy(blocks, blocks * warps / limits.warps, bound)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


MANIFEST = "manifest.json"
FORMAT = "weft-cubins-1"

Cc = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one kernel for one architecture: an ELF file that the driver loads, the name
    of the kernel in it, and what it takes."""

    code: bytes
    symbol: str
    report: KernelReport

    def fields(self) -> dict[str, Any]:
        """All but the code, as JSON has it."""
        return {"symbol": self.symbol, "report": self.report.fields()}

    @classmethod
    def of(cls, fields: Mapping[str, Any], code: bytes) -> Cubin:
        """The opposite of `fields`."""
        return cls(code, fields["symbol"], KernelReport(**fields["report"]))


def architecture(cc: Cc) -> str:
    """ "sm_90" of compute capability (9, 0)."""
    return f"sm_{cc[0]}{cc[1]}"


#: What later ones of the same major number run, in order.
_COMMON: tuple[Cc, ...] = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0))
#: Of boards for embedded use, which run their own alone.
_EMBEDDED: tuple[Cc, ...] = ((8, 7), (8, 8), (10, 1))


def targets(cc: Cc) -> tuple[Cc, ...]:
    """The architectures whose machine code a GPU of this compute capability runs, best first.

    That of X.y runs on X.z where z is y or more (CUDA C++ Programming Guide, "Binary
    Compatibility"), but not between those for embedded use and others."""
    before = () if cc in _EMBEDDED else reversed(_COMMON)
    return (cc, *(t for t in before if t[0] == cc[0] and t < cc))


def load_cubin(kernel: CudaKernel, cc: Cc) -> Cubin | None:
    """The kernel's cubin from a folder of WEFT_CUBINS or from the cache; None: in neither.

    Raises DataLossError for a damaged folder."""
    shipped = _shipped(os.environ.get("WEFT_CUBINS", "")).get((kernel.key, architecture(cc)))
    if shipped is not None:
        return shipped
    kept = kernel_cache()
    if kept is None or not kept.exists() or cuda_sources() is None:
        return None
    return kept.load_record(
        _description(kernel, cc), CUBIN_SUFFIX, lambda found: Cubin.of(found.fields, found.payload)
    )


def store_cubin(kernel: CudaKernel, cc: Cc, cubin: Cubin) -> None:
    """Keep it for other processes."""
    kept = kernel_cache()
    if kept is not None and cuda_sources() is not None:
        record = CachedRecord(f"{kernel.name} {architecture(cc)}", cubin.fields(), cubin.code)
        kept.store_record(_description(kernel, cc), CUBIN_SUFFIX, record)


def _description(kernel: CudaKernel, cc: Cc) -> str:
    by = f" numba-cuda {numba_cuda_version()}" if kernel.engine == "numba" else ""
    return f"{kernel.key} {architecture(cc)}\n{stamp()}{by}\nsources {cuda_sources()}"


# -------------------------------------------------------------------------------- made elsewhere


def write_cubins(
    folder: Path, made: Iterable[tuple[CudaKernel, Cc, Cubin]], about: Mapping[str, Any]
) -> list[Path]:
    """Write the cubins into `folder`, each as a file of its own, and a manifest that tells of them
    and holds `about`; returns the files, the manifest last. OSError if that cannot be done."""
    folder.mkdir(parents=True, exist_ok=True)
    files, rows = [], []
    for kernel, cc, cubin in made:
        path = folder / f"{kernel.key}.{architecture(cc)}.cubin"
        path.write_bytes(cubin.code)
        files.append(path)
        row = {"key": kernel.key, "name": kernel.name, "target": architecture(cc)}
        digest = hashlib.sha256(cubin.code).hexdigest()
        rows.append({**row, "file": path.name, "sha256": digest, **cubin.fields()})
    manifest = folder / MANIFEST
    content = {"format": FORMAT, "toolchain": stamp(), **about, "cubins": rows}
    manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return [*files, manifest]


def read_cubins(folder: Path) -> dict[tuple[str, str], Cubin]:
    """(kernel's key, "sm_90") -> cubin, of a folder that `write_cubins` wrote.

    Raises InvalidArgumentError if it is no such folder, DataLossError for a damaged file."""
    manifest = folder / MANIFEST
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        rows = content["cubins"] if content["format"] == FORMAT else None
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"{folder} holds no {MANIFEST}", hint="weft compile --target sm_90 writes such folders"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataLossError(f"{manifest} is damaged: {error!r}") from None
    if rows is None:
        raise InvalidArgumentError(f"{manifest} has format {content['format']!r}, not {FORMAT!r}")
    return {(row["key"], row["target"]): _read_cubin(folder, row) for row in rows}


def _read_cubin(folder: Path, row: Mapping[str, Any]) -> Cubin:
    path = folder / Path(row["file"]).name
    try:
        code = path.read_bytes()
    except OSError as error:
        raise DataLossError(f"{path} cannot be read: {error}") from None
    if hashlib.sha256(code).hexdigest() != row["sha256"]:
        raise DataLossError(f"{path} is not what {MANIFEST} says: its checksum is wrong")
    return Cubin.of(row, code)


@cache
def _shipped(folders: str) -> dict[tuple[str, str], Cubin]:
    found: dict[tuple[str, str], Cubin] = {}
    for folder in reversed([name for name in folders.split(os.pathsep) if name]):
        found |= read_cubins(Path(folder))
    return found
