"""Where in the user's program an op was made."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a source file: `file`, 1-based `line`, 1-based `column` (0: unknown)."""

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def describe(self) -> str:
        """The place and, where the file can be read, the source line itself."""
        import linecache

        text = linecache.getline(self.file, self.line).strip()
        return f"{self}: {text}" if text else str(self)


Locations = tuple[Location, ...]


def caller_location() -> Locations:
    """The innermost frame outside the weft package: the user's line; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return () if frame is None else (_frame_location(frame),)


def _frame_location(frame: FrameType) -> Location:
    code = frame.f_code
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), None)
    column = 0 if position is None or position[2] is None else position[2] + 1
    return Location(code.co_filename, frame.f_lineno, column)


def merge_locations(*groups: Locations) -> Locations:
    """The union in order of first appearance: a fused op keeps the place of every op in it."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(groups)))
