"""`weft cache`: what compiled kernels are kept on disk, and removing them."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from weft.codegen.llvm.cache import CacheFile, KernelCache, cache_folder, cache_limit, read_name
from weft.ir.errors import NotFoundError

_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft cache`."""
    parser.add_argument(
        "action",
        choices=("list", "info", "clear"),
        help="list: each kernel; info: where, how many, how large; clear: remove all of them",
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
        "kernels": len(files),
        "bytes": sum(f.size for f in files),
        "limit": cache.limit,
    }
    if args.action == "clear":
        summary = {
            f"removed_{k}" if k in ("kernels", "bytes") else k: v for k, v in summary.items()
        }
    rows = [_row(f) for f in reversed(files)] if args.action == "list" else []
    if args.json:
        yield json.dumps({**summary, "files": rows} if args.action == "list" else summary, indent=1)
        return
    for row in rows:
        yield f"{row['key'][:16]}  {row['bytes']:>9,}  {_age(row['age']):>7}  {row['name']}"
    verb = "removed " if args.action == "clear" else ""
    count, size = len(files), sum(f.size for f in files)
    yield f"{folder}: {verb}{count} kernels, {size:,} bytes (limit {cache.limit:,})"


def _row(file: CacheFile) -> dict[str, Any]:
    """age: seconds since the kernel was last used."""
    return {
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
