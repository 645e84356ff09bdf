"""Source locations: the user's file, line and column at which an op was made."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
from functools import cache
from types import CodeType, FrameType

from weft.ir.dataclass import dataclass

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
        """The place and, if this process has traced the file, the source line itself."""
        text = _source_line(self.file, self.line)
        return f"{self}: {text}" if text else str(self)


Locations = tuple[Location, ...]


def caller_location() -> Locations:
    """The innermost frame outside the weft package: the user's line; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ()
    # finding a column takes 4 us, a trace asks for few places many times
    code, instruction = frame.f_code, frame.f_lasti
    known = _places.get((id(code), instruction))
    if known is None or known[0] is not code:
        if len(_places) >= _MOST_PLACES:
            _places.clear()
        known = _places[id(code), instruction] = code, (_frame_location(frame),)
    return known[1]


@cache
def is_ours(file: str) -> bool:
    """Whether a source file is weft's own, or runs only what is."""
    return file.startswith(_PACKAGE) or file == contextlib.__file__  # which runs our generators


_MOST_PLACES = 4096
# by the identity of the code, which is kept so that it stays the same code's
_places: dict[tuple[int, int], tuple[CodeType, Locations]] = {}


def _frame_location(frame: FrameType) -> Location:
    code = frame.f_code
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), None)
    column = 0 if position is None or position[2] is None else position[2] + 1
    _traced.add(code.co_filename)
    return Location(code.co_filename, frame.f_lineno, column)


def definition_location(code: CodeType) -> Locations:
    """Where a Python function is defined."""
    _traced.add(code.co_filename)
    return (Location(code.co_filename, code.co_firstlineno),)


# The files of the Python code that ran here. A graph from a file or another task has places, too,
# and its author must not choose what is read, and shown, here.
_traced: set[str] = set()
_LONGEST_FILE, _LONGEST_LINE = 16 << 20, 400


def _source_line(file: str, line: int) -> str:
    """A line of a file that was traced here; "" if it cannot be read at once."""
    if file not in _traced:
        return ""
    import linecache

    try:
        if file not in linecache.cache:  # interactive input is there and nowhere else
            status = os.stat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST_FILE:
                return ""
        return linecache.getline(file, line).strip()[:_LONGEST_LINE]
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return ""


def merge_locations(*groups: Locations) -> Locations:
    """The union in order of first appearance: a fused op keeps the place of every op in it."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(groups)))
