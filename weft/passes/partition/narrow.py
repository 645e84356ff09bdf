"""In how many bytes a value goes to another device.

A value that a cast has made wider goes as what was cast, and is cast again where it is needed: the
same bits in fewer bytes. Others go as they are, unless the user has chosen that float32 goes from
task to task as bfloat16 (Abadi et al. 2015, section 5.5): rounded to nearest even by a cast where
it is made, widened by one where it is needed. Both are ops like others, so the text of the parts
says it, and the interpreter gives the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from weft.ir.device import DeviceSpec
from weft.ir.dtypes import float32
from weft.ir.graph import Value
from weft.ir.types import TensorType, Type

if TYPE_CHECKING:
    from weft.passes.partition.builder import Cut


def narrower(cut: Cut, value: Value) -> Value | None:
    """What `value` is a wider copy of, if that is made on the same device, and alive when it is."""
    op = value.op
    if op is None or op.name != "astype" or op.control:
        return None
    source, made = op.operands[0], value.type
    if not isinstance(source.type, TensorType) or not isinstance(made, TensorType):
        return None
    if source.op is None or cut.homes[source.op] != cut.homes[op]:
        return None
    together = (
        cut.frames.of_value[source] is cut.frames.of_value[value]
        and cut.deadness.of_value[source] == cut.deadness.of_value[value]
    )
    return source if together and _size(source.type) < _size(made) else None


def is_rounded(kind: Type, src: str, dst: str) -> bool:
    """Whether a value goes as bfloat16, where that is chosen: float32 that is no scalar, from task
    to task."""
    if not isinstance(kind, TensorType):
        return False
    return kind.dtype is float32 and bool(kind.shape) and _task(src) != _task(dst)


def _size(kind: TensorType) -> int:
    return kind.dtype.numpy.itemsize


@lru_cache(4096)
def _task(device: str) -> str:
    return DeviceSpec.parse(device).task_name
