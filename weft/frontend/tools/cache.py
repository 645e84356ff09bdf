"""`weft cache`: kernels, cubins, choices and plans that are kept on disk, listed and removed."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from weft.codegen.llvm.cache import CacheFile, KernelCache, cache_folder, cache_limit, read_name
from weft.ir.errors import NotFoundError

_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft cache`."""
    parser.add_argument(
        "action",
        choices=("list", "info", "clear"),
        help="list: each file; info: where, how many, how large; clear: remove all",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_cache(args: Namespace) -> Iterator[str]:
    """The lines that `weft cache ACTION` prints. NotFoundError if there is no place for a cache."""
    folder = cache_folder()
    if folder is None:
        raise NotFoundError("there is no home directory", hint="set WEFT_CACHE_DIR")
    cache = KernelCache(folder, cache_limit())
    files = cache.clear() if args.action == "clear" else cache.files()
    summary: dict[str, Any] = {
        "path": str(folder),
        "kernels": sum(f.kind == "kernel" for f in files),
        "cubins": sum(f.kind == "cubin" for f in files),
        "choices": sum(f.kind == "choice" for f in files),
        "plans": sum(f.kind == "plan" for f in files),
        "bytes": sum(f.size for f in files),
        "limit": cache.limit,
    }
    if args.action == "clear":
        counts = ("kernels", "cubins", "choices", "plans", "bytes")
        summary = {f"removed_{k}" if k in counts else k: v for k, v in summary.items()}
    told = f"{_counted(files)}, {sum(f.size for f in files):,} bytes"
    rows = [_row(f) for f in reversed(files)] if args.action == "list" else []
    if args.json:
        yield json.dumps({**summary, "files": rows} if args.action == "list" else summary, indent=1)
        return
    for row in rows:
        age = _age(row["age"])
        name = f"{row['kind']:<6}  {row['name']}"
        yield f"{row['key'][:16]}  {row['bytes']:>9,}  {age:>7}  {name}"
    verb = "removed " if args.action == "clear" else ""
    yield f"{folder}: {verb}{told} (limit {cache.limit:,})"


def _counted(files: Sequence[CacheFile]) -> str:
    kinds = [f.kind for f in files]
    counts = [(kind, kinds.count(kind)) for kind in ("kernel", "cubin", "choice", "plan")]
    told = [(kind, n) for kind, n in counts if n or kind not in ("cubin", "choice")]
    return ", ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in told)


def _row(file: CacheFile) -> dict[str, Any]:
    """age: seconds since the file was last used."""
    return {
        "kind": file.kind,
        "name": read_name(file.path),
        "key": file.path.stem,
        "bytes": file.size,
        "age": max(0.0, time.time() - file.used),
    }


def _age(seconds: float) -> str:
    for unit, name in _AGES:
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
