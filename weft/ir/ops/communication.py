"""Ops between the parts of a graph that was cut over devices: `send` here, `recv` there.

The pair of a tensor and a device that needs it has a `key`, a small number of its own in the whole
program. In loops both ops take the iteration numbers of the frames around them, outermost first,
so (step, key, iterations) names one message, and one pair serves all iterations.

A `send` runs whether or not its data are dead, and sends a dead value as dead (the paper, section
3.4): so each message that is waited for comes. It does not run if an iteration number is dead,
nor does its `recv` then.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dtypes import DType, int64
from weft.ir.errors import TypeRuleError
from weft.ir.graph import Block
from weft.ir.rules import int_attr
from weft.ir.spec import OpSpec
from weft.ir.types import TOKEN, TensorType, Type

#: The ops of this module.
COMMUNICATION = frozenset({"send", "recv"})

_COUNTER = TensorType(int64)


def _check(op: str, counters: Sequence[Type], attrs: Attrs) -> None:
    for i, t in enumerate(counters):
        if t != _COUNTER:
            raise TypeRuleError(f"op '{op}': iteration number {i} must be an i64[], got {t}")
    if int_attr(attrs, "key") < 0:
        raise TypeRuleError(f"op '{op}': key={attrs['key']}, must be at least 0")
    for name in ("src", "dst"):
        if not attrs[name]:
            raise TypeRuleError(f"op '{op}': {name} must name a device")


def _send_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    if not types or not isinstance(types[0], TensorType):
        given = types[0] if types else "nothing"
        raise TypeRuleError(
            f"op 'send' sends a tensor, got {given}",
            hint="state, queues and stacks stay on one device; an effect is sent as a tensor "
            "without elements that comes after it",
        )
    _check("send", types[1:], attrs)
    return [TOKEN]


def _recv_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check("recv", types, attrs)
    dtype, shape = attrs["dtype"], attrs["shape"]
    assert isinstance(dtype, DType)
    assert isinstance(shape, tuple)
    for name, least in (("live", 0), ("depth", 1)):
        if int_attr(attrs, name) < least:
            raise TypeRuleError(f"op 'recv': {name}={attrs[name]}, must be at least {least}")
    return [TensorType(dtype, shape)]


_PAIR = {
    "key": AttrSpec("int"),
    "tensor": AttrSpec("str", ""),
    "src": AttrSpec("str"),
    "dst": AttrSpec("str"),
}
_HOST = frozenset({"host", "no_fold", "no_cse", "no_dce"})

TABLE = (
    OpSpec(
        "send",
        None,
        _send_type,
        None,
        "Sends operand 0, or that it is dead, from device `src` to `dst` under `key` and the "
        "iteration numbers, the other operands.",
        _PAIR,
        _HOST,
    ),
    OpSpec(
        "recv",
        None,
        _recv_type,
        None,
        "What was sent under `key` and the iteration numbers; dead if that was. live: 0 if it "
        "never is dead; of two with one other number both are, or neither. depth: how many "
        "messages, one after the other, at most come up to it.",
        {
            **_PAIR,
            "dtype": AttrSpec("dtype"),
            "shape": AttrSpec("shape"),
            "live": AttrSpec("int", 0),
            "depth": AttrSpec("int", 1),
        },
        _HOST,
    ),
)
