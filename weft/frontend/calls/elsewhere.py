"""Functions compiled for one device that are traced into what runs on another."""

from __future__ import annotations

import warnings

from weft.frontend.tracing.device_scope import device_scopes, scopes_spec
from weft.frontend.tracing.trace import Trace
from weft.ir.device import local_gpu
from weft.ir.locations import caller_location


class DeviceWarning(UserWarning):
    """A function compiled for a GPU has become part of what runs elsewhere."""


def warn_elsewhere(name: str, gpu: int, trace: Trace, told: set[str]) -> None:
    """The function `name`, which is compiled for GPU `gpu`, is called while `trace` is traced: a
    DeviceWarning with the line of the call if that runs elsewhere. told: of what it was said."""
    root = trace.root()
    if root.kind == "graph":
        if local_gpu(scopes_spec()) == gpu:
            return
        if any(scope.function is not None for scope in device_scopes()):
            return  # it says of each op where that runs
        where = f"a graph, '{root.name}', in which wf.device says where ops run"
        hint = f'call it in `with wf.device("/gpu:{gpu}"):`'
    elif root.kind == "function":
        if root.gpu == gpu:
            return
        there = "the CPU" if root.gpu is None else f"gpu:{root.gpu}"
        where = f"'{root.name}', which runs on {there}"
        hint = (
            "device= counts for the function that is called from outside: "
            f'wf.compile(device="gpu:{gpu}") around that one, wf.grad(f) for example'
        )
    else:
        return
    if where in told:
        return
    place = caller_location()
    file, line = (place[0].file, place[0].line) if place else ("<unknown>", 0)
    message = (
        f"'{name}' is compiled for gpu:{gpu}, but here it is a part of {where}\n  hint: {hint}"
    )
    warnings.warn_explicit(message, DeviceWarning, file, line)
    told.add(where)  # not where that is an error


__all__ = ["DeviceWarning", "warn_elsewhere"]
