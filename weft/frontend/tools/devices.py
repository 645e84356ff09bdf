"""`wf.devices` and `weft devices`: the devices of this machine, or why it has no GPU."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict

from weft.codegen.llvm.target import NATIVE, VARIABLE, host_isas, isa, isa_line
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.runtime.device.backends.info import DeviceInfo, cpu

__all__ = ["DeviceInfo", "devices", "why_no_gpu"]


def devices(kind: str | None = None) -> list[DeviceInfo]:
    """The devices of this process: its CPU, then its GPUs. As `jax.devices` and
    `tf.config.list_physical_devices`, which there is the model for.

    kind: "cpu" or "gpu", only those; the list is empty if there is no GPU (`weft devices` says
    why). Nothing is allocated on a GPU. InvalidArgumentError for another kind, or for a
    WEFT_EMULATE_GPU that is no number of devices.

    >>> [(device.kind, device.index) for device in wf.devices("cpu")]
    [('cpu', 0)]
    """
    if kind not in (None, "cpu", "gpu", "CPU", "GPU"):
        raise InvalidArgumentError(f"there are no devices of kind {kind!r}", hint='"cpu" or "gpu"')
    found, _ = _look()
    return [info for info in found if kind in (None, info.kind, info.kind.upper())]


def why_no_gpu() -> WeftError | None:
    """Why there is no GPU; None if there is one. Errors as `devices`."""
    return _look()[1]


def _look() -> tuple[list[DeviceInfo], WeftError | None]:
    # whoever has no GPU does not wait for these modules when weft is imported
    from weft.runtime.device.backends.registry import gpus

    try:
        return [cpu(), *gpus()], None
    except InvalidArgumentError:
        raise
    except WeftError as error:
        return [cpu()], error


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
