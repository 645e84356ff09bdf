"""`weft devices`: what devices this machine has for weft, or why it has no GPU."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict

from weft.codegen.llvm.target import NATIVE, VARIABLE, host_isas, isa, isa_line
from weft.frontend.device_list import devices, why_no_gpu


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft devices`."""
    parser.add_argument("--json", action="store_true", help="print JSON, all that is known")


def run_devices(args: Namespace) -> Iterator[str]:
    """Lines to print. Errors as `wf.devices`."""
    found, error = devices(), why_no_gpu()
    if args.json:
        why = None if error is None else error.what
        sets = {"in_use": isa(), "host": host_isas()}
        told = {"devices": [asdict(d) for d in found], "no_gpu": why, "instruction_sets": sets}
        yield json.dumps(told, indent=1)
        return
    yield from map(str, found)
    yield f"kernels for {found[0].name} are compiled for {isa_line()}"
    yield f"  {VARIABLE} chooses: {', '.join((NATIVE, *host_isas()))}"
    if error is not None:
        yield f"no GPU: {error.what}"
        if error.hint:
            yield f"  {error.hint}"
