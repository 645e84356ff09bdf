"""The command line: `dump` writes the texts of the corpus, `diff` compares two such folders."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from snapshot.compare import MOST_SHOWN, difference, report

HERE = Path(__file__).resolve().parent
CPUS, GPU = ("x86-64-v2", "x86-64-v3", "x86-64-v4"), "sm_90"
#: What a dump is made for unless it is told.
DEFAULT = ("x86-64-v3", "x86-64-v4", GPU)
#: What plans depend on apart from the sources, the same everywhere.
SETTINGS = {
    "WEFT_TARGET": CPUS[0], "WEFT_CACHE": "0", "WEFT_NUM_THREADS": "4", "WEFT_EAGER": "interpreter",
    "WEFT_KERNELS": "1000000", "WEFT_EMULATE_GPU": "1", "WEFT_GPU_LIBRARIES": "0",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 1 if two folders differ, 2 for what cannot be done."""
    given = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(given, argparse.Namespace(given=given))
    try:
        return _diff(options) if options.command == "diff" else _dump(options)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/snapshot", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    dump = commands.add_parser("dump", help="write all plans and kernels of this tree")
    dump.add_argument("folder", type=Path)
    dump.add_argument(
        "--target", action="append", choices=(*CPUS, GPU), help=f"repeatable; {', '.join(DEFAULT)}"
    )
    dump.add_argument(
        "--only", action="append", default=[], metavar="PART", help="of the names of programs"
    )
    dump.add_argument(
        "--optimized",
        action="store_true",
        help="LLVM IR after LLVM's passes, which take several times as long",
    )
    dump.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    diff = commands.add_parser("diff", help="what is different in the second folder")
    diff.add_argument("before", type=Path)
    diff.add_argument("after", type=Path)
    diff.add_argument("--quiet", action="store_true", help="print nothing; see the exit status")
    diff.add_argument("--lines", type=int, default=MOST_SHOWN, help="of diffs, at most")
    return parser


def _diff(options: argparse.Namespace) -> int:
    made = difference(options.before, options.after)
    if not options.quiet:
        for line in report(made, options.lines):
            print(line)
    return int(bool(made))


def _dump(options: argparse.Namespace) -> int:
    """In a process of its own, where nothing of this one's environment counts."""
    if not options.inner:
        kept = {n: v for n, v in os.environ.items() if not n.startswith("WEFT_")}
        own = [sys.executable, str(HERE), *options.given, "--inner"]
        return subprocess.run(own, env=kept | SETTINGS, check=False).returncode
    # whoever compares does not wait for the tables of the tests
    from snapshot.inside import has_toolchain
    from snapshot.record import record
    from snapshot.text_engine import only_text

    for target in options.target or DEFAULT:
        begun, gpu = time.perf_counter(), target == GPU
        if gpu and not has_toolchain():
            print(f"{GPU}: without PTX, as there is no CUDA toolchain (pip install weft[cuda13])")
        with only_text(CPUS[0] if gpu else target, options.optimized):
            count = record(options.folder / target, gpu=gpu, only=options.only)
        print(f"{target}: {count}, {time.perf_counter() - begun:.0f} s", flush=True)
    return 0
