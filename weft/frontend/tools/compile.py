"""`weft compile`: a graph as a shared library for the CPU, a bundle as an ONNX model, or kernels as
machine code for GPUs that need not be here; `weft cache`: kernels, cubins, choices, scalar
functions and plans on disk, listed and removed."""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.codegen.llvm.cache import CacheFile, KernelCache, cache_folder, cache_limit, read_name
from weft.codegen.llvm.target import LEVELS, NATIVE, checked_isa
from weft.frontend.bundle.files import bundle_of
from weft.frontend.bundle.signature import DEFAULT
from weft.frontend.session.compiling import fetched_step
from weft.frontend.tools.run import named_pairs, variable_types, writing
from weft.ir.dtypes import DType
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    ToolchainError,
    suggest,
)
from weft.ir.graph import Graph
from weft.passes.differential import random_sizes
from weft.passes.manager import Pass
from weft.passes.sizes import specialize
from weft.runtime.resources.variables import VariableState

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
#: So many sets of sizes a library may have.
_MOST_SETS = 1024
_TARGET = re.compile(r"sm_(\d{1,2})(\d)")


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft compile`."""
    parser.add_argument(
        "file", help="IR text, or a bundle, FOLDER:SIGNATURE; - reads standard input"
    )
    parser.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="cpu,sm_90,...",
        help="cpu, or its instruction set (x86-64-v3): a shared library and a C header; onnx: a "
        "bundle as an ONNX model; GPU architectures, sm_90 is an H100 (repeatable)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="the folder for what is written (default: FILE's name with .cubins, or .lib)",
    )
    parser.add_argument(
        "--fetch",
        action="append",
        default=[],
        metavar="NAME,...",
        help="of a saved wf.Graph: the step that fetches these names (repeatable; default: all "
        "that has a name, in one step)",
    )
    parser.add_argument(
        "--passes",
        default="gpu",
        metavar="A,B,...",
        help="the passes in order, or pipelines, as wf.compile(passes=) has them (default: gpu); "
        "gpu_reproducible for wf.Session(reproducible=True)",
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="the size of the symbolic dimension NAME (repeat for each); of a library also "
        "several, 1-8,16,32, among which its calls choose",
    )


def run_compile(graph: Graph, args: Namespace, passes: Sequence[Pass]) -> Iterator[str]:
    """Write the library, or the cubins of the kernels that `passes` lead to; yields a line for each
    of them.

    Raises InvalidArgumentError or NotFoundError for options that do not fit, a graph that launches
    no kernel and a folder that cannot be written to, UnsupportedError for an op without a GPU
    kernel, ToolchainError if kernels cannot be compiled here."""
    # other commands do not wait for these modules
    from weft.runtime.device.execution.ahead import compile_ahead

    names = [name.strip() for text in args.target for name in text.split(",")]
    if "onnx" in names:
        yield from _onnx_model(args, names)
        return
    if any(name == "cpu" or name in LEVELS for name in names):
        yield from _library(graph, args, names)
        return
    targets = targets_of(args.target)
    check_targets(targets)
    given = named_pairs(args.size, "--size")
    fetches = [part.strip() for text in args.fetch for part in text.split(",")]
    if fetches:
        static = fetched_step(graph, fetches, lambda needed: sizes_of(graph, given, needed))
    else:
        static = specialize(graph, sizes_of(graph, given))
    folder = Path(args.output or _folder_of(args.file))
    with writing(folder):
        ahead = compile_ahead(static, _variables(static), targets, folder, passes)
    width = max(len(row.name) for row in ahead.rows)
    for row in ahead.rows:
        yield f"{row.name:<{width}}  {row.target:<6}  {row.nbytes:>7,} bytes  {row.report}"
    if graph.result_names and not fetches:
        yield f"of a step that gives all of: {', '.join(graph.result_names)}; --fetch gives others"
    yield (
        f"wrote {ahead.kernels} kernels for {', '.join(ahead.targets)} to {folder}: "
        f"{ahead.nbytes:,} bytes; WEFT_CUBINS={folder} uses them"
    )


def _onnx_model(args: Namespace, targets: Sequence[str]) -> Iterator[str]:
    """Write a signature of a bundle as an ONNX model. Errors as `wf.onnx.save`."""
    from weft.frontend.bundle.load import load
    from weft.frontend.onnx.save import save

    found = bundle_of(args.file)
    if found is None or len(targets) > 1 or args.fetch or args.size:
        raise InvalidArgumentError(
            f"--target {','.join(targets)}: an ONNX model is made of a bundle, with its open sizes",
            hint="weft compile BUNDLE:SIGNATURE --target onnx, without --fetch and --size",
        )
    folder, signature = found
    path = (
        Path(args.output or ".") / f"{'_'.join(filter(None, [Path(folder).name, signature]))}.onnx"
    )
    with writing(path.parent):
        save(load(folder)[signature or DEFAULT], path, replace=True)
    yield f"wrote {path} ({path.stat().st_size:,} bytes)"


def _library(graph: Graph, args: Namespace, targets: Sequence[str]) -> Iterator[str]:
    """Write a shared library and its header. Errors as `write_library`."""
    from weft.runtime.native.library import write_library

    if len(targets) > 1 or args.fetch:
        raise InvalidArgumentError(
            f"--target {','.join(targets)}: a library is of one instruction set, for all results",
            hint="compile for each target by itself; no --fetch",
        )
    sizes = _sets_of_sizes(graph, named_pairs(args.size, "--size"))
    folder_of, signature = bundle_of(args.file) or ("", "")
    path = Path(folder_of or args.file)
    words = [path.name if folder_of else path.stem, *filter(None, [signature])]
    name = re.sub(r"\W", "_", "_".join(words), flags=re.ASCII).strip("_") or "model"
    stem = name if not name[0].isdigit() else f"model_{name}"
    folder = Path(args.output or f"{stem}.lib")
    outputs = graph.result_names or [f"result_{k}" for k in range(len(graph.results))]
    target = NATIVE if targets[0] == "cpu" else checked_isa(targets[0], "--target")
    with writing(folder):
        made = write_library(graph, outputs, folder, stem, target, sizes)
    yield f"wrote {made.library} ({made.nbytes:,} bytes, {made.kernels} kernels, {made.isa})"
    call = "run(inputs, outputs)" if len(sizes) == 1 else "run_sized(sizes, inputs, outputs)"
    yield f"wrote {made.header}: weft_{stem}_{call}"


def _sets_of_sizes(graph: Graph, given: Mapping[str, str]) -> list[dict[str, int]]:
    """Each combination of the sizes that are given, such as "1-8,16". Errors as `sizes_of`, and
    InvalidArgumentError for more than a library may have."""
    ranges: dict[str, list[int]] = {}
    for name, text in given.items():
        parts = [_RANGE.fullmatch(part) for part in text.split(",")]
        ends = [(int(p[1]), int(p[2] or p[1])) for p in parts if p is not None]
        if len(ends) < len(parts) or any(first > last for first, last in ends):
            raise InvalidArgumentError(
                f"--size {name}={text}: sizes are integers and ranges of them", hint="1-8,16,32"
            )
        if sum(last - first + 1 for first, last in ends) > _MOST_SETS:
            raise _too_many_sets()
        ranges[name] = sorted({n for first, last in ends for n in range(first, last + 1)})
    if math.prod(map(len, ranges.values())) > _MOST_SETS:
        raise _too_many_sets()
    sizes_of(graph, {name: str(found[0]) for name, found in ranges.items() if found})
    return [dict(zip(ranges, one, strict=True)) for one in itertools.product(*ranges.values())]


def _too_many_sets() -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a library is for at most {_MOST_SETS} sets of sizes",
        hint="each has a plan of its own: give those that calls will have",
    )


def targets_of(given: Sequence[str]) -> list[tuple[int, int]]:
    """`["sm_80,sm_90"]` as compute capabilities, each once. InvalidArgumentError for others,
    UnsupportedError for what is older than sm_75."""
    from weft.codegen.cuda.cubins.compile import check_oldest

    found: dict[tuple[int, int], None] = {}
    for name in (part.strip() for text in given for part in text.split(",")):
        match = _TARGET.fullmatch(name)
        if match is None:
            raise InvalidArgumentError(
                f"--target {name}: a target is cpu, x86-64-v2 to x86-64-v4, or a GPU's sm_ and its "
                "compute capability",
                hint="sm_75 (Turing), sm_80 (A100), sm_90 (H100), sm_100 (B200)",
            )
        cc = int(match[1]), int(match[2])
        check_oldest(cc)
        found[cc] = None
    return list(found)


def check_targets(targets: Sequence[tuple[int, int]]) -> None:
    """UnknownTarget for an architecture that the toolchain does not know. Without a toolchain
    nothing: compiling says so."""
    from weft.codegen.cuda.cubins.compile import check_known
    from weft.codegen.cuda.cubins.toolchain import UnknownTarget

    for cc in targets:
        try:
            check_known(cc)
        except UnknownTarget:
            raise
        except ToolchainError:
            return


def sizes_of(
    graph: Graph, given: Mapping[str, str], needed: Sequence[str] | None = None
) -> dict[str, int]:
    """The sizes of the symbols. Those that are `needed` (None: all) must be given: kernels are
    chosen by them."""
    known = list(random_sizes(graph, 0))
    for name, text in given.items():
        if name not in known:
            raise NotFoundError(
                f"the graph has no symbolic dimension '{name}'{suggest(name, known)}",
                hint=f"it has: {', '.join(known) or 'none'}",
            )
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise InvalidArgumentError(f"--size {name}={text}: the size must be an integer")
    missing = [n for n in known if n not in given and (needed is None or n in needed)]
    if missing:
        raise InvalidArgumentError(
            f"the size of the symbolic dimension '{missing[0]}' is not known",
            hint=f"give --size {missing[0]}=N: kernels are chosen by sizes",
        )
    return {name: int(text) for name, text in given.items()}


def _variables(graph: Graph) -> dict[str, VariableState]:
    """The graph's variables, without values."""
    made = {}
    for name, t in variable_types(graph).items():
        dtype: DType = t.dtype
        made[name] = VariableState(name, dtype, t.shape, None)
    return made


def _folder_of(file: str) -> str:
    return "graph.cubins" if file == "-" else Path(file).stem + ".cubins"


_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def add_cache_arguments(parser: ArgumentParser) -> None:
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
        "functions": sum(f.kind == "scalar" for f in files),
        "plans": sum(f.kind == "plan" for f in files),
        "bytes": sum(f.size for f in files),
        "limit": cache.limit,
    }
    if args.action == "clear":
        counts = ("kernels", "cubins", "choices", "functions", "plans", "bytes")
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
    rare = ("cubin", "choice", "scalar")
    counts = [(kind, kinds.count(kind)) for kind in ("kernel", *rare, "plan")]
    told = [
        ("scalar function" if kind == "scalar" else kind, n)
        for kind, n in counts
        if n or kind not in rare
    ]
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
