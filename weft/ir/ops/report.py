"""Ops that tell people something: prints and assertions. Python carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dtypes import bool_
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import Array, OpSpec, tensors
from weft.ir.types import TOKEN, Type

_EFFECT = frozenset({"host", "no_fold", "no_cse", "no_dce"})
_ATTRS = {"message": AttrSpec("str", ""), "summarize": AttrSpec("int", 3)}


def _print_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    tensors("print", types)
    return [TOKEN]


def _assert_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    found = tensors("assert", types)
    if not found or found[0].dtype is not bool_:
        raise TypeRuleError(f"op 'assert' takes a bool first, got {found[0] if found else None}")
    if found[0].shape:
        raise ShapeError(
            f"op 'assert' takes a bool without axes, got {found[0]}", hint="wf.all(condition)"
        )
    return [TOKEN]


def summary(array: Array, summarize: int) -> str:
    """The first `summarize` elements (-1: all) in brackets, as TensorFlow prints them."""
    count = array.size if summarize < 0 else summarize
    shown = " ".join(_element(x) for x in array.reshape(-1)[:count])
    if not array.ndim:
        return shown or _element(array[()])
    return f"[{shown}{'...' if array.size > count else ''}]"


def _element(x: Any) -> str:
    if isinstance(x, bytes):
        return x.decode("utf-8", "backslashreplace")
    return f"{x:.6g}" if isinstance(x, (float, np.floating)) else str(x)


def report(arrays: Sequence[Array], attrs: Attrs) -> str:
    """The message and the data of a print or an assertion."""
    count = attrs["summarize"]
    assert isinstance(count, int)
    return str(attrs["message"]) + "".join(f"[{summary(a, count)}]" for a in arrays)


TABLE = (
    OpSpec(
        "print", None, _print_type, None,
        "Write the message and the operands, `summarize` elements each, to the standard error.",
        _ATTRS, _EFFECT,
    ),
    OpSpec(
        "assert", None, _assert_type, None,
        "End the step with an error that shows the other operands if the first one is False.",
        _ATTRS, _EFFECT,
    ),
)  # fmt: skip
