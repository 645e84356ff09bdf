"""Errors as users see them: without weft's own frames, and with the signature of a function that
was called in another library's way.

Applied where user's code that weft runs ends: a call of a compiled function, a gradient, a step of
a session, the block of a graph. WEFT_TRACEBACK=full keeps all frames."""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import os
import re
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from weft.frontend.core.public_names import PUBLIC
from weft.ir.errors import InternalError, WeftError
from weft.ir.locations import is_ours

#: What Python says of a call that does not fit, and the function's name in it.
_MISFIT = re.compile(
    r"(?:(\w+)\.)?(\w+)\(\) (?:got an unexpected keyword argument '(\w+)'|takes|got|missing)"
)
#: What calls public functions that `@runs_native` or `@shows_as_seen` is above.
_WRAPPERS = tuple(
    os.path.join("weft", "frontend", *path)
    for path in (("eager", "native.py"), ("core", "user_errors.py"))
)
_MODULES = ("", *PUBLIC, "tf1")
#: Packages that weft's code calls, not the user's: an error in them is that of their caller.
_CALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("numpy", "ml_dtypes", "llvmlite", "numba"))


def as_seen(error: BaseException) -> None:
    """Take weft's frames out of the error's traceback, and add a hint on a misfit call.

    All frames stay of what may be a fault of weft: InternalError, and an error of another kind that
    was raised in weft's code, or in NumPy by weft's code.
    """
    frames = _frames(error.__traceback__)
    if not frames or isinstance(error, InternalError):
        return
    match = _MISFIT.match(str(error)) if type(error) is TypeError else None
    calls = list(frames)
    if match is not None and _file(calls[-1]).endswith(_WRAPPERS):
        wrapper = calls.pop()
        if not calls:  # it is this wrapper that asks: whoever called it is still there
            _explain_called(error, match, wrapper.tb_frame.f_back)
    raised = itertools.dropwhile(lambda tb: any(n in _file(tb) for n in _CALLED), reversed(calls))
    last = next(raised, None)
    if (last is None or is_ours(_file(last))) and not isinstance(error, WeftError):
        if not (isinstance(error, AttributeError) and "\n  hint: " in str(error)):
            return  # but for what names of other libraries raise
    if match is not None and last is not None and last is calls[-1]:
        _explain_call(error, match, last.tb_frame, last.tb_lasti)
    if os.environ.get("WEFT_TRACEBACK") == "full":
        return
    after: TracebackType | None = None
    for tb in reversed(frames):
        if not is_ours(_file(tb)):
            tb.tb_next = after
            after = tb
    error.__traceback__ = after


P = ParamSpec("P")
R = TypeVar("R")


def shows_as_seen(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate what users call and that runs their code: its errors are `as_seen`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            as_seen(error)
            raise

    return call


def _frames(tb: TracebackType | None) -> list[TracebackType]:
    found = []
    while tb is not None:
        found.append(tb)
        tb = tb.tb_next
    return found


def _file(tb: TracebackType) -> str:
    return tb.tb_frame.f_code.co_filename


def _explain_called(error: BaseException, match: re.Match[str], caller: FrameType | None) -> None:
    if caller is not None and not is_ours(caller.f_code.co_filename):
        _explain_call(error, match, caller, caller.f_lasti)


def _explain_call(
    error: BaseException, match: re.Match[str], frame: FrameType, instruction: int
) -> None:
    """Add the signature of the public function that a misfit call was of, that instruction of the
    frame."""
    owner, name, keyword = match.groups()
    if getattr(error, "__notes__", None):
        return
    if name == "__init__":
        name = owner
    weft = sys.modules["weft"]
    for module in _MODULES:
        where = getattr(weft, module) if module else weft
        function: Any = getattr(where, name, None) if name in where.__all__ else None
        if function is not None and (
            owner == "Operators" or _called(frame, instruction) is function
        ):
            break
    else:
        return
    from weft.frontend.core.foreign_names import KEYWORDS  # only who makes a mistake needs it

    signature = inspect.signature(function)
    public = f"wf.{module}.{name}" if module else f"wf.{name}"
    here = KEYWORDS.get(keyword or "", "")
    if here.startswith("nothing: "):
        error.add_note(f"  hint: '{keyword}' is not there: {here.removeprefix('nothing: ')}")
    elif here.split(",")[0] in signature.parameters:
        error.add_note(f"  hint: '{keyword}' is {here} here")
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    shown = signature.replace(parameters=plain, return_annotation=signature.empty)
    text = re.sub(r"<object object at \w+>", "...", f"{public}{shown}")
    error.add_note(f"  hint: the signature is {text}")


def _called(frame: FrameType, instruction: int) -> object:
    """What the call that a frame was in is of, as its source says it: `wf.nn.softmax(...)`. None if
    that cannot be told."""
    positions = itertools.islice(frame.f_code.co_positions(), instruction // 2, None)
    line, _, column, _ = next(positions, (None, None, None, None))
    if line is None or column is None:
        return None
    text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).encode()
    names = re.match(r"([A-Za-z_]\w*(?:\.\w+)*)\s*\(", text[column:].decode(errors="replace"))
    if names is None:
        return None
    first, *others = names[1].split(".")
    found: Any = {**frame.f_globals, **frame.f_locals}.get(first)
    for other in others:
        found = getattr(found, other, None)
    return found
