"""What never ended in a step that has nothing left to run: a loop one of whose enters got no value,
live or dead."""

from __future__ import annotations

import ctypes

from weft.ir.analysis.frames import unended_frame
from weft.ir.errors import InternalError, WeftError
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Built
from weft.runtime.dataflow.nodes import Node, Tables


def unended(built: Built, tables: Tables, root: int) -> WeftError:
    """The error for a step whose root iteration is at `root`: it names frame and enter."""
    found = _search(built, tables, 0, root)
    if found is None:
        return InternalError("a step on the dataflow executor ended with nodes under way")
    number, iteration, node = found
    outer = built.frames[number].parent
    inside = _word(iteration + at.I_NUMBER) if outer else None
    names = built.frame_names
    short = names[number].rpartition("/")[2], names[outer].rpartition("/")[2]
    return unended_frame(short[0], built.op_of[node], built.labels[node], short[1], inside)


def _search(
    built: Built, tables: Tables, frame: int, iteration: int
) -> tuple[int, int, Node] | None:
    """The number of a frame that began in `iteration` of `frame`, the iteration, and the enter that
    is missing."""
    for number, inner in enumerate(built.frames):
        instance = _word(iteration + tables.child_at(number)) if inner.parent == frame else 0
        if number == 0 or not instance:
            continue
        for node in built.nodes:
            if node.kind == at.ENTER and node.target == number:
                pending = _word(iteration + tables.state_at(node))
                if pending & at.COUNT_MASK:
                    return number, iteration, node
        inside = _word(instance + at.FI_FIRST)
        while inside:
            found = _search(built, tables, number, inside)
            if found is not None:
                return found
            inside = _word(inside + at.I_NEXT)
    return None


def _word(address: int) -> int:
    return int(ctypes.c_int64.from_address(address).value)
