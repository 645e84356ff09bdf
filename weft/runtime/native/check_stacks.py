"""Stacks among the operands and results of a kernel that is checked: the interpreter's as native
memory, native ones as arrays.

In a graph they are numbers, handles. What a handle stands for follows from the pushes, pops and
sums that it goes through (`stack_kinds`)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.codegen.stacks import HEADER, element_bytes
from weft.ir.graph import Operation, Value
from weft.ir.interpreter.state import Cells, Stack, push
from weft.ir.ops.control_flow import CONTROL, HANDLE, element_type
from weft.ir.spec import int_attr
from weft.ir.types import TensorType
from weft.passes.differential import random_array

Array = np.ndarray[Any, Any]
#: The type of the tensors on a stack, and 1; 2 for a stack of such stacks, and so on.
Kind = tuple[TensorType, int]
Kinds = Mapping[Value, Kind]
#: A random stack has fewer elements than this.
_FEWER = 4


# ---------------------------------------------------------------------------------- what is a stack
def stack_kinds(op: Operation) -> Kinds:
    """What each value in and around an op is a stack of, if it is one. Handles that nobody looks
    into are numbers."""
    kinds: dict[Value, Kind] = {}
    ops = (op, *(o for region in op.regions for o in region.walk()))
    while True:
        known = -1
        while known < len(kinds):
            known = len(kinds)
            for one in ops:
                for pair in _same(one):
                    kind = next((kinds[v] for v in pair if v in kinds and not _is_empty(v)), None)
                    kinds.update((v, kind) for v in pair if kind is not None)
                kinds.update(_told(one, kinds))
        unknown = next((o.results[0] for o in ops if _takes(o) and o.results[0] not in kinds), None)
        if unknown is None:
            return kinds
        kinds[unknown] = HANDLE, 1


def _takes(op: Operation) -> bool:
    return op.name in ("arena_push", "arena_pop")


def _is_empty(value: Value) -> bool:
    """Whether a value is a constant: if a stack, then one without elements. It may be another
    number elsewhere."""
    return value.op is not None and value.op.name == "constant"


def _same(op: Operation) -> Iterator[Sequence[Value]]:
    """Pairs of values that are stacks of the same things."""
    if _takes(op):
        yield op.operands[0], op.results[0]
    elif op.name == "arena_add":
        yield op.operands[0], op.result
        yield op.operands[1], op.result
    elif op.name == "cond":
        for region in op.regions:
            yield from zip(op.operands[1:], region.args, strict=True)
            yield from zip(op.results, region.results, strict=True)
    elif op.name in CONTROL:
        carries = int_attr(op.attrs, "carries") if "carries" in op.attrs else len(op.results)
        for region in op.regions:
            yield from zip(op.operands, region.args, strict=True)
        body = op.regions[-1]
        if "carries" in op.attrs:
            yield from zip(op.operands[:carries], op.results[:carries], strict=True)
        yield from zip(op.results[:carries], body.results[:carries], strict=True)


def _told(op: Operation, kinds: Kinds) -> Iterator[tuple[Value, Kind]]:
    """What an op on stacks says about them."""
    if op.name == "arena_add":
        yield op.result, (element_type(op.attrs), int_attr(op.attrs, "depth"))
    if not _takes(op):
        return
    stack, element = op.results[0], (op.results if op.name == "arena_pop" else op.operands)[1]
    if not op.attrs["nested"]:
        assert isinstance(element.type, TensorType)
        yield stack, (element.type, 1)
    elif element in kinds:
        yield stack, (kinds[element][0], kinds[element][1] + 1)
    elif stack in kinds and kinds[stack][1] > 1:
        yield element, (kinds[stack][0], kinds[stack][1] - 1)


# ----------------------------------------------------------------------------------- random stacks
def random_stack(value: Value, kind: Kind, random: np.random.Generator, cells: Cells) -> Array:
    """The interpreter's handle of a random stack for a value."""
    return cells.handle(None if _is_empty(value) else _random(kind, random, cells))


def _random(kind: Kind, random: np.random.Generator, cells: Cells) -> Stack:
    held, depth = kind
    stack: Stack = None
    for _ in range(int(random.integers(0, _FEWER))):
        element = random_array(held, random, 0)
        if depth > 1:
            element = cells.handle(_random((held, depth - 1), random, cells))
        stack = push(stack, element, -1)
    return stack


# ------------------------------------------------------------------------------------ native memory
def native_handle(handle: Any, kind: Kind, cells: Cells, kept: list[Array]) -> int:
    """The address of the top of a stack of the interpreter's, whose elements are copied to memory
    that goes to `kept`; 0 if it has none."""
    held, depth = kind
    elements = []
    stack = cells.stack(handle)
    while stack is not None:
        elements.append(stack.value)
        stack = stack.below
    place = 0
    for value in reversed(elements):
        data = np.asarray(value)
        if depth > 1:
            data = np.array(native_handle(value, (held, depth - 1), cells, kept), np.int64)
        words = np.zeros(element_bytes(data.nbytes) // 8, np.int64)
        words[0] = place
        words.view(np.uint8)[HEADER : HEADER + data.nbytes] = np.frombuffer(
            data.tobytes(), np.uint8
        )
        kept.append(words)
        place = int(words.ctypes.data)
    return place


def native_elements(place: int, kind: Kind) -> list[Array]:
    """The elements of the stack whose top is at an address, from the top on; of a stack of stacks,
    before each inner one the number of its elements."""
    held, depth = kind
    nbytes = math.prod(held.static_shape) * held.dtype.itemsize if depth == 1 else 8
    found: list[Array] = []
    while place:
        data = ctypes.string_at(place + HEADER, nbytes)
        if depth == 1:
            found.append(np.frombuffer(data, held.dtype.numpy).reshape(held.static_shape))
        else:
            inner = native_elements(int(np.frombuffer(data, np.int64)[0]), (held, depth - 1))
            found += [np.array(len(inner)), *inner]
        place = ctypes.c_int64.from_address(place).value
    return found
