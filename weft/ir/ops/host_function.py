"""A Python function as an op: the host calls it when the op runs, once for each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.errors import FailedPreconditionError
from weft.ir.graph import Block
from weft.ir.ops.dynamic import SIZES, fill_sizes
from weft.ir.ops.queue import part_type
from weft.ir.spec import OpSpec, tensors
from weft.ir.types import Type

Array = np.ndarray[Any, Any]
HostFunction = Callable[[Sequence[Array]], list[Array]]


class FunctionName(str):
    """The name of a Python function, with the function: it lives as long as a graph has the name.

    As text, and in another process, it is the name alone.
    """

    __slots__ = ("function",)
    function: HostFunction

    def __new__(cls, name: str, function: HostFunction) -> FunctionName:
        made = super().__new__(cls, name)
        made.function = function
        return made


def _type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    tensors("py_function", types)
    parts = attrs["parts"]
    assert isinstance(parts, tuple)
    return fill_sizes("py_function", [part_type(str(p)) for p in parts], attrs)


def call_function(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    """Call the function. FailedPreconditionError if the graph was read from text; else what the
    function itself raises, which is a WeftError."""
    name = attrs["function"]
    if not isinstance(name, FunctionName):
        raise FailedPreconditionError(
            f"the Python function '{name}' is not part of the graph's text",
            hint="build the graph with wf.py_function in the process that runs it",
        )
    return name.function(arrays)


TABLE = (
    OpSpec(
        "py_function",
        None,
        _type,
        call_function,
        "What a Python function of the user's gives, of the types `parts`.",
        {"function": AttrSpec("str"), "parts": AttrSpec("strs"), **SIZES},
        frozenset({"host", "no_fold", "no_cse", "no_dce"}),
    ),
)
