"""Python functions as ops on the executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.ops.io import call_function
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done
from weft.runtime.resources.cancel import CancelToken


def _py_function(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    try:
        # copies: the function may go on to write to what it gave
        made: Any = [np.array(a) for a in call_function(arrays, op.attrs)]
    except WeftError as error:
        made = error
    done(made)


ROWS: Mapping[str, Begin] = {"py_function": _py_function}
