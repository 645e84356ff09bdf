"""Source locations: the user's file, line and column at which an op was made, and the scope: the
`wf.name_scope`s around it and the function of weft's that the user called there.

A scope is a path such as `layer1/relu`, with `/grad` after it for what a gradient is made of; views
of graphs group ops by it. It is a name, as MLIR's NameLoc is, and makes no difference between
locations."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import stat
import sys
from contextvars import ContextVar
from dataclasses import field
from functools import cache, lru_cache
from types import CodeType, FrameType

from weft.ir.dataclass import dataclass

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a source file: `file`, 1-based `line`, 1-based `column` (0: unknown); scope: a
    path of names, "" for none, which does not count in comparisons."""

    file: str
    line: int
    column: int = 0
    scope: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def describe(self) -> str:
        """The place and, if this process has traced the file, the source line itself."""
        text = _source_line(self.file, self.line)
        return f"{self}: {text}" if text else str(self)


Locations = tuple[Location, ...]


#: The path of the `wf.name_scope`s around the code that runs.
name_scopes: ContextVar[str] = ContextVar("name_scopes", default="")


def caller_location() -> Locations:
    """The innermost frame outside the weft package: the user's line, with its scope; empty if there
    is none."""
    frame: FrameType | None = sys._getframe(1)
    called = ""
    while frame is not None and is_ours(frame.f_code.co_filename):
        name = frame.f_code.co_name
        called = called if name in WRAPPERS else name
        frame = frame.f_back
    if frame is None:
        return ()
    # finding a column takes 4 us, a trace asks for few places many times
    code, instruction = frame.f_code, frame.f_lasti
    key = id(code), instruction, called, name_scopes.get()
    known = _places.get(key)
    if known is None or known[0] is not code:
        if len(_places) >= _MOST_PLACES:
            _places.clear()
        known = _places[key] = code, (_frame_location(frame, _scope(key[3], called)),)
    return known[1]


#: Functions of weft's that only call the one that they stand for; what statements of Python become
#: with `wf.compile(autograph=True)`.
WRAPPERS = (
    "call", "__call__", "operation", "converted_call", "if_stmt", "if_exp", "while_stmt",
    "for_stmt", "assert_stmt", "print_", "taken", "once", "deepcopy",
)  # fmt: skip
#: Functions that are no scope: those that are an op (`ir/ops` adds their names).
NO_SCOPES: set[str] = set()


def _scope(around: str, called: str) -> str:
    """The path of a function of weft's that was called within name scopes; operators, private
    functions and single ops are none."""
    own = "" if called.startswith(("_", "<")) or called in NO_SCOPES else called
    return f"{around}/{own}".strip("/")


@lru_cache(4096)
def in_scope(location: Location, scope: str) -> Location:
    """The place with another scope."""
    return Location(location.file, location.line, location.column, scope)


def shared_scope(one: str, other: str) -> str:
    """What the paths of two scopes begin with."""
    pairs = zip(one.split("/"), other.split("/"), strict=False)
    return "/".join([a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])


def scope_within(scope: str, around: str) -> str:
    """A scope as it is called within the scope `around`, of a loop, say: without what both begin
    with."""
    return scope.removeprefix(shared_scope(scope, around)).strip("/")


def gradient_locations(locations: Locations, op: str) -> Locations:
    """The places of what the gradient of an op is made of: in the scope `grad` within the op's, or
    within one of its name if it has none."""
    return tuple([in_scope(at, f"{at.scope or op}/grad") for at in locations])


@cache
def is_ours(file: str) -> bool:
    """Whether a source file is weft's own, or runs only what is."""
    # those run our generators, and our __deepcopy__
    return file.startswith(_PACKAGE) or file in (contextlib.__file__, copy.__file__)


_MOST_PLACES = 4096
# by the identity of the code, which is kept so that it stays the same code's
_places: dict[tuple[int, int, str, str], tuple[CodeType, Locations]] = {}


def _frame_location(frame: FrameType, scope: str) -> Location:
    code = frame.f_code
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), None)
    column = 0 if position is None or position[2] is None else position[2] + 1
    if code.co_filename in _written:
        place = _written[code.co_filename].get(frame.f_lineno)
        if place is not None:
            _traced.add(place.file)
            return in_scope(place, scope)
    _traced.add(code.co_filename)
    return Location(code.co_filename, frame.f_lineno, column, scope)


# Of files that were written from the user's: for each line the place that it stands for.
_written: dict[str, dict[int, Location]] = {}


def write_lines_of(file: str, lines: dict[int, Location]) -> None:
    """Note that Python code in `file` was made from the user's: the place of each of its lines."""
    _written[file] = lines


def definition_location(code: CodeType) -> Locations:
    """Where a Python function is defined."""
    lines = _written.get(code.co_filename)
    if lines:  # the first line of the function that it was made from
        first = min(lines.values())
        _traced.add(first.file)
        return (first,)
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


def source_text(file: str) -> str:
    """The text of a file that was traced here; "" if it cannot be read, or is another's."""
    if not _source_line(file, 1) and file not in _traced:
        return ""
    import linecache

    return "".join(linecache.getlines(file))


def merge_locations(*groups: Locations) -> Locations:
    """The union in order of first appearance: a fused op keeps the place of every op in it."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(groups)))
