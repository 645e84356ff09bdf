"""Cache of cubins on disk, beside other kernels (`codegen/llvm/cache.py`), and shipped cubins.

The key: the kernel's content, the architecture, the versions of the toolchain and weft's sources.
WEFT_CUBINS names folders that `weft compile --target` wrote (as PATH does): a cubin found there is
taken first, whichever toolchain made it, so that a machine with a GPU needs none."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from weft.codegen.cuda.cubins.resources import KernelReport
from weft.codegen.cuda.cubins.toolchain import stamp
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.llvm.cache import CUBIN_SUFFIX, CachedRecord, kernel_cache
from weft.codegen.llvm.cache_key import cuda_sources
from weft.ir.dataclass import dataclass
from weft.ir.errors import DataLossError, InvalidArgumentError

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
    return f"{kernel.key} {architecture(cc)}\n{stamp()}\nsources {cuda_sources()}"


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
