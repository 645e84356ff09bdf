"""A Python function as an op: the host calls it when the op runs, once for each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.errors import FailedPreconditionError
from weft.ir.graph import Block, Operation
from weft.ir.ops.dynamic import SIZES, fill_sizes
from weft.ir.ops.queue import part_type
from weft.ir.spec import OpSpec, tensors
from weft.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]
HostFunction = Callable[[Sequence[Array]], list[Array]]


#: From the types of the results, and whether they come as a list, to what computes them.
MakeFunction = Callable[[Sequence[TensorType], bool], HostFunction]
_registered: dict[str, MakeFunction] = {}


def register_host_function(name: str, make: MakeFunction) -> None:
    """In this process a graph's text finds a function by that name, the last one registered."""
    _registered[name] = make


class FunctionName(str):
    """The name of a Python function, with the function: it lives as long as a graph has the name.

    As text, and in another process, it is the name alone; `register_host_function` says which
    function has it there.
    """

    __slots__ = ("function", "registered")
    function: HostFunction
    registered: bool

    def __new__(cls, name: str, function: HostFunction, registered: bool = False) -> FunctionName:
        made = super().__new__(cls, name)
        made.function, made.registered = function, registered
        return made


def _type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    tensors("py_function", types)
    parts = attrs["parts"]
    assert isinstance(parts, tuple)
    return fill_sizes("py_function", [part_type(str(p)) for p in parts], attrs)


def is_registered(op: Operation) -> bool:
    """Whether the function of a `py_function` has its name in other processes, too."""
    name = op.attrs["function"]
    return name.registered if isinstance(name, FunctionName) else name in _registered


def call_function(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    """Call the function. FailedPreconditionError if the graph was read from text, and no function
    is registered by the name; else what the function itself raises, which is a WeftError."""
    name, parts = attrs["function"], attrs["parts"]
    if isinstance(name, FunctionName):
        return name.function(arrays)
    assert isinstance(name, str)
    assert isinstance(parts, tuple)
    make = _registered.get(name)
    if make is None:
        raise FailedPreconditionError(
            f"no Python function is registered as '{name}' in this process",
            hint="wf.register_function does that; a task imports modules that do so with "
            "`weft worker --import MODULE`",
        )
    return make([part_type(str(p)) for p in parts], attrs["listed"] is True)(arrays)


TABLE = (
    OpSpec(
        "py_function",
        None,
        _type,
        call_function,
        "What a Python function of the user's gives, of the types `parts`.",
        {
            "function": AttrSpec("str"),
            "parts": AttrSpec("strs"),
            "listed": AttrSpec("bool", False),
            **SIZES,
        },
        frozenset({"host", "no_fold", "no_cse", "no_dce"}),
    ),
)
