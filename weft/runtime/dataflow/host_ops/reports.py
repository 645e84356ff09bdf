"""Prints and assertions on the executor."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Operation
from weft.ir.ops.io import report
from weft.ir.spec import Attrs
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done
from weft.runtime.resources.cancel import CancelToken


def show(arrays: Sequence[Array], attrs: Attrs) -> None:
    """Print to the standard error, in one write."""
    sys.stderr.write(report(arrays, attrs) + "\n")
    sys.stderr.flush()


def failed(arrays: Sequence[Array], attrs: Attrs) -> InvalidArgumentError | None:
    """The error of an assertion whose condition, the first array, does not hold."""
    if bool(arrays[0]):
        return None
    what = report(arrays[1:], attrs)
    return InvalidArgumentError(f"assertion failed{': ' if what else ''}{what}")


def _print(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    show(arrays, op.attrs)
    done([None])


def _assert(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    done(failed(arrays, op.attrs) or [None])


ROWS: Mapping[str, Begin] = {"print": _print, "assert": _assert}
