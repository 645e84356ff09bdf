"""`weft kernel`: kernels as Python files - check an edited one, put it in place, take it out."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.codegen.numba.replacements import drop, key_of, replacements, use
from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.ir.process import load


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft kernel`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check", help="run an edited kernel beside the generated one: results and times"
    )
    put = actions.add_parser(
        "use", help="check an edited kernel, and put it in the place of the generated one"
    )
    for one in (check, put):
        one.add_argument("file", help="a file of DUMP/STEP/kernels, as WEFT_DUMP=DUMP writes them")
        one.add_argument(
            "--dump", metavar="DIR", help="the folder STEP/kernels, if it is not there"
        )
        one.add_argument(
            "--import",
            dest="modules",
            metavar="MODULE",
            action="append",
            default=[],
            help="import a module first, from here or as Python finds it: one that defines the "
            "functions or registers the kernels that the step uses; may be given again",
        )
    check.add_argument(
        "--seconds", type=float, default=2.0, help="measure for so long (default: 2)"
    )
    put.add_argument("--unchecked", action="store_true", help="without a check")
    out = actions.add_parser("drop", help="have the generated kernel again")
    out.add_argument("key", nargs="?", help="the kernel, as `weft kernel list` names it")
    out.add_argument("--all", action="store_true", help="all kernels")
    actions.add_parser("list", help="the kernels that files replace")


def run_kernel(args: Namespace) -> Iterator[tuple[str, bool]]:
    """The lines that `weft kernel ACTION` prints; with each, whether all is well so far."""
    if args.action == "list":
        yield from ((line, True) for line in _listed())
    elif args.action == "drop":
        yield from ((line, True) for line in _dropped(args))
    else:
        yield from _checked(args)


def _listed() -> Iterator[str]:
    held = replacements()
    for key, (text, path) in held.items():
        rows = [line.removeprefix("# ") for line in text.splitlines()[1:2]]
        yield f"{key}  {rows[0] if rows else ''}"
        yield f"  {path}"
    if not held:
        yield "no kernel is replaced"


def _dropped(args: Namespace) -> Iterator[str]:
    if (args.key is None) != args.all:
        raise InvalidArgumentError(
            "weft kernel drop takes the key of a kernel, or --all",
            hint="`weft kernel list` names those that are replaced",
        )
    for key in drop(args.key):
        yield f"{key}: the generated kernel is used again"


def _checked(args: Namespace) -> Iterator[tuple[str, bool]]:
    path = Path(args.file)
    agrees = True
    if args.modules:
        # who needs no module does not wait for what runs a task
        imported: Any = load("weft.frontend.tools.cluster", "import_modules")
        imported(args.modules, f"weft kernel {args.action}")
    if not (args.action == "use" and args.unchecked):
        # who only lists does not wait for what compiles
        check: Any = load("weft.runtime.native.kernel_check", "check_kernel")
        found = check(path, Path(args.dump) if args.dump else None,
                      args.seconds if args.action == "check" else 0.2)  # fmt: skip
        agrees = found.agrees
        yield from ((line, agrees) for line in found.lines())
    if args.action == "check":
        return
    if not agrees:
        yield "not put in place: the results differ (--unchecked puts it there all the same)", False
        return
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    copy = use(text, str(path))
    yield f"in place: {copy}", True
    yield f"`weft kernel drop {key_of(text, str(path))}` takes it out", True
